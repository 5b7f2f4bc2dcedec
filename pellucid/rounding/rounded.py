"""The weights of a model with its linear layers rounded to 4 bits, made once and kept on disk."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch

from pellucid.kernels.forward_batch import ForwardBatch
from pellucid.kernels.int4 import INT4, columns_of
from pellucid.kernels.weights import QuantizedTensor, WeightSource
from pellucid.loader.cache import cache_dir, write_atomically
from pellucid.loader.errors import ModelError
from pellucid.loader.model_files import ModelFiles, shard_paths
from pellucid.loader.safetensors_reader import SafetensorsFile
from pellucid.loader.weights import StoredWeight, iter_weights, list_weights
from pellucid.models.config import ModelConfig
from pellucid.models.load import load_model
from pellucid.rounding.kernels import FOUR_BIT_TYPES, VOCABULARY, RoundingKernels
from pellucid.rounding.text import TEXT

logger = logging.getLogger(__name__)

VERSION = 1  # of the way to round: a kept result of another one is not used
WINDOW = 512  # tokens that are read together
BLOCK = 16
MOST_WINDOWS = 8
WORTH_KEEPING_S = 5.0

Progress = Callable[[float], None]  # the fraction that is done, 0..1
Encode = Callable[[str], list[int]]


def iter_rounded_weights(
    files: ModelFiles, config: ModelConfig, encode: Encode, on_progress: Progress, available_bytes: int | None = None
) -> Iterator[tuple[str, WeightSource]]:
    """As `iter_weights`, the matrices of linear layers as INT4. encode: token ids of a text, called where the result of
    an earlier time is not there. Raises as `load_model` does, and ValueError where rounding takes more memory than
    available_bytes.
    """
    if all(weight.format in FOUR_BIT_TYPES for weight in list_weights(files, config) if _is_linear(weight)):
        yield from iter_weights(files, config)
        return
    kept = _place(files)
    rounded = _read(kept)
    if rounded is None:
        begin = time.monotonic()
        rounded = round_model(files, config, encode(TEXT), on_progress, available_bytes)
        if time.monotonic() - begin > WORTH_KEEPING_S:
            _write(kept, rounded)
    for name, source in iter_weights(files, config):
        yield name, rounded.get(name, source)


def _is_linear(weight: StoredWeight) -> bool:
    return len(weight.shape) == 2 and weight.name not in VOCABULARY


@torch.inference_mode()
def round_model(
    files: ModelFiles,
    config: ModelConfig,
    token_ids: Sequence[int],
    on_progress: Progress,
    available_bytes: int | None = None,
) -> dict[str, QuantizedTensor]:
    """By name in the checkpoint, every matrix that int4 is for and that is not of 4 bits already (in a GGUF file).
    token_ids: a text, of which whole windows are read.
    """
    rounded: dict[str, QuantizedTensor] = {}

    def on_rounded(name: str, matrix: QuantizedTensor) -> None:
        rounded[name] = matrix
        on_progress(len(rounded) / kernels.num_parts)

    kernels = RoundingKernels(on_rounded)
    window = min(WINDOW, config.max_position_embeddings)
    num_windows = min(len(token_ids) // window, MOST_WINDOWS)
    if not num_windows:
        raise ValueError(f"a text of {len(token_ids)} tokens is too short to round by; it takes {window}")
    model = load_model(
        config, kernels, kernels.named(iter_weights(files, config)), quantization="int4", max_model_len=window
    )
    if not kernels.num_parts:
        return rounded
    needed_bytes = kernels.memory_bytes(2 * num_windows * window)
    if available_bytes is not None and needed_bytes > available_bytes:
        raise ValueError(
            f"rounding the weights to 4 bits by their inputs takes some {needed_bytes / 2**30:.1f} GiB of memory, "
            f"{available_bytes / 2**30:.1f} GiB is free (--int4-rounding nearest takes next to none)"
        )
    batch = _twice(token_ids[: num_windows * window], window)
    model.allocate_kv_cache(batch.block_table.numel(), BLOCK)
    model.forward(batch)
    return rounded


def _twice(token_ids: Sequence[int], window: int) -> ForwardBatch:
    """Requests of `window` tokens each, and then all of them again."""
    ids = torch.tensor([*token_ids, *token_ids], dtype=torch.int32)
    num_requests = len(ids) // window
    positions = torch.arange(window, dtype=torch.int32).repeat(num_requests)
    blocks = -(-window // BLOCK)
    table = torch.arange(num_requests * blocks, dtype=torch.int32).view(num_requests, blocks)
    starts = torch.arange(num_requests + 1, dtype=torch.int32) * window
    request = torch.arange(num_requests, dtype=torch.int32).repeat_interleave(window)
    slots = request * blocks * BLOCK + positions
    lengths = torch.full((num_requests,), window, dtype=torch.int32)
    return ForwardBatch(ids, positions, starts, lengths, slots, table, starts[1:] - 1, BLOCK)


# on disk -------------------------------------------------------------------------------------------------------------


def _place(files: ModelFiles) -> Path:
    """NAME-MODEL-RESULT.safetensors: which model it is, and what the result depends on. A file that was changed has
    another time or size.
    """
    if files.gguf is not None:
        paths = [files.gguf]
    else:
        others = [files.directory / name for name in ("config.json", "tokenizer.json")]
        paths = [*shard_paths(files.directory), *(path for path in others if path.is_file())]
    facts = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    # A model that was fetched lies elsewhere in each revision; others are where they are, by whatever name.
    local = Path(files.ref).expanduser()
    model = str(local.resolve()) if local.exists() else files.ref
    name = f"{files.name}-{_digest(model)}-{_digest(VERSION, torch.__version__, TEXT, facts)}"
    return cache_dir() / "int4" / f"{name}.safetensors"


def _digest(*values: object) -> str:
    return hashlib.blake2b(json.dumps(values).encode(), digest_size=12).hexdigest()


def _read(path: Path) -> Mapping[str, QuantizedTensor] | None:
    if not path.is_file():
        return None
    try:
        file = SafetensorsFile(path)
    except ModelError as error:
        logger.warning("%s; it is made again", error)
        return None
    matrices = {}
    for name in file.tensors:
        data = file.tensor(name).numpy()
        matrices[name] = QuantizedTensor(data, INT4, (data.shape[0], columns_of(data.shape[1])))
    return matrices


def _write(path: Path, rounded: Mapping[str, QuantizedTensor]) -> None:
    """One for each model: older ones go. A disk that does not take it costs the next start its time, nothing else."""
    model = path.stem.rsplit("-", 2)[1]
    try:
        for older in path.parent.glob(f"*-{model}-*.safetensors"):
            older.unlink(missing_ok=True)
        pieces = _as_safetensors(rounded)
        total = sum(len(piece) for piece in pieces)
        write_atomically(path, map(io.BytesIO, pieces), total, "writing the rounded weights")
    except (OSError, ModelError) as error:
        logger.warning("the rounded weights can't be kept for the next start: %s", error)


def _as_safetensors(rounded: Mapping[str, QuantizedTensor]) -> list[memoryview | bytes]:
    """The format's header and the matrices, where they lie: to join them would take their memory again."""
    header, end = {}, 0
    for name, matrix in rounded.items():
        begin, end = end, end + matrix.data.nbytes
        header[name] = {"dtype": "U8", "shape": matrix.data.shape, "data_offsets": (begin, end)}
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)  # what follows begins at a multiple of 8
    return [len(encoded).to_bytes(8, "little") + encoded, *(m.data.reshape(-1).data for m in rounded.values())]
