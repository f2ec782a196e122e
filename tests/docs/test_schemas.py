"""`swamp schema`: what editors are told is what swamp accepts."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml
from reading import REPO

from swamp.cli.main import main
from swamp.cli.schema import SCHEMAS
from swamp.errors import UsageError
from swamp.repo.config import parse_config
from swamp.workflows.schema import parse_workflow

ID = "6f1f4f0e-5f0d-4d52-8a3e-0f0d2f1c9a02"
PAGES = [*sorted((REPO / "docs").rglob("*.md")), REPO / "README.md"]


def examples():
    """(kind, document, where) of every YAML file in demo/ and every YAML example in the documents."""
    for file in sorted((REPO / "demo").rglob("*.yaml")):
        yield from _kind_of(yaml.safe_load(file.read_text()), f"{file.relative_to(REPO)}")
    for page in PAGES:
        text = page.read_text()
        written = re.findall(r"^cat > \S+\.yaml <<'?YAML'?\n(.*?)^YAML$", text, re.MULTILINE | re.DOTALL)
        shown = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        for number, body in enumerate([*written, *shown]):
            yield from _kind_of(yaml.safe_load(body), f"{page.relative_to(REPO)}#{number}")


def _kind_of(document, where):
    if isinstance(document, list):  # a piece of a workflow: its steps
        document = {"id": ID, "name": "w", "jobs": [{"name": "j", "steps": document}]}
    if isinstance(document.get("jobs"), list):  # GitHub's are a mapping
        yield "workflow", document, where
    elif "type" in document and "name" in document:
        yield "model", document, where
    elif {"datastore", "serve", "spark", "sql"} & document.keys():
        yield "repo", {"repoId": ID, **document}, where


FOUND = list(examples())


def check(kind, document):
    schema = SCHEMAS[kind]()
    jsonschema.Draft202012Validator.check_schema(schema)
    plain = json.loads(json.dumps(document, default=str))
    return [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(plain)]


def test_there_are_examples_of_workflows_and_repositories():
    assert {kind for kind, _, _ in FOUND} >= {"workflow", "repo"} and len(FOUND) >= 5


@pytest.mark.parametrize(("kind", "document", "where"), FOUND, ids=[where for _, _, where in FOUND])
def test_every_example_of_the_documents_is_accepted(kind, document, where):
    assert check(kind, document) == []


STEP = {"name": "s", "task": {"type": "assert", "expression": True}}


def flow(**more):
    return {"id": ID, "name": "w", "jobs": [{"name": "j", "steps": [STEP]}], **more}


BAD_WORKFLOWS = [
    {"id": ID, "name": "w"},
    flow(jobs=[]),
    flow(schedul="* * * * *"),
    flow(overlap="sometimes"),
    flow(concurrency=0),
    flow(jobs=[{"name": "j", "steps": []}]),
    flow(jobs=[{"name": "j", "steps": [{**STEP, "retries": -1}]}]),
    flow(jobs=[{"name": "j", "steps": [{**STEP, "allowFailures": True}]}]),
    flow(jobs=[{"name": "j", "steps": [{"name": "s", "task": {"type": "modle_method", "methodName": "x"}}]}]),
    flow(jobs=[{"name": "j", "steps": [STEP], "dependsOn": [{"job": "a", "condition": {"type": "suceeded"}}]}]),
]


@pytest.mark.parametrize("document", BAD_WORKFLOWS)
def test_bad_workflows_are_refused_by_the_schema_and_by_swamp(document):
    assert check("workflow", document) != []
    with pytest.raises(UsageError):
        parse_workflow(yaml.safe_dump(document), "w.yaml")


def test_a_good_workflow_is_accepted_by_both():
    document = flow(schedule="0 2 * * *", tags={"a": "b"}, concurrency=2)
    document["jobs"][0]["steps"] = [{**STEP, "retries": 3, "backoff": "5s", "timeout": 60}]
    assert check("workflow", document) == []
    parse_workflow(yaml.safe_dump(document), "w.yaml")


MODEL = {"id": ID, "name": "disk", "type": "command/shell", "methods": {"execute": {"arguments": {"run": "df"}}}}


def test_model_definitions():
    assert check("model", MODEL) == []
    assert check("model", {**MODEL, "globalArguments": None, "tags": {"team": "web"}, "version": 2}) == []
    for bad in ({**MODEL, "globalArgs": {}}, {**MODEL, "id": ""}, {"id": ID, "name": "x"}, {**MODEL, "methods": []}):
        assert check("model", bad) != []
    assert check("model", {**MODEL, "methods": {"execute": {"args": {}}}}) != []


@pytest.mark.parametrize(
    "bad",
    [
        {"repoId": "no"},
        {"repoId": ID, "datastore": []},
        {"repoId": ID, "datastore": {"url": 3}},
        {"repoId": ID, "datastore": {"url": "s3://b", "hydrate": "some"}},
        {"repoId": ID, "datastore": {"directories": ["secrets"]}},
    ],
)
def test_bad_repositories_are_refused_by_the_schema_and_by_swamp(bad):
    assert check("repo", bad) != []
    with pytest.raises(UsageError):
        parse_config(bad)


def test_other_programs_keys_stay_and_mistakes_in_blocks_of_ours_do_not():
    assert check("repo", {"repoId": ID, "theirs": {"a": 1}, "engine": "auto", "packs": "off"}) == []
    hook = {"route": "/hooks/x", "workflow": "w", "secret": "@env=S"}
    assert check("repo", {"repoId": ID, "serve": {"webhooks": [hook]}, "sql": {"engine": "duckdb"}}) == []
    for block in (
        {"serve": {"prot": 1}},
        {"serve": {"webhooks": [{**hook, "secret": "s3cr3t"}]}},
        {"sql": {"engin": 1}},
    ):
        assert check("repo", {"repoId": ID, **block}) != []


def test_the_command_prints_it_and_writes_it(tmp_path, capsys):
    assert main(["schema", "workflow", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == SCHEMAS["workflow"]()
    target = tmp_path / "repo.json"
    assert main(["schema", "repo", "--output", str(target)]) == 0
    assert json.loads(target.read_text()) == json.loads(json.dumps(SCHEMAS["repo"]()))
    assert main(["schema", "workflows"]) == 2
    assert "did you mean `workflow`?" in capsys.readouterr().err


def test_the_hooks_of_pre_commit_are_commands_that_there_are():
    hooks = yaml.safe_load((REPO / ".pre-commit-hooks.yaml").read_text())
    assert [hook["id"] for hook in hooks] == ["swamp-workflow-validate", "swamp-model-validate"]
    for hook in hooks:
        program, *words = hook["entry"].split()
        assert program == "swamp" and main([*words[:2], "--help"]) == 0
        assert hook["pass_filenames"] is False and re.search(hook["files"], "models/command/shell/disk.yaml")


def test_what_pre_commit_runs_says_which_line_is_wrong(tmp_path, monkeypatch, capsys):
    """The hooks' own commands, where pre-commit runs them: at the top of a repository."""
    monkeypatch.setenv("SWAMP_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert main(["repo", "init"]) == 0
    entries = [hook["entry"].split()[1:] for hook in yaml.safe_load((REPO / ".pre-commit-hooks.yaml").read_text())]
    steps = [{"name": name, "task": {"type": "manual_approval", "prompt": "?"}} for name in ("build", "ship")]
    file = tmp_path / "workflows" / "workflow-w.yaml"
    file.parent.mkdir(exist_ok=True)
    for wanted, code in (("build", 0), ("biuld", 1)):
        steps[1]["dependsOn"] = [{"step": wanted}]
        file.write_text(yaml.safe_dump({"id": ID, "name": "w", "jobs": [{"name": "j", "steps": steps}]}))
        capsys.readouterr()
        assert [main(words) for words in entries] == [code, 0]
    assert "did you mean `build`?" in capsys.readouterr().out


def test_the_devcontainer_builds_what_make_builds():
    found = json.loads((REPO / ".devcontainer" / "devcontainer.json").read_text())
    target = found["postCreateCommand"].split()[-1]
    assert f"STAMP    := {target}" in Path(REPO / "Makefile").read_text()
