"""A batch of pulled files has its bytes on disk before its first name: by one flush, or by one for each."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from swamp.cache import places as flush
from swamp.errors import Failed
from swamp.sync import pull

MANY = pull.FLUSH_TOGETHER


@pytest.fixture
def watched(monkeypatch):
    """What happened to staged files and to names, in order: a flush of all, a flush of one, a name given."""
    seen: list[str] = []
    fsync, rename, together = os.fsync, os.rename, flush.flush_together

    def one(descriptor: int) -> None:
        if ".swamp-tmp-" in os.readlink(f"/proc/self/fd/{descriptor}"):
            seen.append("one")
        fsync(descriptor)

    def name(source: str, target: str, **places: int) -> None:
        seen.append("name")
        rename(source, target, **places)

    def all_of_it(directory: Path) -> None:
        seen.append("all")
        together(directory)

    monkeypatch.setattr(os, "fsync", one)
    monkeypatch.setattr(os, "rename", name)
    monkeypatch.setattr(pull, "flush_together", all_of_it)
    return seen


def _filled(a, files: int) -> None:
    for n in range(files):
        a.put(f"files/{n // 10}/{n}", f"{n}")
    assert a.push(full=True).files_pushed == files


@pytest.mark.inv("cache.no-torn-file")
def test_many_files_are_flushed_at_once_before_they_get_names(a, b, watched, monkeypatch):
    monkeypatch.setattr(pull, "PLACE_BATCH", 40)
    _filled(a, 2 * MANY)
    watched.clear()
    assert b.pull().files_pulled == 2 * MANY
    assert b.files() == a.files()
    assert "one" not in watched
    batches = "".join({"all": "|", "name": "n"}[event] for event in watched).split("|")
    assert batches[0] == "", "no name before the first flush"
    assert sum(map(len, batches)) == 2 * MANY
    assert max(map(len, batches)) <= 40, "each batch has its own flush"


@pytest.mark.inv("cache.no-torn-file")
@pytest.mark.parametrize("system", ["nfs4", "fuse.sshfs", None])
def test_where_the_file_system_promises_nothing_each_file_is_flushed(a, b, watched, monkeypatch, system):
    monkeypatch.setattr(flush, "_file_system", lambda directory: system)
    _filled(a, MANY)
    watched.clear()
    assert b.pull().files_pulled == MANY
    assert (watched.count("one"), watched.count("all")) == (MANY, 0)


def test_a_few_files_do_not_wait_for_the_whole_file_system(a, b, watched):
    _filled(a, MANY - 1)
    watched.clear()
    assert b.pull().files_pulled == MANY - 1
    assert (watched.count("one"), watched.count("all")) == (MANY - 1, 0)


def test_a_flush_that_fails_places_nothing(a, b, monkeypatch):
    _filled(a, MANY)

    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(flush, "_syncfs", lambda: broken)
        with pytest.raises(Failed, match="cannot flush"):
            b.pull()
    assert b.files() == {}
    assert list(b.cache.staging.iterdir()) == []
    assert b.pull().files_pulled == MANY


def test_this_machine_s_table_of_mounts_is_understood(tmp_path):
    device = tmp_path.stat().st_dev
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    mine = [line for line in lines if line.split()[2] == f"{os.major(device)}:{os.minor(device)}"]
    if not mine:
        assert flush._file_system(tmp_path) is None
    else:
        assert flush._file_system(tmp_path) == mine[0].partition(" - ")[2].split()[0]
    assert flush._file_system(Path("/proc/self")) == "proc"
    assert not flush.can_flush_together(Path("/proc/self"))
