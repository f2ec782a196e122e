"""The full comparison on Spark: the paths are cut into ranges, and each task gathers the facts of its ranges.

What a task runs is `sync.gather.Gatherer.gathered`, as in process: it reads base and tree where the cache is, and the
index through the store client. Facts that are not trivial are written beside the cache, a file for each range, and read
back in path order: neither index nor base is ever in the driver's memory (decision 0009).
"""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from swamp.bulk.beacon import Address, Beat
from swamp.bulk.clients import StoreAddress, opened
from swamp.bulk.shares import by_weight, tasks_for
from swamp.cache.layout import FOLDER_PREFIX, CacheDir
from swamp.cache.scan import ScanProblem, landmarks
from swamp.cache.state import State
from swamp.env import SYSTEM
from swamp.index.read import row_groups
from swamp.index.root import Span
from swamp.sync.gather import Gathered, Gatherer
from swamp.sync.progress import IdleTimeout
from swamp.sync.units import cut_before
from swamp.sync.view import View

if TYPE_CHECKING:
    from swamp.bulk.maintain import OnStore

RANGE_ROWS: Final = 250_000
"""Rows of base and index that one range has, if there are enough of them for every core."""
PORTION: Final = 2_000
Told = tuple[str, str, list[ScanProblem]]
"""Where a range starts, the file that holds its facts, and what could not be looked at there."""


@dataclass(frozen=True)
class GatherRanges:
    """Path ranges -> for each a file of gathered facts, written where the cache is."""

    store: StoreAddress
    database: str
    folder: str
    view: dict[str, Any]
    gatherer: dict[str, Any]
    portion: int
    beacon: Address | None = None

    def __call__(self, ranges: Iterable[Span]) -> Iterator[Told]:
        state = State.open(Path(self.database))
        try:
            with Beat(self.beacon) as beat:
                view = View(store=opened(self.store), **self.view)
                gatherer = Gatherer(state=state, view=view, **self.gatherer)
                for span in ranges:
                    yield self._written(replace(gatherer, span=span), beat)
        finally:
            state.close()

    def _written(self, gatherer: Gatherer, beat: Beat) -> Told:
        """Under a name of its own: a task may run twice, and only the file that the driver is told of counts."""
        file = Path(self.folder) / SYSTEM.ulid()
        problems: list[ScanProblem] = []
        with file.open("wb") as out:
            for portion in gatherer.gathered(self.portion):
                problems = portion.problems
                pickle.dump((portion.facts, portion.hidden), out, pickle.HIGHEST_PROTOCOL)
                beat.add(len(portion.facts))
        return gatherer.span.start, file.name, problems


@dataclass(frozen=True)
class SparkComparison:
    """One full comparison of a cache with a store."""

    on: OnStore
    gatherer: Gatherer
    cache: CacheDir
    idle_timeout: IdleTimeout

    def run(self, most: int | None) -> Iterator[Gathered]:
        """Portions of about `most` facts, whole units in path order. Its files are gone afterwards."""
        folder = self.cache.staging / f"{FOLDER_PREFIX}{os.getpid()}-{SYSTEM.ulid()}"
        folder.mkdir()
        try:
            shares = [[found] for found in self.ranges()]
            kernel = self.kernel(folder, PORTION if most is None else min(PORTION, most))
            jobs = self.on.jobs
            told = jobs.run("compare", lambda: jobs.spread(shares, kernel), self.idle_timeout)
            ranges: list[Told] = sorted(told, key=itemgetter(0))
            # An obstacle on the border of two ranges was met by both.
            problems = list(dict.fromkeys(problem for _, _, met in ranges for problem in met))
            yield from _portions((folder / name for _, name, _ in ranges), problems, most)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def kernel(self, folder: Path, portion: int) -> GatherRanges:
        of_view, of_gatherer = _told(self.gatherer.view, "store"), _told(self.gatherer, "state", "view", "compare")
        beacon, database = self.on.jobs.beacon, str(self.cache.state_db)
        return GatherRanges(self.on.spec, database, str(folder), of_view, of_gatherer, portion, beacon)

    def ranges(self) -> list[Span]:
        """Where the paths are cut, by what is known of all three sides without reading them."""
        gatherer, parallelism = self.gatherer, self.on.jobs.parallelism
        state, root, full = gatherer.state, gatherer.view.root, gatherer.view.full
        rows = state.base_rows() + (sum(ref.rows for ref in root.segments) if full else 0)
        wanted = tasks_for(rows, RANGE_ROWS, least=parallelism * 2)
        step = max(1, rows // (wanted * 8))
        marks = [(path, step) for path in state.base_every(step)]
        if full:
            marks += [mark for ref in root.segments for mark in row_groups(self.on.committer.store, ref, step)]
        marks += landmarks(gatherer.tree, gatherer.starts(), wanted * 8, exclude=gatherer.exclude)
        return by_weight(((cut_before(path), weight) for path, weight in marks), wanted)


def _told(value: Gatherer | View, *without: str) -> dict[str, Any]:
    """What a value was made of: what a task makes it of again, with its own connections."""
    return {f.name: getattr(value, f.name) for f in fields(value) if f.name not in without}


def _portions(files: Iterator[Path], problems: list[ScanProblem], most: int | None) -> Iterator[Gathered]:
    """What the ranges hold, put together: they were cut between units."""
    out = Gathered(problems=problems)
    for file in files:
        with file.open("rb") as body:
            end = file.stat().st_size
            while body.tell() < end:
                facts, hidden = pickle.load(body)
                if most is not None and out.facts and len(out.facts) + len(facts) > most:
                    yield out
                    out = Gathered(problems=problems)
                out.facts += facts
                out.hidden |= hidden
    yield out
