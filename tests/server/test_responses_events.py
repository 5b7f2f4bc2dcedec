"""The state machine of the Responses dialect: whatever a model says, the events are those of the specification."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response
from response_events import USAGE, check_stream

from pellucid.core.messages import FinishReason
from pellucid.frontend.answer import AnswerDelta, ToolCallDelta
from pellucid.server.errors import internal
from pellucid.server.responses_api import reasoning
from pellucid.server.responses_api.answer import ContentTokens
from pellucid.server.responses_api.custom_input import CustomInput
from pellucid.server.responses_api.events import OutputOptions, ResponseEvents
from pellucid.server.responses_api.tools import Toolbox
from pellucid.server.schemas.responses import StrictCustomTool, StrictFunctionTool, StrictNamespaceTool

TOOLS = [
    StrictFunctionTool(type="function", name="f"),
    StrictCustomTool(type="custom", name="patch"),
    StrictNamespaceTool(
        type="namespace", name="files", description="d", tools=[{"type": "function", "name": "read", "parameters": {}}]
    ),
]
NAMES = ["f", "patch", "files__read", "never_offered"]


def new_response() -> dict[str, Any]:
    return {
        "id": "resp_1", "object": "response", "created_at": 1, "status": "in_progress", "background": False,
        "error": None, "completed_at": None, "incomplete_details": None, "instructions": None, "model": "m",
        "output": [],
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": None, "metadata": {},
    }  # fmt: skip


def run(
    deltas: list[AnswerDelta], end: FinishReason | None = FinishReason.STOP, **options: Any
) -> list[dict[str, Any]]:
    """end: None for an answer that fails."""
    state = ResponseEvents(new_response(), Toolbox(TOOLS), OutputOptions(**options))
    events = state.begin()
    for delta in deltas:
        events += state.add(delta)
    events += state.fail(internal()) if end is None else state.end(end, USAGE)
    events.append(state.terminal())
    decoded = [msgspec.json.decode(event.data) for event in events]
    assert [event["type"] for event in decoded] == [event.type for event in events]
    assert decoded[-1]["response"] == state.response
    return decoded


def call(index: int, name: str | None = None, arguments: str = "") -> AnswerDelta:
    return AnswerDelta(tool_calls=(ToolCallDelta(index=index, name=name, arguments=arguments),))


CHARACTERS = 'ab "\\\n{}:é🌱\x00'
text = st.text(CHARACTERS, max_size=6)


@st.composite
def answers(draw: st.DrawFn) -> list[AnswerDelta]:
    """Reasoning, content and calls in any order, in any pieces, several in one delta."""
    deltas: list[AnswerDelta] = []
    num_calls = 0
    for _ in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from(["reasoning", "content", "both", "call"]))
        if kind == "call":
            name = draw(st.sampled_from(NAMES))
            pieces = draw(st.lists(text, max_size=3))
            first = ToolCallDelta(index=num_calls, name=name)
            rest = [ToolCallDelta(index=num_calls, arguments=piece) for piece in pieces]
            together = draw(st.booleans())
            calls = [(first, *rest)] if together else [(first,), *((piece,) for piece in rest)]
            content = draw(text)
            deltas += [AnswerDelta(content=content if i == 0 else "", tool_calls=c) for i, c in enumerate(calls)]
            num_calls += 1
        else:
            said = draw(text.filter(bool))
            deltas.append(
                AnswerDelta(reasoning=said if kind != "content" else "", content=said if kind != "reasoning" else "")
            )
    return deltas


@given(
    answers(),
    st.sampled_from([FinishReason.STOP, FinishReason.LENGTH, None]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, 1, 2]),
)
def test_a_stream_adds_up_to_the_response_whatever_is_said(
    deltas: list[AnswerDelta], end: FinishReason | None, as_summary: bool, encrypted: bool, max_calls: int | None
) -> None:
    events = run(deltas, end, reasoning_as_summary=as_summary, encrypted_reasoning=encrypted, max_calls=max_calls)
    final = check_stream(events)
    Response.model_validate(final, strict=True)
    said = "".join(delta.content for delta in deltas)
    output = final["output"]
    assert "".join(part["text"] for item in output if item["type"] == "message" for part in item["content"]) == said
    calls = [item for item in output if item["type"].endswith("_call")]
    assert len(calls) <= (max_calls or 100)
    status = {FinishReason.STOP: "completed", FinishReason.LENGTH: "incomplete", None: "failed"}[end]
    assert final["status"] == status
    whole = [item["status"] for item in output[: len(output) if end is FinishReason.STOP else -1]]
    assert set(whole) <= {"completed"}


def test_the_order_of_a_message_is_that_of_the_specification() -> None:
    events = run([AnswerDelta(content="a"), AnswerDelta(content="b")])
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip


@pytest.mark.parametrize("as_summary", [False, True])
def test_reasoning_comes_as_content_or_as_the_summary_that_was_asked_for(as_summary: bool) -> None:
    events = run([AnswerDelta(reasoning="hm"), AnswerDelta(content="a")], reasoning_as_summary=as_summary)
    types = [event["type"].removeprefix("response.") for event in events][2:8]
    parts = "reasoning_summary_part" if as_summary else "content_part"
    texts = "reasoning_summary_text" if as_summary else "reasoning_text"
    assert types == ["output_item.added", f"{parts}.added", f"{texts}.delta", f"{texts}.done",
                     f"{parts}.done", "output_item.done"]  # fmt: skip
    item = events[-1]["response"]["output"][0]
    part = {"type": "summary_text" if as_summary else "reasoning_text", "text": "hm"}
    assert item["summary"] == ([part] if as_summary else [])
    assert item.get("content") == (None if as_summary else [part])


def test_encoded_reasoning_can_be_read_back_here_and_foreign_secrets_cannot() -> None:
    events = run([AnswerDelta(reasoning="grün 🌱")], encrypted_reasoning=True)
    token = events[-1]["response"]["output"][0]["encrypted_content"]
    assert reasoning.decode(token) == "grün 🌱"
    assert reasoning.decode("gAAAAABm") is None
    assert reasoning.decode("pellucid1.!!") is None


def test_calls_go_back_under_the_names_the_client_gave() -> None:
    deltas = [
        call(0, "files__read", '{"path": 1}'),
        call(1, "f"),
        call(2, "patch", '{"input": "a\\nb'),
        call(2, None, '\\u00e9"}'),
    ]
    read, f, patch = run(deltas)[-1]["response"]["output"]
    assert (read["type"], read["name"], read["namespace"], read["arguments"]) == (
        "function_call", "read", "files", '{"path": 1}',
    )  # fmt: skip
    assert (f["type"], f["name"], f["arguments"], "namespace" in f) == ("function_call", "f", "{}", False)
    assert (patch["type"], patch["name"], patch["input"]) == ("custom_tool_call", "patch", "a\nbé")
    assert len({item["call_id"] for item in (read, f, patch)}) == 3


def test_an_answer_cut_in_a_call_is_incomplete_and_says_why() -> None:
    final = run([call(0, "f", '{"a": "b')], FinishReason.LENGTH)[-1]["response"]
    assert final["status"] == "incomplete"
    assert final["incomplete_details"] == {"reason": "max_output_tokens"}
    assert final["usage"] == USAGE
    assert final["output"][0]["status"] == "incomplete"
    assert final["output"][0]["arguments"] == '{"a": "b'


def test_a_failed_answer_keeps_what_was_said() -> None:
    events = run([AnswerDelta(content="half")], None)
    assert events[-1]["type"] == "response.failed"
    final = events[-1]["response"]
    assert final["error"]["code"] == "server_error"
    assert final["output"][0]["content"][0]["text"] == "half"


@given(st.text(CHARACTERS, max_size=20), st.data())
def test_every_chunking_of_a_custom_tools_arguments_gives_its_text(said: str, data: st.DataObject) -> None:
    ascii_only, spaced = data.draw(st.booleans()), data.draw(st.booleans())
    arguments = json.dumps({"input": said}, ensure_ascii=ascii_only, separators=(", ", " : ") if spaced else None)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(arguments)), max_size=8)))
    reader = CustomInput()
    pieces = [arguments[i:j] for i, j in zip([0, *cuts], [*cuts, len(arguments)], strict=True)]
    assert "".join(map(reader.push, pieces)) + reader.finish() == said


@pytest.mark.parametrize("arguments", ["", "{}", "plain text", '{"patch": "x"}', "[1]"])
def test_custom_arguments_of_another_shape_are_given_as_they_are(arguments: str) -> None:
    reader = CustomInput()
    assert "".join(map(reader.push, arguments)) + reader.finish() == arguments


def test_half_a_surrogate_pair_in_a_custom_tools_text_is_no_error() -> None:
    final = run([call(0, "patch", r'{"input": "a\ud83dz"}')])[-1]["response"]
    assert final["output"][0]["input"] == "a\ufffdz"


def test_the_tokens_of_content_are_found_behind_reasoning_and_markers() -> None:
    def token(text: str) -> dict[str, Any]:
        return {"token": text, "bytes": list(text.encode()), "logprob": -1.0}

    tokens = ContentTokens()
    tokens.push([token(text) for text in ("<think>", "I ", "am", "</think>", "\n\n", "I ", "am", " ", "é!")])
    assert tokens.take("I am"[:2] + "am") == [token("I "), token("am")]
    assert tokens.take("I ") == [token("I ")]
    assert tokens.take("am é") == [token("am"), token(" "), token("é!")]
    assert tokens.take("!") == []
