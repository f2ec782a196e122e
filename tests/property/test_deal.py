"""Who gets which job: every one exactly once, and nobody elsewhere has to make a directory."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from swamp.sync.bulk import Upload
from swamp.sync.deal import Supply, directory_of, firsts
from swamp.sync.transfer import LARGE

PATHS = st.lists(
    st.tuples(st.sampled_from(["", "a", "a/b", "c", "a/b/c"]), st.integers(0, 30)), unique=True, max_size=40
)
SIZES = st.sampled_from([0, 1, LARGE - 1, LARGE])


def jobs_of(places: list[tuple[str, int]], size: int) -> list[Upload]:
    return [Upload(f"{d}/{n}" if d else str(n), f"/tree/{d}/{n}", size if n % 3 else 1) for d, n in places]


@given(PATHS, SIZES)
def test_the_first_of_every_directory_and_the_others_are_all(places, size):
    jobs = jobs_of(places, size)
    first, others = firsts(jobs)
    assert sorted(j.path for j in first + others) == sorted(j.path for j in jobs)
    assert {directory_of(j.path) for j in first} == {directory_of(j.path) for j in jobs}
    assert len(first) == len({directory_of(j.path) for j in jobs})


@given(PATHS, SIZES, st.booleans(), st.integers())
def test_every_job_goes_once_and_only_what_may_goes_elsewhere(places, size, by_directory, seed):
    jobs, chance = jobs_of(places, size), random.Random(seed)
    supply = Supply(jobs, by_directory=by_directory)
    begun: list[Upload] = []
    done: set[str] = set()
    made: set[str] = set()
    while len(done) < len(jobs):
        assert supply.left + len(begun) + len(done) == len(jobs)
        step = chance.choice(["here", "lend", "end", "end", "return"])
        if step == "lend":
            for job in supply.to_lend(3):
                assert job.size < LARGE
                assert not by_directory or directory_of(job.path) in made
                begun.append(job)
        elif step == "return" and begun:
            supply.take_back(begun.pop())
        elif step == "end" and begun:
            job = begun.pop(chance.randrange(len(begun)))
            good = chance.random() < 0.7
            made |= {directory_of(job.path)} if good else set()
            done.add(job.path)
            supply.settle(job.path, done=good)
        elif (next_one := supply.next()) is not None:
            begun.append(next_one)
        else:
            assert begun  # nobody waits for somebody who has not begun
    assert done == {j.path for j in jobs} and supply.next() is None and supply.to_lend(9) == []
