// The integers of one step: a ragged batch, one row a token (pellucid.kernels.forward_batch.ForwardBatch).
#pragma once
#include <cstdint>

namespace pellucid {

struct Batch {
    int64_t num_tokens = 0;
    int64_t num_reqs = 0;
    int64_t num_logits = 0;
    int64_t max_blocks = 0;  // columns of block_table
    int64_t block_size = 0;
    const int32_t* input_ids = nullptr;        // [num_tokens]
    const int32_t* positions = nullptr;        // [num_tokens]
    const int32_t* query_start_loc = nullptr;  // [num_reqs + 1]
    const int32_t* seq_lens = nullptr;         // [num_reqs]
    const int32_t* slot_mapping = nullptr;     // [num_tokens]
    const int32_t* block_table = nullptr;      // [num_reqs, max_blocks]
    const int32_t* logits_indices = nullptr;   // [num_logits]
};

// What the integers may not exceed. 0: there is no such thing in this model.
struct BatchLimits {
    int64_t vocab_size = 0;
    int64_t num_positions = 0;
    int64_t num_blocks = 0;
    int64_t block_size = 0;
};

// Throws std::out_of_range or std::invalid_argument naming the offending number: a kernel that trusts a wrong one
// would write where it must not. A few nanoseconds a token.
void check_batch(const Batch& batch, const BatchLimits& limits);

}  // namespace pellucid
