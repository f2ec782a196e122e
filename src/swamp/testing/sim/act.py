"""What the user of one process does: mutate, sync, collect; and what is acknowledged to that user."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from swamp.commit.collect import collect
from swamp.commit.compact import compact
from swamp.commit.lease import Holder, Terms, acquire, model_key
from swamp.commit.undelete import undelete
from swamp.errors import ConditionFailed, LockTimeout, SwampError
from swamp.sync.engine import Engine
from swamp.sync.progress import Patience
from swamp.sync.result import SyncResult
from swamp.sync.units import unit_of
from swamp.testing.sim.oracle import Delete, Write, sha_of, version_of
from swamp.testing.sim.schedule import Actor, Crash
from swamp.testing.sim.world import Peer, World

TYPE_AND_MODEL = "data/t/m"
SYNCING = frozenset({"push", "pull", "sync", "full", "scoped", "lease"})


class Process:
    """One process of a peer: an open engine and the acts of its user."""

    def __init__(self, world: World, peer: Peer, actor: Actor, engine: Engine) -> None:
        self.world, self.peer, self.actor, self.engine = world, peer, actor, engine
        self.scheduler, self.oracle, self.rng = world.scheduler, world.oracle, world.rng

    def act(self) -> None:
        """One operation, chosen by the seed. A refusal is fine; what it leaves behind is checked elsewhere."""
        names, weights = zip(*self.world.mix.weights.items(), strict=True)
        name = self.rng.choices(names, weights)[0]
        self.world.operations[name] += 1
        self.scheduler.note(f"-- {name}")
        self.world.acting += 1
        try:
            getattr(self, f"do_{name}")()
        except ConditionFailed as error:
            self.world.fail("commit.unknown-is-not-failure", f"{name} gave up because somebody was faster: {error}")
        except SwampError as error:
            self.world.refusals[f"{name}: {type(error).__name__}"] += 1
            self.scheduler.note(f"{name} refused: {self.world.said(error)}")
            if name in SYNCING:
                self.excuse_deletes()
        finally:
            self.world.acting -= 1

    # -- looking

    def file(self, path: str) -> Path:
        return self.peer.cache.tree / path

    def look(self, path: str) -> set[str]:
        """What the user has now seen at `path`, ever."""
        known = self.peer.known[path]
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            known.add(sha_of(self.file(path).read_bytes()))
            return known
        base = self.engine.state.base(path)
        if base is not None and base.sha256:
            known.add(base.sha256)
        return known

    def pick(self) -> str:
        return self.rng.choice(self.world.mix.paths)

    # -- mutations

    @contextlib.contextmanager
    def alone_at(self, *paths: str) -> Iterator[bool]:
        """Two processes of a machine do not write the same file at once: that is what model leases are for."""
        busy = self.peer.busy
        if any(p in busy for p in paths):
            yield False
            return
        busy.update(paths)
        try:
            yield True
        finally:
            busy.difference_update(paths)

    def do_write(self) -> None:
        self.write(self.pick(), self.world.content())

    def write(self, path: str, body: bytes) -> None:
        with self.alone_at(path) as mine:
            if mine:
                self.announce_write(path, body)

    def announce_write(self, path: str, body: bytes) -> None:
        with self.engine.announce([path], "write"):
            event = self.oracle.wrote(self.peer.name, path, sha_of(body), self.look(path))
            self.peer.told.discard(path)
            self.scheduler.note(f"writes {path} = {body!r} {event.sha[:8]}")
            self.put(event, body)
        self.finish(event)

    def put(self, event: Write, body: bytes) -> None:
        """In two halves, as a stream would, or at once beside and renamed."""
        file = self.file(event.path)
        file.parent.mkdir(parents=True, exist_ok=True)
        self.scheduler.pause(f"before {event.path} changes")
        self.now(event)
        if self.rng.random() < 0.5:
            beside = file.with_name(f".swamp-tmp-{event.sha[:8]}")
            beside.write_bytes(body)
            self.stamp(beside)
            beside.replace(file)
        else:
            self.put_in_halves(event, file, body)
        self.peer.known[event.path].add(event.sha)

    def put_in_halves(self, event: Write, file: Path, body: bytes) -> None:
        half = body[: len(body) // 2]
        file.write_bytes(half)
        self.stamp(file)
        try:
            self.scheduler.pause(f"half of {event.path} written")
        except Crash:
            self.torn(event, half)
            raise
        file.write_bytes(body)
        self.stamp(file)

    def torn(self, event: Write, half: bytes) -> None:
        """The process died in the middle: half is what its user left there."""
        left = self.oracle.wrote(self.peer.name, event.path, sha_of(half), event.seen)
        left.done, left.torn = self.scheduler.now, True
        left.lost = bool(version_of(event.path)) and not event.path.endswith("metadata.yaml")  # no metadata, no version
        self.peer.known[event.path].add(left.sha)

    def now(self, event: Write | Delete) -> None:
        """The act itself. Its author saw what stood there when it was announced; the same bytes change nothing."""
        if isinstance(event, Write) and self.holds(event.path, event.sha):
            event.lost = True
        event.at = self.scheduler.now

    def stamp(self, file: Path) -> None:
        at = self.peer.wall_ns()
        os.utime(file, ns=(at, at))

    def finish(self, event: Write | Delete) -> None:
        event.done = self.scheduler.now

    def do_delete(self) -> None:
        self.delete([self.pick()])

    def delete(self, paths: list[str]) -> None:
        """Files that are there, or that a lazy cache knows of."""
        known = [p for p in paths if self.file(p).is_file() or any(r.path == p for r in self.engine.remote_only(p))]
        with self.alone_at(*known) as mine:
            if mine and known:
                self.announce_delete(known, known)

    def announce_delete(self, names: list[str], known: list[str]) -> None:
        with self.engine.announce(names, "delete"):
            events = [self.oracle.deleted(self.peer.name, p, self.look(p)) for p in known]
            for event in events:
                self.scheduler.pause(f"before {event.path} is deleted")
                self.scheduler.note(f"deletes {event.path}")
                self.now(event)
                if self.file(event.path).is_file():
                    self.file(event.path).unlink()
                event.effect = True
            for name in names:
                shutil.rmtree(self.file(name), ignore_errors=True)
        for event in events:
            self.finish(event)

    def do_rename(self) -> None:
        old, new = self.pick(), self.pick()
        with self.alone_at(old, new) as mine:
            if mine and old != new and self.file(old).is_file():
                self.rename(old, new)

    def rename(self, old: str, new: str) -> None:
        with self.engine.announce([old], "delete"), self.engine.announce([new], "write"):
            if not self.file(old).is_file():
                return
            body = self.file(old).read_bytes()
            gone = self.oracle.deleted(self.peer.name, old, self.look(old))
            come = self.oracle.wrote(self.peer.name, new, sha_of(body), self.look(new))
            self.scheduler.pause(f"before {old} is renamed")
            self.file(new).parent.mkdir(parents=True, exist_ok=True)
            self.now(gone)
            self.now(come)
            self.file(old).replace(self.file(new))
            gone.effect = True
            self.stamp(self.file(new))
            self.peer.known[new].add(come.sha)
            self.scheduler.note(f"renames {old} to {new} {come.sha[:8]}")
        self.finish(gone)
        self.finish(come)

    def do_version(self) -> None:
        """A new version of a name: claimed by mkdir, raw first, metadata last."""
        name = self.rng.choice(self.world.mix.names)
        top = f"{TYPE_AND_MODEL}/{name}"
        parts = ("raw",) if self.rng.random() < 0.7 else ("raw/part-0", "raw/part-1")
        with self.alone_at(TYPE_AND_MODEL) as mine:
            if mine:
                self.announce_version(top, parts)

    def announce_version(self, top: str, parts: tuple[str, ...]) -> None:
        with self.engine.announce([top], "write"):
            number = 1
            while self.file(f"{top}/{number}").exists() or any(self.engine.remote_only(f"{top}/{number}")):
                number += 1
            self.file(f"{top}/{number}").mkdir(parents=True)
            events = self.fill(f"{top}/{number}", parts)
        for event in events:
            self.finish(event)

    def fill(self, unit: str, parts: tuple[str, ...]) -> list[Write]:
        events: list[Write] = []
        hashes: dict[str, str] = {}
        for part in parts:
            body = self.world.content()
            hashes[part] = sha_of(body)
            events.append(self.new_file(f"{unit}/{part}", body))
        meta = json.dumps({"id": self.world.unique(), "parts": hashes}).encode()
        events.append(self.new_file(f"{unit}/metadata.yaml", meta))
        return events

    def new_file(self, path: str, body: bytes) -> Write:
        event = self.oracle.wrote(self.peer.name, path, sha_of(body), self.look(path))
        self.peer.told.discard(path)
        self.scheduler.note(f"writes {path} {event.sha[:8]}")
        self.put(event, body)
        return event

    def do_drop_version(self) -> None:
        """Removal in reverse: metadata first."""
        units = sorted(self.units())
        with self.alone_at(TYPE_AND_MODEL) as mine:
            if mine and units:
                self.drop(self.rng.choice(units))

    def drop(self, unit: str) -> None:
        here = {p for p, _ in self.peer.tree() if version_of(p) == unit}
        here |= {row.path for row in self.engine.state.base_below(unit)}  # a directory is what base knows of it
        self.announce_delete([unit], sorted(here, key=lambda p: (not p.endswith("metadata.yaml"), p)))

    def units(self) -> set[str]:
        """Versions that exist here: those with metadata."""
        return {version_of(p) for p, _ in self.peer.tree() if p.endswith("/metadata.yaml")}

    def do_record(self) -> None:
        """An output record that names a version."""
        units = sorted(self.units())
        if units:
            unit = self.rng.choice(units)
            body = json.dumps({"id": self.world.unique(), "path": unit}).encode()
            self.write(f"outputs/t/run/{self.peer.name}.yaml", body)

    # -- sync

    def do_push(self) -> None:
        self.synced(lambda: self.engine.push())

    def do_sync(self) -> None:
        self.synced(lambda: self.engine.sync())

    def do_full(self) -> None:
        self.synced(lambda: self.engine.sync(full=True))

    def do_pull(self) -> None:
        self.told(self.engine.pull())

    def do_scoped(self) -> None:
        scope = self.rng.choice(("files", "files/d", TYPE_AND_MODEL))
        if self.rng.random() < 0.5:
            self.told(self.engine.pull((scope,)))
        else:
            self.synced(lambda: self.engine.push((scope,)), scope)

    def do_plan(self) -> None:
        self.engine.plan("sync")

    def do_hydrate(self) -> None:
        remote = sorted(r.path for r in self.engine.remote_only())
        if remote:
            self.engine.materialize(self.rng.choice(remote))

    def do_wait(self) -> None:
        self.scheduler.sleep(self.rng.choice((1.0, 10.0, 3600.0, 40_000.0)))

    def synced(self, call: Callable[[], SyncResult], scope: str = "") -> None:
        """What this user finished before the push and is not told otherwise about is shared afterwards."""
        begun = self.scheduler.now
        result = call()
        self.told(result)
        excused = {version_of(p) or p for p in self.excuses(result)}
        for path in sorted(self.oracle.writes.keys() | self.oracle.deletes.keys()):
            if path.startswith(scope) and (version_of(path) or path) not in excused:
                self.acknowledged(path, begun, result)

    def excuses(self, result: SyncResult) -> set[str]:
        return {f.path for f in result.failed} | {c.path for c in result.conflicts} | self.peer.told

    def told(self, result: SyncResult) -> None:
        conflicts = {c.path for c in result.conflicts}
        self.peer.told |= conflicts
        self.excuse_deletes(conflicts)
        summary = f"pushed {result.files_pushed} pulled {result.files_pulled} deleted {result.files_deleted}"
        self.scheduler.note(f"{result.mode}: {summary} failed {result.failed} conflicts {result.conflicts}")

    def excuse_deletes(self, paths: set[str] | None = None) -> None:
        """The user knows that these deletes (or all so far) may not have happened."""
        self.oracle.excuse(self.peer.name, paths)

    def acknowledged(self, path: str, begun: float, result: SyncResult) -> None:
        last = self.last_act(path)
        if last is None or last.done is None or last.done > begun:
            return
        live = self.oracle.live.get(path)
        if isinstance(last, Delete):
            told = last.told or result.deletes_held
            if live is not None and live.sha in last.seen and not told and self.oracle.knew(last, live.key):
                self.world.fail("delete.intent", f"{path}: its delete was acknowledged and it is still there")
        elif live is not None and live.sha == last.sha:
            self.oracle.acked.add((path, live.key))
        elif not last.lost and last.sha not in self.oracle.ever_live[path] and self.holds(path, last.sha):
            self.world.fail("journal.survives", f"{path}: {last.sha[:8]} was acknowledged and is not in the bucket")

    def last_act(self, path: str) -> Write | Delete | None:
        mine: list[Write | Delete] = [w for w in self.oracle.writes[path] if w.peer == self.peer.name]
        mine += [d for d in self.oracle.deletes[path] if d.peer == self.peer.name]
        return max(mine, key=lambda e: e.at, default=None)

    def holds(self, path: str, sha: str) -> bool:
        file = self.file(path)
        return file.is_file() and sha_of(file.read_bytes()) == sha

    # -- the store's own upkeep

    def pace(self) -> Callable[[], None]:
        return Patience(self.peer.env, 300.0).check

    def do_collect(self) -> None:
        keep = dt.timedelta(seconds=self.world.mix.keep_s)
        done = collect(self.engine.committer, self.pace(), keep=keep)
        self.scheduler.note(f"collected {done}")

    def do_compact(self) -> None:
        root = self.oracle.root
        listed = [s.key for s in root.segments] if root else []
        some = frozenset(k for k in listed if self.rng.random() < 0.7) if self.rng.random() < 0.6 else None
        done = compact(self.engine.committer, self.pace(), keys=some)
        self.scheduler.note(f"compacted {done}")

    def do_undelete(self) -> None:
        dead = sorted(self.oracle.tombstones())
        if not dead:
            return
        path = self.rng.choice(dead)
        self.oracle.undeleting(version_of(path) or path)
        done = undelete(self.engine.committer, self.pace(), [path], unit_of)
        self.scheduler.note(f"undeleted {path}: {done}")

    def do_damage(self) -> None:
        """Somebody overwrites or removes the root by other means: an old client, a careless hand."""
        known = self.oracle.root is not None and self.oracle.newest_logged() is not None
        if known and self.world.acting == 1:  # a commit between its swap and its log record has nobody to tell it
            self.scheduler.note("DAMAGE to the root")
            self.oracle.damage(self.rng.random() < 0.5)

    def do_recreate(self) -> None:
        """The bucket is emptied and created anew: no cache may take that for a wish to lose its files."""
        if self.world.recreated is None and self.world.acting == 1:  # nobody is in the middle of anything
            self.scheduler.note("RECREATE the bucket")
            self.world.recreate()

    def do_lease(self) -> None:
        """A model's lease around a write and a push, renewed now and then, sometimes outlived."""
        holder = Holder("sim", self.peer.name, 1)
        terms = Terms(renew_s=0)
        with acquire(
            self.world.store(self.peer),
            model_key("t", "m"),
            holder=holder,
            env=self.peer.env,
            timeout_s=90,
            inherited=(),
            terms=terms,
        ) as lease:
            for _ in range(self.rng.randint(1, 3)):
                self.scheduler.sleep(self.rng.choice((1.0, 9.0, 40.0)))
                lease.renew_once()
            try:
                lease.check()
            except LockTimeout:
                self.scheduler.note("the lease was lost")
                return
            self.do_version()
            self.do_push()
