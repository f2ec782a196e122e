"""The follower reads what workers write: a look that fails forgets nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from swamp.repo.config import init_repo
from swamp.serve.database import Database
from swamp.serve.events import Events
from swamp.serve.follow import Follower
from swamp.wiring import open_repo


def test_a_look_that_fails_is_tried_again_for_the_same_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWAMP_HOME", str(tmp_path / "home"))
    init_repo(tmp_path / "repo")
    repo = open_repo(tmp_path / "repo")
    db = Database(tmp_path / "serve.db")
    follower = Follower(repo, db, Events(db, repo.env), lambda drafts: drafts)
    directory = follower._directory
    directory.mkdir(parents=True, exist_ok=True)
    left = directory / "run-1.jsonl"
    left.write_text("not JSON\n")
    follower.over("run-1")
    with pytest.raises(ValueError, match="Expecting"):
        follower.look()
    assert left.exists()
    left.write_text("")
    follower.look()
    assert not left.exists(), "the run had ended, and the look that failed forgot it"
    db.close()
