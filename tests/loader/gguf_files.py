"""Small GGUF files: whole ones by the gguf package, and ones written byte by byte that no writer would write."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

LLAMA = {
    "llama.block_count": 2,
    "llama.context_length": 64,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 64,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
}


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def key(name: str, value_type: int, value: bytes) -> bytes:
    return string(name) + struct.pack("<I", value_type) + value


def tensor(name: str, dims: Sequence[int], kind: int = 0, offset: int = 0) -> bytes:
    """dims: as in the file, columns first."""
    return string(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}QIQ", *dims, kind, offset)


def gguf_bytes(
    keys: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    num_keys: int | None = None,
    num_tensors: int | None = None,
    alignment: int = 32,
) -> bytes:
    head = magic + struct.pack(
        "<IQQ",
        version,
        len(tensors) if num_tensors is None else num_tensors,
        len(keys) if num_keys is None else num_keys,
    )
    body = head + b"".join(keys) + b"".join(tensors)
    return body + bytes(-len(body) % alignment) + data if data else body


def write_model(
    path: Path,
    arch: str,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray | tuple[np.ndarray, str]],
) -> Path:
    """tensors: float arrays, or (float array, format) to be quantised by the gguf package."""
    writer = gguf.GGUFWriter(path, arch)
    for name, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_array(name, value)
    for name, value in tensors.items():
        if isinstance(value, tuple):
            kind = gguf.GGMLQuantizationType[value[1]]
            writer.add_tensor(name, gguf.quants.quantize(value[0], kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def llama_tensors(kind: str | None = None, seed: int = 0) -> dict[str, Any]:
    """A whole, tied, two-layer Llama of LLAMA's sizes with a vocabulary of 48; kind: the matrices' format."""
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> Any:
        values = random.standard_normal((rows, columns), dtype=np.float32)
        return values if kind is None else (values, kind)

    tensors: dict[str, Any] = {"token_embd.weight": matrix(48, 32), "output_norm.weight": np.ones(32, np.float32)}
    for layer in range(2):
        block = f"blk.{layer}"
        tensors |= {
            f"{block}.attn_norm.weight": np.ones(32, np.float32),
            f"{block}.attn_q.weight": matrix(32, 32),
            f"{block}.attn_k.weight": matrix(16, 32),
            f"{block}.attn_v.weight": matrix(16, 32),
            f"{block}.attn_output.weight": matrix(32, 32),
            f"{block}.ffn_norm.weight": np.ones(32, np.float32),
            f"{block}.ffn_gate.weight": matrix(64, 32),
            f"{block}.ffn_up.weight": matrix(64, 32),
            f"{block}.ffn_down.weight": matrix(32, 64),
        }
    return tensors
