"""The database of stored responses, SQLite in a file or PostgreSQL by URL: its tables, and how to connect."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs
import sqlalchemy as sa

LOCK_TIMEOUT_S = 5  # a writer waits so long for another one
STATEMENT_TIMEOUT_MS = 10_000
CONNECT_TIMEOUT_S = 5
NUM_THREADS = 4
TABLES_LOCK = 0x70656C6C  # who makes the tables in a PostgreSQL holds it

metadata = sa.MetaData()


def as_stored(id: str) -> str:
    """PostgreSQL takes no NUL, which a client's ids may hold. (In JSON text it is written \\u0000.)"""
    return id.replace("\0", "\ufffd")


class Id(sa.types.TypeDecorator[str]):
    """An id, compared and kept `as_stored`."""

    impl = sa.String
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else as_stored(value)


# response: the object as the API gives it; input: the request's own items. Both are JSON text.
# used_at: seconds of time.time() of the last response that built on this one; retention goes by it.
# owner: the server that works on it, while status is queued or in_progress. size_bytes: of input and response.
responses = sa.Table(
    "pellucid_responses",
    metadata,
    sa.Column("id", Id(64), primary_key=True),
    sa.Column("previous_id", Id(64)),
    sa.Column("status", sa.String(16), nullable=False, index=True),
    sa.Column("owner", sa.String(64)),
    sa.Column("background", sa.Boolean, nullable=False),
    sa.Column("has_events", sa.Boolean, nullable=False),
    sa.Column("used_at", sa.Float, nullable=False, index=True),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("input", sa.Text, nullable=False),
    sa.Column("response", sa.Text, nullable=False),
)

# Where an item can be found, for references to it.
items = sa.Table(
    "pellucid_response_items",
    metadata,
    sa.Column("response_id", Id(64), primary_key=True),
    sa.Column("item_id", Id(128), primary_key=True, index=True),
)

# The stream of a background response, so that it can be followed from anywhere, and again.
events = sa.Table(
    "pellucid_response_events",
    metadata,
    sa.Column("response_id", Id(64), primary_key=True),
    sa.Column("sequence_number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("type", sa.String(64), nullable=False),
    sa.Column("data", sa.Text, nullable=False),
)

# Servers that work on background responses. A server that lives goes on counting; no clock is compared.
servers = sa.Table(
    "pellucid_servers",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("beats", sa.BigInteger, nullable=False),
)


def default_url() -> str:
    """A file in the user's data directory (XDG_DATA_HOME counts)."""
    return f"sqlite:///{Path(platformdirs.user_data_dir('pellucid', appauthor=False)) / 'responses.sqlite3'}"


def parse_url(text: str) -> sa.URL:
    """Raises ValueError, in words for whoever started the server, for what is not SQLite or PostgreSQL."""
    try:
        url = sa.make_url(text)
    except (sa.exc.ArgumentError, ValueError) as error:
        raise ValueError("it is no database URL; write sqlite:///FILE or postgresql://USER@HOST/DATABASE") from error
    backend = url.get_backend_name() if url.drivername != "postgres" else "postgresql"
    if backend == "postgresql":
        return url.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise ValueError(f"it names {backend}; SQLite and PostgreSQL are supported")
    if not url.database or url.database == ":memory:":
        raise ValueError("a database in memory would be lost between connections; write sqlite:///FILE")
    return url.set(drivername="sqlite")


def connect(url: sa.URL) -> sa.Engine:
    """An engine whose tables exist. Raises SQLAlchemyError, OSError, or ImportError without PostgreSQL's driver."""
    if url.get_backend_name() == "sqlite":
        path = Path(str(url.database)).expanduser()
        _make_private(path)
        url = url.set(database=str(path))
        engine = sa.create_engine(
            url, connect_args={"timeout": LOCK_TIMEOUT_S, "check_same_thread": False}, pool_size=NUM_THREADS
        )
        sa.event.listen(engine, "connect", _prepare_sqlite)
    else:
        engine = sa.create_engine(
            url,
            connect_args={
                "connect_timeout": CONNECT_TIMEOUT_S,
                "options": f"-c statement_timeout={STATEMENT_TIMEOUT_MS} -c lock_timeout={LOCK_TIMEOUT_S * 1000}",
            },
            pool_size=NUM_THREADS,
            pool_pre_ping=True,  # the database may have been restarted meanwhile
        )
    try:
        _create_tables(engine)
    except BaseException:
        engine.dispose()
        raise
    return engine


def _make_private(path: Path) -> None:
    """What users said is for the owner alone. SQLite gives its other files the mode of the first."""
    missing = [directory for directory in (path.parent, *path.parent.parents) if not directory.exists()]
    for directory in reversed(missing):
        directory.mkdir(mode=0o700, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def _create_tables(engine: sa.Engine) -> None:
    """Several servers may do it at once. On SQLite a statement that finds its table made is content; PostgreSQL's may
    still collide with another's that is not committed, so that there one waits for the other.
    """
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(TABLES_LOCK)))
        for table in metadata.sorted_tables:
            connection.execute(sa.schema.CreateTable(table, if_not_exists=True))
            for index in table.indexes:
                connection.execute(sa.schema.CreateIndex(index, if_not_exists=True))


def _prepare_sqlite(connection: object, record: object) -> None:
    cursor = connection.cursor()  # type: ignore[attr-defined]
    cursor.execute("PRAGMA journal_mode=WAL")  # readers do not wait for a writer
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()
