// A forward pass recorded once and replayed for any batch in one call, as a CUDA graph does for a GPU: no Python, no
// dispatch, no allocation between kernels, and buffers planned in advance.
//
// The tape is a list of segments. Attention is a segment of its own, because a query reads keys that other rows wrote.
// Between two attentions everything is row-local (a row of the output depends on the same row of the input alone), and
// such a segment runs in one of two ways, chosen by the number of rows:
//
//   by columns  few rows (decode): the team splits the output columns of every matrix, so that each weight is read
//               once, by one core; a barrier after every step.
//   by rows     many rows (prefill): each thread takes a tile of some 64 rows through the whole segment. What lies
//               between the steps stays in its L2, and nobody waits for anybody.
//
// Both give the same bits, because no kernel lets a row's bits depend on the other rows or on the split.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "attention/attention_op.h"
#include "batch.h"
#include "executor.h"
#include "linear/linear.h"
#include "tape/op.h"

namespace pellucid {

enum class Space { tokens, logits };  // what a row is: a token, or a row whose logits are wanted

// A buffer between steps.
struct Slot {
    Space space = Space::tokens;
    size_t row_bytes = 0;
    const PackedMatrix* prepared_for = nullptr;  // then the matrix says how large it is
    bool local = false;                          // written and read within one segment
    int buffer = -1;                             // global or local buffer number; -1: the result, given by the caller

    size_t num_bytes(int64_t num_rows) const {
        return prepared_for != nullptr ? prepared_for->prepared_bytes(num_rows) : row_bytes * static_cast<size_t>(num_rows);
    }
};

struct Segment {
    Space space = Space::tokens;
    std::vector<std::unique_ptr<RowOp>> ops;
    std::vector<int> slots;  // all that its steps touch

    std::unique_ptr<AttentionOp> attention;  // then there are no ops
    size_t num_steps() const { return attention != nullptr ? 1 : ops.size(); }

    int plan = -1;
    int q = -1;
    int out = -1;
};

// Made by TapeBuilder.
class Tape {
  public:
    // Rows and features of the result for a batch.
    Space result_space = Space::logits;
    int64_t result_width = 0;

    std::vector<Slot> slots;
    std::vector<Segment> segments;
    int num_global_buffers = 0;
    int num_local_buffers = 0;
    std::vector<AttentionParams> plan_params;  // one plan for each kind of attention
    BatchLimits limits;

    int64_t result_rows(const Batch& batch) const {
        return result_space == Space::logits ? batch.num_logits : batch.num_tokens;
    }

    // Throws as check_batch does, before anything is computed. result: [result_rows, result_width].
    // profile: where each step's time on the calling thread is added, in seconds, in the order of step_names().
    void run(Executor& executor, const Batch& batch, float* result, std::vector<double>* profile = nullptr);

    std::vector<std::string> step_names() const;

    // What the buffers take at present.
    size_t memory_bytes() const;

  private:
    struct Schedule {  // of one segment in one run
        int64_t num_rows;
        int64_t tile_rows;  // 0: by columns
        int64_t num_tiles;
    };

    Schedule schedule(const Segment& segment, const Batch& batch, int num_threads) const;
    void plan_memory(Executor& executor, const Batch& batch);
    void run_segment(const Segment& segment, const Schedule& schedule, Executor& executor, const Batch& batch,
                     const ThreadPool::Team& team, float* result, double* seconds) const;
    void run_rows(const Segment& segment, const ThreadPool::Team& team, const Batch& batch, int64_t begin, int64_t num_rows,
                  std::byte* locals, std::byte* scratch, float* result, double* seconds) const;

    std::vector<Schedule> schedules_;
    std::vector<Buffer> globals_;
    std::vector<size_t> local_offsets_;
    std::vector<Buffer> locals_;  // one a thread; by columns, all use the first
    std::vector<AttentionPlan> plans_;
    Buffer partials_;
};

}  // namespace pellucid
