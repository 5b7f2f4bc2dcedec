// Panels of f32, bf16 and int8 weights with one scale a column. Every output element is one chain of additions along k,
// the same in each of the row counts.
#include "linear/tiles.h"

namespace pellucid {
namespace PELLUCID_ISA {
namespace {

template <int R>
PELLUCID_INLINE void finish(const Vec (&sums)[R][2], int64_t first, const Tile& tile) {
    alignas(64) float stored[R * kPanelColumns];
    PELLUCID_UNROLL
    for (int r = 0; r < R; ++r) {
        store(stored + r * kPanelColumns, sums[r][0]);
        store(stored + r * kPanelColumns + kLanes, sums[r][1]);
    }
    finish_rows(tile, first, R, stored);
}

struct FloatKernel {
    const std::byte* panel;
    int64_t k;
    const Tile& tile;

    template <int R>
    void rows(int64_t first, int64_t tile_index, int64_t tiles) const {
        const float* weights = reinterpret_cast<const float*>(panel);
        const std::byte* x = tile.rows + first * tile.row_stride;
        Vec sums[R][2];
        PELLUCID_UNROLL
        for (int r = 0; r < R; ++r) sums[r][0] = sums[r][1] = zero();
        RowCursor<R> cursor(x, tile.row_stride);
        Prefetch next = Prefetch(panel + k * 128, k * 128).share(tile_index, tiles, k);
        for (int64_t i = 0; i < k; ++i) {
            next.step();
            const Vec w0 = load(weights + i * kPanelColumns), w1 = load(weights + i * kPanelColumns + kLanes);
            PELLUCID_UNROLL
            for (int r = 0; r < R; ++r) {
                const Vec a = splat(cursor.template at<float>(r));
                sums[r][0] = fma(a, w0, sums[r][0]);
                sums[r][1] = fma(a, w1, sums[r][1]);
            }
            cursor.advance(4);
        }
        finish(sums, first, tile);
    }
};

struct Bf16Kernel {
    const std::byte* panel;
    int64_t k;
    const Tile& tile;

    template <int R>
    void rows(int64_t first, int64_t tile_index, int64_t tiles) const {
        const uint8_t* weights = reinterpret_cast<const uint8_t*>(panel);
        const std::byte* x = tile.rows + first * tile.row_stride;
        Vec sums[R][2];
        PELLUCID_UNROLL
        for (int r = 0; r < R; ++r) sums[r][0] = sums[r][1] = zero();
        RowCursor<R> cursor(x, tile.row_stride);
        Prefetch next = Prefetch(panel + k / 2 * 128, k / 2 * 128).share(tile_index, tiles, k / 2);
        for (int64_t i = 0; i < k / 2; ++i) {
            next.step();
            const Bytes w0 = load_bytes(weights + i * 128), w1 = load_bytes(weights + i * 128 + 64);
            PELLUCID_UNROLL
            for (int r = 0; r < R; ++r) {
                const uint32_t a = cursor.template at<uint32_t>(r);
                sums[r][0] = dot2_bf16(sums[r][0], w0, a);
                sums[r][1] = dot2_bf16(sums[r][1], w1, a);
            }
            cursor.advance(4);
        }
        finish(sums, first, tile);
    }
};

struct Int8Kernel {
    const std::byte* panel;
    int64_t k;
    const Tile& tile;

    template <int R>
    void rows(int64_t first, int64_t tile_index, int64_t tiles) const {
        const uint8_t* weights = reinterpret_cast<const uint8_t*>(panel);
        const std::byte* x = tile.rows + first * tile.row_stride;
        Ints sums[R][2];
        PELLUCID_UNROLL
        for (int r = 0; r < R; ++r) {  // the codes are weight + 128: take 128 * sum(x) away beforehand
            const int32_t minus_sum = *reinterpret_cast<const int32_t*>(x + r * tile.row_stride + k + 4);
            sums[r][0] = sums[r][1] = splat_int(128 * minus_sum);
        }
        RowCursor<R> cursor(x, tile.row_stride);
        Prefetch next = Prefetch(panel + k / 4 * 128, k / 4 * 128).share(tile_index, tiles, k / 4);
        for (int64_t i = 0; i < k / 4; ++i) {
            next.step();
            const Bytes w0 = load_bytes(weights + i * 128), w1 = load_bytes(weights + i * 128 + 64);
            PELLUCID_UNROLL
            for (int r = 0; r < R; ++r) {
                const int32_t a = cursor.template at<int32_t>(r);
                sums[r][0] = dot4(sums[r][0], w0, a);
                sums[r][1] = dot4(sums[r][1], w1, a);
            }
            cursor.advance(4);
        }
        const float* scales = reinterpret_cast<const float*>(weights + k * kPanelColumns);
        const Vec s0 = load(scales), s1 = load(scales + kLanes);
        Vec scaled[R][2];
        PELLUCID_UNROLL
        for (int r = 0; r < R; ++r) {
            const Vec scale = splat(*reinterpret_cast<const float*>(x + r * tile.row_stride + k));
            scaled[r][0] = to_float(sums[r][0]) * s0 * scale;
            scaled[r][1] = to_float(sums[r][1]) * s1 * scale;
        }
        finish(scaled, first, tile);
    }
};

}  // namespace

void multiply_f32(const std::byte* panel, int64_t k, const Tile& tile) {
    for_row_tiles<kMaxRows>(tile.num_rows, FloatKernel{panel, k, tile});
}
void multiply_bf16(const std::byte* panel, int64_t k, const Tile& tile) {
    for_row_tiles<kMaxRows>(tile.num_rows, Bf16Kernel{panel, k, tile});
}
void multiply_int8(const std::byte* panel, int64_t k, const Tile& tile) {
    for_row_tiles<kMaxRows>(tile.num_rows, Int8Kernel{panel, k, tile});
}

}  // namespace PELLUCID_ISA
}  // namespace pellucid
