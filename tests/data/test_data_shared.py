"""Data and catalog on the real engine: two caches, one bucket in a directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from swamp.cache.layout import CacheDir
from swamp.catalog.catalog import Catalog
from swamp.data.artifacts import DataRepository
from swamp.index.root import Writer
from swamp.store.directory import DirectoryStore
from swamp.sync.engine import Engine, Policy


@dataclass
class Peer:
    engine: Engine
    catalog: Catalog
    repo: DataRepository

    @classmethod
    def open(cls, bucket: Path, home: Path, hydrate: str = "full") -> Peer:
        engine = Engine.open(
            DirectoryStore(bucket),
            CacheDir(home / "cache"),
            writer=Writer(home.name, "host", "user", 1, "test"),
            policy=Policy(hydrate=hydrate),
        )
        catalog = Catalog(home / "_catalog.db", engine)
        return cls(engine, catalog, DataRepository(engine, catalog))

    def listed(self) -> list[tuple[str, int]]:
        return [(row.ref.data.name, row.ref.version) for row in self.catalog.latest()]


@pytest.fixture
def peers(tmp_path):
    (tmp_path / "bucket").mkdir()
    return [Peer.open(tmp_path / "bucket", tmp_path / name) for name in ("a", "b")]


def test_what_one_saves_the_other_lists_and_reads(peers, name, draft):
    a, b = peers
    a.repo.save(name, draft, b"1")
    saved = a.repo.save(name, draft, iter([b"2"]))
    assert a.engine.push().ok
    assert b.listed() == []
    assert b.engine.pull().ok
    assert b.listed() == [("result", 2)]
    assert b.repo.get(name).meta == saved.meta
    assert b.repo.content(b.repo.get(name)) == b"2"


def test_deletes_renames_and_collections_stay_done_everywhere(peers, name, draft):
    a, b = peers
    for i in range(12):
        a.repo.save(name, draft, b"%d" % i)
    a.repo.save(name.sibling("gone"), draft, b"x")
    a.repo.save(name.sibling("old"), draft, b"y")
    a.engine.push()
    b.engine.pull()
    b.listed()
    a.repo.delete(name.sibling("gone"), confirmed=True)
    a.repo.rename(name.sibling("old"), "new")
    a.repo.collect_garbage(confirmed=True)
    assert a.engine.push().ok
    assert b.engine.sync().ok
    assert a.engine.sync().ok
    for peer in (a, b):
        assert peer.listed() == [("new", 1), ("result", 12)]
        assert [v.version for v in peer.repo.versions(name)] == list(range(12, 2, -1))
        assert peer.repo.get(name.sibling("old")).name == "new"


def test_a_version_that_is_being_streamed_is_not_pushed(peers, name, draft):
    a, b = peers
    claim = a.repo.allocate_version(name, draft)
    claim.raw.write_bytes(b"half")
    a.engine.push()
    b.engine.pull()
    assert b.repo.numbers(name) == []
    assert not (b.engine.root / claim.ref.raw_path).exists()
    claim.raw.write_bytes(b"half and half")
    a.repo.finalize_version(claim, draft)
    a.engine.push()
    b.engine.pull()
    assert b.repo.content(b.repo.get(name)) == b"half and half"


def test_a_lazy_reader_lists_without_content_and_never_reuses_a_number(tmp_path, name, draft):
    (tmp_path / "bucket").mkdir()
    a = Peer.open(tmp_path / "bucket", tmp_path / "a")
    b = Peer.open(tmp_path / "bucket", tmp_path / "b", hydrate="lazy")
    saved = a.repo.save(name, draft, b"payload")
    a.engine.push()
    b.engine.pull()
    assert b.listed() == [("result", 1)]
    assert not (b.engine.root / saved.ref.raw_path).exists()
    assert b.repo.save(name, draft, b"mine").version == 2
    assert b.repo.content(b.repo.get(name, 1)) == b"payload"


def test_both_save_the_same_number_and_the_loser_saves_again(peers, name, draft):
    a, b = peers
    a.repo.save(name, draft, b"first")
    lost = b.repo.save(name, draft, b"second")
    assert a.engine.push().ok
    result = b.engine.push()
    kept = {c.path: b.engine.cache.base / c.kept for c in result.conflicts}
    assert {path for path in kept if not path.startswith(lost.path)} == set()
    b.repo.save_again(lost, next(p for path in kept.values() for p in (path, *path.parents) if p.name == "1"))
    assert b.engine.sync().ok
    assert a.engine.sync().ok
    for peer in (a, b):
        assert [(v.version, peer.repo.content(v)) for v in peer.repo.versions(name)] == [(2, b"second"), (1, b"first")]
        assert peer.listed() == [("result", 2)]
