"""A first pull holds one portion of the paths at a time, and is the same pull."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from peers import Watched, settled, version
from swamp.cache.state import State
from swamp.errors import Unavailable
from swamp.sync import observe
from swamp.sync.engine import Policy

PORTION = 3
SMALL = Policy(push_concurrency=1, pull_concurrency=1, portion=PORTION)


@pytest.fixture
def held(monkeypatch):
    """How many facts each plan was made of."""
    seen: list[int] = []
    real = observe.plan

    def plan(facts, *rest):
        seen.append(len(facts))
        return real(facts, *rest)

    monkeypatch.setattr(observe, "plan", plan)
    return seen


@pytest.fixture
def files(a) -> dict[str, str]:
    for n in range(1, 5):
        a.write_version(version("report", n), f"{n}")
    for n in range(7):
        a.write(f"files/{n}", f"{n}")
    a.push()
    a.delete("files/3")
    a.push()
    assert len(a.files()) == 14
    return a.files()


def test_no_plan_is_larger_than_a_portion_and_a_unit(a, peer, held, files):
    b = peer("b", policy=SMALL)
    held.clear()
    pulled = b.pull()
    assert b.files() == files and pulled.files_pulled == len(files) and not pulled.failed
    assert len(held) > 3 and max(held) <= PORTION + 1, held
    assert b.pull().fast_path and b.push().fast_path
    settled(a, b)


def test_a_lazy_cache_knows_all_that_it_left(peer, held, files):
    b = peer("b", policy=Policy("lazy", portion=PORTION))
    held.clear()
    b.pull()
    assert max(held) <= PORTION + 1
    assert b.engine.status().remote_only == 4 and b.pull().fast_path
    assert b.engine.hydrate(version("report", 2) + "/raw").read_text() == "2"


def test_what_was_cut_short_goes_on_and_only_then_is_marked(a, store, peer, files):
    fetched = 0

    def stumble(verb: str, key: str) -> None:
        nonlocal fetched
        fetched += verb == "open"
        if verb == "open" and fetched > 5:
            raise SystemExit("killed here")

    b = peer("b", policy=SMALL, store=Watched(store, stumble))
    with pytest.raises(SystemExit):
        b.pull()
    assert 0 < len(b.files()) < len(files)
    fetched = -100
    b.restart()
    assert not b.pull().fast_path
    assert b.files() == files and b.pull().fast_path
    settled(a, b)


def test_what_fails_in_one_portion_is_owed_and_the_others_arrive(a, store, peer, files):
    refused = {"files/0"}

    def refuse(verb: str, key: str) -> None:
        if verb == "open" and key.partition("~")[0] in refused:
            raise Unavailable("gone")

    b = peer("b", policy=SMALL, store=Watched(store, refuse))
    first = b.pull()
    assert [f.path for f in first.failed] == ["files/0"]
    assert set(files) - set(b.files()) == refused
    refused.clear()
    assert b.pull().files_pulled == 1 and b.files() == files
    settled(a, b)


def test_a_tree_with_files_of_its_own_is_looked_at_as_a_whole(a, peer, held, files):
    """A file here and a directory there cannot stand beside each other, wherever in the tree they lie."""
    b = peer("b", policy=SMALL)
    b.put("files", "a file where the store has a directory")
    held.clear()
    b.sync(full=True)
    assert max(held) > PORTION + 1
    assert b.files() == files and b.kept() == {"files": "a file where the store has a directory"}
    settled(a, b)


def test_what_somebody_writes_meanwhile_is_nobodys_loss(a, store, peer, files):
    done: list[str] = []

    def meddle(verb: str, key: str) -> None:
        if verb == "open" and not done:
            done.append(key)
            b.write("files/6", "mine")
            b.write("files/new", "new")

    b = peer("b", policy=SMALL, store=Watched(store, meddle))
    b.pull()
    settled(b, a)
    assert "mine" in {*b.files().values(), *b.kept().values()}
    assert a.files() == b.files() and b.read("files/new") == "new" and set(a.files()) >= set(files)


def test_what_cannot_be_looked_at_holds_back_its_whole_unit(a, peer, files):
    """A dangling link stands where a version's metadata must go: nothing of that version comes, all others do."""
    b = peer("b", policy=SMALL)
    for n in (1, 2, 3, 4):
        b.put("kept/file", "")  # makes the tree; taken away again
        (b.tree / version("report", n)).mkdir(parents=True)
    shutil.rmtree(b.tree / "kept")
    (b.tree / version("report", 2) / "metadata.yaml").symlink_to("/nowhere")
    b.pull()
    assert set(files) - set(b.files()) == {f"{version('report', 2)}/{name}" for name in ("metadata.yaml", "raw")}
    (b.tree / version("report", 2) / "metadata.yaml").unlink()
    b.pull()
    assert b.files() == files
    settled(a, b)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_a_link_that_appears_between_two_portions_holds_back_its_unit(store, peer, files, n):
    planted: list[str] = []

    def plant(verb: str, key: str) -> None:
        if verb == "open" and not planted:
            planted.append(key)
            (b.tree / version("report", n)).mkdir(parents=True, exist_ok=True)
            (b.tree / version("report", n) / "metadata.yaml").symlink_to("/nowhere")

    b = peer("b", policy=SMALL, store=Watched(store, plant))
    b.pull()
    assert planted and f"{version('report', n)}/raw" not in b.files()


@pytest.mark.parametrize("store", ["memory"], indirect=True)
def test_others_may_announce_while_a_pull_goes_from_portion_to_portion(a, store, peer):
    """A cursor over base stayed open between two portions: then no transaction could begin after somebody's write.

    What is tried is a file of SQLite and more rows than it reads at once, so one store does: 8,400 requests are a
    minute over HTTP."""
    paths = [f"files/{n:04d}" for n in range(2100)]
    for round_ in ("one", "two"):
        for path in paths:
            a.put(path, round_)
        assert a.sync(full=True).files_pushed == len(paths)
        if round_ == "one":
            b = peer("b", policy=replace(SMALL, portion=500))
            b.pull()
            with b.engine.state.transaction() as tx:  # as after Ctrl-C just before the mark
                tx.set_meta("pulledOp", None)
                tx.set_meta("pulledSeq", None)
    announced: list[str] = []

    def announce(verb: str, key: str) -> None:
        if verb == "open" and not announced:
            announced.append(key)
            other = State.open(b.cache.state_db)
            other.announce(["files/new"], "write")
            other.close()

    again = b.process(store=Watched(store, announce))
    try:
        assert again.pull().files_pulled == len(paths)
    finally:
        again.close()
    assert announced and set(b.files().values()) == {"two"}


def test_a_lazy_cache_that_was_emptied_is_not_in_sync_after_a_part_of_it_came_back(a, peer):
    """S11: only a pull of everything may say that everything is there."""
    a.write_version(version("report", 1), "1")
    a.write("outputs/o.yaml", "o")
    a.push()
    b = peer("b", policy=Policy("lazy"))
    b.pull()
    have = b.files()
    shutil.rmtree(b.tree)
    b.tree.mkdir()
    b.pull(version("report", 1))
    assert not b.pull().fast_path and b.files() == have
