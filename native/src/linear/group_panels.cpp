#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "linear/panels.h"

namespace pellucid {
namespace {

class GroupPanels : public PanelMatrix {
  public:
    // fine: multiplied with 15-bit activations.
    GroupPanels(int64_t rows, int64_t columns, GroupFormat format, bool fine)
        : PanelMatrix(rows, columns, static_cast<size_t>(GroupLayout(format).panel_bytes(GroupedRow(columns, fine).groups))),
          format_(format),
          traits_(group_traits(format)),
          layout_(format),
          row_(columns, fine) {}

    // read(row, where) gives the numbers of a row.
    template <typename Read>
    void fill(ThreadPool& pool, const Read& read) {
        std::vector<GroupRow> scratch(static_cast<size_t>(pool.num_threads()), GroupRow(row_.groups));
        pool.run([&](const ThreadPool::Team& team) {
            GroupRow& row = scratch[static_cast<size_t>(team.thread)];
            team.for_each(num_panels(), [&](int64_t i) {
                const int64_t end = std::min(rows_ - i * kPanelColumns, kPanelColumns);
                for (int64_t column = 0; column < end; ++column) {
                    read(team.thread, i * kPanelColumns + column, row);
                    for (int64_t group = 0; group < row_.groups; ++group) write_group(i, column, group, row);
                }
            });
        });
    }

    RowForm row_form() const override { return row_.fine ? RowForm::int15_groups : RowForm::int8_groups; }
    const char* format() const override { return row_.fine ? traits_.name : "int4"; }
    void multiply(const LinearKernels& kernels, const Panels& panels, const Tile& tile) const override {
        kernels.multiply_groups(panels, format_, row_, tile);
    }
    void dequantize_row(int64_t row, float* out) const override {
        static thread_local std::vector<float> values;
        GroupRow numbers(row_.groups);
        for (int64_t group = 0; group < row_.groups; ++group)
            read_group(row / kPanelColumns, row % kPanelColumns, group, numbers);
        values.resize(static_cast<size_t>(row_.groups * kGroup));
        dequantize(numbers, format_, row_.groups, values.data());
        std::memcpy(out, values.data(), static_cast<size_t>(columns_) * sizeof(float));
    }

  private:
    struct Place {
        uint16_t *super_scale, *super_minimum;
        uint16_t *scale, *minimum;
        uint8_t *sub_scale, *sub_minimum;
        uint8_t* codes;  // of the half panel the column is in
        int64_t lane;
    };

    Place place(int64_t i, int64_t column, int64_t group) const {
        std::byte* start = panel(i);
        std::byte* super = start + layout_.group_offset(group / kGroupsPerSuper * kGroupsPerSuper) - layout_.super_bytes;
        std::byte* scales = start + layout_.group_offset(group);
        std::byte* codes = scales + layout_.scale_bytes + column / 16 * layout_.half_code_bytes;
        uint16_t* super_halves = reinterpret_cast<uint16_t*>(super);
        uint16_t* halves = reinterpret_cast<uint16_t*>(scales);
        uint8_t* small = reinterpret_cast<uint8_t*>(scales);
        return {super_halves + column, super_halves + kPanelColumns + column, halves + column,
                halves + kPanelColumns + column, small + column, small + kPanelColumns + column,
                reinterpret_cast<uint8_t*>(codes), column % 16};
    }

    void write_group(int64_t i, int64_t column, int64_t group, const GroupRow& row) {
        const Place to = place(i, column, group);
        switch (traits_.scales) {
            case GroupScales::half_min: *to.minimum = row.minimum[group]; [[fallthrough]];
            case GroupScales::half: *to.scale = row.scale[group]; break;
            case GroupScales::super_min:
                *to.super_scale = row.super_scale[group / kGroupsPerSuper];
                *to.super_minimum = row.super_minimum[group / kGroupsPerSuper];
                *to.sub_scale = row.sub_scale[group];
                *to.sub_minimum = row.sub_minimum[group];
                break;
            case GroupScales::super_half:
                *to.super_scale = row.super_scale[group / kGroupsPerSuper];
                *to.sub_scale = row.sub_scale[2 * group];
                *to.sub_minimum = row.sub_scale[2 * group + 1];  // the second half's scale has the place of a minimum
                break;
        }
        for (int64_t k = 0; k < kGroup; ++k) {
            const int64_t step = k / 4, byte = to.lane * 4 + k % 4;
            const uint8_t code = row.codes[group * kGroup + k];
            if (traits_.bits == 8) {
                to.codes[step * 64 + byte] = code;
                continue;
            }
            to.codes[step % 4 * 64 + byte] |= static_cast<uint8_t>((code & 15) << (step < 4 ? 0 : 4));
            if (traits_.bits == 5) to.codes[256 + byte] |= static_cast<uint8_t>(code >> 4 << step);
            if (traits_.bits == 6) to.codes[256 + step / 4 * 64 + byte] |= static_cast<uint8_t>(code >> 4 << step % 4 * 2);
        }
    }

    void read_group(int64_t i, int64_t column, int64_t group, GroupRow& row) const {
        const Place from = place(i, column, group);
        row.scale[group] = *from.scale;
        row.minimum[group] = *from.minimum;
        if (layout_.super_bytes) {
            row.super_scale[group / kGroupsPerSuper] = *from.super_scale;
            if (traits_.scales == GroupScales::super_min) row.super_minimum[group / kGroupsPerSuper] = *from.super_minimum;
        }
        if (traits_.scales == GroupScales::super_half) {
            row.sub_scale[2 * group] = *from.sub_scale;
            row.sub_scale[2 * group + 1] = *from.sub_minimum;
        } else {
            row.sub_scale[group] = *from.sub_scale;
            row.sub_minimum[group] = *from.sub_minimum;
        }
        for (int64_t k = 0; k < kGroup; ++k) {
            const int64_t step = k / 4, byte = from.lane * 4 + k % 4;
            uint8_t code = from.codes[(traits_.bits == 8 ? step : step % 4) * 64 + byte];
            if (traits_.bits != 8) code = step < 4 ? code & 15 : code >> 4;
            if (traits_.bits == 5) code |= static_cast<uint8_t>((from.codes[256 + byte] >> step & 1) << 4);
            if (traits_.bits == 6) code |= static_cast<uint8_t>((from.codes[256 + step / 4 * 64 + byte] >> step % 4 * 2 & 3) << 4);
            row.codes[group * kGroup + k] = code;
        }
    }

    GroupFormat format_;
    GroupTraits traits_;
    GroupLayout layout_;
    GroupedRow row_;
};

}  // namespace

std::unique_ptr<PanelMatrix> pack_groups(const SourceRows& source, GroupFormat format, ThreadPool& pool) {
    auto matrix = std::make_unique<GroupPanels>(source.rows(), source.columns(), format, true);
    matrix->fill(pool, [&](int, int64_t row, GroupRow& out) { source.read(row, out); });
    return matrix;
}

namespace {

// float16 unit such that the largest of the values is 255 of them; and a value in such units.
uint16_t unit_of(float largest) { return float_to_half(largest / 255.0f); }
uint8_t in_units(float value, uint16_t unit) {
    const float size = half_to_float(unit);
    return size > 0.0f ? static_cast<uint8_t>(std::clamp(std::nearbyint(value / size), 0.0f, 255.0f)) : 0;
}

void quantize_super_block(const float* values, int64_t first, int64_t count, const LinearKernels& kernels, GroupRow& out) {
    float scales[kGroupsPerSuper], minima[kGroupsPerSuper], largest_scale = 0.0f, largest_minimum = 0.0f;
    for (int64_t i = 0; i < count; ++i) {
        kernels.fit_int4(values + (first + i) * kGroup, &scales[i], &minima[i]);
        largest_scale = std::max(largest_scale, scales[i]);
        largest_minimum = std::max(largest_minimum, -minima[i]);
    }
    const int64_t super = first / kGroupsPerSuper;
    const uint16_t scale_unit = out.super_scale[super] = unit_of(largest_scale);
    const uint16_t minimum_unit = out.super_minimum[super] = unit_of(largest_minimum);
    for (int64_t i = 0; i < count; ++i) {
        const int64_t group = first + i;
        out.sub_scale[group] = in_units(scales[i], scale_unit);
        out.sub_minimum[group] = in_units(-minima[i], minimum_unit);
        kernels.assign_int4(values + group * kGroup, half_to_float(scale_unit) * out.sub_scale[group],
                            -half_to_float(minimum_unit) * out.sub_minimum[group], out.codes.data() + group * kGroup);
    }
}

}  // namespace

std::unique_ptr<PanelMatrix> pack_int4(const SourceRows& source, const LinearKernels& kernels, ThreadPool& pool) {
    auto matrix = std::make_unique<GroupPanels>(source.rows(), source.columns(), GroupFormat::q4_k, false);
    const int64_t groups = GroupedRow(source.columns(), false).groups;
    std::vector<std::vector<float>> rows(static_cast<size_t>(pool.num_threads()),
                                         std::vector<float>(static_cast<size_t>(groups * kGroup)));
    matrix->fill(pool, [&](int thread, int64_t row, GroupRow& out) {
        if (source.is_int4(row)) return source.read(row, out);
        float* values = rows[static_cast<size_t>(thread)].data();
        source.read(row, values);  // what lies past the columns stays zero
        for (int64_t first = 0; first < groups; first += kGroupsPerSuper)
            quantize_super_block(values, first, std::min(groups - first, kGroupsPerSuper), kernels, out);
    });
    return matrix;
}

}  // namespace pellucid
