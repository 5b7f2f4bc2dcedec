// Matrices of one format each, cut into panels as kernels.h describes.
#pragma once
#include <functional>
#include <memory>

#include "linear/kernels.h"
#include "linear/source_rows.h"
#include "thread_pool.h"

namespace pellucid {

class PanelMatrix {
  public:
    virtual ~PanelMatrix() = default;
    PanelMatrix(const PanelMatrix&) = delete;
    PanelMatrix& operator=(const PanelMatrix&) = delete;

    int64_t rows() const { return rows_; }
    int64_t columns() const { return columns_; }
    int64_t num_panels() const { return (rows_ + kPanelColumns - 1) / kPanelColumns; }
    size_t num_bytes() const { return storage_.num_bytes(); }
    std::byte* panel(int64_t i) const { return storage_.data() + panel_bytes_ * static_cast<size_t>(i); }
    Panels panels(int64_t begin, int64_t end, const std::byte* then) const {
        return {panel(begin), panel_bytes_, end - begin, then};
    }

    virtual RowForm row_form() const = 0;
    virtual const char* format() const = 0;
    // tile: of the panels.
    virtual void multiply(const LinearKernels& kernels, const Panels& panels, const Tile& tile) const = 0;
    // Row `row` as float32 [columns].
    virtual void dequantize_row(int64_t row, float* out) const = 0;

  protected:
    PanelMatrix(int64_t rows, int64_t columns, size_t panel_bytes)
        : rows_(rows), columns_(columns), panel_bytes_(panel_bytes), storage_(panel_bytes * static_cast<size_t>(num_panels())) {}

    int64_t rows_, columns_;
    size_t panel_bytes_;
    Buffer storage_;
};

size_t row_form_bytes(RowForm form, int64_t columns);

// f32, bf16 and int8 with a scale per output column; int8 in the rotated basis (see RowForm::int8_rotated).
std::unique_ptr<PanelMatrix> pack_f32(const SourceRows& source, ThreadPool& pool);
std::unique_ptr<PanelMatrix> pack_bf16(const SourceRows& source, ThreadPool& pool);
std::unique_ptr<PanelMatrix> pack_int8(const SourceRows& source, ThreadPool& pool);
// All rows of `source` are stored in `format` and keep their numbers.
std::unique_ptr<PanelMatrix> pack_groups(const SourceRows& source, GroupFormat format, ThreadPool& pool);
// Quantises to 4 bits, groups of 32 with scale and minimum, those in 8 bits of a super-block's (4.6 bits a weight): the
// layout of q4_k, which has 6 bits for them.
std::unique_ptr<PanelMatrix> pack_int4(const SourceRows& source, const LinearKernels& kernels, ThreadPool& pool);

}  // namespace pellucid
