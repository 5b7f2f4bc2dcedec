#include "attention/attention_op.h"

namespace pellucid {

void AttentionOp::run(const ThreadPool::Team& team, const Batch& batch, const AttentionPlan& plan, const float* q,
                      float* out, std::byte* scratch, float* partials) const {
    const int64_t stride = partial_stride(plan);
    const auto attend = [&](const AttentionTask& task) {
        kernels_.attend(params, task, cache_.layout, cache_.data(), batch.block_table + task.request * batch.max_blocks,
                        q, partials, stride, out, scratch);
    };
    team.for_each(static_cast<int64_t>(plan.tasks.size()), [&](int64_t i) { attend(plan.tasks[i]); });
    team.barrier();
    const int64_t merges = static_cast<int64_t>(plan.merges.size()), rest = static_cast<int64_t>(plan.rest.size());
    if (merges + rest == 0) return;
    team.for_each(merges + rest, [&](int64_t i) {
        if (i < merges) kernels_.merge(params, plan.merges[i], cache_.layout, partials, stride, out, scratch);
        else attend(plan.rest[i - merges]);
    });
    team.barrier();
}

}  // namespace pellucid
