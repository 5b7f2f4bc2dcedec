"""What is done with stored responses, each in the transaction it is given. Runs on the store's threads.

A transaction that writes begins with a write, so that SQLite takes its lock at once and never has to give a read up.
A response changes only while it is queued or in progress, and never again after that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import sqlalchemy as sa

from pellucid.server.conversation import JsonObject
from pellucid.server.responses_api.events import Event, make_event
from pellucid.server.responses_api.tables import as_stored, events, items, responses, servers

ACTIVE = ("queued", "in_progress")
MAX_CHAIN_LENGTH = 1024
MAX_CHAIN_BYTES = 64 * 1024 * 1024
PURGE_BATCH = 500


@dataclass(frozen=True)
class Stored:
    """A row. input, response: JSON text."""

    id: str
    previous_id: str | None
    status: str
    owner: str | None
    background: bool
    has_events: bool
    input: str
    response: str

    @property
    def is_active(self) -> bool:
        return self.status in ACTIVE


class ChainError(Exception):
    """kind: missing, unfinished or too_long."""

    def __init__(self, kind: str, response_id: str, detail: str = "") -> None:
        super().__init__(kind)
        self.kind = kind
        self.response_id = response_id
        self.detail = detail


_COLUMNS = [responses.c[name] for name in Stored.__dataclass_fields__]


def insert(
    connection: sa.Connection,
    response: JsonObject,
    input_items: Sequence[JsonObject],
    *,
    owner: str | None,
    new_events: Sequence[Event],
    used_at: float,
) -> None:
    response_id = response["id"]
    input_text, response_text = _text(list(input_items)), _text(response)
    connection.execute(
        responses.insert().values(
            id=response_id,
            previous_id=response["previous_response_id"],
            status=response["status"],
            owner=owner,
            background=response["background"],
            has_events=bool(new_events),
            used_at=used_at,
            size_bytes=len(input_text) + len(response_text),
            input=input_text,
            response=response_text,
        )
    )
    _index(connection, response_id, [*input_items, *response["output"]])
    _append(connection, response_id, new_events)


def get(connection: sa.Connection, response_id: str) -> Stored | None:
    row = connection.execute(sa.select(*_COLUMNS).where(responses.c.id == response_id)).first()
    return None if row is None else Stored(*row)


def update(connection: sa.Connection, response: JsonObject, owner: str, new_events: Sequence[Event] = ()) -> bool:
    """A response that its owner works on, or has just finished. False where it has ended otherwise: nothing is kept."""
    text = _text(response)
    is_over = response["status"] not in ACTIVE
    changed = connection.execute(
        responses.update()
        .where(responses.c.id == response["id"], responses.c.owner == owner, responses.c.status.in_(ACTIVE))
        .values(
            status=response["status"],
            response=text,
            owner=None if is_over else owner,
            size_bytes=sa.func.length(responses.c.input) + len(text),
        )
    )
    if not changed.rowcount:
        return False
    if is_over:
        _index(connection, response["id"], response["output"])
    _append(connection, response["id"], new_events)
    return True


def append_events(connection: sa.Connection, response_id: str, owner: str, new_events: Sequence[Event]) -> bool:
    """False where the response has ended otherwise: nothing is kept."""
    alive = connection.execute(
        responses.update()
        .where(responses.c.id == response_id, responses.c.owner == owner, responses.c.status.in_(ACTIVE))
        .values(owner=owner)  # changes nothing, and holds the row
    )
    if alive.rowcount:
        _append(connection, response_id, new_events)
    return bool(alive.rowcount)


def events_after(
    connection: sa.Connection, response_id: str, sequence_number: int, limit: int = 256
) -> tuple[list[Event], bool]:
    """The next events in order, and whether there may come more after them."""
    status = connection.execute(sa.select(responses.c.status).where(responses.c.id == response_id)).scalar()
    rows = connection.execute(
        sa.select(events.c.sequence_number, events.c.type, events.c.data)
        .where(events.c.response_id == response_id, events.c.sequence_number > sequence_number)
        .order_by(events.c.sequence_number)
        .limit(limit)
    ).all()
    return [Event(number, type, data.encode()) for number, type, data in rows], len(rows) == limit or status in ACTIVE


def end_from_outside(
    connection: sa.Connection, response_id: str, status: str, error: JsonObject | None, code: str, message: str
) -> bool:
    """Ends an active response without its owner: cancelled, or failed since its owner is gone."""
    ended = connection.execute(
        responses.update()
        .where(responses.c.id == response_id, responses.c.status.in_(ACTIVE))
        .values(status=status, owner=None)
    )
    if not ended.rowcount:
        return False
    stored = get(connection, response_id)
    assert stored is not None
    response = {**msgspec.json.decode(stored.response), "status": status, "error": error}
    connection.execute(responses.update().where(responses.c.id == response_id).values(response=_text(response)))
    if stored.has_events:
        last = connection.execute(
            sa.select(sa.func.max(events.c.sequence_number)).where(events.c.response_id == response_id)
        ).scalar()
        number = (-1 if last is None else last) + 1
        if status == "failed":
            event = make_event(number, "response.failed", response=response)
        else:
            event = make_event(number, "error", code=code, message=message, param=None)
        _append(connection, response_id, [event])
    return True


def delete(connection: sa.Connection, response_ids: Sequence[str]) -> int:
    deleted = connection.execute(responses.delete().where(responses.c.id.in_(response_ids))).rowcount
    for table in (items, events):
        connection.execute(table.delete().where(table.c.response_id.in_(response_ids)))
    return deleted


def chain(connection: sa.Connection, response_id: str, *, used_at: float) -> list[Stored]:
    """The responses of a conversation up to this one, the oldest first; all count as used now. Raises ChainError."""
    first = sa.select(responses.c.id, responses.c.previous_id, responses.c.size_bytes, sa.literal(0).label("depth"))
    walk = first.where(responses.c.id == response_id).cte("walk", recursive=True)
    before = sa.select(responses.c.id, responses.c.previous_id, responses.c.size_bytes, walk.c.depth + 1)
    walk = walk.union_all(before.where(responses.c.id == walk.c.previous_id, walk.c.depth < MAX_CHAIN_LENGTH))
    found = connection.execute(sa.select(walk.c.id, walk.c.previous_id, walk.c.size_bytes).order_by(walk.c.depth)).all()
    if not found:
        raise ChainError("missing", response_id)
    if len(found) > MAX_CHAIN_LENGTH:
        raise ChainError("too_long", response_id, f"more than {MAX_CHAIN_LENGTH} responses")
    if found[-1].previous_id is not None:
        raise ChainError("missing", found[-1].previous_id)
    if (size := sum(row.size_bytes for row in found)) > MAX_CHAIN_BYTES:
        raise ChainError("too_long", response_id, f"{size} bytes")
    ids = [row.id for row in found]
    connection.execute(responses.update().where(responses.c.id.in_(ids)).values(used_at=used_at))
    rows = {row.id: Stored(*row) for row in connection.execute(sa.select(*_COLUMNS).where(responses.c.id.in_(ids)))}
    for stored in rows.values():
        if stored.status not in ("completed", "incomplete"):
            raise ChainError("unfinished", stored.id, stored.status)
    try:
        return [rows[response_id] for response_id in reversed(ids)]
    except KeyError as error:  # deleted in between
        raise ChainError("missing", str(error.args[0])) from error


def holder_of(connection: sa.Connection, item_id: str) -> Stored | None:
    """A response that has this item."""
    found = sa.select(items.c.response_id).where(items.c.item_id == item_id).limit(1)
    row = connection.execute(sa.select(*_COLUMNS).where(responses.c.id == found.scalar_subquery())).first()
    return None if row is None else Stored(*row)


def purge(connection: sa.Connection, *, max_count: int, unused_since: float) -> int:
    """Deletes finished responses beyond the limits, a batch at a time; returns how many."""
    finished = responses.c.status.not_in(ACTIVE)
    old = sa.select(responses.c.id).where(finished, responses.c.used_at < unused_since).limit(PURGE_BATCH)
    ids = set(connection.execute(old).scalars())
    surplus = connection.execute(sa.select(sa.func.count()).select_from(responses)).scalar_one() - max_count
    if surplus > len(ids):
        oldest = (
            sa.select(responses.c.id).where(finished).order_by(responses.c.used_at).limit(min(surplus, PURGE_BATCH))
        )
        ids |= set(connection.execute(oldest).scalars())
    return delete(connection, sorted(ids)) if ids else 0


# who works on what ---------------------------------------------------------------------------------------------------


def beat(connection: sa.Connection, server_id: str) -> None:
    done = connection.execute(servers.update().where(servers.c.id == server_id).values(beats=servers.c.beats + 1))
    if not done.rowcount:
        connection.execute(servers.insert().values(id=server_id, beats=0))


def leave(connection: sa.Connection, server_id: str) -> None:
    connection.execute(servers.delete().where(servers.c.id == server_id))


def work_of_others(connection: sa.Connection, server_id: str) -> dict[str, int | None]:
    """Servers that have work, to the beats they have made; None for one that is gone."""
    rows = connection.execute(
        sa.select(responses.c.owner, servers.c.beats)
        .outerjoin(servers, servers.c.id == responses.c.owner)
        .where(responses.c.status.in_(ACTIVE), responses.c.owner != server_id)
        .distinct()
    )
    return {owner: beats for owner, beats in rows}


def active_of(connection: sa.Connection, server_id: str) -> list[str]:
    """Ids of the responses that this server should be working on."""
    query = sa.select(responses.c.id).where(responses.c.status.in_(ACTIVE), responses.c.owner == server_id)
    return list(connection.execute(query).scalars())


def _append(connection: sa.Connection, response_id: str, new_events: Iterable[Event]) -> None:
    rows: list[dict[str, Any]] = [
        {"response_id": response_id, "sequence_number": e.sequence_number, "type": e.type, "data": e.data.decode()}
        for e in new_events
    ]
    if rows:
        connection.execute(events.insert(), rows)


def _index(connection: sa.Connection, response_id: str, its_items: Sequence[JsonObject]) -> None:
    ids = {as_stored(item["id"]) for item in its_items if len(item["id"]) <= 128}
    known = connection.execute(sa.select(items.c.item_id).where(items.c.response_id == response_id)).scalars()
    if new := ids - set(known):
        connection.execute(items.insert(), [{"response_id": response_id, "item_id": item_id} for item_id in new])


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()
