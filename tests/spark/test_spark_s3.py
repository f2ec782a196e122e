"""Spark on a real S3 server over HTTP: executors use our own client, there is no Hadoop connector."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobs import require_java
from swamp.env import SYSTEM
from swamp.repo.config import init_repo, write_config

pytestmark = pytest.mark.timeout(900)
TESTS = Path(__file__).parent.parent
CODE = """
import json, sys
from pathlib import Path
from swamp.env import SYSTEM
from swamp.bulk.maintain import OnStore
from swamp.bulk.jobs import Jobs
from swamp.datasets.place import spec_of
from swamp.datasets.publish import committer_for
from swamp.datasets.source import register
from swamp.bulk.session import open_session, stop_session
from swamp.bulk.settings import SparkSettings
from swamp.bulk.transfer import OnSpark, at_hand
from swamp.store.open import StoreSpec
from swamp.sync.bulk import Upload
from swamp.sync.progress import IdleTimeout
from servers.proxy import FaultProxy, Rule

given = json.loads(sys.argv[1])
session = register(open_session(SparkSettings("local[2]", None, {"spark.driver.memory": "512m"})))
jobs = Jobs(session)

def work(repo):
    spec = spec_of({"repo": repo})
    store = OnStore(jobs, spec, committer_for(spec, repo), IdleTimeout(SYSTEM, 200))
    client = spec.open()
    for number in range(40):
        client.put(f"files/{number:02d} ü+%", b"x" * number)
    seen = {"discovered": sum(s.rows for s in store.discover().read.root.segments)}
    options = {"repo": repo, "model": "web", "name": "events"}
    session.range(0, 100, 1, 2).write.format("swamp").mode("append").options(**options).save()
    seen["rows"] = session.read.format("swamp").options(**options).load().distinct().count()
    report = store.verify(store.committer.read().root)
    seen["checked"], seen["bad"] = report.checked, len(report.bad)
    return seen

def slow(url, config, file):
    def timed(size, seconds):
        with file.open("wb") as out:
            out.truncate(size)
        started = SYSTEM.clock.monotonic()
        sent = list(executor.upload([Upload("files/large", str(file), size)], IdleTimeout(SYSTEM, seconds)))
        return SYSTEM.clock.monotonic() - started, sent

    with FaultProxy(config["endpoint"]) as proxy:
        executor = OnSpark(lambda: at_hand(jobs.session), StoreSpec(url, {**config, "endpoint": proxy.endpoint}))
        timed(1000, 300)  # the first one starts workers
        small, _ = timed(1000, 300)
        deadline = min(20.0, max(5.0, 4 * small))
        # Seven parts, three at a time: three rounds of answers that each take as long as the deadline.
        proxy.rules.append(Rule("delay", method="PUT", path="partNumber=", times=None, seconds=deadline))
        took, sent = timed(7 * 8 << 20, deadline)
    return {"rounds": int(took // deadline), "error": sent[0].error, "size": sent[0].size}

seen = {"work": work(given["repo"]), "slow": slow(given["url"], given["config"], Path(given["file"]))}
jobs.close()
stop_session(session)
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def story(moto, tmp_path_factory):
    """What one driver saw. A process of its own: its workers must be born with the server's credentials."""
    require_java()
    folder = tmp_path_factory.mktemp("s3")
    init_repo(folder / "repo")
    spec = moto.spec(f"t{SYSTEM.ulid().lower()}", "team")
    block = {"type": "@swamp/s3-datastore", "url": spec.url, "config": dict(spec.config), "namespace": "team"}
    write_config(folder / "repo", {"datastore": block})
    other = moto.spec(f"t{SYSTEM.ulid().lower()}")
    given = {
        "repo": str(folder / "repo"),
        "url": other.url,
        "config": dict(other.config),
        "file": str(folder / "large"),
    }
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(given)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, **moto.environ, "SWAMP_HOME": str(folder / "home"), "PYTHONPATH": str(TESTS)},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_discovery_datasets_and_verify_on_s3(story):
    assert story["work"] == {"discovered": 40, "rows": 100, "checked": 40 + 2 + 1 + 1, "bad": 0}


def test_one_upload_may_take_longer_than_the_deadline_while_it_goes_on(story):
    """The deadline counts time without progress: a task that sends one huge file says that it is still at it."""
    seen = story["slow"]
    assert seen["rounds"] >= 2, "the upload was too quick to show anything"
    assert (seen["error"], seen["size"]) == (None, 7 * 8 << 20)
