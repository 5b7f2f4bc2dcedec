#include "linear/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "linear/source_rows.h"

namespace pellucid {
namespace {

constexpr int kLevels = 15;

struct Fit {
    float codes[kGroup];
    float error;
};

// The nearest codes for a given line, and their squared error.
void assign(const float* w, float scale, float minimum, Fit& fit) {
    const float inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
    float errors[4] = {};
    for (int i = 0; i < kGroup; ++i) {
        // + 2^23 and back rounds to nearest even, and unlike a call of nearbyint it vectorises
        const float bounded = std::min(std::max((w[i] - minimum) * inverse, 0.0f), static_cast<float>(kLevels));
        fit.codes[i] = (bounded + 8388608.0f) - 8388608.0f;
        const float difference = scale * fit.codes[i] + minimum - w[i];
        errors[i % 4] += difference * difference;
    }
    fit.error = (errors[0] + errors[1]) + (errors[2] + errors[3]);
}

// The line that fits the codes best; false where all codes are equal.
bool least_squares(const float* w, const float* codes, float& scale, float& minimum) {
    float c[4] = {}, cc[4] = {}, x[4] = {}, cx[4] = {};
    for (int i = 0; i < kGroup; ++i) {
        c[i % 4] += codes[i];
        cc[i % 4] += codes[i] * codes[i];
        x[i % 4] += w[i];
        cx[i % 4] += codes[i] * w[i];
    }
    const float sum_c = (c[0] + c[1]) + (c[2] + c[3]), sum_cc = (cc[0] + cc[1]) + (cc[2] + cc[3]);
    const float sum_x = (x[0] + x[1]) + (x[2] + x[3]), sum_cx = (cx[0] + cx[1]) + (cx[2] + cx[3]);
    const float determinant = kGroup * sum_cc - sum_c * sum_c;
    if (determinant <= 0.0f) return false;
    scale = (kGroup * sum_cx - sum_c * sum_x) / determinant;
    minimum = (sum_x - scale * sum_c) / kGroup;
    return true;
}

}  // namespace

void quantize_group_4(const float* w, uint8_t* codes, uint16_t& scale_half, uint16_t& minimum_half) {
    const auto [low, high] = std::minmax_element(w, w + kGroup);
    const float middle = 0.5f * (*low + *high), range = *high - *low;
    Fit best, fit;
    best.error = INFINITY;
    for (float shrink : {1.0f, 0.95f, 0.9f, 0.84f, 0.78f}) {
        float scale = shrink * range / kLevels, minimum = middle - 0.5f * shrink * range;
        for (int round = 0; round < 4; ++round) {
            const uint16_t s = float_to_half(scale), m = float_to_half(minimum);
            assign(w, half_to_float(s), half_to_float(m), fit);
            if (fit.error < best.error) {
                best = fit;
                scale_half = s;
                minimum_half = m;
            }
            if (!least_squares(w, fit.codes, scale, minimum)) break;
        }
    }
    for (int i = 0; i < kGroup; ++i) codes[i] = static_cast<uint8_t>(best.codes[i]);
}

}  // namespace pellucid
