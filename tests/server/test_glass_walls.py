"""`serve --trace`, `--log-level` and `explain` on a server as its users have it; and over the death of its engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness import RunningServer, events_of, scripted_server, wait_for

from pellucid.observability import events
from pellucid.observability.trace_file import read_trace

CHAT = {"model": "m", "messages": [{"role": "user", "content": "say hello"}]}
FRONT_END_EVENTS = {events.RequestSubmitted, events.EngineStarted, events.EngineDied, events.RequestReplayed}


def explain(server: RunningServer, *words: str, key: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pellucid", "explain", *words]
    environment = {**os.environ, **({"PELLUCID_API_KEY": key} if key else {})}
    if "--trace" not in words:
        command += ["--url", str(server.url)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)


def test_a_trace_survives_the_engine_and_tells_of_its_death(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with scripted_server(trace_file=str(path), script={"step_ms": 20}) as server:
        body = {"model": "m", "prompt": "abc", "max_tokens": 60, "stream": True, "temperature": 0}
        with server.client.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            chunks = [next(lines) for _ in range(8)]
            os.kill(server.engine_pids()[0], signal.SIGKILL)
            chunks += list(lines)
        assert "[DONE]" in chunks[-1] or "[DONE]" in chunks[-2]
        request_id = next(chunk for chunk in chunks if '"id"' in chunk).split('"id":"')[1].split('"')[0]
        story = explain(server, "request", request_id).stdout
        wait_for(lambda: b"EngineDied" in path.read_bytes() or b"engine_died" in path.read_bytes(), 5)
    told = list(read_trace(path))
    assert {type(event) for event in told} >= FRONT_END_EVENTS
    assert "the engine died (the engine process was killed by SIGKILL" in story
    assert "it was sent to a new engine, to go on after" in story
    assert path.read_text().endswith("]\n"), "a server that ends closes its trace"
    from_file = explain(server, "request", request_id, "--trace", str(path))
    assert "it was sent to a new engine, to go on after" in from_file.stdout


def test_a_trace_file_that_cannot_be_made_is_one_line() -> None:
    command = [sys.executable, "-m", "pellucid", "serve", "--port", "0", "--trace", "/nowhere/trace.json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "/nowhere/trace.json" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def event_words(server: RunningServer) -> set[str]:
    return {word for line in server.errors for word in line.split()[:1] if word.isupper()}


def test_the_trace_log_has_a_line_for_everything_decided() -> None:
    with scripted_server(config={"log_level": "trace"}) as server:
        server.post("/v1/chat/completions", **CHAT).raise_for_status()
        wait_for(lambda: any(line.startswith("FINISHED") for line in server.errors), 5, server.describe)
    log = server.errors
    assert "SCHEDULE step=1 scheduled=1 tokens=9 running=1 waiting=0 free_blocks=4095\n" in log
    assert "SCHEDULE step=2 scheduled=1 tokens=1 running=1 waiting=0 free_blocks=4095\n" in log
    words = event_words(server)
    assert words >= {"ENGINE_STARTED", "SUBMITTED", "ARRIVED", "PREFIX_HIT", "SCHEDULED", "BLOCKS_ALLOCATED",
                     "TOKENS_SCHEDULED", "TOKENS_SAMPLED", "STEP", "FINISHED", "BLOCKS_FREED"}  # fmt: skip


def test_the_info_log_tells_how_requests_come_and_go() -> None:
    with scripted_server(config={"log_level": "info"}) as server:
        server.post("/v1/chat/completions", **CHAT).raise_for_status()
        server.post("/v1/completions", model="m", prompt="x" * 3000)
        wait_for(lambda: event_words(server) >= {"FINISHED", "REFUSED"}, 5, server.describe)
    assert event_words(server) == {"ENGINE_STARTED", "SUBMITTED", "FINISHED", "REFUSED"}


def story(server: RunningServer, path: str) -> str:
    answer = server.client.get(f"/explain/{path}").raise_for_status().json()
    assert answer["object"] == "explanation"
    return "\n".join(line["text"] for line in answer["lines"])


def test_explain_knows_a_request_by_each_of_its_names(scripted: RunningServer) -> None:
    response = server_post(scripted, n=2, seed=1)
    by_id = story(scripted, f"requests/{response.json()['id']}")
    by_header = story(scripted, f"requests/{response.headers['x-request-id']}")
    assert by_id == by_header
    assert f"continuation {response.json()['id']}#1:" in by_id
    assert by_id.count("it came to a stop") == 2
    one = story(scripted, f"requests/{response.json()['id']}%231")
    assert one.count("it came to a stop") == 1
    shown = explain(scripted, "request", response.json()["id"])
    assert shown.returncode == 0
    assert by_id.splitlines()[1] in shown.stdout


def server_post(server: RunningServer, **more: Any) -> httpx.Response:
    return server.post("/v1/chat/completions", **CHAT, **more).raise_for_status()


def test_explain_a_cached_a_refused_and_a_preempted_request(tmp_path: Path) -> None:
    with scripted_server(script={"num_blocks": 12, "step_ms": 2}, max_queue=2) as server:
        prompt = "system prompt of forty characters or so. "
        first = server.post("/v1/completions", model="m", prompt=prompt + "say a").json()
        cached = server.post("/v1/completions", model="m", prompt=prompt + "say b").json()
        assert "nothing of its 46 tokens was found in the prefix cache" in story(server, f"requests/{first['id']}")
        assert "32 of its 46 tokens were cached, and not computed again" in story(server, f"requests/{cached['id']}")
        refused = server.post("/v1/completions", model="m", prompt="x" * 1500)
        assert refused.status_code == 400
        assert "it was refused by the front door: " in story(server, f"requests/{refused.headers['x-request-id']}")

        streams = [
            server.client.send(
                server.client.build_request(
                    "POST", "/v1/completions",
                    json={"model": "m", "prompt": chr(65 + i) * 40, "max_tokens": 60, "stream": True, "temperature": 0},
                ),
                stream=True,
            )
            for i in range(3)
        ]  # fmt: skip
        ids = [next(e["id"] for e in events_of(stream) if e != "[DONE]") for stream in streams]

        def one_was_preempted() -> bool:
            stories = [story(server, f"requests/{request_id}") for request_id in ids]
            return any("it was preempted: the pool had no free block" in text for text in stories)

        wait_for(one_was_preempted, 5, server.describe)
        assert "held by 0 requests now" in story(server, "cache")
        assert "computed together" in story(server, "steps/1")


def test_explain_refuses_what_it_does_not_know(scripted: RunningServer) -> None:
    missing = scripted.client.get("/explain/requests/nobody")
    assert missing.status_code == 404
    assert missing.json()["error"]["message"].startswith("No request 'nobody' among the last ")
    assert scripted.client.get("/explain/steps/99999999").status_code == 404
    assert scripted.client.get("/explain/steps/one").json()["error"]["param"] == "step"
    shown = explain(scripted, "request", "nobody")
    assert (shown.returncode, shown.stdout) == (1, "")
    assert "No request 'nobody'" in shown.stderr


def test_explain_asks_for_the_key_like_every_other_route() -> None:
    with scripted_server(key="secret") as server:
        for path in ("requests/x", "steps/1", "cache"):
            assert httpx.get(f"{server.url}/explain/{path}").status_code == 401
        assert explain(server, "cache", key="secret").returncode == 0
        assert "API key" in explain(server, "cache").stderr


def test_explain_without_a_server_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pellucid", "explain", "cache", "--url", "http://127.0.0.1:9"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "is a server running there?" in done.stderr
    path = tmp_path / "x.json"
    path.write_text("{}")
    done = subprocess.run([*command[:5], "--trace", str(path)], capture_output=True, text=True, timeout=60, check=False)
    assert "is not a trace file" in done.stderr


@pytest.mark.parametrize("level", ["loud", "debug"])
def test_an_unknown_log_level_is_refused_with_the_choices(level: str) -> None:
    command = [sys.executable, "-m", "pellucid", "serve", "--log-level", level]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "trace" in done.stderr
