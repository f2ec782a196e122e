"""A first pull holds one portion of the paths at a time, and is the same pull."""

from __future__ import annotations

import pytest

from peers import Watched, settled, version
from swamp.errors import Unavailable
from swamp.sync import look
from swamp.sync.engine import Policy

PORTION = 3
SMALL = Policy(push_concurrency=1, pull_concurrency=1, portion=PORTION)


@pytest.fixture
def held(monkeypatch):
    """How many facts each plan was made of."""
    seen: list[int] = []
    real = look.plan

    def plan(facts, *rest):
        seen.append(len(facts))
        return real(facts, *rest)

    monkeypatch.setattr(look, "plan", plan)
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
