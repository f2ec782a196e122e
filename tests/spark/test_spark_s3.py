"""Spark on a real S3 server over HTTP: executors use our own client, there is no Hadoop connector."""

import json
import os
import subprocess
import sys

import pytest

from jobs import require_java
from swamp.repo.config import write_config
from swamp.repo.init import init_repo

pytestmark = pytest.mark.timeout(900)
CODE = """
import json, sys
from swamp.env import SYSTEM
from swamp.pipeline.bulk import OnStore
from swamp.pipeline.jobs import Jobs
from swamp.pipeline.place import spec_of
from swamp.pipeline.publish import committer_for
from swamp.pipeline.session import SparkSettings, open_session, stop_session
from swamp.sync.progress import Patience

repo = sys.argv[1]
session = open_session(SparkSettings("local[2]", None, {"spark.driver.memory": "512m"}))
spec = spec_of({"repo": repo})
jobs = Jobs(session)
store = OnStore(jobs, spec, committer_for(spec, repo), Patience(SYSTEM, 200))
client = spec.open()
for number in range(40):
    client.put(f"files/{number:02d} ü+%", b"x" * number)
seen = {"discovered": sum(s.rows for s in store.discover().root.segments)}
options = {"repo": repo, "model": "web", "name": "events"}
session.range(0, 100, 1, 2).write.format("swamp").mode("append").options(**options).save()
seen["rows"] = session.read.format("swamp").options(**options).load().distinct().count()
report = store.verify(store.committer.read().root)
seen["checked"], seen["bad"] = report.checked, len(report.bad)
stop_session(session)
print(json.dumps(seen))
"""


def run(code, moto, tmp_path, *given):
    environ = {**os.environ, **moto.environ, "SWAMP_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-c", code, *given], capture_output=True, text=True, timeout=600, check=False, env=environ
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_discovery_datasets_and_verify_on_s3(moto, fresh_prefix, tmp_path):
    require_java()
    repo = tmp_path / "repo"
    init_repo(repo)
    spec = moto.spec(fresh_prefix(), "team")
    block = {"type": "@swamp/s3-datastore", "url": spec.url, "config": dict(spec.config), "namespace": "team"}
    write_config(repo, {"datastore": block})
    seen = run(CODE, moto, tmp_path, str(repo))
    assert seen == {"discovered": 40, "rows": 100, "checked": 40 + 2 + 1 + 1, "bad": 0}


SLOW = """
import json, sys
from pathlib import Path
from swamp.env import SYSTEM
from swamp.pipeline.jobs import Jobs
from swamp.pipeline.session import SparkSettings, open_session, stop_session
from swamp.pipeline.transfer import OnSpark
from swamp.store.open import StoreSpec
from swamp.sync.bulk import Upload
from swamp.sync.progress import Patience
from swamp.testing.proxy import FaultProxy, Rule

url, config, file = sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3])
clock = SYSTEM.clock

def timed(size, seconds):
    with file.open("wb") as out:
        out.truncate(size)
    started = clock.monotonic()
    sent = list(executor.upload([Upload("files/large", str(file), size)], Patience(SYSTEM, seconds)))
    return clock.monotonic() - started, sent

with FaultProxy(config["endpoint"]) as proxy:
    session = open_session(SparkSettings("local[2]", None, {"spark.driver.memory": "512m"}))
    jobs = Jobs(session)
    executor = OnSpark(jobs, StoreSpec(url, {**config, "endpoint": proxy.endpoint}))
    timed(1000, 300)  # the first one starts workers
    small, _ = timed(1000, 300)
    deadline = max(3.0, 4 * small)
    # Seven parts, three at a time: three rounds of answers that each take as long as the deadline.
    proxy.rules.append(Rule("delay", method="PUT", path="partNumber=", times=None, seconds=deadline))
    took, sent = timed(7 * 8 << 20, deadline)
    seen = {"rounds": int(took // deadline), "error": sent[0].error, "size": sent[0].size}
    jobs.close()
    stop_session(session)
print(json.dumps(seen))
"""


def test_one_upload_may_take_longer_than_the_deadline_while_it_goes_on(moto, fresh_prefix, tmp_path):
    """The deadline counts time without progress: a task that sends one huge file says that it is still at it."""
    require_java()
    spec = moto.spec(fresh_prefix())
    seen = run(SLOW, moto, tmp_path, spec.url, json.dumps(dict(spec.config)), str(tmp_path / "large"))
    assert seen["rounds"] >= 2, "the upload was too quick to show anything"
    assert (seen["error"], seen["size"]) == (None, 7 * 8 << 20)
