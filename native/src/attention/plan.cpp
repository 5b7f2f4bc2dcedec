#include <algorithm>

#include "attention/attention.h"

namespace pellucid {
namespace {

constexpr int64_t kRowsPerTask = 96;     // queries x heads that share a pass over the keys
constexpr int64_t kTasksPerThread = 8;   // below this, long contexts are split among threads
constexpr int64_t kSharedRows = 16;      // queries x heads that share a prefix, at most
constexpr int64_t kFewestToShare = 3;    // requests; fewer do not earn back the second phase

int64_t first_visible_chunk(const AttentionParams& params, int64_t position) {
    if (params.sliding_window == 0) return 0;
    return std::max<int64_t>(0, position - params.sliding_window + 1) / kChunkKeys;
}

// Chunks at the beginning that two requests keep in the same blocks.
int64_t common_chunks(const Batch& batch, int64_t a, int64_t b) {
    const int64_t blocks = (std::min(batch.seq_lens[a], batch.seq_lens[b]) + batch.block_size - 1) / batch.block_size;
    const int32_t* first = batch.block_table + a * batch.max_blocks;
    const int64_t common = std::mismatch(first, first + blocks, batch.block_table + b * batch.max_blocks).first - first;
    return common * batch.block_size / kChunkKeys;
}

bool is_one_query(const Batch& batch, int64_t request) {
    return batch.query_start_loc[request + 1] - batch.query_start_loc[request] == 1;
}

}  // namespace

int64_t AttentionPlan::share_prefix(const Batch& batch, const AttentionParams& params, int64_t first) {
    const int64_t most = kSharedRows / params.group();
    if (params.sliding_window != 0 || most < kFewestToShare || !is_one_query(batch, first)) return 0;
    int64_t count = 1, chunks = 0, shortest = batch.seq_lens[first];
    for (; count < most && first + count < batch.num_reqs && is_one_query(batch, first + count); ++count) {
        const int64_t shorter = std::min<int64_t>(shortest, batch.seq_lens[first + count]);
        const int64_t common = std::min(common_chunks(batch, first, first + count), shorter / kChunkKeys);
        if (common == 0 || (count > 1 && common < chunks)) break;
        if (count == 1) chunks = common;
        shortest = shorter;
    }
    if (count < kFewestToShare) return 0;
    const int64_t row = batch.query_start_loc[first];
    for (int64_t head = 0; head < params.num_kv_heads; ++head) {
        AttentionTask shared{first, head, row, count, chunks * kChunkKeys, 0, chunks, -1};
        shared.total_partial = num_partials++;
        tasks.push_back(shared);
        for (int64_t i = 0; i < count; ++i) {
            const int64_t position = batch.seq_lens[first + i] - 1;
            AttentionTask own{first + i, head, row + i, 1, position, chunks, position / kChunkKeys + 1, -1};
            own.begin_partial = shared.total_partial;
            own.begin_row = i * params.group();
            own.begin_rows = count * params.group();
            rest.push_back(own);
        }
    }
    return count;
}

void AttentionPlan::build(const Batch& batch, const AttentionParams& params, int num_threads) {
    tasks.clear();
    merges.clear();
    rest.clear();
    num_partials = 0;
    const int64_t group = params.group();
    const int64_t block = std::max<int64_t>(1, kRowsPerTask / group);
    int64_t total_chunks = 0;
    for (int64_t r = 0; r < batch.num_reqs; ++r) {
        if (const int64_t sharing = share_prefix(batch, params, r); sharing > 0) {
            r += sharing - 1;
            continue;
        }
        const int64_t begin = batch.query_start_loc[r], end = batch.query_start_loc[r + 1];
        const int64_t offset = batch.seq_lens[r] - end;  // position = row + offset
        for (int64_t row = begin; row < end; row += block) {
            const int64_t num_tokens = std::min(block, end - row);
            const int64_t chunk_begin = first_visible_chunk(params, row + offset);
            const int64_t chunk_end = (row + num_tokens - 1 + offset) / kChunkKeys + 1;
            for (int64_t head = 0; head < params.num_kv_heads; ++head)
                tasks.push_back({r, head, row, num_tokens, row + offset, chunk_begin, chunk_end, -1});
            total_chunks += (chunk_end - chunk_begin) * params.num_kv_heads;
        }
    }
    max_rows = 0;
    for (const AttentionTask& task : tasks) max_rows = std::max(max_rows, task.num_tokens * group);

    const int64_t wanted = kTasksPerThread * num_threads;
    if (num_threads > 1 && static_cast<int64_t>(tasks.size()) < wanted) {
        const int64_t span = std::max<int64_t>(1, total_chunks / wanted);
        std::vector<AttentionTask> whole;
        whole.swap(tasks);
        for (AttentionTask task : whole) {
            if (task.chunk_end - task.chunk_begin <= span || task.total_partial >= 0) {
                tasks.push_back(task);
                continue;
            }
            task.first_partial = num_partials;
            num_partials += task.chunk_end - task.chunk_begin;
            merges.push_back(task);
            for (int64_t chunk = task.chunk_begin; chunk < task.chunk_end; chunk += span) {
                AttentionTask part = task;
                part.chunk_begin = chunk;
                part.chunk_end = std::min(chunk + span, task.chunk_end);
                part.first_partial = task.first_partial + chunk - task.chunk_begin;
                tasks.push_back(part);
            }
        }
    }
    // Long tasks first: the short ones fill the gaps at the end.
    std::stable_sort(tasks.begin(), tasks.end(), [](const AttentionTask& a, const AttentionTask& b) {
        return a.num_tokens * (a.chunk_end - a.chunk_begin) > b.num_tokens * (b.chunk_end - b.chunk_begin);
    });
}

PELLUCID_DECLARE_PER_ISA(const AttentionKernels& attention_kernels())

const AttentionKernels& attention_kernels(Isa isa) { PELLUCID_DISPATCH(isa, attention_kernels()) }

}  // namespace pellucid
