"""langchain-openai and litellm: a streamed tool call each, and the answer to its result."""

from __future__ import annotations

import json
from typing import Any

import pytest
from scripted_server import MODEL, WEATHER, ScriptedServer

pytestmark = pytest.mark.clients

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
SCRIPT = (
    ("<tool_response>\n21 degrees\n</tool_response>", "<think>\nRead.\n</think>\n\nIt is 21."),
    ("", f"<think>\nAsk.\n</think>\n\n{CALL}"),
)


def test_langchain_streams_a_call_and_reads_the_answer(scripted_qwen3: ScriptedServer) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI

    scripted_qwen3.says(*SCRIPT)
    model = ChatOpenAI(model=MODEL, base_url=f"{scripted_qwen3.url}/v1", api_key="x").bind_tools([WEATHER])
    messages: list[Any] = [HumanMessage("Weather in Zürich?")]
    message: Any = None
    for chunk in model.stream(messages):
        message = chunk if message is None else message + chunk
    (call,) = message.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Zürich"})
    assert message.invalid_tool_calls == []
    messages += [message, ToolMessage("21 degrees", tool_call_id=call["id"])]
    assert model.invoke(messages).content == "It is 21."


def test_litellm_streams_a_call_with_its_reasoning(scripted_qwen3: ScriptedServer) -> None:
    import litellm

    scripted_qwen3.says(*SCRIPT)
    options: Any = {
        "model": f"openai/{MODEL}",
        "api_base": f"{scripted_qwen3.url}/v1",
        "api_key": "x",
        "tools": [WEATHER],
    }
    messages: list[Any] = [{"role": "user", "content": "Weather in Zürich?"}]
    chunks = list(litellm.completion(messages=messages, stream=True, **options))
    message = litellm.stream_chunk_builder(chunks, messages=messages).choices[0].message
    (call,) = message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Zürich"})
    assert message.reasoning_content == "Ask."
    messages += [message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"}]
    answer = litellm.completion(messages=messages, **options).choices[0]
    assert (answer.finish_reason, answer.message.content) == ("stop", "It is 21.")
