"""Overload, patience and departure: seed-facts item 12, and clients that leave or do not read."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness import RunningServer, scripted_server, wait_for

BODY: dict[str, Any] = {"model": "m", "prompt": "x", "temperature": 0, "max_tokens": 1500}


async def post_many(server: RunningServer, bodies: list[dict[str, Any]]) -> list[httpx.Response]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=60, limits=limits) as client:
        return await asyncio.gather(*(client.post("/v1/completions", json=body) for body in bodies))


async def test_request_257_is_refused_at_once_and_the_others_are_served(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with scripted_server(script={"gate": str(gate), "step_ms": 0.1}) as server:
        waiting = asyncio.create_task(post_many(server, [{**BODY, "prompt": f"say {i}"} for i in range(256)]))
        url = f"{server.url}/v1/completions"

        async def metric(name: str) -> float:
            return (await asyncio.to_thread(server.metrics))[name]

        while await metric("vllm:num_requests_waiting") < 256:
            await asyncio.sleep(0.02)
        async with httpx.AsyncClient() as client:
            start = time.monotonic()
            for stream in (False, True):
                refused = await client.post(url, json={**BODY, "stream": stream})
                assert refused.status_code == 503
                assert int(refused.headers["retry-after"]) >= 1
                assert refused.json()["error"]["code"] == "queue_full"
            # the body of a request that is not let in is not even looked at
            refused = await client.post(url, content=b"no json")
            assert refused.status_code == 503
            health = await client.get(f"{server.url}/health")
            assert health.status_code == 200
            assert time.monotonic() - start < 5
        assert await metric("vllm:admission_rejections_total{reason=queue_full}") == 3
        gate.touch()
        responses = await waiting
        assert [r.json()["choices"][0]["text"] for r in responses] == [str(i) for i in range(256)]


async def test_who_is_refused_is_told_to_come_again_when_there_will_be_room() -> None:
    """While nothing is known of the pace: after a second. Then by it, later for a queue that moves slowly."""
    body = {**BODY, "prompt": "say some letters"}
    with scripted_server(script={"step_ms": 20}, config={"max_num_seqs": 1}, max_queue=16) as server:
        first = asyncio.create_task(post_many(server, [body] * 22))
        while (await asyncio.to_thread(server.metrics))["vllm:request_success_total{finished_reason=stop}"] < 2:
            await asyncio.sleep(0.05)
        later = [r for r in await post_many(server, [body] * 8) if r.status_code == 503]
        early = [r for r in await first if r.status_code == 503]
    assert early
    assert {response.headers["retry-after"] for response in early} == {"1"}
    assert later
    assert all(2 <= int(response.headers["retry-after"]) <= 60 for response in later)


async def test_a_request_that_waits_too_long_ends_with_an_error_and_frees_all(tmp_path: Path) -> None:
    with scripted_server(script={"step_ms": 20}, config={"max_num_seqs": 1}, request_timeout_s=0.6) as server:
        responses = await post_many(server, [BODY] * 4)  # one runs, three wait; none is done in time
        for response in responses:
            assert response.status_code == 504
            assert response.json()["error"]["code"] == "request_timeout"
            assert response.json()["error"]["type"] == "server_error"
        await asyncio.to_thread(server.wait_idle)
        (quick,) = await post_many(server, [{**BODY, "prompt": "say hi"}])
        assert quick.json()["choices"][0]["text"] == "hi"


@pytest.mark.parametrize("stream", [False, True])
def test_sixteen_clients_leave_in_the_middle_and_nothing_is_left(stream: bool) -> None:
    with scripted_server(script={"step_ms": 5}) as server:
        request = httpx.Request("POST", f"{server.url}/v1/completions", json={**BODY, "stream": stream})
        raw = (
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        )
        clients = []
        for _ in range(16):
            sock = socket.create_connection(("127.0.0.1", server.port))
            sock.sendall(raw % len(request.content) + request.content)
            clients.append(sock)
        wait_for(lambda: server.metrics()["vllm:num_requests_running"] == 16, 10)
        if stream:
            for sock in clients:
                assert sock.recv(4096).startswith(b"HTTP/1.1 200")
        assert server.metrics()["vllm:kv_cache_usage_perc"] > 0
        for sock in clients:
            sock.close()
        server.wait_idle(2.0)
        assert server.metrics()["vllm:request_success_total{finished_reason=abort}"] == 16
        # stopped, not finished unheard
        assert server.metrics()["vllm:generation_tokens_total"] < 16 * 1500


def test_a_client_that_does_not_read_is_let_go_and_slows_nobody() -> None:
    with scripted_server(
        script={"step_ms": 0.2, "max_model_len": 60_000, "num_blocks": 8192}, write_timeout_s=1.0
    ) as server:
        body = {**BODY, "max_tokens": 50_000, "stream": True, "logprobs": 20}
        content = httpx.Request("POST", server.url or "", json=body).content
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", server.port))
        head = (
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        )
        sock.sendall(head % len(content) + content)
        wait_for(lambda: server.metrics()["vllm:num_requests_running"] == 1, 10)
        assert server.post("/v1/completions", model="m", prompt="say hi").json()["choices"][0]["text"].lower() == "hi"
        wait_for(lambda: server.metrics()["vllm:request_success_total{finished_reason=abort}"] == 1, 30)
        server.wait_idle()
        assert server.metrics()["vllm:generation_tokens_total"] < 50_000
        # the connection is gone with what was unsent, rather than waiting to be emptied
        sock.settimeout(10)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while chunk := sock.recv(1 << 20):
                received += chunk
        assert b"[DONE]" not in received
        sock.close()


def test_a_silent_stream_is_pinged(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with scripted_server(script={"gate": str(gate)}, ping_interval_s=0.2) as server:
        body = {**BODY, "prompt": "say hi", "stream": True}
        with server.client.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            assert next(lines) == ": ping"  # before there is anything to say
            gate.touch()
            rest = list(lines)
        assert [line for line in rest if line.startswith("data: ")][-1] == "data: [DONE]"
