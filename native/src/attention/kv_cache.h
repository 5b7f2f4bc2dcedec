// One layer's keys and values for the whole pool of blocks, laid out for the dot products that read them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "memory.h"

namespace pellucid {

enum class KVType { f32, bf16, int8 };

KVType kv_type_from_name(const std::string& name);  // throws std::invalid_argument
const char* kv_type_name(KVType type);

constexpr int kTileKeys = 16;  // one vector register holds one number of each of a tile's keys

// A tile is 16 consecutive positions of one KV head; a block is block_size / 16 tiles for each head, head after head.
//
//   [key scales: 16 f32][value scales: 16 f32]   int8 only: the vector of position p was divided by scale[p]
//   keys    bf16, int8: [dim / 2][16 keys][2]    f32: [dim][16 keys]
//   values  bf16, int8: [16 keys / 2][dim][2]    f32: [16 keys][dim]
//
// The pairs are what a bf16 dot instruction multiplies and adds at once: two dimensions of a key, two keys' values of a
// dimension. dim is head_dim rounded up to 16, the rest being zeros.
struct KVLayout {
    KVType type;
    int64_t num_blocks;
    int64_t block_size;
    int64_t num_kv_heads;
    int64_t head_dim;
    int64_t padded_dim;
    size_t keys_offset;  // within a tile
    size_t values_offset;
    size_t tile_bytes;

    // Throws std::invalid_argument where a number makes no sense.
    KVLayout(KVType type, int64_t num_blocks, int64_t block_size, int64_t num_kv_heads, int64_t head_dim);

    int64_t tiles_per_block() const { return block_size / kTileKeys; }
    size_t block_bytes() const { return tile_bytes * tiles_per_block() * num_kv_heads; }
    size_t tile_offset(int64_t block, int64_t kv_head, int64_t tile_in_block) const {
        return ((block * num_kv_heads + kv_head) * tiles_per_block() + tile_in_block) * tile_bytes;
    }
};

class KVCache {
  public:
    explicit KVCache(const KVLayout& layout)
        : layout(layout), memory_(layout.block_bytes() * static_cast<size_t>(layout.num_blocks)) {}

    const KVLayout layout;

    std::byte* data() const { return memory_.data(); }
    std::byte* tile(int64_t block, int64_t kv_head, int64_t tile_in_block) const {
        return memory_.data() + layout.tile_offset(block, kv_head, tile_in_block);
    }

    // The key and the value kept at `slot` for one head, as float32 [head_dim] each: for tests and for looking inside.
    void read(int64_t slot, int64_t kv_head, float* key, float* value) const;

  private:
    Buffer memory_;
};

}  // namespace pellucid
