"""A batch of files on a real disk: every name durable at the end, nothing through a link, obstacles named."""

import os
from pathlib import Path

import pytest

from swamp.cache import places as module
from swamp.cache.files import stage_file
from swamp.cache.layout import CacheDir
from swamp.cache.places import Places
from swamp.errors import Failed, UsageError


@pytest.fixture
def cache(tmp_path) -> CacheDir:
    return CacheDir(tmp_path / "cache").ensure()


def staged(cache: CacheDir, body: bytes = b"x") -> str:
    return str(stage_file(cache.staging, [body]).path)


def files_below(tree: Path) -> list[str]:
    return sorted(str(p.relative_to(tree)) for p in tree.rglob("*") if p.is_file())


def test_a_batch_makes_its_directories_and_flushes_each_once(cache, monkeypatch):
    flushed = []
    monkeypatch.setattr(os, "fsync", lambda fd: flushed.append(os.readlink(f"/proc/self/fd/{fd}")))
    inputs = {name: staged(cache) for name in ("files/a", "files/b", "files/sub/c")}
    flushed.clear()
    with Places(cache.tree) as places:
        for name, file in inputs.items():
            hint = places.put(file, name)
            assert hint.inode == (cache.tree / name).stat().st_ino
    assert files_below(cache.tree) == sorted(inputs)
    tree = os.path.realpath(cache.tree)
    assert sorted(flushed) == [tree, f"{tree}/files", f"{tree}/files/sub"]


@pytest.mark.parametrize("open_at_most", [1, 2, 200])
def test_more_directories_than_may_be_open(cache, monkeypatch, open_at_most):
    monkeypatch.setattr(module, "OPEN_AT_MOST", open_at_most)
    before = len(os.listdir("/proc/self/fd"))
    names = [f"files/{n % 7}/{n}/x" for n in range(60)]
    with Places(cache.tree) as places:
        for name in names:
            assert places.obstacle(name) is None
            places.put(staged(cache), name)
    assert files_below(cache.tree) == sorted(names)
    assert len(os.listdir("/proc/self/fd")) == before


def test_S17_a_link_planted_above_a_place_leads_nowhere(cache, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (cache.tree / "files").symlink_to(outside)
    with Places(cache.tree) as places:
        assert places.obstacle("files/x") == "files"
        with pytest.raises(Failed):
            places.put(staged(cache), "files/x")
    assert files_below(outside) == []


def test_S17_a_directory_swapped_for_a_link_after_the_first_file_leads_nowhere(cache, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    with Places(cache.tree) as places:
        places.put(staged(cache), "files/a")
        (cache.tree / "files").rename(cache.tree / "moved")
        (cache.tree / "files").symlink_to(outside)
        places.put(staged(cache), "files/b")
    assert files_below(outside) == []
    assert sorted(p.name for p in (cache.tree / "moved").iterdir()) == ["a", "b"]


def test_obstacles_are_named_and_stay(cache):
    (cache.tree / "files/full").mkdir(parents=True)
    (cache.tree / "files/full/mine").write_text("mine")
    (cache.tree / "files/flat").write_text("flat")
    (cache.tree / "files/empty/er").mkdir(parents=True)
    with Places(cache.tree) as places:
        assert places.obstacle("files/full") == "files/full/mine"
        assert places.obstacle("files/flat/x") == "files/flat"
        assert places.obstacle("files/empty") is None
        places.put(staged(cache, b"now a file"), "files/empty")
        with pytest.raises(Failed) as caught:
            places.put(staged(cache), "files/full")
        assert caught.value.hint
    assert (cache.tree / "files/empty").read_bytes() == b"now a file"
    assert (cache.tree / "files/full/mine").read_text() == "mine"


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "files/../../x", "files//x", ""])
def test_S16_no_path_leads_out(cache, path):
    with Places(cache.tree) as places, pytest.raises(UsageError):
        places.put(staged(cache), path)
