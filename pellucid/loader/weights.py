"""`iter_weights`: the weights of a resolved model under one set of names, and their sizes without loading any."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pellucid.loader.gguf_config import ROPE_FACTORS_TENSOR
from pellucid.loader.gguf_names import hf_name
from pellucid.loader.gguf_reader import GGUFFile
from pellucid.loader.model_files import ModelFiles
from pellucid.loader.safetensors_reader import Checkpoint
from pellucid.models.config import ModelConfig

if TYPE_CHECKING:
    from pellucid.kernels.weights import WeightSource

# where a text model lies within a multimodal checkpoint: transformers 4, transformers 5
_TEXT_PREFIXES = ("language_model.", "model.language_model.")
_OTHER_MODALITIES = (
    "vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.",
)  # fmt: skip


def iter_weights(files: ModelFiles, config: ModelConfig) -> Iterator[tuple[str, WeightSource]]:
    """(name, weight), lazily, views of the mapped files; names as in HF's ...ForCausalLM ("model.layers.0...").

    Left out is what the decoder does not compute with: a stored copy of a tied head, other modalities, and rotary
    frequencies that old checkpoints carry. Everything else is yielded, so that the model can refuse what it lacks.
    Raises ModelError before the first weight where the files are not whole.
    """
    if files.gguf is not None:
        from pellucid.loader.gguf_weights import iter_gguf_weights

        yield from iter_gguf_weights(GGUFFile(files.gguf), config)
        return
    for stored_name, tensor in Checkpoint(files.directory):
        name = decoder_name(stored_name, config)
        if name is not None:
            yield name, tensor


def decoder_name(stored_name: str, config: ModelConfig) -> str | None:
    """The name of a checkpoint's tensor in the decoder alone; None for what the decoder does not compute with."""
    if config.extra.get("hf_architecture") == "Gemma3ForConditionalGeneration":
        if stored_name.startswith(_OTHER_MODALITIES):
            return None
        stored_name = _without_text_prefix(stored_name)
    if stored_name.endswith(".rotary_emb.inv_freq"):
        return None
    if stored_name == "lm_head.weight" and config.tie_word_embeddings:
        return None
    return stored_name


def _without_text_prefix(name: str) -> str:
    old, new = _TEXT_PREFIXES
    if name.startswith(new):
        return "model." + name.removeprefix(new)
    return name.removeprefix(old)


@dataclass(frozen=True)
class WeightSizes:
    """num_bytes: as stored. num_parameters: elements, a tied head counted once. by_format: bytes per storage format."""

    num_bytes: int
    num_parameters: int
    by_format: dict[str, int]


@dataclass(frozen=True)
class StoredWeight:
    """name: as `iter_weights` has it. format: as the file says ("Q4_1", "BF16"). shape: [rows, columns] of a matrix."""

    name: str
    format: str
    shape: tuple[int, ...]
    num_bytes: int
    num_elements: int


def list_weights(files: ModelFiles, config: ModelConfig) -> list[StoredWeight]:
    """What `iter_weights` would yield, from the headers alone and without torch."""
    if files.gguf is not None:
        gguf = GGUFFile(files.gguf)
        architecture = gguf.metadata["general.architecture"]
        return [
            StoredWeight(
                hf_name(architecture, info.name) or info.name,
                info.ggml_type.name,
                info.shape,
                info.num_bytes,
                info.num_elements,
            )
            for info in gguf.tensors.values()
            if info.name != ROPE_FACTORS_TENSOR
        ]
    return [
        StoredWeight(name, info.dtype, info.shape, info.num_bytes, info.num_elements)
        for stored_name, info in Checkpoint(files.directory).tensors.items()
        if (name := decoder_name(stored_name, config)) is not None
    ]


def weight_sizes(files: ModelFiles, config: ModelConfig) -> WeightSizes:
    """From the headers alone, without torch; counts exactly what `iter_weights` yields."""
    listed = list_weights(files, config)
    by_format: dict[str, int] = {}
    for weight in listed:
        by_format[weight.format] = by_format.get(weight.format, 0) + weight.num_bytes
    return WeightSizes(
        sum(weight.num_bytes for weight in listed), sum(weight.num_elements for weight in listed), by_format
    )


def weight_bytes(files: ModelFiles, config: ModelConfig) -> int:
    """Bytes of the weights as stored."""
    return weight_sizes(files, config).num_bytes
