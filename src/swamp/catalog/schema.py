"""The catalog's table: one row per version, one column per query field."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from swamp.cache.begin import closed_on_failure, keep_log
from swamp.cache.files import on_disk
from swamp.data.metadata import artifact_document, version_fields
from swamp.data.names import DataName, VersionRef
from swamp.data.versions import DataVersion
from swamp.values import value

SCHEMA_VERSION: Final = 3

TEXT_COLUMNS: Final = ("id", "name", "createdAt", "modelType", "contentType", "lifetime", "ownerType", "ownerRef", "ns")
NULLABLE_COLUMNS: Final = tuple(
    "modelName specName dataType workflowRunId workflowName jobName stepName source".split()
)
INTEGER_COLUMNS: Final = ("version", "size")
BOOLEAN_COLUMNS: Final = ("isLatest", "streaming")
LAZY_FIELDS: Final = ("attributes", "content")
PLAIN_FIELDS: Final = (*TEXT_COLUMNS, *NULLABLE_COLUMNS, *INTEGER_COLUMNS, *BOOLEAN_COLUMNS, "tags")
FIELDS: Final = tuple(
    "id name version isLatest createdAt attributes tags modelName modelType specName dataType contentType lifetime "
    "ownerType streaming size content ownerRef workflowRunId workflowName jobName stepName source ns".split()
)
_COLUMNS: Final = (*PLAIN_FIELDS, "modelId", "workflowId", "checksum", "lifecycle", "renamedTo", "dir", "mtime")

DDL: Final = """
CREATE TABLE data (
  ns TEXT NOT NULL, modelType TEXT NOT NULL, modelId TEXT NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL,
  id TEXT NOT NULL, isLatest INTEGER NOT NULL, createdAt TEXT NOT NULL, tags TEXT NOT NULL, modelName TEXT,
  specName TEXT, dataType TEXT, contentType TEXT NOT NULL, lifetime TEXT NOT NULL, ownerType TEXT NOT NULL,
  streaming INTEGER NOT NULL, size INTEGER NOT NULL, ownerRef TEXT NOT NULL, workflowRunId TEXT, workflowName TEXT,
  jobName TEXT, stepName TEXT, source TEXT, workflowId TEXT, checksum TEXT NOT NULL, lifecycle TEXT NOT NULL,
  renamedTo TEXT, dir TEXT NOT NULL, mtime INTEGER NOT NULL,
  PRIMARY KEY (ns, modelType, modelId, name, version)
) WITHOUT ROWID;
CREATE INDEX data_dir ON data (dir, version);
CREATE INDEX data_model ON data (modelName, isLatest);
CREATE INDEX data_created ON data (createdAt);
CREATE TABLE dirs (path TEXT PRIMARY KEY, mtime INTEGER NOT NULL, named INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE unsettled (path TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE damaged (path TEXT PRIMARY KEY, reason TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""

UPSERT: Final = f"INSERT OR REPLACE INTO data ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
SELECT: Final = f"SELECT {', '.join(_COLUMNS)} FROM data"
ORDER: Final = "ORDER BY ns, modelType, modelId, name, version"
# By the primary key: asked by `dir`, SQLite would read every row of the namespace, once for each name.
TIMES_OF_NAME: Final = "SELECT version, mtime FROM data WHERE ns = ? AND modelType = ? AND modelId = ? AND name = ?"
LATEST_OF_NAME: Final = (
    "UPDATE data SET isLatest = (version = (SELECT max(version) FROM data WHERE dir = :dir)) "
    "WHERE dir = :dir AND isLatest <> (version = (SELECT max(version) FROM data WHERE dir = :dir))"
)


@value
class Row:
    """One version as the catalog knows it."""

    ref: VersionRef
    fields: dict[str, Any]
    checksum: str
    away: str | None = None
    """Why it is not here, of a version that only the store has."""

    @property
    def model_name(self) -> str:
        return str(self.fields["modelName"] or self.ref.data.model_id)

    def artifact(self) -> dict[str, Any]:
        return artifact_document(self.ref, self.model_name)

    def listed(self) -> dict[str, Any]:
        """As `data list` prints it."""
        keys = ("name", "version", "modelName", "modelType", "contentType", "size", "createdAt", "tags")
        known = {**{key: self.fields[key] for key in keys}, "modelName": self.model_name}
        return known if self.away is None else {**known, "here": False, "reason": self.away}

    def version_item(self) -> dict[str, Any]:
        """As `data versions` prints it."""
        known = {key: self.fields[key] for key in ("version", "createdAt", "size")}
        item = {**known, "checksum": self.checksum, "isLatest": self.fields["isLatest"]}
        return item if self.away is None else {**item, "here": False, "reason": self.away}


Elsewhere = Mapping[VersionRef, str]
"""Versions that the store has and that could not be fetched, each with the reason (S23)."""


def _elsewhere(ref: VersionRef, why: str, like: Row | None) -> Row:
    """A version of which only its name and number are known here; `like` is one of the same name that is here."""
    fields: dict[str, Any] = {**dict.fromkeys(PLAIN_FIELDS), "tags": {}, "size": 0, "createdAt": ""}
    fields |= {"name": ref.data.name, "version": ref.version, "modelType": ref.data.type, "isLatest": True}
    fields["modelName"] = like.fields["modelName"] if like else None
    return Row(ref, fields, "", why)


def newest_shown(rows: Iterable[Row], elsewhere: Elsewhere, model_type: str | None = None) -> list[Row]:
    """One row per name, the newest that there is anywhere: an older one is never shown in its place."""
    found = {row.ref.data: row for row in rows}
    for ref, why in sorted(elsewhere.items()):
        known = found.get(ref.data)
        if model_type not in (None, ref.data.type) or (known is not None and known.ref.version > ref.version):
            continue
        found[ref.data] = replace(known, away=why) if known and known.ref == ref else _elsewhere(ref, why, known)
    return list(found.values())


def versions_shown(rows: Sequence[Row], elsewhere: Elsewhere, data: DataName) -> list[Row]:
    """The versions of a name, newest first, those that are not here among them."""
    wanted = {ref: why for ref, why in elsewhere.items() if ref.data == data}
    found = {ref: _elsewhere(ref, why, rows[0] if rows else None) for ref, why in wanted.items()}
    found |= {row.ref: replace(row, away=wanted.get(row.ref)) for row in rows}
    newest = sorted(found.values(), key=lambda row: -row.ref.version)
    return [replace(row, fields={**row.fields, "isLatest": at == 0}) for at, row in enumerate(newest)]


def values_of(version: DataVersion, ns: str, mtime: int) -> tuple[Any, ...]:
    """The row of a version, in column order; `isLatest` is settled by `LATEST_OF_NAME` afterwards."""
    fields = version_fields(version.ref, version.meta)
    known = {
        **fields,
        "ns": ns,
        "isLatest": 0,
        "streaming": int(fields["streaming"]),
        "tags": json.dumps(fields["tags"], ensure_ascii=False, sort_keys=True),
        "dir": version.ref.data.path,
        "mtime": mtime,
    }
    return tuple(known[column] for column in _COLUMNS)


def row_of(values: tuple[Any, ...]) -> Row:
    found = dict(zip(_COLUMNS, values, strict=True))
    fields = {name: found[name] for name in PLAIN_FIELDS}
    fields["tags"] = json.loads(found["tags"])
    for name in BOOLEAN_COLUMNS:
        fields[name] = bool(found[name])
    data = DataName(found["modelType"], found["modelId"], found["name"])
    return Row(data.at(found["version"]), fields, found["checksum"])


def create(db: sqlite3.Connection) -> None:
    """Makes the tables of this version, over whatever an older one left. Runs in the caller's transaction."""
    old = db.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    for (name,) in old.fetchall():
        db.execute('DROP TABLE "{}"'.format(str(name).replace('"', '""')))
    for statement in filter(None, map(str.strip, DDL.split(";"))):
        db.execute(statement)
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


class Connections:
    """The connections of one process to one catalog."""

    def __init__(self, path: Path, trace: Callable[[str], None] | None) -> None:
        self._path, self._trace = path, trace
        self._mine = threading.local()
        self._lock = threading.Lock()
        self._opened: list[tuple[threading.Thread, int, sqlite3.Connection]] = []

    def mine(self) -> sqlite3.Connection:
        """This thread's connection."""
        owner = os.getpid()  # a connection must not be used on the other side of a fork
        if getattr(self._mine, "db", None) is None or self._mine.pid != owner:
            self._mine.db, self._mine.pid = _open(self._path, self._trace), owner
            self._close_what_threads_left(owner)
        db: sqlite3.Connection = self._mine.db
        return db

    def close(self) -> None:
        """Closes this thread's connection."""
        db = getattr(self._mine, "db", None)
        if db is not None:
            db.close()
        self._mine.db = None

    def _close_what_threads_left(self, owner: int) -> None:
        """A connection is in a circle with its statements: those of threads that ended, as a server's do all the time,
        would stay open until the garbage is collected."""
        with self._lock:
            known = [one for one in self._opened if one[1] == owner]
            for thread, _, db in known:
                if not thread.is_alive():
                    db.close()
            self._opened = [one for one in known if one[0].is_alive()]
            self._opened.append((threading.current_thread(), owner, self._mine.db))


def _open(path: Path, trace: Callable[[str], None] | None) -> sqlite3.Connection:
    with on_disk("create", str(path.parent)):
        path.parent.mkdir(parents=True, exist_ok=True)
    # A checkout that cannot be written is read all the same: the catalog is a copy, and is made again in memory.
    place = path if os.access(path.parent, os.W_OK) else ":memory:"
    db = sqlite3.connect(place, timeout=60, isolation_level=None, check_same_thread=False)
    if trace is not None:
        db.set_trace_callback(trace)
    with closed_on_failure(db):
        keep_log(db)
        db.execute("PRAGMA synchronous = NORMAL")
        if _schema_version(db) != SCHEMA_VERSION:
            with immediate(db):
                if _schema_version(db) != SCHEMA_VERSION:
                    create(db)
    return db


@contextmanager
def immediate(db: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """A transaction that nobody else writes in."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield db
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def _schema_version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def meta(db: sqlite3.Connection, name: str) -> str | None:
    found = db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return None if found is None else str(found[0])


def set_meta(db: sqlite3.Connection, name: str, value: str) -> None:
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))


def below(place: str) -> tuple[str, str, str]:
    return place, f"{place}/", f"{place}/\U0010ffff"


def drop_below(db: sqlite3.Connection, place: str) -> None:
    db.execute("DELETE FROM data WHERE dir = ? OR dir BETWEEN ? AND ?", below(place))
    db.execute("DELETE FROM damaged WHERE path BETWEEN ? AND ?", below(place)[1:])


def drop_rows(db: sqlite3.Connection, ns: str, refs: Iterable[VersionRef]) -> None:
    gone = list(refs)
    sql = "DELETE FROM data WHERE dir = ? AND version = ? AND ns = ?"
    db.executemany(sql, [(ref.data.path, ref.version, ns) for ref in gone])
    db.executemany("DELETE FROM damaged WHERE path = ?", [(ref.metadata_path,) for ref in gone])
