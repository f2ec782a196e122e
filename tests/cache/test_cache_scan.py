"""Walking a real tree: everything is seen or reported, in the order in which a database sorts paths."""

import os
import socket
import sqlite3
import tempfile
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swamp.cache.files import fingerprint_of
from swamp.cache.paths import TEMP_PREFIX, is_safe
from swamp.cache.scan import Observed, ScanProblem, collisions, scan, stat_one


def write(tree: Path, *paths: str) -> None:
    for path in paths:
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(path)


def seen(tree: Path, *args, **kwargs) -> list[str]:
    return [s.path for s in scan(tree, *args, **kwargs) if isinstance(s, Observed)]


def problems(tree: Path, *args, **kwargs) -> dict[str, ScanProblem]:
    return {s.path: s for s in scan(tree, *args, **kwargs) if isinstance(s, ScanProblem)}


@contextmanager
def as_nobody():
    """Root may read everything: step down, so that permissions mean something."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_to_all():
    """A tree that other users can reach: pytest's own directories are private."""
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory)
        tree.chmod(0o755)
        yield tree


def test_every_regular_file_is_observed_with_its_stat(tmp_path):
    write(tmp_path, "data/a", "files/deep/er/x")
    found = list(scan(tmp_path))
    assert found == [Observed(p, fingerprint_of((tmp_path / p).lstat())) for p in ("data/a", "files/deep/er/x")]
    assert found[0].size == len("data/a")


def test_order_is_that_of_whole_paths_so_that_it_merges_with_sql(tmp_path):
    paths = ["f/a/b", "f/a-b", "f/a", "f/a.b/c", "f/a0", "f/é/x", "f/e", "f/a!/z", "f/Z", "f/🦎", "f/\ufffd"]
    paths.remove("f/a")
    write(tmp_path, *paths)
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE TABLE base (path TEXT PRIMARY KEY)")
        db.executemany("INSERT INTO base VALUES (?)", [(p,) for p in paths])
        in_sql = [p for (p,) in db.execute("SELECT path FROM base ORDER BY path")]
    assert seen(tmp_path) == in_sql == sorted(paths)


_name = st.text(alphabet="ab-./0 é~\U0001f98e\ufffd", min_size=1, max_size=3).filter(lambda n: "/" not in n)
_paths = st.lists(st.lists(_name, min_size=1, max_size=4).map(lambda p: "/".join(["files", *p])), max_size=25)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(paths=_paths)
def test_any_tree_is_walked_in_sorted_order_without_gaps(tmp_path_factory, paths):
    tree = tmp_path_factory.mktemp("tree")
    written = set()
    for path in filter(is_safe, paths):
        try:
            write(tree, path)
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            continue
        written.add(path)
    assert seen(tree) == sorted(written)
    assert problems(tree) == {}


def test_a_start_limits_the_walk_to_a_directory_or_a_file(tmp_path):
    write(tmp_path, "data/a/1", "data/a/2", "data/ab", "files/x")
    assert seen(tmp_path, "data/a") == ["data/a/1", "data/a/2"]
    assert seen(tmp_path, "files/x") == ["files/x"]
    assert list(scan(tmp_path, "nothing/here")) == []
    assert list(scan(tmp_path / "gone")) == []
    assert problems(tmp_path, "../x")["../x"].kind == "name"


def test_internal_and_temporary_names_are_left_out_and_lookalikes_are_not(tmp_path):
    write(tmp_path, ".hidden/x", "_index/x", "data/t/id/.lock", "data/t/id/n/latest", "data/t/id/n/1/raw/latest")
    write(tmp_path, "data/_catalog.db-wal", f"data/{TEMP_PREFIX}1", f"data/{TEMP_PREFIX}d/x")
    write(tmp_path, "data/aws/ec2/x/latest/n/1/raw", "files/.keep")
    assert seen(tmp_path) == ["data/aws/ec2/x/latest/n/1/raw", "data/t/id/n/1/raw/latest", "files/.keep"]
    assert problems(tmp_path) == {}


def test_excluded_directories_are_not_entered(tmp_path):
    write(tmp_path, "files/keep", "files/skip/x", "files/skip.txt")
    asked = []

    def exclude(path, directory):
        asked.append((path, directory))
        return path in ("files/skip", "files/skip.txt")

    assert seen(tmp_path, exclude=exclude) == ["files/keep"]
    assert ("files/skip", True) in asked and ("files/skip.txt", False) in asked
    assert not any(path.startswith("files/skip/") for path, _ in asked)


@pytest.mark.inv("scan.honest")
def test_L08_what_cannot_be_read_is_reported_and_the_rest_is_seen(open_to_all):
    tmp_path = open_to_all
    write(tmp_path, "files/a", "files/locked/x", "files/no-list/x", "files/z")
    (tmp_path / "files/dangling").symlink_to("nowhere")
    (tmp_path / "files/loop").symlink_to("loop")
    os.mkfifo(tmp_path / "files/pipe")
    (tmp_path / "files/locked").chmod(0o000)
    (tmp_path / "files/no-list").chmod(0o644)
    try:
        with as_nobody():
            found, bad = seen(tmp_path), problems(tmp_path)
            one = stat_one(tmp_path, "files/locked/x")
    finally:
        (tmp_path / "files/locked").chmod(0o755)
        (tmp_path / "files/no-list").chmod(0o755)
    assert found == ["files/a", "files/z"]
    assert {p: b.kind for p, b in bad.items()} == {
        "files/dangling": "link",
        "files/loop": "link",
        "files/pipe": "special",
        "files/locked": "unreadable",
        "files/no-list/x": "unreadable",
    }
    assert bad["files/locked"].hides("files/locked/x") and not bad["files/locked"].hides("files/locked-not")
    assert isinstance(one, ScanProblem) and one.kind == "unreadable"


@pytest.mark.inv("scan.honest")
def test_L01_a_file_that_vanishes_while_it_is_walked_is_a_problem_not_an_absence(tmp_path):
    write(tmp_path, "files/1", "files/2", "files/3", "files/d/x", "files/e/x", "files/z")
    walk = scan(tmp_path)
    assert next(walk).path == "files/1"
    (tmp_path / "files/2").unlink()
    (tmp_path / "files/3").unlink()
    (tmp_path / "files/3").mkdir()
    (tmp_path / "files/d/x").unlink()
    (tmp_path / "files/d").rmdir()
    rest = list(walk)
    assert [s.path for s in rest if isinstance(s, Observed)] == ["files/e/x", "files/z"]
    assert [(s.path, s.kind) for s in rest if isinstance(s, ScanProblem)] == [
        ("files/2", "vanished"),
        ("files/3", "vanished"),
        ("files/d", "vanished"),
    ]


def test_S17_links_are_never_followed_out_of_the_tree_nor_into_directories(tmp_path):
    tree, outside = tmp_path / "tree", tmp_path / "tree-outside"
    write(outside, "secret")
    write(tree, "files/real", "files/dir/x")
    (tree / "files/out").symlink_to(outside / "secret")
    (tree / "files/out-dir").symlink_to(outside)
    (tree / "files/in").symlink_to("real")
    (tree / "files/in-dir").symlink_to("dir")
    (tree / "files/up").symlink_to("..")
    assert seen(tree) == ["files/dir/x", "files/in", "files/real"]
    bad = problems(tree)
    assert sorted(bad) == ["files/in-dir", "files/out", "files/out-dir", "files/up"]
    assert {b.kind for b in bad.values()} == {"link"}
    assert bad["files/out-dir"].hides("files/out-dir/secret")
    for path in ("files/out-dir/secret", "files/in-dir/x"):
        assert isinstance(stat_one(tree, path), ScanProblem)
        assert [s.kind for s in scan(tree, path)] == ["link"]


def test_a_tree_that_is_itself_reached_through_a_link_is_walked(tmp_path):
    write(tmp_path / "real", "files/x")
    (tmp_path / "files-link").symlink_to("real")
    (tmp_path / "real/files/in").symlink_to("x")
    assert seen(tmp_path / "files-link") == ["files/in", "files/x"]


def test_names_that_cannot_be_shared_are_reported(tmp_path):
    write(tmp_path, "files/good", "files/back\\slash", "files/new\nline/x", "files/x~01JD0000000000000000000000")
    (tmp_path / os.fsdecode(b"files/latin-\xe9")).write_text("x")
    assert seen(tmp_path) == ["files/good"]
    bad = problems(tmp_path)
    assert len(bad) == 4 and {b.kind for b in bad.values()} == {"name"}
    assert all(str(b).isprintable() for b in bad.values())


def test_one_file_is_observed_alone(tmp_path):
    write(tmp_path, "files/x")
    assert stat_one(tmp_path, "files/x") == Observed("files/x", fingerprint_of((tmp_path / "files/x").lstat()))
    assert stat_one(tmp_path, "files") is None
    assert stat_one(tmp_path, "files/none") is None
    assert stat_one(tmp_path, "files/x/below-a-file") is None
    assert isinstance(stat_one(tmp_path, "../x"), ScanProblem)


def test_a_socket_is_reported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s")
        assert problems(tmp_path)["s"].kind == "special"


def test_a_deep_tree_is_walked(tmp_path):
    path = "/".join(["d"] * 490)
    write(tmp_path, path + "/x")
    assert seen(tmp_path) == [path + "/x"]


def test_S14_L46_paths_that_cannot_coexist_are_found():
    found = collisions(["f/Foo", "f/foo", "f/é", "f/e\u0301", "f/raw", "f/raw/part", "g/A", "g/a/b", "ok", "f/ok"])
    assert [(c.first, c.second) for c in found] == [
        ("f/Foo", "f/foo"),
        ("f/e\u0301", "f/é"),
        ("f/raw", "f/raw/part"),
        ("g/A", "g/a/b"),
    ]
    assert collisions(["a", "a", "a-b", "ab/c"]) == []


def test_problems_come_at_their_place_in_path_order(tmp_path):
    """Whoever merges the walk with other streams would meet a path twice otherwise."""
    for name in ("outputs/a", "outputs/b-c", "outputs/b/d", "outputs/zz", f"outputs/b~{'0' * 26}", "x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    seen = [found.path for found in scan(tmp_path)]
    assert seen == sorted(seen) and len(seen) == 6
