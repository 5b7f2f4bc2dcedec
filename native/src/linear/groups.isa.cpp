// Panels of weights with a scale for every group of 32 or 16 elements, activations in int8, or in 15 bits as two
// int8, with a scale for every 32.
//
// A super-block of the panel (256 elements of k) is unpacked once, codes to bytes and scales to float32, into a buffer
// that stays in L1, and then serves all rows of the tile. Per output element: exact int32 sums inside a group, one chain of
// float32 operations over the groups in order of k.
#include "linear/few_rows_of_groups.h"
#include "linear/tiles.h"

namespace pellucid {
namespace PELLUCID_ISA {
namespace {

constexpr int64_t kMaxTileRows = 128;  // rows of float sums kept beside one panel

// A super-block ready for use. codes: `code_stride` bytes a group, [2 column halves][8 steps][64]; widened (see integers.h),
// they are in `wide`, [16 pairs of k][32 columns][2] a group.
struct Unpacked {
    const uint8_t* codes;
    int64_t code_stride;
    alignas(64) uint8_t code_buffer[kGroupsPerSuper * 2 * kStepsPerGroup * 64];
#if defined(PELLUCID_WIDENS)
    alignas(64) int16_t wide[kGroupsPerSuper][kGroup * kPanelColumns];
#endif
    alignas(64) float scales[kGroupsPerSuper][2][kPanelColumns];  // [group][half group, where they differ][column]
    alignas(64) float mins[kGroupsPerSuper][kPanelColumns];
};

template <int bits>
void unpack_codes(const uint8_t* packed, uint8_t* out) {
    const Bytes low = splat_byte(15);
    Bytes extra[2] = {low, low};
    if constexpr (bits == 5) extra[0] = load_bytes(packed + 256);
    if constexpr (bits == 6) extra[0] = load_bytes(packed + 256), extra[1] = load_bytes(packed + 320);
    Bytes steps[8];
    PELLUCID_UNROLL
    for (int j = 0; j < 4; ++j) {
        const Bytes pair = load_bytes(packed + 64 * j);
        steps[j] = pair & low;
        steps[j + 4] = shift_right<4>(pair) & low;
    }
    if constexpr (bits == 5) {
        const Bytes bit = splat_byte(16);
        steps[0] = steps[0] | (shift_left<4>(extra[0]) & bit);
        steps[1] = steps[1] | (shift_left<3>(extra[0]) & bit);
        steps[2] = steps[2] | (shift_left<2>(extra[0]) & bit);
        steps[3] = steps[3] | (shift_left<1>(extra[0]) & bit);
        steps[4] = steps[4] | (extra[0] & bit);
        steps[5] = steps[5] | (shift_right<1>(extra[0]) & bit);
        steps[6] = steps[6] | (shift_right<2>(extra[0]) & bit);
        steps[7] = steps[7] | (shift_right<3>(extra[0]) & bit);
    }
    if constexpr (bits == 6) {
        const Bytes two = splat_byte(48);
        PELLUCID_UNROLL
        for (int h = 0; h < 2; ++h) {
            steps[4 * h] = steps[4 * h] | (shift_left<4>(extra[h]) & two);
            steps[4 * h + 1] = steps[4 * h + 1] | (shift_left<2>(extra[h]) & two);
            steps[4 * h + 2] = steps[4 * h + 2] | (extra[h] & two);
            steps[4 * h + 3] = steps[4 * h + 3] | (shift_right<2>(extra[h]) & two);
        }
    }
    PELLUCID_UNROLL
    for (int j = 0; j < 8; ++j) store_bytes(out + 64 * j, steps[j]);
}

template <GroupFormat format>
PELLUCID_INLINE void unpack(const std::byte* super, int groups, Unpacked& out) {
    constexpr GroupTraits traits = group_traits(format);
    constexpr GroupLayout layout(format);
    const uint16_t* halves = reinterpret_cast<const uint16_t*>(super);
    const std::byte* group = super + layout.super_bytes;
    if constexpr (traits.bits == 8) {
        out.codes = reinterpret_cast<const uint8_t*>(group + layout.scale_bytes);
        out.code_stride = layout.group_bytes;
    } else {
        out.codes = out.code_buffer;
        out.code_stride = 2 * kStepsPerGroup * 64;
    }
    for (int g = 0; g < groups; ++g, group += layout.group_bytes) {
        const uint16_t* scale = reinterpret_cast<const uint16_t*>(group);
        const uint8_t* small = reinterpret_cast<const uint8_t*>(group);
        PELLUCID_UNROLL
        for (int c = 0; c < kPanelColumns; c += kLanes) {
            if constexpr (traits.scales == GroupScales::half || traits.scales == GroupScales::half_min)
                store(out.scales[g][0] + c, load_halves(scale + c));
            if constexpr (traits.scales == GroupScales::half_min)
                store(out.mins[g] + c, load_halves(scale + kPanelColumns + c));
            if constexpr (traits.scales == GroupScales::super_min) {
                store(out.scales[g][0] + c, load_halves(halves + c) * load_unsigned(small + c));
                store(out.mins[g] + c, zero() - load_halves(halves + kPanelColumns + c) *
                                                    load_unsigned(small + kPanelColumns + c));
            }
            if constexpr (traits.scales == GroupScales::super_half) {
                const int8_t* sub = reinterpret_cast<const int8_t*>(group);
                store(out.scales[g][0] + c, load_halves(halves + c) * load_signed(sub + c));
                store(out.scales[g][1] + c, load_halves(halves + c) * load_signed(sub + kPanelColumns + c));
            }
        }
        if constexpr (traits.bits != 8) {
            const uint8_t* codes = small + layout.scale_bytes;
            uint8_t* to = out.code_buffer + g * out.code_stride;
            unpack_codes<traits.bits>(codes, to);
            unpack_codes<traits.bits>(codes + layout.half_code_bytes, to + kStepsPerGroup * 64);
        }
    }
}

#if defined(PELLUCID_WIDENS)
void widen(Unpacked& weights, int groups) {
    for (int g = 0; g < groups; ++g) {
        const uint8_t* codes = weights.codes + g * weights.code_stride;
        for (int half = 0; half < 2; ++half)
            for (int64_t s = 0; s < kStepsPerGroup; ++s)
                widen_bytes(load_bytes(codes + 64 * (kStepsPerGroup * half + s)), weights.wide[g] + 128 * s + 32 * half, 64);
    }
}
#endif

// A super-block's activations of R rows, as integers of 16 bits where the weights are widened.
template <int R, bool fine, bool wide>
struct Activations {
    Activations(const std::byte*, const GroupedRow&, size_t, int) {}
};

#if defined(PELLUCID_WIDENS)
template <int R, bool fine>
struct Activations<R, fine, true> {
    Activations(const std::byte* first, const GroupedRow& layout, size_t stride, int groups) {
        PELLUCID_UNROLL
        for (int r = 0; r < R; ++r) {
            const int8_t* high = reinterpret_cast<const int8_t*>(first + r * stride);
            for (int64_t i = 0; i < kGroup * groups; i += 16) {
                if constexpr (fine) widen_row(high + i, high + layout.lows + i, values[r] + i);
                else widen_row(high + i, values[r] + i);
            }
        }
    }
    // Two elements of k, the pair-th of the group.
    PELLUCID_INLINE_MEMBER void add(Ints (&dots)[R][2], const Unpacked& weights, int group, int pair) const {
        PELLUCID_UNROLL
        for (int r = 0; r < R; ++r) {
            int32_t a;
            std::memcpy(&a, values[r] + kGroup * group + 2 * pair, sizeof a);
            dot_pairs(dots[r], weights.wide[group] + 2 * kPanelColumns * pair, a);
        }
    }
    alignas(32) int16_t values[R][kGroup * kGroupsPerSuper];
};
#endif

// Adds one super-block's part to the sums of R rows. fine: activations of 15 bits; the products with the high halves are
// shifted before those with the low ones are added, all in the same exact int32.
// wide: high and low at once, with weights that have been widened.
template <GroupFormat format, bool fine, bool wide>
struct GroupKernel {
    const Unpacked& weights;
    const GroupedRow& layout;
    const Tile& tile;
    int64_t first_group;
    int groups;
    Prefetch next;  // the next super-block
    float (*sums)[kPanelColumns];

    // Steps [first, first + steps), four elements of k each: of the activations at `offset` behind the cursor.
    template <int R, int steps>
    PELLUCID_INLINE_MEMBER void add_products(Ints (&dots)[R][2], const uint8_t* codes, int first,
                                             const RowCursor<R>& activations, int offset, Prefetch& fetch) const {
        constexpr int bits = group_traits(format).bits;
        if constexpr (bits <= 6 && kHasShorts) {
            constexpr int steps_per_sum = bits == 4 ? (steps < 8 ? steps : 8) : bits == 5 ? 4 : 2;
            for (int h = 0; h < 2; ++h) {
                PELLUCID_UNROLL
                for (int s = 0; s < steps; s += steps_per_sum) {
                    Shorts shorts[R];
                    PELLUCID_UNROLL
                    for (int r = 0; r < R; ++r) shorts[r] = zero_shorts();
                    PELLUCID_UNROLL
                    for (int j = 0; j < steps_per_sum; ++j) {
                        const Bytes w = load_bytes(codes + 64 * (kStepsPerGroup * h + first + s + j));
                        PELLUCID_UNROLL
                        for (int r = 0; r < R; ++r)
                            shorts[r] = dot2(shorts[r], w, activations.template at<int32_t>(r, offset + 4 * (first + s + j)));
                    }
                    PELLUCID_UNROLL
                    for (int r = 0; r < R; ++r) dots[r][h] = dots[r][h] + sum_pairs(shorts[r]);
                }
            }
            if constexpr (R > 2) for (int s = 0; s < steps; ++s) fetch.step();
        } else {
            PELLUCID_UNROLL
            for (int s = first; s < first + steps; ++s) {
                if constexpr (R > 2) fetch.step();  // one or two rows never make the stream pause
                const Bytes w0 = load_bytes(codes + 64 * s);
                const Bytes w1 = load_bytes(codes + 64 * (kStepsPerGroup + s));
                PELLUCID_UNROLL
                for (int r = 0; r < R; ++r) {
                    const int32_t a = activations.template at<int32_t>(r, offset + 4 * s);
                    dots[r][0] = dot4(dots[r][0], w0, a);
                    dots[r][1] = dot4(dots[r][1], w1, a);
                }
            }
        }
    }

    template <int R>
    void rows(int64_t first, int64_t tile_index, int64_t tiles) const {
        constexpr GroupTraits traits = group_traits(format);
        constexpr bool has_min = traits.offset_log2 < 0;
        constexpr bool halved = traits.scales == GroupScales::super_half;
        constexpr int steps = halved ? kStepsPerGroup / 2 : kStepsPerGroup;
        const std::byte* x = tile.rows + first * tile.row_stride;
        RowCursor<R> codes_of(x + kGroup * first_group, tile.row_stride);
        RowCursor<R> scale_of(x + layout.scales + 4 * first_group, tile.row_stride);
        RowCursor<R> sum_of(has_min  ? x + layout.scaled_sums + 4 * first_group
                            : halved ? x + layout.half_sums + 8 * first_group
                                     : x + layout.sums + 4 * first_group,
                            tile.row_stride);
        Vec total[R][2];
        PELLUCID_UNROLL
        for (int r = 0; r < R; ++r) {
            total[r][0] = load(sums[first + r]);
            total[r][1] = load(sums[first + r] + kLanes);
        }
        const uint8_t* codes = weights.codes;
        const Activations<R, fine, wide> whole(x + kGroup * first_group, layout, tile.row_stride, groups);
        Prefetch fetch = next.share(tile_index, tiles, groups * kStepsPerGroup * (fine && !wide ? 2 : 1));
        for (int g = 0; g < groups; ++g) {
            Vec scaled[R][2];
            PELLUCID_UNROLL
            for (int part = 0; part < (halved ? 2 : 1); ++part) {
                const auto offset = [&](int r) {
                    if constexpr (has_min) return splat_int(0);
                    else return shift_left<traits.offset_log2>(splat_int(sum_of.template at<int32_t>(r, 4 * part)));
                };
                Ints dots[R][2];
                PELLUCID_UNROLL
                for (int r = 0; r < R; ++r) dots[r][0] = dots[r][1] = fine && !wide ? splat_int(0) : offset(r);
                if constexpr (wide) {
                    for (int s = part * steps; s < (part + 1) * steps; ++s) {
                        fetch.step();
                        whole.add(dots, weights, g, 2 * s);
                        whole.add(dots, weights, g, 2 * s + 1);
                    }
                } else {
                    if constexpr (fine) {
                        add_products<R, steps>(dots, codes, part * steps, codes_of, 0, fetch);
                        PELLUCID_UNROLL
                        for (int r = 0; r < R; ++r) {
                            dots[r][0] = shift_left<7>(dots[r][0]) + offset(r);
                            dots[r][1] = shift_left<7>(dots[r][1]) + offset(r);
                        }
                    }
                    add_products<R, steps>(dots, codes, part * steps, codes_of, fine ? static_cast<int>(layout.lows) : 0, fetch);
                }
                const Vec s0 = load(weights.scales[g][part]), s1 = load(weights.scales[g][part] + kLanes);
                PELLUCID_UNROLL
                for (int r = 0; r < R; ++r) {
                    scaled[r][0] = part ? fma(to_float(dots[r][0]), s0, scaled[r][0]) : to_float(dots[r][0]) * s0;
                    scaled[r][1] = part ? fma(to_float(dots[r][1]), s1, scaled[r][1]) : to_float(dots[r][1]) * s1;
                }
            }
            PELLUCID_UNROLL
            for (int r = 0; r < R; ++r) {
                const Vec a = splat(scale_of.template at<float>(r));
                total[r][0] = fma(scaled[r][0], a, total[r][0]);
                total[r][1] = fma(scaled[r][1], a, total[r][1]);
            }
            if constexpr (has_min) {
                const Vec m0 = load(weights.mins[g]), m1 = load(weights.mins[g] + kLanes);
                PELLUCID_UNROLL
                for (int r = 0; r < R; ++r) {
                    const Vec a = splat(sum_of.template at<float>(r));
                    total[r][0] = fma(m0, a, total[r][0]);
                    total[r][1] = fma(m1, a, total[r][1]);
                }
            }
            codes += weights.code_stride;
            codes_of.advance(kGroup);
            scale_of.advance(4);
            sum_of.advance(halved ? 8 : 4);
        }
        PELLUCID_UNROLL
        for (int r = 0; r < R; ++r) {
            store(sums[first + r], total[r][0]);
            store(sums[first + r] + kLanes, total[r][1]);
        }
    }
};

#if defined(PELLUCID_AVX512)
constexpr int kMaxGroupRows = 6;  // of a row: two vectors of exact and two of float sums
#elif defined(PELLUCID_AVX2)
constexpr int kMaxGroupRows = 4;  // these do not all fit the registers, but weights are loaded half as often as with 2
#else
constexpr int kMaxGroupRows = 1;
#endif

template <GroupFormat format, bool fine>
PELLUCID_INLINE void multiply_super(Unpacked& weights, const GroupedRow& layout, const Tile& tile, int64_t group, int groups,
                                    Prefetch next, float (*sums)[kPanelColumns]) {
#if defined(PELLUCID_WIDENS)
    // Not worth it for a few rows where the products of bytes fit 16 bits as they are.
    if (group_traits(format).bits > 5 || tile.num_rows > (fine ? 2 : 5)) {
        widen(weights, groups);
        return for_row_tiles<kRowsOfWidened>(
            tile.num_rows, GroupKernel<format, fine, true>{weights, layout, tile, group, groups, next, sums});
    }
#endif
    for_row_tiles<kMaxGroupRows>(tile.num_rows,
                                 GroupKernel<format, fine, false>{weights, layout, tile, group, groups, next, sums});
}

template <GroupFormat format, bool fine>
void multiply_panel(const std::byte* panel, const std::byte* after, const GroupedRow& layout, const Tile& whole) {
    constexpr GroupLayout stream(format);
    Unpacked weights;
    alignas(64) float sums[kMaxTileRows][kPanelColumns];
    for (int64_t begin = 0; begin < whole.num_rows; begin += kMaxTileRows) {
        const Tile tile = rows_of(whole, begin, kMaxTileRows);
        std::memset(sums, 0, sizeof sums[0] * static_cast<size_t>(tile.num_rows));
        const std::byte* super = panel;
        for (int64_t group = 0; group < layout.groups; group += kGroupsPerSuper) {
            const int64_t rest = layout.groups - group;
            const int groups = static_cast<int>(rest < kGroupsPerSuper ? rest : kGroupsPerSuper);
            const int64_t num_bytes = stream.super_bytes + groups * stream.group_bytes;
            unpack<format>(super, groups, weights);
            super += num_bytes;
            const std::byte* next = groups < rest ? super : after;
            multiply_super<format, fine>(weights, layout, tile, group, groups, {next, num_bytes}, sums);
        }
        finish_rows(tile, 0, static_cast<int>(tile.num_rows), sums[0]);
    }
}

template <GroupFormat format, bool fine>
struct FewRows {
    const std::byte* panel;
    const std::byte* after;
    const GroupedRow& layout;
    const Tile& tile;

    template <int R>
    void rows(int64_t, int64_t, int64_t) const { multiply_few_rows<format, fine, R>(panel, after, layout, tile); }
};

template <GroupFormat format, bool fine>
void multiply(const Panels& panels, const GroupedRow& layout, const Tile& all) {
    for_each_panel(panels, all, [&](const std::byte* panel, const std::byte* after, const Tile& tile) {
        if (tile.num_rows > kFewRowsOfGroups) multiply_panel<format, fine>(panel, after, layout, tile);
        else for_row_tiles<kFewRowsOfGroups>(tile.num_rows, FewRows<format, fine>{panel, after, layout, tile});
    });
}

}  // namespace

void multiply_groups(const Panels& panels, GroupFormat format, const GroupedRow& layout, const Tile& tile) {
    if (!layout.fine) return multiply<GroupFormat::q4_k, false>(panels, layout, tile);  // what int4 packs
    switch (format) {
        case GroupFormat::q4_0: return multiply<GroupFormat::q4_0, true>(panels, layout, tile);
        case GroupFormat::q4_1: return multiply<GroupFormat::q4_1, true>(panels, layout, tile);
        case GroupFormat::q5_0: return multiply<GroupFormat::q5_0, true>(panels, layout, tile);
        case GroupFormat::q5_1: return multiply<GroupFormat::q5_1, true>(panels, layout, tile);
        case GroupFormat::q8_0: return multiply<GroupFormat::q8_0, true>(panels, layout, tile);
        case GroupFormat::q4_k: return multiply<GroupFormat::q4_k, true>(panels, layout, tile);
        case GroupFormat::q5_k: return multiply<GroupFormat::q5_k, true>(panels, layout, tile);
        case GroupFormat::q6_k: return multiply<GroupFormat::q6_k, true>(panels, layout, tile);
    }
}

}  // namespace PELLUCID_ISA
}  // namespace pellucid
