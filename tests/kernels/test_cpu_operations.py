"""The row-wise kernels of the CPU backend, on every instruction set, against torch in float64."""

from __future__ import annotations

import pytest
import torch

from pellucid.kernels.cpu.kernels import CpuKernels
from pellucid.kernels.torch_kernels import TorchKernels
from tests.kernels.cpu_batches import block_tables, make_batch
from tests.kernels.native_module import native_or_skip

native = native_or_skip()

WIDTHS = [1, 15, 16, 17, 63, 64, 576, 1000]
TOLERANCE = 3e-6  # relative to the largest element


@pytest.fixture(params=native.available_isas())
def kernels(request: pytest.FixtureRequest) -> CpuKernels:
    return CpuKernels(torch.float32, num_threads=2, isa=request.param)


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def assert_close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = TOLERANCE) -> None:
    error = (actual.double() - expected.double()).abs().max().item()
    assert error <= tolerance * max(1.0, expected.abs().max().item()), error


@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm_is_the_formula(kernels: CpuKernels, width: int) -> None:
    x, weight = random(5, width, scale=3), random(width, seed=1)
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    assert_close(kernels.rms_norm(x, weight, 1e-5), expected)


@pytest.mark.parametrize("width", WIDTHS)
def test_add_rms_norm_gives_the_norm_and_the_exact_sum(kernels: CpuKernels, width: int) -> None:
    x, residual, weight = random(3, width), random(3, width, seed=1), random(width, seed=2)
    normed, total = kernels.add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(total, x + residual)
    assert torch.equal(normed, kernels.rms_norm(x + residual, weight, 1e-6))
    assert torch.equal(kernels.add(x, residual), x + residual)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("width", WIDTHS)
def test_gated_activations_are_torchs(kernels: CpuKernels, width: int, activation: str) -> None:
    x = random(4, 2 * width, scale=8)
    gate, up = x.double().chunk(2, -1)
    if activation == "silu":
        expected = torch.nn.functional.silu(gate) * up
    else:
        expected = torch.nn.functional.gelu(gate, approximate="tanh") * up
    assert_close(kernels.gated_activation(x, activation), expected)


def test_activations_are_right_where_exp_overflows(kernels: CpuKernels) -> None:
    gate = torch.tensor([[-1e4, -200.0, -88.0, 0.0, 88.0, 200.0, 1e4, -0.0]])
    x = torch.cat([gate, torch.ones_like(gate)], -1)
    assert_close(kernels.gated_activation(x, "silu"), torch.nn.functional.silu(gate.double()))
    assert_close(kernels.gated_activation(x, "gelu_tanh"), torch.nn.functional.gelu(gate.double(), approximate="tanh"))


@pytest.mark.parametrize("operation", ["rms_norm", "silu", "gelu_tanh"])
def test_a_row_with_nan_or_infinity_spoils_no_other_row(kernels: CpuKernels, operation: str) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return (
            kernels.rms_norm(x, torch.ones(64), 1e-6)
            if operation == "rms_norm"
            else kernels.gated_activation(x, operation)
        )

    clean = random(3, 64)
    dirty = clean.clone()
    dirty[1] = float("nan")
    assert run(dirty)[1].isnan().all()
    assert torch.equal(run(dirty)[[0, 2]], run(clean)[[0, 2]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_embedding_gathers_rows_and_scales_them(kernels: CpuKernels, dtype: torch.dtype) -> None:
    typed = CpuKernels(dtype, num_threads=1, isa=kernels.isa)
    table = random(50, 48).to(dtype)
    ids = torch.tensor([0, 49, 7, 7], dtype=torch.int32)
    weight = typed.pack_linear([table])
    assert torch.equal(typed.embedding(ids, weight), table[ids].float())
    expected = TorchKernels("cpu", dtype).embedding(ids, TorchKernels("cpu", dtype).pack_linear([table]), 6.93)
    assert_close(typed.embedding(ids, weight, 6.93), expected.float(), 1e-2 if dtype == torch.bfloat16 else TOLERANCE)


def test_a_token_outside_the_vocabulary_is_refused(kernels: CpuKernels) -> None:
    weight = kernels.pack_linear([random(50, 48)])
    for wrong in (50, -1):
        with pytest.raises(IndexError, match="input_ids"):
            kernels.embedding(torch.tensor([0, wrong], dtype=torch.int32), weight)


@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 64), (128, 128), (80, 80), (96, 32), (24, 24)])
@pytest.mark.parametrize("normed", [False, True])
def test_rope_rotates_queries_and_caches_keys_and_values(
    kernels: CpuKernels, head_dim: int, rotary_dim: int, normed: bool
) -> None:
    num_heads, num_kv_heads = 4, 2
    tables = block_tables([40, 7])
    batch = make_batch([(0, 40), (3, 4)], tables)
    qkv = random(44, (num_heads + 2 * num_kv_heads) * head_dim)
    angles = random(64, rotary_dim // 2, seed=3)
    cos_sin = torch.cat([angles.cos(), angles.sin()], -1)
    norms = {"q_norm": random(head_dim, seed=4), "k_norm": random(head_dim, seed=5)} if normed else {}
    (cache,) = kernels.allocate_kv_cache(1, 8, 16, num_kv_heads, head_dim)
    oracle = TorchKernels()
    (expected_cache,) = oracle.allocate_kv_cache(1, 8, 16, num_kv_heads, head_dim)
    shape = (num_heads, num_kv_heads, head_dim)
    q = kernels.rope_and_cache(qkv, cache, batch, cos_sin, *shape, **norms)
    assert_close(q, oracle.rope_and_cache(qkv, expected_cache, batch, cos_sin, *shape, **norms))
    for slot in batch.slot_mapping.tolist():
        for head in range(num_kv_heads):
            key, value = map(torch.tensor, cache.read(slot, head))
            assert_close(key, expected_cache.k[slot // 16, slot % 16, head])
            assert torch.equal(value, expected_cache.v[slot // 16, slot % 16, head])


@pytest.mark.parametrize(("kv_dtype", "tolerance"), [("bf16", 2**-8), ("int8", 0.51 / 127)])
def test_a_narrow_cache_keeps_keys_and_values_to_its_precision(
    kv_dtype: str, tolerance: float, kernels: CpuKernels
) -> None:
    batch = make_batch([(0, 21)], block_tables([21]))
    qkv = random(21, 3 * 72)
    cos_sin = torch.cat([torch.ones(32, 36), torch.zeros(32, 36)], -1)  # no rotation
    (cache,) = kernels.allocate_kv_cache(1, 2, 16, 1, 72, kv_dtype)
    kernels.rope_and_cache(qkv, cache, batch, cos_sin, 1, 1, 72)
    for row, slot in enumerate(batch.slot_mapping.tolist()):
        for kept, given in zip(cache.read(slot, 0), (qkv[row, 72:144], qkv[row, 144:]), strict=True):
            scale = given.abs() if kv_dtype == "bf16" else given.abs().max()
            assert ((torch.tensor(kept) - given).abs() <= tolerance * scale).all()


def test_wrong_slots_and_positions_are_refused_before_anything_is_written(kernels: CpuKernels) -> None:
    (cache,) = kernels.allocate_kv_cache(1, 2, 16, 1, 16)
    qkv, cos_sin = torch.zeros(1, 48), torch.zeros(8, 16)
    good = make_batch([(0, 1)], [[1]])
    for field, value, error in [
        ("slot_mapping", 32, IndexError),
        ("positions", 8, IndexError),
        ("seq_lens", 99, ValueError),
    ]:
        wrong = type(good)(**{**good.__dict__, field: torch.tensor([value], dtype=torch.int32)})
        with pytest.raises(error, match=field.split("_")[0]):
            kernels.rope_and_cache(qkv, cache, wrong, cos_sin, 1, 1, 16)


def test_batches_chunks_and_threads_do_not_change_a_row(kernels: CpuKernels) -> None:
    one = CpuKernels(torch.float32, num_threads=1, isa=kernels.isa)
    x, weight = random(37, 600), random(600, seed=1)
    whole = kernels.rms_norm(x, weight, 1e-5), kernels.gated_activation(x, "silu")
    for row in (0, 17, 36):
        alone = x[row : row + 1]
        assert torch.equal(one.rms_norm(alone, weight, 1e-5)[0], whole[0][row])
        assert torch.equal(one.gated_activation(alone, "silu")[0], whole[1][row])


def test_the_portable_and_the_wide_kernels_agree_on_what_they_round_to() -> None:
    """Cached bf16 keys are the same bits on every instruction set: rounding is to nearest even everywhere."""
    kept = []
    for isa in native.available_isas():
        kernels = CpuKernels(torch.bfloat16, num_threads=1, isa=isa)
        (cache,) = kernels.allocate_kv_cache(1, 1, 16, 1, 64)
        qkv = random(16, 3 * 64)
        cos_sin = torch.cat([torch.ones(16, 32), torch.zeros(16, 32)], -1)
        kernels.rope_and_cache(qkv, cache, make_batch([(0, 16)], [[0]]), cos_sin, 1, 1, 64)
        kept.append([cache.read(slot, 0) for slot in range(16)])
        assert torch.equal(torch.tensor(kept[-1][3][1]), qkv[3, 128:].bfloat16().float())
    assert all(k == kept[0] for k in kept)
