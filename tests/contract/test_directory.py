"""A directory as a bucket: files under their own names, and a compare-and-swap that other processes respect."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swamp.env import SYSTEM
from swamp.errors import AccessDenied, ConditionFailed, ObjectMissing, StoreError, UsageError
from swamp.store.directory import DirectoryStore
from swamp.store.open import open_store
from swamp.store.port import CREATE, Match
from swamp.store.walk import INTERNAL, MORE, components_of, plain_path, segment_of


@pytest.fixture
def store(tmp_path):
    return DirectoryStore(tmp_path / "bucket")


def files(store):
    root = store._root
    found = (p.relative_to(root) for p in root.rglob("*") if p.is_file())
    return sorted(str(p) for p in found if INTERNAL not in p.parts)


def keys(store, prefix=""):
    return [m.key for page in store.list(prefix) for m in page]


def test_objects_are_plain_files_under_their_own_names(store):
    names = ["data/command/x/raw~01JD0000000000000000000000", ".datastore-index.json", "100%/a b/é#?", "%2Fx"]
    for key in names:
        store.put(key, key.encode())
    assert files(store) == sorted(names)
    assert (store._root / "100%/a b/é#?").read_bytes() == "100%/a b/é#?".encode()


def test_a_tree_that_was_copied_in_is_a_bucket(store):
    (store._root / "data/x").mkdir(parents=True)
    (store._root / "data/x/raw").write_bytes(b"by hand")
    meta = store.head("data/x/raw")
    assert keys(store) == ["data/x/raw"] and store.get("data/x/raw").body == b"by hand"
    store.put("data/x/raw", b"by us", Match(meta.token))
    assert (store._root / "data/x/raw").read_bytes() == b"by us"


@pytest.mark.inv("store.token-unique")
def test_tokens_differ_for_same_size_rewrites_within_one_tick(store):
    tokens = {store.put("k", b"%04d" % n).token for n in range(500)}
    assert len(tokens) == 500


@pytest.mark.inv("store.token-unique")
def test_a_token_does_not_come_back_with_a_file_deleted_and_made_again(store):
    seen = set()
    for _ in range(200):
        token = store.put("k", b"same").token
        assert token not in seen
        seen.add(token)
        store.delete(["k"])
        with pytest.raises(ConditionFailed):
            store.put("k", b"other", Match(token))


@pytest.mark.inv("store.token-unique")
def test_tokens_only_grow_when_the_clock_goes_back(tmp_path):
    import datetime as dt

    from swamp.env import Env

    class Backwards:
        at = SYSTEM.clock.now()

        def now(self):
            self.at -= dt.timedelta(seconds=5)
            return self.at

        monotonic, sleep = SYSTEM.clock.monotonic, SYSTEM.clock.sleep

    store = DirectoryStore(tmp_path / "b", Env(Backwards(), SYSTEM.rng))
    tokens = [store.put("k", b"same").token for _ in range(50)]
    assert len(set(tokens)) == 50 and tokens == sorted(tokens)


def test_an_edit_by_hand_is_a_new_version(store):
    token = store.put("k", b"ours").token
    (store._root / "k").write_bytes(b"them")
    with pytest.raises(ConditionFailed):
        store.put("k", b"late", Match(token))
    changed = store.get_if_changed("k", token)
    assert changed is not None and changed.body == b"them"


def test_readers_see_one_version_or_the_next(store, tmp_path):
    """A writer in another process rewrites the object while this one reads it."""
    store.put("k", b"a" * 100_000)
    code = (
        "import sys; from pathlib import Path; from swamp.store.directory import DirectoryStore\n"
        "s = DirectoryStore(Path(sys.argv[1]))\n"
        "n, stop = 0, Path(sys.argv[2])\n"
        "while n < 150 or not stop.exists(): s.put('k', bytes([97 + n % 26]) * 100_000); n += 1\n"
    )
    stop = tmp_path / "stop"
    writer = subprocess.Popen([sys.executable, "-c", code, str(store._root), str(stop)])
    seen = set()
    try:
        while writer.poll() is None:
            body = store.get("k").body
            assert len(body) == 100_000 and len(set(body)) == 1
            seen.add(body[:1])
            if len(seen) > 2:
                stop.touch()
    finally:
        stop.touch()
    assert writer.returncode == 0 and len(seen) > 2


def test_a_stream_keeps_its_version(store):
    store.put("k", b"a" * 3_000_000)
    with store.open("k") as body:
        chunks = iter(body)
        first = next(chunks)
        store.put("k", b"b" * 3_000_000)
        store.delete(["k"])
        assert set(first + b"".join(chunks)) == {ord("a")}


def test_a_killed_writer_leaves_no_object_and_no_lock(store):
    """kill -9 between the bytes and the name: the key is untouched, and the next writer is not held up."""
    store.put("k", b"before")
    code = (
        "import os, sys; from pathlib import Path; import swamp.store.directory as d\n"
        "d._stamp = lambda *a: os.kill(os.getpid(), 9)\n"
        "d.DirectoryStore(Path(sys.argv[1])).put('k', b'never')\n"
    )
    died = subprocess.run([sys.executable, "-c", code, str(store._root)], check=False)
    assert died.returncode == -9
    assert keys(store) == ["k"] and store.get("k").body == b"before"
    assert store.put("k", b"after", Match(store.head("k").token)).size == 5
    assert len(list((store._root / INTERNAL / "unfinished").iterdir())) == 1


def test_what_a_dead_writer_left_is_cleared_away_a_day_later(store):
    store.put("k", b"x")
    left = store._root / INTERNAL / "unfinished" / "OLD"
    left.write_bytes(b"half")
    fresh = left.with_name("NEW")
    fresh.write_bytes(b"half")
    os.utime(left, (1, 1))
    DirectoryStore(store._root).put("k2", b"x")
    assert not left.exists() and fresh.exists()


def test_deleting_leaves_no_empty_directories_and_no_race_with_writers(store):
    store.put("a/b/c/d", b"1")
    store.put("a/x", b"1")
    store.delete(["a/b/c/d"])
    assert [p.name for p in (store._root / "a").iterdir()] == ["x"]
    code = (
        "import sys; from pathlib import Path; from swamp.store.directory import DirectoryStore\n"
        "s = DirectoryStore(Path(sys.argv[1]))\n"
        "for n in range(300): s.put('p/q/mine', b'1'); s.delete(['p/q/mine'])\n"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(store._root)])
    written = 0
    while other.poll() is None:
        store.put(f"p/q/k{written % 3}", b"x")
        store.delete([f"p/q/k{written % 3}"])
        written += 1
    assert other.returncode == 0 and written > 20
    assert keys(store) == ["a/x"]


def test_links_and_foreign_files_are_not_objects(store, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"outside")
    store.put("a", b"x")
    (store._root / "link").symlink_to(secret)
    (store._root / "dir").symlink_to(tmp_path)
    os.mkfifo(store._root / "pipe")
    assert keys(store) == ["a"] and store.level().dirs == ()
    with pytest.raises(ObjectMissing):
        store.get("link")
    store.put("link", b"mine")
    assert secret.read_bytes() == b"outside" and store.get("link").body == b"mine"


@pytest.mark.inv("store.key-safe")
def test_its_own_files_cannot_be_named(store):
    for key in (f"{INTERNAL}/locks/00", f"a/{INTERNAL}/x"):
        with pytest.raises(UsageError):
            store.put(key, b"x")
        with pytest.raises(UsageError):
            store.get(key)


def test_a_bucket_inside_another_is_not_listed_with_its_locks(store):
    DirectoryStore(store._root / "inner").put("k", b"x")
    assert keys(store) == ["inner/k"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_rights_says_so(store):
    store.put("k", b"x")
    store._root.chmod(0o500)
    try:
        with pytest.raises(AccessDenied, match="ask for the right"):
            DirectoryStore(store._root / "new").put("k", b"x")
    finally:
        store._root.chmod(0o700)


def test_a_full_disk_says_so_and_leaves_nothing(store, monkeypatch):
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    store.put("k", b"before")
    real = Path.open

    def opened(path, mode="r", *rest, **more):
        return real(full, "wb") if "unfinished" in str(path) else real(path, mode, *rest, **more)

    monkeypatch.setattr(Path, "open", opened)
    with pytest.raises(StoreError, match="space") as caught:
        store.put("k", b"after")
    monkeypatch.undo()
    assert type(caught.value) is StoreError and "free some space" in (caught.value.hint or "")
    assert store.get("k").body == b"before"


def test_a_file_where_the_bucket_should_be_is_told(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="directory"):
        DirectoryStore(tmp_path / "file").put("k", b"x")


def test_a_bucket_that_does_not_exist_is_empty_and_made_by_the_first_write(store):
    assert keys(store) == [] and store.level().dirs == ()
    with pytest.raises(ObjectMissing):
        store.get("k")
    assert not store._root.exists(), "reading makes nothing"
    store.put("k", b"x", CREATE)
    assert keys(store) == ["k"]


SEGMENTS = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=("Cs", "Cc")), min_size=1, max_size=90
).filter(lambda s: s not in (".", "..", INTERNAL))
TRICKY = st.sampled_from(["a", "a%2F", "a%252F", "%2F", "%2B", "b%2B", "a%2F%2F", "é" * 130, "x" * 300, "." * 250])


@given(st.one_of(SEGMENTS, TRICKY, st.builds(str.__add__, SEGMENTS, TRICKY)))
@settings(max_examples=500, deadline=None)
def test_every_segment_has_its_own_name_and_comes_back(segment):
    parts = components_of(segment)
    assert all(len(p.encode()) <= 252 and p not in (".", "..") for p in parts)
    assert segment_of("".join(p.removesuffix(MORE) for p in parts[:-1]), parts[-1]) == segment
    assert plain_path(segment) == "/".join(parts)


@given(st.lists(st.lists(st.one_of(TRICKY, st.sampled_from("abc")), min_size=1, max_size=3).map("/".join), max_size=8))
@settings(max_examples=60, deadline=None)
def test_any_set_of_keys_lives_together(tmp_path_factory, wanted):
    """Also where one is the directory of another, in any order, deleted and written again."""
    store = DirectoryStore(tmp_path_factory.mktemp("laws") / "bucket")
    expected = {}
    for key in wanted:
        expected[key] = f"of {key}".encode()
        store.put(key, expected[key])
    for key in wanted[::2]:
        expected.pop(key, None)
        store.delete([key])
    assert {m.key: store.get(m.key).body for page in store.list() for m in page} == expected
    assert keys(store) == sorted(expected)
    for key in wanted:
        assert keys(store, key) == sorted(k for k in expected if k.startswith(key))


def test_a_first_write_beside_a_writer_that_is_just_done(tmp_path, monkeypatch):
    """Another's unfinished file may get its name between the listing and the look at it: that is no trouble of ours."""
    url = (tmp_path / "b").as_uri()
    open_store(url).put("k", b"1")
    unfinished = tmp_path / "b" / INTERNAL / "unfinished"
    (unfinished / "another").write_bytes(b"x")
    scandir = os.scandir

    def finished(directory):
        entries = list(scandir(directory))
        if Path(directory) == unfinished:
            (unfinished / "another").rename(tmp_path / "done")
        return entries

    monkeypatch.setattr(os, "scandir", finished)
    assert open_store(url).put("k2", b"2").size == 1
