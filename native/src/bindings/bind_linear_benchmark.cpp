// What benchmarks/linear.py measures with: many layers in one go, without Python between them, and the machine's limits.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <stdexcept>

#include "bench/limits.h"
#include "bindings/bindings.h"
#include "linear/linear.h"
#include "memory.h"
#include "thread_pool.h"

namespace nb = nanobind;

namespace pellucid {
namespace {

double seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double time_linear(const std::vector<const PackedMatrix*>& layers, int64_t num_rows, ThreadPool& pool) {
    size_t in = 0, out = 0, prepared_bytes = 0;
    for (const PackedMatrix* layer : layers) {
        in = std::max(in, static_cast<size_t>(layer->in_features));
        out = std::max(out, static_cast<size_t>(layer->out_features * num_rows));
        prepared_bytes = std::max(prepared_bytes, layer->prepared_bytes(num_rows));
    }
    nb::gil_scoped_release release;
    Buffer x(in * sizeof(float)), y(out * sizeof(float)), prepared(prepared_bytes);
    for (size_t i = 0; i < in; ++i) reinterpret_cast<float*>(x.data())[i] = static_cast<float>(i * 37 % 101) - 50.0f;
    std::memset(y.data(), 0, y.num_bytes());
    std::memset(prepared.data(), 0, prepared.num_bytes());
    float* result = reinterpret_cast<float*>(y.data());
    const double begin = seconds();
    pool.run([&](const ThreadPool::Team& team) {
        for (const PackedMatrix* layer : layers) {
            for (int64_t row = num_rows * team.thread / team.num_threads;
                 row < num_rows * (team.thread + 1) / team.num_threads; ++row)
                layer->prepare_row(reinterpret_cast<const float*>(x.data()), row, prepared.data());
            team.barrier();
            const int64_t panels = layer->num_panels(), block = layer->row_block();
            for (int64_t row = 0; row < num_rows; row += block)
                layer->multiply(prepared.data(), row, std::min(row + block, num_rows),
                                panels * team.thread / team.num_threads, panels * (team.thread + 1) / team.num_threads,
                                result, layer->out_features, Epilogue{});
            team.barrier();
        }
    });
    return seconds() - begin;
}

double read_bandwidth(size_t num_bytes, const std::string& isa, ThreadPool& pool) {
    const LimitKernels& kernels = limit_kernels(isa_from_name(isa));
    nb::gil_scoped_release release;
    Buffer buffer(num_bytes);
    std::memset(buffer.data(), 1, num_bytes);
    const size_t share = num_bytes / static_cast<size_t>(pool.num_threads()) / 256 * 256;
    const double begin = seconds();
    pool.run([&](const ThreadPool::Team& team) {
        kernels.read(buffer.data() + share * static_cast<size_t>(team.thread), share);
    });
    return static_cast<double>(share) * pool.num_threads() / (seconds() - begin);
}

double peak_operations(const std::string& form, const std::string& isa, ThreadPool& pool) {
    const LimitKernels& kernels = limit_kernels(isa_from_name(isa));
    const RowForm row_form = form == "f32" ? RowForm::f32 : form == "bf16" ? RowForm::bf16 : RowForm::int8_rotated;
    nb::gil_scoped_release release;
    std::atomic<double> total{0.0};
    const double begin = seconds();
    pool.run([&](const ThreadPool::Team&) {
        const double operations = kernels.dots(row_form, 4'000'000);
        double before = total.load();
        while (!total.compare_exchange_weak(before, before + operations)) {}
    });
    return total.load() / (seconds() - begin);
}

}  // namespace

void bind_linear_benchmark(nb::module_& m) {
    m.def("time_linear", &time_linear, nb::arg("layers"), nb::arg("num_rows"), nb::arg("pool"),
          "Seconds for num_rows rows through the layers, one after another.");
    m.def("read_bandwidth", &read_bandwidth, nb::arg("num_bytes"), nb::arg("isa"), nb::arg("pool"), "Bytes a second.");
    m.def("peak_operations", &peak_operations, nb::arg("form"), nb::arg("isa"), nb::arg("pool"),
          "Multiplications and additions a second, from registers; form: \"f32\", \"bf16\" or \"int8\".");
}

}  // namespace pellucid
