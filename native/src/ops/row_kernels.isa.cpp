#include "ops/row_kernels.h"

#include "simd.h"

namespace pellucid {
namespace PELLUCID_ISA {
namespace {

// Four accumulators hide the latency of the additions; which element goes into which depends on its index alone.
float sum_of_squares(const float* x, int64_t n) {
    Vec sums[4] = {zero(), zero(), zero(), zero()};
    int64_t i = 0;
    for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
        for (int j = 0; j < 4; ++j) {
            const Vec v = load(x + i + j * kLanes);
            sums[j] = fma(v, v, sums[j]);
        }
    }
    for (; i + kLanes <= n; i += kLanes) {
        const Vec v = load(x + i);
        sums[0] = fma(v, v, sums[0]);
    }
    if (i < n) {
        const Vec v = load_first(x + i, static_cast<int>(n - i));
        sums[1] = fma(v, v, sums[1]);
    }
    return reduce_add((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

void rms_norm(const float* x, const float* weight, float eps, int64_t n, float* out) {
    const Vec factor = splat(1.0f / std::sqrt(sum_of_squares(x, n) / static_cast<float>(n) + eps));
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(out + i, load(x + i) * factor * load(weight + i));
    if (i < n) {
        const int rest = static_cast<int>(n - i);
        store_first(out + i, load_first(x + i, rest) * factor * load_first(weight + i, rest), rest);
    }
}

void add(const float* a, const float* b, int64_t n, float* out) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(out + i, load(a + i) + load(b + i));
    if (i < n) {
        const int rest = static_cast<int>(n - i);
        store_first(out + i, load_first(a + i, rest) + load_first(b + i, rest), rest);
    }
}

void scale(const float* x, float factor, int64_t n, float* out) {
    const Vec f = splat(factor);
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(out + i, load(x + i) * f);
    if (i < n) {
        const int rest = static_cast<int>(n - i);
        store_first(out + i, load_first(x + i, rest) * f, rest);
    }
}

struct Silu {
    PELLUCID_INLINE Vec apply(Vec x) { return x / (splat(1.0f) + exp(zero() - x)); }
};

// 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
struct GeluTanh {
    PELLUCID_INLINE Vec apply(Vec x) {
        const Vec inner = splat(0.7978845608f) * fma(splat(0.044715f) * x * x, x, x);
        return splat(0.5f) * x * (splat(1.0f) + tanh(inner));
    }
};

template <typename Function>
void gated_by(const float* gate, const float* up, int64_t n, float* out) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(out + i, Function::apply(load(gate + i)) * load(up + i));
    if (i < n) {
        const int rest = static_cast<int>(n - i);
        store_first(out + i, Function::apply(load_first(gate + i, rest)) * load_first(up + i, rest), rest);
    }
}

void gated(const float* gate, const float* up, Activation activation, int64_t n, float* out) {
    if (activation == Activation::silu) gated_by<Silu>(gate, up, n, out);
    else gated_by<GeluTanh>(gate, up, n, out);
}

}  // namespace

const RowKernels& row_kernels() {
    static constexpr RowKernels kernels{rms_norm, add, gated, scale};
    return kernels;
}

}  // namespace PELLUCID_ISA
}  // namespace pellucid
