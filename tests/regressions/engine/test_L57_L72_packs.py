"""Packs on real stores: what travels together, what is read with which request, and content that was moved."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from peers import Peer, Watched, content, keys, once, root_of, settled, shared, version
from swamp.commit.commit import Changes
from swamp.commit.restore import undelete
from swamp.errors import SwampError
from swamp.index.entry import PACK_PREFIX, Unreferenced, object_of, slice_of
from swamp.index.pack import Packed, PackWriter, read_payload
from swamp.store.layers import MeterStore
from swamp.sync.engine import Policy
from swamp.sync.progress import IdleTimeout
from swamp.sync.units import unit_of
from swamp.sync.verify import verify
from swamp.testing.faulty import Fault, FaultyStore
from whole_packs import read_pack

PACKS = Policy(push_concurrency=4, pull_concurrency=4, packs=True)
LAZY = Policy(push_concurrency=4, pull_concurrency=4, packs=True, hydrate="lazy")


@pytest.fixture
def a(peer) -> Peer:
    return peer("a", policy=PACKS)


@pytest.fixture
def b(peer) -> Peer:
    return peer("b", policy=PACKS)


def move(peer: Peer, *, gone: bool = True) -> str:
    """Moves every packed file into one new pack, as a repack does; with `gone` the old packs are deleted."""
    engine, store = peer.engine, peer.engine.committer.store
    writer, name = PackWriter(), PACK_PREFIX + peer.env.ulid()
    rows = [e for e in shared(engine).values() if slice_of(e.key)]
    old = {object_of(e.key) for e in rows}
    placed = {}
    for entry in rows:
        body = read_payload(store, entry.key, entry.size)
        stored = body or b"\0"
        file = Packed(entry.path, 0, len(stored), entry.size, entry.sha256 or "")
        placed[entry.path] = writer.copy(file, stored, entry.identity)
    store.put(name, writer.seal())

    def propose(root):
        puts = [e.rewritten(placed[e.path].key(name)) for e in rows]
        return Changes(puts=tuple(puts), dropped=tuple(Unreferenced(pack, "") for pack in sorted(old)))

    assert engine.committer.commit(propose, peer.pace) is not None
    if gone:
        store.delete(sorted(old))
    return name


def filled(peer: Peer, count: int = 5) -> dict[str, str]:
    for i in range(count):
        peer.write_version(version("out", i + 1), f"content {i} " * (i * 40 + 1))
    peer.write("outputs/run.yaml", "dataArtifacts: []")
    peer.write("files/empty", "")
    peer.write("files/void", "")
    assert peer.push().ok
    return peer.files()


def test_small_files_travel_in_one_object_and_a_large_one_by_itself(a, b, store):
    a.write("files/large", bytes(300_000))
    files = filled(a)
    packs = keys(store, PACK_PREFIX)
    assert len(packs) == 1 and len([k for k in keys(store) if k.startswith(("data/", "files/", "outputs/"))]) == 1
    found = read_pack(store.get(next(iter(packs))).body)
    assert {f.path for f in found} == set(files) - {"files/large"}
    content_at = [f.path.endswith("/raw") for f in found]
    assert content_at == sorted(content_at), "metadata and records come first"
    for file in found:
        body = files[file.path].encode()
        assert (file.size, file.sha256) == (len(body), hashlib.sha256(body).hexdigest())
    b.pull()
    assert b.files() == files
    settled(a, b)


def test_packs_can_be_turned_off_and_one_small_file_is_an_object_of_its_own(peer, store):
    plain = peer("plain", policy=Policy(packs=False))
    filled(plain)
    assert not keys(store, PACK_PREFIX)
    one = peer("one", policy=PACKS)
    one.pull()
    one.write("files/one", "1")
    assert one.push().files_pushed == 1 and not keys(store, PACK_PREFIX)


def test_a_pull_of_a_pack_is_one_request_and_of_a_few_files_a_few(peer, a, store):
    for i in range(40):
        a.write(f"files/{i:02}", (f"{i} " * 30_000)[:40_000].encode()[::-1] + hashlib.sha512(bytes([i])).digest() * 600)
    a.push()
    meter = MeterStore(store)
    b = peer("b", policy=PACKS, store=meter)
    b.pull()
    assert b.files() == a.files()
    before = meter.requests
    for name in ("files/03", "files/04", "files/30"):
        a.write(name, "new " + name)
    a.push()
    assert b.pull().files_pulled == 3
    assert meter.requests - before <= 3


@pytest.mark.inv("pack.left-out")
def test_a_file_that_changes_while_it_is_read_is_left_out(a, b, monkeypatch):
    from swamp.cache import places

    real = places._read_all

    def read(descriptor: int, most: int) -> bytes:
        body = real(descriptor, most)
        if body == b"early":
            (a.tree / "files/x").write_text("later!")
        return body

    a.write("files/x", "early")
    for name in "yz":
        a.write(f"files/{name}", name)
    monkeypatch.setattr(places, "_read_all", read)
    assert a.push().ok, "it came to rest, and goes with the same push"
    held = [{f.path for f in read_pack(a.store.get(pack).body)} for pack in keys(a.store, PACK_PREFIX)]
    assert {"files/y", "files/z"} in held, "not with the others: its bytes were not those of one moment"
    assert shared(a.engine)["files/x"].size == len("later!")
    monkeypatch.undo()
    assert a.push().ok
    settled(a, b)
    assert b.read("files/x") == "later!"


@pytest.mark.inv("pack.each-checked")
def test_a_bad_slice_is_one_files_trouble(a, b, store):
    filled(a)
    bad = shared(a.engine)[f"{version('out', 3)}/raw"]
    cut = slice_of(bad.key)
    assert cut is not None
    body = bytearray(store.get(cut.pack).body)
    body[cut.offset : cut.end] = bytes(cut.length)
    store.put(cut.pack, bytes(body))
    result = b.pull()
    assert [f.path for f in result.failed] == [bad.path] and result.failed[0].cause == "corrupt"
    assert len(b.files()) == len(a.files()) - 2, "only its version waits"


def test_L72_two_empty_files_do_not_prove_each_others_commit(a, b):
    a.write("files/one", "")
    a.write("files/two", "")
    a.push()
    rows = shared(a.engine)
    assert rows["files/one"].key != rows["files/two"].key
    assert rows["files/one"].identity != rows["files/two"].identity
    b.pull()
    b.delete("files/one")
    b.push()
    a.sync()
    assert set(a.files()) == {"files/two"}
    settled(a, b)


@pytest.mark.inv("pack.identity")
def test_L57_a_pending_delete_applies_to_content_that_was_moved(a, b, store):
    files = filled(a)
    b.pull()
    unit = version("out", 2)
    b.delete(unit)
    move(a)
    result = b.sync()
    assert result.ok and result.files_deleted == 2 and result.files_pulled == 0, result
    assert set(shared(a.engine)) == {p for p in files if unit_of(p) != unit}
    settled(a, b)


@pytest.mark.inv("pack.identity")
def test_L57_moved_content_is_not_news(a, b, store):
    filled(a)
    b.pull()
    name = move(a)
    meter = b.pull()
    assert meter.ok and meter.files_pulled == 0 and meter.bytes_pulled == 0 and not b.kept()
    assert {object_of(b.engine.state.base(p).key) for p in shared(b.engine)} == {name}
    settled(a, b)


@pytest.mark.inv("pack.place-now")
def test_L57_a_tombstone_names_the_place_of_the_root_that_it_is_swapped_on(a, b, store):
    """Moved between the plan and the swap, and the old pack is gone: what is deleted then can be brought back."""
    files = filled(a)
    b.pull()
    unit = version("out", 4)
    b.delete(unit)
    b.live.close()
    b.live = None
    b.store = Watched(store, once("put", ".datastore-index.json", lambda: move(a)))
    assert b.push().files_deleted == 2
    b.store = store
    assert undelete(a.engine.committer, a.pace, (unit,), unit_of).restored
    settled(a, b)
    assert a.files() == files


@pytest.mark.inv("pack.place-now")
def test_L57_what_waits_for_a_push_learns_its_new_place_with_the_mark(a, b, store):
    files = filled(a)
    b.pull()
    unit = version("out", 1)
    b.delete(unit)
    move(a)
    b.pull()
    assert b.push().files_deleted == 2
    assert undelete(a.engine.committer, a.pace, (unit,), unit_of).restored
    settled(a, b)
    assert a.files() == files


@pytest.mark.inv("pack.identity")
def test_an_older_delete_does_not_take_what_was_undeleted(a, b, peer):
    filled(a)
    b.pull()
    unit = version("out", 1)
    b.delete(unit)
    a.delete(unit)
    a.push()
    move(a, gone=False)
    undelete(a.engine.committer, a.pace, (unit,), unit_of)
    result = b.sync()
    assert b.has(f"{unit}/raw") and unit in {unit_of(p) for p in shared(b.engine)}, result


@pytest.mark.inv("crash.resolved")
def test_a_landed_commit_is_known_again_after_it_was_moved_and_overwritten(a, b, store):
    filled(a)
    b.pull()
    unit = version("new", 1)
    b.restart().close()
    lost = FaultyStore(store, [Fault("before", "put", "_index/log/*", skip=1, times=50)])
    b.live = b.process(lost)
    b.write("files/mine", "first")
    b.write_version(unit, "mine")
    with pytest.raises(SwampError):
        b.push()
    b.live.close()
    b.live = None
    a.pull()
    assert a.read("files/mine") == "first"
    move(a)
    a.write("files/mine", "second")
    a.push()
    a.delete("files/mine")
    a.push()
    b.sync()
    assert not b.has("files/mine"), "what was overwritten and deleted since does not rise again"
    settled(a, b)


@pytest.mark.inv("gc.objects")
def test_a_condemned_pack_is_given_up_with_every_file_in_it(a, b, store):
    def condemn(root):
        mine = {object_of(row) for row in b.engine.state.staged_keys()}
        return Changes(collecting=tuple(sorted(mine)), gc_epoch_step=1)

    a.write("files/x", "x")
    a.push()
    b.pull()
    committer = a.engine.committer
    b.live.close()
    acted = once("put", ".datastore-index.json", lambda: committer.commit(condemn, a.pace))
    b.live = b.process(Watched(store, acted))
    b.write("files/one", "1")
    b.write("files/two", "2")
    b.push()
    condemned = set(root_of(a.engine).collecting)
    assert len(condemned) == 1
    store.delete(sorted(condemned))
    assert content(b.engine) == {"files/x": "x", "files/one": "1", "files/two": "2"}


def test_S19_a_lazy_cache_whose_pack_was_moved_and_collected_still_reads(a, peer):
    files = filled(a)
    lazy = peer("lazy", policy=LAZY)
    lazy.pull()
    raw = f"{version('out', 3)}/raw"
    assert not lazy.has(raw)
    move(a)
    assert lazy.engine.materialize(raw).read_text() == files[raw]
    move(a)
    lazy.pull()
    other = f"{version('out', 4)}/raw"
    assert Path(lazy.engine.materialize(other)).read_text() == files[other]
    settled(a)


def test_hydrating_one_file_is_one_ranged_request(a, peer, store):
    files = filled(a)
    asked: list[tuple[str, str]] = []
    watched = Watched(store, lambda verb, key: asked.append((verb, key)))
    lazy = peer("lazy", policy=LAZY, store=watched)
    lazy.pull()
    asked.clear()
    raw = f"{version('out', 5)}/raw"
    assert lazy.engine.materialize(raw).read_text() == files[raw]
    assert len(asked) == 1 and asked[0][1].startswith(PACK_PREFIX)


def test_verify_reads_each_pack_once_and_judges_each_file_by_itself(store, a):
    for n in range(60):
        a.write(f"files/{n:02d}", f"{n} " + hashlib.sha256(b"%d" % n).hexdigest() * 3)
    a.push()
    rows = shared(a.engine)
    assert len({object_of(row.key) for row in rows.values()}) == 1
    metered = MeterStore(store)
    engine = a.process(metered)
    before = metered.meter.calls["get"]
    found = verify(engine.context, IdleTimeout(a.env, 60.0), threads=4)
    assert (found.checked, found.bytes, found.ok) == (60, sum(row.size for row in rows.values()), True)
    assert metered.meter.calls["get"] - before <= 2, "the root, and the pack"
    assert not metered.meter.calls["open"]
    cut = slice_of(rows["files/07"].key)
    assert cut is not None
    body = bytearray(store.get(cut.pack).body)
    body[cut.offset + 5] ^= 1
    store.put(cut.pack, bytes(body))
    found = verify(engine.context, IdleTimeout(a.env, 60.0), threads=4)
    assert (found.corrupt, found.missing, found.checked) == (("files/07",), (), 60)
    store.delete([cut.pack])
    found = verify(engine.context, IdleTimeout(a.env, 60.0), threads=4)
    assert (found.missing, found.corrupt) == (tuple(sorted(rows)), ())
    engine.close()
