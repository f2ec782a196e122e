"""Parsing metadata in bulk, for a catalog that is rebuilt: a million small YAML files are work for every core."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from swamp.bulk.beacon import Address, Beat
from swamp.bulk.choose import Chooser
from swamp.bulk.jobs import Jobs
from swamp.bulk.kernels import Batches, rows_of
from swamp.bulk.schemas import Boundary
from swamp.bulk.stages import frame_of
from swamp.data.metadata import decode
from swamp.data.names import VersionRef
from swamp.data.versions import DataVersion, VersionReader
from swamp.errors import CorruptData, NotFound
from swamp.sync.bulk import Work
from swamp.sync.port import Tree
from swamp.sync.progress import IdleTimeout
from swamp.values import value

METADATA: Final = Boundary("metadata", (("path", "string"),))
PARSED: Final = Boundary("parsed", (("path", "string"), ("metadata", "binary"), ("error", "string")))
CHUNK: Final = 50_000


@value
class ParseMetadata:
    """Paths of metadata files -> what they say, pickled: reading that back costs the driver next to nothing."""

    tree: str
    beacon: Address | None = None

    def __call__(self, batches: Batches) -> Batches:
        with Beat(self.beacon) as beat:
            yield from PARSED.batches(self._parsed(batches, beat))

    def _parsed(self, batches: Batches, beat: Beat) -> Iterator[dict[str, Any]]:
        for row in rows_of(batches):
            beat.add(1)
            try:
                raw = (Path(self.tree) / row["path"]).read_bytes()
                yield {"path": row["path"], "metadata": pickle.dumps(decode(raw, row["path"]))}
            except CorruptData as error:
                yield {"path": row["path"], "error": error.message}
            except OSError:
                continue  # gone meanwhile: it is no version any more


def chosen_parser(
    chooser: Chooser, tree: Tree, idle_timeout: IdleTimeout
) -> Callable[[list[VersionRef]], Iterator[tuple[VersionRef, DataVersion | CorruptData]]]:
    """A `catalog.Parse` by the engine that so many files are worth."""

    def parse(refs: list[VersionRef]) -> Iterator[tuple[VersionRef, DataVersion | CorruptData]]:
        executor = chooser.on_spark(Work("hash", len(refs), 0))
        if executor is not None:
            return parser(executor.jobs, tree.root, idle_timeout)(refs)
        return _one_by_one(VersionReader(tree), refs, idle_timeout)

    return parse


def _one_by_one(
    reader: VersionReader, refs: list[VersionRef], idle_timeout: IdleTimeout
) -> Iterator[tuple[VersionRef, DataVersion | CorruptData]]:
    for ref in refs:
        idle_timeout.cancel.check()
        try:
            yield ref, reader.read(ref)
        except NotFound:
            continue  # gone meanwhile: it is no version any more
        except CorruptData as error:
            yield ref, error


def parser(
    jobs: Jobs, tree: Path, idle_timeout: IdleTimeout
) -> Callable[[list[VersionRef]], Iterator[tuple[VersionRef, DataVersion | CorruptData]]]:
    """A `catalog.Parse` on Spark, for a tree that the executors see."""

    def parse(refs: list[VersionRef]) -> Iterator[tuple[VersionRef, DataVersion | CorruptData]]:
        by_path = {ref.metadata_path: ref for ref in refs}
        paths = list(by_path)
        for start in range(0, len(paths), CHUNK):
            chunk = paths[start : start + CHUNK]
            frame = frame_of(jobs.session, METADATA, ({"path": path} for path in chunk))
            spread = frame.repartition(jobs.parallelism * 4)
            parsed = spread.mapInArrow(ParseMetadata(str(tree), jobs.beacon), PARSED.ddl)
            table = jobs.run("catalog", parsed.toArrow, idle_timeout, files=len(chunk))
            for row in table.to_pylist():
                ref = by_path[row["path"]]
                yield ref, _result(ref, row)

    return parse


def _result(ref: VersionRef, row: dict[str, Any]) -> DataVersion | CorruptData:
    if row["error"] is not None:
        return CorruptData(row["error"])
    return DataVersion(ref, pickle.loads(row["metadata"]))
