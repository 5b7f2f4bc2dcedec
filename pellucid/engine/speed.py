"""How fast a model will run here: predicted from a short measurement of one of its layers. Torch-free."""

from __future__ import annotations

import hashlib
import io
import os
import platform
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pellucid.engine.resident import ResidentWeight
from pellucid.kernels.cpu.native import require_native
from pellucid.loader.cache import cache_dir, write_atomically
from pellucid.loader.errors import ModelError
from pellucid.models.config import ModelConfig
from pellucid.runner.speed_probe import (
    CHUNK,
    DECODE_BATCHES,
    SHORT_CONTEXT,
    LayerShape,
    LayerSpeed,
    Part,
    measure_layer,
)

STEP_S = 0.8e-3  # scheduler, batch, output: what a step costs beside the model ...
REQUEST_S = 15e-6  # ... and each request in it
CACHE_FILE = "speed.json"
VERSION = 3  # of what is measured; another one is measured anew


@dataclass(frozen=True)
class SpeedPrediction:
    """layers: how many of the measured layer the model amounts to."""

    layer: LayerSpeed
    layers: float

    def decode_step_s(self, batch_size: int, context: int) -> float:
        """One step in which each of batch_size requests, `context` tokens long, gets a token."""
        layer_s = _interpolate(batch_size, self.layer.decode_s) + self._keys_s(batch_size, context)
        return self.layers * layer_s + _interpolate(batch_size, self.layer.head_s) + STEP_S + REQUEST_S * batch_size

    def decode_tokens_per_second(self, batch_size: int, context: int) -> float:
        return batch_size / self.decode_step_s(batch_size, context)

    def prefill_s(self, num_tokens: int) -> float:
        """A prompt of so many tokens, alone, in steps of CHUNK."""
        layer, total = self.layer, 0.0
        for start in range(0, num_tokens, CHUNK):
            chunk = min(CHUNK, num_tokens - start)
            pairs = chunk * start + chunk * (chunk - CHUNK) / 2  # beyond what a whole first chunk has per token
            layer_s = layer.prefill_s * chunk / CHUNK + layer.pair_s * pairs
            last_s = layer.last_prefill_s * chunk / CHUNK
            total += (self.layers - 1) * layer_s + last_s + layer.head_s[0] + STEP_S
        return total

    def prefill_tokens_per_second(self, num_tokens: int) -> float:
        return num_tokens / self.prefill_s(num_tokens)

    def _keys_s(self, batch_size: int, context: int) -> float:
        return self.layer.key_s * batch_size * max(context - SHORT_CONTEXT, 0)


def _interpolate(batch_size: int, seconds: Sequence[float]) -> float:
    """Between the measured batch sizes linearly; beyond the largest in proportion."""
    sizes = DECODE_BATCHES
    if batch_size >= sizes[-1]:
        return seconds[-1] * batch_size / sizes[-1]
    index = max(i for i, size in enumerate(sizes) if size <= batch_size)
    share = (batch_size - sizes[index]) / (sizes[index + 1] - sizes[index])
    return seconds[index] * (1 - share) + seconds[index + 1] * share


def predict_speed(
    config: ModelConfig,
    weights: Sequence[ResidentWeight],
    kv_dtype: str,
    num_threads: int | None = None,
    remember: bool = True,
    on_measure: Callable[[], None] = lambda: None,
) -> SpeedPrediction:
    """Measures a layer, unless this machine has measured one like it before.

    remember: False measures in any case, and keeps nothing.
    on_measure: called before a measurement, which takes some seconds.
    Raises RuntimeError without native kernels, ValueError for a model that is not made of such layers.
    """
    shape, layer_bytes, body_bytes = _layer_shape(config, weights, kv_dtype)
    layer = _known(shape, num_threads) if remember else None
    if layer is None:
        on_measure()
        layer = measure_layer(shape, num_threads)
        if remember:
            _keep(shape, num_threads, layer)
    return SpeedPrediction(layer, body_bytes / layer_bytes)


def _layer_shape(config: ModelConfig, weights: Sequence[ResidentWeight], kv_dtype: str) -> tuple[LayerShape, int, int]:
    """The layer in the middle and the head; its bytes, and those of all layers."""
    by_name = {weight.stored.name: weight for weight in weights}
    prefix = f"model.layers.{config.num_layers // 2}."
    head = by_name.get("lm_head.weight", by_name.get("model.embed_tokens.weight"))
    names = [
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        ("self_attn.o_proj",),
        ("mlp.gate_proj", "mlp.up_proj"),
        ("mlp.down_proj",),
    ]
    groups = [[by_name.get(f"{prefix}{name}.weight") for name in group] for group in names]
    found = [[weight for weight in group if weight is not None] for group in groups]
    if head is None or [len(group) for group in found] != [len(group) for group in names]:
        raise ValueError(f"{config.architecture}: its layers are not known to the speed measurement")
    qkv, output, gate_up, down = (tuple(_part(weight) for weight in group) for group in found)
    shape = LayerShape(
        qkv=qkv,
        output=output,
        gate_up=gate_up,
        down=down,
        head=(_part(head),),
        quantization=found[0][0].quantization,
        head_quantization=head.quantization,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        hidden_act=config.hidden_act,
        kv_dtype=kv_dtype,
    )
    layer_bytes = sum(weight.num_bytes for group in found for weight in group)
    suffixes = tuple(f".{name}.weight" for group in names for name in group)
    return shape, layer_bytes, sum(w.num_bytes for w in weights if w.stored.name.endswith(suffixes))


def _part(weight: ResidentWeight) -> Part:
    rows, columns = weight.stored.shape
    return ("bf16" if weight.source == "f16" else weight.source, rows, columns)


# kept on disk --------------------------------------------------------------------------------------------------------


def _known(shape: LayerShape, num_threads: int | None) -> LayerSpeed | None:
    return _read(cache_dir() / CACHE_FILE).get(_key(shape, num_threads))


def _keep(shape: LayerShape, num_threads: int | None, layer: LayerSpeed) -> None:
    path = cache_dir() / CACHE_FILE
    _write(path, _read(path) | {_key(shape, num_threads): layer})


def _key(shape: LayerShape, num_threads: int | None) -> str:
    """The layer, the kernels and the machine: another of any of these is measured anew."""
    native = require_native()
    library = Path(native._native.__file__).stat()
    machine = (platform.node(), platform.processor(), _cpu_name(), os.cpu_count(), native.available_isas()[-1])
    text = repr((VERSION, shape, num_threads, machine, library.st_size, library.st_mtime_ns))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith("model name")), "")


def _read(path: Path) -> dict[str, LayerSpeed]:
    """What was measured before; nothing where the file is missing or is not ours to understand."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, LayerSpeed])
    except (OSError, msgspec.DecodeError):
        return {}


def _write(path: Path, known: dict[str, LayerSpeed]) -> None:
    """A cache that can't be written is only slow."""
    content = msgspec.json.encode(known)
    with suppress(ModelError):
        write_atomically(path, [io.BytesIO(content)], len(content), "keeping what was measured")
