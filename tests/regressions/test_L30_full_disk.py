"""L30: a disk that is full, as a command meets it: a clear error, nothing torn, and it goes on when there is room."""

from __future__ import annotations

import resource
import subprocess
import threading

import pytest

from kills import assert_no_help_needed, whole
from machines import SWAMP, Machine, Ran, Team
from swamp.testing.s3_double import S3Double
from swamp.testing.s3_lies import Lie
from warm import Process


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


def test_L30_a_disk_that_fills_up_between_save_and_push_keeps_the_work_and_says_so(double: S3Double, double_team: Team):
    """The version is saved: who ran the command again, with room again, would make a second one. C18"""
    a = double_team.machine("a")
    a.put("web", "report", "before")
    (a.home / "input").write_text("while the disk was full")
    running: list[Process] = []
    started = threading.Event()

    def fill() -> None:
        started.wait(30)
        resource.prlimit(running[0].pid, resource.RLIMIT_FSIZE, (1, 1))

    double.add(Lie("delay", "PUT", "*_packs*", seconds=0, then=fill))
    running.append(a.start("data", "put", "web", "report", str(a.home / "input")))
    started.set()
    out, err = running[0].communicate(timeout=120)
    ran = Ran(("data", "put"), running[0].returncode or 0, out, err)
    told(ran)
    assert "the work is kept here" in ran.error["error"] and "datastore sync` delivers it" in ran.error["hint"], ran
    assert a.status()["pending"]["writes"] >= 1
    a.sync()
    fresh = double_team.machine("fresh")
    assert fresh.versions("web", "report") == [2, 1]
    assert fresh.get("web", "report")["content"] == "while the disk was full"
    assert_no_help_needed(a)
