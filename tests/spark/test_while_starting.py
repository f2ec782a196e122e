"""While a session of its own starts, a command goes on: nobody waits for Spark before there is work for it."""

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from spark_files import write_files

from jobs import require_java
from machines import Place, Team
from swamp.bulk import choose, session, transfer
from swamp.bulk.choose import Chooser
from swamp.bulk.settings import SparkSettings
from swamp.cache.layout import CacheDir
from swamp.commit.bootstrap import Bootstrapped, bootstrap
from swamp.commit.commit import RootRead
from swamp.datasets.publish import committer_for
from swamp.errors import Interrupted, MissingTool, UsageError
from swamp.index.root import Writer
from swamp.store import directory
from swamp.sync.bulk import Work
from swamp.sync.engine import Engine
from swamp.sync.gather import Gatherer
from swamp.sync.progress import Progress

pytestmark = pytest.mark.timeout(300)
WAIT = 120


class Start:
    """In place of a JVM's start: the tests' session, but not before somebody lets it come."""

    def __init__(self, session):
        self.session, self.may_come, self.error, self.stopped = session, threading.Event(), None, []

    def __call__(self, settings):
        assert self.may_come.wait(WAIT), "somebody waited for the session first"
        if self.error is not None:
            raise self.error
        return self.session


@pytest.fixture
def start(spark, monkeypatch):
    made = Start(spark.sparkContext)
    monkeypatch.setattr(transfer, "live_spark", lambda: None)
    monkeypatch.setattr(choose, "_is_live", lambda: False)
    monkeypatch.setattr(session, "start_context", made)
    monkeypatch.setattr(session, "stop_session", made.stopped.append)
    yield made
    made.may_come.set()
    for thread in threading.enumerate():
        if thread.name == "spark-start":
            thread.join(WAIT)  # a start that was dropped stops what comes: here, and not the session of all tests later


@pytest.fixture
def compared(start, monkeypatch):
    """Who compared what; the session comes up when the last path has been looked at in process."""
    seen, gathered, in_bulk = [], Gatherer.gathered, transfer.OnSpark.on_store

    def here(self, most):
        yield from gathered(self, most)
        seen.append("here")
        start.may_come.set()

    def there(self, committer, idle_timeout):
        seen.append("Spark")
        start.may_come.set()
        return in_bulk(self, committer, idle_timeout)

    monkeypatch.setattr(Gatherer, "gathered", here)
    monkeypatch.setattr(transfer.OnSpark, "on_store", there)
    return seen


@pytest.fixture
def machine(tmp_path, bucket, start):
    """An engine that is told to use Spark."""
    made = []

    def make(name, setting="spark", conf=None):
        cache = CacheDir(tmp_path / name).ensure()
        block = {"master": "local[2]", "conf": conf or {}}
        chooser = Chooser(setting, block, bucket, bucket.open(), cache.base, Progress(), 4, 4)
        engine = Engine.open(
            bucket.open(),
            cache,
            writer=Writer("repo", name, "user", 1, "0"),
            pick=chooser,
            expect=chooser.expect,
        )
        made.append((engine, chooser))
        return engine, chooser

    yield make
    for engine, chooser in made:
        chooser.close()
        engine.close()


def content(engine):
    found = (p for p in engine.root.rglob("*") if p.is_file())
    return {p.relative_to(engine.root).as_posix(): p.read_bytes() for p in found}


FILES = {f"files/{n % 5}/{n}": b"x" * n for n in range(60)}


def test_a_little_is_compared_in_process_and_moved_by_spark(machine, start, compared):
    a, chooser = machine("a")
    write_files(a.root, FILES)
    pushed = a.push(full=True)
    assert (pushed.files_pushed, pushed.engine, pushed.failed) == (60, "spark", ())
    assert pushed.spark["tasks"] >= 1
    assert "session" not in vars(chooser._spark.jobs), "lists of files need no SQL"
    chooser.close()
    assert start.stopped == [start.session]
    start.may_come.clear()
    b, _ = machine("b")
    pulled = b.pull()
    assert (pulled.files_pulled, pulled.engine) == (60, "spark")
    assert compared == ["here", "here"]
    assert content(b) == FILES


class Told(Progress):
    """Lets the session come after ten files, and goes on when it is up."""

    def __init__(self, start, chooser):
        self.start, self.chooser, self.files = start, chooser, 0

    def advance(self, files=0, size=0):
        self.files += files
        if self.files == 10:
            self.start.may_come.set()
            self.chooser._spark.session.result()


def test_the_first_of_many_files_do_not_wait_for_it(machine, start, monkeypatch):
    monkeypatch.setattr(transfer, "MANY_FILES", 60)
    monkeypatch.setattr(transfer, "HELPER_THREADS", 1)
    told = []
    for name in ("a", "b"):
        start.may_come.clear()
        engine, chooser = machine(name)
        chooser.progress = Told(start, chooser)
        if name == "a":
            write_files(engine.root, FILES)
        done = engine.push(full=True) if name == "a" else engine.pull()
        assert (done.files_pushed + done.files_pulled, done.engine, done.failed) == (60, "spark", ())
        assert done.spark["tasks"] >= 1
        told.append(chooser.progress.files)
    assert told == [60, 60], "each file is told once, whoever moved it"
    assert {
        p.relative_to(engine.root).as_posix(): p.read_bytes() for p in engine.root.rglob("*") if p.is_file()
    } == FILES


def test_nobody_waits_for_one_that_is_not_up_when_everything_is_moved(machine, start, monkeypatch):
    """It is stopped when it comes, and whoever asks for a live session meanwhile does not get that one."""
    monkeypatch.setattr(transfer, "MANY_FILES", 60)
    a, chooser = machine("a")
    write_files(a.root, FILES)
    done = a.push(full=True)
    assert (done.files_pushed, done.engine, done.spark, done.failed) == (60, "spark", None, ())
    assert done.engine_reason.endswith("moved in process before Spark was up")
    begun = chooser._spark.session
    chooser.close()
    assert not begun.done() and not start.stopped
    start.may_come.set()
    with pytest.raises(MissingTool, match="not needed"):
        begun.result(WAIT)
    assert start.stopped == [start.session]
    b, _ = machine("b", setting="inline")
    b.pull()
    assert content(b) == FILES


@pytest.mark.parametrize(("rows", "who"), [("60", "here"), ("59", "Spark")])
def test_the_bound_counts_files_that_nobody_has_pushed_yet(machine, compared, rows, who):
    a, _ = machine("a", conf={"spark.swamp.compareRows": rows})
    write_files(a.root, FILES)
    assert list(a.plan("push", full=True).actions("push"))
    assert compared == [who]


def test_a_session_that_does_not_come_up_stops_the_command_before_anything_is_sent(machine, start, compared, bucket):
    start.error = MissingTool("Spark did not start on local[2]")
    a, chooser = machine("a")
    write_files(a.root, FILES)
    with pytest.raises(MissingTool, match="did not start"):
        a.push(full=True)
    assert not [meta.key for page in bucket.open().list("files/") for meta in page]
    start.error = None
    assert a.push().files_pushed == 60, "the next one tries again"
    chooser.close()
    assert start.stopped == [start.session]
    again, _ = machine("a", setting="inline")
    assert again.push().fast_path


def test_an_interrupt_while_it_starts_sends_nothing(machine, start, bucket, monkeypatch):
    a, _ = machine("a")
    write_files(a.root, FILES)

    def come(settings):
        a.context.cancel.request()
        return start(settings)  # not yet

    monkeypatch.setattr(session, "start_context", come)
    with pytest.raises(Interrupted):
        a.push(full=True)
    start.may_come.set()
    assert not [meta.key for page in bucket.open().list("files/") for meta in page]


def test_a_session_that_nobody_needed_in_the_end_fails_nobody(machine, start, compared):
    a, _ = machine("a", setting="inline")
    write_files(a.root, FILES)
    for file in (a.root / "files").glob("*/*"):
        os.utime(file, (1, 1))  # old enough that its stat proves it unchanged: nothing is left to hash
    a.push(full=True)
    start.error = MissingTool("Spark did not start on local[2]")
    same, _ = machine("a")
    done = same.push(full=True)
    assert (done.files_pushed, done.engine, done.spark) == (0, "spark", None)


def test_who_asks_for_a_session_while_one_starts_gets_that_one(start, spark):
    """Spark refuses a second one beside it, and one that is half up is nobody's."""
    started, found = session.begin_context(SparkSettings("local[2]")), []
    asking = threading.Thread(target=lambda: found.append(session.live_session()))
    asking.start()
    asking.join(0.2)
    assert not found
    start.may_come.set()
    asking.join(WAIT)
    assert started.result() is spark.sparkContext and found[0]._sc is spark._sc


def test_a_pull_of_an_empty_bucket_starts_nothing(machine, start):
    a, chooser = machine("a")
    assert a.pull().files_pulled == 0
    assert chooser._spark is None, "nothing to move, nothing begun"


def test_a_failed_start_is_not_a_live_session(machine, start, monkeypatch):
    monkeypatch.setattr(choose, "FEW_CORES", 0)
    start.error = MissingTool("Spark did not start on local[2]")
    start.may_come.set()
    _, chooser = machine("a", setting="auto")
    many = Work("download", 10_000_000, 0)
    chooser.expect(many)
    with pytest.raises(MissingTool):
        _ = chooser._spark.jobs
    assert chooser(Work("download", 20, 0)).name == "inline"


def test_downloads_that_will_come_start_it_ahead(machine, start, monkeypatch):
    called = threading.Event()
    monkeypatch.setattr(session, "start_context", lambda settings: called.set() or start(settings))
    _, chooser = machine("a")
    chooser.expect(Work("download", 10, 0))
    assert called.wait(WAIT)
    start.may_come.set()


def test_a_bound_that_is_no_number_is_told_before_anything_starts(machine, start):
    _, chooser = machine("a", conf={"spark.swamp.compareRows": "many"})
    with pytest.raises(UsageError, match="compareRows"):
        chooser(Work("compare", 10, 0))
    assert SparkSettings("spark://head:7077").compared_here == 0  # executors elsewhere do the work they are there for


@pytest.mark.parametrize(("objects", "shared_out"), [(0, False), (3, False), (7, True)])
def test_a_listing_of_one_page_is_read_and_not_shared_out(bucket, monkeypatch, objects, shared_out):
    monkeypatch.setattr(directory, "PAGE", 3)
    store, asked = bucket.open(), []
    for n in range(objects):
        store.put(f"files/{n}", b"x")

    def discover():
        asked.append("Spark")
        return Bootstrapped(RootRead(None, None))

    bootstrap(committer_for(bucket), lambda: None, create=True, discover=discover)
    assert bool(asked) == shared_out


def test_a_command_that_ends_before_spark_is_up_leaves_no_java(tmp_path):
    """Real processes: the JVM that was on its way notices that its command is gone, and clears up after itself."""
    require_java()
    (tmp_path / "tmp").mkdir()
    a = Team(tmp_path, Place((tmp_path / "bucket").as_uri())).machine("a")
    place = a.tree / "files"
    place.mkdir()
    for n in range(transfer.MANY_FILES):
        (place / str(n)).write_bytes(b"%d" % n)
    ran = a("datastore", "sync", "--push", "--full", "--engine", "spark", env={"TMPDIR": str(tmp_path / "tmp")})
    done = ran.ok()
    assert (done["filesPushed"], done["engine"]) == (transfer.MANY_FILES, "spark")
    deadline = time.monotonic() + WAIT
    while (left := _javas_below(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left
    assert not list((tmp_path / "tmp").glob("spark-*")) + list((tmp_path / "tmp").glob("blockmgr-*"))


def _javas_below(directory):
    """Java processes that were told to keep their temporary files there."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (
                b"java" in (process / "comm").read_bytes()
                and os.fsencode(directory) in (process / "environ").read_bytes()
            ):
                found.append(process.name)
    return found
