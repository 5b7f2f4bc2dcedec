// Panels of f32, bf16 and int8 weights with one scale a column. Every output element is one chain of additions along k,
// the same in each of the row counts.
#include "linear/dense_tiles.h"
#include "linear/tiles.h"

namespace pellucid {
namespace PELLUCID_ISA {
namespace {

// A format says what 64 bytes of weights and the row's part that meets them are, and how they are summed up.

struct Float {
    using Weights = Vec;
    using Sum = Vec;
    using Activation = float;
    static constexpr int kElements = 1;  // of k, in a step
    static constexpr int kMaxRows = PELLUCID_ISA::kMaxRows;

    static PELLUCID_INLINE_MEMBER Vec load(const uint8_t* p) { return PELLUCID_ISA::load(reinterpret_cast<const float*>(p)); }
    static PELLUCID_INLINE_MEMBER Vec start(const std::byte*, int64_t) { return zero(); }
    static PELLUCID_INLINE_MEMBER Vec add(Vec sum, Vec weights, float a) { return fma(splat(a), weights, sum); }
    static PELLUCID_INLINE_MEMBER Vec finish(Vec sum, const uint8_t*, const std::byte*, int64_t) { return sum; }
};

struct Bf16 {
    using Weights = Bytes;
    using Sum = Vec;
    using Activation = uint32_t;
    static constexpr int kElements = 2;
    static constexpr int kMaxRows = PELLUCID_ISA::kMaxRows;

    static PELLUCID_INLINE_MEMBER Bytes load(const uint8_t* p) { return load_bytes(p); }
    static PELLUCID_INLINE_MEMBER Vec start(const std::byte*, int64_t) { return zero(); }
    static PELLUCID_INLINE_MEMBER Vec add(Vec sum, Bytes weights, uint32_t a) { return dot2_bf16(sum, weights, a); }
    static PELLUCID_INLINE_MEMBER Vec finish(Vec sum, const uint8_t*, const std::byte*, int64_t) { return sum; }
};

// The codes are weight + 128. A row ends with its scale and minus the sum of its integers; a panel with its scales.
struct Int8 {
    using Weights = CentredBytes;
    using Sum = Ints;
    using Activation = int32_t;
    static constexpr int kElements = 4;
    static constexpr int kMaxRows = kMaxInt8Rows;

    static PELLUCID_INLINE_MEMBER CentredBytes load(const uint8_t* p) { return load_centred(p); }
    static PELLUCID_INLINE_MEMBER Ints start(const std::byte* row, int64_t k) {
        return centred_start(*reinterpret_cast<const int32_t*>(row + k + 4));
    }
    static PELLUCID_INLINE_MEMBER Ints add(Ints sum, CentredBytes weights, int32_t a) { return dot4_centred(sum, weights, a); }
    static PELLUCID_INLINE_MEMBER Vec finish(Ints sum, const uint8_t* column_scales, const std::byte* row, int64_t k) {
        const Vec scale = splat(*reinterpret_cast<const float*>(row + k));
        return to_float(sum) * PELLUCID_ISA::load(reinterpret_cast<const float*>(column_scales)) * scale;
    }
};

template <typename Format>
struct DenseKernel {
    const uint8_t* panel;
    const std::byte* after;  // the panel that is read next
    int64_t k;
    const Tile& tile;

    // With few registers, many rows take the panel's two halves of columns one after the other.
    template <int R>
    void rows(int64_t first, int64_t tile_index, int64_t tiles) const {
        alignas(64) float sums[R * kPanelColumns];
        if constexpr (R <= kMaxRowsOfWholePanels) {
            add_up<R, 2>(first, 0, tile_index, tiles, sums);
        } else {
            add_up<R, 1>(first, 0, tile_index, tiles, sums);
            add_up<R, 1>(first, 1, tile_index, tiles, sums);
        }
        finish_rows(tile, first, R, sums);
    }

    template <int R, int halves>
    PELLUCID_INLINE_MEMBER void add_up(int64_t first, int first_half, int64_t tile_index, int64_t tiles, float* out) const {
        const std::byte* x = tile.rows + first * tile.row_stride;
        const int64_t steps = k / Format::kElements;
        const uint8_t* weights = panel + 64 * first_half;
        typename Format::Sum sums[R][halves];
        PELLUCID_UNROLL
        for (int r = 0; r < R; ++r)
            for (int h = 0; h < halves; ++h) sums[r][h] = Format::start(x + r * tile.row_stride, k);
        RowCursor<R> cursor(x, tile.row_stride);
        const int64_t passes = 2 / halves;  // over the panel, for each tile of rows
        Prefetch next = Prefetch(after, steps * 128).share(tile_index * passes + first_half, tiles * passes, steps);
        // A single row reads the panels in one stream; of what comes after this one it asks for the beginning.
        const int64_t turn = steps * 128 > kStreamAhead ? steps - kStreamAhead / 128 : 0;
        const Prefetch beginning = next;
        if constexpr (R == 1)
            next = Prefetch(reinterpret_cast<const std::byte*>(panel) + kStreamAhead, steps * 128).share(0, 1, steps);
        for (int64_t i = 0; i < steps; ++i) {
            if constexpr (R == 1) {
                if (i == turn) next = beginning;
            }
            next.step();
            typename Format::Weights w[halves];
            PELLUCID_UNROLL
            for (int h = 0; h < halves; ++h) w[h] = Format::load(weights + i * 128 + 64 * h);
            PELLUCID_UNROLL
            for (int r = 0; r < R; ++r) {
                const auto a = cursor.template at<typename Format::Activation>(r);
                for (int h = 0; h < halves; ++h) sums[r][h] = Format::add(sums[r][h], w[h], a);
            }
            cursor.advance(4);
        }
        PELLUCID_UNROLL
        for (int r = 0; r < R; ++r) {
            for (int h = 0; h < halves; ++h) {
                const int half = first_half + h;
                store(out + r * kPanelColumns + half * kLanes,
                      Format::finish(sums[r][h], panel + steps * 128 + 64 * half, x + r * tile.row_stride, k));
            }
        }
    }
};

template <typename Format>
void multiply(const Panels& panels, int64_t k, const Tile& all) {
    for_each_panel(panels, all, [k](const std::byte* panel, const std::byte* after, const Tile& tile) {
        for_row_tiles<Format::kMaxRows>(tile.num_rows,
                                        DenseKernel<Format>{reinterpret_cast<const uint8_t*>(panel), after, k, tile});
    });
}

}  // namespace

void multiply_f32(const Panels& panels, int64_t k, const Tile& tile) { multiply<Float>(panels, k, tile); }

#if defined(PELLUCID_TILES)
void multiply_bf16(const Panels& panels, int64_t k, const Tile& tile) {
    // All numbers of rows alike: the tiles round otherwise than the vectors do.
    multiply_tiles<Bf16OnTiles>(panels, (k + kBf16Unit - 1) / kBf16Unit, tile);
}

constexpr int64_t kFewRows = 4;  // which the vectors multiply as fast as memory gives weights

void multiply_int8(const Panels& panels, int64_t k, const Tile& tile) {
    if (tile.num_rows <= kFewRows) return multiply<Int8>(panels, k, tile);
    multiply_tiles<Int8OnTiles>(panels, k / RotatedRow::kUnit, tile);
}
#else
void multiply_bf16(const Panels& panels, int64_t k, const Tile& tile) { multiply<Bf16>(panels, k, tile); }
void multiply_int8(const Panels& panels, int64_t k, const Tile& tile) { multiply<Int8>(panels, k, tile); }
#endif

}  // namespace PELLUCID_ISA
}  // namespace pellucid
