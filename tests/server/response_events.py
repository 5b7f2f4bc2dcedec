"""Events of the Responses API as OpenAI's own package reads them, and what they add up to."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent

MODELS = {
    name: model
    for model in get_args(get_args(ResponseStreamEvent)[0])
    for name in get_args(model.model_fields["type"].annotation)
}
USAGE = {
    "input_tokens": 3,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": 4,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 7,
}
TERMINAL = ("response.completed", "response.incomplete", "response.failed")


def parsed(event: dict[str, Any]) -> Any:
    """By the package's model for its type, strictly: no missing field, no other type."""
    return MODELS[event["type"]].model_validate(event, strict=True)


def check_stream(events: list[dict[str, Any]]) -> dict[str, Any]:
    """That a whole stream is what the specification says; returns the final response."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    models = [parsed(event) for event in events]
    types = [event["type"] for event in events]
    assert types[0] == "response.created"
    assert types[1] in ("response.in_progress", "response.queued")
    assert types[-1] in TERMINAL
    assert not set(types[:-1]) & set(TERMINAL)
    final = events[-1]["response"]
    Response.model_validate(final, strict=True)
    check_items(events, final)
    assert accumulated(events) == final["output"]
    assert all(event["response"]["id"] == final["id"] for event in events if "response" in event)
    state = ResponseStreamState(input_tools=omit, text_format=omit)
    for model in models:  # the SDK's own accumulation raises where identities or indices do not fit
        state.handle_event(model)
    return final


def check_items(events: list[dict[str, Any]], final: dict[str, Any]) -> None:
    """Items one after another, each added, filled and done before the next; done says what the response says."""
    open_index: int | None = None
    for event in events:
        if event["type"] == "response.output_item.added":
            assert open_index is None
            open_index = event["output_index"]
            assert event["item"]["status"] == "in_progress"
        elif event["type"] == "response.output_item.done":
            assert event["output_index"] == open_index
            assert event["item"] == final["output"][open_index]
            open_index = None
        elif "output_index" in event:
            assert event["output_index"] == open_index
            assert event["item_id"] == final["output"][open_index]["id"]
    assert open_index is None
    assert [e["output_index"] for e in events if e["type"] == "response.output_item.added"] == list(
        range(len(final["output"]))
    )


def accumulated(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The output that the deltas alone add up to; of output_item.done only the status and the encoding are taken."""
    output: list[dict[str, Any]] = []
    for event in events:
        kind = event["type"].removeprefix("response.")
        item = output[event["output_index"]] if event.get("output_index", len(output)) < len(output) else None
        if kind == "output_item.added":
            output.append(msgspec.json.decode(msgspec.json.encode(event["item"])))
        elif item is None:
            continue
        elif kind == "content_part.added":
            item.setdefault("content", []).append(dict(event["part"]))
        elif kind == "reasoning_summary_part.added":
            item["summary"].append(dict(event["part"]))
        elif kind == "output_text.delta":
            part = item["content"][event["content_index"]]
            part["text"] += event["delta"]
            part["logprobs"] = part["logprobs"] + event["logprobs"]
        elif kind == "reasoning_text.delta":
            item["content"][event["content_index"]]["text"] += event["delta"]
        elif kind == "reasoning_summary_text.delta":
            item["summary"][event["summary_index"]]["text"] += event["delta"]
        elif kind == "function_call_arguments.delta":
            item["arguments"] += event["delta"]
        elif kind == "custom_tool_call_input.delta":
            item["input"] += event["delta"]
        elif kind == "output_text.done":
            assert item["content"][event["content_index"]]["text"] == event["text"]
        elif kind == "function_call_arguments.done":
            assert item["arguments"] == event["arguments"]
        elif kind == "custom_tool_call_input.done":
            assert item["input"] == event["input"]
        elif kind == "output_item.done":
            item["status"] = event["item"]["status"]
            if "encrypted_content" in event["item"]:
                item["encrypted_content"] = event["item"]["encrypted_content"]
    return output
