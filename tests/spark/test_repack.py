"""Repacking on Spark: the same packs are chosen as in process, and what moves is the same content elsewhere."""

import datetime as dt

import pytest
from spark_files import write_files
from test_engine import Machine, many, on_store

from swamp.bulk import maintain
from swamp.bulk.maintain import OnStore
from swamp.commit.collect import collect
from swamp.commit.repack import Repacked, repack
from swamp.datasets.publish import committer_for
from swamp.index.entry import Entry, is_pack, object_of
from swamp.index.lookup import live_rows
from swamp.sync.engine import Policy

pytestmark = pytest.mark.timeout(900)
NOW = dt.timedelta(0)


@pytest.fixture
def packed(tmp_path, bucket, spark):
    """A machine whose two packs are mostly dead: of each push every fourth version is left."""
    made = Machine(tmp_path / "a", bucket, "inline", policy=Policy(packs=True))
    files = many(400)
    paths = sorted(files)
    for part in (paths[:200], paths[200:]):
        write_files(made.tree, {path: files[path] for path in part})
        made.engine.push(full=True)
    units = sorted({path.rpartition("/")[0] for path in files})
    gone = [path for path in paths if units.index(path.rpartition("/")[0]) % 4]
    with made.engine.announce(gone, "delete", confirmed=True):
        for path in gone:
            (made.tree / path).unlink()
    made.engine.push()
    yield made
    made.engine.close()


def rows(spec) -> dict[str, Entry]:
    committer = committer_for(spec)
    return {row.path: row for row in live_rows(committer.read().root, committer.fetch)}


@pytest.mark.inv("pack.identity")
@pytest.mark.inv("pack.moved-only-unchanged")
def test_a_repack_on_spark_moves_what_one_in_process_would(packed, bucket, jobs, tmp_path, monkeypatch):
    monkeypatch.setattr(maintain, "TASK_BYTES", 100)  # a task for each pack
    committer, bulk = committer_for(bucket), on_store(jobs, bucket)
    before = rows(bucket)
    planned = repack(committer, lambda: None, keep=NOW, dry_run=True)
    assert planned == repack(committer, lambda: None, keep=NOW, dry_run=True, bulk=bulk)
    assert (planned.packs, planned.rows) == (2, len(before) == 100 and 100)
    assert repack(committer, lambda: None, keep=NOW, bulk=bulk) == planned
    after = rows(bucket)
    same = [(row.identity, row.number, row.sha256, row.size) for row in before.values()]
    assert [(row.identity, row.number, row.sha256, row.size) for row in after.values()] == same
    assert not {object_of(row.key) for row in before.values()} & {object_of(row.key) for row in after.values()}
    assert repack(committer, lambda: None, keep=NOW, bulk=bulk) == Repacked()
    collect(committer, lambda: None, keep=NOW)
    left = {meta.key for page in bucket.open().list("_packs/") for meta in page if is_pack(meta.key)}
    assert left == {object_of(row.key) for row in after.values()}
    other = Machine(tmp_path / "b", bucket, "inline")
    assert other.engine.pull().failed == ()
    assert other.files() == packed.files()
    other.engine.close()


def test_a_repack_on_spark_leaves_what_has_changed_meanwhile(packed, bucket, jobs, monkeypatch):
    """Copied and then overwritten by somebody else: only what still is what was read is moved."""
    committer, path = committer_for(bucket), min(rows(bucket))

    class Slow(OnStore):
        def move(self, root, packs):
            moved = list(super().move(root, packs))
            with packed.engine.announce([path]):
                (packed.tree / path).write_bytes(b"newer")
            packed.engine.push()
            return moved

    repack(committer, lambda: None, keep=NOW, bulk=Slow(**vars(on_store(jobs, bucket))))
    assert rows(bucket)[path].size == len(b"newer")
    assert len(rows(bucket)) == 100
