"""The torch products on libraries that sum in other orders than those at hand: which calls they are given."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from pellucid.kernels.torch import summation
from pellucid.kernels.torch.matmul import InvariantMatmul

Order = Callable[[int, int, int], bool]  # (matrices, rows of the call, row) -> whether that row is summed backwards


class Library:
    """`linear` and `bmm` that sum one column of the first matrix after the other, forwards or backwards."""

    def __init__(self, backwards: Order) -> None:
        self._backwards = backwards
        self.calls: set[tuple[int, int]] = set()  # (matrices, rows)

    def bmm(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        matrices, rows, columns = a.shape
        self.calls.add((matrices, rows))
        forwards, backwards = (self._sum(a, b, order) for order in (range(columns), reversed(range(columns))))
        which = torch.tensor([self._backwards(matrices, rows, row) for row in range(rows)])
        return torch.where(which[None, :, None], backwards, forwards)

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        out = self.bmm(x[None], weight.T[None])[0]
        return out if bias is None else out + bias

    def _sum(self, a: torch.Tensor, b: torch.Tensor, order: range | Iterator[int]) -> torch.Tensor:
        total = a.new_zeros(a.shape[0], a.shape[1], b.shape[2])
        for column in order:
            total = total + a[:, :, column, None] * b[:, column, None, :]
        return total


def forget() -> None:
    summation.sums_alike.cache_clear()
    summation._reference.cache_clear()


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Order], Library]]:
    def install_library(backwards: Order) -> Library:
        library = Library(backwards)
        monkeypatch.setattr(torch.nn.functional, "linear", library.linear)
        monkeypatch.setattr(torch, "bmm", library.bmm)
        return library

    forget()
    yield install_library
    forget()


LIBRARIES: dict[str, tuple[Order, set[int]]] = {
    # name: the order, and the sizes of calls that it leaves
    "all alike": (lambda matrices, rows, row: False, {8, 16, 32, 64, 128, 256, 512}),
    "few rows otherwise": (lambda matrices, rows, row: rows < 16, {16, 32, 64, 128, 256, 512}),
    "many rows otherwise": (lambda matrices, rows, row: rows > 32, {8, 16, 32}),
    "some numbers of rows otherwise": (lambda matrices, rows, row: 64 <= rows <= 160, {8, 16, 32, 256, 512}),
    "the last two of 8 and 32 otherwise": (
        lambda matrices, rows, row: rows % 6 == 2 and row >= rows - 2,
        {16, 64, 256},  # 8, 32, 128 and 512 leave two rows when cut by six
    ),
    "every other row otherwise": (lambda matrices, rows, row: row % 2 == 1, {1}),
}


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_row_has_the_same_bits_whatever_the_library(
    install: Callable[[Order], Library], library: str, with_bias: bool
) -> None:
    backwards, sizes = LIBRARIES[library]
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(24, 10, generator=generator), torch.randn(24, generator=generator)
    x = torch.randn(560, 10, generator=generator)
    matmul = InvariantMatmul(torch.device("cpu"))
    fake = install(backwards)

    def linear(rows: torch.Tensor) -> torch.Tensor:
        return matmul.linear(rows, weight, bias if with_bias else None)

    whole = linear(x)
    counts = (1, 7, 9, 16, 31, 64, 100, 300, 512)
    for count in counts:
        linear(x[:count])  # whatever has to be tried, is
    fake.calls.clear()
    for count in counts:
        for first in (5, 560 - count):
            assert torch.equal(linear(x[first : first + count]), whole[first : first + count])
    assert {rows for _, rows in fake.calls} == sizes
    torch.testing.assert_close(whole, x @ weight.T + (bias if with_bias else 0.0))


@pytest.mark.parametrize(
    ("backwards", "batches"),
    [
        (lambda matrices, rows, row: False, {1, 3, 7, 41}),
        (lambda matrices, rows, row: matrices == 1, {1}),
        (lambda matrices, rows, row: matrices > 8, {1, 3, 7, 8}),
        (lambda matrices, rows, row: matrices == 7, {1, 2, 3, 4, 41}),
        (lambda matrices, rows, row: row == 3, {1, 2, 4, 8, 32}),  # one row a call
    ],
)
def test_nor_does_it_notice_other_matrices(
    install: Callable[[Order], Library], backwards: Order, batches: set[int]
) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(41, 48, 10, generator=generator), torch.randn(41, 10, 24, generator=generator)
    transposed = b.transpose(1, 2).contiguous().transpose(1, 2)
    matmul = InvariantMatmul(torch.device("cpu"))
    expected = a @ b
    fake = install(backwards)
    for matrices in (b, transposed):
        whole = matmul.batched(a, matrices)
        torch.testing.assert_close(whole, expected)
        for num_matrices in (1, 3, 7, 41):
            for num_rows in (1, 8, 16, 17, 48):
                few = matmul.batched(a[:num_matrices, :num_rows], matrices[:num_matrices])
                assert torch.equal(few, whole[:num_matrices, :num_rows])
        fake.calls.clear()
        for num_matrices in (1, 3, 7, 41):
            matmul.batched(a[:num_matrices], matrices[:num_matrices])
        assert {calls for calls, _ in fake.calls} == batches


def test_one_call_where_all_are_alike(install: Callable[[Order], Library]) -> None:
    fake = install(lambda matrices, rows, row: False)
    matmul = InvariantMatmul(torch.device("cpu"))
    weight = torch.randn(24, 20)
    for rows, calls in ((1, {(1, 8)}), (100, {(1, 128)}), (512, {(1, 512)})):
        matmul.linear(torch.randn(rows, 20), weight)
        fake.calls.clear()
        matmul.linear(torch.randn(rows, 20), weight)
        assert fake.calls == calls
