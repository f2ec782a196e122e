"""L01 to L15: dirty marks that overflowed, were cleared too early, or belonged to somebody else."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace

import pytest

import swamp.commit.bootstrap
from peers import MODEL, Watched, assert_quiet, content, keys, once, root_of, settled, shared, version
from swamp.commit.bootstrap import repair
from swamp.errors import Unavailable
from swamp.index.root import ROOT_KEY
from swamp.store.layers import PrefixStore
from swamp.testing.faulty import Fault, FaultyStore


def offline(store) -> FaultyStore:
    return FaultyStore(store, [Fault("before", times=None)])


# --- L01


@pytest.mark.inv("scan.honest")
@pytest.mark.inv("delete.intent")
def test_L01_a_file_that_vanishes_while_a_dirty_directory_is_walked_deletes_nothing(a, b):
    for name in ("one", "two", "three"):
        a.write(f"files/dir/{name}", name)
    a.push()
    b.pull()

    def rename_away(path: str, directory: bool) -> bool:
        if path.endswith("/two"):
            (a.tree / path).unlink()  # after its directory listed it, before anybody looked at it
        return False

    walker = a.process(exclude=rename_away)
    with walker.announce(["files/dir"]):
        a.put("files/dir/one", "changed")
    result = walker.push()
    assert not result.ok
    assert [f.path for f in result.failed] == ["files/dir/two"]
    assert content(a.engine) == {"files/dir/one": "changed", "files/dir/two": "two", "files/dir/three": "three"}
    b.pull()
    assert b.files() == content(b.engine)
    a.sync()
    assert a.read("files/dir/two") == "two", "it was never deleted, so it comes back"


@pytest.mark.inv("scan.honest")
def test_L01_a_dangling_link_in_a_dirty_directory_deletes_nothing(a):
    for name in ("one", "two"):
        a.write(f"files/dir/{name}", name)
    a.push()
    with a.engine.announce(["files/dir"]):
        (a.tree / "files/dir/two").unlink()
        (a.tree / "files/dir/two").symlink_to("nowhere")
        a.put("files/dir/new", "new")
    result = a.push()
    assert [f.path for f in result.failed] == ["files/dir/two"]
    assert content(a.engine) == {"files/dir/one": "one", "files/dir/two": "two", "files/dir/new": "new"}
    assert not root_of(a.engine).deleted


@pytest.mark.inv("delete.intent")
def test_L01_a_whole_dirty_directory_that_vanished_deletes_nothing(a, b):
    a.write("files/dir/one", "one")
    a.push()
    with a.engine.announce(["files/dir"]):
        shutil.rmtree(a.tree / "files/dir")
    a.push()
    assert content(a.engine) == {"files/dir/one": "one"}
    settled(a, b)
    assert a.files() == {"files/dir/one": "one"}


# --- L02


@pytest.mark.inv("delete.intent")
@pytest.mark.parametrize("rows", [201, 10_000])
def test_L02_many_dirty_paths_never_become_a_mirror(a, b, rows):
    for i in range(3):
        b.write(f"files/theirs/{i}", "theirs")
    b.push()
    real = 12
    with a.engine.announce([f"files/mine/{i}" for i in range(rows)]):
        for i in range(real):
            a.put(f"files/mine/{i}", f"{i}")
    result = a.push()
    assert result.ok and result.files_pushed == real and result.files_deleted == 0
    there = content(a.engine)
    assert len(there) == real + 3 and there["files/theirs/2"] == "theirs"
    assert not root_of(a.engine).deleted
    settled(a, b)


# --- L03


@pytest.mark.inv("store.prefix-closed")
def test_L03_a_namespaced_repository_touches_nothing_outside(store, a, peer):
    a.write("files/plain", "plain")
    a.push()
    store.put("data/other-tool", b"not ours")
    before = {m.key: m.token for page in store.list() for m in page}
    inside = peer("n", store=PrefixStore(store, "team-one"))
    for turn in range(2):
        inside.write(f"files/n{turn}", "n")
        inside.write("files/plain", f"another file of the same name {turn}")
        assert inside.push().ok
    inside.delete("files/n0")
    inside.push()
    after = {m.key: m.token for page in store.list() for m in page}
    assert {k: t for k, t in after.items() if not k.startswith("team-one/")} == before
    a.sync()
    assert a.files() == {"files/plain": "plain"}


# --- L04


@pytest.mark.inv("journal.survives")
def test_L04_an_edit_whose_push_failed_offline_arrives_with_the_next_sync(store, a, b):
    a.write("files/shared", "first")
    a.push()
    b.pull()
    a.write("files/mine", "mine")
    a.write("files/shared", "edited by a")
    with pytest.raises(Unavailable):
        a.process(offline(store)).push()
    b.write("files/theirs", "theirs")
    b.push()
    result = a.sync()
    assert result.files_pushed == 2 and result.files_pulled == 1
    assert content(a.engine) == {"files/shared": "edited by a", "files/mine": "mine", "files/theirs": "theirs"}
    settled(a, b)


def test_L04_a_pull_between_the_failed_push_and_the_next_keeps_the_journal(store, a, b):
    a.write("files/mine", "mine")
    with pytest.raises(Unavailable):
        a.process(offline(store)).push()
    b.write("files/theirs", "theirs")
    b.push()
    a.pull()
    assert a.engine.status().pending.writes == 1
    assert a.push().files_pushed == 1
    settled(a, b)
    assert b.read("files/mine") == "mine"


# --- L05


@pytest.mark.inv("conflict.keeps-both")
@pytest.mark.parametrize("announced", [True, False])
def test_L05_a_pull_over_an_unpushed_edit_keeps_both(a, b, announced):
    a.write("files/shared", "first")
    a.push()
    b.pull()
    b.write("files/shared", "from b")
    b.push()
    (a.write if announced else a.put)("files/shared", "unpushed edit of a")
    result = a.pull()
    assert a.read("files/shared") == "from b"
    assert [c.path for c in result.conflicts] == ["files/shared"]
    assert a.kept() == {"files/shared": "unpushed edit of a"}
    assert (a.cache.base / result.conflicts[0].kept).read_text() == "unpushed edit of a"
    settled(a, b)


@pytest.mark.inv("journal.survives")
def test_L05_a_pull_leaves_a_record_that_is_being_written_alone(a, b):
    a.write("workflow-runs/run.yaml", "status: running")
    a.push()
    b.sync()
    b.write("files/other", "other")
    b.push()
    a.write("workflow-runs/run.yaml", "status: running, step 2")
    assert a.pull().ok
    assert a.read("workflow-runs/run.yaml") == "status: running, step 2"
    a.write("workflow-runs/new.yaml", "status: running")
    a.pull()
    assert a.read("workflow-runs/new.yaml") == "status: running"
    settled(a, b)
    assert b.read("workflow-runs/run.yaml") == "status: running, step 2"


@pytest.mark.inv("cache.no-torn-file")
def test_L05_an_edit_made_while_the_pull_downloads_is_not_overwritten(store, a, b):
    b.write("files/shared", "first")
    b.push()
    a.pull()
    b.write("files/shared", "from b, newer")
    b.push()
    edit = once("open", "files/shared", lambda: a.write("files/shared", "edit during the pull"))
    result = a.process(Watched(store, edit)).pull()
    assert not result.ok and [c.path for c in result.conflicts] == ["files/shared"]
    assert a.read("files/shared") == "from b, newer"
    assert a.kept() == {"files/shared": "edit during the pull"}
    settled(a, b)


# --- L06


@pytest.mark.inv("journal.survives")
@pytest.mark.parametrize("moment", [("get", ROOT_KEY), ("upload", "step-a"), ("put", ROOT_KEY), ("put", "_index/log/")])
def test_L06_what_a_parallel_step_writes_during_a_push_arrives_too(store, a, b, moment):
    a.write("files/seed", "seed")
    a.push()
    a.write("files/step-a", "a")
    meanwhile = once(*moment, lambda: (a.write("files/step-b", "b"), a.write("files/step-a", "a, and more")))
    a.process(Watched(store, meanwhile)).push()
    assert a.engine.status().pending.writes > 0 or content(a.engine)["files/step-b"] == "b"
    a.process().push()
    assert content(a.engine) == {"files/seed": "seed", "files/step-a": "a, and more", "files/step-b": "b"}
    settled(a, b)


# --- L07


def test_L07_three_processes_in_a_row_push_every_version(a, b):
    for number in (1, 2, 3):
        process = a.process()
        a.write_version(version("out", number), f"run {number}", process)
        assert process.push().files_pushed == 2
        process.close()
    b.pull()
    assert [b.read(f"{version('out', n)}/raw") for n in (1, 2, 3)] == ["run 1", "run 2", "run 3"]


def test_L07_three_processes_write_and_only_the_last_one_pushes(a, b):
    for number in (1, 2, 3):
        process = a.process()
        a.write_version(version("out", number), f"run {number}", process)
        process.close()
    assert a.push().files_pushed == 6
    b.pull()
    assert [b.read(f"{version('out', n)}/raw") for n in (1, 2, 3)] == ["run 1", "run 2", "run 3"]


# --- L08


@pytest.mark.inv("scan.honest")
@pytest.mark.parametrize("bad", ["dangling", "fifo", "link out", "reserved name"])
def test_L08_one_bad_file_stops_nothing_else_and_is_reported(a, bad):
    with a.engine.announce(["files/dir"]):
        for name in ("a", "m", "z"):
            a.put(f"files/dir/{name}", name)
        place = a.tree / "files/dir" / ("l~01ARZ3NDEKTSV4RRFFQ69G5FAV" if bad == "reserved name" else "l")
        if bad == "dangling":
            place.symlink_to("nowhere")
        elif bad == "fifo":
            os.mkfifo(place)
        elif bad == "link out":
            place.symlink_to("/etc/hostname")
        else:
            place.write_text("x")
    result = a.push()
    assert not result.ok and [f.path for f in result.failed] == [f"files/dir/{place.name}"]
    assert set(shared(a.engine)) == {"files/dir/a", "files/dir/m", "files/dir/z"}
    again = a.push()
    assert again.failed, "it is still there and still bad: the next push says so too"
    place.unlink()
    assert a.push().ok
    assert a.engine.status().pending.writes == 0


def test_L08_rows_of_good_files_retire_and_the_bad_one_stays(a):
    a.write("files/good", "good")
    with a.engine.announce(["files/bad"]):
        (a.tree / "files/bad").symlink_to("nowhere")
    a.push()
    assert [r.path for r in a.engine.state.journal()] == ["files/bad"]


@pytest.mark.inv("unit.whole")
def test_L08_a_version_with_one_bad_file_is_held_and_the_others_go(a):
    a.write_version(version("good", 1), "good")
    with a.engine.announce([version("bad", 1)]):
        a.put(f"{version('bad', 1)}/metadata.yaml", "x")
        a.put(f"{version('bad', 1)}/raw/part-0", "x")
        (a.tree / version("bad", 1) / "raw/part-1").symlink_to("nowhere")
    result = a.push()
    assert not result.ok
    assert set(shared(a.engine)) == {f"{version('good', 1)}/raw", f"{version('good', 1)}/metadata.yaml"}
    assert {r.path for r in a.engine.state.journal()} == {version("bad", 1)}
    (a.tree / version("bad", 1) / "raw/part-1").unlink()
    assert a.push().files_pushed == 2


# --- L09


def test_L09_repairing_twice_rolls_nothing_back(store, a, b):
    a.write("files/one", "one")
    a.push()
    repair(a.engine.committer, a.pace)
    a.write("files/two", "two")
    a.push()
    before = root_of(a.engine)
    for _ in range(3):
        repair(a.engine.committer, a.pace)
    assert root_of(a.engine) == before
    store.delete([ROOT_KEY])
    for _ in range(3):
        repair(b.engine.committer, b.pace)
    assert content(b.engine) == {"files/one": "one", "files/two": "two"}
    assert root_of(b.engine).seq == before.seq + 2
    settled(a, b)


def test_L09_what_another_machine_repaired_between_two_looks_is_not_swapped_out(store, a, b, monkeypatch):
    a.write("files/one", "one")
    a.push()
    b.pull()
    store.put(ROOT_KEY, b"{")
    real = swamp.commit.bootstrap.read_root

    def looking(*args):
        monkeypatch.undo()
        try:
            return real(*args)
        finally:  # it has seen the damage, and now the other machine is first
            repair(b.engine.committer, b.pace)
            b.write("files/two", "two")
            b.push()

    monkeypatch.setattr(swamp.commit.bootstrap, "read_root", looking)
    repair(a.engine.committer, a.pace)
    assert content(a.engine) == {"files/one": "one", "files/two": "two"}
    settled(a, b)


def test_L09_adopting_an_old_index_happens_once_and_never_again(store, a, b):
    put_v1(store, {"files/old": b"old"})
    a.pull()
    a.write("files/new", "new")
    a.push()
    assert b.pull().ok
    b.write("files/old", "rewritten")
    b.push()
    a.pull(full=True)
    assert a.files() == {"files/old": "rewritten", "files/new": "new"}
    settled(a, b)


def put_v1(store, files: dict[str, bytes]) -> None:
    import json

    entries = {}
    for path, body in files.items():
        store.put(path, body)
        entries[path] = {"key": path, "size": len(body), "lastModified": "2025-01-01T00:00:00Z"}
    store.put(ROOT_KEY, json.dumps({"version": 1, "lastPulled": "", "entries": entries}).encode())


# --- L10


@pytest.mark.parametrize("path", ["data/x", "data/a/b/c", "files/x", "audit/2026/log", "top", "elsewhere/deep/er/file"])
def test_L10_every_path_under_the_tree_is_indexed(a, b, path):
    a.write(path, "x")
    assert a.push().files_pushed == 1
    b.pull()
    assert b.files() == {path: "x"}
    assert_quiet([a, b])


# --- L11


@pytest.mark.inv("journal.survives")
@pytest.mark.parametrize("kind", ["before", "after"])
def test_L11_an_upload_that_failed_is_uploaded_by_the_retry(store, a, kind):
    a.write("files/good", "good")
    a.write("files/bad", "bad")
    broken = FaultyStore(store, [Fault(kind, "put", "files/bad~*", times=None)])
    result = a.process(broken).push()
    assert [f.path for f in result.failed] == ["files/bad"]
    assert set(shared(a.engine)) == {"files/good"}
    assert a.engine.status().pending.writes == 1
    assert a.process().push().files_pushed == 1
    assert content(a.engine) == {"files/good": "good", "files/bad": "bad"}


def test_L11_a_commit_that_failed_keeps_the_journal(store, a):
    a.write("files/seed", "")
    a.push()
    a.write("files/bad", "bad")
    broken = FaultyStore(store, [Fault("before", "put", ROOT_KEY, times=None)])
    with pytest.raises(Unavailable):
        a.process(broken).push()
    assert a.engine.status().pending.writes == 1
    assert a.push().files_pushed == 1


# --- L12


@pytest.mark.inv("delete.intent")
@pytest.mark.parametrize("broken", ["files/new~*", ROOT_KEY, "_index/log/*"])
def test_L12_a_delete_whose_push_partly_failed_stays_deleted(store, a, b, broken):
    a.write("files/gone", "x")
    a.write("files/stays", "x")
    a.push()
    b.pull()
    a.delete("files/gone")
    a.write("files/new", "new")
    faulty = FaultyStore(store, [Fault("before", "put", broken, times=None)])
    try:
        a.process(faulty).push()
    except Unavailable:
        pass
    a.pull()
    assert not a.has("files/gone")
    a.sync()
    settled(a, b)
    assert a.files() == b.files() == {"files/stays": "x", "files/new": "new"}


# --- L13


def test_L13_two_processes_on_one_cache_forget_nothing_of_each_other(a, b):
    one, two = a.process(), a.process()
    a.write("files/one", "1", one)
    a.write("files/two", "2", two)
    assert one.push().files_pushed == 2
    a.write("files/three", "3", two)
    a.write("files/four", "4", one)
    assert two.push().files_pushed == 2
    assert one.push().fast_path and two.push().fast_path
    b.pull()
    assert b.files() == {f"files/{n}": str(i) for i, n in enumerate(("one", "two", "three", "four"), 1)}


# --- L14


@pytest.mark.inv("state.bound")
def test_L14_a_cache_pointed_at_another_bucket_at_the_same_number_compares_everything(store, peer):
    x, y = PrefixStore(store, "x"), PrefixStore(store, "y")
    for which, bucket in (("x", x), ("y", y)):
        one = peer(f"writer-{which}", store=bucket)
        one.write(f"files/only-{which}", which)
        one.write("files/both", which)
        one.push()
    cache = peer("c", store=x)
    cache.pull()
    seq = cache.engine.status().seq
    moved = replace(cache, store=y, live=None)
    result = moved.engine.pull()
    assert moved.engine.status().seq == seq, "the numbers are equal, which is what once hid everything"
    assert not result.fast_path
    assert moved.read("files/only-y") == "y"
    assert moved.read("files/both") == "y" and moved.kept() == {"files/both": "x"}
    assert moved.read("files/only-x") == "x", "nothing is removed because another store does not know it"
    assert set(keys(x, "files/")) == {e.key for e in shared(cache.engine).values()}


@pytest.mark.inv("state.bound")
def test_L14_delete_rows_of_another_bucket_delete_nothing_here(store, peer):
    x, y = PrefixStore(store, "x"), PrefixStore(store, "y")
    for which, bucket in (("x", x), ("y", y)):
        one = peer(f"writer-{which}", store=bucket)
        one.write("files/both", "same bytes")
        one.push()
    cache = peer("c", store=x)
    cache.pull()
    cache.delete("files/both")
    moved = replace(cache, store=y, live=None)
    moved.sync()
    assert content(moved.engine) == {"files/both": "same bytes"}


# --- L15


@pytest.mark.inv("state.bound")
def test_L15_data_copied_into_a_clean_cache_is_pushed_when_setup_says_so(a, b):
    a.write("files/seed", "seed")
    a.push()
    assert a.push().fast_path
    a.put(f"{version('out', 1)}/raw", "copied")
    a.put(f"{version('out', 1)}/metadata.yaml", "copied")
    a.put("files/copied", "copied")
    result = a.push(full=True)
    assert result.files_pushed == 3 and result.ok
    b.pull()
    assert b.files() == a.files()


def test_L15_found_rows_are_enough_for_an_ordinary_push(a, b):
    a.write("files/seed", "seed")
    a.push()
    with a.engine.announce(["files"], "found"):
        a.put("files/copied/deep", "copied")
    assert a.engine.status().pending.found == 1
    assert a.push().files_pushed == 1
    b.pull()
    assert b.files() == a.files()
    assert MODEL.startswith("data/")
