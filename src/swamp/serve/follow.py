"""Lists runs, and turns what happens into events: lines of this server's runs, records that others change, commits."""

from __future__ import annotations

import contextlib
import heapq
import json
import logging
import os
import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from swamp.data.run_record import PREFIX, RUNS, RunState, RunSummary, fits, read_summary
from swamp.errors import CorruptData, SwampError, UsageError
from swamp.serve.database import Database
from swamp.serve.events import KINDS, Draft, Events
from swamp.serve.respond import decode_cursor, encode_cursor
from swamp.serve.spawn import changed_status, changed_steps, runs_directory
from swamp.workflows.decide import seen_summary

if TYPE_CHECKING:
    from swamp.repo.repository import Repo
    from swamp.workflows.run import Driver

LOOK_SECONDS: Final = 0.1
RECORDS_EVERY: Final = 10
"""Looks at run records once in so many looks at this server's own runs."""
CHUNK: Final = 1 << 20
MOST_COMMITS: Final = 50
LOG_DAYS: Final = 7
_log = logging.getLogger("swamp.serve")


class Follower:
    """Follows the files that workers write. How far it has read is kept with the events: no gap, nothing twice."""

    def __init__(self, repo: Repo, db: Database, events: Events) -> None:
        self._repo, self._db, self._events = repo, db, events
        self._directory = runs_directory(repo.path)
        self._over: set[str] = set()
        self._own: set[str] = set()
        self._told: set[str] = set()
        """Runs that were complained of (`""`: all of them): once, not at every look."""
        self._records = ChangedRuns(repo)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="follower", daemon=True)

    def start(self) -> None:
        self._records.begin()
        self._thread.start()

    def tidy(self, active: Collection[str]) -> None:
        """What an earlier server left: files of runs that are over, and old logs of processes."""
        for file in self._directory.glob("*.jsonl"):
            if file.stem not in active:
                self.over(file.stem)
        oldest = self._repo.env.clock.now().timestamp() - LOG_DAYS * 86_400
        for log in self._directory.glob("*.log"):
            if log.stem not in active and log.stat().st_mtime < oldest:
                log.unlink(missing_ok=True)

    def over(self, run_id: str) -> None:
        """The run's process has ended: what its file still holds is read, and the file goes."""
        self._over.add(run_id)

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _loop(self) -> None:
        turn = 0
        while not self._stop.wait(LOOK_SECONDS):
            turn += 1
            try:
                self.look()
                if turn % RECORDS_EVERY == 0:
                    self._events.add(self._records.changed(self._own))
                self._told.discard("")
            except Exception as error:  # noqa: BLE001 - told, and tried again: the stream must not end silently
                self._tell("", f"events are late: {error}")
                self._stop.wait(1.0)

    def look(self) -> None:
        """Takes in every new line of every run of this server. A file that cannot be read holds up no other."""
        ended = frozenset(self._over)  # before reading: what ends meanwhile is read to its end by the next look
        unread: set[str] = set()
        for file in sorted(self._directory.glob("*.jsonl")):
            self._own.add(file.stem)
            try:
                self._read(file)
            except OSError as error:
                unread.add(file.stem)
                self._tell(file.stem, f"run {file.stem}: its events cannot be read: {error.strerror}")
        for run_id in ended - unread:
            self._forget(run_id)
            self._over.discard(run_id)  # not sooner: a look that fails is tried again for the same runs

    def _read(self, file: Path) -> None:
        row = self._db.one("SELECT place FROM followed WHERE run_id = ?", (file.stem,))
        place = int(row[0]) if row else 0
        if file.stat().st_size <= place:
            return
        with file.open("rb") as lines:
            lines.seek(place)
            found = lines.read(CHUNK)
            if len(found) == CHUNK and b"\n" not in found:
                found += lines.readline()
        whole = found[: found.rfind(b"\n") + 1]
        if not whole:
            return
        sql = "INSERT OR REPLACE INTO followed (run_id, place) VALUES (?, ?)"
        self._events.add(self._drafts(file.stem, whole), also=(sql, (file.stem, place + len(whole))))

    def _drafts(self, run_id: str, whole: bytes) -> list[Draft]:
        """The events of these lines. A line that is none (a torn write, somebody's editor) is left out, and told."""
        found = []
        for line in whole.split(b"\n")[:-1]:
            try:
                found.append(_draft(run_id, line))
            except (ValueError, TypeError, KeyError, AttributeError):
                self._tell(run_id, f"run {run_id}: a line of its events is none and was left out: {line[:80]!r}")
        return found

    def _tell(self, run_id: str, what: str) -> None:
        if run_id not in self._told:
            _log.warning("%s", what)
        self._told.add(run_id)

    def _forget(self, run_id: str) -> None:
        file = self._directory / f"{run_id}.jsonl"
        with contextlib.suppress(OSError):
            file.unlink()
        log = self._directory / f"{run_id}.log"
        with contextlib.suppress(OSError):
            if log.stat().st_size == 0:
                log.unlink()
        self._db.execute("DELETE FROM followed WHERE run_id = ?", (run_id,))
        self._records.known(run_id)
        self._own.discard(run_id)
        self._told.discard(run_id)


def _draft(run_id: str, line: bytes) -> Draft:
    """Raises ValueError, TypeError, KeyError or AttributeError for a line that no worker wrote whole."""
    said = json.loads(line)
    kind = said.pop("event")
    if kind not in (*KINDS, "failed"):
        raise ValueError(kind)
    if kind == "failed":
        return "run", run_id, {"runId": run_id, "status": "failed", "error": said["error"]}
    return kind, run_id, {"runId": run_id, **said}


class Puller:
    """Keeps this machine in step with the store, and tells of commits and of trouble."""

    def __init__(self, repo: Repo, events: Events, every: float) -> None:
        self._repo, self._events, self._every = repo, events, every
        self._wake, self._stopping = threading.Event(), False
        self._seq = 0
        self._told: dict[str, Any] = {}
        self.pulled_at: float | None = None
        """When the store was last heard of, on the monotonic clock."""
        self._thread = threading.Thread(target=self._loop, name="puller", daemon=True)

    def start(self) -> None:
        engine = self._repo.datastore.engine
        self._seq = engine.status().seq if engine is not None else 0
        self.pulled_at = self._repo.env.clock.monotonic()
        if engine is not None and self._every > 0:
            self._thread.start()

    def soon(self) -> None:
        self._wake.set()

    def close(self) -> None:
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _loop(self) -> None:
        while not self._stopping:
            self._wake.wait(self._every)
            self._wake.clear()
            if self._stopping:
                return
            try:
                self._pull_or_tell()
            except Exception as error:  # noqa: BLE001 - told, and tried again
                _log.warning("the pull failed: %s", error)

    def _pull_or_tell(self) -> None:
        """Pulls; what keeps it from that is an event too, whatever kind of error: nobody may believe it healthy."""
        try:
            self.pull()
        except SwampError as error:
            self._tell({"healthy": False, "message": error.message})

    def pull(self) -> None:
        engine = self._repo.datastore.must_sync()
        self._repo.datastore.pull()
        self.pulled_at = self._repo.env.clock.monotonic()
        known = engine.status()
        if known.seq > self._seq:
            self._commits(known.seq)
        pending = {"writes": known.pending.writes, "deletes": known.pending.deletes, "found": known.pending.found}
        told = {"healthy": True, "seq": known.seq, "pending": pending, "conflicts": known.conflicts}
        self._tell({**told, "remoteOnly": known.remote_only})

    def _commits(self, newest: int) -> None:
        """The records of the commits since the last look, oldest first; very many are told in part."""
        limit = min(MOST_COMMITS, max(1, newest - self._seq))
        found = [commit.to_json() for commit in self._repo.datastore.maintenance.log(limit)]
        fresh = [commit for commit in reversed(found) if commit["seq"] > self._seq]
        self._seq = newest
        self._events.add(("commit", None, commit) for commit in fresh)

    def _tell(self, status: dict[str, Any]) -> None:
        if status != self._told:
            self._told = status
            self._events.add([("status", None, status)])


# -- the records of all runs, in one line each; a record is read again only when its file has changed


def record_files(repo: Repo) -> Iterator[tuple[str, tuple[int, int]]]:
    """The run records of a repository, each with the time and size by which a change of it is noticed."""
    top = repo.tree.root / RUNS
    for directory in sorted(top.iterdir()) if top.is_dir() else ():
        if not directory.is_dir():
            continue
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name.startswith(PREFIX) and entry.name.endswith(".yaml"):
                    seen = entry.stat()
                    yield f"{RUNS}/{directory.name}/{entry.name}", (seen.st_mtime_ns, seen.st_size)


@dataclass
class RunIndex:
    """The summaries of all runs of a repository."""

    repo: Repo
    _known: dict[str, tuple[tuple[int, int], RunSummary]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def all(self) -> list[RunSummary]:
        with self._lock:
            found: dict[str, tuple[tuple[int, int], RunSummary]] = {}
            for path, stamp in record_files(self.repo):
                known = self._known.get(path)
                if known is not None and known[0] == stamp:
                    found[path] = known
                    continue
                # One that is being replaced or damaged is left out: `doctor` speaks of it, a list goes on.
                with contextlib.suppress(OSError, CorruptData):
                    found[path] = stamp, read_summary((self.repo.tree.root / path).read_bytes(), path)
            self._known = found
            return [summary for _, summary in found.values()]

    def page(
        self,
        driver: Driver,
        *,
        workflow: str | None = None,
        status: str | None = None,
        since: str | None = None,
        query: str = "",
        cursor: str | None = None,
        limit: int = 100,
    ) -> dict[str, Any]:
        """The newest runs that fit, and where the next page begins."""
        before = tuple(decode_cursor(cursor).split("\n")) if cursor else None
        if before is not None and len(before) != 2:
            raise UsageError("this is not a place in a list", hint="use `next` of the page before")
        asked = (s for s in self.all() if workflow in (None, s.workflow_name, s.workflow_id))
        fitting = [s for s in asked if fits(s, query.lower(), since) and (not before or _key(s) < before)]
        found: list[tuple[RunSummary, bool]] = []
        for summary in heapq.nlargest(len(fitting) if status else limit + 1, fitting, key=_key):
            if status and status != summary.status and not (status == "failed" and summary.status == "running"):
                continue
            seen = seen_summary(driver, summary)
            if status in (None, seen[0].status):
                found.append(seen)
            if len(found) > limit:
                break
        items = [run_item(summary, dead) for summary, dead in found[:limit]]
        following = encode_cursor("\n".join(_key(found[limit - 1][0]))) if len(found) > limit else None
        return {"items": items, "next": following}


def run_item(summary: RunSummary, interrupted: bool = False) -> dict[str, Any]:
    """A run as a line of a list: what `workflow run search` prints, and the names of the API."""
    document = {"id": summary.run_id, "workflow": summary.workflow_name, **summary.to_json()}
    document.setdefault("trigger", {"kind": "cli"})
    return {**document, **({"interrupted": True} if interrupted else {})}


def _key(summary: RunSummary) -> tuple[str, str]:
    return summary.started_at, summary.run_id


@dataclass
class ChangedRuns:
    """Notices when the record of a run changes, whoever runs it: this machine's command line, or another machine."""

    repo: Repo
    _mark: int = 0
    _times: dict[str, tuple[int, int]] = field(default_factory=dict)
    _seen: dict[str, dict[str, str]] = field(default_factory=dict)

    def begin(self) -> None:
        """What is there now is no news."""
        if self.repo.datastore.synced:
            self._mark = self.repo.tree.touched_since(0).mark
        else:
            self._times = dict(record_files(self.repo))

    def known(self, run_id: str) -> None:
        """Its states were told line by line."""
        with contextlib.suppress(SwampError):
            list(self._differences(self.repo.runs.get(run_id)))  # brings what was seen of it up to date

    def changed(self, own: set[str]) -> Iterator[Draft]:
        for path in self._paths():
            run_id = Path(path).name.removeprefix(PREFIX).removesuffix(".yaml")
            if run_id in own or not Path(path).name.startswith(PREFIX):
                continue
            try:
                run = self.repo.runs.get(run_id, path.split("/")[1])
            except SwampError:
                continue
            yield from self._differences(run)

    def _differences(self, run: RunState) -> Iterator[Draft]:
        seen = self._seen.setdefault(run.id, {})
        yield from (("step", run.id, {"runId": run.id, **told}) for told in changed_steps(run, seen))
        yield from (("run", run.id, {"runId": run.id, **told}) for told in changed_status(run, seen))
        if len(self._seen) > 1000:
            self._seen.pop(next(iter(self._seen)))

    def _paths(self) -> list[str]:
        if self.repo.datastore.synced:
            touched = self.repo.tree.touched_since(self._mark)
            self._mark = touched.mark
            return [path for path in touched.paths or () if path.startswith(f"{RUNS}/") and path.endswith(".yaml")]
        now = dict(record_files(self.repo))
        changed = [path for path, stamp in now.items() if self._times.get(path) != stamp]
        self._times = now
        return changed
