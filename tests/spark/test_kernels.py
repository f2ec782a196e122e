"""Kernels are plain functions on Arrow batches: tested without Spark."""

import hashlib
import os
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from spark_files import write_files

from segments import read_segment
from swamp.bulk import kernels
from swamp.bulk.kernels import FetchFiles, HashFiles, OfListings, SendFiles, VerifyEntries, WriteSegments, adopted
from swamp.bulk.shares import KeyRange, bins_for, by_object, by_pack, cost_of, cut, pack, pages_of
from swamp.bulk.spread import Beacon, Beat, Heard, InArrow, OnShares, named_batch, opened, values_of
from swamp.errors import CorruptData
from swamp.index.entry import Entry, is_payload_key, object_of, pack_key
from swamp.index.pack import PackWriter
from swamp.store.layers import MeterStore
from swamp.store.open import StoreSpec
from swamp.sync.bulk import Download, Hash, Upload
from swamp.sync.inline import IN_HAND, pooled


def sha(body):
    return hashlib.sha256(body).hexdigest()


ODD = {
    "data/a/1/ä ö/1/raw": b"x" * 10,
    "data/a/1/plus+%20#/1/raw": b"",
    "data/a/1/日本/1/raw": b"\x00\xff",
}


@pytest.mark.inv("object.key-once")
def test_uploads_are_hashed_sent_and_each_call_has_its_own_key(tree, bucket):
    write_files(tree, ODD)
    jobs = [Upload(p, str(tree / p), len(b)) for p, b in ODD.items()]
    first, second = list(SendFiles(bucket)(jobs)), list(SendFiles(bucket)(jobs))
    assert {sent.path: sent.sha256 for sent in first} == {p: sha(b) for p, b in ODD.items()}
    keys = [sent.key for sent in first + second]
    assert len(set(keys)) == 6
    assert all(is_payload_key(key) for key in keys)
    store = bucket.open()
    assert all(store.get(sent.key).body == ODD[sent.path] for sent in first)
    assert [sent.hint.size for sent in first] == [sent.size for sent in first]


def test_one_unreadable_file_is_its_own_result(tree, bucket):
    write_files(tree, ODD)
    jobs = [Upload(p, str(tree / p), 1) for p in [*ODD, "data/a/1/gone/1/raw"]]
    found = list(SendFiles(bucket)(jobs))
    assert [sent.path for sent in found if sent.error] == ["data/a/1/gone/1/raw"]
    assert sum(sent.key is not None for sent in found) == 3


def test_downloads_are_verified_and_a_wrong_or_missing_one_is_reported(tree, bucket):
    store = bucket.open()
    store.put("k1~x", b"right")
    staging = str(tree / "staging")
    jobs = [
        Download("a", "k1~x", 5, sha(b"right"), staging, 1_000_000_000),
        Download("b", "k1~x", 5, sha(b"wrong"), staging, 1_000_000_000),
        Download("c", "none", 5, None, staging, 1_000_000_000),
        Download("d", "k1~x", 5, None, staging, 1_000_000_000),
    ]
    found = {got.path: got for got in FetchFiles(bucket)(jobs)}
    assert Path(found["a"].file).read_bytes() == b"right"
    assert os.stat(found["a"].file).st_mtime_ns == 1_000_000_000
    assert found["b"].file is None and "not the bytes" in found["b"].error
    assert [found[path].cause for path in "abcd"] == [None, "corrupt", "missing", None]
    assert found["d"].sha256 == sha(b"right")  # an adopted object's hash is learned
    assert len(os.listdir(staging)) == 2


@pytest.mark.inv("cache.no-torn-file")
@pytest.mark.parametrize("together", [True, False])
def test_a_batch_of_downloads_is_durable_before_it_is_reported(tree, bucket, monkeypatch, together):
    bucket.open().put("k~x", b"right")
    staging = tree / "staging"
    staging.mkdir()
    events: list[str] = []
    monkeypatch.setattr(kernels, "can_flush_together", lambda directory: together)
    monkeypatch.setattr(kernels, "flush_together", lambda directory: events.append(f"all {directory}"))
    monkeypatch.setattr(os, "fsync", lambda descriptor: events.append("one"))
    jobs = [Download(f"p{n}", "k~x", 5, sha(b"right"), str(staging), 1) for n in range(20)]
    for _ in FetchFiles(bucket)(jobs):
        events.append("reported")
    assert events == ([f"all {staging}"] if together else ["one"] * 20) + ["reported"] * 20


def test_hashing_gives_the_stat_from_before_the_first_byte(tree):
    write_files(tree, ODD)
    for hashed in HashFiles()([Hash(p, str(tree / p), 1) for p in ODD]):
        assert hashed.sha256 == sha(ODD[hashed.path])
        assert hashed.hint.inode == os.stat(tree / hashed.path).st_ino


def test_verify_tells_missing_from_rotten(bucket):
    store = bucket.open()
    store.put("good", b"abc")
    entries = [
        Entry("p/good", "good", 3, sha(b"abc"), ""),
        Entry("p/unread", "good", 3, None, ""),
        Entry("p/rotten", "good", 3, sha(b"abd"), ""),
        Entry("p/short", "good", 9, sha(b"abc"), ""),
        Entry("p/gone", "nowhere", 3, sha(b"abc"), ""),
    ]
    assert found_bad(VerifyEntries(bucket), entries) == {
        "p/rotten": "corrupt",
        "p/short": "corrupt",
        "p/gone": "missing",
    }


def found_bad(kernel, entries):
    return {finding.entry.path: finding.verdict for _, _, finding in kernel(entries)}


def test_verify_reads_a_pack_once_and_tells_which_file_of_it_is_rotten(bucket):
    store, writer, pack = bucket.open(), PackWriter(), "_packs/01JD0000000000000000000000"
    files = {f"p/{n:02d}": b"%d " % n * 50 for n in range(40)}
    placed = {path: writer.add(path, body, sha(body)) for path, body in files.items()}
    body = bytearray(writer.seal())
    body[placed["p/11"].offset] ^= 1
    store.put(pack, bytes(body))
    gone = Entry("p/gone", f"{pack[:-1]}1@12+3", 3, sha(b"abc"), "")
    entries = [Entry(p, placed[p].key(pack), len(b), sha(b), "") for p, b in files.items()]
    entries += [gone, replace(gone, path="p/gone2", key=f"{pack[:-1]}1@20+3")]
    metered = Metered(bucket)
    wrong = {"p/11": "corrupt", "p/gone": "missing", "p/gone2": "missing"}
    assert found_bad(VerifyEntries(metered), entries) == wrong
    assert opened(metered).meter.calls["get"] == 4, "the pack, the rotten file again, and twice the pack that is gone"


@dataclass(frozen=True)
class Metered:
    """The address of a store whose requests are counted."""

    spec: StoreSpec

    def open(self):
        return MeterStore(self.spec.open())


@pytest.mark.inv("segment.added-seq", "rebuild.newest-identity")
def test_segments_hold_the_newest_upload_of_each_path_and_are_cut_between_paths(bucket, monkeypatch):
    monkeypatch.setattr("swamp.bulk.kernels.SEGMENT_ROWS", 2)
    ulids = [f"01JD000000000000000000000{n}" for n in range(3)]
    entries = [Entry(path, f"{path}~{ulid}", 1, None, "t") for path in ("a", "b", "ü") for ulid in ulids]
    written = [ref for _, _, ref in WriteSegments(bucket, 7)(entries)]
    told = [(ref.rows, ref.added_seq, ref.min_path, ref.max_path) for ref in written]
    assert told == [(2, 7, "a", "b"), (1, 7, "ü", "ü")]
    found = [row for ref in written for row in read_segment(bucket.open().get(ref.key).body, 7)]
    assert found == [entry.at(7) for entry in entries if entry.key.endswith("2")]


def test_a_bucket_without_an_index_is_cut_into_ranges_that_hold_every_object_once(bucket):
    store = bucket.open()
    wanted = {f"data/t/m{i % 3}/n{i}/1/raw" for i in range(1100)} | {"logs/a", "data/.lock", "files/ä"}
    flat = {f"files/{i:04d}" for i in range(1005)}
    for key in wanted | flat:
        store.put(key, b"x")
    store.put("outputs/other/.datastore-index.json", b"{}")
    store.put("outputs/other/data/x", b"x")
    pieces = cut(store, 12)
    assert len(pieces.ranges) >= 12
    listed = [m.key for r in pieces.ranges for page in pages_of(store, r) for m in page]
    listed += [m.key for m in pieces.objects]
    assert len(listed) == len(set(listed))
    assert set(listed) >= wanted | flat
    paths = {path for path, _, _ in OfListings(bucket, adopted)(pieces.listed)}
    assert wanted - {"data/.lock"} <= paths | {m.key for m in pieces.objects}
    assert not any("other" in p or p.endswith(".lock") for p in paths)


def test_L48_a_payload_name_in_the_listing_forbids_publishing(bucket):
    bucket.open().put("data/t/m/n/1/raw~01JD0000000000000000000000", b"x")
    with pytest.raises(CorruptData, match="lost"):
        list(OfListings(bucket, adopted)([KeyRange("data/")]))


def test_one_huge_file_has_a_bin_of_its_own_and_is_first():
    sizes = [2_000] * 10_000 + [5_000_000_000]
    bins = bins_for(len(sizes), sum(sizes), 2)
    first, *others = pack(list(enumerate(sizes)), lambda item: item[1], bins)
    assert first == [(10_000, 5_000_000_000)]
    loads = [sum(cost_of(size) for _, size in share) for share in others]
    assert sum(map(len, others)) == 10_000 and max(loads) < 1.1 * min(loads)


def test_small_files_are_shared_out_in_their_order_and_large_ones_by_size():
    small = [Upload(f"files/{n:05d}", "", 2_000, packed=True) for n in range(2_000)]
    large = [Upload(f"large/{n}", "", 5_000_000 * (n + 1), packed=True) for n in range(4)]
    shares = by_pack([*small, *large], 4)
    packed = [share for share in shares if share[0].size == 2_000]
    assert [job for share in packed for job in share] == small
    assert {len(share) for share in packed} == {500}
    assert sorted(job.path for share in shares if share not in packed for job in share) == [j.path for j in large]
    assert len(by_pack(small[:200], 4)) == 1, "few files are one pack, not four"


def test_the_files_of_a_pack_are_one_tasks_and_tasks_cost_about_the_same():
    ulids = ["01JD000000000000000000000" + end for end in "0123456789"]
    slices = [Download(f"p{n}{u}", f"{pack_key(u)}@{n * 10}+10", 2_000, None, "", 0) for u in ulids for n in range(100)]
    alone = [Download(f"q{n}", f"q{n}~{ulids[0]}", 2_000, None, "", 0) for n in range(20)]
    shares = by_object([*slices, *alone], 4)
    where = {}
    for number, share in enumerate(shares):
        for job in share:
            where.setdefault(object_of(job.key), set()).add(number)
    assert len(where) == 30 and all(len(numbers) == 1 for numbers in where.values())
    assert sum(map(len, shares)) == 1_020 and len(shares) == 4


def test_a_kernel_on_shares_or_in_a_table_is_the_kernel_on_jobs(tree):
    write_files(tree, ODD)
    jobs = [Hash(p, str(tree / p), len(b)) for p, b in ODD.items()]
    truth = sorted(HashFiles()(jobs), key=str)
    assert sorted(OnShares(HashFiles())([jobs[:2], jobs[2:]]), key=str) == truth
    batches = [named_batch([("", 0, jobs[:2])]), named_batch([("", 0, jobs[2:])])]
    made = InArrow(OnShares(HashFiles(), named=True))(iter(batches))
    assert sorted((value for batch in made for value in values_of(batch)), key=str) == truth


def test_results_come_as_they_are_ready_and_a_slow_one_holds_up_nobody():
    release = threading.Event()

    def work(number):
        if number == 0:
            release.wait(20)
        return number

    results = pooled(range(40), work, 4)
    first = [next(results) for _ in range(30)]
    assert 0 not in first
    release.set()
    assert sorted(first + list(results)) == list(range(40))


@dataclass
class Counted:
    high: int = 0
    now: int = 0


def test_a_failure_comes_at_its_place_and_loses_no_result():
    """Whatever is ready and not taken is handed back, also what was ready together with it."""

    def work(number):
        if number == 700:
            raise LookupError("this one")
        return number

    taken, left = [], []
    with pytest.raises(LookupError):
        for number in pooled(range(1000), work, 4, None, left.append):
            taken.append(number)
    assert not set(taken) & set(left) and len(taken) + len(left) == len({*taken, *left})
    assert set(range(700 - 4 * IN_HAND)) <= {*taken, *left}
    assert 700 not in taken


def test_a_bounded_number_is_in_hand():
    seen = Counted()

    def jobs():
        for number in range(2000):
            seen.now += 1
            seen.high = max(seen.high, seen.now)
            yield number

    for _ in pooled(jobs(), lambda n: n, 4):
        seen.now -= 1
    assert seen.high <= 4 * IN_HAND + 1


def test_the_beacon_counts_only_its_own():
    beacon = Beacon("127.0.0.1", "token")
    try:
        with Beat(beacon.address) as beat:
            beat.add(2, 300)
        other = beacon.address.__class__(beacon.address.host, beacon.address.port, "else")
        with Beat(other) as beat:
            beat.add(5, 5)
        assert beacon.take() == Heard(2, 300, True)
        assert beacon.take() == Heard(0, 0, False)
    finally:
        beacon.close()


def test_work_that_counts_nothing_is_still_a_sign_of_life():
    """One huge file in one task: nothing is finished for long, and the driver hears that it goes on."""
    beacon = Beacon("127.0.0.1", "token")
    try:
        with Beat(beacon.address) as beat, beat.at_work():
            until = time.monotonic() + 60
            while not (heard := beacon.take()).alive:
                assert time.monotonic() < until, "no sign of life"
                time.sleep(0.05)
        assert (heard.files, heard.size) == (0, 0)
        with Beat(beacon.address):
            pass
        while beacon.take().alive:
            pass
        assert not beacon.take().alive  # who does nothing says nothing
    finally:
        beacon.close()


def test_tasks_of_one_worker_share_a_client(bucket):
    """Opening a client per task would open its connections anew for every few thousand files."""
    from swamp.bulk.spread import opened
    from swamp.store.open import StoreSpec

    assert opened(bucket) is opened(StoreSpec(bucket.url))
    assert opened(bucket) is not opened(StoreSpec(bucket.url, namespace="team"))


def test_small_files_are_a_few_large_tasks():
    assert bins_for(4_000, 8_000_000, 2) == 4
    assert bins_for(100_000, 200_000_000, 2) < 40
    assert bins_for(3, 30, 2) == 3
    assert bins_for(8, 80 << 30, 2) == 8  # a file is never cut
