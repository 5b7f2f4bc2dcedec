#include "tape/lowering.h"

#include <algorithm>
#include <map>
#include <stdexcept>

#include "tape/linear_op.h"

namespace pellucid {
namespace {

bool same(const AttentionParams& a, const AttentionParams& b) {
    return a.num_heads == b.num_heads && a.num_kv_heads == b.num_kv_heads && a.sliding_window == b.sliding_window;
}

// When a slot is in use, in steps (counted over the whole tape) and in segments.
struct Lifetime {
    int first_step = -1, last_step = -1;
    int first_segment = -1, last_segment = -1;

    void touch(int step, int segment) {
        if (first_step < 0) first_step = step, first_segment = segment;
        last_step = step, last_segment = segment;
    }
};

class Lowering {
  public:
    Lowering(const Graph& graph, Isa isa)
        : graph_(graph), isa_(isa), sequence_(graph.sequence()), users_(graph.users()), run_of_(graph.nodes.size(), -1),
          slot_of_(graph.nodes.size(), -1), tape_(std::make_unique<Tape>()) {}

    std::unique_ptr<Tape> lower() {
        tape_->result_space = graph_.nodes[graph_.result].space;
        tape_->result_width = graph_.nodes[graph_.result].width;
        number_runs();
        for (int node : sequence_) emit(node);
        close_program();
        assign_buffers();
        return std::move(tape_);
    }

  private:
    // A run is a stretch of row-wise calls that becomes one program. A matrix product ends the run that prepares its
    // input; an attention, and the change from tokens to logits rows, end a run too.
    void number_runs() {
        int run = 0;
        Space space = Space::tokens;
        for (int node : sequence_) {
            const Node& n = graph_.nodes[node];
            if (n.space != space || n.kind == NodeKind::attention) ++run;
            space = n.space;
            run_of_[node] = run;
            if (n.kind == NodeKind::linear || n.kind == NodeKind::attention) ++run;
        }
    }

    // Whether a value must outlive the program that makes it.
    bool needs_slot(int node) const {
        const NodeKind kind = graph_.nodes[node].kind;
        if (node == graph_.result || kind == NodeKind::linear || kind == NodeKind::attention) return true;
        for (int user : users_[node]) {
            const Node& u = graph_.nodes[user];
            if (run_of_[user] != run_of_[node] || u.kind == NodeKind::attention || u.residual == node) return true;
        }
        return false;
    }

    void emit(int node) {
        const Node& n = graph_.nodes[node];
        if (n.kind == NodeKind::attention) {
            emit_attention(node);
            return;
        }
        if (segment_ == nullptr || segment_->attention != nullptr || segment_->space != n.space) open_segment(n.space);
        if (n.kind == NodeKind::linear) {
            emit_linear(node);
            return;
        }
        note_limits(n);
        RowInstruction instruction = n.row;
        if (n.a >= 0) instruction.a = value_of(n.a);
        if (n.b >= 0) instruction.b = value_of(n.b);
        if (needs_slot(node)) slot_of_[node] = new_slot(node);
        instruction.out = own_value(node);
        program().add(instruction);
    }

    void emit_linear(int node) {
        const Node& n = graph_.nodes[node];
        RowInstruction prepare;
        prepare.kind = RowInstruction::Kind::prepare;
        prepare.a = value_of(n.a);
        prepare.matrix = n.row.matrix;
        prepare.prepared = static_cast<int>(tape_->slots.size());
        Slot slot;
        slot.space = n.space;
        slot.prepared_for = n.row.matrix;
        tape_->slots.push_back(slot);
        lifetimes_.emplace_back();
        touch(prepare.prepared);
        program().add(prepare);
        close_program();
        slot_of_[node] = new_slot(node);
        touch(prepare.prepared);
        if (n.residual >= 0) touch(slot_of_[n.residual]);
        const LinearOp::Rows residual = n.residual >= 0 ? rows_of(slot_of_[n.residual]) : LinearOp::Rows{};
        auto product = std::make_unique<LinearOp>(*n.row.matrix, prepare.prepared, rows_of(slot_of_[node]), residual,
                                                  n.row.factor);
        if (product_ != nullptr) product_->followed_by(*n.row.matrix);
        product_ = product.get();
        segment_->ops.push_back(std::move(product));
        ++step_;
    }

    void emit_attention(int node) {
        const Node& n = graph_.nodes[node];
        close_program();
        open_segment(Space::tokens);
        note_cache(n.row.cache->layout);
        segment_->attention = std::make_unique<AttentionOp>(n.attention, *n.row.cache, isa_);
        segment_->q = slot_of_[n.a];
        touch(segment_->q);
        segment_->out = slot_of_[node] = new_slot(node);
        auto& plans = tape_->plan_params;
        const auto found = std::find_if(plans.begin(), plans.end(), [&](const auto& p) { return same(p, n.attention); });
        segment_->plan = static_cast<int>(found - plans.begin());
        if (found == plans.end()) plans.push_back(n.attention);
        ++step_;
    }

    void open_segment(Space space) {
        close_program();
        tape_->segments.emplace_back();
        segment_ = &tape_->segments.back();
        segment_->space = space;
    }

    RowProgram& program() {
        if (program_ == nullptr) program_ = std::make_unique<RowProgram>(isa_);
        return *program_;
    }

    void close_program() {
        if (program_ == nullptr) return;
        segment_->ops.push_back(std::move(program_));
        values_.clear();
        ++step_;
    }

    // The value of the present program that holds the node's result: made by it, or read from a slot.
    int value_of(int node) {
        const auto found = values_.find(node);
        return found != values_.end() ? found->second : own_value(node);
    }

    int own_value(int node) {
        const Node& n = graph_.nodes[node];
        const int slot = slot_of_[node];
        RowValue value{n.width, slot >= 0 ? rows_of(slot).stride : 0, slot, slot >= 0 && n.space != segment_->space};
        if (value.slot >= 0) touch(value.slot);
        return values_[node] = program().add_value(value);
    }

    LinearOp::Rows rows_of(int slot) const {
        return {slot, static_cast<int64_t>(tape_->slots[slot].row_bytes / sizeof(float))};
    }

    // An odd number of cache lines, so that the rows that a matrix product writes at once do not compete for a few sets of
    // the caches: widths like 3072 are multiples of 4096 bytes. What attention or the caller sees has no gaps.
    int64_t stride_of(int node) const {
        constexpr int64_t kLine = 16;
        const int64_t width = graph_.nodes[node].width;
        bool exact = node == graph_.result || graph_.nodes[node].kind == NodeKind::attention;
        for (int user : users_[node]) exact = exact || graph_.nodes[user].kind == NodeKind::attention;
        if (exact) return width;
        const int64_t lines = (width + kLine - 1) / kLine;
        return (lines + (lines % 2 == 0)) * kLine;
    }

    int new_slot(int node) {
        Slot slot;
        slot.space = graph_.nodes[node].space;
        slot.row_bytes = static_cast<size_t>(stride_of(node)) * sizeof(float);
        tape_->slots.push_back(slot);
        lifetimes_.emplace_back();
        const int number = static_cast<int>(tape_->slots.size()) - 1;
        touch(number);
        if (node == graph_.result) result_slot_ = number;
        return number;
    }

    void touch(int slot) {
        lifetimes_[slot].touch(step_, static_cast<int>(tape_->segments.size()) - 1);
        auto& slots = segment_->slots;
        if (std::find(slots.begin(), slots.end(), slot) == slots.end()) slots.push_back(slot);
    }

    void note_limits(const Node& n) {
        BatchLimits& limits = tape_->limits;
        auto at_most = [](int64_t& limit, int64_t bound) { limit = limit == 0 ? bound : std::min(limit, bound); };
        if (n.kind == NodeKind::embed) at_most(limits.vocab_size, n.row.matrix->out_features);
        if (n.kind == NodeKind::rope) {
            at_most(limits.num_positions, n.row.rope.num_positions);
            note_cache(n.row.cache->layout);
        }
    }

    void note_cache(const KVLayout& layout) {
        BatchLimits& limits = tape_->limits;
        if (limits.block_size != 0 && limits.block_size != layout.block_size)
            throw std::invalid_argument("the layers' caches differ in block_size");
        limits.block_size = layout.block_size;
        limits.num_blocks = limits.num_blocks == 0 ? layout.num_blocks : std::min(limits.num_blocks, layout.num_blocks);
    }

    // Slots whose lifetimes do not meet share a buffer. A local buffer is free again a step after its last reader; a
    // global one a segment after, because by rows a segment's first step may run while another thread is at its last.
    void assign_buffers() {
        std::vector<int> local_end, global_end;  // of each buffer: when it was last in use
        for (size_t i = 0; i < tape_->slots.size(); ++i) {
            Slot& slot = tape_->slots[i];
            const Lifetime& life = lifetimes_[i];
            const Segment& home = tape_->segments[life.first_segment];
            slot.local = life.first_segment == life.last_segment && home.attention == nullptr &&
                         static_cast<int>(i) != result_slot_;
            if (static_cast<int>(i) == result_slot_) continue;
            std::vector<int>& ends = slot.local ? local_end : global_end;
            const int begin = slot.local ? life.first_step : life.first_segment;
            const int end = slot.local ? life.last_step : life.last_segment;
            size_t buffer = 0;
            while (buffer < ends.size() && ends[buffer] >= begin) ++buffer;
            if (buffer == ends.size()) ends.push_back(-1);
            ends[buffer] = end;
            slot.buffer = static_cast<int>(buffer);
        }
        tape_->num_local_buffers = static_cast<int>(local_end.size());
        tape_->num_global_buffers = static_cast<int>(global_end.size());
    }

    const Graph& graph_;
    const Isa isa_;
    const std::vector<int> sequence_;
    const std::vector<std::vector<int>> users_;
    std::vector<int> run_of_;   // of nodes
    std::vector<int> slot_of_;  // of nodes
    std::unique_ptr<Tape> tape_;
    Segment* segment_ = nullptr;  // being filled
    LinearOp* product_ = nullptr;  // the last one
    std::unique_ptr<RowProgram> program_;
    std::map<int, int> values_;  // node -> value of program_
    std::vector<Lifetime> lifetimes_;
    int step_ = 0;
    int result_slot_ = -1;
};

}  // namespace

std::unique_ptr<Tape> lower(const Graph& graph, Isa isa) { return Lowering(graph, isa).lower(); }

}  // namespace pellucid
