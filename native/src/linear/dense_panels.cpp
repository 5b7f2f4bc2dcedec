#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "linear/panels.h"

namespace pellucid {
namespace {

// The rotation of RowForm::int8_rotated, in place.
void rotate(float* row, const RotatedRow& layout) {
    const float factor = 1.0f / std::sqrt(static_cast<float>(layout.block));
    for (int64_t distance = 1; distance < layout.block; distance *= 2) {
        for (int64_t i = 0; i < layout.padded; i += 2 * distance) {
            for (int64_t j = i; j < i + distance; ++j) {
                const float a = row[j], b = row[j + distance];
                row[j] = a + b;
                row[j + distance] = a - b;
            }
        }
    }
    for (int64_t i = 0; i < layout.padded; ++i) row[i] *= factor;
}

// write(panel, column in the panel, row of the source) for every row of a matrix, panels shared among the threads.
template <typename Write>
void for_each_row(const SourceRows& source, int64_t padded_columns, ThreadPool& pool, const Write& write) {
    const int64_t panels = (source.rows() + kPanelColumns - 1) / kPanelColumns;
    std::vector<std::vector<float>> rows(static_cast<size_t>(pool.num_threads()),
                                         std::vector<float>(static_cast<size_t>(padded_columns)));
    pool.run([&](const ThreadPool::Team& team) {
        float* row = rows[static_cast<size_t>(team.thread)].data();
        team.for_each(panels, [&](int64_t panel) {
            const int64_t end = std::min(source.rows() - panel * kPanelColumns, kPanelColumns);
            for (int64_t column = 0; column < end; ++column) {
                source.read(panel * kPanelColumns + column, row);
                std::memset(row + source.columns(), 0, static_cast<size_t>(padded_columns - source.columns()) * sizeof(float));
                write(panel, column, row);
            }
        });
    });
}

class F32Panels : public PanelMatrix {
  public:
    F32Panels(const SourceRows& source, ThreadPool& pool)
        : PanelMatrix(source.rows(), source.columns(), static_cast<size_t>(source.columns() * kPanelColumns) * 4) {
        for_each_row(source, columns_, pool, [&](int64_t panel, int64_t column, const float* row) {
            for (int64_t k = 0; k < columns_; ++k) weights(panel)[k * kPanelColumns + column] = row[k];
        });
    }
    RowForm row_form() const override { return RowForm::f32; }
    const char* format() const override { return "f32"; }
    void multiply(const LinearKernels& kernels, const Panels& panels, const Tile& tile) const override {
        kernels.multiply_f32(panels, columns_, tile);
    }
    void dequantize_row(int64_t row, float* out) const override {
        const float* from = weights(row / kPanelColumns) + row % kPanelColumns;
        for (int64_t k = 0; k < columns_; ++k) out[k] = from[k * kPanelColumns];
    }

  private:
    float* weights(int64_t i) const { return reinterpret_cast<float*>(panel(i)); }
};

class Bf16Panels : public PanelMatrix {
  public:
    Bf16Panels(const SourceRows& source, ThreadPool& pool)
        : PanelMatrix(source.rows(), source.columns(),
                      round_up(static_cast<size_t>(source.columns()), kBf16Unit) * kPanelColumns * 2) {
        for_each_row(source, columns_, pool, [&](int64_t panel, int64_t column, const float* row) {
            for (int64_t k = 0; k < columns_; ++k) weights(panel)[index(column, k)] = float_to_bf16(row[k]);
        });
    }
    RowForm row_form() const override { return RowForm::bf16; }
    const char* format() const override { return "bf16"; }
    void multiply(const LinearKernels& kernels, const Panels& panels, const Tile& tile) const override {
        kernels.multiply_bf16(panels, (columns_ + 1) / 2 * 2, tile);
    }
    void dequantize_row(int64_t row, float* out) const override {
        const uint16_t* from = weights(row / kPanelColumns);
        for (int64_t k = 0; k < columns_; ++k) out[k] = bf16_to_float(from[index(row % kPanelColumns, k)]);
    }

  private:
    static int64_t index(int64_t column, int64_t k) { return (k / 2 * kPanelColumns + column) * 2 + k % 2; }
    uint16_t* weights(int64_t i) const { return reinterpret_cast<uint16_t*>(panel(i)); }
};

class Int8Panels : public PanelMatrix {
  public:
    Int8Panels(const SourceRows& source, ThreadPool& pool)
        : PanelMatrix(source.rows(), source.columns(),
                      static_cast<size_t>(RotatedRow(source.columns()).padded + 4) * kPanelColumns),
          layout_(source.columns()),
          padded_(layout_.padded) {
        for_each_row(source, padded_, pool, [&](int64_t panel, int64_t column, float* row) {
            rotate(row, layout_);
            float largest = 0.0f;
            for (int64_t k = 0; k < padded_; ++k) largest = std::max(largest, std::fabs(row[k]));
            const float inverse = largest > 0 ? 127.0f / largest : 0.0f;
            for (int64_t k = 0; k < padded_; ++k)
                codes(panel)[index(column, k)] = static_cast<uint8_t>(static_cast<int>(std::nearbyint(row[k] * inverse)) + 128);
            scales(panel)[column] = largest / 127.0f;
        });
    }
    RowForm row_form() const override { return RowForm::int8_rotated; }
    const char* format() const override { return "int8"; }
    void multiply(const LinearKernels& kernels, const Panels& panels, const Tile& tile) const override {
        kernels.multiply_int8(panels, padded_, tile);
    }
    void dequantize_row(int64_t row, float* out) const override {
        const int64_t i = row / kPanelColumns, column = row % kPanelColumns;
        static thread_local std::vector<float> values;
        values.resize(static_cast<size_t>(padded_));
        for (int64_t k = 0; k < padded_; ++k)
            values[k] = scales(i)[column] * static_cast<float>(codes(i)[index(column, k)] - 128);
        rotate(values.data(), layout_);
        std::memcpy(out, values.data(), static_cast<size_t>(columns_) * sizeof(float));
    }

  private:
    static int64_t index(int64_t column, int64_t k) { return (k / 4 * kPanelColumns + column) * 4 + k % 4; }
    uint8_t* codes(int64_t i) const { return reinterpret_cast<uint8_t*>(panel(i)); }
    float* scales(int64_t i) const { return reinterpret_cast<float*>(codes(i) + padded_ * kPanelColumns); }

    RotatedRow layout_;
    int64_t padded_;
};

}  // namespace

std::unique_ptr<PanelMatrix> pack_f32(const SourceRows& source, ThreadPool& pool) {
    return std::make_unique<F32Panels>(source, pool);
}
std::unique_ptr<PanelMatrix> pack_bf16(const SourceRows& source, ThreadPool& pool) {
    return std::make_unique<Bf16Panels>(source, pool);
}
std::unique_ptr<PanelMatrix> pack_int8(const SourceRows& source, ThreadPool& pool) {
    if (source.columns() > 32768)
        throw std::invalid_argument("int8 weights with " + std::to_string(source.columns()) +
                                    " columns could overflow the 32-bit sums (at most 32768)");
    return std::make_unique<Int8Panels>(source, pool);
}

}  // namespace pellucid
