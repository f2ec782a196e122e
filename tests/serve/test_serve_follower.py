"""The follower reads what workers write: what is no event is told once, and a look that fails forgets nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from swamp.repo.config import init_repo
from swamp.serve.database import Database
from swamp.serve.events import Event, Events
from swamp.serve.follow import CHUNK, Follower
from swamp.wiring import open_repo

GOOD = '{"event": "log", "job": "a", "step": "b", "line": "%s"}\n'
NO_EVENTS = (
    "not JSON",
    '{"event": "log", "line": "to{"event": "log", "line": "torn"}',  # a write that was cut short, and the next one
    "[]",
    "7",
    "null",
    "{}",
    '{"event": 7}',
    '{"event": "party"}',
    '{"event": "failed"}',
    "",
)


class Bench:
    """One follower with its database, looked at by hand."""

    def __init__(self, root: Path) -> None:
        init_repo(root / "repo")
        self.repo = open_repo(root / "repo")
        self.db = Database(root / "serve.db")
        self.events = Events(self.db, self.repo.env)
        self.follower = Follower(self.repo, self.db, self.events)
        self.directory = self.follower._directory
        self.directory.mkdir(parents=True, exist_ok=True)

    def file(self, run_id: str) -> Path:
        return self.directory / f"{run_id}.jsonl"

    def told(self) -> list[Event]:
        return self.events.after(0)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setenv("SWAMP_HOME", str(tmp_path / "home"))
    made = Bench(tmp_path)
    yield made
    made.db.close()


def test_a_look_that_fails_is_tried_again_for_the_same_runs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    left = bench.file("run-1")
    left.write_text(GOOD % "hello")
    bench.follower.over("run-1")
    with monkeypatch.context() as broken:
        broken.setattr(bench.events, "add", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            bench.follower.look()
    assert left.exists()
    bench.follower.look()
    assert not left.exists(), "the run had ended, and the look that failed forgot it"
    assert len(bench.told()) == 1


@pytest.mark.parametrize("line", NO_EVENTS)
def test_a_line_that_is_no_event_is_left_out_and_nothing_else(
    bench: Bench, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench.file("run-1").write_text(GOOD % "before" + f"{line}\n" + GOOD % "behind" + f"{line}\n")
    bench.file("run-2").write_text(GOOD % "another run")
    with caplog.at_level(logging.WARNING, "swamp.serve"):
        for _ in range(3):
            bench.follower.look()
    assert [event.run_id for event in bench.told()] == ["run-1", "run-1", "run-2"]
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["run run-1"], "told once"
    with bench.file("run-1").open("a") as file:
        file.write(GOOD % "later")
    bench.follower.look()
    assert "later" in bench.told()[-1].data


def test_a_line_that_no_file_can_hold_is_an_event_all_the_same(bench: Bench) -> None:
    bench.file("run-1").write_text('{"event": "log", "line": "\\ud800"}\n' + GOOD % "behind")
    bench.follower.look()
    assert len(bench.told()) == 2


def test_a_line_longer_than_one_read_is_read_whole(bench: Bench) -> None:
    bench.file("run-1").write_text(GOOD % ("x" * (CHUNK + 100)) + GOOD % "behind")
    bench.follower.look()
    bench.follower.look()
    assert [len(event.data) > CHUNK for event in bench.told()] == [True, False]


def test_a_file_that_cannot_be_opened_does_not_hold_up_the_others(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.file("run-1").mkdir()
    (bench.file("run-1") / "x").write_text("x" * 5000)
    bench.file("run-2").write_text(GOOD % "another run")
    bench.follower.over("run-1")
    with caplog.at_level(logging.WARNING, "swamp.serve"):
        for _ in range(3):
            bench.follower.look()
    assert [event.run_id for event in bench.told()] == ["run-2"]
    assert len(caplog.records) == 1, "told once"


@pytest.mark.parametrize("record", ["{", "7", "[]", "jobs: 7\n", "id: [1]\nworkflowId: {}\njobs: [3]\n", "\x00", ""])
def test_a_record_that_nobody_can_read_does_not_hold_up_the_others(bench: Bench, record: str) -> None:
    good, bad = (f"{number}" * 8 + "-1111-4111-8111-111111111111" for number in (2, 1))
    records = bench.follower._records
    records.begin()
    place = bench.repo.tree.root / "workflow-runs" / good
    place.mkdir(parents=True)
    (place / f"workflow-run-{bad}.yaml").write_text(record)
    (place / f"workflow-run-{good}.yaml").write_text(
        f"id: {good}\nworkflowId: {good}\nworkflowName: w\nstatus: running\njobs: []\n"
        "startedAt: '2026-01-01T00:00:00.000Z'\n"
    )
    assert [draft[1] for draft in records.changed(set())] == [good]
