// The inner loops of the linear layers, one implementation per instruction set, and the memory layouts they share with
// the code that packs.
//
// A matrix is cut into panels of 32 output columns; a panel is one sequential stream, so that a decode step reads the
// weights as fast as memory gives them. Inside a panel, "64 bytes of codes" are 16 columns x 4 values of k (int8),
// 16 x 2 (bf16) or 16 x 1 (f32), and come in pairs: columns 0-15, columns 16-31.
#pragma once
#include <cstddef>
#include <cstdint>

#include "isa.h"
#include "linear/group_format.h"
#include "memory.h"

namespace pellucid {

constexpr int64_t kPanelColumns = 32;

// What the kernels read in place of a float32 row.
enum class RowForm {
    f32,
    bf16,
    int8_rotated,  // one scale a row, after a Hadamard rotation of blocks of 64 to 1024 elements (see prepare.isa.cpp)
    int8_groups,   // 8 bits, one scale for every 32 elements
    int15_groups,  // 15 bits as two int8, one scale for every 32 elements
};

// bf16: padded with zeros to whole cache lines, weights and rows, which is what a tile register reads.
constexpr int64_t kBf16Unit = 32;

// int8_rotated: [int8 x padded to 64][float scale][int32 minus the sum of the int8].
struct RotatedRow {
    static constexpr int64_t kUnit = 64;
    static constexpr int64_t kLargestBlock = 1024;
    explicit RotatedRow(int64_t columns)
        : padded(static_cast<int64_t>(round_up(columns, kUnit))), num_bytes(static_cast<size_t>(padded) + 64) {
        while (block < kLargestBlock && padded % (2 * block) == 0) block *= 2;
    }
    int64_t padded;         // also the offset of the scale; the sum follows it
    int64_t block = kUnit;  // how many neighbours the rotation mixes: a power of two that divides padded
    size_t num_bytes;
};

// int8_groups: [int8 x padded to 32][float scale a group][float scale * sum of the integers, a group]
// [int32 minus the sum, a group][int32 minus the sum, a half group].
// int15_groups: the same, an integer being 128 * high + low, [int8 low x padded to 32] after the high ones.
//
// What a checkpoint was quantised to is run with 15 bits: its own rounding is then the only one that shows. With 8 bits
// the rounding of the activations moved SmolLM2's logits (Q4_1) by up to 1.8 and changed greedy answers. Eight bits are
// for weights that we quantise ourselves, where speed was asked for.
struct GroupedRow {
    GroupedRow(int64_t columns, bool fine)
        : fine(fine),
          groups((columns + kGroup - 1) / kGroup),
          lows(groups * kGroup),
          scales(lows + (fine ? groups * kGroup : 0)),
          scaled_sums(scales + 4 * groups),
          sums(scaled_sums + 4 * groups),
          half_sums(sums + 4 * groups),
          num_bytes(round_up(half_sums + 8 * groups, 64)) {}
    bool fine;
    int64_t groups;
    int64_t lows, scales, scaled_sums, sums, half_sums;  // offsets in bytes
    size_t num_bytes;
};

// Neighbouring panels, one after another in memory; and what the caller will read when it is through with them, to be asked
// for in time (null: whatever lies behind them).
struct Panels {
    const std::byte* first;
    size_t stride;
    int64_t count;
    const std::byte* then = nullptr;

    // What is read after panel i.
    const std::byte* after(int64_t i) const {
        return then != nullptr && i + 1 == count ? then : first + static_cast<size_t>(i + 1) * stride;
    }
};

// Rows times some panels, and where the results go.
struct Tile {
    const std::byte* rows;  // the first row, in its RowForm
    size_t row_stride;
    int64_t num_rows;
    float* out;  // first row, first column of the first panel
    int64_t out_stride;
    int64_t num_columns;    // of all panels: the last of a matrix may be ragged
    const float* bias;      // of the first column, or null
    const float* residual;  // first row, first column, or null
    int64_t residual_stride;
    float softcap;  // 0: none
};

struct LinearKernels {
    // columns float32 -> one row of the given form; what lies past the columns becomes zero.
    // rotate_scratch: RotatedRow::padded floats.
    void (*to_f32)(const float* x, int64_t columns, std::byte* row);
    void (*to_bf16)(const float* x, int64_t columns, std::byte* row);
    void (*to_int8_rotated)(const float* x, int64_t columns, std::byte* row, float* rotate_scratch);
    void (*to_int_groups)(const float* x, int64_t columns, bool fine, std::byte* row);

    // The line scale * code + minimum, codes 0..15, minimum <= 0, with little squared error for 32 weights; and the codes for a line.
    void (*fit_int4)(const float* weights, float* scale, float* minimum);
    void (*assign_int4)(const float* weights, float scale, float minimum, uint8_t* codes);

    // Panels of k elements (already padded as the row form is).
    void (*multiply_f32)(const Panels& panels, int64_t k, const Tile& tile);
    void (*multiply_bf16)(const Panels& panels, int64_t k, const Tile& tile);
    // [codes, weight + 128][float scale x 32]
    void (*multiply_int8)(const Panels& panels, int64_t k, const Tile& tile);
    // GroupLayout's stream.
    void (*multiply_groups)(const Panels& panels, GroupFormat format, const GroupedRow& row, const Tile& tile);
};

const LinearKernels& linear_kernels(Isa isa);

}  // namespace pellucid
