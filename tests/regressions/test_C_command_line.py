"""C: what the command line got wrong elsewhere, through the CLI as a process and a server that misbehaves."""

from __future__ import annotations

import json
import shutil
import time

import pytest

from machines import Machine, Place, Team
from proxies import Proxy, cut_off_error, half, proxy_to, refuse, stall

QUICK = {"SWAMP_REQUEST_TIMEOUT_MS": "2000", "SWAMP_DATASTORE_SYNC_TIMEOUT_MS": "4000", "SWAMP_LOCK_TIMEOUT_MS": "4000"}


@pytest.fixture
def proxy(moto):
    with proxy_to(moto.endpoint) as made:
        yield made


@pytest.fixture
def far_team(proxy: Proxy, moto, tmp_path, fresh_prefix) -> Team:
    """Machines whose bucket lies behind the proxy."""
    config = {**moto.config, "endpoint": proxy.endpoint}
    return Team(tmp_path, Place(f"{moto.url}/{fresh_prefix()}", config, dict(moto.environ)))


def owing(team: Team, proxy: Proxy) -> Machine:
    """A machine with one version that it could not push."""
    a = team.machine("a")
    a.put("web", "first", "1")
    proxy.when(lambda r: r.is_write and r.is_payload, refuse(403, "AccessDenied"))
    file = a.home / "owed"
    file.write_text("owed")
    failed = a("data", "put", "web", "owed", str(file))
    assert failed.code != 0 and failed.out == ""
    proxy.behave()
    proxy.forget()
    return a


def test_C01_push_attempts_once_on_success(far_team: Team, proxy: Proxy):
    a = owing(far_team, proxy)
    done = a.sync("--push")
    assert done["mode"] == "push" and done["filesPushed"] >= 2
    assert proxy.count(lambda r: r.is_write and r.is_root) == 1
    payloads = [r.path for r in proxy.seen if r.is_write and r.is_payload]
    assert len(payloads) == 1, "all of it in one pack"


@pytest.mark.usefixtures("one_object_each")
def test_C01_push_attempts_once_on_failure_and_tells_the_real_error(far_team: Team, proxy: Proxy):
    a = owing(far_team, proxy)
    proxy.when(lambda r: r.is_write, refuse(403, "AccessDenied"))
    failed = a("datastore", "sync", "--push", env=QUICK)
    assert failed.code in (1, 69)
    told = failed.out + failed.err
    assert "AccessDenied" in told and "pushed" not in failed.err
    names = [r.path.split("~")[0] for r in proxy.seen if r.is_write and r.is_payload]
    assert len(names) == len(set(names)), "a file was sent twice"
    assert proxy.count(lambda r: r.is_write and r.is_root) == 0


def test_C02_a_failed_push_never_exits_0(far_team: Team, proxy: Proxy):
    a = owing(far_team, proxy)
    assert a.status()["pending"]["writes"] >= 1
    assert a.sync()["filesPushed"] >= 2
    assert a.status()["pending"] == {"writes": 0, "deletes": 0, "found": 0, "outbox": 0}


def test_C02_a_store_lost_during_the_push_is_told_with_where_the_work_is(far_team: Team, proxy: Proxy):
    a = far_team.machine("a")
    proxy.when(lambda r: r.is_write and r.is_payload, refuse(403, "AccessDenied"))
    error = a("data", "put", "web", "owed", str(a.repo / ".swamp.yaml")).failed(69)
    assert "the work is kept here" in error["error"]
    assert error["hint"].endswith("`swamp datastore sync` delivers it")
    assert a.status()["pending"]["writes"] >= 1
    proxy.behave()
    assert a.sync()["filesPushed"] >= 2


def test_C03_success_is_printed_after_the_push(far_team: Team, proxy: Proxy):
    a = far_team.machine("a")
    proxy.when(lambda r: r.is_write and r.is_payload, refuse(403, "AccessDenied"))
    file = a.home / "f"
    file.write_text("x")
    failed = a("data", "put", "web", "report", str(file), json=False)
    assert failed.code != 0
    assert failed.out == ""
    assert failed.err.startswith("Error: ") or "\nError: " in failed.err
    assert "Hint: " in failed.err and "Traceback" not in failed.err


def test_C04_sync_counts_what_it_pulled_itself(team: Team):
    a, b = team.machine("a"), team.machine("b")
    a.put("web", "report", "x")
    assert b.sync()["filesPulled"] == 4
    assert b.names() == [("web", "report")]


def test_C05_pull_never_pushes(far_team: Team, proxy: Proxy):
    a = owing(far_team, proxy)
    done = a.sync("--pull")
    assert done["filesPushed"] == 0
    assert proxy.count(lambda r: r.is_write) == 0
    assert a.status()["pending"]["writes"] >= 1


def test_C06_setup_on_a_full_bucket_says_what_it_pulled(team: Team):
    a = team.machine("a")
    a.put("web", "report", "x")
    b = team.machine("b", joined=False)
    assert b.setup(*team.place.setup_args)["filesPulled"] == 4


def test_C06_setup_that_could_not_pull_fails_and_changes_nothing(far_team: Team, proxy: Proxy):
    far_team.machine("a").put("web", "report", "x")
    b = far_team.machine("b", joined=False)
    before = (b.repo / ".swamp.yaml").read_text()
    proxy.when(lambda r: r.method == "GET" and r.is_payload, refuse(503, "SlowDown"))
    failed = b("datastore", "setup", *far_team.place.setup_args, "--timeout", "5", env=QUICK)
    assert failed.code == 69, failed
    assert (b.repo / ".swamp.yaml").read_text() == before
    proxy.behave()
    assert b.setup(*far_team.place.setup_args)["errors"] == []
    assert b.get("web", "report")["content"] == "x"


COMMANDS = [
    ("repo", "init", "{other}"),
    ("data", "list"),
    ("data", "get", "web", "report"),
    ("data", "versions", "web", "report"),
    ("data", "put", "web", "report", "{file}"),
    ("data", "search", "--tag", "modelName=web"),
    ("data", "query", "name == 'report'"),
    ("data", "rename", "web", "report", "renamed"),
    ("data", "gc"),
    ("data", "gc", "--dry-run"),
    ("data", "prune", "--dry-run"),
    ("data", "delete", "web", "renamed", "--yes"),
    ("datastore", "sync"),
    ("datastore", "sync", "--dry-run"),
    ("datastore", "sync", "--push"),
    ("datastore", "sync", "--pull", "--full"),
    ("datastore", "status"),
    ("datastore", "doctor"),
    ("datastore", "verify"),
    ("datastore", "gc"),
    ("datastore", "gc", "--dry-run"),
    ("datastore", "compact"),
    ("datastore", "undelete", "--since", "1h"),
    ("datastore", "log", "--limit", "2"),
    ("datastore", "lock", "status"),
    ("datastore", "lock", "release", "--force"),
    ("datastore", "namespace", "list"),
]


def test_C07_every_command_prints_exactly_one_document(team: Team):
    """With -v too: whatever is said besides goes to stderr."""
    a = team.machine("a")
    a.put("web", "report", "x")
    file = a.home / "f"
    file.write_text("y")
    for command in COMMANDS:
        words = [word.format(other=a.home / "other", file=file) for word in command]
        ran = a(*words, "-v")
        assert ran.code == 0, (words, ran.err)
        assert len(ran.out.splitlines()) == 1, (words, ran.out)
        assert isinstance(json.loads(ran.out), dict)


BAD = [
    (("data", "get", "web", "nothing"), 1),
    (("data", "get", "nobody", "nothing"), 1),
    (("data", "get", "web", "report", "--version", "9"), 1),
    (("data", "get", "web", "report", "--version", "0"), 2),
    (("data", "get", "web", "report", "--version", "x"), 2),
    (("data", "delete", "web", "report"), 2),
    (("data", "delete", "web", "nothing", "--yes"), 1),
    (("data", "put", "web", "a/b", "{file}"), 2),
    (("data", "put", "web", "latest", "{file}"), 2),
    (("data", "put", "web", "x", "/no/such/file"), 2),
    (("data", "put", "web", "x", "{file}", "--tag", "novalue"), 2),
    (("data", "put", "web", "x", "{file}", "--lifetime", "soon"), 2),
    (("data", "query", "nofield == 1"), 2),
    (("data", "query", "name =="), 2),
    (("data", "search", "--since", "yesterday"), 2),
    (("data", "frobnicate"), 2),
    (("data", "list", "--nonsense"), 2),
    (("datastore", "setup", "ftp://x/y"), 2),
    (("datastore", "setup", "nonsense"), 2),
    (("datastore", "setup", "file:///tmp/x", "--hydrate", "some"), 2),
    (("datastore", "setup", "file:///tmp/x", "--namespace", "data"), 2),
    (("datastore", "setup", "s3://b", "--config", "{{"), 2),
    (("datastore", "setup", "s3://b", "--config", '{{"secretAccessKey": "hush"}}'), 2),
    (("datastore", "sync", "--push", "--pull"), 2),
    (("datastore", "sync", "--engine", "fast"), 2),
    (("datastore", "sync", "--timeout", "-1"), 2),
    (("datastore", "log", "--limit", "0"), 2),
    (("datastore", "lock", "release"), 2),
    (("datastore", "gc", "--keep-days", "0"), 2),
    (("datastore", "undelete"), 2),
    (("datastore", "verify", "--drop", "x"), 2),
    (("repo", "init", "{repo}"), 2),
]


def test_C07_every_refusal_is_one_document_at_the_end_of_stderr(team: Team):
    a = team.machine("a")
    a.put("web", "report", "x")
    file = a.home / "f"
    file.write_text("y")
    for command, code in BAD:
        words = [word.format(file=file, repo=a.repo) for word in command]
        error = a(*words).failed(code)
        assert set(error) <= {"error", "code", "hint", "details"} and error["error"] and error["code"]
        assert "hush" not in json.dumps(error)
    assert a.names() == [("web", "report")]


@pytest.mark.parametrize("verb", ["sync", "setup"])
def test_C09_a_store_that_never_answers_ends_in_69(far_team: Team, proxy: Proxy, verb: str):
    a = far_team.machine("a")
    proxy.when(lambda r: True, stall)
    started = time.monotonic()
    words = ("datastore", "sync") if verb == "sync" else ("datastore", "setup", *far_team.place.setup_args)
    error = a(*words, "--timeout", "3", env=QUICK).failed(69)
    assert time.monotonic() - started < 60
    assert error["hint"]


ONE_LIMIT = 6.0
"""Seconds: far enough from its double, and from what starting a command takes on a busy machine."""


@pytest.mark.parametrize("limit", ["SWAMP_REQUEST_TIMEOUT_MS", "SWAMP_DATASTORE_SYNC_TIMEOUT_MS"])
@pytest.mark.parametrize("verb", ["sync", "status"])
def test_C09_a_store_that_never_answers_ends_a_command_after_one_limit(
    far_team: Team, proxy: Proxy, verb: str, limit: str
):
    # It took two: the attempt that had used up the time was made once more. And some limits ended no retries.
    a = far_team.machine("a")
    proxy.when(lambda r: True, stall)
    started = time.monotonic()
    assert a("datastore", verb, env={limit: str(int(ONE_LIMIT * 1000))}).code == 69
    assert time.monotonic() - started < 2 * ONE_LIMIT


@pytest.mark.parametrize(
    "words", [("data", "list"), ("datastore", "status"), ("datastore", "sync")], ids=lambda w: w[1]
)
def test_C09_a_fresh_clone_asks_a_store_that_never_answers_once(far_team: Team, proxy: Proxy, words):
    # It asked what the store enforces, cleaned up after that, and then asked for the root: each for a limit of its own.
    a = far_team.machine("a")
    shutil.rmtree(a.home / ".swamp")
    proxy.when(lambda r: True, stall)
    started = time.monotonic()
    assert a(*words, env={"SWAMP_REQUEST_TIMEOUT_MS": str(int(ONE_LIMIT * 1000))}).code == 69
    assert time.monotonic() - started < 2 * ONE_LIMIT


def writing(machine: Machine, *words: str) -> tuple[str, ...]:
    file = machine.home / "f"
    file.write_text("2")
    return tuple(str(file) if word == "FILE" else word for word in words)


@pytest.mark.parametrize("limit", ["SWAMP_REQUEST_TIMEOUT_MS", "SWAMP_DATASTORE_SYNC_TIMEOUT_MS"])
def test_C09_a_store_that_never_answers_is_not_waited_for_like_the_holder_of_a_lease(
    far_team: Team, proxy: Proxy, limit: str
):
    a = far_team.machine("a")
    a.put("web", "report", "1")
    proxy.when(lambda r: True, stall)
    started = time.monotonic()
    words = writing(a, "data", "put", "web", "report", "FILE")
    assert a(*words, env={limit: str(int(ONE_LIMIT * 1000))}).failed(69)["hint"]
    assert time.monotonic() - started < 2 * ONE_LIMIT


@pytest.mark.parametrize(
    "words", [("data", "put", "web", "report", "FILE"), ("data", "gc", "--yes")], ids=["put", "gc"]
)
def test_C09_a_store_that_takes_no_connection_ends_a_command_within_seconds(moto, tmp_path, fresh_prefix, words):
    # `sync` said so after one second, these after a silent minute: they waited for the lease of nobody.
    with proxy_to(moto.endpoint) as proxy:
        config = {**moto.config, "endpoint": proxy.endpoint}
        a = Team(tmp_path, Place(f"{moto.url}/{fresh_prefix()}", config, dict(moto.environ))).machine("a")
        a.put("web", "report", "1")
    started = time.monotonic()
    assert "cannot reach" in a(*writing(a, *words)).failed(69)["error"]
    assert time.monotonic() - started < 25, "a lease is waited for a minute"


def test_C09_a_request_is_not_repeated_for_longer_than_the_user_waits(far_team: Team, proxy: Proxy):
    """Pauses of 0.1, 0.2, 0.4, 0.8 s … : six attempts within three seconds, ten within the usual thirty."""
    a = far_team.machine("a")
    proxy.when(lambda r: True, refuse(503, "SlowDown"))
    proxy.forget()
    a("datastore", "sync", "--timeout", "3").failed(69)
    assert 2 <= len(proxy.seen) <= 7


@pytest.mark.parametrize(
    ("status", "code", "words"), [(403, "AccessDenied", "ights"), (400, "ExpiredToken", "log in"), (403, "x", "ights")]
)
def test_C10_a_refusal_keeps_status_code_and_request_id(far_team: Team, proxy: Proxy, status, code, words):
    a = far_team.machine("a")
    proxy.when(lambda r: True, refuse(status, code))
    error = a("datastore", "sync", env=QUICK).failed(69)
    assert error["details"]["status"] == status
    assert error["details"].get("requestId") == f"REQ-{status}" or "REQ-" in json.dumps(error)
    assert "UnknownError" not in json.dumps(error)
    assert error["hint"]


def test_C13_an_error_whose_body_is_cut_off_does_not_hang(far_team: Team, proxy: Proxy):
    a = far_team.machine("a")
    proxy.when(lambda r: r.is_root, cut_off_error())
    started = time.monotonic()
    a("datastore", "sync", "--timeout", "3", env=QUICK).failed(69)
    assert time.monotonic() - started < 60


def test_C14_the_request_limit_covers_a_stalled_body(far_team: Team, proxy: Proxy):
    a, b = far_team.machine("a"), far_team.machine("b")
    a.put("web", "big", "x" * 100_000)
    proxy.when(lambda r: r.method == "GET" and r.is_payload, half(stalling=True))
    started = time.monotonic()
    stuck = b("datastore", "sync", "--pull", "--timeout", "5", env=QUICK)
    assert stuck.code in (1, 69)
    assert time.monotonic() - started < 90
    proxy.behave()
    b.sync()
    assert b.get("web", "big")["size"] == 100_000


def test_C15_a_download_cut_short_is_tried_again(far_team: Team, proxy: Proxy):
    a, b = far_team.machine("a"), far_team.machine("b")
    a.put("web", "big", "x" * 100_000)
    proxy.once(lambda r: r.method == "GET" and r.is_payload, half(stalling=False))
    done = b.sync("--pull")
    assert done["failed"] == [] and done["filesPulled"] == 4
    assert b.get("web", "big")["content"] == "x" * 100_000


@pytest.mark.parametrize(
    ("behaviour", "limits"),
    [(refuse(503, "SlowDown"), QUICK), (stall, QUICK), (cut_off_error(), QUICK), (refuse(503, "SlowDown"), {})],
    ids=["503", "stall", "cut", "503 for longer than an upload is tried"],
)
def test_C02_a_store_lost_during_the_push_is_69_and_the_work_is_kept(far_team: Team, proxy: Proxy, behaviour, limits):
    """The lease and the pull worked, then nothing answers any more."""
    a = far_team.machine("a")
    a.put("web", "report", "1")
    lost = []

    def from_the_first_upload_on(request) -> bool:
        lost.extend([True] if request.is_write and request.is_payload else [])
        return bool(lost)

    proxy.when(from_the_first_upload_on, behaviour)
    file = a.home / "f"
    file.write_text("2")
    failed = a("data", "put", "web", "report", str(file), env=limits).failed(69)
    assert "sync" in failed["hint"]
    assert a.versions("web", "report") == [2, 1]
    proxy.behave()
    assert a.status()["pending"]["writes"] >= 1
    assert a.sync()["filesPushed"] >= 2
    b = far_team.machine("b")
    assert b.versions("web", "report") == [2, 1]


WORKFLOW = """
id: 7c9e6679-7425-40de-944b-e07fc1f90ae7
name: deploy
jobs:
  - name: work
    steps:
      - name: say
        task: {type: model_method, modelType: command/shell, modelName: sayer, methodName: execute, inputs: {run: ls}}
  - name: gate
    dependsOn: [{job: work, condition: {type: succeeded}}]
    steps:
      - name: ask
        task: {type: manual_approval, prompt: "Ship it?"}
"""


def test_C08_C11_the_runs_record_and_outputs_reach_the_bucket_with_each_command(team: Team):
    """Suspended after the run, final after the approval, and the step's output is in the datastore."""
    a, b = team.machine("a"), team.machine("b")
    (a.repo / "workflows" / "workflow-deploy.yaml").write_text(WORKFLOW)
    ran = a("workflow", "run", "deploy")
    assert ran.json["status"] == "suspended", ran.err
    run_id = ran.json["id"]
    assert a.status()["pending"] == {"writes": 0, "deletes": 0, "found": 0, "outbox": 0}
    b.sync("--pull")
    [seen] = b("workflow", "run", "search").ok()["results"]
    assert (seen["runId"], seen["status"]) == (run_id, "suspended")
    tiers = {path.split("/")[0] for path in team.place.root()["entries"]}
    assert {"outputs", "workflow-runs", "data", "definitions-evaluated"} <= tiers
    approved = a("workflow", "approve", run_id)
    assert approved.code == 0, approved.err
    b.sync("--pull")
    [seen] = b("workflow", "run", "search").ok()["results"]
    assert seen["status"] == "succeeded"
    assert b("data", "list", "sayer").ok()["total"] >= 1
    assert a.sync()["fastPath"] is True, "the command that finished the run left nothing to push"
