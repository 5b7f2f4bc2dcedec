// AMX: eight tile registers of 16 rows x 64 bytes, and products of two of them that are added to a third. Only for
// *.isa.cpp files, under PELLUCID_TILES.
//
// A product takes activations [rows][64 bytes of k] and weights [16][64 bytes], whose row i holds, for 16 columns, the
// bytes 4i .. 4i+3 of k: the order that panels and the KV cache have anyway. Sums are [rows][16 columns] of 32 bits.
//
// An element's bits depend on its row and column alone, not on how many others there are: int8 sums are exact, and of
// bf16 a product adds up the even and the odd elements of its k from zero, in order, and both to the sum. So k must be
// cut into products at the same places always.
// (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, TDPBF16PS and TDPBSUD.)
#pragma once
#include "simd.h"

#if defined(PELLUCID_TILES)
namespace pellucid {
namespace PELLUCID_ISA {

constexpr int kTileRows = 16;
constexpr int kTileBytes = 64;  // of a row

// The shapes of the eight registers while it lives. Making one costs some 30 cycles and clears all tiles; when the last
// is gone, the system has nothing to save for this thread again.
class TileRegisters {
  public:
    TileRegisters() = default;
    ~TileRegisters() { _tile_release(); }
    TileRegisters(const TileRegisters&) = delete;
    TileRegisters& operator=(const TileRegisters&) = delete;

    // rows: 1 to 16; row_bytes: a multiple of 4 up to 64.
    TileRegisters& shape(int tile, int rows, int row_bytes = kTileBytes) {
        config_.rows[tile] = static_cast<uint8_t>(rows);
        config_.row_bytes[tile] = static_cast<uint16_t>(row_bytes);
        return *this;
    }
    // In assembly: gcc 12's intrinsic does not say that it reads all 64 bytes.
    void load() const { asm volatile("ldtilecfg %0" : : "m"(config_)); }

  private:
    struct alignas(64) Config {
        uint8_t palette = 1, start_row = 0, reserved[14] = {};
        uint16_t row_bytes[16] = {};
        uint8_t rows[16] = {};
    };
    Config config_;
};

}  // namespace PELLUCID_ISA
}  // namespace pellucid
#endif
