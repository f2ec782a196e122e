"""L42 to L54: half versions, long pushes, caps, unclear outcomes, names that cannot coexist, lost indexes."""

from __future__ import annotations

import datetime as dt
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest

import swamp.commit.commit
import swamp.sync.observe
from peers import Aged, Peer, Watched, content, files_below, keys, once, root_of, settled, shared, version
from swamp.commit.bootstrap import repair
from swamp.commit.collect import collect
from swamp.commit.repack import compact
from swamp.env import SYSTEM
from swamp.errors import AccessDenied, CorruptData, LockTimeout, OutcomeUnknown, SwampError
from swamp.index.root import ROOT_KEY
from swamp.store.layers import MeterStore
from swamp.sync.engine import Policy
from swamp.testing.faulty import Fault, FaultyStore

DAY = dt.timedelta(days=1)


def lose_state(peer: Peer) -> None:
    peer.restart().close()
    peer.live = None
    for file in peer.cache.base.glob("state.db*"):
        file.unlink()


# --- L42


@pytest.mark.inv("unit.whole")
def test_L42_a_version_without_metadata_is_not_pushed_and_its_record_waits(a, b):
    unit = version("out", 1)
    with a.engine.announce([unit]):
        a.put(f"{unit}/raw", "half")
    a.write("outputs/run.yaml", f"dataArtifacts: [{{path: {unit}}}]")
    a.write("outputs/other.yaml", "dataArtifacts: []")
    a.write("files/other", "goes")
    result = a.push()
    assert not result.ok and {f.path for f in result.failed} == {"outputs/run.yaml"}
    assert any(unit in warning for warning in result.warnings)
    assert set(shared(a.engine)) == {"files/other", "outputs/other.yaml"}
    b.pull()
    assert set(b.files()) == {"files/other", "outputs/other.yaml"}
    a.write(f"{unit}/metadata.yaml", "size: 4")
    assert a.push().files_pushed == 3
    settled(a, b)


@pytest.mark.inv("unit.whole")
@pytest.mark.parametrize("bad", ["raw", "metadata.yaml"])
def test_L42_a_version_one_of_whose_uploads_fails_stays_invisible_with_its_record(store, a, b, bad):
    one, ten = version("out", 1), version("out", 10)
    a.write_version(one, "first")
    a.write_version(ten, "tenth")
    a.write("outputs/one.yaml", f"path: {one}")
    a.write("outputs/ten.yaml", f"path: {ten}")
    broken = FaultyStore(store, [Fault("before", "put", f"{one}/{bad}~*", times=None)])
    result = a.process(broken).push()
    assert {f.path for f in result.failed} == {f"{one}/{bad}", "outputs/one.yaml"}
    assert set(shared(a.engine)) == {f"{ten}/raw", f"{ten}/metadata.yaml", "outputs/ten.yaml"}
    assert a.push().files_pushed == 3
    settled(a, b)


@pytest.mark.inv("unit.whole")
def test_L42_a_run_and_its_record_are_one_commit(store, a, b):
    a.write("files/seed", "seed")
    a.push()
    unit, before = version("out", 1), root_of(a.engine).seq
    a.write_version(unit, "result")
    a.write("outputs/run.yaml", f"path: {unit}")
    assert a.push().files_pushed == 3
    assert root_of(a.engine).seq == before + 1
    settled(a, b)


@pytest.mark.inv("unit.whole")
@pytest.mark.parametrize("rewritten", [False, True], ids=["as it was", "rewritten meanwhile"])
def test_L42_a_record_stays_behind_when_its_version_is_overtaken_at_the_commit(store, a, b, rewritten):
    """Everything is uploaded; then the root moves, and only what it still allows may go."""
    a.write("files/seed", "seed")
    a.push()
    mine, other = version("out", 1), version("out", 2)
    a.write_version(mine, "mine")
    a.write_version(other, "other")
    a.write("outputs/mine.yaml", f"path: {mine}")
    a.write("outputs/other.yaml", f"path: {other}")
    roots: list[set[str]] = []

    def overtake() -> None:
        b.write_version(mine, "theirs, and first")
        b.push()
        if rewritten:  # what was uploaded still names it, whatever the file says by now
            a.write("outputs/mine.yaml", "names nothing any more")

    def see(verb: str, key: str) -> None:
        if verb == "put" and key == ROOT_KEY:
            roots.append(set(shared(b.engine)))

    overtaken = once("put", ROOT_KEY, overtake)
    result = a.process(Watched(store, overtaken, see)).push()
    assert "outputs/mine.yaml" not in roots[0], "a record without its version"
    assert {f"{other}/raw", "outputs/other.yaml"} <= roots[0]
    assert {c.path for c in result.conflicts} == {f"{mine}/raw", f"{mine}/metadata.yaml"}
    settled(a, b)


@pytest.mark.inv("unit.whole")
def test_L42_a_reader_sees_a_whole_version_or_none(store, a, b):
    unit = version("out", 1)
    a.write_version(unit, "whole")
    a.push()
    broken = FaultyStore(store, [Fault("before", "get", f"{unit}/raw~*", times=None)])
    assert not b.process(broken).pull().ok
    assert b.files() == {}
    assert b.pull().files_pulled == 2


@pytest.mark.inv("unit.whole")
def test_L42_deleting_a_record_while_a_version_waits_is_no_error(a, b):
    a.write("outputs/old.yaml", "old")
    a.push()
    with a.engine.announce([version("out", 1)]):
        a.put(f"{version('out', 1)}/raw", "half")
    a.delete("outputs/old.yaml")
    assert a.push().files_deleted == 1
    assert content(a.engine) == {}


@pytest.mark.inv("unit.whole")
def test_L42_a_conflicted_version_moves_aside_as_a_whole(a, b):
    unit = version("out", 1)
    a.write_version(unit, "by a")
    b.write_version(unit, "by b, longer")
    a.push()
    result = b.sync()
    assert {c.path for c in result.conflicts} == {f"{unit}/raw", f"{unit}/metadata.yaml"}
    assert b.kept() == {f"{unit}/raw": "by b, longer", f"{unit}/metadata.yaml": "size: 12\n"}
    assert b.read(f"{unit}/raw") == "by a"
    settled(a, b)


@pytest.mark.inv("unit.whole")
@pytest.mark.parametrize("command", ["sync", "push"])
def test_L42_edits_of_different_files_of_one_version_are_not_mixed(a, b, command):
    unit = version("out", 1)
    a.write_version(unit, "first")
    a.push()
    b.pull()
    a.write(f"{unit}/raw", "raw by a")
    a.push()
    b.write(f"{unit}/metadata.yaml", "metadata by b")
    result = getattr(b, command)()
    assert [c.path for c in result.conflicts] == [f"{unit}/metadata.yaml"]
    assert b.kept()[f"{unit}/metadata.yaml"] == "metadata by b"
    settled(a, b)
    assert content(a.engine) == {f"{unit}/raw": "raw by a", f"{unit}/metadata.yaml": "size: 5\n"}


@pytest.mark.inv("conflict.keeps-both")
def test_L42_a_conflict_found_by_a_push_is_finished_by_the_next_pull(a, b):
    unit = version("out", 1)
    a.write_version(unit, "by a")
    b.write_version(unit, "by b, longer")
    a.push()
    result = b.push()
    assert {c.path for c in result.conflicts} == {f"{unit}/raw", f"{unit}/metadata.yaml"}
    assert b.engine.status().pending.writes == 0, "what lies in conflicts/ is no longer owed by the journal"
    pulled = b.pull()
    assert pulled.ok and b.read(f"{unit}/raw") == "by a"
    settled(a, b)
    assert b.kept()[f"{unit}/raw"] == "by b, longer"


@pytest.mark.inv("unit.whole")
def test_L42_a_version_deleted_in_part_comes_back_whole(a, b):
    unit = version("out", 1)
    a.write_version(unit, "one")
    a.push()
    a.delete(f"{unit}/raw")
    result = a.push()
    assert not result.ok and [f.path for f in result.failed] == [f"{unit}/raw"]
    a.sync()
    settled(a, b)
    assert b.read(f"{unit}/raw") == a.read(f"{unit}/raw") == "one"


@pytest.mark.inv("unit.whole")
def test_L42_a_version_deleted_and_begun_again_without_its_metadata_stays_deleted(a, b):
    """Old metadata over new bytes would be a version nobody wrote (seed 111673 of the simulator's default mix)."""
    unit = version("out", 1)
    a.write_version(unit, "one")
    a.push()
    b.pull()
    for name in ("metadata.yaml", "raw"):
        a.delete(f"{unit}/{name}")
    a.write(f"{unit}/raw", "begun anew")
    a.sync()
    b.sync()
    assert not [path for path in (*shared(a.engine), *b.files()) if path.startswith(unit)]
    assert a.read(f"{unit}/raw") == "begun anew"
    a.write_version(unit, "finished")
    a.sync()
    settled(a, b)
    assert b.read(f"{unit}/raw") == "finished"


@pytest.mark.inv("unit.whole")
def test_L42_old_and_new_files_of_one_version_are_never_mixed(a, b):
    """One part was deleted and another rewritten, its metadata was not: that is no version (seed 100329, versions)."""
    unit = version("out", 1)
    with a.engine.announce([unit]):
        for part in "01":
            a.put(f"{unit}/raw/part-{part}", f"old {part}")
        a.put(f"{unit}/metadata.yaml", "size: 10\n")
    a.push()
    a.delete(f"{unit}/raw/part-0")
    a.write(f"{unit}/raw/part-1", "new")
    a.sync()
    settled(a, b)
    assert [b.read(f"{unit}/raw/part-{part}") for part in "01"] == ["old 0", "old 1"]
    assert "new" in a.kept().values()


# --- L43


def test_L43_a_push_that_is_cut_off_again_and_again_ends(store, a, b):
    for i in range(9):
        a.write(f"files/{i}", f"content {i}")
    for _ in range(20):
        left = a.engine.status().pending.writes
        if not left:
            break
        uploads = 0

        def dies(verb: str, key: str) -> None:
            nonlocal uploads
            uploads += verb == "upload"
            if uploads > 2:
                raise AccessDenied("the network is gone")

        engine = a.process(Watched(store, dies), commit_every=0.0, push_concurrency=1)
        try:
            engine.push()
        except SwampError:
            pass
        engine.close()
        assert a.engine.status().pending.writes < left, "every attempt gets further"
    assert content(a.engine) == {f"files/{i}": f"content {i}" for i in range(9)}
    settled(a, b)


def test_L43_finished_uploads_are_used_again(store, a, b):
    a.write("files/seed", "seed")
    a.push()
    for i in range(5):
        a.write(f"files/{i}", f"content {i}")
    dead = FaultyStore(store, [Fault("refuse", "put", ROOT_KEY, times=None, error=AccessDenied("dead"))])
    with pytest.raises(AccessDenied):
        a.process(dead).push()
    uploaded = keys(store, "files/")
    a.write("files/2", "rewritten since")
    meter = MeterStore(store)
    assert a.process(meter).push().files_pushed == 5
    assert len(keys(store, "files/") - uploaded) == 1, "only what changed is sent again"
    assert content(a.engine)["files/2"] == "rewritten since"
    settled(a, b)


@pytest.mark.inv("journal.survives")
def test_L43_a_deadline_in_the_middle_leaves_the_journal_and_the_commits_so_far(store, a, b):
    for i in range(6):
        a.write(f"files/{i}", "x")
    stuck = FaultyStore(store, [Fault("before", "put", ROOT_KEY, skip=3, times=None)])
    with pytest.raises(OutcomeUnknown):
        a.process(stuck, commit_every=0.0, push_concurrency=1, timeout=3.0).push()
    done = len(shared(a.engine))
    assert 0 < done < 6
    assert a.engine.status().pending.writes == 6 - done, "rows go with the commit that delivers them"
    assert a.push().ok
    settled(a, b)
    assert len(b.files()) == 6


# --- L44


@pytest.mark.inv("delete.intent")
def test_L44_the_delete_cap_holds_the_deletes_and_nothing_else(a, b):
    capped = Policy(delete_floor=2, delete_fraction=0.2, push_concurrency=2)
    for i in range(8):
        a.write(f"files/{i}", "x")
    a.push()
    b.pull()
    for i in range(5):
        a.delete(f"files/{i}")
    a.write("files/new", "new")
    a.restart().close()
    a.live, a.policy = None, capped
    for turn in range(2):
        result = a.push()
        assert result.deletes_held == 5 and result.files_deleted == 0 and not result.ok
        assert result.files_pushed == (1 if turn == 0 else 0)
    a.write("files/newer", "newer")
    assert a.push().files_pushed == 1, "later pushes go on"
    a.pull()
    assert not a.has("files/0"), "a held delete is not undone by a pull"
    b.pull()
    assert b.has("files/0")
    a.policy = replace(capped, allow_deletes=5)
    a.restart()
    assert a.push().files_deleted == 5
    settled(a, b)
    assert set(b.files()) == {"files/5", "files/6", "files/7", "files/new", "files/newer"}


def test_L44_confirmed_deletes_pass_the_cap(a):
    a.policy = Policy(delete_floor=1, delete_fraction=0.0)
    for i in range(4):
        a.write(f"files/{i}", "x")
    a.push()
    with a.engine.announce(["files"], "delete", confirmed=True):
        shutil.rmtree(a.tree / "files")
    assert a.push().files_deleted == 4


# --- L45


@pytest.mark.inv("commit.unknown-is-not-failure")
@pytest.mark.parametrize("kind", ["before", "after", "late"])
def test_L45_a_swap_without_an_answer_has_one_outcome_the_true_one(store, a, b, kind):
    a.write("files/seed", "seed")
    a.push()
    before = root_of(a.engine).seq
    a.write("files/x", "x")
    shaky = FaultyStore(store, [Fault(kind, "put", ROOT_KEY, times=1)])
    result = a.process(shaky).push()
    shaky.land()
    assert shaky.fired and result.ok and result.files_pushed == 1
    assert root_of(a.engine).seq == before + 1, "committed once"
    assert len(keys(store, "_index/log/")) == before + 1, "and recorded once"
    assert a.push().fast_path
    settled(a, b)


def land_unseen(store, a, b) -> None:
    """The commit of `files/x` lands, and `a` hears nothing of it."""
    a.write("files/seed", "seed")
    a.push()
    b.pull()
    a.write("files/x", "x")
    silence = Fault("before", "get", ROOT_KEY, skip=1, times=None)
    deaf = FaultyStore(store, [Fault("after", "put", ROOT_KEY, times=None), silence])
    with pytest.raises(OutcomeUnknown):
        a.process(deaf, timeout=3.0).push()


@pytest.mark.inv("commit.unknown-is-not-failure")
@pytest.mark.inv("crash.resolved")
def test_L45_a_commit_that_landed_unseen_and_was_built_upon_is_not_made_twice(store, a, b):
    land_unseen(store, a, b)
    b.sync()
    b.write("files/x", "x, edited by b")
    b.push()
    result = a.sync()
    assert result.ok, "my commit landed, b's edit came after it: no conflict"
    assert a.read("files/x") == "x, edited by b"
    settled(a, b)


@pytest.mark.inv("crash.resolved")
def test_L45_a_file_that_landed_unseen_and_was_deleted_since_does_not_come_back(store, a, b):
    land_unseen(store, a, b)
    b.pull()
    b.delete("files/x")
    b.push()
    a.sync()
    assert "files/x" not in content(a.engine)
    settled(a, b)


# --- L46


@pytest.mark.parametrize("second", ["data/t/m/n/1/raw/part-0", "data/T/m/n/1/raw", "data/t/m/n/1/RAW"])
def test_L46_paths_that_cannot_coexist_are_a_conflict_for_the_later(a, b, peer, second):
    first = "data/t/m/n/1/raw"
    meta = "data/t/m/n/1/metadata.yaml"
    with a.engine.announce([first, meta]):
        a.put(first, "a file")
        a.put(meta, "m")
    a.push()
    with b.engine.announce([second, meta]):
        b.put(second, "by b")
        b.put(meta, "m")
    b.write("files/other", "other")
    result = b.sync()
    assert second in {c.path for c in result.conflicts} or second in {f.path for f in result.failed}
    assert content(a.engine) == {first: "a file", meta: "m", "files/other": "other"}
    b.sync()
    settled(a, b)
    assert b.kept().get(second) == "by b"
    fresh = peer("c")
    assert fresh.pull().ok


@pytest.mark.parametrize("turn", ["file to directory", "directory to file", "other case"])
def test_L46_a_rename_over_the_own_path_is_no_conflict(a, b, turn):
    old, new = {
        "file to directory": ("files/thing", "files/thing/part"),
        "directory to file": ("files/thing/part", "files/thing"),
        "other case": ("files/thing", "files/Thing"),
    }[turn]
    a.write(old, "content")
    a.push()
    b.pull()
    a.delete(old)
    if turn == "directory to file":
        shutil.rmtree(a.tree / "files/thing", ignore_errors=True)
    a.write(new, "content")
    result = a.push()
    assert result.ok, result
    assert content(a.engine) == {new: "content"}
    assert b.pull().ok
    assert b.files() == {new: "content"}
    settled(a, b)
    b.delete(new)
    if turn == "file to directory":
        shutil.rmtree(b.tree / "files/thing", ignore_errors=True)
    b.write(old, "and back")
    assert b.push().ok
    a.pull()
    assert a.files() == {old: "and back"}
    settled(a, b)


# --- L47


@pytest.mark.inv("journal.first")
def test_L47_a_push_during_an_announced_write_publishes_nothing_of_it(store, a):
    a.write("files/seed", "seed")
    a.push()
    writer, pusher = a.process(env=SYSTEM), a.process(env=SYSTEM, lock_timeout=0.3)
    with writer.announce(["files/stream"]):
        a.put("files/stream", "first half")
        with ThreadPoolExecutor(1) as pool, pytest.raises(LockTimeout):
            pool.submit(pusher.push).result()
        assert set(shared(a.engine)) == {"files/seed"}
        a.put("files/stream", "first half, second half")
    assert pusher.push().files_pushed == 1
    assert content(a.engine)["files/stream"] == "first half, second half"


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("times", [1, 20])
def test_L47_a_file_that_grows_while_it_is_sent_is_never_half_there(store, a, b, moment, times):
    """One that has come to rest goes with the same push; one that never does waits for the next, and fails nothing."""
    a.write("files/stream", "first half")
    a.write("files/other", "other")
    left = [times]

    def act(verb: str, key: str) -> None:
        if verb == "upload" and key.startswith("files/stream") and left[0]:
            left[0] -= 1
            with (a.tree / "files/stream").open("a") as file:
                file.write(", second half")

    nothing = once("never", "", lambda: None)
    watched = Watched(store, act, nothing) if moment == "before" else Watched(store, nothing, act)
    result = a.process(watched).push()
    rests = times == 1
    assert [f.path for f in result.failed] == ([] if rests else ["files/stream"]) and result.ok
    assert result.files_pushed == 1 + rests and a.push().files_pushed == 1 - rests
    assert content(a.engine)["files/stream"] == (a.tree / "files/stream").read_text()
    settled(a, b)


# --- L48


@pytest.mark.parametrize("lost", ["everything of the index", "root and log"])
def test_L48_a_lost_index_publishes_nothing(store, a, b, peer, lost):
    a.write("files/x", "x")
    a.push()
    a.write("files/x", "x2")
    a.push()
    store.delete([k for k in keys(store) if k == ROOT_KEY or k.startswith("_index/")])
    payloads = keys(store)
    a.write("files/new", "new")
    for one in (a, b, peer("c")):
        for command in (one.push, one.pull, one.sync):
            if one.name == "b" and command == one.push:
                continue  # nothing to push: it only looks
            with pytest.raises(CorruptData) as told:
                command()
            assert told.value.exit_code == 65
    with pytest.raises(CorruptData) as told:
        repair(a.engine.committer, a.pace)
    assert "--from-listing" in (told.value.hint or "")
    assert keys(store) == payloads, "nothing was published, nothing was removed"
    assert a.files() == {"files/x": "x2", "files/new": "new"}


def test_L48_an_idle_stores_lost_root_is_rebuilt_from_its_last_record(store, a, b):
    a.write("files/x", "x")
    a.push()
    b.pull()
    seq = root_of(a.engine).seq
    store.delete([ROOT_KEY])
    result = b.sync()
    assert result.discovered and any("rebuilt" in w for w in result.warnings)
    assert root_of(b.engine).seq == seq + 2 and root_of(b.engine).gc_epoch == 2
    settled(a, b)
    assert a.files() == {"files/x": "x"}


# --- L49


def test_L49_a_collector_never_deletes_plain_keys_of_other_tools(store, a, peer):
    aged = Aged(store, ages={"": 400 * DAY})
    store.put("data/report.csv", b"by another tool")
    one = peer("one", store=aged)
    one.pull()
    store.put("data/later.csv", b"by another tool, after the index")
    store.put("files/archive.zip", b"x")
    one.write("files/x", "x")
    one.push()
    collect(one.engine.committer, one.pace, keep=0 * DAY)
    assert {"data/report.csv", "data/later.csv", "files/archive.zip"} <= keys(store)


def test_L49_a_plain_key_that_a_commit_of_ours_dropped_may_go(store, a):
    store.put("data/report.csv", b"by another tool")
    a.pull()
    a.delete("data/report.csv")
    a.push()
    collect(a.engine.committer, a.pace, keep=0 * DAY)
    assert "data/report.csv" not in keys(store)


# --- L50


@pytest.fixture
def small_layers(monkeypatch):
    monkeypatch.setattr(swamp.commit.commit, "LAYER_ROWS", 3)


@pytest.mark.inv("index.highest-seq")
def test_L50_a_partial_compaction_never_brings_a_deleted_path_back(store, a, b, peer, small_layers):
    for i in range(5):
        a.write(f"files/{i}", f"{i}")
    a.push()
    b.pull()
    oldest = {ref.key for ref in root_of(a.engine).segments}
    assert oldest, "the first rows lie in a segment"
    a.delete("files/1")
    a.push()
    for i in range(5, 12):
        a.write(f"files/{i}", f"{i}")
        a.push()
    root = root_of(a.engine)
    newer = frozenset(ref.key for ref in root.segments) - oldest
    assert len(newer) >= 2
    aged = peer("gc", store=Aged(store, ages={"_index/log/": 500 * DAY}))
    aged.pull()
    compact(aged.engine.committer, aged.pace, keys=newer)
    assert "files/1" not in shared(a.engine), "an older segment still holds its row"
    compact(aged.engine.committer, aged.pace)
    assert "files/1" not in shared(a.engine)
    assert not oldest & {ref.key for ref in root_of(a.engine).segments}
    settled(a, b)
    fresh = peer("fresh")
    assert fresh.pull().ok
    assert fresh.files() == content(a.engine)


@pytest.mark.inv("segment.added-seq")
def test_L50_a_reader_that_is_behind_a_compaction_misses_nothing(store, a, b, small_layers):
    a.write("files/0", "0")
    a.push()
    b.pull()
    for i in range(1, 9):
        a.write(f"files/{i}", f"{i}")
        a.push()
    a.delete("files/0")
    a.push()
    compact(a.engine.committer, a.pace)
    assert b.pull().files_pulled == 8
    settled(a, b)
    assert not b.has("files/0")


@pytest.mark.inv("segment.added-seq")
def test_L50_rows_of_a_segment_that_was_staged_before_another_commit_are_news_to_every_reader(
    store, a, b, peer, small_layers
):
    reader = peer("reader")
    a.write("files/seed", "seed")
    a.push()
    b.pull()
    for i in range(5):
        a.write(f"files/{i}", f"{i}")

    def meanwhile() -> None:
        b.write("files/by-b", "b")
        b.push()
        reader.pull()

    result = a.process(Watched(store, once("put", ROOT_KEY, meanwhile))).push()
    assert result.ok and root_of(a.engine).segments
    assert reader.read("files/by-b") == "b", "the reader is at the commit that came in between"
    assert reader.pull().files_pulled == 5
    settled(a, b, reader)


# --- L51


@pytest.mark.inv("delete.intent")
@pytest.mark.parametrize(
    "moment", [("get", ROOT_KEY), ("upload", "files/x"), ("put", ROOT_KEY), ("put", "_index/log/")]
)
@pytest.mark.parametrize("known", [True, False])
def test_L51_a_delete_made_while_the_own_push_is_in_flight_counts(store, a, b, moment, known):
    a.write("files/seed", "seed")
    if known:
        a.write("files/x", "first")
    a.push()
    a.write("files/x", "second")
    a.process(Watched(store, once(*moment, lambda: a.delete("files/x")))).push()
    a.sync()
    settled(a, b)
    assert content(a.engine) == {"files/seed": "seed"}
    assert not a.has("files/x") and not b.has("files/x")


@pytest.mark.inv("journal.survives")
def test_L51_a_delete_announced_right_after_an_empty_journal_was_read_counts(store, a, b, monkeypatch):
    """Found by a seed: the number of the newest row was read after the lock had been let go."""
    a.write("files/x", "x")
    a.push()
    b.write("files/y", "y")
    b.push()
    other, exclusive = a.process(), swamp.sync.observe.tree_exclusive
    left = [lambda: a.delete("files/x", engine=other)]

    @contextmanager
    def then_somebody_deletes(*args):
        with exclusive(*args):
            yield
        if left:
            left.pop()()

    monkeypatch.setattr(swamp.sync.observe, "tree_exclusive", then_somebody_deletes)
    a.engine.sync(full=True)
    a.engine.sync()
    assert not left and set(content(a.engine)) == {"files/y"} and not (a.tree / "files/x").exists()
    settled(a, b)


# --- L52


@pytest.mark.inv("sync.derived")
def test_L52_pulls_and_pushes_at_once_in_one_cache_converge(store, a, b):
    for i in range(6):
        a.write(f"files/{i}", f"{i}")
    a.push()
    b.write("files/mine", "mine")
    processes = [b.process(env=SYSTEM) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        work = [processes[0].pull, processes[1].push, processes[2].pull, processes[3].sync]
        for done in [pool.submit(job) for job in work]:
            assert done.result().ok
    a.write("files/later", "later")
    a.push()
    settled(a, b)
    assert b.read("files/later") == "later" and a.read("files/mine") == "mine"


@pytest.mark.inv("sync.derived")
def test_L52_a_commit_that_arrives_during_a_pull_is_pulled_by_the_next(store, a, b):
    a.write("files/1", "1")
    a.push()

    def more() -> None:
        a.write("files/2", "2")
        a.push()

    b.process(Watched(store, once("open", "files/1", more))).pull()
    b.pull()
    assert b.files() == {"files/1": "1", "files/2": "2"}
    settled(a, b)


# --- L53


@pytest.mark.inv("state.bound")
@pytest.mark.parametrize("command", ["pull", "push", "sync"])
def test_L53_an_emptied_bucket_removes_nothing(store, a, b, command):
    a.write("files/x", "x")
    a.write_version(version("out", 1), "raw")
    a.push()
    b.pull()
    before = b.files()
    store.delete(sorted(keys(store)))
    result = getattr(b, command)()
    assert b.files() == before and not b.kept(), result
    a.push(full=True)
    settled(a, b)
    assert content(a.engine) == before


@pytest.mark.inv("state.bound")
def test_L53_a_bucket_that_was_made_anew_removes_nothing(store, a, b, peer):
    a.write("files/x", "x")
    a.push()
    b.pull()
    store.delete(sorted(keys(store)))
    other = peer("c")
    other.write("files/other", "another history")
    other.push()
    result = b.sync()
    assert b.read("files/x") == "x" and b.read("files/other") == "another history", result
    settled(b, other)
    assert set(content(b.engine)) == {"files/x", "files/other"}


@pytest.mark.inv("state.bound")
def test_L53_a_bucket_restored_from_a_backup_applies_nothing_and_says_so(store, a, b):
    a.write("files/x", "x")
    a.push()
    backup = {key: store.get(key).body for key in keys(store)}
    a.write("files/later", "later")
    a.delete("files/x")
    a.push()
    b.pull()
    before = b.files()
    for key in sorted(keys(store)):
        store.delete([key])
    for key, body in backup.items():
        store.put(key, body)
    b.write("files/edit", "edit")
    for command in (b.pull, b.push, b.sync):
        with pytest.raises(CorruptData) as told:
            command()
        assert told.value.exit_code == 65
    assert {p: c for p, c in b.files().items() if p != "files/edit"} == before
    assert not files_below(b.cache.conflicts)


@pytest.mark.inv("state.bound")
def test_L53_a_backup_that_has_grown_past_what_was_pulled_is_another_history(store, a, b, peer):
    a.write("files/x", "x")
    a.push()
    backup = {key: store.get(key).body for key in keys(store)}
    a.write("files/later", "later")
    a.push()
    b.pull()
    for key in sorted(keys(store)):
        store.delete([key])
    for key, body in backup.items():
        store.put(key, body)
    other = peer("c")
    other.pull()
    for i in range(3):
        other.write(f"files/c{i}", "c")
        other.push()
    assert root_of(other.engine).seq > int(b.engine.state.meta("pulledSeq") or 0)
    b.sync()
    assert b.read("files/later") == "later", "absence proves nothing where the histories differ"
    settled(b, other)
    assert set(content(b.engine)) == {"files/x", "files/later", "files/c0", "files/c1", "files/c2"}


@pytest.mark.inv("commit.single-winner")
def test_L47_a_name_that_cannot_be_synced_hides_nothing_but_itself(a, b):
    """A bad name came before its neighbours in the walk: they were met twice, pulled and pushed over at once."""
    a.write("outputs/a", "old")
    a.push()
    b.pull()
    b.write("outputs/a", "NEW")
    b.push()
    a.put(f"outputs/zz~{'0' * 26}", "a name that only payloads have")
    done = a.sync(full=True)
    assert done.files_pushed == 0 and [f.path for f in done.failed] == [f"outputs/zz~{'0' * 26}"]
    b.pull()
    assert a.read("outputs/a") == b.read("outputs/a") == "NEW"
