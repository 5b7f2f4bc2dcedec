#include "attention/attention_op.h"

namespace pellucid {

void AttentionOp::run(const ThreadPool::Team& team, const Batch& batch, const AttentionPlan& plan, const float* q,
                      float* out, std::byte* scratch, float* partials) const {
    const int64_t stride = partial_stride(plan);
    team.for_each(static_cast<int64_t>(plan.tasks.size()), [&](int64_t i) {
        const AttentionTask& task = plan.tasks[i];
        kernels_.attend(params, task, cache_.layout, cache_.data(), batch.block_table + task.request * batch.max_blocks,
                        q, partials, stride, out, scratch);
    });
    team.barrier();
    if (plan.merges.empty()) return;
    team.for_each(static_cast<int64_t>(plan.merges.size()), [&](int64_t i) {
        kernels_.merge(params, plan.merges[i], cache_.layout, partials, stride, out, scratch);
    });
    team.barrier();
}

}  // namespace pellucid
