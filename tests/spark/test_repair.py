"""`swamp datastore doctor --repair` on Spark: a lost index from a listing, and the catalog from its metadata files."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobs import require_java
from swamp.bulk.maintain import OnStore
from swamp.datasets.publish import committer_for
from swamp.index.lookup import live_rows
from swamp.index.root import ROOT_KEY
from swamp.repo.repair import propose_from_listing, publish_segments
from swamp.sync.progress import IdleTimeout

pytestmark = pytest.mark.timeout(900)


def lost(store):
    """A bucket whose root and log are gone: uploads, some of them twice, and things that are not ours."""
    for number in range(1, 40):
        for ulid in ("01JD0000000000000000000000", "01JD0000000000000000000001")[: 1 + number % 2]:
            store.put(f"data/t/m/n/{number}/raw~{ulid}", f"{number} {ulid}".encode())
    store.put("files/ü +%~01JD0000000000000000000000", b"ours")
    store.put("files/ü +%", b"somebody else's")
    store.put("files/plain", b"plain")
    store.put("data/t/m/.lock", b"{}")
    store.put("files/elsewhere/.datastore-index.json", b"{}")
    store.put("files/elsewhere/files/x", b"not ours")


def test_L48_a_listing_on_spark_proposes_what_one_in_memory_proposes(jobs, bucket):
    from swamp.env import SYSTEM

    lost(bucket.open())
    committer = committer_for(bucket)
    in_memory = propose_from_listing(committer)
    on = OnStore(jobs, bucket, committer, IdleTimeout(SYSTEM, 300))
    with on.proposal() as (files, write):
        assert files == len(in_memory) == 41
        assert committer.read().root is None  # nothing is published before somebody agrees
        publish_segments(committer, lambda: None, write)
    rows = live_rows(committer.read().root, committer.fetch)
    assert {r.path: (r.key, r.size) for r in rows} == {p: (e.key, e.size) for p, e in in_memory.items()}


def test_L73_footers_on_spark_propose_what_they_propose_in_memory(jobs, bucket):
    """By identity: what was moved is no newer than what was uploaded after it, and stays what it was."""
    from swamp.env import SYSTEM
    from swamp.index.pack import Packed, PackWriter

    store = bucket.open()
    lost(store)
    old, new = "_packs/01JD0000000000000000000005", "_packs/01JD0000000000000000000009"
    for pack, files in ((old, {"files/a": (b"newer a", ""), "files/b": (b"b", "")}),
                        (new, {"files/a": (b"older a", "files/a~01JD0000000000000000000002"),
                               "files/ü +%": (b"moved", "files/ü +%~01JD0000000000000000000000"),
                               "files/c": (b"c", "_packs/01JD0000000000000000000001@12+1")})):  # fmt: skip
        writer = PackWriter()
        for path, (body, identity) in files.items():
            writer.copy(Packed(path, 0, len(body), len(body), hashlib.sha256(body).hexdigest()), body, identity)
        store.put(pack, writer.seal())
    store.put("_packs/01JD0000000000000000000003", b"no pack at all")
    committer = committer_for(bucket)
    in_memory = propose_from_listing(committer)
    on = OnStore(jobs, bucket, committer, IdleTimeout(SYSTEM, 300))
    with on.proposal() as (files, write):
        assert files == len(in_memory) == 44
        publish_segments(committer, lambda: None, write)
    rows = live_rows(committer.read().root, committer.fetch)
    found = {r.path: (r.key, r.size, r.sha256, r.id) for r in rows}
    assert found == {p: (e.key, e.size, e.sha256, e.id) for p, e in in_memory.items()}
    assert found["files/a"][0].startswith(old)


def swamp(repo, home, *arguments):
    environ = {**os.environ, "SWAMP_HOME": str(home), "SWAMP_SPARK_MASTER": "local[2]"}
    command = [str(Path(sys.executable).parent / "swamp"), *arguments, "--repo-dir", str(repo), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=environ)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_the_command_re_indexes_and_rebuilds_the_catalog_on_spark(shared_repo, bucket, tmp_path):
    require_java()
    home, body = tmp_path / "home", tmp_path / "body"
    for number in range(3):
        body.write_text(f"body {number}")
        swamp(shared_repo, home, "data", "put", "web", f"n{number}", str(body))
    store = bucket.open()
    records = [meta.key for page in store.list("_index/") for meta in page]
    store.delete([ROOT_KEY, *records])
    seen = swamp(shared_repo, home, "datastore", "doctor", "--repair", "--from-listing", "--yes", "--engine", "spark")
    assert any("published from a listing" in line for line in seen["repaired"])
    assert list((home / "logs").glob("spark-*.log")), "Spark was not started"
    assert committer_for(bucket).read().root.segments
    assert swamp(shared_repo, home, "data", "list")["total"] == 3
