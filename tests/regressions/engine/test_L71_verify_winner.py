"""L71: `verify --repair` changes the row that wins now, not the one that won when it began to look."""

from __future__ import annotations

import pytest

import swamp.commit.commit
from peers import Peer, Watched, content, once, settled, shared
from swamp.sync.progress import IdleTimeout
from swamp.sync.verify import verify


def flushed(monkeypatch) -> None:
    """Every commit moves its rows into a segment: nothing is left in the newest layer."""
    monkeypatch.setattr(swamp.commit.commit, "LAYER_ROWS", 0)


def overtaken(store, a: Peer, b: Peer, path: str, act) -> dict[str, str]:
    """`a` verifies and repairs while, after it has looked at `path`, `act` happens."""
    lost = shared(a.engine)[path].key
    store.delete([lost])
    watched = Watched(store, once("put", ".datastore-index", act))
    engine = a.process(watched)
    found = verify(engine.context, IdleTimeout(a.env, 60.0), threads=1, repair=True)
    engine.close()
    return {"healed": ",".join(found.healed), "missing": ",".join(found.missing)}


@pytest.mark.inv("verify.winner")
def test_L71_a_mark_does_not_raise_an_older_key_above_a_newer_one(store, a, b, monkeypatch):
    flushed(monkeypatch)
    a.write("files/x", "old")
    a.push()
    b.pull()
    a.engine.close()
    (a.tree / "files/x").unlink()

    def newer() -> None:
        b.write("files/x", "new")
        b.push()

    overtaken(store, a, b, "files/x", newer)
    assert content(b.engine) == {"files/x": "new"}
    assert not shared(b.engine)["files/x"].missing


@pytest.mark.inv("verify.winner")
def test_L71_a_healed_payload_does_not_replace_a_newer_one_nor_undo_a_delete(store, a, b, monkeypatch):
    flushed(monkeypatch)
    a.write("files/x", "old")
    a.write("files/y", "old too")
    a.push()
    b.pull()

    def newer() -> None:
        b.write("files/x", "new")
        b.delete("files/y")
        b.push()

    store.delete([shared(a.engine)["files/y"].key])
    overtaken(store, a, b, "files/x", newer)
    assert content(b.engine) == {"files/x": "new"}
    settled(a, b)
    assert a.files() == {"files/x": "new"}


@pytest.mark.inv("verify.winner")
def test_L71_what_nobody_touched_is_healed_whatever_layer_it_lies_in(store, a, b, monkeypatch):
    flushed(monkeypatch)
    a.write("files/x", "good")
    a.push()
    found = overtaken(store, a, b, "files/x", lambda: (b.write("files/other", "1"), b.push()))
    assert found == {"healed": "files/x", "missing": ""}
    assert content(b.engine) == {"files/x": "good", "files/other": "1"}
