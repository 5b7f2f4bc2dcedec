"""`pellucid plan`: a model's memory arithmetic from its headers alone. Torch-free; nothing is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pellucid.core.kv_budget import (
    accelerator_kv_bytes,
    cpu_kv_bytes,
    format_bytes,
    kv_block_bytes,
    kv_cache_bytes,
    plan_kv_pool,
    weight_bytes,
)
from pellucid.loader.config_reader import read_model_config
from pellucid.loader.model_files import ModelFiles
from pellucid.loader.weights import weight_sizes
from pellucid.models.config import ModelConfig
from pellucid.runner.kv_memory import available_memory_bytes, default_cpu_kv_bytes

KV_VALUE_BYTES = {"auto": 2, "bf16": 2, "f16": 2, "f32": 4, "int8": 1}  # auto: weights in 16 bits, as by default
KV_SCALE_BYTES = {"int8": 4}  # beside every key and every value vector


@dataclass(frozen=True)
class AcceleratorMemory:
    """What a warm-up on an accelerator measured, in bytes; see `accelerator_kv_bytes`."""

    total: int
    free: int
    peak: int
    current: int
    utilization: float = 0.9

    def kv_bytes(self) -> int:
        return accelerator_kv_bytes(self.total, self.free, self.peak, self.current, self.utilization)

    def formula(self) -> str:
        used = self.total - self.free
        parts = [format_bytes(n) for n in (self.total, used, self.peak, self.current, self.kv_bytes())]
        return "{} x {} - {} used - {} peak + {} current = {}".format(parts[0], self.utilization, *parts[1:])


def memory_plan(
    files: ModelFiles,
    *,
    block_size: int = 16,
    kv_dtype: str = "auto",
    seq_len: int | None = None,
    batch_size: int = 1,
    memory: AcceleratorMemory | None = None,
    kv_memory_bytes: int | None = None,
) -> Sequence[tuple[str, str]]:
    """(heading, arithmetic) lines. seq_len: None takes the model's longest. Raises ValueError where nothing fits."""
    config = read_model_config(files)
    sizes = weight_sizes(files, config)
    value_bytes = KV_VALUE_BYTES[kv_dtype]
    scale_bytes = KV_SCALE_BYTES.get(kv_dtype, 0)
    block = kv_block_bytes(config.num_layers, config.num_kv_heads, config.head_dim, block_size, value_bytes)
    block += kv_block_bytes(config.num_layers, config.num_kv_heads, 1, block_size, scale_bytes)
    length = seq_len or config.max_position_embeddings
    cache = kv_cache_bytes(config.num_layers, config.num_kv_heads, config.head_dim, length, batch_size, value_bytes)
    cache += kv_cache_bytes(config.num_layers, config.num_kv_heads, 1, length, batch_size, scale_bytes)
    formats = ", ".join(f"{name} {format_bytes(size)}" for name, size in sorted(sizes.by_format.items()))
    in_bf16 = weight_bytes(sizes.num_parameters, 2)
    factors, each = _factors(config, scale_bytes), f"{value_bytes} bytes"
    pool_bytes, source = _pool_bytes(memory, kv_memory_bytes, in_bf16, block // block_size * length)
    pool = plan_kv_pool(
        block_size=block_size,
        block_bytes=block,
        memory_bytes=pool_bytes,
        model_max_len=config.max_position_embeddings,
        max_num_seqs=1 << 30,
    )
    return [
        ("model", f"{files.name} ({config.architecture}, {sizes.num_parameters:,} parameters)"),
        ("weights as stored", f"{sizes.num_bytes:,} bytes = {format_bytes(sizes.num_bytes)} ({formats})"),
        ("weights in bf16", f"{sizes.num_parameters:,} x 2 bytes = {in_bf16:,} bytes = {format_bytes(in_bf16)}"),
        ("a KV block", f"{factors} x {block_size} tokens x {each} = {block:,} bytes"),
        (
            f"KV of {batch_size} x {length} tokens",
            f"{factors} x {length} x {batch_size} x {each} = {cache:,} bytes = {format_bytes(cache)}",
        ),
        ("KV memory", source),
        (
            "KV pool",
            f"{pool_bytes:,} // {block:,} = {pool.num_blocks:,} blocks = {pool.num_tokens:,} tokens: "
            f"{pool.num_tokens / length:.1f} requests of {length} tokens at once",
        ),
    ]


def _factors(config: ModelConfig, scale_bytes: int) -> str:
    width = f"({config.head_dim} + {scale_bytes} for the scale)" if scale_bytes else str(config.head_dim)
    return f"2 x {config.num_layers} layers x {config.num_kv_heads} KV heads x {width}"


def _pool_bytes(
    memory: AcceleratorMemory | None, given: int | None, weights: int, longest_request: int
) -> tuple[int, str]:
    if given is not None:
        return given, f"{given:,} bytes = {format_bytes(given)}, as given"
    if memory is not None:
        return memory.kv_bytes(), memory.formula()
    available = available_memory_bytes() - weights
    chosen = default_cpu_kv_bytes(cpu_kv_bytes(available), longest_request)
    return chosen, f"{format_bytes(chosen)} of the {format_bytes(available)} of RAM that the weights leave available"
