"""L29: SIGKILL at every step, then run again. L30: a disk that is full."""

from __future__ import annotations

import datetime as dt
import os

import pytest

from killed import KILLED, spawn
from peers import Peer, content, root_of, settled, version
from swamp.commit.collect import collect

STRIDE = {"file": int(os.environ.get("SWAMP_KILL_STRIDE", "5")), "s3": 13}
"""Every fifth step by default; all of them with SWAMP_KILL_STRIDE=1. On S3 the steps are the same ones."""


@pytest.fixture
def pair(spec, home):
    made = [Peer(store=spec.open(), home=home, name=name) for name in ("a", "b")]
    yield made
    for one in made:
        if one.live is not None:
            one.live.close()


def prepare(a: Peer, b: Peer) -> dict[str, str]:
    """A little history: files to push, to pull and to delete. Returns what everybody must end with."""
    a.write("files/seed", "seed")
    a.write("files/gone", "gone")
    a.write_version(version("out", 1), "one")
    a.push()
    b.pull()
    b.write_version(version("theirs", 1), "theirs")
    b.write("files/seed", "seed, edited by b")
    b.push()
    a.write_version(version("out", 2), "two")
    a.write("outputs/run.yaml", f"path: {version('out', 2)}")
    a.delete("files/gone")
    a.restart()
    expected = {
        f"{version(n, i)}/raw": c for n, i, c in (("out", 1, "one"), ("out", 2, "two"), ("theirs", 1, "theirs"))
    }
    expected |= {"files/seed": "seed, edited by b", "outputs/run.yaml": f"path: {version('out', 2)}"}
    return expected


@pytest.mark.inv("cache.disposable")
@pytest.mark.inv("commit.logged")
@pytest.mark.parametrize("command", ["push", "pull", "sync"])
def test_L29_killed_at_any_step_it_converges_without_a_manual_step(spec, pair, command, home, fresh_prefix):
    stride = STRIDE[spec.url.partition(":")[0]]
    at, killed = 0, 0
    while True:
        place = type(spec)(f"{spec.url}/{fresh_prefix()}", spec.config)
        a, b = (Peer(store=place.open(), home=home / str(at), name=name) for name in ("a", "b"))
        expected = prepare(a, b)
        code, _ = spawn(place, a.cache.base, command, at)
        if code != KILLED:
            break
        killed += 1
        settled(a, b)
        found = content(a.engine)
        assert {p: c for p, c in found.items() if not p.endswith("metadata.yaml")} == expected, at
        assert not a.kept() or set(a.kept().values()) <= {"seed", "gone"}, at
        a.engine.close()
        b.engine.close()
        at += stride
    assert killed >= 1, "the kills really happened"


def test_L29_a_collector_killed_at_any_step_loses_nothing(spec, pair, home, fresh_prefix):
    stride = STRIDE[spec.url.partition(":")[0]]
    at = 0
    while True:
        place = type(spec)(f"{spec.url}/{fresh_prefix()}", spec.config)
        a, b = (Peer(store=place.open(), home=home / str(at), name=name) for name in ("a", "b"))
        for turn in range(2):
            a.write("files/x", f"{turn}")
            a.write("files/y", f"{turn}")
            a.push()
        code, _ = spawn(place, b.cache.base, "collect", at)
        assert content(a.engine) == {"files/x": "1", "files/y": "1"}, at
        if code != KILLED:
            break
        a.write("files/z", "z")
        a.push()
        collect(b.engine.committer, b.pace, keep=dt.timedelta(0))
        assert root_of(a.engine).collecting == ()
        assert content(a.engine) == {"files/x": "1", "files/y": "1", "files/z": "z"}
        a.engine.close()
        b.engine.close()
        at += stride
    assert at > stride


@pytest.mark.inv("cache.no-torn-file")
def test_L30_a_full_disk_during_a_pull_tears_nothing(spec, pair):
    a, b = pair
    a.write("files/big", b"x" * 3_000_000)
    a.write("files/small", "small")
    a.push()
    b.engine.status()
    b.restart().close()
    b.live = None
    _, said = spawn(spec, b.cache.base, "pull", limit=1_000_000)
    assert [f["path"] for f in said["failed"]] == ["files/big"]
    assert "space" in said["failed"][0]["error"] or "large" in said["failed"][0]["error"]
    assert b.files() == {"files/small": "small"}
    assert not list(b.cache.staging.iterdir()), "no half file is left behind"
    assert b.pull().files_pulled == 1
    settled(a, b)


@pytest.mark.inv("journal.first")
def test_L30_a_full_disk_during_a_journal_write_is_an_error_and_changes_no_file(spec, pair):
    a, _ = pair
    a.write("files/before", "announced before the disk was full")
    a.engine.close()
    a.live = None
    _, said = spawn(spec, a.cache.base, "write", path="files/during", limit=512)
    assert "error" in said and "space" in (said["hint"] or "")
    assert a.files() == {"files/before": "announced before the disk was full"}
    assert a.engine.status().pending.writes == 1, "no row was lost"
    assert a.push().files_pushed == 1
