"""Connections to the server: made when they are needed, used again, dropped when they fail or fall silent."""

from __future__ import annotations

import os
import select
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import quote

import psycopg
from psycopg import pq, sql
from psycopg.abc import PQGen

RV = TypeVar("RV")
DEFAULT_TIMEOUT_MS: Final = 30_000
TABLES: Final = """
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS {schema}.objects (
  key text COLLATE "C" PRIMARY KEY,
  size bigint NOT NULL,
  token text NOT NULL,
  modified timestamptz NOT NULL
);
CREATE TABLE IF NOT EXISTS {schema}.chunks (
  key text COLLATE "C" NOT NULL REFERENCES {schema}.objects ON DELETE CASCADE,
  number integer NOT NULL,
  bytes bytea NOT NULL,
  PRIMARY KEY (key, number)
);
ALTER TABLE {schema}.chunks ALTER bytes SET STORAGE EXTERNAL;
"""
# COLLATE "C" is the order of the keys' bytes, which is the order that swamp lists in. EXTERNAL: what swamp stores is
# compressed already.


@dataclass(frozen=True)
class Server:
    """Where the tables are. A password comes from PGPASSWORD, a password file or a service file, as for psql."""

    parameters: Mapping[str, Any]
    schema: str
    timeout: float

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Server:
        names = {"host": "host", "port": "port", "database": "dbname", "user": "user", "sslmode": "sslmode"}
        given = {names[key]: value for key, value in config.items() if key in names}
        timeout = config.get("requestTimeoutMs", DEFAULT_TIMEOUT_MS) / 1000
        return cls(given, config.get("schema", "swamp"), timeout)

    @property
    def url(self) -> str:
        """The host that libpq would take is part of the name: two machines with other defaults use other stores."""
        usual = {option.keyword.decode(): option.val for option in pq.Conninfo.get_defaults()}
        host = self.parameters.get("host") or (usual.get("host") or b"localhost").decode()
        port = self.parameters.get("port") or (usual.get("port") or b"5432").decode()
        return f"postgresql://{quote(host, safe='')}:{port}/{quote(self.parameters['dbname'], safe='')}/{self.schema}"


class TimedConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection on which no statement is waited for longer than `silence` seconds: a server can stop answering
    without closing anything, and a statement's own time limit needs a server that still works."""

    silence: float = DEFAULT_TIMEOUT_MS / 1000

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        return super().wait(gen, interval, self.silence if timeout is None else timeout)


class Connections:
    """As many connections as there are calls at once; idle ones are kept. Safe for threads, and after a fork."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._lock = threading.Lock()
        self._idle: list[TimedConnection] = []
        self._process = os.getpid()
        # Nobody closes a store: with the last who knows it go the connections that it has kept.
        weakref.finalize(self, _close_idle, self._idle, self._process).atexit = False

    @contextmanager
    def use(self) -> Iterator[TimedConnection]:
        """A connection in autocommit mode. A transaction that is left open on it is rolled back."""
        connection = self._take() or self._connect()
        try:
            yield connection
        finally:
            self._give_back(connection)

    def _give_back(self, connection: TimedConnection) -> None:
        try:
            if connection.pgconn.transaction_status in (pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR):
                connection.execute("ROLLBACK")
        except psycopg.Error:
            connection.close()  # which rolls it back, too
        if connection.pgconn.transaction_status == pq.TransactionStatus.IDLE:
            with self._lock:
                self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        while (connection := self._take()) is not None:
            connection.close()

    def _take(self) -> TimedConnection | None:
        with self._lock:
            if self._process != os.getpid():  # the parent's sockets: two processes must not speak on one
                self._idle, self._process = [], os.getpid()
            while self._idle:
                connection = self._idle.pop()
                if not _hung_up(connection):
                    return connection
                connection.close()
        return None

    def _connect(self) -> TimedConnection:
        connection = TimedConnection.connect(
            autocommit=True,
            application_name="swamp",
            connect_timeout=max(2, int(self.server.timeout)),
            **self.server.parameters,
        )
        connection.silence = self.server.timeout
        try:
            self._make_tables(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _make_tables(self, connection: TimedConnection) -> None:
        """Whoever comes first makes them. Who may only read and write finds them, and needs no right to create."""
        name = f"{self.server.schema}.chunks"
        found = connection.execute("SELECT to_regclass(%s)", (name,)).fetchone()
        if found is None or found[0] is None:
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (name,))
                connection.execute(sql.SQL(TABLES).format(schema=sql.Identifier(self.server.schema)))


def _close_idle(idle: list[TimedConnection], process: int) -> None:
    if process == os.getpid():
        for connection in idle:
            connection.close()


def _hung_up(connection: TimedConnection) -> bool:
    """Whether the server has ended an idle connection: only then is there something to read on it."""
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.pgconn.socket, select.POLLIN)
    return bool(poll.poll(0))
