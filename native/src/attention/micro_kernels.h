// The two small matrix products of attention over 16-key tiles, in float32 and, where the machine has it, in bf16.
// Only for *.isa.cpp files.
//
// (The tile registers' are in micro_kernels_tiles.h.)
//
// scores: s[r][16 t + key] = q[r] . key, over dimensions in ascending order
// values: out[r][d] = sum over keys in ascending order of p[r][key] * value[key][d]
#pragma once
#include "attention/kv_cache.h"
#include "simd.h"

namespace pellucid {
namespace PELLUCID_ISA {

// Registers decide how many rows and vectors a micro-kernel holds: rows x vectors accumulators, and some to load into.
#if defined(PELLUCID_AVX512)
constexpr int kRowsInRegisters = 6, kVectorsInRegisters = 4, kDirectRows = 6, kDirectVectors = 2;
#elif defined(PELLUCID_AVX2)
constexpr int kRowsInRegisters = 2, kVectorsInRegisters = 2, kDirectRows = 4, kDirectVectors = 1;
#else
constexpr int kRowsInRegisters = 2, kVectorsInRegisters = 1, kDirectRows = 2, kDirectVectors = 1;
#endif
#if defined(PELLUCID_TILES)
constexpr int kMostRows = 16;  // of all kinds
#else
constexpr int kMostRows = 6;
#endif

constexpr int kChunkTiles = 8;
constexpr int kChunk = kChunkTiles * kTileKeys;

// Tiles of the keys [first, last) of a chunk.
struct KeyRange {
    int first;
    int last;
    int tile_begin() const { return first / kTileKeys; }
    int tile_end() const { return (last + kTileKeys - 1) / kTileKeys; }
};

// x of tile t, with `other` for the keys outside `mine`.
PELLUCID_INLINE Vec only_visible(Vec x, int t, KeyRange mine, float other) {
    const int first = mine.first - t * kTileKeys, last = mine.last - t * kTileKeys;
    if (last < kTileKeys) x = keep_first(x, last > 0 ? last : 0, other);
    if (first > 0) x = drop_first(x, first < kTileKeys ? first : kTileKeys, other);
    return x;
}

// Element: of queries and weights. TileElement: of keys and values, as the micro-kernels read them.
struct F32 {
    using Element = float;
    using TileElement = float;
    static constexpr int kMaxRows = kRowsInRegisters, kMaxVectors = kVectorsInRegisters;
    static constexpr KVType kStorage = KVType::f32;  // the cache format that is read as it is

    PELLUCID_INLINE void store_vector(float* p, Vec a) { store(p, a); }

    template <int R, int V>
    static void scores(const float* q, int64_t dim, const float* const* tiles, float* s) {
        Vec acc[R][V];
        PELLUCID_UNROLL
        for (int r = 0; r < R; ++r)
            PELLUCID_UNROLL
            for (int v = 0; v < V; ++v) acc[r][v] = zero();
        for (int64_t d = 0; d < dim; ++d) {
            Vec key[V];
            PELLUCID_UNROLL
            for (int v = 0; v < V; ++v) key[v] = load(tiles[v] + d * kTileKeys);
            PELLUCID_UNROLL
            for (int r = 0; r < R; ++r) {
                const Vec x = splat(q[r * dim + d]);
                PELLUCID_UNROLL
                for (int v = 0; v < V; ++v) acc[r][v] = fma(x, key[v], acc[r][v]);
            }
        }
        PELLUCID_UNROLL
        for (int r = 0; r < R; ++r)
            PELLUCID_UNROLL
            for (int v = 0; v < V; ++v) store(s + r * kChunk + v * kTileKeys, acc[r][v]);
    }

    // V vectors of dimensions starting at d.
    template <int R, int V>
    static void values(const float* p, KeyRange keys, const float* const* tiles, int64_t dim, int64_t d, float* out) {
        Vec acc[R][V];
        PELLUCID_UNROLL
        for (int r = 0; r < R; ++r)
            PELLUCID_UNROLL
            for (int v = 0; v < V; ++v) acc[r][v] = zero();
        for (int key = keys.first; key < keys.last; ++key) {
            const float* value = tiles[key / kTileKeys] + key % kTileKeys * dim + d;
            Vec x[V];
            PELLUCID_UNROLL
            for (int v = 0; v < V; ++v) x[v] = load(value + v * kLanes);
            PELLUCID_UNROLL
            for (int r = 0; r < R; ++r) {
                const Vec weight = splat(p[r * kChunk + key]);
                PELLUCID_UNROLL
                for (int v = 0; v < V; ++v) acc[r][v] = fma(weight, x[v], acc[r][v]);
            }
        }
        PELLUCID_UNROLL
        for (int r = 0; r < R; ++r)
            PELLUCID_UNROLL
            for (int v = 0; v < V; ++v) store(out + r * dim + d + v * kLanes, acc[r][v]);
    }
};

// The operations of F32, in its order, over a cache of bf16 that is widened in registers: for a few rows, which would not
// earn back a converted copy of the tile.
struct F32OverBf16 : F32 {
    using TileElement = uint16_t;
    static constexpr KVType kStorage = KVType::bf16;
    static constexpr int kMaxRows = kDirectRows, kMaxVectors = kDirectVectors;

    template <int R, int V>
    static void scores(const float* q, int64_t dim, const uint16_t* const* tiles, float* s) {
        Vec acc[R][V];
        PELLUCID_UNROLL
        for (int r = 0; r < R; ++r)
            PELLUCID_UNROLL
            for (int v = 0; v < V; ++v) acc[r][v] = zero();
        for (int64_t d = 0; d < dim; d += 2) {
            Vec even[V], odd[V];
            PELLUCID_UNROLL
            for (int v = 0; v < V; ++v) load_bf16_pairs(tiles[v] + d * kTileKeys, even[v], odd[v]);
            PELLUCID_UNROLL
            for (int r = 0; r < R; ++r) {
                const Vec x = splat(q[r * dim + d]), y = splat(q[r * dim + d + 1]);
                PELLUCID_UNROLL
                for (int v = 0; v < V; ++v) acc[r][v] = fma(y, odd[v], fma(x, even[v], acc[r][v]));
            }
        }
        PELLUCID_UNROLL
        for (int r = 0; r < R; ++r)
            PELLUCID_UNROLL
            for (int v = 0; v < V; ++v) store(s + r * kChunk + v * kTileKeys, acc[r][v]);
    }

    template <int R, int V>
    static void values(const float* p, KeyRange keys, const uint16_t* const* tiles, int64_t dim, int64_t d, float* out) {
        Vec acc[R][V];
        PELLUCID_UNROLL
        for (int r = 0; r < R; ++r)
            PELLUCID_UNROLL
            for (int v = 0; v < V; ++v) acc[r][v] = zero();
        // Where only one key of a pair is in the range, the other's value may be anything.
        auto pair = [&](const uint16_t* value, const float* weights, bool first, bool second) __attribute__((always_inline)) {
            Vec even[V], odd[V];
            PELLUCID_UNROLL
            for (int v = 0; v < V; ++v) load_bf16_pairs(value + v * 2 * kLanes, even[v], odd[v]);
            PELLUCID_UNROLL
            for (int r = 0; r < R; ++r) {
                const Vec x = splat(weights[r * kChunk]), y = splat(weights[r * kChunk + 1]);
                PELLUCID_UNROLL
                for (int v = 0; v < V; ++v) {
                    if (first) acc[r][v] = fma(x, even[v], acc[r][v]);
                    if (second) acc[r][v] = fma(y, odd[v], acc[r][v]);
                }
            }
        };
        for (int t = keys.tile_begin(); t < keys.tile_end(); ++t) {
            const int base = t * kTileKeys;
            const int begin = keys.first > base ? keys.first - base : 0;
            const int end = keys.last < base + kTileKeys ? keys.last - base : kTileKeys;
            const uint16_t* value = tiles[t] + (begin / 2 * dim + d) * 2;
            const float* weights = p + base + begin / 2 * 2;
            int key = begin;
            if (key % 2 == 1) {
                pair(value, weights, false, true);
                ++key, value += 2 * dim, weights += 2;
            }
            for (; key + 1 < end; key += 2, value += 2 * dim, weights += 2) pair(value, weights, true, true);
            if (key < end) pair(value, weights, true, false);
        }
        PELLUCID_UNROLL
        for (int r = 0; r < R; ++r)
            PELLUCID_UNROLL
            for (int v = 0; v < V; ++v) store(out + r * dim + d + v * kLanes, acc[r][v]);
    }
};

#if defined(PELLUCID_DOTS) && !defined(PELLUCID_TILES)
struct Bf16 {
    using Element = uint16_t;
    using TileElement = uint16_t;
    static constexpr int kMaxRows = kRowsInRegisters, kMaxVectors = kVectorsInRegisters;
    static constexpr KVType kStorage = KVType::bf16;

    PELLUCID_INLINE void store_vector(uint16_t* p, Vec a) { store_bf16(p, a); }
    PELLUCID_INLINE __m512bh splat_pair(const uint16_t* p) {
        int32_t pair;
        std::memcpy(&pair, p, sizeof pair);
        return (__m512bh)_mm512_set1_epi32(pair);
    }

    template <int R, int V>
    static void scores(const uint16_t* q, int64_t dim, const uint16_t* const* tiles, float* s) {
        __m512 acc[R][V];
        PELLUCID_UNROLL
        for (int r = 0; r < R; ++r)
            PELLUCID_UNROLL
            for (int v = 0; v < V; ++v) acc[r][v] = _mm512_setzero_ps();
        for (int64_t d = 0; d < dim; d += 2) {
            __m512bh key[V];
            PELLUCID_UNROLL
            for (int v = 0; v < V; ++v) key[v] = (__m512bh)_mm512_loadu_si512(tiles[v] + d * kTileKeys);
            PELLUCID_UNROLL
            for (int r = 0; r < R; ++r) {
                const __m512bh x = splat_pair(q + r * dim + d);
                PELLUCID_UNROLL
                for (int v = 0; v < V; ++v) acc[r][v] = _mm512_dpbf16_ps(acc[r][v], key[v], x);
            }
        }
        PELLUCID_UNROLL
        for (int r = 0; r < R; ++r)
            PELLUCID_UNROLL
            for (int v = 0; v < V; ++v) _mm512_storeu_ps(s + r * kChunk + v * kTileKeys, acc[r][v]);
    }

    template <int R, int V>
    static void values(const uint16_t* p, KeyRange keys, const uint16_t* const* tiles, int64_t dim, int64_t d,
                       float* out) {
        __m512 acc[R][V];
        PELLUCID_UNROLL
        for (int r = 0; r < R; ++r)
            PELLUCID_UNROLL
            for (int v = 0; v < V; ++v) acc[r][v] = _mm512_setzero_ps();
        // A key outside the range has weight 0, but its value may be anything, NaN too, and 0 * NaN is NaN: where only
        // one key of a pair is in the range, the other's value is masked away.
        auto pair = [&](int j, __m512i mask) __attribute__((always_inline)) {
            const uint16_t* value = tiles[j / (kTileKeys / 2)] + (j % (kTileKeys / 2) * dim + d) * 2;
            __m512bh x[V];
            PELLUCID_UNROLL
            for (int v = 0; v < V; ++v)
                x[v] = (__m512bh)_mm512_and_si512(_mm512_loadu_si512(value + v * 2 * kLanes), mask);
            PELLUCID_UNROLL
            for (int r = 0; r < R; ++r) {
                const __m512bh weight = splat_pair(p + r * kChunk + 2 * j);
                PELLUCID_UNROLL
                for (int v = 0; v < V; ++v) acc[r][v] = _mm512_dpbf16_ps(acc[r][v], x[v], weight);
            }
        };
        int j = keys.first / 2;
        const __m512i odd = _mm512_set1_epi32(static_cast<int>(0xffff0000u)), even = _mm512_set1_epi32(0xffff);
        if (keys.first % 2 == 1) {
            pair(j, odd);
            ++j;
        }
        for (; j < keys.last / 2; ++j) pair(j, _mm512_set1_epi32(-1));
        if (keys.last % 2 == 1) pair(j, even);
        PELLUCID_UNROLL
        for (int r = 0; r < R; ++r)
            PELLUCID_UNROLL
            for (int v = 0; v < V; ++v) _mm512_storeu_ps(out + r * dim + d + v * kLanes, acc[r][v]);
    }
};
#endif

// f<R, V>(...) for run-time rows and vectors.
template <typename F, int R = F::kMaxRows, int V = F::kMaxVectors, typename... Args>
PELLUCID_INLINE void for_shape(int rows, int vectors, Args... args) {
    if constexpr (V > 1) {
        if (vectors < V) return for_shape<F, R, V - 1>(rows, vectors, args...);
    }
    if constexpr (R > 1) {
        if (rows < R) return for_shape<F, R - 1, V>(rows, vectors, args...);
    }
    F::template call<R, V>(args...);
}

template <typename Compute>
struct Scores {
    static constexpr int kMaxRows = Compute::kMaxRows, kMaxVectors = Compute::kMaxVectors;
    template <int R, int V, typename... Args>
    PELLUCID_INLINE void call(Args... args) {
        Compute::template scores<R, V>(args...);
    }
};

template <typename Compute>
struct Values {
    static constexpr int kMaxRows = Compute::kMaxRows, kMaxVectors = Compute::kMaxVectors;
    template <int R, int V, typename... Args>
    PELLUCID_INLINE void call(Args... args) {
        Compute::template values<R, V>(args...);
    }
};

// ---- a tile of the cache in the form a micro-kernel reads ----------------------------------------------------------------

// From pairs of bf16 or int8 (without their scale) to float32 keys [dim][16] and values [16][dim].
template <typename LoadPairs>
void unpack_tile(LoadPairs load_pairs, int64_t dim, float* keys, float* values) {
    for (int64_t d = 0; d < dim; d += 2) {
        Vec even, odd;
        load_pairs(true, d * kTileKeys, even, odd);
        store(keys + d * kTileKeys, even);
        store(keys + (d + 1) * kTileKeys, odd);
    }
    for (int64_t j = 0; j < kTileKeys / 2; ++j) {
        for (int64_t d = 0; d < dim; d += kLanes) {
            Vec even, odd;
            load_pairs(false, (j * dim + d) * 2, even, odd);
            store(values + 2 * j * dim + d, even);
            store(values + (2 * j + 1) * dim + d, odd);
        }
    }
}

PELLUCID_INLINE void convert_tile(const std::byte* tile, const KVLayout& layout, float* keys, float* values) {
    const std::byte *k = tile + layout.keys_offset, *v = tile + layout.values_offset;
    if (layout.type == KVType::bf16) {
        unpack_tile(
            [&](bool key, int64_t at, Vec& even, Vec& odd) {
                load_bf16_pairs(reinterpret_cast<const uint16_t*>(key ? k : v) + at, even, odd);
            },
            layout.padded_dim, keys, values);
    } else {
        unpack_tile(
            [&](bool key, int64_t at, Vec& even, Vec& odd) {
                load_int8_pairs(reinterpret_cast<const int8_t*>(key ? k : v) + at, even, odd);
            },
            layout.padded_dim, keys, values);
    }
}

#if defined(PELLUCID_DOTS)
// int8 to bf16, exactly, in place order.
PELLUCID_INLINE void convert_tile(const std::byte* tile, const KVLayout& layout, uint16_t* keys, uint16_t* values) {
    const int8_t* k = reinterpret_cast<const int8_t*>(tile + layout.keys_offset);
    const int8_t* v = reinterpret_cast<const int8_t*>(tile + layout.values_offset);
    for (int64_t i = 0; i < kTileKeys * layout.padded_dim; i += 2 * kLanes) {
        for (bool key : {true, false}) {
            Vec even, odd;
            load_int8_pairs((key ? k : v) + i, even, odd);
            // Integers up to 127 leave the low half of a float zero: the high half is the bf16.
            const __m512i pairs = _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(even.v), 16),
                                                  _mm512_castps_si512(odd.v));
            _mm512_storeu_si512((key ? keys : values) + i, pairs);
        }
    }
}
#endif

}  // namespace PELLUCID_ISA
}  // namespace pellucid
