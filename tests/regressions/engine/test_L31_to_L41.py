"""L31 to L41: payloads that are not there, garbage, slow pushes, lost state, old clients."""

from __future__ import annotations

import datetime as dt
import json
import threading
import time

import pytest

from peers import Aged, Peer, Watched, content, keys, once, settled, shared, version
from swamp.commit.bootstrap import repair
from swamp.commit.collect import UNDO_WINDOW, collect
from swamp.commit.restore import undelete
from swamp.env import SYSTEM
from swamp.errors import CorruptData, UsageError
from swamp.index.root import ROOT_KEY
from swamp.store.layers import PrefixStore
from swamp.sync.progress import IdleTimeout
from swamp.sync.units import unit_of
from swamp.sync.verify import verify
from swamp.testing.faulty import Fault, FaultyStore

DAY = dt.timedelta(days=1)


def check(peer: Peer, **more):
    return verify(peer.engine.context, IdleTimeout(peer.env, 60.0), threads=2, **more)


# --- L31


def test_L31_one_file_that_cannot_be_uploaded_holds_back_nothing_else(store, a, b):
    for i in range(6):
        a.write(f"files/{i}", f"{i}")
    refused = UsageError("this key is too long for the store")
    broken = FaultyStore(store, [Fault("refuse", "put", "files/3~*", times=None, error=refused)])
    result = a.process(broken).push()
    assert [(f.path, "too long" in f.error) for f in result.failed] == [("files/3", True)]
    assert result.files_pushed == 5
    assert [r.path for r in a.engine.state.journal()] == ["files/3"]
    b.pull()
    assert set(b.files()) == {f"files/{i}" for i in range(6)} - {"files/3"}
    assert a.push().files_pushed == 1
    settled(a, b)


def test_L31_an_over_long_path_is_reported_and_the_rest_goes(a):
    deep = "/".join(["d" * 200] * 5)
    with a.engine.announce(["files"]):
        a.put("files/short", "x")
        a.put(f"files/{deep}/x", "x")
    result = a.push()
    assert not result.ok and set(shared(a.engine)) == {"files/short"}


# --- L32


@pytest.mark.inv("entry.keeps")
def test_L32_a_missing_payload_never_removes_the_entry_and_heals_from_a_cache_that_has_it(store, a, b, peer):
    a.write_version(version("out", 1), "precious")
    a.write("files/other", "other")
    a.push()
    b.pull()
    raw = f"{version('out', 1)}/raw"
    store.delete([shared(a.engine)[raw].key])
    fresh = peer("c")
    result = fresh.pull()
    assert [f.path for f in result.failed] == [raw] and fresh.read("files/other") == "other"
    assert not fresh.has(f"{version('out', 1)}/metadata.yaml"), "half a version is not shown"
    fresh.write("files/from-c", "c")
    fresh.push()
    assert raw in shared(a.engine)
    for one in (a, b):
        one.sync()
        assert one.read(raw) == "precious", "nobody gives up a good copy"
    report = check(fresh, repair=True)
    assert report.missing == (raw,)
    assert shared(a.engine)[raw].missing and shared(a.engine)[raw].sha256
    again = b.sync()
    assert again.ok and again.files_pushed == 1, "it has bytes of that hash and uploads them again"
    assert content(a.engine)[raw] == "precious" and not shared(a.engine)[raw].missing
    settled(a, b, fresh)
    assert fresh.read(raw) == "precious"


@pytest.mark.inv("entry.keeps")
def test_L32_a_push_alone_heals_too(store, a, b):
    a.write("files/x", "precious")
    a.push()
    store.delete([shared(a.engine)["files/x"].key])
    b.pull()
    assert check(b, repair=True).missing == ("files/x",)
    assert a.push().files_pushed == 1
    assert content(a.engine)["files/x"] == "precious"
    settled(a, b)


@pytest.mark.inv("entry.keeps")
def test_L32_verify_heals_from_its_own_cache_and_drops_only_what_it_is_told(store, a, b):
    for name in ("one", "two", "three"):
        a.write(f"files/{name}", name)
    a.push()
    b.pull()
    store.delete([e.key for p, e in shared(a.engine).items() if p != "files/three"])
    report = check(a, repair=True)
    assert report.healed == ("files/one", "files/two") and report.ok
    store.delete([shared(a.engine)["files/one"].key, shared(a.engine)["files/two"].key])
    (a.tree / "files/one").unlink()
    (a.tree / "files/two").unlink()
    report = check(a, repair=True, drop=("files/one",))
    assert report.dropped == ("files/one",) and report.missing == ("files/two",)
    assert set(shared(a.engine)) == {"files/two", "files/three"}
    b.sync()
    assert content(b.engine)["files/two"] == "two"


@pytest.mark.inv("entry.keeps")
def test_L32_a_payload_that_is_missing_once_is_not_missing(store, a, b):
    from swamp.errors import ObjectMissing

    a.write("files/x", "x")
    a.push()
    flaky = FaultyStore(store, [Fault("refuse", "get", "files/x~*", error=ObjectMissing("404"))])
    one = b.process(flaky)
    assert [f.path for f in one.pull().failed] == ["files/x"]
    assert one.pull().ok and b.read("files/x") == "x"
    settled(a, b)


# --- L33


@pytest.mark.parametrize("how", ["deleted", "overwritten"])
def test_L33_the_undo_window_counts_from_the_drop_not_from_the_upload(store, peer, how):
    aged = Aged(store)
    a, b = peer("a", store=aged), peer("b", store=aged)
    a.write("files/x", "old upload")
    a.push()
    b.pull()
    key = shared(a.engine)["files/x"].key
    aged.ages = {key: 300 * DAY, "_index/log/": 300 * DAY}
    if how == "deleted":
        a.delete("files/x")
    else:
        a.write("files/x", "new")
    a.push()
    aged.ages["_index/log/"] = 0 * DAY
    done = collect(a.engine.committer, a.pace)
    assert done.deleted == 0 and key in keys(store), "it was dropped today"
    aged.ages["_index/log/"] = UNDO_WINDOW + DAY
    assert collect(a.engine.committer, a.pace).deleted == 1 and key not in keys(store)


def test_L33_the_drop_of_a_commit_without_its_record_is_young(store, peer):
    aged = Aged(store)
    a, b = peer("a", store=aged), peer("b", store=aged)
    a.write("files/x", "x")
    a.push()
    key = shared(a.engine)["files/x"].key
    aged.ages = {key: 300 * DAY}
    a.delete("files/x")
    a.push()
    newest = max(keys(store, "_index/log/"))
    store.delete([newest])  # its writer died before it could write it
    assert collect(b.engine.committer, b.pace).deleted == 0
    assert key in keys(store) and newest in keys(store)


@pytest.mark.inv("unit.whole")
def test_L33_undelete_brings_whole_units_back_on_every_machine(a, b):
    a.write_version(version("out", 1), "one")
    a.write("files/x", "x")
    a.push()
    b.pull()
    before = shared(a.engine)
    a.delete(version("out", 1))
    a.delete("files/x")
    a.push()
    b.pull()
    done = undelete(a.engine.committer, a.pace, [f"{version('out', 1)}/raw"], unit_of)
    assert set(done.restored) == {f"{version('out', 1)}/raw", f"{version('out', 1)}/metadata.yaml"}
    now = shared(a.engine)
    assert now[f"{version('out', 1)}/raw"].key == before[f"{version('out', 1)}/raw"].key
    assert now[f"{version('out', 1)}/raw"].seq > before[f"{version('out', 1)}/raw"].seq
    settled(a, b)
    assert b.read(f"{version('out', 1)}/raw") == "one" and not b.has("files/x")


@pytest.mark.inv("delete.by-key")
def test_L33_an_older_delete_row_does_not_delete_what_was_undeleted(store, a, b):
    a.write("files/x", "x")
    a.push()
    b.pull()
    b.delete("files/x")  # not pushed yet
    a.delete("files/x")
    a.push()
    undelete(a.engine.committer, a.pace, ["files/x"], unit_of)
    result = b.sync()
    assert content(b.engine) == {"files/x": "x"}
    assert [c.path for c in result.conflicts] == ["files/x"], "what was deleted is not what is there"
    settled(a, b)
    assert b.read("files/x") == "x"


def test_L33_what_the_collector_has_condemned_is_not_undeleted(store, a):
    a.write("files/x", "x")
    a.push()
    a.delete("files/x")
    a.push()
    collect(a.engine.committer, a.pace, keep=0 * DAY)
    done = undelete(a.engine.committer, a.pace, ["files/x"], unit_of)
    assert done.restored == () and done.gone == ("files/x",)
    assert content(a.engine) == {}


# --- L34


def test_L34_a_collector_never_takes_other_tenants_objects(store, a, peer):
    inside = peer("n", store=PrefixStore(store, "data/team-one"))
    inside.write("files/x", "theirs")
    inside.push()
    beside = peer("m", store=PrefixStore(store, "team-two"))
    beside.write("files/x", "theirs")
    beside.push()
    PrefixStore(store, "files/team-three").put(".namespace.json", b"{}")
    store.put("files/team-three/data/x~01ARZ3NDEKTSV4RRFFQ69G5FAV", b"theirs")
    a.write("files/mine", "mine")
    a.push()
    a.write("files/mine", "mine 2")
    a.push()
    before = keys(store)
    done = collect(a.engine.committer, a.pace, keep=0 * DAY)
    gone = before - keys(store)
    assert done.deleted == len(gone) == 1 and next(iter(gone)).startswith("files/mine~")


def test_L34_discovery_never_takes_other_tenants_objects_for_its_own(store, a, peer):
    inside = peer("n", store=PrefixStore(store, "data/team-one"))
    inside.write("files/x", "theirs")
    inside.push()
    PrefixStore(store, "data/team-four").put(".namespace.json", b"{}")
    store.put("data/team-four/files/y", b"theirs")
    store.put("data/own/file", b"mine")
    a.pull()
    assert set(shared(a.engine)) == {"data/own/file"}


# --- L35, L36


@pytest.mark.inv("journal.first")
def test_L35_a_parallel_push_cannot_retire_a_row_whose_write_has_not_happened(store, a, b):
    a.write("files/seed", "seed")
    a.push()
    writer, pusher = a.process(env=SYSTEM), a.process(env=SYSTEM)
    announced, done = threading.Event(), threading.Event()

    def slow_write() -> None:
        with writer.announce(["files/slow"]):
            announced.set()
            time.sleep(0.4)
            a.put("files/slow", "slow")
            done.set()

    thread = threading.Thread(target=slow_write)
    thread.start()
    announced.wait()
    pusher.push()
    assert done.is_set(), "a plan waits until nobody mutates"
    thread.join()
    writer.push()
    assert content(a.engine) == {"files/seed": "seed", "files/slow": "slow"}
    settled(a, b)


@pytest.mark.inv("journal.survives")
def test_L36_a_slow_parallel_push_cannot_roll_an_acknowledged_write_back(store, a, b):
    a.write("files/x", "first")
    a.push()
    a.write("files/x", "second")
    slow_is_in, go_on = threading.Event(), threading.Event()

    def pause() -> None:
        slow_is_in.set()
        go_on.wait(20)

    slow = a.process(Watched(store, once("put", ROOT_KEY, pause)), env=SYSTEM)
    thread = threading.Thread(target=slow.push)
    thread.start()
    slow_is_in.wait()
    a.write("files/x", "third and newest")
    quick = threading.Thread(target=a.process(env=SYSTEM).push)
    quick.start()
    time.sleep(0.2)
    go_on.set()
    thread.join()
    quick.join()
    assert content(a.engine) == {"files/x": "third and newest"}
    settled(a, b)


# --- L37


@pytest.mark.inv("sync.derived")
def test_L37_a_push_by_a_cache_that_is_behind_does_not_count_as_a_pull(a, b):
    a.write("files/seed", "seed")
    a.push()
    b.pull()
    for i in range(3):
        a.write(f"files/{i}", "new")
        a.push()
    b.write("files/b", "b")
    b.push()
    assert not b.has("files/1")
    assert b.pull().files_pulled == 3
    settled(a, b)


# --- L38, L39


class Crash(BaseException):
    pass


@pytest.mark.inv("crash.resolved")
def test_L38_a_file_renamed_but_not_recorded_does_not_come_back_after_its_deletion(store, a, b, peer):
    a.write("files/x", "x")
    a.push()
    b.pull()

    calls = 0

    def crash_while_placing(point: str) -> None:
        nonlocal calls
        if point == "commit" and c.has("files/x"):
            raise Crash

    c = peer("c")
    with pytest.raises(Crash):
        c.process(hook=crash_while_placing).pull()
    assert c.has("files/x") and not c.engine.state.has_base()
    a.delete("files/x")
    a.push()
    result = c.sync()
    assert content(a.engine) == {}, "it is not pushed"
    assert not c.has("files/x") and c.kept() == {"files/x": "x"}
    assert [conflict.path for conflict in result.conflicts] == ["files/x"], "and the user is told"
    settled(a, b, c)


@pytest.mark.inv("cache.disposable")
@pytest.mark.parametrize("command", ["sync", "push", "pull"])
def test_L39_lost_state_does_not_raise_the_dead(a, b, command):
    a.write("files/dead", "dead")
    a.write("files/alive", "alive")
    a.write_version(version("out", 1), "dead version")
    a.push()
    b.pull()
    a.delete("files/dead")
    a.delete(version("out", 1))
    a.push()
    b.engine.close()
    b.live = None
    for file in b.cache.base.glob("state.db*"):
        file.unlink()
    b.put("files/found", "never pushed")
    result = getattr(b, command)()
    assert {c.path for c in result.conflicts} >= {"files/dead", f"{version('out', 1)}/raw"}
    assert b.kept()["files/dead"] == "dead" and b.kept()[f"{version('out', 1)}/raw"] == "dead version"
    settled(a, b)
    assert content(a.engine) == {"files/alive": "alive", "files/found": "never pushed"}


# --- L40


@pytest.mark.inv("delete.by-key")
def test_L40_a_delete_does_not_match_a_file_that_was_created_again(a, b):
    a.write("files/x", "same bytes")
    a.push()
    b.pull()
    b.delete("files/x")
    a.delete("files/x")
    a.push()
    a.write("files/x", "same bytes")
    a.push()
    result = b.push()
    assert result.files_deleted == 0 and not result.ok
    assert content(a.engine) == {"files/x": "same bytes"}
    pulled = b.sync()
    assert [c.path for c in pulled.conflicts] == ["files/x"]
    settled(a, b)
    assert b.read("files/x") == "same bytes"


# --- L41


def old_root(files: dict[str, int]) -> bytes:
    entries = {p: {"key": p, "size": size, "lastModified": "2025-01-01T00:00:00Z"} for p, size in files.items()}
    return json.dumps({"version": 1, "lastPulled": "", "entries": entries}).encode()


def test_L41_an_old_client_that_overwrote_the_root_is_noticed_and_nothing_is_lost(store, a, b):
    a.write("files/x", "x")
    a.push()
    b.pull()
    store.put("files/old-client", b"by the old one")
    store.put(ROOT_KEY, old_root({"files/old-client": 14}))
    a.write("files/y", "y")
    for command in (a.push, a.pull, b.sync):
        with pytest.raises(CorruptData) as told:
            command()
        assert told.value.exit_code == 65 and "doctor --repair" in (told.value.hint or "")
    assert store.get(ROOT_KEY).body == old_root({"files/old-client": 14}), "nothing is overwritten by guessing"
    repair(a.engine.committer, a.pace)
    assert any("_index/corrupt-" in key for key in keys(store)), "the old client's root is kept"
    a.sync()
    settled(a, b)
    assert content(a.engine) == {"files/x": "x", "files/y": "y"}
    assert "files/old-client" in keys(store), "what the old client added is there to be adopted"


def test_L41_an_old_client_that_goes_on_with_its_shards_stops_every_push(store, a, b):
    store.put("files/old", b"old")
    store.put("_index/files.json", json.dumps(_shard({"files/old": 3})).encode())
    store.put("_index/_meta.json", json.dumps({"version": 2, "partitions": ["files"], "commitSeq": 7}).encode())
    store.put(ROOT_KEY, old_root({}))
    a.write("files/new", "new")
    a.push()
    assert content(a.engine) == {"files/old": "old", "files/new": "new"}, "shards win over the frozen monolith"
    store.put("files/more", b"more")
    store.put("_index/files.json", json.dumps(_shard({"files/old": 3, "files/more": 4})).encode())
    store.put("_index/_meta.json", json.dumps({"version": 2, "partitions": ["files"], "commitSeq": 8}).encode())
    a.write("files/newer", "newer")
    with pytest.raises(CorruptData) as told:
        a.push()
    assert told.value.exit_code == 65 and "doctor --repair" in (told.value.hint or "")
    assert a.engine.status().pending.writes == 1
    repair(a.engine.committer, a.pace)
    assert a.push().files_pushed == 1
    settled(a, b)
    assert content(a.engine) == {"files/old": "old", "files/new": "new", "files/newer": "newer"}


def _shard(files: dict[str, int]) -> dict[str, object]:
    return {"version": 1, "entries": {p: {"key": p, "size": s, "lastModified": ""} for p, s in files.items()}}
