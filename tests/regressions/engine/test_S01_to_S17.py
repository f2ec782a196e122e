"""S01 to S17: stale or wrong. (S02 and S18 concern the catalog and derived markers, and live with them.)"""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import unicodedata

import pytest

import swamp.commit.commit
from peers import MODEL, Peer, Watched, content, keys, once, root_of, settled, shared, version
from swamp.commit.collect import collect
from swamp.commit.namespace import validate_name
from swamp.commit.repack import compact
from swamp.errors import CorruptData, NotFound, UsageError
from swamp.index.root import ROOT_KEY, decode, encode
from swamp.sync.engine import Policy
from swamp.sync.progress import IdleTimeout
from swamp.sync.verify import verify
from swamp.testing.faulty import Fault, FaultyStore

LAZY = Policy(hydrate="lazy", push_concurrency=2, pull_concurrency=2)


# --- S01


def test_S01_a_change_of_the_same_size_is_pulled_and_not_rolled_back(a, b):
    a.write("files/marker", "2")
    a.push()
    b.pull()
    a.write("files/marker", "3")
    a.push()
    assert b.pull().files_pulled == 1 and b.read("files/marker") == "3"
    b.write("files/other", "b works on")
    b.sync(full=True)
    assert content(a.engine)["files/marker"] == "3"
    settled(a, b)


# --- S02


def test_S02_a_scoped_pull_brings_everything_below_its_scope_and_owes_the_rest(a, b):
    for n in (1, 2):
        a.write_version(version("out", n), f"{n}")
    a.write("files/elsewhere", "elsewhere")
    a.push()
    result = b.pull(MODEL)
    assert result.files_pulled == 4 and not b.has("files/elsewhere")
    a.write_version(version("out", 3), "3")
    a.push()
    assert b.pull(MODEL).files_pulled == 2
    assert b.pull().files_pulled == 1, "a scoped pull never moves the mark"
    settled(a, b)


@pytest.mark.inv("journal.survives")
def test_S02_scoped_pulls_and_pushes_leave_rows_above_and_beside_their_scope(a, b):
    a.write("files/seed", "seed")
    a.push()
    b.write("files/theirs", "theirs")
    b.push()
    with a.engine.announce(["files"]):
        a.put("files/in/x", "in")
        a.put("files/out/y", "out")
    assert a.push("files/in").files_pushed == 1
    assert a.engine.status().pending.writes == 1, "the row of the directory above is not this push's to retire"
    a.pull("files/in")
    assert a.push().files_pushed == 1
    settled(a, b)
    assert b.read("files/out/y") == "out"


@pytest.mark.inv("unit.whole")
def test_S02_a_scope_inside_a_unit_still_moves_the_unit_as_a_whole(a, b):
    unit = version("out", 1)
    a.write_version(unit, "whole")
    a.push(f"{unit}/raw")
    there = set(shared(a.engine)) if ROOT_KEY in keys(a.store) else set()
    assert there in (set(), {f"{unit}/raw", f"{unit}/metadata.yaml"}), "never half a version"
    a.push()
    b.pull(f"{unit}/raw")
    assert set(b.files()) in (set(), {f"{unit}/raw", f"{unit}/metadata.yaml"})
    settled(a, b)


# --- S03


def test_S03_an_edit_of_the_same_size_over_an_entry_without_a_hash_is_pushed(store, a, b):
    store.put("files/adopted", b"12345")
    a.pull()
    assert shared(a.engine)["files/adopted"].sha256 is None
    b.pull()
    a.write("files/adopted", "54321")
    assert a.push().files_pushed == 1
    assert content(a.engine) == {"files/adopted": "54321"}
    settled(a, b)


def test_S03_a_found_file_is_compared_by_reading_where_the_hash_is_unknown(store, a, b):
    store.put("files/same", b"12345")
    store.put("files/other", b"12345")
    a.put("files/same", "12345")
    a.put("files/other", "54321")
    result = a.sync(full=True)
    assert [c.path for c in result.conflicts] == ["files/other"] and a.kept() == {"files/other": "54321"}
    assert shared(a.engine)["files/same"].key == "files/same", "equal bytes are adopted, not sent"
    settled(a, b)


def test_S03_hashes_that_were_learned_go_along_with_the_next_commit(store, a):
    store.put("files/adopted", b"12345")
    a.pull()
    before = root_of(a.engine)
    a.pull()
    assert root_of(a.engine) == before, "never a commit of their own"
    a.write("files/new", "new")
    a.push()
    entry = shared(a.engine)["files/adopted"]
    assert entry.sha256 is not None and entry.seq == before.entries["files/adopted"].seq


# --- S04, S05


def lazy(peer, name: str = "lazy") -> Peer:
    return peer(name, policy=LAZY)


def test_S04_a_lazy_cache_that_becomes_full_in_a_new_process_fetches_everything(a, peer):
    a.write_version(version("out", 1), "content")
    a.push()
    one = lazy(peer)
    assert one.pull().files_pulled == 1
    assert {r.path for r in one.engine.remote_only()} == {f"{version('out', 1)}/raw"}
    assert one.pull().fast_path, "what stays remote is not owed"
    full = one.process(hydrate="full")
    result = full.pull()
    assert not result.fast_path and result.files_pulled == 1
    assert one.read(f"{version('out', 1)}/raw") == "content"
    assert full.pull().fast_path


def test_S04_hydrating_reads_one_file_and_pulls_its_unit_when_the_bucket_has_moved_on(store, a, peer):
    unit = version("out", 1)
    a.write_version(unit, "first")
    a.push()
    one = lazy(peer)
    one.pull()
    a.write_version(unit, "rewritten, longer")
    a.push()
    collect(a.engine.committer, a.pace, keep=dt.timedelta(0))
    assert one.engine.materialize(f"{unit}/raw").read_text() == "rewritten, longer"
    assert one.read(f"{unit}/metadata.yaml") == "size: 17\n", "the whole unit came"
    settled(a, one)


def test_S04_materialising_what_is_not_there_says_so(a, peer):
    a.write_version(version("out", 1), "content")
    a.push()
    one = lazy(peer)
    one.pull()
    with pytest.raises(NotFound):
        one.engine.materialize(f"{version('out', 1)}/nothing")
    store = one.store
    store.delete([shared(a.engine)[f"{version('out', 1)}/raw"].key])
    with pytest.raises(CorruptData, match="verify --repair"):
        one.engine.materialize(f"{version('out', 1)}/raw")
    assert f"{version('out', 1)}/raw" in shared(a.engine)


def test_S04_a_lazy_cache_reads_what_changed_after_a_pull(a, peer):
    unit = version("out", 1)
    a.write_version(unit, "first")
    a.push()
    one = lazy(peer)
    one.pull()
    one.engine.materialize(f"{unit}/raw")
    a.write_version(unit, "second, longer")
    a.push()
    one.pull()
    assert one.engine.materialize(f"{unit}/raw").read_text() == "second, longer"
    one.write_version(unit, "edited by the lazy one")
    assert one.push().ok
    settled(a, one)
    assert a.read(f"{unit}/raw") == "edited by the lazy one"


@pytest.mark.inv("delete.intent")
def test_S05_a_lazy_cache_deletes_what_it_never_held(a, b, peer):
    for n in (1, 2):
        a.write_version(version("out", n), f"{n}")
    a.push()
    b.pull()
    one = lazy(peer)
    one.pull()
    one.delete(version("out", 1))
    result = one.push()
    assert result.files_deleted == 2 and result.ok
    assert set(shared(a.engine)) == {f"{version('out', 2)}/raw", f"{version('out', 2)}/metadata.yaml"}
    settled(a, b)
    assert not b.has(f"{version('out', 1)}/raw")
    assert one.pull().fast_path


def test_S05_a_lazy_cache_does_not_lose_content_through_a_full_push_or_lost_state(a, b, peer):
    a.write_version(version("out", 1), "1")
    a.push()
    one = lazy(peer)
    one.pull()
    before = content(a.engine)
    one.push(full=True)
    assert content(a.engine) == before
    one.engine.close()
    one.live = None
    for file in one.cache.base.glob("state.db*"):
        file.unlink()
    one.push(full=True)
    one.sync()
    assert content(a.engine) == before and not root_of(a.engine).deleted


# --- S06


@pytest.mark.inv("entry.keeps")
def test_S06_a_dangling_entry_stops_no_reader_and_is_healed(store, a, b, peer):
    for i in range(3):
        a.write(f"files/{i}", f"{i}")
    a.push()
    store.delete([shared(a.engine)["files/1"].key])
    assert [f.path for f in b.pull().failed] == ["files/1"]
    a.write("files/new", "new")
    a.push()
    result = b.pull()
    assert [f.path for f in result.failed] == ["files/1"] and b.read("files/new") == "new"
    assert verify(a.engine.context, IdleTimeout(a.env, 30.0), repair=True).healed == ("files/1",)
    assert b.pull().ok and b.read("files/1") == "1"
    settled(a, b)


# --- S07, S08


@pytest.mark.inv("hint.racy")
def test_S07_a_rewrite_of_the_same_size_in_one_tick_of_the_clock_is_noticed(a, b):
    a.write("files/x", "aaaa")
    stat = (a.tree / "files/x").stat()
    a.push()
    a.write("files/x", "bbbb")
    os.utime(a.tree / "files/x", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert a.push().files_pushed == 1
    a.put("files/x", "cccc")
    os.utime(a.tree / "files/x", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert a.push(full=True).files_pushed == 1
    assert content(a.engine) == {"files/x": "cccc"}
    settled(a, b)


@pytest.mark.inv("hint.racy")
def test_S07_also_where_the_file_system_has_no_useful_ctime(a, b, monkeypatch):
    monkeypatch.setattr("swamp.cache.files._ctime_ns", lambda found: 0)
    monkeypatch.setattr("swamp.cache.files.RACY_NS", 60_000_000_000)  # soon after also on a busy machine
    a.write("files/x", "aaaa")
    stat = (a.tree / "files/x").stat()
    a.push()
    a.write("files/x", "bbbb")
    os.utime(a.tree / "files/x", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert a.push().files_pushed == 1, "a stat taken so soon after a write proves nothing"
    assert content(a.engine) == {"files/x": "bbbb"}
    settled(a, b)


def test_S08_after_a_pull_nothing_is_sent_back_whatever_the_mtimes(store, a, b):
    for i in range(4):
        a.write(f"files/{i}", f"{i}")
    a.push()
    b.pull()
    payloads = keys(store, "files/")
    for i in range(4):
        os.utime(b.tree / f"files/{i}")
    assert b.push(full=True).files_pushed == 0
    with b.engine.announce([f"files/{i}" for i in range(4)]):
        pass
    result = b.push()
    assert result.ok and result.files_pushed == 0 and keys(store, "files/") == payloads
    assert b.push().fast_path


# --- S09


def test_S09_a_second_process_never_trusts_an_index_it_has_kept(a, b):
    a.write("files/x", "1")
    a.push()
    one, two = b.process(), b.process()
    one.pull()
    two.pull()
    for n in range(2, 5):
        a.write("files/x", f"{n}")
        a.push()
        assert (one if n % 2 else two).pull().files_pulled == 1
        assert b.read("files/x") == f"{n}"


# --- S10


@pytest.mark.inv("cache.no-torn-file")
@pytest.mark.parametrize("how", ["cut", "wrong bytes", "wrong size"])
def test_S10_a_torn_or_wrong_download_never_reaches_the_tree(store, a, b, how):
    a.write("files/x", "the right bytes, and enough of them")
    a.write("files/ok", "ok")
    a.push()
    b.pull()
    a.write("files/x", "new bytes, also enough of them")
    a.push()
    key = shared(a.engine)["files/x"].key
    good = store.get(key).body
    broken = store
    if how == "cut":
        broken = FaultyStore(store, [Fault("cut", "get", "files/x~*", count=5, times=None)])
    else:
        store.put(key, b"x" * (len(good) if how == "wrong bytes" else 3))
    result = b.process(broken).pull()
    assert [f.path for f in result.failed] == ["files/x"]
    assert b.read("files/x") == "the right bytes, and enough of them", "the old file stays whole"
    assert not list(b.cache.staging.iterdir())
    store.put(key, good)
    assert b.pull().ok
    settled(a, b)


# --- S11


@pytest.mark.inv("sync.derived")
@pytest.mark.parametrize("how", ["emptied", "one tier gone", "state damaged"])
def test_S11_the_fast_path_sees_a_damaged_cache(a, b, how):
    a.write("files/x", "x")
    a.write_version(version("out", 1), "raw")
    a.push()
    b.pull()
    assert b.pull().fast_path
    if how == "emptied":
        shutil.rmtree(b.tree)
        b.tree.mkdir()
    elif how == "one tier gone":
        shutil.rmtree(b.tree / "data")
    else:
        b.engine.close()
        b.live = None
        b.cache.state_db.write_bytes(b"this is no database at all" * 100)
        for file in b.cache.base.glob("state.db-*"):
            file.unlink()
    result = b.pull()
    assert not result.fast_path
    settled(a, b)
    assert b.files() == content(a.engine)


# --- S12


@pytest.fixture
def small_layers(monkeypatch):
    monkeypatch.setattr(swamp.commit.commit, "LAYER_ROWS", 3)


@pytest.mark.inv("read.snapshot")
def test_S12_a_reader_combines_nothing_of_two_indexes(store, a, b, small_layers):
    for i in range(6):
        a.write(f"files/{i}", "old")
        a.push()
    b.pull()
    for i in range(6):
        a.write(f"files/{i}", "new")
    a.push()

    def move_on() -> None:
        for i in range(6):
            a.write(f"files/{i}", "newest")
            a.push()
        compact(a.engine.committer, a.pace)

    b.process(Watched(store, once("get", ".parquet", move_on))).pull()
    assert set(b.files().values()) in ({"new"}, {"newest"}), "one state or the next, never a mixture"
    settled(a, b)
    assert set(b.files().values()) == {"newest"}


# --- S13


def test_S13_a_namespace_may_not_be_called_like_a_tier_directory():
    for name in ("data", "files", "outputs"):
        with pytest.raises(UsageError):
            validate_name(name)


# --- S14


@pytest.mark.parametrize(
    "pair",
    [
        ("files/Report", "files/report"),
        (unicodedata.normalize("NFC", "files/é"), unicodedata.normalize("NFD", "files/é")),
        ("files/Dir/x", "files/dir/x"),
    ],
)
def test_S14_names_that_some_file_systems_cannot_tell_apart_are_a_conflict(a, b, pair):
    first, second = pair
    a.write(first, "first")
    a.push()
    b.write(second, "second")
    result = b.sync()
    assert not result.ok
    assert content(a.engine) == {first: "first"}
    b.sync()
    settled(a, b)
    assert "second" in b.kept().values()


def test_S14_two_such_names_of_one_machine_are_not_both_pushed(a):
    with a.engine.announce(["files"]):
        a.put("files/Report", "upper")
        a.put("files/report", "lower")
    result = a.push()
    assert not result.ok and len(shared(a.engine)) == 1


# --- S15


ODD = ["a b", "50%", "a+b", "#1", "ünïcödé 漢字", "a&b=c?d", "it's", "[x]", "a;b", "n" * 200, "dot.", "~tilde", "'"]


def test_S15_odd_names_travel_unchanged(a, b):
    long = "/".join(["files", *["l" * 90] * 9])
    paths = [f"files/{name}" for name in ODD] + [long]
    for path in paths:
        a.write(path, path)
    assert a.push().ok
    b.pull()
    assert b.files() == {path: path for path in paths}
    for path in paths[::3]:
        b.delete(path)
    b.push()
    settled(a, b)


# --- S16


HOSTILE = [
    "../outside",
    "files/../../outside",
    "/etc/passwd",
    "files/a\0b",
    "files//x",
    "C:/x",
    "files/./x",
    "",
    "a\nb",
]


def test_S16_hostile_paths_in_an_index_are_never_acted_on(store, a, b, tmp_path):
    a.write("files/good", "good")
    a.push()
    root = root_of(a.engine)
    entry = root.entries["files/good"]
    doc = json.loads(encode(root))
    for path in [*HOSTILE, ".datastore.lock", "_index/x", "data/_catalog.db", "data/t/id/.lock"]:
        doc["entries"][path] = {
            "key": entry.key,
            "size": 4,
            "sha256": entry.sha256,
            "lastModified": "",
            "seq": root.seq,
        }
    store.put(ROOT_KEY, json.dumps(doc).encode())
    assert len(decode(store.get(ROOT_KEY).body).entries) == len(HOSTILE) + 5
    result = b.pull()
    assert b.files() == {"files/good": "good"}
    everything = {str(p.relative_to(b.home)) for p in b.home.rglob("*") if p.is_file() and "state.db" not in p.name}
    assert not [p for p in everything if "outside" in p or "passwd" in p]
    del result
    b.write("files/new", "new")
    b.push()
    assert {"files/good", "files/new"} <= set(shared(b.engine))


def test_S16_hostile_names_in_a_listing_are_never_adopted(store, a):
    for key in ("data/good", "data/.lock", "data/x/latest"):
        store.put(key, b"x")
    for key in ("data/a//b", "data/x/./y", "data/tab\there"):
        try:
            store.put(key, b"x")
        except UsageError:
            continue  # this store cannot even hold it
    a.pull()
    assert all(p.startswith("data/") and "//" not in p and "/./" not in p and "\t" not in p for p in a.files())
    assert "data/good" in a.files()


# --- S17


@pytest.mark.inv("scan.honest")
def test_S17_links_that_leave_the_tree_are_neither_sent_nor_written_through(store, a, b, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    with a.engine.announce(["files"]):
        a.put("files/real", "real")
        (a.tree / "files/file-link").symlink_to(outside / "secret")
        (a.tree / "files/dir-link").symlink_to(outside)
        (a.tree / "files/inside").symlink_to("real")
    result = a.push()
    assert {f.path for f in result.failed} == {"files/file-link", "files/dir-link"}
    assert content(a.engine) == {"files/real": "real", "files/inside": "real"}
    b.write("files/dir-link/secret", "overwritten?")
    b.push()
    pulled = a.pull()
    assert (outside / "secret").read_text() == "secret" and list(outside.iterdir()) == [outside / "secret"]
    assert not pulled.ok


def test_S17_a_tree_directory_replaced_by_a_link_is_not_followed_by_a_pull(store, a, b, tmp_path):
    outside = tmp_path / "outside"
    a.write("files/dir/x", "1")
    a.push()
    b.pull()
    shutil.copytree(b.tree / "files/dir", outside)
    shutil.rmtree(b.tree / "files/dir")
    (b.tree / "files/dir").symlink_to(outside)
    a.write("files/dir/x", "2, from a")
    a.push()
    b.pull()
    assert (outside / "x").read_text() == "1"
    (b.tree / "files/dir").unlink()
    b.sync()
    settled(a, b)
    assert b.read("files/dir/x") == "2, from a"
