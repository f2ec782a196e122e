"""The catalog is a copy of the tree: it follows, it heals, and it never outlives what it describes."""

from __future__ import annotations

import multiprocessing
import shutil
import sqlite3
import threading
import time

import pytest
from trees import latest_of

from swamp.catalog.catalog import Catalog
from swamp.catalog.schema import FIELDS, PLAIN_FIELDS, SCHEMA_VERSION
from swamp.data.artifacts import DataRepository
from swamp.data.metadata import Draft, Owner
from swamp.data.names import DataName
from swamp.sync.port import PlainTree


def age(root, seconds: float = 60) -> None:
    """Makes directories look untouched for a while, so that their times are trusted."""
    import os

    then = time.time() - seconds
    for path in [root, *root.rglob("*")]:
        if path.is_dir():
            os.utime(path, (then, then))


@pytest.fixture(params=["plain", "engine"])
def any_shelf(request, tmp_path):
    return request.getfixturevalue("shelf" if request.param == "plain" else "lazy_shelf")


def test_a_write_is_listed_at_once(any_shelf):
    any_shelf.save("a")
    assert any_shelf.listed() == [("a", 1)]
    any_shelf.save("a")
    any_shelf.save("b")
    assert any_shelf.listed() == [("a", 2), ("b", 1)]


def test_deletes_renames_and_collections_leave_no_rows(any_shelf):
    for _ in range(12):
        saved = any_shelf.save("a")
    any_shelf.save("b")
    assert any_shelf.listed() == [("a", 12), ("b", 1)]
    any_shelf.repo.delete(saved.ref.data, 12)
    assert any_shelf.listed() == [("a", 11), ("b", 1)]
    any_shelf.repo.collect_garbage()
    assert [row.ref.version for row in any_shelf.catalog.versions(saved.ref.data)] == list(range(11, 1, -1))
    any_shelf.repo.rename(saved.ref.data, "c")
    assert any_shelf.listed() == [("b", 1), ("c", 1)]
    any_shelf.repo.remove_latest_marker(saved.ref.data.sibling("b"))
    any_shelf.repo.delete(saved.ref.data.sibling("c"))
    assert any_shelf.listed() == []


def test_what_the_catalog_says_is_what_the_tree_says(any_shelf):
    for name in ("a", "b", "2024", "raw"):
        any_shelf.save(name, env=name)
        any_shelf.save(name, env=name)
    from_tree = sorted((v.name, v.version, v.meta.checksum, dict(v.meta.tags)) for v in latest_of(any_shelf.repo))
    for catalog in (any_shelf.catalog, rebuilt(any_shelf)):
        rows = [(r.ref.data.name, r.ref.version, r.checksum, r.fields["tags"]) for r in catalog.latest()]
        assert sorted(rows) == from_tree


def rebuilt(shelf) -> Catalog:
    shelf.catalog.close()
    shelf.path.unlink()
    return shelf.open()


@pytest.mark.parametrize("what", ["missing", "empty", "noise", "cut off", "old schema", "not populated", "other tree"])
def test_S18_a_catalog_that_cannot_be_used_is_made_again(any_shelf, what):
    for name in ("a", "b"):
        any_shelf.save(name)
    assert len(any_shelf.listed()) == 2
    any_shelf.catalog.close()
    damage(any_shelf.path, what)
    assert any_shelf.listed(any_shelf.open()) == [("a", 1), ("b", 1)]


def damage(path, what: str) -> None:
    if what == "missing":
        path.unlink()
    elif what == "empty":
        path.write_bytes(b"")
    elif what == "noise":
        path.write_bytes(b"this is not a database" * 500)
    elif what == "cut off":
        path.write_bytes(path.read_bytes()[:5000])
    else:
        db = sqlite3.connect(path)
        if what == "old schema":
            db.executescript(f"PRAGMA user_version = {SCHEMA_VERSION - 1}; DROP TABLE data; CREATE TABLE data (x)")
        elif what == "not populated":
            db.executescript("DELETE FROM meta WHERE name = 'populated'; DELETE FROM data")
        else:
            db.executescript("UPDATE meta SET value = 'elsewhere' WHERE name = 'populated'; DELETE FROM data")
        db.commit()
        db.close()
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def test_damage_while_it_is_open_heals_too(shelf):
    for name in ("a", "b"):
        shelf.save(name)
    shelf.listed()
    with sqlite3.connect(shelf.path) as other:
        other.execute("DROP TABLE data")
    assert shelf.listed() == [("a", 1), ("b", 1)]


def test_S18_rows_of_files_that_are_gone_disappear(shelf):
    for name in ("a", "b"):
        shelf.save(name)
        saved = shelf.save(name)
    age(shelf.tree.root / "data")
    assert shelf.listed() == [("a", 2), ("b", 2)]
    shutil.rmtree(shelf.tree.root / saved.path)
    assert shelf.listed() == [("a", 2), ("b", 1)]
    shutil.rmtree(shelf.tree.root / saved.ref.data.path)
    assert shelf.listed() == [("a", 2)]
    shutil.rmtree(shelf.tree.root / "data")
    assert shelf.listed() == []


def test_a_plain_directory_that_others_write_to_is_followed(shelf, tmp_path):
    """Two repositories on one `filesystem` directory have a catalog each."""
    shelf.save("a")
    shelf.listed()
    age(shelf.tree.root / "data")
    other = Catalog(tmp_path / "other" / "_catalog.db", shelf.tree)
    assert shelf.listed(other) == [("a", 1)]
    repo = DataRepository(shelf.tree, other)
    name = DataName.of("manual/data", "box", "a")
    repo.save(name, Draft(Owner.manual("box")), b"2")
    repo.save(name.sibling("new"), Draft(Owner.manual("box")), b"1")
    assert shelf.listed() == [("a", 2), ("new", 1)]


def test_a_quiet_plain_directory_is_not_read_again(shelf):
    for name in ("a", "b"):
        shelf.save(name)
    age(shelf.tree.root / "data")
    shelf.listed()
    shelf.statements.clear()
    shelf.listed()
    assert [s for s in shelf.statements if not s.startswith("SELECT")] == []


def test_after_a_pull_only_what_it_touched_is_read(lazy_shelf):
    shelf = lazy_shelf
    for name in ("a", "b"):
        shelf.save(name)
    shelf.listed()
    age(shelf.tree.root / "data")
    shelf.catalog.refresh()
    arrived = shelf.tree.root / DataName.of("manual/data", "box", "a").at(2).path
    shutil.copytree(arrived.with_name("1"), arrived)
    metadata = arrived / "metadata.yaml"
    metadata.write_text(metadata.read_text().replace("version: 1", "version: 2"))
    assert shelf.listed() == [("a", 1), ("b", 1)]
    shelf.tree.touched += [f"data/manual/data/box/a/2/{file}" for file in ("raw", "metadata.yaml")]
    shelf.statements.clear()
    assert shelf.listed() == [("a", 2), ("b", 1)]
    written = [s for s in shelf.statements if s.startswith("INSERT OR REPLACE INTO data")]
    assert len(written) == 1


def test_a_pull_that_removed_files_removes_rows(lazy_shelf):
    saved = lazy_shelf.save("a")
    lazy_shelf.save("b")
    lazy_shelf.listed()
    shutil.rmtree(lazy_shelf.tree.root / saved.ref.data.path)
    lazy_shelf.tree.touched.append(saved.ref.metadata_path)
    assert lazy_shelf.listed() == [("b", 1)]


def test_too_many_changes_to_remember_mean_a_rebuild(lazy_shelf):
    lazy_shelf.save("a")
    lazy_shelf.listed()
    shutil.rmtree(lazy_shelf.tree.root / "data")
    DataRepository(PlainTree(lazy_shelf.tree.root)).save(
        DataName.of("manual/data", "box", "z"), Draft(Owner.manual("box")), b""
    )
    lazy_shelf.tree.forgotten_before = 1000
    assert lazy_shelf.listed() == [("z", 1)]


@pytest.mark.parametrize(
    "place", ["data", "data/manual/data/box", "data/manual/data/box/a", "data/manual/data/box/7/1"]
)
def test_a_touched_directory_is_read_again_whatever_its_depth(lazy_shelf, place):
    for name in ("a", "7"):
        lazy_shelf.save(name)
    lazy_shelf.listed()
    name = "7" if "7" in place else "a"
    shutil.rmtree(lazy_shelf.tree.root / "data/manual/data/box" / name)
    lazy_shelf.tree.touched.append(place)
    assert (name, 1) not in lazy_shelf.listed()
    assert len(lazy_shelf.listed()) == 1


def test_a_write_whose_writer_died_before_the_catalog_is_found(any_shelf):
    """kill -9 between metadata and write-through: the announcement, or the directory, still tells."""
    any_shelf.save("a")
    any_shelf.listed()
    DataRepository(any_shelf.tree).save(DataName.of("manual/data", "box", "b"), Draft(Owner.manual("box")), b"")
    assert any_shelf.listed() == [("a", 1), ("b", 1)]


def test_damaged_metadata_is_a_warning_and_hides_nothing_else(any_shelf):
    saved = any_shelf.save("a")
    any_shelf.save("b")
    (any_shelf.tree.root / saved.ref.metadata_path).write_text("nonsense: [")
    catalog = rebuilt(any_shelf)
    assert any_shelf.listed(catalog) == [("b", 1)]
    ((path, reason),) = catalog.damaged()
    assert path == saved.ref.metadata_path
    assert "damaged" in reason


def test_a_version_that_is_being_written_is_not_listed(any_shelf):
    any_shelf.save("a")
    name = DataName.of("manual/data", "box", "b")
    claim = any_shelf.repo.allocate_version(name, Draft(Owner.manual("box")))
    claim.raw.write_bytes(b"half")
    assert any_shelf.listed() == [("a", 1)]
    any_shelf.repo.finalize_version(claim, Draft(Owner.manual("box")))
    assert any_shelf.listed() == [("a", 1), ("b", 1)]


def _write(path, root, name: str, count: int, go) -> None:
    tree = PlainTree(root)
    repo = DataRepository(tree, Catalog(path, tree))
    go.wait()
    for _ in range(count):
        repo.save(DataName.of("manual/data", "box", name), Draft(Owner.manual("box")), b"x")


def test_processes_write_and_read_one_catalog_at_once(shelf):
    shelf.save("seed")
    context = multiprocessing.get_context("fork")
    go = context.Event()
    workers = [context.Process(target=_write, args=(shelf.path, shelf.tree.root, f"n{i}", 12, go)) for i in range(3)]
    for worker in workers:
        worker.start()
    go.set()
    while any(worker.is_alive() for worker in workers):
        assert ("seed", 1) in shelf.listed()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert shelf.listed() == [("n0", 12), ("n1", 12), ("n2", 12), ("seed", 1)]


def test_threads_share_a_catalog(shelf):
    threads = [threading.Thread(target=shelf.save, args=(f"t{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(shelf.listed()) == 8


def test_the_list_is_one_query_however_many_versions_there_are(shelf):
    for i in range(30):
        shelf.save(f"n{i % 10}")
    age(shelf.tree.root / "data")
    shelf.listed()
    shelf.statements.clear()
    assert len(shelf.listed()) == 10
    (statement,) = shelf.reads_of_data()
    assert "isLatest = 1" in statement


def test_a_name_costs_the_same_to_read_again_however_many_others_there_are(shelf):
    """`data list` of a young tree of 100,000 versions took 17 s: every name that was read again read all rows."""

    def steps(names: int) -> int:
        for i in range(names):
            shelf.save(f"n{i}")  # too young to be trusted: read again by the next look
        taken = []
        shelf.catalog._connections.mine().set_progress_handler(lambda: taken.append(1), 10)
        shelf.listed()
        shelf.catalog._connections.mine().set_progress_handler(None, 0)
        return len(taken)

    steps(1)  # the first look builds everything
    few, many = steps(20), steps(200)
    assert many < 20 * few


def test_the_versions_of_a_name_are_found_by_its_key(shelf):
    for i in range(30):
        shelf.save(f"n{i}")
    shelf.listed()
    shelf.statements.clear()
    assert [row.ref.version for row in shelf.catalog.versions(DataName.of("manual/data", "box", "n7"))] == [1]
    asked = shelf.reads_of_data()[-1]
    (plan,) = shelf.catalog._connections.mine().execute(f"EXPLAIN QUERY PLAN {asked}").fetchall()
    assert "USING PRIMARY KEY (ns=? AND modelType=? AND modelId=? AND name=?)" in plan[3]


def test_the_list_narrows_by_type_workflow_and_run(shelf):
    for model, flow, run in (("m1", "deploy", "r1"), ("m1", "deploy", "r2"), ("m2", "backup", "r3")):
        owner = Owner("workflow-step", model, workflow_name=flow, workflow_id=f"id-{flow}", workflow_run_id=run)
        shelf.repo.save(DataName.of(f"type/{model}", model, run), Draft(owner), b"")

    def found(**wanted):
        return [row.ref.data.name for row in shelf.catalog.latest(**wanted)]

    assert found(model_type="type/m2") == ["r3"]
    assert found(workflow="deploy") == found(workflow="id-deploy") == ["r1", "r2"]
    assert found(run_id="r2") == ["r2"]


def test_search_by_tags_and_time(shelf):
    for name, tags in {"a": {"env": "prod", "team": "x"}, "b": {"env": "prod"}, "c": {"env": "dev"}}.items():
        shelf.save(name, **tags)
        saved = time.time_ns() // 1_000_000
        while time.time_ns() // 1_000_000 == saved:  # what is saved within one tick has one time
            pass
    assert {r.ref.data.name for r in shelf.catalog.search([("env", "prod")])} == {"a", "b"}
    assert [r.ref.data.name for r in shelf.catalog.search([("env", "prod"), ("team", "x")])] == ["a"]
    assert [r.ref.data.name for r in shelf.catalog.search(since="2020-01-01")] == ["c", "b", "a"]
    assert shelf.catalog.search(since="2999-01-01") == []


def test_every_query_field_has_a_column_or_is_content():
    assert set(FIELDS) == set(PLAIN_FIELDS) | {"attributes", "content"}


def test_threads_that_come_and_go_leave_no_connection_open(shelf):
    """A server's do, all the time; garbage is not collected meanwhile."""
    import gc
    import os

    shelf.save("a")
    path = str(shelf.catalog._connections._path)

    def opened() -> int:
        links = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
        return sum(os.path.lexists(link) and os.readlink(link) == path for link in links)

    gc.disable()
    try:
        for _ in range(30):
            thread = threading.Thread(target=shelf.listed)
            thread.start()
            thread.join()
    finally:
        gc.enable()
    assert opened() <= 6
