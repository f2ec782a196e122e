"""L30: a disk that is full, as a command meets it: a clear error, nothing torn, and it goes on when there is room."""

from __future__ import annotations

import subprocess

import pytest

from kills import assert_no_help_needed, whole
from machines import SWAMP, Machine, Ran, Team


def on_a_full_disk(machine: Machine, blocks: int, *args: str) -> Ran:
    """The command where no file can grow beyond that many KiB: what a write to a full disk meets (L30)."""
    done = subprocess.run(
        ["/bin/sh", "-c", f'ulimit -f {blocks * 2}; exec "$@"', "sh", str(SWAMP), *args, "--json"],
        env=machine.environment(),
        cwd=machine.repo,
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
    return Ran(args, done.returncode, done.stdout, done.stderr)


def told(ran: Ran) -> str:
    """The error of a command that could not: one document, words, no traceback."""
    assert ran.code not in (0, 2) and "Traceback" not in ran.err, ran
    found = ran.out + ran.err
    assert "space" in found or "large" in found or "disk" in found or "full" in found, found
    return found


def test_L30_a_put_on_a_full_disk_leaves_nothing_half_done(team: Team):
    a = team.machine("a")
    a.put("web", "report", "before")
    file = a.home / "big"
    file.write_bytes(b"x" * 3_000_000)
    told(on_a_full_disk(a, 1000, "data", "put", "web", "report", str(file)))
    assert set(whole(a.tree)) == {("web", "report", 1)}
    assert a.get("web", "report")["content"] == "before"
    a.put("web", "report", file.read_bytes())
    fresh = team.machine("fresh")
    assert whole(fresh.tree) == whole(a.tree) and ("web", "report", 2) in whole(fresh.tree)
    assert_no_help_needed(a)


@pytest.mark.inv("cache.no-torn-file")
def test_L30_a_pull_and_a_setup_on_a_full_disk_tear_nothing_and_go_on_later(team: Team):
    a, b = team.machine("a"), team.machine("b")
    a.put("web", "big", b"x" * 3_000_000)
    a.put("web", "small", "small")
    told(on_a_full_disk(b, 1000, "datastore", "sync", "--pull"))
    assert {name for _, name, _ in whole(b.tree)} <= {"small"}
    b.sync()
    assert whole(b.tree) == whole(a.tree)
    c = team.machine("c", joined=False)
    before = (c.repo / ".swamp.yaml").read_text()
    told(on_a_full_disk(c, 1000, "datastore", "setup", *team.place.setup_args))
    assert (c.repo / ".swamp.yaml").read_text() == before
    c.setup(*team.place.setup_args)
    assert whole(c.tree) == whole(a.tree)
