#include "attention/kv_cache.h"

#include <cstring>
#include <stdexcept>

namespace pellucid {

namespace {

size_t element_bytes(KVType type) { return type == KVType::f32 ? 4 : type == KVType::bf16 ? 2 : 1; }

float element(const std::byte* data, KVType type, size_t index, const float* scale) {
    if (type == KVType::f32) {
        float value;
        std::memcpy(&value, data + index * 4, 4);
        return value;
    }
    if (type == KVType::bf16) {
        uint16_t half;
        std::memcpy(&half, data + index * 2, 2);
        const uint32_t bits = static_cast<uint32_t>(half) << 16;
        float value;
        std::memcpy(&value, &bits, 4);
        return value;
    }
    return *scale * static_cast<float>(static_cast<int8_t>(data[index]));
}

}  // namespace

KVType kv_type_from_name(const std::string& name) {
    if (name == "f32") return KVType::f32;
    if (name == "bf16") return KVType::bf16;
    if (name == "int8") return KVType::int8;
    throw std::invalid_argument("kv cache dtype \"" + name + "\" is unknown; known: f32, bf16, int8");
}

const char* kv_type_name(KVType type) {
    return type == KVType::f32 ? "f32" : type == KVType::bf16 ? "bf16" : "int8";
}

KVLayout::KVLayout(KVType type, int64_t num_blocks, int64_t block_size, int64_t num_kv_heads, int64_t head_dim)
    : type(type), num_blocks(num_blocks), block_size(block_size), num_kv_heads(num_kv_heads), head_dim(head_dim) {
    if (block_size <= 0 || block_size % kTileKeys != 0)
        throw std::invalid_argument("block_size=" + std::to_string(block_size) + " must be a multiple of 16 here");
    if (num_blocks <= 0 || num_kv_heads <= 0 || head_dim <= 0 || head_dim > 512)
        throw std::invalid_argument("num_blocks=" + std::to_string(num_blocks) + ", num_kv_heads=" +
                                    std::to_string(num_kv_heads) + ", head_dim=" + std::to_string(head_dim) +
                                    ": all must be positive, head_dim at most 512");
    padded_dim = static_cast<int64_t>(round_up(head_dim, 16));
    const size_t half = element_bytes(type) * kTileKeys * padded_dim;
    keys_offset = type == KVType::int8 ? 2 * kTileKeys * sizeof(float) : 0;
    values_offset = keys_offset + half;
    tile_bytes = values_offset + half;
}

void KVCache::read(int64_t slot, int64_t kv_head, float* key, float* value) const {
    if (slot < 0 || slot >= layout.num_blocks * layout.block_size || kv_head < 0 || kv_head >= layout.num_kv_heads)
        throw std::out_of_range("slot " + std::to_string(slot) + ", kv head " + std::to_string(kv_head) +
                                " is outside the cache");
    const int64_t offset = slot % layout.block_size;
    const std::byte* tile_data = tile(slot / layout.block_size, kv_head, offset / kTileKeys);
    const int64_t row = offset % kTileKeys, dim = layout.padded_dim;
    const float* scales = reinterpret_cast<const float*>(tile_data);
    for (int64_t d = 0; d < layout.head_dim; ++d) {
        const bool pairs = layout.type != KVType::f32;
        const int64_t in_keys = pairs ? (d / 2 * kTileKeys + row) * 2 + d % 2 : d * kTileKeys + row;
        const int64_t in_values = pairs ? (row / 2 * dim + d) * 2 + row % 2 : row * dim + d;
        key[d] = element(tile_data + layout.keys_offset, layout.type, in_keys, scales + row);
        value[d] = element(tile_data + layout.values_offset, layout.type, in_values, scales + kTileKeys + row);
    }
}

}  // namespace pellucid
