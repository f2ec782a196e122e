"""Commands in README and the guides: those in ```sh blocks run, those in ```sh show blocks at least exist."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from reading import REPO, Block, blocks, documents

BIN = Path(sys.executable).parent
SEPARATORS = {"&&", "||", "|", ";", "&"}
DOCUMENTS = pytest.mark.parametrize("document", documents(), ids=lambda d: d.stem)


def commands(document: Path) -> Iterator[list[str]]:
    """Every simple command of every shell block, as words."""
    for block in blocks(document):
        if block.info.partition(" ")[0] == "sh":
            for line in block.lines():
                yield from simple(line)


def simple(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;()<>")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word in SEPARATORS:
            if words:
                yield words
            words = []
        else:
            words.append(word)


@cache
def root() -> Any:
    from swamp.cli.program import build

    return build()


def unknown(words: list[str]) -> list[str]:
    """What a `swamp …` command names that does not exist: the command itself, or an option of it."""
    command, rest, options = root(), words[1:], set[str]()
    while True:
        options |= {name for p in command.params for name in (*p.opts, *p.secondary_opts)} | {"--help"}
        named = next((w for w in rest if not w.startswith("-")), None)
        if not getattr(command, "commands", None) or named is None:
            break
        if named not in command.commands:
            return [f"{command.name} {named}"]
        command = resolve(command, named)
        rest = rest[rest.index(named) + 1 :]
    given = [re.sub(r"=.*", "", w) for w in rest if w.startswith("-") and w != "-" and not w[1:].isdigit()]
    return [option for option in given if option not in options]


def resolve(command: Any, name: str) -> Any:
    from swamp.cli.program import PARTS

    part = next((p for p in PARTS if p.name == name), None) if command is root() else None
    return part.load() if part else command.commands[name]


@DOCUMENTS
def test_every_swamp_command_in_the_document_exists_with_its_options(document: Path) -> None:
    ours = [words for words in commands(document) if words[0] == "swamp"]
    assert {" ".join(words): missing for words in ours if (missing := unknown(words))} == {}
    assert ours


@DOCUMENTS
def test_every_make_target_in_the_document_exists(document: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (REPO / "Makefile").read_text(), re.MULTILINE))
    named = {words[1] for words in commands(document) if words[0] == "make"}
    named |= set(re.findall(r"`make ([a-z]+)", document.read_text()))
    assert sorted(named - targets) == []


@DOCUMENTS
def test_every_link_in_the_document_leads_somewhere(document: Path) -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)", document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_the_readme_names_the_two_commands() -> None:
    named = {words[1] for words in commands(REPO / "README.md") if words[0] == "make"}
    assert {"demo", "test"} <= named


def runnable(document: Path) -> list[Block]:
    return [block for block in blocks(document) if block.info == "sh"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("document", [d for d in documents() if runnable(d)], ids=lambda d: d.stem)
def test_the_commands_of_the_document_run_from_top_to_bottom(document: Path, tmp_path: Path) -> None:
    """In an empty directory, as one shell session that stops at the first failure."""
    script = "\n".join(["set -euo pipefail", "set -x", *(block.body for block in runnable(document))])
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("SWAMP_")},
        "HOME": str(tmp_path),
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "NO_COLOR": "1",
    }
    work = tmp_path / "work"
    work.mkdir()
    ran = subprocess.run(["bash", "-c", script], cwd=work, env=environment, capture_output=True, text=True, timeout=880)
    assert ran.returncode == 0, f"{ran.stdout[-4000:]}\n{ran.stderr[-4000:]}"


@pytest.mark.timeout(900)
def test_the_demo_keeps_every_promise_it_makes(tmp_path: Path) -> None:
    """What `make demo` runs, once the environment is built."""
    command, environment = [sys.executable, REPO / "demo" / "run.py"], {**os.environ, "TMPDIR": str(tmp_path)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=880)
    assert ran.returncode == 0, f"{ran.stdout[-4000:]}\n{ran.stderr[-4000:]}"
    assert "What this proved" in ran.stdout
