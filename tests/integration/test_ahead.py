"""The look that a sync begins before it is loaded is at the tree that it will sync."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from swamp import open_repo
from swamp.cache import second
from swamp.cache.rows import BaseRow
from swamp.cache.state import State
from swamp.cli import main
from swamp.repo import ahead
from swamp.repo.config import init_repo, write_config


@pytest.fixture
def guessed(tmp_path, monkeypatch):
    """The state's file and the tree that a line of words begins to look at; None if it does not."""
    monkeypatch.setenv("SWAMP_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SWAMP_REPO_DIR", raising=False)
    begun: list[tuple[str, str]] = []

    def begin(*asked: str) -> nullcontext[None]:
        begun.append(asked)
        return nullcontext()

    monkeypatch.setattr(second, "begun_ahead", begin)

    def guess(*words: str) -> tuple[str, str] | None:
        begun.clear()
        with ahead.looking_ahead(words):
            return begun[0] if begun else None

    return guess


def made(repo: Path, bucket: str) -> tuple[str, str]:
    """A repository with a bucket and a cache of it: its state's file and its tree."""
    if not (repo / ".swamp.yaml").exists():
        init_repo(repo)
    write_config(repo, {"datastore": {"type": "@swamp/file-datastore", "url": f"file://{repo.parent}/{bucket}"}})
    with open_repo(repo) as opened:
        cache = opened.datastore.cache.ensure()
    state = State.open(cache.state_db)
    with state.transaction() as tx:
        tx.put_base(BaseRow("data/a", "k", 3, "0" * 64, 1, True))
    state.close()
    return str(cache.state_db), str(cache.tree)


def test_every_way_to_name_a_repository_leads_to_its_cache(guessed, tmp_path, monkeypatch):
    cache, repo = made(tmp_path / "repo", "bucket"), str(tmp_path / "repo")
    assert guessed("datastore", "sync", "--repo-dir", repo) == cache
    assert guessed("sync", f"--repo-dir={repo}", "--json") == cache
    assert guessed("sync") is None
    monkeypatch.setenv("SWAMP_REPO_DIR", repo)
    assert guessed("sync", "--push") == cache
    monkeypatch.delenv("SWAMP_REPO_DIR")
    (tmp_path / "repo" / "models" / "web").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "repo" / "models" / "web")
    assert guessed("sync") == cache
    assert guessed("datastore", "status") is None and guessed() is None


def test_of_several_stores_it_is_the_one_in_use(guessed, tmp_path):
    for bucket in ("one", "other"):
        cache = made(tmp_path / "repo", bucket)
        assert guessed("sync", "--repo-dir", str(tmp_path / "repo")) == cache


@pytest.mark.parametrize("text", ["", "repoId: 1\nrepoId: 2\n", "\xff\xfe", "repoId: ../../x"])
def test_a_repository_that_says_nothing_of_use_is_left_to_the_command(guessed, tmp_path, text):
    (tmp_path / ".swamp.yaml").write_bytes(text.encode("latin-1"))
    assert guessed("sync", "--repo-dir", str(tmp_path)) is None
    assert guessed("sync", "--repo-dir", str(tmp_path / "nowhere")) is None
    assert guessed("sync", "--repo-dir") is None


def test_a_command_that_is_interrupted_while_it_is_loaded_says_so(monkeypatch, capsys):
    def impatient(_: object) -> nullcontext[None]:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "looking_ahead", impatient)
    assert main.main(["data", "list"]) == 130
    assert capsys.readouterr().err.startswith("Error: interrupted\n")
