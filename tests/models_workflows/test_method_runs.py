"""A method run leaves its data, an output record and an evaluated definition, whatever happens to it."""

from __future__ import annotations

import json
import threading
import time

import pytest
from benches import open_bench

from swamp.errors import Failed, Interrupted, NotFound, UsageError
from swamp.sync.progress import Cancel

SHELL = "command/shell"


def shell_model(bench, name: str = "web", **arguments):
    bench.model(SHELL, name, methods={"execute": {"arguments": arguments}})


def test_a_shell_command_leaves_a_result_a_log_and_a_record(bench):
    shell_model(bench, run="echo out; echo err >&2")
    result = bench.method("web")
    written = bench.content("web", "result")
    assert (written["exitCode"], written["stdout"], written["stderr"]) == (0, "out\n", "err\n")
    assert sorted(bench.lines) == ["[stderr] err", "out"]
    record = bench.context.outputs.get(result.output.id)
    assert record.status == "succeeded"
    assert [(a["name"], a["version"], a["modelName"]) for a in record.artifacts] == [
        ("result", 1, "web"),
        ("log", 1, "web"),
    ]
    assert all((bench.context.repo.tree.root / a["path"] / "metadata.yaml").exists() for a in record.artifacts)
    assert record.provenance.triggered_by == "cli"
    assert len(record.provenance.definition_hash) == 64


def test_versions_grow_and_tags_say_where_data_comes_from(bench):
    shell_model(bench, run="echo hi")
    bench.method("web")
    bench.method("web")
    assert bench.versions("web", "result") == [1, 2]
    tags = bench.context.lookup.find("web", "result").meta.tags
    assert (tags["type"], tags["specName"], tags["modelName"]) == ("resource", "result", "web")


@pytest.mark.inv("model.failure-keeps")
def test_a_failure_keeps_what_was_written_and_says_so(bench):
    shell_model(bench, run="echo half; echo why >&2; exit 7")
    result = bench.method("web")
    assert isinstance(result.error, Failed)
    record = bench.context.outputs.get(result.output.id)
    assert record.status == "failed"
    assert "exit code 7" in record.error and "why" in record.error and "2 data versions were kept" in record.error
    assert bench.content("web", "result")["exitCode"] == 7


def test_a_timeout_is_a_failure_with_its_own_words(bench):
    shell_model(bench, run="echo begun; sleep 60", timeout="500ms")
    result = bench.method("web")
    assert "longer than 0.5 s" in result.output.error
    assert bench.content("web", "result")["ending"] == "timeout"


def test_cancelling_leaves_a_record_that_says_cancelled(bench, tmp_path):
    begun = tmp_path / "begun"
    shell_model(bench, run=f"touch {begun}; sleep 60")
    cancel = Cancel()

    def when_it_runs() -> None:
        while not begun.exists():
            time.sleep(0.02)
        cancel.request()

    threading.Thread(target=when_it_runs, daemon=True).start()
    began = time.monotonic()
    result = bench.method("web", cancel=cancel)
    assert isinstance(result.error, Interrupted)
    assert time.monotonic() - began < 30
    assert bench.context.outputs.get(result.output.id).status == "cancelled"


def test_wrong_arguments_write_nothing(bench):
    shell_model(bench, run="echo hi")
    before = bench.files()
    for inputs in ({"rum": "x"}, {"timeout": "soon"}):
        with pytest.raises(UsageError):
            bench.method("web", **inputs)
    with pytest.raises(NotFound):
        bench.method("web", "exceute")
    assert bench.files() == before


def test_inputs_are_arguments_or_values_for_expressions(bench):
    bench.model(
        SHELL,
        "greet",
        inputs={"type": "object", "properties": {"who": {"type": "string"}}, "required": ["who"]},
        methods={"execute": {"arguments": {"run": "echo hello ${{ inputs.who }} from ${{ self.name }}"}}},
    )
    bench.method("greet", who="ann")
    assert bench.content("greet", "result")["stdout"] == "hello ann from greet\n"
    with pytest.raises(UsageError, match="`who` is missing"):
        bench.method("greet")
    bench.method("greet", who="x", run="echo instead")
    assert bench.content("greet", "result")["stdout"] == "instead\n"


def test_expressions_see_other_data_models_and_global_arguments(bench):
    shell_model(bench, "first", run="echo 41")
    bench.method("first")
    bench.model(
        SHELL,
        "second",
        methods={
            "execute": {
                "arguments": {
                    "run": "echo ${{ data.latest('first', 'result').attributes.stdout }}"
                    "${{ data.version('first', 'result', 1).version }} ${{ model.first.type }}"
                    " ${{ size(data.query('modelName == \"first\"')) }}"
                }
            }
        },
    )
    bench.method("second")
    said = bench.content("second", "result")["stdout"].split()
    assert said == ["41"] or said[0] == "41"
    assert bench.content("second", "result")["command"].split() == ["echo", "41", "1", SHELL, "2"]


def test_data_that_is_not_there_is_an_error_before_anything_runs(bench):
    shell_model(bench, run="echo ${{ data.latest('nobody', 'x').version }}")
    with pytest.raises(NotFound, match="nobody"):
        bench.method("web")


@pytest.mark.inv("secrets.never-written")
def test_a_secret_from_the_environment_is_in_no_file(tmp_path, monkeypatch):
    """It reaches the command, which prints it, fails with it and is asked for it: no record, log or data holds it."""
    monkeypatch.setenv("SWAMP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MY_LOGIN", "hunter2-is-my-word")
    monkeypatch.setenv("GITHUB_TOKEN", "ghp_0123456789abcdef")
    with open_bench(tmp_path / "repo") as bench:
        bench.model(
            SHELL,
            "login",
            methods={
                "execute": {
                    "arguments": {
                        "run": "echo with ${{ env.MY_LOGIN }} $GITHUB_TOKEN;"
                        ' test "$L" = hunter2-is-my-word && echo same; echo bad $L >&2; exit 1',
                        "env": {"L": "${{ env.MY_LOGIN }}"},
                    }
                }
            },
        )
        result = bench.method("login")
    assert "with *** ***" in bench.lines
    assert "same" in bench.lines
    assert "hunter2" not in str(result.error) + str(result.output)
    leaked = [
        path
        for path in (tmp_path / "repo").rglob("*")
        if path.is_file() and b"hunter2-is-my-word" in path.read_bytes() and path.name != "login.yaml"
    ]
    assert leaked == []
    tokens = [p for p in (tmp_path / "repo").rglob("*") if p.is_file() and b"ghp_0123" in p.read_bytes()]
    assert tokens == []
    evaluated = next((tmp_path / "repo" / ".swamp" / "definitions-evaluated").rglob("login.yaml")).read_text()
    assert "${{ env.MY_LOGIN }}" in evaluated


def test_a_script_leaves_its_files_as_data(bench):
    code = """
import json, os, pathlib, sys
out = pathlib.Path(os.environ["SWAMP_OUTPUT_DIR"])
given = json.load(open(os.environ["SWAMP_ARGUMENTS"]))
(out / "summary.json").write_text(json.dumps({"n": given["n"], "args": sys.argv[1:]}))
(out / "rows.csv").write_text("a,b\\n1,2\\n")
(out / "parts").mkdir()
(out / "parts" / "p1.txt").write_text("one")
(out / "parts" / "p2.txt").write_text("two")
"""
    bench.model(
        "python/script", "py", methods={"run": {"arguments": {"script": code, "args": ["x"], "arguments": {"n": 3}}}}
    )
    result = bench.method("py", "run")
    assert result.error is None, result.error
    assert bench.content("py", "summary") == {"n": 3, "args": ["x"]}
    assert bench.context.lookup.find("py", "rows.csv").meta.content_type == "text/csv"
    assert sorted(p.name for p in bench.raw("py", "parts").iterdir()) == ["p1.txt", "p2.txt"]


def test_a_script_that_fails_keeps_the_files_it_had_written(bench):
    code = "import os; open(os.environ['SWAMP_OUTPUT_DIR'] + '/a.json', 'w').write('1'); raise SystemExit(2)"
    bench.model("python/script", "py", methods={"run": {"arguments": {"script": code}}})
    assert bench.method("py", "run").output.status == "failed"
    assert bench.content("py", "a") == 1


def test_a_plugins_own_exception_is_the_runs_failure_with_a_traceback_in_the_log(bench):
    folder = bench.path / "extensions" / "models"
    folder.mkdir(parents=True)
    (folder / "boom.py").write_text(
        "from swamp.models import Method, ModelType, Arguments\n"
        "class A(Arguments): pass\n"
        "def boom(args, context):\n"
        "    context.write_resource('before', {'ok': True})\n"
        "    with context.open_file('stream', content_type='text/plain') as out:\n"
        "        out.write(b'bit by bit')\n"
        "    raise KeyError('what')\n"
        "t = ModelType('@x/boom', '1', (Method('go', A, boom),))\n"
    )
    bench.model("@x/boom", "b")
    result = bench.method("b", "go")
    assert "KeyError: 'what'" in result.output.error
    assert any("Traceback" in line for line in bench.lines)
    assert bench.content("b", "before") == {"ok": True}
    assert bench.raw("b", "stream").read_text() == "bit by bit"


def test_a_killed_run_is_told_by_the_next_one(bench):
    """A run that left its marker and never its end: the next run of the model holds the lease, so it is dead."""
    shell_model(bench, run="echo hi")
    done = bench.method("web")
    path = bench.context.outputs.save(
        type(done.output)(
            **{f: getattr(done.output, f) for f in done.output.__slots__} | {"status": "running", "error": None}
        )
    )
    marker = bench.path / ".swamp" / "run-logs" / f"{done.output.id}.path"
    marker.write_text(path)
    marker.with_suffix(".log").write_text("half a line\n")
    bench.method("web")
    told = bench.context.outputs.get(done.output.id)
    assert told.status == "failed"
    assert "interrupted" in (told.error or "")
    assert not marker.exists()


def test_the_log_is_kept_in_the_tree(bench):
    shell_model(bench, run="echo one; echo two")
    result = bench.method("web")
    log = bench.context.repo.tree.root / (result.output.log_file or "")
    assert log.read_text() == "one\ntwo\n"
    assert not list((bench.path / ".swamp" / "run-logs").iterdir())
    assert not list((bench.path / ".swamp" / "scratch").iterdir())


def test_the_evaluated_definition_is_what_ran(bench):
    shell_model(bench, run="echo ${{ 1 + 2 }}")
    bench.method("web")
    saved = next(bench.context.evaluated.search("web")).document
    assert saved["methods"]["execute"]["arguments"]["run"] == "echo 3"
    json.dumps(saved)
