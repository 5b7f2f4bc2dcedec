"""Random numbers as a function, not a stream: keyed by (seed, token index), the same wherever asked for.

The generator is Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011):
a keyed bijection of a 128-bit counter. It has no state, so a request that is preempted, moved or replayed draws what it
would have drawn. Torch-free.
"""

from __future__ import annotations

_MASK32 = 0xFFFFFFFF
_MASK64 = 0xFFFFFFFFFFFFFFFF
_MULTIPLIER_0 = 0xD2511F53
_MULTIPLIER_1 = 0xCD9E8D57
_WEYL_0 = 0x9E3779B9  # the golden ratio
_WEYL_1 = 0xBB67AE85  # sqrt(3) - 1
_ROUNDS = 10

# The third counter word says what a number is for, so that another use would never see the same one.
_FOR_TOKENS = 0


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Four random 32-bit words for a counter of four and a key of two 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product_0 = _MULTIPLIER_0 * c0
        product_1 = _MULTIPLIER_1 * c2
        c0, c1, c2, c3 = (
            (product_1 >> 32) ^ c1 ^ k0,
            product_1 & _MASK32,
            (product_0 >> 32) ^ c3 ^ k1,
            product_0 & _MASK32,
        )
        k0 = (k0 + _WEYL_0) & _MASK32
        k1 = (k1 + _WEYL_1) & _MASK32
    return c0, c1, c2, c3


def uniform(seed: int, index: int) -> float:
    """The number in [0, 1), a multiple of 2**-53, for output token `index` (from 0) of a request with this seed."""
    return (_random64(seed, index, _FOR_TOKENS) >> 11) * 2.0**-53


def _random64(seed: int, index: int, purpose: int) -> int:
    seed &= _MASK64  # two's complement
    words = philox4x32((index & _MASK32, (index >> 32) & _MASK32, purpose, 0), (seed & _MASK32, seed >> 32))
    return words[0] << 32 | words[1]
