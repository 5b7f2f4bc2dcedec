"""Stored responses in SQLite and in a real PostgreSQL: shared by servers, kept within limits, true after a crash."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import sqlite3
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import sqlalchemy as sa
from harness import RunningServer, events_of, free_port, scripted_server, wait_for
from response_events import check_stream
from test_responses import LONG, create, finished, sdk

from pellucid.server.errors import ApiError
from pellucid.server.responses_api import records
from pellucid.server.responses_api.events import make_event
from pellucid.server.responses_api.ids import new_id
from pellucid.server.responses_api.records import Stored
from pellucid.server.responses_api.store import ResponseStore, Retention
from pellucid.server.responses_api.tables import parse_url

LEASE_S = 2.0
KEEP_ALL = Retention(max_count=1000, max_age_s=1e6)


@pytest.fixture(scope="session")
def postgresql_url() -> Iterator[str]:
    """A PostgreSQL of the test run's own, in a directory that goes with it."""
    found = shutil.which("initdb") or next(map(str, Path("/usr/lib/postgresql").glob("*/bin/initdb")), None)
    if found is None:
        pytest.skip("needs PostgreSQL's initdb and pg_ctl (Debian: apt install postgresql)")
    programs = Path(found).resolve().parent
    user = None
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        names = [entry.pw_name for entry in pwd.getpwall()]
        user = next(name for name in ("postgres", "nobody") if name in names)
    with tempfile.TemporaryDirectory() as directory:
        port, data = free_port(), f"{directory}/data"
        if user is not None:
            shutil.chown(directory, user)

        def run(program: str, *args: str) -> None:
            command = [str(programs / program), "-D", data, *args]
            subprocess.run(command, check=True, user=user, cwd=directory, stdout=subprocess.DEVNULL, timeout=60)

        run("initdb", "--auth=trust", "--username=pellucid", "--no-sync", "--encoding=UTF8", "--locale=C")
        options = f"-p {port} -k {directory} -c listen_addresses=127.0.0.1 -c fsync=off"
        run("pg_ctl", "-w", "-l", f"{directory}/log", "-o", options, "start")
        try:
            yield f"postgresql://pellucid@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "-w", "-m", "immediate", "stop")


@pytest.fixture(scope="session", params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    if request.param == "postgresql":
        return request.getfixturevalue("postgresql_url")
    return f"sqlite:///{tmp_path_factory.mktemp('store') / 'deep' / 'responses.sqlite3'}"


@pytest.fixture(params=["sqlite", "postgresql"])
def own_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database that no server looks after."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'responses.sqlite3'}"
    whole = parse_url(request.getfixturevalue("postgresql_url"))
    name = f"test_{os.urandom(4).hex()}"
    engine = sa.create_engine(whole, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    engine.dispose()
    return whole.set(database=name).render_as_string(hide_password=False)


@pytest.fixture(scope="session")
def two_servers(url: str) -> Iterator[tuple[RunningServer, RunningServer]]:
    options: dict[str, Any] = {"response_store": url, "response_lease_s": LEASE_S}
    with scripted_server(**options) as one, scripted_server(**options) as two:
        yield one, two


def new_response(**fields: Any) -> dict[str, Any]:
    response = {"id": new_id("response"), "status": "completed", "background": False}
    return response | {"previous_response_id": None, "output": []} | fields


# two servers on one database -----------------------------------------------------------------------------------------


def test_servers_on_one_database_see_and_continue_each_others_responses(
    two_servers: tuple[RunningServer, RunningServer],
) -> None:
    one, two = map(sdk, two_servers)
    first = create(one, "say one\x01 🌱")
    assert two.responses.retrieve(first.id).to_dict() == first.to_dict()
    second = create(two, "say two", previous_response_id=first.id)
    assert [item.content[0].text for item in one.responses.input_items.list(second.id, order="asc")] == [
        "say one\x01 🌱", "one\x01 🌱", "say two",
    ]  # fmt: skip
    one.responses.delete(second.id)
    with pytest.raises(openai.NotFoundError):
        two.responses.retrieve(second.id)


def test_ids_with_a_nul_are_like_any_others(two_servers: tuple[RunningServer, RunningServer]) -> None:
    """PostgreSQL takes none in a text."""
    one, _ = two_servers
    named = {"id": "msg_\0", "type": "message", "role": "user", "content": "say it"}
    first = one.post("/v1/responses", model="m", input=[named], temperature=0).raise_for_status().json()
    listed = one.client.get(f"/v1/responses/{first['id']}/input_items").json()["data"]
    assert [item["id"] for item in listed] == ["msg_\0"]
    again = [{"type": "item_reference", "id": "msg_\0"}]
    assert one.post("/v1/responses", model="m", input=again, temperature=0).status_code == 200
    refused = one.post("/v1/responses", model="m", input="say x", previous_response_id="resp_\0")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "previous_response_not_found")
    path = "/v1/responses/resp_%00"
    found = [one.client.get(path), one.client.delete(path), one.client.post(f"{path}/cancel")]
    assert [response.status_code for response in found] == [404, 404, 404]


def test_servers_that_start_together_make_the_tables_together(own_url: str) -> None:
    """Each call of a store is on a thread of its own, and here there are several stores, too."""
    stores = [ResponseStore(parse_url(own_url), KEEP_ALL) for _ in range(6)]

    async def meet() -> list[Stored | None]:
        found = await asyncio.gather(*(store.call(records.get, "none") for store in stores * 3))
        await asyncio.gather(*(store.close() for store in stores))
        return found

    assert asyncio.run(meet()) == [None] * 18


def test_a_background_response_is_followed_and_cancelled_from_another_server(
    two_servers: tuple[RunningServer, RunningServer],
) -> None:
    one, two = map(sdk, two_servers)
    response_id = next(iter(create(one, LONG, background=True, stream=True))).response.id
    stream = iter(two.responses.retrieve(response_id, stream=True))
    assert next(stream).type == "response.created"
    assert two.responses.cancel(response_id).status == "cancelled"
    assert [event.type for event in stream][-1] == "error"
    two_servers[0].wait_idle(timeout_s=5 * LEASE_S)
    assert one.responses.retrieve(response_id).status == "cancelled"


@pytest.mark.kill
def test_what_a_dead_server_worked_on_is_reported_failed(
    two_servers: tuple[RunningServer, RunningServer], url: str
) -> None:
    other = sdk(two_servers[0])
    with scripted_server(script={"step_ms": 20}, response_store=url, response_lease_s=LEASE_S) as doomed:
        client = sdk(doomed)
        plain = create(client, LONG, background=True)
        stream = iter(create(client, LONG, background=True, stream=True))
        streamed = next(stream).response
        wait_for(lambda: other.responses.retrieve(plain.id).status == "in_progress", 10)
        alive = create(other, LONG, background=True, max_output_tokens=1900)
        os.kill(doomed.process.pid, signal.SIGKILL)
        doomed.wait()
    for response_id in (plain.id, streamed.id):
        done = finished(other, response_id)
        assert done.status == "failed"
        assert done.error is not None
        assert "ended before it was finished" in done.error.message
    events = list(other.responses.retrieve(streamed.id, stream=True))
    assert events[-1].type == "response.failed"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert finished(other, alive.id).status == "incomplete"  # what others work on is left alone


def test_a_server_that_stops_in_time_leaves_nothing_in_progress(url: str) -> None:
    options = {"response_store": url, "response_lease_s": LEASE_S, "shutdown_timeout_s": 0.2}
    with scripted_server(script={"step_ms": 20}, **options) as server:
        response = create(sdk(server), LONG, background=True)
        assert server.stop() == 0
    store = ResponseStore(parse_url(url), KEEP_ALL)
    assert asyncio.run(store.get(response.id)).status == "failed"


# limits and faults ---------------------------------------------------------------------------------------------------


async def test_retention_keeps_what_conversations_use(own_url: str) -> None:
    store = ResponseStore(parse_url(own_url), KEEP_ALL)
    root, *rest = [new_response() for _ in range(6)]
    running = new_response(status="in_progress", background=True)
    for response in (root, *rest):
        await store.insert(response, [])
    await store.insert(running, [], owner="somebody")
    child = new_response(previous_response_id=root["id"])
    await store.insert(child, [])
    await store.history(child["id"])  # as the next turn does
    await store.call(records.purge, max_count=4, unused_since=0)
    kept = {r["id"] for r in (root, *rest, running, child) if await store.call(records.get, r["id"]) is not None}
    assert kept == {root["id"], rest[-1]["id"], running["id"], child["id"]}
    await store.call(records.purge, max_count=100, unused_since=time.time() + 60)
    assert await store.call(records.get, root["id"]) is None
    assert await store.call(records.get, running["id"]) is not None
    await store.close()


async def test_a_conversation_has_a_longest_length(own_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ResponseStore(parse_url(own_url), KEEP_ALL)
    last = None
    for i in range(4):
        response = new_response(previous_response_id=last)
        await store.insert(response, [{"id": f"msg_{i}"}])
        last = response["id"]
    assert last is not None
    assert [item["id"] for item in await store.history(last)] == ["msg_0", "msg_1", "msg_2", "msg_3"]
    for name, words in (("MAX_CHAIN_LENGTH", "more than 3 responses"), ("MAX_CHAIN_BYTES", "bytes")):
        with monkeypatch.context() as patch:
            patch.setattr(records, name, 3)
            with pytest.raises(ApiError, match=words) as refused:
                await store.history(last)
            assert refused.value.code == "context_length_exceeded"
    await store.close()


async def test_a_response_that_has_ended_never_changes(own_url: str) -> None:
    store = ResponseStore(parse_url(own_url), KEEP_ALL)
    response = new_response(status="in_progress", background=True)
    await store.insert(response, [], owner="me", events=[make_event(0, "response.created")])
    assert await store.call(records.append_events, response["id"], "me", [make_event(1, "response.queued")])
    assert not await store.call(records.append_events, response["id"], "other", [make_event(2, "response.queued")])
    ended = records.end_from_outside
    assert await store.call(ended, response["id"], "cancelled", None, "response_cancelled", "stop")
    assert not await store.call(ended, response["id"], "failed", None, "server_error", "late")
    assert not await store.call(records.update, response | {"status": "completed"}, "me", [make_event(2, "x")])
    assert not await store.call(records.append_events, response["id"], "me", [make_event(2, "x")])
    assert (await store.get(response["id"])).status == "cancelled"
    events, may_go_on = await store.call(records.events_after, response["id"], -1)
    assert [event.type for event in events] == ["response.created", "response.queued", "error"]
    assert not may_go_on
    await store.close()


async def test_a_locked_database_is_an_error_that_says_so_and_the_loop_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pellucid.server.responses_api.tables.LOCK_TIMEOUT_S", 0.3)
    path = tmp_path / "r.sqlite3"
    store = ResponseStore(parse_url(f"sqlite:///{path}"), KEEP_ALL)
    await store.insert(new_response(), [])
    lock = sqlite3.connect(path)
    lock.execute("BEGIN IMMEDIATE")
    writing = asyncio.create_task(store.insert(new_response(), []))
    longest, before = 0.0, time.monotonic()
    while not writing.done():
        await asyncio.sleep(0.005)
        longest, before = max(longest, time.monotonic() - before), time.monotonic()
    with pytest.raises(ApiError, match="database is locked") as refused:
        await writing
    assert (refused.value.status, refused.value.code) == (503, "response_store_unavailable")
    assert longest < 0.25
    lock.rollback()
    await store.insert(new_response(), [])
    await store.close()


async def test_what_is_stored_is_for_its_owner_alone(tmp_path: Path) -> None:
    """All that conversations are found in, and the directories that are made for it."""
    directory = tmp_path / "data" / "pellucid"
    store = ResponseStore(parse_url(f"sqlite:///{directory}/r.sqlite3"), KEEP_ALL)
    await store.insert(new_response(), [])
    files = list(directory.iterdir())
    assert {file.name for file in files} >= {"r.sqlite3", "r.sqlite3-wal"}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (directory, directory.parent)} == {0o700}
    await store.close()


async def test_a_full_disk_is_an_error_that_says_so(tmp_path: Path) -> None:
    store = ResponseStore(parse_url(f"sqlite:///{tmp_path / 'r.sqlite3'}"), KEEP_ALL)
    await store.insert(new_response(), [])
    assert store._engine is not None
    sa.event.listen(store._engine, "begin", lambda c: c.exec_driver_sql("PRAGMA max_page_count = 1"))  # SQLite's own
    with pytest.raises(ApiError, match="database or disk is full") as refused:
        await store.insert(new_response(output=[{"id": "x", "text": "y" * 100_000}]), [])
    assert refused.value.status == 503
    await store.close()


def test_a_server_whose_database_is_away_says_so_and_answers_what_needs_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with scripted_server(response_store=f"sqlite:///{tmp_path}/file/r.sqlite3") as server:
        answer = server.post("/v1/responses", model="m", input="say x")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "response_store_unavailable")
        assert str(tmp_path) not in answer.text
        body = {"model": "m", "input": "say x", "stream": True}
        with server.client.stream("POST", "/v1/responses", json=body) as stream:
            final = check_stream(events_of(stream))  # all that was said is ended in order, and then it has failed
        assert final["status"] == "failed"
        assert final["output"][0]["content"][0]["text"].lower() == "x"
        assert "can't be used" in final["error"]["message"]
        assert create(sdk(server), "say x", background=False, store=False).output_text == "x"
        assert server.post("/v1/responses", model="m", input="say x", background=True).status_code == 503


@pytest.mark.parametrize(
    ("url", "words"),
    [("nonsense", "no database URL"), ("mysql://h/d", "SQLite and PostgreSQL"), ("sqlite://", "in memory")],
)
def test_a_wrong_url_is_refused_before_anything_is_loaded(url: str, words: str) -> None:
    with scripted_server(response_store=url, wait=False) as server:
        assert server.wait() == 1
    assert words in server.errors[-1]
