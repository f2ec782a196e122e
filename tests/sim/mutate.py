"""What a user does to the files of one machine: announced, then changed, with a yield wherever a process can die."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from sim.oracle import Delete, Write, version_of
from sim.reading import sha_of
from sim.schedule import Crash
from sim.world import Peer, World
from swamp.sync.engine import Engine

TYPE_AND_MODEL = "data/t/m"


class Author:
    """A user at one machine, who writes through one engine."""

    def __init__(self, world: World, peer: Peer, engine: Engine) -> None:
        self.world, self.peer, self.engine = world, peer, engine
        self.scheduler, self.oracle, self.rng = world.scheduler, world.oracle, world.rng

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
            if not mine:
                return
            before = frozenset(self.look(path))
            try:
                self.announce_write(path, body)
            except Crash:
                # The row stands and the bytes may not: with its state lost, nobody can tell that from an edit.
                self.oracle.revived |= {(path, sha) for sha in before}
                raise

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
                self.announce_delete(known, lambda: known)

    def announce_delete(self, names: list[str], known: Callable[[], list[str]]) -> None:
        """The intent counts from the announcement on, also if its author dies before the act.

        It is of what stands there when it is announced: a pull may have come in between.
        """
        events = [self.oracle.deleted(self.peer.name, p, self.look(p)) for p in known()]
        with self.engine.announce(names, "delete"):
            new = [p for p in known() if p not in {e.path for e in events}]
            events += [self.oracle.deleted(self.peer.name, p, self.look(p)) for p in new]
            for event in events:
                # Gone before it could be deleted: then nothing was deleted, and what comes later is another file.
                event.told = not self.file(event.path).is_file() and self.engine.state.base(event.path) is None
                event.seen |= self.look(event.path)
                base = self.engine.state.base(event.path)
                event.content = (base.id or base.key) if base is not None else ""
                event.number = base.number if base is not None else 0
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
        gone = self.oracle.deleted(self.peer.name, old, self.look(old))
        with self.engine.announce([old], "delete"), self.engine.announce([new], "write"):
            if not self.file(old).is_file():
                return
            body = self.file(old).read_bytes()
            gone.seen |= self.look(old)
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

    def do_twins(self) -> None:
        """A version with two parts that some machine cannot tell apart: put there by hand, past every check."""
        with self.alone_at(TYPE_AND_MODEL) as mine:
            if mine:
                self.announce_version(f"{TYPE_AND_MODEL}/{self.world.mix.names[0]}", ("raw/Twin", "raw/twin"))

    def announce_version(self, top: str, parts: tuple[str, ...], write_id: str | None = None) -> str:
        with self.engine.announce([top], "write"):
            number = 1
            while self.file(f"{top}/{number}").exists() or any(self.engine.remote_only(f"{top}/{number}")):
                number += 1
            self.file(f"{top}/{number}").mkdir(parents=True)
            events = self.fill(f"{top}/{number}", parts, write_id)
        for event in events:
            self.finish(event)
        return f"{top}/{number}"

    def fill(self, unit: str, parts: tuple[str, ...], write_id: str | None = None) -> list[Write]:
        events: list[Write] = []
        hashes: dict[str, str] = {}
        for part in parts:
            body = self.world.content()
            hashes[part] = sha_of(body)
            events.append(self.new_file(f"{unit}/{part}", body))
        said = {"writeId": write_id} if write_id else {}
        meta = json.dumps({"id": self.world.unique(), "parts": hashes, **said}).encode()
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
        def known() -> list[str]:
            here = {p for p, _ in self.peer.tree() if version_of(p) == unit}
            here |= {row.path for row in self.engine.state.base_below(unit)}  # a directory is what base knows of it
            return sorted(here, key=lambda p: (not p.endswith("metadata.yaml"), p))

        self.announce_delete([unit], known)

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

    def holds(self, path: str, sha: str) -> bool:
        file = self.file(path)
        return file.is_file() and sha_of(file.read_bytes()) == sha
