// The two products of attention on the tile registers, up to 16 rows at a time, and the softmax between them, which is
// most of the work that is left. Only for *.isa.cpp files.
//
// A product cuts its sum in a way of its own (tile_registers.h), so any number of rows goes through tiles, in products
// over 32 dimensions, or 16 where the dimensions are no multiple of 32, and over the 32 keys at multiples of 32.
#pragma once
#include <type_traits>

#include "attention/micro_kernels.h"
#include "attention/weights.h"
#include "tile_registers.h"

#if defined(PELLUCID_TILES)
namespace pellucid {
namespace PELLUCID_ISA {

constexpr int kProductKeys = 32;
constexpr int kProductTiles = kProductKeys / kTileKeys;

struct Bf16Tiles {
    using Element = uint16_t;
    using TileElement = uint16_t;
    static constexpr int kMaxRows = kMostRows;
    static constexpr KVType kStorage = KVType::bf16;

    PELLUCID_INLINE void store_vector(uint16_t* p, Vec a) { store_bf16(p, a); }
};

// A tile of bf16 ones: a product with it adds up weights.
struct Ones {
    uint16_t data[kTileRows * 2 * kLanes] = {};
    constexpr Ones() {
        for (uint16_t& one : data) one = 0x3f80;
    }
};

// While it lives, the tile registers are in use: 0-3 for sums with four times 16 columns, 4 for the rows, 5 for columns.
class TileProducts {
  public:
    explicit TileProducts(int64_t dim) : dim_(dim), dims_(dim % 32 == 0 ? 32 : 16) {}

    // s[r][key] = q[r] . key for the keys of the tiles [begin, end), both even. q: [rows][dim].
    void scores(int rows, const uint16_t* q, const uint16_t* const* tiles, int begin, int end, float* s) {
        shape(rows, dims_ / 2);
        const Operands x{q, dim_ * 2, dims_};
        const int steps = static_cast<int>(dim_ / dims_);
        auto multiply_with = [&](auto columns, int t) {
            constexpr int kColumns = decltype(columns)::value;
            const uint16_t* keys[kColumns];
            for (int i = 0; i < kColumns; ++i) keys[i] = tiles[t + i];
            multiply<kColumns>(steps, x, keys, kTileBytes, dims_ * kTileKeys, s + t * kTileKeys, kChunk);
        };
        int t = begin;
        for (; t + 4 <= end; t += 4) multiply_with(Columns<4>{}, t);
        if (t < end) multiply_with(Columns<2>{}, t);
    }

    // out[r][d] = sum of p[r][key] * value[key][d], and sums[r][0] = sum of p[r][key], over the tiles [begin, end), both
    // even. p: [rows][2 * kChunk], of which the first kChunk count. values: [kChunk / 2][dim][2]. sums: [rows][16], or
    // null.
    void values(int rows, const uint16_t* p, const uint16_t* values, int begin, int end, float* out, float* sums) {
        alignas(64) static constexpr Ones ones;
        shape(rows, kProductKeys / 2);
        const Operands x{p + begin * kTileKeys, kChunk * 4, kProductKeys};
        const int steps = (end - begin) / kProductTiles;
        auto multiply_with = [&](auto columns, int64_t d) {
            constexpr int kColumns = decltype(columns)::value;
            const uint16_t* from[kColumns];
            for (int i = 0; i < kColumns; ++i) from[i] = values + (begin * kTileKeys / 2 * dim_ + d + i * kLanes) * 2;
            multiply<kColumns>(steps, x, from, dim_ * 4, kProductKeys * dim_, out + d, dim_);
        };
        int64_t d = 0;
        for (; d + 4 * kLanes <= dim_; d += 4 * kLanes) multiply_with(Columns<4>{}, d);
        for (; d < dim_; d += kLanes) multiply_with(Columns<1>{}, d);
        const uint16_t* const one = ones.data;
        if (sums != nullptr) multiply<1>(steps, x, &one, kTileBytes, 0, sums, kLanes);
    }

  private:
    template <int n>
    using Columns = std::integral_constant<int, n>;

    // A tile of rows, `stride` bytes apart; the next step's is `step` elements further.
    struct Operands {
        const uint16_t* data;
        int64_t stride;
        int64_t step;
    };

    // pairs: of the elements that a product multiplies and adds up.
    void shape(int rows, int pairs) {
        // What was stored until now is what tiles are loaded with: gcc's intrinsic does not say that it reads memory.
        asm volatile("" : : : "memory");
        if (rows == rows_ && pairs == pairs_) return;
        rows_ = rows, pairs_ = pairs;
        for (int sum = 0; sum < 4; ++sum) registers_.shape(sum, rows);
        registers_.shape(4, rows, pairs * 4).shape(5, pairs).load();
    }

    // The sums with up to four times 16 columns, one beside the other. columns: tiles as those of x.
    template <int columns>
    static inline __attribute__((always_inline)) void multiply(int steps, Operands x, const uint16_t* const* from, int64_t stride, int64_t step,
                                  float* out, int64_t out_row) {
        _tile_zero(0);
        if constexpr (columns > 1) _tile_zero(1);
        if constexpr (columns > 2) _tile_zero(2);
        if constexpr (columns > 3) _tile_zero(3);
        for (int i = 0; i < steps; ++i) {
            _tile_loadd(4, x.data + i * x.step, x.stride);
            _tile_loadd(5, from[0] + i * step, stride);
            _tile_dpbf16ps(0, 4, 5);
            if constexpr (columns > 1) {
                _tile_loadd(5, from[1] + i * step, stride);
                _tile_dpbf16ps(1, 4, 5);
            }
            if constexpr (columns > 2) {
                _tile_loadd(5, from[2] + i * step, stride);
                _tile_dpbf16ps(2, 4, 5);
            }
            if constexpr (columns > 3) {
                _tile_loadd(5, from[3] + i * step, stride);
                _tile_dpbf16ps(3, 4, 5);
            }
        }
        _tile_stored(0, out, out_row * 4);
        if constexpr (columns > 1) _tile_stored(1, out + kLanes, out_row * 4);
        if constexpr (columns > 2) _tile_stored(2, out + 2 * kLanes, out_row * 4);
        if constexpr (columns > 3) _tile_stored(3, out + 3 * kLanes, out_row * 4);
    }

    const int64_t dim_, dims_;
    TileRegisters registers_;
    int rows_ = 0, pairs_ = 0;
};

// The values of the keys [first, last) of a tile, and zeros for its others: what lies there may be anything, NaN too, and
// 0 * NaN is NaN.
PELLUCID_INLINE void copy_values(const uint16_t* from, int64_t dim, int first, int last, uint16_t* to) {
    for (int j = 0; j < kTileKeys / 2; ++j) {
        const int even = 2 * j >= first && 2 * j < last ? 0xffff : 0;
        const int odd = 2 * j + 1 >= first && 2 * j + 1 < last ? static_cast<int>(0xffff0000u) : 0;
        const __m512i mask = _mm512_set1_epi32(even | odd);
        for (int64_t d = 0; d < 2 * dim; d += 2 * kLanes) {
            const int64_t at = 2 * j * dim + d;
            _mm512_storeu_si512(to + at, _mm512_and_si512(mask, _mm512_loadu_si512(from + at)));
        }
    }
}

// Scores to weights p = 2^(score * factor + offset), 0 for the keys that the row does not see. int8 only: weights are
// multiplied with the value's scale, and the sum of what they were before is returned.
template <int T, bool scaled, bool masked>
PELLUCID_INLINE float weights_of_row(const float* s, uint16_t* p, int begin, KeyRange mine, float factor, float offset,
                                     const float* const* key_scales, const float* const* value_scales) {
    const Vec f = splat(factor), o = splat(offset);
    Vec total = zero();
    PELLUCID_UNROLL
    for (int i = 0; i < T; i += 2) {
        Vec weight[2];
        PELLUCID_UNROLL
        for (int j = 0; j < 2; ++j) {
            const int t = begin + i + j;
            Vec x = load(s + t * kTileKeys);
            if (scaled && key_scales != nullptr) x = x * load(key_scales[t]);
            x = weight_of(fma(x, f, o));
            if constexpr (scaled) {
                if constexpr (masked) x = only_visible(x, t, mine, 0.0f);
                total = total + x;
                x = x * load(value_scales[t]);
            }
            if constexpr (masked) x = only_visible(x, t, mine, 0.0f);  // an unwritten scale may be NaN
            weight[j] = x;
        }
        _mm512_storeu_si512(p + (begin + i) * kTileKeys, (__m512i)_mm512_cvtne2ps_pbh(weight[1].v, weight[0].v));
    }
    return scaled ? reduce_add(total) : 0.0f;
}

}  // namespace PELLUCID_ISA
}  // namespace pellucid
#endif
