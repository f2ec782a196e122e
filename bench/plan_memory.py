"""Resident memory of opening a cache and planning a 1 % change on an index of 1,000,000 entries.

    .venv/bin/python bench/plan_memory.py [ENTRIES]

The state is generated directly; what is measured is a fresh process that opens it, looks, and plans.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swamp.cache.layout import CacheDir
    from swamp.index.root import Root


FORM = "files/{group:05d}/{n:08d}"
SEGMENT_ROWS = 250_000  # what a compaction writes


def indexed(bucket: Path, entries: int, form: str = FORM) -> Root:
    """A bucket in a directory whose root names segments with `entries` rows in all; their payloads do not exist."""
    from swamp.env import SYSTEM
    from swamp.index.entry import Entry
    from swamp.index.root import ROOT_KEY, Writer, encode, first_root
    from swamp.index.segment import write_segment
    from swamp.store.open import open_store

    store = open_store(bucket.as_uri())
    known, refs = paths(entries, form), []
    while rows := [Entry(p, p, 3, "0" * 64, "2026-01-01T00:00:00.000Z") for p in islice(known, SEGMENT_ROWS)]:
        segment = write_segment(rows, presorted=True)
        refs.append(segment.ref(f"_index/{SYSTEM.ulid()}.parquet", 1))
        store.put(refs[-1].key, segment.data)
    root = first_root("store", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "2026-01-01T00:00:00.000Z", Writer("r", "h", "u", 1, "0"))
    store.put(ROOT_KEY, encode(replace(root, segments=tuple(refs))))
    return root


def paths(entries: int, form: str = FORM) -> Iterator[str]:
    return (form.format(group=n // 1000, n=n) for n in range(entries))


def remembered(cache: CacheDir, root: Root, entries: int, form: str = FORM) -> None:
    """The cache of a machine that has pulled all of that, lazily."""
    from swamp.cache.rows import BaseRow
    from swamp.cache.state import State

    state, known = State.open(cache.state_db, durable=False), paths(entries, form)
    while rows := [BaseRow(path, path, 3, "0" * 64, 1, False) for path in islice(known, SEGMENT_ROWS)]:
        with state.transaction() as tx:
            tx.put_bases(rows)
    with state.transaction() as tx:
        tx.set_meta("storeId", "store")
        tx.set_meta("pulledSeq", "1")
        tx.set_meta("pulledOp", root.op)
    state.close()


def generate(home: Path, entries: int) -> None:
    from swamp.cache.layout import CacheDir
    from swamp.cache.state import State

    cache = CacheDir(home / "cache").ensure()
    remembered(cache, indexed(home / "bucket", entries), entries)
    changed = list(islice(paths(entries), 0, None, 100))
    state = State.open(cache.state_db, durable=False)
    with state.transaction() as tx:
        tx.announce(changed, "write")
    state.close()
    for path in changed:
        file = cache.tree / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("changed")


def measure(home: Path) -> None:
    from swamp.cache.layout import CacheDir
    from swamp.index.root import Writer
    from swamp.store.open import open_store
    from swamp.sync.engine import Engine, Policy

    started = time.perf_counter()
    store = open_store(f"file://{home}/bucket")
    engine = Engine.open(store, CacheDir(home / "cache"), writer=Writer("r", "h", "u", 1, "0"), policy=Policy("lazy"))
    planned = engine.plan("push")
    peak = _peak_mb()
    pushes = sum(1 for _ in planned.actions("push"))
    print(json.dumps({"seconds": round(time.perf_counter() - started, 2), "peakMB": round(peak), "planned": pushes}))


def _peak_mb() -> float:
    """From /proc: getrusage still counts what the parent held before this process was started."""
    line = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        measure(Path(sys.argv[2]))
        return
    entries = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as home:
        generate(Path(home), entries)
        done = subprocess.run([sys.executable, __file__, "--measure", home], capture_output=True, text=True, check=True)
    line = f"{entries:,} entries, {entries // 100:,} changed: {done.stdout.strip()}\n"
    (Path(__file__).parent / "results" / "plan_memory.txt").write_text(line)
    print(line)


if __name__ == "__main__":
    main()
