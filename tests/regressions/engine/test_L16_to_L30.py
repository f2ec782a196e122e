"""L16 to L30: overlapping commits, buckets without an index, names that must not travel, caches that were lost."""

from __future__ import annotations

import datetime as dt
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

from peers import Watched, content, keys, once, root_of, settled, shared, version
from swamp.commit.collect import collect
from swamp.errors import AccessDenied, CorruptData, OutcomeUnknown, Unavailable
from swamp.index.root import ROOT_KEY
from swamp.store.layers import MeterStore, PrefixStore
from swamp.sync.engine import Policy
from swamp.testing.faulty import Fault, FaultyStore

NOW = dt.timedelta(0)


def later(b, *paths: str):
    """Another machine commits: an action for `once`."""

    def act() -> None:
        for path in paths:
            b.write(path, f"{path} by {b.name}")
        b.push()

    return act


# --- L16


@pytest.mark.inv("commit.single-winner")
@pytest.mark.parametrize("path", ["files/theirs", "files/mine"])
def test_L16_a_commit_made_meanwhile_is_never_hidden(store, a, b, path):
    a.write("files/seed", "seed")
    a.push()
    b.pull()
    a.write("files/mine", "mine")
    result = a.process(Watched(store, once("put", ROOT_KEY, later(b, path)))).push()
    there = content(a.engine)
    assert there[path] == f"{path} by b"
    if path == "files/mine":
        assert [c.path for c in result.conflicts] == ["files/mine"] and a.kept() == {"files/mine": "mine"}
    else:
        assert there["files/mine"] == "mine" and result.ok
    root = root_of(a.engine)
    assert len({op for op, _ in root.recent_ops}) == len(root.recent_ops)
    assert [seq for _, seq in root.recent_ops] == sorted({seq for _, seq in root.recent_ops}, reverse=True)
    settled(a, b)


@pytest.mark.inv("commit.single-winner")
def test_L16_many_machines_at_once_lose_nothing(store, peer):
    crowd = [peer(f"p{i}") for i in range(4)]
    crowd[0].write("files/seed", "seed")
    crowd[0].push()

    def work(one) -> None:
        for turn in range(3):
            one.write(f"files/{one.name}/{turn}", f"{one.name} {turn}")
            assert one.push().ok

    with ThreadPoolExecutor(len(crowd)) as pool:
        list(pool.map(work, crowd))
    expected = {f"files/{p.name}/{t}": f"{p.name} {t}" for p in crowd for t in range(3)} | {"files/seed": "seed"}
    assert content(crowd[0].engine) == expected
    assert root_of(crowd[0].engine).seq == 1 + 1 + 12
    settled(*crowd)


# --- L17


@pytest.mark.inv("commit.unknown-is-not-failure")
def test_L17_a_swap_abandoned_at_a_deadline_cannot_overwrite_its_successor(store, a, b):
    a.write("files/seed", "seed")
    a.push()
    b.pull()
    a.write("files/mine", "mine")
    silence = Fault("before", "get", ROOT_KEY, skip=1, times=None)
    slow = FaultyStore(store, [Fault("late", "put", ROOT_KEY, times=None), silence])
    with pytest.raises(OutcomeUnknown):
        a.process(slow, timeout=5.0).push()
    assert a.engine.status().pending.writes == 1, "unknown keeps everything"
    b.write("files/theirs", "theirs")
    b.push()
    assert slow.land() == 0, "the condition of the late swap fails"
    a.sync()
    assert content(a.engine) == {"files/seed": "seed", "files/mine": "mine", "files/theirs": "theirs"}
    settled(a, b)


@pytest.mark.inv("object.key-once")
def test_L17_a_payload_that_lands_late_changes_nothing_that_is_live(store, a, b):
    a.write("files/mine", "first")
    slow = FaultyStore(store, [Fault("late", "put", "files/mine~*")])
    assert a.process(slow).push().files_pushed == 1
    a.write("files/mine", "second")
    a.push()
    slow.land()
    assert content(a.engine) == {"files/mine": "second"}
    settled(a, b)


# --- L18


def test_L18_a_push_onto_a_bucket_with_data_and_no_index_merges(store, a, b):
    store.put("data/old/file", b"old")
    store.put("files/both", b"theirs")
    a.write("files/mine", "mine")
    a.write("files/both", "mine, other bytes")
    result = a.push()
    assert result.discovered
    assert content(a.engine) == {"data/old/file": "old", "files/both": "theirs", "files/mine": "mine"}
    assert [c.path for c in result.conflicts] == ["files/both"]
    settled(a, b)
    assert b.files() == content(b.engine)


def test_L18_a_file_that_is_equal_to_what_the_bucket_holds_is_adopted(store, a):
    store.put("files/both", b"same bytes")
    a.write("files/both", "same bytes")
    a.write("files/mine", "mine")
    result = a.push()
    assert result.ok and result.files_pushed == 1
    assert shared(a.engine)["files/both"].key == "files/both"


# --- L19, L20


@pytest.mark.inv("sync.derived")
def test_L19_a_push_with_nothing_to_push_does_not_make_a_fresh_cache_clean(a, b):
    for i in range(5):
        a.write(f"files/{i}", "x")
    a.push()
    assert b.push().files_pushed == 0
    result = b.pull()
    assert result.files_pulled == 5 and not result.fast_path
    assert b.files() == a.files()


@pytest.mark.inv("sync.derived")
def test_L19_also_when_the_fresh_cache_pushes_a_file_of_its_own_first(a, b):
    for i in range(3):
        a.write(f"files/{i}", "x")
    a.push()
    b.write("files/b", "b")
    assert b.push().files_pushed == 1
    assert b.pull().files_pulled == 3


@pytest.mark.inv("cache.disposable")
def test_L20_a_no_op_push_after_lost_state_restores_the_fast_path(store, a):
    a.write("files/x", "x")
    a.write_version(version("out", 1), "raw")
    a.push()
    a.engine.close()
    a.live = None
    for file in a.cache.base.glob("state.db*"):
        file.unlink()
    meter = MeterStore(store)
    counted = a.process(meter)
    first = counted.push()
    assert first.ok and (first.files_pushed, first.files_pulled) == (0, 0) and not first.fast_path
    for again in (counted.push, counted.pull, counted.sync):
        before = meter.requests
        result = again()
        assert result.fast_path and meter.requests - before == 1, again


# --- L21


@pytest.mark.inv("commit.unknown-is-not-failure")
@pytest.mark.parametrize("error", ["503", "403", "cut short"])
def test_L21_a_transient_error_is_not_a_missing_index(store, a, b, error):
    a.write("files/x", "x")
    a.push()
    before = store.get(ROOT_KEY).body
    fault = {
        "503": Fault("before", "get", ROOT_KEY, times=None),
        "403": Fault("refuse", "get", ROOT_KEY, times=None, error=AccessDenied("no")),
        "cut short": Fault("after", "get", ROOT_KEY, times=None),
    }[error]
    b.put("files/local", "local")
    broken = b.process(FaultyStore(store, [fault]))
    for command in (broken.push, broken.pull, broken.sync):
        with pytest.raises((Unavailable, AccessDenied)):
            command()
    assert store.get(ROOT_KEY).body == before
    settled(a, b)
    assert set(content(b.engine)) == {"files/x", "files/local"}


def test_L21_a_listing_that_fails_half_way_publishes_nothing(store, a):
    for i in range(4):
        store.put(f"data/old/{i}", b"old")
    broken = FaultyStore(store, [Fault("cut", "list", "data/", count=2, times=None)])
    with pytest.raises(Unavailable):
        a.process(broken).pull()
    assert ROOT_KEY not in keys(store)
    assert a.pull().files_pulled == 4


# --- L22


@pytest.mark.inv("entry.keeps")
def test_L22_lock_files_never_enter_an_index_and_a_missing_payload_stops_nothing(store, a, b):
    for key in ("data/t/m/.lock", "data/t/.lock", "files/.lock", ".datastore.lock", "data/t/m/n/latest"):
        store.put(key, b"{}")
    for i in range(4):
        store.put(f"data/t/m/file-{i}", b"x")
    assert a.pull().files_pulled == 4
    assert set(shared(a.engine)) == {f"data/t/m/file-{i}" for i in range(4)}
    store.delete(["data/t/m/.lock", "data/t/m/file-2"])
    result = b.pull()
    assert [f.path for f in result.failed] == ["data/t/m/file-2"] and result.files_pulled == 3
    assert "data/t/m/file-2" in shared(b.engine), "the entry stays"
    again = b.pull()
    assert [f.path for f in again.failed] == ["data/t/m/file-2"], "it is said again until it is healed"


# --- L23, L24


def only_the_real_file_is_shared(a, hidden):
    with a.engine.announce([*hidden, "data/t/m", "files"]):
        for path in hidden:
            a.put(path, "not for others")
        a.put("files/real", "real")
    assert a.push().files_pushed == 1
    assert a.push(full=True).files_pushed == 0
    assert set(shared(a.engine)) == {"files/real"}


@pytest.mark.inv("catalog.local")
def test_L23_a_catalog_in_the_tree_breaks_no_push_and_is_never_shared(a):
    hidden = ["data/_catalog.db", "data/_catalog.db-wal", "data/_catalog.db-shm", "data/t/m/.lock", "data/t/m/n/latest"]
    only_the_real_file_is_shared(a, [*hidden, ".hidden/file", "_index/x.parquet", ".datastore.lock"])


def test_L24_temp_files_are_never_pushed(a):
    only_the_real_file_is_shared(a, ["data/t/.swamp-tmp-1-1", "data/.swamp-tmp-2/part", "files/.swamp-tmp-3"])


# --- L25


def test_L25_hydrating_in_a_namespace_reads_the_right_object(store, peer):
    inside = PrefixStore(store, "team-one")
    writer = peer("w", store=inside)
    writer.write_version(version("out", 1), "the bytes")
    writer.push()
    lazy = peer("l", store=inside, policy=Policy(hydrate="lazy", pull_concurrency=2))
    lazy.pull()
    unit = version("out", 1)
    assert not lazy.has(f"{unit}/raw") and lazy.has(f"{unit}/metadata.yaml")
    assert lazy.engine.materialize(f"{unit}/raw").read_text() == "the bytes"
    assert not keys(inside, "team-one/")


# --- L26


@pytest.mark.inv("delete.intent")
def test_L26_deletes_and_renames_stay_gone_on_every_machine(a, b, peer):
    for n in (1, 2, 3):
        a.write_version(version("out", n), f"{n}")
    a.write("files/old-name", "content")
    a.push()
    b.pull()
    a.delete(version("out", 1))
    a.delete("files/old-name")
    a.write("files/new-name", "content")
    result = a.push()
    assert result.files_deleted == 3
    b.write("files/other", "b works on")
    settled(a, b)
    fresh = peer("c")
    fresh.pull()
    for one in (a, b, fresh):
        assert not one.has(f"{version('out', 1)}/raw") and not one.has("files/old-name"), one.name
        assert one.read("files/new-name") == "content"
    assert b.kept()[f"{version('out', 1)}/raw"] == "1", "what a pull removes is kept aside"
    b.sync(full=True)
    settled(a, b, fresh)


# --- L27


@pytest.mark.inv("cache.disposable")
@pytest.mark.parametrize("what", ["everything", "tree", "tier", "state"])
def test_L27_a_cache_deleted_by_hand_deletes_nothing_and_comes_back(a, b, what):
    a.write("files/x", "x")
    a.write_version(version("out", 1), "raw")
    a.push()
    everything = content(a.engine)
    a.engine.close()
    a.live = None
    if what == "everything":
        shutil.rmtree(a.cache.base)
    elif what == "tree":
        shutil.rmtree(a.tree)
    elif what == "tier":
        shutil.rmtree(a.tree / "data")
    else:
        for file in a.cache.base.glob("state.db*"):
            file.unlink()
    result = a.push()
    assert result.files_deleted == 0 and not root_of(a.engine).deleted
    assert content(a.engine) == everything
    a.push(full=True)
    assert content(a.engine) == everything
    a.pull()
    assert a.files() == everything
    settled(a, b)


# --- L28


@pytest.mark.parametrize("moment", [("put", ROOT_KEY), ("upload", "files/mine"), ("put", "_index/log/")])
def test_L28_a_collector_that_races_a_writer_leaves_no_dangling_entry(store, a, b, moment):
    a.write("files/seed", "seed")
    a.push()
    b.pull()
    a.write("files/mine", "mine")

    def sweep() -> None:
        collect(b.engine.committer, b.pace, keep=NOW)

    a.process(Watched(store, once(*moment, sweep))).push()
    a.sync()
    assert content(a.engine) == {"files/seed": "seed", "files/mine": "mine"}, "every payload is there"
    settled(a, b)


def staged_by_a_push_that_died(store, a) -> str:
    """The key of what was uploaded for `files/mine`, and is named by no root."""
    a.write("files/seed", "seed")
    a.push()
    a.write("files/mine", "mine")
    dead = FaultyStore(store, [Fault("refuse", "put", ROOT_KEY, times=None, error=AccessDenied("dead"))])
    with pytest.raises(AccessDenied):
        a.process(dead).push()
    (staged,) = a.engine.state.staged_for("files/mine")
    return staged.key


def test_L28_an_upload_of_a_killed_push_is_not_named_after_it_was_collected(store, a, b):
    staged = staged_by_a_push_that_died(store, a)
    assert staged in keys(store)
    done = collect(b.engine.committer, b.pace, keep=NOW)
    assert done.deleted == 1 and staged not in keys(store)
    assert a.push().files_pushed == 1
    assert content(a.engine)["files/mine"] == "mine"
    assert shared(a.engine)["files/mine"].key != staged


def test_L28_a_key_that_is_condemned_and_not_yet_deleted_is_given_up(store, a, b):
    staged = staged_by_a_push_that_died(store, a)
    slow = FaultyStore(store, [Fault("late", "delete", times=None)])
    with pytest.raises(Unavailable):
        collect(b.process(slow).committer, b.pace, keep=NOW)
    assert staged in root_of(a.engine).collecting
    assert a.push().files_pushed == 1
    slow.land()
    assert content(a.engine)["files/mine"] == "mine"
    collect(b.engine.committer, b.pace, keep=NOW)
    assert root_of(a.engine).collecting == (), "a dead collector's batch is adopted by the next"
    settled(a, b)


def test_L21_a_corrupt_root_without_a_log_is_an_error_and_stays(store, a):
    store.put(ROOT_KEY, b"{ this is not json")
    a.write("files/x", "x")
    with pytest.raises(CorruptData):
        a.push()
    assert store.get(ROOT_KEY).body == b"{ this is not json"
