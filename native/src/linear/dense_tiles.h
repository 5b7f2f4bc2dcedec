// Panels of bf16 and int8 weights on the tile registers: 32 rows x 32 columns at a time. Only for *.isa.cpp files.
#pragma once
#include "linear/tiles.h"
#include "tile_registers.h"

#if defined(PELLUCID_TILES)
namespace pellucid {
namespace PELLUCID_ISA {

// Tiles 0-3: sums of the rows 0-15 and 16-31 with the columns 0-15 and 16-31; 4, 5: the rows; 6, 7: the columns.
struct Bf16OnTiles {
    using Sum = float;
    static PELLUCID_INLINE_MEMBER void top() {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
    }
    static PELLUCID_INLINE_MEMBER void bottom() {
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }

    Bf16OnTiles() = default;
    Bf16OnTiles(const uint8_t*, int64_t) {}
    PELLUCID_INLINE_MEMBER Vec finish(const float* sums, const std::byte*, int half) const { return load(sums + half * kLanes); }
};

struct Int8OnTiles {
    using Sum = int32_t;
    static PELLUCID_INLINE_MEMBER void top() {  // signed activations, unsigned codes
        _tile_dpbsud(0, 4, 6);
        _tile_dpbsud(1, 4, 7);
    }
    static PELLUCID_INLINE_MEMBER void bottom() {
        _tile_dpbsud(2, 5, 6);
        _tile_dpbsud(3, 5, 7);
    }

    Int8OnTiles() = default;
    // What follows a panel's codes is its columns' scales; what follows a row's integers, its scale and minus their sum.
    Int8OnTiles(const uint8_t* after_codes, int64_t row_bytes) : row_bytes(row_bytes) {
        const float* scales = reinterpret_cast<const float*>(after_codes);
        column_scales[0] = load(scales);
        column_scales[1] = load(scales + kLanes);
    }
    PELLUCID_INLINE_MEMBER Vec finish(const int32_t* sums, const std::byte* row, int half) const {
        const Ints sum = load_ints(sums + half * kLanes) + centred_start(*reinterpret_cast<const int32_t*>(row + row_bytes + 4));
        return to_float(sum) * column_scales[half] * splat(*reinterpret_cast<const float*>(row + row_bytes));
    }
    Vec column_scales[2];
    int64_t row_bytes = 0;
};

constexpr int64_t kTileBlockRows = 2 * kTileRows;

// Rows of one panel whose sums are complete and in memory, and have yet to be finished. That is done between the
// products of the next rows or panel, which leave the vector units idle.
template <typename Format>
class Unfinished {
  public:
    using Sum = typename Format::Sum;

    Unfinished() = default;
    Unfinished(const Format& format, const Tile& tile, const Sum* sums)
        : format_(format), tile_(tile), sums_(sums),
          plain_(tile.num_columns == kPanelColumns && tile.bias == nullptr && tile.softcap == 0) {}

    int64_t num_rows() const { return tile_.num_rows; }

    PELLUCID_INLINE_MEMBER void finish(int64_t count) {
        for (const int64_t end = done_ + count; done_ < end; ++done_) {
            const Vec first = format_.finish(sums_, tile_.rows, 0), second = format_.finish(sums_, tile_.rows, 1);
            if (!plain_) {
                finish_row(tile_, 0, first, second);
            } else if (tile_.residual != nullptr) {
                store(tile_.out, first + load(tile_.residual));
                store(tile_.out + kLanes, second + load(tile_.residual + kLanes));
            } else {
                store(tile_.out, first);
                store(tile_.out + kLanes, second);
            }
            sums_ += kPanelColumns;
            tile_.rows += tile_.row_stride;
            tile_.out += tile_.out_stride;
            if (tile_.residual != nullptr) tile_.residual += tile_.residual_stride;
        }
    }
    PELLUCID_INLINE_MEMBER void finish_rest() { finish(tile_.num_rows - done_); }

  private:
    Format format_{};
    Tile tile_{};
    const Sum* sums_ = nullptr;
    bool plain_ = true;
    int64_t done_ = 0;
};

// sums[rows][32] <- the sums of up to 32 rows with a panel; steps: of 64 bytes of a row. Meanwhile finishes `before`.
template <typename Format, bool two>
PELLUCID_INLINE void add_up_tiles(const uint8_t* panel, int64_t steps, const std::byte* x, size_t stride, Prefetch next,
                                  Unfinished<Format>& before, typename Format::Sum* sums) {
    constexpr int64_t kStepBytes = kTileRows * 2 * kTileBytes;
    const int64_t share = (before.num_rows() + steps - 1) / steps;
    int64_t unfinished = before.num_rows();
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
        Format::top();
        if constexpr (two) {
            _tile_loadd(5, x + kTileRows * stride + i * kTileBytes, stride);
            Format::bottom();
        }
        const int64_t count = share < unfinished ? share : unfinished;
        before.finish(count);
        unfinished -= count;
    }
    constexpr int kSumStride = kPanelColumns * sizeof(typename Format::Sum);
    _tile_stored(0, sums, kSumStride);
    _tile_stored(1, sums + kLanes, kSumStride);
    if constexpr (two) {
        _tile_stored(2, sums + kTileRows * kPanelColumns, kSumStride);
        _tile_stored(3, sums + kTileRows * kPanelColumns + kLanes, kSumStride);
    }
}

// steps: of 64 bytes of a row.
template <typename Format>
void multiply_tiles(const Panels& panels, int64_t steps, const Tile& all) {
    alignas(64) typename Format::Sum sums[2][kTileBlockRows * kPanelColumns];
    const int64_t panel_bytes = steps * kTileRows * 2 * kTileBytes;
    const int64_t blocks = (all.num_rows + kTileBlockRows - 1) / kTileBlockRows;
    TileRegisters registers;
    int64_t shaped_for = 0;
    int turn = 0;
    Unfinished<Format> before;
    for (int64_t i = 0; i < panels.count; ++i) {
        const uint8_t* panel = reinterpret_cast<const uint8_t*>(panels.first + i * panels.stride);
        const Tile tile = panel_of(all, i);
        const Format format(panel + panel_bytes, steps * kTileBytes);
        for (int64_t block = 0, row = 0; block < blocks; ++block, turn ^= 1) {
            const int64_t end = all.num_rows * (block + 1) / blocks, count = end - row;
            const bool two = count > kTileRows;
            if (count != shaped_for) {
                const int top = static_cast<int>(two ? kTileRows : count), bottom = static_cast<int>(two ? count - kTileRows : 1);
                registers.shape(0, top).shape(1, top).shape(2, bottom).shape(3, bottom);
                registers.shape(4, top).shape(5, bottom).shape(6, kTileRows).shape(7, kTileRows).load();
                shaped_for = count;
            }
            const Tile part = rows_of(tile, row, count);
            const Prefetch next = Prefetch(panels.after(i), panel_bytes).share(block, blocks, steps);
            if (two) add_up_tiles<Format, true>(panel, steps, part.rows, part.row_stride, next, before, sums[turn]);
            else add_up_tiles<Format, false>(panel, steps, part.rows, part.row_stride, next, before, sums[turn]);
            before = Unfinished<Format>(format, part, sums[turn]);
            row = end;
        }
    }
    before.finish_rest();
}

}  // namespace PELLUCID_ISA
}  // namespace pellucid
#endif
