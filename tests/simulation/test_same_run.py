"""Same seed, same run: otherwise a failing seed is worth nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sim.broken import broken
from sim.lean import MIXES, mix_named
from sim.run import run

WITH_SIM = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
DIGESTS = """
import sys
from sim.lean import mix_named
from sim.run import run
for word in sys.argv[1:]:
    name, seed = word.split(":")
    print(run(int(seed), mix_named(name)).digest)
"""


def digests(words, hash_seed):
    done = subprocess.run(
        [sys.executable, "-c", DIGESTS, *words],
        env={**WITH_SIM, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    return done.stdout.split()


def test_a_seed_makes_the_same_run_in_every_process():
    """Also when sets and dictionaries of strings are in another order."""
    words = [f"{mix.name}:{seed}" for mix in MIXES for seed in (3, 11)]
    first, second = digests(words, "1"), digests(words, "2")
    assert len(set(first)) == len(words), "every run is its own"
    assert dict(zip(words, first, strict=True)) == dict(zip(words, second, strict=True))


@pytest.mark.parametrize("name", ["default", "disaster"])
def test_a_seed_makes_the_same_run_twice_in_one_process(name):
    assert run(5, mix_named(name)).digest == run(5, mix_named(name)).digest


def test_a_failing_seed_says_how_to_play_it_again():
    with broken("commit.condition"):
        outcome = next(o for seed in range(20) if not (o := run(seed, mix_named("default"))).ok)
    report = outcome.report("commit.condition")
    assert f"--start {outcome.seed} --seeds 1 --mix default --without commit.condition" in report
    assert "PUT .datastore-index.json" in report
    command = report.split("replay: ")[1].split()[2:]
    done = subprocess.run([sys.executable, *command], env=WITH_SIM, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert outcome.violation in done.stdout
