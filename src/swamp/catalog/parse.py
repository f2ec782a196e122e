"""Parsing metadata in bulk, for a catalog that is rebuilt: a million small YAML files are work for every core."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from swamp.bulk.choose import Chooser
from swamp.bulk.jobs import Jobs
from swamp.bulk.shares import by_count
from swamp.bulk.spread import Address, Beat
from swamp.data.metadata import Metadata, decode
from swamp.data.names import VersionRef
from swamp.data.versions import DataVersion, VersionReader
from swamp.errors import CorruptData, NotFound
from swamp.sync.bulk import Work
from swamp.sync.port import Tree
from swamp.sync.progress import IdleTimeout
from swamp.values import value

CHUNK: Final = 50_000


@value
class ParseMetadata:
    """Paths of metadata files -> what they say."""

    tree: str
    beacon: Address | None = None

    def __call__(self, paths: Iterable[str]) -> Iterator[tuple[str, Metadata | CorruptData]]:
        with Beat(self.beacon) as beat:
            for path in paths:
                beat.add(1)
                try:
                    yield path, decode((Path(self.tree) / path).read_bytes(), path)
                except CorruptData as error:
                    yield path, CorruptData(error.message)
                except OSError:
                    continue  # gone meanwhile: it is no version any more


Parsed = Iterator[tuple[VersionRef, DataVersion | CorruptData]]


def chosen_parser(chooser: Chooser, tree: Tree, idle_timeout: IdleTimeout) -> Callable[[list[VersionRef]], Parsed]:
    """A `catalog.Parse` by the engine that so many files are worth."""

    def parse(refs: list[VersionRef]) -> Parsed:
        executor = chooser.on_spark(Work("hash", len(refs), 0))
        if executor is not None:
            return parse_on_spark(executor.jobs, tree.root, idle_timeout, refs)
        return _one_by_one(VersionReader(tree), refs, idle_timeout)

    return parse


def _one_by_one(reader: VersionReader, refs: list[VersionRef], idle_timeout: IdleTimeout) -> Parsed:
    for ref in refs:
        idle_timeout.cancel.check()
        try:
            yield ref, reader.read(ref)
        except NotFound:
            continue  # gone meanwhile: it is no version any more
        except CorruptData as error:
            yield ref, error


def parse_on_spark(jobs: Jobs, tree: Path, idle_timeout: IdleTimeout, refs: list[VersionRef]) -> Parsed:
    """The same on Spark, for a tree that the executors see."""
    by_path = {ref.metadata_path: ref for ref in refs}
    paths = list(by_path)
    for start in range(0, len(paths), CHUNK):
        chunk = paths[start : start + CHUNK]
        kernel, shares = ParseMetadata(str(tree), jobs.beacon), by_count(chunk, jobs.parallelism * 4)
        parsed = jobs.run("catalog", partial(jobs.spread, shares, kernel), idle_timeout, files=len(chunk))
        for path, found in parsed:
            ref = by_path[path]
            yield ref, found if isinstance(found, CorruptData) else DataVersion(ref, found)
