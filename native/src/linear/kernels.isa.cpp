#include "linear/kernels.h"

namespace pellucid {
namespace PELLUCID_ISA {

void to_f32(const float* x, int64_t columns, std::byte* row);
void to_bf16(const float* x, int64_t columns, std::byte* row);
void to_int8_rotated(const float* x, int64_t columns, std::byte* row, float* rotate_scratch);
void to_int_groups(const float* x, int64_t columns, bool fine, std::byte* row);
void fit_int4(const float* weights, float* scale, float* minimum);
void assign_int4(const float* weights, float scale, float minimum, uint8_t* codes);
void multiply_f32(const Panels& panels, int64_t k, const Tile& tile);
void multiply_bf16(const Panels& panels, int64_t k, const Tile& tile);
void multiply_int8(const Panels& panels, int64_t k, const Tile& tile);
void multiply_groups(const Panels& panels, GroupFormat format, const GroupedRow& row, const Tile& tile);

const LinearKernels& linear_kernels() {
    static const LinearKernels kernels{to_f32,      to_bf16,      to_int8_rotated, to_int_groups, fit_int4,
                                       assign_int4, multiply_f32, multiply_bf16,   multiply_int8, multiply_groups};
    return kernels;
}

}  // namespace PELLUCID_ISA
}  // namespace pellucid
