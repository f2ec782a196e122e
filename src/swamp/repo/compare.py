"""Both sides of a conflict beside each other: the lines of the one that was kept aside, and of the one in its place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, Final

from swamp.cache.paths import resolve_inside
from swamp.repo.conflicts import Conflicts

LONGEST: Final = 256 << 10
"""Bytes of a file that are compared by lines; of a larger one only the sizes are told."""
MOST_FILES: Final = 20
MOST_ROWS: Final = 2_000
Row = dict[str, str | None]


@dataclass(frozen=True)
class BothSides:
    """One file of a conflict, as it is on either side."""

    name: str
    mine: Path
    theirs: Path

    def to_json(self) -> dict[str, Any]:
        first, second = _text(self.mine), _text(self.theirs)
        rows = [] if first is None or second is None else list(beside(first.splitlines(), second.splitlines()))
        return {
            "name": self.name,
            "mineSize": _size(self.mine),
            "theirsSize": _size(self.theirs),
            "text": first is not None and second is not None,
            "rows": rows[:MOST_ROWS],
            "truncated": len(rows) > MOST_ROWS,
        }


def compare(conflicts: Conflicts, identity: str) -> dict[str, Any]:
    """What was changed here and what stands there now, file by file. Raises NotFound."""
    kept = conflicts.find(identity)
    top, tree = conflicts.top, conflicts.repo.tree.root
    pairs = [
        BothSides(path.removeprefix(f"{kept.path}/"), top / name, resolve_inside(tree, path))
        for name in kept.files
        for path in (name.partition("/")[2],)
    ]
    document = kept.to_json()
    return {**document, "files": [pair.to_json() for pair in pairs[:MOST_FILES]], "fileCount": len(pairs)}


def beside(mine: Sequence[str], theirs: Sequence[str]) -> Iterator[Row]:
    """Lines that belong to each other, in pairs; None where the other side has no such line."""
    matcher = SequenceMatcher(None, mine, theirs, autojunk=False)
    for word, a, b, c, d in matcher.get_opcodes():
        for place in range(max(b - a, d - c)):
            left = mine[a + place] if a + place < b else None
            right = theirs[c + place] if c + place < d else None
            change = "same" if word == "equal" else "mine" if right is None else "theirs" if left is None else "changed"
            yield {"change": change, "mine": left, "theirs": right}


def _size(file: Path) -> int | None:
    return file.stat().st_size if file.is_file() else None


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
