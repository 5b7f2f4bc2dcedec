"""Paged attention of the CPU backend on every instruction set: against the definition in float64, and itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from pellucid.kernels.cpu.eager import EagerOperations
from pellucid.kernels.cpu.kernels import CpuKernels
from tests.kernels.cpu_batches import block_tables, make_batch
from tests.kernels.native_module import native_or_skip

native = native_or_skip()

ISAS = native.available_isas()
KV_DTYPES = ["f32", "bf16", "int8"]


@dataclass
class Case:
    """Requests with random queries, keys and values; `spans` (start, count) of a step, `attend` its attention."""

    kernels: CpuKernels
    lengths: list[int]
    num_heads: int = 6
    num_kv_heads: int = 2
    head_dim: int = 64
    kv_dtype: str = "bf16"
    sliding_window: int | None = None
    softcap: float | None = None
    scale: float = 0.2
    poison: bool = False
    cache: Any = field(init=False)

    def __post_init__(self) -> None:
        self.tables = block_tables(self.lengths)
        num_blocks = sum(map(len, self.tables))
        width = (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        generator = torch.Generator().manual_seed(1)
        self.qkv = [torch.randn(length, width, generator=generator) for length in self.lengths]
        half = self.head_dim // 2
        self.no_rotation = torch.cat([torch.ones(max(self.lengths), half), torch.zeros(max(self.lengths), half)], -1)
        (self.cache,) = self.kernels.allocate_kv_cache(
            1, num_blocks, 16, self.num_kv_heads, self.head_dim, self.kv_dtype
        )
        if self.poison:
            self._write(
                [(0, 16 * len(table)) for table in self.tables],
                [torch.full((16 * len(t), width), torch.nan) for t in self.tables],
            )
        self._write([(0, length) for length in self.lengths], self.qkv)

    def _write(self, spans: list[tuple[int, int]], rows: list[torch.Tensor]) -> None:
        count = max(start + count for start, count in spans)
        half = self.head_dim // 2
        table = torch.cat([torch.ones(count, half), torch.zeros(count, half)], -1)
        batch = make_batch(spans, self.tables)
        self.kernels.rope_and_cache(
            torch.cat(rows), self.cache, batch, table, self.num_heads, self.num_kv_heads, self.head_dim
        )

    def attend(
        self, spans: list[tuple[int, int]], requests: list[int] | None = None, kernels: CpuKernels | None = None
    ):
        """[rows, heads * head_dim] of the spans' queries, of these requests (all)."""
        requests = list(range(len(self.lengths))) if requests is None else requests
        batch = make_batch(spans, [self.tables[r] for r in requests])
        width = self.num_heads * self.head_dim
        q = torch.cat(
            [self.qkv[r][start : start + count, :width] for r, (start, count) in zip(requests, spans, strict=True)]
        )
        return (kernels or self.kernels).paged_attention(
            q.contiguous(), self.cache, batch, self.num_heads, self.num_kv_heads, self.head_dim, self.scale,
            self.sliding_window, self.softcap,
        )  # fmt: skip

    def expected(self, request: int) -> torch.Tensor:
        """All positions of one request, by the definition, from what the cache keeps."""
        table, length, heads = self.tables[request], self.lengths[request], self.num_heads
        slots = [table[p // 16] * 16 + p % 16 for p in range(length)]
        kept = [[self.cache.read(slot, head) for head in range(self.num_kv_heads)] for slot in slots]
        keys, values = torch.tensor(kept, dtype=torch.float64).permute(2, 1, 0, 3)  # each [kv_heads, length, dim]
        group = heads // self.num_kv_heads
        q = self.qkv[request][:, : heads * self.head_dim].double().view(length, heads, self.head_dim).transpose(0, 1)
        scores = q @ keys.repeat_interleave(group, 0).mT * self.scale
        if self.softcap:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        position = torch.arange(length)
        hidden = position[None, :] > position[:, None]
        if self.sliding_window:
            hidden |= position[None, :] <= position[:, None] - self.sliding_window
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        return (weights @ values.repeat_interleave(group, 0)).transpose(0, 1).reshape(length, -1)


def precision(isa: str, kv_dtype: str) -> float:
    """float32 arithmetic everywhere but where bf16 dot products round queries and weights."""
    return 3e-6 if kv_dtype == "f32" or isa not in ("avx512bf16", "amx") else 2e-2


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"sliding_window": 20},
        {"sliding_window": 128},
        {"softcap": 3.0},
        {"num_heads": 4, "num_kv_heads": 1, "head_dim": 256},
        {"num_heads": 2, "num_kv_heads": 2, "head_dim": 128},
        {"num_heads": 7, "num_kv_heads": 1, "head_dim": 80},
        {"num_heads": 2, "num_kv_heads": 1, "head_dim": 8},
    ],
    ids=str,
)
def test_attention_is_the_definition(isa: str, kv_dtype: str, shape: dict[str, Any]) -> None:
    case = Case(CpuKernels(num_threads=2, isa=isa), [1, 150, 37], kv_dtype=kv_dtype, **shape)
    actual = case.attend([(0, 1), (0, 150), (0, 37)])
    expected = torch.cat([case.expected(request) for request in range(3)])
    assert (actual - expected).abs().max() <= precision(isa, kv_dtype) * expected.abs().max()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("sliding_window", [None, 45])
def test_a_query_has_the_same_bits_alone_batched_and_chunked(
    isa: str, kv_dtype: str, sliding_window: int | None
) -> None:
    case = Case(CpuKernels(num_threads=2, isa=isa), [300, 130], kv_dtype=kv_dtype, sliding_window=sliding_window)
    whole = case.attend([(0, 300), (0, 130)])
    first, second = whole[:300], whole[300:]
    chunks = [case.attend([(start, count)], [0]) for start, count in [(0, 7), (7, 121), (128, 1), (129, 171)]]
    assert torch.equal(torch.cat(chunks), first)
    for position in (0, 1, 15, 16, 127, 128, 255, 299):
        assert torch.equal(case.attend([(position, 1)], [0])[0], first[position])
    mixed = case.attend([(250, 50), (129, 1)])
    assert torch.equal(mixed[:50], first[250:])
    assert torch.equal(mixed[50], second[129])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize(("num_heads", "head_dim"), [(7, 80), (1, 8), (17, 32)])
def test_a_query_has_the_same_bits_whatever_the_heads(isa: str, kv_dtype: str, num_heads: int, head_dim: int) -> None:
    """Dimensions that fill no register, and more heads than a micro-kernel takes rows."""
    shape = {"num_heads": num_heads, "num_kv_heads": 1, "head_dim": head_dim}
    case = Case(CpuKernels(num_threads=2, isa=isa), [150], kv_dtype=kv_dtype, poison=True, **shape)
    whole = case.attend([(0, 150)])
    assert torch.equal(torch.cat([case.attend([(0, 17)]), case.attend([(17, 133)])]), whole)
    for position in (0, 15, 33, 127, 149):
        assert torch.equal(case.attend([(position, 1)])[0], whole[position])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_threads_share_a_long_context_without_changing_a_bit(isa: str, kv_dtype: str) -> None:
    case = Case(CpuKernels(num_threads=3, isa=isa), [1500], kv_dtype=kv_dtype)
    shared = case.attend([(1499, 1)])
    alone = case.attend([(1499, 1)], kernels=CpuKernels(num_threads=1, isa=isa))
    assert torch.equal(shared, alone)
    wide = case.attend([(1400, 100)], kernels=CpuKernels(num_threads=2, isa=isa))
    assert torch.equal(wide[99], alone[0])


def sharing_case(isa: str, kv_dtype: str = "bf16", num_heads: int = 6) -> Case:
    """Requests 0 to 7 begin with the same 288 tokens; 8 to 10 share 130 of them, and 11 none."""
    lengths = [290, 300, 289, 511, 400, 300, 640, 288, 300, 410, 200, 300]
    case = Case(CpuKernels(num_threads=2, isa=isa), lengths, kv_dtype=kv_dtype, num_heads=num_heads)
    for request in range(1, 11):
        blocks = 18 if request < 8 else 8
        case.tables[request][:blocks] = case.tables[0][:blocks]
    return case


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("num_heads", [2, 6, 12])
def test_a_prefix_that_is_shared_is_read_once_and_changes_no_bit(isa: str, kv_dtype: str, num_heads: int) -> None:
    case = sharing_case(isa, kv_dtype, num_heads)
    last = [(length - 1, 1) for length in case.lengths]
    together = case.attend(last)
    for request, span in enumerate(last):
        assert torch.equal(case.attend([span], [request])[0], together[request])
        expected = case.expected(request)[-1]
        assert (together[request] - expected).abs().max() <= precision(isa, kv_dtype) * expected.abs().max()
    spans = [*last[:3], (200, 100), *last[4:]]  # one that is not decoding parts its neighbours
    assert torch.equal(case.attend(spans)[[0, 1, 2, *range(103, 111)]], together[[0, 1, 2, *range(4, 12)]])


def test_neighbours_that_decode_share_what_their_blocks_share() -> None:
    case = sharing_case(ISAS[0])
    last = [(length - 1, 1) for length in case.lengths]

    def shared(num_heads: int, requests: list[int]) -> list[tuple[int, int, int]]:
        batch = make_batch([last[r] for r in requests], [case.tables[r] for r in requests])
        step = EagerOperations(native, None).step_batch(batch)
        return native.shared_prefixes(step, num_heads, 2, 64)

    everybody = list(range(12))
    assert shared(2, everybody) == [(0, 8, 256), (8, 3, 128)]
    assert shared(6, everybody) == [(0, 5, 256), (5, 3, 256), (8, 3, 128)]  # 16 rows at most
    assert shared(12, everybody) == []  # six heads to a KV head: two requests fill the rows
    assert shared(2, [0, 11, 1, 2]) == []  # not neighbours
    assert shared(2, [8, 9]) == []  # too few


@pytest.mark.parametrize("isa", ISAS)
def test_a_query_that_is_nan_spoils_none_that_shares_its_prefix(isa: str) -> None:
    case = sharing_case(isa)
    last = [(length - 1, 1) for length in case.lengths]
    clean = case.attend(last)
    case.qkv[1][-1, : 6 * 64] = torch.nan
    spoiled = case.attend(last)
    others = [r for r in range(12) if r != 1]
    assert torch.equal(spoiled[others], clean[others])
    assert spoiled[1].isnan().all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("sliding_window", [None, 20])
def test_what_another_request_left_in_a_block_does_not_matter(
    isa: str, kv_dtype: str, sliding_window: int | None
) -> None:
    """A freed block may hold anything, NaN too: a request sees what it wrote, and nothing else."""
    kernels = CpuKernels(num_threads=2, isa=isa)
    lengths, spans = [37, 146, 1], [(0, 37), (0, 146), (0, 1)]
    clean, poisoned = (
        Case(kernels, lengths, kv_dtype=kv_dtype, sliding_window=sliding_window, poison=poison)
        for poison in (False, True)
    )
    assert torch.equal(clean.attend(spans), poisoned.attend(spans))
    last = [(36, 1), (145, 1), (0, 1)]
    assert torch.equal(clean.attend(last), poisoned.attend(last))


@pytest.mark.parametrize("isa", ISAS)
def test_blocks_that_slid_out_of_the_window_are_not_read(isa: str) -> None:
    case = Case(CpuKernels(num_threads=1, isa=isa), [200], sliding_window=31)
    expected = case.attend([(199, 1)])
    rest = case.qkv[0].clone()
    rest[:160] = torch.nan  # every block that lies outside the window (168 is the first key inside)
    case._write([(0, 160)], [rest[:160]])
    assert torch.equal(case.attend([(199, 1)]), expected)


@pytest.mark.parametrize("isa", ISAS)
def test_a_request_with_nan_spoils_no_other(isa: str) -> None:
    kernels = CpuKernels(num_threads=2, isa=isa)
    clean, dirty = Case(kernels, [60, 50]), Case(kernels, [60, 50])
    dirty.qkv[0][10] = torch.nan
    dirty._write([(0, 60), (0, 50)], dirty.qkv)
    spans = [(0, 60), (0, 50)]
    assert torch.equal(dirty.attend(spans)[60:], clean.attend(spans)[60:])
    assert dirty.attend(spans)[10:60].isnan().any(-1).all()


def test_scores_of_any_size_do_not_overflow() -> None:
    for isa in ISAS:
        case = Case(CpuKernels(num_threads=1, isa=isa), [140], scale=500.0, kv_dtype="f32")
        expected = case.expected(0)
        assert (case.attend([(0, 140)]) - expected).abs().max() <= 1e-3 * expected.abs().max()


def test_the_memory_of_a_block_is_what_was_announced() -> None:
    kernels = CpuKernels(num_threads=1)
    for dtype in ("auto", "bf16", "f32", "int8"):
        (cache,) = kernels.allocate_kv_cache(1, 10, 32, 3, 64, dtype)
        assert cache.num_bytes == 10 * kernels.kv_bytes_per_block(32, 3, 64, dtype)
    assert kernels.kv_bytes_per_block(16, 3, 64, "bf16") == 2 * 16 * 3 * 64 * 2
    with pytest.raises(ValueError, match="multiple of 16"):
        kernels.allocate_kv_cache(1, 10, 24, 3, 64)
    with pytest.raises(ValueError, match="int4"):
        kernels.allocate_kv_cache(1, 10, 16, 3, 64, "int4")
