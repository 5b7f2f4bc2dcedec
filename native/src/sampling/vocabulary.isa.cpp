#include "sampling/vocabulary.h"

#include "simd.h"

namespace pellucid {
namespace PELLUCID_ISA {
namespace {

PELLUCID_INLINE int64_t chunk_length(int64_t n, int64_t begin) {
    return n - begin < kVocabularyChunk ? n - begin : kVocabularyChunk;
}

void chunk_tops(const float* row, int64_t n, float* tops) {
    for (int64_t begin = 0; begin < n; begin += kVocabularyChunk) {
        const float* x = row + begin;
        const int64_t count = chunk_length(n, begin);
        Vec top[2] = {splat(-INFINITY), splat(-INFINITY)};
        // A comparison with NaN is false for both: counting what is equal to itself finds them.
        int64_t ordered = 0, i = 0;
        for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
            top[0] = max(top[0], load(x + i));
            top[1] = max(top[1], load(x + i + kLanes));
        }
        float highest = reduce_max(max(top[0], top[1]));
        for (; i < count; ++i) highest = x[i] > highest ? x[i] : highest;
        for (i = 0; i < count; ++i) ordered += x[i] == x[i];
        tops[begin / kVocabularyChunk] = ordered == count ? highest : NAN;
    }
}

template <bool kKeep>
void exponentials(const float* row, int64_t n, float highest, float temperature, float cut, float* weights, float* sums) {
    const Vec top = splat(highest), divisor = splat(temperature);
    for (int64_t begin = 0; begin < n; begin += kVocabularyChunk) {
        const int64_t count = chunk_length(n, begin);
        Vec sum = zero();
        for (int64_t i = 0; i < count; i += kLanes) {
            const int lanes = count - i < kLanes ? static_cast<int>(count - i) : kLanes;
            const Vec x = lanes == kLanes ? load(row + begin + i) : keep_first(load_first(row + begin + i, lanes), lanes, -INFINITY);
            Vec weight = exp((x - top) / divisor);
            if (kKeep) {
                weight = zero_where_below(weight, weight, cut);
                store_first(weights + begin + i, weight, lanes);
            }
            sum = sum + weight;
        }
        sums[begin / kVocabularyChunk] = reduce_add(sum);
    }
}

void weights(const float* row, int64_t n, float highest, float temperature, float cut, float* out, float* sums) {
    exponentials<true>(row, n, highest, temperature, cut, out, sums);
}

void exp_sums(const float* row, int64_t n, float highest, float* sums) {
    exponentials<false>(row, n, highest, 1.0f, 0.0f, nullptr, sums);
}

int64_t count_above(const float* row, int64_t n, float x) {
    int64_t total = 0;
    for (int64_t begin = 0; begin < n; begin += kVocabularyChunk) {
        const int64_t count = chunk_length(n, begin);
        int32_t above = 0;
        for (int64_t i = 0; i < count; ++i) above += row[begin + i] > x;
        total += above;
    }
    return total;
}

void mask(float* row, int64_t n, const int32_t* words) {
    for (int64_t begin = 0; begin < n; begin += 32) {
        const uint32_t word = static_cast<uint32_t>(words[begin / 32]);
        if (word == 0xffffffffu) continue;
        const int64_t count = n - begin < 32 ? n - begin : 32;
        for (int64_t i = 0; i < count; ++i) row[begin + i] = word >> i & 1 ? row[begin + i] : -INFINITY;
    }
}

}  // namespace

const VocabularyKernels& vocabulary_kernels() {
    static constexpr VocabularyKernels kernels{chunk_tops, weights, exp_sums, count_above, mask};
    return kernels;
}

}  // namespace PELLUCID_ISA
}  // namespace pellucid
