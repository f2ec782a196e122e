"""Copies of parts on this machine: the bytes of the store or none, bounded, and never taken from under a reader."""

import hashlib
import logging
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from test_datasets import save
from test_lend import wide
from test_like_spark import rows
from test_native import plan

import swamp.spark
from swamp.bulk.settings import COPY_BYTES
from swamp.datasets import copies, lend, native
from swamp.datasets.copies import Shelf, shelf_at
from swamp.datasets.lend import Lender, Room
from swamp.datasets.place import Bucket, FileRef
from swamp.env import SYSTEM
from swamp.errors import CorruptData, UsageError
from swamp.index.root import Root

pytestmark = pytest.mark.timeout(900)
MOST = 1 << 30


def eventually(happened):
    until = SYSTEM.clock.monotonic() + 120
    while not happened():
        assert SYSTEM.clock.monotonic() < until
        SYSTEM.clock.sleep(0.01)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Small files stand for large ones: nothing of a part is kept in memory, and the disk may be nearly full."""
    monkeypatch.setenv("SWAMP_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(copies, "SPARE_BYTES", 0)
    return tmp_path / "home"


@pytest.fixture
def shelf(home):
    return shelf_at(home)


@pytest.fixture
def read(spark, shared_repo, monkeypatch):
    """Reads a dataset as if its bucket were one that the JVM has no connector for, with copies."""
    monkeypatch.setattr(native, "_path_of", lambda *_: "")
    spark.conf.set(COPY_BYTES, str(MOST))

    def read(**options):
        return swamp.spark.read(spark, "web", "events", repo=shared_repo, **options)

    yield read
    spark.conf.unset(COPY_BYTES)
    spark.conf.set(COPY_BYTES, "0")


def on_shelf(home):
    return sorted(file.name for file in (home / "parts").glob("?" * 64))


def lent_part(bucket, shelf, body, most=MOST, stored=None):
    """A part of the bucket that a lender of its own lends: the lender, and the part's path there."""
    key = f"a/part-1~{SYSTEM.ulid()}"
    bucket.open().put(key, body if stored is None else stored)
    file = FileRef("p/part-1", key, len(body), hashlib.sha256(body).hexdigest())
    lender = Lender()
    at = lender.lend(Bucket(bucket, Root("", 0, "", "", "", {})), file, Room(shelf, most))
    return lender, urlsplit(at).path


def kept(shelf, body, most=MOST):
    """Puts a copy on the shelf, as the end of a read does; its hash."""
    sha256 = hashlib.sha256(body).hexdigest()
    grown = shelf.begin(len(body), sha256)
    grown.add(0, body)
    shelf.put(grown, most)
    return sha256


def released(shelf):
    """As if the process of this shelf had ended."""
    shutil.rmtree(shelf._own)
    os.close(shelf._held)


def test_what_was_read_once_is_a_file_for_the_next_read(spark, shared_repo, bucket, read, home, caplog):
    frame = wide(spark)
    save(frame, shared_repo)
    first = read()
    assert all(path.startswith("webhdfs:") for path in first.inputFiles())
    assert rows(first) == rows(frame)
    eventually(lambda: len(on_shelf(home)) == 3)
    with caplog.at_level(logging.INFO, "swamp.spark"):
        again = read()
    assert "3 parts, copies of it on this machine" in caplog.text
    assert all(path.startswith(f"file://{home}/parts/used/") for path in again.inputFiles())
    for part in Path(urlsplit(bucket.url).path).rglob("part-*"):
        part.unlink()
    assert rows(again) == rows(read()) == rows(frame), "nobody has asked the store"
    assert first.count() == 3000, "whoever has the old address is answered from the copy"
    shown = plan(again.where("n = 3").select("id"))
    assert "FileScan parquet" in shown and "EqualTo(n,3)" in shown
    assert "webhdfs" not in shown and lend.lender()._secret not in shown
    assert again.join(read(), "id").count() == 3000
    assert stat.S_IMODE((home / "parts").stat().st_mode) == 0o700
    assert {stat.S_IMODE((home / "parts" / one).stat().st_mode) for one in on_shelf(home)} == {0o400}


def test_parts_that_are_copies_and_parts_that_are_not_are_one_table(spark, shared_repo, read, home):
    frame = wide(spark)
    save(frame, shared_repo)
    assert rows(read()) == rows(frame)
    eventually(lambda: len(on_shelf(home)) == 3)
    (home / "parts" / on_shelf(home)[1]).unlink()
    mixed = read()
    assert sorted(path.partition(":")[0] for path in mixed.inputFiles()) == ["file", "file", "webhdfs"]
    assert rows(mixed) == rows(frame) and mixed.where("n = 2").count() == frame.where("n = 2").count()


def test_copies_that_somebody_removed_are_fetched_again(spark, shared_repo, read, home):
    frame = wide(spark)
    save(frame, shared_repo)
    assert rows(read()) == rows(frame)
    eventually(lambda: len(on_shelf(home)) == 3)
    assert read().inputFiles()[0].startswith("file:")
    shutil.rmtree(home / "parts")
    assert read().inputFiles()[0].startswith("webhdfs:") and rows(read()) == rows(frame)
    save(frame.limit(10), shared_repo)
    assert read().count() == 10
    assert rows(read()) == rows(frame.limit(10))
    eventually(lambda: on_shelf(home))


def test_a_part_of_which_little_was_read_is_not_fetched_whole(bucket, shelf, home, monkeypatch):
    monkeypatch.setattr(lend, "END_BYTES", 10)
    monkeypatch.setattr(lend, "FIRST_BYTES", 20)
    monkeypatch.setattr(lend, "MOST_BYTES", 20)
    body, asked, whole = bytes(range(200)), [], lend._whole
    lender, path = lent_part(bucket, shelf, body)

    def fetched(place, file, start, length):
        asked.append((start, length))
        return whole(place, file, start, length)

    monkeypatch.setattr(lend, "_whole", fetched)
    for _ in range(3):
        assert b"".join(lender.chunks(path, 40, 80)) == body[40:80]
        assert b"".join(lender.chunks(path, 195, 200)) == body[195:]
    assert asked == [(40, 20), (60, 20), (190, 10)], "what was left unread is there for the next question"
    assert not lender._copies[path].is_complete, "and nobody is about to fetch the rest"
    assert b"".join(lender.chunks(path, 100, 160)) == body[100:160]
    eventually(lambda: on_shelf(home))
    rest = [(0, 20), (20, 20), (80, 20), (100, 20), (120, 20), (140, 20), (160, 20), (180, 10)]
    assert sorted(asked) == sorted([(40, 20), (60, 20), (190, 10), *rest]), "every byte once"
    assert Path(shelf.take("p/part-1", 200, on_shelf(home)[0])).read_bytes() == body


def test_wrong_bytes_never_become_a_copy_and_are_not_lent_again(bucket, shelf, home):
    lender, path = lent_part(bucket, shelf, b"a" * 50, stored=b"a" * 49 + b"b")
    assert b"".join(lender.chunks(path, 0, 50)).endswith(b"b"), "nobody knows before all of it is here"
    eventually(lambda: path in lender._wrong)
    with pytest.raises(CorruptData, match="not the bytes that were stored"):
        next(lender.chunks(path, 0, 50))
    assert not on_shelf(home) and not list(home.rglob("growing-*"))


def test_a_copy_that_was_written_to_is_no_copy(shelf, home):
    sha256 = kept(shelf, b"0123456789")
    link = shelf.take("p/part-1", 10, sha256)
    assert Path(link).read_bytes() == b"0123456789" and shelf.take("p/part-1", 10, sha256) == link
    (home / "parts" / sha256).chmod(0o600)
    (home / "parts" / sha256).write_bytes(b"012345678x")
    assert shelf.take("p/part-1", 10, sha256) is None and not on_shelf(home)
    cut = kept(shelf, b"abcdefghij")
    assert shelf.take("p/part-1", 11, cut) is None, "not as long as the index says"


def test_a_full_disk_ends_the_copy_and_not_the_read(bucket, shelf, home, caplog):
    body = os.urandom(100_000)
    lender, path = lent_part(bucket, shelf, body)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with caplog.at_level(logging.INFO, "swamp.spark"):
            assert b"".join(lender.chunks(path, 0, 100_000)) == body
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "no copy is kept of a part: cannot be written" in caplog.text and not list(home.rglob("growing-*"))
    assert b"".join(lender.chunks(path, 5, 99_000)) == body[5:99_000] and not on_shelf(home)


def test_for_a_copy_that_has_ended_nothing_more_is_fetched(bucket, shelf, home, monkeypatch):
    monkeypatch.setattr(lend, "FIRST_BYTES", 20)
    monkeypatch.setattr(lend, "MOST_BYTES", 20)
    lender, path = lent_part(bucket, shelf, bytes(range(200)))
    asked, whole, copy = [], lend._whole, lender._copies[path].copy

    def fetched(place, file, start, length):
        asked.append((start, length))
        if start == 20:
            copy.drop("the disk is full")
        return whole(place, file, start, length)

    monkeypatch.setattr(lend, "_whole", fetched)
    lender._complete(path)
    assert asked == [(0, 20), (20, 20)] and not on_shelf(home)


def test_a_version_that_is_larger_than_all_copies_may_be_is_only_lent(spark, shared_repo, read, home):
    spark.conf.set(COPY_BYTES, "1000")
    frame = wide(spark)
    save(frame, shared_repo)
    assert rows(read()) == rows(frame) and rows(read()) == rows(frame)
    assert read().inputFiles()[0].startswith("webhdfs:") and not list(home.rglob("growing-*"))
    spark.conf.set(COPY_BYTES, "4g")
    with pytest.raises(UsageError, match=r"spark\.swamp\.copyBytes is '4g'"):
        read()


def test_what_was_used_longest_ago_goes_first_and_what_is_used_stays(home, shelf):
    other = Shelf(home / "parts")
    bodies = [bytes([65 + number]) * 100 for number in range(5)]
    names = [kept(other, body, 300) for body in bodies[:3]]
    for number, name in enumerate(names):
        os.utime(home / "parts" / name, ns=(copies._now_ns() - (10 - number) * 10**9, copies.MARK_NS))
    used = Path(shelf.take("p/part-0", 100, names[0]))
    released(other)
    names.append(kept(shelf, bodies[3], 300))
    assert on_shelf(home) == sorted([names[0], names[2], names[3]])
    assert shelf.has_room(100, 300) and not shelf.has_room(101, 300), "two of the three are in use"
    kept(shelf, bodies[4], 200)
    assert on_shelf(home) == sorted([names[0], names[3]]), "both are in use here, so that there is no room for another"
    (home / "parts" / names[0]).unlink()
    assert used.read_bytes() == bodies[0], "whoever reads it has it for as long as they live"


@pytest.mark.parametrize("when", ["another comes", "somebody begins to read"])
def test_what_nobody_has_read_for_a_week_goes(home, shelf, when):
    other = Shelf(home / "parts")
    old, fresh = kept(other, b"a" * 10), kept(other, b"b" * 10)
    os.utime(home / "parts" / old, ns=(copies._now_ns() - 8 * 86_400 * 10**9, copies.MARK_NS))
    released(other)
    left = [fresh, kept(shelf, b"c" * 10)] if when == "another comes" else [fresh]
    if when == "somebody begins to read":
        Shelf(home / "parts")
    assert on_shelf(home) == sorted(left)


USING = """
import sys
from pathlib import Path
from swamp.datasets.copies import shelf_at
print(shelf_at(Path(sys.argv[1])).take("p/part-1", 100, sys.argv[2]), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("end", ["killed", "ended"])
def test_another_process_that_reads_a_copy_keeps_it_until_it_ends(home, end):
    first = Shelf(home / "parts")
    name = kept(first, b"a" * 100)
    command = [sys.executable, "-c", USING, str(home), name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        used = Path(process.stdout.readline().strip())
        released(first)
        here = Shelf(home / "parts")
        kept(here, b"b" * 100, 100)
        assert on_shelf(home) == [name] and used.read_bytes() == b"a" * 100
        if end == "killed":
            process.send_signal(signal.SIGKILL)
        process.stdin.close()
    assert used.exists() == (end == "killed")
    released(here)
    newer = kept(Shelf(home / "parts"), b"b" * 100, 100)
    assert on_shelf(home) == [newer] and not used.exists(), "what it has left is removed by whoever comes next"


def test_threads_that_read_one_part_at_once_see_its_bytes_and_make_one_copy(bucket, shelf, home, monkeypatch):
    monkeypatch.setattr(lend, "END_BYTES", 100)
    monkeypatch.setattr(lend, "FIRST_BYTES", 1000)
    monkeypatch.setattr(lend, "MOST_BYTES", 7000)
    body, wrong = os.urandom(100_000), []
    lender, path = lent_part(bucket, shelf, body)

    def read_some(first):
        for start in range(first, 100_000, 9_000):
            stop = min(100_000, start + 20_000)
            if b"".join(lender.chunks(path, start, stop)) != body[start:stop]:
                wrong.append(start)

    threads = [threading.Thread(target=read_some, args=(first,)) for first in (0, 1, 500, 3333)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    eventually(lambda: on_shelf(home))
    taken = shelf.take("p/part-1", 100_000, hashlib.sha256(body).hexdigest())
    assert not wrong and taken is not None and Path(taken).read_bytes() == body


def test_two_processes_that_copy_the_same_part_at_once_make_one(home):
    one, two = Shelf(home / "parts"), Shelf(home / "parts")
    sha256 = hashlib.sha256(b"a" * 10).hexdigest()
    grown = [shelf.begin(10, sha256) for shelf in (one, two)]
    assert one.begin(10, sha256) is None, "in one process it is begun once"
    for shelf, growing in zip((one, two), grown, strict=True):
        growing.add(0, b"a" * 10)
        shelf.put(growing, MOST)
    assert on_shelf(home) == [sha256] and two.take("p/x", 10, sha256) and one.take("p/x", 10, sha256)


def test_a_home_that_cannot_be_written_is_no_reason_to_fail(spark, shared_repo, read, home):
    home.write_text("in the way")
    frame = wide(spark)
    save(frame, shared_repo)
    assert rows(read()) == rows(frame) and read().inputFiles()[0].startswith("webhdfs:")


def test_executors_elsewhere_are_not_sent_to_this_disk():
    def session(master, shared="false", jvm=None):
        conf = {"spark.master": master, "spark.swamp.sharedCache": shared}
        get = SimpleNamespace(get=lambda name, default: conf.get(name, default))
        return SimpleNamespace(conf=get, _jvm=jvm, sparkContext=SimpleNamespace(master=master))

    assert native._sees_copies(session("local[2]", jvm=object()))
    assert not native._sees_copies(session("spark://h:7077", "true", jvm=object()))
    assert not native._sees_copies(session("local-cluster[2,1,1024]", jvm=object()))
    assert native._sees_copies(session("local[2]", "true")), "this user's warm server"
    assert not native._sees_copies(session("local[2]")), "somebody's Connect server, which may be anywhere"
    assert not native._sees_copies(session("yarn", "true"))


def test_the_name_of_a_copy_is_one_that_spark_reads():
    assert copies.name_for_spark("a/b/_odd: ü.csv.gz") == "part--odd---.csv.gz"
    assert copies.name_for_spark("a/part-0001.zstd.parquet") == "part-0001.zstd.parquet"
