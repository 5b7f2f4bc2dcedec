"""`serve`: from an empty port to an empty queue. Bind, answer /health, load, serve, drain, leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import uvicorn

from pellucid.config import EngineConfig
from pellucid.engine.client import EngineState
from pellucid.frontend.async_llm import AsyncLLM
from pellucid.observability.event_log import set_log_level
from pellucid.observability.lines import write_line
from pellucid.observability.metrics import Metrics
from pellucid.server.app import build_app
from pellucid.server.http_protocol import limited_protocol
from pellucid.server.listen import BACKLOG, bind, url_of
from pellucid.server.loading import load_llm, served_names
from pellucid.server.observers import Observers
from pellucid.server.options import ServerOptions, check_options
from pellucid.server.state import ServerState
from pellucid.server.terminal import ProgressLine, greeting

Loader = Callable[[EngineConfig, ServerOptions, Callable[[str], None]], Awaitable[AsyncLLM]]

KEEP_ALIVE_S = 75  # longer than the pools of common clients keep a connection, so that they are the ones to close it
POLL_S = 0.1


def serve(config: EngineConfig, options: ServerOptions, *, load: Loader = load_llm) -> int:
    """Serve until a signal. Returns the exit code: 0 after a drain, 1 where the model or the engine failed.

    Raises OptionsError and ListenError before anything is loaded. load: makes the AsyncLLM (tests bring their own).
    """
    check_options(options)
    set_log_level(config.log_level)
    sock = bind(options)
    try:
        server = Server(config, options, sock, load)
        return _run(server.run())
    finally:
        sock.close()


class Server:
    """One life of a server. A first SIGTERM or SIGINT lets running work finish; a second one does not wait for it."""

    def __init__(self, config: EngineConfig, options: ServerOptions, sock: socket.socket, load: Loader) -> None:
        model_name, aliases = served_names(config)
        self._config = config
        self._options = options
        self._sock = sock
        self._load = load
        metrics = Metrics(model_name)
        self._observers = Observers(options, metrics, config.log_level, sock.getsockname()[1])
        self._state = ServerState(options, model_name, metrics, self._observers, aliases)
        self._http = _HttpServer(_uvicorn_config(self._state))
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._signal: int | None = None

    async def run(self) -> int:
        with self._signal_handlers():
            http = asyncio.create_task(self._http.serve(sockets=[self._sock]))
            starting = [
                asyncio.ensure_future(hook()) for hook in self._state.on_start
            ]  # kept: a loop forgets its tasks
            try:
                return await self._live(http)
            finally:
                await asyncio.gather(*starting, return_exceptions=True)
                await self._end(http)
                self._observers.close()

    async def _live(self, http: asyncio.Task[None]) -> int:
        """Load, then serve until told to stop or until the engine is beyond help. Returns the exit code."""
        loading = asyncio.create_task(self._start_engine())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({loading, stopping, http}, return_when=asyncio.FIRST_COMPLETED)
            if not loading.done():
                return self._exit_code()
            loading.result()
            ready = self._state.ready
            for warning in self._state.formats.warnings:
                write_line(f"warning: {warning}", sys.stderr)
            url, options, sampling = url_of(self._sock), self._options, self._state.engine().default_sampling
            name, has_keys = self._state.model_name, bool(options.api_keys)
            print(greeting(url, name, ready, has_keys, options.ui, sampling), flush=True)
            failing = asyncio.create_task(self._engine_failed())
            await asyncio.wait({failing, stopping, http}, return_when=asyncio.FIRST_COMPLETED)
            if failing.done() and not stopping.done():
                raise RuntimeError(failing.result())
            failing.cancel()
            await self._drain()
            return self._exit_code()
        finally:
            for task in (loading, stopping):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await loading  # it may hold an engine that has just begun

    async def _start_engine(self) -> None:
        """Raises RuntimeError (or the loader's ValueError, OSError) with the root cause."""
        state = self._state
        with ProgressLine(sys.stderr) as line:

            def show(progress: str) -> None:
                state.progress = progress
                line.show(progress)

            state.attach(await self._load(self._config, self._options, show))
            assert state.llm is not None
            await state.llm.start()
            ready = asyncio.create_task(state.llm.wait_ready())
            while not (await asyncio.wait({ready}, timeout=POLL_S))[0]:
                line.show(state.llm.client.progress)
            ready.result()

    async def _engine_failed(self) -> str:
        """Returns the cause once the engine will not be started again."""
        assert self._state.llm is not None
        while self._state.llm.state is not EngineState.FAILED:
            await asyncio.sleep(POLL_S)
        return self._state.llm.client.progress

    async def _drain(self) -> None:
        self._state.draining = True
        assert self._state.llm is not None
        if self._state.llm.num_unfinished:
            timeout_s = self._options.shutdown_timeout_s
            print(f"stopping: running requests have {timeout_s:g} s to finish; interrupt again to stop at once",
                  file=sys.stderr, flush=True)  # fmt: skip
        drain = asyncio.create_task(self._state.llm.drain(self._options.shutdown_timeout_s))
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait({drain, hurry}, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        drain.cancel()

    async def _end(self, http: asyncio.Task[None]) -> None:
        """The engine first: it ends what still runs with an error, and the connections then close by themselves."""
        self._state.draining = True
        if self._state.llm is not None:
            await self._state.llm.shutdown()
        for hook in self._state.on_end:
            await hook()
        self._http.should_exit = True
        await asyncio.wait({http}, timeout=5)
        if not http.done():
            http.cancel()

    def _exit_code(self) -> int:
        return 128 + self._signal if self._hurry.is_set() and self._signal else 0

    @contextmanager
    def _signal_handlers(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, int(number))
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def _on_signal(self, number: int) -> None:
        self._state.draining = True
        if self._stopping.is_set():
            self._signal = number
            self._hurry.set()
        self._stopping.set()


class _HttpServer(uvicorn.Server):
    """Signals are ours: uvicorn would close the port before running work is done."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _uvicorn_config(state: ServerState) -> uvicorn.Config:
    options = state.options
    return uvicorn.Config(
        build_app(state),
        http=limited_protocol(max_head_bytes=options.max_header_bytes, head_timeout_s=options.body_timeout_s),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=2,
    )


def _run(main: Awaitable[int]) -> int:
    """asyncio.run on uvloop where there is one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)  # type: ignore[arg-type]
    return uvloop.run(main)  # type: ignore[arg-type]
