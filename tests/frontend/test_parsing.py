"""Every way of cutting a text gives the parse of the whole, for every format; what is no call is lost to nobody."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parsed import Parsed, parse, pieces_of

from pellucid.frontend.answer import AnswerParser
from pellucid.frontend.parsing.answer_parser import answer_parser
from pellucid.frontend.parsing.formats import REASONING_FORMATS, TOOL_FORMATS
from pellucid.frontend.tools import Tool

THINK = REASONING_FORMATS["think"]
TOOLS = (
    Tool("get_weather", "Weather", {"type": "object", "properties": {"city": {"type": "string"}}}),
    Tool(
        "mix",
        None,
        {
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "n": {"type": "integer"},
                "flag": {"type": "boolean"},
                "list": {"type": "array", "items": {"type": "string"}},
                "inner": {"type": "object"},
            },
        },
    ),
    Tool("now"),
)
ARGUMENTS = {
    "text": 'a "q" \\ }] \n </tool_call> ü 東京 🙂',
    "n": -3,
    "flag": True,
    "list": ["x", "]"],
    "inner": {"a": None},
}

STRING_ENDS = ("\n</parameter>", "<escape>", '<|"|>')
NO_CALLS = ("", "  Hello {world} [1] <b>x</b> \n", "<tool", "{", "[", '{"name": "unknown"}', "<think", "a <think> b")


def whole(name: str, text: str, *, is_open: bool = False) -> Parsed:
    """The parse of a text, which is that of its characters one by one."""
    results = [
        parse(answer_parser(THINK, is_open=is_open, calls=TOOL_FORMATS[name].parser(TOOLS)), pieces)
        for pieces in ([text], list(text))
    ]
    assert results[0] == results[1]
    return results[0]


every_format = pytest.mark.parametrize("name", TOOL_FORMATS)


@every_format
def test_calls_as_the_model_writes_them_are_read(name: str) -> None:
    calls = [("mix", ARGUMENTS), ("now", {}), ("get_weather", {"city": "Zürich"})]
    parsed = whole(name, TOOL_FORMATS[name].calls_text(calls))
    assert parsed.values == calls
    assert (parsed.reasoning, parsed.content) == ("", "")


@every_format
def test_reasoning_is_apart_and_calls_within_it_are_not_made(name: str) -> None:
    calls = TOOL_FORMATS[name].calls_text([("now", {})])
    parsed = whole(name, f"<think>\nshall I {calls}?\n</think>\n\n{calls}")
    assert parsed == Parsed(f"shall I {calls}?", "", [("now", "{}")])
    assert whole(name, f"shall I?\n</think>\n\n{calls}", is_open=True) == Parsed("shall I?", "", [("now", "{}")])


@every_format
def test_text_without_calls_is_content_to_the_character(name: str) -> None:
    for text in NO_CALLS:
        assert whole(name, text) == Parsed("", text)


@every_format
def test_a_call_that_is_cut_off_keeps_what_was_written(name: str) -> None:
    text = TOOL_FORMATS[name].calls_text([("mix", ARGUMENTS)])
    wanted = whole(name, text).calls[0][1]
    for length in range(len(text)):
        parsed = whole(name, text[:length])
        if parsed.calls:
            ((called, arguments),) = parsed.calls
            assert called == "mix"
            # a piece of the marker that would have ended a string is text, as far as anyone can tell
            pieces = [json.dumps(end[:n])[1:-1] for end in STRING_ENDS for n in range(len(end))]
            assert any(wanted.startswith(arguments.removesuffix(piece)) for piece in pieces)
        else:
            assert parsed.content == text[:length]


@every_format
@settings(max_examples=120)
@given(data=st.data())
def test_every_chunking_gives_the_parse_of_the_whole(name: str, data: st.DataObject) -> None:
    tool_format = TOOL_FORMATS[name]
    call = tool_format.calls_text([("mix", ARGUMENTS), ("now", {})])
    sample = f"<think>\nhm\n</think>\n\nText. {call}\n end {call}"
    text = data.draw(st.one_of(pieces_of(sample), st.just(sample), st.text()), label="text")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=20), label="cuts"))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    is_open = data.draw(st.booleans(), label="is_open")

    def parser() -> AnswerParser:
        return answer_parser(THINK, is_open=is_open, calls=tool_format.parser(TOOLS))

    assert parse(parser(), pieces) == parse(parser(), [text])


JSON_IN_TAGS = ["hermes", "smollm"]


@pytest.mark.parametrize("name", JSON_IN_TAGS)
@pytest.mark.parametrize(
    "inner", ["oops", '{"nam": 1}', '{"name": 5}', "", '{"name": "now", "arguments": 7}', '{"name": "now" "a": 1}']
)
def test_a_malformed_call_is_content_and_the_next_one_is_read(name: str, inner: str) -> None:
    bad = f"<tool_call>{inner}</tool_call>"
    parsed = whole(name, f'{bad} <tool_call>{{"name": "now", "arguments": {{}}}}</tool_call>')
    assert parsed == Parsed("", bad, [("now", "{}")])


@pytest.mark.parametrize("name", JSON_IN_TAGS)
@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"name": "now"}', "{}"),
        ('{"name": "now", "arguments": null}', "{}"),
        ('{"name": "now", "arguments": ""}', "{}"),
        ('{"name": "now", "arguments": "{\\"a\\": 1}"}', '{"a": 1}'),
        ('{"arguments": {"a": 1}, "name": "now"}', '{"a": 1}'),
        ('{"name": "now", "parameters": {"a": 1}}', '{"a": 1}'),
        ('{"id": "7", "name": "now", "arguments": {"a": "x\ny"}}', '{"a": "x\\ny"}'),
        ('{"name": "now", "arguments": {"a": 1}}}', '{"a": 1}'),
        ('{"name": "now", "arguments": {"a": \'x\'}}', "{\"a\": 'x'}}"),
    ],
)
def test_what_models_make_of_a_call_is_taken_for_what_it_means(name: str, written: str, arguments: str) -> None:
    parsed = whole(name, f"<tool_call>\n{written}\n</tool_call>")
    assert (parsed.content, parsed.calls[0][0], parsed.calls[0][1].strip()) == ("", "now", arguments)


def test_text_around_calls_is_kept() -> None:
    call = TOOL_FORMATS["hermes"].calls_text([("now", {})])
    parsed = whole("hermes", f"Before.\n\n{call}\n\n{call}\nAfter. \n")
    assert parsed == Parsed("", "Before.\nAfter. \n", [("now", "{}"), ("now", "{}")])


def test_arguments_come_as_they_are_written() -> None:
    parser = answer_parser(calls=TOOL_FORMATS["hermes"].parser(TOOLS))
    assert not parser.push('<tool_call>\n{"name": "mix", "argum')
    deltas = [
        [call for delta in parser.push(text) for call in delta.tool_calls]
        for text in ('ents": {"te', 'xt": "hel', "lo", '"}', "}\n</tool_call>")
    ]
    assert [[call.arguments for call in calls] for calls in deltas] == [['{"te'], ['xt": "hel'], ["lo"], ['"}'], []]
    assert deltas[0][0].name == "mix"


@pytest.mark.parametrize(
    ("schema", "written", "value"),
    [
        ({"type": ["string", "null"]}, "012", "012"),
        ({"type": ["string", "null"]}, "12", "12"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "true", "true"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "None", None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, '{"a": 1}', '{"a": 1}'),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, '"quoted"', "quoted"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, '"quoted" and  more ', '"quoted" and  more '),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "null", "null"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "12", 12),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "1.5", "1.5"),
        ({"anyOf": [{"type": "string"}, {"type": "number"}]}, "12", 12),
        ({"enum": ["1", 2]}, "2", 2),
        ({"enum": ["1", None]}, "1", "1"),
        ({"type": "integer"}, "nothing", "nothing"),
        ({"type": "integer"}, "[1]", [1]),
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "array"}, '["</parameter>"]', ["</parameter>"]),
        ({"type": "object"}, '{"a": "two\n lines"}', {"a": "two\n lines"}),
    ],
)
def test_a_value_written_bare_is_of_a_type_that_its_schema_allows(schema: object, written: str, value: object) -> None:
    tools = [Tool("f", None, {"type": "object", "properties": {"my key": schema}})]
    text = f"<tool_call>\n<function=f>\n<parameter=my key>\n{written}\n</parameter>\n</function>\n</tool_call>"
    for pieces in ([text], list(text)):
        parsed = parse(answer_parser(calls=TOOL_FORMATS["qwen3_coder"].parser(tools)), pieces)
        assert (parsed.content, parsed.values) == ("", [("f", {"my key": value})])


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ("from='x', class=1, user-id=None", {"from": "x", "class": 1, "user-id": None}),
        (r'a="\/\ud83d\ude00", b=[True, "x"], c=true', {"a": "/😀", "b": [True, "x"], "c": True}),
        ("a={'b': (1, 'x=,')}, ", {"a": {"b": [1, "x=,"]}}),
        ("a=1j", None),
        ("a=open('x')", None),
        ("**a", None),
        ("1", None),
        (",", None),
    ],
)
def test_arguments_of_python_calls_are_literals_under_any_name(written: str, arguments: object) -> None:
    tools = [Tool("fs/read:x.y-z")]
    text = f"[fs/read:x.y-z({written})]"
    for pieces in ([text], list(text)):
        parsed = parse(answer_parser(calls=TOOL_FORMATS["pythonic"].parser(tools)), pieces)
        assert parsed.values == ([] if arguments is None else [("fs/read:x.y-z", arguments)])
        assert parsed.content == (text if arguments is None else "")
