"""Following commits: each root sequence is an offset, and a version is new when its metadata first appears.

What a batch holds is computed from the recorded roots at its two ends, never from the newest one: the same two offsets
give the same rows after a restart, whatever has happened since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, TypeVar

from swamp.bulk.spread import opened
from swamp.commit.log import log_key, names
from swamp.data.names import VersionRef, described_by, version_of
from swamp.datasets.place import Bucket, FileRef
from swamp.errors import CorruptData, ObjectMissing
from swamp.index.entry import Entry
from swamp.index.lookup import lookup, rows_since
from swamp.index.root import EVERYTHING, Root, Span, decode

Offset = dict[str, Any]
BEGINNING: Final[Offset] = {"seq": 0, "op": ""}
VERSIONS_PER_TASK: Final = 500
LOOKED_UP: Final = 2_000
T = TypeVar("T")


def offset_of(root: Root) -> Offset:
    return {"seq": root.seq, "op": root.op}


def root_at(bucket: Bucket, offset: Offset) -> Root | None:
    """The root of that commit: the newest one, or its log record. None for the beginning."""
    if not offset["seq"]:
        return None
    if bucket.root.seq == offset["seq"] and bucket.root.op == offset["op"]:
        return bucket.root
    try:
        return decode(opened(bucket.spec).get(log_key(offset["seq"], offset["op"])).body)
    except ObjectMissing as error:
        raise CorruptData(
            f"the record of commit {offset['seq']} is gone, so this stream cannot tell what is new since then",
            hint="start the stream with a new checkpoint; log records younger than 30 days are kept",
        ) from error


@dataclass(frozen=True)
class NewVersion:
    """A version that appeared between two offsets, with the file that describes it."""

    ref: VersionRef
    metadata: FileRef


@dataclass(frozen=True)
class StreamStep:
    """What became new between two roots, in a part of their paths: what a task looks through."""

    after: Bucket
    before: Root | None
    since: int
    span: Span = EVERYTHING

    def versions(self, wanted: Callable[[VersionRef], bool] = lambda ref: True) -> Iterator[NewVersion]:
        """Versions that exist after and were never known before: heals, undeletes and learned hashes are not new."""
        named = ((version_of(row.path), row) for row in self._rows())
        chosen = ((ref, row) for ref, row in named if ref is not None and wanted(ref))
        for page in pages(chosen, LOOKED_UP):
            # Known includes deleted: a tombstone says that the version has been seen.
            paths = [row.path for _, row in page]
            known = lookup(self.before, paths, self.after.fetch) if self.before is not None else {}
            for ref, row in page:
                if row.path not in known:
                    yield NewVersion(ref, FileRef(row.path, row.key, row.size, row.sha256))

    def stop_after(self, most: int, wanted: Callable[[VersionRef], bool]) -> str | None:
        """Where the part with the first `most` new versions ends; None if that is all of them."""
        some = list(islice(self.versions(wanted), most + 1))
        return some[most].metadata.path if len(some) > most else None

    def numbers(self, wanted: Callable[[VersionRef], bool]) -> Iterator[int]:
        """The commit that brought each new version, as far as its row tells."""
        named = ((version_of(row.path), row) for row in self._rows())
        return (row.seq for ref, row in named if ref is not None and wanted(ref))

    def parts(self, length: int) -> Iterator[StreamStep]:
        """The same in parts of about `length` versions each; one of them is in memory at a time, not all versions."""
        start = self.span.start
        for page in pages(self._rows(), length):
            # The next part begins behind the last path of this one: what lies between are no versions.
            stop = page[-1].path + "\0"
            yield self._within(Span(start, stop if self.span.stop is None else min(stop, self.span.stop)))
            start = stop

    def _within(self, span: Span) -> StreamStep:
        """With only what this part of the roots needs: what a task carries."""
        before = None if self.before is None else replace(self.after, root=self.before).within("data", span).root
        return replace(self, after=self.after.within("data", span), before=before, span=span)

    def _rows(self) -> Iterator[Entry]:
        for row in rows_since(self.after.root, self.since, self.after.fetch, self.span):
            if isinstance(row, Entry) and described_by(row.path) is not None:
                yield row


def finished(bucket: Bucket, start: Offset) -> Offset:
    """The newest offset; the end of a step that was read in parts, if `start` lies within one."""
    return {"seq": start["seq"], "op": start["op"]} if "path" in start else offset_of(bucket.root)


def admitted(bucket: Bucket, start: Offset, most: int, wanted: Callable[[VersionRef], bool]) -> Offset:
    """The offset up to which about `most` versions are new: whole commits in their order, and a commit that brings
    more than that in parts, by paths. inv[stream.once]"""
    end = finished(bucket, start) if "path" in start else _whole_commits(bucket, start, most, wanted)
    step = step_between(bucket, start, end)
    stop = None if step is None else step.stop_after(most, wanted)
    if stop is None:
        return end
    return {**end, "path": stop, "from": start.get("from") or {"seq": start["seq"], "op": start["op"]}}


def _whole_commits(bucket: Bucket, start: Offset, most: int, wanted: Callable[[VersionRef], bool]) -> Offset:
    """The last recorded commit before which at most so many versions are new, or the first one that there is."""
    newest = offset_of(bucket.root)
    step = step_between(bucket, start, newest)
    if step is None:
        return newest
    new: dict[int, int] = {}
    for seq in step.numbers(wanted):
        new[seq] = new.get(seq, 0) + 1
    if sum(new.values()) <= most:
        return newest
    recorded = names(opened(bucket.spec), after_seq=start["seq"])
    ends: list[Offset] = [{"seq": name.seq, "op": name.op} for name in recorded if name.seq < newest["seq"]]
    fitting = [end for end in ends if sum(n for seq, n in new.items() if seq <= end["seq"]) <= most]
    holding = [end for end in fitting if any(seq <= end["seq"] for seq in new)]
    return (holding or [end for end in ends if end not in fitting][:1] or [newest])[-1]


def step_between(bucket: Bucket, start: Offset, end: Offset) -> StreamStep | None:
    """From one offset to another; None when there is nothing at the end of it.

    An offset with a `path` lies within the step that began at its `from`: everything before that path has been read.
    """
    after = root_at(bucket, end)
    if after is None:
        return None
    begun: Offset = start.get("from") or start
    span = Span(start.get("path", ""), end.get("path"))
    return StreamStep(replace(bucket, root=after), root_at(bucket, begun), begun["seq"], span)


def pages(items: Iterable[T], length: int) -> Iterator[list[T]]:
    source = iter(items)
    while page := list(islice(source, length)):
        yield page
