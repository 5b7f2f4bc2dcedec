"""`bench blocks` and `bench scheduler`: their numbers are those of the engine's own parts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.bench.blocks import block_report
from pellucid.bench.scheduler import scheduler_report
from pellucid.core.block_accounting import paged_reservation


@given(st.lists(st.integers(1, 100), min_size=1, max_size=20), st.integers(1, 40))
def test_the_manager_allocates_what_the_arithmetic_says(lengths: list[int], block_size: int) -> None:
    report = block_report(lengths, block_size, total_blocks=2000)
    paged = paged_reservation(lengths, block_size)
    usage = report["block_usage"]
    assert isinstance(usage, dict)
    assert usage["reserved_tokens"] == paged.reserved_tokens
    assert usage["internal_fragmentation_tokens"] == paged.internal_fragmentation_tokens
    assert usage["internal_fragmentation_tokens"] <= len(lengths) * (block_size - 1)
    assert usage["used_blocks"] + usage["free_blocks"] == 2000


def test_requests_that_do_not_fit_are_refused_with_the_numbers() -> None:
    with pytest.raises(ValueError, match="needs 3 blocks, 2 are free"):
        block_report([33, 33], 16, total_blocks=5)
    with pytest.raises(ValueError, match="at least one token"):
        block_report([5, 0], 16, 64)


@pytest.mark.parametrize("num_running", [1, 20])
def test_the_scheduler_benchmark_measures_steps_in_which_all_decode(num_running: int) -> None:
    report = scheduler_report(num_running, num_steps=5)
    assert (report["num_running"], report["num_steps"]) == (num_running, 5)
    median, p99 = report["step_us_median"], report["step_us_p99"]
    assert isinstance(median, float)
    assert isinstance(p99, float)
    assert 0 < median <= p99
