"""Constraints that are compiled before their requests are queued: whose time runs when, and what a pause does."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
from fake_engine import FakeEngine, SimulatedClock, make_request

from pellucid.core import engine_core
from pellucid.core.engine_core import EngineCore
from pellucid.core.messages import ControlAction, EngineCoreRequest
from pellucid.core.preparation import Preparations
from pellucid.core.scheduler_output import SchedulerOutput


class Work:
    """Threads that do what the test says."""

    def __init__(self, timeout_s: float = 10.0) -> None:
        self.clock = SimulatedClock()
        self.futures: dict[str, Future[object]] = {}
        self.preparations = Preparations(self._start, timeout_s, self.clock)

    def _start(self, request: EngineCoreRequest) -> Future[object] | None:
        if request.request_id.startswith("free"):
            return None
        self.futures[request.request_id] = future = Future()
        return future

    def begin(self, name: str) -> None:
        self.futures[name].set_running_or_notify_cancel()

    def pass_time(self, seconds: float) -> dict[str, str | None]:
        """The error of whatever is done then."""
        self.clock.time += seconds
        return {prepared.request.request_id: prepared.error for prepared in self.preparations.take_done()}


def test_the_time_of_a_constraint_does_not_run_while_others_are_compiled_before_it() -> None:
    work = Work()
    names = [f"r{i}" for i in range(50)]
    for name in names:
        assert work.preparations.begin(make_request(name, [1]))
    for name in names:  # 50 times 9 s, one after another
        work.begin(name)
        assert work.pass_time(0.0) == {}
        assert work.pass_time(9.0) == {}
        work.futures[name].set_result(None)
        assert work.pass_time(0.0) == {name: None}


def test_a_constraint_that_takes_too_long_and_those_that_nobody_begins_behind_it_end_with_an_error() -> None:
    work = Work()
    work.preparations.begin(make_request("endless", [1]))
    work.begin("endless")
    assert work.pass_time(0.0) == {}
    assert work.pass_time(6.0) == {}
    work.preparations.begin(make_request("behind", [1]))
    error = "the constraint on the output was not compiled within 10 s"
    assert work.pass_time(5.0) == {"endless": error}
    assert work.pass_time(6.0) == {"behind": error}
    assert not work.preparations


def core_with(work: Work) -> tuple[FakeEngine, EngineCore]:
    engine = FakeEngine()
    engine.core = EngineCore(engine.scheduler, engine.runner, engine.core.vocab_size, engine.bus, work.preparations)
    return engine, engine.core


def test_paused_with_a_constraint_to_compile_it_does_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_core, "IDLE_WAIT_S", 1234.5)
    work = Work()
    waits: list[float] = []
    monkeypatch.setattr(work.preparations, "wait", waits.append)
    engine, core = core_with(work)
    core.control(ControlAction.PAUSE)
    engine.add(make_request("free", [1, 2]), make_request("constrained", [3]))
    core.step()
    assert waits == [], "there is something to tell"
    core.step()
    assert waits == [1234.5]
    core.control(ControlAction.RESUME)
    core.step()
    core.step()
    assert waits == [1234.5], "there is something to compute"


def test_a_single_step_is_kept_for_a_request_that_is_being_prepared() -> None:
    work = Work()
    engine, core = core_with(work)
    core.control(ControlAction.PAUSE)
    engine.add(make_request("constrained", [3], max_tokens=5))
    core.control(ControlAction.STEP)
    for _ in range(3):
        assert core.step().outputs == []
    work.futures["constrained"].set_result(None)
    assert [output.request_id for output in core.step().outputs] == ["constrained"]
    assert core.step().outputs == []


def test_single_steps_are_not_saved_up_for_what_comes_later() -> None:
    steps: list[SchedulerOutput] = []
    engine = FakeEngine(before_step=steps.append)
    engine.core.control(ControlAction.PAUSE)
    for _ in range(3):
        engine.core.control(ControlAction.STEP)  # with nothing to do
    engine.add(make_request("a", [1], max_tokens=1))
    engine.step()
    assert steps == []
    for _ in range(3):
        engine.core.control(ControlAction.STEP)  # with one step to do
    engine.step()
    engine.step()
    engine.add(make_request("b", [1], max_tokens=1))
    engine.step()
    assert len(steps) == 1
