// Attention of all queries of a step, by a team.
#pragma once
#include "attention/attention.h"
#include "thread_pool.h"

namespace pellucid {

class AttentionOp {
  public:
    AttentionOp(const AttentionParams& params, const KVCache& cache, Isa isa)
        : params(params), cache_(cache), kernels_(attention_kernels(isa)) {}

    const AttentionParams params;

    // What the plan needs beside q and out: scratch for every thread, partials shared.
    size_t scratch_bytes(const AttentionPlan& plan) const { return kernels_.scratch_bytes(cache_.layout, plan.max_rows); }
    size_t partial_bytes(const AttentionPlan& plan) const { return plan.num_partials * partial_stride(plan) * sizeof(float); }

    // q, out: [num_tokens, num_heads * head_dim]. Ends with the team's barrier.
    void run(const ThreadPool::Team& team, const Batch& batch, const AttentionPlan& plan, const float* q, float* out,
             std::byte* scratch, float* partials) const;

    const KVLayout& layout() const { return cache_.layout; }

  private:
    int64_t partial_stride(const AttentionPlan& plan) const {
        return static_cast<int64_t>(round_up(kernels_.partial_floats(cache_.layout, plan.max_rows), 16));
    }

    const KVCache& cache_;
    const AttentionKernels& kernels_;
};

}  // namespace pellucid
