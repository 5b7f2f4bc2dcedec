"""Whatever pieces an answer comes in, the dialects make the same items and blocks of it, in the order of its text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parsed import pieces_of
from response_events import USAGE, check_stream

from pellucid.core.messages import FinishReason
from pellucid.frontend.parsing.answer_parser import answer_parser
from pellucid.frontend.parsing.formats import REASONING_FORMATS, TOOL_FORMATS
from pellucid.frontend.tools import Tool
from pellucid.server.anthropic_blocks import ContentBlocks, whole_blocks
from pellucid.server.openai_answer import ChatAnswer
from pellucid.server.responses_api.events import OutputOptions, ResponseEvents
from pellucid.server.responses_api.tools import Toolbox
from pellucid.server.schemas.responses import StrictCustomTool, StrictFunctionTool

PARAMETERS = {"type": "object", "properties": {"text": {"type": "string"}, "n": {"type": "integer"}}}
TOOLBOX = Toolbox(
    [
        StrictFunctionTool(type="function", name="mix", parameters=PARAMETERS, strict=False),
        StrictCustomTool(type="custom", name="patch"),
    ]
)
TOOLS: Sequence[Tool] = TOOLBOX.tools
CALLS = [("mix", {"text": 'a "q" \\ }] ü 🙂', "n": -3}), ("patch", {"input": "one\ntwo"}), ("mix", {})]
RESPONSE = {
    "id": "resp_1", "object": "response", "created_at": 1, "status": "in_progress", "background": False,
    "error": None, "completed_at": None, "incomplete_details": None, "instructions": None, "model": "m",
    "output": [], "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": None, "metadata": {},
}  # fmt: skip
every_format = pytest.mark.parametrize("name", TOOL_FORMATS)


def parser_of(name: str) -> Any:
    return answer_parser(REASONING_FORMATS["think"], calls=TOOL_FORMATS[name].parser(TOOLS))


def items_of(name: str, pieces: Sequence[str]) -> list[dict[str, Any]]:
    """The output of a response, from the events that stream it, without what is new in each."""
    state = ResponseEvents({**RESPONSE, "output": []}, TOOLBOX, OutputOptions())
    events = state.begin()
    parser = parser_of(name)
    for piece in pieces:
        for delta in parser.push(piece):
            events += state.add(delta)
    for delta in parser.finish():
        events += state.add(delta)
    events += state.end(FinishReason.STOP, USAGE, cut_off=parser.in_call)
    events.append(state.terminal())
    final = check_stream([msgspec.json.decode(event.data) for event in events])
    return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in final["output"]]


def blocks_of(name: str, pieces: Sequence[str]) -> list[dict[str, Any]]:
    blocks, parser = ContentBlocks(), parser_of(name)
    events = [event for piece in pieces for delta in parser.push(piece) for event in blocks.push(delta)]
    events += [event for delta in parser.finish() for event in blocks.push(delta)] + blocks.finish()
    return [{k: v for k, v in block.items() if k != "id"} for block in whole_blocks(events)]


def sample_of(name: str) -> str:
    """What a model of that format may write: reasoning, text, calls, and text behind them."""
    written = TOOL_FORMATS[name].calls_text(CALLS)
    return f"<think>\nhm\n</think>\n\n{written}\nDone. {written}\n and {written}"


@every_format
@settings(max_examples=40)
@given(data=st.data())
def test_every_chunking_gives_the_same_items_and_blocks(name: str, data: st.DataObject) -> None:
    sample = sample_of(name)
    cut = st.integers(0, len(sample)).map(lambda length: sample[:length])
    text = data.draw(st.one_of(st.just(sample), cut, pieces_of(sample), st.text()), label="text")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=20), label="cuts"))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert items_of(name, pieces) == items_of(name, [text])
    assert blocks_of(name, pieces) == blocks_of(name, [text])


@pytest.mark.parametrize("name", ["hermes", "smollm", "qwen3_coder", "gemma", "functiongemma", "mistral_args"])
def test_text_behind_a_call_stays_behind_it(name: str) -> None:
    """One delta may hold the end of a call and the text after it: what an engine says while a reader is behind."""
    calls = TOOL_FORMATS[name].calls_text(CALLS[:1])
    for at in range(len(calls)):
        pieces = ["Before.\n", calls[:at], f"{calls[at:]}\nDone."]
        items = items_of(name, pieces)
        assert [item["type"] for item in items] == ["message", "function_call", "message"]
        assert msgspec.json.decode(items[1]["arguments"]) == CALLS[0][1]
        assert items[2]["content"][0]["text"].strip() == "Done."
        blocks = blocks_of(name, pieces)
        assert [block["type"] for block in blocks] == ["text", "tool_use", "text"]
        assert blocks[1]["input"] == CALLS[0][1]


@pytest.mark.parametrize("name", [name for name in TOOL_FORMATS if name != "pythonic"])  # says nothing of half a call
def test_a_call_that_a_stop_string_cut_off_is_no_call_to_make(name: str) -> None:
    text = TOOL_FORMATS[name].calls_text(CALLS[:1])
    cut = text[: text.index("}] ü")]
    for pieces in ([cut], list(cut)):
        answer = ChatAnswer(parser_of(name))
        message = answer.whole("".join(pieces))
        assert message["tool_calls"][0]["function"]["name"] == "mix"
        assert answer.finish_reason(FinishReason.STOP) == "stop"
        assert items_of(name, pieces)[-1]["status"] == "incomplete"
    whole = ChatAnswer(parser_of(name))
    whole.whole(text)
    assert whole.finish_reason(FinishReason.STOP) == "tool_calls"
    assert items_of(name, [text])[-1]["status"] == "completed"
