"""Tools over /v1/responses with OpenAI's SDK: calls under the names the client gave, and conversations that go on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import openai
import pytest
from scripted_server import MODEL, ScriptedServer

sys.path.insert(0, str(Path(__file__).parent.parent / "server"))

from response_events import check_stream

pytestmark = pytest.mark.clients

TOOLS: list[Any] = [
    {
        "type": "function",
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
    {
        "type": "namespace", "name": "files", "description": "Files.",
        "tools": [{"type": "function", "name": "read", "parameters": {"type": "object", "properties": {}}}],
    },
    {"type": "custom", "name": "patch", "description": "Takes a patch."},
    {"type": "web_search"},
]  # fmt: skip


def calls(*said: tuple[str, dict[str, Any]]) -> str:
    texts = (json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False) for name, arguments in said)
    return "<think>\nHm.\n</think>\n\nLooking.\n" + "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in texts)


ANSWER = calls(("weather", {"city": "Zürich"}), ("files__read", {}), ("patch", {"input": '*** "a"\n+ü'}))


@pytest.fixture
def client(scripted_qwen3: ScriptedServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{scripted_qwen3.url}/v1", api_key="x", max_retries=0)


def shapes(output: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (item["type"], item.get("namespace"), item.get("name"), item.get("arguments", item.get("input")))
        for item in output
    ]


def test_calls_of_functions_namespaces_and_custom_tools(scripted_qwen3: ScriptedServer, client: openai.OpenAI) -> None:
    scripted_qwen3.says(("", ANSWER))
    request: dict[str, Any] = {"model": MODEL, "input": "Do it.", "tools": TOOLS, "temperature": 0}
    raw = client.responses.with_raw_response.create(**request)
    assert "tools[3] of type web_search" in raw.headers["x-pellucid-warning"]
    whole = raw.parse().to_dict()
    final = check_stream([event.to_dict() for event in client.responses.create(stream=True, **request)])
    expected = [
        ("reasoning", None, None, None),
        ("message", None, None, None),
        ("function_call", None, "weather", '{"city": "Zürich"}'),
        ("function_call", "files", "read", "{}"),
        ("custom_tool_call", None, "patch", '*** "a"\n+ü'),
    ]
    assert shapes(final["output"]) == shapes(whole["output"]) == expected
    assert final["output"][0]["content"][0]["text"].strip() == "Hm."
    assert final["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    assert [tool["type"] for tool in final["tools"]] == ["function", "namespace", "custom"]


def test_calls_beyond_the_limit_are_left_out(scripted_qwen3: ScriptedServer, client: openai.OpenAI) -> None:
    scripted_qwen3.says(("", ANSWER))
    final = client.responses.create(model=MODEL, input="Do it.", tools=TOOLS, max_tool_calls=1).to_dict()
    assert [name for _, _, name, _ in shapes(final["output"]) if name] == ["weather"]


@pytest.mark.parametrize("stored", [True, False])
def test_results_go_back_by_previous_response_or_by_the_items_themselves(
    scripted_qwen3: ScriptedServer, client: openai.OpenAI, stored: bool
) -> None:
    scripted_qwen3.says(("<tool_response>\ndone: patch", "All done."), ("", ANSWER))
    common: dict[str, Any] = {"model": MODEL, "tools": TOOLS, "store": stored, "reasoning": {"summary": "auto"}}
    if not stored:
        common["include"] = ["reasoning.encrypted_content"]
    first = client.responses.create(input="Do it.", **common)
    results: list[Any] = [
        {"type": f"{item.type}_output", "call_id": item.call_id, "output": f"done: {item.name}"}
        for item in first.output
        if item.type in ("function_call", "custom_tool_call")
    ]
    assert len(results) == 3
    if stored:
        second = client.responses.create(input=results, previous_response_id=first.id, **common)
    else:
        said = [item.to_dict() for item in first.output]
        assert said[0]["encrypted_content"]
        history: list[Any] = [{"role": "user", "content": "Do it."}, *said, *results]
        second = client.responses.create(input=history, **common)
    assert second.output_text == "All done."
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens > 0
