#include "linear/source_rows.h"

#include <cmath>
#include <cstring>
#include <stdexcept>

namespace pellucid {

float half_to_float(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
    const uint32_t exponent = (half >> 10) & 31, mantissa = half & 1023;
    if (exponent == 0) {
        const float value = static_cast<float>(mantissa) * 5.9604644775390625e-8f;  // 2^-24
        return sign ? -value : value;
    }
    const uint32_t bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | mantissa << 13;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

uint16_t float_to_half(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return sign | 0x7e00;
    if (bits >= 0x477ff000) return sign | 0x7c00;  // 65520 and above round to infinity
    if (bits < 0x38800000) {                       // below the smallest normal: a multiple of 2^-24
        const float magnitude = std::fabs(value) * 16777216.0f;
        return sign | static_cast<uint16_t>(std::nearbyint(magnitude));
    }
    return sign | static_cast<uint16_t>((bits + 0xfff + (bits >> 13 & 1) - 0x38000000) >> 13);
}

float bf16_to_float(uint16_t bits) {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
}

uint16_t float_to_bf16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

namespace {

uint16_t read_u16(const uint8_t* p) { return static_cast<uint16_t>(p[0] | p[1] << 8); }
uint32_t read_u32(const uint8_t* p) { return read_u16(p) | static_cast<uint32_t>(read_u16(p + 2)) << 16; }

struct Storage {
    int64_t elements;  // of a block
    int64_t bytes;
};

Storage storage_of(GroupFormat format) {
    switch (format) {
        case GroupFormat::q4_0: return {32, 18};
        case GroupFormat::q4_1: return {32, 20};
        case GroupFormat::q5_0: return {32, 22};
        case GroupFormat::q5_1: return {32, 24};
        case GroupFormat::q8_0: return {32, 34};
        case GroupFormat::q4_k: return {256, 144};
        case GroupFormat::q5_k: return {256, 176};
        default: return {256, 210};
    }
}

bool storage_of(const std::string& format, Storage& storage) {
    GroupFormat group_format;
    if (find_group_format(format, group_format)) storage = storage_of(group_format);
    else if (format == kInt4) storage = {kGroup, 0};  // by the row, see int4_row_bytes
    else if (format == "f32") storage = {1, 4};
    else if (format == "bf16" || format == "f16") storage = {1, 2};
    else return false;
    return true;
}

int64_t num_supers(int64_t groups) { return (groups + kGroupsPerSuper - 1) / kGroupsPerSuper; }

int64_t int4_row_bytes(int64_t groups) { return 4 * num_supers(groups) + 18 * groups; }

void read_int4_row(const uint8_t* row, int64_t groups, GroupRow& out) {
    const int64_t supers = num_supers(groups);
    for (int64_t i = 0; i < supers; ++i) {
        out.super_scale[i] = read_u16(row + 4 * i);
        out.super_minimum[i] = read_u16(row + 4 * i + 2);
    }
    const uint8_t* scales = row + 4 * supers;
    const uint8_t* codes = scales + 2 * groups;
    for (int64_t i = 0; i < groups; ++i) {
        out.sub_scale[i] = scales[2 * i];
        out.sub_minimum[i] = scales[2 * i + 1];
        for (int j = 0; j < 16; ++j) {
            out.codes[i * kGroup + j] = codes[i * 16 + j] & 15;
            out.codes[i * kGroup + j + 16] = codes[i * 16 + j] >> 4;
        }
    }
}

// Blocks of 32: [d][m, where there is one][high bits, where codes have 5][low 4 bits of elements j and j + 16 in byte j].
void read_nibble_block(const uint8_t* block, const GroupTraits& traits, int64_t group, GroupRow& out) {
    out.scale[group] = read_u16(block);
    block += 2;
    if (traits.scales == GroupScales::half_min) {
        out.minimum[group] = read_u16(block);
        block += 2;
    }
    uint32_t high = 0;
    if (traits.bits == 5) {
        high = read_u32(block);
        block += 4;
    }
    uint8_t* codes = out.codes.data() + group * kGroup;
    for (int j = 0; j < 16; ++j) {
        codes[j] = static_cast<uint8_t>((block[j] & 15) | (high >> j & 1) << 4);
        codes[j + 16] = static_cast<uint8_t>(block[j] >> 4 | (high >> (j + 16) & 1) << 4);
    }
}

// q4_k, q5_k: [d][dmin][12 bytes of 6-bit sc and mn][q5_k: 32 bytes of high bits][128 bytes of nibbles].
void read_k_block(const uint8_t* block, const GroupTraits& traits, int64_t super, GroupRow& out) {
    out.super_scale[super] = read_u16(block);
    out.super_minimum[super] = read_u16(block + 2);
    const uint8_t* packed = block + 4;
    uint8_t* sub_scale = out.sub_scale.data() + super * kGroupsPerSuper;
    uint8_t* sub_minimum = out.sub_minimum.data() + super * kGroupsPerSuper;
    for (int j = 0; j < 4; ++j) {
        sub_scale[j] = packed[j] & 63;
        sub_minimum[j] = packed[j + 4] & 63;
        sub_scale[j + 4] = static_cast<uint8_t>((packed[j + 8] & 15) | packed[j] >> 6 << 4);
        sub_minimum[j + 4] = static_cast<uint8_t>(packed[j + 8] >> 4 | packed[j + 4] >> 6 << 4);
    }
    const uint8_t* high = traits.bits == 5 ? block + 16 : nullptr;
    const uint8_t* low = block + (high ? 48 : 16);
    uint8_t* codes = out.codes.data() + super * kGroupsPerSuper * kGroup;
    for (int j = 0; j < 8; ++j) {
        for (int l = 0; l < 32; ++l) {
            const uint8_t byte = low[j / 2 * 32 + l];
            const int bit = high ? high[l] >> j & 1 : 0;
            codes[j * 32 + l] = static_cast<uint8_t>((j % 2 ? byte >> 4 : byte & 15) | bit << 4);
        }
    }
}

// q6_k: [low 4 bits, 128][high 2 bits, 64][16 int8 scales][d].
void read_q6_k_block(const uint8_t* block, int64_t super, GroupRow& out) {
    std::memcpy(out.sub_scale.data() + super * 16, block + 192, 16);
    out.super_scale[super] = read_u16(block + 208);
    uint8_t* codes = out.codes.data() + super * 256;
    for (int half = 0; half < 2; ++half) {
        const uint8_t* low = block + half * 64;
        const uint8_t* high = block + 128 + half * 32;
        for (int j = 0; j < 4; ++j) {
            for (int l = 0; l < 32; ++l) {
                const uint8_t byte = low[j % 2 * 32 + l];
                codes[half * 128 + j * 32 + l] =
                    static_cast<uint8_t>((j < 2 ? byte & 15 : byte >> 4) | (high[l] >> 2 * j & 3) << 4);
            }
        }
    }
}

void read_groups(const uint8_t* data, GroupFormat format, int64_t columns, GroupRow& out) {
    const GroupTraits traits = group_traits(format);
    const Storage storage = storage_of(format);
    for (int64_t i = 0; i < columns / storage.elements; ++i) {
        const uint8_t* block = data + i * storage.bytes;
        if (format == GroupFormat::q8_0) {
            out.scale[i] = read_u16(block);
            for (int j = 0; j < kGroup; ++j) out.codes[i * kGroup + j] = static_cast<uint8_t>(block[2 + j] ^ 128);
        } else if (storage.elements == kGroup) {
            read_nibble_block(block, traits, i, out);
        } else if (format == GroupFormat::q6_k) {
            read_q6_k_block(block, i, out);
        } else {
            read_k_block(block, traits, i, out);
        }
    }
}

}  // namespace

void dequantize(const GroupRow& row, GroupFormat format, int64_t groups, float* out) {
    const GroupTraits traits = group_traits(format);
    const int offset = traits.offset_log2 < 0 ? 0 : 1 << traits.offset_log2;
    for (int64_t half = 0; half < 2 * groups; ++half) {
        const int64_t group = half / 2, super = group / kGroupsPerSuper;
        float scale, minimum = 0.0f;
        if (traits.scales == GroupScales::super_min) {
            scale = half_to_float(row.super_scale[super]) * row.sub_scale[group];
            minimum = -half_to_float(row.super_minimum[super]) * row.sub_minimum[group];
        } else if (traits.scales == GroupScales::super_half) {
            scale = half_to_float(row.super_scale[super]) * static_cast<int8_t>(row.sub_scale[half]);
        } else {
            scale = half_to_float(row.scale[group]);
            if (traits.scales == GroupScales::half_min) minimum = half_to_float(row.minimum[group]);
        }
        for (int64_t k = half * 16; k < half * 16 + 16; ++k)
            out[k] = scale * static_cast<float>(row.codes[k] - offset) + minimum;
    }
}

bool find_group_format(const std::string& name, GroupFormat& format) {
    for (GroupFormat candidate : {GroupFormat::q4_0, GroupFormat::q4_1, GroupFormat::q5_0, GroupFormat::q5_1,
                                  GroupFormat::q8_0, GroupFormat::q4_k, GroupFormat::q5_k, GroupFormat::q6_k}) {
        if (name == group_traits(candidate).name) {
            format = candidate;
            return true;
        }
    }
    return false;
}

SourceRows::SourceRows(const std::vector<MatrixPart>& parts) : parts_(parts) {
    if (parts.empty()) throw std::invalid_argument("nothing to pack");
    columns_ = parts[0].columns;
    for (const MatrixPart& part : parts) {
        Storage storage;
        if (!storage_of(part.format, storage))
            throw std::invalid_argument("weight format \"" + part.format + "\" is not supported");
        if (part.rows <= 0 || part.columns <= 0 || part.columns != columns_)
            throw std::invalid_argument("stacked matrices must have the same number of columns, and at least one row");
        if (part.columns % storage.elements)
            throw std::invalid_argument(part.format + " needs a multiple of " + std::to_string(storage.elements) +
                                        " columns, the matrix has " + std::to_string(part.columns));
        const int64_t blocks = part.columns / storage.elements;
        const int64_t row_bytes = part.format == kInt4 ? int4_row_bytes(blocks) : blocks * storage.bytes;
        const size_t expected = static_cast<size_t>(part.rows * row_bytes);
        if (part.num_bytes != expected)
            throw std::invalid_argument("a " + part.format + " matrix of " + std::to_string(part.rows) + " x " +
                                        std::to_string(part.columns) + " takes " + std::to_string(expected) +
                                        " bytes, got " + std::to_string(part.num_bytes));
        rows_ += part.rows;
    }
}

const MatrixPart& SourceRows::locate(int64_t& row) const {
    size_t i = 0;
    while (row >= parts_[i].rows) row -= parts_[i++].rows;
    return parts_[i];
}

void SourceRows::read(int64_t row, float* out) const {
    const MatrixPart& part = locate(row);
    const uint8_t* data = static_cast<const uint8_t*>(part.data);
    GroupFormat format = GroupFormat::q4_k;  // that of int4
    if (part.format == kInt4 || find_group_format(part.format, format)) {
        const int64_t groups = columns_ / kGroup;
        GroupRow decoded(groups);
        read_coded(part, row, decoded);
        dequantize(decoded, format, groups, out);
    } else if (part.format == "f32") {
        std::memcpy(out, data + row * columns_ * 4, static_cast<size_t>(columns_) * 4);
    } else {
        const bool half = part.format == "f16";
        for (int64_t i = 0; i < columns_; ++i) {
            const uint16_t bits = read_u16(data + (row * columns_ + i) * 2);
            out[i] = half ? half_to_float(bits) : bf16_to_float(bits);
        }
    }
}

void SourceRows::read(int64_t row, GroupRow& out) const {
    const MatrixPart& part = locate(row);
    read_coded(part, row, out);
}

bool SourceRows::is_int4(int64_t row) const { return locate(row).format == kInt4; }

void SourceRows::read_coded(const MatrixPart& part, int64_t row, GroupRow& out) const {
    const uint8_t* data = static_cast<const uint8_t*>(part.data) + row * (static_cast<int64_t>(part.num_bytes) / part.rows);
    GroupFormat format;
    if (part.format == kInt4) return read_int4_row(data, columns_ / kGroup, out);
    if (!find_group_format(part.format, format)) throw std::invalid_argument(part.format + " has no groups");
    read_groups(data, format, columns_, out);
}

}  // namespace pellucid
