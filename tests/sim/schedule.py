"""One baton, many threads: exactly one actor runs at a time, and a seed decides who is next.

Every place where real processes could interleave (a store call, a state transaction, a sleep, the middle of a
mutation) is a yield. There an actor may also be paused for hours, or die.
"""

from __future__ import annotations

import datetime as dt
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from swamp.env import UTC, Env

EPOCH = 1_000_000_000.0
"""Where simulated time begins: long ago, so that a file's real mtime never looks old."""


class Crash(BaseException):
    """This process is dead: not an Exception, so that nothing on the way out can swallow it."""


class Violation(BaseException):
    """An invariant does not hold. `name` is the invariant."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"[{name}] {text}")
        self.name = name


@dataclass(eq=False)
class Actor:
    """A thread that plays one process."""

    name: str
    body: Callable[[Actor], None]
    baton: threading.Lock = field(default_factory=threading.Lock)
    wake: float = 0.0
    done: bool = False
    doomed: bool = False
    dead: bool = False
    steady: bool = False
    """Not to be crashed or paused for now."""

    def __post_init__(self) -> None:
        self.baton.acquire()


@dataclass
class Odds:
    """How rough this run is; drawn from the seed."""

    stay: float = 0.6
    crash: float = 0.004
    pause: float = 0.003
    tick: float = 0.02
    linger: tuple[tuple[str, float, float], ...] = ()
    """Places (how they begin) where an actor stays for a while: chance, seconds."""
    fatal: tuple[tuple[str, float], ...] = ()
    """Places where an actor dies more often than elsewhere."""


class Scheduler:
    """Time and turns."""

    def __init__(self, rng: random.Random, odds: Odds, on_time: Callable[[float], None], limit: int) -> None:
        self.rng, self.odds = rng, odds
        self.now = 0.0
        self.actors: list[Actor] = []
        self.current: Actor | None = None
        self.trace: list[tuple[float, str, str]] = []
        self.steps = self.crashes = self.pauses = 0
        self.failure: BaseException | None = None
        self._on_time, self._limit = on_time, limit
        self._main = threading.Lock()
        self._main.acquire()

    def note(self, text: str) -> None:
        self.trace.append((self.now, self.current.name if self.current else "-", text))

    # -- actors

    def run(self, actors: list[Actor]) -> None:
        """Plays all actors to their end; raises what went wrong first."""
        self.actors = list(actors)
        threads = [threading.Thread(target=self._play, args=(a,), daemon=True) for a in actors]
        for thread in threads:
            thread.start()
        self._hand_over(None)
        self._main.acquire()
        for thread in threads:
            thread.join()
        self.current, self.actors = None, []
        if self.failure is not None:
            raise self.failure

    def _play(self, actor: Actor) -> None:
        actor.baton.acquire()
        try:
            if self.failure is None:
                actor.body(actor)
        except Crash:
            pass
        except BaseException as error:  # noqa: BLE001  carried to the main thread
            if self.failure is None:
                self.failure = error
        actor.done = True
        self._hand_over(None)

    # -- turns

    def advance(self, seconds: float) -> None:
        self.advance_to(self.now + seconds)

    def advance_to(self, moment: float) -> None:
        self.now = moment
        self._on_time(moment)

    def pause(self, point: str, *, crash: bool = True) -> None:
        """A yield: time passes, somebody else may run, this actor may die."""
        me = self.current
        self.advance(self.odds.tick)
        self.steps += 1
        if me is None:
            return
        self._end_if_dead(me)
        if self.steps > self._limit:
            raise Violation("sim.ends", f"still running after {self._limit} steps, at {point}")
        if not me.steady:
            self._misfortune(me, point, crash)
        self._hand_over(me)
        self._end_if_dead(me)

    def step_aside(self) -> None:
        """Somebody else may run; this actor cannot die here, so that what it holds is let go in order."""
        me = self.current
        if me is None or me.dead or me.doomed or self.failure is not None:
            return
        self.advance(self.odds.tick)
        self.steps += 1
        self._hand_over(me)

    def die_here(self, point: str) -> None:
        """A place where a process may die but nobody else can run: inside a transaction."""
        me = self.current
        if me is None:
            return
        self._end_if_dead(me)
        if not me.steady and self.rng.random() < self.odds.crash:
            self._crash(me, point)

    def sleep(self, seconds: float) -> None:
        me = self.current
        if me is None:
            self.advance(seconds)
            return
        me.wake = self.now + seconds
        self.pause("sleep")

    def _misfortune(self, me: Actor, point: str, crash: bool) -> None:
        drawn = self.rng.random()
        if crash and drawn < self.odds.crash:
            self._crash(me, point)
        if drawn > 1 - self.odds.pause:
            hours = self.rng.choice((0.01, 1.0, 30.0, 300.0))
            self.note(f"pauses for {hours:g} h at {point}")
            self.pauses += 1
            me.wake = self.now + hours * 3600
        for place, chance in self.odds.fatal:
            if crash and point.startswith(place) and self.rng.random() < chance:
                self._crash(me, point)
        for place, chance, seconds in self.odds.linger:
            if point.startswith(place) and self.rng.random() < chance:
                me.wake = self.now + seconds

    def _crash(self, me: Actor, point: str) -> None:
        self.crashes += 1
        self.note(f"CRASH at {point}")
        me.dead = True
        raise Crash(point)

    def _end_if_dead(self, me: Actor) -> None:
        if self.failure is not None:
            raise Crash("the run is over")
        if me.doomed and not me.dead:
            me.dead = True
            self.crashes += 1
            self.note("KILLED")
        if me.dead:
            raise Crash("dead")

    def _hand_over(self, me: Actor | None) -> None:
        chosen = self._pick(me)
        if chosen is me and me is not None:
            return
        self.current = chosen
        (chosen.baton if chosen else self._main).release()
        if me is not None:
            me.baton.acquire()

    def _pick(self, me: Actor | None) -> Actor | None:
        alive = [a for a in self.actors if not a.done]
        if not alive:
            return None
        ready = [a for a in alive if a.wake <= self.now or a.doomed or self.failure is not None]
        if not ready:
            first = min(a.wake for a in alive)
            self.advance_to(first)
            ready = [a for a in alive if a.wake <= self.now]
        if me in ready and self.rng.random() < self.odds.stay:
            return me
        return ready[int(self.rng.random() * len(ready))]


class SimClock:
    """One machine's clock: its wall time is off by `skew`, its monotonic time starts anywhere."""

    def __init__(self, scheduler: Scheduler, skew: float) -> None:
        self._scheduler, self._skew = scheduler, skew

    def now(self) -> dt.datetime:
        return dt.datetime.fromtimestamp(EPOCH + self._scheduler.now + self._skew, UTC)

    def monotonic(self) -> float:
        return self._scheduler.now + 17.0

    def sleep(self, seconds: float) -> None:
        self._scheduler.sleep(seconds)


def environment(scheduler: Scheduler, skew: float, seed: int) -> Env:
    """What the real code gets for time and chance."""
    return Env(SimClock(scheduler, skew), random.Random(seed))
