"""What `datastore log` and the SQL table `commits` say that a commit did."""

import pytest

import swamp.commit.commit
from peers import root_of
from swamp.commit.repack import compact
from swamp.commit.restore import undelete
from swamp.index.lookup import CommitStats, commit_stats
from swamp.sync.progress import IdleTimeout
from swamp.sync.units import unit_of
from swamp.sync.verify import verify


def did(peer) -> tuple[int, int, int]:
    """Added, changed and deleted by the newest commit."""
    found = commit_stats(root_of(peer.engine), peer.engine.committer.fetch)
    return found.added, found.changed, found.deleted


@pytest.fixture(params=[500, 3], ids=["layer", "flushed"])
def layers(request, monkeypatch):
    """The newest commit lies in the layer of its root, or in a segment."""
    monkeypatch.setattr(swamp.commit.commit, "LAYER_ROWS", request.param)


def test_a_commit_says_what_it_added_changed_and_deleted(a, layers):
    for i in range(4):
        a.write(f"files/{i}", "old")
    a.push()
    assert did(a) == (4, 0, 0)
    for i in (0, 1):
        a.write(f"files/{i}", "newer")
    a.write("files/4", "first")
    a.delete("files/2")
    a.push()
    assert did(a) == (1, 2, 1)
    undelete(a.engine.committer, a.pace, ("files/2",), unit_of)
    assert did(a) == (1, 0, 0)


def test_a_file_that_is_marked_missing_or_healed_was_not_changed(store, a, b, layers):
    for i in range(4):
        a.write(f"files/{i}", "x")
    a.push()
    lost = root_of(a.engine)
    [key] = [meta.key for page in store.list("files/1") for meta in page]
    store.delete([key])
    assert verify(b.engine.context, IdleTimeout(b.env, 60.0), repair=True).missing == ("files/1",)
    assert root_of(b.engine).seq == lost.seq + 1
    assert did(b) == (0, 0, 0)
    assert verify(a.engine.context, IdleTimeout(a.env, 60.0), repair=True).healed == ("files/1",)
    assert did(a) == (0, 0, 0)


def test_a_compaction_did_nothing_to_files_and_what_its_segments_told_is_not_told_wrongly(store, a, monkeypatch):
    monkeypatch.setattr(swamp.commit.commit, "LAYER_ROWS", 1)
    for i in range(3):
        a.write(f"files/{i}", "x")
        a.write(f"files/{i}b", "x")
        a.push()
    before = root_of(a.engine)
    compact(a.engine.committer, a.pace)
    assert did(a) == (0, 0, 0)
    store.delete([ref.key for ref in before.segments])
    assert commit_stats(before, a.engine.committer.fetch) == CommitStats()
