// Everything that happens to a row between two matrix products, as one pass: while a row is in L1 it is gathered,
// added, normed, gated, rotated, and converted to what the next matrix wants to read.
#pragma once
#include <vector>

#include "attention/kv_cache.h"
#include "linear/linear.h"
#include "ops/rope.h"
#include "ops/row_kernels.h"
#include "tape/op.h"

namespace pellucid {

// A row of float32 that an instruction reads or writes: of a slot, or (slot < 0) of the thread's scratch memory.
struct RowValue {
    int64_t width = 0;
    int64_t stride = 0;  // floats from a row of the slot to the next
    int slot = -1;
    bool gathered = false;  // read at View::gather[row]
};

struct RowInstruction {
    enum class Kind {
        embed,    // out = matrix row input_ids[row], times factor
        norm,     // out = rms_norm(a, weight, eps)
        add,      // out = a + b
        gated,    // out = activation(first half of a) * second half of a
        copy,     // out = a
        rope,     // out = queries of a, rotated; keys and values of a go to the cache
        prepare,  // slot `prepared` <- a, as matrix reads it
    };
    Kind kind;
    int out = -1;  // indices of values
    int a = -1;
    int b = -1;
    const float* weight = nullptr;
    float eps = 0;
    float factor = 1;
    Activation activation = Activation::silu;
    const PackedMatrix* matrix = nullptr;
    int prepared = -1;
    RopeParams rope{};
    const KVCache* cache = nullptr;
};

class RowProgram : public RowOp {
  public:
    explicit RowProgram(Isa isa) : row_(row_kernels(isa)), rope_(rope_kernels(isa)) {}

    int add_value(const RowValue& value);
    void add(const RowInstruction& instruction) { instructions_.push_back(instruction); }
    bool empty() const { return instructions_.empty(); }

    std::string name() const override;
    void run(const ThreadPool::Team& team, const View& view) const override;
    size_t scratch_bytes() const override { return scratch_floats_ * sizeof(float) + values_.size() * sizeof(float*); }

  private:
    void run_row(const View& view, int64_t row) const;

    const RowKernels& row_;
    const RopeKernels& rope_;
    std::vector<RowValue> values_;
    std::vector<size_t> scratch_offsets_;  // of values without a slot, in floats
    std::vector<RowInstruction> instructions_;
    size_t scratch_floats_ = 0;
};

}  // namespace pellucid
