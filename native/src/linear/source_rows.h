// Rows of a checkpoint's matrices, in whatever format they are stored, one at a time: what packing reads.
#pragma once
#include <cstdint>
#include <vector>

#include "linear/group_format.h"
#include "linear/linear.h"

namespace pellucid {

float half_to_float(uint16_t half);
uint16_t float_to_half(float value);  // to nearest even
float bf16_to_float(uint16_t bits);
uint16_t float_to_bf16(float value);  // to nearest even

// Rows rounded to 4 bits before they come here, with the numbers that our int4 matrices have (q4_k with scales of 8
// bits). A row: float16 d and dmin of each super-block; then sc and mn, a byte each, of each group; then the codes of
// each group, 16 bytes as in q4_1. The last super-block may have fewer than 8 groups.
constexpr const char* kInt4 = "int4";

// One row in a GroupFormat: what its GroupScales call s, m, d, dmin, sc, mn.
struct GroupRow {
    explicit GroupRow(int64_t groups)
        : codes(static_cast<size_t>(groups * kGroup)),
          scale(static_cast<size_t>(groups)),
          minimum(static_cast<size_t>(groups)),
          super_scale(static_cast<size_t>((groups + kGroupsPerSuper - 1) / kGroupsPerSuper)),
          super_minimum(super_scale.size()),
          sub_scale(static_cast<size_t>(2 * groups)),
          sub_minimum(static_cast<size_t>(groups)) {}
    std::vector<uint8_t> codes;
    std::vector<uint16_t> scale, minimum;              // float16, a group
    std::vector<uint16_t> super_scale, super_minimum;  // float16, a super-block
    std::vector<uint8_t> sub_scale;                    // a group; with super_half two a group, int8
    std::vector<uint8_t> sub_minimum;                  // a group
};

// The row's numbers as float32: [groups * 32].
void dequantize(const GroupRow& row, GroupFormat format, int64_t groups, float* out);

// The format of that name in GGUF, if it is one of ours.
bool find_group_format(const std::string& name, GroupFormat& format);

class SourceRows {
  public:
    // Throws std::invalid_argument where a format is unknown, or where the bytes or the shape do not fit it.
    explicit SourceRows(const std::vector<MatrixPart>& parts);

    int64_t rows() const { return rows_; }
    int64_t columns() const { return columns_; }

    // float32 [columns].
    void read(int64_t row, float* out) const;
    // For rows stored in a GroupFormat or as int4, as they are.
    void read(int64_t row, GroupRow& out) const;
    bool is_int4(int64_t row) const;

  private:
    void read_coded(const MatrixPart& part, int64_t row_of_part, GroupRow& out) const;
    const MatrixPart& locate(int64_t& row) const;

    std::vector<MatrixPart> parts_;
    int64_t rows_ = 0;
    int64_t columns_ = 0;
};

}  // namespace pellucid
