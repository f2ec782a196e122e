"""Definitions are found by name or id, checked with lines and suggestions, and written whole or not at all."""

from __future__ import annotations

import pytest

from swamp.data.names import auto_id
from swamp.errors import NotFound, UsageError
from swamp.models.document import parse

SHELL = "command/shell"


def problems(bench, text: str) -> list[str]:
    return [str(problem) for problem in bench.context.models.inspect(parse(text, "models/x.yaml"))]


def test_create_get_list_delete(bench):
    models = bench.context.models
    made = models.create(
        "Command::Shell", "web", methods={"execute": {"arguments": {"run": "echo hi"}}}, tags={"team": "a"}
    )
    assert made.file == "models/command/shell/web.yaml"
    found = models.find("web")
    assert (found.id, found.type, dict(found.tags)) == (made.id, SHELL, {"team": "a"})
    assert models.find(made.id).name == "web"
    assert [definition.name for definition in models.all()] == ["web"]
    models.delete("web")
    with pytest.raises(NotFound):
        models.find("web")


def test_a_name_is_taken_once_whatever_the_type(bench):
    bench.context.models.create(SHELL, "web")
    with pytest.raises(UsageError, match="already"):
        bench.context.models.create("python/script", "web")


def test_what_is_empty_in_a_definition_is_as_if_it_were_not_there(bench):
    file = bench.path / "models" / "command" / "shell" / "web.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("id: x\nname: web\ntype: command/shell\ntags: []\nglobalArguments: []\nmethods: ''\n")
    [found] = bench.context.models.all()
    assert (found.tags, found.global_arguments, found.methods) == ({}, {}, {})


@pytest.mark.parametrize("name", ["", "a/b", "..", "latest", "a\\b"])
def test_names_that_cannot_be_paths_are_refused(bench, name):
    with pytest.raises(UsageError):
        bench.context.models.create(SHELL, name)
    assert not list((bench.path / "models").rglob("*.yaml"))


def test_an_unknown_name_suggests_a_known_one(bench):
    bench.context.models.create(SHELL, "webserver")
    with pytest.raises(NotFound) as caught:
        bench.context.models.find("webservre")
    assert "`webserver`" in (caught.value.hint or "")


def test_problems_have_lines_and_suggestions(bench):
    text = """id: x
name: web
type: command/shell
tagz: {}
globalArguments:
  nope: 1
methods:
  exceute: {arguments: {}}
  execute:
    arguments:
      rum: echo
      timeout: soon
      workingDir: ${{ inptus.x }}
"""
    assert problems(bench, text.replace("tagz", "tags")) == [
        "line 6: `nope` is not an argument",
        "line 8: command/shell has no method `exceute` (it has execute); did you mean `execute`?",
        "line 11: `rum` is not an argument; did you mean `run`?",
        "line 12: `timeout`: value error, a length of time looks like 90, 30s, 5m or 2h",
        "line 13: `inptus.x`: there is no `inptus`; did you mean `inputs`?",
    ]
    assert problems(bench, text) == ["line 4: unknown key `tagz`; did you mean `tags`?"]


def test_a_value_decided_at_run_time_is_not_checked_before(bench):
    text = "id: x\nname: w\ntype: command/shell\nmethods: {execute: {arguments: {timeout: '${{ inputs.t }}'}}}\n"
    assert problems(bench, text) == []


def test_a_key_that_stands_twice_is_found(bench):
    with pytest.raises(UsageError) as caught:
        parse("id: x\nname: a\nname: b\n", "f.yaml")
    assert "line 3: `name` stands twice" in caught.value.message


def test_a_syntax_error_names_its_line():
    with pytest.raises(UsageError) as caught:
        parse("id: x\nname: [a\n", "f.yaml")
    assert caught.value.details["problems"][0]["line"] >= 2


def test_saving_a_wrong_text_changes_nothing(bench):
    made = bench.context.models.create(SHELL, "web")
    before = (bench.path / made.file).read_text()
    with pytest.raises(UsageError):
        bench.context.models.save_text(before + "nonsense: 1\n", made.file)
    with pytest.raises(UsageError, match="holds the model"):
        bench.context.models.save_text(before.replace("name: web", "name: other"), made.file)
    assert (bench.path / made.file).read_text() == before


def test_a_model_made_on_the_spot_has_the_same_id_everywhere_and_git_wins(bench):
    models = bench.context.models
    assert models.auto(SHELL, "scan").id == auto_id(SHELL, "scan")
    made = models.create(SHELL, "scan")
    assert models.auto(SHELL, "scan").id == made.id
