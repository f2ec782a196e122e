"""Writes data: a version is claimed, filled, described, and only then exists."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from swamp.cache.files import CHUNK, on_disk, place, remove_empty_parents, stage_file, sync_directory
from swamp.data.lifetimes import Doomed, Reclaimed, Times, abandoned, doomed, hidden
from swamp.data.metadata import Draft, Lifecycle, Metadata, encode, refuse_other_owner
from swamp.data.names import RAW, DataName, VersionRef
from swamp.data.parts import Content, Filler, Pace, Survey, measured, survey
from swamp.data.versions import DataVersion, Recorder, VersionReader, mark_latest, torn
from swamp.env import SYSTEM, Env, rfc3339
from swamp.errors import CorruptData, Failed, NotFound, UsageError
from swamp.sync.port import Tree
from swamp.sync.progress import Progress
from swamp.values import value

Given = bytes | Path | BinaryIO | Iterable[bytes]
"""Bytes, a file, a directory of parts, an open file, or chunks."""


@value
class ClaimedVersion:
    """A version that is being written: `raw` may be filled by anyone, it exists only once it is finalized."""

    ref: VersionRef
    raw: Path


@value
class Renamed:
    old: DataVersion
    new: DataVersion


class DataRepository(VersionReader):
    """The versioned artifacts of a tree. Every mutation is announced before its first byte. inv[journal.first]"""

    def __init__(
        self,
        tree: Tree,
        catalog: Recorder | None = None,
        env: Env = SYSTEM,
        progress: Progress | None = None,
        pace: Pace = lambda: None,
    ) -> None:
        super().__init__(tree)
        self._catalog = catalog
        self._env = env
        self._filler = Filler(tree.root, progress or Progress(), pace)

    # -- writing

    def save(self, data: DataName, draft: Draft, content: Given, *, above: int = 0) -> DataVersion:
        """A new version with this content, also if the bytes are those of the last one; its number is above `above`."""
        self._check_owner(data, draft)
        if isinstance(content, bytes):
            with self._claimed(data, above) as ref, self._undone_on_failure(ref):
                return self._publish(ref, draft, self._fill(ref, [content]))
        # Announcements stay short: a version without metadata may be filled outside of them. inv[journal.first]
        surveyed = self.surveyed(data, content)
        with self._claimed(data, above) as ref:
            pass
        with self._undone_on_failure(ref):
            filled = self._fill_any(ref, content, surveyed)
            with self._tree.announce([ref.path]):
                return self._publish(ref, draft, filled)

    def surveyed(self, data: DataName, content: object) -> Survey | None:
        """What a directory holds; raises for what cannot travel, before anything is saved. inv[parts.all-or-nothing]"""
        if not isinstance(content, Path) or not content.is_dir():
            return None
        return survey(content, data.at(self.highest_taken(data) + 1).raw_path)

    def save_again(self, lost: DataVersion, kept: Path) -> DataVersion:
        """The next version with the same content and draft, from the directory where a conflict kept the bytes."""
        # The winner holds the lost number, and until the next pull this cache does not know of it.
        return self.save(lost.ref.data, lost.meta.draft, kept / RAW, above=lost.version)

    def allocate_version(self, data: DataName, draft: Draft) -> ClaimedVersion:
        """A version number that is mine, to be filled through `ClaimedVersion.raw`."""
        self._check_owner(data, draft)
        with self._claimed(data) as ref:
            return ClaimedVersion(ref, self._tree.root / ref.raw_path)

    def finalize_version(
        self, claim: ClaimedVersion, draft: Draft, extra: Mapping[str, Any] | None = None
    ) -> DataVersion:
        """Makes a filled version exist. Its bytes do not change any more. `extra` are further keys of its metadata."""
        ref = claim.ref
        if not (self._tree.root / ref.path).is_dir():
            raise NotFound(f"version {ref.version} of {ref.data.name} was removed while it was written")
        if (self._tree.root / ref.metadata_path).exists():
            raise Failed(f"version {ref.version} of {ref.data.name} is finished: it cannot change")
        filled = self._measure(claim)
        with self._tree.announce([ref.path]):
            return self._publish(ref, draft, filled, extra)

    # -- removing

    def delete(self, data: DataName, version: int | None = None, *, confirmed: bool = False) -> int:
        """Removes one version or all of a name, for everybody; how many there were. Nothing there: nothing said."""
        numbers = self.numbers(data)
        if version is None:
            self.refuse_absent(data, max(numbers, default=0))  # it would come back with the next pull
        doomed_numbers = numbers if version is None else [n for n in numbers if n == version]
        if not doomed_numbers:
            return 0
        path = data.path if version is None else data.at(version).path
        with self._tree.announce([path], "delete", confirmed=confirmed):
            self._remove([data.at(number) for number in sorted(doomed_numbers, reverse=True)])
            if version is None:
                self._remove_directory(data.path)
        return len(doomed_numbers)

    def remove_latest_marker(self, data: DataName) -> DataVersion | None:
        """Soft delete: a version that says `deleted`. Older ones stay readable by number. None if nothing is there."""
        found = self.newest(data)
        if found is None or found.meta.lifecycle == "deleted":
            return None
        with self._claimed(data) as ref:
            return self._publish_tombstone(ref, found.meta.draft)

    def rename(self, data: DataName, new_name: str, *, unshared: bool = False) -> Renamed:
        """The latest version under a new name; the old name points to it and keeps its history.

        Again after a kill it is completed: what is already so is not refused. `unshared`: something of the old name has
        not reached the store yet, such as that rename."""
        latest = self.get(data)
        target = latest.ref.data.sibling(new_name)
        if begun := self._begun(data, target, latest, unshared):
            return begun
        there = self.newest(target)
        self.refuse_absent(target, there.version if there else 0)
        if target == latest.ref.data or (there is not None and there.meta.active):
            raise _taken(target)
        source = self.raw(latest)
        self.surveyed(target, source)
        for ref, marker in zip(self._next_refs(target), self._next_refs(latest.ref.data), strict=False):
            with self._tree.announce([ref.path, marker.path]):
                if not self._is_mine(ref):
                    continue
                if self._is_mine(marker):
                    return self._rename_into(latest, source, ref, marker)
                self._remove_directory(ref.path)
        raise AssertionError("unreachable")

    def _begun(self, data: DataName, target: DataName, latest: DataVersion, unshared: bool) -> Renamed | None:
        """The same rename that was made before, by one that may have died before its push; or the rest of it, if that
        died between the new name and the old one's pointer: equal bytes of equal description stand there. Somebody
        else may have put the same; then the old name points to theirs, and no bytes go either way."""
        old, new = self.newest(data), self.newest(target)
        if old is None or new is None or not new.meta.active:
            return None
        if old.meta.renamed_to == target.name:
            renamed = {version.meta.checksum for version in self.versions(data)[:1]}
            if renamed <= {version.meta.checksum for version in self.versions(target)}:
                return Renamed(old, new)
            if unshared:  # somebody else has the new name: a pointer to their bytes is not what was asked for
                self.delete(data, old.version, confirmed=True)
            raise _taken(target)
        same = new.meta.checksum == latest.meta.checksum and new.meta.draft == replace(latest.meta.draft, write_id=None)
        if target == latest.ref.data or not latest.meta.checksum or not same:
            return None
        for marker in self._next_refs(latest.ref.data):
            with self._tree.announce([marker.path]):
                if self._is_mine(marker):
                    with self._undone_on_failure(marker):
                        return Renamed(self._publish_tombstone(marker, latest.meta.draft, target.name), new)
        raise AssertionError("unreachable")

    def _rename_into(self, latest: DataVersion, source: Path, ref: VersionRef, marker: VersionRef) -> Renamed:
        with self._undone_on_failure(ref), self._undone_on_failure(marker):
            filled = self._fill_any(ref, source, self.surveyed(ref.data, source))
            if latest.meta.checksum and filled.checksum != latest.meta.checksum:
                raise torn(latest)  # a new name must not make other bytes of it
            new = self._publish(ref, replace(latest.meta.draft, write_id=None), filled)
            old = self._publish_tombstone(marker, latest.meta.draft, ref.data.name)
            return Renamed(old, new)

    def collect_garbage(
        self,
        *,
        dry_run: bool = False,
        run_over: Callable[[str], bool] = lambda run_id: False,
        confirmed: bool = False,
        times: Times | None = None,
        only: Collection[VersionRef] | None = None,
    ) -> Reclaimed:
        """Removes versions that their own retention or lifetime has given up. `run_over` knows finished runs."""
        ages = times or Times(self._env.clock.now())
        unknown = self.incomplete()  # the newest version decides for all

        def judge(data: DataName) -> list[Doomed]:
            if data in unknown:
                return []
            return doomed([self.read(data.at(number)) for number in self.numbers(data)], ages, run_over)

        return self._reclaim(self._judged(judge, dry_run), confirmed, only)

    def prune(
        self,
        *,
        dry_run: bool = False,
        confirmed: bool = False,
        times: Times | None = None,
        only: Collection[VersionRef] | None = None,
    ) -> Reclaimed:
        """Removes what nobody can see: soft-deleted names, dead forwards, and writes abandoned for a day."""
        now = times.now if times else self._env.clock.now()
        unknown = self.incomplete()

        def judge(data: DataName) -> list[Doomed]:
            gone = hidden(self, data, unknown)
            versions = [self.read(data.at(number)) for number in self.numbers(data)] if gone else []
            return [Doomed(version, "nobody can see it") for version in versions]

        judged = self._judged(judge, dry_run)
        left = [ref for data in self.names() for ref in abandoned(self._tree.root, data, now)]
        return self._reclaim(replace(judged, leftovers=tuple(left)), confirmed, only)

    def _judged(self, judge: Callable[[DataName], list[Doomed]], dry_run: bool) -> Reclaimed:
        """What `judge` gives up of each name; one that cannot be read is left alone and stops no other (L75)."""
        found: list[Doomed] = []
        unreadable: list[str] = []
        for data in list(self.names()):
            try:
                found += judge(data)
            except CorruptData as error:
                unreadable.append(error.message)
        return Reclaimed(tuple(found), (), dry_run, tuple(unreadable))

    def _reclaim(self, judged: Reclaimed, confirmed: bool, only: Collection[VersionRef] | None) -> Reclaimed:
        if only is not None:
            found = tuple(one for one in judged.found if one.version.ref in only)
            judged = replace(judged, found=found, leftovers=tuple(r for r in judged.leftovers if r in only))
        if judged.dry_run or not judged.refs:
            return judged
        with self._tree.announce([ref.path for ref in judged.refs], "delete", confirmed=confirmed):
            self._remove(sorted(judged.refs, reverse=True))
        return judged

    # -- the steps that mutations are made of; all run inside an announcement

    @contextmanager
    def _claimed(self, data: DataName, above: int = 0) -> Iterator[VersionRef]:
        """A number of my own, announced. One version is, not its name: a push looks at all that is announced, and a
        name may have thousands. inv[journal.first]"""
        for ref in self._next_refs(data, above):
            with self._tree.announce([ref.path]):
                if self._is_mine(ref):
                    yield ref
                    return

    def _next_refs(self, data: DataName, above: int = 0) -> Iterator[VersionRef]:
        number = max(self.highest_taken(data), above)
        while True:
            number += 1
            yield data.at(number)

    def _is_mine(self, ref: VersionRef) -> bool:
        """mkdir lets exactly one writer have it."""
        directory = self._tree.root / ref.path
        with on_disk("create", ref.path):
            while True:
                directory.parent.mkdir(parents=True, exist_ok=True)
                try:
                    directory.mkdir()
                    break
                except FileExistsError:
                    return False
                except FileNotFoundError:
                    continue  # another process has just removed the empty parent
            for parent in list(directory.parents)[: ref.path.count("/") + 1]:
                sync_directory(parent)
        return True

    def _fill_any(
        self, ref: VersionRef, content: Path | BinaryIO | Iterable[bytes], surveyed: Survey | None = None
    ) -> Content:
        if isinstance(content, Path) and surveyed is not None:
            return self._filler.fill(ref, content, surveyed)
        return self._fill(ref, _chunks(content))

    def _fill(self, ref: VersionRef, chunks: Iterable[bytes]) -> Content:
        staged = stage_file(self._tree.root / ref.path, chunks)
        place(staged, self._tree.root, ref.raw_path)
        return Content(staged.size, staged.sha256)

    def _measure(self, claim: ClaimedVersion) -> Content:
        """Size and checksum of what was written, and its bytes on disk for good."""
        if claim.raw.is_dir():
            return self._filler.measure(claim.ref)
        if not claim.raw.exists():
            return self._fill(claim.ref, [])
        found = measured(claim.raw, "")
        return Content(found.size, found.checksum)

    def _publish(
        self,
        ref: VersionRef,
        draft: Draft,
        filled: Content,
        extra: Mapping[str, Any] | None = None,
        lifecycle: Lifecycle = "active",
        renamed_to: str | None = None,
    ) -> DataVersion:
        """Metadata last: from here on the version exists. inv[unit.whole]"""
        meta = Metadata(
            id=self._env.uuid(),
            name=ref.data.name,
            version=ref.version,
            draft=draft,
            created_at=rfc3339(self._env.clock.now()),
            size=filled.size,
            checksum=filled.checksum,
            parts=filled.parts,
            lifecycle=lifecycle,
            renamed_to=renamed_to,
            extra=extra or {},
            manifest=filled.manifest,
        )
        place(stage_file(self._tree.root / ref.path, [encode(meta)]), self._tree.root, ref.metadata_path)
        mark_latest(self._tree.root, ref.data, max(self.numbers(ref.data)))
        version = DataVersion(ref, meta)
        if self._catalog is not None:
            self._catalog.record(version)
        return version

    def _publish_tombstone(self, ref: VersionRef, draft: Draft, renamed_to: str | None = None) -> DataVersion:
        bare = replace(draft, write_id=None, inputs=(), output_id=None)
        return self._publish(ref, bare, self._fill(ref, []), None, "renamed" if renamed_to else "deleted", renamed_to)

    def _remove(self, refs: list[VersionRef]) -> None:
        """Metadata first, newest first: what is left of a crash is a version that does not exist."""
        for ref in refs:
            (self._tree.root / ref.metadata_path).unlink(missing_ok=True)
            self._remove_directory(ref.path)
        for data in {ref.data for ref in refs}:
            mark_latest(self._tree.root, data, max(self.numbers(data), default=None))
        if self._catalog is not None:
            self._catalog.forget(refs)

    def _remove_directory(self, path: str) -> None:
        directory = self._tree.root / path
        with on_disk("delete", path):
            if directory.is_dir():
                shutil.rmtree(directory)
        remove_empty_parents(self._tree.root, path)

    @contextmanager
    def _undone_on_failure(self, ref: VersionRef) -> Iterator[None]:
        """What never got metadata leaves no directory behind."""
        try:
            yield
        except BaseException:
            if not (self._tree.root / ref.metadata_path).exists():
                shutil.rmtree(self._tree.root / ref.path, ignore_errors=True)
            raise

    def _check_owner(self, data: DataName, draft: Draft) -> None:
        newest = self.newest(data, readable=True)
        refuse_other_owner(data.name, newest.meta if newest else None, draft)


def _taken(target: DataName) -> UsageError:
    return UsageError(f"there is already data named {target.name}", hint="choose a name that is not taken")


def _chunks(content: Path | BinaryIO | Iterable[bytes]) -> Iterator[bytes]:
    if isinstance(content, Path):
        with on_disk("read", str(content)), content.open("rb") as file:
            yield from iter(lambda: file.read(CHUNK), b"")
    elif hasattr(content, "read"):
        yield from iter(lambda: content.read(CHUNK), b"")
    else:
        yield from content
