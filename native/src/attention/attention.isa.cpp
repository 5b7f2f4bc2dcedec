#include "attention/attention.h"

#include "attention/micro_kernels.h"
#include "simd.h"

#include <type_traits>

namespace pellucid {
namespace PELLUCID_ISA {
namespace {

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

    // Rows [row, row + rows) <- the first rows of a chunk's own softmax: what `add` gives from an empty state.
    void set(int64_t row, int64_t rows, const State& chunk, int64_t dim) {
        std::memcpy(m + row, chunk.m, rows * sizeof(float));
        std::memcpy(l + row, chunk.l, rows * sizeof(float));
        float* to = values + row * dim;  // + 0: as there, a -0 becomes 0
        for (int64_t i = 0; i < rows * dim; i += kLanes) store(to + i, load(chunk.values + i) + zero());
    }

    // Takes in row `from` of a chunk's own softmax as row `row`.
    void add(int64_t row, const State& chunk, int64_t from, int64_t dim) {
        if (chunk.l[from] == 0.0f) return;  // it saw nothing there
        const float top = chunk.m[from] > m[row] ? chunk.m[from] : m[row];
        const float keep = exp(m[row] - top), take = exp(chunk.m[from] - top);
        m[row] = top;
        l[row] = l[row] * keep + chunk.l[from] * take;
        const Vec k = splat(keep), t = splat(take);
        float* to = values + row * dim;
        for (int64_t d = 0; d < dim; d += kLanes) store(to + d, fma(load(chunk.values + from * dim + d), t, load(to + d) * k));
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
        take(chunk, State::floats(kMostRows, dim));
        take(total, State::floats(rows, dim));
        num_bytes = used;
    }
};

template <typename Compute>
class Attend {
    using Element = typename Compute::Element;
    using TileElement = typename Compute::TileElement;
    static constexpr int kMaxRows = Compute::kMaxRows, kMaxVectors = Compute::kMaxVectors;

  public:
    Attend(const AttentionParams& params, const AttentionTask& task, const KVLayout& layout, std::byte* scratch)
        : params_(params), task_(task), layout_(layout), group_(params.group()), rows_(task.num_tokens * group_),
          dim_(layout.padded_dim), work_(scratch, rows_, dim_) {}

    void run(const std::byte* cache, const int32_t* block_table, const float* q, float* partials,
             int64_t partial_stride, float* out) {
        load_queries(q);
        State total(work_.total, rows_);
        for (int64_t chunk = task_.chunk_begin; chunk < task_.chunk_end; ++chunk) {
            const int64_t base = chunk * kChunk;
            const KeyRange all = visible(0, rows_, base);
            for (int t = all.tile_begin(); t < all.tile_end(); ++t) {
                const int64_t position = base + t * kTileKeys;
                const int64_t block = block_table[position / layout_.block_size];
                load_tile(t, cache + layout_.tile_offset(block, task_.kv_head, position % layout_.block_size / kTileKeys));
            }
            for (int64_t row = 0; row < rows_; row += kMaxRows) {
                const int rows = static_cast<int>(min_of(kMaxRows, rows_ - row));
                State part(work_.chunk, kMaxRows);
                attend_chunk(row, rows, base, part);
                if (partials == nullptr) {
                    if (chunk == task_.chunk_begin) total.set(row, rows, part, dim_);
                    else for (int r = 0; r < rows; ++r) total.add(row + r, part, r, dim_);
                } else {
                    float* memory = partials + (task_.first_partial + chunk - task_.chunk_begin) * partial_stride;
                    State kept(memory, rows_);
                    std::memcpy(kept.m + row, part.m, rows * sizeof(float));
                    std::memcpy(kept.l + row, part.l, rows * sizeof(float));
                    std::memcpy(kept.values + row * dim_, part.values, rows * dim_ * sizeof(float));
                }
            }
        }
        if (partials == nullptr) write_out(total, out);
    }

    void merge(const float* partials, int64_t partial_stride, float* out) {
        State total(work_.total, rows_);
        total.clear(rows_, dim_);
        for (int64_t i = 0; i < task_.chunk_end - task_.chunk_begin; ++i) {
            const State part(const_cast<float*>(partials) + (task_.first_partial + i) * partial_stride, rows_);
            for (int64_t row = 0; row < rows_; ++row) total.add(row, part, row, dim_);
        }
        write_out(total, out);
    }

  private:
    // Row r of the task is query r / group, head r % group.
    int64_t position(int64_t row) const { return task_.first_position + row / group_; }
    int64_t offset_in_batch(int64_t row) const {
        return ((task_.row_begin + row / group_) * params_.num_heads + task_.kv_head * group_ + row % group_) * params_.head_dim;
    }

    // The keys of the chunk at `base` that some of the rows [begin, end) see; positions ascend with rows.
    KeyRange visible(int64_t begin, int64_t end, int64_t base) const {
        const int64_t window = params_.sliding_window;
        const int64_t first = window == 0 ? 0 : max_of(0, position(begin) - window + 1 - base);
        const int64_t last = position(end - 1) + 1 - base;
        const int64_t bounded = max_of(0, min_of(kChunk, last));
        return {static_cast<int>(min_of(first, bounded)), static_cast<int>(bounded)};
    }

    void load_queries(const float* q) {
        const int64_t head_dim = params_.head_dim;
        for (int64_t row = 0; row < rows_; ++row) {
            const float* from = q + offset_in_batch(row);
            for (int64_t d = 0; d < dim_; d += kLanes) {
                const Vec x = d + kLanes <= head_dim ? load(from + d) : load_first(from + d, static_cast<int>(head_dim - d));
                Compute::store_vector(work_.q + row * dim_ + d, x);
            }
        }
    }

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

    void attend_chunk(int64_t row, int rows, int64_t base, State& part) {
        const KeyRange keys = visible(row, row + rows, base);
        for (int t = keys.tile_begin(); t < keys.tile_end(); t += kMaxVectors) {
            const int vectors = static_cast<int>(min_of(kMaxVectors, keys.tile_end() - t));
            for_shape<Scores<Compute>>(rows, vectors, work_.q + row * dim_, dim_, keys_ + t, work_.scores + t * kTileKeys);
        }
        for (int r = 0; r < rows; ++r) softmax(r, keys, visible(row + r, row + r + 1, base), part);
        for (int64_t d = 0; d < dim_; d += kMaxVectors * kLanes) {
            const int vectors = static_cast<int>(min_of(kMaxVectors, (dim_ - d) / kLanes));
            for_shape<Values<Compute>>(rows, vectors, work_.p, keys, values_, dim_, d, part.values);
        }
    }

    PELLUCID_INLINE Vec only_visible(Vec x, int t, KeyRange mine, float other) {
        const int first = mine.first - t * kTileKeys, last = mine.last - t * kTileKeys;
        if (last < kTileKeys) x = keep_first(x, last > 0 ? last : 0, other);
        if (first > 0) x = drop_first(x, first < kTileKeys ? first : kTileKeys, other);
        return x;
    }

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
                weight = Compute::rounded(weight);
                sum = sum + weight;  // of what is multiplied: the weights add up to 1 whatever the rounding
            }
            Compute::store_vector(p + t * kTileKeys, weight);
        }
        part.m[r] = m;
        part.l[r] = reduce_add(sum);
    }

    void write_out(const State& total, float* out) {
        const int64_t head_dim = params_.head_dim;
        for (int64_t row = 0; row < rows_; ++row) {
            const Vec inverse = splat(1.0f / total.l[row]);
            float* to = out + offset_in_batch(row);
            for (int64_t d = 0; d < head_dim; d += kLanes) {
                const Vec x = load(total.values + row * dim_ + d) * inverse;
                if (d + kLanes <= head_dim) store(to + d, x);
                else store_first(to + d, x, static_cast<int>(head_dim - d));
            }
        }
    }

    const AttentionParams& params_;
    const AttentionTask& task_;
    const KVLayout& layout_;
    const int64_t group_, rows_, dim_;
    Workspace<Compute> work_;
    const TileElement* keys_[kChunkTiles];
    const TileElement* values_[kChunkTiles];
    const float* key_scales_[kChunkTiles];
    const float* value_scales_[kChunkTiles];
};

size_t scratch_bytes(const KVLayout& layout, int64_t max_rows) {
    return Workspace<F32>(nullptr, max_rows, layout.padded_dim).num_bytes;
}

int64_t partial_floats(const KVLayout& layout, int64_t rows) { return State::floats(rows, layout.padded_dim); }

void attend(const AttentionParams& params, const AttentionTask& task, const KVLayout& layout, const std::byte* cache,
            const int32_t* block_table, const float* q, float* partials, int64_t partial_stride, float* out,
            std::byte* scratch) {
    if (task.first_partial < 0) partials = nullptr;
#if defined(PELLUCID_DOTS)
    if (layout.type != KVType::f32) {
        Attend<Bf16>(params, task, layout, scratch).run(cache, block_table, q, partials, partial_stride, out);
        return;
    }
#else
    if (layout.type == KVType::bf16 && task.num_tokens * params.group() <= 2 * F32OverBf16::kMaxRows) {
        Attend<F32OverBf16>(params, task, layout, scratch).run(cache, block_table, q, partials, partial_stride, out);
        return;
    }
#endif
    Attend<F32>(params, task, layout, scratch).run(cache, block_table, q, partials, partial_stride, out);
}

void merge(const AttentionParams& params, const AttentionTask& task, const KVLayout& layout, const float* partials,
           int64_t partial_stride, float* out, std::byte* scratch) {
    Attend<F32>(params, task, layout, scratch).merge(partials, partial_stride, out);
}

}  // namespace

const AttentionKernels& attention_kernels() {
    static constexpr AttentionKernels kernels{scratch_bytes, partial_floats, attend, merge};
    return kernels;
}

}  // namespace PELLUCID_ISA
}  // namespace pellucid
