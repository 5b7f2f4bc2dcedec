#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <tuple>

#include "bindings/bindings.h"
#include "linear/linear.h"
#include "thread_pool.h"

namespace nb = nanobind;

namespace pellucid {
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

}  // namespace

void bind_linear(nb::module_& m) {
    nb::class_<PackedMatrix>(m, "PackedMatrix")
        .def_ro("out_features", &PackedMatrix::out_features)
        .def_ro("in_features", &PackedMatrix::in_features)
        .def_prop_ro("num_bytes", &PackedMatrix::num_bytes)
        .def_prop_ro("format", &PackedMatrix::format);
    m.def("pack_matrix", &pack, nb::arg("parts"), nb::arg("bias").none(), nb::arg("quantization"), nb::arg("isa"),
          nb::arg("pool"),
          "Packs matrices (bytes, format, rows, columns), stacked along the rows. quantization: \"\", \"int8\" or \"int4\".");
}

}  // namespace pellucid
