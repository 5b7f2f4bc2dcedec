// A few rows times panels of groups: nothing is unpacked into memory first, because hardly anybody would read it a second
// time.
// Only for *.isa.cpp files.
//
// A group's sums are exact integers and the chain of float32 operations over the groups is that of many rows
// (groups.isa.cpp), so that both agree to the bit.
#pragma once
#include "linear/tiles.h"

namespace pellucid {
namespace PELLUCID_ISA {

constexpr int64_t kStepsPerGroup = kGroup / 4;

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

// Sums of 16 columns over the steps of a group, or of half a group, with the high and the low bytes of R rows' activations.
template <int bits, bool fine, int R>
struct StepSums {
    static constexpr int kStepsPerShort = bits == 4 ? 8 : bits == 5 ? 4 : 2;  // see PELLUCID_HAS_SHORTS

    Ints high[R], low[R];

    PELLUCID_INLINE_MEMBER StepSums() {
        PELLUCID_UNROLL
        for (int r = 0; r < R; ++r) high[r] = low[r] = splat_int(0);
    }

    template <int s, int end>
    PELLUCID_INLINE_MEMBER void add(const uint8_t* packed, const int8_t* highs, int64_t lows, size_t stride) {
#if defined(PELLUCID_HAS_SHORTS)
        if constexpr (bits <= 6) {
            constexpr int stop = s + kStepsPerShort < end ? s + kStepsPerShort : end;
            Shorts short_high[R], short_low[R];
            PELLUCID_UNROLL
            for (int r = 0; r < R; ++r) short_high[r] = short_low[r] = zero_shorts();
            add_shorts<s, stop>(packed, highs, lows, stride, short_high, short_low);
            PELLUCID_UNROLL
            for (int r = 0; r < R; ++r) {
                high[r] = high[r] + sum_pairs(short_high[r]);
                if constexpr (fine) low[r] = low[r] + sum_pairs(short_low[r]);
            }
            if constexpr (stop < end) add<stop, end>(packed, highs, lows, stride);
            return;
        }
#endif
        const Bytes codes = codes_of_step<bits, s>(packed);
        PELLUCID_UNROLL
        for (int r = 0; r < R; ++r) {
            const int8_t* row = highs + r * stride + 4 * s;
            high[r] = dot4(high[r], codes, four(row));
            if constexpr (fine) low[r] = dot4(low[r], codes, four(row + lows));
        }
        if constexpr (s + 1 < end) add<s + 1, end>(packed, highs, lows, stride);
    }

    // high * 128 + low + offset
    PELLUCID_INLINE_MEMBER Vec total(int r, Ints offset) const {
        if constexpr (fine) return to_float((shift_left<7>(high[r]) + offset) + low[r]);
        else return to_float(high[r] + offset);
    }

  private:
    static PELLUCID_INLINE_MEMBER int32_t four(const int8_t* activations) {
        int32_t a;
        std::memcpy(&a, activations, sizeof a);
        return a;
    }
#if defined(PELLUCID_HAS_SHORTS)
    template <int s, int end>
    static PELLUCID_INLINE_MEMBER void add_shorts(const uint8_t* packed, const int8_t* highs, int64_t lows, size_t stride,
                                                  Shorts (&short_high)[R], Shorts (&short_low)[R]) {
        const Bytes codes = codes_of_step<bits, s>(packed);
        PELLUCID_UNROLL
        for (int r = 0; r < R; ++r) {
            const int8_t* row = highs + r * stride + 4 * s;
            short_high[r] = dot2(short_high[r], codes, four(row));
            if constexpr (fine) short_low[r] = dot2(short_low[r], codes, four(row + lows));
        }
        if constexpr (s + 1 < end) add_shorts<s + 1, end>(packed, highs, lows, stride, short_high, short_low);
    }
#endif
};

// The R rows of a tile of one panel.
template <GroupFormat format, bool fine, int R>
void multiply_few_rows(const std::byte* panel, const std::byte* after, const GroupedRow& layout, const Tile& tile) {
    constexpr GroupTraits traits = group_traits(format);
    constexpr GroupLayout stream(format);
    constexpr bool has_min = traits.offset_log2 < 0;
    constexpr bool halved = traits.scales == GroupScales::super_half;
    constexpr bool in_super = traits.scales == GroupScales::super_min || halved;
    constexpr int parts = halved ? 2 : 1;  // of a group, each with a scale of its own
    constexpr int steps = static_cast<int>(kStepsPerGroup) / parts;
    const size_t stride = tile.row_stride;
    const int64_t lows = fine ? layout.lows : 0;  // behind the high bytes
    const int8_t* highs = reinterpret_cast<const int8_t*>(tile.rows);
    const std::byte* scale_of = tile.rows + layout.scales;
    const std::byte* sum_of = tile.rows + (has_min ? layout.scaled_sums : halved ? layout.half_sums : layout.sums);
    Vec total[R][2], unit[2] = {zero(), zero()}, minimum_unit[2] = {zero(), zero()};
    PELLUCID_UNROLL
    for (int r = 0; r < R; ++r) total[r][0] = total[r][1] = zero();
    const std::byte* at = panel;
    const std::byte* end = panel + stream.panel_bytes(layout.groups);
    for (int64_t g = 0; g < layout.groups; ++g) {
        if (in_super && g % kGroupsPerSuper == 0) {
            const uint16_t* halves = reinterpret_cast<const uint16_t*>(at);
            for (int h = 0; h < 2; ++h) {
                unit[h] = load_halves(halves + h * kLanes);
                if constexpr (has_min) minimum_unit[h] = load_halves(halves + kPanelColumns + h * kLanes);
            }
            at += stream.super_bytes;
        }
        const std::byte* ahead = at + kStreamAhead < end ? at + kStreamAhead : after + (at + kStreamAhead - end);
        PELLUCID_UNROLL
        for (int line = 0; line < stream.group_bytes; line += 64) __builtin_prefetch(ahead + line, 0, 2);
        const uint16_t* scales = reinterpret_cast<const uint16_t*>(at);
        const uint8_t* small = reinterpret_cast<const uint8_t*>(at);
        PELLUCID_UNROLL
        for (int h = 0; h < 2; ++h) {
            const int c = h * kLanes;
            const uint8_t* packed = small + stream.scale_bytes + h * stream.half_code_bytes;
            Vec minimum = zero(), scale[parts];
            if constexpr (halved) {
                const int8_t* sub = reinterpret_cast<const int8_t*>(at);
                for (int part = 0; part < parts; ++part) scale[part] = unit[h] * load_signed(sub + part * kPanelColumns + c);
            } else if constexpr (in_super) {
                scale[0] = unit[h] * load_unsigned(small + c);
                minimum = zero() - minimum_unit[h] * load_unsigned(small + kPanelColumns + c);
            } else {
                scale[0] = load_halves(scales + c);
                if constexpr (has_min) minimum = load_halves(scales + kPanelColumns + c);
            }
            StepSums<traits.bits, fine, R> sums[parts];
            sums[0].template add<0, steps>(packed, highs, lows, stride);
            if constexpr (parts == 2) sums[1].template add<steps, kStepsPerGroup>(packed, highs, lows, stride);
            PELLUCID_UNROLL
            for (int r = 0; r < R; ++r) {
                const std::byte* row_sums = sum_of + r * stride;
                Vec scaled = zero();
                PELLUCID_UNROLL
                for (int part = 0; part < parts; ++part) {
                    const Ints offset = [&] {
                        if constexpr (has_min) return splat_int(0);
                        else return shift_left<traits.offset_log2>(
                            splat_int(reinterpret_cast<const int32_t*>(row_sums)[parts * g + part]));
                    }();
                    const Vec dot = sums[part].total(r, offset);
                    scaled = part ? fma(dot, scale[part], scaled) : dot * scale[part];
                }
                total[r][h] = fma(scaled, splat(reinterpret_cast<const float*>(scale_of + r * stride)[g]), total[r][h]);
                if constexpr (has_min)
                    total[r][h] = fma(minimum, splat(reinterpret_cast<const float*>(row_sums)[g]), total[r][h]);
            }
        }
        at += stream.group_bytes;
        highs += kGroup;
    }
    for (int r = 0; r < R; ++r) finish_row(tile, r, total[r][0], total[r][1]);
}

// How many rows are few: beyond that, codes taken apart anew for every few rows cost more than the buffer.
#if defined(PELLUCID_AVX512)
constexpr int kFewRowsOfGroups = 4;
#else
constexpr int kFewRowsOfGroups = 1;
#endif

}  // namespace PELLUCID_ISA
}  // namespace pellucid
