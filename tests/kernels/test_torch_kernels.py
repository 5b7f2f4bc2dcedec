"""Each operation of the torch backend against its definition, written out plainly in float64."""

from __future__ import annotations

import math

import gguf
import numpy as np
import pytest
import torch

from pellucid.kernels.forward_batch import ForwardBatch
from pellucid.kernels.torch_kernels import TorchKernels
from pellucid.kernels.weights import LinearWeight, QuantizedTensor


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def batch_of(query_lens: list[int], seq_lens: list[int], block_size: int, num_blocks: int) -> ForwardBatch:
    """Requests with those many queries at the ends of sequences of those lengths, over shuffled blocks."""
    free = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(9)).tolist()
    tables = [[free.pop() for _ in range(-(-seq_len // block_size))] for seq_len in seq_lens]
    positions = [p for q, s in zip(query_lens, seq_lens, strict=True) for p in range(s - q, s)]
    owners = [index for index, q in enumerate(query_lens) for _ in range(q)]
    slots = [
        tables[owner][p // block_size] * block_size + p % block_size for owner, p in zip(owners, positions, strict=True)
    ]
    width = max(map(len, tables)) + 1
    return ForwardBatch(
        input_ids=torch.zeros(len(positions), dtype=torch.int32),
        positions=torch.tensor(positions, dtype=torch.int32),
        query_start_loc=torch.tensor([0, *np.cumsum(query_lens).tolist()], dtype=torch.int32),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        slot_mapping=torch.tensor(slots, dtype=torch.int32),
        block_table=torch.tensor([[*table, *[0] * (width - len(table))] for table in tables], dtype=torch.int32),
        logits_indices=torch.tensor([], dtype=torch.int32),
        block_size=block_size,
    )


def plain_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """One request, one query after the other. q: [Q, heads, head_dim], the last Q of the positions of k and v,
    [S, kv heads, head_dim]."""
    num_queries, num_heads, _ = q.shape
    group_size = num_heads // k.shape[1]
    out = torch.empty_like(q)
    for row in range(num_queries):
        position = len(k) - num_queries + row
        first = 0 if window is None else max(0, position - window + 1)
        for head in range(num_heads):
            keys, values = (x[first : position + 1, head // group_size] for x in (k, v))
            scores = keys @ q[row, head] * scale
            if softcap is not None:
                scores = softcap * (scores / softcap).tanh()
            out[row, head] = scores.softmax(0) @ values
    return out


@pytest.mark.parametrize("block_size", [4, 16, 256])
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(4, 4, 16), (9, 3, 64), (4, 1, 40)])
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (None, 5.0), (1, None), (100, None), (256, 3.0)])
def test_paged_attention_over_a_ragged_batch(
    block_size: int, num_heads: int, num_kv_heads: int, head_dim: int, window: int | None, softcap: float | None
) -> None:
    query_lens, seq_lens = [1, 5, 70, 1, 300, 1, 16], [1, 5, 400, 257, 300, 700, 20]
    num_blocks = sum(-(-s // block_size) for s in seq_lens)
    batch = batch_of(query_lens, seq_lens, block_size, num_blocks)
    kernels = TorchKernels()
    (cache,) = kernels.allocate_kv_cache(1, num_blocks, block_size, num_kv_heads, head_dim)
    cache.k.fill_(torch.nan)  # what nobody wrote must not show
    cache.v.fill_(torch.nan)
    keys = [normal(s, num_kv_heads, head_dim, seed=10 + i) for i, s in enumerate(seq_lens)]
    values = [normal(s, num_kv_heads, head_dim, seed=20 + i) for i, s in enumerate(seq_lens)]
    for r, seq_len in enumerate(seq_lens):
        for p in range(seq_len):
            block = int(batch.block_table[r, p // block_size])
            cache.k[block, p % block_size] = keys[r][p]
            cache.v[block, p % block_size] = values[r][p]
    q = 2 * normal(sum(query_lens), num_heads, head_dim)

    out = kernels.paged_attention(q.flatten(1), cache, batch, num_heads, num_kv_heads, head_dim, 0.2, window, softcap)

    for r, rows in enumerate(q.split(query_lens)):
        few = slice(-20, None)  # the plain loop is slow
        expected = plain_attention(rows.double(), keys[r].double(), values[r].double(), 0.2, window, softcap)[few]
        actual = out.view(q.shape).split(query_lens)[r][few]
        torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-5)


def test_keys_and_values_are_written_where_the_slots_say_and_nowhere_else() -> None:
    batch = batch_of([3, 1], [5, 9], block_size=4, num_blocks=8)
    kernels = TorchKernels()
    (cache,) = kernels.allocate_kv_cache(1, 8, 4, 2, 16)
    qkv = normal(4, (4 + 2 + 2) * 16)
    no_rotation = torch.cat([torch.ones(16, 8), torch.zeros(16, 8)], dim=1)
    q = kernels.rope_and_cache(qkv, cache, batch, no_rotation, 4, 2, 16)
    assert torch.equal(q, qkv[:, :64])
    written = batch.slot_mapping.long()
    assert torch.equal(cache.k.view(32, 32)[written], qkv[:, 64:96])
    assert torch.equal(cache.v.view(32, 32)[written], qkv[:, 96:])
    untouched = torch.ones(32, dtype=torch.bool)
    untouched[written] = False
    assert not cache.k.view(32, 32)[untouched].any()
    assert not cache.v.view(32, 32)[untouched].any()


@pytest.mark.parametrize("rotary_dim", [16, 8])
def test_queries_and_keys_are_normalised_then_turned_by_their_position(rotary_dim: int) -> None:
    batch = batch_of([6], [11], block_size=4, num_blocks=3)
    kernels = TorchKernels()
    (cache,) = kernels.allocate_kv_cache(1, 3, 4, 1, 16)
    qkv, q_norm, k_norm = normal(6, 4 * 16), normal(16, seed=1), normal(16, seed=2)
    half = rotary_dim // 2
    frequencies = 0.5 ** torch.arange(half)
    angles = torch.arange(16)[:, None] * frequencies
    table = torch.cat([angles.cos(), angles.sin()], dim=1)

    q = kernels.rope_and_cache(qkv, cache, batch, table, 2, 1, 16, q_norm, k_norm, 1e-5).view(6, 2, 16)

    def expected(x: torch.Tensor, weight: torch.Tensor, position: int) -> torch.Tensor:
        x = x.double()
        x = x / (x.square().mean() + 1e-5).sqrt() * weight
        turned = x.clone()
        for i in range(half):
            pair = torch.complex(x[i], x[i + half]) * torch.exp(1j * position * frequencies[i].double())
            turned[i], turned[i + half] = pair.real, pair.imag
        return turned

    for row, position in enumerate(range(5, 11)):
        for head in range(2):
            torch.testing.assert_close(
                q[row, head].double(), expected(qkv[row, head * 16 : head * 16 + 16], q_norm, position)
            )
        slot = int(batch.slot_mapping[row])
        torch.testing.assert_close(
            cache.k.view(12, 16)[slot].double(), expected(qkv[row, 32:48], k_norm, position), rtol=1e-5, atol=1e-6
        )


def test_norms_and_activations_are_what_they_are_called() -> None:
    kernels = TorchKernels()
    x, residual, weight = normal(5, 96), normal(5, 96, seed=1), normal(96, seed=2)
    exact = x.double()
    torch.testing.assert_close(
        kernels.rms_norm(x, weight, 1e-5).double(), exact / (exact.square().mean(1, True) + 1e-5).sqrt() * weight
    )
    norm, total = kernels.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(total, x + residual)
    assert torch.equal(norm, kernels.rms_norm(total, weight, 1e-5))
    gate, up = exact.chunk(2, dim=1)
    torch.testing.assert_close(
        kernels.gated_activation(x, "silu").double(), torch.nn.functional.silu(gate) * up, rtol=1e-5, atol=1e-6
    )
    torch.testing.assert_close(
        kernels.gated_activation(x, "gelu_tanh").double(),
        torch.nn.functional.gelu(gate, approximate="tanh") * up,
        rtol=1e-5,
        atol=1e-6,
    )
    extreme = torch.tensor([[-200.0, 200.0, 1.0, 1.0]])
    assert kernels.gated_activation(extreme, "silu").tolist() == [[0.0, 200.0]]
    with pytest.raises(ValueError, match="relu"):
        kernels.gated_activation(x, "relu")


def test_embedding_and_logits_of_one_packed_matrix() -> None:
    kernels = TorchKernels(dtype=torch.bfloat16)
    matrix = normal(50, 32)
    packed = kernels.pack_linear([matrix])
    assert (packed.in_features, packed.out_features, packed.num_bytes) == (32, 50, 50 * 32 * 2)
    ids = torch.tensor([3, 49, 3], dtype=torch.int32)
    rows = kernels.embedding(ids, packed, math.sqrt(32))
    scale = torch.tensor(math.sqrt(32), dtype=torch.bfloat16)  # rounded first, as HF does it
    assert torch.equal(rows, matrix.bfloat16()[[3, 49, 3]] * scale)
    logits = kernels.logits(rows, packed, softcap=4.0)
    assert logits.dtype == torch.float32
    exact = rows.double() @ matrix.bfloat16().double().T
    torch.testing.assert_close(logits.double(), 4 * (exact / 4).tanh(), rtol=0, atol=0.02)
    assert kernels.logits(rows[:0], packed).shape == (0, 50)


def test_parts_are_stacked_and_block_formats_unpacked() -> None:
    kernels = TorchKernels()
    dense = normal(30, 64)
    q8 = gguf.quants.quantize(normal(20, 64, seed=1).numpy(), gguf.GGMLQuantizationType.Q8_0)
    quantized = QuantizedTensor(q8, "Q8_0", (20, 64))
    bias = normal(50, seed=2)
    weight = kernels.pack_linear([dense, quantized], bias)
    x = normal(3, 64, seed=3)
    expected = torch.cat([x @ dense.T, x @ quantized.dequantize().T], dim=1) + bias
    torch.testing.assert_close(kernels.linear(x, weight), expected, rtol=1e-5, atol=1e-5)


def test_what_can_not_be_done_is_refused_by_name() -> None:
    kernels = TorchKernels()
    with pytest.raises(ValueError, match="quantization='int8' needs the native kernels"):
        kernels.pack_linear([normal(4, 4)], quantization="int8")
    with pytest.raises(ValueError, match="can't be stacked"):
        kernels.pack_linear([normal(4, 4), normal(4, 5)])
    with pytest.raises(ValueError, match="bias of shape"):
        kernels.pack_linear([normal(4, 4)], bias=normal(3))
    with pytest.raises(ValueError, match=r"float64.*float32"):
        TorchKernels(dtype=torch.float64)
    with pytest.raises(ValueError, match=r"int8.*auto, bf16, f16, f32"):
        kernels.allocate_kv_cache(1, 4, 4, 1, 8, dtype="int8")
    with pytest.raises(TypeError, match="another backend"):
        kernels.linear(normal(1, 4), LinearWeight())


@pytest.mark.parametrize(("dtype", "itemsize"), [("auto", 2), ("bf16", 2), ("f32", 4)])
def test_kv_bytes_are_those_allocated(dtype: str, itemsize: int) -> None:
    kernels = TorchKernels(dtype=torch.bfloat16)
    caches = kernels.allocate_kv_cache(3, 5, 16, 2, 64, dtype)
    assert kernels.kv_bytes_per_block(16, 2, 64, dtype) == 2 * 16 * 2 * 64 * itemsize
    assert sum(x.nbytes for cache in caches for x in cache) == 3 * 5 * kernels.kv_bytes_per_block(16, 2, 64, dtype)


def test_the_worked_example_of_kv_block_bytes() -> None:
    """Qwen3-0.6B: 28 layers, 8 KV heads of 128, bf16, blocks of 256 tokens: 29,360,128 bytes a block."""
    assert 28 * TorchKernels(dtype=torch.bfloat16).kv_bytes_per_block(256, 8, 128) == 29_360_128
