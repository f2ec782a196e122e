"""Makes state.db and its tables, brings them up to date, checks the file at opening, begins it again when damaged.

A file that was changed since the last process left it, by whatever, is checked before it is believed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from swamp.cache.rows import JournalRow, Transaction, journal_row
from swamp.errors import Failed


def left_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.left")


def note_left(path: Path) -> None:
    """Only ever saves a check, so it is written without ceremony."""
    with suppress(OSError):
        left_of(path).write_text(_looks(path))


def _looks(path: Path) -> str:
    found = path.stat()
    return f"{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino}"


SCHEMA_VERSION: Final = 3
_DIRECTORY: Final = "rtrim(rtrim(NEW.path, replace(NEW.path, '/', '')), '/')"
_DIRECTORIES: Final = (
    "CREATE TABLE dirs (path TEXT PRIMARY KEY, mtime INTEGER, ctime INTEGER, inode INTEGER) WITHOUT ROWID",
    # Whatever comes to be present makes its directory one to look at; a directory is never forgotten by whom it befell.
    "CREATE TRIGGER base_present AFTER INSERT ON base WHEN NEW.present = 1 BEGIN "
    f"INSERT OR IGNORE INTO dirs (path) VALUES ({_DIRECTORY}); END",
)
_SCHEMA: Final = """
CREATE TABLE base (path TEXT PRIMARY KEY, key TEXT NOT NULL, size INTEGER NOT NULL, sha256 TEXT, seq INTEGER NOT NULL,
  present INTEGER NOT NULL, fold TEXT NOT NULL, h_size INTEGER, h_mtime INTEGER, h_ctime INTEGER, h_inode INTEGER,
  id TEXT NOT NULL DEFAULT '', id_seq INTEGER NOT NULL DEFAULT 0)
  WITHOUT ROWID;
CREATE INDEX base_fold ON base (fold);
CREATE INDEX base_remote_only ON base (path) WHERE present = 0;
CREATE TABLE journal (id INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT NOT NULL, kind TEXT NOT NULL,
  confirmed INTEGER NOT NULL);
CREATE INDEX journal_path ON journal (path);
CREATE TABLE staged (key TEXT PRIMARY KEY, path TEXT NOT NULL, sha256 TEXT NOT NULL, size INTEGER NOT NULL,
  gc_epoch INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX staged_path ON staged (path);
CREATE TABLE deferred (path TEXT PRIMARY KEY, remote TEXT NOT NULL, reason TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE touched (n INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT NOT NULL);
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""
_MIGRATIONS: Final = {
    1: (
        "ALTER TABLE base ADD COLUMN id TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE base ADD COLUMN id_seq INTEGER NOT NULL DEFAULT 0",
    ),
    2: (
        *_DIRECTORIES,
        f"INSERT OR IGNORE INTO dirs (path) SELECT {_DIRECTORY.replace('NEW.', '')} FROM base WHERE present = 1",
    ),
}
"""What a state.db of an older version needs to become one of the next: nothing is compared again for it."""
_SIGNS_OF_DAMAGE: Final = (
    "malformed",
    "not a database",
    "no such table",
    "no such column",
    "corrupt",
    "Could not decode to UTF-8",
)


def inode_of(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def begun_again(path: Path, durable: bool) -> sqlite3.Connection:
    """A new file in the place of a damaged one, with the announcements that could still be read."""
    rows = _set_aside(path)
    db = connect(path, durable)
    db.execute("BEGIN IMMEDIATE")
    Transaction(db).begin_again(rows, int(path.stat().st_mtime * 1000))
    db.execute("COMMIT")
    return db


def is_damage(error: sqlite3.Error) -> bool:
    """A page that is no page, or tables that are no longer found; not a full disk, a lock or a missing right."""
    text = str(error)
    return any(word in text for word in _SIGNS_OF_DAMAGE)


def is_sound(db: sqlite3.Connection, path: Path) -> bool:
    """Every page of a file that is not as the last of us left it is looked at once. A process that was killed left no
    word, and its file is checked."""
    with suppress(OSError, ValueError):
        if left_of(path).read_text() == _looks(path):
            return True
    return db.execute("PRAGMA quick_check(1)").fetchall() == [("ok",)]


def _set_aside(path: Path) -> list[JournalRow]:
    """Keeps the damaged file beside; its announcements, if they can still be read, are not forgotten with it."""
    for suffix in ("", "-wal", "-shm"):
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.replace(part.with_name(f"{path.name}.damaged{suffix}"))
    try:
        with closing(sqlite3.connect(path.with_name(f"{path.name}.damaged"), timeout=1)) as old:
            rows = old.execute("SELECT id, path, kind, confirmed FROM journal ORDER BY id").fetchall()
        return [journal_row(row) for row in rows]
    except sqlite3.Error:
        return []


@contextmanager
def closed_on_failure(db: sqlite3.Connection) -> Iterator[None]:
    """A connection to what turns out to be no database holds the file no longer than that takes."""
    try:
        yield
    except BaseException:
        db.close()
        raise


def connect(path: Path, durable: bool) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
    with closed_on_failure(db):
        _make_ready(db, durable)
    return db


def keep_log(db: sqlite3.Connection) -> None:
    """Has the file written through a log beside it.

    SQLite waits for another connection at every statement but this one, when both would change a new file: so this one
    waits for its turn to write, and finds the log there.
    """
    for _ in range(10):
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            db.execute("BEGIN IMMEDIATE")
            db.execute("COMMIT")
    db.execute("PRAGMA journal_mode = WAL")


def _make_ready(db: sqlite3.Connection, durable: bool) -> None:
    if durable:
        keep_log(db)
    else:
        db.execute("PRAGMA journal_mode = MEMORY")
    db.execute("PRAGMA synchronous = FULL" if durable else "PRAGMA synchronous = OFF")
    db.execute("PRAGMA temp_store = MEMORY")  # what a statement may undo: 1,700 writes in a pull of 10,000
    if _version(db) != SCHEMA_VERSION:
        db.execute("BEGIN IMMEDIATE")  # two processes may open a new cache at once: the second finds it made
        while steps := _MIGRATIONS.get(before := _version(db)):
            for statement in steps:
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {before + 1}")
        if _version(db) != SCHEMA_VERSION:  # it is not known: made anew, it costs a full comparison
            for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                if not name.startswith("sqlite_"):
                    db.execute(f'DROP TABLE "{name}"')
            for statement in (*_SCHEMA.split(";"), *_DIRECTORIES):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        db.execute("COMMIT")


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def explained(error: sqlite3.DatabaseError, path: Path) -> Failed:
    return Failed(
        f"the cache's state database at {path} cannot be used: {error}",
        # By its name: who cannot open the database is not shown the directory by any command.
        hint=f"check free space and permissions of {path.parent}",
    )
