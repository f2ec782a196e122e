"""Chaos: machines on a store that lies, killed and paused at their requests, while data is collected and moved.

Every machine is a SWAMP_HOME, a checkout and real processes. What each one does next is drawn from the seed, and so
are the lies; how processes interleave is not. A promise is made by exit 0 and by nothing else, and every promise is
checked in the end, by hash, on a machine that has never been there before.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from crowds import retired
from kill_scenarios import digest
from kills import Versions, assert_no_help_needed, end_group, journal, whole
from machines import Machine, Place, Ran, Team
from swamp.testing.s3_bucket import Manners
from swamp.testing.s3_double import S3Double
from swamp.testing.s3_lies import Lie, RandomLies
from warm import Process

QUICK = {"SWAMP_DATASTORE_SYNC_TIMEOUT_MS": "15000", "SWAMP_LOCK_TIMEOUT_MS": "60000"}
REQUEST_MS = 3000
FRESH_S = 5.0
"""A read need not ask again within two seconds of the last time."""
PAUSE_S = 33.0
"""Longer than a lease lives."""
WEATHER = (0.0, 0.01, 0.03, 0.03, 0.08)
CODES = (0, 1, 69, 75)
Words = tuple[str, ...]
Name = tuple[str, str]


class Violation(AssertionError):
    """A promise that was broken."""


@dataclass
class Ledger:
    """What exit 0 has promised, per place."""

    kept: dict[tuple[str, str, str, int], str] = field(default_factory=dict)
    since: dict[tuple[str, str, str, int], float] = field(default_factory=dict)
    gone: set[tuple[str, str, str]] = field(default_factory=set)
    commands: Counter[str] = field(default_factory=Counter)
    codes: Counter[int] = field(default_factory=Counter)
    doomed: Counter[str] = field(default_factory=Counter)
    lock: threading.RLock = field(default_factory=threading.RLock)
    log: list[str] = field(default_factory=list)

    def promise(self, url: str, model: str, name: str, version: int, checksum: str) -> None:
        with self.lock:
            where = (url, model, name, version)
            if self.kept.get(where, checksum) != checksum:
                raise Violation(f"{where} was given away twice")
            self.kept[where] = checksum
            self.since[where] = time.monotonic()
            self.gone.discard(where[:3])

    def release(self, url: str, name: Name) -> dict[int, str]:
        """Nothing more is promised about that name; what was."""
        with self.lock:
            self.gone.discard((url, *name))
            found = {w[3]: c for w, c in self.kept.items() if w[:3] == (url, *name)}
            for version in found:
                del self.kept[(url, *name, version)]
            return found

    def of(self, url: str) -> dict[tuple[str, str, int], str]:
        with self.lock:
            return {where[1:]: checksum for where, checksum in self.kept.items() if where[0] == url}

    def note(self, who: str, ran: Ran, seconds: float) -> None:
        with self.lock:
            self.commands[" ".join(ran.args[:2])] += 1
            self.codes[ran.code] += 1
            self.log.append(f"{who} {' '.join(ran.args)} -> {ran.code} in {seconds:.1f} s {ran.err.strip()[-300:]}")


@dataclass
class Actor:
    """One person at one machine: one command after the other. Its login says who it is, so that a lie can choose it."""

    number: int
    machine: Machine
    place: Place
    double: S3Double
    ledger: Ledger
    rng: random.Random
    alone: bool = True
    """Whether nobody else works in this cache."""

    @property
    def key(self) -> str:
        return f"actor{self.number:03d}"

    def run(self, *words: str, risky: bool = True) -> Ran | None:
        """None if it was killed. Everything it may say is checked here."""
        doom = self._doom() if risky else None
        began = time.monotonic()
        environment = {**QUICK, "AWS_ACCESS_KEY_ID": self.key}
        process = self.machine.start(*words, env=environment, group=True)
        try:
            with self._struck(process, doom):
                out, err = process.communicate(timeout=400)
        finally:
            end_group(process)
        ran = Ran(words, process.returncode, out, err)
        self.ledger.note(self.key, ran, time.monotonic() - began)
        self._check(ran, doom)
        return None if ran.code in (-9, 130) else ran

    def _doom(self) -> str | None:
        dice = self.rng.random()
        return "kill" if dice < 0.22 else "term" if dice < 0.27 else "pause" if dice < 0.29 else None

    @contextlib.contextmanager
    def _struck(self, process: Process, doom: str | None) -> Iterator[None]:
        """The process meets its doom at one of its requests, before or after its effect; or in the midst of things."""
        kind = self.rng.choice(("cut", "cut after")) if doom != "pause" else "delay"
        skip, method, wait = self.rng.randrange(14), self.rng.choice((None, "PUT")), self.rng.uniform(0.2, 4.0)
        if doom is None:
            yield
            return
        lie = Lie(kind, method, skip=skip if method is None else skip // 2, seconds=0.0, when=self._is_mine)
        lie.then = lambda: self._strike(process, doom)
        timer = threading.Timer(wait, lie.then)
        timer.daemon = True
        by_time = doom == "kill" and self.rng.random() < 0.3
        if by_time:
            timer.start()
        else:
            self.double.add(lie)
        try:
            yield
        finally:
            timer.cancel()
            with contextlib.suppress(ValueError):
                self.double.lies.remove(lie)

    def _is_mine(self, headers: Mapping[str, str]) -> bool:
        return f"Credential={self.key}/" in headers.get("authorization", "")

    def _strike(self, process: Process, doom: str) -> None:
        if process.poll() is not None:
            return
        with self.ledger.lock:
            self.ledger.doomed[doom] += 1
        with contextlib.suppress(ProcessLookupError):
            if doom != "pause":
                os.killpg(process.pid, signal.SIGKILL if doom == "kill" else signal.SIGTERM)
                return
            os.killpg(process.pid, signal.SIGSTOP)
            time.sleep(PAUSE_S)
            os.killpg(process.pid, signal.SIGCONT)

    def _check(self, ran: Ran, doom: str | None) -> None:
        """An exit code that the contract knows, a reason for every failure, and no excuse that is a crash."""
        allowed = {*CODES, *({-9} if doom == "kill" else ()), *({130, -15} if doom == "term" else ())}
        if ran.code not in allowed or "Traceback" in ran.err:
            raise Violation(f"{self.key}: {ran.args} exited {ran.code}\n{ran.out}\n{ran.err}")
        if ran.code == 0 or (ran.code > 0 and ran.out):
            document = ran.json
            if ran.code == 0 and (document.get("failed") or document.get("conflicts")):
                raise Violation(f"{self.key}: {ran.args} exited 0 with {document}")
        elif ran.code > 0 and not {"error", "code"} <= set(ran.error):
            raise Violation(f"{self.key}: {ran.args} exited {ran.code} without a reason: {ran.err}")

    # -- what it does

    def put(self, model: str, name: str, label: str) -> int | None:
        """The version that was promised."""
        body = f"{label} {self.key} ".encode() * self.rng.choice((1, 300, 30_000))
        file = self.machine.home / f"input-{self.key}"
        file.write_bytes(body)
        ran = self.run("data", "put", model, name, str(file))
        if ran is None or ran.code != 0:
            return None
        version = int(ran.json["version"])
        self.ledger.promise(self.place.url, model, ran.json["name"], version, digest(body))
        return version

    def delete(self, model: str, name: str) -> bool:
        promised = self.ledger.release(self.place.url, (model, name))
        ran = self.run("data", "delete", model, name, "--yes")
        if ran is not None and ran.code == 0:
            self.ledger.gone.add((self.place.url, model, name))
            return self.rng.random() < 0.5 and self.undelete(model, name, promised)
        return False

    def undelete(self, model: str, name: str, promised: dict[int, str]) -> bool:
        from swamp.data.names import auto_id

        path = f"data/manual/data/{auto_id('manual/data', model)}/{name}"
        self.ledger.release(self.place.url, (model, name))
        ran = self.run("datastore", "undelete", path)
        if ran is None:
            return False
        restored = ran.json["restored"] if ran.out else []
        for version, checksum in promised.items():
            if any(p.startswith(f"{path}/{version}/") for p in restored) and ran.code == 0:
                self.ledger.promise(self.place.url, model, name, version, checksum)
        return ran.code == 0

    def sync(self, *how: str) -> bool:
        ran = self.run("datastore", "sync", *how)
        done = ran is not None and ran.code == 0
        if done and "--pull" not in how and self.alone and (left := journal(self.machine, self.place)):
            raise Violation(f"{self.key}: {how} exited 0 with {ran.out} and left in the journal: {left}")
        return done

    def look(self) -> None:
        """What was promised before is there for every machine, synced or not: a read asks the store first."""
        url, old = self.place.url, time.monotonic() - FRESH_S
        promised = [(*where, c) for where, c in self.ledger.of(url).items() if self.ledger.since[(url, *where)] < old]
        promised = [one for one in promised if one[1].startswith("keep-")]
        if not promised or (self.rng.random() < 0.5 and not self.sync("--pull")):
            return
        model, name, version, checksum = self.rng.choice(promised)
        out = self.machine.home / f"out-{self.key}"
        ran = self.run("data", "get", model, name, "--version", str(version), "--output", str(out), risky=False)
        if ran is None or ran.code in (69, 75) or "did not answer" in ran.err:
            return
        if ran.code != 0 or digest(out.read_bytes()) != checksum:
            raise Violation(f"{self.key}: {model} {name} {version} was promised, and {ran}")


@dataclass
class Chaos:
    """Actors on one lying store, for a while."""

    directory: Path
    seed: int
    double: S3Double
    prefix: str
    ledger: Ledger = field(default_factory=Ledger)
    actors: list[Actor] = field(default_factory=list)
    broken: list[BaseException] = field(default_factory=list)
    aged: int = 0
    moves: int = 0

    def place(self, name: str = "shared") -> Place:
        config = {**self.double.config, "requestTimeoutMs": REQUEST_MS}
        return Place(f"s3://swamp-tests/{self.prefix}/{name}", config, self.double.environ)

    def settle_down(self, machines: int) -> None:
        """`machines` on one place, the first with two people, the second lazy; and one that will move."""
        team = Team(self.directory, self.place())
        for number in range(machines):
            machine = team.machine(f"m{number}", *(("--hydrate", "lazy") if number == 1 else ()))
            self._join(machine, team.place, alone=number != 0)
        self._join(self.actors[0].machine, team.place, alone=False)
        home = self.place("home-0")
        self._join(Team(self.directory, home).machine("nomad"), home)

    def _join(self, machine: Machine, place: Place, alone: bool = True) -> None:
        number = len(self.actors)
        rng = random.Random(f"{self.seed}/{number}")
        self.actors.append(Actor(number, machine, place, self.double, self.ledger, rng, alone))

    def work(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        threads = [threading.Thread(target=self._live, args=(actor, until)) for actor in self.actors]
        threads.append(threading.Thread(target=self._change_weather, args=(until,)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.double.calm()
        if self.broken:
            raise self.broken[0]

    def _change_weather(self, until: float) -> None:
        """Good days and bad ones; and twice a minute a week goes by in the bucket, so that there is garbage."""
        rng = random.Random(f"{self.seed}/weather")
        turn = 0
        while time.monotonic() < until and not self.broken:
            turn += 1
            self.double.chance = RandomLies(rng.getrandbits(32), rng.choice(WEATHER))
            if turn % 5 == 0:
                self.double.bucket().age_all(days=8)
                self.aged += 1
            time.sleep(6)

    def _live(self, actor: Actor, until: float) -> None:
        turn = 0
        try:
            while time.monotonic() < until and not self.broken:
                turn += 1
                self._act(actor, f"{actor.number}-{turn}")
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits for this one
            error.add_note(f"seed {self.seed}, the last commands:\n" + "\n".join(self.ledger.log[-25:]))
            self.broken.append(error)

    def _act(self, actor: Actor, label: str) -> None:
        nomad = actor.machine.home.parent.name == "nomad"
        acts: list[tuple[int, Callable[[], object]]] = [
            (30, lambda: actor.put(f"model-{actor.rng.randrange(3)}", f"keep-{label}", label)),
            (10, lambda: actor.put("model-0", "shared" if not nomad else f"keep-{label}", label)),
            (16, lambda: actor.put("model-t", f"temp-{label}", label) and actor.delete("model-t", f"temp-{label}")),
            (14, lambda: actor.sync(*actor.rng.choice(((), ("--pull",), ("--push",), ("--full",))))),
            (10, actor.look),
            (8, lambda: actor.run("datastore", "gc")),
            (4, lambda: actor.run("datastore", "compact")),
            (3, lambda: actor.run("data", "gc", "--yes")),
            (2, lambda: actor.run("data", "prune", "--yes")),
            (3, lambda: actor.run("datastore", "status")),
        ]
        if nomad:
            acts += [(20, lambda: self.move(actor))]
        weights = [weight for weight, _ in acts]
        actor.rng.choices([act for _, act in acts], weights)[0]()

    def move(self, actor: Actor) -> None:
        """To another store. What was promised at the old one is promised at the new one, by exit 0."""
        target = self.place(f"home-{self.moves + 1}")
        self.moves += 1
        old = actor.place
        ran = actor.run("datastore", "setup", *target.setup_args)
        if ran is None or ran.code != 0:
            actor.place = self._where(actor, (old, target))
            return
        actor.place = target
        for (model, name, version), checksum in self.ledger.of(old.url).items():
            self.ledger.promise(target.url, model, name, version, checksum)

    @staticmethod
    def _where(actor: Actor, places: tuple[Place, Place]) -> Place:
        """Which store its checkout names now."""
        written = (actor.machine.repo / ".swamp.yaml").read_text()
        name = places[1].url.rpartition("/")[2]
        return places[1] if f"{name}\n" in written or f"{name}'" in written or f'{name}"' in written else places[0]

    # -- the proof

    def prove(self) -> str:
        """Everybody syncs without help, agrees, and a fresh machine has all that was promised and nothing deleted."""
        for _ in range(2):
            for actor in self.actors:
                told = actor.machine("datastore", "sync", timeout=300)
                if told.code != 0 and not (told.code == 1 and told.json["conflicts"] and not told.json["failed"]):
                    raise Violation(f"{actor.key} cannot sync on a good day: {told}")
        checked = sum(self._prove_place(url) for url in sorted({where[0] for where in self.ledger.kept}))
        return self.said(checked)

    def _prove_place(self, url: str) -> int:
        name = url.rpartition("/")[2]
        fresh = Team(self.directory, self.place(name)).machine(f"fresh-{name}")
        there = whole(fresh.tree)
        promised = self.ledger.of(url)
        changed = {where for where, checksum in promised.items() if there.get(where) != checksum}
        lost = sorted(where for where in changed if where in there or not retired(where, there))
        if lost:
            raise Violation(f"promised at {name}, and lost: {lost}\n{self._history(lost)}")
        back = sorted(w for w in there if (url, *w[:2]) in self.ledger.gone)
        if back:
            raise Violation(f"deleted at {name}, and back: {back}\n{self._history(back)}")
        self._sample(fresh, promised, there)
        assert_no_help_needed(fresh)
        for actor in self.actors:
            if actor.place.url == url and actor.number != 1 and whole(actor.machine.tree, writer_died=True) != there:
                raise Violation(f"{actor.key} does not agree with a fresh machine at {name}")
        return len(promised)

    def _sample(self, fresh: Machine, promised: Versions, there: Versions) -> None:
        """Some of it by the command line too, not only by its bytes in the tree."""
        for model, name, version in random.Random(self.seed).sample(sorted(promised), min(3, len(promised))):
            if (model, name, version) in there:
                out = fresh.home / "out"
                fresh("data", "get", model, name, "--version", str(version), "--output", str(out)).ok()
                if digest(out.read_bytes()) != promised[(model, name, version)]:
                    raise Violation(f"{model} {name} {version} is read with other bytes")

    def _history(self, names: list[tuple[str, str, int]]) -> str:
        return "\n".join(line for line in self.ledger.log if any(name in line for _, name, _ in names))

    def said(self, checked: int) -> str:
        lies = self.double.counts()
        ledger = self.ledger
        return (
            f"seed {self.seed}: {len({id(a.machine) for a in self.actors})} machines, "
            f"{sum(ledger.commands.values())} commands {dict(ledger.commands.most_common())}, "
            f"struck {dict(ledger.doomed)}, faults {sum(lies.values())} {dict(sorted(lies.items()))}, "
            f"weeks {self.aged}, moves {self.moves}, exit codes {dict(sorted(ledger.codes.items()))}, "
            f"acknowledged {len(ledger.kept)}, deleted {len(ledger.gone)}, checked {checked}, lost 0"
        )

    def assert_enough(self, seconds: float) -> None:
        """A run in which little happened shows little."""
        happened = {
            "commands": sum(self.ledger.commands.values()),
            "kills": self.ledger.doomed["kill"],
            "faults": sum(self.double.counts().values()),
            "acknowledged": len(self.ledger.kept),
        }
        floors = {"commands": seconds / 4, "kills": seconds / 40, "faults": seconds / 8, "acknowledged": seconds / 12}
        few = {what: (count, floors[what]) for what, count in happened.items() if count < floors[what]}
        assert not few, f"too little happened (count, floor): {few}"


def run_chaos(directory: Path, prefix: str, seed: int, seconds: float, machines: int, manners: Manners) -> str:
    """One run from its beginning to its proof; what it says about itself."""
    with S3Double() as double:
        double.manners = manners
        os.environ.update(double.environ)
        chaos = Chaos(directory, seed, double, prefix)
        try:
            chaos.settle_down(machines)
            chaos.work(seconds)
            said = chaos.prove()
        except AssertionError as error:
            error.add_note(f"play it again: SWAMP_CHAOS_SEED={seed} make soak ARGS='-k chaos'")
            (directory / "chaos.log").write_text("\n".join(chaos.ledger.log))
            (directory / "keys.json").write_text(json.dumps(double.bucket().keys()))
            raise
        chaos.assert_enough(seconds)
        return said
