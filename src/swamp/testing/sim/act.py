"""What the user of one process does: mutate, sync, collect; and what is acknowledged to that user."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path

from swamp.commit.lease import Holder, Terms, acquire, model_key
from swamp.errors import LockTimeout, SwampError
from swamp.sync.engine import Engine
from swamp.sync.result import SyncResult
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
        try:
            getattr(self, f"do_{name}")()
        except SwampError as error:
            self.world.refusals[f"{name}: {type(error).__name__}"] += 1
            self.scheduler.note(f"{name} refused: {error!r:.200}")
            if name in SYNCING:
                self.excuse_deletes()

    # -- looking

    def file(self, path: str) -> Path:
        return self.peer.cache.tree / path

    def look(self, path: str) -> set[str]:
        """What the user has now seen at `path`, ever."""
        known = self.peer.known[path]
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            known.add(sha_of(self.file(path).read_bytes()))
            return known
        for remote in self.engine.remote_only(path):
            if remote.path == path and remote.sha256:
                known.add(remote.sha256)
        return known

    def pick(self) -> str:
        return self.rng.choice(self.world.mix.paths)

    # -- mutations

    def do_write(self) -> None:
        self.write(self.pick(), self.world.content())

    def write(self, path: str, body: bytes) -> None:
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
        self.peer.known[event.path].add(left.sha)

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
        if not known:
            return
        with self.engine.announce(known, "delete"):
            events = [self.oracle.deleted(self.peer.name, p, self.look(p)) for p in known]
            for event in events:
                self.scheduler.pause(f"before {event.path} is deleted")
                self.scheduler.note(f"deletes {event.path}")
                self.file(event.path).unlink(missing_ok=True)
                event.effect, event.at = True, self.scheduler.now
        for event in events:
            self.finish(event)

    def do_rename(self) -> None:
        old, new = self.pick(), self.pick()
        if old == new or not self.file(old).is_file():
            return
        with self.engine.announce([old], "delete"), self.engine.announce([new], "write"):
            if not self.file(old).is_file():
                return
            body = self.file(old).read_bytes()
            gone = self.oracle.deleted(self.peer.name, old, self.look(old))
            come = self.oracle.wrote(self.peer.name, new, sha_of(body), self.look(new))
            self.scheduler.pause(f"before {old} is renamed")
            self.file(new).parent.mkdir(parents=True, exist_ok=True)
            self.file(old).replace(self.file(new))
            gone.effect, gone.at = True, self.scheduler.now
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
        if not units:
            return
        unit = self.rng.choice(units)
        here = {p for p, _ in self.peer.tree() if version_of(p) == unit}
        here |= {r.path for r in self.engine.remote_only(unit)}
        with self.engine.announce([unit], "delete"):
            ordered = sorted(here, key=lambda p: (not p.endswith("metadata.yaml"), p))
            events = [self.oracle.deleted(self.peer.name, p, self.look(p)) for p in ordered]
            for event in events:
                self.scheduler.pause(f"before {event.path} is deleted")
                self.scheduler.note(f"deletes {event.path}")
                self.file(event.path).unlink(missing_ok=True)
                event.effect, event.at = True, self.scheduler.now
        for event in events:
            self.finish(event)

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
        for path, events in self.oracle.deletes.items():
            for event in events:
                event.told |= event.peer == self.peer.name and (paths is None or path in paths)

    def acknowledged(self, path: str, begun: float, result: SyncResult) -> None:
        last = self.last_act(path)
        if last is None or last.done is None or last.done > begun:
            return
        live = self.oracle.live.get(path)
        if isinstance(last, Delete):
            if live is not None and live.sha in last.seen and not last.told and not result.deletes_held:
                self.world.fail("delete.intent", f"{path}: its delete was acknowledged and it is still there")
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

    def do_collect(self) -> None:
        self.engine.collect(keep_s=self.world.mix.keep_s)

    def do_compact(self) -> None:
        self.engine.compact()

    def do_lease(self) -> None:
        """A model's lease around a write and a push, renewed now and then, sometimes outlived."""
        holder = Holder("sim", self.peer.name, 1)
        terms = Terms(renew_s=0)
        with acquire(
            self.world.store(), model_key("t", "m"), holder=holder, env=self.peer.env, timeout_s=90, inherited=(), terms=terms
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
