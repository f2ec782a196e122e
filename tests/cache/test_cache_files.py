"""Files on a real disk: whole or not there, verified, durable, never outside of the tree."""

import errno
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from swamp.cache.files import (
    CHUNK,
    RACY_NS,
    Staged,
    StatFingerprint,
    fingerprint_of,
    hash_file,
    move_aside,
    place,
    read_atomic,
    stage_file,
    trusted,
    write_atomic,
)
from swamp.cache.layout import CacheDir, cache_dir
from swamp.cache.paths import resolve_inside
from swamp.errors import CorruptData, Failed, NotFound, UsageError
from swamp.settings import swamp_home


@pytest.fixture
def cache(tmp_path) -> CacheDir:
    return CacheDir(tmp_path / "cache").ensure()


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def files_below(path: Path) -> list[str]:
    return sorted(str(p.relative_to(path)) for p in path.rglob("*") if not p.is_dir())


def test_a_staged_file_is_placed_with_its_bytes_and_a_matching_hint(cache):
    staged = stage_file(cache.staging, [b"ab", b"", b"c"], 3, sha(b"abc"))
    assert (staged.size, staged.sha256) == (3, sha(b"abc"))
    hint = place(staged, cache.tree, "data/t/id/n/1/raw")
    target = cache.tree / "data/t/id/n/1/raw"
    assert target.read_bytes() == b"abc"
    assert hint == fingerprint_of(target.lstat())
    assert files_below(cache.staging) == []


@pytest.mark.inv("cache.no-torn-file")
@pytest.mark.parametrize(("size", "digest"), [(2, None), (4, None), (None, sha(b"other")), (3, sha(b"other"))], ids=str)
def test_S10_bytes_that_are_not_what_was_promised_leave_nothing_behind(cache, size, digest):
    with pytest.raises(CorruptData):
        stage_file(cache.staging, [b"a", b"bc"], size, digest)
    assert files_below(cache.base) == []


def test_a_body_that_does_not_end_is_cut_at_its_promised_size(cache):
    taken = []

    def endless():
        while True:
            taken.append(1)
            yield b"x" * 1000

    with pytest.raises(CorruptData):
        stage_file(cache.staging, endless(), 10_000)
    assert len(taken) == 11


def test_an_error_in_the_middle_of_a_download_leaves_nothing_behind(cache):
    def broken():
        yield b"half"
        raise CorruptData("cut")

    with pytest.raises(CorruptData, match="cut"):
        stage_file(cache.staging, broken(), 8)
    assert files_below(cache.base) == []


def test_a_pulled_file_may_be_backdated_so_that_its_hint_can_be_trusted(cache):
    observed = 1_700_000_000_000_000_000
    staged = stage_file(cache.staging, [b"x"], mtime_ns=observed - RACY_NS - 1)
    assert trusted(place(staged, cache.tree, "files/x"), observed)


@pytest.mark.inv("hint.racy")
def test_S07_a_hint_is_not_trusted_when_the_file_was_written_around_the_observation():
    at = 10 * RACY_NS
    assert trusted(StatFingerprint(1, at - RACY_NS - 1, at, 1), at)
    for mtime in (at - RACY_NS, at - 1, at, at + 1, at + 100 * RACY_NS):
        assert not trusted(StatFingerprint(1, mtime, at, 1), at)


def test_placing_replaces_a_file_and_an_empty_directory_but_not_a_full_one(cache):
    (cache.tree / "files/empty").mkdir(parents=True)
    (cache.tree / "files/full").mkdir()
    (cache.tree / "files/full/x").write_text("mine")
    place(stage_file(cache.staging, [b"1"]), cache.tree, "files/empty")
    place(stage_file(cache.staging, [b"2"]), cache.tree, "files/empty")
    assert (cache.tree / "files/empty").read_bytes() == b"2"
    with pytest.raises(Failed) as caught:
        place(stage_file(cache.staging, [b"3"]), cache.tree, "files/full")
    assert caught.value.hint
    assert (cache.tree / "files/full/x").read_text() == "mine"


def test_placing_below_a_file_is_a_clear_error(cache):
    write_atomic(cache.tree / "files/a", b"file")
    with pytest.raises(Failed):
        place(stage_file(cache.staging, [b"x"]), cache.tree, "files/a/b")
    assert (cache.tree / "files/a").read_bytes() == b"file"


def test_S17_nothing_is_written_through_a_linked_directory(cache, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (cache.tree / "files").symlink_to(outside)
    staged = stage_file(cache.staging, [b"x"])
    with pytest.raises(UsageError, match="link"):
        place(staged, cache.tree, "files/x")
    assert files_below(outside) == []


def test_S17_a_linked_file_that_leaves_the_tree_is_refused_and_one_inside_is_not(cache, tmp_path):
    (tmp_path / "secret").write_text("s")
    write_atomic(cache.tree / "files/real", b"r")
    (cache.tree / "files/out").symlink_to(tmp_path / "secret")
    (cache.tree / "files/in").symlink_to("real")
    with pytest.raises(UsageError, match="leaves the tree"):
        resolve_inside(cache.tree, "files/out")
    assert resolve_inside(cache.tree, "files/in").read_bytes() == b"r"


def test_S16_a_hostile_path_never_reaches_the_disk(cache):
    staged = stage_file(cache.staging, [b"x"])
    for path in ("../escape", "/tmp/escape", "files/../../escape"):
        with pytest.raises(UsageError):
            place(staged, cache.tree, path)
    assert files_below(cache.tree) == []


@pytest.mark.inv("conflict.keeps-both")
def test_moving_aside_keeps_the_bytes_and_removes_empty_parents_only(cache):
    write_atomic(cache.tree / "data/t/id/n/1/raw", b"1")
    write_atomic(cache.tree / "data/t/id/other", b"o")
    kept = move_aside(cache.tree, "data/t/id/n/1/raw", cache.conflicts, "OP")
    assert kept == "OP/data/t/id/n/1/raw"
    assert (cache.conflicts / kept).read_bytes() == b"1"
    assert not (cache.tree / "data/t/id/n").exists()
    move_aside(cache.tree, "data/t/id/other", cache.conflicts, "OP")
    assert cache.tree.is_dir() and list(cache.tree.iterdir()) == []


@pytest.mark.inv("conflict.keeps-both")
def test_moving_aside_never_overwrites(cache):
    kept = []
    for data in (b"1", b"2", b"3"):
        write_atomic(cache.tree / "files/x", data)
        kept.append(move_aside(cache.tree, "files/x", cache.conflicts, "OP"))
    write_atomic(cache.tree / "files/x/below", b"4")
    kept.append(move_aside(cache.tree, "files/x/below", cache.conflicts, "OP"))
    assert len(set(kept)) == 4
    assert [(cache.conflicts / k).read_bytes() for k in kept] == [b"1", b"2", b"3", b"4"]


def test_moving_aside_a_whole_version_directory(cache):
    write_atomic(cache.tree / "data/t/id/n/1/raw", b"1")
    write_atomic(cache.tree / "data/t/id/n/1/metadata.yaml", b"m")
    kept = move_aside(cache.tree, "data/t/id/n/1", cache.conflicts, "OP")
    assert files_below(cache.conflicts / kept) == ["metadata.yaml", "raw"]


def test_moving_aside_what_is_not_there_says_so(cache):
    with pytest.raises(NotFound):
        move_aside(cache.tree, "files/x", cache.conflicts, "OP")


def test_hashing_reads_every_byte_and_gives_the_stat_from_before(cache):
    data = os.urandom(CHUNK + 17)
    path = cache.tree / "big"
    write_atomic(path, data)
    hashed = hash_file(path)
    assert (hashed.sha256, hashed.size) == (sha(data), len(data))
    assert fingerprint_of(hashed.stat) == fingerprint_of(path.stat())


def test_hashing_a_pipe_or_a_directory_fails_and_does_not_hang(cache):
    os.mkfifo(cache.tree / "pipe")
    for path in (cache.tree / "pipe", cache.tree):
        with pytest.raises(Failed):
            hash_file(path)
    with pytest.raises(NotFound):
        hash_file(cache.tree / "nothing")


def test_an_atomic_write_replaces_whole_contents(cache):
    assert read_atomic(cache.base / "x") is None
    write_atomic(cache.base / "x", b"long content")
    write_atomic(cache.base / "x", b"short")
    assert read_atomic(cache.base / "x") == b"short"
    with pytest.raises(Failed):
        read_atomic(cache.base)
    with pytest.raises(Failed):
        write_atomic(cache.tree, b"a directory stands there")
    assert files_below(cache.base) == ["x"]


FULL_DISK = """
import subprocess, sys
from pathlib import Path
from swamp.cache.files import stage_file, write_atomic
from swamp.errors import Failed
root = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(root)], check=True)
write_atomic(root / "kept", b"old")
for write in (lambda: stage_file(root, [b"x" * 100_000] * 10), lambda: write_atomic(root / "kept", b"y" * 1_000_000)):
    try:
        write()
    except Failed as error:
        print(error.message, "|", error.hint)
assert [p.name for p in root.iterdir()] == ["kept"], list(root.iterdir())
assert (root / "kept").read_bytes() == b"old"
"""


def test_L30_a_full_disk_is_a_clear_error_without_a_torn_file(tmp_path):
    probe = subprocess.run(["unshare", "-rm", "true"], capture_output=True)
    if probe.returncode:
        pytest.skip("no user namespaces here: cannot mount a small disk")
    command = ["unshare", "-rm", sys.executable, "-c", FULL_DISK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2 and all(os.strerror(errno.ENOSPC) in line and "free some space" in line for line in lines)


READ_ONLY = FULL_DISK.replace(
    'write_atomic(root / "kept", b"old")\n',
    'write_atomic(root / "kept", b"old")\nsubprocess.run(["mount", "-o", "remount,ro", str(root)], check=True)\n',
)


def test_L30_a_read_only_disk_is_a_clear_error(tmp_path):
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("no user namespaces here: cannot mount a read-only disk")
    command = ["unshare", "-rm", sys.executable, "-c", READ_ONLY, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(os.strerror(errno.EROFS)) == 2


def test_discarding_a_staged_file_twice_is_fine(cache):
    staged = stage_file(cache.staging, [b"x"])
    staged.discard()
    Staged(staged.file, 1, "").discard()
    assert files_below(cache.staging) == []


def test_each_store_and_namespace_has_its_own_cache(tmp_path):
    one = cache_dir(tmp_path, "repo", "s3://bucket/a", None)
    assert one == cache_dir(tmp_path, "repo", "s3://bucket/a", "")
    others = [cache_dir(tmp_path, "repo", "s3://bucket/a", "ns"), cache_dir(tmp_path, "repo", "s3://bucket/b", None),
              cache_dir(tmp_path, "repo2", "s3://bucket/a", None)]  # fmt: skip
    assert len({one.base, *(o.base for o in others)}) == 4
    assert one.base.parent == tmp_path / "repos/repo" and len(one.base.name) == 12
    for bad in ("../x", "a/b", "", ".."):
        with pytest.raises(UsageError):
            cache_dir(tmp_path, bad, "s3://bucket", None)


def test_the_cache_is_private_and_ensure_repeats(tmp_path):
    cache = CacheDir(tmp_path / "c").ensure().ensure()
    assert cache.base.stat().st_mode & 0o077 == 0
    assert all(p.is_dir() for p in (cache.tree, cache.staging, cache.conflicts))


def test_only_a_shelf_that_is_made_here_sets_repositories_apart(tmp_path):
    (tmp_path / "probe").mkdir()
    if not shutil.which("chattr") or subprocess.run(["chattr", "+T", str(tmp_path / "probe")], check=False).returncode:
        pytest.skip("this file system has no such flag")
    (tmp_path / "old/repos").mkdir(parents=True)
    for home in ("old", "new/home"):
        cache_dir(tmp_path / home, "repo", "s3://bucket").ensure()
        cache_dir(tmp_path / home, "repo", "s3://another").ensure()
    assert _is_apart(tmp_path / "new/home/repos")
    others = ("old/repos", "new/home", "new", ".", "new/home/repos/repo")
    assert not any(_is_apart(tmp_path / other) for other in others)


def test_a_file_system_that_knows_no_regions_gets_its_cache(tmp_path, monkeypatch):
    def refused(*_: object) -> bytes:
        raise OSError(errno.ENOTTY, os.strerror(errno.ENOTTY))

    monkeypatch.setattr(fcntl, "ioctl", refused)
    cache = cache_dir(tmp_path / "home", "repo", "s3://bucket").ensure()
    assert cache.tree.is_dir() and cache.staging.is_dir()


def _is_apart(directory: Path) -> bool:
    """What e2fsprogs says of it, and not the code that is tested."""
    told = subprocess.run(["lsattr", "-d", str(directory)], capture_output=True, text=True, check=True).stdout
    return "T" in told.split()[0]


def test_home_is_chosen_by_environment(tmp_path):
    assert swamp_home({"SWAMP_HOME": str(tmp_path), "HOME": "/h"}) == tmp_path
    assert swamp_home({"HOME": "/h"}) == Path("/h/.swamp")
