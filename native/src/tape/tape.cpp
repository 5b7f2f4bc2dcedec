#include "tape/tape.h"

#include <algorithm>
#include <chrono>

namespace pellucid {
namespace {

constexpr int64_t kTileRows = 64;
// Below this many rows a thread, weights are read from memory anyway, and once is better than once a thread.
constexpr int64_t kMinRowsPerThread = 32;

// Adds the time until its end to *seconds, if there is such a thing.
class Stopwatch {
  public:
    explicit Stopwatch(double* seconds) : seconds_(seconds) {
        if (seconds_ != nullptr) begin_ = std::chrono::steady_clock::now();
    }
    ~Stopwatch() {
        if (seconds_ != nullptr) *seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    }

  private:
    double* seconds_;
    std::chrono::steady_clock::time_point begin_;
};

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

Tape::Schedule Tape::schedule(const Segment& segment, const Batch& batch, int num_threads) const {
    const int64_t rows = segment.space == Space::tokens ? batch.num_tokens : batch.num_logits;
    if (rows < std::max(kMinRowsPerThread * num_threads, kTileRows)) return {rows, 0, 0};
    const int64_t tiles = divide_up(divide_up(rows, kTileRows), num_threads) * num_threads;
    const int64_t tile_rows = static_cast<int64_t>(round_up(divide_up(rows, tiles), 8));
    return {rows, tile_rows, divide_up(rows, tile_rows)};
}

void Tape::plan_memory(Executor& executor, const Batch& batch) {
    const int num_threads = executor.pool.num_threads();
    size_t scratch = 0, partials = 0;
    plans_.resize(plan_params.size());
    for (size_t i = 0; i < plans_.size(); ++i) plans_[i].build(batch, plan_params[i], num_threads);

    globals_.resize(num_global_buffers);
    locals_.resize(num_threads);
    schedules_.clear();
    std::vector<size_t> local_bytes(num_local_buffers, 0);
    for (const Segment& segment : segments) {
        schedules_.push_back(schedule(segment, batch, num_threads));
        const Schedule& how = schedules_.back();
        if (segment.attention != nullptr) {
            scratch = std::max(scratch, segment.attention->scratch_bytes(plans_[segment.plan]));
            partials = std::max(partials, segment.attention->partial_bytes(plans_[segment.plan]));
        }
        for (const auto& op : segment.ops) scratch = std::max(scratch, op->scratch_bytes());
        const int64_t local_rows = how.tile_rows > 0 ? how.tile_rows : how.num_rows;
        for (int slot_number : segment.slots) {
            const Slot& slot = slots[slot_number];
            if (!slot.local) continue;
            local_bytes[slot.buffer] = std::max(local_bytes[slot.buffer], slot.num_bytes(local_rows));
        }
    }
    for (const Slot& slot : slots) {
        if (slot.local || slot.buffer < 0) continue;
        globals_[slot.buffer].reserve(
            slot.num_bytes(slot.space == Space::tokens ? batch.num_tokens : batch.num_logits));
    }
    local_offsets_.assign(1, 0);
    // An odd number of cache lines between buffers keeps their rows from competing for the same cache sets.
    for (size_t bytes : local_bytes) local_offsets_.push_back(local_offsets_.back() + round_up(bytes, 128) + 64);
    for (Buffer& local : locals_) local.reserve(local_offsets_.back());
    executor.reserve_scratch(scratch);
    partials_.reserve(partials);
}

void Tape::run(Executor& executor, const Batch& batch, float* result, std::vector<double>* profile) {
    check_batch(batch, limits);
    std::lock_guard<std::mutex> lock(executor.mutex);
    plan_memory(executor, batch);
    if (profile != nullptr) profile->resize(step_names().size());
    executor.pool.run([&](const ThreadPool::Team& team) {
        double* seconds = profile != nullptr && team.thread == 0 ? profile->data() : nullptr;
        for (size_t i = 0; i < segments.size(); ++i) {
            run_segment(segments[i], schedules_[i], executor, batch, team, result, seconds);
            if (seconds != nullptr) seconds += segments[i].num_steps();
        }
    });
}

void Tape::run_segment(const Segment& segment, const Schedule& schedule, Executor& executor, const Batch& batch,
                       const ThreadPool::Team& team, float* result, double* seconds) const {
    std::byte* scratch = executor.scratch(team.thread);
    if (segment.attention != nullptr) {
        const Stopwatch stopwatch(seconds);
        const float* q = reinterpret_cast<const float*>(globals_[slots[segment.q].buffer].data());
        const Slot& out = slots[segment.out];
        segment.attention->run(team, batch, plans_[segment.plan], q,
                               out.buffer < 0 ? result : reinterpret_cast<float*>(globals_[out.buffer].data()), scratch,
                               reinterpret_cast<float*>(partials_.data()));
        return;
    }
    if (schedule.tile_rows == 0) {
        run_rows(segment, team, batch, 0, schedule.num_rows, locals_[0].data(), scratch, result, seconds);
        return;
    }
    team.for_each(schedule.num_tiles, [&](int64_t tile) {
        const int64_t begin = tile * schedule.tile_rows;
        run_rows(segment, ThreadPool::Team::solo(), batch, begin, std::min(schedule.tile_rows, schedule.num_rows - begin),
                 locals_[team.thread].data(), scratch, result, seconds);
    });
    team.barrier();
}

void Tape::run_rows(const Segment& segment, const ThreadPool::Team& team, const Batch& batch, int64_t begin,
                    int64_t num_rows, std::byte* locals, std::byte* scratch, float* result, double* seconds) const {
    thread_local std::vector<std::byte*> addresses;
    addresses.resize(slots.size());
    for (int number : segment.slots) {
        const Slot& slot = slots[number];
        // A token slot in a segment over logits rows is read through the gather indices, from its start.
        const int64_t first_row = slot.space == segment.space ? begin : 0;
        if (slot.local) addresses[number] = locals + local_offsets_[slot.buffer];
        else if (slot.buffer < 0) addresses[number] = reinterpret_cast<std::byte*>(result) + first_row * slot.row_bytes;
        else addresses[number] = globals_[slot.buffer].data() + first_row * slot.row_bytes;
    }
    View view;
    view.num_rows = num_rows;
    view.slots = addresses.data();
    if (segment.space == Space::tokens) {
        view.input_ids = batch.input_ids + begin;
        view.positions = batch.positions + begin;
        view.slot_mapping = batch.slot_mapping + begin;
    } else {
        view.gather = batch.logits_indices + begin;
    }
    view.scratch = scratch;
    for (const auto& op : segment.ops) {
        const Stopwatch stopwatch(seconds);
        op->run(team, view);
        if (seconds != nullptr) ++seconds;
    }
}

std::vector<std::string> Tape::step_names() const {
    std::vector<std::string> names;
    for (const Segment& segment : segments) {
        if (segment.attention != nullptr) names.push_back("attention");
        for (const auto& op : segment.ops) names.push_back(op->name());
    }
    return names;
}

size_t Tape::memory_bytes() const {
    size_t total = partials_.num_bytes();
    for (const Buffer& buffer : globals_) total += buffer.num_bytes();
    for (const Buffer& buffer : locals_) total += buffer.num_bytes();
    return total;
}

}  // namespace pellucid
