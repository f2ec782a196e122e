"""A network that is bad by chance: every request may be delayed, refused, reset, answered in part or not at all."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from kill_scenarios import digest
from kills import Versions, assert_no_help_needed, whole
from machines import Machine, Place, Ran, Team
from servers.proxy import FOR_EVER, FaultProxy, Rule

REQUEST_MS, SYNC_MS, LOCK_MS = 1500, 6000, 15000
QUICK = {"SWAMP_DATASTORE_SYNC_TIMEOUT_MS": str(SYNC_MS), "SWAMP_LOCK_TIMEOUT_MS": str(LOCK_MS)}
DEADLINE = 75.0
"""Seconds for any command: it waits for a lease, pulls, pushes and gives the lease back, each within its own bound."""
BUSY = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>later</Message></Error>"
SHARES = (0.08, 0.2, 0.45)
"""Of the requests that meet a fault: a bad day, a worse one, and one on which little gets through."""
KINDS = (
    *("drop", "freeze", "lose", "cut", "stall", "delay", "slow", "trickle"),
    *("429", "429 after", "500", "500 after", "503", "503 after"),
)


def trouble(kind: str, rng: random.Random) -> Rule:
    """One fault of that kind, for one request."""
    if kind in ("drop", "freeze", "lose", "cut"):
        return Rule(kind)
    if kind == "stall":
        return Rule("stall", seconds=FOR_EVER)
    if kind == "trickle":
        return Rule("trickle", seconds=rng.uniform(0.2, 1.2))
    if kind in ("delay", "slow"):
        return Rule("delay", seconds=rng.uniform(0.02, 0.2) if kind == "delay" else rng.uniform(0.3, 1.0))
    status, _, after = kind.partition(" ")
    headers = {"Content-Type": "application/xml", **({"Retry-After": "1"} if after else {})}
    return Rule("answer", status=int(status), body=BUSY, headers=headers)


class BadNetwork(FaultProxy):
    """A proxy that harms a share of all requests, by its seed; `calm()` ends it."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        self.share = 0.0
        self.rng = random.Random(0)
        self.faults: Counter[str] = Counter()

    def rage(self, seed: int, share: float) -> None:
        self.rng, self.share = random.Random(seed), share

    def calm(self) -> None:
        self.share = 0.0

    def pick(self, method: str, path: str, headers: Mapping[str, str]) -> Rule | None:
        found = super().pick(method, path, headers)
        with self._lock:
            if found is not None or self.rng.random() >= self.share:
                return found
            kind = self.rng.choice(KINDS)
            self.faults[kind] += 1
            return trouble(kind, self.rng)


@dataclass
class Record:
    """What two or more machines did over a bad network, and what they were told."""

    commands: int = 0
    acknowledged: dict[tuple[str, str, int], str] = field(default_factory=dict)
    refused: Counter[int] = field(default_factory=Counter)
    slowest: float = 0.0

    def note(self, ran: Ran, seconds: float, checksum: str | None = None, *, bounded: bool = True) -> None:
        self.commands += 1
        self.slowest = max(self.slowest, seconds)
        assert seconds < DEADLINE or not bounded, f"{ran.args} took {seconds:.0f} s"
        assert "Traceback" not in ran.err, ran.err
        if ran.code != 0:
            assert ran.code in (1, 69, 75), ran
            self.refused[ran.code] += 1
            if not ran.out:
                assert {"error", "code"} <= set(ran.error), ran.err
        elif checksum is not None:
            done = ran.json
            where = (ran.args[2], done["name"], done["version"])
            assert where not in self.acknowledged, f"{where} was given away twice"
            self.acknowledged[where] = checksum


@dataclass
class Pair:
    """Two machines and what they do in a round: the same name and names of their own, at the same time."""

    team: Team
    machines: list[Machine]
    record: Record = field(default_factory=Record)

    @classmethod
    def make(cls, team: Team, names: str = "ab") -> Pair:
        return cls(team, [team.machine(name) for name in names])

    def round(self, seed: int) -> None:
        rng = random.Random(seed)
        running = []
        for number, machine in enumerate(self.machines):
            body = f"{seed} {number} ".encode() * rng.choice((3, 3000, 60_000))
            file = machine.home / "input"
            file.write_bytes(body)
            name = rng.choice(("shared", f"own-{number}"))
            args = ("data", "put", f"model-{rng.randrange(2)}", name, str(file))
            running.append((machine.start(*args, env=QUICK), args, time.monotonic(), digest(body)))
        for process, args, began, checksum in running:
            try:
                out, err = process.communicate(timeout=DEADLINE + 30)
            finally:
                if process.poll() is None:
                    process.kill()
            self.record.note(Ran(args, process.returncode, out, err), time.monotonic() - began, checksum)
        other = rng.choice(self.machines)
        began = time.monotonic()
        words = rng.choice((("sync",), ("sync", "--pull"), ("sync", "--push"), ("sync", "--full")))
        self.record.note(other("datastore", *words, env=QUICK, timeout=DEADLINE + 30), time.monotonic() - began)

    def settle(self) -> Versions:
        """The network is well again: everybody syncs without help, and all have the same, acknowledged or more."""
        for _ in range(2):
            for machine in self.machines:
                told = machine("datastore", "sync")
                assert told.code == 0 or (told.code == 1 and told.json["conflicts"] and not told.json["failed"]), told
        seen = [whole(machine.tree) for machine in self.machines]
        assert all(one == seen[0] for one in seen), "they do not agree"
        self.compare(seen[0])
        return seen[0]

    def compare(self, there: Versions) -> None:
        lost = {where: c for where, c in self.record.acknowledged.items() if there.get(where) != c}
        assert not lost, f"acknowledged, and gone: {lost}"

    def prove(self) -> None:
        """A fresh machine has everything that was acknowledged."""
        there = self.settle()
        fresh = self.team.machine("fresh")
        assert whole(fresh.tree) == there
        for machine in (*self.machines, fresh):
            assert_no_help_needed(machine)

    def said(self, network: BadNetwork) -> str:
        record, faults = self.record, dict(sorted(network.faults.items()))
        return (
            f"{record.commands} commands, {sum(faults.values())} faults {faults}, "
            f"acknowledged {len(record.acknowledged)}, refused {dict(record.refused)}, slowest {record.slowest:.1f} s"
        )


def place_behind(network: FaultProxy, running, prefix: str) -> Place:
    config = {**running.config, "endpoint": network.endpoint, "requestTimeoutMs": REQUEST_MS}
    return Place(f"{running.url}/{prefix}", config, dict(running.environ))


def place_beside(running, prefix: str) -> Place:
    """The same place without the network."""
    return Place(f"{running.url}/{prefix}", dict(running.config), dict(running.environ))


def run_rounds(pair: Pair, network: BadNetwork, seeds: range) -> None:
    for seed in seeds:
        network.rage(seed, SHARES[seed % len(SHARES)])
        try:
            pair.round(seed)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
        finally:
            network.calm()
    pair.prove()
