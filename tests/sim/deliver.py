"""A user whose puts are kept while the store is away, and who delivers them later: each becomes one version."""

from __future__ import annotations

import json

from sim.mutate import TYPE_AND_MODEL, Author
from sim.oracle import version_of
from sim.world import World
from swamp.cache.outbox import Kept, Outbox
from swamp.errors import LockTimeout
from swamp.sync.result import SyncResult


class Courier(Author):
    """Keeps and delivers, with the real outbox and the real engine."""

    def told(self, result: SyncResult) -> None:
        raise NotImplementedError

    @property
    def outbox(self) -> Outbox:
        return Outbox(self.peer.cache, self.peer.env)

    def do_keep(self) -> None:
        said = {"model": "m", "name": self.rng.choice(self.world.mix.names), "keptAt": ""}
        kept = self.outbox.keep(said, self.world.content(), lambda: None)
        self.world.kept.add(kept.write_id)
        self.scheduler.note(f"keeps {kept.write_id}")

    def do_deliver(self) -> None:
        try:
            with self.outbox.delivering(0.0):
                for kept in self.outbox.entries():
                    self.deliver(kept)
        except LockTimeout:
            self.scheduler.note("another process delivers")

    def deliver(self, kept: Kept) -> None:
        """As `Putting.deliver` does: pull, look for it, save it if it is not there, push, then let go of it."""
        with self.alone_at(TYPE_AND_MODEL) as mine:
            if not mine:
                return
            self.told(self.engine.pull((TYPE_AND_MODEL,)))
            unit = self.made(kept) if kept.has_begun else None
            if unit is not None:
                with self.engine.announce([unit], "write"):
                    pass
            else:
                kept.begin()
                self.scheduler.pause(f"kept put {kept.write_id} begun")
                unit = self.announce_version(f"{TYPE_AND_MODEL}/{kept.name}", ("raw",), kept.write_id)
        result = self.engine.push()
        self.told(result)
        self.scheduler.pause(f"kept put {kept.write_id} pushed")
        behind = [f.path for f in result.failed] + [c.path for c in result.conflicts]
        # Not in the way of this push is not yet shared: another process may have moved it aside as the loser.
        if self.made(kept) == unit and not any(version_of(path) == unit for path in behind):
            self.outbox.drop(kept)

    def made(self, kept: Kept) -> str | None:
        """The version that carries its `writeId`, if there is one."""
        for path, body in self.peer.tree():
            if path.endswith("/metadata.yaml") and write_id(body) == kept.write_id:
                return version_of(path)
        return None


def write_id(body: bytes) -> str | None:
    try:
        return str(json.loads(body).get("writeId"))
    except ValueError:
        return None  # half of it was written when its author died


def check_delivered(world: World, tree: dict[str, bytes]) -> None:
    """Whoever comes new finds each kept put once."""
    there = [write_id(body) for path, body in tree.items() if path.endswith("/metadata.yaml")]
    for kept in sorted(world.kept):
        if there.count(kept) != 1:
            world.fail("outbox.once", f"the kept put {kept} is there {there.count(kept)} times")
