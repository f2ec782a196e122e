"""A real standalone cluster on loopback, from the pip package's own scripts: one master, two workers.

Drivers run as processes of their own, as users' do: each prints one JSON document with what it saw. Starting one costs
more than most of what it does, so one driver plays three chapters, each on a bucket of its own, and three tests read
what it saw.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyspark
import pytest

from jobs import require_java
from swamp.repo.config import init_repo, write_config
from swamp.store.open import StoreSpec

HOME = Path(pyspark.__file__).parent
pytestmark = pytest.mark.timeout(1200)  # three JVMs more than other tests: a busy machine needs its time
PRELUDE = """
import datetime, json, os, signal, sys, threading, time
from pathlib import Path
from swamp.bulk.session import open_session, stop_session
from swamp.bulk.settings import SparkSettings
from swamp.bulk.jobs import Jobs
from swamp.bulk.maintain import OnStore
from swamp.datasets.publish import committer_for
from swamp.datasets.source import register
from swamp.store.open import StoreSpec
from swamp.sync.progress import IdleTimeout
from swamp.env import SYSTEM

given = json.loads(sys.argv[1])
conf = {"spark.driver.memory": "512m", "spark.executor.memory": "512m", "spark.cores.max": "2",
        "spark.executor.cores": "1", "spark.sql.shuffle.partitions": "2", "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1", **given.get("conf", {})}
settings = SparkSettings(given["master"], None, conf)
"""


class Cluster:
    def __init__(self, folder):
        self.folder = folder
        self.url = ""
        self.processes = []

    def start(self):
        self._run("master.Master", "-h", "127.0.0.1", "-p", "0", "--webui-port", "0")
        _wait(lambda: self._told(), 120)
        self.complete()

    def _told(self):
        """Where the master listens: on a port that it has chosen itself."""
        found = re.search(r"master at (spark://\S+)", (self.folder / "master.Master0.log").read_text())
        self.url = found[1] if found else ""
        return self.url

    @property
    def workers(self):
        return [process for process in self.processes[1:] if process.poll() is None]

    def complete(self):
        """Two workers, also after a test has killed one."""
        for number in range(len(self.processes), len(self.processes) + 2 - len(self.workers)):
            work = self.folder / f"work{number}"
            arguments = ("-c", "1", "-m", "900m", "-h", "127.0.0.1", "--webui-port", "0", "-d", str(work), self.url)
            self._run("worker.Worker", *arguments)
        log = self.folder / "master.Master0.log"
        _wait(lambda: log.read_text().count("Registering worker") >= len(self.processes) - 1, 180)

    def _run(self, kind, *arguments):
        environ = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        environ.pop("SPARK_TEST_WORKERS", None)  # here workers start from nothing, in the session of their executor
        command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *arguments]
        with (self.folder / f"{kind}{len(self.processes)}.log").open("wb") as log:
            # A session of its own, so that a worker can be killed together with its executors.
            process = subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True)
        self.processes.append(process)

    def stop(self):
        for process in self.processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait(20)

    def drive(self, code, **given):
        done = subprocess.run(
            [sys.executable, "-c", PRELUDE + code, json.dumps({"master": self.url, **given})],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
            env={**os.environ, "SWAMP_HOME": str(self.folder / "home")},
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])


def _wait(ready, seconds):
    until = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < until, "the cluster did not start"
        time.sleep(0.3)


@pytest.fixture(scope="module")
def one_cluster(tmp_path_factory):
    """Starting it costs more than most of what it is used for: all of these tests share it."""
    require_java()
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def cluster(one_cluster):
    one_cluster.complete()
    return one_cluster


WORK = """
from swamp.bulk.executors import check_executors, check_cache_visible
from swamp.errors import Misconfigured

session = register(open_session(settings))
jobs = Jobs(session)

def on(chapter):
    spec = StoreSpec(given[chapter]["bucket"])
    return spec, OnStore(jobs, spec, committer_for(spec), IdleTimeout(SYSTEM, 200))

def write(frame, chapter):
    frame.write.format("swamp").mode("append").options(**options(chapter)).save()

def options(chapter):
    return {"repo": given[chapter]["repo"], "model": "web", "name": chapter}

def work():
    idle_timeout = IdleTimeout(SYSTEM, 300)
    check_executors(jobs, settings, idle_timeout)
    seen, cache = {}, Path(given["work"]["repo"])
    try:
        check_cache_visible(jobs, settings, cache, idle_timeout)
    except Misconfigured as error:
        seen["cache"] = error.message + " " + error.hint
    shared = SparkSettings(settings.master, None, {**conf, "spark.swamp.sharedCache": "true"})
    check_cache_visible(jobs, shared, cache, idle_timeout)
    spec, store = on("work")
    seen["discovered"] = sum(s.rows for s in store.discover().read.root.segments)
    write(session.range(0, 1000, 1, 4), "work")
    seen["rows"] = session.read.format("swamp").options(**options("work")).load().distinct().count()

    root = store.committer.read().root
    part = next(entry for path, entry in sorted(root.entries.items()) if path.endswith(".parquet"))
    spec.open().put(part.key, b"x" * part.size)  # as long as it was: only its hash can tell
    spec.open().put("files/007", b"rotten, and longer")  # adopted, so that only its size is known
    spec.open().delete(["files/008"])
    report = store.verify(root)
    seen["checked"], seen["bad"] = report.checked, [(f.entry.path, f.verdict) for f in report.bad]
    seen["part"] = part.path
    seen["report"] = jobs.report()
    return seen
"""

LEFT = """
def left(chapter):
    spec, store = on(chapter)
    back = session.read.format("swamp").options(**options(chapter)).load()
    marks = list(Path(given[chapter]["marks"]).iterdir())
    seen = {"rows": back.count(), "distinct": back.distinct().count(), "marks": len(marks)}
    root = store.committer.read().root
    listed = [m.key for page in spec.open().list("data/") for m in page]
    live = {entry.key for entry in store.values("entries", store.entries(root))}
    garbage = {m.key for m in store.mark(root, datetime.timedelta(0)).garbage}
    seen["orphans"] = len(set(listed) - live)
    seen["unfound"] = len(set(listed) - live - garbage)
    seen["lost"] = len({key for key in live if key.startswith("data/")} - set(listed))
    seen["versions"] = sum(key.split("~")[0].endswith("metadata.yaml") for key in live)
    return seen
"""

TWICE = """
def twice():
    write(session.range(0, 400, 1, 4), "twice")
    return left("twice")
"""

KILLED = """
marks = Path(given["killed"]["marks"])
victim = given["victim"]

def slowly(batches):
    import time as clock
    from pyspark import TaskContext
    for batch in batches:
        yield batch
    task, session = TaskContext.get(), os.getsid(0)  # executors are of their worker's session
    doomed = session == victim and any(marks.glob(f"*-{victim}"))  # its second task: the first one is kept
    (marks / f"{task.partitionId()}-{task.attemptNumber()}-{'doomed' if doomed else session}").touch()
    until = clock.monotonic() + 120
    while doomed or session != victim and not any(marks.glob("*-doomed")):
        if clock.monotonic() > until:
            raise TimeoutError("nobody was killed")
        clock.sleep(0.1)

def kill():
    while not any(marks.glob("*-doomed")):
        time.sleep(0.1)
    os.killpg(victim, signal.SIGKILL)

def killed():
    threading.Thread(target=kill, daemon=True).start()
    write(session.range(0, 600, 1, 6).mapInArrow(slowly, "id bigint"), "killed")
    return left("killed")
"""

PLAY = """
seen = {"work": work(), "twice": twice(), "killed": killed()}  # the last one costs a worker
stop_session(session)
print(json.dumps(seen))
"""

DIES = """
import os, pathlib
from swamp.store.directory import DirectoryStore
put_file = DirectoryStore.put_file

def put_and_die(self, key, path):
    done = put_file(self, key, path)
    try:
        (pathlib.Path(os.environ["SWAMP_TEST_MARKS"]) / key.split("~")[0].rpartition("/")[2]).touch(exist_ok=False)
    except FileExistsError:
        return done
    os._exit(7)

def put_as_its_chapter_wants(self, key, path):
    return (put_and_die if "/twice/" in key else put_file)(self, key, path)

DirectoryStore.put_file = put_as_its_chapter_wants
"""


@pytest.fixture(scope="module")
def story(one_cluster, tmp_path_factory):
    """What one driver saw in three chapters; in the end one of the cluster's workers is dead."""
    given = {chapter: _place(tmp_path_factory.mktemp(chapter)) for chapter in ("work", "twice", "killed")}
    store = StoreSpec(given["work"]["bucket"]).open()
    for number in range(200):
        store.put(f"files/{number:03d}", b"x" * 7)
    dying = tmp_path_factory.mktemp("dying")
    (dying / "sitecustomize.py").write_text(DIES)
    environ = {"PYTHONPATH": str(dying), "SWAMP_TEST_MARKS": given["twice"]["marks"]}
    conf = {f"spark.executorEnv.{name}": value for name, value in environ.items()}
    one_cluster.complete()
    victim = one_cluster.workers[0]
    seen = one_cluster.drive(WORK + LEFT + TWICE + KILLED + PLAY, conf=conf, victim=victim.pid, **given)
    assert victim.poll() is not None, "the worker is still alive"
    return seen


def _place(folder):
    """A bucket, a repository on it, and a folder for marks."""
    for name in ("bucket", "marks"):
        (folder / name).mkdir()
    init_repo(folder / "repo")
    url = (folder / "bucket").as_uri()
    write_config(folder / "repo", {"datastore": {"type": "file", "url": url}})
    return {"bucket": url, "repo": str(folder / "repo"), "marks": str(folder / "marks")}


def test_discovery_verify_and_datasets_on_a_cluster(story):
    seen = story["work"]
    assert seen["discovered"] == 200
    assert seen["checked"] == 200 + 4 + 1 + 1  # the parts, their metadata, the model's definition
    assert seen["bad"] == [[seen["part"], "corrupt"], ["files/007", "corrupt"], ["files/008", "missing"]]
    assert seen["rows"] == 1000
    assert "cannot see the cache" in seen["cache"] and "inline" in seen["cache"]
    assert seen["report"]["applicationId"].startswith("app-")
    assert seen["report"]["tasks"] > 4


@pytest.mark.inv("spark.publish-once")
def test_a_task_that_dies_after_its_upload_runs_again_and_is_published_once(story):
    """Every task uploads its part and dies before anybody hears of it; what the second attempt sends is what counts."""
    seen = story["twice"]
    assert seen["marks"] == 4, "not every task died once"
    assert seen["rows"] == seen["distinct"] == 400
    assert (seen["versions"], seen["lost"]) == (1, 0)
    assert (seen["orphans"], seen["unfound"]) == (4, 0)  # each first attempt's part, and gc finds them all


@pytest.mark.inv("spark.publish-once")
def test_a_worker_killed_mid_job_costs_time_and_nothing_else(story):
    seen = story["killed"]
    assert seen["rows"] == seen["distinct"] == 600
    assert (seen["versions"], seen["lost"]) == (1, 0)
    assert seen["marks"] == 7, "the task that the worker died in was to run again, and no other"
    assert seen["unfound"] == 0  # what the dead attempts left behind, gc finds


MISSING = """
from swamp.errors import MissingTool, Unavailable
from swamp.bulk.executors import check_executors, check_plugin

def check(seconds, more, plugin=None):
    settings = SparkSettings(given["master"], None, {**conf, **more})
    session = open_session(settings)
    jobs = Jobs(session)
    try:
        check_executors(jobs, settings, IdleTimeout(SYSTEM, seconds), plugin)
        check_plugin(session, settings, IdleTimeout(SYSTEM, seconds), plugin)
        return {"ok": True}
    except (MissingTool, Unavailable) as error:
        return {"error": error.message, "hint": error.hint}
    finally:
        jobs.close()
        session.stop()  # the application and its executors; the JVM is good for another one

print(json.dumps([check(*each) for each in given["applications"]]))
"""


def test_executors_without_the_package_are_named_an_archive_brings_it_and_none_at_all_are_named(
    cluster, tmp_path, monkeypatch
):
    """The package, and a plug-in that brings the datastore (the example in tests/fixtures/shelf)."""
    from swamp.bulk.executors import build_archive

    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "fixtures" / "shelf"))

    hidden = tmp_path / "hidden"
    hidden.mkdir()
    source = Path(__file__).parents[2] / "src"
    (hidden / "sitecustomize.py").write_text(f"import sys\nsys.path = [p for p in sys.path if p != {str(source)!r}]\n")
    archive = build_archive(tmp_path / "swamp.tar.gz", exclude=["google-cloud-storage"])
    without = {"spark.executorEnv.PYTHONPATH": str(hidden)}
    brought = {"spark.executorEnv.PYTHONPATH": f"{hidden}:./swamp-code", "spark.swamp.archive": str(archive.file)}
    greedy = {"spark.executor.memory": "64g"}  # no worker has it: the master waits for one that does
    conf = {"spark.cores.max": "1"}  # one executor has all that there is to see
    shelf = "@example/shelf"
    applications = [(300, without), (300, brought, shelf), (300, {}, shelf), (3, greedy)]
    first, second, bare, third = cluster.drive(MISSING, conf=conf, applications=applications)
    assert "No module named 'swamp'" in first["error"]
    assert "swamp spark package" in first["hint"]
    assert second == {"ok": True}
    assert "cannot open the datastore @example/shelf: no package that is installed there brings it" in bare["error"]
    assert "swamp spark package" in bare["hint"] and "--engine inline" in bare["hint"]
    assert f"no executor of {cluster.url} has answered for 3 s" in third["error"]
    assert "free memory" in third["hint"] and "inline" in third["hint"]
