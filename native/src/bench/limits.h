// What the machine can do at best: the yardstick of the kernels.
#pragma once
#include <cstddef>
#include <cstdint>

#include "isa.h"
#include "linear/kernels.h"

namespace pellucid {

struct LimitKernels {
    // Reads the bytes, as fast as memory gives them.
    void (*read)(const std::byte* data, size_t num_bytes);
    // Runs independent multiply-adds from registers; returns how many operations (a multiplication or an addition each).
    double (*dots)(RowForm form, int64_t rounds);
};

const LimitKernels& limit_kernels(Isa isa);

}  // namespace pellucid
