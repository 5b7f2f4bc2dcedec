"""A schema on which the compiler hangs or crashes costs the request that brought it, and nobody else."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import psutil
import pytest
from harness import RunningServer, wait_for
from small_model import NAME, small_server

from pellucid.server.options import OptionsError, ServerOptions, check_options

TIMEOUT_S = 4.0
# It hangs: the compiler makes an automaton with as many states as the least common multiple has, some hundred million.
HANGS = {"type": "integer", "allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]}
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with small_server(tmp_path_factory.mktemp("small"), "--constraint-timeout", str(TIMEOUT_S)) as server:
        yield server


@pytest.fixture
def server(_server: RunningServer) -> Iterator[RunningServer]:
    yield _server
    if _server.process.poll() is None:
        _server.wait_idle()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def ask(server: RunningServer, **constraint: object) -> httpx.Response:
    body = dict(model=NAME, prompt="One", max_tokens=8, seed=1, structured_outputs=constraint)
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)


def free_text(server: RunningServer) -> str:
    body = dict(model=NAME, prompt="Two", max_tokens=16, seed=2, ignore_eos=True)
    return server.post("/v1/completions", **body).json()["choices"][0]["text"]


def begin_hanging(server: RunningServer, pool: ThreadPoolExecutor) -> tuple[Future[httpx.Response], psutil.Process]:
    """A request that its process is busy with, and the process."""
    assert ask(server, regex=f"new {next(NUMBERS)}").status_code == 200  # one that is known would start none
    before = {psutil.Process(pid): psutil.Process(pid).cpu_times().user for pid in server.pids_of("grammars")}
    assert before
    hanging = pool.submit(ask, server, json=HANGS)

    def busy() -> list[psutil.Process]:
        return [process for process, user in before.items() if process.cpu_times().user > user + 0.05]

    wait_for(busy, TIMEOUT_S, server.describe)
    return hanging, busy()[0]


def test_the_process_comes_with_the_first_constraint_and_stays(server: RunningServer) -> None:
    assert free_text(server)
    assert server.pids_of("grammars") == []
    assert ask(server, regex="[a-c]{3}").status_code == 200
    (pid,) = server.pids_of("grammars")
    assert ask(server, regex="(").status_code == 400
    assert ask(server, regex="[d-f]{3}").status_code == 200
    assert server.pids_of("grammars") == [pid]
    process = psutil.Process(pid)
    assert process.rlimit(psutil.RLIMIT_AS)[0] <= process.memory_info().vms + (1 << 30)


def test_one_that_hangs_is_a_400_in_time_and_others_go_on(server: RunningServer, pool: ThreadPoolExecutor) -> None:
    expected = free_text(server)
    start = time.monotonic()
    hanging, process = begin_hanging(server, pool)
    assert free_text(server) == expected
    assert not hanging.done(), "the hanging schema was over before the stream was"
    # a neighbour's constraint need not wait for it
    assert ask(server, choice=["a", "b"]).status_code == 200
    response = hanging.result()
    assert time.monotonic() - start < 3 * TIMEOUT_S
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "structured_outputs.json"
    assert f"took longer than {TIMEOUT_S:g} s to compile" in error["message"]
    wait_for(lambda: not psutil.pid_exists(process.pid), 2)
    assert ask(server, regex="[x-z]{3}").status_code == 200


def test_one_that_crashes_is_a_400_and_the_next_finds_a_new_process(
    server: RunningServer, pool: ThreadPoolExecutor
) -> None:
    expected = free_text(server)
    engine = server.engine_pids()
    hanging, process = begin_hanging(server, pool)
    os.kill(process.pid, signal.SIGSEGV)
    response = hanging.result()
    assert response.status_code == 400
    assert "could not be compiled: the compiler crashed on it" in response.json()["error"]["message"]
    assert ask(server, regex="[p-r]{3}").status_code == 200
    assert process.pid not in server.pids_of("grammars")
    assert server.engine_pids() == engine
    assert free_text(server) == expected


def test_one_that_died_idle_costs_nobody(server: RunningServer) -> None:
    assert ask(server, regex="[g-i]{3}").status_code == 200
    for pid in server.pids_of("grammars"):
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda pid=pid: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie", 2)
    assert ask(server, regex="[j-l]{3}").status_code == 200


def test_many_that_hang_are_told_that_they_wait(server: RunningServer, pool: ThreadPoolExecutor) -> None:
    known = ask(server, regex="known")
    responses = [pool.submit(ask, server, json={**HANGS, "maximum": i}) for i in range(4)]
    time.sleep(0.5)
    assert len(server.pids_of("grammars")) <= 2
    assert ask(server, regex="known").json()["choices"] == known.json()["choices"]  # it has been tried before
    assert not any(response.done() for response in responses)
    statuses = sorted(response.result().status_code for response in responses)
    assert set(statuses) <= {400, 503}
    assert 400 in statuses


def test_nothing_is_left_of_a_server_that_is_killed_while_one_hangs(
    tmp_path_factory: pytest.TempPathFactory, pool: ThreadPoolExecutor
) -> None:
    with small_server(tmp_path_factory.mktemp("killed")) as server:
        hanging, process = begin_hanging(server, pool)
        server.process.kill()
        server.process.wait(5)
        wait_for(lambda: not psutil.pid_exists(process.pid) or process.status() == "zombie", 2)
        assert hanging.exception() is not None


@pytest.mark.parametrize("value", [0.0, -1.0, 11.0, float("nan")])
def test_a_limit_that_cannot_be_kept_is_refused(value: float) -> None:
    with pytest.raises(OptionsError, match="constraint_timeout_s"):
        check_options(ServerOptions(constraint_timeout_s=value))


def test_nothing_is_left_of_a_server_that_ends_while_one_hangs(server: RunningServer, pool: ThreadPoolExecutor) -> None:
    """The last that uses this server."""
    hanging, process = begin_hanging(server, pool)
    assert server.stop(timeout_s=10) == 0, server.describe()
    wait_for(lambda: not psutil.pid_exists(process.pid), 1)
    assert hanging.exception() is not None or hanging.result().status_code == 503
