"""Claude Code and Anthropic's SDK against a real server whose answers are scripted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic.types import Message
from scripted_server import MODEL, ScriptedServer

pytestmark = pytest.mark.clients

CALL = (
    "<think>\nA file it is.\n</think>\n\nI make one.\n"
    '<tool_call>\n{"name": "Bash", "arguments": {"command": "echo grüezi > made.txt", "description": "Make a file"}}\n'
    "</tool_call>"
)
DONE = "The file is there, as scripted."
AFTER_THE_TOOL = "<tool_response>"


def cached_share(usage: dict[str, Any]) -> float:
    whole = usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]
    return usage["cache_read_input_tokens"] / whole


# Claude Code ---------------------------------------------------------------------------------------------------------


def run_claude(server: ScriptedServer, node_modules: Path, folder: Path) -> list[dict[str, Any]]:
    """What it tells: one object an event of its own."""
    result = server.run_client(
        [
            str(node_modules / ".bin" / "claude"),
            *("-p", "make a file", "--model", MODEL, "--allowedTools", "Bash"),
            *("--output-format", "stream-json", "--verbose"),
        ],
        cwd=folder,
        timeout_s=120,
        IS_SANDBOX="1",
        ANTHROPIC_BASE_URL=server.url,
        ANTHROPIC_AUTH_TOKEN="x",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        DISABLE_AUTOUPDATER="1",
    )
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


def test_claude_code_runs_a_whole_tool_loop_and_its_prompt_is_computed_once(
    scripted_qwen3: ScriptedServer, node_modules: Path, tmp_path: Path
) -> None:
    scripted_qwen3.says((AFTER_THE_TOOL, DONE), ("", CALL))
    shares: list[float] = []
    for _ in range(2):  # two sessions
        events = run_claude(scripted_qwen3, node_modules, tmp_path)
        made = tmp_path / "made.txt"
        assert made.read_text() == "grüezi\n", "by its tool"
        made.unlink()
        last = events[-1]
        assert (last["type"], last["subtype"], last["result"]) == ("result", "success", DONE)
        messages = {event["message"]["id"]: event["message"] for event in events if event["type"] == "assistant"}
        assert len(messages) == 2, "one that calls, one that answers"
        usages = [message["usage"] for message in messages.values()]
        shares += map(cached_share, usages)
        num_prompt = sum(usages[0][name] for name in usages[0] if name.endswith("input_tokens"))
        assert 10_000 < num_prompt < 40_000
    print(f"prompt of {num_prompt} tokens; found in the cache, turn by turn: {shares}")
    assert all(share > 0.9 for share in shares[1:]), shares


# the same without the agent ------------------------------------------------------------------------------------------

WORDS = "the miller counted sacks by the light of the window and wrote the number down "
TOOLS = [
    {
        "name": f"Tool{i}",
        "description": f"Tool number {i}. " + WORDS * 34,
        "input_schema": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": WORDS}},
            "required": ["command"],
        },
    }
    for i in range(24)
]


def agent_request(turn: int, *messages: dict[str, Any]) -> dict[str, Any]:
    """Of an agent's size and shape: what is different in each request stands in front."""
    keep = {"cache_control": {"type": "ephemeral"}}
    return {
        "model": MODEL,
        "max_tokens": 32_000,
        "system": [
            {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.197.{turn}; cch={turn * 7919:05x};"},
            {"type": "text", "text": "You are an agent.", **keep},
            {"type": "text", "text": WORDS * 60, **keep},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "make a file"}]},
            {"role": "system", "content": WORDS * 70},
            *messages,
        ],
        "tools": TOOLS,
        "thinking": {"type": "adaptive"},
        "metadata": {"user_id": "somebody"},
    }


def test_a_first_block_that_changes_does_not_spoil_the_cache(scripted_qwen3: ScriptedServer) -> None:
    scripted_qwen3.says(("", CALL.replace("Bash", "Tool3")))
    client = anthropic.Anthropic(base_url=scripted_qwen3.url, api_key="x", max_retries=0)
    messages: list[dict[str, Any]] = []
    for turn in range(4):
        request = agent_request(turn, *messages)
        counted = client.messages.count_tokens(
            **{name: request[name] for name in ("model", "system", "messages", "tools", "thinking")}
        )
        with client.messages.stream(**request) as stream:
            message = stream.get_final_message()
        usage = message.usage.model_dump()
        whole = usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]
        assert counted.input_tokens == whole
        assert 15_000 < whole < 30_000
        if turn:
            assert cached_share(usage) > 0.9, usage
        call = message.content[-1]
        assert call.type == "tool_use"
        messages.append({"role": "assistant", "content": [block.model_dump() for block in message.content]})
        messages.append(
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": f"done {turn}"}]}
        )


# the SDK -------------------------------------------------------------------------------------------------------------

BASH = {
    "name": "Bash",
    "description": "Runs a command",
    "input_schema": {
        "type": "object",
        "properties": {"command": {"type": "string"}, "description": {"type": "string"}},
        "required": ["command"],
    },
}


def shown(message: Message) -> list[tuple[str, Any]]:
    fields = {"thinking": "thinking", "text": "text", "tool_use": "input"}
    return [(block.type, getattr(block, fields[block.type])) for block in message.content]


@pytest.mark.parametrize("streamed", [False, True])
def test_thinking_text_and_calls_are_blocks_and_go_back_as_they_came(
    scripted_qwen3: ScriptedServer, streamed: bool
) -> None:
    scripted_qwen3.says((AFTER_THE_TOOL, DONE), ("", CALL))
    client = anthropic.Anthropic(base_url=scripted_qwen3.url, api_key="x", max_retries=0)

    def ask(messages: Any) -> Message:
        request: Any = {
            "model": MODEL,
            "max_tokens": 500,
            "messages": messages,
            "tools": [BASH],
            "thinking": {"type": "enabled", "budget_tokens": 1024},
        }
        if not streamed:
            return client.messages.create(**request)
        with client.messages.stream(**request) as stream:
            return stream.get_final_message()

    messages: list[Any] = [{"role": "user", "content": "make a file"}]
    first = ask(messages)
    command = {"command": "echo grüezi > made.txt", "description": "Make a file"}
    assert [(kind, value.strip() if isinstance(value, str) else value) for kind, value in shown(first)] == [
        ("thinking", "A file it is."),
        ("text", "I make one."),
        ("tool_use", command),
    ]
    assert first.stop_reason == "tool_use"
    assert first.content[0].signature
    messages.append({"role": "assistant", "content": [block.model_dump() for block in first.content]})
    result = {"type": "tool_result", "tool_use_id": first.content[2].id, "content": [{"type": "text", "text": "ok"}]}
    messages.append({"role": "user", "content": [result]})
    second = ask(messages)
    assert [block for block in shown(second) if block[0] == "text"] == [("text", DONE)]
    assert second.stop_reason == "end_turn"


def test_without_thinking_nothing_is_thought(scripted_qwen3: ScriptedServer) -> None:
    """Qwen3's template ends the thought before it begins."""
    scripted_qwen3.says(("", "Plainly."))
    client = anthropic.Anthropic(base_url=scripted_qwen3.url, api_key="x", max_retries=0)
    message = client.messages.create(model=MODEL, max_tokens=50, messages=[{"role": "user", "content": "Say it."}])
    assert shown(message) == [("text", "Plainly.")]


def test_a_call_that_max_tokens_cuts_off_ends_with_max_tokens(scripted_qwen3: ScriptedServer) -> None:
    scripted_qwen3.says(("", CALL))
    client = anthropic.Anthropic(base_url=scripted_qwen3.url, api_key="x", max_retries=0)
    for max_tokens in (25, 40):
        message = client.messages.create(
            model=MODEL,
            max_tokens=max_tokens,
            messages=[{"role": "user", "content": "make a file"}],
            tools=[BASH],
            thinking={"type": "adaptive"},
        )
        assert message.stop_reason == "max_tokens"
