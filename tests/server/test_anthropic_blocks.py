"""From AnswerDeltas to content blocks, and from Anthropic's messages to a conversation: the parts without a server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types import RawMessageStreamEvent, message_create_params
from anthropic.types.beta import message_create_params as beta_params
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from pellucid.frontend.answer import AnswerDelta, ToolCallDelta
from pellucid.frontend.chat_template import ChatTemplate
from pellucid.server.anthropic_blocks import ContentBlocks, whole_blocks
from pellucid.server.anthropic_conversation import conversation_of
from pellucid.server.conversation import Conversation, ToolChoice
from pellucid.server.schemas.messages import MessagesRequest, unknown_fields

EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
EPHEMERAL = {"type": "ephemeral"}


def events_of(*deltas: AnswerDelta) -> list[dict[str, Any]]:
    blocks = ContentBlocks()
    return [event for delta in deltas for event in blocks.push(delta)] + blocks.finish()


def call(index: int, name: str | None = None, arguments: str = "") -> AnswerDelta:
    return AnswerDelta(tool_calls=(ToolCallDelta(index=index, name=name, arguments=arguments),))


WHOLE = (
    AnswerDelta(reasoning="Let me "),
    AnswerDelta(reasoning="see.", content="\n"),
    AnswerDelta(content="\nI call two.\n"),
    call(0, "f", '{"a": "'),
    call(0, None, 'é"}'),
    call(1, "g"),
)


def test_thinking_text_and_calls_are_blocks_one_after_another() -> None:
    events = events_of(*WHOLE)
    for event in events:
        EVENT.validate_python(event, strict=True)
    open_blocks: list[int] = []
    for event in events:
        if event["type"] == "content_block_start":
            assert not open_blocks, "the one before has ended"
            open_blocks.append(event["index"])
        elif event["type"] == "content_block_stop":
            assert open_blocks.pop() == event["index"]
        else:
            assert open_blocks == [event["index"]]
    assert [event["index"] for event in events if event["type"] == "content_block_start"] == [0, 1, 2, 3]
    thinking, text, first, second = whole_blocks(events)
    assert (thinking["type"], thinking["thinking"]) == ("thinking", "Let me see.")
    assert len(thinking["signature"]) > 20
    assert text == {"type": "text", "text": "\n\nI call two.\n"}
    assert (first["name"], first["input"]) == ("f", {"a": "é"})
    assert (second["name"], second["input"]) == ("g", {}), "no arguments are {}"
    assert first["id"].startswith("toolu_")
    assert first["id"] != second["id"]


def test_a_signature_is_the_thoughts_own() -> None:
    def signature(*thoughts: str) -> str:
        (block,) = whole_blocks(events_of(*(AnswerDelta(reasoning=thought) for thought in thoughts)))
        return block["signature"]

    assert signature("a", "b") == signature("ab")
    assert signature("ab") != signature("ac")


def test_white_space_around_calls_is_no_block() -> None:
    events = events_of(AnswerDelta(content="\n\n"), call(0, "f", "{}"), AnswerDelta(content="\n"))
    assert [block["type"] for block in whole_blocks(events)] == ["tool_use"]


@pytest.mark.parametrize("arguments", ['{"path": "a", "content": "begun', "[1, 2]", "nonsense"])
def test_a_call_that_is_cut_off_keeps_what_is_whole(arguments: str) -> None:
    (block,) = whole_blocks(events_of(call(0, "f", arguments)))
    assert block["input"] == ({"path": "a"} if arguments.startswith("{") else {})


@given(st.lists(st.sampled_from([*WHOLE, AnswerDelta(content=" "), AnswerDelta(content="x")]), max_size=12))
def test_nothing_is_lost_whatever_comes(deltas: list[AnswerDelta]) -> None:
    blocks = whole_blocks(events_of(*deltas))
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    assert "".join(text.split()) == "".join("".join(delta.content for delta in deltas).split())
    thinking = "".join(block["thinking"] for block in blocks if block["type"] == "thinking")
    assert thinking == "".join(delta.reasoning for delta in deltas)


# requests ------------------------------------------------------------------------------------------------------------


def converse(takes_late_system: bool = True, **body: Any) -> Conversation:
    body = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}], **body}
    return conversation_of(MessagesRequest.model_validate(body), takes_late_system=takes_late_system)


def shown(conversation: Conversation) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in conversation.messages]


AGENT = {
    "system": [
        {"type": "text", "text": "request 1"},
        {"type": "text", "text": "You are an agent.", "cache_control": EPHEMERAL},
        {"type": "text", "text": "Rules.", "cache_control": EPHEMERAL},
    ],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "make"}, {"type": "text", "text": "a file"}]},
        {"role": "system", "content": "The tools have changed."},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "I "},
                {"type": "text", "text": "do."},
                {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "touch é"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "no"}],
                 "is_error": True},
                {"type": "text", "text": "go on"},
            ],
        },
    ],
}  # fmt: skip


def test_an_agents_conversation_in_the_templates_terms() -> None:
    conversation = converse(**AGENT)
    assert shown(conversation) == [
        ("system", "You are an agent.\nRules."),
        ("user", "make\na file"),
        ("system", "The tools have changed."),
        ("assistant", "I do."),
        ("tool", "Error: no"),
        ("user", "go on"),
        ("system", "request 1"),  # what changes comes last
    ]
    assistant, tool = conversation.messages[3:5]
    assert assistant["reasoning_content"] == "Hm."
    (called,) = assistant["tool_calls"]
    assert (called["id"], called["function"]["name"]) == ("toolu_1", "Bash")
    assert json.loads(called["function"]["arguments"]) == {"command": "touch é"}
    assert (tool["tool_call_id"], tool["name"]) == ("toolu_1", "Bash")


def test_late_system_messages_are_the_users_where_the_template_has_no_place_for_them() -> None:
    assert shown(converse(takes_late_system=False, **AGENT)) == [
        ("system", "You are an agent.\nRules."),
        ("user", "make\na file\nThe tools have changed."),
        ("assistant", "I do."),
        ("tool", "Error: no"),
        ("user", "go on\nrequest 1"),
    ]


@pytest.mark.parametrize(
    ("source", "takes"),
    [
        ("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}", True),
        ("{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}{% endif %}{% endfor %}", False),
        (
            "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}"
            "{% endif %}{{ m.content }}{% endfor %}",
            False,
        ),
    ],
)
def test_whether_a_template_takes_late_system_messages_is_found_out_by_trying(source: str, takes: bool) -> None:
    assert ChatTemplate({"default": source}).takes_late_system is takes


def test_system_blocks_stay_in_order_where_nothing_is_marked() -> None:
    blocks = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert shown(converse(system=blocks)) == [("system", "one\ntwo"), ("user", "hi")]
    blocks[0]["cache_control"] = EPHEMERAL  # type: ignore[assignment]
    assert shown(converse(system=blocks)) == [("system", "one\ntwo"), ("user", "hi")]


def test_an_answer_that_has_begun_is_gone_on_with() -> None:
    conversation = converse(
        system=AGENT["system"], messages=[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well,"}]
    )
    assert [role for role, _ in shown(conversation)] == ["system", "user", "system", "assistant"]
    assert (conversation.add_generation_prompt, conversation.continue_final_message) == (False, True)


TOOLS = [{"name": "f", "input_schema": {"type": "object"}, "description": "d"}, {"name": "g", "input_schema": {}}]


@pytest.mark.parametrize(
    ("given", "expected", "parallel"),
    [
        (None, ToolChoice(), True),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice(), False),
        ({"type": "any"}, ToolChoice("required"), True),
        ({"type": "tool", "name": "g"}, ToolChoice("required", ("g",)), True),
        ({"type": "none"}, ToolChoice("none"), True),
    ],
)
def test_tools_and_the_choice_among_them(given: Any, expected: ToolChoice, parallel: bool) -> None:
    conversation = converse(tools=TOOLS, tool_choice=given)
    assert [(tool.name, tool.description) for tool in conversation.tools] == [("f", "d"), ("g", None)]
    assert (conversation.tool_choice, conversation.parallel_tool_calls) == (expected, parallel)


def test_a_tool_that_is_run_elsewhere_is_left_out_and_named(caplog: pytest.LogCaptureFixture) -> None:
    conversation = converse(tools=[*TOOLS, {"type": "web_search_20250305", "name": "web_search"}])
    assert [tool.name for tool in conversation.tools] == ["f", "g"]
    assert "web_search_20250305" in caplog.text


def test_thinking_is_off_unless_asked_for() -> None:
    assert converse().template_variables == {"enable_thinking": False}
    assert converse(thinking={"type": "disabled"}).template_variables == {"enable_thinking": False}
    budget = converse(thinking={"type": "enabled", "budget_tokens": 2048})
    assert (budget.template_variables, budget.thinking_budget) == ({"enable_thinking": True}, 2048)
    adaptive = converse(thinking={"type": "adaptive"}, output_config={"effort": "max"})
    assert (adaptive.template_variables, adaptive.reasoning_effort) == ({"enable_thinking": True}, "xhigh")


@pytest.mark.parametrize("thinking", [{}, {"thinking": {"type": "disabled"}}])
def test_an_effort_without_thinking_reaches_the_template(thinking: dict[str, Any]) -> None:
    conversation = converse(**thinking, output_config={"effort": "low"})
    assert (conversation.template_variables, conversation.reasoning_effort) == ({"enable_thinking": False}, "low")


def test_an_output_format_is_a_constraint() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    constraint = converse(output_config={"format": {"type": "json_schema", "schema": schema}}).constraint
    assert constraint is not None
    assert json.loads(constraint.json or "") == schema


# of the SDK's own request types, what has no meaning for a model that runs here
NOT_HERE = {
    "betas",  # a header, in fact
    "billing_policy",
    "compaction",
    "container",
    "context_management",
    "diagnostics",
    "fallback_credit_token",
    "fallbacks",
    "inference_geo",
    "mcp_servers",
    "speed",
    "thread",
    "user_profile_id",
    "workspace_id",
}


def test_every_field_of_the_sdk_is_known_or_known_to_be_ignored() -> None:
    for params in (message_create_params, beta_params):
        fields = set(params.MessageCreateParamsBase.__annotations__)
        assert fields - MessagesRequest.model_fields.keys() - {"stream"} <= NOT_HERE


def test_unknown_fields_are_named_with_their_place() -> None:
    body = {"model": "m", "max_tokens": 1, "new": 1, "messages": [{"role": "user", "content": [
        {"type": "text", "text": "x", "shine": True}]}], "tools": [{**TOOLS[0], "defer_loading": True}]}  # fmt: skip
    assert list(unknown_fields(MessagesRequest.model_validate(body))) == [
        "new",
        "messages.content.shine",
        "tools.defer_loading",
    ]
