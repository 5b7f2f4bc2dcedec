#include "tape/linear_op.h"

#include <algorithm>

namespace pellucid {

namespace {

constexpr int64_t kSharesPerThread = 4;  // small enough to even out a core that is slow for a moment

// A matrix's panels are cut into this many runs.
int64_t shares_of(const PackedMatrix& matrix, const ThreadPool::Team& team) {
    return team.num_threads == 1 ? 1 : std::min(matrix.num_panels(), kSharesPerThread * team.num_threads);
}

// The first panel of a share; null where there is no such share.
const std::byte* share_begin(const PackedMatrix& matrix, int64_t share, int64_t shares) {
    return share < shares ? matrix.panel(matrix.num_panels() * share / shares) : nullptr;
}

}  // namespace

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
    const int64_t shares = shares_of(matrix_, team), items = row_blocks * shares;
    const std::byte* next_op = next_ == nullptr ? nullptr : share_begin(*next_, team.thread, shares_of(*next_, team));
    team.for_each_ahead(items, [&](int64_t item, int64_t after) {
        const int64_t row = item / shares * row_block, share = item % shares;
        const std::byte* then = after < items ? share_begin(matrix_, after % shares, shares) : next_op;
        matrix_.multiply(view.slots[prepared_], row, std::min(row + row_block, view.num_rows), panels * share / shares,
                         panels * (share + 1) / shares, view.floats(out_.slot), out_.stride, epilogue, then);
    });
    team.barrier();
}

}  // namespace pellucid
