"""L: loss and destruction, as a user would meet it: through the CLI, on a bucket in a directory."""

from __future__ import annotations

import os
import shutil
import threading
import time

import pytest

from kills import Killer
from machines import Machine, Place, Team, read_tree
from swamp.index.root import ROOT_KEY


def drop_in(machine: Machine, files: dict[str, str | bytes]) -> None:
    """Files put into the tree by hand, which nobody announced."""
    tree = machine.tree
    for path, body in files.items():
        target = tree / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(body.encode() if isinstance(body, str) else body)


def shared(machine: Machine) -> dict[str, bytes]:
    """What a machine holds of the shared tree, without its derived files and audit lines."""
    found = read_tree(machine.tree)
    return {p: b for p, b in found.items() if not p.endswith("/latest") and not p.startswith("audit/")}


def test_L01_files_that_vanish_while_the_tree_is_walked_delete_nothing(team: Team):
    a, b = team.machine("a"), team.machine("b")
    drop_in(a, {f"files/dir/{n}": str(n) for n in range(20)})
    a.sync("--full")
    busy = a.tree / "files" / "dir"
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            (busy / "draft-x").write_text("x")
            (busy / "draft-x").rename(busy / "draft-y")
            (busy / "draft-y").unlink()

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(3):
            assert a("datastore", "sync", "--full").json["filesDeleted"] == 0
    finally:
        stop.set()
        thread.join()
    b.sync()
    assert {f"files/dir/{n}": str(n).encode() for n in range(20)}.items() <= shared(b).items()


@pytest.mark.parametrize("count", [201, 2000])
def test_L02_many_dirty_paths_never_turn_a_push_into_a_mirror(team: Team, count: int):
    a, b = team.machine("a"), team.machine("b")
    b.put("web", "theirs", "1")
    drop_in(a, {f"files/many/{n}": str(n) for n in range(count)})
    pushed = a.sync("--push", "--full")
    assert pushed["filesPushed"] == count and pushed["filesDeleted"] == 0
    b.sync()
    assert b.get("web", "theirs")["content"] == "1"
    assert len(list((b.tree / "files" / "many").iterdir())) == count


def outside(team: Team, namespace: str) -> dict[str, bytes]:
    """Every object of the others, leases apart."""
    found = team.place.objects()
    return {k: v for k, v in found.items() if not k.startswith(namespace) and not k.endswith(".lock")}


def test_L03_a_namespaced_repository_touches_nothing_outside(team: Team):
    plain = team.machine("plain")
    plain.put("web", "report", "1")
    a = team.machine("a", "--namespace", "team-a")
    before = outside(team, "team-a/")
    for text in ("1", "2"):
        a.put("web", "report", text)
        a.sync("--full")
    assert ROOT_KEY in before and outside(team, "team-a/") == before
    assert plain.sync("--full")["filesPulled"] == 0


def test_L05_a_pull_over_an_unpushed_edit_keeps_both(team: Team):
    a, b = team.machine("a"), team.machine("b")
    drop_in(a, {"files/note": "first"})
    a.sync("--full")
    b.sync()
    drop_in(a, {"files/note": "from a"})
    a.sync("--full")
    drop_in(b, {"files/note": "from b"})
    done = b("datastore", "sync", "--full")
    assert done.code == 1 and [c["path"] for c in done.json["conflicts"]] == ["files/note"]
    assert (b.tree / "files" / "note").read_text() == "from a"
    [cache] = b.caches
    assert b"from b" in read_tree(cache / "conflicts").values()
    assert b.status()["cache"]["conflicts"] == 1


def test_L07_three_processes_in_a_row_push_all_their_versions(team: Team):
    a = team.machine("a")
    for text in ("1", "2", "3"):
        a.put("web", "report", text)
    b = team.machine("b")
    assert b.versions("web", "report") == [3, 2, 1]
    assert [b.get("web", "report", "--version", v)["content"] for v in "123"] == ["1", "2", "3"]


def test_L08_one_bad_file_does_not_stop_the_rest(team: Team):
    a = team.machine("a")
    drop_in(a, {f"files/{n}": str(n) for n in range(5)})
    (a.tree / "files" / "2-dangling").symlink_to("/nowhere")
    done = a("datastore", "sync", "--full")
    assert done.code == 1 and done.json["filesPushed"] == 5
    assert any("2-dangling" in f["path"] for f in done.json["failed"])
    b = team.machine("b")
    assert len(shared(b)) == 5


def test_L09_repairing_again_rolls_nothing_back(team: Team):
    """Repaired for a reason, then without one, with commits in between."""
    a = team.machine("a")
    a.put("web", "report", "1")
    team.place.open().delete([ROOT_KEY])
    assert a("datastore", "doctor", "--repair").ok()["ok"] is True
    a.put("web", "report", "2")
    before = team.place.root()
    for _ in range(2):
        assert a("datastore", "doctor", "--repair").ok()["ok"] is True
    assert team.place.root() == before
    assert team.machine("b").versions("web", "report") == [2, 1]


@pytest.mark.parametrize("path", ["data/x", "files/deep/er/file"])
def test_L10_every_path_under_the_tree_is_indexed_and_arrives(team: Team, path: str):
    a = team.machine("a")
    drop_in(a, {path: "x"})
    assert a.sync("--full")["filesPushed"] == 1
    assert path in team.place.root()["entries"]
    assert shared(team.machine("b")) == {path: b"x"}


def test_L13_two_processes_on_one_cache_both_arrive(team: Team):
    a = team.machine("a")
    file = a.home / "f"
    file.write_text("x")
    running = [a.start("data", "put", f"model-{n}", "report", str(file)) for n in range(4)]
    for process in running:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, (out, err)
    b = team.machine("b")
    assert b.names() == [(f"model-{n}", "report") for n in range(4)]


@pytest.mark.inv("commit.single-winner")
def test_L16_L52_commits_and_pulls_that_overlap_hide_nothing(team: Team):
    """Three machines commit at once while one of them pulls in two more processes: all see all, and come to rest."""
    machines = [team.machine(name) for name in "abc"]
    running = []
    for n, machine in enumerate(machines):
        file = machine.home / "f"
        file.write_text(str(n))
        running += [machine.start("data", "put", f"model-{n}", "report", str(file))]
        running += [machines[0].start("datastore", "sync", "--pull")]
    for process in running:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, (out, err)
    for machine in machines:
        machine.sync()
        assert machine.sync()["fastPath"] is True
        assert machine.names() == [(f"model-{n}", "report") for n in range(3)]


PARALLEL = """id: 7d5a8f1e-0c35-4b21-9a5e-2f6f5d9f0a13
name: wide
concurrency: 4
jobs:
  - name: j
    steps:
      - name: s-${{ self.i }}
        forEach: {item: i, in: [1, 2, 3, 4, 5, 6]}
        task: {type: model_method, modelType: command/shell, modelName: "m-${{ self.i }}", methodName: execute,
          inputs: {run: "echo ${{ self.i }}"}}
"""


def test_L06_steps_that_run_at_the_same_time_all_arrive(team: Team):
    a = team.machine("a")
    (a.repo / "workflows" / "workflow-wide.yaml").write_text(PARALLEL)
    assert a("workflow", "run", "wide").ok()["status"] == "succeeded"
    assert a.status()["pending"] == {"writes": 0, "deletes": 0, "found": 0, "outbox": 0}
    there = shared(team.machine("b"))
    assert there == shared(a)
    assert len([path for path in there if path.endswith("/result/1/raw")]) == 6


def test_L14_a_cache_pointed_at_another_bucket_compares_everything(team: Team, tmp_path):
    """The bucket under the same URL is replaced by another with the same sequence number."""
    a = team.machine("a")
    a.put("web", "report", "1")
    other = Team(tmp_path / "o", Place((tmp_path / "other").as_uri()))
    c = other.machine("c")
    c.put("web", "different", "2")
    assert team.place.root()["seq"] == other.place.root()["seq"]
    shutil.rmtree(tmp_path / "bucket")
    (tmp_path / "other").rename(tmp_path / "bucket")
    done = a.sync()
    assert done["fastPath"] is False and done["filesDeleted"] == 0
    assert ("web", "different") in a.names() and ("web", "report") in a.names()


def test_L18_a_push_onto_a_bucket_with_data_and_no_index_merges(team: Team):
    source = team.machine("source", joined=False)
    source.put("web", "report", "theirs")
    store = team.place.open()
    for path, body in read_tree(source.repo / ".swamp").items():
        if path.startswith("data/") and not path.endswith("/latest"):
            store.put(path, body)
    a = team.machine("a", joined=False)
    a.put("mine", "report", "mine")
    assert a.setup(*team.place.setup_args)["discovered"] is True
    b = team.machine("b")
    assert b.names() == [("mine", "report"), ("web", "report")]


def test_L19_L20_nothing_to_push_is_not_in_sync_and_a_full_match_is(team: Team):
    a = team.machine("a")
    a.put("web", "report", "1")
    b = team.machine("b", joined=False)
    shutil.copy(a.repo / ".swamp.yaml", b.repo / ".swamp.yaml")
    assert b.sync("--push")["filesPushed"] == 0
    assert b.sync("--pull")["filesPulled"] == 4
    [cache] = b.caches
    for file in cache.glob("state.db*"):
        file.unlink()
    assert b.sync("--push")["filesPushed"] == 0
    again = b.sync()
    assert (again["fastPath"], again["requests"]) == (True, 1)


@pytest.mark.usefixtures("one_object_each")
def test_L22_lock_files_and_a_missing_payload_do_not_stop_a_reader(team: Team):
    a = team.machine("a")
    a.put("web", "report", "1")
    a.put("web", "other", "2")
    store = team.place.open()
    store.put("data/manual/data/some-id/.lock", b"{}")
    [key] = [e["key"] for p, e in team.place.root()["entries"].items() if p.endswith("other/1/raw")]
    store.delete([key])
    b = team.machine("b", joined=False)
    joined = b("datastore", "setup", *team.place.setup_args)
    assert joined.code == 1 and any("other/1/raw" in error for error in joined.json["errors"])
    assert not any(".lock" in path for path in team.place.root()["entries"])
    healed = a("datastore", "verify", "--repair")
    assert healed.code == 0 and healed.json["healed"]
    b.setup(*team.place.setup_args)
    assert b.get("web", "other")["content"] == "2"


def test_L23_L24_no_catalog_and_no_temp_file_is_ever_uploaded(team: Team):
    a = team.machine("a")
    a.put("web", "report", "1")
    drop_in(a, {"files/.swamp-tmp-abc": "x", "data/_catalog.db": "x", "data/_catalog.db-wal": "x"})
    a.sync("--full")
    assert not [key for key in team.place.objects() if "_catalog" in key or "swamp-tmp" in key]


def test_L25_a_lazy_machine_with_a_namespace_reads_what_it_does_not_have(team: Team):
    a = team.machine("a", "--namespace", "team-a")
    a.put("web", "report", "from afar")
    b = team.machine("b", joined=False)
    shutil.copy(a.repo / ".swamp.yaml", b.repo / ".swamp.yaml")  # another checkout of the same repository
    b.setup(*team.place.setup_args, "--namespace", "team-a", "--hydrate", "lazy")
    assert b.status()["cache"]["remoteOnly"] == 1
    assert b.get("web", "report")["content"] == "from afar"
    assert len(list((b.tree / "data").rglob("raw"))) == 1 and not (b.tree / "team-a").exists()


def test_L26_deletes_renames_and_collection_stay_gone_everywhere(team: Team):
    a, b = team.machine("a"), team.machine("b")
    for n in range(3):
        a.put("web", "short", str(n), "--lifetime", "ephemeral")
    a.put("web", "old", "x")
    b.sync()
    assert a("data", "rename", "web", "old", "new").ok()["newName"] == "new"
    assert a("data", "gc", "--yes").ok()["versionsDeleted"] == 3
    b.sync()
    assert b.names() == a.names() == [("web", "new")]
    b.put("web", "more", "y")
    b.sync("--full")
    a.sync("--full")
    assert a.names() == b.names() == [("web", "more"), ("web", "new")]
    assert team.machine("c").names() == [("web", "more"), ("web", "new")]


def lose_state(machine: Machine) -> None:
    [cache] = machine.caches
    for file in cache.glob("state.db*"):
        file.unlink()


def audited(machine: Machine) -> dict[str, bytes]:
    return read_tree(machine.tree / "audit")


@pytest.mark.inv("cache.disposable")
def test_L39_an_audit_file_that_grew_on_one_side_is_no_conflict_after_lost_state(team: Team):
    a, b = team.machine("a"), team.machine("b")
    b.put("web", "x", "1")
    a.put("web", "y", "1")
    a.sync()
    b.put("web", "x", "2")
    lose_state(a)
    assert a.sync()["conflicts"] == []
    b.sync()
    assert audited(a) == audited(b) and len(audited(a)) == 2
    # And lines of our own that were never pushed, because what announced them is lost.
    [mine] = [name for name, body in audited(a).items() if b'"web"' not in body and body.count(b"\n") == 1]
    with (a.tree / "audit" / mine).open("a") as file:
        file.write('{"at": "never pushed"}\n')
    lose_state(a)
    assert a.sync()["conflicts"] == []
    assert b"never pushed" in audited(a)[mine]
    b.sync()
    assert audited(a) == audited(b)
    # Lines on both sides are one, and both copies are kept.
    with (b.tree / "audit" / mine).open("a") as file:
        file.write('{"at": "elsewhere"}\n')
    b.sync("--full")
    with (a.tree / "audit" / mine).open("a") as file:
        file.write('{"at": "here"}\n')
    lose_state(a)
    done = a("datastore", "sync")
    assert done.code == 1 and [c["path"] for c in done.json["conflicts"]] == [f"audit/{mine}"]
    [cache] = a.caches
    assert any(b'"here"' in body for body in read_tree(cache / "conflicts").values())


@pytest.mark.inv("cache.disposable")
@pytest.mark.parametrize("lost", ["cache", "tree"])
def test_L27_a_cache_deleted_by_hand_deletes_nothing_and_is_restored(team: Team, lost: str):
    a = team.machine("a")
    a.put("web", "report", "1")
    before = team.place.root()["entries"]
    [cache] = a.caches
    shutil.rmtree(cache if lost == "cache" else cache / "tree")
    pushed = a("datastore", "sync", "--push", "--full")
    assert pushed.code == 0 and pushed.json["filesDeleted"] == 0
    assert team.place.root()["entries"] == before
    a.sync("--pull")
    assert a.get("web", "report")["content"] == "1"


def test_L29_killed_puts_lose_nothing_that_was_acknowledged(team: Team):
    """kill -9 from the first file of `data put` to nearly its last step; printed: killed, acknowledged, at risk."""
    a, killer = team.machine("a"), Killer(team.directory)
    acknowledged, killed = [], 0
    file = a.home / "f"
    file.write_text("value")
    for name in ("first", "counted"):  # the first one does more than the others
        ran, steps = killer.count(a, "data", "put", name, "report", str(file))
        ran.ok()
    begin = next(at for at, step in enumerate(steps) if "/tree/" in step)
    for n in range(14):
        file.write_text(f"value {n}")
        at = -1 if n % 7 == 6 else begin + (len(steps) - begin) * n // 14  # two live
        died = killer.kill(a, at, "data", "put", f"m{n}", "report", str(file))
        killed += died.killed
        if not died.killed and died.ran.ok()["version"]:
            acknowledged.append(n)
    print(f"killed {killed}, acknowledged {len(acknowledged)}, at risk {killed} of 14")
    assert killed >= 10 and len(acknowledged) >= 2, "too few were at risk"
    a.sync()
    b = team.machine("b")
    found = {model for model, _ in b.names()}
    assert {f"m{n}" for n in acknowledged} <= found
    for model in found:
        assert b.get(model, "report")["content"].startswith("value")
    assert a.names() == b.names()
    assert a("datastore", "verify").ok()["missing"] == []


def test_L33_deleted_today_survives_gc_today_and_comes_back(team: Team):
    a, b = team.machine("a"), team.machine("b")
    a.put("web", "report", "precious")
    b.sync()
    a("data", "delete", "web", "report", "--yes").ok()
    assert a("datastore", "gc").ok()["deleted"] == 0
    b.sync()
    assert b.names() == []
    done = a("datastore", "undelete", "--since", "1h").ok()
    assert any(path.endswith("report/1/raw") for path in done["restored"]) and done["gone"] == []
    assert a.get("web", "report")["content"] == "precious"
    b.sync()
    assert b.get("web", "report")["content"] == "precious"


@pytest.mark.usefixtures("one_object_each")
def test_L33_without_a_window_gc_asks_and_then_it_is_gone(team: Team):
    a = team.machine("a")
    a.put("web", "report", "x")
    a("data", "delete", "web", "report", "--yes").ok()
    a("datastore", "gc", "--keep-days", "0").failed(2)
    time.sleep(1.1)
    done = a("datastore", "gc", "--keep-days", "0", "--yes").ok()
    assert done["deleted"] >= 2
    gone = a("datastore", "undelete", "--since", "1h")
    assert gone.code == 1 and gone.json["restored"] == [] and gone.json["gone"], "what is gone for good is no success"


def test_L34_L49_gc_takes_nothing_of_other_tenants_and_no_plain_key(team: Team):
    a = team.machine("a")
    other = team.machine("other", "--namespace", "team-x")
    other.put("web", "report", "theirs")
    a.put("web", "report", "mine")
    store = team.place.open()
    store.put("data/foreign/file", b"by another tool")
    store.put("elsewhere/thing", b"by another tool")
    time.sleep(1.1)
    a("datastore", "gc", "--keep-days", "0", "--yes").ok()
    assert store.get("data/foreign/file").body == store.get("elsewhere/thing").body
    assert other("datastore", "verify").ok()["missing"] == []


def test_L37_a_push_by_a_cache_that_is_behind_does_not_hide_what_it_has_not_pulled(team: Team):
    a, b = team.machine("a"), team.machine("b")
    b.put("web", "theirs", "1")
    drop_in(a, {"files/mine": "2"})
    pushed = a.sync("--push", "--full")
    assert (pushed["filesPushed"], pushed["filesPulled"]) == (1, 0)
    pulled = a.sync("--pull")
    assert pulled["fastPath"] is False and pulled["filesPulled"] > 0
    assert a.get("web", "theirs")["content"] == "1"


def test_L39_with_lost_state_nothing_that_was_deleted_elsewhere_comes_back(team: Team):
    a, b = team.machine("a"), team.machine("b")
    a.put("web", "gone", "1")
    a.put("web", "kept", "2")
    b.sync()
    [cache] = b.caches
    for file in cache.glob("state.db*"):
        file.unlink()
    a("data", "delete", "web", "gone", "--yes").ok()
    done = b("datastore", "sync")
    assert done.code == 1 and done.json["conflicts"], "a file moved aside is reported"
    assert b.names() == [("web", "kept")]
    a.sync()
    assert a.names() == [("web", "kept")]


def test_L40_a_delete_does_not_remove_what_was_written_again(team: Team):
    """Deleted here without a push; deleted and made again with the same bytes by another: that one is not mine."""
    a, b = team.machine("a"), team.machine("b")
    drop_in(a, {"files/note": "same", "files/plain": "x"})
    a.sync("--full")
    b.sync()
    run_python(a, DELETE_NOTE)
    assert a.status()["pending"]["deletes"] == 1
    run_python(b, DELETE_NOTE)
    b.sync("--push")
    drop_in(b, {"files/note": "same"})
    b("datastore", "sync", "--full")
    run_python(b, WRITE_NOTE)
    b.sync("--push")
    done = a("datastore", "sync")
    assert done.json["filesDeleted"] == 0, "what was deleted is not what is there"
    assert (a.tree / "files" / "note").read_text() == "same"
    os.unlink(a.tree / "files" / "plain")
    assert a.sync("--full")["filesDeleted"] == 0, "absence is never a deletion"
    assert (a.tree / "files" / "plain").read_text() == "x"


DELETE_NOTE = """
import swamp
repo = swamp.open_repo()
with repo.tree.announce(["files/note"], "delete"):
    (repo.tree.root / "files" / "note").unlink()
"""
WRITE_NOTE = """
import swamp
repo = swamp.open_repo()
with repo.tree.announce(["files/note"]):
    (repo.tree.root / "files").mkdir(exist_ok=True)
    (repo.tree.root / "files" / "note").write_text("same")
"""


def test_L41_a_root_that_an_old_client_overwrote_is_noticed_and_repaired(team: Team):
    a, b = team.machine("a"), team.machine("b")
    a.put("web", "report", "1")
    team.place.open().put(ROOT_KEY, b'{"version": 1, "lastPulled": "x", "entries": {}}')
    error = b("datastore", "sync").failed(65)
    assert "doctor --repair" in error["hint"]
    assert a("datastore", "doctor").code == 1
    a("datastore", "doctor", "--repair").ok()
    b.sync()
    assert b.get("web", "report")["content"] == "1"


@pytest.mark.inv("unit.whole")
def test_L42_half_a_version_is_not_pushed_and_goes_when_it_is_whole(team: Team):
    a = team.machine("a")
    a.put("web", "report", "1")
    [raw] = (a.tree / "data").rglob("report/1/raw")
    half = raw.parent.parent / "2"
    half.mkdir()
    (half / "raw").write_text("2")
    a("datastore", "sync", "--full")
    assert not [path for path in team.place.root()["entries"] if "/report/2/" in path]
    assert team.machine("b").versions("web", "report") == [1]
    shutil.rmtree(half)
    a.put("web", "report", "2")
    assert team.machine("c").versions("web", "report") == [2, 1]


def test_L44_the_delete_cap_holds_only_the_deletes(team: Team):
    a = team.machine("a")
    a.put("bulk", "many", "seed")
    script = (
        "import swamp, sys\n"
        "repo = swamp.open_repo()\n"
        "for n in range(150):\n"
        "    (repo.tree.root / 'files').mkdir(exist_ok=True)\n"
        "    with repo.tree.announce([f'files/f{n}']):\n"
        "        (repo.tree.root / 'files' / f'f{n}').write_text(str(n))\n"
        "repo.datastore.sync()\n"
        "with repo.tree.announce(['files'], 'delete'):\n"
        "    import shutil; shutil.rmtree(repo.tree.root / 'files')\n"
    )
    run_python(a, script)
    a.put("bulk", "many", "after the mass delete")
    held = a("datastore", "sync", "--push")
    assert held.code == 1 and held.json["deletesHeld"] == 150 and held.json["failed"] == []
    assert "--allow-deletes 150" in held.err
    b = team.machine("b")
    assert b.get("bulk", "many")["content"] == "after the mass delete"
    assert len(list((b.tree / "files").iterdir())) == 150
    assert a.sync("--push", "--allow-deletes", "200")["filesDeleted"] == 150


def run_python(machine: Machine, script: str) -> str:
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-c", script], env=machine.environment(), cwd=machine.repo, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_L46_a_file_and_a_directory_of_one_name_are_a_conflict_for_the_later_and_readers_go_on(team: Team):
    a, b = team.machine("a"), team.machine("b")
    drop_in(a, {"files/thing": "a file"})
    drop_in(b, {"files/thing/inside": "a directory", "files/other": "x"})
    a.sync("--full")
    done = b("datastore", "sync", "--full")
    assert done.code == 1 and any("files/thing" in c["path"] for c in done.json["conflicts"]), done.out
    assert set(team.place.root()["entries"]) == {"files/thing", "files/other"}
    [cache] = b.caches
    assert b"a directory" in read_tree(cache / "conflicts").values()
    a.sync()
    assert shared(a) == {"files/thing": b"a file", "files/other": b"x"} == shared(team.machine("c"))


def test_L48_without_root_and_log_nothing_is_published_and_a_proposal_is_made(team: Team):
    a = team.machine("a")
    a.put("web", "report", "1")
    a.put("web", "report", "2")
    store = team.place.open()
    store.delete([key for key in team.place.objects() if key == ROOT_KEY or key.startswith("_index/")])
    b = team.machine("b", joined=False)
    error = b("datastore", "setup", *team.place.setup_args).failed(65)
    assert "--from-listing" in error["hint"]
    assert ROOT_KEY not in team.place.objects()
    a("datastore", "doctor", "--repair", "--from-listing").failed(2)
    assert ROOT_KEY not in team.place.objects()
    a("datastore", "doctor", "--repair", "--from-listing", "--yes").ok()
    b.setup(*team.place.setup_args)
    assert b.versions("web", "report") == [2, 1]
    a.sync()
    assert a.versions("web", "report") == [2, 1]


def test_L48_a_lost_root_is_rebuilt_from_the_log(team: Team):
    a = team.machine("a")
    a.put("web", "report", "1")
    before = team.place.root()
    team.place.open().delete([ROOT_KEY])
    b = team.machine("b", joined=False)
    assert b.setup(*team.place.setup_args)["discovered"] is True
    assert b.get("web", "report")["content"] == "1"
    after = team.place.root()
    assert (after["storeId"], after["entries"]) == (before["storeId"], before["entries"])
    assert after["seq"] == before["seq"] + 2


@pytest.mark.parametrize("disaster", ["emptied", "older"])
def test_L53_an_emptied_or_restored_bucket_removes_nothing_here(team: Team, disaster: str):
    a = team.machine("a")
    a.put("web", "report", "1")
    bucket, backup = team.directory / "bucket", team.directory / "backup"
    shutil.copytree(bucket, backup)
    a.put("web", "report", "2")
    mine = shared(a)
    shutil.rmtree(bucket)
    if disaster == "older":
        backup.rename(bucket)
        error = a("datastore", "sync").failed(65)
        assert "doctor --repair" in error["hint"]
        a("datastore", "doctor", "--repair").ok()
    told = a.sync()["warnings"]
    assert disaster == "older" or "not the one this machine knew" in told[0]
    assert shared(a) == mine
    b = team.machine("b")
    assert b.versions("web", "report") == [2, 1]
