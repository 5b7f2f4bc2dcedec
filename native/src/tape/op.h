// Steps of a forward pass over rows, written once for both ways of running them (see tape.h): by a team that splits
// every step and meets at a barrier, or by one thread that takes a tile of rows through all steps.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "batch.h"
#include "thread_pool.h"

namespace pellucid {

// What a step works on. Slots are the buffers between steps, by number; slot memory and the batch's integers start at
// the view's first row.
struct View {
    int64_t num_rows = 0;
    std::byte* const* slots = nullptr;
    const int32_t* input_ids = nullptr;
    const int32_t* positions = nullptr;
    const int32_t* slot_mapping = nullptr;
    const int32_t* gather = nullptr;  // row i of a gathered value is row gather[i] of its slot
    std::byte* scratch = nullptr;     // of this thread

    float* floats(int slot) const { return reinterpret_cast<float*>(slots[slot]); }
};

class RowOp {
  public:
    virtual ~RowOp() = default;

    // Runs the step on all rows of the view. Ends with the team's barrier: what it wrote is there for all.
    virtual void run(const ThreadPool::Team& team, const View& view) const = 0;

    // What a profile calls it.
    virtual std::string name() const = 0;

    // Bytes of View::scratch it needs.
    virtual size_t scratch_bytes() const { return 0; }
};

}  // namespace pellucid
