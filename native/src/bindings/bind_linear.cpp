#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>
#include <tuple>

#include "bindings/bindings.h"
#include "linear/linear.h"
#include "memory.h"
#include "thread_pool.h"

namespace nb = nanobind;

namespace pellucid {

void bind_linear_benchmark(nb::module_& m);

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Part = std::tuple<Bytes, std::string, int64_t, int64_t>;

std::unique_ptr<PackedMatrix> pack(const std::vector<Part>& parts, const std::optional<Floats>& bias,
                                   const std::string& quantization, const std::string& isa, ThreadPool& pool) {
    std::vector<MatrixPart> matrix_parts;
    int64_t rows = 0;
    for (const auto& [data, format, part_rows, columns] : parts) {
        if (part_rows <= 0 || columns <= 0 || columns != std::get<3>(parts[0]))
            throw std::invalid_argument("stacked matrices must have the same number of columns, and at least one row");
        matrix_parts.push_back({data.data(), format, part_rows, columns, data.size()});
        rows += part_rows;
    }
    if (matrix_parts.empty()) throw std::invalid_argument("nothing to pack");
    if (bias && static_cast<int64_t>(bias->size()) != rows)
        throw std::invalid_argument("bias has " + std::to_string(bias->size()) + " elements for " +
                                    std::to_string(rows) + " rows");
    const Isa instruction_set = isa_from_name(isa);
    nb::gil_scoped_release release;
    return pack_matrix(matrix_parts, bias ? bias->data() : nullptr, quantization, instruction_set, pool);
}

using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OutMatrix = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Indices = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void check_shape(const char* name, const OutMatrix& array, size_t rows, int64_t columns) {
    if (array.shape(0) != rows || static_cast<int64_t>(array.shape(1)) != columns)
        throw std::invalid_argument(std::string(name) + " must be [" + std::to_string(rows) + ", " +
                                    std::to_string(columns) + "]");
}

// One layer by itself: rows are prepared, then multiplied, the panels shared among the threads.
void apply(const PackedMatrix& matrix, const Matrix& x, const OutMatrix& out, const std::optional<OutMatrix>& residual,
           float softcap, ThreadPool& pool) {
    const int64_t rows = static_cast<int64_t>(x.shape(0));
    if (static_cast<int64_t>(x.shape(1)) != matrix.in_features)
        throw std::invalid_argument("x must have " + std::to_string(matrix.in_features) + " columns");
    check_shape("out", out, x.shape(0), matrix.out_features);
    if (residual) check_shape("residual", *residual, x.shape(0), matrix.out_features);
    Epilogue epilogue;
    epilogue.softcap = softcap;
    epilogue.residual = residual ? residual->data() : nullptr;
    epilogue.residual_stride = matrix.out_features;
    nb::gil_scoped_release release;
    Buffer prepared(matrix.prepared_bytes(rows));
    const int64_t block = matrix.row_block(), panels = matrix.num_panels();
    pool.run([&](const ThreadPool::Team& team) {
        team.for_each(rows, [&](int64_t row) { matrix.prepare_row(x.data() + row * matrix.in_features, row, prepared.data()); });
        team.barrier();
        for (int64_t row = 0; row < rows; row += block)
            matrix.multiply(prepared.data(), row, std::min(row + block, rows), panels * team.thread / team.num_threads,
                            panels * (team.thread + 1) / team.num_threads, out.data(), matrix.out_features, epilogue);
    });
}

void dequantize_rows(const PackedMatrix& matrix, const Indices& indices, const OutMatrix& out, ThreadPool& pool) {
    check_shape("out", out, indices.size(), matrix.in_features);
    for (size_t i = 0; i < indices.size(); ++i)
        if (indices.data()[i] < 0 || indices.data()[i] >= matrix.out_features)
            throw std::out_of_range("row " + std::to_string(indices.data()[i]) + " of a matrix of " +
                                    std::to_string(matrix.out_features));
    nb::gil_scoped_release release;
    pool.run([&](const ThreadPool::Team& team) {
        team.for_each(static_cast<int64_t>(indices.size()),
                      [&](int64_t i) { matrix.dequantize_row(indices.data()[i], out.data() + i * matrix.in_features); });
    });
}

}  // namespace

void bind_linear(nb::module_& m) {
    nb::class_<PackedMatrix>(m, "PackedMatrix")
        .def_ro("out_features", &PackedMatrix::out_features)
        .def_ro("in_features", &PackedMatrix::in_features)
        .def_prop_ro("num_bytes", &PackedMatrix::num_bytes)
        .def_prop_ro("format", &PackedMatrix::format)
        .def("apply", &apply, nb::arg("x"), nb::arg("out"), nb::arg("residual").none(), nb::arg("softcap"),
             nb::arg("pool"), "out = x @ W.T + bias, then softcap, then + residual. float32, row-major.")
        .def("dequantize_rows", &dequantize_rows, nb::arg("indices"), nb::arg("out"), nb::arg("pool"),
             "Rows of the matrix as float32 [len(indices), in_features].");
    m.def("pack_matrix", &pack, nb::arg("parts"), nb::arg("bias").none(), nb::arg("quantization"), nb::arg("isa"),
          nb::arg("pool"),
          "Packs matrices (bytes, format, rows, columns), stacked along the rows. quantization: \"\", \"int8\" or \"int4\".");
    bind_linear_benchmark(m);
}

}  // namespace pellucid
