"""The catalog: every version in one SQLite table, a copy of the tree that repairs itself. inv[catalog.local]"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from swamp.cache.files import RACY_NS, disk_error, on_disk
from swamp.catalog import schema
from swamp.catalog.schema import Connections, Row, immediate, row_of, values_of
from swamp.data.names import DATA, METADATA, DataName, VersionRef, name_of_directory, parse_version, version_of
from swamp.data.versions import DataVersion, VersionReader, holds_version, numbers_in
from swamp.env import SYSTEM, Env
from swamp.errors import CorruptData, Failed, NotFound
from swamp.sync.port import PlainTree, Tree

T = TypeVar("T")
BATCH: Final = 1000
_log = logging.getLogger("swamp.catalog")
Parse = Callable[[list[VersionRef]], Iterable[tuple[VersionRef, DataVersion | CorruptData]]]
"""Reads the metadata of many versions; one that is gone meanwhile is left out."""


class Catalog:
    """Answers from SQLite what would cost a walk. Every read first takes in what changed since the last one."""

    def __init__(
        self,
        path: Path,
        tree: Tree,
        *,
        namespace: str = "",
        env: Env = SYSTEM,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self._path = path
        self._tree = tree
        self._ns = namespace
        self._env = env
        self._connections = Connections(path, trace)

    # -- what a repository tells after each change

    def record(self, version: DataVersion) -> None:
        """Write-through of a version that now exists."""

        def put(db: sqlite3.Connection) -> None:
            times = _metadata_times(self._tree.root, version.ref.data, [version.version])
            db.execute(schema.UPSERT, values_of(version, self._ns, times.get(version.version, 0)))
            db.execute(schema.LATEST_OF_NAME, {"dir": version.ref.data.path})

        self._written(put)

    def forget(self, refs: Sequence[VersionRef]) -> None:
        """Write-through of versions that are gone."""

        def drop(db: sqlite3.Connection) -> None:
            schema.drop_rows(db, self._ns, refs)
            for path in {ref.data.path for ref in refs}:
                db.execute(schema.LATEST_OF_NAME, {"dir": path})

        self._written(drop)

    def _written(self, change: Callable[[sqlite3.Connection], None]) -> None:
        """The tree is the truth and has changed already: a catalog that cannot follow now will at the next read."""
        try:
            with self._transaction() as db:
                if schema.meta(db, "populated"):
                    change(db)
        except (sqlite3.Error, Failed) as error:
            _log.warning("the catalog could not be updated and will be refreshed later: %s", error)

    # -- reading

    def latest(
        self,
        *,
        model_type: str | None = None,
        workflow: str | None = None,
        run_id: str | None = None,
    ) -> list[Row]:
        """The latest version of every name that has one. One query, however many versions there are."""
        wanted = {"modelType": model_type, "workflowRunId": run_id}
        clauses = [f"{column} = ?" for column, value in wanted.items() if value is not None]
        params: list[Any] = [value for value in wanted.values() if value is not None]
        if workflow is not None:
            clauses.append("(workflowName = ? OR workflowId = ?)")
            params += [workflow, workflow]
        return list(self.select(" AND ".join(["isLatest = 1", *clauses]), params))

    def versions(self, data: DataName) -> list[Row]:
        """The versions of a name that hold data, newest first."""
        named = self.select("modelType = ? AND modelId = ? AND name = ?", [data.type, data.model_id, data.name])
        return sorted(named, key=lambda row: -row.ref.version)

    def search(self, tags: Iterable[tuple[str, str]] = (), since: str | None = None) -> list[Row]:
        """The latest versions that carry all these tags and were made at or after `since` (RFC 3339), newest first."""
        clauses, params = ["isLatest = 1"], []
        for key, value in tags:
            clauses.append("EXISTS (SELECT 1 FROM json_each(data.tags) WHERE key = ? AND value = ?)")
            params += [key, value]
        if since is not None:
            clauses.append("createdAt >= ?")
            params.append(since)
        return sorted(self.select(" AND ".join(clauses), params), key=lambda row: row.fields["createdAt"], reverse=True)

    def select(self, where: str, params: Sequence[Any] = (), limit: int | None = None) -> Iterator[Row]:
        """The rows that hold data and for which `where` is true, in the order of the primary key."""
        sql = f"{schema.SELECT} WHERE ns = ? AND lifecycle = 'active' AND ({where}) {schema.ORDER}"
        if limit is not None:
            sql += f" LIMIT {int(limit)}"
        self.refresh()
        cursor = self._healed(lambda db: db.execute(sql, [self._ns, *params]))
        while rows := cursor.fetchmany(BATCH):
            yield from map(row_of, rows)

    def models(self) -> list[tuple[str, str, str | None]]:
        """`(type, id, name)` of every model that has data; the name is what its newest version says."""
        self.refresh()
        sql = (
            "SELECT modelType, modelId, modelName, max(createdAt) FROM data WHERE ns = ? "
            "GROUP BY modelType, modelId ORDER BY modelType, modelId"
        )
        return [(t, i, n) for t, i, n, _ in self._healed(lambda db: db.execute(sql, [self._ns]).fetchall())]

    def damaged(self) -> list[tuple[str, str]]:
        """Metadata files that could not be read, and why: a warning here, an error for who reads that artifact."""
        self.refresh()
        return self._healed(lambda db: db.execute("SELECT path, reason FROM damaged ORDER BY path").fetchall())

    # -- keeping up with the tree

    def refresh(self) -> None:
        """Takes in what changed since the last look; starts over if that cannot be known."""
        self._healed(self._refresh)

    def rebuild(self, parse: Parse | None = None) -> None:
        """Reads everything again from the tree; `parse` reads metadata in bulk, where there is much of it."""
        self._healed(lambda db: self._rebuild(db, parse))

    def _refresh(self, db: sqlite3.Connection) -> None:
        mark = schema.meta(db, "mark")
        if schema.meta(db, "populated") != self._identity or mark is None:
            return self._rebuild(db)
        touched = self._tree.touched_since(int(mark))
        if touched.paths is None:
            return self._rebuild(db)
        paths = {place for path in touched.paths for place in _places(path)}
        paths.update(path for (path,) in db.execute("SELECT path FROM unsettled"))
        observed = self._observe(db)
        if paths or observed or touched.mark != int(mark):
            self._take_in(db, paths, observed, touched.mark)
        return None

    def _observe(self, db: sqlite3.Connection) -> SweptTree | None:
        """A plain directory reports nothing, and other repositories may write into it: its directories are asked."""
        if not isinstance(self._tree, PlainTree):
            return None
        known = {path: Directory(mtime, bool(named)) for path, mtime, named in db.execute("SELECT * FROM dirs")}
        observed = sweep(self._tree.root, known, self._now_ns())
        return observed if observed.looked_at or observed.gone else None

    def _take_in(self, db: sqlite3.Connection, paths: set[str], observed: SweptTree | None, mark: int) -> None:
        places = sorted(paths | set(observed.changed if observed else ()))
        with self._transaction() as writing:
            writing.execute("DELETE FROM unsettled")
            for place in places:
                self._read_again(writing, place)
            for gone in observed.gone if observed else ():
                schema.drop_below(writing, gone)
            if observed is not None:
                _keep_directories(writing, observed)
            schema.set_meta(writing, "mark", str(mark))

    def _read_again(self, db: sqlite3.Connection, place: str) -> None:
        """Whatever lies at or below `place`: rows of what is there, no rows of what is not."""
        self._tree.bring_back(place)  # inv[tree.damage]: what vanished unannounced is not gone
        names = {data.path: data for data in VersionReader(self._tree).names(place)}
        sql = "SELECT DISTINCT dir FROM data WHERE dir = ? OR dir BETWEEN ? AND ?"
        known = {path for (path,) in db.execute(sql, schema.below(place))}
        kept = {ref.data.path for ref in VersionReader(self._tree).elsewhere(place)}
        for gone in known - names.keys() - kept:
            schema.drop_below(db, gone)
        for data in names.values():
            self._read_name(db, data)
        if not isinstance(self._tree, PlainTree) and self._is_fresh(place):
            db.execute("INSERT OR REPLACE INTO unsettled VALUES (?)", (place,))

    def _is_fresh(self, place: str) -> bool:
        """Announced and perhaps still being written: look at it once more."""
        try:
            changed = os.stat(self._tree.root / place).st_mtime_ns  # noqa: PTH116
        except OSError:
            return False
        return changed >= self._now_ns() - RACY_NS

    def _read_name(self, db: sqlite3.Connection, data: DataName) -> None:
        """Versions do not change: only metadata that is new, or whose time differs, is parsed."""
        known = dict(db.execute(schema.TIMES_OF_NAME, (self._ns, data.type, data.model_id, data.name)))
        present = _metadata_times(self._tree.root, data)
        reader = VersionReader(self._tree)
        gone = {data.at(number) for number in known.keys() - present.keys()}
        schema.drop_rows(db, self._ns, gone - reader.elsewhere(data.path).keys() if gone else ())
        fresh = {number: mtime for number, mtime in present.items() if known.get(number) != mtime}
        if fresh:
            db.execute("DELETE FROM damaged WHERE path BETWEEN ? AND ?", schema.below(data.path)[1:])
        for number, mtime in fresh.items():
            self._read_version(db, reader, data.at(number), mtime)
        db.execute(schema.LATEST_OF_NAME, {"dir": data.path})

    def _read_version(self, db: sqlite3.Connection, reader: VersionReader, ref: VersionRef, mtime: int) -> None:
        try:
            db.execute(schema.UPSERT, values_of(reader.read(ref), self._ns, mtime))
        except NotFound:
            schema.drop_rows(db, self._ns, [ref])
        except CorruptData as error:
            schema.drop_rows(db, self._ns, [ref])
            db.execute("INSERT OR REPLACE INTO damaged VALUES (?, ?)", (ref.metadata_path, error.message))

    def _rebuild(self, db: sqlite3.Connection, parse: Parse | None = None) -> None:
        """From nothing. What is written meanwhile is newer than the mark and is taken in by the next refresh."""
        mark = self._tree.touched_since(0).mark
        self._tree.bring_back(DATA)
        observed = sweep(self._tree.root, {}, self._now_ns())
        with self._transaction() as writing:
            schema.create(writing)
            names = [data for path in observed.changed if (data := name_of_directory(path)) is not None]
            if parse is not None:
                self._parse_all(writing, names, parse)
            else:
                for data in names:
                    self._read_name(writing, data)
            _keep_directories(writing, observed)
            schema.set_meta(writing, "mark", str(mark))
            schema.set_meta(writing, "populated", self._identity)

    def _parse_all(self, db: sqlite3.Connection, names: list[DataName], parse: Parse) -> None:
        times = {data.at(n): t for data in names for n, t in _metadata_times(self._tree.root, data).items()}
        for ref, found in parse(list(times)):
            if isinstance(found, CorruptData):
                db.execute("INSERT OR REPLACE INTO damaged VALUES (?, ?)", (ref.metadata_path, found.message))
            else:
                db.execute(schema.UPSERT, values_of(found, self._ns, times[ref]))
        for data in names:
            db.execute(schema.LATEST_OF_NAME, {"dir": data.path})

    @property
    def _identity(self) -> str:
        """Which tree this is a copy of: after a change of datastore nothing of the old one is believed."""
        return f"{self._ns}\n{self._tree.root.absolute()}"

    def _now_ns(self) -> int:
        return int(self._env.clock.now().timestamp() * 1_000_000_000)

    # -- the connection: one per thread, made anew after damage

    def close(self) -> None:
        """Closes this thread's connection."""
        self._connections.close()

    def _transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        return immediate(self._connections.mine())

    def _healed(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Runs `work`; a damaged catalog is thrown away, because it can be made again from the tree."""
        try:
            return work(self._connections.mine())
        except sqlite3.OperationalError as error:
            if "locked" in str(error) or "readonly" in str(error):
                raise Failed(f"the catalog cannot be used: {error}", hint=f"look at {self._path}") from error
        except sqlite3.DatabaseError:
            pass
        self.close()
        for suffix in ("", "-wal", "-shm"):
            with on_disk("remove", str(self._path)):
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        self._refresh(self._connections.mine())
        return work(self._connections.mine())


def _keep_directories(db: sqlite3.Connection, observed: SweptTree) -> None:
    rows = [(path, found.mtime, int(found.named)) for path, found in observed.looked_at.items()]
    db.executemany("INSERT OR REPLACE INTO dirs VALUES (?, ?, ?)", rows)
    db.executemany("DELETE FROM dirs WHERE path = ?", [(path,) for path in observed.gone])


def _metadata_times(root: Path, data: DataName, numbers: Iterable[int] | None = None) -> dict[int, int]:
    times = {}
    for number in numbers_in(root / data.path) if numbers is None else numbers:
        try:
            times[number] = os.stat(f"{root}/{data.path}/{number}/{METADATA}").st_mtime_ns  # noqa: PTH116
        except OSError:
            continue  # no metadata: the version does not exist
    return times


def _places(path: str) -> Iterator[str]:
    """Where to look after `path` was touched: it may be a file of a version, a version, a name, or more than that."""
    if path != DATA and not path.startswith(DATA + "/"):
        return
    ref = version_of(path)
    if ref is not None:
        yield ref.data.path
        return
    yield path
    parent, _, last = path.rpartition("/")
    if parse_version(last) is not None or last in ("latest", METADATA):
        yield parent


UNSETTLED = 0


class Directory(NamedTuple):
    """A directory that was looked at: when it last changed (0: too recently to trust), whether it is a data name."""

    mtime: int
    named: bool


class SweptTree(NamedTuple):
    """What a sweep found: directories that are new or changed, those that are gone, and which names to read again."""

    looked_at: Mapping[str, Directory]
    gone: tuple[str, ...]

    @property
    def changed(self) -> tuple[str, ...]:
        return tuple(path for path, found in self.looked_at.items() if found.named)


def sweep(root: Path, known: Mapping[str, Directory], now_ns: int) -> SweptTree:
    """One stat per directory that is known and unchanged, one listing for every other. Never opens a file."""
    below: dict[str, list[str]] = {}
    for path in known:
        below.setdefault(path.rpartition("/")[0], []).append(path)
    there: set[str] = set()
    looked_at: dict[str, Directory] = {}
    waiting = [DATA]
    while waiting:
        path = waiting.pop()
        mtime = _mtime(root / path)
        if mtime is None:
            continue
        there.add(path)
        before = known.get(path)
        if before is not None and before.mtime == mtime:
            waiting += below.get(path, [])
            continue
        named, children = _look(root, path)
        looked_at[path] = Directory(mtime if mtime < now_ns - RACY_NS else UNSETTLED, named)
        waiting += children
    return SweptTree(looked_at, tuple(path for path in known if path not in there))


def _mtime(path: Path) -> int | None:
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116 - one call per known name
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise disk_error(error, "read", str(path)) from error


def _look(root: Path, path: str) -> tuple[bool, list[str]]:
    """Whether a directory is a data name, and the directories in it."""
    try:
        with os.scandir(root / path) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return False, []
    except OSError as error:
        raise disk_error(error, "read", path) from error
    if name_of_directory(path) is not None and holds_version(root / path, names):
        return True, []
    return False, [f"{path}/{name}" for name in names]
