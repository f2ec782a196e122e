"""Recipes are real: what is in their blocks parses, their commands exist, their units pass systemd's own check."""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from swamp.cli.program import PARTS

REPO = Path(__file__).parents[2]
PAGES = sorted((REPO / "docs" / "recipes").glob("*.md"))
FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
RECIPES = pytest.mark.parametrize("page", [p for p in PAGES if p.stem != "README"], ids=lambda p: p.stem)


def blocks(page: Path, kind: str) -> list[str]:
    return [match["body"] for match in FENCE.finditer(page.read_text()) if match["info"].split()[:1] == [kind]]


def texts(value: Any) -> list[str]:
    """Every text in a YAML or JSON document; a list of words that begins with swamp is one command."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for item in value.values() for text in texts(item)]
    if isinstance(value, list):
        if value and value[0] == "swamp":
            return [shlex.join(map(str, value))]
        return [text for item in value for text in texts(item)]
    return []


def said(page: Path) -> list[str]:
    """Everything in the page's blocks that could be a command line."""
    found = [line for kind in ("sh", "cron", "ini") for body in blocks(page, kind) for line in body.splitlines()]
    for body in blocks(page, "yaml"):
        found += [line for text in texts(yaml.safe_load(body)) for line in text.splitlines()]
    for body in blocks(page, "python"):
        found += [node.value for node in ast.walk(ast.parse(body)) if _text(node)]
    return found


def _text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def commands(page: Path) -> list[list[str]]:
    """`swamp …` wherever it stands: alone, behind a path, behind && or ExecStart=; placeholders are one word."""
    found = []
    for line in said(page):
        for part in re.split(r"&&|\|\||;|\|", re.sub(r"\{\{.*?\}\}|\$\{\{.*?\}\}", "X", line)):
            match = re.search(r"(?:^|[\s=]|/bin/)swamp (?=[a-z])(.*)$", part)
            if match and not part.lstrip().startswith(("#", "pip", "Description")):
                found.append(shlex.split(match[1].partition(" # ")[0]))
    return found


def complaint(words: list[str]) -> str | None:
    """What the program itself would say to these words, without doing anything."""
    part = next((p for p in PARTS if p.name == words[0]), None)
    if part is None:
        return f"no command {words[0]}"
    try:
        parsed(part.load(), words[1:], None)
    except typer.TyperException as error:
        return error.format_message()
    return None


def parsed(command: Any, words: list[str], parent: Any) -> None:
    context = command.make_context(command.name, list(words), parent=parent)
    if getattr(command, "commands", None) and context._protected_args + context.args:
        rest = context._protected_args + context.args
        _, child, left = command.resolve_command(context, rest)
        parsed(child, left, context)


@RECIPES
def test_every_command_would_be_accepted(page):
    ours = commands(page)
    assert {" ".join(words): told for words in ours if (told := complaint(words))} == {}
    assert ours


def test_a_wrong_command_would_be_found():
    assert complaint(["data", "putt"]) and complaint(["data", "put", "m"]) and complaint(["nothing"])
    assert complaint(["workflow", "run", "x", "--now"]) and complaint(["data", "list"]) is None


@RECIPES
def test_what_is_in_the_blocks_parses(page):
    for body in blocks(page, "yaml"):
        assert isinstance(yaml.safe_load(body), dict)
    for body in blocks(page, "json"):
        json.loads(body)
    for body in blocks(page, "python"):
        compile(body, page.name, "exec")


def test_units_pass_the_check_of_systemd(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    units = blocks(REPO / "docs" / "recipes" / "cron-and-systemd.md", "ini")
    program = tmp_path / "swamp"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    paths = []
    for unit in units:
        name = re.search(r"^# \S*/(\S+)$", unit, re.MULTILINE)[1]
        paths.append(tmp_path / name)
        paths[-1].write_text(unit.replace("/srv/swamp/bin/swamp", str(program)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, paths)], capture_output=True, text=True, timeout=60
    )
    told = [line for line in done.stderr.splitlines() if "swamp-nightly" in line]
    assert len(paths) == 2 and told == [], done.stderr


def test_the_objects_of_kubernetes_are_whole():
    found = {}
    for body in blocks(REPO / "docs" / "recipes" / "kubernetes.md", "yaml"):
        thing = yaml.safe_load(body)
        found[thing["kind"]] = thing
        pod = thing["spec"].get("jobTemplate", thing)["spec"]["template"]["spec"]
        claims = [c["metadata"]["name"] for c in thing["spec"].get("volumeClaimTemplates", [])]
        volumes = {volume["name"] for volume in pod["volumes"]} | set(claims)
        mounts = {m["name"] for c in pod["containers"] + pod.get("initContainers", []) for m in c["volumeMounts"]}
        assert mounts == volumes and pod["securityContext"]["runAsNonRoot"]
    assert set(found) == {"CronJob", "StatefulSet"}


def test_every_recipe_is_in_the_list():
    listed = (REPO / "docs" / "recipes" / "README.md").read_text()
    assert [p.name for p in PAGES if p.stem != "README" and f"({p.name})" not in listed] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\((?!http)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []
