"""Numbers in the index: who gives a row its sequence number, and what a compaction may leave out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from typing import NamedTuple

import pytest
from exploring import Explored, Steps, explore, harmful, safe


class Index(NamedTuple):
    """A bulk writer stages a segment, another commits, a reader pulls what is newer than it has seen."""

    seq: int = 10
    listed: int | None = None  # number the reader sees on the bulk writer's segment
    planned: int | None = None
    other: bool = False
    reader: int = 10
    has_segment: bool = False


def numbering(*, at_swap: bool) -> Explored:
    def steps(s: Index) -> Steps[Index]:
        if s.planned is None:
            yield f"bulk stages for {s.seq + 1}", s._replace(planned=s.seq + 1)
        if not s.other:
            yield "other commits", s._replace(seq=s.seq + 1, other=True)
        if s.planned is not None and s.listed is None:
            number = s.seq + 1 if at_swap else s.planned
            yield f"bulk swaps, rows at {number}", s._replace(seq=s.seq + 1, listed=number)
        if s.reader < s.seq:
            reads = s.listed is not None and s.listed > s.reader
            yield f"reader pulls {s.seq}", s._replace(reader=s.seq, has_segment=s.has_segment or reads)

    def harms(s: Index, quiet: bool) -> Iterator[str]:
        if s.listed is not None and s.reader == s.seq and not s.has_segment:
            yield "COMMIT HIDDEN"

    return explore(Index(), steps, harms, stop_at_first=True)


@pytest.mark.inv("segment.added-seq")
def test_a_number_given_at_the_swap_shows_every_segment_to_every_reader() -> None:
    safe(numbering(at_swap=True), at_least=10)


@pytest.mark.inv("segment.added-seq")
def test_a_number_given_at_staging_hides_a_commit() -> None:
    harmful(numbering(at_swap=False), "COMMIT HIDDEN")


class Mark(NamedTuple):
    """Cache A is behind by one commit of B when it pushes a file of its own."""

    root: int = 40
    previous: int = 39
    theirs: bool = False
    pushed: bool = False
    mark: int = 40
    has_theirs: bool = False


def marking(*, only_on_what_was_pulled: bool) -> Explored:
    def steps(s: Mark) -> Steps[Mark]:
        if not s.theirs:
            yield "B commits", s._replace(root=s.root + 1, previous=s.root, theirs=True)
        if not s.pushed:
            follows = s.root == s.mark or not only_on_what_was_pulled
            after = s._replace(root=s.root + 1, previous=s.root, pushed=True)
            yield "A pushes", after._replace(mark=s.root + 1) if follows else after
        if s.mark < s.root:
            yield "A pulls", s._replace(mark=s.root, has_theirs=s.theirs)

    def harms(s: Mark, quiet: bool) -> Iterator[str]:
        if quiet and s.theirs and not s.has_theirs:
            yield "STALE"

    return explore(Mark(), steps, harms, stop_at_first=True)


@pytest.mark.inv("sync.derived")
def test_a_push_moves_the_mark_only_if_it_was_built_on_what_was_pulled() -> None:
    safe(marking(only_on_what_was_pulled=True), at_least=6)


@pytest.mark.inv("sync.derived")
def test_a_push_that_always_moves_the_mark_hides_the_commits_between() -> None:
    harmful(marking(only_on_what_was_pulled=False), "STALE")


class Row(NamedTuple):
    """A row for one path; no number means: that of the segment."""

    live: bool
    seq: int | None


class Segment(NamedTuple):
    added: int
    row: Row | None


def resolved(segment: Segment) -> tuple[int, bool] | None:
    if segment.row is None:
        return None
    return (segment.row.seq or segment.added, segment.row.live)


def winner(segments: tuple[Segment, ...]) -> bool:
    """Whether the path is live: the row with the highest number decides, wherever it lies."""
    rows = [row for row in map(resolved, segments) if row is not None]
    return max(rows)[1] if rows else False


def compact(
    segments: tuple[Segment, ...], chosen: tuple[int, ...], *, covered: bool, own_numbers: bool
) -> tuple[Segment, ...]:
    """Merge the chosen segments; a tombstone goes only if every older segment with the path is among them."""
    inputs = [segments[i] for i in chosen]
    rest = tuple(s for i, s in enumerate(segments) if i not in chosen)
    added = max(s.added for s in inputs)
    number = [(r.seq or (s.added if own_numbers else added), r.live) for s in inputs if (r := s.row)]
    if not number:
        return (*rest, Segment(added, None))
    seq, live = max(number)
    older = any(s.row is not None and s.added < added for s in rest)
    keep = live or (covered and older)
    return (*rest, Segment(added, Row(live, seq) if keep else None))


def histories() -> Iterator[tuple[Segment, ...]]:
    """Three segments, each without the path, with it or with its tombstone, numbered by the row or by the segment."""
    choices = [None, (True, False), (False, False), (True, True), (False, True)]
    for picks in product(choices, repeat=3):
        yield tuple(
            Segment(added, pick and Row(pick[0], added if pick[1] else None))
            for added, pick in zip((10, 40, 50), picks, strict=True)
        )


def changed_by_compaction(*, covered: bool = True, own_numbers: bool = True) -> list[tuple[Segment, ...]]:
    """Histories in which merging some of the segments changes whether the path is live."""
    subsets = [c for size in (1, 2, 3) for c in combinations(range(3), size)]
    return [
        segments
        for segments in histories()
        for chosen in subsets
        if winner(compact(segments, chosen, covered=covered, own_numbers=own_numbers)) != winner(segments)
    ]


@pytest.mark.inv("index.highest-seq")
def test_no_compaction_changes_what_is_live() -> None:
    assert changed_by_compaction() == []


@pytest.mark.inv("index.highest-seq")
def test_a_tombstone_dropped_by_a_partial_compaction_brings_a_path_back() -> None:
    alive, deleted = Segment(10, Row(True, 10)), Segment(40, Row(False, 40))
    assert (alive, deleted, Segment(50, None)) in changed_by_compaction(covered=False)


@pytest.mark.inv("segment.added-seq")
def test_numberless_rows_that_take_the_outputs_number_bring_an_old_row_to_the_top() -> None:
    old, new = Segment(10, Row(True, None)), Segment(40, Row(False, 40))
    assert (old, new, Segment(50, None)) in changed_by_compaction(own_numbers=False)
