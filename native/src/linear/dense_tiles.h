// Panels of bf16 and int8 weights on the tile registers: 32 rows x 32 columns at a time. Only for *.isa.cpp files.
#pragma once
#include "linear/tiles.h"
#include "tile_registers.h"

#if defined(PELLUCID_TILES)
namespace pellucid {
namespace PELLUCID_ISA {

// Tiles 0-3: sums of the rows 0-15 and 16-31 with the columns 0-15 and 16-31; 4, 5: the rows; 6, 7: the columns.
struct Bf16Product {
    static PELLUCID_INLINE_MEMBER void top() {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
    }
    static PELLUCID_INLINE_MEMBER void bottom() {
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
};

struct Int8Product {  // signed activations, unsigned codes
    static PELLUCID_INLINE_MEMBER void top() {
        _tile_dpbsud(0, 4, 6);
        _tile_dpbsud(1, 4, 7);
    }
    static PELLUCID_INLINE_MEMBER void bottom() {
        _tile_dpbsud(2, 5, 6);
        _tile_dpbsud(3, 5, 7);
    }
};

constexpr int64_t kTileBlockRows = 2 * kTileRows;

// sums[rows][32] <- the sums of the rows [first, first + rows) with a panel; steps: of 64 bytes of a row.
template <typename Product, bool two, typename Sum>
PELLUCID_INLINE void add_up_tiles(const uint8_t* panel, int64_t steps, const std::byte* x, size_t stride, Prefetch next,
                                  Sum* sums) {
    constexpr int64_t kStepBytes = kTileRows * 2 * kTileBytes;
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (two) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t i = 0; i < steps; ++i) {
        next.long_step();
        _tile_loadd(6, panel + i * kStepBytes, 2 * kTileBytes);
        _tile_loadd(7, panel + i * kStepBytes + kTileBytes, 2 * kTileBytes);
        _tile_loadd(4, x + i * kTileBytes, stride);
        Product::top();
        if constexpr (two) {
            _tile_loadd(5, x + kTileRows * stride + i * kTileBytes, stride);
            Product::bottom();
        }
    }
    constexpr int kSumStride = kPanelColumns * sizeof(Sum);
    _tile_stored(0, sums, kSumStride);
    _tile_stored(1, sums + kLanes, kSumStride);
    if constexpr (two) {
        _tile_stored(2, sums + kTileRows * kPanelColumns, kSumStride);
        _tile_stored(3, sums + kTileRows * kPanelColumns + kLanes, kSumStride);
    }
}

// finish(row, sums of a row) for all rows of a tile.
template <typename Product, typename Sum, typename Finish>
PELLUCID_INLINE void multiply_tiles(const std::byte* panel, int64_t steps, const Tile& tile, const Finish& finish) {
    alignas(64) Sum sums[kTileBlockRows * kPanelColumns];
    const uint8_t* weights = reinterpret_cast<const uint8_t*>(panel);
    const int64_t panel_bytes = steps * kTileRows * 2 * kTileBytes;
    const int64_t blocks = (tile.num_rows + kTileBlockRows - 1) / kTileBlockRows;
    TileRegisters registers;
    int64_t shaped_for = 0;
    for (int64_t block = 0, row = 0; block < blocks; ++block) {
        const int64_t end = tile.num_rows * (block + 1) / blocks, count = end - row;
        const bool two = count > kTileRows;
        if (count != shaped_for) {
            const int top = static_cast<int>(two ? kTileRows : count), bottom = static_cast<int>(two ? count - kTileRows : 1);
            registers.shape(0, top).shape(1, top).shape(2, bottom).shape(3, bottom);
            registers.shape(4, top).shape(5, bottom).shape(6, kTileRows).shape(7, kTileRows).load();
            shaped_for = count;
        }
        const std::byte* x = tile.rows + row * tile.row_stride;
        const int64_t ahead = tile.num_rows == 1 ? kStreamAhead : panel_bytes;
        const Prefetch next = Prefetch(panel + ahead, panel_bytes).share(block, blocks, steps);
        if (two) add_up_tiles<Product, true>(weights, steps, x, tile.row_stride, next, sums);
        else add_up_tiles<Product, false>(weights, steps, x, tile.row_stride, next, sums);
        for (int64_t r = 0; r < count; ++r) finish(row + r, sums + r * kPanelColumns);
        row = end;
    }
}

}  // namespace PELLUCID_ISA
}  // namespace pellucid
#endif
