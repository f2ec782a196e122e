"""Puts that were kept while the store was away: delivered once, in their order, by whoever reaches the store next."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from swamp.cache.files import hash_file
from swamp.cache.outbox import Kept, Outbox
from swamp.env import rfc3339
from swamp.errors import LockTimeout, StoreError, SwampError, Unavailable
from swamp.values import mutable, value

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from swamp.data.names import DataName
    from swamp.data.versions import DataVersion
    from swamp.repo.repository import Repo

KEPT: Final = "kept here, not shared: delivered when the store answers"
STILL_WAITS: Final = "; what was kept before still waits"
AT_ONCE: Final = 64 << 20
"""What a read delivers before it shows anything: more than this waits for a command that writes, or a sync."""


@value
class Delivered:
    """What a delivery did: versions that are shared now, and what is left with the reason."""

    versions: list[DataVersion] = field(default_factory=list)
    left: list[tuple[Kept, SwampError]] = field(default_factory=list)


class AlreadyDelivered(Exception):
    """A kept put whose version was shared and is deleted by now: there is nothing left to deliver."""


@mutable
class Writing:
    """One put at work: which kept one it delivers, if any, and whether something may have been saved."""

    kept: Kept | None = None
    begun: bool = False

    def begin(self) -> None:
        if self.kept is not None:
            self.kept.begin()

    def noted(self, repo: Repo, version: DataVersion) -> DataVersion:
        """Which version it became, so that one that somebody deletes at once is not delivered again."""
        if self.kept is not None:
            metadata = version.ref.metadata_path
            self.kept.begin(f"{metadata} {hash_file(repo.tree.root / metadata)}")
        return version

    def made_before(self, repo: Repo, data: DataName) -> DataVersion | None:
        """The version that an earlier attempt made. Raises AlreadyDelivered if it was shared and deleted since."""
        if self.kept is None or not self.kept.has_begun:
            return None
        made = (repo.artifacts.read(data.at(number)) for number in repo.artifacts.numbers(data))
        found = next((version for version in made if version.meta.draft.write_id == self.kept.write_id), None)
        if found is None and self._is_buried(repo):
            raise AlreadyDelivered
        return found

    def _is_buried(self, repo: Repo) -> bool:
        """Whether the store says that the very metadata which was saved then is deleted now."""
        from swamp.index.entry import Tombstone
        from swamp.index.lookup import lookup

        assert self.kept is not None
        path, _, sha256 = self.kept.became.partition(" ")
        engine = repo.datastore.engine
        root = engine.committer.read().root if engine is not None and path else None
        if engine is None or root is None:
            return False
        row = lookup(root, [path], engine.committer.fetch).get(path)
        return isinstance(row, Tombstone) and row.sha256 == sha256


class Keeper:
    """The outbox of a repository's datastore, and the way out of it."""

    def __init__(self, repo: Repo) -> None:
        self._repo = repo
        self._busy = False

    @property
    def outbox(self) -> Outbox | None:
        """None for a plain directory, which is never away."""
        datastore = self._repo.datastore
        return Outbox(datastore.cache, self._repo.env) if datastore.synced else None

    def waiting(self) -> list[Kept]:
        return [] if self.outbox is None else self.outbox.entries()

    # -- in

    def keep(
        self, model: str, name: str, content: Path | bytes | BinaryIO, said: Mapping[str, Any], why: Unavailable
    ) -> Unavailable:
        """Keeps a put that could not begin; the error to raise says so. Raises what is wrong with it or the disk."""
        from swamp.data.lifetimes import Lifetime
        from swamp.data.names import check_model_name, check_name

        outbox = self.outbox
        assert outbox is not None
        check_model_name(model)
        check_name(name)
        if said.get("lifetime"):
            Lifetime.parse(str(said["lifetime"]))
        self._repo.datastore.cache.ensure()
        words = {"model": model, "name": name, **said, "keptAt": rfc3339(self._repo.env.clock.now())}
        kept = outbox.keep(words, content, self._repo.cancel.check)
        return Unavailable(
            f"{why.message}; {model}/{name} is {KEPT}",
            hint="`swamp datastore status` counts it; the next command that reaches the store delivers it",
            details={**why.details, "kept": {"modelName": model, "name": name, "size": kept.size}},
        )

    # -- out

    def deliver(self, *, wait: float = 5.0, at_most: int | None = None) -> Delivered:
        """Delivers what waits, oldest first. What cannot be delivered now stays, and so does what was put after it
        under the same name. Raises StoreError when the store is away again."""
        outbox, done = self.outbox, Delivered()
        if outbox is None or self._busy or not outbox.count():
            return done
        if at_most is not None and sum(kept.size for kept in outbox.entries()) > at_most:
            return done
        self._busy = True
        try:
            with outbox.delivering(wait):
                self._deliver_all(outbox, done)
        except LockTimeout:
            pass  # another process is at it
        finally:
            self._busy = False
        return done

    def _deliver_all(self, outbox: Outbox, done: Delivered) -> None:
        from swamp.repo.put import Putting
        from swamp.repo.transaction import NOTHING_KEPT

        stuck: set[tuple[str, str]] = set()
        for kept in outbox.entries():
            if (kept.model, kept.name) in stuck:
                continue
            try:
                version = Putting(self._repo).put_kept(kept)
            except StoreError as error:
                error.message = f"{error.message.removesuffix(NOTHING_KEPT)}{STILL_WAITS}"
                error.args = (error.message,)
                raise
            except SwampError as error:
                stuck.add((kept.model, kept.name))
                done.left.append((kept, error))
                self._repo.notify(
                    f"{kept.model}/{kept.name}, kept since {kept.said['keptAt']}, could not be delivered: "
                    f"{error.message}; it stays in {kept.place}"
                )
                continue
            outbox.drop(kept)
            if version is not None:
                done.versions.append(version)
                self._repo.notify(f"Delivered what was kept: {kept.model}/{kept.name} is version {version.version}")
