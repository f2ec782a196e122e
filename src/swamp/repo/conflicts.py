"""Conflicts: the store's side of a file is in its place, this machine's is kept aside until somebody chooses."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from swamp.cache.files import place, stage_file
from swamp.cache.layout import CacheDir
from swamp.cache.paths import resolve_inside
from swamp.data.metadata import decode
from swamp.data.names import METADATA, VersionRef, version_of_directory
from swamp.data.versions import DataVersion
from swamp.env import rfc3339
from swamp.errors import CorruptData, NotFound, UsageError
from swamp.sync.result import Conflict
from swamp.sync.units import unit_of
from swamp.values import value

if TYPE_CHECKING:
    from swamp.repo.repository import Repo

Keep = Literal["mine", "theirs", "both"]
_CHUNK = 1 << 20


@value
class KeptSide:
    """One side that lost: a file, or all files of a version."""

    id: str
    """`<op>/<path>`, its place below `conflicts/`."""
    path: str
    files: tuple[str, ...]
    size: int
    kept_at: str
    theirs: int | None
    """The size of what is in its place now, None if nothing is."""

    @property
    def is_version(self) -> bool:
        return version_of_directory(self.path) is not None

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "path": self.path,
            "size": self.size,
            "keptAt": self.kept_at,
            "theirsSize": self.theirs,
            "choices": ["mine", "theirs", *(["both"] if self.is_version else [])],
        }


@value
class Conflicts:
    """The conflicts of one repository's cache."""

    repo: Repo

    def list(self) -> Sequence[KeptSide]:
        """Everything that is kept aside, in the order of its id."""
        if not self.repo.datastore.synced:
            return []
        groups: dict[str, list[Path]] = {}
        for file in sorted(found for found in self.top.rglob("*") if found.is_file() and not found.is_symlink()):
            op, _, path = file.relative_to(self.top).as_posix().partition("/")
            if path:
                groups.setdefault(f"{op}/{unit_of(path)}", []).append(file)
        return [self._kept(identity, files) for identity, files in sorted(groups.items())]

    def _kept(self, identity: str, files: Sequence[Path]) -> KeptSide:
        path = identity.partition("/")[2]
        stats = [file.stat() for file in files]
        at = dt.datetime.fromtimestamp(max(s.st_mtime for s in stats), dt.UTC)
        names = tuple(file.relative_to(self.top).as_posix() for file in files)
        theirs = _size(resolve_inside(self.repo.tree.root, path))
        return KeptSide(identity, path, names, sum(s.st_size for s in stats), rfc3339(at), theirs)

    @property
    def top(self) -> Path:
        """Where the sides that lost are kept. Raises UsageError where there can be none."""
        engine = self.repo.datastore.engine
        if engine is None:
            raise UsageError("a plain directory has no conflicts")
        return engine.cache.conflicts

    def find(self, identity: str) -> KeptSide:
        for kept in self.list():
            if kept.id == identity:
                return kept
        raise NotFound(f"there is no conflict {identity}", hint="it may have been resolved meanwhile")

    def resolve(self, identity: str, keep: Keep) -> dict[str, Any]:
        """Keeps one side, or for a version both; shared when this returns. What is not wanted any more goes last."""
        kept = self.find(identity)
        document: dict[str, Any] = {"id": kept.id, "path": kept.path, "keep": keep}
        if keep != "theirs":
            document |= self._save_version(kept) if kept.is_version else self._put_back(kept, keep)
        for name in kept.files:  # inv[conflict.kept]: only after the choice is in the store
            (self.top / name).unlink(missing_ok=True)
        shutil.rmtree(self.top / kept.id, ignore_errors=True)
        return document

    def _save_version(self, kept: KeptSide) -> dict[str, Any]:
        ref = version_of_directory(kept.path)
        assert ref is not None
        with self.repo.changes.model("conflict resolve", ref.data.type, ref.data.model_id) as change:
            saved = save_again(self.repo, ref, self.top / kept.id)
        change.must_be_delivered()
        return {"version": saved.version}

    def _put_back(self, kept: KeptSide, keep: Keep) -> dict[str, Any]:
        if keep == "both":
            raise UsageError(f"{kept.path} is not a version: only one side can have its name", hint="mine or theirs")
        tree = self.repo.tree
        with self.repo.changes.records("conflict resolve", (kept.path,)) as change:
            for name in kept.files:
                path = name.partition("/")[2]
                target = resolve_inside(tree.root, path)
                with tree.announce([path]), (self.top / name).open("rb") as content:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    place(stage_file(target.parent, iter(lambda: content.read(_CHUNK), b"")), tree.root, path)
        change.must_be_delivered()
        return {}


LONGEST: Final = 256 << 10
"""Bytes of a file that are compared by lines; of a larger one only the sizes are told."""
MOST_FILES: Final = 20
MOST_ROWS: Final = 2_000
Row = dict[str, str | None]


def compare(conflicts: Conflicts, identity: str) -> dict[str, Any]:
    """What was changed here and what stands there now, file by file. Raises NotFound."""
    kept, files = conflicts.find(identity), []
    for name in kept.files[:MOST_FILES]:
        path = name.partition("/")[2]
        mine, theirs = conflicts.top / name, resolve_inside(conflicts.repo.tree.root, path)
        files.append({"name": path.removeprefix(f"{kept.path}/"), **_both_sides(mine, theirs)})
    return {**kept.to_json(), "files": files, "fileCount": len(kept.files)}


def _both_sides(mine: Path, theirs: Path) -> dict[str, Any]:
    """One file of a conflict, as it is on either side."""
    first, second = _text(mine), _text(theirs)
    rows = [] if first is None or second is None else list(beside(first.splitlines(), second.splitlines()))
    return {
        "mineSize": _size(mine),
        "theirsSize": _size(theirs),
        "text": first is not None and second is not None,
        "rows": rows[:MOST_ROWS],
        "truncated": len(rows) > MOST_ROWS,
    }


def beside(mine: Sequence[str], theirs: Sequence[str]) -> Iterator[Row]:
    """Lines that belong to each other, in pairs; None where the other side has no such line."""
    from difflib import SequenceMatcher

    matcher = SequenceMatcher(None, mine, theirs, autojunk=False)
    for word, a, b, c, d in matcher.get_opcodes():
        for row in range(max(b - a, d - c)):
            left = mine[a + row] if a + row < b else None
            right = theirs[c + row] if c + row < d else None
            change = "same" if word == "equal" else "mine" if right is None else "theirs" if left is None else "changed"
            yield {"change": change, "mine": left, "theirs": right}


def _size(there: Path) -> int | None:
    """Of a file, or of all below a directory; None where nothing is."""
    if there.is_dir():
        return sum(file.stat().st_size for file in there.rglob("*") if file.is_file())
    return there.stat().st_size if there.is_file() else None


def _text(file: Path) -> str | None:
    """The text of a file, "" of one that is not there; None of one that is none, or too large to compare."""
    if not file.is_file():
        return ""
    if file.stat().st_size > LONGEST:
        return None
    try:
        found = file.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return None
    return None if "\x00" in found else found


def moved_aside(cache: CacheDir, made: Mapping[str, str]) -> list[Conflict]:
    """One conflict for each version of `made` (path to id) whose place in the tree holds another, or nothing."""
    return [
        Conflict(f"{path}/{METADATA}", _kept_at(cache, path, id_))
        for path, id_ in made.items()
        if _id_at(cache.tree / path) != id_
    ]


def _kept_at(cache: CacheDir, path: str, id_: str) -> str:
    """Where the loser's bytes are, below the cache; the conflicts directory itself if nobody can say."""
    for directory in sorted((p for p in cache.conflicts.iterdir() if p.is_dir()), reverse=True):  # named by ULIDs
        if _id_at(directory / path) == id_:
            return f"{cache.conflicts.name}/{directory.name}/{path}/{METADATA}"
    return cache.conflicts.name


def _id_at(version: Path) -> str | None:
    try:
        return decode((version / METADATA).read_bytes(), METADATA).id
    except (OSError, CorruptData):
        return None


# -- a version that lost its number to another machine


def kept_version(cache: CacheDir, ref: VersionRef, conflicts: Sequence[Conflict]) -> Path | None:
    """The directory where a push keeps the bytes of a version that lost its number; None if it did not lose it."""
    for conflict in conflicts:
        if conflict.path.startswith(f"{ref.path}/") and ref.path in conflict.kept:
            above, _, _ = conflict.kept.partition(f"{ref.path}/")
            return cache.base / above / ref.path
    return None


def save_again(repo: Repo, ref: VersionRef, kept: Path) -> DataVersion:
    """Saves the bytes that a conflict keeps as the next version. Versions are never replaced: the winner stays."""
    lost = DataVersion(ref, decode((kept / METADATA).read_bytes(), f"{ref.path}/{METADATA}"))
    return repo.artifacts.save_again(lost, kept)
