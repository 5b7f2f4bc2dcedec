// Parts of one or several formats, stacked along the output columns, behind the interface of linear.h.
#include <algorithm>
#include <stdexcept>

#include "linear/panels.h"

namespace pellucid {

PELLUCID_DECLARE_PER_ISA(const LinearKernels& linear_kernels())

const LinearKernels& linear_kernels(Isa isa) { PELLUCID_DISPATCH(isa, linear_kernels()) }

size_t row_form_bytes(RowForm form, int64_t columns) {
    switch (form) {
        case RowForm::f32: return round_up(static_cast<size_t>(columns) * 4, 64);
        case RowForm::bf16: return round_up(static_cast<size_t>(columns) * 2, 64);
        case RowForm::int8_rotated: return RotatedRow(columns).num_bytes;
        default: return GroupedRow(columns, form == RowForm::int15_groups).num_bytes;
    }
}

namespace {

constexpr size_t kRowsInCache = 384 * 1024;  // of prepared rows, beside a panel, in an L2 cache of 1 MiB

struct Part {
    std::unique_ptr<PanelMatrix> matrix;
    int64_t first_column;
    int64_t first_panel;
    size_t form_offset;  // of the row form it reads, inside a prepared row
};

class StackedMatrix : public PackedMatrix {
  public:
    StackedMatrix(std::vector<std::unique_ptr<PanelMatrix>> matrices, int64_t rows, int64_t columns, const float* bias, Isa isa)
        : PackedMatrix(rows, columns), kernels_(linear_kernels(isa)) {
        if (bias) bias_.assign(bias, bias + rows);
        int64_t column = 0;
        for (auto& matrix : matrices) {
            const RowForm form = matrix->row_form();
            auto known = std::find_if(forms_.begin(), forms_.end(), [&](const auto& f) { return f.first == form; });
            if (known == forms_.end()) {
                known = forms_.insert(known, {form, row_stride_});
                row_stride_ += row_form_bytes(form, columns);
            }
            const int64_t rows_of_part = matrix->rows(), panels = matrix->num_panels();
            parts_.push_back({std::move(matrix), column, num_panels_, known->second});
            column += rows_of_part;
            num_panels_ += panels;
        }
    }

    size_t num_bytes() const override {
        size_t total = bias_.size() * sizeof(float);
        for (const Part& part : parts_) total += part.matrix->num_bytes();
        return total;
    }

    std::string format() const override {
        std::vector<std::string> names;
        for (const Part& part : parts_)
            if (std::find(names.begin(), names.end(), part.matrix->format()) == names.end())
                names.push_back(part.matrix->format());
        std::string joined;
        for (const std::string& name : names) joined += (joined.empty() ? "" : "+") + name;
        return joined;
    }

    size_t prepared_bytes(int64_t num_rows) const override { return static_cast<size_t>(num_rows) * row_stride_; }

    void prepare_row(const float* x, int64_t row, std::byte* prepared) const override {
        std::byte* to = prepared + static_cast<size_t>(row) * row_stride_;
        for (const auto& [form, offset] : forms_) {
            switch (form) {
                case RowForm::f32: kernels_.to_f32(x, in_features, to + offset); break;
                case RowForm::bf16: kernels_.to_bf16(x, in_features, to + offset); break;
                case RowForm::int8_groups: kernels_.to_int_groups(x, in_features, false, to + offset); break;
                case RowForm::int15_groups: kernels_.to_int_groups(x, in_features, true, to + offset); break;
                case RowForm::int8_rotated: {
                    static thread_local Buffer scratch;
                    scratch.reserve(static_cast<size_t>(RotatedRow(in_features).padded) * sizeof(float));
                    kernels_.to_int8_rotated(x, in_features, to + offset, reinterpret_cast<float*>(scratch.data()));
                    break;
                }
            }
        }
    }

    int64_t num_panels() const override { return num_panels_; }
    int64_t panel_width() const override { return kPanelColumns; }
    int64_t row_block() const override {
        return std::clamp<int64_t>(static_cast<int64_t>(kRowsInCache / row_stride_) / 12 * 12, 24, 516);
    }

    void multiply(const std::byte* prepared, int64_t row_begin, int64_t row_end, int64_t panel_begin, int64_t panel_end,
                  float* out, int64_t out_stride, const Epilogue& epilogue, const std::byte* then) const override {
        if (row_begin >= row_end) return;
        for (const Part& part : parts_) {
            const int64_t begin = std::max(panel_begin - part.first_panel, int64_t{0});
            const int64_t end = std::min(panel_end - part.first_panel, part.matrix->num_panels());
            if (begin >= end) continue;
            const int64_t column_in_part = begin * kPanelColumns, column = part.first_column + column_in_part;
            Tile tile;
            tile.rows = prepared + static_cast<size_t>(row_begin) * row_stride_ + part.form_offset;
            tile.row_stride = row_stride_;
            tile.num_rows = row_end - row_begin;
            tile.out = out + row_begin * out_stride + column;
            tile.out_stride = out_stride;
            tile.num_columns = std::min(part.matrix->rows(), end * kPanelColumns) - column_in_part;
            tile.bias = bias_.empty() ? nullptr : bias_.data() + column;
            tile.residual =
                epilogue.residual ? epilogue.residual + row_begin * epilogue.residual_stride + column : nullptr;
            tile.residual_stride = epilogue.residual_stride;
            tile.softcap = epilogue.softcap;
            const int64_t after = part.first_panel + end;
            part.matrix->multiply(kernels_, part.matrix->panels(begin, end, after < panel_end ? panel(after) : then), tile);
        }
    }

    const std::byte* panel(int64_t panel) const override {
        for (const Part& part : parts_)
            if (panel < part.first_panel + part.matrix->num_panels()) return part.matrix->panel(panel - part.first_panel);
        return nullptr;
    }

    void dequantize_row(int64_t row, float* out) const override {
        for (const Part& part : parts_) {
            if (row < part.matrix->rows()) return part.matrix->dequantize_row(row, out);
            row -= part.matrix->rows();
        }
        throw std::out_of_range("row past the end of the matrix");
    }

  private:
    const LinearKernels& kernels_;
    std::vector<float> bias_;
    std::vector<Part> parts_;
    std::vector<std::pair<RowForm, size_t>> forms_;  // and their offsets in a prepared row
    size_t row_stride_ = 0;
    int64_t num_panels_ = 0;
};

// The format a part is packed in.
std::string target_format(const MatrixPart& part, const std::string& quantization) {
    GroupFormat format;
    const bool in_groups = find_group_format(part.format, format);
    if (quantization == "int8") return "int8";
    if (part.format == kInt4) return kInt4;
    if (quantization == "int4") return in_groups && group_traits(format).bits == 4 ? part.format : "int4";
    if (part.format == "f16") return "bf16";  // three bits of the mantissa are lost; there is no float16 kernel
    return part.format;
}

std::unique_ptr<PanelMatrix> pack_as(const std::string& format, const std::vector<MatrixPart>& parts, Isa isa,
                                     ThreadPool& pool) {
    const SourceRows source(parts);
    GroupFormat group_format;
    if (find_group_format(format, group_format)) return pack_groups(source, group_format, pool);
    if (format == "int8") return pack_int8(source, pool);
    if (format == "int4") return pack_int4(source, linear_kernels(isa), pool);
    if (format == "bf16") return pack_bf16(source, pool);
    return pack_f32(source, pool);
}

}  // namespace

std::unique_ptr<PackedMatrix> pack_matrix(const std::vector<MatrixPart>& parts, const float* bias,
                                          const std::string& quantization, Isa isa, ThreadPool& pool) {
    if (!quantization.empty() && quantization != "int8" && quantization != "int4")
        throw std::invalid_argument("quantization=\"" + quantization + "\" is not supported; known: int8, int4");
    const SourceRows all(parts);  // checks them
    std::vector<std::unique_ptr<PanelMatrix>> matrices;
    for (size_t i = 0; i < parts.size();) {  // neighbours of one format become one matrix
        const std::string format = target_format(parts[i], quantization);
        std::vector<MatrixPart> run;
        while (i < parts.size() && target_format(parts[i], quantization) == format) run.push_back(parts[i++]);
        matrices.push_back(pack_as(format, run, isa, pool));
    }
    return std::make_unique<StackedMatrix>(std::move(matrices), all.rows(), all.columns(), bias, isa);
}

}  // namespace pellucid
