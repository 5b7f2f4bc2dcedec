#include "tape/row_program.h"

#include <algorithm>
#include <cstring>

namespace pellucid {

namespace {
constexpr int64_t kSharesPerThread = 4, kMostRows = 16;
}

int RowProgram::add_value(const RowValue& value) {
    values_.push_back(value);
    scratch_offsets_.push_back(scratch_floats_);
    if (value.slot < 0) scratch_floats_ += round_up(value.width, 16);
    return static_cast<int>(values_.size()) - 1;
}

std::string RowProgram::name() const {
    static constexpr const char* kNames[] = {"embed", "norm", "add", "gated", "copy", "rope", "prepare"};
    std::string name = "rows";
    for (const RowInstruction& step : instructions_) name += std::string(" ") + kNames[static_cast<int>(step.kind)];
    return name;
}

void RowProgram::run(const ThreadPool::Team& team, const View& view) const {
    // A few rows at a time: to ask for each would cost as much as some of the programs.
    const int64_t rows = std::clamp<int64_t>(view.num_rows / (kSharesPerThread * team.num_threads), 1, kMostRows);
    team.for_each((view.num_rows + rows - 1) / rows, [&](int64_t share) {
        const int64_t end = std::min((share + 1) * rows, view.num_rows);
        for (int64_t row = share * rows; row < end; ++row) run_row(view, row);
    });
    team.barrier();
}

void RowProgram::run_row(const View& view, int64_t row) const {
    float* memory = reinterpret_cast<float*>(view.scratch);
    float** at = reinterpret_cast<float**>(memory + scratch_floats_);
    for (size_t i = 0; i < values_.size(); ++i) {
        const RowValue& value = values_[i];
        at[i] = value.slot < 0 ? memory + scratch_offsets_[i]
                               : view.floats(value.slot) + (value.gathered ? view.gather[row] : row) * value.stride;
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
