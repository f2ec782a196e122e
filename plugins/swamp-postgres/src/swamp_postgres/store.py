"""The store itself. A row's lock orders the writers of a key; readers see one snapshot and wait for nobody."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from psycopg import sql

from swamp.env import Env
from swamp.errors import CorruptData
from swamp.store.chunks import (
    ChunkedBody,
    FileChunks,
    chunk_numbers,
    cut_range,
    lost_race,
    missing,
    seek_level,
    seek_pages,
    split,
)
from swamp.store.keys import check_key
from swamp.store.port import (
    MAX_IN_MEMORY,
    Body,
    Condition,
    CreateOnly,
    Fetched,
    Level,
    Match,
    ObjectMeta,
    Token,
    Uploaded,
    check_in_memory,
)
from swamp_postgres.connect import Connections, TimedConnection
from swamp_postgres.explain import explained

PAGE: Final = 1000
_META: Final = "o.key, o.size, o.token, o.modified"
_VALUES: Final = "VALUES (%(key)s, %(size)s, %(token)s, clock_timestamp())"
_WRITES: Final = {
    CreateOnly: f"INSERT INTO {{objects}} AS o {_VALUES} ON CONFLICT (key) DO NOTHING RETURNING {_META}",
    Match: "UPDATE {objects} AS o SET size = %(size)s, token = %(token)s, modified = clock_timestamp() "
    f"WHERE key = %(key)s AND token = %(old)s RETURNING {_META}",
    type(None): f"INSERT INTO {{objects}} AS o {_VALUES} ON CONFLICT (key) DO UPDATE SET size = excluded.size, "
    f"token = excluded.token, modified = excluded.modified RETURNING {_META}",
}
"""Condition and write in one statement: the second of two writers waits for the first and is judged by its result."""
_READ: Final = f"""
SELECT {_META}, c.bytes FROM {{objects}} o LEFT JOIN {{chunks}} c ON c.key = o.key
  AND c.number >= %(first)s AND c.number <= %(last)s AND o.token IS DISTINCT FROM %(unless)s AND o.size <= %(most)s
WHERE o.key = %(key)s ORDER BY c.number"""
_SEEK: Final = f"SELECT {_META} FROM {{objects}} o WHERE key >= %s{{below}} ORDER BY key LIMIT {PAGE}"
_DELETE: Final = """
DELETE FROM {objects} WHERE key IN (SELECT key FROM {objects} WHERE key = ANY(%s) ORDER BY key FOR UPDATE)"""
# In the order of the keys, so that two who delete the same ones do not wait for each other in a circle.
_NO_LIMIT: Final = (1 << 31) - 1


@dataclass(frozen=True)
class PostgresStore:
    """An ObjectStore (`swamp.store.port`) in two tables."""

    connections: Connections
    env: Env

    @property
    def url(self) -> str:
        return self.connections.server.url

    # -- reading

    def head(self, key: str) -> ObjectMeta:
        check_key(key)
        with self._session(key) as connection:
            return self._meta(connection, key)

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> Fetched:
        first, last = chunk_numbers(start, length)
        meta, chunks = self._fetch(key, first, last)
        return Fetched(meta, cut_range(chunks, start, length))

    def get_if_changed(self, key: str, token: Token) -> Fetched | None:
        meta, chunks = self._fetch(key, 0, None, unless=token)
        return None if meta.token == token else Fetched(meta, b"".join(chunks))

    def _fetch(
        self, key: str, first: int, last: int | None, unless: Token | None = None
    ) -> tuple[ObjectMeta, list[bytes]]:
        """One statement, so that row and chunks are of one version."""
        check_key(key)
        values = {"key": key, "first": first, "last": _NO_LIMIT if last is None else last, "unless": unless}
        values["most"] = MAX_IN_MEMORY if last is None else 1 << 62
        with self._session(key) as connection:
            rows = connection.execute(self._sql(_READ), values, binary=True).fetchall()
        if not rows:
            raise missing(self.url, key)
        meta = ObjectMeta(*rows[0][:4])
        if last is None and meta.token != unless:
            check_in_memory(key, meta.size)
        return meta, [row[4] for row in rows if row[4] is not None]

    @contextmanager
    def open(self, key: str, *, start: int = 0) -> Iterator[Body]:
        """In one snapshot: whoever overwrites the object meanwhile does not change what is read here."""
        check_key(key)
        with self._session(key) as connection:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            meta = self._meta(connection, key)
            yield ChunkedBody(meta, self._stream(connection, meta, start), start)

    def _meta(self, connection: TimedConnection, key: str) -> ObjectMeta:
        row = connection.execute(self._sql(f"SELECT {_META} FROM {{objects}} o WHERE key = %s"), (key,)).fetchone()
        if row is None:
            raise missing(self.url, key)
        return ObjectMeta(*row)

    def _stream(self, connection: TimedConnection, meta: ObjectMeta, start: int) -> Iterator[bytes]:
        query = self._sql("SELECT bytes FROM {chunks} WHERE key = %s AND number = %s")
        first, _ = chunk_numbers(start, None)
        last = chunk_numbers(0, meta.size)[1]
        for number in range(first, (last or 0) + 1 if meta.size else first):
            row = connection.execute(query, (meta.key, number), binary=True).fetchone()
            if row is None:
                raise CorruptData(f"{meta.key} lacks its chunk {number} in {self.url}", hint="restore the database")
            yield row[0]

    # -- writing

    def put(self, key: str, body: bytes, condition: Condition = None) -> ObjectMeta:
        return self._write(key, split(body), len(body), condition)

    def put_file(self, key: str, path: Path) -> Uploaded:
        return self.put_file_if(key, path, None)

    def put_file_if(self, key: str, path: Path, condition: Condition) -> Uploaded:
        chunks = FileChunks(path)
        return Uploaded(self._write(key, chunks, path.stat().st_size, condition), chunks.sha256)

    def _write(self, key: str, chunks: Iterable[bytes], size: int, condition: Condition) -> ObjectMeta:
        """One transaction: before its COMMIT nothing has happened, and what fails leaves nothing behind."""
        check_key(key)
        token = self.env.ulid()
        old = condition.token if isinstance(condition, Match) else None
        values = {"key": key, "size": size, "token": token, "old": old}
        with self._session(key) as connection:
            connection.execute("BEGIN")
            row = connection.execute(self._sql(_WRITES[type(condition)]), values).fetchone()
            if row is None:
                raise lost_race(self.url, key)
            sent = self._replace_chunks(connection, key, chunks)
            if sent != size:  # a file that grew or shrank while it was read
                connection.execute(self._sql("UPDATE {objects} SET size = %s WHERE key = %s"), (sent, key))
            with explained(self.url, key, commits=True):
                connection.execute("COMMIT")
        return ObjectMeta(key, sent, token, row[3])

    def _replace_chunks(self, connection: TimedConnection, key: str, chunks: Iterable[bytes]) -> int:
        connection.execute(self._sql("DELETE FROM {chunks} WHERE key = %s"), (key,))
        insert, sent = self._sql("INSERT INTO {chunks} VALUES (%s, %s, %b)"), 0
        for number, chunk in enumerate(chunks):
            connection.execute(insert, (key, number, chunk))
            sent += len(chunk)
        return sent

    def delete(self, keys: Sequence[str]) -> None:
        wanted = [check_key(key) for key in keys]
        if wanted:
            with self._session(wanted[0]) as connection:
                connection.execute(self._sql(_DELETE), (wanted,))

    def delete_if(self, key: str, token: Token) -> None:
        check_key(key)
        with self._session(key) as connection:
            query = self._sql("DELETE FROM {objects} WHERE key = %s AND token = %s")
            if connection.execute(query, (key, token)).rowcount == 0:
                raise lost_race(self.url, key)

    # -- listing

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[Sequence[ObjectMeta]]:
        return seek_pages(self._seek, prefix, start_after)

    def level(self, prefix: str = "") -> Level:
        return seek_level(self._seek, prefix)

    def _seek(self, at: str, below: str | None) -> Sequence[ObjectMeta]:
        query = self._sql(_SEEK, below="" if below is None else " AND key < %s")
        with self._session(at) as connection:
            rows = connection.execute(query, (at,) if below is None else (at, below)).fetchall()
        return [ObjectMeta(*row) for row in rows]

    # -- parts

    @contextmanager
    def _session(self, key: str) -> Iterator[TimedConnection]:
        with explained(self.url, key), self.connections.use() as connection:
            yield connection

    def _sql(self, text: str, **more: str) -> sql.Composed:
        schema = self.connections.server.schema
        tables: dict[str, Any] = {name: sql.Identifier(schema, name) for name in ("objects", "chunks")}
        return sql.SQL(text).format(**tables, **{name: sql.SQL(part) for name, part in more.items()})
