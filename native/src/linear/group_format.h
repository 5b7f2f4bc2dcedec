// Weight formats with a scale for every 32 (or 16) elements along k: GGUF's block formats, kept bit for bit in their own
// numbers, in our own order of bytes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace pellucid {

constexpr int64_t kGroup = 32;            // elements of k that share a scale, and one of the activations
constexpr int64_t kGroupsPerSuper = 8;    // groups of a super-block: the two-level scales of the k-quants

enum class GroupFormat { q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k };

// How the scales of a group are written.
enum class GroupScales {
    half,        // s as float16:                      w = s * (code - offset)
    half_min,    // s and m as float16:                w = s * code + m
    super_min,   // a super-block has d, dmin (float16), a group sc, mn (uint8):  w = d * sc * code - dmin * mn
    super_half,  // a super-block has d (float16), each half group sc (int8):     w = d * sc * (code - offset)
};

struct GroupTraits {
    const char* name;
    int bits;            // of a code
    int offset_log2;     // offset = 1 << offset_log2; -1: none
    GroupScales scales;
};

constexpr GroupTraits group_traits(GroupFormat format) {
    switch (format) {
        case GroupFormat::q4_0: return {"q4_0", 4, 3, GroupScales::half};
        case GroupFormat::q4_1: return {"q4_1", 4, -1, GroupScales::half_min};
        case GroupFormat::q5_0: return {"q5_0", 5, 4, GroupScales::half};
        case GroupFormat::q5_1: return {"q5_1", 5, -1, GroupScales::half_min};
        case GroupFormat::q8_0: return {"q8_0", 8, 7, GroupScales::half};
        case GroupFormat::q4_k: return {"q4_k", 4, -1, GroupScales::super_min};
        case GroupFormat::q5_k: return {"q5_k", 5, -1, GroupScales::super_min};
        default: return {"q6_k", 6, 5, GroupScales::super_half};
    }
}

// A panel's stream is, for every super-block of (up to) 8 groups: [super scales], then for each group [scales][codes].
// Codes of a group, for the columns 0-15 and then 16-31, where "step" s holds elements 4s .. 4s+3 of 16 columns:
//   8 bits: the 8 steps, 64 bytes each.
//   fewer:  4 x 64 bytes, number j holding the low 4 bits of step j in its low and of step j+4 in its high nibbles;
//           5 bits: then 64 bytes, bit s = bit 4 of step s;
//           6 bits: then 2 x 64 bytes, bits 2i and 2i+1 of number h = bits 4 and 5 of step 4h+i.
struct GroupLayout {
    explicit constexpr GroupLayout(GroupFormat format) : GroupLayout(group_traits(format)) {}
    explicit constexpr GroupLayout(const GroupTraits& traits)
        : super_bytes(traits.scales == GroupScales::super_min    ? 128
                      : traits.scales == GroupScales::super_half ? 64
                                                                 : 0),
          scale_bytes(traits.scales == GroupScales::half ? 64 : traits.scales == GroupScales::half_min ? 128 : 64),
          half_code_bytes(64 * (traits.bits == 8 ? 8 : traits.bits)),
          group_bytes(scale_bytes + 2 * half_code_bytes) {}
    int64_t super_bytes, scale_bytes;
    int64_t half_code_bytes;  // of 16 columns
    int64_t group_bytes;

    constexpr int64_t panel_bytes(int64_t groups) const {
        return (groups + kGroupsPerSuper - 1) / kGroupsPerSuper * super_bytes + groups * group_bytes;
    }
    // Where a group's scales start; its super-block's start is that of group / 8 * 8, less super_bytes.
    constexpr int64_t group_offset(int64_t group) const {
        return (group / kGroupsPerSuper + 1) * super_bytes + group * group_bytes;
    }
};

}  // namespace pellucid
