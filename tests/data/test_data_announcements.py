"""Every public method of every repository, and what it must announce before the first byte changes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from trees import WatchedTree

from swamp.data.artifacts import DataRepository
from swamp.data.lifetimes import Retention
from swamp.data.metadata import Draft, Owner
from swamp.data.names import DataName
from swamp.data.records import DefinitionRepository, Output, OutputRepository, Provenance, StoredDefinition
from swamp.data.run_record import RunRepository, RunState

NAME = DataName.of("command/shell", "11111111-1111-4111-8111-111111111111", "result")
NEXT = NAME.at(4).path  # 1 and 2 are saved, 3 is claimed
"""One version, not its name: a push looks at all that is announced, and a name may have thousands of versions."""
DRAFT = Draft(Owner.manual("m"), retention=Retention.parse(1))
TIME = "2026-05-01T12:00:00.000Z"
OUTPUT = Output("o1", "d1", "command/shell", "execute", "running", TIME, Provenance("h", "cli", "me"))
RUN = RunState("r1", "w1", "deploy", "running", TIME)
DEFINITION = StoredDefinition("d1", "web", "command/shell")
OUTPUT_PATH = f"outputs/command/shell/execute/d1-{TIME}.yaml"
RUN_PATH = "workflow-runs/w1/workflow-run-r1.yaml"
DEFINITION_PATH = "definitions-evaluated/command/shell/web.yaml"


@dataclass(frozen=True)
class Case:
    """How to call a method on a prepared tree, and the announcements that must follow; none means: a read."""

    call: Callable[[Any, dict[str, Any]], Any]
    announces: tuple[tuple[str, tuple[str, ...]], ...] = ()


def write(*paths: str) -> tuple[str, tuple[str, ...]]:
    return ("write", paths)


def gone(*paths: str) -> tuple[str, tuple[str, ...]]:
    return ("delete", paths)


def path_of(name: str, version: int) -> str:
    return NAME.sibling(name).at(version).path


TABLE: dict[tuple[type, str], list[Case]] = {
    (DataRepository, "save"): [
        Case(lambda r, s: r.save(NAME, DRAFT, b"3"), (write(NEXT),)),
        Case(lambda r, s: r.save(NAME, DRAFT, iter([b"3"])), (write(NEXT), write(NEXT))),
    ],
    (DataRepository, "save_again"): [
        Case(lambda r, s: r.save_again(s["saved"], s["kept"]), (write(NEXT), write(NEXT)))
    ],
    (DataRepository, "allocate_version"): [Case(lambda r, s: r.allocate_version(NAME, DRAFT), (write(NEXT),))],
    (DataRepository, "finalize_version"): [
        Case(lambda r, s: r.finalize_version(s["claim"], DRAFT), (write(NAME.at(3).path),))
    ],
    (DataRepository, "delete"): [
        Case(lambda r, s: r.delete(NAME, 1), (gone(NAME.at(1).path),)),
        Case(lambda r, s: r.delete(NAME), (gone(NAME.path),)),
        Case(lambda r, s: r.delete(NAME, 99)),
        Case(lambda r, s: r.delete(NAME.sibling("nothing"))),
    ],
    (DataRepository, "remove_latest_marker"): [
        Case(lambda r, s: r.remove_latest_marker(NAME), (write(NAME.at(4).path),)),
        Case(lambda r, s: r.remove_latest_marker(NAME.sibling("nothing"))),
    ],
    (DataRepository, "rename"): [
        Case(lambda r, s: r.rename(NAME, "new"), (write(NAME.sibling("new").at(1).path, NAME.at(4).path),))
    ],
    (DataRepository, "collect_garbage"): [
        Case(lambda r, s: r.collect_garbage(), (gone(NAME.at(1).path),)),
        Case(lambda r, s: r.collect_garbage(dry_run=True)),
    ],
    (DataRepository, "prune"): [
        Case(lambda r, s: r.prune(), (gone(path_of("hidden", 2), path_of("hidden", 1)),)),
        Case(lambda r, s: r.prune(dry_run=True)),
    ],
    (DataRepository, "numbers"): [Case(lambda r, s: r.numbers(NAME))],
    (DataRepository, "highest_taken"): [Case(lambda r, s: r.highest_taken(NAME))],
    (DataRepository, "incomplete"): [Case(lambda r, s: r.incomplete())],
    (DataRepository, "refuse_absent"): [Case(lambda r, s: r.refuse_absent(NAME, 0))],
    (DataRepository, "read"): [Case(lambda r, s: r.read(NAME.at(1)))],
    (DataRepository, "newest"): [Case(lambda r, s: r.newest(NAME))],
    (DataRepository, "get"): [Case(lambda r, s: r.get(NAME))],
    (DataRepository, "versions"): [Case(lambda r, s: r.versions(NAME))],
    (DataRepository, "names"): [Case(lambda r, s: list(r.names()))],
    (DataRepository, "raw"): [Case(lambda r, s: r.raw(s["saved"]))],
    (DataRepository, "open"): [Case(lambda r, s: r.open(s["saved"]).close())],
    (DataRepository, "content"): [Case(lambda r, s: r.content(s["saved"]))],
    (DataRepository, "surveyed"): [Case(lambda r, s: r.surveyed(NAME, b""))],
    (DataRepository, "elsewhere"): [Case(lambda r, s: r.elsewhere())],
    (DataRepository, "parts"): [Case(lambda r, s: list(r.parts(s["saved"])))],
    (DataRepository, "copy_to"): [Case(lambda r, s: r.copy_to(s["saved"], s["out"]))],
    (OutputRepository, "save"): [Case(lambda r, s: r.save(OUTPUT), (write(OUTPUT_PATH),))],
    (OutputRepository, "get"): [Case(lambda r, s: r.get("o1"))],
    (OutputRepository, "list"): [Case(lambda r, s: list(r.list()))],
    (OutputRepository, "search"): [Case(lambda r, s: list(r.search(definition_id="d1")))],
    (RunRepository, "save"): [Case(lambda r, s: r.save(RUN), (write(RUN_PATH),))],
    (RunRepository, "delete_all_by_workflow"): [
        Case(lambda r, s: r.delete_all_by_workflow("w1"), (gone(RUN_PATH.replace("r1", "r2"), RUN_PATH),)),
        Case(lambda r, s: r.delete_all_by_workflow("w9")),
    ],
    (RunRepository, "get"): [Case(lambda r, s: r.get("r1"))],
    (RunRepository, "list"): [Case(lambda r, s: list(r.list()))],
    (RunRepository, "search"): [Case(lambda r, s: r.search("dep"))],
    (RunRepository, "resolve"): [Case(lambda r, s: r.resolve("r1"))],
    (RunRepository, "is_over"): [Case(lambda r, s: r.is_over("r1"))],
    (DefinitionRepository, "save"): [Case(lambda r, s: r.save(DEFINITION), (write(DEFINITION_PATH),))],
    (DefinitionRepository, "path_of"): [Case(lambda r, s: r.path_of("command/shell", "web"))],
    (DefinitionRepository, "search"): [Case(lambda r, s: list(r.search("web")))],
}


def prepared(tree: WatchedTree, tmp_path) -> dict[str, Any]:
    """Two versions and a claim of one name, a hidden name, two runs, an output, a definition."""
    data = DataRepository(tree)
    data.save(NAME, DRAFT, b"1")
    saved = data.save(NAME, DRAFT, b"2")
    claim = data.allocate_version(NAME, DRAFT)
    data.save(NAME.sibling("hidden"), Draft(Owner.manual("m")), b"")
    data.remove_latest_marker(NAME.sibling("hidden"))
    OutputRepository(tree).save(OUTPUT)
    RunRepository(tree).save(RUN)
    RunRepository(tree).save(RunState("r2", "w1", "deploy", "succeeded", TIME))
    DefinitionRepository(tree).save(DEFINITION)
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "raw").write_bytes(b"kept")
    return {"saved": saved, "claim": claim, "kept": kept, "out": tmp_path / "out"}


def public_methods(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind, callable) if not name.startswith("_")}


@pytest.mark.parametrize("kind", [DataRepository, OutputRepository, RunRepository, DefinitionRepository])
def test_no_public_method_is_missing_from_the_table(kind):
    assert public_methods(kind) == {method for owner, method in TABLE if owner is kind}


@pytest.mark.inv("journal.first")
@pytest.mark.parametrize(
    ("kind", "case"),
    [pytest.param(k, c, id=f"{k.__name__}.{m}-{i}") for (k, m), cases in TABLE.items() for i, c in enumerate(cases)],
)
def test_announcements_are_those_of_the_table_and_come_first(kind, case, tmp_path):
    tree = WatchedTree(tmp_path / "tree")
    setting = prepared(tree, tmp_path)
    said = len(tree.announced)
    case.call(kind(tree), setting)
    tree.check()
    assert tuple((how, paths) for how, paths, _ in tree.announced[said:]) == case.announces


def test_a_confirmed_delete_says_so(tmp_path):
    tree = WatchedTree(tmp_path / "tree")
    setting = prepared(tree, tmp_path)
    DataRepository(tree).delete(NAME, confirmed=True)
    RunRepository(tree).delete_all_by_workflow("w1", confirmed=True)
    assert [confirmed for _, _, confirmed in tree.announced[-2:]] == [True, True]
    assert setting


def test_the_watch_itself_notices_an_unannounced_change(tmp_path):
    tree = WatchedTree(tmp_path / "tree")
    (tree.root / "data").mkdir()
    (tree.root / "data" / "sneaked").write_text("in")
    with pytest.raises(AssertionError, match="before it was announced"):
        tree.check()
