// One logical vector of 16 floats ("Vec"), whatever the instruction set: a zmm register, two ymm, or what the compiler
// makes of 64 bytes. Kernels are written once against it and have the same shape, and the same order of reduction, on
// every machine. Only for *.isa.cpp files.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(PELLUCID_ISA_amx)
#define PELLUCID_TILES 1
#endif
#if defined(PELLUCID_ISA_avx512bf16) || defined(PELLUCID_ISA_amx)
#define PELLUCID_DOTS 1  // instructions that multiply and add up bytes and bf16
#endif
#if defined(PELLUCID_ISA_avx512) || defined(PELLUCID_DOTS)
#define PELLUCID_AVX512 1
#elif defined(PELLUCID_ISA_avx2)
#define PELLUCID_AVX2 1
#endif
#if defined(PELLUCID_AVX512) || defined(PELLUCID_AVX2)
#include <immintrin.h>
#endif

#define PELLUCID_INLINE static inline __attribute__((always_inline))

// Loops over sums held in registers: one that stays a loop would keep them in memory.
#define PELLUCID_UNROLL _Pragma("GCC unroll 16")

namespace pellucid {
namespace PELLUCID_ISA {

constexpr int kLanes = 16;

#if defined(PELLUCID_AVX512)
// ---- AVX-512 ---------------------------------------------------------------------------------------------------------

struct Vec { __m512 v; };

PELLUCID_INLINE Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
PELLUCID_INLINE void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
PELLUCID_INLINE __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1); }
PELLUCID_INLINE Vec load_first(const float* p, int n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
PELLUCID_INLINE void store_first(float* p, Vec a, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), a.v); }
PELLUCID_INLINE Vec splat(float x) { return {_mm512_set1_ps(x)}; }
PELLUCID_INLINE Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
PELLUCID_INLINE Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
PELLUCID_INLINE Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
PELLUCID_INLINE Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
PELLUCID_INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// max, min: b where either is NaN.
PELLUCID_INLINE Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
PELLUCID_INLINE Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
PELLUCID_INLINE Vec abs(Vec a) { return {_mm512_abs_ps(a.v)}; }
PELLUCID_INLINE Vec round(Vec a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// a * 2^n for integral n.
PELLUCID_INLINE Vec scale_by_power_of_two(Vec a, Vec n) { return {_mm512_scalef_ps(a.v, n.v)}; }
// Lanes whose index is >= n become `value`.
PELLUCID_INLINE Vec keep_first(Vec a, int n, float value) {
    return {_mm512_mask_mov_ps(_mm512_set1_ps(value), first_lanes(n), a.v)};
}
// Lanes whose index is < n become `value`.
PELLUCID_INLINE Vec drop_first(Vec a, int n, float value) {
    return {_mm512_mask_mov_ps(a.v, first_lanes(n), _mm512_set1_ps(value))};
}
// a, but 0 where x < limit.
PELLUCID_INLINE Vec zero_where_below(Vec a, Vec x, float limit) {
    return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, _mm512_set1_ps(limit), _CMP_NLT_UQ), a.v)};
}
PELLUCID_INLINE float reduce_add(Vec a) { return _mm512_reduce_add_ps(a.v); }
PELLUCID_INLINE float reduce_max(Vec a) { return _mm512_reduce_max_ps(a.v); }

// 32 bfloat16 as two vectors: the even elements and the odd ones.
PELLUCID_INLINE void load_bf16_pairs(const uint16_t* p, Vec& even, Vec& odd) {
    const __m512i bits = _mm512_loadu_si512(p);
    even.v = _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
    odd.v = _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}
// 32 int8 as two vectors: the even elements and the odd ones.
PELLUCID_INLINE void load_int8_pairs(const int8_t* p, Vec& even, Vec& odd) {
    const __m512i pairs = _mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    even.v = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(pairs, 24), 24));
    odd.v = _mm512_cvtepi32_ps(_mm512_srai_epi32(pairs, 8));
}
PELLUCID_INLINE Vec load_bf16(const uint16_t* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}

// Round to nearest even, as integer arithmetic does it too, so that every instruction set agrees; NaN stays NaN.
PELLUCID_INLINE void store_bf16(uint16_t* p, Vec a) {
#if defined(PELLUCID_DOTS)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(a.v));
#else
    const __m512i bits = _mm512_castps_si512(a.v);
    const __m512i lsb = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), lsb);
    const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
    rounded = _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc00000));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
#endif
}

#elif defined(PELLUCID_AVX2)
// ---- AVX2 ------------------------------------------------------------------------------------------------------------

struct Vec { __m256 lo, hi; };

PELLUCID_INLINE Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
PELLUCID_INLINE void store(float* p, Vec a) { _mm256_storeu_ps(p, a.lo), _mm256_storeu_ps(p + 8, a.hi); }
PELLUCID_INLINE Vec splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
PELLUCID_INLINE Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
PELLUCID_INLINE Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
PELLUCID_INLINE Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
PELLUCID_INLINE Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
PELLUCID_INLINE Vec fma(Vec a, Vec b, Vec c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
PELLUCID_INLINE Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
PELLUCID_INLINE Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
PELLUCID_INLINE Vec abs(Vec a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
PELLUCID_INLINE Vec round(Vec a) {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(a.lo, kNearest), _mm256_round_ps(a.hi, kNearest)};
}
// a * 2^n for integral n in [-126, 127].
PELLUCID_INLINE __m256 power_of_two(__m256 n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
PELLUCID_INLINE Vec scale_by_power_of_two(Vec a, Vec n) {
    return {_mm256_mul_ps(a.lo, power_of_two(n.lo)), _mm256_mul_ps(a.hi, power_of_two(n.hi))};
}
PELLUCID_INLINE __m256 lanes_below(int n, int first) {
    const __m256i index = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(first));
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), index));
}
PELLUCID_INLINE Vec load_first(const float* p, int n) {
    return {_mm256_maskload_ps(p, _mm256_castps_si256(lanes_below(n, 0))),
            _mm256_maskload_ps(p + 8, _mm256_castps_si256(lanes_below(n, 8)))};
}
PELLUCID_INLINE void store_first(float* p, Vec a, int n) {
    _mm256_maskstore_ps(p, _mm256_castps_si256(lanes_below(n, 0)), a.lo);
    _mm256_maskstore_ps(p + 8, _mm256_castps_si256(lanes_below(n, 8)), a.hi);
}
PELLUCID_INLINE Vec keep_first(Vec a, int n, float value) {
    const __m256 other = _mm256_set1_ps(value);
    return {_mm256_blendv_ps(other, a.lo, lanes_below(n, 0)), _mm256_blendv_ps(other, a.hi, lanes_below(n, 8))};
}
PELLUCID_INLINE Vec drop_first(Vec a, int n, float value) {
    const __m256 other = _mm256_set1_ps(value);
    return {_mm256_blendv_ps(a.lo, other, lanes_below(n, 0)), _mm256_blendv_ps(a.hi, other, lanes_below(n, 8))};
}
PELLUCID_INLINE Vec zero_where_below(Vec a, Vec x, float limit) {
    const __m256 bound = _mm256_set1_ps(limit);
    return {_mm256_and_ps(_mm256_cmp_ps(x.lo, bound, _CMP_NLT_UQ), a.lo),
            _mm256_and_ps(_mm256_cmp_ps(x.hi, bound, _CMP_NLT_UQ), a.hi)};
}
PELLUCID_INLINE float reduce_add(Vec a) {
    const __m256 eight = _mm256_add_ps(a.lo, a.hi);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
PELLUCID_INLINE float reduce_max(Vec a) {
    const __m256 eight = _mm256_max_ps(a.lo, a.hi);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}
PELLUCID_INLINE __m256 even_bf16(__m256i bits) { return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)); }
PELLUCID_INLINE __m256 odd_bf16(__m256i bits) {
    return _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}
PELLUCID_INLINE void load_bf16_pairs(const uint16_t* p, Vec& even, Vec& odd) {
    const __m256i lo = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const __m256i hi = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16));
    even = {even_bf16(lo), even_bf16(hi)};
    odd = {odd_bf16(lo), odd_bf16(hi)};
}
PELLUCID_INLINE void load_int8_pairs(const int8_t* p, Vec& even, Vec& odd) {
    const __m256i lo = _mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i hi = _mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16)));
    even = {_mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(lo, 24), 24)),
            _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(hi, 24), 24))};
    odd = {_mm256_cvtepi32_ps(_mm256_srai_epi32(lo, 8)), _mm256_cvtepi32_ps(_mm256_srai_epi32(hi, 8))};
}
PELLUCID_INLINE Vec load_bf16(const uint16_t* p) {
    const __m128i lo = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m128i hi = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(lo), 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(hi), 16))};
}
PELLUCID_INLINE __m256i rounded_bf16(__m256 a) {
    const __m256i bits = _mm256_castps_si256(a);
    const __m256i lsb = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), lsb);
    const __m256 nan = _mm256_cmp_ps(a, a, _CMP_UNORD_Q);
    const __m256 quiet = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
    return _mm256_srli_epi32(_mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(rounded), quiet, nan)), 16);
}
PELLUCID_INLINE void store_bf16(uint16_t* p, Vec a) {
    const __m256i packed = _mm256_packus_epi32(rounded_bf16(a.lo), rounded_bf16(a.hi));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}

#else
// ---- portable --------------------------------------------------------------------------------------------------------

typedef float Floats16 __attribute__((vector_size(64)));
typedef int32_t Ints16 __attribute__((vector_size(64)));
struct Vec { Floats16 v; };

constexpr Ints16 kIndex = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

PELLUCID_INLINE Vec load(const float* p) {
    Vec a;
    std::memcpy(&a.v, p, sizeof a.v);
    return a;
}
PELLUCID_INLINE void store(float* p, Vec a) { std::memcpy(p, &a.v, sizeof a.v); }
PELLUCID_INLINE Vec splat(float x) { return {Floats16{} + x}; }
PELLUCID_INLINE Vec load_first(const float* p, int n) {
    Vec a = splat(0.0f);
    std::memcpy(&a.v, p, n * sizeof(float));
    return a;
}
PELLUCID_INLINE void store_first(float* p, Vec a, int n) { std::memcpy(p, &a.v, n * sizeof(float)); }
PELLUCID_INLINE Vec operator+(Vec a, Vec b) { return {a.v + b.v}; }
PELLUCID_INLINE Vec operator-(Vec a, Vec b) { return {a.v - b.v}; }
PELLUCID_INLINE Vec operator*(Vec a, Vec b) { return {a.v * b.v}; }
PELLUCID_INLINE Vec operator/(Vec a, Vec b) { return {a.v / b.v}; }
// Not fused: a fused multiply-add without hardware is a library call. Part of what this "machine" computes.
PELLUCID_INLINE Vec fma(Vec a, Vec b, Vec c) { return {a.v * b.v + c.v}; }
PELLUCID_INLINE Vec max(Vec a, Vec b) { return {a.v > b.v ? a.v : b.v}; }
PELLUCID_INLINE Vec min(Vec a, Vec b) { return {a.v < b.v ? a.v : b.v}; }
PELLUCID_INLINE Vec abs(Vec a) { return {(Floats16)((Ints16)a.v & 0x7fffffff)}; }
// Adding and taking away 1.5 * 2^23 rounds to nearest even; right for |a| < 2^22, which is all that is asked of it.
PELLUCID_INLINE Vec round(Vec a) { return {(a.v + 12582912.0f) - 12582912.0f}; }
PELLUCID_INLINE Vec scale_by_power_of_two(Vec a, Vec n) {
    const Ints16 exponent = __builtin_convertvector(n.v, Ints16) + 127;
    return {a.v * (Floats16)(exponent << 23)};
}
PELLUCID_INLINE Vec keep_first(Vec a, int n, float value) { return {kIndex < n ? a.v : Floats16{} + value}; }
PELLUCID_INLINE Vec drop_first(Vec a, int n, float value) { return {kIndex < n ? Floats16{} + value : a.v}; }
PELLUCID_INLINE Vec zero_where_below(Vec a, Vec x, float limit) { return {x.v < limit ? Floats16{} : a.v}; }
PELLUCID_INLINE float reduce_add(Vec a) {
    float lanes[16];
    store(lanes, a);
    for (int width = 8; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
    return lanes[0];
}
PELLUCID_INLINE float reduce_max(Vec a) {
    float lanes[16];
    store(lanes, a);
    for (int i = 1; i < 16; ++i) lanes[0] = lanes[0] > lanes[i] ? lanes[0] : lanes[i];
    return lanes[0];
}
PELLUCID_INLINE void load_bf16_pairs(const uint16_t* p, Vec& even, Vec& odd) {
    for (int i = 0; i < 16; ++i) {  // as numbers, not as bytes in memory: right for either byte order
        const uint32_t lo = static_cast<uint32_t>(p[2 * i]) << 16, hi = static_cast<uint32_t>(p[2 * i + 1]) << 16;
        float a, b;
        std::memcpy(&a, &lo, 4);
        std::memcpy(&b, &hi, 4);
        even.v[i] = a;
        odd.v[i] = b;
    }
}
PELLUCID_INLINE void load_int8_pairs(const int8_t* p, Vec& even, Vec& odd) {
    for (int i = 0; i < 16; ++i) {
        even.v[i] = p[2 * i];
        odd.v[i] = p[2 * i + 1];
    }
}
PELLUCID_INLINE Vec load_bf16(const uint16_t* p) {
    Ints16 bits;
    for (int i = 0; i < 16; ++i) bits[i] = static_cast<int32_t>(static_cast<uint32_t>(p[i]) << 16);
    return {(Floats16)bits};
}
PELLUCID_INLINE void store_bf16(uint16_t* p, Vec a) {
    typedef uint32_t Unsigned16 __attribute__((vector_size(64)));
    const Unsigned16 bits = (Unsigned16)a.v;
    const Unsigned16 rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    for (int i = 0; i < 16; ++i) p[i] = a.v[i] != a.v[i] ? 0x7fc0 : static_cast<uint16_t>(rounded[i] >> 16);
}
#endif

// ---- the same on all -------------------------------------------------------------------------------------------------

PELLUCID_INLINE Vec zero() { return splat(0.0f); }

// e^x within 2 units in the last place for x in [-87, 88]; exactly 0 below, e^88 above, exactly 1 at 0, NaN for NaN
// (the order of max's and min's arguments sees to that: they return the second where either is NaN).
PELLUCID_INLINE Vec exp(Vec x) {
    const Vec clamped = min(splat(88.0f), max(splat(-87.0f), x));
    const Vec n = round(clamped * splat(1.44269504f));
    // x - n * ln 2 in two steps: the high part of ln 2 has few enough bits to be exact times n.
    Vec r = fma(n, splat(-0.693359375f), clamped);
    r = fma(n, splat(2.12194440e-4f), r);
    Vec p = splat(1.0f / 5040.0f);
    p = fma(p, r, splat(1.0f / 720.0f));
    p = fma(p, r, splat(1.0f / 120.0f));
    p = fma(p, r, splat(1.0f / 24.0f));
    p = fma(p, r, splat(1.0f / 6.0f));
    p = fma(p, r, splat(0.5f));
    p = fma(p, r, splat(1.0f));
    p = fma(p, r, splat(1.0f));
    return zero_where_below(scale_by_power_of_two(p, n), x, -87.0f);
}

PELLUCID_INLINE float exp(float x) {
    float lanes[16];
    store(lanes, exp(splat(x)));
    return lanes[0];
}

// 1 - 2 / (e^2x + 1): within 1.2e-7 absolutely, which is what its users (gelu, soft caps) need.
PELLUCID_INLINE Vec tanh(Vec x) { return splat(1.0f) - splat(2.0f) / (exp(x + x) + splat(1.0f)); }

}  // namespace PELLUCID_ISA
}  // namespace pellucid
