"""Codex, as npm installs it, drives a whole loop of tool calls over /v1/responses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scripted_server import MODEL, ScriptedServer

pytestmark = pytest.mark.clients

CONFIG = """
model = "{model}"
model_provider = "pellucid"
model_context_window = 40960

[model_providers.pellucid]
name = "Pellucid"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "KEY"
request_max_retries = 0
stream_max_retries = 0
"""
# the result is only in the output of the command, not in the command
CALL = {"name": "exec_command", "arguments": {"cmd": "printf 'grün 🌱' > made.txt && echo made-$((40 + 2))"}}
SCRIPT = (
    ("made-42", "<think>\nIt is there.\n</think>\n\nThe file made.txt is written."),
    ("", f"<think>\nI need a shell.\n</think>\n\n<tool_call>\n{json.dumps(CALL)}\n</tool_call>"),
)


def test_codex_makes_a_file_and_says_so(scripted_qwen3: ScriptedServer, node_modules: Path, tmp_path: Path) -> None:
    scripted_qwen3.says(*SCRIPT)
    home = tmp_path / "codex"
    home.mkdir()
    (home / "config.toml").write_text(CONFIG.format(model=MODEL, url=scripted_qwen3.url))
    before = scripted_qwen3.running.metrics()
    command = [str(node_modules / ".bin" / "codex"), "exec", "--json", "--skip-git-repo-check"]
    command += ["--dangerously-bypass-approvals-and-sandbox", "make a file"]
    done = scripted_qwen3.run_client(command, cwd=tmp_path, timeout_s=120, CODEX_HOME=str(home), KEY="x")

    assert (tmp_path / "made.txt").read_text() == "grün 🌱"
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    said = [item["text"] for item in items if item["type"] == "agent_message"]
    assert said[-1] == "The file made.txt is written."
    assert "I need a shell." in [item["text"].strip() for item in items if item["type"] == "reasoning"]
    assert [event["type"] for event in events][-1] == "turn.completed"

    # two requests; the second one is the first and a little more
    after = scripted_qwen3.running.metrics()
    sent, cached = (
        after[f"vllm:{name}_total"] - before.get(f"vllm:{name}_total", 0)
        for name in ("prompt_tokens", "prompt_tokens_cached")
    )
    assert sent > 15_000
    assert cached > 0.9 * sent / 2
    usage = events[-1]["usage"]
    assert usage["input_tokens"] == sent
    assert usage["cached_input_tokens"] == cached
    assert any("web_search" in line for line in scripted_qwen3.running.errors)
