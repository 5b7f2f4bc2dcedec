"""Matrices that were rounded to 4 bits before they are packed, in the numbers of the native int4 layout.

A group of 32 elements of a row has a scale and a minimum, each 8 bits of the unit that its super-block of (up to) 8
groups has for it: w = d * scale * code - dmin * minimum. On disk and in `data` of a QuantizedTensor a row is
[d, dmin of each super-block: float16][scale, minimum of each group: uint8][codes of each group: 16 bytes, element j in
the low half of byte j, j + 16 in the high half].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

INT4 = "INT4"  # the format's name beside GGUF's
GROUP = 32
SUPER = 8  # groups
LEVELS = 15  # the largest code


@dataclass(frozen=True)
class Int4Rows:
    """units: float16 [rows, super-blocks, 2], d and dmin. scales: uint8 [rows, groups, 2], scale and minimum.
    codes: uint8 [rows, columns], 0 to 15."""

    units: np.ndarray
    scales: np.ndarray
    codes: np.ndarray

    def to_bytes(self) -> np.ndarray:
        """uint8 [rows, bytes_per_row]."""
        rows = len(self.codes)
        groups = self.codes.reshape(rows, -1, GROUP)
        nibbles = groups[..., : GROUP // 2] | groups[..., GROUP // 2 :] << 4
        parts = (self.units.astype("<f2").view(np.uint8), self.scales, nibbles)
        return np.concatenate([part.reshape(rows, -1) for part in parts], axis=1)

    @classmethod
    def from_bytes(cls, data: np.ndarray, columns: int) -> Int4Rows:
        rows, groups = len(data), columns // GROUP
        ends = np.cumsum([4 * num_supers(groups), 2 * groups])
        units, scales, nibbles = np.split(data, ends, axis=1)
        nibbles = nibbles.reshape(rows, groups, GROUP // 2)
        codes = np.concatenate([nibbles & 15, nibbles >> 4], axis=2)
        return cls(
            np.ascontiguousarray(units).view("<f2").reshape(rows, -1, 2),
            scales.reshape(rows, groups, 2),
            codes.reshape(rows, columns),
        )

    def values(self) -> np.ndarray:
        """float32 [rows, columns]."""
        rows, groups = self.scales.shape[:2]
        units = np.repeat(self.units.astype(np.float32), SUPER, axis=1)[:, :groups]
        scale, minimum = np.moveaxis(units * self.scales, 2, 0)[..., None]
        values = scale * self.codes.reshape(rows, groups, GROUP) - minimum
        return values.reshape(rows, -1)


def num_supers(groups: int) -> int:
    return -(-groups // SUPER)


def columns_of(row_bytes: int) -> int:
    """Of a row in bytes. Raises ValueError where no row is that long."""
    full, rest = divmod(row_bytes, 4 + 18 * SUPER)
    groups, over = divmod(max(rest - 4, 0), 18)
    if over or rest in range(1, 5):
        raise ValueError(f"no row of int4 has {row_bytes} bytes")
    return GROUP * (SUPER * full + groups)
