"""Numbers as people write them: 32K tokens, 2GiB, 1.5g."""

from __future__ import annotations

import re

_UNITS = {
    "": 1,
    "k": 1000,
    "K": 1024,
    "m": 1000**2,
    "M": 1024**2,
    "g": 1000**3,
    "G": 1024**3,
    "T": 1024**4,
    "KB": 1000,
    "kB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
    "TiB": 1024**4,
}
_PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_size(text: str) -> int:
    """ "32K" -> 32768, "2GiB" -> 2147483648, "1.5GB" -> 1500000000. As in vLLM, k is 1000 and K is 1024.

    Raises ValueError for anything else, and for a number that is not whole.
    """
    match = _PATTERN.fullmatch(text)
    if not match or match[2] not in _UNITS:
        raise ValueError(f"{text!r} is not a size; write for example 4096, 32K, 512MiB or 2GiB")
    value = float(match[1]) * _UNITS[match[2]]
    if value != int(value):
        raise ValueError(f"{text!r} is {value:g}, which is not a whole number")
    return int(value)


def format_bytes(num_bytes: float) -> str:
    """2147483648 -> "2.00 GiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(num_bytes) < 1024 or unit == "GiB":
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.2f} {unit}"
        num_bytes /= 1024
    raise AssertionError("unreachable")
