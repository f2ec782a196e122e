"""S22, S24: what a command shows or computes with is what the store holds. Through the CLI, on real servers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time

import pytest

from jobs import require_java
from machines import Machine, Place, Team
from servers.proxy import FaultProxy, Rule
from swamp.index.root import ROOT_KEY
from swamp.testing.s3_double import S3Double
from swamp.testing.s3_lies import Lie

WORKFLOW = """id: 11111111-2222-4333-8444-555555555555
name: w
jobs:
  - name: j
    steps:
      - name: s
        task: {{type: model_method, modelType: command/shell, modelName: m, methodName: execute,
                inputs: {{run: "{run}"}}}}
"""


@pytest.fixture
def wired(servers, tmp_path, fresh_prefix):
    """Machines on S3 behind a proxy that counts, and misbehaves on demand."""
    moto = servers["moto"]
    with FaultProxy(moto.endpoint) as proxy:
        config = {**moto.config, "endpoint": proxy.endpoint}
        yield Team(tmp_path, Place(f"{moto.url}/{fresh_prefix()}", config, dict(moto.environ))), proxy


def asked(proxy: FaultProxy, machine: Machine, *args: str) -> list[tuple[str, str]]:
    """The requests of one command."""
    before = len(proxy.seen)
    machine(*args).ok()
    return proxy.seen[before:]


def later() -> None:
    """So that this machine's last question does not count any more."""
    time.sleep(2.1)


READS = [
    ("data", "list"),
    ("data", "get", "web", "report"),
    ("data", "versions", "web", "report"),
    ("data", "search"),
    ("data", "query", "name == 'report'"),
]


@pytest.mark.inv("read.harmless")
@pytest.mark.parametrize("words", READS, ids=[words[1] for words in READS])
def test_S22_a_read_on_a_machine_that_is_one_commit_behind_shows_that_commit(team: Team, words):
    a, b = team.machine("a"), team.machine("b")
    a.put("web", "report", "one")
    b.sync()
    a.put("web", "report", "two")
    found = b(*words).ok()
    assert found["fresh"] is True
    text = json.dumps(found)
    assert '"version": 2' in text
    if words[1] == "get":
        assert found["content"] == "two", "of content what it shows is brought"


@pytest.mark.inv("read.harmless")
def test_S22_a_machine_that_has_only_seen_a_part_of_the_store_reads_all_of_it(team: Team):
    """Set up before the store had anything, it then worked on one model: no pull has ever brought everything."""
    a, b = team.machine("a"), team.machine("b")
    a.put("web", "report", "one")
    b.put("other", "mine", "x")
    a.put("web", "report", "two")
    found = b("data", "get", "web", "report", env={"SWAMP_FRESH": "always"}).ok()
    assert found["fresh"] is True and found["content"] == "two"
    assert b.versions("web", "report") == [2, 1] and b.get("other", "mine")["content"] == "x"


def test_S22_what_this_machine_does_not_know_yet_can_be_deleted_and_renamed(team: Team):
    """That there is no such model is only said after the store was asked."""
    a, b = team.machine("a"), team.machine("b")
    b.put("other", "mine", "x")
    b.put("other", "yours", "y")
    assert a("data", "delete", "other", "mine", "--yes").ok()["versionsDeleted"] == 1
    assert a("data", "rename", "other", "yours", "ours").ok()["newName"] == "ours"
    b.sync()
    assert b("data", "get", "other", "mine").failed(1)["code"] == "not-found"
    b("data", "undelete", "other", "mine").ok()
    assert a("data", "delete", "nobody", "mine", "--yes").failed(1)["code"] == "not-found"


def test_S22_outputs_and_runs_of_another_machine_are_shown(team: Team):
    a, b = team.machine("a"), team.machine("b")
    (a.repo / "workflows" / "workflow-w.yaml").write_text(WORKFLOW.format(run="echo hello"))
    run = a("workflow", "run", "w").ok()
    assert [r["runId"] for r in b("workflow", "run", "search").ok()["results"]] == [run["id"]]
    assert b("workflow", "history", "get", run["id"]).ok()["status"] == "succeeded"
    outputs = b("model", "output", "list").ok()
    assert outputs["total"] == 1 and outputs["fresh"] is True
    assert b("model", "output", "get", outputs["items"][0]["id"]).ok()["status"] == "succeeded"


@pytest.mark.inv("run.fresh")
def test_S22_a_run_computes_with_what_the_store_holds_of_every_model(team: Team):
    a, b = team.machine("a"), team.machine("b")
    a.put("source", "number", "1")
    said = "echo ${{ data.latest('source', 'number').content }}"
    (b.repo / "workflows" / "workflow-w.yaml").write_text(WORKFLOW.format(run=said))
    models = b.repo / "models" / "command" / "shell"
    models.mkdir(parents=True)
    definition = {"id": "id-reader", "name": "reader", "type": "command/shell",
                  "methods": {"execute": {"arguments": {"run": said}}}}  # fmt: skip
    (models / "reader.yaml").write_text(json.dumps(definition))
    b.sync()
    a.put("source", "number", "2")
    b("model", "method", "run", "reader", "execute").ok()
    assert json.loads(b.get("reader", "result")["content"])["stdout"].strip() == "2"
    a.put("source", "number", "3")
    b("workflow", "run", "w").ok()
    assert json.loads(b.get("m", "result")["content"])["stdout"].strip() == "3"


def test_S22_one_request_more_for_a_read_and_none_for_cached(wired):
    team, proxy = wired
    a, b = team.machine("a"), team.machine("b")
    a.put("web", "report", "one")
    b.sync()
    later()
    for words in READS:
        later()
        seen = asked(proxy, b, *words)
        assert [method for method, _ in seen] == ["GET"] and seen[0][1].endswith(".datastore-index.json"), seen
    later()
    assert asked(proxy, b, "data", "list", "--cached") == []
    before = len(proxy.seen)
    assert b("data", "list", env={"SWAMP_FRESH": "never"}).ok()["fresh"] is False
    assert proxy.seen[before:] == []
    assert len(asked(proxy, b, "datastore", "sync")) == 1, "a sync with nothing to do stays one request"


@pytest.mark.timeout(900)
def test_S22_sql_with_cached_asks_nobody(wired, monkeypatch):
    from swamp.datasets.place import open_place, open_tables
    from swamp.errors import UsageError

    require_java()
    team, proxy = wired
    a, b = team.machine("a"), team.machine("b", "--hydrate", "lazy")
    a.put("web", "report", "one")
    b.sync()
    a.put("web", "other", "two")
    query = ("sql", "SELECT name FROM data ORDER BY name", "--master", "local[1]")
    before = len(proxy.seen)
    assert b(*query, "--cached", timeout=400).ok() == [{"name": "report"}]
    assert proxy.seen[before:] == []
    refused = b(*query[:2], "--cached", "--master", "spark://elsewhere:7077").failed(2)
    assert "elsewhere" in refused["error"] and "--cached" in refused["hint"]
    for key, value in b.environment().items():
        monkeypatch.setenv(key, value)
    here = {"repo": str(b.repo), "fresh": "false"}
    with pytest.raises(UsageError, match="commits are kept in the store"):
        open_tables(here, "commits")
    with pytest.raises(UsageError, match="only tables"):
        open_place(here)
    assert proxy.seen[before:] == []


def test_S22_a_machine_that_has_just_asked_does_not_ask_again(team: Team, monkeypatch):
    import swamp

    a, b = team.machine("a"), team.machine("b")
    a.put("web", "report", "one")
    for key, value in b.environment().items():
        monkeypatch.setenv(key, value)
    with swamp.open_repo(b.repo) as repo:
        assert len(repo.data.list(fresh=True)) == 1
        a.put("web", "other", "one")
        monkeypatch.setattr("swamp.repo.ask.Question._fetch", lambda *_: pytest.fail("asked"))
        now = time.time()
        (b.caches[0] / "asked").write_text(f"{now} {now}")
        assert len(repo.data.list()) == 1 and repo.freshness.fresh
        assert len(repo.data.list(fresh=False)) == 1 and not repo.freshness.fresh


def test_S22_content_that_a_read_does_not_show_stays_remote_and_the_next_sync_brings_it(wired):
    team, proxy = wired
    a, b = team.machine("a"), team.machine("b")
    a.put("web", "first", "zero")
    b.sync()
    a.put("web", "report", "one" * 1000)
    a.put("web", "other", "two" * 1000)
    seen = asked(proxy, b, "data", "list")
    assert not [path for _, path in seen if "/raw~" in path]
    status = b.status()
    assert status["cache"]["remoteOnly"] == 2 and status["behind"] == 2
    assert b.get("web", "report")["content"] == "one" * 1000
    assert b.status()["cache"]["remoteOnly"] == 1
    synced = b.sync()
    assert synced["filesPulled"] == 1 and not synced["fastPath"]
    status = b.status()
    assert status["cache"]["remoteOnly"] == 0 and status["behind"] == 0
    assert len(asked(proxy, b, "datastore", "sync")) == 1


@pytest.mark.parametrize("action", ["freeze", "drop"])
def test_S22_a_read_on_a_dead_store_answers_within_two_seconds_and_says_so(wired, action):
    team, proxy = wired
    a = team.machine("a")
    a.put("web", "report", "one")
    begun = time.monotonic()
    a("data", "list", "--cached").ok()
    alone = time.monotonic() - begun
    proxy.rules.append(Rule(action, times=None))
    for words in READS[:2]:
        later()
        begun = time.monotonic()
        found = a(*words)
        took = time.monotonic() - begun
        assert found.ok()["fresh"] is False
        assert "the store did not answer" in found.err and "as of " in found.err
        assert took < 2.0 + 2 * alone + 1.0, f"{took:.1f} s, {alone:.1f} s without asking"
    assert a("data", "list", "--cached").ok()["total"] == 1


def test_S22_a_store_that_refuses_is_not_told_as_silent_by_the_next_read(double: S3Double, double_team: Team):
    """The machine remembers that it has just asked in vain; that is silence only if nobody answered."""
    a = double_team.machine("a")
    a.put("web", "report", "1")
    later()
    double.add(Lie("refuse", "GET", f"*/{ROOT_KEY}", times=None, status=403, code="AccessDenied"))
    for turn in ("first", "second"):
        ran = a("data", "list")
        assert ran.ok()["fresh"] is False
        assert "refused" in ran.err and "403" in ran.err and "did not answer" not in ran.err, (turn, ran.err)
    double.calm()
    assert a("data", "list").ok().get("fresh", True) is True, "and the next one asks, also within two seconds"


def test_S22_a_run_without_the_store_does_not_start(wired):
    team, proxy = wired
    a = team.machine("a")
    a("model", "create", "command/shell", "m").ok()
    proxy.rules.append(Rule("drop", times=None))
    mark = a.home / "ran"
    ran = a("model", "method", "run", "m", "execute", "--input", f"run=touch {mark}", timeout=200,
            env={"SWAMP_REQUEST_TIMEOUT_MS": "2000"})  # fmt: skip
    error = ran.failed(69)
    assert "nothing was kept" in error["error"]
    assert not mark.exists()


def test_S22_what_a_read_may_not_touch_waits_for_a_sync(team: Team):
    """A deletion elsewhere moves files aside, and that is for a sync to do; the read says that it shows less."""
    a, b = team.machine("a"), team.machine("b")
    a.put("web", "report", "one")
    b.sync()
    a("data", "delete", "web", "report", "--yes").ok()
    shown = b("data", "list")
    assert shown.ok()["fresh"] is False and "wait for `swamp datastore sync`" in shown.err
    assert shown.json["total"] == 1
    assert b.status()["behind"] == 1
    b.sync()
    shown = b("data", "list")
    assert shown.ok()["fresh"] is True and shown.json["total"] == 0


@pytest.mark.parametrize("dead", ["silent", "refused"])
def test_S22_status_of_a_dead_store_answers_within_seconds(wired, dead: str):
    """Five seconds by contract, on a machine that knows the store and on one that has never reached it; more only if
    this computer is slow with a command that waits for nobody."""
    team, proxy = wired
    a, clone = team.machine("a"), team.machine("clone", joined=False)
    a.put("web", "report", "one")
    shutil.copy(a.repo / ".swamp.yaml", clone.repo / ".swamp.yaml")
    if dead == "silent":
        proxy.rules.append(Rule("freeze", times=None))
    else:
        proxy.__exit__()
    for machine in (a, clone):
        begun = time.monotonic()
        machine("data", "list", "--cached")
        slow = time.monotonic() - begun
        begun = time.monotonic()
        found = machine("datastore", "status")
        took = time.monotonic() - begun
        assert found.code == 69, found
        assert found.json["healthy"] is False and found.json["message"] and found.json["behind"] is None
        assert took < 10.0 + 10 * slow, f"{took:.1f} s, where {slow:.1f} s are for a command without the store"
    if dead == "silent":
        proxy.rules.clear()


WRITER = """
import sys
import pyarrow as pa
from pyspark.sql.types import StructType
from swamp.datasets.source import SwampDataSource

writer = SwampDataSource({"repo": sys.argv[1], "model": "jobs", "name": "events"}).writer(
    StructType().add("n", "long"), False
)
writer.commit([writer.write(iter([pa.RecordBatch.from_pydict({"n": [1]})]))])
"""


@pytest.mark.inv("read.own-jobs")
@pytest.mark.parametrize("where", ["this process", "another process"])
def test_S24_a_dataset_that_a_job_has_just_committed_is_listed(team: Team, monkeypatch, where: str):
    """Spark commits to the bucket beside the cache: to this cache that is somebody else's commit, and it must be known
    although this machine has just asked. That memory lasts here for as long as the test."""
    import swamp

    a, b = team.machine("a"), team.machine("b")
    for key, value in b.environment().items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr("swamp.repo.ask.PATIENCE_S", 3600.0)
    with swamp.open_repo(b.repo) as repo:
        assert repo.data.list(fresh=True) == []
        a.put("web", "report", "one")
        assert repo.data.list() == [], "asked just now, and nobody here has committed"
        if where == "this process":
            monkeypatch.setattr(sys, "argv", ["writer", str(b.repo)])
            exec(compile(WRITER, "writer", "exec"), {})
        else:
            subprocess.run([sys.executable, "-c", WRITER, str(b.repo)], check=True, timeout=120)
        assert sorted(found.ref.data.name for found in repo.data.list()) == ["events", "report"]
        a.put("web", "other", "two")
        assert len(repo.data.list()) == 2, "one question is enough for one commit"
    assert ("jobs", "events") in b.names()
