"""The failure list, where it is about runs: their last word is pushed, their records are in the datastore."""

from __future__ import annotations

import json
import subprocess
import sys

from machines import Team, read_tree

STEP = "{type: model_method, modelType: command/shell, modelName: m, methodName: execute, inputs: {run: echo hi}}"
WORKFLOW = f"id: w\nname: w\njobs: [{{name: j, steps: [{{name: s, task: {STEP}}}]}}]\n"


def test_C08_the_final_state_is_in_the_bucket_before_the_command_says_so(team: Team):
    one = team.machine("one")
    (one.repo / "workflows" / "workflow-w.yaml").write_text(WORKFLOW)
    (one.repo / "workflows" / "workflow-f.yaml").write_text(
        WORKFLOW.replace("id: w\nname: w", "id: f\nname: f").replace("echo hi", "exit 1")
    )
    one("workflow", "run", "w").ok()
    failed = one("workflow", "run", "f")
    assert (failed.code, failed.json["status"]) == (1, "failed")
    assert one.status()["pending"] == {"writes": 0, "deletes": 0, "found": 0, "outbox": 0}
    reader = team.machine("reader")
    found = {r["workflowName"]: r["status"] for r in reader("workflow", "run", "search").ok()["results"]}
    assert found == {"w": "succeeded", "f": "failed"}


def test_C11_everything_a_step_writes_is_in_the_datastore(team: Team):
    one = team.machine("one")
    (one.repo / "workflows" / "workflow-w.yaml").write_text(WORKFLOW)
    run = one("workflow", "run", "w").ok()
    tree = {path for path in read_tree(one.tree) if not path.endswith("/latest")}
    for folder in ("data/", "outputs/", "workflow-runs/", "definitions-evaluated/", "workflows-evaluated/", "logs/"):
        assert any(path.startswith(folder) for path in tree), folder
    local = [p.relative_to(one.repo) for p in (one.repo / ".swamp").rglob("*") if p.is_file()]
    assert not [path for path in local if run["id"] in str(path) or path.suffix in (".yaml", ".log")]
    reader = team.machine("reader")
    assert {path for path in read_tree(reader.tree) if not path.endswith("/latest")} >= tree


def test_C12_searching_a_long_history_needs_no_memory_for_it(team: Team):
    """Twenty thousand runs of 6 KB each: the search's peak stays near that of a search over none."""
    one = team.machine("one", joined=False)
    folder = one.repo / ".swamp" / "workflow-runs" / "w"
    folder.mkdir(parents=True)
    empty = peak_of_search(one)
    filler = [{"stepName": f"s{i}", "status": "succeeded", "error": "x" * 150, "dataArtifacts": []} for i in range(30)]
    tail = json.dumps([{"jobName": "j", "status": "succeeded", "steps": filler}])
    for i in range(20_000):
        (folder / f"workflow-run-r{i:05}.yaml").write_text(
            f"id: r{i:05}\nworkflowId: w\nworkflowName: bulk\nstatus: succeeded\n"
            f"startedAt: '2026-01-01T00:00:00.{i % 1000:03}Z'\nsummary: {{done: 30, total: 30}}\njobs: {tail}\n"
        )
    found, peak = peak_of_search(one)
    assert found["total"] == 20_000
    assert len(found["results"]) == 10
    print(f"peak {peak / 1024:.0f} MiB with 20,000 runs, {empty[1] / 1024:.0f} MiB with none")
    assert peak < empty[1] + 64 * 1024


def peak_of_search(machine) -> tuple[dict, int]:
    """The search in a process of its own, and its peak resident memory in KiB."""
    code = (
        "import sys; from swamp.cli.main import main;"
        "code = main(['workflow', 'run', 'search', '--limit', '10', '--json']);"
        "print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0], file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=machine.environment(), cwd=machine.repo, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), int(done.stderr.split()[-1])
