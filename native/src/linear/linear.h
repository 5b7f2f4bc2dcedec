// What a linear layer is to the rest of the module: a packed matrix that says in which form it wants its input rows, and
// multiplies ranges of them with ranges of its output columns on request. It knows no threads: whoever calls it splits
// the work (rows x panels) and may do so in any way, because no element's bits depend on the split.
//
// A call of the layer is two phases with a barrier between them:
//   prepare:  every row once, prepare_row(): float32 -> what the kernel reads (bf16, int8 + scale, ...). The caller has the
//             row in L1, just written by a norm or an activation, so the conversion costs no pass over memory.
//   multiply: every (row range, panel range) once.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "isa.h"

namespace pellucid {

class ThreadPool;

// What is done to an element when its dot product and bias are complete, in this order. Each step is a rounded float32
// operation of its own (no fused multiply-add across steps), so that fused and separate operations agree to the bit.
struct Epilogue {
    float softcap = 0.0f;             // c > 0: v = c * tanh(v / c)
    const float* residual = nullptr;  // v = v + residual[row * residual_stride + column]; may alias out exactly
    int64_t residual_stride = 0;
};

// [out_features, in_features], immutable, safe to use from many threads at once.
class PackedMatrix {
  public:
    PackedMatrix(int64_t out_features, int64_t in_features) : out_features(out_features), in_features(in_features) {}
    virtual ~PackedMatrix() = default;
    PackedMatrix(const PackedMatrix&) = delete;
    PackedMatrix& operator=(const PackedMatrix&) = delete;

    const int64_t out_features;
    const int64_t in_features;

    virtual size_t num_bytes() const = 0;
    virtual std::string format() const = 0;  // "f32", "bf16", "int8", "q4_k+q6_k", ...

    // Bytes of the prepared form of num_rows rows. The buffer is 64-byte aligned.
    virtual size_t prepared_bytes(int64_t num_rows) const = 0;
    // Row `row` of `prepared`. Different rows may be prepared by different threads at the same time.
    virtual void prepare_row(const float* x, int64_t row, std::byte* prepared) const = 0;

    // The output columns in units of work; the last panel may be ragged. row_block: how many rows the kernel likes to
    // be given at once (their prepared form stays in L2 while the panels stream by).
    virtual int64_t num_panels() const = 0;
    virtual int64_t panel_width() const = 0;
    virtual int64_t row_block() const = 0;

    // out[r * out_stride + n] = epilogue(dot(row r, column n) + bias[n]) for rows [row_begin, row_end) of `prepared`
    // (row numbers are absolute, also in out) and the columns of panels [panel_begin, panel_end).
    // then: the panel that the calling thread will want next, of this matrix or another, or null: it is fetched meanwhile.
    virtual void multiply(const std::byte* prepared, int64_t row_begin, int64_t row_end, int64_t panel_begin,
                          int64_t panel_end, float* out, int64_t out_stride, const Epilogue& epilogue,
                          const std::byte* then = nullptr) const = 0;

    // Where panel `panel` lies.
    virtual const std::byte* panel(int64_t panel) const = 0;

    // Row `row` of the matrix as float32 (an embedding look-up in a tied matrix).
    virtual void dequantize_row(int64_t row, float* out) const = 0;
};

// One of the matrices stacked along out_features. data: row-major, `format` says how: "f32", "bf16", "f16" or a GGUF
// block format in lower case ("q4_0", "q4_1", "q8_0", "q4_k", "q6_k"); or "int4", see source_rows.h.
struct MatrixPart {
    const void* data;
    std::string format;
    int64_t rows;
    int64_t columns;
    size_t num_bytes;  // of data, to be checked against format and shape
};

// quantization: "" keeps each part's own precision (parts of different formats may be stacked), "int8", "int4".
// bias: float32 [sum of rows] or null. Copies what it needs: parts may go away after the call.
// Throws std::invalid_argument where a format or a shape is not supported, naming it.
std::unique_ptr<PackedMatrix> pack_matrix(const std::vector<MatrixPart>& parts, const float* bias,
                                          const std::string& quantization, Isa isa, ThreadPool& pool);

}  // namespace pellucid
