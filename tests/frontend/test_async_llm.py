"""AsyncLLM over a scripted engine on a thread: streams, refusals, departures, deadlines, shutdown."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from scripted_engine import RAISES_IN_STEP, REFUSED, ScriptedCore, build, output_of
from vocabularies import byte_level

from pellucid.config import EngineConfig
from pellucid.core.messages import EngineReady, FinishReason
from pellucid.engine.client import EngineState
from pellucid.engine.inprocess_client import InProcessEngineClient
from pellucid.frontend.async_llm import AsyncLLM
from pellucid.frontend.outputs import (
    ContextLengthExceededError,
    EngineUnavailableError,
    QueueFullError,
    RequestError,
    RequestOutput,
    RequestTimeoutError,
)
from pellucid.frontend.request_stream import RequestStream
from pellucid.frontend.requests import derive_seed
from pellucid.frontend.rounds import Rounds
from pellucid.sampling.params import SamplingParams

PATIENCE_S = 60.0
LONG = SamplingParams(max_tokens=400)


class Engine:
    """The core is kept, so that a test can see what is left in it."""

    def __init__(self) -> None:
        self.core: ScriptedCore | None = None

    def build(self, config: EngineConfig, on_progress: Callable[..., None]) -> tuple[ScriptedCore, EngineReady]:
        self.core, ready = build(config, on_progress)
        return self.core, ready


@asynccontextmanager
async def running(
    model: str = "quick", max_num_seqs: int = 8, **options: Any
) -> AsyncIterator[tuple[AsyncLLM, Engine]]:
    engine = Engine()
    client = InProcessEngineClient(EngineConfig(model=model, max_num_seqs=max_num_seqs), builder=engine.build)
    llm = AsyncLLM(client, byte_level(), **options)
    try:
        await llm.wait_ready()
        yield llm, engine
    finally:
        await llm.shutdown()


async def until(condition: Callable[[], bool]) -> None:
    async def poll() -> None:
        while not condition():
            await asyncio.sleep(0.005)

    await asyncio.wait_for(poll(), PATIENCE_S)


def text_of(prompt: list[int], num_tokens: int) -> str:
    return bytes(output_of(prompt, num_tokens)).decode()


async def read(stream: AsyncIterator[RequestOutput]) -> list[RequestOutput]:
    return [output async for output in stream]


async def collect(stream: AsyncIterator[RequestOutput], into: list[RequestOutput]) -> None:
    async for output in stream:
        into.append(output)


async def test_streamed_is_not_streamed() -> None:
    async with running() as (llm, _):
        params = SamplingParams(max_tokens=50, n=3, logprobs=0, prompt_logprobs=0, seed=9)
        deltas = await read(llm.generate([5, 6, 7], params))
        whole = await llm.generate([5, 6, 7], params, final_only=True).final()
        assert whole.finished
        assert [d.finished for d in deltas] == [False] * (len(deltas) - 1) + [True]
        assert len(deltas) > 5
        for index in range(3):
            mine = [c for d in deltas for c in d.outputs if c.index == index]
            once = whole.outputs[index]
            assert "".join(c.text for c in mine) == once.text == text_of([5, 6, 7], 50)
            assert [t for c in mine for t in c.token_ids] == once.token_ids
            assert [lp for c in mine for lp in c.logprobs or []] == once.logprobs
            assert {c.seed for c in mine} == {once.seed} == {derive_seed(9, index)}
            assert [c.finish_reason for c in mine if c.finish_reason] == [once.finish_reason] == [FinishReason.LENGTH]
        assert whole.prompt_logprobs is not None
        assert len(whole.prompt_logprobs) == 3
        assert [d.prompt_logprobs for d in deltas if d.prompt_logprobs] == [whole.prompt_logprobs]
        metrics = whole.metrics
        assert metrics.arrival_time <= metrics.first_token_time <= metrics.last_token_time <= metrics.finished_time


async def test_text_prompts_are_tokenised_and_given_back() -> None:
    async with running() as (llm, _):
        output = await llm.generate("hi", SamplingParams(max_tokens=4), request_id="mine").final()
        assert (output.request_id, output.prompt, output.prompt_token_ids) == ("mine", "hi", [104, 105])
        assert output.outputs[0].text == text_of([104, 105], 4)


async def test_a_stop_string_ends_the_text_and_frees_the_engine() -> None:
    async with running() as (llm, engine):
        whole = text_of([1], 400)
        stop = whole[30:33]
        output = await llm.generate([1], SamplingParams(max_tokens=400, stop=(stop,))).final()
        assert output.outputs[0].text == whole[: whole.index(stop)]
        assert output.outputs[0].stop_reason == stop
        assert llm.num_unfinished == 0
        await until(lambda: not engine.core.requests and llm.stats.num_running == 0)
        assert engine.core.steps < 300


async def leave_by_break(llm: AsyncLLM) -> None:
    async for _ in llm.generate([1], LONG):
        break


async def leave_by_closing(llm: AsyncLLM) -> None:
    stream = llm.generate([1], LONG)
    await stream.__anext__()
    await stream.aclose()
    await stream.aclose()
    assert await read(stream) == []


async def leave_by_cancellation(llm: AsyncLLM) -> None:
    task = asyncio.create_task(read(llm.generate([1], LONG)))
    await until(lambda: llm.stats.num_running > 0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def leave_without_reading(llm: AsyncLLM) -> None:
    llm.generate([1], LONG)


async def leave_by_cancelling_final(llm: AsyncLLM) -> None:
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(llm.generate([1], LONG).final(), 0.05)


async def abort_from_outside(llm: AsyncLLM) -> None:
    stream = llm.generate([1], LONG, request_id="r")
    await stream.__anext__()
    llm.abort("r")
    llm.abort("never seen")
    [last] = await read(stream)
    assert last.finished
    assert last.outputs[0].finish_reason is FinishReason.ABORT


@pytest.mark.parametrize(
    "leave",
    [
        leave_by_break,
        leave_by_closing,
        leave_by_cancellation,
        leave_without_reading,
        leave_by_cancelling_final,
        abort_from_outside,
    ],
)
async def test_who_leaves_leaves_nothing_in_the_engine(leave: Callable[[AsyncLLM], Any]) -> None:
    async with running("slow") as (llm, engine):
        await leave(llm)
        gc.collect()
        await until(lambda: llm.num_unfinished == 0)
        steps = engine.core.steps
        await until(lambda: not engine.core.requests)
        assert engine.core.steps <= steps + 2
        await until(lambda: llm.stats.num_running == 0 and llm.stats.num_free_blocks == llm.stats.num_blocks)


async def test_leaving_aborts_every_continuation() -> None:
    async with running("slow") as (llm, engine):
        stream = llm.generate([1], SamplingParams(max_tokens=400, n=4))
        await stream.__anext__()
        await until(lambda: len(engine.core.requests) == 4)
        await stream.aclose()
        await until(lambda: not engine.core.requests)


async def test_a_slow_reader_gets_everything_in_few_large_deltas() -> None:
    async with running() as (llm, _):
        stream = llm.generate([1], SamplingParams(max_tokens=300))
        first = await stream.__anext__()
        await until(lambda: llm.num_unfinished == 0)
        rest = await read(stream)
        assert len(rest) == 1
        assert first.outputs[0].text + rest[0].outputs[0].text == text_of([1], 300)


class Listener:
    """Takes what it is told, as long as it takes anything."""

    def __init__(self, stream: RequestStream) -> None:
        self.heard: list[RequestOutput] = []
        self.takes = True
        self.error: Exception | None = None
        self._stream = stream
        stream.listen(self)

    def __call__(self) -> bool:
        if self.error is not None:
            raise self.error
        if self.takes and (output := self._stream.take()) is not None:
            self.heard.append(output)
        return self.takes


async def test_a_listener_hears_all_but_the_end_and_its_task_sleeps_meanwhile() -> None:
    async with running() as (llm, _):
        stream = llm.generate([1], SamplingParams(max_tokens=100, n=2))
        listener = Listener(stream)
        deltas = await read(stream)
        assert len(deltas) < 5
        assert len(listener.heard) > 50
        assert not any(output.finished for output in listener.heard)
        assert deltas[-1].finished
        for index in range(2):
            told = [c.text for output in [*listener.heard, *deltas] for c in output.outputs if c.index == index]
            assert "".join(told) == text_of([1], 100)


async def test_what_a_listener_does_not_take_wakes_the_reader() -> None:
    async with running() as (llm, _):
        stream = llm.generate([1], SamplingParams(max_tokens=60))
        listener = Listener(stream)
        listener.takes = False
        assert "".join(output.outputs[0].text for output in await read(stream)) == text_of([1], 60)
        assert not listener.heard


async def test_a_listeners_mistake_is_raised_to_the_reader() -> None:
    async with running() as (llm, engine):
        stream = llm.generate([1], LONG)
        Listener(stream).error = KeyError("of the listener")
        with pytest.raises(KeyError, match="of the listener"):
            await read(stream)
        await stream.aclose()
        await until(lambda: not engine.core.requests)


async def test_steps_that_come_together_make_one_round() -> None:
    rounds, told = Rounds(), []
    rounds.add(lambda: told.append(1))
    rounds.add(lambda: (told.append(2), rounds.add(lambda: told.append(3))))
    assert told == []
    await asyncio.sleep(0)
    assert told == [1, 2]
    await asyncio.sleep(0)
    assert told == [1, 2, 3]


async def test_a_reader_that_never_reads_is_stopped_and_told() -> None:
    async with running(max_unread_tokens=50) as (llm, engine):
        stream = llm.generate([1], LONG)
        unwatched = llm.generate([2], SamplingParams(max_tokens=100), final_only=True)
        await until(lambda: llm.num_unfinished <= 1)
        assert len((await unwatched.final()).outputs[0].token_ids) == 100
        unread = await stream.__anext__()
        assert unread.outputs[0].text == text_of([1], 51)
        with pytest.raises(RequestError, match="more than 50 tokens"):
            await stream.__anext__()
        await until(lambda: not engine.core.requests)


async def test_the_queue_bound_refuses_at_once_and_says_when_to_come_again() -> None:
    async with running("slow", max_num_seqs=2, max_queue=3) as (llm, _):
        streams = [llm.generate([n], LONG) for n in range(1, 3)]
        await until(lambda: llm.stats.num_running == 2)
        streams += [llm.generate([n], LONG) for n in range(3, 6)]
        assert llm.num_waiting == 3
        with pytest.raises(QueueFullError, match="max_queue=3") as refusal:
            llm.generate([6], LONG)
        assert refusal.value.retry_after_s > 0
        with pytest.raises(QueueFullError):
            llm.check_admission()
        await streams[0].aclose()
        await until(lambda: llm.num_waiting == 2)
        llm.check_admission()


async def test_a_request_past_its_deadline_ends_with_an_error_and_frees_everything() -> None:
    # the scripted engine knows no deadlines: what ends the request here is the front end's own watch
    async with running("slow", max_num_seqs=1) as (llm, engine):
        running_one, waiting = llm.generate([1], LONG), llm.generate([2], LONG, timeout_s=0.05)
        with pytest.raises(RequestTimeoutError, match=r"timed out after 0\.05 s"):
            await waiting.final()
        await until(lambda: len(engine.core.requests) == 1)
        await running_one.aclose()


@pytest.mark.parametrize(
    ("prompt", "params", "error"),
    [
        ([1] * 512, SamplingParams(), ContextLengthExceededError),
        ([10**6], SamplingParams(), ValueError),
        ([1], SamplingParams(top_p=0.0), ValueError),
        ("", SamplingParams(), ValueError),
    ],
)
async def test_what_is_refused_is_refused_before_the_first_output(
    prompt: Any, params: SamplingParams, error: type[Exception]
) -> None:
    async with running() as (llm, engine):
        with pytest.raises(error):
            llm.generate(prompt, params)
        assert llm.num_unfinished == 0
        assert not engine.core.requests


async def test_an_id_in_use_is_refused() -> None:
    async with running("slow") as (llm, _):
        stream = llm.generate([1], SamplingParams(n=2, max_tokens=400), request_id="a")
        for taken in ("a", "a#1"):
            with pytest.raises(ValueError, match="in use"):
                llm.generate([1], LONG, request_id=taken)
        await stream.aclose()
        await llm.generate([1], SamplingParams(max_tokens=1), request_id="a").final()


async def test_what_the_engine_refuses_is_an_error_of_the_stream() -> None:
    async with running(max_num_seqs=4) as (llm, _):
        with pytest.raises(RequestError, match="this prompt is refused"):
            await llm.generate([REFUSED], LONG).final()
        output = await llm.generate([1], SamplingParams(max_tokens=3)).final()
        assert output.outputs[0].text == text_of([1], 3)


async def test_an_error_comes_after_the_text_that_was_certain_and_ends_its_siblings() -> None:
    async with running("slow") as (llm, engine):
        good = llm.generate([1], SamplingParams(max_tokens=400, n=2))
        await good.__anext__()
        bad = llm.generate([RAISES_IN_STEP], LONG)
        with pytest.raises(RequestError, match="the scripted step fails"):
            await read(bad)
        deltas: list[RequestOutput] = []
        with pytest.raises(RequestError, match="the scripted step fails"):  # whose fault it was cannot be told
            await collect(good, deltas)
        assert all(not d.finished for d in deltas)
        await until(lambda: not engine.core.requests)
        output = await llm.generate([1], SamplingParams(max_tokens=3)).final()  # and the engine goes on
        assert output.outputs[0].text == text_of([1], 3)


async def test_drain_refuses_the_new_and_waits_for_the_running() -> None:
    async with running("slow") as (llm, _):
        stream = llm.generate([1], SamplingParams(max_tokens=20))
        draining = asyncio.create_task(llm.drain(PATIENCE_S))
        await asyncio.sleep(0)
        with pytest.raises(EngineUnavailableError, match="shutting down"):
            llm.generate([2], LONG)
        assert (await stream.final()).outputs[0].text == text_of([1], 20)
        assert await draining


async def test_drain_gives_up_in_time_and_shutdown_tells_the_rest() -> None:
    async with running("slow") as (llm, _):
        stream = llm.generate([1], LONG)
        assert not await llm.drain(0.05)
        await llm.shutdown()
        assert llm.state is EngineState.STOPPED
        with pytest.raises(EngineUnavailableError, match="shut down"):
            await read(stream)


async def test_while_the_engine_loads_requests_are_refused(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    client = InProcessEngineClient(EngineConfig(model=f"stalls:{gate}"), builder=build)
    llm = AsyncLLM(client, byte_level())
    await llm.start()
    await until(lambda: llm.client.progress == "reading the script")
    with pytest.raises(EngineUnavailableError, match="loading"):
        llm.generate([1], LONG)
    gate.touch()
    await llm.wait_ready()
    await llm.generate([1], SamplingParams(max_tokens=2)).final()
    await llm.shutdown()


async def test_an_engine_that_cannot_load_says_why_to_every_caller() -> None:
    llm = AsyncLLM(InProcessEngineClient(EngineConfig(model="bad"), builder=build), byte_level())
    with pytest.raises(RuntimeError, match="no such script"):
        await llm.wait_ready()
    with pytest.raises(EngineUnavailableError, match="no such script"):
        llm.generate([1], LONG)
    await llm.shutdown()


async def test_listeners_hear_every_step() -> None:
    async with running() as (llm, _):
        heard = []
        llm.watchers.listeners.append(lambda events, stats: heard.append(stats.step))
        await llm.generate([1], SamplingParams(max_tokens=10)).final()
        assert heard
        assert heard == sorted(heard)
