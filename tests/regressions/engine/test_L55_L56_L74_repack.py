"""L55, L56, L74: packs are collected as objects, repacked without changing anything, and not restored too late."""

from __future__ import annotations

import datetime as dt

import pytest

from peers import Peer, Watched, content, keys, once, root_of, settled, shared
from swamp.commit.collect import collect, mark
from swamp.commit.commit import Changes
from swamp.commit.repack import Repacked, repack
from swamp.commit.restore import undelete
from swamp.index.entry import PACK_PREFIX, object_of
from swamp.index.root import Root
from swamp.sync.engine import Policy
from swamp.sync.units import unit_of

PACKS = Policy(push_concurrency=4, pull_concurrency=4, packs=True)
LAZY = Policy(push_concurrency=4, pull_concurrency=4, packs=True, hydrate="lazy")
NOW = dt.timedelta(0)
WEEK = dt.timedelta(days=7)


@pytest.fixture
def a(peer) -> Peer:
    return peer("a", policy=PACKS)


@pytest.fixture
def b(peer) -> Peer:
    return peer("b", policy=PACKS)


def filled(peer: Peer, count: int = 8) -> dict[str, str]:
    for n in range(count):
        peer.write(f"files/{n}", f"content {n} " * 20)
    assert peer.push().ok
    return peer.files()


def mostly_dead(peer: Peer) -> dict[str, str]:
    """One pack of which a quarter lives."""
    filled(peer)
    for n in range(6):
        peer.delete(f"files/{n}")
    peer.push()
    return peer.files()


def packs_of(peer: Peer) -> set[str]:
    return {object_of(entry.key) for entry in shared(peer.engine).values()} & keys(peer.store, PACK_PREFIX)


@pytest.mark.inv("pack.live-if-any")
def test_L55_a_pack_with_one_dead_and_one_live_file_stays(store, a, b):
    filled(a, 2)
    a.delete("files/0")
    a.push()
    assert collect(a.engine.committer, a.pace, keep=NOW).deleted == 0
    b.pull()
    assert b.files() == a.files() == {"files/1": a.read("files/1")}


@pytest.mark.inv("gc.objects")
def test_L55_a_pack_whose_last_file_is_gone_waits_for_the_undo_window_and_goes_as_a_whole(store, a, b):
    filled(a, 3)
    a.write("files/other", "1")
    a.write("files/another", "2")
    a.push()
    for n in range(3):
        a.delete(f"files/{n}")
    a.push()
    before = keys(store, PACK_PREFIX)
    assert collect(a.engine.committer, a.pace, keep=WEEK).deleted == 0, "within the window it waits"
    done = collect(a.engine.committer, a.pace, keep=NOW)
    gone = before - keys(store, PACK_PREFIX)
    assert done.deleted == len(gone) == 1 and root_of(a.engine).collecting == ()
    assert not any(object_of(key) in gone for key in root_of(a.engine).dropped)
    b.pull()
    settled(a, b)


@pytest.mark.inv("gc.objects")
def test_L55_a_pack_that_nobody_committed_is_an_orphan_and_other_names_are_left_alone(store, a):
    filled(a, 2)
    store.put(f"{PACK_PREFIX}01JD0000000000000000000000", b"an upload of a process that died")
    store.put(f"{PACK_PREFIX}notes.txt", b"somebody else's")
    assert collect(a.engine.committer, a.pace, keep=WEEK).deleted == 0
    assert collect(a.engine.committer, a.pace, keep=NOW).deleted == 1
    assert store.get(f"{PACK_PREFIX}notes.txt").body and content(a.engine) == a.files()


@pytest.mark.inv("pack.moved-only-unchanged")
def test_L56_a_repack_moves_what_lives_and_nobody_takes_it_for_a_change(store, a, b, peer):
    files = mostly_dead(a)
    b.pull()
    before, old = shared(a.engine), packs_of(a)
    told = repack(a.engine.committer, a.pace, keep=NOW, dry_run=True)
    assert told.packs == 1 and told.rows == 2 and told.bytes > 0 and shared(a.engine) == before
    assert repack(a.engine.committer, a.pace, keep=NOW) == told
    after = shared(a.engine)
    assert {p: (e.identity, e.number) for p, e in after.items()} == {
        p: (e.identity, e.number) for p, e in before.items()
    }
    assert not packs_of(a) & old and content(a.engine) == files
    assert b.sync().files_pulled == 0 and b.files() == files
    assert old <= keys(store), "readers and undelete find it for the length of the undo window"
    assert collect(a.engine.committer, a.pace, keep=WEEK).deleted == 0
    collect(a.engine.committer, a.pace, keep=NOW)
    assert not old & keys(store)
    fresh = peer("fresh", policy=PACKS)
    assert fresh.pull().ok and fresh.files() == files
    assert repack(a.engine.committer, a.pace, keep=NOW) == Repacked(), "a second time there is nothing to do"


@pytest.mark.inv("pack.moved-only-unchanged")
@pytest.mark.parametrize("flushed", [False, True])
def test_L56_a_repack_undoes_no_delete_no_overwrite_and_no_undelete(store, a, b, monkeypatch, flushed):
    if flushed:
        monkeypatch.setattr("swamp.commit.commit.LAYER_ROWS", 0)
    filled(a, 12)
    for n in range(7):
        a.delete(f"files/{n}")
    a.push()
    b.pull()

    def meanwhile() -> None:
        b.delete("files/9")
        b.write("files/10", "overwritten")
        b.delete("files/11")
        b.push()
        undelete(b.engine.committer, b.pace, ["files/11"], unit_of)

    engine = a.process(Watched(store, once("put", ".datastore-index", meanwhile)))
    repack(engine.committer, a.pace, keep=NOW)
    engine.close()
    found = content(b.engine)
    assert "files/9" not in found and found["files/10"] == "overwritten" and "files/11" in found
    settled(a, b)
    assert a.files() == content(a.engine)


def test_L56_two_repackers_at_once_move_each_file_once(store, a, b):
    files = mostly_dead(a)
    b.pull()
    engine = a.process(
        Watched(store, once("put", ".datastore-index", lambda: repack(b.engine.committer, b.pace, keep=NOW)))
    )
    assert repack(engine.committer, a.pace, keep=NOW) == Repacked(), "the other was first"
    engine.close()
    assert content(b.engine) == files
    collect(b.engine.committer, b.pace, keep=NOW)
    assert content(b.engine) == files and len(keys(store, PACK_PREFIX)) == 1


def test_L56_a_damaged_slice_is_not_moved(store, a):
    mostly_dead(a)
    [pack] = packs_of(a)
    body = bytearray(store.get(pack).body)
    body[20:400] = bytes(380)
    body[-2000:-1200] = body[-2000:-1200]
    store.put(pack, bytes(body))
    before = shared(a.engine)
    repack(a.engine.committer, a.pace, keep=NOW)
    for path, entry in shared(a.engine).items():
        moved = object_of(entry.key) != object_of(before[path].key)
        assert moved == (content(a.engine).get(path) == a.read(path)) if moved else True


@pytest.mark.inv("gc.objects")
def test_L74_undelete_refuses_what_lies_in_a_condemned_pack(store, a):
    filled(a, 3)
    for n in range(3):
        a.delete(f"files/{n}")
    a.push()
    [pack] = keys(store, PACK_PREFIX)

    def condemn(root: Root) -> Changes | None:
        return Changes(collecting=(pack,), gc_epoch_step=1)

    a.engine.committer.commit(condemn, a.pace)
    done = undelete(a.engine.committer, a.pace, ["files"], unit_of)
    assert done.restored == () and len(done.gone) == 3


@pytest.mark.inv("gc.objects")
def test_L74_a_file_that_comes_back_while_its_pack_is_marked_spares_the_whole_pack(store, a, b):
    filled(a, 3)
    for n in range(3):
        a.delete(f"files/{n}")
    a.push()
    root = root_of(a.engine)
    marked = mark(a.engine.committer, root, NOW)
    assert len(marked.garbage) == 1
    undelete(b.engine.committer, b.pace, ["files/1"], unit_of)
    done = collect(a.engine.committer, a.pace, keep=NOW, marker=lambda now, keep: marked)
    assert done.deleted == 0
    b.pull()
    assert list(b.files()) == ["files/1"]


def test_S19_a_lazy_cache_whose_pack_was_repacked_and_collected_still_reads(store, a, peer):
    for n in range(6):
        a.write_version(f"data/t/m/n{n}/1", f"content {n} " * 30)
    a.push()
    lazy = peer("lazy", policy=LAZY)
    lazy.pull()
    for n in range(4):
        a.delete(f"data/t/m/n{n}/1")
    a.push()
    assert repack(a.engine.committer, a.pace, keep=NOW).rows > 0
    collect(a.engine.committer, a.pace, keep=NOW)
    assert lazy.engine.materialize("data/t/m/n5/1/raw").read_text() == "content 5 " * 30
