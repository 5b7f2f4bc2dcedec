// What the micro-kernels of the chunks share: the task's geometry, its scratch memory, the running softmax; and a chunk's
// attention on vector registers. Only for *.isa.cpp files.
#pragma once
#include <type_traits>

#include "attention/attention.h"
#include "attention/micro_kernels.h"
#include "attention/weights.h"

namespace pellucid {
namespace PELLUCID_ISA {

// Below every score that can occur, yet finite: differences of it with itself are 0, not NaN.
constexpr float kNoScore = -1e30f;

PELLUCID_INLINE int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
PELLUCID_INLINE int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

// Running softmax of some rows: m[rows], l[rows], values[rows][dim].
struct State {
    float* m;
    float* l;
    float* values;

    State(float* memory, int64_t rows) : m(memory), l(memory + rows), values(memory + round_up(2 * rows, 16)) {}
    static int64_t floats(int64_t rows, int64_t dim) { return static_cast<int64_t>(round_up(2 * rows, 16)) + rows * dim; }

    void clear(int64_t rows, int64_t dim) {
        for (int64_t r = 0; r < rows; ++r) m[r] = kNoScore, l[r] = 0.0f;
        for (int64_t i = 0; i < rows * dim; ++i) values[i] = 0.0f;
    }

    // Rows [row, row + rows) <- rows [from, from + rows) of another.
    void copy(int64_t row, int64_t rows, const State& other, int64_t from, int64_t dim) {
        std::memcpy(m + row, other.m + from, rows * sizeof(float));
        std::memcpy(l + row, other.l + from, rows * sizeof(float));
        std::memcpy(values + row * dim, other.values + from * dim, rows * dim * sizeof(float));
    }

    // Rows [row, row + rows) <- the first rows of a chunk's own softmax: what `add` gives from an empty state.
    void set(int64_t row, int64_t rows, const State& chunk, int64_t dim) {
        std::memcpy(m + row, chunk.m, rows * sizeof(float));
        std::memcpy(l + row, chunk.l, rows * sizeof(float));
        float* to = values + row * dim;  // + 0: as there, a -0 becomes 0
        for (int64_t i = 0; i < rows * dim; i += kLanes) store(to + i, load(chunk.values + i) + zero());
    }

    // Takes in the rows [from, from + rows) of a chunk's own softmax as rows [row, row + rows).
    void add(int64_t row, int64_t rows, const State& chunk, int64_t from, int64_t dim) {
        for (int64_t begin = 0; begin < rows; begin += kLanes) {
            const int count = static_cast<int>(min_of(kLanes, rows - begin));
            const Vec old = load_first(m + row + begin, count), other = load_first(chunk.m + from + begin, count);
            const Vec top = max(other, old);
            float tops[kLanes], keep[kLanes], take[kLanes];
            store(tops, top);
            store(keep, exp(old - top));
            store(take, exp(other - top));
            for (int i = 0; i < count; ++i) {
                const int64_t r = row + begin + i, c = from + begin + i;
                if (chunk.l[c] == 0.0f) continue;  // it saw nothing there
                m[r] = tops[i];
                l[r] = l[r] * keep[i] + chunk.l[c] * take[i];
                const Vec k = splat(keep[i]), t = splat(take[i]);
                float* to = values + r * dim;
                const float* with = chunk.values + c * dim;
                for (int64_t d = 0; d < dim; d += kLanes) store(to + d, fma(load(with + d), t, load(to + d) * k));
            }
        }
    }
};

// The scratch memory of one task, cut up.
template <typename Compute>
struct Workspace {
    using Element = typename Compute::Element;
    using TileElement = typename Compute::TileElement;

    float* scores;   // [kMostRows][kChunk]
    Element* p;      // [kMostRows][kChunk], weights
    Element* q;      // [rows][dim]
    TileElement* keys;   // [8 tiles], where the cache must be converted
    TileElement* values;
    float* sums;     // [kMostRows][16], of weights
    float* chunk;    // State of kMostRows rows
    float* total;    // State of all rows
    size_t num_bytes;

    Workspace(std::byte* memory, int64_t rows, int64_t dim) {
        size_t used = 0;
        auto take = [&](auto*& pointer, size_t count) {
            pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(memory + used);
            used += round_up(count * sizeof(*pointer), 64);
        };
        take(scores, kMostRows * kChunk);
        take(p, kMostRows * kChunk);
        take(q, rows * dim);
        take(keys, kChunk * dim);
        take(values, kChunk * dim);
        take(sums, kMostRows * kLanes);
        take(chunk, State::floats(kMostRows, dim));
        take(total, State::floats(rows, dim));
        num_bytes = used;
    }
};

// Where the rows of a task lie, and what they see. Row r of the task is query r / group, head r % group.
struct TaskRows {
    const AttentionParams& params;
    const AttentionTask& task;
    const KVLayout& layout;
    const int64_t group, count;

    TaskRows(const AttentionParams& params, const AttentionTask& task, const KVLayout& layout)
        : params(params), task(task), layout(layout), group(params.group()), count(task.num_tokens * group) {}

    int64_t position(int64_t row) const { return task.first_position + query(row); }
    // row / group, which is asked for so often that a division would show.
    int64_t query(int64_t row) const { return static_cast<int64_t>(static_cast<uint64_t>(row) * inverse_ >> 32); }
    int64_t offset_in_batch(int64_t row) const {
        return ((task.row_begin + query(row)) * params.num_heads + task.kv_head * group + row % group) * params.head_dim;
    }

    // The keys of the chunk at `base` that some of the rows [begin, end) see; positions ascend with rows.
    KeyRange visible(int64_t begin, int64_t end, int64_t base) const {
        const int64_t window = params.sliding_window;
        const int64_t first = window == 0 ? 0 : max_of(0, position(begin) - window + 1 - base);
        const int64_t last = position(end - 1) + 1 - base;
        const int64_t bounded = max_of(0, min_of(kChunk, last));
        return {static_cast<int>(min_of(first, bounded)), static_cast<int>(bounded)};
    }

    // The tile of 16 keys at `position`.
    const std::byte* tile(const std::byte* cache, const int32_t* block_table, int64_t position) const {
        const int64_t block = block_table[position / layout.block_size];
        return cache + layout.tile_offset(block, task.kv_head, position % layout.block_size / kTileKeys);
    }

  private:
    const uint64_t inverse_ = (uint64_t{1} << 32) / static_cast<uint64_t>(group) + 1;  // right for all rows below 2^32 / group
};

// softcap * tanh(score / softcap), the score being scaled before. key_scales: of int8 keys, or null.
inline void cap_scores(const AttentionParams& params, int rows, KeyRange keys, const float* const* key_scales, float* scores) {
    for (int r = 0; r < rows; ++r) {
        for (int t = keys.tile_begin(); t < keys.tile_end(); ++t) {
            float* s = scores + r * kChunk + t * kTileKeys;
            Vec x = load(s) * splat(params.scale);
            if (key_scales != nullptr) x = x * load(key_scales[t]);
            store(s, splat(params.softcap) * tanh(x * splat(1.0f / params.softcap)));
        }
    }
}

// The keys and values of one chunk, and the attention of some rows to them.
template <typename Compute>
class Chunk {
    using Element = typename Compute::Element;
    using TileElement = typename Compute::TileElement;
    static constexpr int kMaxVectors = Compute::kMaxVectors;

  public:
    Chunk(const TaskRows& rows, const Workspace<Compute>& work)
        : task_(rows), params_(rows.params), layout_(rows.layout), dim_(rows.layout.padded_dim), work_(work) {}

    // Makes the keys of `range`, of the chunk at position `base`, ready.
    void prepare(const std::byte* cache, const int32_t* block_table, int64_t base, KeyRange range) {
        base_ = base;
        for (int t = range.tile_begin(); t < range.tile_end(); ++t)
            load_tile(t, task_.tile(cache, block_table, base + t * kTileKeys));
    }

    // The task's rows [row, row + rows), at most Compute::kMaxRows.
    void attend(int64_t row, int rows, State& part) {
        const KeyRange keys = task_.visible(row, row + rows, base_);
        for (int t = keys.tile_begin(); t < keys.tile_end(); t += kMaxVectors) {
            const int vectors = static_cast<int>(min_of(kMaxVectors, keys.tile_end() - t));
            for_shape<Scores<Compute>>(rows, vectors, work_.q + row * dim_, dim_, keys_ + t, work_.scores + t * kTileKeys);
        }
        if constexpr (std::is_same_v<Element, uint16_t>) this->weigh(row, rows, keys, part);
        else
            for (int r = 0; r < rows; ++r) softmax(r, keys, task_.visible(row + r, row + r + 1, base_), part);
        for (int64_t d = 0; d < dim_; d += kMaxVectors * kLanes) {
            const int vectors = static_cast<int>(min_of(kMaxVectors, (dim_ - d) / kLanes));
            for_shape<Values<Compute>>(rows, vectors, work_.p, keys, values_, dim_, d, part.values);
        }
    }

  private:
    void load_tile(int t, const std::byte* tile) {
        if (layout_.type == KVType::int8) {
            key_scales_[t] = reinterpret_cast<const float*>(tile);
            value_scales_[t] = key_scales_[t] + kTileKeys;
        }
        if (layout_.type == Compute::kStorage) {
            keys_[t] = reinterpret_cast<const TileElement*>(tile + layout_.keys_offset);
            values_[t] = reinterpret_cast<const TileElement*>(tile + layout_.values_offset);
            return;
        }
        if constexpr (!std::is_same_v<Compute, F32OverBf16>) {
            Element *keys = work_.keys + t * kTileKeys * dim_, *values = work_.values + t * kTileKeys * dim_;
            convert_tile(tile, layout_, keys, values);
            keys_[t] = keys;
            values_[t] = values;
        }
    }

#if defined(PELLUCID_DOTS)
    // Scores to weights in bf16, over the tiles that some of the rows see.
    void weigh(int64_t row, int rows, KeyRange keys, State& part) {
        if (params_.softcap > 0) cap_scores(params_, rows, keys, key_scales(), work_.scores);
        const bool masked = task_.visible(row, row + 1, base_).last < keys.tile_end() * kTileKeys ||
                            task_.visible(row + rows - 1, row + rows, base_).first > keys.tile_begin() * kTileKeys;
        if (key_scales() != nullptr)
            masked ? weigh<true, true>(row, rows, keys, part) : weigh<true, false>(row, rows, keys, part);
        else
            masked ? weigh<false, true>(row, rows, keys, part) : weigh<false, false>(row, rows, keys, part);
    }

    template <bool scaled, bool masked>
    void weigh(int64_t row, int rows, KeyRange keys, State& part) {
        const float scale = params_.softcap > 0 ? 1.0f : params_.scale;
        const float* const* scales = params_.softcap > 0 ? nullptr : key_scales();
        const int begin = keys.tile_begin(), end = keys.tile_end();
        auto mine = [&](int r) { return masked ? task_.visible(row + r, row + r + 1, base_) : keys; };
        // All rows' greatest scores first: a row's weights wait for a long chain of operations.
        for (int r = 0; r < rows; ++r)
            part.m[r] = top_of_tiles<scaled, masked>(work_.scores + r * kChunk, begin, end, mine(r), scales, kNoScore);
        for (int r = 0; r < rows; ++r) {
            part.l[r] = weights_of_tiles<scaled, masked>(work_.scores + r * kChunk, work_.p + r * kChunk, begin, end, mine(r),
                                                         scale * kLog2E, part.m[r] * -(scale * kLog2E), scales, value_scales_);
            part.m[r] *= scale;
        }
    }

    const float* const* key_scales() const { return layout_.type == KVType::int8 ? key_scales_ : nullptr; }
#endif

    // Scores of row r to weights, over the tiles that some row of the micro-block sees. mine: what this row sees.
    void softmax(int r, KeyRange keys, KeyRange mine, State& part) {
        float* s = work_.scores + r * kChunk;
        Element* p = work_.p + r * kChunk;
        const Vec scale = splat(params_.scale);
        Vec top = splat(kNoScore);
        for (int t = keys.tile_begin(); t < keys.tile_end(); ++t) {
            Vec x = load(s + t * kTileKeys) * scale;
            if (layout_.type == KVType::int8) x = x * load(key_scales_[t]);
            if (params_.softcap > 0) x = splat(params_.softcap) * tanh(x * splat(1.0f / params_.softcap));
            x = only_visible(x, t, mine, -INFINITY);
            store(s + t * kTileKeys, x);
            top = max(top, x);
        }
        const float m = reduce_max(top);
        Vec sum = zero();
        for (int t = keys.tile_begin(); t < keys.tile_end(); ++t) {
            Vec weight = exp(load(s + t * kTileKeys) - splat(m));
            if (layout_.type == KVType::int8) {
                sum = sum + weight;
                // An unwritten scale may be NaN: mask again.
                weight = only_visible(weight * load(value_scales_[t]), t, mine, 0.0f);
            } else {
                sum = sum + weight;
            }
            Compute::store_vector(p + t * kTileKeys, weight);
        }
        part.m[r] = m;
        part.l[r] = reduce_add(sum);
    }

    const TaskRows& task_;
    const AttentionParams& params_;
    const KVLayout& layout_;
    const int64_t dim_;
    const Workspace<Compute>& work_;
    int64_t base_ = 0;
    const TileElement* keys_[kChunkTiles];
    const TileElement* values_[kChunkTiles];
    const float* key_scales_[kChunkTiles];
    const float* value_scales_[kChunkTiles];
};

}  // namespace PELLUCID_ISA
}  // namespace pellucid
