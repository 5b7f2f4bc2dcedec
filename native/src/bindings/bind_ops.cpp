// The kernel interface one call at a time ("eager"): each is a tape of one step, over memory that Python owns.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "attention/attention_op.h"
#include "attention/pages_ahead.h"
#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "executor.h"
#include "tape/linear_op.h"
#include "tape/row_program.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pellucid {

Activation activation_from_name(const std::string& name) {
    if (name == "silu") return Activation::silu;
    if (name == "gelu_tanh") return Activation::gelu_tanh;
    throw std::invalid_argument("activation \"" + name + "\" is unknown; known: silu, gelu_tanh");
}

RopeParams make_rope_params(const FloatRows& cos_sin, int64_t num_heads, int64_t num_kv_heads, int64_t head_dim,
                            const std::optional<FloatVector>& q_norm, const std::optional<FloatVector>& k_norm, float eps) {
    for (const auto& norm : {q_norm, k_norm})
        require(!norm || static_cast<int64_t>(norm->shape(0)) == head_dim, "q_norm and k_norm must be as long as head_dim");
    const int64_t rotary_dim = static_cast<int64_t>(cos_sin.shape(1));
    require(num_heads > 0 && num_kv_heads > 0 && num_heads % num_kv_heads == 0 && head_dim > 0,
            "num_heads must be a multiple of num_kv_heads");
    require(rotary_dim <= head_dim && rotary_dim % 2 == 0, "rotary_dim must be even and at most head_dim");
    return {num_heads, num_kv_heads, head_dim, cos_sin.data(), static_cast<int64_t>(cos_sin.shape(0)), rotary_dim,
            q_norm ? q_norm->data() : nullptr, k_norm ? k_norm->data() : nullptr, eps};
}

AttentionParams make_attention_params(int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, float scale,
                                      int64_t sliding_window, float softcap) {
    require(num_heads > 0 && num_kv_heads > 0 && num_heads % num_kv_heads == 0 && head_dim > 0,
            "num_heads must be a multiple of num_kv_heads");
    require(sliding_window >= 0 && softcap >= 0, "sliding_window and softcap must not be negative");
    return {num_heads, num_kv_heads, head_dim, scale, sliding_window, softcap};
}

namespace {

// Runs steps over the given slots.
void run_steps(Executor& executor, const std::vector<const RowOp*>& steps, View view) {
    size_t scratch = 0;
    for (const RowOp* step : steps) scratch = std::max(scratch, step->scratch_bytes());
    executor.reserve_scratch(scratch);
    executor.pool.run([&](const ThreadPool::Team& team) {
        View mine = view;
        mine.scratch = executor.scratch(team.thread);
        for (const RowOp* step : steps) step->run(team, mine);
    });
}

std::byte* bytes(const float* p) { return reinterpret_cast<std::byte*>(const_cast<float*>(p)); }

// One row-wise instruction with operands in slots 0, 1 and the result in slot 2.
void run_row_wise(Executor& executor, RowInstruction instruction, const FloatRows& a, const FloatRows* b,
                  const MutableRows& out, View view = {}) {
    require(out.shape(0) == a.shape(0) && (b == nullptr || (b->shape(0) == a.shape(0) && b->shape(1) == a.shape(1))),
            "operands and result must have the same number of rows");
    std::byte* slots[] = {bytes(a.data()), b ? bytes(b->data()) : nullptr, bytes(out.data())};
    RowProgram program(executor.isa);
    instruction.a = program.add_value({static_cast<int64_t>(a.shape(1)), static_cast<int64_t>(a.shape(1)), 0, false});
    if (b != nullptr) instruction.b = program.add_value({static_cast<int64_t>(b->shape(1)), static_cast<int64_t>(b->shape(1)), 1, false});
    instruction.out = program.add_value({static_cast<int64_t>(out.shape(1)), static_cast<int64_t>(out.shape(1)), 2, false});
    program.add(instruction);
    view.slots = slots;
    view.num_rows = static_cast<int64_t>(a.shape(0));
    nb::gil_scoped_release release;
    std::lock_guard<std::mutex> lock(executor.mutex);
    run_steps(executor, {&program}, view);
}

void embedding(Executor& executor, const PackedMatrix& matrix, const Ints& ids, float factor, const MutableRows& out) {
    require(out.shape(0) == ids.shape(0) && static_cast<int64_t>(out.shape(1)) == matrix.in_features, "out has the wrong shape");
    Batch batch;
    batch.input_ids = ids.data();
    batch.num_tokens = static_cast<int64_t>(ids.shape(0));
    BatchLimits limits;
    limits.vocab_size = matrix.out_features;
    check_batch(batch, limits);
    std::byte* slots[] = {bytes(out.data())};
    RowProgram program(executor.isa);
    RowInstruction instruction;
    instruction.kind = RowInstruction::Kind::embed;
    instruction.matrix = &matrix;
    instruction.factor = factor;
    instruction.out = program.add_value({matrix.in_features, matrix.in_features, 0, false});
    program.add(instruction);
    View view;
    view.num_rows = batch.num_tokens;
    view.slots = slots;
    view.input_ids = ids.data();
    nb::gil_scoped_release release;
    std::lock_guard<std::mutex> lock(executor.mutex);
    run_steps(executor, {&program}, view);
}

void linear(Executor& executor, const PackedMatrix& matrix, const FloatRows& x, float softcap, const MutableRows& out) {
    require(static_cast<int64_t>(x.shape(1)) == matrix.in_features && static_cast<int64_t>(out.shape(1)) == matrix.out_features &&
                x.shape(0) == out.shape(0),
            "a matrix of [" + std::to_string(matrix.out_features) + ", " + std::to_string(matrix.in_features) +
                "] does not take rows of " + std::to_string(x.shape(1)) + " to rows of " + std::to_string(out.shape(1)));
    View view;
    view.num_rows = static_cast<int64_t>(x.shape(0));
    nb::gil_scoped_release release;
    std::lock_guard<std::mutex> lock(executor.mutex);
    executor.shared.reserve(matrix.prepared_bytes(view.num_rows));
    std::byte* slots[] = {bytes(x.data()), executor.shared.data(), bytes(out.data())};
    view.slots = slots;
    RowProgram program(executor.isa);
    RowInstruction prepare;
    prepare.kind = RowInstruction::Kind::prepare;
    prepare.a = program.add_value({matrix.in_features, matrix.in_features, 0, false});
    prepare.matrix = &matrix;
    prepare.prepared = 1;
    program.add(prepare);
    const LinearOp product(matrix, 1, {2, matrix.out_features}, {}, softcap);
    run_steps(executor, {&program, &product}, view);
}

void rms_norm(Executor& executor, const FloatRows& x, const FloatVector& weight, float eps, const MutableRows& out) {
    require(weight.shape(0) == x.shape(1) && out.shape(1) == x.shape(1), "weight and rows differ in width");
    RowInstruction norm;
    norm.kind = RowInstruction::Kind::norm;
    norm.weight = weight.data();
    norm.eps = eps;
    run_row_wise(executor, norm, x, nullptr, out);
}

void add(Executor& executor, const FloatRows& x, const FloatRows& y, const MutableRows& out) {
    require(out.shape(1) == x.shape(1), "rows differ in width");
    RowInstruction addition;
    addition.kind = RowInstruction::Kind::add;
    run_row_wise(executor, addition, x, &y, out);
}

void gated_activation(Executor& executor, const FloatRows& x, const std::string& activation, const MutableRows& out) {
    require(x.shape(1) == 2 * out.shape(1), "the result must be half as wide as gate_up");
    RowInstruction gated;
    gated.kind = RowInstruction::Kind::gated;
    gated.activation = activation_from_name(activation);
    run_row_wise(executor, gated, x, nullptr, out);
}

BatchLimits cache_limits(const KVCache& cache, int64_t num_positions) {
    return {0, num_positions, cache.layout.num_blocks, cache.layout.block_size};
}

void rope_and_cache(Executor& executor, const FloatRows& qkv, const KVCache& cache, const StepBatch& step,
                    const FloatRows& cos_sin, int64_t num_heads, const std::optional<FloatVector>& q_norm,
                    const std::optional<FloatVector>& k_norm, float eps, const MutableRows& out) {
    const KVLayout& layout = cache.layout;
    RowInstruction rope;
    rope.kind = RowInstruction::Kind::rope;
    rope.rope = make_rope_params(cos_sin, num_heads, layout.num_kv_heads, layout.head_dim, q_norm, k_norm, eps);
    rope.cache = &cache;
    require(static_cast<int64_t>(qkv.shape(0)) == step.batch.num_tokens &&
                static_cast<int64_t>(qkv.shape(1)) == (num_heads + 2 * layout.num_kv_heads) * layout.head_dim &&
                static_cast<int64_t>(out.shape(1)) == num_heads * layout.head_dim,
            "qkv or the result has the wrong shape");
    check_batch(step.batch, cache_limits(cache, rope.rope.num_positions));
    View view;
    view.positions = step.batch.positions;
    view.slot_mapping = step.batch.slot_mapping;
    run_row_wise(executor, rope, qkv, nullptr, out, view);
}

void paged_attention(Executor& executor, const FloatRows& q, const KVCache& cache, const StepBatch& step, int64_t num_heads,
                     float scale, int64_t sliding_window, float softcap, const MutableRows& out) {
    const KVLayout& layout = cache.layout;
    const AttentionParams params =
        make_attention_params(num_heads, layout.num_kv_heads, layout.head_dim, scale, sliding_window, softcap);
    require(static_cast<int64_t>(q.shape(0)) == step.batch.num_tokens &&
                static_cast<int64_t>(q.shape(1)) == num_heads * layout.head_dim && q.shape(0) == out.shape(0) &&
                q.shape(1) == out.shape(1),
            "q or the result has the wrong shape");
    check_batch(step.batch, cache_limits(cache, 0));
    nb::gil_scoped_release release;
    std::lock_guard<std::mutex> lock(executor.mutex);
    const AttentionOp attention(params, cache, executor.isa);
    AttentionPlan plan;
    plan.build(step.batch, params, executor.pool.num_threads());
    executor.reserve_scratch(attention.scratch_bytes(plan));
    executor.shared.reserve(attention.partial_bytes(plan));
    executor.pool.run([&](const ThreadPool::Team& team) {
        attention.run(team, step.batch, plan, q.data(), out.data(), executor.scratch(team.thread),
                      reinterpret_cast<float*>(executor.shared.data()));
    });
}

nb::list shared_prefixes(const StepBatch& step, int64_t num_heads, int64_t num_kv_heads, int64_t head_dim) {
    AttentionPlan plan;
    plan.build(step.batch, make_attention_params(num_heads, num_kv_heads, head_dim, 1.0f, 0, 0.0f), 1);
    nb::list found;
    for (const AttentionTask& task : plan.tasks)
        if (task.total_partial >= 0 && task.kv_head == 0)
            found.append(nb::make_tuple(task.request, task.num_tokens, task.chunk_end * kChunkKeys));
    return found;
}

nb::tuple read_kv(const KVCache& cache, int64_t slot, int64_t kv_head) {
    nb::list key, value;
    std::vector<float> k(cache.layout.head_dim), v(cache.layout.head_dim);
    cache.read(slot, kv_head, k.data(), v.data());
    for (float x : k) key.append(x);
    for (float x : v) value.append(x);
    return nb::make_tuple(key, value);
}

}  // namespace

void bind_ops(nb::module_& m) {
    nb::class_<StepBatch>(m, "StepBatch", "The int32 arrays of a ForwardBatch, shapes checked.")
        .def(nb::init<Ints, Ints, Ints, Ints, Ints, IntTable, Ints, int64_t>(), "input_ids"_a.noconvert(), "positions"_a.noconvert(),
             "query_start_loc"_a.noconvert(), "seq_lens"_a.noconvert(), "slot_mapping"_a.noconvert(), "block_table"_a.noconvert(), "logits_indices"_a.noconvert(), "block_size"_a);

    nb::class_<KVCache>(m, "KVCache", "One layer's keys and values for the whole pool.")
        .def("__init__",
             [](KVCache* self, int64_t num_blocks, int64_t block_size, int64_t num_kv_heads, int64_t head_dim,
                const std::string& dtype) {
                 new (self) KVCache(KVLayout(kv_type_from_name(dtype), num_blocks, block_size, num_kv_heads, head_dim));
             },
             "num_blocks"_a, "block_size"_a, "num_kv_heads"_a, "head_dim"_a, "dtype"_a)
        .def_prop_ro("num_bytes", [](const KVCache& c) { return c.layout.block_bytes() * c.layout.num_blocks; })
        .def_prop_ro("dtype", [](const KVCache& c) { return kv_type_name(c.layout.type); })
        .def_prop_ro("num_kv_heads", [](const KVCache& c) { return c.layout.num_kv_heads; })
        .def_prop_ro("head_dim", [](const KVCache& c) { return c.layout.head_dim; })
        .def("read", &read_kv, "slot"_a, "kv_head"_a, "(key, value) kept at a slot, as lists of floats.");

    nb::class_<PagesAhead>(m, "PagesAhead", "Takes memory for the blocks that a pool will give out next, while it is idle.")
        .def("__init__",
             [](PagesAhead* self, const std::vector<const KVCache*>& layers, size_t num_bytes) {
                 new (self) PagesAhead(layers, num_bytes);
             },
             "layers"_a, "num_bytes"_a, nb::keep_alive<1, 2>(), "num_bytes: how far ahead, all layers together.")
        .def("used", [](PagesAhead& self, const StepBatch& step) {
            const Batch& batch = step.batch;
            const int32_t* slots = batch.slot_mapping;
            if (batch.num_tokens > 0) self.used(*std::max_element(slots, slots + batch.num_tokens) / batch.block_size);
        }, "step"_a, "The blocks that this step writes to are in use.")
        .def_prop_ro("num_blocks_ready", &PagesAhead::num_blocks_ready);

    m.def("shared_prefixes", &shared_prefixes, "batch"_a, "num_heads"_a, "num_kv_heads"_a, "head_dim"_a,
          "(first request, number of requests, number of keys) that attention reads once for several requests.");

    m.def("kv_block_bytes", [](int64_t block_size, int64_t num_kv_heads, int64_t head_dim, const std::string& dtype) {
        return KVLayout(kv_type_from_name(dtype), 1, block_size, num_kv_heads, head_dim).block_bytes();
    }, "block_size"_a, "num_kv_heads"_a, "head_dim"_a, "dtype"_a);

    nb::class_<Executor>(m, "Executor", "Threads, instruction set and scratch memory of one backend.")
        .def("__init__", [](Executor* self, const std::string& isa, int num_threads) {
            require(num_threads >= 0 && num_threads <= 1024, "num_threads must be between 0 (all cores) and 1024");
            new (self) Executor(isa.empty() ? best_isa() : isa_from_name(isa), num_threads);
        }, "isa"_a = "", "num_threads"_a = 0)
        .def_prop_ro("isa", [](const Executor& e) { return isa_name(e.isa); })
        .def_prop_ro("num_threads", [](const Executor& e) { return e.pool.num_threads(); })
        .def_prop_ro("pool", [](Executor& e) -> ThreadPool& { return e.pool; }, nb::rv_policy::reference_internal)
        .def("embedding", &embedding, "matrix"_a, "ids"_a.noconvert(), "factor"_a, "out"_a.noconvert())
        .def("linear", &linear, "matrix"_a, "x"_a.noconvert(), "softcap"_a, "out"_a.noconvert())
        .def("rms_norm", &rms_norm, "x"_a.noconvert(), "weight"_a.noconvert(), "eps"_a, "out"_a.noconvert())
        .def("add", &add, "x"_a.noconvert(), "y"_a.noconvert(), "out"_a.noconvert())
        .def("gated_activation", &gated_activation, "gate_up"_a.noconvert(), "activation"_a, "out"_a.noconvert())
        .def("rope_and_cache", &rope_and_cache, "qkv"_a.noconvert(), "cache"_a, "batch"_a, "cos_sin"_a.noconvert(), "num_heads"_a,
             "q_norm"_a.noconvert().none(), "k_norm"_a.noconvert().none(), "eps"_a, "out"_a.noconvert())
        .def("paged_attention", &paged_attention, "q"_a.noconvert(), "cache"_a, "batch"_a, "num_heads"_a, "scale"_a,
             "sliding_window"_a, "softcap"_a, "out"_a.noconvert());
}

}  // namespace pellucid
