"""A real standalone cluster on loopback, from the pip package's own scripts: one master, two workers.

Drivers run as processes of their own, as users' do: each prints one JSON document with what it saw.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pyspark
import pytest
from spark_files import require_java

HOME = Path(pyspark.__file__).parent
pytestmark = pytest.mark.timeout(1200)  # three JVMs more than other tests: a busy machine needs its time
PRELUDE = """
import json, os, signal, sys, threading, time
from pathlib import Path
from swamp.pipeline.session import SparkSettings, open_session, stop_session
from swamp.pipeline.jobs import Jobs
from swamp.pipeline.bulk import OnStore
from swamp.pipeline.publish import committer_for
from swamp.store.open import StoreSpec
from swamp.sync.progress import Patience
from swamp.env import SYSTEM

given = json.loads(sys.argv[1])
conf = {"spark.driver.memory": "512m", "spark.executor.memory": "512m", "spark.cores.max": "2",
        "spark.executor.cores": "1", "spark.sql.shuffle.partitions": "2", "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1", **given.get("conf", {})}
settings = SparkSettings(given["master"], None, conf)
spec = StoreSpec(given.get("bucket", "file:///nowhere"))
"""


class Cluster:
    def __init__(self, folder):
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"spark://127.0.0.1:{self.port}"
        self.processes = []

    def start(self):
        self._run("master.Master", "-h", "127.0.0.1", "-p", str(self.port), "--webui-port", "0")
        _wait(lambda: _answers(self.port), 60)
        self.complete()

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
        _wait(lambda: log.read_text().count("Registering worker") >= len(self.processes) - 1, 90)

    def _run(self, kind, *arguments):
        environ = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        log = (self.folder / f"{kind}{len(self.processes)}.log").open("wb")
        command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *arguments]
        # A session of its own, so that a worker can be killed together with its executors.
        self.processes.append(subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True))

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


def _answers(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


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
session = open_session(settings)
jobs = Jobs(session)
from swamp.pipeline.executors import check_executors, check_cache_visible
from swamp.errors import Misconfigured
check_executors(jobs, settings)
seen = {}
try:
    check_cache_visible(jobs, settings, Path(given["repo"]))
except Misconfigured as error:
    seen["cache"] = error.message + " " + error.hint
shared = SparkSettings(settings.master, None, {**conf, "spark.swamp.sharedCache": "true"})
check_cache_visible(jobs, shared, Path(given["repo"]))
store = OnStore(jobs, spec, committer_for(spec), Patience(SYSTEM, 200))
root = store.discover().root
seen["discovered"] = sum(s.rows for s in root.segments)
frame = session.range(0, 1000, 1, 4)
options = {"repo": given["repo"], "model": "web", "name": "events"}
frame.write.format("swamp").mode("append").options(**options).save()
seen["rows"] = session.read.format("swamp").options(**options).load().distinct().count()

root = store.committer.read().root
part = next(entry for path, entry in sorted(root.entries.items()) if path.endswith(".parquet"))
spec.open().put(part.key, b"x" * part.size)  # as long as it was: only its hash can tell
spec.open().put("files/007", b"rotten, and longer")  # adopted, so that only its size is known
spec.open().delete(["files/008"])
report = store.verify(root)
seen["checked"], seen["bad"] = report.checked, [(f.entry.path, f.verdict) for f in report.bad]
seen["part"] = part.path
seen["hosts"] = len({row.k for row in session.range(0, 8, 1, 8).selectExpr("uuid() k").collect()})
seen["report"] = jobs.report()
stop_session(session)
print(json.dumps(seen))
"""


def test_discovery_verify_and_datasets_on_a_cluster(cluster, bucket, shared_repo):
    store = bucket.open()
    for number in range(200):
        store.put(f"files/{number:03d}", b"x" * 7)
    seen = cluster.drive(WORK, bucket=bucket.url, repo=str(shared_repo))
    assert seen["discovered"] == 200
    assert seen["checked"] == 200 + 4 + 1 + 1  # the parts, their metadata, the model's definition
    assert seen["bad"] == [[seen["part"], "corrupt"], ["files/007", "corrupt"], ["files/008", "missing"]]
    assert seen["rows"] == 1000
    assert "cannot see the cache" in seen["cache"] and "inline" in seen["cache"]
    assert seen["report"]["applicationId"].startswith("app-")
    assert seen["report"]["tasks"] > 4


LEFT = """
import datetime
jobs = Jobs(session)
store = OnStore(jobs, spec, committer_for(spec), Patience(SYSTEM, 200))
back = session.read.format("swamp").options(**options).load()
seen = {"rows": back.count(), "distinct": back.distinct().count(), "marks": len(list(marks.iterdir()))}
root = store.committer.read().root
listed = [m.key for page in spec.open().list("data/") for m in page]
live = {row["key"] for row in store.entries(root).toArrow().to_pylist()}
garbage = {m.key for m in store.mark(root, datetime.timedelta(0)).garbage}
seen["orphans"] = len(set(listed) - live)
seen["unfound"] = len(set(listed) - live - garbage)
seen["lost"] = len({key for key in live if key.startswith("data/")} - set(listed))
seen["versions"] = sum(key.split("~")[0].endswith("metadata.yaml") for key in live)
stop_session(session)
print(json.dumps(seen))
"""

KILLED = """
session = open_session(settings)
marks = Path(given["marks"])

def slowly(batches):
    import time as clock
    from pyspark import TaskContext
    for batch in batches:
        yield batch
    task = TaskContext.get()
    (marks / f"{task.partitionId()}-{task.attemptNumber()}").touch()
    clock.sleep(2)

def kill():
    while len(list(marks.iterdir())) < 3:
        time.sleep(0.1)
    os.killpg(given["victim"], signal.SIGKILL)

threading.Thread(target=kill, daemon=True).start()
options = {"repo": given["repo"], "model": "web", "name": "events"}
frame = session.range(0, 600, 1, 6).mapInArrow(slowly, "id bigint")
frame.write.format("swamp").mode("append").options(**options).save()
"""


@pytest.fixture
def marks(tmp_path):
    folder = tmp_path / "marks"
    folder.mkdir()
    return folder


@pytest.mark.inv("spark.publish-once")
def test_a_worker_killed_mid_job_costs_time_and_nothing_else(cluster, bucket, shared_repo, marks):
    victim = cluster.workers[0].pid
    given = {"bucket": bucket.url, "repo": str(shared_repo), "marks": str(marks), "victim": victim}
    seen = cluster.drive(KILLED + LEFT, **given)
    assert cluster.processes[1:] != cluster.workers, "the worker is still alive"
    assert seen["rows"] == seen["distinct"] == 600
    assert (seen["versions"], seen["lost"]) == (1, 0)
    assert seen["marks"] > 6, "no task ran twice: the worker died too late to show anything"
    assert seen["unfound"] == 0  # what the dead attempts left behind, gc finds


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

DirectoryStore.put_file = put_and_die
"""

TWICE = """
session = open_session(settings)
marks = Path(given["marks"])
options = {"repo": given["repo"], "model": "web", "name": "events"}
session.range(0, 400, 1, 4).write.format("swamp").mode("append").options(**options).save()
"""


@pytest.mark.inv("spark.publish-once")
def test_a_task_that_dies_after_its_upload_runs_again_and_is_published_once(
    cluster, bucket, shared_repo, marks, tmp_path
):
    """Every task uploads its part and dies before anybody hears of it; what the second attempt sends is what counts."""
    (tmp_path / "dying").mkdir()
    (tmp_path / "dying" / "sitecustomize.py").write_text(DIES)
    environ = {"PYTHONPATH": str(tmp_path / "dying"), "SWAMP_TEST_MARKS": str(marks)}
    conf = {f"spark.executorEnv.{name}": value for name, value in environ.items()}
    seen = cluster.drive(TWICE + LEFT, bucket=bucket.url, repo=str(shared_repo), marks=str(marks), conf=conf)
    assert seen["marks"] == 4, "not every task died once"
    assert seen["rows"] == seen["distinct"] == 400
    assert (seen["versions"], seen["lost"]) == (1, 0)
    assert (seen["orphans"], seen["unfound"]) == (4, 0)  # each first attempt's part, and gc finds them all


MISSING = """
from swamp.errors import MissingTool
from swamp.pipeline.executors import check_executors
session = open_session(settings)
jobs = Jobs(session)
try:
    check_executors(jobs, settings)
    seen = {"ok": True}
except MissingTool as error:
    seen = {"error": error.message, "hint": error.hint}
stop_session(session)
print(json.dumps(seen))
"""


def test_executors_without_the_package_are_named_and_an_archive_brings_it(cluster, tmp_path):
    from swamp.pipeline.package import build_archive

    hidden = tmp_path / "hidden"
    hidden.mkdir()
    source = Path(__file__).parents[2] / "src"
    (hidden / "sitecustomize.py").write_text(f"import sys\nsys.path = [p for p in sys.path if p != {str(source)!r}]\n")
    conf = {"spark.executorEnv.PYTHONPATH": str(hidden)}
    seen = cluster.drive(MISSING, conf=conf)
    assert "No module named 'swamp'" in seen["error"]
    assert "swamp spark package" in seen["hint"]
    archive = build_archive(tmp_path / "swamp.tar.gz", exclude=["google-cloud-storage"])
    conf = {"spark.executorEnv.PYTHONPATH": f"{hidden}:./swamp-code", "spark.swamp.archive": str(archive.file)}
    assert cluster.drive(MISSING, conf=conf) == {"ok": True}
