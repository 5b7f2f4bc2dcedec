"""Messages as clients send them to messages as a model's chat template reads them, with or without tools of its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from pellucid.frontend.parsing.tool_format import ToolFormat
from pellucid.frontend.tools import JsonObject, Tool

_MISTRAL_ID_LENGTH = 9


def as_the_template_reads(messages: Sequence[JsonObject], source: str) -> list[JsonObject]:
    """For a template that knows tools. source: its text.

    Templates take the arguments of past calls as objects, most know no developer, and Mistral's take only ids of nine
    characters.
    """
    short_ids = "tool_call_id" in source and "length" in source and "9" in source and "[TOOL_CALLS]" in source
    result: list[JsonObject] = []
    for message in messages:
        message = _with_known_role(message, source)
        if calls := message.get("tool_calls"):
            message = {**message, "tool_calls": [_with_parsed_arguments(call, short_ids) for call in calls]}
        if short_ids and "tool_call_id" in message:
            message = {**message, "tool_call_id": _short(message["tool_call_id"])}
        result.append(message)
    return result


def without_tool_words(
    messages: Sequence[JsonObject], tools: Sequence[Tool], tool_format: ToolFormat, source: str
) -> list[JsonObject]:
    """For a template that knows no tools: the system text describes them, past calls and results are text."""
    result: list[JsonObject] = []
    previous = ""
    for message in messages:
        message = _with_known_role(message, source)
        if message["role"] == "tool":
            text = f"<tool_response>\n{message.get('content') or ''}\n</tool_response>"
            if previous == "tool":  # the results of calls that were made together
                result[-1]["content"] += f"\n{text}"
            else:
                result.append({"role": "user", "content": text})
        elif calls := message.get("tool_calls"):
            written = tool_format.calls_text([(c["function"]["name"], _arguments(c)) for c in calls])
            content = message.get("content")
            result.append({"role": "assistant", "content": f"{content}\n{written}" if content else written})
        else:
            result.append(message)
        previous = message["role"]
    if not tools:
        return result
    instructions = tool_format.instructions(tools)
    if result and result[0]["role"] == "system":
        return [{**result[0], "content": f"{result[0]['content']}\n\n{instructions}"}, *result[1:]]
    return [{"role": "system", "content": instructions}, *result]


def _with_known_role(message: JsonObject, source: str) -> JsonObject:
    if message["role"] == "developer" and "developer" not in source:
        return {**message, "role": "system"}
    return message


def _with_parsed_arguments(call: JsonObject, short_ids: bool) -> JsonObject:
    call = {**call, "function": {**call["function"], "arguments": _arguments(call)}}
    if short_ids and "id" in call:
        call["id"] = _short(call["id"])
    return call


def _arguments(call: JsonObject) -> Any:
    """The object that the text is, or the text where it is none (a call that was cut off)."""
    text = call["function"]["arguments"]
    try:
        value = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def _short(call_id: str) -> str:
    if len(call_id) == _MISTRAL_ID_LENGTH and call_id.isalnum():
        return call_id
    return hashlib.blake2b(call_id.encode("utf-8", "replace")).hexdigest()[:_MISTRAL_ID_LENGTH]
