"""Tools and reasoning in chat completions: what is asked, what the prompt says of it, how the answer is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from harness import RunningServer, events_of, scripted_server, wait_for

CHAT = "/v1/chat/completions"
NOW = {"type": "function", "function": {"name": "now", "description": "The time"}}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Zürich"}}</tool_call>'


@pytest.fixture(scope="module")
def _thinking() -> Iterator[RunningServer]:
    with scripted_server(tool_call_parser="hermes", reasoning_parser="think") as server:
        yield server


@pytest.fixture
def thinking(_thinking: RunningServer) -> Iterator[RunningServer]:
    """A scripted server that reads <think> and <tool_call>."""
    yield _thinking
    _thinking.wait_idle()


def ask(server: RunningServer, text: str, **fields: Any) -> httpx.Response:
    fields = {"messages": [{"role": "user", "content": text}], "tools": [WEATHER, NOW], **fields}
    return server.post(CHAT, model="m", temperature=0, **fields)


def choice(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


def prompt(server: RunningServer, **fields: Any) -> str:
    found = ask(server, "say hi", return_token_ids=True, **fields)
    assert found.status_code == 200, found.text
    return bytes(found.json()["prompt_token_ids"]).decode()


def test_reasoning_content_and_calls_are_told_apart(thinking: RunningServer) -> None:
    answer = choice(ask(thinking, f"say <think>hm</think>Wait. {CALL}"))
    message = answer["message"]
    assert (message["reasoning_content"], message["reasoning"], message["content"]) == ("hm", "hm", "Wait.")
    (call,) = message["tool_calls"]
    assert call["id"].startswith("call_")
    assert (call["type"], call["function"]) == ("function", {"name": "get_weather", "arguments": '{"city": "Zürich"}'})
    assert answer["finish_reason"] == "tool_calls"


def test_a_model_that_was_taught_no_calls_is_told_of_when_it_matters() -> None:
    def told(server: RunningServer) -> int:
        return "".join(server.errors).count("was given no form for tool calls")

    with scripted_server() as server:
        assert ask(server, "say hi", tools=None).status_code == 200
        assert told(server) == 0
        for _ in range(2):
            assert ask(server, "say hi").status_code == 200
        wait_for(lambda: told(server) == 1, 5, server.describe)
    assert told(server) == 1
    with scripted_server(tool_call_parser="hermes") as server:
        wait_for(lambda: told(server) == 1, 5, server.describe)


def test_a_stream_has_one_role_and_an_index_in_every_piece_of_a_call(thinking: RunningServer) -> None:
    stream = ask(thinking, f"say <think>hm</think>Wait. {CALL}{CALL}", stream=True)
    chunks = [chunk["choices"][0] for chunk in events_of(stream)[:-1]]
    deltas = [chunk["delta"] for chunk in chunks]
    assert [i for i, delta in enumerate(deltas) if "role" in delta] == [0]
    pieces = [piece for delta in deltas for piece in delta.get("tool_calls", ())]
    assert {piece["index"] for piece in pieces} == {0, 1}
    assert all(isinstance(piece["function"]["arguments"], str) for piece in pieces)
    for index in (0, 1):
        first, *others = [piece for piece in pieces if piece["index"] == index]
        assert (first["type"], first["function"]["name"]) == ("function", "get_weather")
        assert not any("id" in piece or "name" in piece["function"] for piece in others)
        arguments = [piece["function"]["arguments"] for piece in (first, *others)]
        assert "".join(arguments) == '{"city": "Zürich"}'
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "hm"
    assert "".join(delta.get("content") or "" for delta in deltas) == "Wait."
    assert [chunk["finish_reason"] for chunk in chunks if chunk["finish_reason"]] == ["tool_calls"]


def test_a_call_that_max_tokens_cuts_off_ends_with_length(thinking: RunningServer) -> None:
    answer = choice(ask(thinking, f"say {CALL}", max_tokens=57))
    assert answer["finish_reason"] == "length"
    assert answer["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": '


def test_without_tools_what_looks_like_a_call_is_text(thinking: RunningServer) -> None:
    for fields in ({"tools": None}, {"tools": []}, {"tool_choice": "none"}):
        answer = choice(ask(thinking, f"say {CALL}", **fields))
        assert (answer["message"]["content"], answer["finish_reason"]) == (CALL, "stop")
        assert "tool_calls" not in answer["message"]


def test_a_template_without_tools_is_given_them_as_text(thinking: RunningServer) -> None:
    said = prompt(thinking)
    assert '{"name": "now", "description": "The time"' in said
    assert '<tool_call>\n{"name": "FUNCTION", "arguments": {"ARGUMENT": "VALUE"}}\n</tool_call>' in said
    assert said.endswith("\nsay hi")
    assert "now" not in prompt(thinking, tool_choice="none")


def test_past_calls_and_results_reach_a_template_without_tools(thinking: RunningServer) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "When?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
        {"role": "user", "content": "say hi"},
    ]
    said = prompt(thinking, messages=messages)
    assert 'When?\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n' in said
    assert "<tool_response>\nnoon\n</tool_response>" in said


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tools": None, "tool_choice": "auto"}, "tool_choice", "only allowed when 'tools' are specified"),
        ({"tools": None, "parallel_tool_calls": True}, "parallel_tool_calls", "only allowed when 'tools'"),
        ({"tool_choice": "any"}, "tool_choice", "'any'"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "nope"}}},
            "tool_choice",
            "there is no function 'nope' in 'tools'",
        ),
        ({"tools": [NOW, NOW]}, "tools[1].function.name", "'now' is there twice"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type", "'custom'"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", "pattern"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
            "tools[0].function.parameters",
            "got 'type: \"array\"'",
        ),
    ],
)
def test_what_is_wrong_with_tools_is_named(
    thinking: RunningServer, fields: dict[str, Any], param: str, words: str
) -> None:
    response = ask(thinking, "say hi", **fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    assert words in error["message"]


def test_an_unsuitable_parser_and_a_template_without_tools_are_said_at_the_start() -> None:
    with scripted_server(tool_call_parser="mistral", reasoning_parser="seed") as server:
        errors = "".join(server.errors)
    assert "--reasoning-parser seed looks for </seed:think>" in errors
    assert "requests with tools describe them in the mistral form" in errors


def test_without_a_parser_tools_are_refused() -> None:
    with scripted_server(tool_call_parser="none") as server:
        response = ask(server, "say hi")
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tools")


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_a_stop_string_cuts_off_ends_with_the_stop_string(thinking: RunningServer, stream: bool) -> None:
    response = ask(thinking, f"say {CALL}", stop=["ür"], stream=stream)
    last = events_of(response)[-2]["choices"][0] if stream else choice(response)
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", "ür")
    tool = {"name": "get_weather", "input_schema": WEATHER["function"]["parameters"]}
    messages = [{"role": "user", "content": f"say {CALL}"}]
    message = thinking.post("/v1/messages", model="m", max_tokens=200, temperature=0, messages=messages, tools=[tool],
                            stop_sequences=["ür"]).json()  # fmt: skip
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "ür")
