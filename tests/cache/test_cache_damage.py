"""What vanished from a tree is found by every look, however many directories there are."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
import time
from contextlib import suppress

import pytest

from swamp.cache.damage import look_for_damage, looking, remember_whole
from swamp.cache.halve import asked_of_another
from swamp.cache.rows import BaseRow
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


@pytest.mark.inv("tree.damage")
def test_a_file_that_vanished_anywhere_is_found_while_the_store_is_asked(tree):
    state, root, paths = tree
    for path in paths:
        (root / path).unlink()
        with looking(state, root) as look:
            pass
        assert [differing for differing, _ in look.differing] == [path.rpartition("/")[0]]
        assert look.damage(state, time.time_ns()).missing == [path]
        assert look_for_damage(state, root, time.time_ns()).missing == [path]
        (root / path).write_text("abc")
        remember_whole(state, look_for_damage(state, root, time.time_ns() + 10**10))


@pytest.mark.inv("tree.damage")
def test_a_directory_that_is_as_it_was_is_not_listed(tree):
    state, root, _ = tree
    with looking(state, root) as look:
        pass
    assert not look.differing


@pytest.mark.inv("tree.damage")
def test_a_tree_that_is_gone_as_a_whole_is_missing_everything(tree):
    state, root, paths = tree
    shutil.rmtree(root)
    with looking(state, root) as look:
        pass
    assert sorted(look.damage(state, time.time_ns()).missing) == sorted(paths)


@pytest.fixture
def halved(tree, monkeypatch):
    """As with very many directories: a second process looks at half of them."""
    monkeypatch.setattr("swamp.cache.damage.MANY", 2)
    monkeypatch.setattr("swamp.cache.halve._threads", set)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    forks, fork = [], os.fork

    def forked() -> int:
        forks.append(fork())
        return forks[-1]

    monkeypatch.setattr("os.fork", forked)
    return *tree, forks


@pytest.mark.inv("tree.damage")
def test_a_file_that_vanished_in_either_half_is_found(halved):
    state, root, paths, forks = halved
    for path in paths:
        (root / path).unlink()
        with looking(state, root) as look:
            pass
        assert [differing for differing, _ in look.differing] == [path.rpartition("/")[0]]
        assert look.damage(state, time.time_ns()).missing == [path]
        (root / path).write_text("abc")
        remember_whole(state, look_for_damage(state, root, time.time_ns() + 10**10))
    assert len(forks) == len(paths)


@pytest.mark.inv("tree.damage")
def test_a_second_process_that_does_not_come_to_its_end_has_said_nothing(halved, monkeypatch):
    """Killed, out of memory, without its database: the first one looks at that half, too."""
    state, root, paths, forks = halved
    for path in paths:
        (root / path).unlink()
    monkeypatch.setattr(state, "read_apart", lambda _: os._exit(9))
    with looking(state, root) as look:
        pass
    assert sorted(look.damage(state, time.time_ns()).missing) == sorted(paths)
    monkeypatch.setattr(state, "read_apart", lambda _: 1 / 0)
    with looking(state, root) as look:
        pass
    assert sorted(look.damage(state, time.time_ns()).missing) == sorted(paths) and len(forks) == 2


def test_a_wait_that_fails_leaves_no_second_process(halved):
    state, root, _, forks = halved
    with pytest.raises(ValueError, match="no answer"), looking(state, root):
        raise ValueError("no answer")
    with pytest.raises(ChildProcessError):
        os.waitpid(forks[0], os.WNOHANG)


def test_a_second_process_that_nobody_hears_any_more_ends(halved):
    """It has more to say than a pipe holds: it must not wait for a reader that has left, nor be waited for."""
    forks = halved[-1]

    def ask() -> None:
        with suppress(ValueError), asked_of_another(lambda: ["x" * 200] * 5_000):
            raise ValueError("no answer")

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(60)
    hangs = asking.is_alive()
    if hangs:
        os.kill(forks[0], signal.SIGKILL)
    assert not hangs


def test_where_no_process_can_be_added_this_one_looks_by_itself(halved, monkeypatch):
    state, root, paths, _ = halved

    def full() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr("os.fork", full)
    for path in paths:
        (root / path).unlink()
    with looking(state, root) as look:
        pass
    assert sorted(look.damage(state, time.time_ns()).missing) == sorted(paths)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_where_other_threads_are_at_work_nothing_is_copied(halved, monkeypatch):
    state, root, _, forks = halved
    monkeypatch.setattr("swamp.cache.halve._threads", lambda: {"upload"})
    with looking(state, root) as look:
        pass
    assert not look.differing and not forks
