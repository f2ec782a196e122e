"""Many machines on one bucket at once, for a while: they write, sync, delete, collect, fail and are killed."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from kill_scenarios import digest
from kills import Versions, assert_no_help_needed, owed_locally, whole
from machines import Machine, Place, Ran, Team
from networks import QUICK, BadNetwork, Record
from swamp.data.lifetimes import KEEP_DEFAULT
from swamp.errors import ObjectMissing
from swamp.locks.decide import GLOBAL_KEY
from warm import Process

PATIENT = {**QUICK, "SWAMP_LOCK_TIMEOUT_MS": "60000"}
Words = tuple[str, ...]


def retired(where: tuple[str, str, int], there: Versions) -> bool:
    """Whether `data gc` was right to remove a version: data is kept for its ten newest versions by default."""
    newer = [number for model, name, number in there if (model, name) == where[:2] and number > where[2]]
    return len(newer) >= KEEP_DEFAULT


def at_risk(team: Team, machine: Machine, process: Process) -> bool:
    """Whether its machine owes something, or it holds the lease of the whole store: a collector, a compaction."""
    if owed_locally(machine):
        return True
    try:
        held = json.loads(team.place.open().get(GLOBAL_KEY).body)
    except (ObjectMissing, ValueError):
        return False
    return bool(held.get("state") == "held" and held.get("pid") == process.pid)


def _doom(team: Team, machine: Machine, process: Process, moment: float) -> None:
    """Kills it a moment after something is at risk, if it still is. One that never risks anything ends by itself."""
    while process.poll() is None:
        if at_risk(team, machine, process):
            time.sleep(moment)
            if _halted(process) and _ended_at_risk(team, machine, process):
                return
        time.sleep(0.02)


def _halted(process: Process) -> bool:
    """Lets the group stand still, so that what is at risk now is at risk when it dies; False if it has ended."""
    if process.poll() is not None:
        return False
    try:
        if isinstance(process, Process):
            return process.halt()
        os.killpg(process.pid, signal.SIGSTOP)
        found = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    except (ProcessLookupError, ChildProcessError):
        return False
    return found is not None and found.si_code == os.CLD_STOPPED


def _ended_at_risk(team: Team, machine: Machine, process: Process) -> bool:
    """Kills the halted group if something is at risk, else lets it go on."""
    risky = False
    try:
        risky = at_risk(team, machine, process)
    finally:
        os.killpg(process.pid, signal.SIGKILL if risky else signal.SIGCONT)
    return risky


@dataclass
class Crowd:
    """`machines` work at the same time, the first of them with two processes; one command in `killing` is killed."""

    team: Team
    outside: Team
    """The same bucket by a way on which nothing goes wrong: for those who watch."""
    machines: list[Machine]
    seed: int = 0
    killing: float = 0.25
    record: Record = field(default_factory=Record)
    sizes: dict[tuple[str, str, int], int] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    kills: int = 0
    at_risk: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    broken: list[BaseException] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def make(cls, team: Team, outside: Place, count: int, seed: int = 0) -> Crowd:
        return cls(team, Team(team.directory, outside), [team.machine(f"m{i}") for i in range(count)], seed)

    def work(self, seconds: float) -> None:
        """Everybody works until the time is over; the first failure of a promise ends it."""
        until = time.monotonic() + seconds
        places = [self.machines[0], *self.machines]
        threads = [threading.Thread(target=self._live, args=(i, m, until)) for i, m in enumerate(places)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.broken:
            raise self.broken[0]

    def _live(self, number: int, machine: Machine, until: float) -> None:
        rng = random.Random(self.seed * 1000 + number)
        turn = 0
        try:
            while time.monotonic() < until and not self.broken:
                turn += 1
                self._act(rng, machine, f"{number}-{turn}")
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits for this one
            self.broken.append(error)

    def _act(self, rng: random.Random, machine: Machine, label: str) -> None:
        acts: list[tuple[float, Callable[[random.Random, Machine, str], None]]] = [
            (0.62, self._put),
            (0.80, self._sync),
            (0.92, self._put_and_delete),
            (1.00, self._tidy),
        ]
        dice = rng.random()
        next(act for share, act in acts if dice < share)(rng, machine, label)

    def _put(self, rng: random.Random, machine: Machine, label: str) -> None:
        body = f"{label} ".encode() * rng.choice((4, 4000, 40_000))
        name = rng.choice(("shared", f"own-{label}"))
        self._run(rng, machine, self._input(machine, f"model-{rng.randrange(3)}", name, body, label), body)

    def _input(self, machine: Machine, model: str, name: str, body: bytes, label: str) -> Words:
        file = machine.home / f"input-{label}"
        file.write_bytes(body)
        return ("data", "put", model, name, str(file))

    def _sync(self, rng: random.Random, machine: Machine, label: str) -> None:
        self._run(rng, machine, ("datastore", "sync", *rng.choice(((), ("--pull",), ("--push",), ("--full",)))))

    def _put_and_delete(self, rng: random.Random, machine: Machine, label: str) -> None:
        name = f"temp-{label}"
        put = self._input(machine, "model-t", name, b"not for long", label)
        if self._run(rng, machine, put) and self._run(rng, machine, ("data", "delete", "model-t", name, "--yes")):
            self.gone.add(name)

    def _tidy(self, rng: random.Random, machine: Machine, label: str) -> None:
        """Structural commands, two collectors at once among them."""
        self._run(rng, machine, rng.choice((("datastore", "gc"), ("datastore", "compact"), ("data", "gc"))))

    def _run(self, rng: random.Random, machine: Machine, words: Words, body: bytes | None = None) -> bool:
        """Whether it was acknowledged."""
        began = time.monotonic()
        process = machine.start(*words, env=PATIENT, group=True)
        doomed, moment = rng.random() < self.killing, rng.uniform(0.0, 0.2)
        if doomed:
            threading.Thread(target=_doom, args=(self.outside, machine, process, moment), daemon=True).start()
        out, err = process.communicate(timeout=400)
        with self._lock:
            self.kinds[" ".join(words[:2])] += 1
            if process.returncode == -9 and doomed:
                self.kills += 1
                self.at_risk += at_risk(self.outside, machine, process)
                return False
            ran = Ran(words, process.returncode, out, err)
            self.record.note(ran, time.monotonic() - began, None if body is None else digest(body), bounded=False)
            if body is not None and ran.code == 0:
                self.sizes[(words[2], ran.json["name"], ran.json["version"])] = len(body)
            return ran.code == 0

    def prove(self) -> int:
        """Everybody syncs without help and agrees, a fresh machine too. How many acknowledged bytes are gone."""
        for _ in range(2):
            for machine in self.machines:
                told = machine("datastore", "sync")
                assert told.code == 0 or (told.code == 1 and told.json["conflicts"] and not told.json["failed"]), told
        fresh = self.team.machine("fresh")
        there = whole(fresh.tree)
        for machine in self.machines:
            assert whole(machine.tree, writer_died=True) == there, "they do not agree"
        changed = {w for w, checksum in self.record.acknowledged.items() if there.get(w) != checksum}
        lost = {where for where in changed if where in there or not retired(where, there)}
        assert not lost, f"acknowledged, and gone: {sorted(lost)}"
        assert not self.gone & {name for _, name, _ in there}, "deleted, and back"
        assert_no_help_needed(fresh)
        return sum(self.sizes.get(where, 0) for where in lost)

    def said(self, network: BadNetwork) -> str:
        acknowledged = f"{len(self.record.acknowledged)} ({sum(self.sizes.values()):,} bytes)"
        return (
            f"{len(self.machines)} machines, {self.record.commands + self.kills} commands, killed {self.kills}, "
            f"acknowledged {acknowledged}, at risk {self.at_risk}, deleted {len(self.gone)}, "
            f"refused {dict(self.record.refused)}, faults {sum(network.faults.values())}"
        )
