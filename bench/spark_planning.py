"""Planning a read at a million entries: CPU of finding root, model, name and version, by what the reader knows.

    .venv/bin/python bench/spark_planning.py [entries]        writes bench/results/spark-planning.md

No Spark runs: this is what `swamp.spark.read` and the source's `schema` and `reader` do before they ask the JVM. Every
case is a process of its own, which has the modules and the store's client loaded and nothing else. The index has 5,000
models of as many versions, in segments as a compaction leaves them; what is asked for lies in the middle of them.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from spark_all import note

from swamp.commit.commit import RootRead
from swamp.data import metadata
from swamp.data.records import auto_definition
from swamp.datasets.place import open_place
from swamp.datasets.publish import committer_for
from swamp.datasets.source import find_asked
from swamp.env import SYSTEM, rfc3339
from swamp.index.entry import Entry, payload_key
from swamp.index.root import first_root
from swamp.index.segment import write_segment
from swamp.repo.config import init_repo, write_config
from swamp.store.open import StoreSpec

RESULT = Path(__file__).parent / "results" / "spark-planning.md"
MODELS = 5_000
SEGMENT_ROWS = 163_840
AT = "2026-11-15T00:00:00.000Z"
WEB, SHOP = "00002500-3c1d-4f0e-9a55-6b1f0f1f7a10", "00003500-8a4e-4b1c-8f3e-2d9a5d0c4e21"
"""Identities like all are, in the middle of the index."""
EVALUATED = f"""id: {WEB}
name: web
type: command/shell
version: 3
tags:
  team: web
globalArguments:
  shell: /bin/sh
  environment: [LANG=C, TZ=UTC]
methods:
  execute:
    arguments:
      run: "curl -s https://example.com | wc -c"
"""
MINE = auto_definition("manual/data", "nightly")
CASES = {
    "a model with an auto-definition": {"model": "nightly", "name": "orders"},
    "a model that ran elsewhere (`definitions-evaluated`)": {"model": "web", "name": "visits"},
    "id and type": {"model": MINE.id, "name": "orders", "type": "manual/data"},
    "a name that nobody defines": {"model": "shop", "name": "carts"},
}


def paths(entries):
    """Every version of every model, in the order of an index."""
    for model in range(MODELS):
        for version in sorted(map(str, range(1, entries // MODELS + 1))):
            yield f"data/command/shell/{model:08d}/result/{version}/raw"


def asked_for(store):
    """Three datasets of ten versions with as many parts, and the definitions of two of them."""
    made = [("manual/data", MINE.id, "orders", "nightly"), ("command/shell", WEB, "visits", "web")]
    for kind, model, name, called in [*made, ("command/shell", SHOP, "carts", "shop")]:
        draft = metadata.Draft(
            metadata.Owner.manual(model), "application/vnd.apache.parquet", tags={"modelName": called}
        )
        for version in range(1, 11):
            at = f"data/{kind}/{model}/{name}/{version}"
            meta = metadata.Metadata(SYSTEM.uuid(), name, version, draft, AT, 1, "0" * 64)
            yield put(store, f"{at}/metadata.yaml", metadata.encode(meta))
            yield from (put(store, f"{at}/raw/part-{part:05d}.parquet", b"x") for part in range(10))
    yield put(store, "auto-definitions/manual/data/nightly.yaml", b"")
    yield put(store, "definitions-evaluated/command/shell/web.yaml", EVALUATED.encode())


def put(store, path, body):
    key = payload_key(path, SYSTEM.ulid())
    store.put(key, body)
    return Entry(path, key, len(body), None, AT)


def build(home, entries):
    (home / "bucket").mkdir(parents=True)
    init_repo(home / "repo")
    write_config(home / "repo", {"datastore": {"type": "file", "url": (home / "bucket").as_uri()}})
    spec = StoreSpec((home / "bucket").as_uri())
    store, committer = spec.open(), committer_for(spec)
    others = (Entry(p, payload_key(p, SYSTEM.ulid()), 1000, os.urandom(32).hex(), AT) for p in paths(entries))
    rows = sorted([*asked_for(store), *others], key=lambda row: row.path)
    root = first_root(committer.env.uuid(), committer.env.ulid(), rfc3339(committer.env.clock.now()), committer.writer)
    refs = []
    for start in range(0, len(rows), SEGMENT_ROWS):
        made = write_segment(rows[start : start + SEGMENT_ROWS], presorted=True)
        refs.append(made.ref(f"_swamp/segments/{SYSTEM.ulid()}.parquet", root.seq))
        store.put(refs[-1].key, made.data)
    committer.replace(RootRead(None, None), replace(root, segments=tuple(refs)), lambda: None)


def ask(repo, case):
    """The CPU of one planning, printed; what every later one finds loaded is loaded before."""
    options = {"repo": repo, **CASES[case]}
    import swamp.repo.definitions  # noqa: F401

    begun = time.process_time()
    found = find_asked(open_place(options), options)
    assert len(found.files) == 10, found
    print(f"{time.process_time() - begun:.3f}")


def main(entries=1_000_000):
    home = Path(tempfile.mkdtemp(prefix="swamp-planning-"))
    try:
        build(home, entries)
        took = {case: [] for case in CASES}
        for _ in range(3):
            for case in CASES:
                command = [sys.executable, __file__, "ask", str(home / "repo"), case]
                took[case].append(float(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout))
    finally:
        shutil.rmtree(home, ignore_errors=True)
    lines = [
        f"# Planning a read at {entries:,} entries",
        "",
        f"`.venv/bin/python bench/spark_planning.py {entries}`: seconds of CPU for root, model, name and version "
        f"in a bucket in a directory, in a process that has nothing cached; three runs, load average "
        f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores at the end.",
        "",
        "| asked for | smallest | median |",
        "|---|---|---|",
        *[f"| {case} | {min(runs):.3f} | {sorted(runs)[1]:.3f} |" for case, runs in took.items()],
        "",
    ]
    for case, runs in took.items():
        note("planning", "CPU s", f"({case})", sorted(runs)[1])
    RESULT.write_text("\n".join(lines))
    print(RESULT.read_text())


if __name__ == "__main__":
    if sys.argv[1:2] == ["ask"]:
        ask(*sys.argv[2:])
    else:
        main(*map(int, sys.argv[1:]))
