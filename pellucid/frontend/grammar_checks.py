"""Constraints on output, tried before a request is taken, in a process that may hang or crash: `pellucid grammars`."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from pellucid.engine.child import ChildProcess
from pellucid.engine.wire import WireError
from pellucid.frontend.grammar_messages import (
    FromGrammars,
    Ready,
    Try,
    Verdict,
    Vocabulary,
    front_end_side_reader,
)
from pellucid.frontend.outputs import EngineUnavailableError, QueueFullError
from pellucid.sampling.params import StructuredOutputsParams
from pellucid.structured.errors import ConstraintError
from pellucid.structured.grammar import kind_of

NUM_PROCESSES = 2  # a second one is started where the first is busy: a hostile grammar holds up its neighbours less
MAX_WAITING = 256
START_TIMEOUT_S = 60.0  # from the start of a process to a loaded vocabulary
MAX_KNOWN = 8192  # constraints that are remembered, 16 bytes each

logger = logging.getLogger(__name__)


class GrammarProcess:
    """One life of `pellucid grammars`; it answers one question at a time."""

    def __init__(self) -> None:
        """Raises OSError."""
        self.child: ChildProcess[FromGrammars] = ChildProcess(*ChildProcess.start("grammars"), front_end_side_reader())
        self._answer: asyncio.Future[FromGrammars] | None = None

    async def ask(self, question: Vocabulary | Try, timeout_s: float) -> FromGrammars | None:
        """None where the process is gone. Raises asyncio.TimeoutError."""
        self._answer = asyncio.get_running_loop().create_future()
        self.child.send(question)
        gone = asyncio.ensure_future(self.child.wait_gone(timeout_s))
        either: list[asyncio.Future[Any]] = [self._answer, gone]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
        if self._answer.done():
            return self._answer.result()
        if self.child.is_gone:
            return None
        raise asyncio.TimeoutError

    async def load(self, vocabulary: Vocabulary) -> None:
        """Raises EngineUnavailableError."""
        await self.child.connect(self._receive)
        try:
            answer = await self.ask(vocabulary, START_TIMEOUT_S)
        except asyncio.TimeoutError:
            answer = None
        if not isinstance(answer, Ready):
            raise EngineUnavailableError("the process that compiles grammars does not start")

    def _receive(self, messages: Iterable[FromGrammars]) -> None:
        for message in messages:
            if self._answer is None or self._answer.done():
                raise WireError(f"an answer that nobody asked for ({type(message).__name__})")
            self._answer.set_result(message)


class GrammarChecks:
    """Starts a process with the first constraint and keeps it; one that hangs or crashes costs its request alone.

    make_vocabulary: called once, on a thread. timeout_s: how long a constraint may take to compile.
    """

    def __init__(self, make_vocabulary: Callable[[], Vocabulary], timeout_s: float) -> None:
        self._make_vocabulary = make_vocabulary
        self._timeout_s = timeout_s
        self._vocabulary: asyncio.Future[Vocabulary] | None = None
        self._turns = asyncio.Semaphore(NUM_PROCESSES)
        self._num_waiting = 0
        self._processes: set[GrammarProcess] = set()
        self._idle: list[GrammarProcess] = []
        self._ending: set[asyncio.Task[str]] = set()
        self._known: OrderedDict[bytes, None] = OrderedDict()  # digests of those that compile
        self._is_stopped = False

    async def check(self, constraint: StructuredOutputsParams) -> None:
        """Raises ConstraintError; QueueFullError where too many wait or one waited for too long, and
        EngineUnavailableError where there is no process and can be none.
        """
        digest = hashlib.blake2b(msgspec.msgpack.encode(constraint), digest_size=16).digest()
        if digest in self._known:
            self._known.move_to_end(digest)
            return
        async with self._turn():
            refusal = await self._try(constraint)
        if refusal is not None:
            raise ConstraintError(kind_of(constraint), refusal)
        self._known[digest] = None
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    async def shutdown(self) -> None:
        """Leaves no process behind; what waits for one ends with EngineUnavailableError."""
        self._is_stopped = True
        for process in list(self._processes):
            self._end(process)
        await asyncio.gather(*self._ending)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        if self._num_waiting >= MAX_WAITING:
            raise QueueFullError(f"{self._num_waiting} requests wait for their grammars to be compiled")
        self._num_waiting += 1
        try:
            await asyncio.wait_for(self._turns.acquire(), self._timeout_s)
        except asyncio.TimeoutError:
            raise QueueFullError("the grammars of other requests are being compiled") from None
        finally:
            self._num_waiting -= 1
        try:
            yield
        finally:
            self._turns.release()

    async def _try(self, constraint: StructuredOutputsParams) -> str | None:
        """Why it can't be obeyed, or None. Whatever comes between (this request is cancelled, too) ends the process."""
        process = await self._take()
        answer: FromGrammars | None = None
        try:
            answer = await process.ask(Try(constraint=constraint), self._timeout_s)
        except asyncio.TimeoutError:
            logger.warning("killing the grammar process: a constraint took longer than %g s", self._timeout_s)
            return f"it took longer than {self._timeout_s:g} s to compile"
        finally:
            if isinstance(answer, Verdict) and not self._is_stopped:
                self._idle.append(process)
            else:
                self._end(process)
        if isinstance(answer, Verdict):
            return answer.refusal
        if self._is_stopped:
            raise EngineUnavailableError("the server is shutting down")
        logger.warning("the grammar process ended while it compiled a constraint")
        return "it could not be compiled: the compiler crashed on it"

    async def _take(self) -> GrammarProcess:
        """An idle process, or a new one. Raises EngineUnavailableError."""
        while self._idle:
            process = self._idle.pop()
            if not process.child.is_gone:
                return process
            self._end(process)
        vocabulary = await self._load_vocabulary()
        if self._is_stopped:
            raise EngineUnavailableError("the server is shutting down")
        try:
            process = GrammarProcess()
        except OSError as error:
            raise EngineUnavailableError(f"the process that compiles grammars cannot be started: {error}") from error
        self._processes.add(process)
        try:
            await process.load(vocabulary)
        except BaseException:
            self._end(process)
            raise
        return process

    async def _load_vocabulary(self) -> Vocabulary:
        if self._vocabulary is None:
            self._vocabulary = asyncio.ensure_future(asyncio.to_thread(self._make_vocabulary))
        return await asyncio.shield(self._vocabulary)

    def _end(self, process: GrammarProcess) -> None:
        if process not in self._processes:
            return
        self._processes.remove(process)
        with contextlib.suppress(ValueError):
            self._idle.remove(process)
        process.child.kill()
        task = asyncio.ensure_future(process.child.reap())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
