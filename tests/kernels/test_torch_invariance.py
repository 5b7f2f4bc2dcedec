"""The torch kernels at the sizes of real models: a row's bits do not depend on how many rows there are, or where."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from pellucid.kernels.torch.matmul import InvariantMatmul
from pellucid.kernels.torch_kernels import TorchKernels

ROW_COUNTS = (1, 2, 3, 5, 7, 8, 9, 12, 15, 16, 17, 31, 33, 64, 100, 127)
ROWS = 160
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture(params=[1, 2, 4])
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_rows_do_not_notice_each_other(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> None:
    whole = function(x)
    for count in ROW_COUNTS:
        for first in (0, 3, len(x) - count):
            rows = slice(first, first + count)
            assert torch.equal(function(x[rows]), whole[rows]), f"rows {first} to {first + count} differ"
            if first:  # the first rows lie at the beginning of an allocation as it is
                assert torch.equal(function(x[rows].clone()), whole[rows]), "where memory begins makes a difference"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("in_features", "out_features"), [(576, 960), (1536, 576), (2048, 640), (100, 37), (64, 12000)]
)
def test_linear(num_threads: int, dtype: torch.dtype, in_features: int, out_features: int) -> None:
    kernels = TorchKernels(dtype=dtype)
    weight = kernels.pack_linear(
        [normal(out_features, in_features, seed=1) * in_features**-0.5], bias=normal(out_features, seed=2)
    )
    x = normal(ROWS, in_features, dtype=dtype)
    if dtype is torch.float16:
        x = x[:140]  # slow on a CPU
    assert_rows_do_not_notice_each_other(lambda rows: kernels.linear(rows, weight), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("in_features", "out_features"), [(1536, 576), (2048, 640)])
def test_linear_where_only_rounding_remains(
    num_threads: int, dtype: torch.dtype, with_bias: bool, in_features: int, out_features: int
) -> None:
    """Terms cancel in pairs, so that another order of summation shows in bfloat16 as well."""
    order = torch.randperm(in_features, generator=torch.Generator().manual_seed(3))
    half_weight, half_x = normal(out_features, in_features // 2, seed=1), normal(600, in_features // 2, dtype=dtype)
    kernels = TorchKernels(dtype=dtype)
    weight = kernels.pack_linear(
        [torch.cat([half_weight, -half_weight], dim=1)[:, order]],
        bias=normal(out_features, seed=2) * 1e-6 if with_bias else None,
    )
    x = torch.cat([half_x, half_x], dim=1)[:, order]
    assert_rows_do_not_notice_each_other(lambda rows: kernels.linear(rows, weight), x)


def test_a_matrix_too_large_for_one_call_is_cut_by_columns() -> None:
    kernels = TorchKernels()
    weight = kernels.pack_linear([normal(17000, 1024, seed=1)], bias=normal(17000, seed=2))
    x = normal(20, 1024)
    whole = kernels.linear(x, weight)
    torch.testing.assert_close(whole, x @ weight.weight.T + weight.bias, rtol=1e-4, atol=1e-3)
    assert torch.equal(kernels.linear(x[7:9], weight), whole[7:9])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("softcap", [None, 30.0])
def test_logits(num_threads: int, dtype: torch.dtype, softcap: float | None) -> None:
    kernels = TorchKernels(dtype=dtype)
    weight = kernels.pack_linear([normal(9001, 192, seed=1)])
    x = normal(ROWS, 192, dtype=dtype)
    assert_rows_do_not_notice_each_other(lambda rows: kernels.logits(rows, weight, softcap), x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("features", [64, 576, 640, 1000, 4096])
def test_norms(num_threads: int, dtype: torch.dtype, features: int) -> None:
    kernels = TorchKernels(dtype=dtype)
    x, weight = normal(ROWS, features, dtype=dtype), normal(features, seed=1)
    assert_rows_do_not_notice_each_other(lambda rows: kernels.rms_norm(rows, weight, 1e-6), x)
    assert_rows_do_not_notice_each_other(lambda rows: torch.cat(kernels.add_rms_norm(rows, rows, weight, 1e-6), 1), x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("features", [37, 1000, 1536, 2048])
def test_activations(num_threads: int, dtype: torch.dtype, activation: str, features: int) -> None:
    kernels = TorchKernels(dtype=dtype)
    x = normal(ROWS, 2 * features, dtype=dtype) * 3
    assert_rows_do_not_notice_each_other(lambda rows: kernels.gated_activation(rows, activation), x)


@pytest.mark.parametrize("head_dim", [16, 64, 128, 256])
def test_batched_products(num_threads: int, head_dim: int) -> None:
    """Shapes of attention: neither the number of matrices nor the (padded) number of rows shows."""
    matmul = InvariantMatmul(torch.device("cpu"))
    q, k = normal(24, 128, head_dim), normal(24, 256, head_dim, seed=1)
    weights, values = normal(24, 128, 256, seed=2).exp(), normal(24, 256, head_dim + 8, seed=3)
    scores, sums = matmul.batched(q, k.transpose(1, 2)), matmul.batched(weights, values)
    for num_matrices in (1, 2, 3, 7, 24):
        for num_rows in (8, 16, 24, 40, 64, 120):
            matrices, rows = slice(24 - num_matrices, 24), slice(128 - num_rows, 128)
            few = matmul.batched(q[matrices, rows].contiguous(), k[matrices].contiguous().transpose(1, 2))
            assert torch.equal(few, scores[matrices, rows])
            few = matmul.batched(weights[matrices, rows].contiguous(), values[matrices].contiguous())
            assert torch.equal(few, sums[matrices, rows])


def test_shapes_are_always_the_same_where_the_library_chooses_by_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU would be given: every product of one layer has one shape, and the results are right."""
    matmul = InvariantMatmul(torch.device("meta"))  # any device but the CPU
    shapes: set[tuple[torch.Size, ...]] = set()
    linear, bmm = torch.nn.functional.linear, torch.bmm

    def seen_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        shapes.add((x.shape, weight.shape))
        return linear(x, weight, bias)

    def seen_bmm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        shapes.add((a.shape, b.shape))
        return bmm(a, b)

    monkeypatch.setattr(torch.nn.functional, "linear", seen_linear)
    monkeypatch.setattr(torch, "bmm", seen_bmm)
    weight = normal(50, 32)
    for rows in (0, 1, 64, 65, 200):
        x = normal(rows, 32, seed=rows)
        torch.testing.assert_close(matmul.linear(x, weight), x @ weight.T)
    assert len(shapes) == 1
    shapes.clear()
    for num_matrices in (1, 31, 32, 33, 70):
        for rows in (64, 128):
            a, b = normal(num_matrices, rows, 16, seed=1), normal(num_matrices, 16, 24, seed=2)
            torch.testing.assert_close(matmul.batched(a, b), a @ b)
    assert len(shapes) == 1
