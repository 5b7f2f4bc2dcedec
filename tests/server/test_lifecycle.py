"""From bind to exit: who may start, what is told while loading, how work ends, and that nothing is left."""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
from harness import RunningServer, events_of, free_port, scripted_server, wait_for

SLOW = {"step_ms": 20}


def read_stream(server: RunningServer, results: list[Any], **more: Any) -> None:
    body = {"model": "m", "prompt": "x", "temperature": 0, "stream": True, **more}
    try:
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
            results.append(events_of(response))
    except httpx.HTTPError as error:
        results.append(error)


def start_streams(server: RunningServer, count: int, **more: Any) -> tuple[list[threading.Thread], list[Any]]:
    """They run on threads; when this returns all of them have begun."""
    results: list[Any] = []
    threads = [threading.Thread(target=read_stream, args=(server, results), kwargs=more) for _ in range(count)]
    for thread in threads:
        thread.start()
    wait_for(lambda: server.metrics()["vllm:num_requests_running"] >= count, 20)
    return threads, results


def text_of(events: list[Any]) -> str:
    assert events[-1] == "[DONE]", events[-1]
    return "".join(event["choices"][0]["text"] for event in events[:-1])


def test_a_second_server_on_the_port_ends_at_once_and_says_why(scripted: RunningServer) -> None:
    with scripted_server(wait=False, port=scripted.port, script={"loads": "/never"}) as second:
        start = time.monotonic()
        code = second.wait(20)
        duration_s = time.monotonic() - start
    assert code != 0
    assert f"port {scripted.port} on 127.0.0.1 is taken" in "".join(second.errors)
    # interpreter and imports included; a machine under load is allowed for, a loading model is not
    assert duration_s < 10
    assert scripted.client.get("/health").status_code == 200


def test_beyond_this_machine_only_with_a_key_or_in_so_many_words() -> None:
    with scripted_server(wait=False, host="0.0.0.0") as server:
        assert server.wait(20) != 0
        assert "--allow-unauthenticated" in "".join(server.errors)
    for more in ({"key": "secret"}, {"allow_unauthenticated": True}):
        with scripted_server(host="0.0.0.0", **more) as server:  # type: ignore[arg-type]
            assert server.client.get("/v1/models").status_code == 200


def test_health_tells_progress_while_loading_and_requests_wait_outside(tmp_path: Path) -> None:
    port, loaded = free_port(), tmp_path / "loaded"
    with scripted_server(wait=False, port=port, script={"loads": str(loaded)}) as server:
        url = f"http://127.0.0.1:{port}"

        def health() -> httpx.Response | None:
            try:
                return httpx.get(f"{url}/health")
            except httpx.ConnectError:
                return None

        wait_for(lambda: (r := health()) is not None and r.json().get("progress") == "learning the script", 20)
        response = httpx.get(f"{url}/health")
        assert response.status_code == 503
        assert response.json() == {"status": "loading", "progress": "learning the script"}
        refused = httpx.post(f"{url}/v1/completions", json={"model": "m", "prompt": "x"})
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "model_loading"
        assert int(refused.headers["retry-after"]) >= 1
        assert httpx.get(f"{url}/metrics").status_code == 200
        loaded.touch()
        server.wait_ready()
        assert server.client.get("/health").json() == {"status": "ok"}
    assert any("learning the script" in line for line in server.errors)


def test_a_load_that_fails_ends_with_its_cause_in_the_last_line() -> None:
    with scripted_server(wait=False, script={"fails": "the script is torn"}) as server:
        assert server.wait(30) == 1
    assert "the script is torn" in server.errors[-1]


def test_sigterm_while_loading_ends_at_once() -> None:
    with scripted_server(wait=False, script={"loads": "/never"}) as server:
        wait_for(lambda: any("learning" in line for line in server.errors), 20)
        assert server.stop(10) == 0


def test_what_is_printed_is_a_command_that_works(scripted: RunningServer) -> None:
    command = next(line for line in scripted.output if line.strip().startswith("curl "))
    answer = subprocess.run(command, shell=True, capture_output=True, text=True, check=True).stdout
    assert '"object":"chat.completion"' in answer


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_work_finish_and_refuses_new(signal_number: signal.Signals) -> None:
    with scripted_server(script=SLOW) as server:
        engine_pids = server.engine_pids()
        threads, results = start_streams(server, 3, max_tokens=60)
        server.process.send_signal(signal_number)
        wait_for(lambda: server.client.get("/health").status_code == 503, 10)
        assert server.client.get("/health").json() == {"status": "stopping"}
        refused = server.post("/v1/completions", model="m", prompt="x")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        for thread in threads:
            thread.join(30)
        assert server.wait() == 0
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    assert [text_of(events) for events in results] == [(alphabet * 3)[:60]] * 3
    assert not any(map(psutil.pid_exists, engine_pids))


def test_work_that_takes_longer_than_the_grace_time_ends_with_an_error() -> None:
    with scripted_server(script=SLOW, shutdown_timeout_s=0.5) as server:
        threads, results = start_streams(server, 1, max_tokens=2000)
        assert server.stop() == 0
        threads[0].join(10)
    assert "shut" in results[0][-1]["error"]["message"]


def test_a_second_signal_stops_at_once() -> None:
    with scripted_server(script=SLOW, shutdown_timeout_s=600) as server:
        engine_pids = server.engine_pids()
        threads, results = start_streams(server, 1, max_tokens=2000)
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: server.client.get("/health").status_code == 503, 10)
        server.process.send_signal(signal.SIGTERM)
        assert server.wait(15) == 128 + signal.SIGTERM
        threads[0].join(10)
    assert "error" in results[0][-1]
    assert not any(map(psutil.pid_exists, engine_pids))


def test_an_engine_killed_under_streams_changes_none_of_them() -> None:
    with scripted_server(script=SLOW) as server:
        threads, results = start_streams(server, 3, max_tokens=60)
        (pid,) = server.engine_pids()
        psutil.Process(pid).kill()
        for thread in threads:
            thread.join(60)
        alphabet = "abcdefghijklmnopqrstuvwxyz"
        assert [text_of(events) for events in results] == [(alphabet * 3)[:60]] * 3
        assert server.client.get("/health").status_code == 200
        assert server.engine_pids() != [pid]


def test_health_is_503_while_the_engine_hangs() -> None:
    with scripted_server(script=SLOW) as server:
        engine = psutil.Process(server.engine_pids()[0])
        engine.suspend()
        wait_for(lambda: server.client.get("/health").status_code == 503, 5)
        engine.resume()
        wait_for(lambda: server.client.get("/health").status_code == 200, 60)


def test_the_front_end_is_free_of_torch(scripted: RunningServer) -> None:
    """Not only its imports (tests/test_architecture.py), but after all that the other tests made it do."""
    assert "libtorch" not in Path(f"/proc/{scripted.process.pid}/maps").read_text()


def test_half_open_connections_do_not_stop_a_shutdown() -> None:
    with scripted_server() as server:
        idle = socket.create_connection(("127.0.0.1", server.port))
        idle.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nabc")
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
        client.completions.create(model="m", prompt="say hi")
        assert server.stop(15) == 0
        idle.close()
