"""`swamp model` and `swamp workflow` print what the contract says: one document, the right code, the next step."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import time

import pytest
from benches import shell

from machines import SWAMP, Machine

SYNC = (
    "mode filesPushed filesPulled filesDeleted bytesPushed bytesPulled conflicts failed fastPath engine requests "
    "seq durationMs"
)
ONE_STEP = "id: w\nname: {name}\njobs:\n  - name: j\n    steps:\n      - {{name: s, task: {task}}}\n"


def give(machine: Machine, name: str, command: str, **extra: str) -> None:
    text = ONE_STEP.format(name=name, task=shell(f"{name}-model", command))
    (machine.repo / "workflows" / f"workflow-{name}.yaml").write_text(text.replace("id: w", f"id: {name}"))


@pytest.fixture
def web(machine: Machine) -> Machine:
    machine("model", "create", "command/shell", "web", "--arg", "execute.run=echo hi").ok()
    return machine


def test_method_run(web: Machine):
    found = web("model", "method", "run", "web", "execute", "--tag", "team=a").ok()
    assert set(found) == {
        "modelName", "modelType", "methodName", "status", "outputId", "durationMs", "dataArtifacts", "sync",
    }  # fmt: skip
    assert (found["modelName"], found["modelType"], found["methodName"]) == ("web", "command/shell", "execute")
    assert found["status"] == "succeeded"
    assert found["dataArtifacts"] == [{"name": "result", "version": 1}, {"name": "log", "version": 1}]
    assert set(SYNC.split()) <= set(found["sync"])
    assert web("data", "search", "--tag", "team=a").ok()["total"] == 2


def test_a_failed_method_is_a_result_with_exit_1(web: Machine):
    ran = web("model", "method", "run", "web", "execute", "--input", "run=exit 9")
    assert ran.code == 1
    assert ran.json["status"] == "failed"
    assert "exit code 9" in ran.json["error"]
    assert ran.json["dataArtifacts"] == [{"name": "result", "version": 1}, {"name": "log", "version": 1}]


@pytest.mark.parametrize(
    ("args", "code", "kind", "hint"),
    [
        (("model", "method", "run", "wbe", "execute"), 1, "not-found", "`web`"),
        (("model", "method", "run", "web", "exceute"), 1, "not-found", "`execute`"),
        (("model", "method", "run", "web", "execute", "--input", "rum=x"), 2, "usage", "`run`"),
        (("model", "method", "run", "web", "execute", "--input", "nonsense"), 2, "usage", "key=value"),
        (("model", "create", "command/shel", "x"), 1, "not-found", "`command/shell`"),
        (("model", "create", "command/shell", "web"), 2, "usage", ""),
        (("model", "type", "describe", "comand/shell"), 1, "not-found", "`command/shell`"),
        (("model", "output", "get", "nobody"), 1, "not-found", ""),
        (("model", "delete", "web"), 2, "usage", "--yes"),
        (("workflow", "run", "nobody"), 1, "not-found", ""),
        (("workflow", "create", "search"), 2, "usage", ""),
        (("workflow", "resume", "nobody"), 1, "not-found", ""),
        (("workflow", "run", "search", "--status", "done"), 2, "usage", "succeeded"),
        (("workflow", "run", "search", "--since", "yesterday"), 2, "usage", ""),
    ],
)
def test_errors_name_the_next_step(web: Machine, args, code, kind, hint):
    error = web(*args).failed(code)
    assert error["code"] == kind
    assert hint in error.get("hint", "")


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (("data", "get", "nope/x", "y"), "model name"),
        (("data", "get", "web", "a/b"), "data name"),
        (("data", "put", "a/b", "c", "/dev/null"), "model name"),
        (("model", "create", "command/shell", "a/b"), "model name"),
        (("workflow", "create", "a/b"), "workflow name"),
    ],
)
def test_a_name_that_cannot_be_is_called_what_it_was_to_be(web: Machine, args, what):
    assert f"cannot be a {what}" in web(*args).failed(2)["error"]


def test_what_is_wrong_is_where_the_user_wrote_it(web: Machine, tmp_path):
    """Not in the file that was to be made of it, which does not exist."""
    error = web("model", "create", "command/shell", "new", "--global-arg", "foo=1").failed(2)
    assert "models/" not in error["error"] and "the new model `new`" in error["error"]
    assert "line" not in error["details"]["problems"][0] and "file" not in error["details"]
    assert "--global-arg" in error["hint"] and "swamp model type describe command/shell" in error["hint"]

    mine = tmp_path / "mine.yaml"
    mine.write_text(ONE_STEP.format(name="other", task=shell("m", "true")).replace("steps:", "stepz:"))
    error = web("workflow", "create", "new", "--file", str(mine)).failed(2)
    assert "workflow-new.yaml" not in error["error"] and error["details"]["file"] == str(mine)
    mine.write_text(mine.read_text().replace("stepz:", "steps:"))
    error = web("workflow", "create", "new", "--file", str(mine)).failed(2)
    assert error["error"] == f"{mine} holds the workflow `other`, not `new`"
    web("workflow", "create", "other", "--file", str(mine)).ok()

    mine.write_text("name: 1\n")
    for group, name in (("model", "web"), ("workflow", "other")):
        error = web(group, "edit", name, "--file", str(mine)).failed(2)
        assert error["details"]["file"] == str(mine)


def test_a_missing_input_file_is_not_about_text_that_starts_with_an_at(web: Machine):
    error = web("model", "method", "run", "web", "execute", "--input-file", "gone.yaml").failed(2)
    assert error["error"].startswith("--input-file gone.yaml cannot be read")
    assert "@" not in error["hint"]


@pytest.mark.parametrize(
    "args",
    [
        ("data", "put", "web", "report", "/dev/null", "--tag", "modelName=foo"),
        ("model", "method", "run", "web", "execute", "--tag", "modelName=foo"),
        ("model", "method", "run", "web", "execute", "--tag", "type=foo"),
    ],
)
def test_a_tag_that_would_be_overwritten_is_refused(web: Machine, args):
    error = web(*args).failed(2)
    assert "swamp's own" in error["error"] and error["hint"]
    assert web("data", "list").ok()["total"] == 0


def on_a_terminal(machine: Machine, *words: str, kind: str) -> tuple[subprocess.Popen[bytes], int]:
    """The command with a terminal of that kind, and the other end of it."""
    leader, follower = pty.openpty()
    env = {**machine.environment(), "TERM": kind}
    ends = {"stdin": follower, "stdout": follower, "stderr": follower}
    process = subprocess.Popen([str(SWAMP), *words], env=env, cwd=machine.repo, **ends)
    os.close(follower)
    return process, leader


@pytest.mark.parametrize("plain", [True, False])
def test_help_has_colours_on_a_terminal_unless_told(web: Machine, plain):
    words = ("data", "put", "--help", *(["--no-color"] if plain else []))
    process, leader = on_a_terminal(web, *words, kind="xterm-256color")
    shown = b""
    try:
        while chunk := os.read(leader, 65536):
            shown += chunk
    except OSError:
        pass  # Linux says so when the other end is closed
    assert process.wait(timeout=60) == 0
    assert b"lifetime" in shown
    assert (b"\x1b[" in shown) is not plain


def test_models_from_creation_to_deletion(web: Machine):
    found = web("model", "get", "web").ok()
    assert found["methods"] == {"execute": {"arguments": {"run": "echo hi"}}}
    assert web("model", "list").ok()["total"] == 1
    assert web("model", "validate").ok() == {"valid": True, "checked": 1, "problems": [], "fresh": True}
    new = json.dumps({**{k: v for k, v in found.items() if k != "file"}, "tags": {"a": "b"}})
    (web.home / "new.yaml").write_text(new)
    assert web("model", "edit", "web", "--file", str(web.home / "new.yaml")).ok()["tags"] == {"a": "b"}
    (web.repo / found["file"]).write_text(new.replace('"run"', '"rum"'))
    wrong = web("model", "validate", "web")
    assert wrong.code == 1
    assert wrong.json["problems"][0]["message"] == "`rum` is not an argument; did you mean `run`?"
    assert web("model", "delete", "web", "--yes").ok()["deleted"] == "web"
    assert web("model", "list").ok() == {"items": [], "total": 0, "fresh": True}


def test_a_definition_that_is_no_text_is_a_problem_of_its_file(web: Machine):
    web("workflow", "create", "good").ok()
    for group, file in (("model", "models/bad.yaml"), ("workflow", "workflows/workflow-bad.yaml")):
        (web.repo / file).write_bytes(b"\xff")
        checked = web(group, "validate")
        assert (checked.code, checked.json["valid"], checked.json["checked"]) == (1, False, 2)
        assert [(one["file"], one["message"]) for one in checked.json["problems"]] == [
            (file, f"{file} is not UTF-8 text")
        ]


def test_types(machine: Machine):
    found = machine("model", "type", "list").ok()
    assert [t["type"] for t in found["types"]] == [
        "command/shell",
        "manual/data",
        "python/script",
        "spark/python",
        "spark/sql",
    ]
    described = machine("model", "type", "describe", "command/shell").ok()
    arguments = described["methods"][0]["arguments"]
    assert list(arguments["properties"]) == ["run", "workingDir", "env", "timeout"]
    assert arguments["required"] == ["run"]


def test_a_broken_plugin_is_a_warning_and_everything_else_works(machine: Machine):
    folder = machine.repo / "extensions" / "models"
    folder.mkdir(parents=True)
    (folder / "bad.py").write_text("1 / 0\n")
    ran = machine("model", "type", "list")
    assert ran.ok()["broken"] == [{"name": "extensions/models/bad.py", "error": "ZeroDivisionError: division by zero"}]
    assert "extensions/models/bad.py" in ran.err


def test_workflow_run(machine: Machine):
    give(machine, "one", "echo hi")
    found = machine("workflow", "run", "one").ok()
    assert set(found) == {"id", "workflowName", "status", "jobs", "durationMs"}
    job = found["jobs"][0]
    assert (set(job), set(job["steps"][0])) == (
        {"name", "status", "steps"},
        {"name", "status", "durationMs", "dataArtifacts"},
    )
    searched = machine("workflow", "run", "search", "one", "--since", "1h", "--limit", "3").ok()
    assert set(searched) == {"items", "results", "total", "fresh"}
    assert searched["results"][0] == {
        "runId": found["id"],
        "workflowName": "one",
        "status": "succeeded",
        "startedAt": searched["results"][0]["startedAt"],
        "completedAt": searched["results"][0]["completedAt"],
        "stepProgress": "1/1",
        "trigger": {"kind": "cli"},
    }
    listed = machine("data", "list", "--run", found["id"]).ok()
    assert {(item["modelName"], item["name"]) for item in listed["items"]} == {
        ("one-model", "log"),
        ("one-model", "result"),
    }
    assert machine("workflow", "history", "logs", found["id"]).ok()["lines"] == ["j/s | hi"]


def test_a_failed_workflow_is_a_result_with_exit_1(machine: Machine):
    give(machine, "bad", "echo why >&2; exit 4")
    ran = machine("workflow", "run", "bad")
    assert ran.code == 1
    step = ran.json["jobs"][0]["steps"][0]
    assert (step["status"], step["error"]) == ("failed", "the command failed: exit code 4: why")
    assert machine("workflow", "run", "search").ok()["results"][0]["failedStep"] == "j.s"


def test_workflows_from_creation_to_deletion(machine: Machine):
    made = machine("workflow", "create", "hello").ok()
    assert machine("workflow", "validate").ok() == {"valid": True, "checked": 1, "problems": [], "fresh": True}
    assert machine("workflow", "list").ok()["items"][0]["name"] == "hello"
    assert machine("workflow", "get", "hello").ok()["id"] == made["id"]
    machine("workflow", "run", "hello").ok()
    text = (machine.repo / made["file"]).read_text()
    (machine.repo / made["file"]).write_text(text.replace("steps:", "stepz:"))
    wrong = machine("workflow", "validate", "hello")
    assert wrong.code == 1
    assert {"path": "jobs[0].stepz", "line": 7, "suggestion": "steps"}.items() <= wrong.json["problems"][0].items()
    refused = machine("workflow", "run", "hello").failed(2)
    assert refused["details"]["problems"][0]["line"] == 7
    (machine.repo / made["file"]).write_text(text)
    evaluated = machine.repo / ".swamp" / "workflows-evaluated"
    assert len(list(evaluated.rglob("*.yaml"))) == 1
    assert machine("workflow", "delete", "hello", "--yes").ok()["runsDeleted"] == 1
    assert not list(evaluated.rglob("*.yaml")), "what a run saw of its workflow goes with the run"
    assert machine("workflow", "run", "search").ok()["total"] == 0


def test_plain_lines_in_a_pipe(machine: Machine):
    give(machine, "one", "echo hi")
    ran = machine("workflow", "run", "one", json=False)
    lines = ran.out.splitlines()
    assert lines[:2] == ["j/s: running", "j/s | hi"]
    assert lines[2].startswith("j/s: succeeded (")
    assert lines[3].startswith("✓ one: succeeded")
    assert "\x1b" not in ran.out
    quiet = machine("workflow", "run", "one", "-q", json=False)
    assert quiet.out.splitlines()[0].startswith("✓ one: succeeded")


def test_a_live_tree_on_a_terminal(machine: Machine, tmp_path):
    """In a real terminal: the tree is redrawn in place, with signs, times and the last line of a running step."""
    seen = tmp_path / "seen"  # the step succeeds when its line was shown while it ran
    give(machine, "one", f"echo working; for i in $(seq 600); do [ -e {seen} ] && exit 0; sleep 0.1; done; exit 1")
    leader, follower = pty.openpty()
    environment = {**machine.environment(), "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    process = subprocess.Popen(
        [str(SWAMP), "workflow", "run", "one"],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env=environment,
        cwd=machine.repo,
    )
    os.close(follower)
    shown = b""
    while True:
        try:
            chunk = os.read(leader, 65536)
        except OSError:
            break
        if not chunk:
            break
        shown += chunk
        if b"working" in shown:
            seen.touch()
    assert process.wait(timeout=60) == 0
    text = shown.decode()
    assert "\x1b[" in text
    assert "● " in text and "✓ " in text
    assert "working" in text
    assert "✓ one: succeeded" in text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_its_children_and_the_run(machine: Machine, tmp_path, number):
    pid_file = tmp_path / "pid"
    give(machine, "slow", f"echo $$ > {pid_file}; sleep 120")
    process = machine.start("workflow", "run", "slow")
    deadline = time.monotonic() + 60
    while not pid_file.exists() or not pid_file.read_text().strip():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, (out, err)
    assert out == ""
    with pytest.raises(ProcessLookupError):
        for _ in range(100):
            os.kill(int(pid_file.read_text()), 0)
            time.sleep(0.05)
    found = machine("workflow", "run", "search").ok()["results"][0]
    assert found["status"] == "cancelled"
    assert found["completedAt"]
    told = json.loads(err.strip().splitlines()[-1])
    assert told["code"] == "interrupted" and f"swamp workflow resume {found['runId']}" in told["hint"]
    assert machine("workflow", "resume", found["runId"], "--from", "nope").code == 2


@pytest.mark.parametrize("kind", ["plain", "synced"])
def test_an_interrupted_method_run_has_a_result_and_no_error(request, tmp_path, kind):
    """One document, on every kind of datastore: the run is over, cancelled, and its record is kept."""
    machine: Machine = (
        request.getfixturevalue("machine") if kind == "plain" else request.getfixturevalue("file_team").machine("a")
    )
    began = tmp_path / "began"
    machine("model", "create", "command/shell", "slow", "--arg", f"execute.run=touch {began}; sleep 120").ok()
    process = machine.start("model", "method", "run", "slow", "execute")
    deadline = time.monotonic() + 60
    while not began.exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, (out, err)
    found = json.loads(out)
    assert (found["status"], found["modelName"]) == ("cancelled", "slow")
    assert '"code"' not in err, "the error document is for a command that has no result"
    assert ("`swamp datastore sync` delivers it" in err) is (kind == "synced")
    assert machine("model", "output", "get", found["outputId"]).ok()["status"] == "cancelled"
    assert machine("datastore", "lock", "status").ok() == {"held": False, "models": []}
    assert (machine.sync()["filesPushed"] > 0) is (kind == "synced")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_a_question_is_130_and_changes_nothing(web: Machine, number):
    process, leader = on_a_terminal(web, "model", "delete", "web", kind="dumb")
    shown = b""
    while b"[y/N]" not in shown:
        shown += os.read(leader, 65536)
    process.send_signal(number)
    try:
        assert process.wait(timeout=60) == 130
    finally:
        process.kill()
    assert b"not confirmed" not in os.read(leader, 65536)
    assert web("model", "get", "web").ok()["name"] == "web"


def test_editing_in_the_users_editor_checks_before_it_counts(web: Machine):
    """A real terminal and a real editor process: what it saves is taken, unless it is wrong."""

    def edit(editor: str) -> int:
        leader, follower = pty.openpty()
        environment = {**web.environment(), "EDITOR": editor, "TERM": "dumb"}
        process = subprocess.Popen(
            [str(SWAMP), "model", "edit", "web"],
            stdin=follower,
            stdout=follower,
            stderr=follower,
            env=environment,
            cwd=web.repo,
        )
        os.close(follower)
        try:
            while os.read(leader, 65536):
                pass
        except OSError:
            pass
        return process.wait(timeout=60)

    assert edit("sed -i s/hi/ho/") == 0
    assert web("model", "get", "web").ok()["methods"]["execute"]["arguments"]["run"] == "echo ho"
    assert edit("sed -i s/run:/rum:/") == 2
    assert edit("false") == 1
    assert web("model", "get", "web").ok()["methods"]["execute"]["arguments"]["run"] == "echo ho"


def test_two_runs_of_one_machine_at_the_same_time(machine: Machine):
    for name in ("one", "two"):
        give(machine, name, "echo hi; sleep 0.3")
    give(machine, "one", "echo hi; sleep 0.3")
    running = [machine.start("workflow", "run", name) for name in ("one", "two", "one", "two")]
    for process in running:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert json.loads(out)["status"] == "succeeded"
    assert machine("workflow", "run", "search").ok()["total"] == 4
    assert machine.versions("one-model", "result") == [2, 1]


def test_expired_versions_go_after_a_run_where_that_is_wanted(web: Machine):
    for _ in range(12):
        web("model", "method", "run", "web", "execute", "-q").ok()
    assert len(web.versions("web", "result")) == 12
    config = web.repo / ".swamp.yaml"
    config.write_text(config.read_text() + "autoGc: true\n")
    web("model", "method", "run", "web", "execute").ok()
    assert web.versions("web", "result") == list(range(13, 3, -1))


def test_help_and_lists_do_not_import_spark(web: Machine):
    code = (
        "import sys; from swamp.cli.main import main; main(sys.argv[1:]);"
        "print([m for m in ('pyspark', 'pyarrow', 'pandas') if m in sys.modules], file=sys.stderr)"
    )
    for args in (
        ["workflow", "list", "--json"],
        ["model", "list", "--json"],
        ["model", "method", "run", "web", "execute"],
    ):
        done = subprocess.run(
            [os.fspath(SWAMP.with_name("python")), "-c", code, *args],
            env=web.environment(),
            cwd=web.repo,
            capture_output=True,
            text=True,
        )
        assert done.stderr.strip().splitlines()[-1] == "[]", args


@pytest.mark.parametrize("text", ["id: [", "foo: 1\n", "- 1\n"])
def test_one_wrong_file_stops_nothing_but_itself(web: Machine, text):
    """A model or workflow file that cannot be read: told by lists, refused by name, in nobody else's way."""
    web("workflow", "create", "good").ok()
    (web.repo / "models" / "command" / "shell" / "bad.yaml").write_text(text)
    (web.repo / "workflows" / "workflow-bad.yaml").write_text(text)
    web("model", "method", "run", "web", "execute", "--input", "run=true").ok()
    assert web("model", "get", web("model", "get", "web").ok()["id"]).ok()["name"] == "web"
    assert web("workflow", "run", "good").ok()["status"] == "succeeded"
    run = web("workflow", "run", "search").ok()["results"][0]
    assert web("workflow", "resume", run["runId"], "--from", "hello").ok()["status"] == "succeeded"
    for group, file in (("model", "models/command/shell/bad.yaml"), ("workflow", "workflows/workflow-bad.yaml")):
        listed = web(group, "list")
        assert [one["file"] for one in listed.ok()["broken"]] == [file] and file in listed.err
        assert web(group, "get", "bad").failed(2)["error"]
        assert web(group, "get", "nope").failed(1)["code"] == "not-found"
        assert web(group, "validate").code == 1
