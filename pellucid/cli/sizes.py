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

    A fraction of a unit is rounded to a whole number. Raises ValueError for anything else.
    """
    match = _PATTERN.fullmatch(text)
    if not match or match[2] not in _UNITS:
        raise ValueError(f"{text!r} is not a size; write for example 4096, 32K, 512MiB or 2GiB")
    if not match[2] and "." in match[1]:
        raise ValueError(f"{text!r} is not a whole number; with a unit it may be a fraction, as in 1.5GiB")
    return round(float(match[1]) * _UNITS[match[2]])
