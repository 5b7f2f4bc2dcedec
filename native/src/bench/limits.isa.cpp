#include "bench/limits.h"

#include "linear/dense_tiles.h"

namespace pellucid {
namespace PELLUCID_ISA {
namespace {

// Makes the compiler believe that the value is used.
template <typename T>
PELLUCID_INLINE void keep(T& value) {
    asm volatile("" : : "m"(value) : "memory");
}

void read(const std::byte* data, size_t num_bytes) {
    const uint8_t* p = reinterpret_cast<const uint8_t*>(data);
    Bytes seen[4] = {splat_byte(0), splat_byte(0), splat_byte(0), splat_byte(0)};
    for (size_t i = 0; i + 256 <= num_bytes; i += 256) {
        PELLUCID_UNROLL
        for (int j = 0; j < 4; ++j) {
            seen[j] = seen[j] | load_bytes(p + i + 64 * j);
            __builtin_prefetch(p + i + 64 * j + 4096);
        }
    }
    for (Bytes& bytes : seen) keep(bytes);
}

// 12 sums at once: more than the latency of an instruction times how many start in a cycle.
constexpr int kSums = 12;

template <typename Sum, typename Step>
double run(int64_t rounds, Sum start, const Step& step, double operations) {
    Sum sums[kSums];
    for (Sum& sum : sums) sum = start;
    for (int64_t i = 0; i < rounds; ++i) {
        PELLUCID_UNROLL
        for (int j = 0; j < kSums; ++j) sums[j] = step(sums[j]);
    }
    for (Sum& sum : sums) keep(sum);
    return static_cast<double>(rounds) * kSums * operations;
}

#if defined(PELLUCID_TILES)
// As a linear layer of 32 rows has them, four tiles of sums at once.
template <typename Product>
double run_tiles(int64_t rounds, double operations) {
    alignas(64) static const uint8_t ones[kTileRows * kTileBytes] = {1};
    TileRegisters registers;
    for (int tile = 0; tile < 8; ++tile) registers.shape(tile, kTileRows);
    registers.load();
    _tile_loadd(4, ones, kTileBytes);
    _tile_loadd(5, ones, kTileBytes);
    _tile_loadd(6, ones, kTileBytes);
    _tile_loadd(7, ones, kTileBytes);
    for (int64_t i = 0; i < rounds; ++i) Product::top(), Product::bottom();
    return static_cast<double>(rounds) * 4 * kTileRows * kTileRows * operations;
}
#endif

double dots(RowForm form, int64_t rounds) {
#if defined(PELLUCID_TILES)
    if (form == RowForm::bf16) return run_tiles<Bf16OnTiles>(rounds, 64);
    if (form != RowForm::f32) return run_tiles<Int8OnTiles>(rounds, 128);
#endif
    Bytes weights = splat_byte(3);
    keep(weights);
    switch (form) {
        case RowForm::f32: {
            Vec factor = splat(0.5f);
            keep(factor);
            return run(rounds, zero(), [&](Vec sum) { return fma(sum, factor, factor); }, 2.0 * kLanes);
        }
        case RowForm::bf16:
            return run(rounds, zero(), [&](Vec sum) { return dot2_bf16(sum, weights, 0x3f803f80); }, 4.0 * kLanes);
        default:
            return run(rounds, splat_int(0), [&](Ints sum) { return dot4(sum, weights, 0x01020304); }, 8.0 * kLanes);
    }
}

}  // namespace

const LimitKernels& limit_kernels() {
    static const LimitKernels kernels{read, dots};
    return kernels;
}

}  // namespace PELLUCID_ISA
}  // namespace pellucid
