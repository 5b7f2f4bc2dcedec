"""The two ends of a request in the front end: the one the engine's outputs reach, and the one the caller reads."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from pellucid.core.messages import EngineCoreOutput, FinishReason
from pellucid.engine.client import EngineClient, EngineState
from pellucid.frontend.output_processor import RequestProcessor
from pellucid.frontend.outputs import (
    ContradictionError,
    EngineUnavailableError,
    RequestError,
    RequestOutput,
    RequestTimeoutError,
)
from pellucid.frontend.rounds import Rounds
from pellucid.sampling.errors import CANNOT_CONTINUE, NO_TOKEN_LEFT

# The engine ends a request at its deadline, and says where it was. Where no engine answers, the front end does, later.
ENGINE_GRACE_S = 1.0
DEADLINE_TOLERANCE_S = 0.25


class ActiveRequest:
    """A request from its submission to its end, kept by AsyncLLM. Everything happens on the event loop's thread.

    on_end: called once, when nothing of it is in the engine any more.
    rounds: when its listener is told, where it has one.
    max_unread_tokens: a reader that leaves more than that unread is not there any more; None: no bound.
    """

    def __init__(
        self,
        processor: RequestProcessor,
        *,
        timeout_s: float | None,
        final_only: bool,
        max_unread_tokens: int | None,
        client: EngineClient,
        on_end: Callable[[ActiveRequest], None],
        rounds: Rounds,
    ) -> None:
        self.processor = processor
        self.final_only = final_only
        self.news = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        self.exception: RequestError | None = None
        self.is_over = False
        self.listener: Callable[[], bool] | None = None
        self.listener_error: Exception | None = None
        self.is_awaited = False  # its reader waits for news
        self._is_due = False  # in the next round
        self._rounds = rounds
        self._max_unread_tokens = max_unread_tokens
        self._client = client
        self._on_end = on_end
        self._timeout_s = timeout_s
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._timer = (
            None if timeout_s is None else self.loop.call_later(timeout_s + ENGINE_GRACE_S, self._on_silent_deadline)
        )

    def on_output(self, output: EngineCoreOutput) -> None:
        """The sink of all children."""
        if self.is_over:
            return
        if self.processor.process(output):
            self._client.abort([output.request_id])
        if output.finish_reason is FinishReason.ERROR:
            self.fail(self._error_of(output))
        elif self.processor.is_finished:
            self._end()
        elif not self.is_awaited and self._reader_is_gone():
            self.fail(
                RequestError(
                    f"nobody read the output: more than {self._max_unread_tokens} tokens were waiting, and the request "
                    "was stopped"
                )
            )
        elif not self.final_only:
            self._tell()

    def _tell(self) -> None:
        if self.listener is None or not self.is_awaited:
            self.news.set()
        elif not self._is_due:
            self._is_due = True
            self._rounds.add(self._tell_listener)

    def _tell_listener(self) -> None:
        self._is_due = False
        if self.is_over or not self.is_awaited or self.listener is None:
            return  # the reader has been woken, or will look for news before it waits
        try:
            has_taken = self.listener()
        except Exception as error:
            self.listener_error, has_taken = error, False
        if not has_taken:
            self.news.set()

    def fail(self, error: RequestError) -> None:
        """End the request and what is left of it in the engine; the reader gets what was certain, then the error."""
        if not self.is_over:
            self.exception = error
            self._stop(FinishReason.ERROR, str(error))

    def abort(self) -> None:
        """The same without an error: its last output says FinishReason.ABORT."""
        if not self.is_over:
            self._stop(FinishReason.ABORT)

    def _stop(self, reason: FinishReason, error: str | None = None) -> None:
        if unfinished := self.processor.unfinished_ids():
            self._client.abort(unfinished)
        self.processor.fail(reason, error)
        self._end()

    def _end(self) -> None:
        self.is_over = True
        if self._timer is not None:
            self._timer.cancel()
        self.news.set()
        self._on_end(self)

    def _error_of(self, output: EngineCoreOutput) -> RequestError:
        text = output.error or "the engine ended this request with an error"
        if self._deadline is not None and time.monotonic() >= self._deadline - DEADLINE_TOLERANCE_S:
            return RequestTimeoutError(text)
        if self._client.state in (EngineState.FAILED, EngineState.STOPPED):
            return EngineUnavailableError(text)
        contradicts_itself = text == NO_TOKEN_LEFT or text.startswith(CANNOT_CONTINUE)
        return ContradictionError(text) if contradicts_itself else RequestError(text)

    def _on_silent_deadline(self) -> None:
        self.fail(RequestTimeoutError(f"timed out after {self._timeout_s:g} s while no engine answered"))

    def _reader_is_gone(self) -> bool:
        if self._max_unread_tokens is None or self.final_only:
            return False
        return self.processor.num_unread_tokens > self._max_unread_tokens


class RequestStream:
    """The deltas of one request: `async for output in stream`. Left, closed or cancelled, it aborts the request.

    Each RequestOutput holds what is new since the last one, for the continuations that have something new; the last one
    has `finished=True`. A reader that is slow gets fewer, larger deltas; nothing queues up behind it. One task reads.
    Raises RequestError (or its subclasses RequestTimeoutError, EngineUnavailableError) where the request failed, after
    the text that was certain.
    """

    def __init__(self, request: ActiveRequest) -> None:
        self._request = request
        self._is_read = False  # to its end

    @property
    def request_id(self) -> str:
        return self._request.processor.prepared.request_id

    @property
    def prompt_token_ids(self) -> list[int]:
        return self._request.processor.prepared.prompt_token_ids

    @property
    def engine_request_ids(self) -> list[str]:
        """As the engine's events name them, one per continuation."""
        return [child.value.request_id for child in self._request.processor.prepared.children]

    @property
    def seeds(self) -> list[int]:
        """One per continuation, known from the start."""
        return [child.seed for child in self._request.processor.prepared.children]

    @property
    def num_output_tokens(self) -> int:
        """Of all continuations so far, read or not."""
        return self._request.processor.num_output_tokens

    @property
    def num_cached_tokens(self) -> int:
        """Of the prompt, those that were in the cache."""
        return self._request.processor.num_cached_tokens

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> RequestOutput:
        request = self._request
        while not self._is_read:
            if request.is_over or not request.final_only:
                output = self._take()
                if output is not None:
                    return output
            if request.is_over:
                self._is_read = True
                if request.exception is not None:
                    raise request.exception
                break
            request.news.clear()
            request.is_awaited = True
            try:
                await request.news.wait()
            except asyncio.CancelledError:
                request.abort()
                self._is_read = True
                raise
            finally:
                request.is_awaited = False
            if request.listener_error is not None:
                raise request.listener_error
        raise StopAsyncIteration

    def listen(self, listener: Callable[[], bool]) -> None:
        """From now on news that do not end the request are told to `listener`, where a task waits for them in
        `__anext__`: it takes them by `take` and returns True, or returns False, and the task is woken as without it.

        An exception of it is raised to that task.
        """
        self._request.listener = listener

    def take(self) -> RequestOutput | None:
        """For a listener: what is new."""
        return None if self._is_read else self._take()

    async def final(self) -> RequestOutput:
        """All that has not been read yet as one finished RequestOutput; raises what reading would raise.

        RuntimeError where the stream was read to its end before.
        """
        self._request.final_only = True
        try:
            return await self.__anext__()
        except StopAsyncIteration:
            raise RuntimeError(f"request {self.request_id} was read to its end already") from None

    async def aclose(self) -> None:
        """Abort whatever is not finished. More than once is no error."""
        self._is_read = True
        self._request.abort()

    def _take(self) -> RequestOutput | None:
        output = self._request.processor.take()
        if not output.outputs:
            return None
        if self._request.exception is None:
            self._is_read = output.finished
            return output
        if self._request.final_only:
            return None
        # the error itself is raised next, and does not look like an end before
        output.finished = False
        for completion in output.outputs:
            if completion.finish_reason is FinishReason.ERROR:
                completion.finish_reason, completion.error = None, None
        output.outputs = [c for c in output.outputs if c.text or c.token_ids or c.finish_reason is not None]
        return output if output.outputs else None

    def __del__(self) -> None:
        request = self._request
        if not request.is_over:
            with contextlib.suppress(RuntimeError):  # the loop is closed: its engine is gone too
                request.loop.call_soon_threadsafe(request.abort)
