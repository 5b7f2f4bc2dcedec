// A chunk's attention on the tile registers, 16 rows at a time. Only for *.isa.cpp files.
#pragma once
#include "attention/chunk.h"
#include "attention/micro_kernels_tiles.h"

#if defined(PELLUCID_TILES)
namespace pellucid {
namespace PELLUCID_ISA {

template <>
class Chunk<Bf16Tiles> {
  public:
    Chunk(const TaskRows& rows, const Workspace<Bf16Tiles>& work)
        : task_(rows), params_(rows.params), layout_(rows.layout), dim_(rows.layout.padded_dim), work_(work), products_(dim_) {}

    // Values are copied: two tiles' make one operand, and what lies outside the range becomes zeros.
    void prepare(const std::byte* cache, const int32_t* block_table, int64_t base, KeyRange range) {
        base_ = base;
        const KeyRange whole = whole_products(range);
        plan_fetching(cache, block_table, base, range);
        for (int t = whole.tile_begin(); t < whole.tile_end(); ++t) {
            uint16_t* values = work_.values + t * kTileKeys * dim_;
            if (t < range.tile_begin() || t >= range.tile_end()) {
                std::memset(values, 0, kTileKeys * dim_ * sizeof(uint16_t));
                continue;
            }
            const int64_t at = base / kTileKeys + t;
            fetch(1);
            const std::byte* tile = task_.tile(cache, block_table, at * kTileKeys);
            if (layout_.type == KVType::int8) {
                keys_[t] = work_.keys + t * kTileKeys * dim_;
                key_scales_[t] = reinterpret_cast<const float*>(tile);
                value_scales_[t] = key_scales_[t] + kTileKeys;
                convert_tile(tile, layout_, work_.keys + t * kTileKeys * dim_, values);
            } else {
                keys_[t] = reinterpret_cast<const uint16_t*>(tile + layout_.keys_offset);
                copy_values(reinterpret_cast<const uint16_t*>(tile + layout_.values_offset), dim_,
                            range.first - t * kTileKeys, range.last - t * kTileKeys, values);
            }
        }
        // The other half of a product may be any tile: no row sees its keys.
        for (int t = whole.tile_begin(); t < whole.tile_end(); ++t) {
            if (t >= range.tile_begin() && t < range.tile_end()) continue;
            keys_[t] = keys_[t ^ 1];
            key_scales_[t] = key_scales_[t ^ 1];
            value_scales_[t] = value_scales_[t ^ 1];
        }
    }

    // The task's rows [row, row + rows), at most 16.
    void attend(int64_t row, int rows, State& part) {
        const KeyRange keys = whole_products(task_.visible(row, row + rows, base_));
        const int begin = keys.tile_begin(), end = keys.tile_end();
        if (begin == end) return part.clear(rows, dim_);  // other rows of the task see some of these keys
        fetch(1);
        products_.scores(rows, work_.q + row * dim_, keys_, begin, end, work_.scores);
        // Scores of int8 keys are scaled then, and no more by weights_of_row.
        if (params_.softcap > 0)
            cap_scores(params_, rows, keys, layout_.type == KVType::int8 ? key_scales_ : nullptr, work_.scores);
        const KeyRange first = task_.visible(row, row + 1, base_), last = task_.visible(row + rows - 1, row + rows, base_);
        const bool masked = first.last < keys.last || last.first > keys.first;
        const bool scaled = layout_.type == KVType::int8;
        fetch(1);
        if (scaled) masked ? weights<true, true>(row, rows, begin, end, part) : weights<true, false>(row, rows, begin, end, part);
        else masked ? weights<false, true>(row, rows, begin, end, part) : weights<false, false>(row, rows, begin, end, part);
        fetch(2);
        products_.values(rows, weights_of(0), work_.values, begin, end, part.values, scaled ? nullptr : work_.sums);
        if (!scaled) {
            for (int r = 0; r < rows; ++r) part.l[r] = work_.sums[r * kLanes];
        }
    }

  private:
    static constexpr int64_t kFetchAhead = 6 * kTileKeys;  // into the next chunk

    // A row's weights take the place of its scores: the less is touched, the more stays in the nearest cache.
    uint16_t* weights_of(int r) const { return reinterpret_cast<uint16_t*>(work_.scores + r * kChunk); }

    static KeyRange whole_products(KeyRange keys) {
        return {keys.first / kProductKeys * kProductKeys, (keys.last + kProductKeys - 1) / kProductKeys * kProductKeys};
    }

    // A few rows are done with a chunk sooner than memory is: the next tiles are asked for in time, a few at each step.
    void plan_fetching(const std::byte* cache, const int32_t* block_table, int64_t base, KeyRange range) {
        if (task_.count > kTileRows) return;
        const int64_t last = min_of(task_.task.first_position + task_.task.num_tokens, task_.task.chunk_end * kChunk);
        fetched_to_ = max_of(fetched_to_, base + (range.tile_begin() + 1) * kTileKeys);
        fetch_end_ = min_of(last, base + kChunk + kFetchAhead);
        cache_ = cache, block_table_ = block_table;
    }

    void fetch(int tiles) {
        for (; tiles > 0 && fetched_to_ < fetch_end_; --tiles, fetched_to_ += kTileKeys) {
            const std::byte* tile = task_.tile(cache_, block_table_, fetched_to_);
            for (size_t i = 0; i < layout_.tile_bytes; i += 64) __builtin_prefetch(tile + i, 0, 2);
        }
    }

    template <bool scaled, bool masked>
    void weights(int64_t row, int rows, int begin, int end, State& part) {
        switch (end - begin) {
            case 2: return weights<2, scaled, masked>(row, rows, begin, part);
            case 4: return weights<4, scaled, masked>(row, rows, begin, part);
            case 6: return weights<6, scaled, masked>(row, rows, begin, part);
            case 8: return weights<8, scaled, masked>(row, rows, begin, part);
        }
    }

    template <int T, bool scaled, bool masked>
    void weights(int64_t row, int rows, int begin, State& part) {
        const float* const* key_scales = params_.softcap > 0 ? nullptr : key_scales_;
        const float scale = params_.softcap > 0 ? 1.0f : params_.scale;
        auto mine = [&](int r) { return masked ? task_.visible(row + r, row + r + 1, base_) : KeyRange{0, kChunk}; };
        // All rows' greatest scores first: a row's weights wait for a long chain of operations.
        for (int r = 0; r < rows; ++r)
            part.m[r] = top_of_tiles<scaled, masked>(work_.scores + r * kChunk, begin, begin + T, mine(r), key_scales, kNoScore);
        for (int r = 0; r < rows; ++r) {
            const float sum = weights_of_row<T, scaled, masked>(
                work_.scores + r * kChunk, weights_of(r), begin, mine(r), scale * kLog2E, part.m[r] * -(scale * kLog2E),
                key_scales, value_scales_);
            if constexpr (scaled) part.l[r] = sum;
            part.m[r] *= scale;
        }
    }

    const TaskRows& task_;
    const AttentionParams& params_;
    const KVLayout& layout_;
    const int64_t dim_;
    const Workspace<Bf16Tiles>& work_;
    TileProducts products_;
    int64_t base_ = 0;
    int64_t fetched_to_ = 0, fetch_end_ = 0;  // positions
    const std::byte* cache_ = nullptr;
    const int32_t* block_table_ = nullptr;
    const uint16_t* keys_[kChunkTiles];
    const float* key_scales_[kChunkTiles];
    const float* value_scales_[kChunkTiles];
};

}  // namespace PELLUCID_ISA
}  // namespace pellucid
#endif
