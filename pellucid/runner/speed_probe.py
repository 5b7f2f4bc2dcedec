"""How fast this machine computes one layer of a given shape: a short measurement on made-up weights. Torch-free.

What `pellucid plan` predicts speed from. The layer is recorded on a tape as the engine records a model, so that
kernels, fusion and threads are the real ones; weights of decode steps are made cold before each run, since a whole
model's do not stay in a cache from one step to the next. What a layer costs is the difference between a tape of several
and a tape of one: a tape's last layer computes less than the others, since only some rows go on to the LM head.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from pellucid.kernels.cpu.native import require_native

BLOCK_SIZE = 16
DECODE_BATCHES = (1, 8, 32)
SHORT_CONTEXT, LONG_CONTEXT = 64, 1024
LONG_BATCH = 8
CHUNK = 512
MAX_BODY_ELEMENTS = 64 << 20  # of the layers that are measured, in all ...
MAX_LAYERS = 4  # beside the last
CACHED_ELEMENTS = 96 << 20  # a layer of no more may still be in a cache when it is used again
MAX_HEAD_ELEMENTS = 8 << 20  # ... and of the rows of the LM head
_COLD_BYTES = 1 << 27  # read between two decode steps, so that the weights have left the caches
_REPEATS = 7
_GGUF_BLOCKS = {  # elements and bytes of a block
    "q4_0": (32, 18), "q4_1": (32, 20), "q8_0": (32, 34), "q4_k": (256, 144), "q6_k": (256, 210),
}  # fmt: skip

Part = tuple[str, int, int]  # format as pack_matrix takes it, rows, columns


@dataclass(frozen=True)
class LayerShape:
    """One layer and the LM head. qkv, gate_up: their parts in order. quantization: "" for none."""

    qkv: tuple[Part, ...]
    output: tuple[Part, ...]
    gate_up: tuple[Part, ...]
    down: tuple[Part, ...]
    head: tuple[Part, ...]
    quantization: str
    head_quantization: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_act: str
    kv_dtype: str

    @property
    def body(self) -> tuple[tuple[Part, ...], ...]:
        return (self.qkv, self.output, self.gate_up, self.down)


class LayerSpeed(msgspec.Struct, frozen=True):
    """Seconds of one layer. decode_s: per batch size of DECODE_BATCHES, at SHORT_CONTEXT tokens of context each.

    key_s: what each further token of context of each request adds. prefill_s: CHUNK tokens of an empty context.
    last_prefill_s: the same of the last layer, from which only the last row goes on.
    pair_s: what each (query, key) pair adds beyond that. head_s: the LM head for the rows of DECODE_BATCHES.
    bandwidth: bytes a second that this machine reads. peak_operations: of the dot products of the body's format.
    """

    decode_s: list[float]
    key_s: float
    prefill_s: float
    last_prefill_s: float
    pair_s: float
    head_s: list[float]
    bandwidth: float
    peak_operations: float


def measure_layer(shape: LayerShape, num_threads: int | None = None) -> LayerSpeed:
    """Takes five to fifteen seconds, more for layers of hundreds of megabytes.

    Raises RuntimeError where there are no native kernels.
    """
    return _Probe(shape, num_threads).measure()


class _Probe:
    def __init__(self, shape: LayerShape, num_threads: int | None) -> None:
        self.native: Any = require_native()
        self.executor = self.native.Executor("", num_threads or 0)
        self.shape = shape
        elements = sum(rows * columns for parts in shape.body for _, rows, columns in parts)
        self.num_layers = max(1, min(MAX_LAYERS, MAX_BODY_ELEMENTS // elements - 1))
        # Weights so large that no cache keeps any until the next layer: one set serves for all.
        self._shared: dict[tuple[Part, ...], Any] | None = {} if elements > CACHED_ELEMENTS else None
        [(head_format, vocab, hidden), *_] = shape.head
        self._vocab = vocab
        self._measured_vocab = min(vocab, MAX_HEAD_ELEMENTS // hidden)
        self._small_vocab = self._measured_vocab // 4
        self._rng = np.random.default_rng(0)
        self._keep: list[Any] = []
        head, small_head = (
            self._matrix(((head_format, rows, hidden),), shape.head_quantization)
            for rows in (self._measured_vocab, self._small_vocab)
        )
        self._all_layers = self._tape(1 + self.num_layers, small_head)
        self._last_layer = self._tape(1, small_head)
        self._no_layer = self._tape(0, small_head)
        self._with_head = self._tape(0, head)

    def measure(self) -> LayerSpeed:
        shape = self.shape
        short = [_decode_batch(size, SHORT_CONTEXT) for size in DECODE_BATCHES]
        base = [self._time(self._no_layer, batch, cold=True) for batch in short]
        head = [self._time(self._with_head, batch, cold=True) for batch in short]
        decode = [self._layer_and_last_s(batch, cold=True)[0] for batch in short]
        long, _ = self._layer_and_last_s(_decode_batch(LONG_BATCH, LONG_CONTEXT), cold=True)
        decode_s = decode[DECODE_BATCHES.index(LONG_BATCH)]
        first, last = self._layer_and_last_s(_chunk(0))
        second, _ = self._layer_and_last_s(_chunk(CHUNK))
        form = "int8" if shape.quantization or shape.qkv[0][0] not in ("bf16", "f32") else shape.qkv[0][0]
        pool, isa = self.executor.pool, self.executor.isa
        return LayerSpeed(
            decode_s=decode,
            key_s=max(long - decode_s, 0.0) / (LONG_BATCH * (LONG_CONTEXT - SHORT_CONTEXT)),
            prefill_s=first,
            last_prefill_s=max(last - base[0], 0.0),
            pair_s=max(second - first, 0.0) / CHUNK**2,
            head_s=[self._whole_head_s(base_s, head_s) for base_s, head_s in zip(base, head, strict=True)],
            bandwidth=max(self.native.read_bandwidth(1 << 28, isa, pool) for _ in range(2)),
            peak_operations=max(self.native.peak_operations(form, isa, pool) for _ in range(2)),
        )

    def _whole_head_s(self, small_s: float, measured_s: float) -> float:
        per_row = max(measured_s - small_s, 0.0) / (self._measured_vocab - self._small_vocab)
        return small_s + per_row * (self._vocab - self._small_vocab)

    def _layer_and_last_s(self, batch: Sequence[np.ndarray], cold: bool = False) -> tuple[float, float]:
        """Seconds of a layer, and of the tape of the last one alone. A layer that is lost in the noise counts as its
        share of all that was measured: it takes some time.
        """
        several, one = (self._time(tape, batch, cold) for tape in (self._all_layers, self._last_layer))
        layer = (several - one) / self.num_layers if several > one else several / (self.num_layers + 1)
        return layer, one

    def _time(self, tape: Any, batch: Sequence[np.ndarray], cold: bool = False) -> float:
        step = self.native.StepBatch(*batch, BLOCK_SIZE)
        tape.run(step)
        times = []
        for _ in range(_REPEATS if cold else 3):
            if cold:
                self.native.read_bandwidth(_COLD_BYTES, self.executor.isa, self.executor.pool)
            begin = time.perf_counter()
            tape.run(step)
            times.append(time.perf_counter() - begin)
        return statistics.median(times)  # what a machine shared with others usually gives, not its best moment

    def _tape(self, num_layers: int, head: Any) -> Any:
        """Embedding, layers, final norm and head, as `Decoder` computes them."""
        shape, builder = self.shape, self.native.TapeBuilder(self.executor)
        hidden = shape.down[0][1]
        norm = self._kept(np.ones(hidden, np.float32))
        cos_sin = self._kept(np.ones((2 * CHUNK + LONG_CONTEXT, shape.head_dim), np.float32))
        num_blocks = LONG_BATCH * LONG_CONTEXT // BLOCK_SIZE
        x, residual = builder.embedding(head, 1.0), None
        for _ in range(num_layers):
            residual = x if residual is None else builder.add(x, residual)
            cache = self._kept(
                self.native.KVCache(num_blocks, BLOCK_SIZE, shape.num_kv_heads, shape.head_dim, shape.kv_dtype)
            )
            qkv = builder.linear(builder.rms_norm(residual, norm, 1e-6), self._body(shape.qkv), 0.0)
            q = builder.rope_and_cache(qkv, cache, cos_sin, shape.num_heads, None, None, 1e-6)
            attended = builder.paged_attention(q, cache, shape.num_heads, shape.head_dim**-0.5, 0, 0.0)
            residual = builder.add(builder.linear(attended, self._body(shape.output), 0.0), residual)
            gate_up = builder.linear(builder.rms_norm(residual, norm, 1e-6), self._body(shape.gate_up), 0.0)
            x = builder.linear(builder.gated_activation(gate_up, shape.hidden_act), self._body(shape.down), 0.0)
        if residual is not None:
            x = builder.add(x, residual)
        logits = builder.linear(builder.rms_norm(builder.select_rows(x), norm, 1e-6), head, 0.0)
        return builder.build(logits, self.executor)

    def _body(self, parts: tuple[Part, ...]) -> Any:
        if self._shared is None:
            return self._matrix(parts, self.shape.quantization)
        if parts not in self._shared:
            self._shared[parts] = self._matrix(parts, self.shape.quantization)
        return self._shared[parts]

    def _matrix(self, parts: tuple[Part, ...], quantization: str) -> Any:
        sources = [(self._bytes(*part), *part) for part in parts]
        return self._kept(self.native.pack_matrix(sources, None, quantization, self.executor.isa, self.executor.pool))

    def _bytes(self, format: str, rows: int, columns: int) -> np.ndarray:
        """Made-up weights: small numbers, as a model's are."""
        if format in _GGUF_BLOCKS:
            elements, size = _GGUF_BLOCKS[format]
            return self._rng.integers(0, 32, rows * (columns // elements) * size, dtype=np.uint8)
        values = self._rng.integers(0x3C00, 0x3D00, rows * columns, dtype=np.uint16)  # bf16 around 0.01
        values[::2] |= 0x8000
        if format == "bf16":
            return values.view(np.uint8)
        return (values.astype(np.uint32) << 16).view(np.uint8)

    def _kept(self, thing: Any) -> Any:
        self._keep.append(thing)  # a tape does not own what it refers to
        return thing


def _decode_batch(size: int, context: int) -> list[np.ndarray]:
    """One token of each of `size` requests, the last of `context`; the arguments of StepBatch, block_size apart."""
    return _batch([(context - 1, 1)] * size)


def _chunk(start: int) -> list[np.ndarray]:
    return _batch([(start, CHUNK)])


def _batch(shares: Sequence[tuple[int, int]]) -> list[np.ndarray]:
    """shares: (start, number of tokens) of each request."""
    ends = np.cumsum([num_tokens for _, num_tokens in shares])
    positions = np.concatenate([np.arange(start, start + n) for start, n in shares])
    width = -(-max(start + n for start, n in shares) // BLOCK_SIZE)
    table = np.arange(len(shares) * width).reshape(len(shares), width)
    row = np.repeat(np.arange(len(shares)), [n for _, n in shares])
    slots = table[row, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    arrays = [
        np.ones(len(positions)), positions, np.concatenate([[0], ends]), [start + n for start, n in shares],
        slots, table, ends - 1,
    ]  # fmt: skip
    return [np.ascontiguousarray(array, dtype=np.int32) for array in arrays]
