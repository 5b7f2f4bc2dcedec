"""The tensors of a GGUF file under Hugging Face's names: plain ones as torch tensors, packed ones as they lie."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from pellucid.kernels.weights import QuantizedTensor, WeightSource
from pellucid.loader.errors import GGUFError, UnsupportedModelError
from pellucid.loader.ggml_types import BLOCK_TYPES, PLAIN_TYPES
from pellucid.loader.gguf_config import ROPE_FACTORS_TENSOR
from pellucid.loader.gguf_names import hf_name
from pellucid.loader.gguf_reader import GGUFFile, TensorInfo
from pellucid.models.config import ModelConfig

_NUMPY = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<i2")}


def iter_gguf_weights(file: GGUFFile, config: ModelConfig) -> Iterator[tuple[str, WeightSource]]:
    """(HF name, weight) in the file's order; matrices are [out, in], vectors [size].

    F32, F16 and BF16 become torch tensors, block formats QuantizedTensors; both are views of the mapped file but for
    Llama's query and key rows, which llama.cpp stores in another order and which are put back here.
    Norm weights are as stored: Gemma's hold 1 + w (config.norm_weight_plus_one is False).
    Raises GGUFError naming the tensors that this architecture does not have, UnsupportedModelError for other formats.
    """
    architecture = file.metadata["general.architecture"]
    named = {name: hf_name(architecture, name) for name in file.tensors if name != ROPE_FACTORS_TENSOR}
    unknown = [name for name, ours in named.items() if ours is None]
    if unknown:
        raise GGUFError(f"{file.path}: tensors unknown to {config.architecture}: {_listed(unknown)}")
    unsupported = [name for name in named if file.tensors[name].ggml_type.name not in PLAIN_TYPES + BLOCK_TYPES]
    if unsupported:
        kinds = sorted({file.tensors[name].ggml_type.name for name in unsupported})
        raise UnsupportedModelError(
            f"{file.path}: holds tensors in the formats {', '.join(kinds)} ({_listed(unsupported)}); supported are "
            f"{', '.join(PLAIN_TYPES + BLOCK_TYPES)}"
        )
    for gguf_name, name in named.items():
        info = file.tensors[gguf_name]
        rows = file.raw(info)
        if architecture == "llama" and name is not None:
            rows = _in_hf_order(file, info, rows, name, config)
        yield str(name), _weight(info, rows)


def _weight(info: TensorInfo, rows: np.ndarray) -> WeightSource:
    kind = info.ggml_type.name
    if kind in _NUMPY:
        values = torch.from_numpy(rows.reshape(-1).view(_NUMPY[kind])).view(info.shape)
        return values.view(torch.bfloat16) if kind == "BF16" else values
    if len(info.shape) != 2:
        raise GGUFError(
            f"tensor {info.name!r} in the format {kind} has the shape {list(info.shape)}; only matrices can"
        )
    return QuantizedTensor(rows, kind, (info.shape[0], info.shape[1]))


def _in_hf_order(file: GGUFFile, info: TensorInfo, rows: np.ndarray, name: str, config: ModelConfig) -> np.ndarray:
    """llama.cpp pairs neighbouring rows of a head for rotation, HF a row with the one half a head further on.

    rows: uint8 [rows, bytes_per_row] (a bias: [1, bytes]). A row is moved as a whole, packed or not.
    """
    module = name.rpartition(".")[0]
    if not module.endswith(("q_proj", "k_proj")):
        return rows
    num_heads = config.num_heads if module.endswith("q_proj") else config.num_kv_heads
    num_rows = info.shape[0]
    if num_rows != num_heads * config.head_dim:
        raise GGUFError(
            f"{file.path}: {info.name} has {num_rows} rows, expected {num_heads} heads of {config.head_dim}"
        )
    by_pair = rows.reshape(num_heads, config.head_dim // 2, 2, -1)
    return np.ascontiguousarray(by_pair.swapaxes(1, 2)).reshape(rows.shape)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return ", ".join(names[:20]) + more
