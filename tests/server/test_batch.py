"""`run-batch`: every line is answered once, whatever happens to the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import openai.types.chat
import pytest
from harness import HERE, wait_for

from pellucid.server.batch import BatchError, Results, check_batch

PROGRAM = """
import asyncio, json, sys
from pathlib import Path
from scripted_model import load
from pellucid.config import EngineConfig
from pellucid.frontend.terminal import progress_bar
from pellucid.server.batch import run_batch
script, source, target, concurrency = sys.argv[1:]
config = EngineConfig(model=script, served_model_name="m")
done = asyncio.run(run_batch(config, Path(source), Path(target), concurrency=int(concurrency),
                             progress=lambda n: progress_bar(True, n, "lines"), show=print, load=load))
print(json.dumps(done))
"""


def chat(custom_id: str, words: str, **more: Any) -> dict[str, Any]:
    body = {"model": "m", "messages": [{"role": "user", "content": words}], "temperature": 0, **more}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def write(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def start(source: Path, target: Path, concurrency: int = 8, **script: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", PROGRAM, json.dumps(script), str(source), str(target), str(concurrency)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=source.parent
    )


def run(source: Path, target: Path, **options: Any) -> tuple[list[int], str]:
    """How many lines are done, and how many by this run; and what was shown."""
    output, errors = start(source, target, **options).communicate(timeout=150)
    return json.loads(output.splitlines()[-1]), errors


def results_of(target: Path) -> dict[str, Any]:
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    found = {line["custom_id"]: line["response"] for line in lines}
    assert len(found) == len(lines), "a line was done twice"
    return found


def text_of(response: dict[str, Any]) -> str:
    assert response["status_code"] == 200
    return response["body"]["choices"][0]["message"]["content"]


def test_a_batch_killed_in_the_middle_is_gone_on_with(tmp_path: Path) -> None:
    """kill -9 twice; afterwards every line is there once, with its own answer."""
    source = write(tmp_path / "in.jsonl", [chat(f"id-{i}", f"say {i}") for i in range(120)])
    target = tmp_path / "out.jsonl"
    num_lines = 0
    for _ in range(2):
        process = start(source, target, step_ms=15)
        wait_for(lambda so_far=num_lines: target.exists() and target.read_bytes().count(b"\n") > so_far + 10, 100)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=10)
        num_lines = target.read_bytes().count(b"\n")
        assert num_lines < 120
    with target.open("ab") as file:  # as a kill in the middle of a write would leave it
        file.write(b'{"id":"batch_req_1","custom_id":"id-1')
    (total, num_new, _), shown = run(source, target, step_ms=1)
    assert (total, num_new) == (120, 120 - num_lines)
    assert "lines" in shown
    assert "120/120" in shown
    results = results_of(target)
    assert {custom_id: text_of(response) for custom_id, response in results.items()} == {
        f"id-{i}": str(i) for i in range(120)
    }
    before = target.read_bytes()
    assert run(source, target)[0] == [120, 0, 0]
    assert target.read_bytes() == before


def test_every_dialect_and_every_refusal_has_its_line(tmp_path: Path) -> None:
    lines = [
        chat("chat", "say hello"),
        {"custom_id": "text", "method": "POST", "url": "/v1/completions",
         "body": {"model": "m", "prompt": "say yes", "temperature": 0}},
        {"custom_id": "anthropic", "method": "POST", "url": "/v1/messages",
         "body": {"model": "m", "max_tokens": 9, "temperature": 0,
                  "messages": [{"role": "user", "content": "say no"}]}},
        {"custom_id": "responses", "method": "POST", "url": "/v1/responses",
         "body": {"model": "m", "input": "say so", "temperature": 0, "store": False}},
        {"custom_id": "vector", "method": "POST", "url": "/v1/embeddings", "body": {"model": "m", "input": "x"}},
        chat("wrong", "x", temperature=3),
        chat("streamed", "x", stream=True),
        {"custom_id": "nowhere", "method": "POST", "url": "/metrics", "body": {}},
        {"custom_id": "get", "method": "GET", "url": "/v1/completions", "body": {}},
        chat("fails", "please fail"),
    ]  # fmt: skip
    source = write(tmp_path / "in.jsonl", lines)
    assert run(source, tmp_path / "out.jsonl")[0] == [len(lines), len(lines), 6]
    results = results_of(tmp_path / "out.jsonl")
    completion = openai.types.chat.ChatCompletion.model_validate(results["chat"]["body"])
    assert completion.choices[0].message.content == "hello"
    assert results["chat"]["request_id"].startswith("req_")
    assert results["text"]["body"]["choices"][0]["text"] == "yes"
    assert results["anthropic"]["body"]["content"] == [{"type": "text", "text": "no"}]
    assert results["responses"]["body"]["output"][0]["content"][0]["text"] == "so"
    for name, status, word in (
        ("vector", 400, "vectors"),
        ("wrong", 400, "temperature"),
        ("streamed", 400, "stream"),
        ("nowhere", 404, "/metrics"),
        ("get", 404, "GET"),
        ("fails", 500, "scripted"),
    ):
        assert results[name]["status_code"] == status
        assert word in results[name]["body"]["error"]["message"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"custom_id": "a", "url": "/v1/completions", "body": {}}\n\nnonsense\n', "line 3"),
        ('{"custom_id": "a", "body": {}}\n', "line 1"),
        ('{"custom_id": 7, "url": "/v1/completions", "body": {}}\n', "line 1"),
        ('{"custom_id": "a", "url": "/v1/completions", "body": {}}\n' * 2, "custom_id 'a'"),
    ],
)
def test_a_file_that_is_no_batch_is_refused_before_anything_is_done(tmp_path: Path, text: str, words: str) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(text)
    with pytest.raises(BatchError, match=words):
        check_batch(source)


def test_the_output_of_another_batch_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    result = '{"id":"batch_req_1","custom_id":"a","response":{}}\n'
    other, requests = result.replace('"a"', '"other"'), json.dumps(chat("a", "say x"))
    for kept in (other, "my notes\n", requests + "\n", requests, result + requests, "my notes"):
        target.write_text(kept)
        with pytest.raises(BatchError):
            Results(target, {"a"})
        assert target.read_text() == kept


def test_the_input_is_never_the_output(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps(chat("a", "say x")) + "\n" + json.dumps(chat("b", "say y")))
    before = source.read_text()
    (tmp_path / "link.jsonl").symlink_to(source)
    for target in (source, tmp_path / "link.jsonl"):
        process = start(source, target)
        assert "give another output file" in process.communicate(timeout=100)[1]
        assert process.returncode == 1
        assert source.read_text() == before


def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    first = Results(tmp_path / "out.jsonl", {"a"})
    with pytest.raises(BatchError, match="another run"):
        Results(tmp_path / "out.jsonl", {"a"})
    first.close()
    Results(tmp_path / "out.jsonl", {"a"}).close()


def test_an_engine_that_can_not_load_leaves_nothing_behind(tmp_path: Path) -> None:
    source, target = write(tmp_path / "in.jsonl", [chat("a", "say x")]), tmp_path / "out.jsonl"
    process = start(source, target, fails="no such weights")
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 1
    assert "no such weights" in errors
    assert target.read_bytes() == b""


def test_the_command_answers_a_file(tmp_path: Path) -> None:
    """On SmolLM2, embeddings too, beside each other."""
    lines = [chat(f"c{i}", "What is the capital of France?", max_tokens=8) for i in range(3)]
    lines.append({"custom_id": "v", "method": "POST", "url": "/v1/embeddings", "body": {"model": "m", "input": "x"}})
    source = write(tmp_path / "in.jsonl", lines)
    command = [sys.executable, "-m", "pellucid", "run-batch", "-i", str(source), "-o", str(tmp_path / "out.jsonl"),
               "--served-model-name", "m", "--max-model-len", "512"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "4 lines are in" in done.stderr
    results = results_of(tmp_path / "out.jsonl")
    assert len({text_of(results[f"c{i}"]) for i in range(3)}) == 1
    assert len(results["v"]["body"]["data"][0]["embedding"]) == 576
