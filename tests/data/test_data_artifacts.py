"""Data versions: how they come to exist, how they are read, how they go."""

from __future__ import annotations

import hashlib
import io
import multiprocessing
from dataclasses import replace
from pathlib import Path

import pytest
from trees import LazyTree, latest_names, snapshot

from swamp.data.artifacts import DataRepository
from swamp.data.lifetimes import Lifetime, Retention
from swamp.data.metadata import Draft, Owner
from swamp.data.names import DataName
from swamp.errors import CorruptData, Failed, NotFound, UsageError
from swamp.sync.port import PlainTree


def test_a_version_reads_back_with_everything_that_was_said_of_it(repo, name, draft):
    rich = replace(
        draft,
        content_type="application/json",
        lifetime=Lifetime.parse("30d"),
        retention=Retention.parse(3),
        tags={"modelName": "box", "env": "prod", "odd": "yes: #1"},
        owner=Owner("workflow-step", "box", workflow_id="w", workflow_run_id="r", job_name="j", step_name="s"),
    )
    saved = repo.save(name, rich, b'{"a": 1}')
    read = repo.get(name)
    assert read == saved
    assert read.meta.draft == rich
    assert read.meta.checksum == hashlib.sha256(b'{"a": 1}').hexdigest()
    assert (read.meta.size, read.version, repo.content(read)) == (8, 1, b'{"a": 1}')


def test_equal_bytes_make_a_new_version(repo, name, draft):
    assert [repo.save(name, draft, b"same").version for _ in range(3)] == [1, 2, 3]
    assert [v.version for v in repo.versions(name)] == [3, 2, 1]


@pytest.mark.parametrize("kind", ["file", "open file", "chunks"])
def test_content_may_be_streamed(repo, name, draft, tmp_path, kind):
    source = tmp_path / "source"
    source.write_bytes(b"ab" * 3_000_000)
    with source.open("rb") as opened:
        content = {"file": source, "open file": opened, "chunks": iter([b"ab" * 1_500_000] * 2)}[kind]
        saved = repo.save(name, draft, content)
    assert saved.meta.checksum == hashlib.sha256(b"ab" * 3_000_000).hexdigest()
    assert repo.content(saved) == source.read_bytes()


def test_a_directory_becomes_an_artifact_of_parts_and_comes_back_as_one(repo, name, draft, tmp_path, monkeypatch):
    source = tmp_path / "parts"
    (source / "day=1").mkdir(parents=True)
    (source / "day=1" / "part-0.parquet").write_bytes(b"one")
    (source / "part-1.parquet").write_bytes(b"three")
    saved = repo.save(name, draft, source)
    assert [(p.name, p.size) for p in saved.meta.parts] == [("day=1/part-0.parquet", 3), ("part-1.parquet", 5)]
    assert saved.meta.size == 8
    repo.copy_to(repo.get(name), tmp_path / "out")
    assert snapshot(tmp_path / "out") == snapshot(source)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    repo.copy_to(repo.get(name), Path())
    assert snapshot(tmp_path / "empty") == snapshot(source)
    with pytest.raises(UsageError, match="several parts"):
        repo.open(saved)


def test_an_empty_directory_is_refused_and_leaves_nothing(repo, name, draft, tmp_path):
    (tmp_path / "none").mkdir()
    with pytest.raises(UsageError):
        repo.save(name, draft, tmp_path / "none")
    assert list(repo.names()) == []


def test_a_failed_source_leaves_no_version(repo, name, draft, tree):
    def chunks():
        yield b"half"
        raise Failed("the source broke")

    with pytest.raises(Failed, match="the source broke"):
        repo.save(name, draft, chunks())
    assert repo.numbers(name) == []
    assert snapshot(tree.root) == {}
    assert repo.save(name, draft, b"next").version == 1


def test_a_version_without_metadata_does_not_exist_and_its_number_stays_taken(repo, name, draft):
    claim = repo.allocate_version(name, draft)
    claim.raw.write_bytes(b"line 1\nline 2\n")
    with pytest.raises(NotFound):
        repo.get(name)
    assert repo.save(name, draft, b"other").version == 2
    done = repo.finalize_version(claim, replace(draft, streaming=True))
    assert (done.version, repo.content(done)) == (1, b"line 1\nline 2\n")
    assert repo.get(name).version == 2


def test_a_finalized_version_never_changes(repo, name, draft):
    claim = repo.allocate_version(name, draft)
    claim.raw.write_bytes(b"by a child process")
    repo.finalize_version(claim, draft)
    with pytest.raises(Failed, match="cannot change"):
        repo.finalize_version(claim, draft)


def test_a_lazy_cache_never_uses_a_remote_number_again(tmp_path, name, draft):
    tree = LazyTree(tmp_path / "tree", {f"{name.path}/7/raw": b"elsewhere"})
    assert DataRepository(tree).save(name, draft, b"here").version == 8


def test_content_of_a_lazy_cache_is_fetched_when_it_is_read(tmp_path, name, draft):
    full = DataRepository(PlainTree(tmp_path / "tree"))
    saved = full.save(name, draft, b"payload")
    raw = tmp_path / "tree" / saved.ref.raw_path
    raw.unlink()
    tree = LazyTree(tmp_path / "tree", {saved.ref.raw_path: b"payload"})
    lazy = DataRepository(tree)
    assert lazy.get(name).meta == saved.meta
    assert tree.fetched == []
    assert lazy.content(lazy.get(name)) == b"payload"
    assert tree.fetched == [saved.ref.raw_path]


def test_only_the_owner_may_write_a_name(repo, name, draft):
    repo.save(name, draft, b"mine")
    stranger = replace(draft, owner=Owner("model-method", "other"))
    for attempt in (lambda: repo.save(name, stranger, b""), lambda: repo.allocate_version(name, stranger)):
        with pytest.raises(UsageError, match="belongs to manual box"):
            attempt()
    moved = replace(draft, owner=replace(draft.owner, workflow_run_id="another run"))
    assert repo.save(name, moved, b"same owner, other run").version == 2


def test_a_soft_deleted_name_is_free_for_another_owner(repo, name, draft):
    repo.save(name, draft, b"mine")
    repo.remove_latest_marker(name)
    assert repo.save(name, replace(draft, owner=Owner.manual("other")), b"theirs").version == 3


def test_latest_is_the_highest_version_with_metadata_whatever_the_marker_says(repo, name, draft, tree):
    repo.save(name, draft, b"1")
    repo.save(name, draft, b"2")
    marker = tree.root / name.path / "latest"
    assert marker.read_text().strip() == "2"
    with tree.announce([name.path]):
        marker.write_text("77")
    assert repo.get(name).version == 2


def test_soft_delete_hides_the_name_and_keeps_its_history(repo, name, draft):
    repo.save(name, draft, b"1")
    tombstone = repo.remove_latest_marker(name)
    assert (tombstone.version, tombstone.meta.lifecycle) == (2, "deleted")
    with pytest.raises(NotFound, match="was deleted"):
        repo.get(name)
    assert [v.version for v in repo.versions(name)] == [1]
    assert repo.content(repo.get(name, 1)) == b"1"
    assert latest_names(repo) == []
    assert repo.remove_latest_marker(name) is None


def test_delete_removes_one_version_or_all_and_says_how_many(repo, name, draft, tree):
    for content in (b"1", b"2", b"3"):
        repo.save(name, draft, content)
    assert repo.delete(name, 3) == 1
    assert (tree.root / name.path / "latest").read_text().strip() == "2"
    assert repo.delete(name, 3) == 0
    assert repo.delete(name) == 2
    assert snapshot(tree.root) == {}
    assert repo.delete(name) == 0


def test_rename_forwards_reads_and_keeps_the_history(repo, name, draft):
    repo.save(name, draft, b"old")
    repo.save(name, draft, b"new")
    renamed = repo.rename(name, "better")
    assert (renamed.new.name, renamed.new.version, renamed.old.meta.renamed_to) == ("better", 1, "better")
    assert repo.content(repo.get(name)) == b"new"
    assert repo.get(name).name == "better"
    assert repo.content(repo.get(name, 1)) == b"old"
    assert latest_names(repo) == ["better"]


def test_a_chain_of_renames_is_followed_and_a_way_back_is_no_circle(repo, name, draft):
    repo.save(name, draft, b"x")
    repo.rename(name, "b")
    repo.rename(name.sibling("b"), "c")
    assert repo.get(name).name == "c"
    repo.rename(name.sibling("c"), "result")
    assert {repo.get(name.sibling(n)).name for n in ("b", "c", "result")} == {"result"}


def test_rename_refuses_a_taken_name_and_changes_nothing(repo, name, draft, tree):
    repo.save(name, draft, b"1")
    repo.save(name.sibling("taken"), draft, b"2")
    before = snapshot(tree.root)
    for new in ("taken", "result"):
        with pytest.raises(UsageError, match="already data named"):
            repo.rename(name, new)
    assert snapshot(tree.root) == before


def test_damaged_metadata_is_an_error_with_the_command_that_repairs_it(repo, name, draft, tree):
    saved = repo.save(name, draft, b"1")
    with tree.announce([name.path]):
        (tree.root / saved.ref.metadata_path).write_text("id: [unclosed")
    with pytest.raises(CorruptData) as caught:
        repo.get(name)
    assert "swamp datastore verify --repair" in caught.value.hint
    assert saved.ref.metadata_path in caught.value.message


def test_torn_content_is_never_handed_out(repo, name, draft, tree, tmp_path):
    saved = repo.save(name, draft, b"good")
    with tree.announce([name.path]):
        (tree.root / saved.ref.raw_path).write_bytes(b"evil")
    with pytest.raises(CorruptData):
        repo.content(saved)
    with pytest.raises(CorruptData):
        repo.copy_to(saved, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_lost_a_conflict_is_saved_again_as_the_next_version(repo, name, draft, tmp_path, tree):
    lost = repo.save(name, replace(draft, tags={"modelName": "box", "k": "v"}), b"mine")
    kept = tmp_path / "conflicts" / "op" / lost.path
    kept.parent.mkdir(parents=True)
    with tree.announce([name.path]):
        (tree.root / lost.path).rename(kept)
        winner = tree.root / lost.path
        winner.mkdir()
        for file in ("raw", "metadata.yaml"):
            (winner / file).write_bytes((kept / file).read_bytes())
    again = repo.save_again(lost, kept)
    assert (again.version, repo.content(again), again.meta.draft) == (2, b"mine", lost.meta.draft)


def test_content_above_the_limit_is_refused_before_it_is_read(repo, name, draft):
    saved = repo.save(name, draft, b"12345")
    with pytest.raises(UsageError, match="5 bytes"):
        repo.content(saved, limit=4)
    assert repo.content(saved, limit=5) == b"12345"


def _save_many(root: str, name: DataName, draft: Draft, count: int, go) -> None:
    repo = DataRepository(PlainTree(Path(root)))
    go.wait()
    for _ in range(count):
        repo.save(name, draft, io.BytesIO(b"x"))


def test_processes_that_save_at_once_never_share_a_version(tmp_path, name, draft):
    context = multiprocessing.get_context("fork")
    go = context.Event()
    workers = [context.Process(target=_save_many, args=(str(tmp_path), name, draft, 15, go)) for _ in range(4)]
    for worker in workers:
        worker.start()
    go.set()
    for worker in workers:
        worker.join()
    repo = DataRepository(PlainTree(tmp_path))
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert [v.version for v in repo.versions(name)] == list(range(60, 0, -1))
    assert len({v.meta.id for v in repo.versions(name)}) == 60
