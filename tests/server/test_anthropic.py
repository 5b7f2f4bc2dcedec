"""Anthropic's own SDK, and its wire format, against a real server: see scripted_model.py for what it says."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from harness import RunningServer, events_of, scripted_server
from pydantic import TypeAdapter

EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
GREEDY = {"temperature": 0}
EPHEMERAL = {"type": "ephemeral"}


@pytest.fixture
def client(scripted: RunningServer) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=scripted.url, api_key="x", max_retries=0)


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def post(server: RunningServer, path: str = "/v1/messages", **body: Any) -> httpx.Response:
    body = {"model": "m", "max_tokens": 64, "temperature": 0, **body}
    if path.endswith("count_tokens"):
        body = {name: value for name, value in body.items() if name not in ("max_tokens", "stream", "temperature")}
    return server.post(path, **body)


def error_of(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert body.keys() == {"type", "error", "request_id"}
    assert body["type"] == "error"
    assert body["request_id"] == response.headers["request-id"]
    return body["error"]


# answers -------------------------------------------------------------------------------------------------------------


def test_a_message_is_answered(client: anthropic.Anthropic) -> None:
    message = client.messages.create(model="m", max_tokens=64, messages=[{"role": "user", "content": "say Hello."}],
                                     extra_body=GREEDY)  # fmt: skip
    assert [block.model_dump(exclude_none=True) for block in message.content] == [{"type": "text", "text": "Hello."}]
    assert (message.role, message.stop_reason, message.stop_sequence) == ("assistant", "end_turn", None)
    assert message.usage.output_tokens == len("Hello.") + 1
    assert message._request_id


def test_a_stream_adds_up_to_the_message(client: anthropic.Anthropic) -> None:
    with client.messages.stream(
        model="m", max_tokens=64, messages=[{"role": "user", "content": "say Straßen, 東京."}], extra_body=GREEDY
    ) as stream:
        assert "".join(stream.text_stream) == "Straßen, 東京."
        final = stream.get_final_message()
    assert final.stop_reason == "end_turn"
    assert final.usage.output_tokens == len("Straßen, 東京.".encode()) + 1


async def test_the_async_client_streams(scripted: RunningServer) -> None:
    async with anthropic.AsyncAnthropic(base_url=scripted.url, api_key="x") as client:
        async with client.messages.stream(
            model="m", max_tokens=64, messages=[{"role": "user", "content": "say Hi"}], extra_body=GREEDY
        ) as stream:
            assert [piece async for piece in stream.text_stream]
        assert (await stream.get_final_message()).content[0].text == "Hi"


def test_every_event_is_the_sdks_and_in_order(scripted: RunningServer) -> None:
    response = post(scripted, messages=[user(text("say abc"))], stream=True)
    lines = [line for line in response.text.split("\n") if line]
    events = events_of(response)
    names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    assert names == [event["type"] for event in events]
    assert names[:3] == ["message_start", "ping", "content_block_start"]
    assert set(names[3:-3]) == {"content_block_delta"}
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    for event in events:
        if event["type"] != "ping":
            EVENT.validate_python(event, strict=True)
    start, end = events[0]["message"], events[-2]
    assert (start["content"], start["stop_reason"], start["usage"]["output_tokens"]) == ([], None, 0)
    assert end["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert end["usage"]["output_tokens"] == 4
    assert end["usage"]["input_tokens"] == start["usage"]["input_tokens"] == len("say abc")


def test_the_whole_message_is_the_sdks(scripted: RunningServer) -> None:
    body = post(scripted, messages=[user(text("say abc"))]).json()
    Message.model_validate(body, strict=True)
    assert body["type"] == "message"
    assert body["id"].startswith("msg_")


def test_stop_sequences_and_max_tokens_say_why_it_ended(client: anthropic.Anthropic) -> None:
    alphabet: Any = [{"role": "user", "content": "go"}]
    stopped = client.messages.create(model="m", max_tokens=64, messages=alphabet, stop_sequences=["x", "e"],
                                     extra_body={"top_k": 1, "temperature": 0})  # fmt: skip
    assert (stopped.stop_reason, stopped.stop_sequence, stopped.content[0].text) == ("stop_sequence", "e", "abcd")
    cut = client.messages.create(model="m", max_tokens=5, messages=alphabet, extra_body=GREEDY)
    assert (cut.stop_reason, cut.content[0].text) == ("max_tokens", "abcde")


def test_max_tokens_beyond_the_context_is_clamped(client: anthropic.Anthropic) -> None:
    message = client.messages.create(model="m", max_tokens=8192, messages=[{"role": "user", "content": "go"}])
    assert message.stop_reason == "max_tokens"
    assert message.usage.input_tokens + message.usage.output_tokens == 2048


def test_nothing_said_is_no_block(scripted: RunningServer) -> None:
    assert post(scripted, messages=[user(text("say "))]).json()["content"] == []
    kinds = [event["type"] for event in events_of(post(scripted, messages=[user(text("say "))], stream=True))]
    assert kinds == ["message_start", "ping", "message_delta", "message_stop"]


def test_the_models_are_listed_for_both_sdks(client: anthropic.Anthropic, scripted: RunningServer) -> None:
    (model,) = client.models.list()
    assert (model.id, model.type, model.display_name) == ("m", "model", "m")
    assert client.models.retrieve("m").created_at == model.created_at
    with openai.OpenAI(base_url=f"{scripted.url}/v1", api_key="x") as other:
        assert int(model.created_at.timestamp()) == other.models.retrieve("m").created
        assert [found.id for found in other.models.list()] == ["m"]


# the prompt ----------------------------------------------------------------------------------------------------------


def test_count_tokens_is_what_usage_says(client: anthropic.Anthropic) -> None:
    prompt: dict[str, Any] = {
        "model": "m",
        "system": [text("Be brief."), text("Be kind.", cache_control=EPHEMERAL)],
        "messages": [user(text("one"), text("two")), {"role": "assistant", "content": "three"}, user(text("say x"))],
    }
    counted = client.messages.count_tokens(**prompt)
    assert isinstance(counted, MessageTokensCount)
    usage = client.messages.create(**prompt, max_tokens=8).usage
    assert counted.input_tokens == (
        usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    )
    assert counted.input_tokens == len("Be kind.\none\ntwo\nthree\nsay x\nBe brief.")


def test_what_is_cached_is_told(scripted: RunningServer) -> None:
    """Read and newly kept are whole blocks of 16 tokens; the three kinds of input add up to the prompt."""
    long = "A sentence that nobody else's prompt begins with. " * 10
    marked = [user(text(long + "say 1", cache_control=EPHEMERAL))]
    first = post(scripted, messages=marked).json()["usage"]
    num_prompt = len(long + "say 1")
    assert first["cache_read_input_tokens"] == 0
    assert first["cache_creation_input_tokens"] == num_prompt // 16 * 16
    assert first["input_tokens"] == num_prompt % 16
    again = post(scripted, messages=[user(text(long + "say 2"))]).json()["usage"]
    assert again["cache_read_input_tokens"] == len(long) // 16 * 16
    assert again["cache_creation_input_tokens"] == 0  # nobody asked
    assert again["input_tokens"] == num_prompt - again["cache_read_input_tokens"]
    start = events_of(post(scripted, messages=marked, stream=True))[0]["message"]["usage"]
    assert start["cache_read_input_tokens"] > 0  # known from the first event on


def test_unknown_fields_are_ignored_and_logged_once(scripted: RunningServer) -> None:
    beta = {"context_management": {"edits": []}, "diagnostics_of_tomorrow": 1}
    for _ in range(2):
        body = post(scripted, messages=[user(text("say ok", novelty=3))], **beta).json()
        assert body["content"] == [text("ok")]
    log = "".join(scripted.errors)
    for name in ("context_management", "diagnostics_of_tomorrow", "messages.content.novelty"):
        assert log.count(f"the field '{name}' is not known") == 1, log


# refusals ------------------------------------------------------------------------------------------------------------

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
TOOL = {"name": "f", "input_schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"messages": [user(text("see"), IMAGE)]}, ["messages.0.content.1", "image"]),
        (
            {
                "messages": [
                    user(text("x")),
                    {"role": "assistant", "content": [CALL]},
                    user({"type": "tool_result", "tool_use_id": "toolu_1", "content": [IMAGE]}),
                ]
            },
            ["messages.2.content.0.content.0", "image"],
        ),
        ({"messages": [user({"type": "hologram"})]}, ["messages.0.content.0", "hologram"]),
        ({"messages": [user({"text": "x"})]}, ["messages[0].content[0].type"]),
        ({"messages": []}, ["messages"]),
        ({"messages": [{"role": "tool", "content": "x"}]}, ["tool", "'user'", "'assistant'", "'system'"]),
        ({"messages": [user({"type": "tool_result", "tool_use_id": "toolu_9"})]}, ["tool_use_id", "toolu_9"]),
        ({"messages": [user(text("x")), {"role": "assistant", "content": [CALL]}]}, ["tool_use", "tool_result"]),
        ({"messages": [user(text("x"))], "max_tokens": 0}, ["max_tokens", "0"]),
        ({"messages": [user(text("x"))], "max_tokens": "many"}, ["max_tokens", "an integer"]),
        ({"messages": [user(text("x"))], "temperature": 1.5}, ["temperature", "1.5"]),
        ({"messages": [user(text("x"))], "top_k": -1}, ["top_k", "-1"]),
        ({"messages": [user(text("x"))], "tool_choice": {"type": "any"}}, ["tool_choice", "any"]),
        (
            {"messages": [user(text("x"))], "tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}},
            ["tool_choice.name", "'g'"],
        ),
        ({"messages": [user(text("x"))], "tools": [TOOL, TOOL]}, ["unique"]),
        ({"messages": [user(text("x"))], "tools": [{"name": "f"}]}, ["tools.0.input_schema"]),
        ({"messages": [user(text("x"))], "thinking": {"type": "enabled"}}, ["budget_tokens"]),
    ],
)
def test_a_wrong_request_is_told_what_is_wrong(scripted: RunningServer, body: dict[str, Any], words: list[str]) -> None:
    response = post(scripted, **body)
    assert response.status_code == 400, response.text
    error = error_of(response)
    assert error["type"] == "invalid_request_error"
    for word in words:
        assert word in error["message"]


def test_max_tokens_has_to_be_given(scripted: RunningServer) -> None:
    response = scripted.post("/v1/messages", model="m", messages=[user(text("x"))])
    assert response.status_code == 400
    assert "max_tokens" in error_of(response)["message"]


def test_a_prompt_that_is_too_long_is_refused_in_the_words_that_agents_look_for(scripted: RunningServer) -> None:
    error = error_of(post(scripted, messages=[user(text("x" * 3000))]))
    assert error == {"type": "invalid_request_error", "message": "prompt is too long: 3000 tokens > 2048 maximum"}


def test_the_sdk_raises_its_own_errors(client: anthropic.Anthropic, scripted: RunningServer) -> None:
    hello: Any = [{"role": "user", "content": "hello"}]
    with pytest.raises(anthropic.NotFoundError) as not_found:
        client.messages.create(model="other", max_tokens=8, messages=hello)
    assert not_found.value.body["error"]["type"] == "not_found_error"
    assert error_of(scripted.client.post("/v1/messages/nowhere"))["type"] == "not_found_error"
    assert scripted.client.get("/v1/messages").status_code == 405
    failed = post(scripted, messages=[user(text("please fail"))])
    assert failed.status_code == 500
    assert error_of(failed)["type"] == "api_error"


def test_a_stream_that_fails_ends_with_an_error_event(scripted: RunningServer) -> None:
    last = events_of(post(scripted, messages=[user(text("please fail"))], stream=True))[-1]
    assert (last["type"], last["error"]["type"]) == ("error", "api_error")
    client = anthropic.Anthropic(base_url=scripted.url, api_key="x", max_retries=0)
    with (
        pytest.raises(anthropic.APIStatusError),
        client.messages.stream(
            model="m", max_tokens=8, messages=[{"role": "user", "content": "please fail"}]
        ) as stream,
    ):
        stream.until_done()


async def test_keys_and_a_full_queue_have_this_dialects_errors(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    body = {"model": "m", "max_tokens": 8, "temperature": 0, "messages": [{"role": "user", "content": "say x"}]}
    with scripted_server(key="secret", max_queue=1, script={"gate": str(gate)}) as server:
        path, key = f"{server.url}/v1/messages", {"x-api-key": "secret"}
        async with httpx.AsyncClient(timeout=60) as client:
            for headers in ({}, {"x-api-key": "guess"}):
                for place in (path, f"{path}/count_tokens?beta=true"):
                    refused = await client.post(place, json=body, headers=headers)
                    assert refused.status_code == 401
                    assert error_of(refused)["type"] == "authentication_error"
            assert (await client.post(f"{server.url}/v1/completions", json=body)).json().keys() == {"error"}
            for headers in (key, {"authorization": "Bearer secret"}):
                counted = await client.post(f"{path}/count_tokens?beta=true", json=body, headers=headers)
                assert counted.json() == {"input_tokens": len("say x")}
            assert (await client.head(f"{server.url}/", headers=key)).status_code == 200

            waiting = asyncio.create_task(client.post(f"{path}?beta=true", json=body, headers=key))
            while (await asyncio.to_thread(server.metrics))["vllm:num_requests_waiting"] < 1:
                await asyncio.sleep(0.02)
            for stream in (False, True):
                refused = await client.post(path, json={**body, "stream": stream}, headers=key)
                assert refused.status_code == 503
                assert error_of(refused)["type"] == "overloaded_error"
                assert int(refused.headers["retry-after"]) >= 1
            gate.touch()
            assert (await waiting).json()["content"] == [text("x")]
