"""Stored responses. Every call is one transaction on a thread of the store's own: the event loop never waits for a
database, only the request that needs it does.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, TypeVar

import msgspec
import sqlalchemy as sa

from pellucid.observability.lines import write_line
from pellucid.server.conversation import JsonObject
from pellucid.server.errors import ApiError, invalid, shorten
from pellucid.server.responses_api import records
from pellucid.server.responses_api.events import Event
from pellucid.server.responses_api.records import ChainError, Stored
from pellucid.server.responses_api.tables import NUM_THREADS, connect

MAX_PENDING = 256  # calls that may wait for a thread; one more is refused
REPORT_INTERVAL_S = 60.0

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Retention:
    """Responses beyond either are deleted, those first that were not built upon for longest."""

    max_count: int
    max_age_s: float


class ResponseStore:
    """Raises ApiError: 503 where the database can't be reached, is full or locked; the next call tries again."""

    def __init__(self, url: sa.URL, retention: Retention) -> None:
        self.retention = retention
        self._url = url
        self._engine: sa.Engine | None = None
        self._connecting = threading.Lock()
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="pellucid-store")
        self._num_pending = 0
        self._reported = ""
        self._reported_at = 0.0

    async def call(
        self,
        work: Callable[Concatenate[sa.Connection, Arguments], Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """Runs one of `records`' functions in a transaction. Raises ApiError."""
        if self._num_pending >= MAX_PENDING:
            raise store_unavailable("too many requests are waiting for the database")

        def run() -> Result:
            with self._connected().begin() as connection:
                return work(connection, *args, **kwargs)

        self._num_pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, run)
        except (sa.exc.SQLAlchemyError, OSError, ImportError) as error:
            self._report(_whole_cause(error))
            raise store_unavailable(_public_cause(error)) from error
        finally:
            self._num_pending -= 1

    def _connected(self) -> sa.Engine:
        """On any of the store's threads; the first of them connects, and the others wait for it."""
        with self._connecting:
            if self._engine is None:
                self._engine = connect(self._url)
            return self._engine

    def _report(self, cause: str) -> None:
        """Once a minute where it is always the same: the keeper asks every few seconds."""
        now = time.monotonic()
        if cause != self._reported or now - self._reported_at > REPORT_INTERVAL_S:
            self._reported, self._reported_at = cause, now
            write_line(f"response store: {cause}", sys.stderr)

    async def get(self, response_id: str) -> Stored:
        """Raises ApiError (404) too."""
        stored = await self.call(records.get, response_id)
        if stored is None:
            raise response_not_found(response_id)
        return stored

    async def history(self, previous_id: str) -> list[JsonObject]:
        """Items of the conversation up to and with this response, the oldest first. Raises ApiError (400) too."""
        try:
            chain = await self.call(records.chain, previous_id, used_at=time.time())
        except ChainError as error:
            raise _broken_chain(error) from error
        items: list[JsonObject] = []
        for stored in chain:
            items += msgspec.json.decode(stored.input)
            items += msgspec.json.decode(stored.response)["output"]
        return items

    async def find_item(self, item_id: str) -> JsonObject | None:
        stored = await self.call(records.holder_of, item_id)
        if stored is None:
            return None
        items: list[JsonObject] = [*msgspec.json.decode(stored.input), *msgspec.json.decode(stored.response)["output"]]
        return next((item for item in items if item["id"] == item_id), None)

    async def insert(
        self,
        response: JsonObject,
        items: Sequence[JsonObject],
        *,
        owner: str | None = None,
        events: Sequence[Event] = (),
    ) -> None:
        """owner: the server that works on it; None for a finished one. events: kept where there are any."""
        await self.call(records.insert, response, items, owner=owner, new_events=events, used_at=time.time())

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)
        if self._engine is not None:
            self._engine.dispose()


def store_unavailable(cause: str) -> ApiError:
    return ApiError(
        503,
        f"The store of responses can't be used: {cause}. Try again, or send 'store': false.",
        type="service_unavailable_error",
        code="response_store_unavailable",
        headers={"retry-after": "1"},
    )


def response_not_found(response_id: str) -> ApiError:
    return ApiError(404, f"Response with id '{shorten(response_id)}' not found.", param="response_id")


def _broken_chain(error: ChainError) -> ApiError:
    response_id = shorten(error.response_id)
    if error.kind == "missing":
        message = f"Previous response with id '{response_id}' not found."
        return invalid(message, code="previous_response_not_found", param="previous_response_id")
    if error.kind == "unfinished":
        message = f"Previous response with id '{response_id}' has the status '{error.detail}' and can't be continued."
        return invalid(message, param="previous_response_id")
    message = f"The conversation before '{response_id}' is too long to be continued ({error.detail})."
    return invalid(message, code="context_length_exceeded", param="previous_response_id")


def _whole_cause(error: BaseException) -> str:
    """For whoever runs the server. SQL statements would hold what clients said: only the driver's own words."""
    return " ".join(str(getattr(error, "orig", None) or error).split())


def _public_cause(error: BaseException) -> str:
    """For clients: SQLite's words hold no path and no address, those of PostgreSQL's driver may."""
    original = getattr(error, "orig", None) or error
    if type(original).__module__ == "sqlite3":
        return str(original)
    return f"the database failed ({type(original).__name__})"
