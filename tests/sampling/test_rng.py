"""The generator's published answers, and that numbers depend on (seed, index) alone."""

from __future__ import annotations

import itertools
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.sampling.rng import philox4x32, uniform

INT64 = st.integers(-(2**63), 2**63 - 1)


# From the known-answer file of Random123, the authors' own implementation.
@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_answers(counter, key, answer):
    assert philox4x32(counter, key) == answer


@given(INT64, st.integers(0, 2**40))
def test_a_uniform_number_is_in_the_half_open_interval(seed, index):
    assert 0.0 <= uniform(seed, index) < 1.0


def test_a_seed_means_the_same_numbers_in_every_release():
    """Changing these changes the text that people have kept seeds for."""
    assert uniform(0, 0) == (0x6627E8D5E169C58D >> 11) / 2**53
    assert [uniform(42, i) for i in range(3)] == [0.6129598811894158, 0.9877186509145105, 0.8258668271960493]
    assert uniform(-1, 0) == uniform(2**64 - 1, 0)  # two's complement


def test_neighbouring_seeds_and_indices_give_unrelated_numbers():
    across_seeds = [uniform(seed, 0) for seed in range(4000)]
    across_indices = [uniform(7, index) for index in range(4000)]
    for numbers in (across_seeds, across_indices):
        assert statistics.mean(numbers) == pytest.approx(0.5, abs=0.02)
        assert statistics.variance(numbers) == pytest.approx(1 / 12, abs=0.005)
        products = [a * b for a, b in itertools.pairwise(numbers)]
        assert statistics.mean(products) == pytest.approx(0.25, abs=0.02)
    assert len(set(across_seeds + across_indices)) == 7999  # seed 7, index 0 is in both
