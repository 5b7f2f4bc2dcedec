"""A server in a process of its own, as its users have it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
from prometheus_client.parser import text_string_to_metric_families

HERE = Path(__file__).parent
START_TIMEOUT_S = 120
COMMON = ("model_name", "engine")


class RunningServer:
    """url: None until it has been printed. stderr collects in `errors`."""

    def __init__(self, command: Sequence[str], *, key: str | None = None, **environment: str) -> None:
        path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
        self._data = tempfile.TemporaryDirectory()  # nothing is stored in the home of whoever runs the tests
        environment.setdefault("XDG_DATA_HOME", self._data.name)
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, **environment},
        )
        self.url: str | None = None
        self.output: list[str] = []
        self.errors: list[str] = []
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._readers = [
            threading.Thread(target=self._read, args=(pipe, lines), daemon=True)
            for pipe, lines in ((self.process.stdout, self.output), (self.process.stderr, self.errors))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, pipe: Any, lines: list[str]) -> None:
        for line in pipe:
            lines.append(line)
            if self.url is None and (found := re.search(r" at (http://\S+)", line)) and lines is self.output:
                self.url = found[1]

    def wait_ready(self) -> RunningServer:
        wait_for(lambda: self.url is not None or self.process.poll() is not None, START_TIMEOUT_S, self.describe)
        assert self.url is not None, self.describe()
        self.client = httpx.Client(base_url=self.url, headers=self._headers, timeout=60)
        return self

    def describe(self) -> str:
        return f"exit code {self.process.poll()}\n{''.join(self.output)}\n{''.join(self.errors)}"

    @property
    def port(self) -> int:
        assert self.url is not None
        return int(self.url.rpartition(":")[2])

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.client.post(path, json=body)

    def engine_pids(self) -> list[int]:
        return self.pids_of("engine")

    def pids_of(self, subcommand: str) -> list[int]:
        """Its children that are `pellucid SUBCOMMAND`."""
        return [
            child.pid
            for child in psutil.Process(self.process.pid).children()
            if subcommand in " ".join(child.cmdline()).split()
        ]

    def metrics(self) -> dict[str, float]:
        """Sample name, with the labels that tell samples apart, to value."""
        text = self.client.get("/metrics").raise_for_status().text
        return {
            sample.name + "".join(f"{{{k}={v}}}" for k, v in sample.labels.items() if k not in COMMON): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def wait_idle(self, timeout_s: float = 2.0) -> None:
        """Nothing runs, nothing waits, every block is free: what must be so after whatever a client did."""
        gauges = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")

        def busy() -> dict[str, float]:
            metrics = self.metrics()
            return {name: metrics[name] for name in gauges if metrics[name] != 0}

        wait_for(lambda: not busy(), timeout_s, lambda: f"not idle: {busy()}")

    def stop(self, timeout_s: float = 30) -> int:
        """SIGTERM; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def wait(self, timeout_s: float = 30) -> int:
        try:
            code = self.process.wait(timeout_s)
        finally:
            if self.process.poll() is None:
                self.process.kill()
        for reader in self._readers:
            reader.join(5)
        self._data.cleanup()
        return code


def wait_for(condition: Callable[[], object], timeout_s: float, describe: Callable[[], str] = lambda: "") -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {describe()}"
        time.sleep(0.02)


@contextmanager
def serving(*arguments: str, **environment: str) -> Iterator[RunningServer]:
    """`pellucid serve` with these arguments, on a port of its own. Unless a test has ended it, it is idle at the end
    and leaves with exit code 0 when told to, or the test fails.
    """
    server = RunningServer([sys.executable, "-m", "pellucid", "serve", *arguments, "--port", "0"], **environment)
    lives = False
    try:
        yield server.wait_ready()
        lives = server.process.poll() is None
        if lives:
            server.wait_idle()
    finally:
        code = server.stop()
    assert not lives or code == 0, server.describe()


@contextmanager
def scripted_server(
    *,
    script: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
    wait: bool = True,
    key: str | None = None,
    **options: Any,
) -> Iterator[RunningServer]:
    """A server over `scripted_model`; options are ServerOptions' fields. Idle again at the end, or the test fails."""
    if key is not None:
        options["api_keys"] = [key]
    given = {"script": script or {}, "config": config or {}, "options": {"port": 0, **options}}
    server = RunningServer(
        [sys.executable, str(HERE / "scripted_model.py"), msgspec.json.encode(given).decode()], key=key
    )
    try:
        if wait:
            server.wait_ready()
        yield server
        if wait and server.process.poll() is None:
            server.wait_idle()
    finally:
        server.stop()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def events_of(response: httpx.Response) -> list[Any]:
    """The data of every event of a stream; "[DONE]" stays as it is."""
    data = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    return [item if item == "[DONE]" else msgspec.json.decode(item) for item in data]
