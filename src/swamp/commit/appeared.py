"""What an older client, or another tool, put under plain keys beside this index: found by a listing, adopted or left.

Nothing here is deleted, and nothing is adopted by guessing: a person names what is theirs (L76, L77).
"""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from swamp.cache.paths import TIER_DIRECTORIES, ancestors, fold, is_below, is_internal_object, is_safe
from swamp.commit.collect import unchanged
from swamp.commit.commit import Changes, Committer, Pace
from swamp.commit.log import Ages, names
from swamp.env import rfc3339
from swamp.errors import NotFound
from swamp.index.adopt import own_objects
from swamp.index.entry import Entry, Row, Unreferenced, is_payload_key, payload_key
from swamp.index.lookup import live_rows, lookup, winning_rows
from swamp.index.root import Root
from swamp.store.port import ObjectMeta, ObjectStore
from swamp.values import value

State = Literal["new", "changed", "deleted", "differs"]
"""new: no row knows it · changed: rewritten under the key that the index names · deleted: written again after its path
was deleted here · differs: written beside a newer upload of ours, which it would replace."""


@value
class Appeared:
    """A plain object that the index does not hold as it is now, and the row of its path when it was listed."""

    meta: ObjectMeta
    state: State
    row: Row | None

    @property
    def path(self) -> str:
        return self.meta.key

    def to_json(self) -> dict[str, Any]:
        at = rfc3339(self.meta.last_modified)
        return {"path": self.path, "size": self.meta.size, "lastModified": at, "state": self.state}


def appeared(committer: Committer, root: Root) -> list[Appeared]:
    """Plain objects below the tier directories that came or changed beside this index, by the store's clock."""
    ages = Ages.of(list(names(committer.store)), dt.datetime.max.replace(tzinfo=dt.UTC))
    found: list[Appeared] = []
    for tier in TIER_DIRECTORIES:
        metas = (m for m in own_objects(committer.store.list(f"{tier}/")) if _is_plain(m))
        rows = winning_rows(root, committer.fetch, tier)
        for meta, row in _side_by_side(metas, rows):
            state = _state(meta, row, ages)
            if state is not None and not _same_bytes(committer.store, meta, row):
                found.append(Appeared(meta, state, row))
    return found


def _is_plain(meta: ObjectMeta) -> bool:
    empty_directory = meta.key.endswith("/") and not meta.size
    return not (empty_directory or is_payload_key(meta.key) or is_internal_object(meta.key)) and is_safe(meta.key)


def _side_by_side(metas: Iterable[ObjectMeta], rows: Iterator[Row]) -> Iterator[tuple[ObjectMeta, Row | None]]:
    """Each object with the row of its path; both come in the same order."""
    row = next(rows, None)
    for meta in metas:
        while row is not None and row.path < meta.key:
            row = next(rows, None)
        yield meta, row if row is not None and row.path == meta.key else None


def _state(meta: ObjectMeta, row: Row | None, ages: Ages) -> State | None:
    if row is None:
        return "new"
    later = (at := ages.at(row.seq)) is not None and meta.last_modified > at
    if not isinstance(row, Entry):
        return "deleted" if later else None
    if row.key == meta.key:
        return "changed" if later or meta.size != row.size else None
    return "differs" if later else None


def _same_bytes(store: ObjectStore, meta: ObjectMeta, row: Row | None) -> bool:
    """Whether what was written later is what the index knows at this key: written again, but no other content."""
    if row is None or row.key != meta.key or row.sha256 is None:
        return False
    return unchanged(store, meta.key, frozenset({(row.size, row.sha256)})) is not None


def chosen(found: Sequence[Appeared], paths: Sequence[str]) -> list[Appeared]:
    """Those at or below `paths`; without any, all that replace nothing newer of ours. Raises NotFound."""
    for path in paths:
        if not any(is_below(one.path, path.rstrip("/")) for one in found):
            raise NotFound(
                f"{path} is not among the files that appeared beside the index",
                hint="`swamp datastore doctor --repair --leave` lists them and adopts none",
            )
    if not paths:
        return [one for one in found if one.state != "differs"]
    return [one for one in found if any(is_below(one.path, path.rstrip("/")) for path in paths)]


def adopt(committer: Committer, pace: Pace, wanted: Sequence[Appeared]) -> tuple[list[str], list[str]]:
    """Makes these files part of the index, in one commit: what was adopted, and what could not be, with the reason.

    A new path is indexed where it lies. One that the index knew is copied under a key of its own first: the key is a
    file's identity, and under the old one nobody would notice that its content is another. inv[object.key-once]
    """
    copies = {one.path: _copied(committer, pace, one) for one in wanted if one.row is not None}
    done: list[str] = []
    refused: list[str] = []

    def propose(root: Root) -> Changes | None:
        done.clear()
        clashes = _clashing(committer, root, wanted)
        refused[:] = sorted(clashes.values())
        rows = lookup(root, [one.path for one in wanted], committer.fetch)
        going = [one for one in wanted if rows.get(one.path) == one.row and one.path not in clashes]
        done.extend(one.path for one in going)
        puts = [
            copies.get(o.path) or Entry(o.path, o.path, o.meta.size, None, rfc3339(o.meta.last_modified)) for o in going
        ]
        dropped = [Unreferenced.of(one.row) for one in going if isinstance(one.row, Entry)]
        return Changes(puts=tuple(puts), dropped=tuple(dropped)) if puts else None

    if wanted:
        committer.commit(propose, pace)
    return done, refused


def _copied(committer: Committer, pace: Pace, one: Appeared) -> Entry:
    key = payload_key(one.path, committer.env.ulid())
    with tempfile.TemporaryDirectory(prefix="swamp-adopt-") as place:
        file = Path(place) / "content"
        with committer.store.open(one.path) as body, file.open("wb") as out:
            for chunk in body:
                pace()
                out.write(chunk)
        sent = committer.store.put_file(key, file)
    return Entry(one.path, key, sent.meta.size, sent.sha256, rfc3339(sent.meta.last_modified))


def _clashing(committer: Committer, root: Root, wanted: Sequence[Appeared]) -> dict[str, str]:
    """`path: reason`, by path, for names that cannot stand beside what is there: a directory of it, or equal but for
    case."""
    names_of = {fold(one.path): one.path for one in wanted}
    above = {fold(parent): one.path for one in wanted for parent in ancestors(one.path)}
    found: dict[str, str] = {}
    for row in live_rows(root, committer.fetch):
        folded = fold(row.path)
        same = names_of.get(folded)
        hits = [path for path in (same, above.get(folded)) if path is not None and path != row.path]
        hits += [names_of[f] for parent in ancestors(row.path) if (f := fold(parent)) in names_of]
        found |= {path: f"{path}: it cannot stand beside {row.path}" for path in hits}
    return found
