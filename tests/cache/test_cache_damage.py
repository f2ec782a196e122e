"""What vanished from a tree is found by every look, however many directories there are."""

from __future__ import annotations

import os
import shutil
import time

import pytest

from swamp.cache.damage import look_for_damage, looking, remember_whole
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
