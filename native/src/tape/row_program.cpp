#include "tape/row_program.h"

#include <cstring>

namespace pellucid {

int RowProgram::add_value(const RowValue& value) {
    values_.push_back(value);
    scratch_offsets_.push_back(scratch_floats_);
    if (value.slot < 0) scratch_floats_ += round_up(value.width, 16);
    return static_cast<int>(values_.size()) - 1;
}

void RowProgram::run(const ThreadPool::Team& team, const View& view) const {
    team.for_each(view.num_rows, [&](int64_t row) { run_row(view, row); });
    team.barrier();
}

void RowProgram::run_row(const View& view, int64_t row) const {
    float* memory = reinterpret_cast<float*>(view.scratch);
    float** at = reinterpret_cast<float**>(memory + scratch_floats_);
    for (size_t i = 0; i < values_.size(); ++i) {
        const RowValue& value = values_[i];
        at[i] = value.slot < 0 ? memory + scratch_offsets_[i]
                               : view.floats(value.slot) + (value.gathered ? view.gather[row] : row) * value.width;
    }
    for (const RowInstruction& step : instructions_) {
        switch (step.kind) {
            case RowInstruction::Kind::embed:
                step.matrix->dequantize_row(view.input_ids[row], at[step.out]);
                if (step.factor != 1.0f) row_.scale(at[step.out], step.factor, values_[step.out].width, at[step.out]);
                break;
            case RowInstruction::Kind::norm:
                row_.rms_norm(at[step.a], step.weight, step.eps, values_[step.a].width, at[step.out]);
                break;
            case RowInstruction::Kind::add:
                row_.add(at[step.a], at[step.b], values_[step.a].width, at[step.out]);
                break;
            case RowInstruction::Kind::gated: {
                const int64_t width = values_[step.out].width;
                row_.gated(at[step.a], at[step.a] + width, step.activation, width, at[step.out]);
                break;
            }
            case RowInstruction::Kind::copy:
                std::memcpy(at[step.out], at[step.a], values_[step.a].width * sizeof(float));
                break;
            case RowInstruction::Kind::rope:
                rope_.rope_and_cache(step.rope, at[step.a], view.positions[row], view.slot_mapping[row],
                                     step.cache->layout, step.cache->data(), at[step.out]);
                break;
            case RowInstruction::Kind::prepare:
                step.matrix->prepare_row(at[step.a], row, view.slots[step.prepared]);
                break;
        }
    }
}

}  // namespace pellucid
