"""Conditions hold under real contention: 16 threads, and 4 processes, one winner each round."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from swamp.errors import ConditionFailed
from swamp.store.port import CREATE, Match

THREADS, PROCESSES = 16, 4


@pytest.fixture(params=["directory", "moto", "ministack"])
def server(request, servers):
    return servers[request.param]


@pytest.mark.inv("store.compare-and-swap")
@pytest.mark.parametrize("condition", ["create-only", "match"])
def test_sixteen_threads_have_one_winner_each_round(server, fresh_prefix, condition):
    prefix = fresh_prefix()
    store = server.open(prefix)
    with ThreadPoolExecutor(THREADS) as pool:
        for number in range(12):
            key = f"round-{number}"
            wanted = CREATE if condition == "create-only" else Match(store.put(key, b"before").token)

            def write(writer, key=key, wanted=wanted):
                try:
                    store.put(key, b"writer %d" % writer, wanted)
                except ConditionFailed:
                    return None
                return writer

            winners = [w for w in pool.map(write, range(THREADS)) if w is not None]
            assert len(winners) == 1
            assert store.get(key).body == b"writer %d" % winners[0]


@pytest.mark.inv("store.compare-and-swap")
def test_four_processes_have_one_winner_each_round(server, fresh_prefix):
    """On a busy machine one process may win a whole race: then they did not meet, and they race again."""
    races = 0
    while _winners(server, fresh_prefix()) < 2:
        races += 1
        assert races < 8, "one process won everything, eight times: they do not meet"


def _winners(server, prefix, rounds=60):
    """How many of the processes won a round of one race; each round has one winner."""
    store = server.open(prefix)
    for number in range(1, rounds, 2):
        token = store.put(f"round-{number}", b"before").token
        store.put(f"round-{number}.before", token.encode())
    spec = server.spec(prefix)
    told = json.dumps({"url": spec.url, "config": dict(spec.config)})
    script = str(Path(__file__).with_name("racing.py"))
    racers = [
        subprocess.Popen(
            [sys.executable, script, told, str(PROCESSES), str(rounds), f"racer {n}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | dict(server.environ),
        )
        for n in range(PROCESSES)
    ]
    said = [racer.communicate(timeout=100) for racer in racers]
    died = [err.decode()[-2000:] for racer, (_, err) in zip(racers, said, strict=True) if racer.returncode != 0]
    assert died == [], "a racer that dies says why"
    won = [json.loads(out) for out, _ in said]
    counted = Counter(number for wins in won for number in wins)
    assert counted == Counter(range(rounds))
    for racer, wins in enumerate(won):
        assert all(store.get(f"round-{n}").body == b"racer %d" % racer for n in wins)
    print("wins per process:", [len(wins) for wins in won])
    return sum(bool(wins) for wins in won)


def test_a_counter_swapped_by_many_loses_no_step(server, fresh_prefix):
    """Read, add one, swap, and read again when refused: every acknowledged step is in the sum."""
    store = server.open(fresh_prefix())
    store.put("counter", b"0", CREATE)

    def add(_):
        refused = 0
        while True:
            seen = store.get("counter")
            try:
                store.put("counter", str(int(seen.body) + 1).encode(), Match(seen.meta.token))
            except ConditionFailed:
                refused += 1
            else:
                return refused

    with ThreadPoolExecutor(8) as pool:
        refused = sum(pool.map(add, range(64)))
    assert store.get("counter").body == b"64"
    print("refused swaps:", refused)
    assert refused > 0, "nobody was ever refused: the writers did not meet"
