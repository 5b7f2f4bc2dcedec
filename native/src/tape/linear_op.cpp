#include "tape/linear_op.h"

#include <algorithm>

namespace pellucid {

namespace {
constexpr int64_t kSharesPerThread = 4;  // small enough to even out a core that is slow for a moment
}

void LinearOp::run(const ThreadPool::Team& team, const View& view) const {
    Epilogue epilogue;
    epilogue.softcap = softcap_;
    if (residual_.slot >= 0) {
        epilogue.residual = view.floats(residual_.slot);
        epilogue.residual_stride = residual_.stride;
    }
    const int64_t panels = matrix_.num_panels();
    const int64_t row_block = std::max<int64_t>(1, matrix_.row_block());
    const int64_t row_blocks = (view.num_rows + row_block - 1) / row_block;
    const int64_t shares = team.num_threads == 1 ? 1 : std::min(panels, kSharesPerThread * team.num_threads);
    team.for_each(row_blocks * shares, [&](int64_t item) {
        const int64_t row = item / shares * row_block, share = item % shares;
        matrix_.multiply(view.slots[prepared_], row, std::min(row + row_block, view.num_rows), panels * share / shares,
                         panels * (share + 1) / shares, view.floats(out_.slot), out_.stride, epilogue);
    });
    team.barrier();
}

}  // namespace pellucid
