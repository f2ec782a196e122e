"""C19, C22, C23, C24: content and nothing else, valid JSON, queries that end, names and ids as people type them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

import pytest

from machines import SWAMP, Machine, Team

LOOP = "[" + ",".join(map(str, range(60))) + "]"
FOR_EVER = f"{LOOP}.all(a, {LOOP}.all(b, {LOOP}.all(c, {LOOP}.all(d, {LOOP}.all(e, a + b + c + d + e >= 0)))))"


# -- C23


@pytest.mark.inv("query.bounded")
def test_C23_a_query_that_runs_for_ever_is_stopped_and_says_so(team: Team):
    a = team.machine("a")
    a.put("web", "page", "x")
    began = time.monotonic()
    error = a("data", "query", f"name == 'page' && {FOR_EVER}", "--timeout", "1").failed(2)
    assert "was stopped" in error["error"] and "--timeout" in error["hint"]
    assert time.monotonic() - began < 30
    error = a("data", "query", "true", "--select", FOR_EVER, env={"SWAMP_QUERY_TIMEOUT_MS": "500"}).failed(2)
    assert "0.5 s" in error["error"]
    hidden = "(" * 30 + FOR_EVER + ")" * 30  # deeper than we look into
    assert "cannot be bounded" in a("data", "query", hidden).failed(2)["error"]
    assert a("data", "query", "[[1, 2], [3]].all(l, l.exists(n, n > 1)) && name == 'page'").ok()["total"] == 1


@pytest.mark.inv("query.bounded")
def test_C23_an_interrupt_is_heard_while_a_query_loops(team: Team):
    a = team.machine("a")
    a.put("web", "page", "x")
    running = a.start("data", "query", FOR_EVER)
    time.sleep(3)
    assert running.poll() is None
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=20)
    assert running.returncode == 130 and out == "" and json.loads(err.splitlines()[-1])["code"] == "interrupted"


# -- C19


def bytes_of(machine: Machine, *words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [str(SWAMP), *words], env=machine.environment(), cwd=machine.repo, capture_output=True, timeout=120, check=False
    )


@pytest.mark.inv("cli.bytes-alone")
@pytest.mark.parametrize("content", [b"a,b\n1,2\n", b"\x00\xff\xfe raw \r\n", b"", b"no newline"])
def test_C19_content_goes_to_stdout_as_it_is_and_nothing_with_it(team: Team, content: bytes):
    a = team.machine("a")
    a.put("web", "table", b"older")
    a.put("web", "table", content)
    for words in (("cat", "web", "table"), ("get", "web", "table", "-o", "-"), ("get", "web", "table")):
        done = bytes_of(a, "data", *words)
        assert (done.returncode, done.stdout) == (0, content), words
    assert bytes_of(a, "data", "cat", "web", "table", "--version", "1").stdout == b"older"
    assert not (a.repo / "-").exists()


def test_C19_what_cannot_be_bytes_alone_is_refused(team: Team):
    a = team.machine("a")
    parts = a.home / "parts"
    parts.mkdir()
    (parts / "one.txt").write_text("1")
    (parts / "two.txt").write_text("2")
    a("data", "put", "web", "many", str(parts)).ok()
    assert "has 2 parts" in a("data", "cat", "web", "many", json=False).err
    assert bytes_of(a, "data", "get", "web", "many").returncode == 2
    assert bytes_of(a, "data", "cat", "web", "many", "--part", "two.txt").stdout == b"2"
    assert "did you mean `one.txt`" in a("data", "cat", "web", "many", "--part", "one.tx", json=False).err
    assert "cannot both have stdout" in a("data", "get", "web", "many", "-o", "-").failed(2)["error"]
    assert a("data", "cat", "web", "many").code == 2


@pytest.mark.inv("cli.bytes-alone")
def test_C19_damaged_bytes_are_not_written_at_all(team: Team):
    a = team.machine("a")
    a.put("web", "page", "good bytes")
    [raw] = a.tree.glob("data/manual/data/*/page/1/raw")
    raw.write_text("evil bytes")
    done = bytes_of(a, "data", "cat", "web", "page")
    assert done.returncode == 65 and done.stdout == b""


# -- C22


@pytest.mark.inv("cli.utf-8")
def test_C22_a_name_that_is_not_utf8_leaves_json_valid(team: Team):
    a = team.machine("a")
    parts = a.home / "parts"
    parts.mkdir()
    (parts / "fine.txt").write_text("1")
    with open(os.fsencode(parts) + b"/bad\xff.txt", "w") as file:
        file.write("2")
    done = bytes_of(a, "data", "put", "web", "many", str(parts), "--json")
    assert done.returncode == 2, done
    error = json.loads(done.stderr.decode("utf-8").splitlines()[-1])
    assert "bad" in error["error"] and "not valid Unicode" in error["error"]
    words = [str(SWAMP), "data", "get", b"w\xffb", b"x\xfe", "--json"]
    asked = subprocess.run(words, env=a.environment(), cwd=a.repo, capture_output=True, timeout=60, check=False)
    assert asked.returncode in (1, 2) and json.loads(asked.stderr.decode("utf-8").splitlines()[-1])["error"]
    (a.tree / "logs").mkdir(exist_ok=True)
    with open(os.fsencode(a.tree / "logs") + b"/by-hand\xff.log", "w") as file:
        file.write("x")
    for words in (("sync", "--full"), ("sync", "--full", "--dry-run"), ("status",), ("doctor",)):
        done = bytes_of(a, "datastore", *words, "--json")
        json.loads(done.stdout.decode("utf-8") or done.stderr.decode("utf-8").splitlines()[-1])


def test_L08_a_name_that_is_not_utf8_in_the_tree_stops_nothing_else(team: Team):
    """It is named by each full sync; what is beside it, and every later command, goes on."""
    a, b = team.machine("a"), team.machine("b")
    a.put("web", "first", "1")
    (a.tree / "files").mkdir()
    with open(os.fsencode(a.tree / "files") + b"/by-hand\xff.txt", "w") as file:
        file.write("x")
    (a.tree / "files" / "beside.txt").write_text("y")
    for expected in (1, 0):
        done = bytes_of(a, "datastore", "sync", "--full", "--json")
        told = json.loads(done.stdout.decode("utf-8"))
        assert (done.returncode, told["filesPushed"], len(told["failed"])) == (1, expected, 1), done
    a.put("web", "second", "2")
    a.sync()
    b.put("web", "third", "3")
    a.sync()
    assert [name for _, name in a.names()] == ["first", "second", "third"]
    assert any(path == "files/beside.txt" for path in team.place.root()["entries"])


def test_C22_a_narrow_terminal_gets_json_that_is_valid(team: Team):
    a = team.machine("a")
    a.put("wäb", "söite", "x")
    env = {**a.environment(), "PYTHONIOENCODING": "latin-1"}
    words = [str(SWAMP), "data", "list", "--json"]
    done = subprocess.run(words, env=env, cwd=a.repo, capture_output=True, timeout=60, check=True)
    assert json.loads(done.stdout.decode("utf-8"))["items"][0]["modelName"] == "wäb"


# -- C24


FLOW = """id: wf-nightly
name: nightly
jobs:
  - name: j
    steps:
      - {name: s, task: {type: model_method, modelType: command/shell, modelName: says, methodName: execute,
          inputs: {run: "echo hello"}}}
      - {name: never, guard: "false", task: {type: assert, expression: "true"}}
"""


def test_C24_a_run_is_named_by_a_prefix_of_its_id_or_as_the_latest(team: Team):
    a = team.machine("a")
    (a.repo / "workflows" / "workflow-nightly.yaml").write_text(FLOW)
    first = a("run", "nightly").ok()["id"]
    second = a("workflow", "run", "nightly").ok()["id"]
    for wanted, found in ((first[:8], first), ("latest", second), (second[:13], second), (first, first)):
        assert a("workflow", "history", "get", wanted).ok()["id"] == found
        assert a("workflow", "history", "logs", wanted).ok()["id"] == found
        assert a("data", "list", "--run", wanted).ok()["total"] == (2 if found == second else 0)
        assert a("model", "output", "list", "--run", wanted).ok()["total"] == 1
    output = a("model", "output", "list").ok()["items"][0]["id"]
    assert a("model", "output", "get", output[:9]).ok()["id"] == output
    typo = first[:-3] + "zzz"
    error = a("workflow", "history", "get", typo).failed(1)
    assert f"did you mean `{first}`" in error["hint"]
    assert a("workflow", "resume", "latest").failed(2)["error"].startswith(f"run {second} has succeeded")
    b = team.machine("b")
    assert b("workflow", "history", "get", "latest").ok()["id"] == second


def test_C24_several_runs_that_begin_alike_are_told(team: Team):
    a = team.machine("a")
    (a.repo / "workflows" / "workflow-nightly.yaml").write_text(FLOW)
    runs = a.tree / "workflow-runs" / "wf-nightly"
    known = a("run", "nightly").ok()["id"]
    record = (runs / f"workflow-run-{known}.yaml").read_text()
    for twin in ("abcd-1", "abcd-2"):
        (runs / f"workflow-run-{twin}.yaml").write_text(record.replace(known, twin))
    error = a("workflow", "history", "get", "abcd").failed(2)
    assert "2 runs begin with abcd" in error["error"] and error["details"]["candidates"] == ["abcd-1", "abcd-2"]


def test_C24_what_was_probably_meant_is_said_for_data_models_and_workflows(team: Team):
    a = team.machine("a")
    (a.repo / "workflows" / "workflow-nightly.yaml").write_text(FLOW)
    a.put("website", "orders", "x")
    for words, meant in (
        (("data", "get", "website", "order"), "orders"),
        (("data", "get", "web-site", "orders"), "website"),
        (("data", "versions", "website", "oders"), "orders"),
        (("data", "list", "websiet"), "website"),
        (("data", "delete", "website", "ordres", "--yes"), "orders"),
        (("data", "show", "website", "ordres"), "orders"),
        (("workflow", "run", "nigthly"), "nightly"),
        (("workflow", "get", "nightlyy"), "nightly"),
        (("model", "get", "webste"), "website"),
    ):
        ran = a(*words)
        assert ran.code != 0 and f"did you mean `{meant}`" in ran.err, (words, ran.err)
    found = a.get("website", "orders")["modelId"]
    assert a("data", "get", found[:8], "orders").ok()["modelId"] == found


def completed(machine: Machine, *words: str) -> list[str]:
    typed = ["swamp", *words]
    env = {
        **machine.environment(),
        "_SWAMP_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(typed),
        "COMP_CWORD": str(len(typed) - 1),
    }
    done = subprocess.run(
        [str(SWAMP)], env=env, cwd=machine.repo, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_C24_the_shell_completes_names_without_the_store(team: Team, tmp_path):
    a = team.machine("a")
    (a.repo / "workflows" / "workflow-nightly.yaml").write_text(FLOW)
    a.put("website", "orders", "x")
    a.put("website", "offers", "x")
    run = a("run", "nightly").ok()["id"]
    (tmp_path / "bucket").rename(tmp_path / "away")
    assert completed(a, "data", "get", "web") == ["website"]
    assert completed(a, "data", "get", "website", "o") == ["offers", "orders"]
    assert completed(a, "data", "cat", "website", "or") == ["orders"]
    assert completed(a, "workflow", "run", "n") == ["nightly"]
    assert completed(a, "run", "n") == ["nightly"]
    assert completed(a, "workflow", "history", "get", run[:4]) == [run]
    assert completed(a, "workflow", "cancel", "la") == ["latest"]
    assert completed(a, "model", "method", "run", "sa") == ["says"]
    assert "status" in completed(a, "sta") and "cat" in completed(a, "data", "ca")
