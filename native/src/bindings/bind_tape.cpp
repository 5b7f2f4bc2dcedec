// Recording a forward pass, and replaying it.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "executor.h"
#include "memory.h"
#include "tape/tape_builder.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pellucid {

Activation activation_from_name(const std::string& name);
RopeParams make_rope_params(const FloatRows& cos_sin, int64_t num_heads, int64_t num_kv_heads, int64_t head_dim,
                            const std::optional<FloatVector>& q_norm, const std::optional<FloatVector>& k_norm, float eps);
AttentionParams make_attention_params(int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, float scale,
                                      int64_t sliding_window, float softcap);

namespace {

// Memory for results. A result belongs to whoever holds the array; when the last holder lets go, its memory is kept for
// the next: fresh pages from the system would cost more than many a kernel.
class ResultPool {
  public:
    Buffer take(size_t num_bytes) {
        std::lock_guard<std::mutex> lock(mutex_);
        for (Buffer& buffer : free_) {
            if (buffer.num_bytes() < num_bytes) continue;
            Buffer taken = std::move(buffer);
            buffer = std::move(free_.back());
            free_.pop_back();
            return taken;
        }
        return Buffer(num_bytes);
    }
    void give_back(Buffer buffer) {
        std::lock_guard<std::mutex> lock(mutex_);
        if (free_.size() < kKept) {
            free_.push_back(std::move(buffer));
            return;
        }
        // Small results come and go (a prefill has one row); the large ones are those that cost.
        const auto smallest = std::min_element(
            free_.begin(), free_.end(), [](const Buffer& a, const Buffer& b) { return a.num_bytes() < b.num_bytes(); });
        if (smallest->num_bytes() < buffer.num_bytes()) *smallest = std::move(buffer);
    }

  private:
    static constexpr size_t kKept = 2;
    std::mutex mutex_;
    std::vector<Buffer> free_;
};

struct Result {
    Buffer memory;
    std::shared_ptr<ResultPool> pool;
};

using ResultArray = nb::ndarray<nb::numpy, float, nb::ndim<2>, nb::c_contig>;

// A tape with the executor it runs on.
class BoundTape {
  public:
    BoundTape(std::unique_ptr<Tape> tape, Executor& executor)
        : tape_(std::move(tape)), executor_(executor), results_(std::make_shared<ResultPool>()) {}

    ResultArray run(const StepBatch& step, std::vector<double>* profile = nullptr) {
        const size_t rows = static_cast<size_t>(tape_->result_rows(step.batch));
        const size_t width = static_cast<size_t>(tape_->result_width);
        auto result = std::make_unique<Result>(Result{results_->take(std::max<size_t>(1, rows * width) * sizeof(float)), results_});
        float* data = reinterpret_cast<float*>(result->memory.data());
        {
            nb::gil_scoped_release release;
            tape_->run(executor_, step.batch, data, profile);
        }
        nb::capsule owner(result.release(), [](void* p) noexcept {
            std::unique_ptr<Result> done(static_cast<Result*>(p));
            done->pool->give_back(std::move(done->memory));
        });
        return ResultArray(data, {rows, width}, owner);
    }

    const Tape& tape() const { return *tape_; }

  private:
    std::unique_ptr<Tape> tape_;
    Executor& executor_;
    std::shared_ptr<ResultPool> results_;
};

}  // namespace

void bind_tape(nb::module_& m) {
    nb::class_<BoundTape>(m, "Tape", "A recorded forward pass. Weights and caches it refers to must be kept alive beside it.")
        .def("run", [](BoundTape& t, const StepBatch& step) { return t.run(step); }, "batch"_a, "float32 [rows, features], for any batch.")
        .def("profile", [](BoundTape& t, const StepBatch& step, int repeats) {
            std::vector<double> seconds;
            for (int i = 0; i < repeats; ++i) t.run(step, &seconds);
            std::vector<std::pair<std::string, double>> steps;
            const std::vector<std::string> names = t.tape().step_names();
            for (size_t i = 0; i < seconds.size(); ++i) steps.emplace_back(names[i], seconds[i] / repeats);
            return steps;
        }, "batch"_a, "repeats"_a = 1, "Runs a batch, and gives the seconds each step took on the first thread: [(name, seconds)].")
        .def_prop_ro("num_segments", [](const BoundTape& t) { return t.tape().segments.size(); })
        .def_prop_ro("num_steps", [](const BoundTape& t) {
            size_t steps = 0;
            for (const Segment& segment : t.tape().segments) steps += segment.num_steps();
            return steps;
        })
        .def_prop_ro("memory_bytes", [](const BoundTape& t) { return t.tape().memory_bytes(); });

    nb::class_<TapeBuilder>(m, "TapeBuilder", "Records calls of the kernel interface; values are node numbers.")
        .def("__init__", [](TapeBuilder* self, const Executor& executor) { new (self) TapeBuilder(executor.isa); }, "executor"_a)
        .def("width", &TapeBuilder::width, "node"_a)
        .def("embedding", &TapeBuilder::embedding, "matrix"_a, "factor"_a)
        .def("linear", &TapeBuilder::linear, "x"_a, "matrix"_a, "softcap"_a)
        .def("rms_norm", [](TapeBuilder& self, int x, const FloatVector& weight, float eps) {
            return self.rms_norm(x, weight.data(), static_cast<int64_t>(weight.shape(0)), eps);
        }, "x"_a, "weight"_a.noconvert(), "eps"_a)
        .def("add", &TapeBuilder::add, "x"_a, "y"_a)
        .def("gated_activation", [](TapeBuilder& self, int x, const std::string& activation) {
            return self.gated(x, activation_from_name(activation));
        }, "x"_a, "activation"_a)
        .def("select_rows", &TapeBuilder::select_rows, "x"_a)
        .def("rope_and_cache", [](TapeBuilder& self, int qkv, const KVCache& cache, const FloatRows& cos_sin, int64_t num_heads,
                                  const std::optional<FloatVector>& q_norm, const std::optional<FloatVector>& k_norm, float eps) {
            return self.rope_and_cache(qkv, make_rope_params(cos_sin, num_heads, cache.layout.num_kv_heads,
                                                             cache.layout.head_dim, q_norm, k_norm, eps), cache);
        }, "qkv"_a, "cache"_a, "cos_sin"_a.noconvert(), "num_heads"_a, "q_norm"_a.noconvert().none(), "k_norm"_a.noconvert().none(), "eps"_a)
        .def("paged_attention", [](TapeBuilder& self, int q, const KVCache& cache, int64_t num_heads, float scale,
                                   int64_t sliding_window, float softcap) {
            return self.attention(q, make_attention_params(num_heads, cache.layout.num_kv_heads, cache.layout.head_dim,
                                                           scale, sliding_window, softcap), cache);
        }, "q"_a, "cache"_a, "num_heads"_a, "scale"_a, "sliding_window"_a, "softcap"_a)
        .def("build", [](TapeBuilder& self, int result, Executor& executor) {
            return std::make_unique<BoundTape>(self.build(result), executor);
        }, "result"_a, "executor"_a, nb::keep_alive<0, 3>());
}

}  // namespace pellucid
