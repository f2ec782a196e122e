"""What vanished from a tree is found by every look, however many directories there are."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sqlite3
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from swamp.cache import second
from swamp.cache.damage import Look, look_for_damage, remember_whole
from swamp.cache.rows import BaseRow
from swamp.cache.second import begun_ahead, second_look
from swamp.cache.state import State


@pytest.fixture
def tree(tmp_path):
    tree = tmp_path / "tree"
    state = State.open(tmp_path / "state.db", durable=False)
    paths = ["top", *(f"data/n{n}/1/raw" for n in range(7))]
    for path in paths:
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text("abc")
    with state.transaction() as tx:
        tx.put_bases(BaseRow(path, path, 3, "0" * 64, 1, True) for path in paths)
    for directory in {(tree / path).parent for path in paths}:
        os.utime(directory, (1, 1))
    remember_whole(state, look_for_damage(state, tree, time.time_ns()))
    yield state, tree, paths
    state.close()


def looked(state: State, tree: Path) -> Look:
    """As a sync that finds nothing else to do."""
    look = Look(tree)
    with second_look(str(state.path), str(tree)) as other:
        look.at_all(state, other)
    return look


@pytest.mark.inv("tree.damage")
def test_a_file_that_vanished_anywhere_is_found_while_the_store_is_asked(tree):
    state, root, paths = tree
    for path in paths:
        (root / path).unlink()
        look = looked(state, root)
        assert [differing for differing, _ in look.differing] == [path.rpartition("/")[0]]
        assert look.damage(state, time.time_ns()).missing == [path]
        assert look_for_damage(state, root, time.time_ns()).missing == [path]
        (root / path).write_text("abc")
        remember_whole(state, look_for_damage(state, root, time.time_ns() + 10**10))


@pytest.mark.inv("tree.damage")
def test_a_directory_that_is_as_it_was_is_not_listed(tree):
    state, root, _ = tree
    look = looked(state, root)
    assert not look.differing


@pytest.mark.inv("tree.damage")
def test_a_tree_that_is_gone_as_a_whole_is_missing_everything(tree):
    state, root, paths = tree
    shutil.rmtree(root)
    look = looked(state, root)
    assert sorted(look.damage(state, time.time_ns()).missing) == sorted(paths)


@pytest.fixture
def halved(tree, monkeypatch):
    """As with very many directories: a second process looks, too."""
    monkeypatch.setattr(second, "LARGE", 2)
    monkeypatch.setattr(second, "PAGE", 1)
    monkeypatch.setattr("swamp.cache.damage.PAGE", 1)
    monkeypatch.setattr(second, "_threads", set)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    forks, fork = [], os.fork

    def forked() -> int:
        forks.append(fork())
        return forks[-1]

    monkeypatch.setattr("os.fork", forked)
    return *tree, forks


@pytest.mark.inv("tree.damage")
def test_whoever_looks_at_it_a_file_that_vanished_is_found(halved):
    state, root, paths, forks = halved
    for path in paths:
        (root / path).unlink()
        look = looked(state, root)
        assert [differing for differing, _ in look.differing] == [path.rpartition("/")[0]]
        assert look.damage(state, time.time_ns()).missing == [path]
        (root / path).write_text("abc")
        remember_whole(state, look_for_damage(state, root, time.time_ns() + 10**10))
    assert len(forks) == len(paths)


@pytest.mark.inv("tree.damage")
@pytest.mark.parametrize("end", [lambda: os._exit(9), lambda: 1 / 0], ids=["killed", "failed"])
def test_a_second_process_that_does_not_come_to_its_end_has_said_nothing(halved, monkeypatch, end):
    """Killed, out of memory, without its database, after it took all of them: the first one looks at them."""
    state, root, paths, forks = halved
    for path in paths:
        (root / path).unlink()

    def take_and_end(other: second.Second, _: int) -> list[str]:
        other.seen_by_both[0] = other.seen_by_both[2] = len(paths)
        end()
        return []

    monkeypatch.setattr(second, "_looked", take_and_end)
    look = looked(state, root)
    assert sorted(look.damage(state, time.time_ns()).missing) == sorted(paths) and len(forks) == 1


@pytest.mark.inv("tree.damage")
def test_what_neither_of_the_two_has_looked_at_the_first_one_looks_at(halved, monkeypatch):
    """The numbers by which they meet may be wrong, if only because somebody else adds directories meanwhile."""
    state, root, paths, _ = halved
    for path in paths:
        (root / path).unlink()

    def took_more(other: second.Second, _: int) -> list[str]:
        other.seen_by_both[0] = other.seen_by_both[2] = len(paths)
        return ["data/n0/1", ""]  # it looked at the top

    monkeypatch.setattr(second, "_looked", took_more)
    assert sorted(looked(state, root).damage(state, time.time_ns()).missing) == sorted(paths)


def test_a_second_process_stops_where_it_is_met(tree):
    state, root, _ = tree
    other = second.Second(str(state.path), str(root))
    other.take(8)
    assert second._looked(other, os.getppid()) == [""]


def test_a_second_process_stops_when_the_first_is_gone(tree):
    state, root, _ = tree
    assert second._looked(second.Second(str(state.path), str(root)), os.getppid() + 1) == [""]


def test_a_wait_that_fails_leaves_no_second_process(halved):
    state, root, _, forks = halved
    with pytest.raises(ValueError, match="no answer"), second_look(str(state.path), str(root)):
        raise ValueError("no answer")
    with pytest.raises(ChildProcessError):
        os.waitpid(forks[0], os.WNOHANG)


def test_a_second_process_that_nobody_hears_any_more_ends(halved, monkeypatch):
    """It has more to say than a pipe holds: it must not wait for a reader that has left, nor be waited for."""
    state, root, _, forks = halved
    monkeypatch.setattr(second, "_looked", lambda *_: ["x" * 200] * 5_000)

    def ask() -> None:
        with suppress(ValueError), second_look(str(state.path), str(root)):
            raise ValueError("no answer")

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(60)
    hangs = asking.is_alive()
    if hangs:
        os.kill(forks[0], signal.SIGKILL)
    assert not hangs


@pytest.mark.inv("tree.damage")
def test_a_look_that_was_begun_ahead_finds_what_vanished_before_it_is_asked_for(halved):
    state, root, paths, forks = halved
    for path in paths:
        (root / path).unlink()
    with begun_ahead(str(state.path), str(root)):
        look = looked(state, root)
        assert sorted(look.damage(state, time.time_ns()).missing) == sorted(paths) and len(forks) == 1
        assert looked(state, root).differing and len(forks) == 2  # it is taken once: the next one looks by itself


@pytest.mark.inv("tree.damage")
def test_a_look_ahead_at_another_tree_or_file_is_not_taken(halved, tmp_path):
    state, root, paths, forks = halved
    (tmp_path / "copy.db").write_bytes(state.path.read_bytes())
    (root / paths[-1]).unlink()
    shutil.copytree(root, tmp_path / "elsewhere")
    with begun_ahead(str(tmp_path / "copy.db"), str(tmp_path / "elsewhere")):
        assert looked(state, root).damage(state, time.time_ns()).missing == [paths[-1]]
    assert len(forks) == 2


def test_a_look_ahead_that_nobody_asks_for_is_ended(halved):
    state, root, _, forks = halved
    with begun_ahead(str(state.path), str(root)):
        pass
    with pytest.raises(ChildProcessError):
        os.waitpid(forks[0], os.WNOHANG)


def test_where_no_process_can_be_added_this_one_looks_by_itself(halved, monkeypatch):
    state, root, paths, _ = halved

    def full() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr("os.fork", full)
    for path in paths:
        (root / path).unlink()
    look = looked(state, root)
    assert sorted(look.damage(state, time.time_ns()).missing) == sorted(paths)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_small_state_is_looked_at_by_one_process(halved, monkeypatch):
    state, root, _, forks = halved
    monkeypatch.setattr(second, "LARGE", 1 << 30)
    assert not looked(state, root).differing and not forks


@pytest.mark.inv("tree.damage")
def test_a_state_that_remembers_no_directories_is_no_reason_to_look_at_none(halved):
    """Of an older version, or cut off: the second process, which reads it by itself, has nothing to say."""
    state, root, paths, forks = halved
    older = state.path.with_name("older.db")
    with closing(sqlite3.connect(older)) as db:
        db.execute("CREATE TABLE base (path TEXT PRIMARY KEY)")
    (root / paths[-1]).unlink()
    with second_look(str(older), str(root)) as other:
        look = Look(root)
        look.at_all(state, other)
    assert look.damage(state, time.time_ns()).missing == [paths[-1]] and len(forks) == 1


def test_where_other_threads_are_at_work_nothing_is_copied(halved, monkeypatch):
    state, root, _, forks = halved
    monkeypatch.setattr(second, "_threads", lambda: {"upload"})
    look = looked(state, root)
    assert not look.differing and not forks
