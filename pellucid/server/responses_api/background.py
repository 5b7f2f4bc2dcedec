"""Responses that run without a client: a task each, its news written to the store as they come.

A run that can't be written (the database is down for longer than the attempts last) is given up; the keeper then
reports it failed as soon as the database is back.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any

from pellucid.observability.lines import write_line
from pellucid.server.conversation import JsonObject
from pellucid.server.errors import ApiError, internal
from pellucid.server.generation import Generation
from pellucid.server.middleware.context import RequestRecord
from pellucid.server.responses_api import records
from pellucid.server.responses_api.answer import AnswerReader
from pellucid.server.responses_api.events import Event
from pellucid.server.responses_api.keeper import Keeper
from pellucid.server.responses_api.store import ResponseStore

FLUSH_INTERVAL_S = 0.1
RETRY_PAUSES_S = (0.2, 1.0, 3.0, 10.0)


class Background:
    def __init__(self, store: ResponseStore, keeper: Keeper) -> None:
        self._store = store
        self._keeper = keeper
        self._tasks: dict[str, asyncio.Task[None]] = {}
        keeper.on_ended_elsewhere = self._abort

    async def start(
        self,
        generation: Generation,
        reader: AnswerReader,
        items: list[JsonObject],
        record: RequestRecord,
        *,
        keep_events: bool,
    ) -> None:
        """Stores the response as queued and runs it; the record is held until that ends. Raises ApiError, having let go
        of the generation."""
        response = reader.state.response
        try:
            events = reader.state.begin(queued=True)
            await self._keeper.register(response["id"])
            await self._store.insert(
                response, items, owner=self._keeper.server_id, events=events if keep_events else ()
            )
        except BaseException:
            self._keeper.forget(response["id"])
            await generation.aclose()
            raise
        self._keeper.stored.add(response["id"])
        run = _Run(self._store, self._keeper.server_id, generation, reader, keep_events)
        task = asyncio.create_task(run())
        self._tasks[response["id"]] = task
        record.hold()
        task.add_done_callback(lambda _: self._forget(response["id"], record))

    async def cancel(self, response_id: str) -> None:
        """Ends a response that is active, here or on another server; one that has ended stays as it is."""
        message = "The response was cancelled."
        await self._store.call(records.end_from_outside, response_id, "cancelled", None, "response_cancelled", message)
        self._abort(response_id)

    async def close(self) -> None:
        """After the engine has ended what ran: what there is to say about it is written."""
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()), timeout=5)
        for task in list(self._tasks.values()):
            task.cancel()

    def _abort(self, response_id: str) -> None:
        if (task := self._tasks.get(response_id)) is not None:
            task.cancel()

    def _forget(self, response_id: str, record: RequestRecord) -> None:
        self._tasks.pop(response_id, None)
        self._keeper.forget(response_id)
        record.release()


class _Run:
    def __init__(
        self, store: ResponseStore, server_id: str, generation: Generation, reader: AnswerReader, keep_events: bool
    ) -> None:
        self._store = store
        self._server_id = server_id
        self._generation = generation
        self._reader = reader
        self._keep_events = keep_events
        self._unwritten: list[Event] = []
        self._written_at = 0.0

    async def __call__(self) -> None:
        try:
            await self._read()
        except ApiError as error:
            await self._end(self._reader.state.fail(error))
        except Exception as error:
            write_line(f"background response: {type(error).__name__}: {error}", sys.stderr)
            await self._end(self._reader.state.fail(internal()))
        finally:
            await self._generation.aclose()

    async def _read(self) -> None:
        state = self._reader.state
        is_running = False
        async for _, output in self._generation:
            if not is_running:
                is_running = True
                self._unwritten += state.start()
                await self._write(records.update, state.response, self._server_id, self._news())
            self._unwritten += self._reader.take(output.outputs[0])
            if self._keep_events and time.monotonic() - self._written_at > FLUSH_INTERVAL_S:
                await self._write(records.append_events, state.response["id"], self._server_id, self._news())
        await self._end(await self._reader.end(self._generation.usage()))

    async def _end(self, events: list[Event]) -> None:
        state = self._reader.state
        self._unwritten += [*events, state.terminal()]
        await self._write(records.update, state.response, self._server_id, self._news())

    def _news(self) -> list[Event]:
        events, self._unwritten = self._unwritten, []
        return events if self._keep_events else []

    async def _write(self, work: Callable[..., Any], *args: Any) -> None:
        """Again where the database can't be reached now. A response that has ended otherwise ends the run."""
        pauses = iter(RETRY_PAUSES_S)
        while True:
            try:
                if not await self._store.call(work, *args):
                    raise asyncio.CancelledError
            except ApiError:
                if (pause := next(pauses, None)) is None:
                    raise asyncio.CancelledError from None
                await asyncio.sleep(pause)
            else:
                self._written_at = time.monotonic()
                return
