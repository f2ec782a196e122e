"""How a store comes to have a root: lost, damaged, of an older version, or never written."""

from __future__ import annotations

import json

import pytest

import swamp.commit.bootstrap
from peers import Watched, content, keys, once, root_of, ruin_root, settled, shared, version
from swamp.errors import CorruptData, NewerFormat
from swamp.index.root import ROOT_KEY, decode, encode
from swamp.store.layers import MeterStore

OLD = "2025-01-01T00:00:00Z"


def writes(meter: MeterStore) -> int:
    return meter.meter.calls["put"] + meter.meter.calls["delete"]


def leave_without_root(store, a, found: str) -> None:
    """`files/two`, as somebody finds it who has to make a root of it first."""
    if found == "version 1":
        put_v1(store, {"files/two": b"two"})
    elif found == "version 2":
        store.put("files/two", b"two")
        store.put("_index/_meta.json", json.dumps({"version": 2, "partitions": ["files"], "commitSeq": 3}).encode())
        entry = {"key": "files/two", "size": 3, "lastModified": OLD}
        store.put("_index/files.json", json.dumps({"version": 1, "entries": {"files/two": entry}}).encode())
    elif found == "a listing":
        store.put("files/two", b"two")
    else:
        a.write("files/two", "two")
        a.push()
        ruin_root(store, {"lost": None, "damaged": b"{"}[found])


@pytest.mark.parametrize("damage", [b"", b"{", b'{"version": 3}', b"[]", b"\xff\xfe", b'{"version": "three"}'])
def test_a_corrupt_root_is_rebuilt_from_the_log_and_kept(store, a, b, damage):
    a.write("files/x", "x")
    a.write_version(version("out", 1), "raw")
    a.push()
    b.pull()
    before = root_of(a.engine)
    store.put(ROOT_KEY, damage)
    result = b.sync()
    after = root_of(b.engine)
    assert result.discovered and any("rebuilt" in w for w in result.warnings)
    assert after.seq == before.seq + 2 and after.op != before.op and after.gc_epoch == before.gc_epoch + 2
    assert after.entries == before.entries and after.store_id == before.store_id
    kept = [k for k in keys(store) if k.startswith("_index/corrupt-")]
    assert [store.get(k).body for k in kept] == [damage]
    settled(a, b)
    assert a.files() == content(a.engine)


def test_two_machines_that_find_the_root_lost_at_once_end_with_one(store, a, b):
    a.write("files/x", "x")
    a.push()
    b.pull()
    store.delete([ROOT_KEY])
    a.write("files/a", "a")
    b.write("files/b", "b")
    a.sync()
    b.sync()
    settled(a, b)
    assert content(a.engine) == {"files/x": "x", "files/a": "a", "files/b": "b"}


@pytest.mark.parametrize("found", ["version 1", "a listing", "lost", "damaged"])
def test_only_the_machine_that_published_the_root_says_so(store, a, b, found):
    leave_without_root(store, a, found)
    said = []
    slow = b.process(Watched(store, once("put", ROOT_KEY, lambda: said.append(a.pull().discovered))))
    assert not slow.pull().discovered and said == [True]
    settled(a, b)


@pytest.mark.parametrize("found", ["version 1", "version 2", "a listing", "lost", "damaged"])
@pytest.mark.parametrize("mode", ["pull", "push", "sync"])
def test_a_dry_run_shows_what_would_be_found_first_and_changes_nothing(store, a, b, found, mode):
    leave_without_root(store, a, found)
    b.write("files/mine", "mine")
    meter = MeterStore(store)
    before, rows = keys(store), list(b.engine.state.journal())
    planned = b.process(meter).plan(mode)
    assert {action.path for action in planned.actions("pull")} == {"files/two"}
    assert {action.path for action in planned.actions("push")} == {"files/mine"}
    assert writes(meter) == 0 and keys(store) == before and list(b.engine.state.journal()) == rows
    assert b.files() == {"files/mine": "mine"}
    done = b.sync()
    assert (done.files_pulled, done.files_pushed) == (1, 1), "and then it happens"


@pytest.mark.inv("rebuild.newest-record")
@pytest.mark.parametrize("damage", ["gone", "wrong"])
def test_a_record_whose_segments_are_damaged_gives_way_to_an_older_one_only_by_consent(
    store, a, b, monkeypatch, damage
):
    monkeypatch.setattr("swamp.commit.commit.LAYER_ROWS", 2)
    a.write("files/1", "1")
    a.push()
    whole = root_of(a.engine)
    for i in range(2, 5):
        a.write(f"files/{i}", f"{i}")
    a.push()
    assert root_of(a.engine).segments
    for ref in root_of(a.engine).segments:
        store.put(ref.key, b"another's bytes") if damage == "wrong" else store.delete([ref.key])
    store.delete([ROOT_KEY])
    for command in (b.pull, a.pull, a.push):
        with pytest.raises(CorruptData, match=f"commit {whole.seq} can"):
            command()
    assert ROOT_KEY not in keys(store), "an older record forgets what was acknowledged"
    swamp.commit.bootstrap.repair(a.engine.committer, a.pace)
    b.pull()
    assert set(shared(b.engine)) == set(whole.entries)
    assert root_of(b.engine).seq > whole.seq + 1, "above every record"
    assert a.read("files/4") == "4"


def test_a_newer_version_of_the_index_is_left_alone(store, a):
    a.write("files/x", "x")
    a.push()
    doc = json.loads(store.get(ROOT_KEY).body) | {"version": 5}
    newer = json.dumps(doc).encode()
    store.put(ROOT_KEY, newer)
    a.write("files/y", "y")
    for command in (a.pull, a.push, a.sync):
        with pytest.raises(NewerFormat) as told:
            command()
        assert "upgrade" in (told.value.hint or "")
    assert store.get(ROOT_KEY).body == newer


def test_fields_of_a_newer_swamp_survive_our_commits(store, a, b):
    a.write("files/x", "x")
    a.write("files/y", "y")
    a.push()
    doc = json.loads(store.get(ROOT_KEY).body)
    doc["colour"] = {"of": "the sky"}
    doc["entries"]["files/x"]["mime"] = "text/plain"
    store.put(ROOT_KEY, json.dumps(doc).encode())
    b.sync()
    b.write("files/z", "z")
    b.push()
    after = json.loads(store.get(ROOT_KEY).body)
    assert after["colour"] == {"of": "the sky"} and after["entries"]["files/x"]["mime"] == "text/plain"


# --- older formats


def put_v1(store, files: dict[str, bytes], **more) -> None:
    entries = {}
    for path, body in files.items():
        store.put(path, body)
        entries[path] = {"key": path, "size": len(body), "lastModified": OLD, "localMtime": OLD} | more
    store.put(ROOT_KEY, json.dumps({"version": 1, "lastPulled": OLD, "entries": entries}).encode())


def test_a_version_1_index_is_adopted_where_it_stands(store, a, b):
    put_v1(store, {"data/old/1": b"one", "files/two": b"two"})
    store.put("files/not-indexed", b"the old index did not know it")
    result = a.pull()
    assert result.discovered and a.files() == {"data/old/1": "one", "files/two": "two"}
    assert {e.key for e in shared(a.engine).values()} == {"data/old/1", "files/two"}, "payloads stay where they are"
    assert decode(store.get(ROOT_KEY).body).seq == 1
    meter = MeterStore(store)
    assert b.process(meter).pull().files_pulled == 2 and writes(meter) == 0
    settled(a, b)


def test_version_2_shards_win_over_the_frozen_version_1_index(store, a, b):
    put_v1(store, {"files/stale": b"stale"})
    for path, body in (("files/now", b"now"), ("data/t/x", b"x")):
        store.put(path, body)
        part = path.partition("/")[0]
        shard = {"version": 1, "entries": {path: {"key": path, "size": len(body), "lastModified": OLD}}}
        store.put(f"_index/{part}.json", json.dumps(shard).encode())
    meta = {"version": 2, "partitions": ["files", "data"], "commitSeq": 3}
    store.put("_index/_meta.json", json.dumps(meta).encode())
    a.pull()
    assert a.files() == {"files/now": "now", "data/t/x": "x"}
    a.write("files/new", "new")
    assert a.push().ok
    settled(a, b)


def test_a_version_2_index_with_a_lost_shard_is_not_adopted_in_part(store, a):
    put_v1(store, {})
    shard = {"version": 1, "entries": {}}
    store.put("_index/files.json", json.dumps(shard).encode())
    meta = {"version": 2, "partitions": ["files", "data"], "commitSeq": 3}
    store.put("_index/_meta.json", json.dumps(meta).encode())
    before = keys(store)
    with pytest.raises(CorruptData):
        a.pull()
    assert keys(store) == before and json.loads(store.get(ROOT_KEY).body)["version"] == 1


# --- no index at all


def test_an_un_indexed_bucket_is_discovered_once_and_the_second_machine_writes_nothing(store, a, b):
    for i in range(3):
        store.put(f"data/t/m/{i}", f"{i}".encode())
    store.put("elsewhere/file", b"not in a tier directory")
    result = a.pull()
    assert result.discovered and result.files_pulled == 3
    root = store.get(ROOT_KEY).body
    meter = MeterStore(store)
    second = b.process(meter).sync()
    assert not second.discovered and second.files_pulled == 3 and writes(meter) == 0
    assert store.get(ROOT_KEY).body == root
    settled(a, b)


def test_many_objects_are_discovered_into_segments(store, a, b, monkeypatch):
    monkeypatch.setattr(swamp.commit.bootstrap, "LAYER_ROWS", 4)
    for i in range(9):
        store.put(f"files/{i}", f"{i}".encode())
    assert a.pull().files_pulled == 9
    root = root_of(a.engine)
    assert sum(ref.rows for ref in root.segments) == 9 and not root.entries
    a.write("files/3", "edited")
    a.delete("files/4")
    a.push()
    settled(a, b)
    assert b.read("files/3") == "edited" and not b.has("files/4")


def test_one_upload_name_without_a_root_means_that_an_index_was_lost(store, a, b):
    store.put("files/plain", b"plain")
    store.put("files/x~01ARZ3NDEKTSV4RRFFQ69G5FAV", b"written by an index")
    a.write("files/mine", "mine")
    before = keys(store)
    for command in (a.push, a.sync, b.pull):
        with pytest.raises(CorruptData) as told:
            command()
        assert told.value.exit_code == 65
    assert keys(store) == before


def test_an_empty_bucket_stays_empty_until_there_is_something_to_push(store, a):
    for command in (a.pull, a.push, a.sync, lambda: a.push(full=True)):
        assert command().ok
    assert keys(store) == set()
    a.write("files/x", "x")
    assert a.push().files_pushed == 1 and root_of(a.engine).seq == 2


def test_a_dry_run_changes_nothing_anywhere(store, a, b):
    a.write("files/x", "x")
    a.write("files/y", "y")
    a.push()
    b.pull()
    b.write("files/x", "edited")
    b.delete("files/y")
    before = {k: store.get(k).body for k in keys(store)}
    rows = b.engine.state.journal()
    planned = b.engine.plan("push").to_json("push")
    assert {(r["path"], r["action"]) for r in planned["plan"]} == {("files/x", "push"), ("files/y", "delete")}
    assert {k: store.get(k).body for k in keys(store)} == before
    assert b.engine.state.journal() == rows and b.read("files/x") == "edited"
    assert encode(root_of(a.engine)) == before[ROOT_KEY]
