// Rounding weights to few bits with little damage.
#pragma once
#include <cstdint>

namespace pellucid {

// 32 weights -> codes 0..15 and float16 scale, minimum such that the squared error of scale * code + minimum is small:
// from several clipped ranges, codes and the line through them (least squares) are fitted in turn, the best kept.
// Weights that already lie on 16 evenly spaced levels come back as they are.
void quantize_group_4(const float* weights, uint8_t* codes, uint16_t& scale, uint16_t& minimum);

}  // namespace pellucid
