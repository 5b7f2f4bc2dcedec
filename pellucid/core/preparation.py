"""Requests for which something has to be made before they can be queued: a grammar, on a thread of its own.

The step loop goes on meanwhile; nobody waits for another's grammar.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass

from pellucid.core.messages import EngineCoreRequest


@dataclass(frozen=True)
class Prepared:
    """error: what the user reads where it could not be made; rules: what was made."""

    request: EngineCoreRequest
    rules: object | None
    error: str | None = None


@dataclass
class _Pending:
    """since: from when on its time counts, by the monotonic clock."""

    request: EngineCoreRequest
    future: Future[object]
    since: float
    has_begun: bool = False


class Preparations:
    """start: begins the work for a request on another thread; None for one that needs none. A ValueError in it is the
    request's fault.

    timeout_s: for the work of one request. While it waits for others' its time does not run, unless no work begins for
    so long: all threads are held up then.
    """

    def __init__(
        self,
        start: Callable[[EngineCoreRequest], Future[object] | None],
        timeout_s: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._start = start
        self._timeout_s = timeout_s
        self._monotonic = monotonic
        self._pending: dict[str, _Pending] = {}
        self._begun_at = monotonic()  # when work last began

    def __len__(self) -> int:
        return len(self._pending)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._pending

    def begin(self, request: EngineCoreRequest) -> bool:
        """Returns False where there is nothing to make."""
        future = self._start(request)
        if future is None:
            return False
        self._pending[request.request_id] = _Pending(request, future, self._monotonic())
        return True

    def drop(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            if (pending := self._pending.pop(request_id, None)) is not None:
                pending.future.cancel()

    def take_done(self) -> list[Prepared]:
        """What is made, or can't be, in the order of arrival."""
        done = []
        now = self._monotonic()
        for pending in list(self._pending.values()):
            request, future = pending.request, pending.future
            if not pending.has_begun and (future.running() or future.done()):
                pending.has_begun, pending.since, self._begun_at = True, now, now
            since = pending.since if pending.has_begun else max(pending.since, self._begun_at)
            if future.done():
                done.append(self._result(request, future))
            elif now > since + self._timeout_s:
                future.cancel()
                error = f"the constraint on the output was not compiled within {self._timeout_s:g} s"
                done.append(Prepared(request, None, error))
            else:
                continue
            del self._pending[request.request_id]
        return done

    def wait(self, timeout_s: float) -> None:
        """Until one is done, or the time is up: for when there is nothing else to do."""
        wait([pending.future for pending in self._pending.values()], timeout_s, FIRST_COMPLETED)

    @staticmethod
    def _result(request: EngineCoreRequest, future: Future[object]) -> Prepared:
        error = future.exception()
        if error is None:
            return Prepared(request, future.result())
        if isinstance(error, ValueError):
            return Prepared(request, None, f"Invalid constraint on the output: {error}")
        return Prepared(request, None, f"the constraint could not be compiled: {type(error).__name__}: {error}")
