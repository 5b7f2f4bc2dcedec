"""The Vercel AI SDK and opencode against a real server: their own code makes the calls, their own tools run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scripted_server import MODEL, ScriptedServer

pytestmark = pytest.mark.clients

HERE = Path(__file__).parent


def test_the_vercel_ai_sdk_runs_a_tool_loop(scripted_qwen3: ScriptedServer, node_modules: Path, tmp_path: Path) -> None:
    scripted_qwen3.says(
        ("21 degrees in Zürich", "<think>\nRead.\n</think>\n\nIt is 21."),
        (
            "",
            "<think>\nAsk.\n</think>\n\nLooking.\n"
            '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>',
        ),
    )
    script = str(HERE / "ai_sdk_tool_call.mjs")
    result = scripted_qwen3.run_client(["node", script, f"{scripted_qwen3.url}/v1", MODEL], cwd=tmp_path)
    said = json.loads(result.stdout)
    assert said["calls"] == [{"toolName": "get_weather", "input": {"city": "Zürich"}}]
    assert said["reasons"] == ["tool-calls", "stop"]
    assert (said["text"], said["reasoning"]) == ("It is 21.", "Ask.")
    assert said["kinds"]["tool-input-delta"] >= 1
    assert said["usage"]["inputTokens"] > 0


def test_opencode_makes_a_file(scripted_qwen3: ScriptedServer, node_modules: Path, tmp_path: Path) -> None:
    """A whole tool loop of the agent: its prompt, its tools, its permission to write, its last line."""
    made = tmp_path / "hello.txt"
    call = {"name": "write", "arguments": {"filePath": str(made), "content": "made by a tool\n"}}
    scripted_qwen3.says(
        ("<tool_response>", "<think>\nDone.\n</think>\n\nThe file is there."),
        ("# Tools", f"<think>\nWrite.\n</think>\n\n<tool_call>\n{json.dumps(call)}\n</tool_call>"),
        ("", "A title"),
    )
    config = {
        "provider": {
            "local": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "local",
                "options": {"baseURL": f"{scripted_qwen3.url}/v1", "apiKey": "x"},
                "models": {MODEL: {"name": MODEL}},
            }
        },
        "autoupdate": False,
        "share": "disabled",
    }
    (tmp_path / "opencode.json").write_text(json.dumps(config))
    command = [str(node_modules / ".bin" / "opencode"), "run", "-m", f"local/{MODEL}", "make a file"]
    result = scripted_qwen3.run_client(command, cwd=tmp_path, timeout_s=120, OPENCODE_DISABLE_MODELS_FETCH="1")
    assert made.read_text() == "made by a tool\n"
    assert result.stdout.strip().splitlines()[-1] == "The file is there."
