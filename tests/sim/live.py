"""The life of a process: it opens its engine, acts, may die and start again; and what befalls its cache in between."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from sim.act import Process
from sim.open import open_engine
from sim.oracle import Write
from sim.reading import sha_of
from sim.schedule import Actor, Crash
from sim.world import Backup, Peer, World
from swamp.errors import SwampError
from swamp.sync.engine import Engine


def actors_of(world: World) -> list[Actor]:
    """One or two processes per machine."""
    actors: list[Actor] = []
    for peer in world.peers:
        count = 2 if world.rng.random() < world.mix.processes else 1
        for number in range(count):
            life = Life(world, peer)
            actor = Actor(f"{peer.name}{number + 1}", life.run)
            peer.actors.append(actor)
            actors.append(actor)
    return actors


PAGE = 4096


def _later(directory: Path) -> None:
    """Time has passed since anybody looked at it: a run is faster than the clock of the file system."""
    found = directory.stat()
    os.utime(directory, ns=(found.st_mtime_ns + 1_000_000_000, found.st_mtime_ns + 1_000_000_000))


class Life:
    """What one process does from its first start to its end, crashes included."""

    def __init__(self, world: World, peer: Peer) -> None:
        self.world, self.peer = world, peer
        self.left = world.rng.randint(*world.mix.operations)

    def run(self, actor: Actor) -> None:
        while self.left > 0:
            try:
                self._until_death()
            except Crash:
                self._after_death(actor)

    def _until_death(self) -> None:
        while self.peer.gate:
            self.world.scheduler.sleep(5.0)
        self.peer.running += 1
        engine: Engine | None = None
        try:
            engine = open_engine(self.world, self.peer)
            process = Process(self.world, self.peer, engine)
            while self.left > 0:
                self.left -= 1
                process.act()
        except SwampError as error:
            self.left -= 1
            self.world.scheduler.note(f"start refused: {self.world.said(error)}")
        except Crash:
            self._excuse()
            raise
        finally:
            if engine is not None:
                engine.close()
            self.peer.running -= 1

    def _excuse(self) -> None:
        """A dead process told its user nothing: deletes that it undid may come as a surprise."""
        self.world.oracle.excuse(self.peer.name)

    def _after_death(self, actor: Actor) -> None:
        scheduler = self.world.scheduler
        if scheduler.failure is not None:
            raise Crash("the run is over")
        actor.dead = actor.doomed = False
        scheduler.sleep(self.world.rng.choice((0.0, 0.0, 2.0, 20.0, 4000.0)))  # until somebody starts it again
        names, weights = zip(*self.world.mix.sabotage.items(), strict=True)
        fate = self.world.rng.choices(names, weights)[0]
        if fate == "none" or self.peer.gate:
            return
        self._empty_machine(actor)
        try:
            scheduler.note(f"SABOTAGE {fate}")
            getattr(self, f"_{fate}")()
        finally:
            self.peer.gate = actor.steady = False

    def _empty_machine(self, actor: Actor) -> None:
        """All processes of this machine are dead while its disk is tampered with."""
        self.peer.gate = actor.steady = True
        while self.peer.running:
            for other in self.peer.actors:
                other.doomed |= other is not actor and not other.done
            self.world.scheduler.pause("waits for an empty machine")
        for other in self.peer.actors:
            other.doomed = False

    # -- what may befall a cache

    def _pending(self) -> list[Write]:
        """What this machine's users wrote and the bucket has never shown."""
        oracle = self.world.oracle
        events = (w for ws in oracle.writes.values() for w in ws)
        return [w for w in events if w.peer == self.peer.name and w.sha not in oracle.ever_live[w.path]]

    def _backup(self) -> None:
        place = self.world.place / f"backup-{self.peer.name}"
        shutil.rmtree(place, ignore_errors=True)
        if self.peer.cache.base.exists():
            shutil.copytree(self.peer.cache.base, place)
            known = {p: set(s) for p, s in self.peer.known.items()}
            self.peer.backup = Backup(place, self.world.scheduler.now, known, self._pending())

    def _restore(self) -> None:
        backup = self.peer.backup
        if backup is None:
            return
        self._lose(after=backup.at)
        shutil.rmtree(self.peer.cache.base, ignore_errors=True)
        shutil.copytree(backup.place, self.peer.cache.base)
        self.peer.known.clear()
        for path, seen in backup.known.items():
            self.peer.known[path] = set(seen)
        # What was unpushed then is unpushed again, whatever happened to it since: an edit beats a delete.
        for event in backup.pending:
            self.world.oracle.revived.add((event.path, event.sha))
            event.lost = True
        self._excuse()

    def _cache(self) -> None:
        self._lose()
        shutil.rmtree(self.peer.cache.base, ignore_errors=True)
        self.peer.known.clear()
        self._excuse()

    def _tree(self) -> None:
        self._lose(kept=True)
        for path, body in self.peer.tree():
            self.peer.known[path].add(sha_of(body))  # base still says so, and a new file there replaces it
        shutil.rmtree(self.peer.cache.tree, ignore_errors=True)
        self.peer.hollow = True

    def _part(self) -> None:
        """A part of the tree is removed by hand: what was shared comes back, whoever looks first. inv[tree.damage]"""
        unshared = {w.path for w in self._pending()}
        files = [path for path, _ in self.peer.tree() if path not in unshared]
        for path in files:
            if self.world.rng.random() < 0.5:
                self.world.scheduler.note(f"loses {path}")
                file = self.peer.cache.tree / path
                self.peer.known[path].add(sha_of(file.read_bytes()))
                self.world.lost.add(sha_of(file.read_bytes()))
                file.unlink()
                _later(file.parent)

    def _old_tree(self) -> None:
        """The tree of an earlier day is put back over today's state, file by file. inv[full.view]"""
        backup = self.peer.backup
        if backup is None:
            return
        for file in sorted((backup.place / "tree").rglob("*")):
            path = file.relative_to(backup.place / "tree").as_posix()
            target = self.peer.cache.tree / path
            if file.is_file() and not target.exists() and path not in {w.path for w in self._pending()}:
                self.world.scheduler.note(f"gets {path} of old")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file, target)
                self.world.lost.add(sha_of(file.read_bytes()))
                self.world.oracle.put_back.add((path, sha_of(file.read_bytes())))
        self.peer.hollow = True

    def _page(self) -> None:
        """One page of state.db is zeroed: it is set aside, and costs what losing it costs."""
        file = self.peer.cache.state_db
        size = file.stat().st_size if file.exists() else 0
        if size < 2 * PAGE:
            return
        with file.open("r+b") as opened:
            opened.seek(self.world.rng.randrange(size // PAGE) * PAGE)
            opened.write(b"\0" * PAGE)
        self._excuse()

    def _state(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            self.peer.cache.state_db.with_name(f"state.db{suffix}").unlink(missing_ok=True)
        self._excuse()

    def _lose(self, after: float = -1.0, *, kept: bool = False) -> None:
        """Unpushed work goes with the disk it was on; so does what had been moved aside there."""
        for event in self._pending():
            event.lost |= event.at > after
        self.world.lost |= {sha_of(body) for _, body in self.peer.tree()}
        if not kept:
            self.world.lost |= self.peer.kept()
