"""A process that races others for objects: run as `python racing.py SPEC_JSON RACERS ROUNDS NAME`.

Prints one JSON list: for each round, what this process won. A round is a key; the condition is create-only for
even rounds and a match on the version that was there before the race for odd ones.
"""

from __future__ import annotations

import json
import sys

from swamp.env import SYSTEM
from swamp.errors import ConditionFailed
from swamp.store.open import StoreSpec
from swamp.store.port import CREATE, Condition, Match, ObjectStore


def agreed(store: ObjectStore, proposed: float) -> float:
    """When to begin: whoever asks first says it for all; each by its own clock, they could be a second apart."""
    try:
        store.put("begin", str(proposed).encode(), CREATE)
    except ConditionFailed:
        pass
    return float(store.get("begin").body)


def main(spec: str, racers: str, rounds: str, name: str) -> None:
    store = StoreSpec(**json.loads(spec)).open()
    store.put(f"ready/{name}", b"")
    while sum(len(page) for page in store.list("ready/")) < int(racers):
        SYSTEM.clock.sleep(0.01)
    begin = agreed(store, SYSTEM.clock.now().timestamp() + 2)
    won = []
    for number in range(int(rounds)):
        # All of them arrive at each round at the same moment, whoever was quicker in the last one.
        SYSTEM.clock.sleep(max(0.0, begin + number * 0.04 - SYSTEM.clock.now().timestamp()))
        key = f"round-{number}"
        condition: Condition = CREATE
        if number % 2:
            condition = Match(store.get(f"{key}.before").body.decode())
        try:
            store.put(key, name.encode(), condition)
            won.append(number)
        except ConditionFailed:
            pass
    sys.stdout.write(json.dumps(won))


if __name__ == "__main__":
    main(*sys.argv[1:])
