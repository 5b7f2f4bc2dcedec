// How a panel kernel walks over the rows of a tile, and what it does with a finished result. Only for *.isa.cpp files.
#pragma once
#include "linear/integers.h"
#include "linear/kernels.h"

#define PELLUCID_INLINE_MEMBER inline __attribute__((always_inline))

namespace pellucid {
namespace PELLUCID_ISA {

// A row's 32 sums of a panel, complete: bias, softcap, residual, store. Each step rounds on its own. The tile is one panel's.
PELLUCID_INLINE Vec softcapped(Vec v, float cap) { return splat(cap) * tanh(v / splat(cap)); }

inline void finish_row(const Tile& tile, int64_t row, Vec first, Vec second) {
    float* out = tile.out + row * tile.out_stride;
    const float* residual = tile.residual ? tile.residual + row * tile.residual_stride : nullptr;
    if (tile.num_columns == kPanelColumns) {
        if (tile.bias) first = first + load(tile.bias), second = second + load(tile.bias + kLanes);
        if (tile.softcap > 0) first = softcapped(first, tile.softcap), second = softcapped(second, tile.softcap);
        if (residual) first = first + load(residual), second = second + load(residual + kLanes);
        store(out, first);
        store(out + kLanes, second);
        return;
    }
    Vec halves[2] = {first, second};
    for (int h = 0; h < 2; ++h) {
        const int begin = h * kLanes;
        const int count = static_cast<int>(tile.num_columns - begin < kLanes ? tile.num_columns - begin : kLanes);
        if (count <= 0) return;
        Vec v = halves[h];
        if (tile.bias) v = v + load_first(tile.bias + begin, count);
        if (tile.softcap > 0) v = softcapped(v, tile.softcap);
        if (residual) v = v + load_first(residual + begin, count);
        store_first(out + begin, v, count);
    }
}

// Not inlined into the unrolled kernels: it would appear there once a row.
[[maybe_unused]] __attribute__((noinline)) static void finish_rows(const Tile& tile, int64_t first, int count, const float* sums) {
    for (int r = 0; r < count; ++r)
        finish_row(tile, first + r, load(sums + r * kPanelColumns), load(sums + r * kPanelColumns + kLanes));
}

// The rows [begin, begin + at most max_rows) of a tile.
inline Tile rows_of(const Tile& whole, int64_t begin, int64_t max_rows) {
    Tile tile = whole;
    tile.num_rows = whole.num_rows - begin < max_rows ? whole.num_rows - begin : max_rows;
    tile.rows += begin * tile.row_stride;
    tile.out += begin * tile.out_stride;
    if (tile.residual) tile.residual += begin * tile.residual_stride;
    return tile;
}

// What panel i of a tile's has to do.
inline Tile panel_of(const Tile& whole, int64_t i) {
    Tile tile = whole;
    const int64_t column = i * kPanelColumns, rest = whole.num_columns - column;
    tile.num_columns = rest < kPanelColumns ? rest : kPanelColumns;
    tile.out += column;
    if (tile.bias) tile.bias += column;
    if (tile.residual) tile.residual += column;
    return tile;
}

// multiply(panel, what is read after it, its tile) for all of them.
template <typename Multiply>
void for_each_panel(const Panels& panels, const Tile& tile, const Multiply& multiply) {
    for (int64_t i = 0; i < panels.count; ++i)
        multiply(panels.first + i * panels.stride, panels.after(i), panel_of(tile, i));
}

// Where R rows of a tile are being read: a pointer for every three rows, so that they all fit the registers.
template <int R>
class RowCursor {
  public:
    RowCursor(const std::byte* first, size_t stride) : stride_(stride) {
        PELLUCID_UNROLL
        for (int i = 0; i < kPointers; ++i) pointers_[i] = first + 3 * static_cast<size_t>(i) * stride;
    }
    template <typename T>
    PELLUCID_INLINE_MEMBER T at(int row, int offset = 0) const {
        return *reinterpret_cast<const T*>(pointers_[row / 3] + static_cast<size_t>(row % 3) * stride_ + offset);
    }
    PELLUCID_INLINE_MEMBER void advance(size_t num_bytes) {
        PELLUCID_UNROLL
        for (int i = 0; i < kPointers; ++i) pointers_[i] += num_bytes;
    }

  private:
    static constexpr int kPointers = (R + 2) / 3;
    const std::byte* pointers_[kPointers];
    size_t stride_;
};

// How far ahead of itself a single row, which reads the panels in one stream, asks for memory. In bytes.
constexpr int kStreamAhead = 4096;

// Asks for memory that the next panel will need while the rows of this one are being multiplied: the hardware's own
// prefetching stops where the stream pauses. Each of the tiles of rows takes an equal share of `num_bytes`.
class Prefetch {
  public:
    Prefetch(const std::byte* data, int64_t num_bytes) : data_(data), num_bytes_(num_bytes) {}

    // What tile `tile` of `tiles` fetches, in `steps` steps.
    Prefetch share(int64_t tile, int64_t tiles, int64_t steps) const {
        Prefetch mine(data_ + num_bytes_ * tile / tiles, num_bytes_ / tiles);
        mine.stride_ = mine.num_bytes_ / steps;
        return mine;
    }
    // Into L2, never past it: what is asked for with prefetchnta arrives late on Intel's processors (4 times slower).
    PELLUCID_INLINE_MEMBER void step() {
        __builtin_prefetch(data_, 0, 2);
        if (stride_ > 64) __builtin_prefetch(data_ + 64, 0, 2);
        data_ += stride_;
    }
    // The same for steps of many cache lines.
    PELLUCID_INLINE_MEMBER void long_step() {
        for (int64_t i = 0; i < stride_; i += 64) __builtin_prefetch(data_ + i, 0, 2);
        data_ += stride_;
    }

  private:
    const std::byte* data_;
    int64_t num_bytes_;
    int64_t stride_ = 0;
};

// Calls kernel.rows<R>(first_row, tile, tiles) for all rows, R at most max_rows (<= 12) and as even as can be: 13 rows are
// 7 + 6, not 12 + 1. No result depends on R.
template <int max_rows, typename Kernel>
void for_row_tiles(int64_t num_rows, const Kernel& kernel) {
    const int64_t tiles = (num_rows + max_rows - 1) / max_rows;
    int64_t row = 0;
    for (int64_t i = 0; i < tiles; ++i) {
        const int64_t end = num_rows * (i + 1) / tiles;
        switch (end - row) {
            case 1: if constexpr (max_rows >= 1) kernel.template rows<1>(row, i, tiles); break;
            case 2: if constexpr (max_rows >= 2) kernel.template rows<2>(row, i, tiles); break;
            case 3: if constexpr (max_rows >= 3) kernel.template rows<3>(row, i, tiles); break;
            case 4: if constexpr (max_rows >= 4) kernel.template rows<4>(row, i, tiles); break;
            case 5: if constexpr (max_rows >= 5) kernel.template rows<5>(row, i, tiles); break;
            case 6: if constexpr (max_rows >= 6) kernel.template rows<6>(row, i, tiles); break;
            case 7: if constexpr (max_rows >= 7) kernel.template rows<7>(row, i, tiles); break;
            case 8: if constexpr (max_rows >= 8) kernel.template rows<8>(row, i, tiles); break;
            case 9: if constexpr (max_rows >= 9) kernel.template rows<9>(row, i, tiles); break;
            case 10: if constexpr (max_rows >= 10) kernel.template rows<10>(row, i, tiles); break;
            case 11: if constexpr (max_rows >= 11) kernel.template rows<11>(row, i, tiles); break;
            default: if constexpr (max_rows >= 12) kernel.template rows<12>(row, i, tiles); break;
        }
        row = end;
    }
}

// Rows whose sums, two vectors each (or, beyond kMaxRowsOfWholePanels, one), fit the registers beside the weights.
#if defined(PELLUCID_AVX512)
constexpr int kMaxRows = 12, kMaxInt8Rows = 12, kMaxRowsOfWholePanels = 12;
#elif defined(PELLUCID_AVX2)
constexpr int kMaxRows = 4, kMaxInt8Rows = 5, kMaxRowsOfWholePanels = 2;
#else
constexpr int kMaxRows = 4, kMaxInt8Rows = 4, kMaxRowsOfWholePanels = 4;
#endif

}  // namespace PELLUCID_ISA
}  // namespace pellucid
