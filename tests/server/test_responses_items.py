"""Items and tools of the Responses dialect as chat templates and models know them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from pellucid.server.errors import ApiError
from pellucid.server.responses_api import reasoning
from pellucid.server.responses_api.items import complete_item, messages_of
from pellucid.server.responses_api.tools import Toolbox
from pellucid.server.schemas.responses import AnyTool, Item, ResponsesRequest

NOTHING = Toolbox(None)


def messages(*items: dict[str, Any], instructions: str | None = None, toolbox: Toolbox = NOTHING) -> list[Any]:
    parsed = [TypeAdapter(Item).validate_python(item) for item in items]
    return messages_of(instructions, [complete_item(item) for item in parsed], toolbox)


def toolbox(*tools: dict[str, Any]) -> Toolbox:
    return Toolbox([TypeAdapter(AnyTool).validate_python(tool) for tool in tools])


def call(call_id: str, name: str = "f", **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": "{}", **more}


def result(call_id: str, output: Any = "ok") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def function(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, "parameters": {"type": "object"}, **more}


def thought(text: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text}],
        **more,
    }


def test_one_turn_of_the_assistants_is_one_message() -> None:
    said = {"role": "assistant", "content": [{"type": "output_text", "text": "Looking."}]}
    turn = messages(
        {"role": "user", "content": "Do it."},
        thought("Hm."),
        said,
        call("a"),
        call("b"),
        result("a", [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}]),
        result("b"),
        thought("Now."),
        call("c"),
        result("c"),
        {"role": "assistant", "content": "Done."},
    )
    assert [message["role"] for message in turn] == [
        "user", "assistant", "tool", "tool", "assistant", "tool", "assistant",
    ]  # fmt: skip
    first = turn[1]
    assert (first["reasoning_content"], first["content"]) == ("Hm.", "Looking.")
    assert [c["id"] for c in first["tool_calls"]] == ["a", "b"]
    assert turn[2] == {"role": "tool", "tool_call_id": "a", "content": "onetwo"}
    assert (turn[4]["reasoning_content"], turn[4]["content"]) == ("Now.", "")
    assert turn[6] == {"role": "assistant", "content": "Done."}


def test_instructions_and_leading_rules_are_one_system_message_as_templates_want() -> None:
    rules = [{"role": "developer", "content": "b"}, {"role": "system", "content": "c"}]
    assert messages(*rules, {"role": "user", "content": "x"}, rules[0], instructions="a") == [
        {"role": "system", "content": "a\n\nb\n\nc"},
        {"role": "user", "content": "x"},
        {"role": "system", "content": "b"},
    ]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "whole"),
        ({"content": None, "encrypted_content": reasoning.encode("hidden")}, "hidden"),
        ({"content": None, "summary": [{"type": "summary_text", "text": "short"}]}, "short"),
        ({"content": None, "encrypted_content": "gAAAA of another's", "summary": []}, None),
    ],
)
def test_reasoning_is_read_from_the_fullest_form_there_is(fields: dict[str, Any], text: str | None) -> None:
    turn = messages({"role": "user", "content": "x"}, thought("whole") | fields, call("a"))
    assert turn[1].get("reasoning_content") == text


def test_an_id_alone_is_a_reference() -> None:
    item = complete_item(TypeAdapter(Item).validate_python({"id": "msg_1"}))
    assert (item["type"], item["id"]) == ("item_reference", "msg_1")


def test_a_result_without_its_call_is_refused() -> None:
    with pytest.raises(ApiError, match="No tool call found for function call output with call_id z"):
        messages(call("a"), result("z"))


def test_namespaces_are_flattened_to_unique_names_and_calls_of_history_follow() -> None:
    box = toolbox(
        function("files__read"),
        {"type": "namespace", "name": "files", "description": "All about files.", "tools": [function("read")]},
        {"type": "namespace", "name": "mcp__web__", "description": "d", "tools": [function("read")]},
    )
    assert [tool.name for tool in box.tools] == ["files__read", "files__read_2", "mcp__web__read"]
    assert (box.client_name("files__read_2").name, box.client_name("files__read_2").namespace) == ("read", "files")
    assert box.client_name("files__read").namespace is None
    assert box.tools[1].description == "All about files."
    turn = messages(call("a", "read", namespace="files"), call("b", "gone", namespace="old"), toolbox=box)
    assert [c["function"]["name"] for c in turn[0]["tool_calls"]] == ["files__read_2", "old__gone"]


def test_a_custom_tool_is_a_function_of_one_text() -> None:
    grammar = {"type": "grammar", "syntax": "regex", "definition": "[a-z]+"}
    lark = {"type": "grammar", "syntax": "lark", "definition": "start: WORD"}
    box = toolbox(
        {"type": "custom", "name": "a"},
        {"type": "custom", "name": "b", "format": grammar},
        {"type": "custom", "name": "c", "format": lark},
    )
    plain, by_regex, by_lark = box.tools
    assert plain.parameters is not None
    assert plain.parameters["required"] == ["input"]
    assert by_regex.strict
    assert by_regex.parameters is not None
    assert by_regex.parameters["properties"]["input"]["pattern"] == "^(?:[a-z]+)$"
    assert "start: WORD" in (by_lark.description or "")
    assert box.warnings == ["the grammar of tools[2] is described to the model and not enforced"]
    item = {"type": "custom_tool_call", "call_id": "a", "name": "a", "input": 'x"y'}
    arguments = messages(item, toolbox=box)[0]["tool_calls"][0]["function"]["arguments"]
    assert arguments == '{"input":"x\\"y"}'


@pytest.mark.parametrize(
    ("choice", "mode", "allowed"),
    [
        (None, "auto", None),
        ("none", "none", None),
        ("required", "required", None),
        ({"type": "function", "name": "f"}, "required", ("f",)),
        ({"type": "custom", "name": "p"}, "required", ("p",)),
        (
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "g", "namespace": "n"}, {"type": "custom", "name": "p"}],
            },
            "auto",
            ("n__g", "p"),
        ),
    ],
)
def test_tool_choices(choice: Any, mode: str, allowed: tuple[str, ...] | None) -> None:
    namespace = {"type": "namespace", "name": "n", "description": "d", "tools": [function("g")]}
    box = toolbox(function("f"), {"type": "custom", "name": "p"}, namespace)
    made = box.choice(ResponsesRequest.model_validate({"model": "m", "input": "x", "tool_choice": choice}))
    assert (made.mode, made.allowed) == (mode, allowed)
