// Causal attention of ragged queries over a paged cache.
//
// The unit of everything is the chunk: 128 consecutive keys starting at a multiple of 128. For one query and one chunk,
// scores, their maximum m, the sum l of exp(score - m) and the weighted sum of values are computed in one fixed order;
// the chunks' (m, l, values) are then merged into a running total, first to last. This is online softmax with the
// rescaling at fixed absolute positions. Whether a query is alone or one of many, whether one thread walks all chunks
// or many threads share them, each query goes through the same operations, so its bits are the same.
//
// Rows are (query, head) pairs that share a KV head; a micro-kernel takes a few rows at once so that a key loaded into
// a register serves all of them. Decode of a grouped model (3 heads to a KV head) and prefill (16 queries x 3 heads)
// are the same code, and so are the queries of several requests, as far as their keys lie in the same blocks: a prefix that
// they share is read once for all of them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "attention/kv_cache.h"
#include "batch.h"
#include "isa.h"

namespace pellucid {

constexpr int64_t kChunkKeys = 128;

struct AttentionParams {
    int64_t num_heads;
    int64_t num_kv_heads;
    int64_t head_dim;
    float scale;
    int64_t sliding_window;  // 0: none
    float softcap;           // 0: none

    int64_t group() const { return num_heads / num_kv_heads; }
};

// Queries [row_begin, row_begin + num_tokens) of one request, one KV head, chunks [chunk_begin, chunk_end). Or of
// neighbouring requests of one query each, over chunks that they share and see whole; then first_position is only large
// enough.
struct AttentionTask {
    int64_t request;
    int64_t kv_head;
    int64_t row_begin;       // in the batch
    int64_t num_tokens;
    int64_t first_position;  // of row_begin
    int64_t chunk_begin;
    int64_t chunk_end;
    int64_t first_partial;   // -1: this task sees all chunks and writes the result; else one partial a chunk
    int64_t total_partial = -1;  // else the running total of all its chunks goes here, and not to the result
    int64_t begin_partial = -1;  // else it goes on from rows of such a total: [begin_row, ...) of begin_rows
    int64_t begin_row = 0;
    int64_t begin_rows = 0;
};

// Where a step's attention is cut into tasks. The same for all layers with the same window.
struct AttentionPlan {
    std::vector<AttentionTask> tasks;   // the most expensive first
    std::vector<AttentionTask> merges;  // of split tasks: chunk_begin..chunk_end are partials first_partial...
    std::vector<AttentionTask> rest;    // after all of `tasks`: what follows a prefix that is shared
    int64_t num_partials = 0;
    int64_t max_rows = 0;  // of a task: num_tokens * group

    void build(const Batch& batch, const AttentionParams& params, int num_threads);

  private:
    // Neighbours from request `first` on that decode over a shared prefix: adds their tasks and returns how many they are,
    // or 0.
    int64_t share_prefix(const Batch& batch, const AttentionParams& params, int64_t first);
};

struct AttentionKernels {
    size_t (*scratch_bytes)(const KVLayout& layout, int64_t max_rows);
    // Floats of one partial of a task with `rows` rows; partials lie partial_stride apart, at least that of max_rows.
    int64_t (*partial_floats)(const KVLayout& layout, int64_t rows);
    void (*attend)(const AttentionParams& params, const AttentionTask& task, const KVLayout& layout,
                   const std::byte* cache, const int32_t* block_table, const float* q, float* partials,
                   int64_t partial_stride, float* out, std::byte* scratch);
    // Joins the partials of one split task into its rows of out.
    void (*merge)(const AttentionParams& params, const AttentionTask& task, const KVLayout& layout,
                  const float* partials, int64_t partial_stride, float* out, std::byte* scratch);
};

const AttentionKernels& attention_kernels(Isa isa);

}  // namespace pellucid
