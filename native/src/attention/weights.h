// From scores to weights that are rounded to bf16, row by row, tile by tile. Only for *.isa.cpp files.
#pragma once
#include "attention/micro_kernels.h"

#if defined(PELLUCID_DOTS)
namespace pellucid {
namespace PELLUCID_ISA {

constexpr float kLog2E = 1.44269504f;

// 2^y for y <= 0, within 3e-6 of it: weights are rounded to bf16. Not below 2^-100, because denormal numbers cost as much
// as hundreds of others.
PELLUCID_INLINE Vec weight_of(Vec y) {
    y = max(splat(-100.0f), y);
    const Vec r = {_mm512_reduce_ps(y.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};  // y - floor(y)
    Vec p = splat(0.0134258419f);
    p = fma(p, r, splat(0.0522438223f));
    p = fma(p, r, splat(0.241279583f));
    p = fma(p, r, splat(0.69304492f));
    p = fma(p, r, splat(1.0f));
    return {_mm512_scalef_ps(p.v, y.v)};  // p * 2^floor(y)
}

// The greatest score of a row with the tiles [begin, end), or `least`. mine: the keys that the row sees, looked at only if
// `masked`. int8 only (scaled): scores are multiplied with the key's scale, where there are key_scales.
template <bool scaled, bool masked>
PELLUCID_INLINE float top_of_tiles(const float* s, int begin, int end, KeyRange mine, const float* const* key_scales,
                                   float least) {
    Vec top = splat(least);
    for (int t = begin; t < end; ++t) {
        Vec x = load(s + t * kTileKeys);
        if (scaled && key_scales != nullptr) x = x * load(key_scales[t]);
        if constexpr (masked) x = only_visible(x, t, mine, -INFINITY);
        top = max(top, x);
    }
    return reduce_max(top);
}

// Scores to weights p = 2^(score * factor + offset), 0 for the keys that the row does not see. Returns the sum of the rounded
// weights, so that they add up to 1 whatever the rounding; int8 only: of the weights before each is multiplied with its
// value's scale.
template <bool scaled, bool masked>
PELLUCID_INLINE float weights_of_tiles(const float* s, uint16_t* p, int begin, int end, KeyRange mine, float factor,
                                       float offset, const float* const* key_scales, const float* const* value_scales) {
    const Vec f = splat(factor), o = splat(offset);
    Vec total = zero();
    __m256 pairs = _mm256_setzero_ps();
    const __m256bh ones = (__m256bh)_mm256_set1_epi16(0x3f80);
    for (int t = begin; t < end; ++t) {
        Vec x = load(s + t * kTileKeys);
        if (scaled && key_scales != nullptr) x = x * load(key_scales[t]);
        x = weight_of(fma(x, f, o));
        if constexpr (masked) x = only_visible(x, t, mine, 0.0f);
        if constexpr (scaled) {
            total = total + x;
            x = x * load(value_scales[t]);
            if constexpr (masked) x = only_visible(x, t, mine, 0.0f);  // an unwritten scale may be NaN
        }
        const __m256bh rounded = _mm512_cvtneps_pbh(x.v);
        if constexpr (!scaled) pairs = _mm256_dpbf16_ps(pairs, rounded, ones);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + t * kTileKeys), (__m256i)rounded);
    }
    if constexpr (scaled) return reduce_add(total);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

}  // namespace PELLUCID_ISA
}  // namespace pellucid
#endif
