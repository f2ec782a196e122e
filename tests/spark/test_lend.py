"""Parts that the JVM cannot open by itself are lent to it on this machine: the same rows, or an error, never fewer."""

import fcntl
import json
import logging
import os
import resource
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from test_datasets import save
from test_like_spark import rows
from test_native import plan

import swamp.spark
from swamp.datasets import lend, native
from swamp.datasets.place import Bucket, FileRef
from swamp.errors import Unavailable
from swamp.index.root import Root

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def lent(spark, shared_repo, monkeypatch):
    """Reads a dataset as if its bucket were one that the JVM has no connector for."""
    monkeypatch.setattr(native, "_path_of", lambda *_: "")

    def read(**options):
        return swamp.spark.read(spark, "web", "events", repo=shared_repo, **options)

    return read


def wide(spark, count=3000):
    return spark.range(0, count, 1, 3).selectExpr("id", "cast(id % 7 as int) n", "sha2(cast(id as string), 256) text")


def test_lent_parts_are_read_by_sparks_own_reader(spark, shared_repo, lent, caplog):
    frame = wide(spark)
    save(frame, shared_repo)
    with caplog.at_level(logging.INFO, "swamp.spark"):
        found = lent()
    assert "lent by this process: the JVM has no address for this store" in caplog.text
    shown = plan(found.where("n = 3").select("id"))
    assert "FileScan parquet" in shown and "PushedFilters: [IsNotNull(n), EqualTo(n,3)]" in shown
    assert "ReadSchema: struct<id:bigint,n:int>" in shown, "the text is not fetched"
    assert rows(found) == rows(frame) and found.count() == 3000
    assert lent(columns="text").columns == ["text"]
    assert found.inputFiles() == lent().inputFiles(), "a part keeps its address, so that caching recognises it"


def test_scans_of_one_relation_with_different_filters_do_not_mix(spark, shared_repo, lent):
    frame = wide(spark)
    save(frame, shared_repo)
    for name, one in (("lent", lent()), ("here", frame)):
        one.createOrReplaceTempView(name)
    query = """select 'a' k, count(*) from {0} where n = 1 union all select 'b', count(*) from {0} where n = 2
        union all select 'all', count(*) from {0} union all
        select 'join', count(*) from {0} x join {0} y on x.id = y.n where x.n = 1"""
    assert spark.sql(query.format("lent")).collect() == spark.sql(query.format("here")).collect()


def test_a_large_part_comes_whole_whatever_the_sizes_of_its_pieces(spark, shared_repo, lent, monkeypatch):
    monkeypatch.setattr(lend, "FIRST_BYTES", 1000)
    monkeypatch.setattr(lend, "MOST_BYTES", 7000)
    monkeypatch.setattr(lend, "END_BYTES", 300)
    frame = wide(spark, 20_000)
    save(frame.coalesce(1), shared_repo)
    assert rows(lent()) == rows(frame)


def test_reading_all_columns_fetches_every_byte_once(spark, shared_repo, bucket, lent, monkeypatch):
    """Parquet would ask for a row group's columns by position, for each of which Hadoop's client opens a file anew: all
    that was sent behind it is lost."""
    monkeypatch.setattr(lend, "FIRST_BYTES", 64 << 10)
    monkeypatch.setattr(lend, "MOST_BYTES", 64 << 10)
    frame = wide(spark, 60_000)
    save(frame.coalesce(1), shared_repo)
    size, fetched, whole = part_of(bucket).stat().st_size, [], lend._whole
    assert size > 30 * (64 << 10)

    def counted(place, file, start, length):
        fetched.append(length)
        return whole(place, file, start, length)

    monkeypatch.setattr(lend, "_whole", counted)
    assert rows(lent()) == rows(frame)
    assert sum(fetched) <= size + (256 << 10), "every byte once, and what a reader has left behind at the start"


def part_of(bucket):
    return next(Path(urlsplit(bucket.url).path).rglob("part-*"))


@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_a_part_that_is_gone_or_cut_is_an_error(spark, shared_repo, bucket, lent, damage):
    save(wide(spark, 20_000).coalesce(1), shared_repo)
    found, part = lent(), part_of(bucket)
    if damage == "gone":
        part.unlink()
    else:
        part.write_bytes(part.read_bytes()[:-1000])
    with pytest.raises(Exception, match="part-00000"):
        found.collect()


def test_a_store_that_fails_in_the_middle_of_a_part_is_an_error(spark, shared_repo, bucket, lent, monkeypatch):
    """The head of the answer has announced all bytes by then; a reader must not take what came for all of it."""
    monkeypatch.setattr(lend, "FIRST_BYTES", 1000)
    monkeypatch.setattr(lend, "END_BYTES", 5000)
    save(wide(spark, 20_000).coalesce(1), shared_repo)
    assert part_of(bucket).stat().st_size > 20_000
    found, whole = lent(), lend._whole

    def fails(place, file, start, length):
        if 9000 < start < file.size - 5000:
            raise Unavailable("the store is gone", hint="wait")
        return whole(place, file, start, length)

    monkeypatch.setattr(lend, "_whole", fails)
    with pytest.raises(Exception, match=r"(?i)EOF|premature|gone"):
        found.collect()
    monkeypatch.setattr(lend, "_whole", whole)
    assert found.count() == 20_000, "and nothing of it stays"


def test_only_what_was_lent_can_be_read_and_only_with_the_secret(bucket):
    store = bucket.open()
    store.put("a/part-1", b"0123456789")
    store.put("a/secret", b"x")
    at = lend.lender().lend(Bucket(bucket, Root("", 0, "", "", "", {})), FileRef("data/_odd: ü", "a/part-1", 10))
    address = urlsplit(at)
    assert address.hostname == "127.0.0.1" and address.path.rpartition("/")[2] == "part--odd---"
    base = f"http://127.0.0.1:{address.port}/webhdfs/v1"

    def get(path, query="op=OPEN"):
        with urllib.request.urlopen(f"{base}{path}?{query}") as answer:
            return answer.read()

    assert get(address.path) == b"0123456789" and get(address.path, "op=OPEN&offset=3&length=4") == b"3456"
    _, secret, number, name = address.path.split("/")
    for path in (
        f"/{number}/{name}",
        f"/x{secret[1:]}/{number}/{name}",
        f"/{secret}/{number}/../a/secret",
        f"/{secret}",
    ):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(path)
    with pytest.raises(urllib.error.HTTPError, match="400"):
        get(address.path, "op=GETACLSTATUS")


def test_nothing_is_lent_to_other_machines_nor_many_small_parts_one_by_one():
    def session(master):
        return SimpleNamespace(conf=SimpleNamespace(get=lambda name, default: master))

    large, small = [FileRef("p", "k", 5 << 20)] * 100, [FileRef("p", "k", 1000)] * 100
    assert native._may_lend(session("local[2]"), large) and native._may_lend(session("local[2]"), small[:20])
    assert not native._may_lend(session("local[2]"), small)
    assert not any(native._may_lend(session(m), large) for m in ("yarn", "spark://h:7077", "local-cluster[2,1,1024]"))


def test_the_ends_of_parts_that_are_kept_are_bounded_and_threads_agree(bucket, monkeypatch):
    monkeypatch.setattr(lend, "KEPT_BYTES", 100)
    monkeypatch.setattr(lend, "END_BYTES", 30)
    store, place, made = bucket.open(), Bucket(bucket, Root("", 0, "", "", "", {})), lend.Lender()
    bodies = {number: bytes([65 + number]) * 50 for number in range(8)}
    for number, body in bodies.items():
        store.put(f"a/part-{number}", body)
    paths = {n: urlsplit(made.lend(place, FileRef(f"p/part-{n}", f"a/part-{n}", 50))).path for n in bodies}
    wrong = []

    def read_all():
        for number, path in list(paths.items()) * 5:
            if b"".join(made.chunks(path, 25, 50)) != bodies[number][25:]:
                wrong.append(number)

    threads = [threading.Thread(target=read_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and sum(map(len, made._ends.values())) <= 100


def test_a_copy_of_the_process_lends_by_itself(monkeypatch):
    here = lend.lender()
    assert lend.lender() is here
    monkeypatch.setattr("os.getpid", lambda: -1)
    assert lend.lender() is not here


@pytest.mark.inv("store.pinned-read")
def test_bytes_of_two_versions_are_never_joined(bucket, monkeypatch):
    """An adopted object lies under a plain key, which anybody may write over with as many bytes."""
    monkeypatch.setattr(lend, "END_BYTES", 10)
    monkeypatch.setattr(lend, "FIRST_BYTES", 20)
    store, place, made = bucket.open(), Bucket(bucket, Root("", 0, "", "", "", {})), lend.Lender()
    store.put("a/part-1", b"a" * 50)
    path = urlsplit(made.lend(place, FileRef("p/part-1", "a/part-1", 50))).path
    assert b"".join(made.chunks(path, 40, 50)) == b"a" * 10
    found = made.chunks(path, 0, 50)
    assert bytes(next(found)) == b"a" * 20
    store.put("a/part-1", b"b" * 50)
    for other in (made.chunks(path, 25, 35), found, made.chunks(path, 0, 50), made.chunks(path, 40, 50)):
        with pytest.raises(Unavailable, match="changed while it was read"):  # whoever is the first to notice
            next(other)
    path = urlsplit(made.lend(place, FileRef("p/part-1", "a/part-1", 50))).path
    assert b"".join(made.chunks(path, 0, 50)) == b"b" * 50 and b"".join(made.chunks(path, 40, 50)) == b"b" * 10


def test_who_reads_on_finds_the_next_piece_fetched_and_its_trouble_told(bucket, monkeypatch):
    monkeypatch.setattr(lend, "END_BYTES", 10)
    monkeypatch.setattr(lend, "FIRST_BYTES", 10)
    monkeypatch.setattr(lend, "MOST_BYTES", 20)
    store, place, made = bucket.open(), Bucket(bucket, Root("", 0, "", "", "", {})), lend.Lender()
    body = bytes(range(200))
    store.put("a/part-1", body)
    path = urlsplit(made.lend(place, FileRef("p/part-1", "a/part-1", 200))).path
    whole, asked, come = lend._whole, [], threading.Event()

    def fetched(place, file, start, length):
        asked.append((start, length))
        if start == 90:
            come.set()
            raise Unavailable("the store is gone", hint="wait")
        return whole(place, file, start, length)

    assert b"".join(made.chunks(path, 5, 200)) == body[5:]
    monkeypatch.setattr(lend, "_whole", fetched)
    found = made.chunks(path, 0, 200)
    taken = [bytes(next(found)) for _ in range(2)]
    assert asked == [(0, 10), (10, 20)], "nothing is fetched for a reader that may leave"
    taken += [bytes(next(found)) for _ in range(3)]
    assert come.wait(60) and b"".join(taken) == body[:90], "the piece after the last one was asked for"
    with pytest.raises(Unavailable, match="the store is gone"):
        next(found)


@pytest.mark.inv("store.pinned-read")
def test_a_task_that_reads_ranges_reads_one_version(bucket, monkeypatch):
    monkeypatch.setattr("swamp.datasets.place.READ_AHEAD", 10)
    store, place = bucket.open(), Bucket(bucket, Root("", 0, "", "", "", {}))
    store.put("a/part-1", b"a" * 50)
    with place.open(FileRef("p/part-1", "a/part-1", 50)) as file:
        assert file.read(10) == b"a" * 10
        store.put("a/part-1", b"b" * 50)
        with pytest.raises(Unavailable, match="changed while it was read"):
            file.read(10)


def test_a_process_with_many_open_files_still_lends():
    here, there = socket.socketpair()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 2048), hard), hard))
    try:
        with here, there, socket.socket(fileno=fcntl.fcntl(here, fcntl.F_DUPFD_CLOEXEC, 1500)) as high:
            assert not lend._says_something(high)
            there.close()
            assert lend._says_something(high)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


SHOWN = """
import json, sys, urllib.request
import swamp.spark
from swamp.bulk.session import open_session, stop_session
from swamp.bulk.settings import SparkSettings
from swamp.datasets import native
from swamp.datasets.lend import lender

native._path_of = lambda *_: ""
session = open_session(SparkSettings("local[1]", None, {"spark.ui.enabled": "true", "spark.ui.port": "0"}))
swamp.spark.write(session.range(0, 100, 1, 3), "web", "events", repo=sys.argv[1])
found = swamp.spark.read(session, "web", "events", repo=sys.argv[1])
by_format = swamp.spark.register(session).read.format("swamp")
by_format = by_format.options(repo=sys.argv[1], model="web", name="events").load()
assert found.where("id > 10").count() == by_format.where("id > 10").count() == 89
ui = session.sparkContext.uiWebUrl
rest = f"{ui}/api/v1/applications/{session.sparkContext.applicationId}/sql"
asked = [f"{rest}?details=true&planDescription=true", f"{ui}/SQL/", f"{ui}/jobs/", f"{ui}/stages/"]
asked += [f"{ui}/SQL/execution/?id={one['id']}" for one in json.load(urllib.request.urlopen(rest))]
pages = [urllib.request.urlopen(one).read().decode() for one in asked]
modes = [session._jvm.org.apache.spark.sql.execution.ExplainMode.fromString(one) for one in ("extended", "formatted")]
runs = [frame._jdf.queryExecution() for frame in (found, by_format)]
plan = "".join(run.toString() + "".join(run.explainString(mode) for mode in modes) for run in runs)
secret = lender()._secret
print(json.dumps({
    "read there": all(secret in path for path in found.inputFiles()),
    "scans shown": all(
        mark in plan and any(mark.removeprefix("File") in page for page in pages)
        for mark in ("FileScan parquet", "NativeParquetScan")
    ),
    "hidden": "*********(redacted)" in plan and any("(redacted)" in page for page in pages),
    "told": [one for one, page in zip(["plan", *asked], [plan, *pages]) if secret in page or secret[:8] in page],
}))
stop_session(session)
"""


def test_neither_plans_nor_the_ui_of_our_own_session_tell_the_secret(shared_repo, tmp_path):
    command, env = [sys.executable, "-c", SHOWN, str(shared_repo)], {**os.environ, "SWAMP_HOME": str(tmp_path / "home")}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=600, env=env)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {"read there": True, "scans shown": True, "hidden": True, "told": []}
