"""What vanished from a tree of very many directories is found in turns, and always by who looks at all of them."""

from __future__ import annotations

import time

import pytest

from swamp.cache import damage
from swamp.cache.rows import BaseRow
from swamp.cache.state import State


@pytest.fixture
def tree(tmp_path, monkeypatch):
    monkeypatch.setattr(damage, "IN_TURN", 3)
    tree = tmp_path / "tree"
    state = State.open(tmp_path / "state.db", durable=False)
    paths = ["top", *(f"data/n{n}/1/raw" for n in range(7))]
    for path in paths:
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text("abc")
    with state.transaction() as tx:
        tx.put_bases(BaseRow(path, path, 3, "0" * 64, 1, True) for path in paths)
    yield state, tree, paths
    state.close()


@pytest.mark.inv("tree.damage")
def test_every_directory_has_its_turn_and_then_again(tree):
    state, root, paths = tree
    now = time.time_ns()
    assert all(not damage.look_in_turn(state, root, now).missing for _ in range(9))
    for path in paths:
        (root / path).unlink()
        rounds = [damage.look_in_turn(state, root, now).missing for _ in range(3)]
        assert [path] in rounds, (path, rounds)
        assert damage.look_for_damage(state, root, now).missing == [path]
        (root / path).write_text("abc")


@pytest.mark.inv("tree.damage")
def test_where_there_are_few_all_of_them_are_looked_at_each_time(tree, monkeypatch):
    state, root, paths = tree
    for most in (9, 8):
        monkeypatch.setattr(damage, "IN_TURN", most)
        for path in paths:
            (root / path).unlink()
            assert damage.look_in_turn(state, root, time.time_ns()).missing == [path]
            (root / path).write_text("abc")
