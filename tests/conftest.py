"""What every test room shares: a machine among processes, patience with examples, and in CI a skip is a failure."""

from __future__ import annotations

import os

import hypothesis
import pytest

# A machine with other things to do is slow at any moment: no example has a time limit.
hypothesis.settings.register_profile("patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("patient")

if "PYTEST_XDIST_WORKER" in os.environ:
    # Before torch is imported. Each of the processes that share the cores, and each server it starts, computes on one
    # thread where its test asks for no number, and sleeps where it waits for others.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


LONGEST_FIRST = ("structured", "runner", "models", "cli", "clients", "engine", "server")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The rooms whose tests take long begin, so that no process is left alone with one of them at the end."""
    ranks = {room: rank for rank, room in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: ranks.get(item.path.parent.name, len(ranks)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("PELLUCID_FAIL_ON_SKIP"):
        report.outcome = "failed"
        report.longrepr = f"skipped where nothing may be skipped: {report.longrepr}"
    return report
