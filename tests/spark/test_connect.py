"""A real Spark Connect server from the pip package: the driver's JVM is elsewhere, this side only builds plans.

Clients run as processes of their own, because a process speaks either to a JVM or to a server.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pyspark
import pytest

from jobs import require_java
from swamp.datasets.publish import committer_for
from swamp.index.lookup import live_rows

pytestmark = pytest.mark.timeout(900)
HOME = Path(pyspark.__file__).parent


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    require_java()
    folder = tmp_path_factory.mktemp("connect")
    conf = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
    }
    command = [str(HOME / "bin" / "spark-submit"), "--master", "local[2]", "--driver-memory", "1g"]
    command += [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    environ = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environ, cwd=folder, start_new_session=True)
    try:
        until = time.monotonic() + 180
        while not (told := re.search(r"server started at: .*:(\d+)", (folder / "log").read_text())):
            assert process.poll() is None and time.monotonic() < until, (folder / "log").read_text()[-2000:]
            time.sleep(0.3)
        yield f"sc://127.0.0.1:{told[1]}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)


def client(code, folder, **given):
    environ = {**os.environ, "SWAMP_HOME": str(folder / "home"), "JAVA_HOME": str(folder / "no-java-needed-here")}
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + code, json.dumps(given)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=environ,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


PRELUDE = """
import datetime as dt, json, sys
from pathlib import Path
from swamp.cache.layout import CacheDir
from swamp.env import SYSTEM
from swamp.errors import SwampError
from swamp.index.root import Writer
from swamp.bulk.maintain import OnStore
from swamp.bulk.choose import Chooser
from swamp.bulk.jobs import Jobs
from swamp.datasets.publish import committer_for
from swamp.datasets.source import register
from swamp.bulk.session import open_session, stop_session
from swamp.bulk.settings import SparkSettings, resolve_settings
from swamp.store.open import StoreSpec
from swamp.sync.engine import Engine
from swamp.sync.progress import IdleTimeout, Progress

given = json.loads(sys.argv[1])
seen = {}
"""

DATASETS = """
session = register(open_session(resolve_settings({}, {}, master=given["remote"])))
jobs = Jobs(session)
options = {"repo": given["repo"], "model": "web", "name": "events"}
session.range(0, 1000, 1, 2).write.format("swamp").mode("append").options(**options).save()
seen["rows"] = session.read.format("swamp").options(**options).load().distinct().count()
session.range(7).write.format("swamp").mode("overwrite").options(**options | {"name": "more"}).save()
versions = session.read.format("swamp").options(repo=given["repo"], table="versions").load()
seen["versions"] = versions.count()
plain = session.createDataFrame(versions.toArrow())
for name, table in (("source", versions), ("plain", plain)):
    table.createOrReplaceTempView("v")
    table.createOrReplaceTempView("w")
    seen[name] = [[list(row) for row in session.sql(text).collect()] for text in (
        "select 'a' k, count(*) from v where name = 'events' union all select 'b', count(*) from v where name = 'more' "
        "union all select 'all', count(*) from v",
        "select count(*) from v join w on v.name = w.name where v.name = 'more'",
        "select (select count(*) from v where name = 'none'), (select count(*) from v)",
    )]
import random, swamp.spark
mixed = [(f"n{n % 4}" if n % 5 else None, n % 7) for n in range(60)]
by_hand = session.createDataFrame(mixed, "name string, version bigint")
swamp.spark.write(by_hand, "web", "mixed", repo=given["repo"])
by_source = swamp.spark.read(session, "web", "mixed", repo=given["repo"])
chance, seen["differs"] = random.Random(given["seed"]), []
conditions = ["name = 'n1'", "name is null", "version > 3", "version in (0, 6)", "not name <=> 'n2'"]
shapes = [
    "select name, version from v where {0} union all select name, version from v where {1}",
    "select count(*), (select count(*) from v where {1}) from v where {0}",
    "select l.version, r.version from (select * from v where {0}) l join (select * from v where {1}) r using (name)",
]
for number in range(6):
    text = chance.choice(shapes).format(chance.choice(conditions), chance.choice(conditions))
    answers = []
    for frame in (by_source.cache() if number == 3 else by_source, by_hand):
        frame.createOrReplaceTempView("v")
        answers.append(sorted(str(row) for row in session.sql(text).collect()))
    seen["differs"] += [] if answers[0] == answers[1] else [text]
spec = StoreSpec(given["bucket"])
store = OnStore(jobs, spec, committer_for(spec), IdleTimeout(SYSTEM, 300))
root = store.committer.read().root
part = next(entry for path, entry in root.entries.items() if path.endswith(".parquet"))
spec.open().put(part.key, b"rotten")
report = store.verify(root)
seen["checked"], seen["bad"] = report.checked, [(f.entry.path == part.path, f.verdict) for f in report.bad]
seen["garbage"] = len(store.mark(root, dt.timedelta(0)).garbage)
seen["report"] = jobs.report()
jobs.close()
stop_session(session)
print(json.dumps(seen))
"""


def test_datasets_and_bulk_verify_through_a_connect_server(server, bucket, shared_repo, tmp_path):
    seed = 18
    seen = client(DATASETS, tmp_path, remote=server, repo=str(shared_repo), bucket=bucket.url, seed=seed)
    assert seen["differs"] == [], f"seed {seed}"
    assert (seen["rows"], seen["versions"]) == (1000, 2)
    assert seen["source"] == seen["plain"] == [[["a", 1], ["b", 1], ["all", 2]], [[1]], [[0, 2]]]
    assert seen["bad"] == [[True, "corrupt"]]
    assert seen["checked"] == len(list(live_rows(committer_for(bucket).read().root, committer_for(bucket).fetch)))
    assert seen["garbage"] == 0
    assert seen["report"]["applicationId"] and seen["report"]["tasks"] > 2


PUSH = """
spec = StoreSpec(given["bucket"])
for name, conf in (("undeclared", {}), ("shared", {"spark.swamp.sharedCache": "true"})):
    cache = CacheDir(Path(given["base"]) / "cache").ensure()
    for number in range(20):
        (cache.tree / "files").mkdir(exist_ok=True)
        (cache.tree / "files" / str(number)).write_text(name)
    chooser = Chooser("spark", {"remote": given["remote"], "conf": conf}, spec, spec.open(), cache.base, Progress())
    engine = Engine.open(spec.open(), cache, writer=Writer("r", "h", "u", 1, "0"), pick=chooser)
    try:
        result = engine.push(full=True)
        seen[name] = [result.files_pushed, result.engine, result.spark["tasks"] > 0]
    except SwampError as error:
        seen[name] = [error.kind, error.message, error.hint]
    engine.close()
    chooser.close()
print(json.dumps(seen))
"""


def test_work_on_the_cache_is_refused_unless_the_server_is_said_to_see_it(server, bucket, tmp_path):
    seen = client(PUSH, tmp_path, remote=server, bucket=bucket.url, base=str(tmp_path))
    _kind, message, hint = seen["undeclared"]
    assert "cannot see the cache" in message and server in message
    assert "inline" in hint and "spark.swamp.sharedCache" in hint
    assert seen["shared"] == [20, "spark", True]


NO_SERVER = """
try:
    open_session(SparkSettings(remote=given["remote"]))
except SwampError as error:
    seen = {"kind": error.kind, "message": error.message, "hint": error.hint}
print(json.dumps(seen))
"""


def test_a_server_that_is_not_there_or_not_one_is_named(tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and never listens: nobody else can have it meanwhile
        seen = client(NO_SERVER, tmp_path, remote=f"sc://127.0.0.1:{unused.getsockname()[1]}")
    assert seen["kind"] == "unavailable" and "does not answer" in seen["message"]
