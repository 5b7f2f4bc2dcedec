// Queries and keys of one token: norm, rotation, and the way into the cache.
#pragma once
#include <cstdint>

#include "attention/kv_cache.h"
#include "isa.h"

namespace pellucid {

struct RopeParams {
    int64_t num_heads;
    int64_t num_kv_heads;
    int64_t head_dim;
    const float* cos_sin;  // [num_positions, rotary_dim]
    int64_t num_positions;
    int64_t rotary_dim;
    const float* q_norm;  // [head_dim] or null
    const float* k_norm;
    float norm_eps;
};

struct RopeKernels {
    // One token. qkv: its row, q then k then v. Rotated queries go to q_out, key and value to the cache at `slot`.
    void (*rope_and_cache)(const RopeParams& params, const float* qkv, int32_t position, int32_t slot,
                           const KVLayout& layout, std::byte* cache, float* q_out);
};

const RopeKernels& rope_kernels(Isa isa);

}  // namespace pellucid
