"""What a model occupies once it is loaded: its weights as the kernels keep them. Torch-free; from the headers alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pellucid.kernels.cpu.native import NATIVE_BLOCK_FORMATS
from pellucid.loader.weights import StoredWeight
from pellucid.models.config import HEAD_QUANTIZATION, ModelConfig

_PANEL_ROWS = 32  # rows of a matrix are kept in panels of so many
_GROUP = 32  # elements that share a scale; 8 groups a super-block
# bytes of a group of 32 rows, of a super-block of 32 rows
_GROUP_BYTES = {
    "q4_0": (576, 0), "q4_1": (640, 0), "q8_0": (1088, 0), "q4_k": (576, 128), "q6_k": (832, 64), "int4": (576, 128),
}  # fmt: skip
_ROTATION_UNIT = 64
_PAGE = 4096
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class ResidentWeight:
    """source: what pack_matrix packs it from. quantization: "" for none. format: as it lies in memory."""

    stored: StoredWeight
    source: str
    quantization: str
    format: str
    num_bytes: int


def resident_weights(
    stored: Sequence[StoredWeight], config: ModelConfig, *, native: bool, dtype: str, quantization: str | None
) -> list[ResidentWeight]:
    """dtype: "bf16" or "f32" (and "f16" without native kernels). native: the compiled kernels or the torch ones."""
    return [_resident(weight, config, native, dtype, quantization) for weight in stored]


def _resident(
    weight: StoredWeight, config: ModelConfig, native: bool, dtype: str, quantization: str | None
) -> ResidentWeight:
    if len(weight.shape) != 2:  # norms and biases are kept in float32
        return ResidentWeight(weight, "f32", "", "f32", 4 * weight.num_elements)
    if not native:
        num_bytes = weight.num_elements * (4 if dtype == "f32" else 2)
        return ResidentWeight(weight, dtype, "", dtype, num_bytes)
    rows, columns = weight.shape
    source, wanted = weight.format.lower(), _quantization_of(weight.name, config, quantization)
    if wanted:
        kept = wanted
        source = source if source in ("f32", "f16", "bf16") else "f32"
    elif source in NATIVE_BLOCK_FORMATS and dtype == "bf16":
        kept = source
    else:
        kept = source = dtype
    return ResidentWeight(weight, source, wanted, kept, packed_bytes(kept, rows, columns))


def _quantization_of(name: str, config: ModelConfig, quantization: str | None) -> str:
    if name == _HEAD or (name == _EMBEDDING and config.tie_word_embeddings):
        return HEAD_QUANTIZATION.get(quantization, quantization) or ""
    return "" if name == _EMBEDDING else quantization or ""


def packed_bytes(format: str, rows: int, columns: int) -> int:
    """Bytes of a matrix [rows, columns] in one of the native formats, as `PackedMatrix.num_bytes` says."""
    panels = -(-rows // _PANEL_ROWS)
    if format == "f32":
        num_bytes = panels * _PANEL_ROWS * columns * 4
    elif format == "bf16":
        num_bytes = panels * _PANEL_ROWS * (columns + columns % 2) * 2
    elif format == "int8":  # rows padded to the unit of their rotation, and a scale each
        num_bytes = panels * _PANEL_ROWS * (-(-columns // _ROTATION_UNIT) * _ROTATION_UNIT + 4)
    else:
        group_bytes, super_bytes = _GROUP_BYTES[format]
        groups = -(-columns // _GROUP)
        num_bytes = panels * (groups * group_bytes + -(-groups // 8) * super_bytes)
    return -(-num_bytes // _PAGE) * _PAGE
