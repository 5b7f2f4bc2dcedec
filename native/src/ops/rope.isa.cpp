#include "ops/rope.h"

#include "ops/row_kernels.h"
#include "simd.h"

namespace pellucid {
namespace PELLUCID_ISA {

const RowKernels& row_kernels();

namespace {

constexpr int64_t kMaxHeadDim = 512;

// out[i] = x[i] cos - x[i + half] sin; out[i + half] = x[i + half] cos + x[i] sin; the rest unchanged. out is not x.
void rotate(const float* x, const float* cos_sin, int64_t rotary_dim, int64_t head_dim, float* out) {
    const int64_t half = rotary_dim / 2;
    const float *cosines = cos_sin, *sines = cos_sin + half;
    int64_t i = 0;
    for (; i + kLanes <= half; i += kLanes) {
        const Vec a = load(x + i), b = load(x + half + i), c = load(cosines + i), s = load(sines + i);
        store(out + i, a * c - b * s);
        store(out + half + i, b * c + a * s);
    }
    if (i < half) {
        const int rest = static_cast<int>(half - i);
        const Vec a = load_first(x + i, rest), b = load_first(x + half + i, rest);
        const Vec c = load_first(cosines + i, rest), s = load_first(sines + i, rest);
        store_first(out + i, a * c - b * s, rest);
        store_first(out + half + i, b * c + a * s, rest);
    }
    for (int64_t d = rotary_dim; d < head_dim; ++d) out[d] = x[d];
}

PELLUCID_INLINE float largest_magnitude(const float* x, int64_t padded_dim) {
    Vec largest = zero();
    for (int64_t d = 0; d < padded_dim; d += kLanes) largest = max(largest, abs(load(x + d)));
    return reduce_max(largest);
}

// x / scale as int8, scale = max|x| / 127. x: [padded_dim].
float quantize(const float* x, int64_t padded_dim, int8_t* out) {
    const float largest = largest_magnitude(x, padded_dim);
    // The smallest normal number keeps the inverse finite; a NaN or infinity poisons the scale, as it should.
    const float scale = std::fmax(largest / 127.0f, 1.17549435e-38f);
    const Vec inverse = splat(1.0f / scale);
    for (int64_t d = 0; d < padded_dim; d += kLanes) {
        float rounded[kLanes];
        store(rounded, round(min(splat(127.0f), max(splat(-127.0f), load(x + d) * inverse))));
        for (int i = 0; i < kLanes; ++i) out[d + i] = rounded[i] == rounded[i] ? static_cast<int8_t>(rounded[i]) : 0;
    }
    bool finite = true;
    for (int64_t d = 0; d < padded_dim; ++d) finite &= std::fabs(x[d]) <= 3.40282347e38f;
    return finite ? scale : NAN;
}

// Single elements are stored: the token beside this one in a tile may be written by another thread at this moment.
template <typename Element>
void scatter_pairs(const Element* key, const Element* value, int64_t dim, int64_t row, Element* keys, Element* values) {
    for (int64_t d = 0; d < dim; d += 2) {
        std::memcpy(keys + (d / 2 * kTileKeys + row) * 2, key + d, 2 * sizeof(Element));
    }
    Element* to = values + row / 2 * dim * 2 + row % 2;
#if defined(PELLUCID_AVX512)
    if constexpr (sizeof(Element) == 2) {
        const __mmask32 mine = row % 2 ? 0xaaaaaaaau : 0x55555555u;
        for (int64_t d = 0; d < dim; d += kLanes) {
            const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(value + d));
            __m512i pairs = _mm512_cvtepu16_epi32(halves);
            pairs = _mm512_or_si512(pairs, _mm512_slli_epi32(pairs, 16));
            _mm512_mask_storeu_epi16(values + (row / 2 * dim + d) * 2, mine, pairs);
        }
        return;
    }
#endif
    for (int64_t d = 0; d < dim; ++d) to[2 * d] = value[d];
}

// key, value: [padded_dim], zero beyond head_dim.
void write(const float* key, const float* value, int32_t slot, int64_t kv_head, const KVLayout& layout,
           std::byte* cache) {
    const int64_t offset = slot % layout.block_size, row = offset % kTileKeys, dim = layout.padded_dim;
    std::byte* tile = cache + layout.tile_offset(slot / layout.block_size, kv_head, offset / kTileKeys);
    std::byte *keys = tile + layout.keys_offset, *values = tile + layout.values_offset;
    if (layout.type == KVType::bf16) {
        uint16_t k[kMaxHeadDim], v[kMaxHeadDim];
        for (int64_t d = 0; d < dim; d += kLanes) {
            store_bf16(k + d, load(key + d));
            store_bf16(v + d, load(value + d));
        }
        scatter_pairs(k, v, dim, row, reinterpret_cast<uint16_t*>(keys), reinterpret_cast<uint16_t*>(values));
    } else if (layout.type == KVType::int8) {
        int8_t k[kMaxHeadDim], v[kMaxHeadDim];
        float* scales = reinterpret_cast<float*>(tile);
        scales[row] = quantize(key, dim, k);
        scales[kTileKeys + row] = quantize(value, dim, v);
        scatter_pairs(k, v, dim, row, reinterpret_cast<int8_t*>(keys), reinterpret_cast<int8_t*>(values));
    } else {
        float* k = reinterpret_cast<float*>(keys);
        for (int64_t d = 0; d < dim; ++d) k[d * kTileKeys + row] = key[d];
        std::memcpy(reinterpret_cast<float*>(values) + row * dim, value, dim * sizeof(float));
    }
}

void rope_and_cache(const RopeParams& params, const float* qkv, int32_t position, int32_t slot, const KVLayout& layout,
                    std::byte* cache, float* q_out) {
    const int64_t dim = params.head_dim;
    const float* cos_sin = params.cos_sin + position * params.rotary_dim;
    float normed[kMaxHeadDim];
    auto head = [&](const float* x, const float* norm, float* out) {
        if (norm != nullptr) {
            PELLUCID_ISA::row_kernels().rms_norm(x, norm, params.norm_eps, dim, normed);
            x = normed;
        }
        rotate(x, cos_sin, params.rotary_dim, dim, out);
    };
    for (int64_t h = 0; h < params.num_heads; ++h) head(qkv + h * dim, params.q_norm, q_out + h * dim);
    const float* keys = qkv + params.num_heads * dim;
    const float* values = keys + params.num_kv_heads * dim;
    float key[kMaxHeadDim], value[kMaxHeadDim];
    for (int64_t d = dim; d < layout.padded_dim; ++d) key[d] = value[d] = 0.0f;
    for (int64_t h = 0; h < params.num_kv_heads; ++h) {
        head(keys + h * dim, params.k_norm, key);
        std::memcpy(value, values + h * dim, dim * sizeof(float));
        write(key, value, slot, h, layout, cache);
    }
}

}  // namespace

const RopeKernels& rope_kernels() {
    static constexpr RopeKernels kernels{rope_and_cache};
    return kernels;
}

}  // namespace PELLUCID_ISA
}  // namespace pellucid
