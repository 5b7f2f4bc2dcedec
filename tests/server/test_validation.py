"""Every failure of a body has OpenAI's code and names its place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pellucid.server.errors import ApiError
from pellucid.server.schemas.chat import ChatCompletionRequest
from pellucid.server.schemas.completions import CompletionRequest
from pellucid.server.schemas.tokenization import TokenizeRequest
from pellucid.server.validation import parse_body

# ruff: noqa: E501

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def refusal(model: Any, body: Any) -> ApiError:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(ApiError) as caught:
        parse_body(raw, model, max_depth=64)
    assert set(caught.value.body()["error"]) == {"message", "type", "param", "code"}
    assert caught.value.type == "invalid_request_error"
    return caught.value


def user(content: Any) -> dict[str, Any]:
    return {**CHAT, "messages": [{"role": "user", "content": content}]}


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"model": "m"}, "missing_required_parameter", "messages"),
        ({"messages": CHAT["messages"]}, "missing_required_parameter", "model"),
        ({**CHAT, "messages": []}, "empty_array", "messages"),
        ({**CHAT, "messages": "hi"}, "invalid_type", "messages"),
        ({**CHAT, "messages": ["hi"]}, "invalid_type", "messages[0]"),
        ({**CHAT, "messages": [{"role": "bad", "content": "x"}]}, "invalid_value", "messages[0].role"),
        ({**CHAT, "messages": [{"content": "x"}]}, "missing_required_parameter", "messages[0].role"),
        ({**CHAT, "messages": [{"role": "user"}]}, "missing_required_parameter", "messages[0].content"),
        ({**CHAT, "messages": [{"role": "tool", "content": ""}]}, "missing_required_parameter", "messages[0].tool_call_id"),
        (user(5), "invalid_type", "messages[0].content"),
        (user(None), "invalid_type", "messages[0].content"),
        (user([{"type": "image_url", "image_url": {"url": "x"}}]), "invalid_value", "messages[0].content[0].type"),
        (user([{"type": "input_audio", "input_audio": {}}]), "invalid_value", "messages[0].content[0].type"),
        (user([{"type": "text"}]), "missing_required_parameter", "messages[0].content[0].text"),
        ({**CHAT, "n": 0}, "integer_below_min_value", "n"),
        ({**CHAT, "n": 129}, "integer_above_max_value", "n"),
        ({**CHAT, "n": True}, "invalid_type", "n"),
        ({**CHAT, "temperature": 2.1}, "decimal_above_max_value", "temperature"),
        ({**CHAT, "temperature": -0.1}, "decimal_below_min_value", "temperature"),
        ({**CHAT, "temperature": "hot"}, "invalid_type", "temperature"),
        ({**CHAT, "top_logprobs": 21}, "integer_above_max_value", "top_logprobs"),
        ({**CHAT, "max_tokens": 0}, "integer_below_min_value", "max_tokens"),
        ({**CHAT, "max_tokens": 1.5}, "invalid_type", "max_tokens"),
        ({**CHAT, "stop": ["a", "b", "c", "d", "e"]}, "array_above_max_length", "stop"),
        ({**CHAT, "stop": 5}, "invalid_type", "stop"),
        ({**CHAT, "stop": ["a", 3]}, "invalid_type", "stop[1]"),
        ({**CHAT, "stream": "yes"}, "invalid_type", "stream"),
        ({**CHAT, "stream_options": {"include_usages": True}}, "unknown_parameter", "stream_options.include_usages"),
        ({**CHAT, "stream_options": {"continuous_usage_stats": True}}, "invalid_value", "stream_options.continuous_usage_stats"),
        ({**CHAT, "no_such": 1}, "unknown_parameter", "no_such"),
        ({**CHAT, "chat_template": "{{ 1 }}"}, "unknown_parameter", "chat_template"),
        ({**CHAT, "response_format": {"type": "xml"}}, "invalid_value", "response_format.type"),
        ({**CHAT, "store": True}, "invalid_value", "store"),
        ({**CHAT, "logit_bias": {"1": 101}}, "decimal_above_max_value", "logit_bias.1"),
        ({**CHAT, "seed": 2**63}, "integer_above_max_value", "seed"),
        ({**CHAT, "seed": 2**200}, "integer_above_max_value", "seed"),
        ({**CHAT, "metadata": {"a": 5}}, "invalid_type", "metadata.a"),
        ({**CHAT, "cache_salt": ""}, "empty_string", "cache_salt"),
        ([1], "invalid_type", None),
        (b"{", None, None),
        (b"", None, None),
        (b'{"model": NaN}', None, None),
        (b'\xef\xbb\xbf{"model": "m"}', None, None),
        (b'{"model": "\xff"}', None, None),
    ],
)  # fmt: skip
def test_a_wrong_chat_request_is_refused_in_openais_words(body: Any, code: str | None, param: str | None) -> None:
    error = refusal(ChatCompletionRequest, body)
    assert (error.status, error.code, error.param) == (400, code, param)


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"prompt": 5}, "invalid_type", "prompt"),
        ({"prompt": None}, "invalid_type", "prompt"),
        ({"prompt": []}, "empty_array", "prompt"),
        ({"prompt": [[]]}, "empty_array", "prompt[0]"),
        ({"prompt": ["a", 5]}, "invalid_type", "prompt[1]"),
        ({"prompt": [1, -1]}, "integer_below_min_value", "prompt[1]"),
        ({"prompt": [[1], ["a"]]}, "invalid_type", "prompt[1][0]"),
        ({"prompt": "x", "logprobs": 21}, "integer_above_max_value", "logprobs"),
        ({"prompt": "x", "logprobs": True}, "invalid_type", "logprobs"),
    ],
)
def test_a_wrong_completion_request_names_the_place(body: dict[str, Any], code: str, param: str) -> None:
    error = refusal(CompletionRequest, {"model": "m", **body})
    assert (error.code, error.param) == (code, param)


def test_messages_say_what_was_expected_and_what_came() -> None:
    assert str(refusal(ChatCompletionRequest, user(5))) == (
        "Invalid type for 'messages[0].content': expected one of a string or an array, but got an integer instead."
    )
    assert str(refusal(ChatCompletionRequest, {**CHAT, "temperature": 2.1})) == (
        "Invalid 'temperature': decimal above maximum value. Expected a value <= 2.0, but got 2.1 instead."
    )
    assert str(refusal(ChatCompletionRequest, user([{"type": "image_url"}]))) == (
        "Invalid value: 'image_url'. Supported values are: 'text'."
    )
    assert str(refusal(ChatCompletionRequest, {**CHAT, "stop": ["a"] * 5})) == (
        "Invalid 'stop': array too long. Expected an array with maximum length 4, but got an array with length 5 instead."
    )


def test_nesting_is_bounded() -> None:
    for depth in (65, 200_000):
        error = refusal(ChatCompletionRequest, b"[" * depth + b"]" * depth)
        assert "nested too deeply" in str(error)
    parse_body(
        json.dumps({**CHAT, "chat_template_kwargs": {"a": [[[1]]]}}).encode(), ChatCompletionRequest, max_depth=64
    )


def test_half_a_surrogate_pair_is_a_400_and_a_whole_one_a_character() -> None:
    assert "surrogate" in str(refusal(ChatCompletionRequest, b'{"model": "m", "messages": "\\ud83d"}'))
    raw = b'{"model": "m", "messages": [{"role": "user", "content": "\\ud83d\\ude00 \\u0000 \\ufeff"}]}'
    body = parse_body(raw, ChatCompletionRequest, max_depth=64)
    assert body.messages[0].content == "\N{GRINNING FACE} \0 \ufeff"


def test_what_sdks_send_back_of_an_answer_is_taken() -> None:
    """The openai package dumps a whole message, its empty fields included; clients keep a tool call's index."""
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}, "index": 0}
    answer = {
        "role": "assistant",
        "content": "",
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "tool_calls": [call],
        "reasoning_content": "hm",
        "reasoning": "hm",
    }
    messages = [
        {"role": "system", "content": "s", "name": "a"},
        {"role": "developer", "content": [{"type": "text", "text": "d"}]},
        {"role": "user", "content": "u"},
        answer,
        {"role": "tool", "content": "t", "tool_call_id": "c1"},
        {"role": "assistant", "content": None, "refusal": "no"},
    ]
    body = {**CHAT, "messages": messages, "user": "me", "metadata": {"k": "v"}, "store": False, "service_tier": "auto"}
    harmless = {"tools": [], "tool_choice": "none", "modalities": ["text"], "prompt_cache_key": "k", "logit_bias": None}
    parse_body(json.dumps({**body, **harmless}).encode(), ChatCompletionRequest, max_depth=64)


def test_tokenize_takes_a_prompt_or_messages_and_not_both() -> None:
    for body in ({}, {"prompt": "x", "messages": CHAT["messages"]}, {"prompt": "x", "add_generation_prompt": True}):
        assert refusal(TokenizeRequest, body).code == "invalid_value"
