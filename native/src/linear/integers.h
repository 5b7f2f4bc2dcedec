// Beside simd.h's vector of 16 floats: 64 bytes of packed weights ("Bytes") and 16 int32 sums ("Ints"), lane for lane
// the same columns. Integer results are exact, hence the same on every instruction set. Only for *.isa.cpp files.
#pragma once
#include "simd.h"

namespace pellucid {
namespace PELLUCID_ISA {

#if defined(PELLUCID_AVX512)
// ---- AVX-512 ---------------------------------------------------------------------------------------------------------

struct Ints { __m512i v; };
struct Bytes { __m512i v; };

PELLUCID_INLINE Bytes load_bytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
PELLUCID_INLINE void store_bytes(uint8_t* p, Bytes a) { _mm512_storeu_si512(p, a.v); }
PELLUCID_INLINE Ints load_ints(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
PELLUCID_INLINE Ints splat_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
PELLUCID_INLINE Ints operator+(Ints a, Ints b) { return {_mm512_add_epi32(a.v, b.v)}; }
template <int n>
PELLUCID_INLINE Ints shift_left(Ints a) { return {_mm512_slli_epi32(a.v, n)}; }
PELLUCID_INLINE Vec to_float(Ints a) { return {_mm512_cvtepi32_ps(a.v)}; }
PELLUCID_INLINE Bytes operator&(Bytes a, Bytes b) { return {_mm512_and_si512(a.v, b.v)}; }
PELLUCID_INLINE Bytes operator|(Bytes a, Bytes b) { return {_mm512_or_si512(a.v, b.v)}; }
PELLUCID_INLINE Bytes splat_byte(uint8_t x) { return {_mm512_set1_epi8(static_cast<char>(x))}; }
// Bits cross byte borders: mask afterwards.
template <int n>
PELLUCID_INLINE Bytes shift_right(Bytes a) { return {_mm512_srli_epi16(a.v, n)}; }
template <int n>
PELLUCID_INLINE Bytes shift_left(Bytes a) { return {_mm512_slli_epi16(a.v, n)}; }
PELLUCID_INLINE Vec load_halves(const uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
PELLUCID_INLINE Vec load_unsigned(const uint8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
PELLUCID_INLINE Vec load_signed(const int8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}

// sums + (4 unsigned weights of each lane) . (4 signed activations, the same for all lanes).
PELLUCID_INLINE Ints dot4(Ints sums, Bytes weights, int32_t activations) {
    const __m512i x = _mm512_set1_epi32(activations);
#if defined(PELLUCID_DOTS)
    // As an intrinsic, gcc 12 copies the sums around every instruction and spills a third of them.
    asm("vpdpbusd %2, %1, %0" : "+v"(sums.v) : "v"(weights.v), "v"(x));
    return sums;
#else
    // maddubs would saturate at 16 bits, so even and odd bytes are multiplied as 16-bit numbers.
    const __m512i even = _mm512_madd_epi16(_mm512_and_si512(weights.v, _mm512_set1_epi16(255)),
                                           _mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8));
    const __m512i odd = _mm512_madd_epi16(_mm512_srli_epi16(weights.v, 8), _mm512_srai_epi16(x, 8));
    return {_mm512_add_epi32(sums.v, _mm512_add_epi32(even, odd))};
#endif
}

#if !defined(PELLUCID_DOTS)
// 16-bit sums of products of codes and activations: dot2 adds two products to each, sum_pairs gives the sum of both
// halves of a lane. Codes of b bits leave room for 2^(7-b) calls of dot2 (15 * 127 * 2 * 8 = 30480).
#define PELLUCID_HAS_SHORTS 1
struct Shorts { __m512i v; };
PELLUCID_INLINE Shorts zero_shorts() { return {_mm512_setzero_si512()}; }
PELLUCID_INLINE Shorts dot2(Shorts sums, Bytes weights, int32_t activations) {
    return {_mm512_add_epi16(sums.v, _mm512_maddubs_epi16(weights.v, _mm512_set1_epi32(activations)))};
}
PELLUCID_INLINE Ints sum_pairs(Shorts shorts) { return {_mm512_madd_epi16(shorts.v, _mm512_set1_epi16(1))}; }
#endif

// sums + (2 bfloat16 weights of each lane) . (2 bfloat16 activations, the same for all lanes).
PELLUCID_INLINE Vec dot2_bf16(Vec sums, Bytes weights, uint32_t activations) {
    const __m512i x = _mm512_set1_epi32(static_cast<int>(activations));
#if defined(PELLUCID_DOTS)
    asm("vdpbf16ps %2, %1, %0" : "+v"(sums.v) : "v"(weights.v), "v"(x));
    return sums;
#else
    const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    const __m512 even = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(weights.v, 16)),
                                        _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)), sums.v);
    return {_mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(weights.v, high)),
                            _mm512_castsi512_ps(_mm512_and_si512(x, high)), even)};
#endif
}

// Lane i of the result is lane i ^ distance; distance is 1, 2, 4 or 8.
template <int distance>
PELLUCID_INLINE Vec swap_lanes(Vec a) {
    if constexpr (distance == 1) return {_mm512_permute_ps(a.v, 0xb1)};
    if constexpr (distance == 2) return {_mm512_permute_ps(a.v, 0x4e)};
    if constexpr (distance == 4) return {_mm512_shuffle_f32x4(a.v, a.v, 0xb1)};
    return {_mm512_shuffle_f32x4(a.v, a.v, 0x4e)};
}

// 16 floats of integral value in [-128, 127].
PELLUCID_INLINE void store_int8(int8_t* p, Vec a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v)));
}

#elif defined(PELLUCID_AVX2)
// ---- AVX2 ------------------------------------------------------------------------------------------------------------

struct Ints { __m256i lo, hi; };
struct Bytes { __m256i lo, hi; };

PELLUCID_INLINE Bytes load_bytes(const uint8_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
PELLUCID_INLINE void store_bytes(uint8_t* p, Bytes a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.lo);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), a.hi);
}
PELLUCID_INLINE Ints splat_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
PELLUCID_INLINE Ints operator+(Ints a, Ints b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
template <int n>
PELLUCID_INLINE Ints shift_left(Ints a) { return {_mm256_slli_epi32(a.lo, n), _mm256_slli_epi32(a.hi, n)}; }
PELLUCID_INLINE Vec to_float(Ints a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
PELLUCID_INLINE Bytes operator&(Bytes a, Bytes b) { return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)}; }
PELLUCID_INLINE Bytes operator|(Bytes a, Bytes b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }
PELLUCID_INLINE Bytes splat_byte(uint8_t x) {
    return {_mm256_set1_epi8(static_cast<char>(x)), _mm256_set1_epi8(static_cast<char>(x))};
}
template <int n>
PELLUCID_INLINE Bytes shift_right(Bytes a) { return {_mm256_srli_epi16(a.lo, n), _mm256_srli_epi16(a.hi, n)}; }
template <int n>
PELLUCID_INLINE Bytes shift_left(Bytes a) { return {_mm256_slli_epi16(a.lo, n), _mm256_slli_epi16(a.hi, n)}; }
PELLUCID_INLINE Vec load_halves(const uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
PELLUCID_INLINE Vec load_unsigned(const uint8_t* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)),
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)))};
}
PELLUCID_INLINE Vec load_signed(const int8_t* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}

#define PELLUCID_HAS_SHORTS 1
struct Shorts { __m256i lo, hi; };
PELLUCID_INLINE Shorts zero_shorts() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
PELLUCID_INLINE Shorts dot2(Shorts sums, Bytes weights, int32_t activations) {
    const __m256i x = _mm256_set1_epi32(activations);
    return {_mm256_add_epi16(sums.lo, _mm256_maddubs_epi16(weights.lo, x)),
            _mm256_add_epi16(sums.hi, _mm256_maddubs_epi16(weights.hi, x))};
}
PELLUCID_INLINE Ints sum_pairs(Shorts shorts) {
    const __m256i ones = _mm256_set1_epi16(1);
    return {_mm256_madd_epi16(shorts.lo, ones), _mm256_madd_epi16(shorts.hi, ones)};
}

// maddubs wants unsigned bytes on one side: the activation's magnitude, its sign going to the weights. Nothing
// saturates, since neither side is ever -128: 2 * 127 * 127 = 32258.
#define PELLUCID_HAS_CENTRED 1
struct CentredBytes { __m256i lo, hi; };
PELLUCID_INLINE CentredBytes load_centred(const uint8_t* p) {
    const __m256i middle = _mm256_set1_epi8(static_cast<char>(128));
    const Bytes codes = load_bytes(p);
    return {_mm256_xor_si256(codes.lo, middle), _mm256_xor_si256(codes.hi, middle)};
}
PELLUCID_INLINE Ints centred_start(int32_t) { return splat_int(0); }
PELLUCID_INLINE Ints dot4_centred(Ints sums, CentredBytes weights, int32_t activations) {
    const __m256i x = _mm256_set1_epi32(activations), magnitude = _mm256_abs_epi8(x);
    const Shorts pairs{_mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(weights.lo, x)),
                       _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(weights.hi, x))};
    return sums + sum_pairs(pairs);
}

PELLUCID_INLINE __m256i dot4_half(__m256i sums, __m256i weights, __m256i even_x, __m256i odd_x) {
    const __m256i even = _mm256_madd_epi16(_mm256_and_si256(weights, _mm256_set1_epi16(255)), even_x);
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(weights, 8), odd_x);
    return _mm256_add_epi32(sums, _mm256_add_epi32(even, odd));
}
// maddubs would saturate at 16 bits, so even and odd bytes are multiplied as 16-bit numbers.
PELLUCID_INLINE Ints dot4(Ints sums, Bytes weights, int32_t activations) {
    const __m256i x = _mm256_set1_epi32(activations);
    const __m256i even_x = _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8), odd_x = _mm256_srai_epi16(x, 8);
    return {dot4_half(sums.lo, weights.lo, even_x, odd_x), dot4_half(sums.hi, weights.hi, even_x, odd_x)};
}

// 15-bit activations are multiplied whole where weights are integers of 16 bits, in half the instructions that their two
// bytes take; for bytes it is no more instructions than with sums of 16 bits, and none of them has to spill. The weights are widened once for all rows, into a buffer that stays in L1, whence an instruction takes
// 8 columns x 2 of k and adds the products in pairs.
#define PELLUCID_WIDENS 1
constexpr int kRowsOfWidened = 3;  // twelve vectors of sums; the weights stay in memory
// 16 columns x 4 of k -> twice 16 columns x 2 of k, `stride` numbers apart.
PELLUCID_INLINE void widen_bytes(Bytes codes, int16_t* out, int64_t stride) {
    const __m256i first = _mm256_set_epi8(-1, 13, -1, 12, -1, 9, -1, 8, -1, 5, -1, 4, -1, 1, -1, 0,  //
                                          -1, 13, -1, 12, -1, 9, -1, 8, -1, 5, -1, 4, -1, 1, -1, 0);
    const __m256i second = _mm256_set_epi8(-1, 15, -1, 14, -1, 11, -1, 10, -1, 7, -1, 6, -1, 3, -1, 2,  //
                                           -1, 15, -1, 14, -1, 11, -1, 10, -1, 7, -1, 6, -1, 3, -1, 2);
    __m256i* to = reinterpret_cast<__m256i*>(out);
    __m256i* to_second = reinterpret_cast<__m256i*>(out + stride);
    _mm256_store_si256(to, _mm256_shuffle_epi8(codes.lo, first));
    _mm256_store_si256(to + 1, _mm256_shuffle_epi8(codes.hi, first));
    _mm256_store_si256(to_second, _mm256_shuffle_epi8(codes.lo, second));
    _mm256_store_si256(to_second + 1, _mm256_shuffle_epi8(codes.hi, second));
}
// 16 integers of a row.
PELLUCID_INLINE void widen_row(const int8_t* row, int16_t* out) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row));
    _mm256_store_si256(reinterpret_cast<__m256i*>(out), _mm256_cvtepi8_epi16(bytes));
}
PELLUCID_INLINE void widen_row(const int8_t* high, const int8_t* low, int16_t* out) {
    const __m256i upper = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(high)));
    const __m256i lower = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(low)));
    _mm256_store_si256(reinterpret_cast<__m256i*>(out), _mm256_add_epi16(_mm256_slli_epi16(upper, 7), lower));
}
// In assembly, since a compiler that sees a weight used for several rows loads it, and spills the sums for it.
PELLUCID_INLINE __m256i add_pairs(__m256i sums, const int16_t* weights, __m256i x) {
    __m256i products;
    asm("vpmaddwd %[w], %[x], %[products]\n\tvpaddd %[products], %[sums], %[sums]"
        : [sums] "+x"(sums), [products] "=&x"(products)
        : [w] "m"(*reinterpret_cast<const __m256i*>(weights)), [x] "x"(x));
    return sums;
}
// All 32 columns, with two elements of k.
PELLUCID_INLINE void dot_pairs(Ints (&sums)[2], const int16_t* weights, int32_t activations) {
    const __m256i x = _mm256_set1_epi32(activations);
    sums[0] = {add_pairs(sums[0].lo, weights, x), add_pairs(sums[0].hi, weights + 16, x)};
    sums[1] = {add_pairs(sums[1].lo, weights + 32, x), add_pairs(sums[1].hi, weights + 48, x)};
}

PELLUCID_INLINE Vec dot2_bf16(Vec sums, Bytes weights, uint32_t activations) {
    const __m256i x = _mm256_set1_epi32(static_cast<int>(activations));
    const __m256 even = even_bf16(x), odd = odd_bf16(x);
    return {_mm256_fmadd_ps(odd_bf16(weights.lo), odd, _mm256_fmadd_ps(even_bf16(weights.lo), even, sums.lo)),
            _mm256_fmadd_ps(odd_bf16(weights.hi), odd, _mm256_fmadd_ps(even_bf16(weights.hi), even, sums.hi))};
}

template <int distance>
PELLUCID_INLINE __m256 swap_lanes_half(__m256 a) {
    if constexpr (distance == 1) return _mm256_permute_ps(a, 0xb1);
    if constexpr (distance == 2) return _mm256_permute_ps(a, 0x4e);
    return _mm256_permute2f128_ps(a, a, 1);
}
template <int distance>
PELLUCID_INLINE Vec swap_lanes(Vec a) {
    if constexpr (distance == 8) return {a.hi, a.lo};
    else return {swap_lanes_half<distance>(a.lo), swap_lanes_half<distance>(a.hi)};
}

PELLUCID_INLINE void store_int8(int8_t* p, Vec a) {
    const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));
    const __m256i ordered = _mm256_permute4x64_epi64(words, 0xd8);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

#else
// ---- portable --------------------------------------------------------------------------------------------------------

typedef uint8_t Bytes64 __attribute__((vector_size(64)));
struct Ints { Ints16 v; };
struct Bytes { Bytes64 v; };

PELLUCID_INLINE Bytes load_bytes(const uint8_t* p) {
    Bytes a;
    std::memcpy(&a.v, p, sizeof a.v);
    return a;
}
PELLUCID_INLINE void store_bytes(uint8_t* p, Bytes a) { std::memcpy(p, &a.v, sizeof a.v); }
PELLUCID_INLINE Ints splat_int(int32_t x) { return {Ints16{} + x}; }
PELLUCID_INLINE Ints operator+(Ints a, Ints b) { return {a.v + b.v}; }
template <int n>
PELLUCID_INLINE Ints shift_left(Ints a) { return {a.v * (1 << n)}; }
PELLUCID_INLINE Vec to_float(Ints a) { return {__builtin_convertvector(a.v, Floats16)}; }
PELLUCID_INLINE Bytes operator&(Bytes a, Bytes b) { return {a.v & b.v}; }
PELLUCID_INLINE Bytes operator|(Bytes a, Bytes b) { return {a.v | b.v}; }
PELLUCID_INLINE Bytes splat_byte(uint8_t x) { return {Bytes64{} + x}; }
template <int n>
PELLUCID_INLINE Bytes shift_right(Bytes a) { return {a.v >> n}; }
template <int n>
PELLUCID_INLINE Bytes shift_left(Bytes a) { return {a.v << n}; }
PELLUCID_INLINE float half_to_float(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
    const uint32_t exponent = (half >> 10) & 31, mantissa = half & 1023;
    if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24
        const float value = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
        return sign ? -value : value;
    }
    const uint32_t bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | mantissa << 13;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
// Not inlined: these loops would be unrolled wherever they appear, for nothing.
[[maybe_unused]] __attribute__((noinline)) static Vec load_halves(const uint16_t* p) {
    Vec a;
    for (int i = 0; i < kLanes; ++i) a.v[i] = half_to_float(p[i]);
    return a;
}
PELLUCID_INLINE Vec load_unsigned(const uint8_t* p) {
    Vec a;
    for (int i = 0; i < kLanes; ++i) a.v[i] = p[i];
    return a;
}
PELLUCID_INLINE Vec load_signed(const int8_t* p) {
    Vec a;
    for (int i = 0; i < kLanes; ++i) a.v[i] = p[i];
    return a;
}
typedef int16_t Words32 __attribute__((vector_size(64)));
typedef uint16_t UnsignedWords32 __attribute__((vector_size(64)));

// The two 16-bit halves of every lane, added.
PELLUCID_INLINE Ints16 sum_of_halves(Words32 a) { return (((Ints16)a << 16) >> 16) + ((Ints16)a >> 16); }

// A product of a byte and a signed byte (never -128) fits 16 bits: 255 * 127 = 32385.
PELLUCID_INLINE Ints dot4(Ints sums, Bytes weights, int32_t activations) {
    const Words32 x = (Words32)(Ints16{} + activations);
    const Words32 even = (Words32)((UnsignedWords32)weights.v & 255) * ((x << 8) >> 8);
    const Words32 odd = (Words32)((UnsignedWords32)weights.v >> 8) * (x >> 8);
    return {sums.v + sum_of_halves(even) + sum_of_halves(odd)};
}
PELLUCID_INLINE Vec low_bf16(Ints16 pairs) { return {(Floats16)(pairs << 16)}; }
PELLUCID_INLINE Vec high_bf16(Ints16 pairs) { return {(Floats16)(pairs & static_cast<int32_t>(0xffff0000u))}; }
PELLUCID_INLINE Vec dot2_bf16(Vec sums, Bytes weights, uint32_t activations) {
    const Ints16 w = (Ints16)weights.v, x = Ints16{} + static_cast<int32_t>(activations);
    return fma(high_bf16(w), high_bf16(x), fma(low_bf16(w), low_bf16(x), sums));
}
template <int distance>
PELLUCID_INLINE Vec swap_lanes(Vec a) {
    Vec b;
    for (int i = 0; i < kLanes; ++i) b.v[i] = a.v[i ^ distance];
    return b;
}
PELLUCID_INLINE void store_int8(int8_t* p, Vec a) {
    for (int i = 0; i < kLanes; ++i) p[i] = static_cast<int8_t>(a.v[i]);
}
#endif

#if defined(PELLUCID_HAS_SHORTS)
constexpr bool kHasShorts = true;
#else
constexpr bool kHasShorts = false;
// Where there is an instruction for four products at once, 16-bit sums gain nothing.
using Shorts = Ints;
PELLUCID_INLINE Shorts zero_shorts() { return splat_int(0); }
PELLUCID_INLINE Shorts dot2(Shorts sums, Bytes weights, int32_t activations) { return dot4(sums, weights, activations); }
PELLUCID_INLINE Ints sum_pairs(Shorts shorts) { return shorts; }
#endif

#if !defined(PELLUCID_HAS_CENTRED)
// Signed weights, stored + 128, as they are: the sums start from what that adds, which `minus_sum`, minus the sum of all
// activations of the row, tells.
using CentredBytes = Bytes;
PELLUCID_INLINE CentredBytes load_centred(const uint8_t* p) { return load_bytes(p); }
PELLUCID_INLINE Ints centred_start(int32_t minus_sum) { return splat_int(128 * minus_sum); }
PELLUCID_INLINE Ints dot4_centred(Ints sums, CentredBytes weights, int32_t activations) {
    return dot4(sums, weights, activations);
}
#endif

}  // namespace PELLUCID_ISA
}  // namespace pellucid
