"""A pull of many small files has a second process write them: killed, wrong or without room, it costs time only."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from machines import Machine, Team, read_tree
from swamp.index.entry import Slice
from swamp.sync import second as second_module
from swamp.sync.bulk import Download
from swamp.sync.second import ENOUGH, SecondWriter
from swamp.testing.s3_double import S3Double
from swamp.testing.s3_lies import Lie
from warm import Process

FILES, SIZE = ENOUGH + 500, 5_000  # more than one pack of 8 MiB


@pytest.fixture
def files(double_team: Team) -> dict[str, bytes]:
    """What a machine has pushed, for others to pull."""
    a, chance = double_team.machine("a"), random.Random(7)
    tree = a.tree
    made = {f"files/{n // 100}/{n}": chance.randbytes(SIZE) for n in range(FILES)}
    for path, body in made.items():
        file = tree / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(body)
    assert a.sync("--push", "--full")["filesPushed"] == FILES
    return made


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] != "Z"
    except OSError:
        return False


def until(true: Callable[[], object], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(true())


def pulling(team: Team, double: S3Double) -> tuple[Machine, Process, int]:
    """A machine in the middle of its first pull, whose packs take their time, with its second process."""
    double.add(Lie("delay", "GET", "*_packs/*", seconds=2.0, times=2))
    machine = team.machine("b", joined=False)
    process = machine.start("datastore", "setup", *team.place.setup_args)
    assert until(lambda: children(process.pid)), "no second process"
    return machine, process, children(process.pid)[0]


def test_a_second_process_that_is_killed_costs_nothing_but_time(double_team: Team, double: S3Double, files):
    b, process, second = pulling(double_team, double)
    os.kill(second, signal.SIGKILL)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, (out, err)
    assert read_tree(b.tree / "files") == {path.removeprefix("files/"): body for path, body in files.items()}


def test_it_ends_with_the_command_that_was_killed_and_the_next_one_completes_it(double_team, double, files):
    b, process, second = pulling(double_team, double)
    process.kill()
    process.communicate(timeout=60)
    assert until(lambda: not is_alive(second)), "it holds what the command had locked"
    b("datastore", "setup", *double_team.place.setup_args).ok()
    assert read_tree(b.tree / "files") == {path.removeprefix("files/"): body for path, body in files.items()}


def test_a_pull_that_is_interrupted_leaves_no_process(double_team: Team, double: S3Double, files):
    _, process, second = pulling(double_team, double)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert not is_alive(second)


@pytest.mark.inv("pack.each-checked")
def test_one_bad_slice_is_one_files_trouble(double_team: Team, double: S3Double, files):
    """Its bytes are other ones in the bucket: that file is named, all others are right."""
    place = double_team.place
    bad = f"files/{FILES // 200}/{FILES // 2}"
    pack = next(key for key, body in place.objects("_packs/").items() if files[bad] in body)
    store = place.open()
    body = store.get(pack).body
    at = body.index(files[bad])
    store.delete([pack])
    store.put(pack, body[:at] + b"wrong" + body[at + 5 :])
    b = double_team.machine("b", joined=False)
    ran = b("datastore", "setup", *place.setup_args)
    assert ran.code, "a file is missing"
    assert bad in ran.out + ran.err
    found = read_tree(b.tree / "files")
    assert found == {p.removeprefix("files/"): body for p, body in files.items() if p != bad}


def a_slice(staging: Path, body: bytes, **changed: object) -> tuple[Slice, Download]:
    wanted = {"size": len(body), "sha256": hashlib.sha256(body).hexdigest(), "mtime_ns": 10**18, **changed}
    return Slice("_packs/x", 12, len(body)), Download("a", "k", staging=str(staging), **wanted)  # type: ignore[arg-type]


@pytest.mark.inv("pack.each-checked")
def test_what_is_wrong_cut_off_or_has_no_room_is_not_confirmed(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"")
    body = b"right bytes"
    whole = memoryview(body)
    asked = [
        (a_slice(tmp_path / "staging", body), whole),
        (a_slice(tmp_path / "staging", body, sha256="0" * 64), whole),
        (a_slice(tmp_path / "staging", body, sha256=None), whole),
        (a_slice(tmp_path / "staging", body), whole[:4]),
        (a_slice(tmp_path / "file" / "below", body), whole),
        (a_slice(tmp_path / "staging", body), whole),
    ]
    second = SecondWriter()
    try:
        found = second.stage([part for part, _ in asked], [stored for _, stored in asked])
    finally:
        second.close()
    assert [file is not None for file in found] == [True, False, False, False, False, True]
    left = sorted((tmp_path / "staging").iterdir())
    assert sorted(file for file in found if file) == list(map(str, left)), "half a file stays"
    assert {file.read_bytes() for file in left} == {body}
    assert {file.stat().st_mtime_ns for file in left} == {10**18}


def test_of_one_that_is_no_more_nothing_is_confirmed(tmp_path: Path):
    second = SecondWriter()
    try:
        assert second.process is not None
        os.kill(second.process, signal.SIGKILL)
        body = b"x" * (1 << 20)
        part = a_slice(tmp_path / "staging", body)
        assert list(second.stage([part], [memoryview(body)])) == [None]
        assert list(second.stage([part], [memoryview(body)])) == [None]
    finally:
        second.close()


def test_one_that_hangs_is_ended_and_what_it_confirmed_counts(tmp_path: Path, monkeypatch):
    """Its disk does not answer, or a lock that nobody holds any more was copied with it."""
    monkeypatch.setattr("swamp.sync.second.SILENT_MS", 200)
    monkeypatch.setattr("swamp.sync.second.PORTION", 2)
    hanging = tmp_path / "hanging"
    os.mkfifo(hanging)  # whoever opens it to read waits for a writer
    write = second_module.stage_bytes

    def stage(staging: str, *told: object) -> object:
        return hanging.read_bytes() if staging.endswith("hangs") else write(staging, *told)  # type: ignore[arg-type]

    monkeypatch.setattr(second_module, "stage_bytes", stage)
    body = b"bytes"
    asked = [a_slice(tmp_path / where, body) for where in ("a", "a", "a", "hangs", "a")]
    second = SecondWriter()
    try:
        found = list(second.stage(asked, [memoryview(body)] * len(asked)))
        assert [file is not None for file in found] == [True, True, False, False, False]
        assert not any(second.stage(asked, [memoryview(body)] * len(asked)))
    finally:
        second.close()


def test_one_that_never_came_to_its_work_holds_nobody_up(monkeypatch):
    monkeypatch.setattr("swamp.sync.second.SILENT_MS", 200)
    monkeypatch.setattr("gc.disable", signal.pause)  # the first thing that it does
    second = SecondWriter()
    closing = threading.Thread(target=second.close, daemon=True)
    closing.start()
    closing.join(60)
    if hangs := closing.is_alive():
        os.kill(second.process or 0, signal.SIGKILL)
    assert not hangs


def test_a_group_that_is_too_large_for_both_is_not_confirmed(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("swamp.sync.second.ROOM", 4096)
    body = b"x" * 4096
    second = SecondWriter()
    try:
        assert list(second.stage([a_slice(tmp_path, body)], [memoryview(body)])) == [None]
        assert any(second.stage([a_slice(tmp_path, body[:9])], [memoryview(body)[:9]])), "it goes on"
    finally:
        second.close()
