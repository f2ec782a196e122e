# ruff: noqa: E501  the example is the design's, as it stands there
"""A workflow file is understood as a whole, or refused with a line and a suggestion for everything in it."""

from __future__ import annotations

import pytest

from swamp.errors import NotFound, UsageError
from swamp.workflows.schema import WorkflowFile, holds, inspect, parse_workflow
from swamp.workflows.state import after

EXAMPLE = """\
id: 7c9e6679-7425-40de-944b-e07fc1f90ae7
name: deploy
inputs: {type: object, properties: {hosts: {type: array}}, required: [hosts]}
jobs:
  - name: scan
    steps:
      - name: scan-${{ self.host }}                       # one record per expanded step
        forEach: {item: host, in: "${{ inputs.hosts }}"}  # self.<item> is usable in name, task, inputs, modelName
        task: {type: model_method, modelType: command/shell, modelName: "scan-${{ self.host }}", methodName: execute, inputs: {run: "scan ${{ self.host }}"}}
  - name: release
    dependsOn: [{job: scan, condition: {type: succeeded}}]
    steps:
      - name: gate
        task: {type: manual_approval, prompt: "Ship it?"}
      - name: ship
        dependsOn: [{step: gate, condition: {type: succeeded}}]
        task: {type: model_method, modelIdOrName: shipper, methodName: execute, inputs: {run: "ship"}}
"""

TASK = "{type: assert, expression: 'true'}"


def problems(text: str) -> list[str]:
    return [str(problem) for problem in inspect(text, "w.yaml")[2]]


def test_the_example_of_the_design_is_valid_and_survives_a_round_trip():
    workflow = parse_workflow(EXAMPLE, "w.yaml")
    assert [job.name for job in workflow.jobs] == ["scan", "release"]
    assert WorkflowFile.model_validate(workflow.to_document()) == workflow


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("forEach:", "foreach:", "line 8: unknown key `foreach` in `jobs[0].steps[0]`; did you mean `forEach`?"),
        ("name: deploy", "nam: deploy", "line 2: unknown key `nam` in the workflow; did you mean `name`?"),
        ("type: manual_approval", "type: manual-approval", "line 14: `manual-approval` is not a kind of task"),
        ("type: succeeded}}]\n    steps", "type: suceeded}}]\n    steps", "did you mean `succeeded`?"),
        ("{job: scan,", "{job: scann,", "line 11: there is no job `scann`; did you mean `scan`?"),
        ("{step: gate,", "{step: gat,", "line 16: there is no step `gat`; did you mean `gate`?"),
        ("name: release", "name: scan", "line 10: two jobs are called `scan`"),
        ("modelIdOrName: shipper, ", "", "give either `modelIdOrName`, or `modelType` and `modelName`"),
        ('modelName: "scan-${{ self.host }}", ', "", "`modelType` and `modelName` belong together"),
        ('methodName: execute, inputs: {run: "ship"}', "inputs: {}", "`methodName` is missing"),
        ("{job: scan, condition", "{job: release, condition", "job `release` depends on itself"),
        ("${{ inputs.hosts }}", "${{ inputs.hosts + }}", "does not parse"),
        ("${{ inputs.hosts }}", "${{ input.hosts }}", "there is no `input`"),
        ("type: object", "type: objekt", "`inputs` is not a JSON Schema"),
        ("name: deploy", "name: search", "no workflow may be called `search`"),
        ("item: host,", "item: a-b,", "forEach.item"),
        ("prompt:", "promt:", "did you mean `prompt`?"),
    ],
)
def test_every_mistake_is_told_with_its_line(old, new, said):
    assert old in EXAMPLE
    found = problems(EXAMPLE.replace(old, new, 1))
    assert any(said in problem for problem in found), found
    assert all(problem.startswith("line ") for problem in found)


def test_all_problems_come_at_once():
    text = EXAMPLE.replace("prompt:", "promt:").replace("forEach:", "foreach:")
    assert len(problems(text)) == 2


def test_a_circle_is_shown():
    steps = "\n".join(
        f"      - {{name: {name}, dependsOn: [{{step: {other}}}], task: {TASK}}}"
        for name, other in (("a", "b"), ("b", "c"), ("c", "a"))
    )
    found = problems(f"id: x\nname: w\njobs:\n  - name: j\n    steps:\n{steps}\n")
    assert len(found) == 1
    assert "these wait for each other" in found[0]


def test_what_is_required_is_required():
    found = problems("version: 2\n")
    assert len([p for p in found if "is missing" in p]) == 3
    assert problems("- a list\n") == ["line 1: a workflow is a mapping with id, name and jobs"]


def test_concurrency_of_a_step_needs_a_for_each():
    found = problems(
        f"id: x\nname: w\njobs:\n  - name: j\n    steps:\n      - {{name: s, concurrency: 2, task: {TASK}}}\n"
    )
    assert found == ["line 6: `concurrency` of a step limits its `forEach`: add one"]


@pytest.mark.parametrize(
    ("condition", "true_of"),
    [
        ({"type": "always"}, "succeeded failed skipped cancelled"),
        ({"type": "succeeded"}, "succeeded"),
        ({"type": "failed"}, "failed"),
        ({"type": "completed"}, "succeeded failed"),
        ({"type": "skipped"}, "skipped"),
        ({"type": "not", "condition": {"type": "succeeded"}}, "failed skipped cancelled"),
        ({"type": "or", "conditions": [{"type": "failed"}, {"type": "skipped"}]}, "failed skipped"),
        (
            {"type": "and", "conditions": [{"type": "completed"}, {"type": "not", "condition": {"type": "failed"}}]},
            "succeeded",
        ),
    ],
)
def test_conditions(condition, true_of):
    document = {
        "id": "x",
        "name": "w",
        "jobs": [
            {"name": "a", "steps": [{"name": "s", "task": {"type": "assert", "expression": True}}]},
            {
                "name": "b",
                "dependsOn": [{"job": "a", "condition": condition}],
                "steps": [{"name": "s", "task": {"type": "assert", "expression": True}}],
            },
        ],
    }
    parsed = WorkflowFile.model_validate(document).job("b").depends_on[0].condition
    found = [status for status in ("succeeded", "failed", "skipped", "cancelled") if holds(parsed, status)]
    assert found == true_of.split()


def test_what_follows_a_step_is_done_again_with_it():
    workflow = parse_workflow(EXAMPLE, "w")
    assert after(workflow, {("release", "ship")}) == {("release", "ship")}
    assert after(workflow, {("release", "gate")}) == {("release", "gate"), ("release", "ship")}
    assert len(after(workflow, {("scan", "scan-${{ self.host }}")})) == 3


def test_files_are_found_by_name_and_id_and_checked_against_the_models(bench):
    files = bench.driver.files
    made = files.create("hello")
    assert made.file == "workflows/workflow-hello.yaml"
    assert files.find(made.workflow.id).workflow.name == "hello"
    with pytest.raises(NotFound) as caught:
        files.find("helo")
    assert "`hello`" in (caught.value.hint or "")
    with pytest.raises(UsageError, match="search"):
        files.create("search")
    with pytest.raises(UsageError, match="already"):
        files.create("hello")
    assert files.validate("hello") == (made.file, [])


def test_models_methods_inputs_and_nested_workflows_are_checked(bench):
    bench.model("command/shell", "shipper")
    bench.workflow("inner", f"  - {{name: j, steps: [{{name: s, task: {TASK}}}]}}")
    bench.workflow(
        "outer",
        """id: o
name: outer
jobs:
  - name: j
    steps:
      - {name: a, task: {type: model_method, modelIdOrName: shiper, methodName: execute}}
      - {name: b, task: {type: model_method, modelIdOrName: shipper, methodName: exceute}}
      - {name: c, task: {type: model_method, modelType: comand/shell, modelName: x, methodName: execute}}
      - {name: d, task: {type: model_method, modelType: command/shell, modelName: x, methodName: execute, inputs: {rum: x}}}
      - {name: e, task: {type: workflow, workflowIdOrName: iner}}
      - {name: f, task: {type: workflow, workflowIdOrName: outer}}
      - {name: g, task: {type: workflow, workflowIdOrName: inner}}
""",
    )
    _, found = bench.driver.files.validate("outer")
    assert [str(problem) for problem in found] == [
        "line 6: there is no model `shiper`; did you mean `shipper`?",
        "line 7: command/shell has no method `exceute`; did you mean `execute`?",
        "line 8: there is no model type `comand/shell`; did you mean `command/shell`?",
        "line 9: `rum` is neither an argument of execute nor an input of the model; did you mean `run`?",
        "line 10: there is no workflow `iner`; did you mean `inner`?",
        "line 11: a workflow cannot run itself",
    ]


def test_saving_a_wrong_workflow_changes_nothing(bench):
    made = bench.driver.files.create("hello")
    before = (bench.path / made.file).read_text()
    with pytest.raises(UsageError):
        bench.driver.files.save_text(before.replace("steps:", "stpes:"), made.file)
    assert (bench.path / made.file).read_text() == before
