"""The openai package, streaming tool calls from a real server."""

from __future__ import annotations

import json

import pytest
from openai import OpenAI
from scripted_server import MODEL, WEATHER, ScriptedServer

pytestmark = pytest.mark.clients

CALLS = (
    "<think>\nTwo cities.\n</think>\n\nLooking.\n"
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "東京"}}\n</tool_call>'
)


def test_streamed_calls_add_up_to_what_the_whole_answer_says(scripted_qwen3: ScriptedServer) -> None:
    scripted_qwen3.says(("", CALLS))
    client = OpenAI(base_url=f"{scripted_qwen3.url}/v1", api_key="x")
    request = {"model": MODEL, "messages": [{"role": "user", "content": "Weather?"}], "tools": [WEATHER]}
    with client.chat.completions.stream(**request) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion().choices[0]
    whole = client.chat.completions.create(**request).choices[0]
    for choice in (streamed, whole):
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "Looking."
        calls = choice.message.tool_calls or []
        assert [json.loads(call.function.arguments) for call in calls] == [{"city": "Zürich"}, {"city": "東京"}]
        assert [call.function.name for call in calls] == ["get_weather"] * 2
        assert len({call.id for call in calls}) == 2
        assert choice.message.model_extra is not None
        assert choice.message.model_extra["reasoning_content"] == "Two cities."
        assert choice.message.model_extra["reasoning"] == "Two cities."


def test_a_conversation_with_calls_and_results_goes_on(scripted_qwen3: ScriptedServer) -> None:
    scripted_qwen3.says(("<tool_response>\n21 degrees\n</tool_response>", "It is 21."), ("", CALLS))
    client = OpenAI(base_url=f"{scripted_qwen3.url}/v1", api_key="x")
    messages: list = [{"role": "user", "content": "Weather?"}]
    first = client.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER]).choices[0].message
    messages.append(first.model_dump())
    messages += [{"role": "tool", "tool_call_id": call.id, "content": "21 degrees"} for call in first.tool_calls or []]
    answer = client.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER]).choices[0]
    assert (answer.finish_reason, answer.message.content, answer.message.tool_calls) == ("stop", "It is 21.", None)
