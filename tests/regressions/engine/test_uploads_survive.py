"""What is uploaded before a commit names it is an orphan until then: a collector without an undo window takes it.

Whoever commits looks once more, on every root: a healed payload, a flushed layer, a compacted segment.
"""

from __future__ import annotations

import datetime as dt

import pytest

import swamp.commit.commit
from peers import Peer, Watched, content, once, shared
from swamp.commit.collect import collect
from swamp.commit.repack import compact
from swamp.index.lookup import all_rows
from swamp.store.port import ObjectStore
from swamp.sync.progress import IdleTimeout
from swamp.sync.verify import verify

pytestmark = pytest.mark.inv("gc.uploads-survive")


def swept(b: Peer) -> None:
    """Another machine deletes all that nothing names, however young."""
    collect(b.engine.committer, IdleTimeout(b.env, 60.0).check, keep=dt.timedelta(0))


def on_watched(store: ObjectStore, a: Peer, b: Peer):
    """A process of `a` before whose first commit `b` collects."""
    return a.process(Watched(store, once("put", ".datastore-index", lambda: swept(b))))


def all_there(store: ObjectStore, engine) -> None:
    root = engine.committer.read().root
    list(all_rows(root, engine.committer.fetch))
    for entry in shared(engine).values():
        store.head(entry.key)


def test_a_healed_payload_that_was_collected_is_not_named(store, a, b):
    a.write("files/x", "good")
    a.push()
    store.delete([shared(a.engine)["files/x"].key])
    engine = on_watched(store, a, b)
    found = verify(engine.context, IdleTimeout(a.env, 60.0), threads=1, repair=True)
    assert (found.healed, found.missing) == ((), ("files/x",))
    again = verify(engine.context, IdleTimeout(a.env, 60.0), threads=1, repair=True)
    assert again.healed == ("files/x",)
    all_there(store, engine)
    engine.close()


def test_a_flushed_layer_that_was_collected_is_written_again(store, a, b, monkeypatch):
    a.write("files/x", "1")
    a.write("files/y", "2")
    a.push()
    a.delete("files/x")  # no payload that is missed as well: the commit's changes stay the same
    monkeypatch.setattr(swamp.commit.commit, "LAYER_ROWS", 0)
    engine = on_watched(store, a, b)
    engine.push()
    engine.close()
    all_there(store, b.engine)
    assert content(b.engine) == {"files/y": "2"}


def test_a_compacted_segment_that_was_collected_is_written_again(store, a, b, monkeypatch):
    monkeypatch.setattr(swamp.commit.commit, "LAYER_ROWS", 0)
    for number in range(3):
        a.write(f"files/{number}", "x")
        a.push()
    monkeypatch.undo()
    engine = on_watched(store, a, b)
    done = compact(engine.committer, IdleTimeout(a.env, 60.0).check)
    engine.close()
    assert done.segments_after == 1
    all_there(store, b.engine)
    assert len(content(b.engine)) == 3
