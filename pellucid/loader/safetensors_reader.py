"""Safetensors checkpoints, whole or in shards: headers checked against the files, tensors as views of the mapped files.

The format is a length, a JSON header (name -> dtype, shape, byte range) and the bytes; it is read here directly so
that sizes can be told without torch and every number is checked before it is used. Torch-free but for `tensor`.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeGuard

from pellucid.loader.errors import SafetensorsError
from pellucid.loader.model_files import WEIGHTS_INDEX, read_weight_map, shard_paths

if TYPE_CHECKING:
    import torch

MAX_HEADER_BYTES = 100 << 20
MAX_TENSORS = 1 << 20
MAX_DIMS = 8
# safetensors' name -> torch's name, bytes per element
DTYPES = {
    "F64": ("float64", 8),
    "F32": ("float32", 4),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "I64": ("int64", 8),
    "I32": ("int32", 4),
    "I16": ("int16", 2),
    "I8": ("int8", 1),
    "U8": ("uint8", 1),
    "BOOL": ("bool", 1),
}


@dataclass(frozen=True)
class SafetensorInfo:
    """offset: in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int

    @property
    def num_elements(self) -> int:
        return self.num_bytes // DTYPES[self.dtype][1]


class SafetensorsFile:
    """One open file. tensors: name -> SafetensorInfo, in the order of their bytes. Raises SafetensorsError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                # copy-on-write: the pages are shared with the page cache, and torch gets memory it takes as writable
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except ValueError as error:
            raise SafetensorsError(f"{path}: the file is empty") from error
        except OSError as error:
            raise SafetensorsError(f"{path}: can't be read: {error.strerror or error}") from error
        self.tensors: Mapping[str, SafetensorInfo] = MappingProxyType(self._read_header())

    def tensor(self, name: str) -> torch.Tensor:
        """A view of the mapped file: nothing is read before it is used."""
        import torch

        info = self.tensors[name]
        dtype = getattr(torch, DTYPES[info.dtype][0])
        if info.num_bytes == 0:
            return torch.empty(info.shape, dtype=dtype)
        if info.offset % DTYPES[info.dtype][1]:  # allowed by the format, though no writer of today does it
            owned = bytearray(self._map[info.offset : info.offset + info.num_bytes])
            return torch.frombuffer(owned, dtype=dtype).view(info.shape)
        return torch.frombuffer(self._map, dtype=dtype, count=info.num_elements, offset=info.offset).view(info.shape)

    def _read_header(self) -> dict[str, SafetensorInfo]:
        size = len(self._map)
        length = int.from_bytes(self._map[:8], "little")
        if size < 8 or length > min(MAX_HEADER_BYTES, size - 8):
            raise self._error(f"the header of {length} bytes does not fit the file of {size}")
        try:
            header = json.loads(self._map[8 : 8 + length], object_pairs_hook=self._without_duplicates)
        except (ValueError, RecursionError) as error:
            if isinstance(error, SafetensorsError):
                raise
            raise self._error("the header is no JSON") from error
        if not isinstance(header, dict) or len(header) > MAX_TENSORS:
            raise self._error("the header is no table of tensors")
        header.pop("__metadata__", None)
        infos = [self._info(name, entry, 8 + length) for name, entry in header.items()]
        infos.sort(key=lambda info: (info.offset, info.num_bytes))
        end = 8 + length
        for info in infos:
            if info.offset != end:
                raise self._error(f"tensor {info.name!r} starts at byte {info.offset}, expected {end}")
            end += info.num_bytes
        if end != size:
            raise self._error(f"the tensors end at byte {end}, the file has {size}: it is cut off; fetch it again")
        return {info.name: info for info in infos}

    def _without_duplicates(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            raise self._error("a name occurs twice in the header")
        return table

    def _info(self, name: str, entry: Any, data_start: int) -> SafetensorInfo:
        if not isinstance(entry, dict):
            raise self._error(f"tensor {name!r} is described by {entry!r}")
        dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise self._error(f"tensor {name!r} has the dtype {dtype!r}; supported are {', '.join(DTYPES)}")
        if not _is_sizes(shape) or len(shape) > MAX_DIMS or not _is_sizes(offsets) or len(offsets) != 2:
            raise self._error(f"tensor {name!r} has the shape {shape!r} and the offsets {offsets!r}")
        num_bytes = DTYPES[dtype][1]
        for dim in shape:
            num_bytes *= dim
        if offsets[1] - offsets[0] != num_bytes:
            raise self._error(f"tensor {name!r} of shape {shape} in {dtype} takes {num_bytes} bytes, not {offsets}")
        return SafetensorInfo(name, dtype, tuple(shape), data_start + offsets[0], num_bytes)

    def _error(self, what: str) -> SafetensorsError:
        return SafetensorsError(f"{self.path}: not a usable safetensors file: {what}")


def _is_sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 62 for item in value)


class Checkpoint:
    """model.safetensors, or all shards of an index. Raises SafetensorsError, naming what is missing or wrong."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.shards = [SafetensorsFile(path) for path in shard_paths(directory)]
        self._check_against_index()

    @cached_property
    def tensors(self) -> Mapping[str, SafetensorInfo]:
        return MappingProxyType({name: info for shard in self.shards for name, info in shard.tensors.items()})

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(name, tensor) shard by shard, in the order of their bytes."""
        for shard in self.shards:
            for name in shard.tensors:
                yield name, shard.tensor(name)

    def _check_against_index(self) -> None:
        index = self.directory / WEIGHTS_INDEX
        if not index.is_file():
            return
        weight_map = read_weight_map(index)
        found = {name: shard.path.name for shard in self.shards for name in shard.tensors}
        if len(found) != sum(len(shard.tensors) for shard in self.shards):
            raise SafetensorsError(f"{self.directory}: a tensor lies in two shards")
        wrong = sorted(name for name in weight_map.keys() | found.keys() if weight_map.get(name) != found.get(name))
        if wrong:
            listed = ", ".join(wrong[:20]) + (f" and {len(wrong) - 20} more" if len(wrong) > 20 else "")
            raise SafetensorsError(f"{index}: the shards hold other tensors than it says: {listed}")
