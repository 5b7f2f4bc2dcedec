"""`pellucid plan`: a model's memory, from its headers alone, and its speed, from a short measurement. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pellucid.core.kv_budget import (
    accelerator_kv_bytes,
    cpu_kv_bytes,
    format_bytes,
    kv_cache_bytes,
    plan_kv_pool,
    weight_bytes,
)
from pellucid.engine.resident import ResidentWeight, resident_weights
from pellucid.engine.speed import SpeedPrediction, predict_speed
from pellucid.kernels.cpu.native import load_native
from pellucid.loader.config_reader import read_model_config
from pellucid.loader.model_files import ModelFiles
from pellucid.loader.weights import list_weights, weight_sizes
from pellucid.models.config import ModelConfig
from pellucid.runner.kv_memory import CPU_STEP_TOKENS, available_memory_bytes, default_cpu_kv_bytes

KV_VALUE_BYTES = {"auto": 2, "bf16": 2, "f16": 2, "f32": 4, "int8": 1}  # auto: weights in 16 bits, as by default
KV_SCALE_BYTES = {"int8": 4}  # beside every key and every value vector
PROCESS_BYTES = 350 << 20  # resident memory of the engine's process before it has loaded a model
STORED = "as stored"


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


@dataclass(frozen=True)
class KVFormat:
    """How the cache keeps a key or value of one head: so many bytes a number, and so many for its scale."""

    value_bytes: int
    scale_bytes: int

    @classmethod
    def named(cls, kv_dtype: str) -> KVFormat:
        return cls(KV_VALUE_BYTES[kv_dtype], KV_SCALE_BYTES.get(kv_dtype, 0))

    def cache_bytes(self, config: ModelConfig, seq_len: int, batch_size: int = 1) -> int:
        layers, heads = config.num_layers, config.num_kv_heads
        values = kv_cache_bytes(layers, heads, config.head_dim, seq_len, batch_size, self.value_bytes)
        return values + kv_cache_bytes(layers, heads, 1, seq_len, batch_size, self.scale_bytes)


def memory_plan(
    files: ModelFiles,
    *,
    block_size: int = 16,
    kv_dtype: str = "auto",
    seq_len: int | None = None,
    batch_size: int = 1,
    memory: AcceleratorMemory | None = None,
    kv_memory_bytes: int | None = None,
    quantization: str | None = None,
    max_num_seqs: int = 256,
) -> Sequence[tuple[str, str]]:
    """(heading, arithmetic) lines. seq_len: None takes the model's longest. Raises ValueError where nothing fits."""
    config = read_model_config(files)
    sizes = weight_sizes(files, config)
    kv = KVFormat.named(kv_dtype)
    block = kv.cache_bytes(config, block_size)
    length = seq_len or config.max_position_embeddings
    cache = kv.cache_bytes(config, length, batch_size)
    formats = ", ".join(f"{name} {format_bytes(size)}" for name, size in sorted(sizes.by_format.items()))
    in_bf16 = weight_bytes(sizes.num_parameters, 2)
    resident = sum(weight.num_bytes for weight in weights_in_memory(files, config, quantization))
    activations = activation_bytes(config, CPU_STEP_TOKENS, max_num_seqs)
    factors, each = _factors(config, kv.scale_bytes), f"{kv.value_bytes} bytes"
    pool_bytes, source = _pool_bytes(memory, kv_memory_bytes, resident, block // block_size * length)
    pool = plan_kv_pool(
        block_size=block_size,
        block_bytes=block,
        memory_bytes=pool_bytes,
        model_max_len=config.max_position_embeddings,
        max_num_seqs=1 << 30,
    )
    in_all = resident + activations + pool.memory_bytes
    return [
        ("model", f"{files.name} ({config.architecture}, {sizes.num_parameters:,} parameters)"),
        ("weights as stored", f"{sizes.num_bytes:,} bytes = {format_bytes(sizes.num_bytes)} ({formats})"),
        ("weights in bf16", f"{sizes.num_parameters:,} x 2 bytes = {in_bf16:,} bytes = {format_bytes(in_bf16)}"),
        (
            "weights in memory",
            f"{resident:,} bytes = {format_bytes(resident)} ({_kernels()}, {quantization or _unquantized()})",
        ),
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
        (
            "activations",
            f"{format_bytes(activations)} for a step of {CPU_STEP_TOKENS} tokens, logits of {max_num_seqs} requests, "
            f"and rotary tables",
        ),
        (
            "in all",
            f"{format_bytes(resident)} + {format_bytes(pool.memory_bytes)} + {format_bytes(activations)} = "
            f"{format_bytes(in_all)}, and some {format_bytes(PROCESS_BYTES)} for Python and torch",
        ),
    ]


def weights_in_memory(files: ModelFiles, config: ModelConfig, quantization: str | None) -> list[ResidentWeight]:
    """As `pellucid serve` would keep them on this machine's CPU by default."""
    native = load_native()[0] is not None
    stored = list_weights(files, config)
    return resident_weights(stored, config, native=native, dtype="bf16", quantization=quantization)


def activation_bytes(config: ModelConfig, num_tokens: int, num_logits: int) -> int:
    """What a step of so many tokens, with so many rows of logits, has in memory beside weights and KV cache (float32):
    the residual stream and what is added to it, queries, keys and values, what attention gives; logits; and the rotary
    tables of all positions. What lies between these is a tile a thread, in its cache."""
    heads = config.num_heads * config.head_dim
    per_token = 2 * config.hidden_size + 2 * heads + 2 * config.num_kv_heads * config.head_dim
    tables = 2 if config.rope_theta_local is not None else 1
    rotary = tables * config.max_position_embeddings * config.head_dim
    return 4 * (num_tokens * per_token + num_logits * config.vocab_size + rotary)


# the table -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlanRow:
    """One format at one context length. num_requests: how many fit into the pool. Speeds in tokens a second, of decode
    for BATCHES, or None where nothing was measured."""

    format: str
    weight_bytes: int
    context: int
    request_bytes: int
    num_requests: int
    decode: tuple[float, ...] | None
    prefill: float | None


BATCHES = (1, 8)


def plan_table(
    files: ModelFiles,
    *,
    contexts: Sequence[int],
    quantizations: Sequence[str | None] = (None, "int8", "int4"),
    kv_dtype: str = "auto",
    kv_memory_bytes: int | None = None,
    measure: bool = True,
    num_threads: int | None = None,
    on_measure: Callable[[str], None] = lambda _: None,
) -> list[PlanRow]:
    """A row for each format and context.

    measure: predict speed, where there are native kernels to measure.
    on_measure: told the format before it is measured, which takes some seconds; not where it was before.
    """
    config = read_model_config(files)
    kv = KVFormat.named(kv_dtype)
    if load_native()[0] is None:
        quantizations, measure = [None], False  # the torch kernels keep weights in 16 bits, whatever the file has
    rows = []
    for quantization in quantizations:
        weights = weights_in_memory(files, config, quantization)
        num_bytes = sum(weight.num_bytes for weight in weights)
        name = quantization or _unquantized()
        speed: SpeedPrediction | None = None
        if measure:
            kv_type = "bf16" if kv_dtype in ("auto", "f16") else kv_dtype
            speed = predict_speed(config, weights, kv_type, num_threads, on_measure=partial(on_measure, name))
        for context in contexts:
            request = kv.cache_bytes(config, context)
            pool, _ = _pool_bytes(None, kv_memory_bytes, num_bytes, request)
            rows.append(
                PlanRow(
                    format=name,
                    weight_bytes=num_bytes,
                    context=context,
                    request_bytes=request,
                    num_requests=pool // request,
                    decode=None
                    if speed is None
                    else tuple(speed.decode_tokens_per_second(size, context) for size in BATCHES),
                    prefill=None if speed is None else speed.prefill_tokens_per_second(context),
                )
            )
    return rows


def why_no_speeds(measure: bool = True, memory: AcceleratorMemory | None = None) -> str:
    """Why `plan_table` predicts none, in a few words; "" where it does."""
    if memory is not None:
        return "an accelerator's are not"
    native, reason = load_native()
    if native is None:
        return f"only the native kernels' are, and {reason}"
    return "" if measure else "--no-measure"


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


def _unquantized() -> str:
    """What weights are in memory where nothing else is asked for: the torch kernels unpack what a file has packed."""
    return "bf16" if load_native()[0] is None else STORED


def _kernels() -> str:
    native, _ = load_native()
    return "torch kernels" if native is None else "native kernels"
