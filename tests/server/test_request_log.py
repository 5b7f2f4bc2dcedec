"""The request log: a line for each request, and words only where they are asked for."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness import scripted_server, wait_for

from pellucid.server.middleware.request_log import MAX_CONTENT_BYTES, Content, RequestLog
from pellucid.server.options import OptionsError, ServerOptions, check_options

SECRETS = ("say swordfish", "swordfish", "sk-secret", "alice")


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("with_content", [False, True])
def test_a_line_for_each_request_and_words_only_on_request(tmp_path: Path, with_content: bool) -> None:
    path = tmp_path / "requests.jsonl"
    body = {"model": "m", "messages": [{"role": "user", "content": "say swordfish"}], "temperature": 0, "user": "alice"}
    with scripted_server(key="sk-secret", request_log=str(path), request_log_content=with_content) as server:
        whole = server.post("/v1/chat/completions", **body)
        streamed = server.post("/v1/chat/completions", **body, stream=True)
        server.post("/v1/embeddings", model="m", input="say swordfish")
        server.client.get("/health")
        server.client.get("/nowhere/swordfish")
        server.client.get("/v1/models", headers={"authorization": "Bearer swordfish"})
    lines = lines_of(path)
    assert [(line["route"], line["status"]) for line in lines] == [
        ("/v1/chat/completions", 200),
        ("/v1/chat/completions", 200),
        ("/v1/embeddings", 400),
        (None, 404),
        (None, 401),  # sent away before it came to a route
    ]
    first, second = lines[:2]
    assert first["request_id"] == whole.headers["x-request-id"]
    assert (first["prompt_tokens"], first["output_tokens"]) == (len("say swordfish"), len("swordfish") + 1)
    assert (first["finish_reasons"], first["duration_ms"] > 0) == (["stop"], True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    if with_content:
        assert first["request"] == body
        assert first["response"] == whole.json()
        assert second["response"] == streamed.text
        assert "sk-secret" not in path.read_text()
    else:
        assert [secret for secret in SECRETS if secret in path.read_text()] == []
        assert "request" not in first


def test_a_request_that_does_not_come_to_its_end_is_logged_with_what_it_cost(tmp_path: Path) -> None:
    """A client that leaves, streaming or waiting, and one whose time is over."""
    path = tmp_path / "requests.jsonl"
    body = {"model": "m", "prompt": "for ever", "temperature": 0, "max_tokens": 2000}
    with scripted_server(script={"step_ms": 20}, request_log=str(path), request_timeout_s=3) as server:
        with server.client.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
            next(line for line in response.iter_lines() if line.startswith("data:"))
        wait_for(lambda: len(lines_of(path)) == 1, 20)
        with pytest.raises(httpx.ReadTimeout):
            server.client.post("/v1/completions", json=body, timeout=1)
        wait_for(lambda: len(lines_of(path)) == 2, 20)
        assert server.post("/v1/completions", **body).status_code == 504
    streamed, whole, late = lines_of(path)
    assert (streamed["outcome"], whole["outcome"]) == ("client_left", "client_left")
    assert [line["finish_reasons"] for line in (streamed, whole, late)] == [["abort"], ["abort"], ["error"]]
    assert min(line["output_tokens"] for line in (streamed, whole, late)) > 0
    assert max(line["output_tokens"] for line in (streamed, whole, late)) < 2000


def test_a_background_response_is_logged_when_it_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    body = {"model": "m", "input": "say swordfish", "temperature": 0, "background": True}
    with scripted_server(script={"step_ms": 20}, request_log=str(path)) as server:
        server.post("/v1/responses", **body).raise_for_status()
        cancelled = server.post("/v1/responses", **{**body, "input": "for ever"}).raise_for_status().json()["id"]
        server.client.post(f"/v1/responses/{cancelled}/cancel").raise_for_status()
        wait_for(lambda: len(lines_of(path)) == 3, 20)
    found = {(line["route"], *line["finish_reasons"]): line["output_tokens"] for line in lines_of(path)}
    assert found.pop(("/v1/responses", "stop")) == len("swordfish") + 1
    assert found.keys() == {("/v1/responses", "abort"), ("/v1/responses/{response_id}/cancel",)}


def test_what_is_too_large_is_cut_off_and_says_so(tmp_path: Path) -> None:
    log = RequestLog(str(tmp_path / "log"), with_content=True)
    content = log.listen()
    assert isinstance(content, Content)
    for _ in range(3):
        content.response.add(b"x" * (MAX_CONTENT_BYTES // 2))
    log.write({"route": "/v1/messages"}, content)
    (line,) = lines_of(tmp_path / "log")
    assert line["request"] is None
    assert line["response"].endswith(f"… ({MAX_CONTENT_BYTES // 2 * 3} bytes)")
    assert len(line["response"]) < MAX_CONTENT_BYTES + 100


def test_a_full_disk_ends_no_request_and_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    log = RequestLog("/dev/full", with_content=False)
    for _ in range(2):
        log.write({"route": "/v1/messages"}, None)
    assert capsys.readouterr().err.count("/dev/full") == 1


def test_content_without_a_file_is_refused() -> None:
    with pytest.raises(OptionsError, match="--request-log"):
        check_options(ServerOptions(request_log_content=True))
