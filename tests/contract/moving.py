"""A process that moves bytes and tells how much memory that took: `python moving.py SPEC_JSON MODE MIB FILES THREADS`.

Prints JSON: peak resident megabytes before any byte moved and after all of them, and whether they came back right.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from swamp.store.open import StoreSpec
from swamp.store.port import ObjectStore


def peak() -> int:
    """The high-water mark of this program; getrusage would remember the process that started it."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    line = next(row for row in status.read_text().splitlines() if row.startswith("VmHWM"))
    return int(line.split()[1]) // 1024


def digest(store: ObjectStore, key: str) -> str:
    seen = hashlib.sha256()
    with store.open(key) as body:
        for chunk in body:
            seen.update(chunk)
    return seen.hexdigest()


def main(spec: str, mode: str, mib: str, files: str, threads: str) -> None:
    store = StoreSpec(**json.loads(spec)).open()
    store.put("warm", b"x")
    keys = [f"file-{n}" for n in range(int(files))]
    before = peak()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(int(threads)) as pool:
        path = Path(folder) / "source"
        with path.open("wb") as out:
            for _ in range(int(mib)):
                out.write(os.urandom(1 << 20))
        sent = set(pool.map(lambda key: store.put_file(key, path).sha256, keys)) if "up" in mode else set()
        pushed = peak()
        back = set(pool.map(lambda key: digest(store, key), keys)) if "down" in mode else sent
    print(json.dumps({"before": before, "pushed": pushed, "after": peak(), "equal": len(sent | back) == 1}))


if __name__ == "__main__":
    main(*sys.argv[1:])
