"""S17: links that somebody plants while a sync is between its plan and its work: nothing outside is touched."""

from __future__ import annotations

import shutil

import pytest

from peers import Watched, content, keys, once, settled


@pytest.fixture
def outside(tmp_path):
    place = tmp_path / "outside"
    place.mkdir()
    (place / "x").write_text("mine")
    return place


@pytest.mark.parametrize("what", ["directory", "file"])
def test_S17_a_link_planted_during_a_pull_is_not_written_through(store, a, b, outside, what):
    a.write("files/dir/x", "1")
    a.push()
    b.pull()
    a.write("files/dir/x", "2, from a")
    a.push()

    def plant() -> None:
        if what == "directory":
            shutil.rmtree(b.tree / "files/dir")
            (b.tree / "files/dir").symlink_to(outside)
        else:
            (b.tree / "files/dir/x").unlink()
            (b.tree / "files/dir/x").symlink_to(outside / "x")

    b.process(Watched(store, once("open", "files/dir/x", plant))).pull()
    assert (outside / "x").read_text() == "mine" and [p.name for p in outside.iterdir()] == ["x"]
    link = b.tree / ("files/dir" if what == "directory" else "files/dir/x")
    if link.is_symlink():
        link.unlink()
    b.sync()
    settled(a, b)
    assert b.read("files/dir/x") == "2, from a"


def test_S17_a_link_planted_during_a_push_sends_nothing_from_outside(store, a, b, outside):
    (outside / "x").write_text("secret of another user")
    a.write("files/dir/x", "1")
    a.write("files/a-first", "first")
    planted: list[str] = []

    def plant() -> None:
        assert not any("files/dir/x" in key for key in keys(store)), "it would be too late"
        shutil.rmtree(a.tree / "files/dir")
        (a.tree / "files/dir").symlink_to(outside)
        planted.append("files/dir")

    a.process(Watched(store, once("upload", "files/a-first", plant)), push_concurrency=1).push()
    assert planted
    assert not [key for key in keys(store) if b"secret of another user" in store.get(key).body]
    assert content(a.engine)["files/a-first"] == "first"
