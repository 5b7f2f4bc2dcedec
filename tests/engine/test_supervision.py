"""An engine process is killed, stopped, hung and crash-looped; the streams must not notice."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from scripted_engine import BUILDER, HANGS_IN_STEP, KILLS_ENGINE, RAISES_IN_STEP, REFUSED, output_of

from pellucid.config import EngineConfig
from pellucid.core.messages import EngineCoreOutput, EngineCoreRequest, FinishReason
from pellucid.engine.client import EngineState
from pellucid.engine.subprocess_client import SubprocessEngineClient
from pellucid.engine.supervision import SupervisionPolicy
from pellucid.observability.events import EngineDied, EngineStarted, RequestReplayed
from pellucid.sampling.params import SamplingParams

pytestmark = pytest.mark.kill

QUICK = SupervisionPolicy(hang_s=2.0, backoff_s=0.02, max_backoff_s=0.1)
PATIENCE_S = 60.0  # a busy machine; nothing here is expected to take so long


@asynccontextmanager
async def engine(model: str = "quick", policy: SupervisionPolicy = QUICK) -> AsyncIterator[SubprocessEngineClient]:
    client = SubprocessEngineClient(EngineConfig(model=model), builder=BUILDER, policy=policy)
    try:
        await client.start()
        yield client
    finally:
        await client.shutdown()


class Reader:
    """Collects the outputs of one request."""

    def __init__(self, client: SubprocessEngineClient, prompt: list[int], num_tokens: int, **fields: object) -> None:
        params = SamplingParams(seed=1, max_tokens=num_tokens, **fields.pop("params", {}))  # type: ignore[arg-type]
        self.outputs: list[EngineCoreOutput] = []
        self.done = asyncio.Event()
        self.request_id = f"r{prompt}"
        client.add(
            EngineCoreRequest(request_id=self.request_id, prompt_token_ids=prompt, sampling_params=params, **fields),
            self._on_output,
        )

    def _on_output(self, output: EngineCoreOutput) -> None:
        assert not self.done.is_set(), "an output after the last one"
        self.outputs.append(output)
        if output.finish_reason is not None:
            self.done.set()

    @property
    def tokens(self) -> list[int]:
        return [token for output in self.outputs for token in output.new_token_ids]

    async def end(self) -> EngineCoreOutput:
        await asyncio.wait_for(self.done.wait(), PATIENCE_S)
        return self.outputs[-1]


async def until(condition: Callable[[], bool]) -> None:
    async def poll() -> None:
        while not condition():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(poll(), PATIENCE_S)


async def test_an_engine_process_serves_and_leaves_nothing_behind() -> None:
    async with engine() as client:
        ready = await client.wait_ready()
        assert client.state is EngineState.READY
        assert ready.kernels == "scripted"
        process = psutil.Process(client.pid)
        assert "pellucid engine" in " ".join(process.cmdline())
        reader = Reader(client, [1, 2], 20)
        end = await reader.end()
        assert end.finish_reason is FinishReason.LENGTH
        assert reader.tokens == output_of([1, 2], 20)
    assert not process.is_running()
    assert client.state is EngineState.STOPPED


async def test_kill_9_under_three_streams_changes_no_token_of_any() -> None:
    async with engine("slow") as client:
        await client.wait_ready()
        events: list[object] = []
        client.on_events = lambda new, stats: events.extend(new)
        readers = [Reader(client, [n], 60) for n in (1, 2, 3)]
        first_pid = client.pid
        for num_before_kill in (5, 30):
            await until(lambda n=num_before_kill: all(len(r.tokens) >= n for r in readers))
            os.kill(client.pid, signal.SIGKILL)
            await until(lambda: client.state is EngineState.RESTARTING)
        for n, reader in enumerate(readers, 1):
            await reader.end()
            assert reader.tokens == output_of([n], 60)
        assert client.pid != first_pid
        kinds = [type(e) for e in events if isinstance(e, EngineDied | EngineStarted | RequestReplayed)]
        assert kinds == [EngineDied, EngineStarted, RequestReplayed, RequestReplayed, RequestReplayed] * 2


async def test_cached_tokens_and_prompt_logprobs_are_reported_once_and_as_the_first_engine_said() -> None:
    async with engine("slow") as client:
        await client.wait_ready()
        reader = Reader(client, [5, 6, 7], 30, params={"prompt_logprobs": 1, "logprobs": 0})
        await until(lambda: len(reader.tokens) >= 3)
        os.kill(client.pid, signal.SIGKILL)
        await reader.end()
        assert [o.prompt_logprobs is not None for o in reader.outputs] == [True] + [False] * (len(reader.outputs) - 1)
        assert {o.num_cached_tokens for o in reader.outputs} == {0}
        logprobs = [lp for o in reader.outputs for lp in o.logprobs or []]
        assert [lp.logprobs[0] for lp in logprobs] == [-(i + 1) / 8 for i in range(30)]


async def test_a_stopped_engine_is_unresponsive_within_a_second_and_recovers() -> None:
    async with engine("slow", SupervisionPolicy(hang_s=600)) as client:
        await client.wait_ready()
        reader = Reader(client, [1], 100)
        await until(lambda: len(reader.tokens) >= 3)
        os.kill(client.pid, signal.SIGSTOP)
        try:
            loop = asyncio.get_running_loop()
            stopped_at = loop.time()
            await until(lambda: client.state is EngineState.UNRESPONSIVE)
            assert SupervisionPolicy().silence_s + 2 * SupervisionPolicy().tick_s < 1.0
            assert loop.time() - stopped_at < 10  # the bound above is the promise; here a busy machine may be late
        finally:
            os.kill(client.pid, signal.SIGCONT)
        await until(lambda: client.state is EngineState.READY)
        await reader.end()
        assert reader.tokens == output_of([1], 100)


async def test_an_engine_that_comes_back_to_less_memory_keeps_the_limits_that_requests_were_taken_by(
    tmp_path: Path,
) -> None:
    async with engine(f"shrinks:{tmp_path / 'less'}") as client:
        first = await client.wait_ready()
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
        await until(lambda: client.ready is not first)
        assert client.ready == first


async def test_an_engine_that_stays_silent_is_killed_and_its_streams_go_on() -> None:
    async with engine("slow", SupervisionPolicy(hang_s=1.0)) as client:
        await client.wait_ready()
        reader = Reader(client, [1], 40)
        await until(lambda: len(reader.tokens) >= 3)
        stopped = psutil.Process(client.pid)
        stopped.suspend()
        await reader.end()
        assert reader.tokens == output_of([1], 40)
        assert client.pid != stopped.pid
        assert not stopped.is_running()


async def test_a_step_that_does_not_end_is_unresponsive_then_killed(tmp_path: Path) -> None:
    async with engine("quick", SupervisionPolicy(slow_step_s=0.3, stuck_step_s=1.0)) as client:
        await client.wait_ready()
        reader = Reader(client, [HANGS_IN_STEP], 10, cache_salt=str(tmp_path / "hung-once"))
        await until(lambda: client.state is EngineState.UNRESPONSIVE)
        await reader.end()
        assert reader.tokens == output_of([HANGS_IN_STEP], 10)


async def test_a_request_that_kills_every_engine_is_ended_and_its_neighbours_are_not() -> None:
    async with engine("slow") as client:
        await client.wait_ready()
        readers = [Reader(client, [n], 40) for n in (1, 2)]
        await until(lambda: all(len(r.tokens) >= 3 for r in readers))
        poisons = [Reader(client, [KILLS_ENGINE, n], 40) for n in (1, 2)]
        late = Reader(client, [3], 40)
        for poison in poisons:
            end = await poison.end()
            assert end.finish_reason is FinishReason.ERROR
            assert "on this request alone" in (end.error or "")
        for n, reader in zip((1, 2, 3), [*readers, late], strict=True):
            await reader.end()
            assert reader.tokens == output_of([n], 40)


async def test_a_step_that_raises_says_why_in_the_error_its_request_gets() -> None:
    async with engine() as client:
        await client.wait_ready()
        end = await Reader(client, [RAISES_IN_STEP], 5).end()
        assert "the scripted step fails" in (end.error or "")
        reader = Reader(client, [1], 5)
        await reader.end()
        assert reader.tokens == output_of([1], 5)


async def test_a_refused_request_hears_of_it_and_the_engine_lives_on() -> None:
    async with engine() as client:
        await client.wait_ready()
        pid = client.pid
        refused, reader = Reader(client, [REFUSED], 5), Reader(client, [1], 5)
        assert (await refused.end()).error == "this prompt is refused"
        await reader.end()
        assert client.pid == pid


async def test_a_request_whose_output_is_too_large_to_send_ends_alone() -> None:
    async with engine("small-frames") as client:
        asks = Reader(client, list(range(1, 400)), 8, params={"prompt_logprobs": 0})
        others = [Reader(client, [i], 40) for i in range(5)]
        last = await asks.end()
        assert last.finish_reason is FinishReason.ERROR
        assert "cannot be sent" in (last.error or "")
        assert "4000 bytes); ask for fewer prompt_logprobs" in (last.error or "")
        for i, reader in enumerate(others):
            await reader.end()
            assert reader.tokens == output_of([i], 40)
        assert client.stats.num_free_blocks == client.stats.num_blocks, "it has left the engine, too"
        assert client._num_restarts == 0


async def test_an_engine_that_cannot_load_fails_at_once_with_the_root_cause() -> None:
    async with engine("bad") as client:
        with pytest.raises(RuntimeError, match=r"no such script; caused by script\.txt is missing"):
            await asyncio.wait_for(client.wait_ready(), PATIENCE_S)
        assert client.state is EngineState.FAILED
        with pytest.raises(RuntimeError, match="no such script"):
            Reader(client, [1], 5)


async def test_death_while_loading_is_tried_again(tmp_path: Path) -> None:
    async with engine(f"dies-once:{tmp_path / 'died'}") as client:
        await asyncio.wait_for(client.wait_ready(), PATIENCE_S)
        assert (tmp_path / "died").exists()


async def test_a_crash_loop_gives_up_and_says_how_the_engine_died() -> None:
    async with engine("dies") as client:
        with pytest.raises(RuntimeError, match=r"died 5 times in a row.*SIGKILL"):
            await asyncio.wait_for(client.wait_ready(), PATIENCE_S)


async def test_requests_in_flight_end_with_an_error_when_no_engine_comes_back(tmp_path: Path) -> None:
    stays_up = tmp_path / "script"
    stays_up.touch()
    policy = SupervisionPolicy(backoff_s=0.01, max_deaths=2, loading_hang_s=0.5)
    async with engine(f"stalls:{stays_up}", policy) as client:
        await asyncio.wait_for(client.wait_ready(), PATIENCE_S)
        reader = Reader(client, [1], 10**6)
        await until(lambda: len(reader.tokens) >= 3)
        stays_up.unlink()
        os.kill(client.pid, signal.SIGKILL)
        await until(lambda: client.state is EngineState.RESTARTING and client.pid is not None)
        while client.state is not EngineState.FAILED:
            if (pid := client.pid) is not None and psutil.pid_exists(pid):
                psutil.Process(pid).kill()
            await asyncio.sleep(0.05)
        end = await reader.end()
        assert end.finish_reason is FinishReason.ERROR
        assert "died 2 times" in (end.error or "")


async def test_a_request_that_comes_while_no_engine_lives_waits_for_the_next() -> None:
    async with engine() as client:
        early = Reader(client, [1], 5)
        await client.wait_ready()
        os.kill(client.pid, signal.SIGKILL)
        await until(lambda: client.state is EngineState.RESTARTING)
        between = Reader(client, [2], 5)
        await early.end()
        await between.end()
        assert (early.tokens, between.tokens) == (output_of([1], 5), output_of([2], 5))


async def test_an_aborted_request_is_gone_from_the_engine_and_never_heard_again() -> None:
    async with engine("slow") as client:
        await client.wait_ready()
        reader, other = Reader(client, [1], 10**6), Reader(client, [2], 30)
        await until(lambda: len(reader.tokens) >= 3)
        client.abort([reader.request_id])
        num_tokens = len(reader.tokens)
        await other.end()
        await until(lambda: client.stats.num_running == 0)
        assert client.stats.num_free_blocks == client.stats.num_blocks
        assert len(reader.tokens) == num_tokens
        client.abort([reader.request_id, "never seen"])


async def test_counters_do_not_fall_at_a_restart() -> None:
    async with engine("slow") as client:
        await client.wait_ready()
        reader = Reader(client, [1], 30)
        await until(lambda: len(reader.tokens) >= 10)
        before = client.stats.prefix_cache_queries
        os.kill(client.pid, signal.SIGKILL)
        await until(lambda: client.state is EngineState.RESTARTING)
        assert client.stats.num_running == 0
        assert client.stats.prefix_cache_queries >= before
        await reader.end()
        assert client.stats.prefix_cache_queries >= 30


async def test_the_engine_dies_with_its_front_end(tmp_path: Path) -> None:
    """Even an engine that is stopped and reads nothing, under a front end that is killed and cleans nothing up."""
    script = f"""
import asyncio, sys, os, signal
sys.path[:0] = {[str(Path(__file__).parent)]!r}
from pellucid.config import EngineConfig
from pellucid.engine.subprocess_client import SubprocessEngineClient
async def main():
    client = SubprocessEngineClient(EngineConfig(model="quick"), builder={BUILDER!r})
    await client.wait_ready()
    print(client.pid, flush=True)
    if sys.argv[1] == "stopped":
        os.kill(client.pid, signal.SIGSTOP)
        print("stopped", flush=True)
    await asyncio.sleep(1000)
asyncio.run(main())
"""
    for mode in ("running", "stopped"):
        front_end = subprocess.Popen([sys.executable, "-c", script, mode], stdout=subprocess.PIPE, text=True)
        assert front_end.stdout is not None
        engine_process = psutil.Process(int(front_end.stdout.readline()))
        if mode == "stopped":
            front_end.stdout.readline()
        front_end.kill()
        front_end.wait()
        await asyncio.to_thread(psutil.wait_procs, [engine_process], PATIENCE_S)
        assert not engine_process.is_running()
        front_end.stdout.close()
