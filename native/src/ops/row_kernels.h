// Operations on one row of float32, one implementation per instruction set.
#pragma once
#include <cstdint>

#include "isa.h"

namespace pellucid {

enum class Activation { silu, gelu_tanh };

struct RowKernels {
    // out = x / sqrt(mean(x^2) + eps) * weight. out may be x.
    void (*rms_norm)(const float* x, const float* weight, float eps, int64_t n, float* out);
    // out = a + b. out may be a or b.
    void (*add)(const float* a, const float* b, int64_t n, float* out);
    // out = activation(gate) * up.
    void (*gated)(const float* gate, const float* up, Activation activation, int64_t n, float* out);
    // out = x * factor. out may be x.
    void (*scale)(const float* x, float factor, int64_t n, float* out);
};

const RowKernels& row_kernels(Isa isa);

}  // namespace pellucid
