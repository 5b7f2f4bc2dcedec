// The plainest packed matrix: float32 rows, one accumulator order, no instruction set in particular. It stands in for
// formats that have no kernel of their own.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "linear/linear.h"

namespace pellucid {
namespace {

float from_bf16(uint16_t bits) {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
}

class PlainMatrix : public PackedMatrix {
  public:
    PlainMatrix(std::vector<float> weights, std::vector<float> bias, int64_t rows, int64_t columns)
        : PackedMatrix(rows, columns), weights_(std::move(weights)), bias_(std::move(bias)) {}

    size_t num_bytes() const override { return (weights_.size() + bias_.size()) * sizeof(float); }
    std::string format() const override { return "f32"; }
    size_t prepared_bytes(int64_t num_rows) const override { return num_rows * in_features * sizeof(float); }
    void prepare_row(const float* x, int64_t row, std::byte* prepared) const override {
        std::memcpy(prepared + row * in_features * sizeof(float), x, in_features * sizeof(float));
    }
    int64_t num_panels() const override { return (out_features + 15) / 16; }
    int64_t panel_width() const override { return 16; }
    int64_t row_block() const override { return 64; }
    void multiply(const std::byte* prepared, int64_t row_begin, int64_t row_end, int64_t panel_begin, int64_t panel_end,
                  float* out, int64_t out_stride, const Epilogue& epilogue) const override;
    void dequantize_row(int64_t row, float* out) const override {
        std::memcpy(out, weights_.data() + row * in_features, in_features * sizeof(float));
    }

  private:
    std::vector<float> weights_;
    std::vector<float> bias_;
};

void PlainMatrix::multiply(const std::byte* prepared, int64_t row_begin, int64_t row_end, int64_t panel_begin,
                           int64_t panel_end, float* out, int64_t out_stride, const Epilogue& epilogue) const {
    const float* x = reinterpret_cast<const float*>(prepared);
    for (int64_t row = row_begin; row < row_end; ++row) {
        for (int64_t n = panel_begin * 16; n < std::min(panel_end * 16, out_features); ++n) {
            float lanes[8] = {};
            const float* w = weights_.data() + n * in_features;
            const float* a = x + row * in_features;
            int64_t k = 0;
            for (; k + 8 <= in_features; k += 8)
                for (int i = 0; i < 8; ++i) lanes[i] += a[k + i] * w[k + i];
            for (; k < in_features; ++k) lanes[0] += a[k] * w[k];
            float v = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
            if (!bias_.empty()) v += bias_[n];
            if (epilogue.softcap > 0) v = epilogue.softcap * std::tanh(v / epilogue.softcap);
            if (epilogue.residual) v += epilogue.residual[row * epilogue.residual_stride + n];
            out[row * out_stride + n] = v;
        }
    }
}

}  // namespace

std::unique_ptr<PackedMatrix> pack_matrix(const std::vector<MatrixPart>& parts, const float* bias,
                                          const std::string& quantization, Isa, ThreadPool&) {
    if (!quantization.empty()) throw std::invalid_argument("quantization=\"" + quantization + "\" is not supported");
    std::vector<float> weights;
    int64_t rows = 0;
    for (const MatrixPart& part : parts) {
        const int64_t count = part.rows * part.columns;
        if (part.format == "f32") {
            const float* data = static_cast<const float*>(part.data);
            weights.insert(weights.end(), data, data + count);
        } else if (part.format == "bf16") {
            const uint16_t* data = static_cast<const uint16_t*>(part.data);
            for (int64_t i = 0; i < count; ++i) weights.push_back(from_bf16(data[i]));
        } else {
            throw std::invalid_argument("weight format \"" + part.format + "\" is not supported");
        }
        rows += part.rows;
    }
    std::vector<float> bias_copy;
    if (bias) bias_copy.assign(bias, bias + rows);
    return std::make_unique<PlainMatrix>(std::move(weights), std::move(bias_copy), rows, parts.at(0).columns);
}

}  // namespace pellucid
