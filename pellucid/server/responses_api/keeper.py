"""Keeps the stored responses true: none is "in progress" that nobody works on, and none outlives the retention.

A server that works on background responses counts up in the database. One whose count stands still for `lease_s`, by
the watch of whoever looks, is dead and what it worked on failed. No two clocks are compared, and none may jump.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
import uuid
from collections.abc import Callable

from pellucid.observability.lines import write_line
from pellucid.server.errors import ApiError
from pellucid.server.responses_api import records
from pellucid.server.responses_api.store import ResponseStore

PURGE_INTERVAL_S = 60.0
GONE = "The server that worked on this response ended before it was finished."


class Keeper:
    """running: ids of the responses this server works on, or is about to store. stored: those that are stored.
    on_ended_elsewhere: told which of them were ended by others.
    """

    def __init__(self, store: ResponseStore, lease_s: float) -> None:
        self.server_id = uuid.uuid4().hex
        self.running: set[str] = set()
        self.stored: set[str] = set()
        self.on_ended_elsewhere: Callable[[str], None] = lambda _: None
        self._store = store
        self._lease_s = lease_s
        self._seen: dict[str, tuple[int, float]] = {}  # server: its count, and when it was first seen at that
        self._registering = asyncio.Lock()
        self._purged_at = 0.0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def register(self, response_id: str) -> None:
        """Before a response is stored as this server's. Raises ApiError."""
        async with self._registering:
            await self._store.call(records.beat, self.server_id)
        self.running.add(response_id)

    def forget(self, response_id: str) -> None:
        self.running.discard(response_id)
        self.stored.discard(response_id)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if not self.running:
            with contextlib.suppress(ApiError):  # others will see that it counts no more
                await self._store.call(records.leave, self.server_id)

    async def _run(self) -> None:
        while True:
            try:
                await self._tick()
            except ApiError:
                pass  # said on stderr; the next tick tries again
            except Exception as error:
                write_line(f"response store: {type(error).__name__}: {error}", sys.stderr)
            await asyncio.sleep(self._lease_s / 4)

    async def _tick(self) -> None:
        known = set(self.stored)
        if self.running:
            async with self._registering:
                await self._store.call(records.beat, self.server_id)
        active = set(await self._store.call(records.active_of, self.server_id))
        for response_id in known - active:
            self.on_ended_elsewhere(response_id)
        for response_id in active - self.running:
            await self._fail(response_id)
        for server_id in await self._dead_servers():
            for response_id in await self._store.call(records.active_of, server_id):
                await self._fail(response_id)
            await self._store.call(records.leave, server_id)
        if time.monotonic() - self._purged_at > PURGE_INTERVAL_S or not self._purged_at:
            await self._purge()
            self._purged_at = time.monotonic()

    async def _dead_servers(self) -> list[str]:
        others = await self._store.call(records.work_of_others, self.server_id)
        now = time.monotonic()
        self._seen = {server_id: seen for server_id, seen in self._seen.items() if server_id in others}
        dead = []
        for server_id, beats in others.items():
            if beats is None:
                dead.append(server_id)
                continue
            seen = self._seen.get(server_id)
            if seen is None or seen[0] != beats:
                self._seen[server_id] = (beats, now)
            elif now - seen[1] > self._lease_s:
                dead.append(server_id)
        return dead

    async def _fail(self, response_id: str) -> None:
        error = {"code": "server_error", "message": GONE}
        await self._store.call(records.end_from_outside, response_id, "failed", error, "server_error", GONE)

    async def _purge(self) -> None:
        retention = self._store.retention
        while await self._store.call(
            records.purge, max_count=retention.max_count, unused_since=time.time() - retention.max_age_s
        ):
            await asyncio.sleep(0.05)  # others want to write, too
