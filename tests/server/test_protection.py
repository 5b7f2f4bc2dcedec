"""What a hostile or careless client can not do: get in without a key, hold memory or a connection, write to the log."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator

import httpx
import msgspec
import openai
import pytest
from harness import RunningServer, scripted_server, wait_for

KEY = "sk-right"


@pytest.fixture(scope="module")
def guarded() -> Iterator[RunningServer]:
    options = {"max_body_bytes": 10_000, "max_header_bytes": 8192, "body_timeout_s": 1.0, "access_log": True}
    with scripted_server(key=KEY, **options) as server:
        yield server


def talk(server: RunningServer, data: bytes, timeout_s: float = 10) -> bytes:
    """Everything the server sends until it closes the connection or falls silent."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=timeout_s) as sock:
        received = b""
        try:
            sock.sendall(data)
            while chunk := sock.recv(65536):
                received += chunk
                if b"\r\n\r\n" in received and b"connection: close" not in received:
                    break
        except (TimeoutError, ConnectionResetError, BrokenPipeError):
            pass
        return received


def test_every_route_but_health_asks_for_a_key(guarded: RunningServer) -> None:
    document = guarded.client.get("/openapi.json").json()
    open_paths = set()
    with httpx.Client(base_url=guarded.url) as stranger:
        for path, methods in document["paths"].items():
            for method in methods:
                response = stranger.request(method, path.replace("{model}", "m"))
                if response.status_code == 401:
                    assert response.json()["error"].get("code") is None  # Anthropic's errors have none
                else:
                    open_paths.add(path)
        for path in ("/nope", "//health", "/health/", "/%68ealth", "/health/../metrics", "/v1/models;/health"):
            assert stranger.get(path).status_code == 401, path
        assert stranger.request("HEAD", "/").status_code == 401
    assert open_paths == {"/health"}


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer wrong"},
        {"authorization": f"Bearer {KEY}x"},
        {"x-api-key": "wrong"},
        {"authorization": f"Basic {KEY}", "x-api-key": "wrong"},
    ],
)
def test_a_wrong_key_is_told_so(guarded: RunningServer, headers: dict[str, str]) -> None:
    response = httpx.get(f"{guarded.url}/v1/models", headers=headers)
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"
    assert KEY not in response.text


@pytest.mark.parametrize("headers", [{"authorization": f"bearer {KEY}"}, {"x-api-key": KEY}])
def test_a_right_key_opens_in_both_spellings(guarded: RunningServer, headers: dict[str, str]) -> None:
    assert httpx.get(f"{guarded.url}/v1/models", headers=headers).status_code == 200


def test_the_sdk_sees_an_authentication_error(guarded: RunningServer) -> None:
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="wrong").models.list()
    assert openai.OpenAI(base_url=f"{guarded.url}/v1", api_key=KEY).models.list().data[0].id == "m"


def test_a_body_that_is_too_large_is_not_read(guarded: RunningServer) -> None:
    response = guarded.post("/v1/completions", model="m", prompt="x" * 20_000)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "request_too_large"

    def chunks() -> Iterator[bytes]:
        yield b"x" * 6000
        yield b"x" * 6000

    response = guarded.client.post("/v1/completions", content=chunks(), headers={"content-type": "application/json"})
    assert response.status_code == 413
    assert guarded.post("/v1/completions", model="m", prompt="say hi").status_code == 200


def test_a_body_that_does_not_come_is_not_waited_for(guarded: RunningServer) -> None:
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-api-key: {KEY}\r\ncontent-type: application/json\r\n"
    answer = talk(guarded, (head + "content-length: 100\r\n\r\n{").encode())
    assert answer.startswith(b"HTTP/1.1 408")
    assert b'"code":"request_timeout"' in answer


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nhost: x\r\n" + b"x: y\r\n" * 5000 + b"\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 100_000,  # and never an end
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    ],
)
def test_a_head_that_is_too_large_is_refused(guarded: RunningServer, head: bytes) -> None:
    answer = talk(guarded, head)
    assert answer.startswith(b"HTTP/1.1 431"), answer[:100]
    assert b'"code":"head_too_large"' in answer


def test_a_head_that_trickles_in_is_cut_off(guarded: RunningServer) -> None:
    start = time.monotonic()
    assert talk(guarded, b"GET /health HTTP/1.1\r\nhost:", timeout_s=20) == b""
    assert time.monotonic() - start < 15


def test_what_is_no_http_gets_an_error_in_our_shape(guarded: RunningServer) -> None:
    answer = talk(guarded, b"\x16\x03\x01 hello\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400")
    assert set(json.loads(answer.partition(b"\r\n\r\n")[2])["error"]) == {"message", "type", "param", "code"}


def test_the_access_log_holds_no_words_of_a_client(guarded: RunningServer) -> None:
    word = "sEcReT"
    headers = {"authorization": f"Bearer {KEY}", "user-agent": word}
    with httpx.Client(base_url=guarded.url, headers=headers) as client:
        body = {"model": "m", "prompt": f"say {word}", "user": word, "temperature": 0}
        wanted = client.post(f"/v1/completions?{word}", json=body).headers["x-request-id"]
        client.get(f"/{word}")
        client.get(f"/v1/models/{word}")
        last = client.request("GET", f"/health?{word}").headers["x-request-id"]
    wait_for(lambda: any(last in line for line in guarded.errors), 5)
    assert word.lower() not in "".join(guarded.errors).lower()
    line = next(msgspec.json.decode(line) for line in guarded.errors if wanted in line)
    assert (line["method"], line["route"], line["status"]) == ("POST", "/v1/completions", 200)
    assert (line["prompt_tokens"], line["output_tokens"]) == (len(f"say {word}"), len(word) + 1)
    assert line["finish_reasons"] == ["stop"]
    assert len(line["user"]) == 12
