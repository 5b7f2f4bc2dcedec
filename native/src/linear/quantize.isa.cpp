// Rounding weights to 4 bits with little damage. No fused operations and one order of additions: the same codes on every
// instruction set.
#include "linear/tiles.h"

namespace pellucid {
namespace PELLUCID_ISA {
namespace {

constexpr float kLevels = 15.0f;

// 32 values.
struct Group {
    Vec a, b;
};

PELLUCID_INLINE Group operator*(Group x, Group y) { return {x.a * y.a, x.b * y.b}; }
PELLUCID_INLINE float sum(Group x) { return reduce_add(x.a + x.b); }

PELLUCID_INLINE Vec nearest_codes(Vec w, float scale, float minimum) {
    const float inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
    return round(min(max((w - splat(minimum)) * splat(inverse), zero()), splat(kLevels)));
}

PELLUCID_INLINE Group nearest_codes(Group w, float scale, float minimum) {
    return {nearest_codes(w.a, scale, minimum), nearest_codes(w.b, scale, minimum)};
}

PELLUCID_INLINE float squared_error(Group w, Group codes, float scale, float minimum) {
    const Vec s = splat(scale), m = splat(minimum);
    const Group difference{codes.a * s + m - w.a, codes.b * s + m - w.b};
    return sum(difference * difference);
}

}  // namespace

// From several clipped ranges, codes and the line through them (least squares) are fitted in turn, and the best line is
// kept; the minimum is never above 0. Weights that already lie on 16 evenly spaced levels come back as they are.
void fit_int4(const float* weights, float* scale, float* minimum) {
    const Group w{load(weights), load(weights + kLanes)};
    const float high = reduce_max(max(max(w.a, w.b), zero()));
    const float low = -reduce_max(max(max(zero() - w.a, zero() - w.b), zero()));
    const float middle = 0.5f * (low + high), range = high - low, sum_w = sum(w), n = static_cast<float>(kGroup);
    float least = INFINITY;
    for (const float shrink : {1.0f, 0.95f, 0.9f, 0.84f, 0.78f}) {
        float s = shrink * range / kLevels, m = middle - 0.5f * shrink * range;
        for (int i = 0; i < 4; ++i) {
            const Group codes = nearest_codes(w, s, m);
            const float error = squared_error(w, codes, s, m);
            if (error < least) {
                least = error;
                *scale = s;
                *minimum = m;
            }
            const float sum_c = sum(codes), sum_cc = sum(codes * codes), sum_cw = sum(codes * w);
            const float determinant = n * sum_cc - sum_c * sum_c;  // of integers: exact
            if (determinant <= 0.0f) break;                        // all codes are equal
            s = (n * sum_cw - sum_c * sum_w) / determinant;
            m = (sum_w - s * sum_c) / n;
            if (m > 0.0f) m = 0.0f, s = sum_cw / sum_cc;
        }
    }
}

void assign_int4(const float* weights, float scale, float minimum, uint8_t* codes) {
    const Group nearest = nearest_codes({load(weights), load(weights + kLanes)}, scale, minimum);
    store_int8(reinterpret_cast<int8_t*>(codes), nearest.a);
    store_int8(reinterpret_cast<int8_t*>(codes + kLanes), nearest.b);
}

}  // namespace PELLUCID_ISA
}  // namespace pellucid
