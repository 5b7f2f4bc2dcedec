// One row times panels of groups: nothing is unpacked into memory first, because nobody would read it a second time.
// Only for *.isa.cpp files.
//
// A group's sums are exact integers and the chain of float32 operations over the groups is that of many rows
// (groups.isa.cpp), so that both agree to the bit.
#pragma once
#include "linear/tiles.h"

namespace pellucid {
namespace PELLUCID_ISA {

constexpr int kStepsOfGroup = static_cast<int>(kGroup) / 4;

// The codes of step s (GroupLayout): 16 columns x 4 elements of k.
template <int bits, int s>
PELLUCID_INLINE Bytes codes_of_step(const uint8_t* packed) {
    if constexpr (bits == 8) return load_bytes(packed + 64 * s);
    const Bytes pair = load_bytes(packed + 64 * (s % 4));
    const Bytes low = (s < 4 ? pair : shift_right<4>(pair)) & splat_byte(15);
    if constexpr (bits == 5) {
        const Bytes extra = load_bytes(packed + 256);
        if constexpr (s <= 4) return low | (shift_left<4 - s>(extra) & splat_byte(16));
        else return low | (shift_right<s - 4>(extra) & splat_byte(16));
    }
    if constexpr (bits == 6) {
        const Bytes extra = load_bytes(packed + 256 + 64 * (s / 4));
        constexpr int place = 2 * (s % 4);
        if constexpr (place <= 4) return low | (shift_left<4 - place>(extra) & splat_byte(48));
        else return low | (shift_right<place - 4>(extra) & splat_byte(48));
    }
    return low;
}

// Sums of 16 columns over the steps of a group, or of half a group, with the high and the low bytes of the activations.
template <int bits, bool fine>
struct StepSums {
    static constexpr int kStepsPerShort = bits == 4 ? 8 : bits == 5 ? 4 : 2;  // see PELLUCID_HAS_SHORTS

    Ints high = splat_int(0), low = splat_int(0);

    template <int s, int end>
    PELLUCID_INLINE_MEMBER void add(const uint8_t* packed, const int8_t* highs, const int8_t* lows) {
#if defined(PELLUCID_HAS_SHORTS)
        if constexpr (bits <= 6) {
            constexpr int stop = s + kStepsPerShort < end ? s + kStepsPerShort : end;
            Shorts short_high = zero_shorts(), short_low = zero_shorts();
            add_shorts<s, stop>(packed, highs, lows, short_high, short_low);
            high = high + sum_pairs(short_high);
            if constexpr (fine) low = low + sum_pairs(short_low);
            if constexpr (stop < end) add<stop, end>(packed, highs, lows);
            return;
        }
#endif
        const Bytes codes = codes_of_step<bits, s>(packed);
        high = dot4(high, codes, four(highs + 4 * s));
        if constexpr (fine) low = dot4(low, codes, four(lows + 4 * s));
        if constexpr (s + 1 < end) add<s + 1, end>(packed, highs, lows);
    }

    // high * 128 + low + offset
    PELLUCID_INLINE_MEMBER Vec total(Ints offset) const {
        if constexpr (fine) return to_float((shift_left<7>(high) + offset) + low);
        else return to_float(high + offset);
    }

  private:
    static PELLUCID_INLINE_MEMBER int32_t four(const int8_t* activations) {
        int32_t a;
        std::memcpy(&a, activations, sizeof a);
        return a;
    }
#if defined(PELLUCID_HAS_SHORTS)
    template <int s, int end>
    static PELLUCID_INLINE_MEMBER void add_shorts(const uint8_t* packed, const int8_t* highs, const int8_t* lows,
                                                  Shorts& short_high, Shorts& short_low) {
        const Bytes codes = codes_of_step<bits, s>(packed);
        short_high = dot2(short_high, codes, four(highs + 4 * s));
        if constexpr (fine) short_low = dot2(short_low, codes, four(lows + 4 * s));
        if constexpr (s + 1 < end) add_shorts<s + 1, end>(packed, highs, lows, short_high, short_low);
    }
#endif
};

// The row of a tile of one panel.
template <GroupFormat format, bool fine>
void multiply_row(const std::byte* panel, const GroupedRow& layout, const Tile& tile) {
    constexpr GroupTraits traits = group_traits(format);
    constexpr GroupLayout stream(format);
    constexpr bool has_min = traits.offset_log2 < 0;
    constexpr bool halved = traits.scales == GroupScales::super_half;
    constexpr bool in_super = traits.scales == GroupScales::super_min || halved;
    const int8_t* highs = reinterpret_cast<const int8_t*>(tile.rows);
    const int8_t* lows = highs + (fine ? layout.lows : 0);
    const float* row_scales = reinterpret_cast<const float*>(tile.rows + layout.scales);
    const float* scaled_sums = reinterpret_cast<const float*>(tile.rows + layout.scaled_sums);
    const int32_t* minus_sums = reinterpret_cast<const int32_t*>(tile.rows + (halved ? layout.half_sums : layout.sums));
    Vec total[2] = {zero(), zero()}, unit[2] = {zero(), zero()}, minimum_unit[2] = {zero(), zero()};
    const std::byte* at = panel;
    for (int64_t g = 0; g < layout.groups; ++g, at += stream.group_bytes, highs += kGroup, lows += kGroup) {
        if (in_super && g % kGroupsPerSuper == 0) {
            const uint16_t* halves = reinterpret_cast<const uint16_t*>(at);
            for (int h = 0; h < 2; ++h) {
                unit[h] = load_halves(halves + h * kLanes);
                if constexpr (has_min) minimum_unit[h] = load_halves(halves + kPanelColumns + h * kLanes);
            }
            at += stream.super_bytes;
        }
        PELLUCID_UNROLL
        for (int line = 0; line < stream.group_bytes; line += 64) __builtin_prefetch(at + kStreamAhead + line, 0, 2);
        const uint16_t* scales = reinterpret_cast<const uint16_t*>(at);
        const uint8_t* small = reinterpret_cast<const uint8_t*>(at);
        const Vec row_scale = splat(row_scales[g]);
        PELLUCID_UNROLL
        for (int h = 0; h < 2; ++h) {
            const int c = h * kLanes;
            const uint8_t* packed = small + stream.scale_bytes + h * stream.half_code_bytes;
            Vec scaled, minimum;
            if constexpr (halved) {
                StepSums<traits.bits, fine> first, second;
                first.template add<0, kStepsOfGroup / 2>(packed, highs, lows);
                second.template add<kStepsOfGroup / 2, kStepsOfGroup>(packed, highs, lows);
                const int8_t* sub = reinterpret_cast<const int8_t*>(at);
                const Ints offsets[2] = {shift_left<traits.offset_log2>(splat_int(minus_sums[2 * g])),
                                         shift_left<traits.offset_log2>(splat_int(minus_sums[2 * g + 1]))};
                scaled = first.total(offsets[0]) * (unit[h] * load_signed(sub + c));
                scaled = fma(second.total(offsets[1]), unit[h] * load_signed(sub + kPanelColumns + c), scaled);
            } else {
                StepSums<traits.bits, fine> sums;
                sums.template add<0, kStepsOfGroup>(packed, highs, lows);
                Vec scale;
                if constexpr (in_super) {
                    scale = unit[h] * load_unsigned(small + c);
                    minimum = zero() - minimum_unit[h] * load_unsigned(small + kPanelColumns + c);
                } else {
                    scale = load_halves(scales + c);
                    if constexpr (has_min) minimum = load_halves(scales + kPanelColumns + c);
                }
                if constexpr (has_min) scaled = sums.total(splat_int(0)) * scale;
                else scaled = sums.total(shift_left<traits.offset_log2>(splat_int(minus_sums[g]))) * scale;
            }
            total[h] = fma(scaled, row_scale, total[h]);
            if constexpr (has_min) total[h] = fma(minimum, splat(scaled_sums[g]), total[h]);
        }
    }
    finish_row(tile, 0, total[0], total[1]);
}

}  // namespace PELLUCID_ISA
}  // namespace pellucid
