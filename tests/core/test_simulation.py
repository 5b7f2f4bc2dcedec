"""Hundreds of scripted lives of the engine; `python tests/core/simulation.py SEED` replays the one that failed."""

from __future__ import annotations

from collections import Counter

import pytest
from simulation import Simulation

SEEDS_PER_TEST = 50


@pytest.mark.parametrize("group", range(10))
def test_every_request_gets_its_own_tokens_whatever_happens_around_it(group: int) -> None:
    for seed in range(group * SEEDS_PER_TEST, (group + 1) * SEEDS_PER_TEST):
        try:
            Simulation(seed).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_a_seed_replays_to_the_letter() -> None:
    first, second = Simulation(11), Simulation(11)
    first.run()
    second.run()
    assert first.history == second.history
    assert len(first.history) > 20


def test_the_simulations_meet_everything_they_are_meant_to_meet() -> None:
    met = Counter[str]()
    for seed in range(160):
        simulation = Simulation(seed)
        simulation.run()
        stats = simulation.engine.core.stats()
        met["preemptions"] += stats.num_preemptions
        met["cached tokens"] += stats.prefix_cache_hits
        met["evictions"] += simulation.num_evictions
        met["held back"] += simulation.num_held_back
        met["retractions"] += simulation.num_retractions
        met["deaths"] += simulation.num_deaths
        met["forced tokens"] += simulation.num_forced
        met["preemptions with forced tokens to compute"] += simulation.num_preempted_in_a_run
        met["aborts"] += sum(client.aborted for client in simulation.clients.values())
        for client in simulation.clients.values():
            if client.last is not None and client.last.error is not None:
                met["timeouts" if client.last.error.startswith("timed out") else client.fate] += 1
    expected = {"preemptions", "cached tokens", "evictions", "held back", "retractions", "deaths", "aborts"}
    expected |= {"timeouts", "poison", "fails", "refused"}
    expected |= {"forced tokens", "preemptions with forced tokens to compute"}
    assert {name for name in expected if met[name] < 5} == set(), met
