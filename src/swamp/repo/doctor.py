"""Examines everything that a datastore rests on, says what is wrong and what puts it right, and repairs it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from swamp.cache.state import StateRebuilt
from swamp.commit.log import names, refuse_later_formats
from swamp.errors import (
    AccessDenied,
    CorruptData,
    Failed,
    MissingTool,
    NewerFormat,
    ObjectMissing,
    StoreError,
    SwampError,
)
from swamp.index.read import read_root
from swamp.index.root import IGNORED, ROOT_KEY, Root, UnreadFormat
from swamp.repo.repair import change_word
from swamp.repo.status import Weighed, weigh
from swamp.sync.bulk import Work
from swamp.sync.unchanged import forget, has_seen_later_format, refuse_put_back
from swamp.values import value

if TYPE_CHECKING:
    from swamp.catalog.catalog import Catalog, Parse
    from swamp.repo.repository import Repo

REPAIR = "swamp datastore doctor --repair"
UPGRADE = "upgrade swamp on this machine"
LOST = "put the store back; if it is lost, `swamp datastore sync` makes it again from what is here"


@value
class Checkup:
    name: str
    ok: bool
    detail: str
    fix: str | None = None

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {"name": self.name, "ok": self.ok, "detail": self.detail}
        return {**document, "fix": self.fix} if self.fix else document


def _told(name: str, look: Callable[[], Checkup], fix: str | None = None) -> Checkup:
    """What fails in the middle of an examination is a finding, not the end of it."""
    try:
        return look()
    except SwampError as error:
        return Checkup(name, False, error.message, error.hint or fix)


class Doctor:
    """Looks at everything a datastore rests on; each check says what it saw."""

    def __init__(self, repo: Repo) -> None:
        self._repo = repo
        self._datastore = repo.datastore
        self._root: Root | None = None
        self._damage: CorruptData | None = None
        self.packs: Weighed | None = None
        """What the last examination saw of packs; None where it did not come to them."""

    def examine(self) -> list[Checkup]:
        where = self._remote() if self._datastore.synced else [self._directory()]
        return [self._java(), *where, _told("catalog", self._catalog, REPAIR)]

    # -- this machine

    def _java(self) -> Checkup:
        from swamp.bulk.settings import find_java

        try:
            java = find_java(os.environ)
        except MissingTool as error:
            needed = self._repo.settings.engine == "spark"
            return Checkup("java", not needed, f"{error.message}; only Spark needs it", error.hint)
        return Checkup("java", True, f"Java {java.major} at {java.path}")

    def _directory(self) -> Checkup:
        root = self._datastore.directory
        if root.exists() and not os.access(root, os.W_OK):
            return Checkup("directory", False, f"{root} cannot be written", "correct its permissions")
        return Checkup("directory", True, f"{root}, a plain directory without sync")

    def _catalog(self) -> Checkup:
        damaged = self._repo.catalog.damaged()
        if damaged:
            detail = f"{len(damaged)} unreadable metadata files, first {damaged[0][0]}: {damaged[0][1]}"
            return Checkup("catalog", False, detail, "swamp datastore verify --repair")
        return Checkup("catalog", True, "agrees with the tree")

    # -- the store

    def _remote(self) -> Iterator[Checkup]:
        try:
            _ = self._datastore.store
        except StoreError as error:
            yield Checkup("credentials", False, error.message, error.hint)
            return
        reached = self._reach()
        yield from reached
        try:
            _ = self._datastore.engine
        except StateRebuilt:
            raise
        except Failed as error:  # one finding: everything below would only say it again
            yield Checkup("state", False, error.message, error.hint)
            return
        yield _told("state", self._state, REPAIR)
        yield _told("tree", self._tree, REPAIR)
        if any(not check.ok for check in reached):
            return
        yield from self._probe()
        index = [_told("root", self._root_check), _told("old client", self._old_client)]
        index.append(_told("segments", self._segments))
        yield from index
        if self._root is not None and all(check.ok for check in index):
            yield _told("packs", self._packs)

    def _reach(self) -> list[Checkup]:
        """By reading: the answer to a HEAD has no body, so a refusal would not say why."""
        url = self._datastore.url
        try:
            self._datastore.must_be_there()  # looking must not make what is away: it would pass for an empty store
            self._datastore.store.get(ROOT_KEY)
        except ObjectMissing:
            pass
        except AccessDenied as error:
            return [Checkup("credentials", False, error.message, error.hint)]
        except StoreError as error:
            return [
                Checkup("credentials", True, "not refused, as far as can be told"),
                Checkup("reachability", False, error.message, error.hint),
            ]
        return [Checkup("credentials", True, "accepted"), Checkup("reachability", True, f"{url} answers")]

    def _probe(self) -> Iterator[Checkup]:
        from swamp.repo.ask import measure, word_of

        try:
            seen = measure(self._datastore, self._datastore.must_sync().state)
        except StateRebuilt:
            raise
        except (StoreError, Failed) as error:  # the answer could not be had, or not be recorded here
            yield Checkup("probe", False, error.message, error.hint)
            return
        for finding in seen.findings:
            if finding.name == "clock":
                yield Checkup("clock", finding.kept, finding.text, None if finding.kept else "set this machine's clock")
        try:
            word = word_of(self._datastore.store)
        except SwampError:
            word = None  # the check of the root tells it
        if word is not None and seen.capabilities.safe == (word == IGNORED):
            measured = "enforces" if seen.capabilities.safe else "ignores"
            yield Checkup("probe", False, f"this store {measured} conditional writes, its index says: {word}", REPAIR)
            return
        broken = [f.text for f in seen.findings if not f.kept and f.name != "clock"]
        if seen.capabilities.safe:
            yield Checkup("probe", True, "; ".join(broken) or "conditional writes are enforced")
            return
        fix = "let only one machine write at a time, or use a store that enforces conditional writes"
        yield Checkup("probe", False, "; ".join(broken), fix)

    def _root_check(self) -> Checkup:
        store, state = self._datastore.store, self._datastore.must_sync().state
        self._damage = None
        try:
            self._root, _ = read_root(store)
            refuse_later_formats(store, self._root)
            refuse_put_back(state, self._root)
        except ObjectMissing:
            return self._no_root()
        except CorruptData as error:
            self._damage = error
            return Checkup("root", False, error.message, REPAIR)
        except NewerFormat as error:
            return Checkup("root", False, error.message, UPGRADE)
        newest = self._newest_recorded()
        if newest > self._root.seq:
            return Checkup("root", False, f"it is at {self._root.seq}, the log reaches {newest}: rolled back", REPAIR)
        pulled = int(state.meta("pulledSeq") or 0)
        if state.meta("storeId") == self._root.store_id and pulled > self._root.seq:
            detail = f"it is at {self._root.seq}, this cache has seen {pulled}: restored from a backup?"
            return Checkup("root", False, detail, REPAIR)
        return Checkup("root", True, f"commit {self._root.seq}, {len(self._root.segments)} segments")

    def _old_client(self) -> Checkup:
        """An index of version 2 beside ours that moves: somebody goes on writing what ours does not know (L76)."""
        from swamp.commit.bootstrap import ADOPTED, OLD_CLIENT, old_client_wrote

        if self._root is not None and old_client_wrote(self._datastore.store, self._root):
            return Checkup("old client", False, OLD_CLIENT, f"{REPAIR}, and upgrade that client")
        adopted = self._root is not None and ADOPTED in self._root.extra
        return Checkup(
            "old client", True, "none has written since its index was adopted" if adopted else "no trace of one"
        )

    def _no_root(self) -> Checkup:
        if self._newest_recorded():
            return Checkup("root", False, "it is missing, but the log has records of it", REPAIR)
        from swamp.commit.bootstrap import tier_pages
        from swamp.index.entry import is_payload_key

        for page in tier_pages(self._datastore.store):
            if any(is_payload_key(meta.key) for meta in page):
                return Checkup("root", False, "it is missing and so is its log", f"{REPAIR} --from-listing")
        seen = int(self._datastore.must_sync().state.meta("pulledSeq") or 0)
        if seen:
            detail = f"the store is empty, and this cache has seen commit {seen}: another store, or one that was lost"
            return Checkup("root", False, detail, LOST)
        return Checkup("root", True, "none yet: the first sync makes one")

    def _newest_recorded(self) -> int:
        return max((name.seq for name in names(self._datastore.store)), default=0)

    def _segments(self) -> Checkup:
        missing = []
        for ref in self._root.segments if self._root else ():
            try:
                self._datastore.store.head(ref.key)
            except ObjectMissing:
                missing.append(ref.key)
        if missing:
            return Checkup("segments", False, f"{len(missing)} are missing, first {missing[0]}", REPAIR)
        return Checkup("segments", True, f"{len(self._root.segments) if self._root else 0} present")

    def _packs(self) -> Checkup:
        """How many, what lives and what is dead in them; and whether all are there that files lie in."""
        store = self._datastore.store
        try:
            root = read_root(store)[0]
            seen = self.packs = weigh(store, root, self._datastore.must_sync().committer.fetch)
            still = not seen.missing or read_root(store)[0].op == root.op
        except CorruptData as error:
            return Checkup("packs", False, error.message, REPAIR)
        if seen.missing and still:  # else a collector went by while we looked
            detail = f"{len(seen.missing)} that files lie in are missing, first {seen.missing[0]}"
            return Checkup("packs", False, detail, f"{REPAIR} looks for them in other packs, then: verify --repair")
        return Checkup("packs", True, f"{seen.count}: {seen.live:,} bytes live, {seen.dead:,} bytes dead")

    def _state(self) -> Checkup:
        """What is here, whether or not the store answers."""
        engine = self._datastore.engine
        assert engine is not None  # only a synced datastore has one
        status = engine.status()
        aside = self._datastore.cache.state_db.with_name("state.db.damaged")
        if aside.exists() and engine.state.meta("pulledOp") is None:
            detail = f"it was damaged, is set aside as {aside} and was begun again"
            return Checkup("state", False, detail, "swamp datastore sync compares everything")
        damaged = engine.state.faults()
        if damaged:
            return Checkup("state", False, f"state.db is damaged: {damaged[0]}", REPAIR)
        pending = status.pending
        owed = pending.writes + pending.deletes + pending.found
        return Checkup("state", True, f"{status.files} files, {owed} pending, {status.conflicts} kept from conflicts")

    def _tree(self) -> Checkup:
        """Whether everything that this cache was proven to hold is still there, and what it could not get. S20, S23"""
        engine = self._datastore.engine
        assert engine is not None
        gone, owed = engine.mender.missing(), engine.deferred("")
        fix = "swamp datastore sync brings them back"
        if gone:
            return Checkup("tree", False, f"{len(gone)} files were here and are gone, first {gone[0]}", fix)
        if owed:
            detail = f"{len(owed)} files could not be brought here, first {owed[0].path}: {owed[0].why}"
            return Checkup("tree", False, detail, "swamp datastore sync tries again")
        return Checkup("tree", True, "everything that belongs here is here")

    # -- repair

    def repair(self, *, from_listing: bool = False, agree: Callable[[str], None] = lambda _: None) -> list[str]:
        """Puts right what can be: root from the log or a listing, this cache's state, the catalog. What was done."""
        done: list[str] = []
        if self._datastore.synced:
            self._datastore.must_be_there()
            done += self._repair_root(from_listing, agree)
            done += change_word(self._datastore, agree)
            done += self._repair_binding()
        return [*done, *self._repair_catalog()]

    def _repair_catalog(self) -> list[str]:
        """Always made again, because it may be wrong without a sign; told only where that changed something."""
        catalog = self._repo.catalog
        try:
            before = None if catalog.damaged() else _rows_of(catalog)
        except SwampError:
            before = None
        catalog.rebuild(self._parser())
        return [] if before == _rows_of(catalog) else ["the catalog was rebuilt"]

    def _parser(self) -> Parse | None:
        """Much metadata is parsed in bulk, on Spark where that pays."""
        if not self._datastore.synced:
            return None
        from swamp.data.versions import read_many

        return partial(read_many, self._datastore.chooser, self._datastore.tree, self._datastore.idle_timeout())

    def _repair_root(self, from_listing: bool, agree: Callable[[str], None]) -> list[str]:
        from swamp.commit.bootstrap import repair

        committer = self._datastore.must_sync().committer
        pace = self._repo.datastore.context.cancel.check
        if from_listing:
            return [f"a root of {self._relisted(agree)} files was published from a listing"]
        root = self._root_check()
        if root.fix == LOST or (root.ok and self._segments().ok and self._old_client().ok):
            return self._placed_again()  # a repair of what is whole would only add a commit
        done = list(repair(committer, pace).warnings)
        if self._root_check().ok and not self._old_client().ok:  # the root came back; what stands beside it has moved
            done += repair(committer, pace).warnings
        return done + self._placed_again()

    def _placed_again(self) -> list[str]:
        """Files whose pack is gone are looked for in the others: an older record does not know what was moved since."""
        from swamp.commit.build import REBUILT_FROM
        from swamp.commit.restore import forget_rebuild, place_again

        if self._root_check().fix or self._root is None:
            return []  # no root yet: nothing was ever packed
        committer, pace = self._datastore.must_sync().committer, self._datastore.context.cancel.check
        # After a rebuild deleted ones, too, before gc may take the pack that they were moved to. inv[rebuild.keeps]
        rebuilt = bool(self._root.extra.get(REBUILT_FROM))
        placed = place_again(committer, pace) if rebuilt or not self._packs().ok else 0
        done = [f"{placed} files were found again in other packs"] if placed else []
        if rebuilt and forget_rebuild(committer, pace):
            done.append("every file has its object again: gc no longer spares what came after the older index")
        return done

    def overwritten(self) -> bool:
        """Whether an older client has left traces that a repair takes away: a root of its own, or a moved index."""
        if not self._datastore.synced:
            return False
        self._root_check()
        if isinstance(self._damage, UnreadFormat):
            return True
        return self._root is not None and not self._old_client().ok

    def _relisted(self, agree: Callable[[str], None]) -> int:
        """Publishes what a listing proposes, once somebody has agreed; how many files. On Spark where it is at hand."""
        from swamp.repo.repair import propose_from_listing, publish_proposal, publish_segments, refuse_whole

        committer, pace = self._datastore.must_sync().committer, self._datastore.context.cancel.check
        question = "Publish an index of {} files, the newest upload of each path?"
        executor = self._datastore.chooser.on_spark(Work("discover", 0, 0))
        if executor is None:
            proposal = propose_from_listing(committer)
            agree(question.format(len(proposal)))
            publish_proposal(committer, pace, proposal)
            return len(proposal)
        refuse_whole(committer)
        with executor.on_store(committer, self._datastore.idle_timeout()).proposal() as (files, write):
            agree(question.format(files))
            publish_segments(committer, pace, write)
        return int(files)

    def _repair_binding(self) -> list[str]:
        """A root older than what this cache has seen, and no record of a newer one: compare everything anew. L53"""
        state, root = self._datastore.must_sync().state, self._datastore.must_sync().committer.read().root
        pulled = int(state.meta("pulledSeq") or 0)
        if root is None or state.meta("storeId") != root.store_id:
            return []
        if pulled <= root.seq and not has_seen_later_format(state, root):
            return []
        with state.transaction() as tx:
            forget(tx)
            tx.set_meta("pulledOp", None)
            tx.set_meta("pulledSeq", None)
        return [f"this cache was ahead of the store (it had seen commit {pulled}): the next sync compares everything"]


def _rows_of(catalog: Catalog) -> set[tuple[str, str, str, bool]]:
    rows = catalog.select("1")
    return {(row.ref.path, str(row.fields["id"]), row.checksum, bool(row.fields["isLatest"])) for row in rows}
