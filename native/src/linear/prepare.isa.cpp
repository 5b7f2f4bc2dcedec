// float32 rows -> what the kernels read.
#include "linear/tiles.h"

namespace pellucid {
namespace PELLUCID_ISA {
namespace {

static_assert(RotatedRow::kUnit == 4 * kLanes);

PELLUCID_INLINE void store_int8s(int8_t* p, const Vec (&integers)[4]) {
#if defined(PELLUCID_AVX512)
    // Packing works in quarters of a register: the last step puts those in order.
    const __m512i first = _mm512_packs_epi32(_mm512_cvtps_epi32(integers[0].v), _mm512_cvtps_epi32(integers[1].v));
    const __m512i second = _mm512_packs_epi32(_mm512_cvtps_epi32(integers[2].v), _mm512_cvtps_epi32(integers[3].v));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_storeu_si512(p, _mm512_permutexvar_epi32(order, _mm512_packs_epi16(first, second)));
#else
    for (int j = 0; j < 4; ++j) store_int8(p + j * kLanes, integers[j]);
#endif
}

Vec load_padded(const float* x, int64_t i, int64_t columns) {
    if (i + kLanes <= columns) return load(x + i);
    return i < columns ? load_first(x + i, static_cast<int>(columns - i)) : zero();
}

// One stage of the fast Walsh-Hadamard transform inside a vector: (a, b) -> (a + b, a - b) for lanes `distance` apart.
// Multiplying by +-1 is exact, so fused or not the bits are the same.
template <int distance>
Vec butterfly(Vec a) {
    alignas(64) float signs[kLanes];
    for (int i = 0; i < kLanes; ++i) signs[i] = i & distance ? -1.0f : 1.0f;
    return fma(a, load(signs), swap_lanes<distance>(a));
}

// Hadamard rotation: an orthogonal matrix whose entries are all of one size, its own inverse. It spreads an outlier over
// its block, so that one int8 scale serves a whole row (QuaRot, Ashkboos et al. 2024). Here of 64 elements.
void rotate_block(Vec v[4]) {
    PELLUCID_UNROLL
    for (int j = 0; j < 4; ++j) v[j] = butterfly<8>(butterfly<4>(butterfly<2>(butterfly<1>(v[j]))));
    const Vec a = v[0] + v[1], b = v[0] - v[1], c = v[2] + v[3], d = v[2] - v[3];
    const Vec eighth = splat(0.125f);
    v[0] = (a + c) * eighth;
    v[1] = (b + d) * eighth;
    v[2] = (a - c) * eighth;
    v[3] = (b - d) * eighth;
}


// The largest int8 is 127, so that the codes are symmetric; 0 for a row of zeros.
float inverse_scale(float largest, float largest_code = 127.0f) { return largest > 0 ? largest_code / largest : 0.0f; }

constexpr float kLargestFine = 127.0f * 128.0f;  // a 15-bit integer: 128 * high + low, low in [-64, 64)

// 16 integers of at most kLargestFine as two int8 each. Exact: floats hold them.
void store_fine(int8_t* high, int8_t* low, Vec integers) {
    const Vec upper = round(integers * splat(1.0f / 128.0f));
    store_int8(high, upper);
    store_int8(low, integers - upper * splat(128.0f));
}

// The stages that make one block of N neighbouring units, all in registers, and the factor. Returns the largest magnitudes.
template <int N>
Vec combine_units(float* x, int64_t count, Vec factor) {
    constexpr int64_t kUnit = RotatedRow::kUnit;
    Vec largest = zero();
    for (int64_t begin = 0; begin < count; begin += N * kUnit) {
        for (int64_t i = begin; i < begin + kUnit; i += kLanes) {
            Vec v[N];
            PELLUCID_UNROLL
            for (int j = 0; j < N; ++j) v[j] = load(x + i + j * kUnit);
            PELLUCID_UNROLL
            for (int distance = 1; distance < N; distance *= 2) {
                PELLUCID_UNROLL
                for (int j = 0; j < N; ++j) {
                    if ((j & distance) != 0) continue;
                    const Vec a = v[j], b = v[j + distance];
                    v[j] = a + b;
                    v[j + distance] = a - b;
                }
            }
            PELLUCID_UNROLL
            for (int j = 0; j < N; ++j) {
                v[j] = v[j] * factor;
                largest = max(largest, abs(v[j]));
                store(x + i + j * kUnit, v[j]);
            }
        }
    }
    return largest;
}

Vec combine_units(float* x, int64_t count, int64_t units) {
    const Vec factor = splat(std::sqrt(1.0f / static_cast<float>(units)));
    switch (units) {
        case 2: return combine_units<2>(x, count, factor);
        case 4: return combine_units<4>(x, count, factor);
        case 8: return combine_units<8>(x, count, factor);
        default: return combine_units<16>(x, count, factor);
    }
}
static_assert(RotatedRow::kLargestBlock == 16 * RotatedRow::kUnit);

// NaN and infinities do not survive as integers. The sum of the rounded values is NaN then: it makes the scale NaN, and with
// it the row's whole result, for the runner to see. Otherwise 0.
float poison(float sum_of_rounded) { return 0.0f * sum_of_rounded; }

int32_t to_int(float sum_of_rounded) { return sum_of_rounded == sum_of_rounded ? static_cast<int32_t>(sum_of_rounded) : 0; }

}  // namespace

void to_f32(const float* x, int64_t columns, std::byte* row) {
    std::memcpy(row, x, static_cast<size_t>(columns) * sizeof(float));
}

void to_bf16(const float* x, int64_t columns, std::byte* row) {
    uint16_t* out = reinterpret_cast<uint16_t*>(row);
    for (int64_t i = 0; i < static_cast<int64_t>(round_up(columns, kBf16Unit)); i += kLanes)
        store_bf16(out + i, load_padded(x, i, columns));
}

void to_int8_rotated(const float* x, int64_t columns, std::byte* row, float* rotate_scratch) {
    const RotatedRow layout(columns);
    Vec largest = zero();
    for (int64_t i = 0; i < layout.padded; i += RotatedRow::kUnit) {
        Vec v[4];
        PELLUCID_UNROLL
        for (int j = 0; j < 4; ++j) v[j] = load_padded(x, i + j * kLanes, columns);
        rotate_block(v);
        PELLUCID_UNROLL
        for (int j = 0; j < 4; ++j) {
            store(rotate_scratch + i + j * kLanes, v[j]);
            largest = max(largest, abs(v[j]));
        }
    }
    const int64_t units = layout.block / RotatedRow::kUnit;
    if (units > 1) largest = combine_units(rotate_scratch, layout.padded, units);
    const float range = reduce_max(largest);
    const Vec inverse = splat(inverse_scale(range));
    int8_t* out = reinterpret_cast<int8_t*>(row);
    Vec sums[4] = {zero(), zero(), zero(), zero()};  // of integers far below 2^24: exact
    for (int64_t i = 0; i < layout.padded; i += 4 * kLanes) {
        Vec rounded[4];
        PELLUCID_UNROLL
        for (int j = 0; j < 4; ++j) {
            rounded[j] = round(load(rotate_scratch + i + j * kLanes) * inverse);
            sums[j] = sums[j] + rounded[j];
        }
        store_int8s(out + i, rounded);
    }
    const float sum = reduce_add((sums[0] + sums[1]) + (sums[2] + sums[3]));
    const float scale = range / 127.0f + poison(sum);
    const int32_t minus_sum = -to_int(sum);
    std::memcpy(row + layout.padded, &scale, sizeof scale);
    std::memcpy(row + layout.padded + 4, &minus_sum, sizeof minus_sum);
}

void to_int_groups(const float* x, int64_t columns, bool fine, std::byte* row) {
    const GroupedRow layout(columns, fine);
    const float largest_code = fine ? kLargestFine : 127.0f;
    int8_t* out = reinterpret_cast<int8_t*>(row);
    float* scales = reinterpret_cast<float*>(row + layout.scales);
    float* scaled_sums = reinterpret_cast<float*>(row + layout.scaled_sums);
    int32_t* sums = reinterpret_cast<int32_t*>(row + layout.sums);
    int32_t* half_sums = reinterpret_cast<int32_t*>(row + layout.half_sums);
    for (int64_t g = 0; g < layout.groups; ++g) {
        const int64_t i = g * kGroup;
        const Vec a = load_padded(x, i, columns), b = load_padded(x, i + kLanes, columns);
        const float range = reduce_max(max(abs(a), abs(b)));
        const Vec inverse = splat(inverse_scale(range, largest_code));
        const Vec first = round(a * inverse), second = round(b * inverse);
        if (fine) {
            store_fine(out + i, out + layout.lows + i, first);
            store_fine(out + i + kLanes, out + layout.lows + i + kLanes, second);
        } else {
            store_int8(out + i, first);
            store_int8(out + i + kLanes, second);
        }
        const float first_total = reduce_add(first), second_total = reduce_add(second);
        const int32_t first_sum = to_int(first_total), second_sum = to_int(second_total);
        scales[g] = range / largest_code + poison(first_total + second_total);
        scaled_sums[g] = scales[g] * static_cast<float>(first_sum + second_sum);
        sums[g] = -(first_sum + second_sum);
        half_sums[2 * g] = -first_sum;
        half_sums[2 * g + 1] = -second_sum;
    }
}

}  // namespace PELLUCID_ISA
}  // namespace pellucid
