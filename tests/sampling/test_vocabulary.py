"""Every VocabularyOps against the definitions written out in float64 with full sorts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.kernels.cpu.native import load_native
from pellucid.sampling.vocabulary import Draw, NumpyVocabularyOps, VocabularyOps


def makers_of_ops() -> list[Callable[[int], VocabularyOps]]:
    """vocab_size -> VocabularyOps: the plain ones, and the compiled ones of each instruction set that runs here."""
    native, _ = load_native()
    if native is None:
        return [NumpyVocabularyOps]
    from pellucid.kernels.cpu.kernels import CpuKernels
    from pellucid.sampling.native_vocabulary import NativeVocabularyOps

    every = {isa: NativeVocabularyOps(CpuKernels(num_threads=2, isa=isa)) for isa in native.available_isas()}
    return [NumpyVocabularyOps, *(lambda vocab_size, ops=ops: ops for ops in every.values())]


every_ops = pytest.mark.parametrize("make_ops", makers_of_ops())

VOCAB_SIZES = (1, 2, 7, 256, 1000, 5000)


def rows_of_logits(seed: int, num_rows: int, vocab_size: int, scale: float, ties: bool) -> np.ndarray:
    logits = np.random.default_rng(seed).standard_normal((num_rows, vocab_size)) * scale
    return (np.round(logits) if ties else logits).astype(np.float32)


def ordered(row: np.ndarray) -> list[int]:
    """All ids: highest logit first, among equals the lowest id first."""
    return sorted(range(len(row)), key=lambda i: (-row[i], i))


def weights_of(row: np.ndarray, draw: Draw) -> np.ndarray:
    """The definition: temperature, then min_p, top_k, top_p, in that order. Not normalised."""
    scaled = row.astype(np.float64) / draw.temperature
    weights = np.exp(scaled - scaled.max())
    weights[weights < draw.min_p] = 0.0
    order = ordered(row)
    if draw.top_k:
        weights[order[draw.top_k :]] = 0.0
    if draw.top_p < 1.0:
        before = np.cumsum(weights[order]) - weights[order]
        for token_id, mass_before in zip(order, before, strict=True):
            if mass_before >= draw.top_p * weights.sum():
                weights[token_id] = 0.0
    return weights


class Case:
    """Shapes, scales and parameters that take every branch."""

    logits = st.builds(
        rows_of_logits,
        seed=st.integers(0, 10**6),
        num_rows=st.just(1),
        vocab_size=st.sampled_from(VOCAB_SIZES),
        scale=st.sampled_from([0.0, 0.1, 1.0, 5.0, 40.0]),
        ties=st.booleans(),
    )
    draws = st.builds(
        Draw,
        row=st.just(0),
        temperature=st.sampled_from([0.01, 0.5, 1.0, 1.7, 100.0]),
        top_k=st.sampled_from([0, 1, 2, 50, 4000, 10**6]),
        top_p=st.sampled_from([1.0, 0.9999, 0.9, 0.5, 1e-9]),
        min_p=st.sampled_from([0.0, 0.0, 0.001, 0.3, 1.0]),
        u=st.sampled_from([0.0, 1 - 2.0**-53]) | st.floats(0, 1, exclude_max=True),
    )


@every_ops
@settings(max_examples=400)
@given(Case.logits, Case.draws)
def test_a_draw_is_the_inverse_of_the_cumulative_distribution(make_ops, logits, draw):
    (token_id,) = make_ops(logits.shape[1]).draw(logits, [draw])
    weights = weights_of(logits[0], draw)
    is_truncated = draw.top_p < 1.0 or 0 < draw.top_k < logits.shape[1]
    order = ordered(logits[0]) if is_truncated else list(range(logits.shape[1]))
    position = order.index(token_id)
    cumulative = np.cumsum(weights[order]) / weights.sum()
    tolerance = 2e-5  # float32 sums; a token at an edge may fall to either side
    assert cumulative[position] > draw.u - tolerance
    assert (cumulative[position - 1] if position else 0.0) <= draw.u + tolerance


@every_ops
@settings(max_examples=200)
@given(Case.logits, Case.draws)
def test_no_token_outside_the_kept_set_is_ever_drawn(make_ops, logits, draw):
    ops = make_ops(logits.shape[1])
    kept = weights_of(logits[0], draw._replace(top_p=min(draw.top_p + 1e-5, 1.0), min_p=max(draw.min_p - 1e-6, 0.0)))
    draws = [draw._replace(u=u) for u in (0.0, 0.3, 0.999999, 1 - 2.0**-53)]
    for token_id in ops.draw(logits, draws):
        assert kept[token_id] > 0.0


@every_ops
@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
@pytest.mark.parametrize("ties", [False, True])
def test_top_k_1_and_a_tiny_top_p_are_greedy_even_among_equals(make_ops, vocab_size, ties):
    logits = rows_of_logits(1, 5, vocab_size, 2.0, ties)
    ops = make_ops(vocab_size)
    greedy = ops.argmax(logits)[0].tolist()
    for top_k, top_p in ((1, 1.0), (0, 1e-9), (1, 1e-9)):
        assert ops.draw(logits, [Draw(i, 1.0, top_k, top_p, 0.0, 0.99) for i in range(5)]) == greedy


@every_ops
@pytest.mark.parametrize(("top_k", "top_p", "min_p"), [(0, 1.0, 0.0), (20, 1.0, 0.0), (0, 0.8, 0.0), (0, 1.0, 0.05)])
def test_draws_follow_the_distribution(make_ops, top_k, top_p, min_p):
    num_draws, vocab_size = 20_000, 300
    logits = rows_of_logits(3, 1, vocab_size, 2.0, False)
    numbers = np.random.default_rng(4).random(num_draws)
    draws = [Draw(0, 0.8, top_k, top_p, min_p, float(u)) for u in numbers]
    counts = np.bincount(make_ops(vocab_size).draw(logits, draws), minlength=vocab_size)
    weights = weights_of(logits[0], draws[0])
    expected = weights / weights.sum() * num_draws
    assert counts[weights == 0].sum() == 0
    often = expected >= 5
    chi_square = ((counts - expected)[often] ** 2 / expected[often]).sum()
    degrees = often.sum() - 1
    assert chi_square < degrees + 5 * np.sqrt(2 * degrees)


@every_ops
@settings(max_examples=100)
@given(Case.logits, st.integers(0, 300))
def test_the_most_likely_and_their_ranks_are_in_order(make_ops, logits, count):
    row, vocab_size = logits[0], logits.shape[1]
    ops = make_ops(vocab_size)
    (top,) = ops.most_likely(logits, [0], [count])
    assert top.tolist() == ordered(row)[:count]
    assert ops.ranks(logits, [0] * len(top), top.tolist()) == list(range(1, len(top) + 1))
    assert ops.argmax(logits)[0].tolist() == ordered(row)[:1]


@every_ops
@settings(max_examples=100)
@given(Case.logits)
def test_the_log_normalizer_is_logsumexp(make_ops, logits):
    (got,) = make_ops(logits.shape[1]).log_normalizers(logits, [0])
    exact = logits[0].astype(np.float64)
    assert got == pytest.approx(np.logaddexp.reduce(exact), abs=1e-5)


@every_ops
def test_minus_infinity_is_never_drawn_and_costs_no_warning(make_ops):
    logits = np.full((1, 1000), -np.inf, np.float32)
    logits[0, 700:703] = 1.0
    ops = make_ops(1000)
    with np.errstate(all="raise", under="ignore"):
        for u in (0.0, 0.4, 0.9, 1 - 2.0**-53):
            for top_k, top_p, min_p in ((0, 1.0, 0.0), (10, 1.0, 0.0), (0, 0.99, 0.0), (0, 1.0, 0.5)):
                assert ops.draw(logits, [Draw(0, 1.0, top_k, top_p, min_p, u)])[0] in (700, 701, 702)
        assert ops.log_normalizers(logits, [0])[0] == pytest.approx(1 + np.log(3))
        assert ops.most_likely(logits, [0], [5])[0].tolist() == [700, 701, 702, 0, 1]


@every_ops
@pytest.mark.parametrize("vocab_size", [1000, 1003, 49152])
def test_a_row_gives_the_same_bits_wherever_it_stands_and_whatever_stands_beside_it(make_ops, vocab_size):
    ops = make_ops(vocab_size)
    batch = rows_of_logits(5, 9, vocab_size, 3.0, False)
    num = len(batch)
    draws = [Draw(i, 0.3 + i / 10, (0, 40, 0)[i % 3], (1.0, 1.0, 0.95)[i % 3], 0.0, i / num) for i in range(num)]
    together = ops.draw(batch, draws), ops.log_normalizers(batch, range(num))
    for i in range(num):
        alone = batch[i : i + 1].copy()
        assert ops.draw(alone, [draws[i]._replace(row=0)]) == [together[0][i]]
        assert ops.log_normalizers(alone, [0]) == [together[1][i]]
        shifted = np.empty(vocab_size + 5, np.float32)[5:].reshape(1, -1)  # at another alignment in memory
        shifted[:] = alone
        assert make_ops(vocab_size).log_normalizers(shifted, [0]) == [together[1][i]]
