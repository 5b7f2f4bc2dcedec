#include "attention/attention.h"

#include "attention/chunk.h"
#include "attention/chunk_tiles.h"

namespace pellucid {
namespace PELLUCID_ISA {
namespace {

template <typename Compute>
class Attend {
    static constexpr int kMaxRows = Compute::kMaxRows;

  public:
    Attend(const AttentionParams& params, const AttentionTask& task, const KVLayout& layout, std::byte* scratch)
        : task_(task), task_rows_(params, task, layout), rows_(task_rows_.count), head_dim_(params.head_dim),
          dim_(layout.padded_dim), work_(scratch, rows_, dim_) {}

    void run(const std::byte* cache, const int32_t* block_table, const float* q, float* partials,
             int64_t partial_stride, float* out) {
        load_queries(q);
        Chunk<Compute> keys(task_rows_, work_);
        State total(work_.total, rows_);
        const bool from_start = task_.begin_partial < 0, split = task_.first_partial >= 0;
        if (!from_start) {
            const State before(partials + task_.begin_partial * partial_stride, task_.begin_rows);
            total.copy(0, rows_, before, task_.begin_row, dim_);
        }
        for (int64_t chunk = task_.chunk_begin; chunk < task_.chunk_end; ++chunk) {
            const int64_t base = chunk * kChunk;
            keys.prepare(cache, block_table, base, task_rows_.visible(0, rows_, base));
            for (int64_t row = 0; row < rows_; row += kMaxRows) {
                const int rows = static_cast<int>(min_of(kMaxRows, rows_ - row));
                State part(work_.chunk, kMaxRows);
                keys.attend(row, rows, part);
                if (!split) {
                    if (from_start && chunk == task_.chunk_begin) total.set(row, rows, part, dim_);
                    else total.add(row, rows, part, 0, dim_);
                } else {
                    float* memory = partials + (task_.first_partial + chunk - task_.chunk_begin) * partial_stride;
                    State(memory, rows_).copy(row, rows, part, 0, dim_);
                }
            }
        }
        if (task_.total_partial >= 0)
            State(partials + task_.total_partial * partial_stride, rows_).copy(0, rows_, total, 0, dim_);
        else if (!split) write_out(total, out);
    }

    void merge(const float* partials, int64_t partial_stride, float* out) {
        State total(work_.total, rows_);
        total.clear(rows_, dim_);
        for (int64_t i = 0; i < task_.chunk_end - task_.chunk_begin; ++i) {
            const State part(const_cast<float*>(partials) + (task_.first_partial + i) * partial_stride, rows_);
            total.add(0, rows_, part, 0, dim_);
        }
        write_out(total, out);
    }

  private:
    void load_queries(const float* q) {
        for (int64_t row = 0; row < rows_; ++row) {
            const float* from = q + task_rows_.offset_in_batch(row);
            for (int64_t d = 0; d < dim_; d += kLanes) {
                const Vec x = d + kLanes <= head_dim_ ? load(from + d) : load_first(from + d, static_cast<int>(head_dim_ - d));
                Compute::store_vector(work_.q + row * dim_ + d, x);
            }
        }
    }

    void write_out(const State& total, float* out) {
        for (int64_t row = 0; row < rows_; ++row) {
            const Vec inverse = splat(1.0f / total.l[row]);
            float* to = out + task_rows_.offset_in_batch(row);
            for (int64_t d = 0; d < head_dim_; d += kLanes) {
                const Vec x = load(total.values + row * dim_ + d) * inverse;
                if (d + kLanes <= head_dim_) store(to + d, x);
                else store_first(to + d, x, static_cast<int>(head_dim_ - d));
            }
        }
    }

    const AttentionTask& task_;
    const TaskRows task_rows_;
    const int64_t rows_, head_dim_, dim_;
    const Workspace<Compute> work_;
};

size_t scratch_bytes(const KVLayout& layout, int64_t max_rows) {
    return Workspace<F32>(nullptr, max_rows, layout.padded_dim).num_bytes;
}

int64_t partial_floats(const KVLayout& layout, int64_t rows) { return State::floats(rows, layout.padded_dim); }

void attend(const AttentionParams& params, const AttentionTask& task, const KVLayout& layout, const std::byte* cache,
            const int32_t* block_table, const float* q, float* partials, int64_t partial_stride, float* out,
            std::byte* scratch) {
#if defined(PELLUCID_DOTS)
#if defined(PELLUCID_TILES)
    using Dots = Bf16Tiles;
#else
    using Dots = Bf16;
#endif
    if (layout.type != KVType::f32) {
        Attend<Dots>(params, task, layout, scratch).run(cache, block_table, q, partials, partial_stride, out);
        return;
    }
#else
    if (layout.type == KVType::bf16 && task.num_tokens * params.group() <= 2 * F32OverBf16::kMaxRows) {
        Attend<F32OverBf16>(params, task, layout, scratch).run(cache, block_table, q, partials, partial_stride, out);
        return;
    }
#endif
    Attend<F32>(params, task, layout, scratch).run(cache, block_table, q, partials, partial_stride, out);
}

void merge(const AttentionParams& params, const AttentionTask& task, const KVLayout& layout, const float* partials,
           int64_t partial_stride, float* out, std::byte* scratch) {
    Attend<F32>(params, task, layout, scratch).merge(partials, partial_stride, out);
}

}  // namespace

const AttentionKernels& attention_kernels() {
    static constexpr AttentionKernels kernels{scratch_bytes, partial_floats, attend, merge};
    return kernels;
}

}  // namespace PELLUCID_ISA
}  // namespace pellucid
