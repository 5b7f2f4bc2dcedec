#include "batch.h"

#include <stdexcept>
#include <string>

namespace pellucid {
namespace {

void check_range(const char* what, const int32_t* values, int64_t count, int64_t limit) {
    for (int64_t i = 0; i < count; ++i) {
        if (values[i] < 0 || values[i] >= limit)
            throw std::out_of_range(std::string(what) + "[" + std::to_string(i) + "] is " + std::to_string(values[i]) +
                                    ", not in [0, " + std::to_string(limit) + ")");
    }
}

void check_request(const Batch& batch, int64_t r, int64_t num_blocks) {
    const int64_t num_queries = batch.query_start_loc[r + 1] - batch.query_start_loc[r];
    const int64_t seq_len = batch.seq_lens[r];
    if (num_queries < 0 || seq_len < num_queries || (num_queries > 0 && seq_len > batch.max_blocks * batch.block_size))
        throw std::invalid_argument("request " + std::to_string(r) + " has " + std::to_string(num_queries) +
                                    " queries, seq_lens " + std::to_string(seq_len) + " and a block table of " +
                                    std::to_string(batch.max_blocks) + " blocks: these do not fit together");
    if (num_blocks > 0 && num_queries > 0)
        check_range("block_table row", batch.block_table + r * batch.max_blocks,
                    (seq_len + batch.block_size - 1) / batch.block_size, num_blocks);
}

}  // namespace

void check_batch(const Batch& batch, const BatchLimits& limits) {
    if (limits.vocab_size > 0) check_range("input_ids", batch.input_ids, batch.num_tokens, limits.vocab_size);
    if (limits.num_positions > 0) check_range("positions", batch.positions, batch.num_tokens, limits.num_positions);
    check_range("logits_indices", batch.logits_indices, batch.num_logits, batch.num_tokens);
    if (limits.block_size == 0) return;
    if (batch.block_size != limits.block_size)
        throw std::invalid_argument("the batch has block_size " + std::to_string(batch.block_size) + ", the cache " +
                                    std::to_string(limits.block_size));
    check_range("slot_mapping", batch.slot_mapping, batch.num_tokens, limits.num_blocks * limits.block_size);
    if (batch.query_start_loc[0] != 0 || batch.query_start_loc[batch.num_reqs] != batch.num_tokens)
        throw std::invalid_argument("query_start_loc must run from 0 to the number of tokens");
    for (int64_t r = 0; r < batch.num_reqs; ++r) check_request(batch, r, limits.num_blocks);
}

}  // namespace pellucid
