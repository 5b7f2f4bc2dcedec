"""Reads a GGUF file (versions 2 and 3): metadata at once, tensors as views of the memory-mapped file. Torch-free.

A GGUF file comes from anywhere, so nothing it says is believed: every count, length, type, dimension and offset is
checked against the file's size before anything of that size is made. Whatever is wrong ends as a GGUFError.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from pellucid.loader.errors import GGUFError
from pellucid.loader.ggml_types import GGML_TYPES, GGMLType

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32

MAX_KEYS = 1 << 16
MAX_KEY_BYTES = 1 << 16  # the format's own limit
MAX_STRING_BYTES = 1 << 24  # chat templates are the longest strings there are, some hundred KiB
MAX_STRINGS = 1 << 22  # vocabularies have up to some hundred thousand tokens, merges some more
MAX_TENSORS = 1 << 16
MAX_TENSOR_NAME_BYTES = 256
MAX_DIMS = 4
MAX_ALIGNMENT = 1 << 16

# value types of the metadata: number -> numpy's little-endian type
SCALAR_TYPES: dict[int, np.dtype[Any]] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
UINT32 = 4
BOOL = 7
STRING = 8
ARRAY = 9

_UNPACK_U64 = struct.Struct("<Q").unpack_from


@dataclass(frozen=True)
class TensorInfo:
    """shape: row-major, [rows, columns] for a matrix (GGUF itself lists the columns first). offset: in the file."""

    name: str
    shape: tuple[int, ...]
    ggml_type: GGMLType
    offset: int
    num_bytes: int

    @property
    def num_elements(self) -> int:
        count = 1
        for dim in self.shape:
            count *= dim
        return count


class GGUFFile:
    """An open GGUF file.

    metadata: key -> int, float, bool, str, list[str] or (for arrays of numbers) a numpy array.
    tensors: name -> TensorInfo, in the file's order.
    Raises GGUFError where the file can't be a GGUF file as it stands, OSError where it can't be opened.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with self.path.open("rb") as file:
            try:
                # copy-on-write: the pages are shared with the page cache, and torch gets arrays it takes as writable
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            except ValueError as error:
                raise GGUFError(f"{self.path}: the file is empty") from error
        self.size = len(self._map)
        header = _HeaderParser(self.path, self._map)
        self.version: int = header.version
        self.metadata: Mapping[str, Any] = MappingProxyType(header.metadata)
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(header.tensors)

    def raw(self, info: TensorInfo) -> np.ndarray:
        """The tensor's bytes as uint8 [rows, bytes_per_row] (vectors: [1, bytes]), a view of the mapped file."""
        flat = np.frombuffer(self._map, np.uint8, count=info.num_bytes, offset=info.offset)
        rows = info.num_elements // info.shape[-1]
        return flat.reshape(rows, info.num_bytes // rows)


class _HeaderParser:
    """Goes once over everything before the tensors' data."""

    def __init__(self, path: Path, buffer: mmap.mmap) -> None:
        self._path = path
        self._buffer = buffer
        self._size = len(buffer)
        self._position = 0
        if self._size < 24:
            raise self._error(f"{self._size} bytes are too few for a GGUF file")
        if self._take(4) != MAGIC:
            raise self._error('it does not start with "GGUF"')
        self.version = self._uint32()
        if self.version not in VERSIONS:
            hint = " (a big-endian file)" if self.version and self.version & 0xFFFF == 0 else ""
            raise self._error(f"version {self.version}{hint}; versions 2 and 3, little-endian, can be read")
        num_tensors = self._uint64()
        num_keys = self._uint64()
        if num_keys > MAX_KEYS:
            raise self._error(f"{num_keys} metadata keys; the limit is {MAX_KEYS}")
        if num_tensors > MAX_TENSORS:
            raise self._error(f"{num_tensors} tensors; the limit is {MAX_TENSORS}")
        self.metadata = self._read_metadata(num_keys)
        alignment = self._alignment()
        self.tensors = self._read_tensors(num_tensors, alignment)

    # metadata -----------------------------------------------------------------------------------------------------

    def _read_metadata(self, num_keys: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._string(MAX_KEY_BYTES, "a metadata key")
            if key in metadata:
                raise self._error(f"the metadata key {key!r} occurs twice")
            value_type = self._uint32()
            if key == "general.alignment" and value_type != UINT32:
                raise self._error(f"general.alignment has the value type {value_type}, not uint32")
            metadata[key] = self._value(key, value_type)
        return metadata

    def _value(self, key: str, value_type: int) -> Any:
        if value_type == STRING:
            return self._string(MAX_STRING_BYTES, key)
        if value_type == ARRAY:
            return self._array(key)
        return self._numbers(key, value_type, 1)[0].item()

    def _array(self, key: str) -> Any:
        item_type = self._uint32()
        count = self._uint64()
        if item_type == STRING:
            return self._strings(key, count)
        if item_type == ARRAY:
            raise self._error(f"{key!r} is an array of arrays, which no GGUF model uses")
        return self._numbers(key, item_type, count)

    def _numbers(self, key: str, value_type: int, count: int) -> np.ndarray:
        dtype = SCALAR_TYPES.get(value_type)
        if dtype is None:
            raise self._error(f"{key!r} has the unknown value type {value_type}")
        self._need(count * dtype.itemsize, f"{count} values of {key!r}")
        if value_type == BOOL:
            octets = np.frombuffer(self._buffer, np.uint8, count=count, offset=self._position)
            if octets.size and octets.max() > 1:
                raise self._error(f"{key!r} holds a truth value that is neither 0 nor 1")
        values = np.frombuffer(self._buffer, dtype, count=count, offset=self._position)
        self._position += count * dtype.itemsize
        return values

    def _strings(self, key: str, count: int) -> list[str]:
        """A vocabulary is some hundred thousand strings: this loop is most of the time that opening a file takes."""
        if count > MAX_STRINGS:
            raise self._error(f"{count} strings in {key!r}; the limit is {MAX_STRINGS}")
        self._need(count * 8, f"{count} strings of {key!r}")
        buffer, size, position = self._buffer, self._size, self._position
        strings: list[str] = []
        try:
            for _ in range(count):
                start = position + 8
                position = start + _UNPACK_U64(buffer, position)[0]
                if position > size or position - start > MAX_STRING_BYTES:
                    raise self._error(f"string {len(strings)} of {key!r} is {position - start} bytes long")
                strings.append(str(buffer[start:position], "utf-8"))
        except struct.error as error:
            raise self._error(f"the file ends within {key!r}") from error
        except UnicodeDecodeError as error:
            raise self._error(f"string {len(strings)} of {key!r} is not UTF-8") from error
        self._position = position
        return strings

    def _alignment(self) -> int:
        alignment = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if alignment < 1 or alignment > MAX_ALIGNMENT or alignment & (alignment - 1):
            raise self._error(f"general.alignment is {alignment}, not a power of two up to {MAX_ALIGNMENT}")
        return alignment

    # tensors ------------------------------------------------------------------------------------------------------

    def _read_tensors(self, num_tensors: int, alignment: int) -> dict[str, TensorInfo]:
        listed: list[tuple[str, tuple[int, ...], GGMLType, int]] = []
        for _ in range(num_tensors):
            name = self._string(MAX_TENSOR_NAME_BYTES, "a tensor's name")
            num_dims = self._uint32()
            if not 1 <= num_dims <= MAX_DIMS:
                raise self._error(f"tensor {name!r} has {num_dims} dimensions; 1 to {MAX_DIMS} are possible")
            columns_first = [self._uint64() for _ in range(num_dims)]
            type_number = self._uint32()
            ggml_type = GGML_TYPES.get(type_number)
            if ggml_type is None:
                raise self._error(f"tensor {name!r} has the unknown type {type_number}")
            listed.append((name, tuple(reversed(columns_first)), ggml_type, self._uint64()))
        data_start = -(-self._position // alignment) * alignment
        tensors: dict[str, TensorInfo] = {}
        for name, shape, ggml_type, relative_offset in listed:
            if name in tensors:
                raise self._error(f"the tensor {name!r} occurs twice")
            if relative_offset % alignment:
                raise self._error(f"tensor {name!r} starts at {relative_offset}, no multiple of {alignment}")
            num_bytes = self._tensor_bytes(name, shape, ggml_type)
            offset = data_start + relative_offset
            if offset + num_bytes > self._size:
                raise self._error(
                    f"tensor {name!r} would end at byte {offset + num_bytes}, the file has {self._size}: "
                    "it is cut off or damaged; fetch it again"
                )
            tensors[name] = TensorInfo(name, shape, ggml_type, offset, num_bytes)
        self._refuse_overlap(tensors)
        return tensors

    def _tensor_bytes(self, name: str, shape: tuple[int, ...], ggml_type: GGMLType) -> int:
        num_elements = 1
        for dim in shape:
            num_elements *= dim
        # a block format packs at most 8 elements into a byte, so this bounds every honest tensor
        if num_elements == 0 or num_elements > 16 * self._size:
            raise self._error(f"tensor {name!r} of shape {list(shape)} does not fit a file of {self._size} bytes")
        if shape[-1] % ggml_type.block_size:
            raise self._error(
                f"tensor {name!r} has rows of {shape[-1]} elements, no multiple of {ggml_type.name}'s block of "
                f"{ggml_type.block_size}"
            )
        return num_elements // ggml_type.block_size * ggml_type.block_bytes

    def _refuse_overlap(self, tensors: dict[str, TensorInfo]) -> None:
        previous: TensorInfo | None = None
        for info in sorted(tensors.values(), key=lambda info: info.offset):
            if previous is not None and info.offset < previous.offset + previous.num_bytes:
                raise self._error(f"the tensors {previous.name!r} and {info.name!r} overlap")
            previous = info

    # primitives ---------------------------------------------------------------------------------------------------

    def _error(self, what: str) -> GGUFError:
        return GGUFError(f"{self._path}: not a usable GGUF file: {what}")

    def _need(self, num_bytes: int, what: str) -> None:
        if num_bytes > self._size - self._position:
            raise self._error(f"{what} need {num_bytes} bytes at byte {self._position}, the file has {self._size}")

    def _take(self, num_bytes: int) -> bytes:
        self._need(num_bytes, "the next field")
        taken = self._buffer[self._position : self._position + num_bytes]
        self._position += num_bytes
        return taken

    def _uint32(self) -> int:
        return int.from_bytes(self._take(4), "little")

    def _uint64(self) -> int:
        return int.from_bytes(self._take(8), "little")

    def _string(self, limit: int, what: str) -> str:
        length = self._uint64()
        if length > limit:
            raise self._error(f"{what} is {length} bytes long at byte {self._position}; the limit is {limit}")
        try:
            return self._take(length).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._error(f"{what} at byte {self._position} is not UTF-8") from error
