"""Sequences that once went wrong between two commands: scopes, laziness, caps, exclusions, second thoughts."""

from __future__ import annotations

import pytest

from peers import MODEL, Peer, Watched, content, once, settled, shared, version
from swamp.store.layers import MeterStore
from swamp.sync.engine import Policy

LAZY = Policy(hydrate="lazy", push_concurrency=2, pull_concurrency=2)


@pytest.fixture(params=["memory", "directory"])
def store(request, servers, fresh_prefix):
    return servers[request.param].open(fresh_prefix())


@pytest.fixture
def lazy(peer) -> Peer:
    return peer("lazy", policy=LAZY)


# --- names that stay here


def test_L23_L24_internal_names_that_are_announced_by_name_are_never_pushed(a, b):
    a.write("files/seed", "seed")
    a.push()
    hidden = [
        "data/_catalog.db",
        "data/_catalog.db-wal",
        "data/t/m/.lock",
        "data/t/m/n/latest",
        "data/t/.swamp-tmp-1-1",
    ]
    for path in hidden:
        a.write(path, "not for others")
    result = a.push()
    assert result.ok and result.files_pushed == 0
    assert set(shared(a.engine)) == {"files/seed"}
    assert a.engine.status().pending.writes == 0
    settled_files = {p: c for p, c in a.files().items() if p not in hidden}
    assert settled_files == content(a.engine)


def leave_out_logs(path: str, directory: bool) -> bool:
    return path == "logs" and directory


def test_excluded_files_stay_here_announced_or_not(a, peer):
    one = peer("one", policy=Policy(exclude=leave_out_logs))
    one.write("files/x", "x")
    one.write("logs/announced", "mine")
    one.put("logs/found", "mine")
    one.push()
    one.write("logs/later", "mine")
    one.write("files/y", "y")
    one.push()
    one.sync(full=True)
    assert set(shared(one.engine)) == {"files/x", "files/y"}
    assert one.engine.status().pending.writes == 0
    assert one.sync().fast_path


def test_what_is_shared_already_stays_in_step_whatever_is_excluded_now(store, a, peer):
    a.write("logs/x", "1")
    a.write("files/y", "y")
    a.push()
    one = peer("one", policy=Policy(exclude=leave_out_logs))
    assert one.pull().files_pulled == 2
    meter = MeterStore(store)
    for command in (one.process(meter).pull, one.process(meter).push, one.process(meter).sync):
        before = meter.requests
        assert command(full=True).ok
        assert meter.requests - before <= 2, "left out is not absent: nothing is fetched again"
    assert one.sync().fast_path
    a.write("logs/x", "2")
    a.push()
    one.pull()
    assert one.read("logs/x") == "2"
    one.write("logs/x", "3")
    one.push()
    assert content(a.engine)["logs/x"] == "3"


# --- deletes


@pytest.mark.inv("delete.intent")
def test_deleting_a_directory_spares_what_others_added_to_it_meanwhile(a, b):
    a.write("files/d/1", "1")
    a.push()
    b.pull()
    b.write("files/d/2", "2")
    b.push()
    a.delete("files/d")
    a.push()
    settled(a, b)
    assert content(a.engine) == {"files/d/2": "2"}


@pytest.mark.inv("delete.intent")
@pytest.mark.parametrize("announced", [True, False])
def test_a_delete_row_whose_file_is_there_again_is_dropped(a, b, announced):
    a.write("files/1", "1")
    a.push()
    b.pull()
    a.delete("files/1")
    (a.write if announced else a.put)("files/1", "written again")
    assert a.push().ok
    settled(a, b)
    assert content(a.engine) == {"files/1": "written again"}


@pytest.mark.inv("delete.by-key")
def test_what_could_not_be_deleted_comes_back_once_and_is_reported(a, b):
    a.write("files/1", "1")
    a.push()
    b.pull()
    a.write("files/1", "2")
    a.push()
    b.delete("files/1")
    assert not b.push().ok
    assert [c.path for c in b.pull().conflicts] == ["files/1"]
    assert b.push().fast_path
    settled(a, b)
    assert b.read("files/1") == "2"


@pytest.mark.inv("delete.intent")
def test_rows_of_a_directory_and_of_its_files_do_not_disturb_each_other(a, b):
    for i in range(4):
        a.write(f"files/d/{i}", "x")
    a.push()
    b.pull()
    with a.engine.announce(["files/d"]):
        a.put("files/d/0", "y")
    a.delete("files/d/1")
    with a.engine.announce(["files/d"]):
        (a.tree / "files/d/2").unlink()
    a.push()
    a.sync()
    settled(a, b)
    assert set(a.files()) == {"files/d/0", "files/d/2", "files/d/3"} and b.read("files/d/0") == "y"


def test_L44_a_delete_held_by_the_cap_gives_way_to_an_edit(a, b):
    a.policy = Policy(delete_floor=1, delete_fraction=0.0)
    for i in range(3):
        a.write(f"files/{i}", "x")
    a.push()
    b.pull()
    for i in range(3):
        a.delete(f"files/{i}")
    assert a.push().deletes_held == 3
    b.write("files/0", "edited by b")
    b.push()
    result = a.sync()
    assert [c.path for c in result.conflicts] == ["files/0"] and result.deletes_held == 2
    assert not a.has("files/1")
    a.policy = Policy()
    a.restart()
    a.push()
    settled(a, b)
    assert a.files() == {"files/0": "edited by b"}


# --- scopes


@pytest.mark.inv("journal.survives")
def test_a_conflict_outside_the_scope_waits_for_its_turn(a, b):
    for path in ("files/x", "data/y"):
        a.write(path, "1")
    a.push()
    b.pull()
    for path in ("files/x", "data/y"):
        a.write(path, "2")
    a.push()
    b.write("files/x", "mine")
    assert b.pull("data").ok and b.read("data/y") == "2"
    assert b.engine.status().pending.writes == 1
    assert b.push("data").ok
    assert content(a.engine)["files/x"] == "2"
    assert [c.path for c in b.sync().conflicts] == ["files/x"]
    settled(a, b)


@pytest.mark.inv("delete.intent")
def test_scoped_pushes_delete_only_inside_their_scope(a, b):
    for path in ("files/x", "data/y"):
        a.write(path, "1")
    a.push()
    b.pull()
    b.delete("files/x")
    b.delete("data/y")
    assert b.push("data").files_deleted == 1
    b.pull("files")
    assert not b.has("files/x")
    assert b.push().files_deleted == 1
    settled(a, b)


def test_a_scoped_pull_into_an_empty_cache_then_a_push_then_everything(a, b):
    a.write_version(version("out", 1), "1")
    a.write("files/x", "x")
    a.push()
    b.pull(MODEL)
    b.write_version(version("out", 2), "2")
    assert b.push(MODEL).ok
    assert not b.has("files/x")
    assert b.pull().files_pulled == 1
    settled(a, b)


# --- conflicts


@pytest.mark.inv("conflict.keeps-both")
def test_every_lost_edit_of_a_path_is_kept(a, b):
    a.write("files/x", "1")
    a.push()
    b.pull()
    for turn in range(3):
        a.write("files/x", f"a{turn}")
        a.push()
        b.write("files/x", f"b{turn}")
        if turn % 2:
            b.push()
        b.pull()
    settled(a, b)
    assert sorted(p.read_text() for p in b.cache.conflicts.rglob("x")) == ["b0", "b1", "b2"]


@pytest.mark.inv("conflict.keeps-both")
def test_an_edit_over_a_path_that_lost_a_conflict_and_was_not_pulled_yet_is_kept_too(a, b):
    a.write("files/x", "1")
    a.push()
    b.pull()
    a.write("files/x", "2")
    a.push()
    b.write("files/x", "b")
    assert b.push().conflicts
    b.write("files/x", "b again, without having seen a's")
    b.push()
    settled(a, b)
    assert content(a.engine) == {"files/x": "2"}
    assert len(list(b.cache.conflicts.rglob("x"))) == 2


# --- laziness


def test_S04_a_lazy_cache_pushes_edits_of_metadata_without_its_content(a, lazy):
    unit = version("out", 1)
    a.write_version(unit, "raw")
    a.push()
    lazy.pull()
    lazy.write(f"{unit}/metadata.yaml", "edited")
    assert lazy.push().ok
    settled(a)
    assert a.read(f"{unit}/metadata.yaml") == "edited" and a.read(f"{unit}/raw") == "raw"
    assert lazy.sync().fast_path
    assert lazy.engine.materialize(f"{unit}/raw").read_text() == "raw"


def test_S04_a_lazy_cache_may_replace_content_that_it_never_held(a, lazy):
    unit = version("out", 1)
    a.write_version(unit, "raw")
    a.push()
    lazy.pull()
    lazy.write(f"{unit}/raw", "by the lazy one")
    assert lazy.push().ok
    settled(a)
    assert a.read(f"{unit}/raw") == "by the lazy one"


@pytest.mark.inv("conflict.keeps-both")
def test_S04_a_conflict_in_a_lazy_cache_leaves_content_remote_and_readable(a, lazy):
    unit = version("out", 1)
    a.write_version(unit, "raw")
    a.push()
    lazy.pull()
    a.write_version(unit, "raw by a")
    a.push()
    lazy.write(f"{unit}/metadata.yaml", "edited by the lazy one")
    assert lazy.sync().conflicts
    assert lazy.kept()[f"{unit}/metadata.yaml"] == "edited by the lazy one"
    assert lazy.sync().fast_path
    assert lazy.engine.materialize(f"{unit}/raw").read_text() == "raw by a"


def test_S05_what_is_deleted_elsewhere_leaves_a_lazy_cache(a, lazy):
    unit = version("out", 1)
    a.write_version(unit, "raw")
    a.push()
    lazy.pull()
    a.delete(unit)
    a.push()
    assert lazy.pull().ok
    assert lazy.files() == {} and not list(lazy.engine.remote_only())
    assert lazy.sync().fast_path


def test_S04_lazy_to_full_and_full_to_lazy_after_changes(a, lazy, peer):
    for n in (1, 2, 3):
        a.write_version(version("out", n), f"r{n}")
    a.push()
    lazy.pull()
    lazy.engine.materialize(version("out", 2))
    a.delete(version("out", 1))
    a.write_version(version("out", 3), "r3 new")
    a.push()
    lazy.engine.close()
    lazy.live, lazy.policy = None, Policy()
    settled(a, lazy)
    assert lazy.read(f"{version('out', 3)}/raw") == "r3 new"
    lazy.engine.close()
    lazy.live, lazy.policy = None, LAZY
    assert lazy.sync().fast_path
    a.write_version(version("out", 3), "r3 newest")
    a.push()
    lazy.pull()
    assert lazy.engine.materialize(f"{version('out', 3)}/raw").read_text() == "r3 newest"


# --- being stopped


@pytest.mark.inv("journal.survives")
@pytest.mark.parametrize("moment", ["upload", "open"])
def test_a_command_that_is_interrupted_keeps_what_it_owes_and_what_it_did(store, a, b, moment):
    from swamp.errors import Interrupted
    from swamp.sync.engine import Engine
    from swamp.sync.progress import Cancel

    b.write("files/theirs", "theirs")
    b.push()
    for i in range(4):
        a.write(f"files/{i}", f"{i}")
    cancel = Cancel()
    watched = Watched(store, once(moment, "files/", cancel.request))
    policy = Policy(push_concurrency=1, pull_concurrency=1)
    engine = Engine.open(watched, a.cache, writer=a.writer, env=a.env, policy=policy, cancel=cancel)
    with pytest.raises(Interrupted):
        engine.sync()
    assert a.engine.status().pending.writes == 4
    assert not list(a.cache.staging.iterdir())
    settled(a, b)
    assert len(content(a.engine)) == 5


# --- something in the way


IN_THE_WAY = {
    "a file": ("files/thing/x", "files/thing"),
    "a temp file": ("files/thing", "files/thing/.swamp-tmp-1"),
    "an excluded file": ("files/thing", "files/thing/private"),
    "a link": ("files/thing/x", "files/thing"),
}


@pytest.mark.parametrize("what", sorted(IN_THE_WAY))
@pytest.mark.parametrize("known", [True, False])
def test_L46_what_nobody_announced_and_stands_in_the_way_stays_and_the_rest_arrives(a, peer, tmp_path, what, known):
    theirs, mine = IN_THE_WAY[what]
    b = peer("b", policy=Policy(exclude=lambda path, directory: path.endswith("private")))
    a.write("files/seed", "seed")
    a.push()
    if known:
        b.pull()
    a.write(theirs, "theirs")
    a.write("files/other", "other")
    a.push()
    if what == "a link":
        (b.tree / "files").mkdir(parents=True, exist_ok=True)
        (b.tree / mine).symlink_to(tmp_path)
    else:
        b.put(mine, "mine")
    for _ in range(2):
        result = b.sync()
        assert b.read("files/other") == "other"
        if not known and what == "a file":
            break  # a fresh cache looks at everything: it is a conflict like any other
        assert theirs in {f.path for f in result.failed} or mine in {f.path for f in result.failed}
        assert (b.tree / mine).is_symlink() or b.read(mine) == "mine"
    if (b.tree / mine).is_symlink() or (b.tree / mine).is_file():
        (b.tree / mine).unlink()
    settled(a, b)
    assert b.read(theirs) == "theirs"


def test_L46_empty_directories_are_in_nobodys_way(a, b):
    b.write("files/seed", "seed")
    b.sync()
    (b.tree / "files/thing/deep/er").mkdir(parents=True)
    a.sync()
    a.write("files/thing", "a file")
    a.push()
    assert b.pull().ok and b.read("files/thing") == "a file"
    settled(a, b)
