"""Large parts of datasets that Spark has written stay in the store until somebody reads them, also in a full cache."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peers import settled, version
from swamp.sync.engine import Policy
from swamp.sync.units import LARGE_PART, is_large_part

LEAVES = Policy(leave_large=True)
UNIT = version("events", 1)
MARK = "0123456789abcdef"
LARGE = [f"{UNIT}/raw/part-0000{number}-000-{MARK}.parquet" for number in range(2)]
SMALL = f"{UNIT}/raw/part-00002-000-{MARK}.parquet"


@pytest.fixture
def dataset(a) -> None:
    with a.engine.announce([UNIT]):
        for number, path in enumerate(LARGE):
            a.put(path, str(number) * LARGE_PART)
        a.put(SMALL, "s")
        a.put(f"{UNIT}/metadata.yaml", "size: 1\n")
    a.write("files/large", "x" * LARGE_PART)
    a.push()


@pytest.mark.parametrize(
    ("path", "size", "large"),
    [
        (LARGE[0], LARGE_PART, True),
        (LARGE[0], LARGE_PART - 1, False),
        (f"{UNIT}/raw/part-0.parquet", LARGE_PART, False),
        (f"{UNIT}/raw", LARGE_PART, False),
        (f"files/1/raw/part-00000-000-{MARK}.parquet", LARGE_PART, False),
    ],
)
def test_only_parts_that_spark_wrote_are_left(path, size, large):
    assert is_large_part(path, size) is large


def test_a_full_cache_leaves_them_and_owes_nothing(a, peer, dataset):
    b = peer("b", policy=LEAVES)
    b.pull()
    assert not any(b.has(path) for path in LARGE) and b.has(SMALL) and b.has("files/large")
    assert b.pull().fast_path and b.sync().fast_path, "what is left on purpose is owed to nobody"
    status = b.engine.status()
    assert (status.remote_only, status.left) == (2, 2)
    again = b.pull(full=True)
    assert (again.files_pulled, again.failed) == (0, ())
    b.push(full=True)
    assert set(a.files()) == {*LARGE, SMALL, f"{UNIT}/metadata.yaml", "files/large"}


def test_they_come_when_they_are_read_and_then_stay(a, peer, dataset):
    b = peer("b", policy=LEAVES)
    b.pull()
    b.engine.materialize(f"{UNIT}/raw")
    assert b.files() == a.files()
    assert b.pull().fast_path and b.engine.status().left == 0
    settled(a, b)


def test_whoever_wants_all_has_all(a, peer, dataset):
    b = peer("b", policy=LEAVES)
    b.pull()
    b.policy = replace(LEAVES, leave_large=False)
    b.restart()
    assert not b.pull().fast_path
    assert b.files() == a.files()


def test_what_was_deleted_there_goes_here_too(a, peer, dataset):
    b = peer("b", policy=LEAVES)
    b.pull()
    a.delete(UNIT)
    a.push()
    b.pull()
    assert b.engine.status().remote_only == 0 and not b.has(SMALL)
