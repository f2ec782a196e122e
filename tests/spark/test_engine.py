"""The engine with its bulk work on Spark: the same plans and the same bucket as in process."""

import datetime as dt
import hashlib
import random
import shutil
import threading
import time
from dataclasses import replace
from itertools import pairwise

import pytest
from spark_files import write_files

from swamp.bulk import maintain as bulk
from swamp.bulk.choose import Chooser, choose_engine
from swamp.bulk.kernels import live_entries
from swamp.bulk.maintain import OnStore
from swamp.bulk.transfer import FIRST_COST, OnSpark, at_hand
from swamp.cache.layout import CacheDir
from swamp.commit.collect import collect, mark
from swamp.commit.log import names
from swamp.commit.repack import Compacted, compact
from swamp.datasets.publish import committer_for
from swamp.env import SYSTEM
from swamp.errors import CorruptData, Interrupted, Unavailable
from swamp.index.lookup import live_rows, winning_rows
from swamp.index.root import ROOT_KEY, Writer, decode
from swamp.store.open import StoreSpec
from swamp.sync.bulk import Upload, Work
from swamp.sync.engine import Engine, Policy
from swamp.sync.inline import Inline
from swamp.sync.plan import plan
from swamp.sync.progress import Cancel, IdleTimeout, Progress

pytestmark = pytest.mark.timeout(900)

WRITER = Writer("repo", "host", "user", 1, "0")


class Machine:
    """A cache on one bucket, with either engine."""

    def __init__(self, base, spec, setting, cancel=None, policy=None):
        self.cache = CacheDir(base).ensure()
        self.store = spec.open()
        self.chooser = Chooser(setting, {"master": "local[2]"}, spec, self.store, base, Progress(), 4, 4)
        more = {"pick": self.chooser, "cancel": cancel, "policy": policy}
        self.engine = Engine.open(self.store, self.cache, writer=WRITER, **more)

    def close(self):
        self.engine.close()
        self.chooser.close()

    @property
    def tree(self):
        return self.engine.root

    def files(self):
        found = (p for p in self.tree.rglob("*") if p.is_file())
        return {p.relative_to(self.tree).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in found}


@pytest.fixture
def machine(tmp_path, bucket, spark):
    made = []

    def make(name, setting="inline", **more):
        made.append(Machine(tmp_path / name, bucket, setting, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def on_spark(jobs):
    """Makes executors whose threads are tasks of the session of these tests."""
    made = []

    def make(spec):
        made.append(OnSpark(lambda: at_hand(jobs.session), spec))
        return made[-1]

    yield make
    for one in made:
        one.close(own=False)


def on_store(jobs, spec):
    return OnStore(jobs, spec, committer_for(spec), IdleTimeout(SYSTEM, 120))


def many(count):
    return {f"data/t/m{i % 7}/n{i % 50}/{i + 1}/{n}": f"{i}{n}".encode() * 20 for i in range(count // 2) for n in NAMES}


NAMES = ("metadata.yaml", "raw")


@pytest.mark.parametrize(("first", "second"), [("spark", "inline"), ("inline", "spark")])
def test_4000_files_pushed_by_one_engine_arrive_by_the_other(machine, first, second):
    a = machine("a", first)
    write_files(a.tree, many(4000))
    pushed = a.engine.push(full=True)
    assert (pushed.files_pushed, pushed.failed, pushed.engine) == (4000, (), first)
    b = machine("b", second)
    pulled = b.engine.pull()
    assert (pulled.files_pulled, pulled.engine) == (4000, second)
    assert b.files() == a.files()
    used = pushed if first == "spark" else pulled
    assert used.spark is not None
    assert used.spark["applicationId"].startswith("local-")
    assert used.spark["stages"] >= 1 and used.spark["tasks"] >= 2
    again = machine("b2", first).engine.plan("push", full=True)
    assert list(again.actions("push")) == []


@pytest.mark.parametrize("engine", ["inline", "spark"])
def test_a_lazy_cache_does_not_look_again_at_what_it_left_in_the_bucket(machine, engine, monkeypatch):
    """A comparison of everything holds what changed, not what lies where it lay."""
    a = machine("a")
    write_files(a.tree, many(600))
    a.engine.push(full=True)
    b = machine("b", engine, policy=Policy(hydrate="lazy"))
    b.engine.pull()
    assert sum(not path.endswith("/raw") for path in b.files()) == 300 == len(b.files())
    held = []
    monkeypatch.setattr("swamp.sync.observe.plan", lambda facts, *rest: held.extend(facts) or plan(facts, *rest))
    assert not b.engine.plan("push", full=True).units
    assert held == []
    write_files(b.tree, {"data/t/m1/n1/2/raw": b"edited"})
    assert [a.path for a in b.engine.plan("push", full=True).actions("push")] == ["data/t/m1/n1/2/raw"]
    assert len(held) == 2  # the whole version
    assert list(b.engine.plan("pull", full=True).actions("pull")) == []  # a dry run of what the pull itself does
    assert b.engine.pull(full=True).files_pulled == 0


@pytest.mark.parametrize("engine", ["inline", "spark"])
def test_a_first_pull_holds_a_portion_of_the_index(machine, engine, monkeypatch):
    """Nothing collects an index on the driver, also where all of it is news."""
    a = machine("a")
    write_files(a.tree, many(600))
    a.engine.push(full=True)
    held = []
    monkeypatch.setattr("swamp.sync.observe.plan", lambda facts, *rest: held.append(len(facts)) or plan(facts, *rest))
    b = machine("b", engine, policy=Policy(portion=100))
    pulled = b.engine.pull()
    assert (pulled.files_pulled, pulled.failed, pulled.engine) == (600, (), engine)
    assert b.files() == a.files() and b.engine.pull().fast_path
    assert sum(held) == 600 and max(held) <= 101


def test_workers_meet_only_in_directories_that_are_there(on_spark, bucket, tmp_path, monkeypatch):
    """Where the server stumbles over directories that two make at once (decision 0007), the driver makes them."""
    write_files(tmp_path / "tree", {f"files/{n % 9}/{n}": b"x" for n in range(60)} | {"files/top": b"y"})
    paths = sorted(p for p in (tmp_path / "tree").rglob("*") if p.is_file())
    uploads = [Upload(p.relative_to(tmp_path / "tree").as_posix(), str(p), 1) for p in paths]
    executor, seen = on_spark(replace(bucket, serialize_mkdir=True)), []
    real = executor._batches

    def batches(name, given, *rest):
        seen.extend(given)
        assert all((tmp_path / "bucket" / job.path).parent.is_dir() for job in seen)
        return real(name, seen, *rest)

    monkeypatch.setattr(executor, "_batches", batches)
    sent = list(executor.upload(uploads, IdleTimeout(SYSTEM, 120)))
    assert sorted(s.path for s in sent) == sorted(j.path for j in uploads) and not any(s.error for s in sent)
    assert len(seen) == len(uploads) - 10


ALPHABET = ["a", "B b", "ü", "日本", "x%+#", "1"]


def scramble(rng, tree, steps):
    """Writes, empties, removes: names with spaces and Unicode, in the shape of data and of plain files."""
    for _ in range(steps):
        name = rng.choice(ALPHABET)
        unit = rng.choice([f"data/t/m/{name}/{rng.randint(1, 3)}", f"files/{name}"])
        for leaf in NAMES if unit.startswith("data") else ("f",):
            target = tree / unit / leaf
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(b"" if rng.random() < 0.2 else rng.choice([b"1", b"22", b"333"]))


def announced_deletes(rng, engine, count):
    present = sorted(p.relative_to(engine.root).as_posix() for p in engine.root.rglob("*") if p.is_file())
    for path in rng.sample(present, min(count, len(present))):
        with engine.announce([path], "delete", confirmed=True):
            (engine.root / path).unlink()


@pytest.mark.parametrize(("seed", "rows"), [(1, 250_000), (2, 3), (3, 3)])
def test_both_engines_make_the_same_plan_and_the_same_bucket_of_a_random_tree(
    machine, bucket, tmp_path, monkeypatch, seed, rows
):
    monkeypatch.setattr(bulk, "RANGE_ROWS", rows)  # as few ranges as cores, or about as many as there are units
    rng = random.Random(seed)
    a, b = machine("a"), machine("b")
    scramble(rng, a.tree, 12)
    a.engine.push(full=True)
    b.engine.pull()
    scramble(rng, a.tree, 5)
    announced_deletes(rng, a.engine, 3)
    a.engine.push(full=True)
    scramble(rng, b.tree, 5)  # conflicts with what a has pushed meanwhile
    announced_deletes(rng, b.engine, 3)
    (b.tree / "files").mkdir(exist_ok=True)
    (b.tree / "files" / "dangling").symlink_to("nowhere")
    for mode in ("push", "pull", "sync"):
        inline = b.engine.plan(mode, full=True).to_json(mode)
        assert machine("b", "spark").engine.plan(mode, full=True).to_json(mode) == inline
        assert inline["plan"]
    other = twin(tmp_path, b)
    here, there = b.engine.sync(full=True), other.engine.sync(full=True)
    assert (here.engine, there.engine) == ("inline", "spark")
    assert report(here) == report(there)
    assert other.files() == b.files()
    assert truth(other.store) == truth(b.store)
    other.close()


@pytest.mark.inv("scan.honest", "unit.whole")
def test_both_engines_hold_back_the_whole_unit_of_a_file_that_cannot_be_looked_at(machine, bucket):
    """What the root says of a path that an obstacle hides was lost on Spark: the rest of its unit was pulled."""
    a, b = machine("a"), machine("b")
    write_files(a.tree, {f"data/t/m/n/{v}/{leaf}": b"1" for v in (1, 2) for leaf in NAMES})
    a.engine.push(full=True)
    b.engine.pull()
    write_files(a.tree, {f"data/t/m/n/{v}/{leaf}": b"22" for v in (1, 2) for leaf in NAMES})
    a.engine.push(full=True)
    (b.tree / "data/t/m/n/1/raw").unlink()
    (b.tree / "data/t/m/n/1/raw").symlink_to("nowhere")
    for mode in ("push", "pull", "sync"):
        inline = b.engine.plan(mode, full=True).to_json(mode)
        assert machine("b", "spark").engine.plan(mode, full=True).to_json(mode) == inline
    assert {row["path"] for row in inline["plan"]} == {f"data/t/m/n/2/{leaf}" for leaf in NAMES}
    other = machine("b", "spark")
    other.engine.pull(full=True)
    assert (b.tree / "data/t/m/n/1/metadata.yaml").read_bytes() == b"1"
    assert (b.tree / "data/t/m/n/2/metadata.yaml").read_bytes() == b"22"


def twin(tmp_path, machine):
    """The same machine and the same bucket, somewhere else."""
    shutil.copytree(tmp_path / "bucket", tmp_path / "bucket2", symlinks=True)
    shutil.copytree(machine.cache.base, tmp_path / "twin", symlinks=True)
    return Machine(tmp_path / "twin", StoreSpec((tmp_path / "bucket2").as_uri()), "spark")


def report(result):
    counts = (result.files_pushed, result.files_pulled, result.files_deleted, result.bytes_pushed, result.bytes_pulled)
    return counts, sorted(c.path for c in result.conflicts), sorted(f.path for f in result.failed)


def truth(store):
    root = decode(store.get(ROOT_KEY).body)
    rows = winning_rows(root, lambda ref: store.get(ref.key).body)
    return {row.path: (type(row).__name__, row.sha256, row.size) for row in rows}


def test_a_bucket_of_4000_plain_objects_is_discovered_on_spark(machine, bucket):
    files = many(3900) | {f"files/{i:03d} ü": b"x" for i in range(100)}
    store = bucket.open()
    for path, body in files.items():
        store.put(path, body)
    store.put("data/t/m0/.lock", b"{}")
    store.put("files/elsewhere/.datastore-index.json", b"{}")
    store.put("files/elsewhere/files/x", b"not ours")
    a = machine("a", "spark")
    result = a.engine.pull()
    assert result.discovered
    assert a.files() == {p: hashlib.sha256(b).hexdigest() for p, b in files.items()}
    root = committer_for(bucket).read().root
    assert root.segments and not root.entries
    second = machine("b").engine.pull()
    assert not second.discovered and second.files_pulled == 4000


def test_L48_discovery_on_spark_publishes_nothing_over_a_lost_root(jobs, bucket):
    bucket.open().put("data/t/m/n/1/raw~01JD0000000000000000000000", b"x")
    with pytest.raises(CorruptData, match="lost"):
        on_store(jobs, bucket).discover()
    assert committer_for(bucket).read().root is None


def test_both_engines_tell_what_a_first_root_leaves_out(jobs, bucket, tmp_path):
    def filled(spec):
        for name in ("files/a", "files/b\\c", "files/d", *(f"files/sub{n}/x\\y" for n in range(9))):
            spec.open().put(name, b"x")
        return spec

    (tmp_path / "other").mkdir()
    other = filled(StoreSpec((tmp_path / "other").as_uri()))
    in_process = Inline(other.open()).discover(committer_for(other), IdleTimeout(SYSTEM, 300))
    on_spark = on_store(jobs, filled(bucket)).discover()
    (told,) = in_process.warnings
    assert told.startswith("10 objects cannot be files here") and "and 5 more" in told
    assert on_spark.warnings == in_process.warnings and on_spark.discovered and in_process.discovered
    assert [s.rows for s in on_spark.read.root.segments] == [2] and len(in_process.read.root.entries) == 2


def test_verify_on_spark_finds_what_is_rotten_and_what_is_gone(machine, bucket, jobs):
    a = machine("a")
    write_files(a.tree, many(60))
    a.engine.push(full=True)
    committer = committer_for(bucket)
    rows = sorted(live_rows(committer.read().root, committer.fetch), key=lambda r: r.path)
    store = bucket.open()
    store.put(rows[3].key, b"rotten")
    store.delete([rows[5].key])
    seen = on_store(jobs, bucket).verify(committer.read().root)
    assert seen.checked == 60
    assert [(f.entry, f.verdict) for f in seen.bad] == [(rows[3], "corrupt"), (rows[5], "missing")]


def several_segments(machine):
    a = machine("a")
    for turn in range(3):
        write_files(a.tree, {p: b + bytes([turn]) for p, b in many(1200).items() if len(p) % 3 == turn or not turn})
        a.engine.push(full=True)
    rng = random.Random(5)
    announced_deletes(rng, a.engine, 40)
    a.engine.push()


def test_compaction_on_spark_says_the_same_of_every_path(machine, bucket, jobs):
    several_segments(machine)
    committer = committer_for(bucket)
    before = committer.read().root
    assert len(before.segments) > 1
    truth = list(winning_rows(before, committer.fetch))
    done = compact(committer, lambda: None, merge=on_store(jobs, bucket).merged)
    after = committer.read().root
    assert done == Compacted(len(before.segments), 1, after.segments[0].rows)
    assert list(winning_rows(after, committer.fetch)) == truth
    assert {d.key for d in after.dropped.values()} >= {s.key for s in before.segments}
    assert compact(committer, lambda: None).segments_after == 1


def test_a_compaction_in_ranges_says_the_same_of_every_path(machine, bucket, jobs, monkeypatch):
    several_segments(machine)
    committer = committer_for(bucket)
    before = committer.read().root
    truth = list(winning_rows(before, committer.fetch))
    monkeypatch.setattr(bulk, "SEGMENT_TARGET", sum(ref.rows for ref in before.segments) // 2)
    # As many rows as have a second row group would take minutes to push.
    monkeypatch.setattr(bulk, "row_groups", lambda store, ref, each: [(ref.min_path, 1), ("data/t/m3/", 1)])
    compact(committer, lambda: None, merge=on_store(jobs, bucket).merged)
    after = committer.read().root
    assert len(after.segments) > 1
    assert all(one.max_path < other.min_path for one, other in pairwise(after.segments))
    assert list(winning_rows(after, committer.fetch)) == truth


def test_both_engines_mark_the_same_garbage(machine, bucket, jobs):
    several_segments(machine)
    store = bucket.open()
    store.put("data/t/m/orphan~01JD0000000000000000000000", b"nobody published me")
    store.put("data/t/m/plain", b"not ours to collect")
    store.put("data/t/m/.lock", b"{}")
    committer = committer_for(bucket)
    root = committer.read().root
    for keep in (dt.timedelta(0), dt.timedelta(days=7)):
        spark_marks = on_store(jobs, bucket).mark(root, keep)
        inline = mark(committer, root, keep)
        assert (spark_marks.garbage, spark_marks.records) == (inline.garbage, inline.records)
    assert not inline.garbage
    done = collect(committer, lambda: None, keep=dt.timedelta(0), marker=on_store(jobs, bucket).mark)
    assert done.deleted == done.candidates > 40
    b = machine("b")
    assert b.engine.pull().failed == ()


def test_both_engines_hold_a_commit_whose_record_is_gone_to_be_as_young_as_the_next(machine, bucket, jobs):
    several_segments(machine)
    store, committer = bucket.open(), committer_for(bucket)
    gone = [name.key for name in names(store)][1:-1]
    store.delete(gone)
    root = committer.read().root
    spark_marks = on_store(jobs, bucket).mark(root, dt.timedelta(days=7))
    assert gone and spark_marks.garbage == mark(committer, root, dt.timedelta(days=7)).garbage == ()


@pytest.mark.inv("gc.plain-unchanged")
def test_both_engines_mark_the_same_plain_keys_and_know_what_was_dropped_there(machine, bucket, jobs):
    store = bucket.open()
    files = {f"files/adopted{n:02d}": b"by another tool %d" % n for n in range(20)}
    for path, body in files.items():
        store.put(path, body)
    a = machine("a")
    a.engine.pull()
    with a.engine.announce(list(files), "delete", confirmed=True):
        for path in files:
            (a.tree / path).unlink()
    a.engine.push()
    store.put("files/adopted03", b"rewritten by another tool")
    committer = committer_for(bucket)
    root = committer.read().root
    spark_marks, inline = on_store(jobs, bucket).mark(root, dt.timedelta(0)), mark(committer, root, dt.timedelta(0))
    assert [m.key for m in spark_marks.garbage] == sorted(m.key for m in inline.garbage)
    assert len(inline.garbage) == 19
    assert spark_marks == inline and len(inline.held) == 19


def test_what_a_bulk_command_looks_at_twice_is_read_once(machine, bucket, jobs, tmp_path, monkeypatch):
    several_segments(machine)
    on, told = on_store(jobs, bucket), tmp_path / "told"
    root = on.committer.read().root
    assert len(root.segments) > 1
    told.mkdir()
    place = str(told)

    def telling(root, fetch, span):  # of this function, so that it travels by value
        import os
        import uuid

        def seen(ref):
            open(os.path.join(place, f"{os.path.basename(ref.key)}~{uuid.uuid4()}"), "w").close()
            return fetch(ref)

        return live_entries(root, seen, span)

    monkeypatch.setattr(bulk, "live_entries", telling)

    def reads():
        found = sorted(file.name.split("~")[0] for file in told.iterdir())
        for file in told.iterdir():
            file.unlink()
        return found

    once = sorted(ref.key.rpartition("/")[2] for ref in root.segments)
    assert on.verify(root).checked and reads() == once


def test_the_next_batch_is_under_way_while_the_caller_records_one(on_spark, bucket, tmp_path):
    """And no more than that: the driver holds two batches, however many files there are."""
    taken = []

    def uploads():
        for number in range(4):
            taken.append(number)
            (tmp_path / str(number)).write_bytes(b"x")
            yield Upload(f"files/{number}", str(tmp_path / str(number)), int(FIRST_COST) * 16)  # a batch of its own

    sent = on_spark(bucket).upload(uploads(), IdleTimeout(SYSTEM, 300))
    assert next(sent).path == "files/0"
    assert taken == [0, 1]
    assert [s.path for s in sent] == ["files/1", "files/2", "files/3"]


def test_a_transfer_is_no_query(on_spark, jobs, bucket, tmp_path):
    """A list of files costs four times as much to start when it goes through Spark's optimizer."""

    def queries():
        jobs.session.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
        return jobs.session._jsparkSession.sharedState().statusStore().executionsCount()

    jobs.session.range(3).count()
    before = queries()
    assert before, "they are counted"
    (tmp_path / "one").write_bytes(b"x" * 100)
    sent = on_spark(bucket).upload(
        [Upload(f"files/{number}", str(tmp_path / "one"), 100) for number in range(50)], IdleTimeout(SYSTEM, 300)
    )
    assert len(list(sent)) == 50 and queries() == before


@pytest.mark.parametrize("hint", [None, "wait, then run it again", "wait,\nthen run it again"])
@pytest.mark.parametrize(
    "said", [f"the store is gone: {'x' * 3000} ü", "the store is gone:\n  it said 503\n\nand no more"]
)
def test_what_an_executor_says_of_its_failure_reaches_the_user_whole(jobs, said, hint):
    def fails(shares):
        raise Unavailable(said, hint=hint)

    with pytest.raises(Unavailable) as told:
        jobs.run("work", lambda: jobs.spread([[1], [2]], fails), IdleTimeout(SYSTEM, 300))
    assert (told.value.message, told.value.hint) == (said, hint)


def test_cancel_reaches_the_job(jobs):
    cancel = Cancel()
    threading.Timer(3, cancel.request).start()
    with pytest.raises(Interrupted):
        jobs.run("sleep", lambda: slow(jobs, 60).count(), IdleTimeout(SYSTEM, 300, cancel))
    assert jobs.session.range(5).count() == 5  # the session is still good


def test_a_job_without_progress_meets_its_deadline(jobs):
    begun = time.monotonic()
    with pytest.raises(Unavailable, match="no progress"):
        jobs.run("sleep", lambda: slow(jobs, 60).count(), IdleTimeout(SYSTEM, 3))
    assert time.monotonic() - begun < 40


def slow(jobs, seconds):
    def sleep(batches):
        time.sleep(seconds)
        yield from batches

    return jobs.session.range(0, 2, 1, 2).mapInArrow(sleep, "id bigint")


def test_the_bound_is_measured_work_and_zero_with_a_live_session():
    small, large = Work("upload", 10, 10_000), Work("upload", 1_000_000, 10**12)
    assert choose_engine("auto", Work("upload", 1, 100), live=True).engine == "inline"  # a known handful of files
    assert choose_engine("auto", small, live=False).engine == "inline"
    assert choose_engine("auto", large, live=False).engine == "spark"
    assert choose_engine("auto", small, live=True).engine == "spark"
    assert choose_engine("inline", large, live=True).engine == "inline"
    assert choose_engine("spark", small, live=False).engine == "spark"
