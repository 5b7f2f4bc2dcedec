"""`run-batch`: a file of requests to a file of responses, in OpenAI's batch format, through the server's own routes.

The output file is the state: a line is in it, whole, or is still to be done. So a run that was killed is gone on with
by starting it again; what was in flight is computed anew, and no line is written twice.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import IO, Any

import httpx
import msgspec

from pellucid.config import EngineConfig
from pellucid.engine.client import EngineState
from pellucid.frontend.async_llm import AsyncLLM
from pellucid.frontend.terminal import ProgressBar
from pellucid.observability.metrics import Metrics
from pellucid.server.app import build_app
from pellucid.server.errors import ApiError, shorten, unknown_url, unsupported
from pellucid.server.loading import load_llm, served_names
from pellucid.server.observers import Observers
from pellucid.server.options import ServerOptions
from pellucid.server.state import ServerState

Loader = Callable[[EngineConfig, ServerOptions, Callable[[str], None]], Awaitable[AsyncLLM]]

URLS = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/messages",
        "/v1/rerank",
        "/v1/responses",
        "/v1/score",
    }
)
RETRY_S = 0.5
MAX_LINE_BYTES = 64 << 20
RESULT_START = b'{"id":"batch_req_'


class BatchError(ValueError):
    """The files don't fit together, or a line is no request; str() says which and what to do."""


class BatchLine(msgspec.Struct):
    custom_id: str
    url: str
    body: dict[str, Any]
    method: str = "POST"


class _ResultLine(msgspec.Struct):
    """What tells a result from a request, which has a custom_id too."""

    id: str
    custom_id: str
    response: msgspec.Raw


def read_batch(path: Path) -> Iterator[BatchLine]:
    """Raises BatchError, with the number of the line, for what is no request; an empty line is none."""
    decoder = msgspec.json.Decoder(BatchLine)
    with path.open("rb") as file:
        number = 0
        while raw := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(raw) > MAX_LINE_BYTES:
                raise BatchError(f"{path}: line {number} is longer than {MAX_LINE_BYTES} bytes")
            if not raw.strip():
                continue
            try:
                yield decoder.decode(raw)
            except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
                raise BatchError(
                    f"{path}: line {number} is not a request of a batch "
                    f'({{"custom_id", "method", "url", "body"}}): {error}'
                ) from error


def check_batch(path: Path) -> set[str]:
    """The ids of all lines. Raises BatchError where one is no request, or has an id for the second time."""
    ids: set[str] = set()
    for line in read_batch(path):
        if line.custom_id in ids:
            raise BatchError(f"{path}: two lines have the custom_id {shorten(line.custom_id)!r}; each needs its own")
        ids.add(line.custom_id)
    return ids


class Results:
    """The output file, held against other runs; `done` has the ids of its lines.

    A line that a kill left without its end is cut off. Raises BatchError where the file is in use, is none of ours, or
    has results of other requests than `ids`.
    """

    def __init__(self, path: Path, ids: set[str]) -> None:
        self._path = path
        self._file: IO[bytes] = path.open("a+b", buffering=0)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise BatchError(f"{path} is being written by another run") from None
        try:
            self.done = self._read(ids)
        except BaseException:
            self._file.close()
            raise

    def write(self, result: dict[str, Any]) -> None:
        line = memoryview(msgspec.json.encode(result) + b"\n")
        while line:
            line = line[self._file.write(line) :]
        self.done.add(result["custom_id"])

    def close(self) -> None:
        os.fsync(self._file.fileno())
        self._file.close()

    def _read(self, ids: set[str]) -> set[str]:
        done: set[str] = set()
        self._file.seek(0)
        end = 0
        with self._path.open("rb") as file:
            for raw in file:
                if not raw.endswith(b"\n"):
                    if not (raw.startswith(RESULT_START) or RESULT_START.startswith(raw)):
                        raise BatchError(f"{self._path} ends with something else than a result")
                    break
                try:
                    custom_id = msgspec.json.decode(raw, type=_ResultLine).custom_id
                except msgspec.MsgspecError as error:
                    raise BatchError(f"{self._path} holds something else than results: {error}") from error
                if custom_id not in ids:
                    raise BatchError(
                        f"{self._path} has the result of {shorten(custom_id)!r}, which is not in the input: "
                        "give another output file"
                    )
                done.add(custom_id)
                end += len(raw)
        self._file.truncate(end)
        return done


class BatchRun:
    """Sends lines to the application, `concurrency` at a time, and writes what comes back as it comes."""

    def __init__(self, state: ServerState, results: Results, progress: ProgressBar, concurrency: int) -> None:
        self._state = state
        self._results = results
        self._progress = progress
        self._concurrency = concurrency
        self.num_refused = 0  # lines whose answer is an error
        transport = httpx.ASGITransport(app=build_app(state))
        self._client = httpx.AsyncClient(transport=transport, base_url="http://batch", timeout=None)

    async def run(self, lines: Iterator[BatchLine]) -> None:
        """Raises RuntimeError where the engine is beyond help; what is written stays."""
        running: set[asyncio.Task[None]] = set()
        try:
            for line in lines:
                if line.custom_id in self._results.done:
                    continue
                running.add(asyncio.create_task(self._do(line)))
                if len(running) >= self._concurrency:
                    running = await self._some_done(running)
            while running:
                running = await self._some_done(running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await self._client.aclose()

    @staticmethod
    async def _some_done(running: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
        done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            try:
                task.result()
            except BaseException:
                for other in running:
                    other.cancel()
                await asyncio.gather(*running, return_exceptions=True)
                raise
        return running

    async def _do(self, line: BatchLine) -> None:
        refusal = _refusal(line)
        if refusal is not None:
            status, request_id, body = refusal.status, f"req_{uuid.uuid4().hex}", refusal.body()
        else:
            response = await self._post(line)
            status, request_id, body = response.status_code, response.headers["x-request-id"], response.json()
        self.num_refused += status >= 400
        self._results.write(
            {
                "id": f"batch_req_{uuid.uuid4().hex}",
                "custom_id": line.custom_id,
                "response": {"status_code": status, "request_id": request_id, "body": body},
                "error": None,
            }
        )
        usage = body.get("usage") or {}
        self._progress.advance(usage.get("completion_tokens", usage.get("output_tokens", 0)), 1)

    async def _post(self, line: BatchLine) -> httpx.Response:
        """Until there is an answer: an engine that starts again, or a queue that is full, is no result of a line."""
        content = msgspec.json.encode(line.body)
        while True:
            response = await self._client.post(line.url, content=content, headers={"content-type": "application/json"})
            if response.status_code != 503:
                return response
            llm = self._state.llm
            if llm is None or llm.state in (EngineState.FAILED, EngineState.STOPPED):
                raise RuntimeError(llm.client.progress if llm else "there is no engine")
            await asyncio.sleep(RETRY_S)


def _refusal(line: BatchLine) -> ApiError | None:
    """What a batch does not take, though the server would."""
    if line.method != "POST" or line.url not in URLS:
        return unknown_url(line.method, line.url)
    if line.body.get("stream"):
        return unsupported("stream", "is not supported in a batch.")
    if line.body.get("background"):
        return unsupported("background", "is not supported in a batch.")
    return None


async def run_batch(
    config: EngineConfig,
    source: Path,
    target: Path,
    *,
    concurrency: int,
    progress: Callable[[int], Any],
    show: Callable[[str], None],
    load: Loader = load_llm,
) -> tuple[int, int, int]:
    """progress: makes, for so many lines, the context manager of a ProgressBar. show: told how loading goes.

    Returns how many lines are done, how many of them in this run, and how many of these were refused or failed.
    Raises BatchError, and what loading raises.
    """
    if target.exists() and os.path.samefile(source, target):
        raise BatchError(f"{target} is the input: give another output file")
    ids = check_batch(source)
    results = Results(target, ids)
    try:
        num_before, num_refused = len(results.done), 0
        if num_before < len(ids):
            options = ServerOptions(max_queue=1 << 30, request_timeout_s=None, response_store="none")
            model_name, aliases = served_names(config)
            metrics = Metrics(model_name)
            state = ServerState(options, model_name, metrics, Observers(options, metrics, config.log_level), aliases)
            llm = await load(config, options, show)
            try:
                state.attach(llm)
                await llm.start()
                await llm.wait_ready()
                with progress(len(ids)) as bar:
                    bar.advance(0, num_before)
                    batch = BatchRun(state, results, bar, concurrency)
                    await batch.run(read_batch(source))
                    num_refused = batch.num_refused
            finally:
                await llm.shutdown()
        return len(results.done), len(results.done) - num_before, num_refused
    finally:
        results.close()
