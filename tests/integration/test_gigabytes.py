"""Files and objects of a gigabyte where a page belongs: refused without reading them, in little memory and time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from machines import Machine, Ran, Team

MOST = 200
"""MiB. A command needs 30; with Spark's and Arrow's libraries in it 130."""
MEASURED = """
import sys
from swamp.cli.main import main
code = main(sys.argv[1:])
print(int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) >> 10, file=sys.stderr)
sys.exit(code)
"""


def measured(machine: Machine, *args: str) -> tuple[Ran, int]:
    """The command, and how many MiB it had at its largest."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *args, "--json"],
        env=machine.environment(),
        cwd=machine.repo,
        capture_output=True,
        text=True,
        timeout=200,
    )
    said, _, peak = done.stderr.strip().rpartition("\n")
    return Ran(args, done.returncode, done.stdout, said), int(peak)


def swell(file: Path, begin: bytes) -> Callable[[], None]:
    """Makes it a gigabyte that begins so (its end is a hole: no disk is used); what is returned undoes it."""
    before = file.read_bytes() if file.exists() else None
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as out:
        out.write(begin)
        out.truncate(1 << 30)
    return lambda: file.unlink() if before is None else file.write_bytes(before)


@pytest.fixture
def machine(local_team: Team) -> Machine:
    made = local_team.machine("a")
    made.put("web", "report", "1")
    return made


def test_a_gigabyte_in_place_of_a_document_is_refused_in_little_memory(machine: Machine, local_team: Team):
    bucket = local_team.directory / "bucket"
    root = bucket / ".datastore-index.json"
    [metadata] = (machine.tree / "data").rglob("metadata.yaml")
    [lease] = (bucket / "data").rglob(".lock")
    cases: list[tuple[Path, bytes, tuple[str, ...], set[int]]] = [
        (machine.repo / ".swamp.yaml", (machine.repo / ".swamp.yaml").read_bytes() + b"x: '", ("data", "list"), {65}),
        (machine.repo / "workflows" / "workflow-big.yaml", b"id: x\nname: '", ("workflow", "list"), {0}),
        (machine.repo / "workflows" / "workflow-big.yaml", b"id: x\nname: '", ("workflow", "run", "big"), {2}),
        (machine.repo / "models" / "manual" / "data" / "big.yaml", b"id: '", ("model", "list"), {0}),
        (metadata, b"name: '", ("data", "get", "web", "report"), {65}),
        (root, root.read_bytes()[:-1] + b',"x":"', ("datastore", "sync"), {65}),
        (lease, b'{"holder": "', ("datastore", "lock", "status"), {0}),
    ]
    for file, begin, words, codes in cases:
        undo = swell(file, begin)
        ran, peak = measured(machine, *words)
        undo()
        assert ran.code in codes and "Traceback" not in ran.err, ran
        assert peak < MOST, f"{words} with a gigabyte in {file.name}: {peak} MiB"
        if ran.code:
            assert ran.error["error"] and ran.error["hint"], ran.err
    assert machine.get("web", "report")["content"] == "1"
