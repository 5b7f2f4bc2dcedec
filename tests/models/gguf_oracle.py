"""The gguf package, and transformers which reads through it, as oracles that read each file once in a test process.

They walk a vocabulary in Python, and again for everything that is asked of the file: Gemma's takes half a minute each
time. transformers also makes the table of tensor names anew for each module of a model. Nothing they answer is changed.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import gguf

_GGUFReader = gguf.GGUFReader


@cache
def _read(path: str) -> gguf.GGUFReader:
    return _GGUFReader(path)


def gguf_reader(path: str | Path, *mode: Any) -> gguf.GGUFReader:
    """What the gguf package finds in a file that nobody changes."""
    return _GGUFReader(path, *mode) if mode else _read(str(path))


# transformers looks both up in the package when it needs them
gguf.GGUFReader = gguf_reader  # type: ignore[misc,assignment]
gguf.get_tensor_name_map = cache(gguf.get_tensor_name_map)
