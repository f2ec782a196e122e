"""One seed, one run: the same seed makes the same run, and a failing one says how to see it again."""

from __future__ import annotations

import datetime as dt
import gc
import hashlib
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import swamp.cache.files
import swamp.commit.commit
import swamp.commit.repack
import swamp.locks.flock
import swamp.locks.leases
from sim.live import actors_of
from sim.mix import Mix
from sim.schedule import Crash, Scheduler, Violation
from sim.settle import settle
from sim.world import World
from swamp.locks.leases import Terms


@dataclass
class Outcome:
    """What a run did, and what it found."""

    seed: int
    mix: str
    violation: str | None = None
    invariant: str | None = None
    trace: list[tuple[float, str, str]] = field(default_factory=list)
    operations: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    crashes: int = 0
    steps: int = 0
    roots: int = 0

    @property
    def ok(self) -> bool:
        return self.violation is None

    @property
    def digest(self) -> str:
        """The same for the same run."""
        text = "\n".join(f"{at:.6f} {who} {what}" for at, who, what in self.trace)
        return hashlib.sha256(text.encode()).hexdigest()

    def report(self, without: str | None = None) -> str:
        """Everything that happened, and the command to see it again."""
        lines = [f"{at:14.3f} {who:>6} {what}" for at, who, what in self.trace]
        off = f" --without {without}" if without else ""
        replay = f"PYTHONPATH=tests python -m sim --start {self.seed} --seeds 1 --mix {self.mix}{off} --trace"
        return "\n".join([*lines, f"seed {self.seed} ({self.mix}): {self.violation}", f"replay: {replay}"])


def run(seed: int, mix: Mix, *, place: Path | None = None) -> Outcome:
    """Plays one seed. Violations are in the outcome; anything else that escapes is one too."""
    top = place or Path(tempfile.mkdtemp(prefix="swamp-sim-", dir=_memory()))
    world = World(seed, mix, top)
    outcome = Outcome(seed, mix.name, operations=world.operations, faults=world.faults, refusals=world.refusals)
    try:
        with _small_world(mix, world.scheduler):
            world.scheduler.run(actors_of(world))
            settle(world)
    except Violation as error:
        outcome.violation, outcome.invariant = str(error), error.name
    except Exception as error:  # noqa: BLE001  whatever escapes the engine is a finding
        outcome.violation, outcome.invariant = f"[errors.tree] {_where(error)}", "errors.tree"
    finally:
        world.close()
    outcome.trace = world.scheduler.trace
    outcome.crashes, outcome.steps = world.scheduler.crashes, world.scheduler.steps
    outcome.roots = world.oracle.roots
    return outcome


@contextmanager
def _small_world(mix: Mix, scheduler: Scheduler) -> Iterator[None]:
    """Small layers, so that a short run makes segments; a file system whose ctime tells nothing; and a yield whenever
    a file lock is let go."""
    release = swamp.locks.flock._release

    def release_and_step_aside(descriptors: list[int]) -> None:
        release(descriptors)
        scheduler.step_aside()

    changes: list[tuple[ModuleType, str, object]] = [
        (swamp.commit.commit, "LAYER_ROWS", mix.layer_rows),
        (swamp.commit.repack, "TOMBSTONE_AGE", dt.timedelta(seconds=mix.forget_s)),
        (swamp.cache.files, "_ctime_ns", lambda found: found.st_mtime_ns),
        (swamp.locks.flock, "_release", release_and_step_aside),
        (swamp.locks.leases, "TERMS", Terms(renew_s=0)),  # no thread but the actors
    ]
    before = [vars(module)[name] for module, name, _ in changes]
    for module, name, value in changes:
        vars(module)[name] = value
    enabled, unraisable = gc.isenabled(), sys.unraisablehook
    gc.disable()
    sys.unraisablehook = lambda found: None if found.exc_type is Crash else unraisable(found)
    try:
        yield
    finally:
        sys.unraisablehook = unraisable
        for (module, name, _), value in zip(changes, before, strict=True):
            vars(module)[name] = value
        if enabled:
            gc.enable()


def _memory() -> str | None:
    """A file system in memory, where there is one: a run syncs hundreds of times."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _where(error: Exception) -> str:
    trace = error.__traceback__
    frames = []
    while trace is not None:
        frames.append(f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}")
        trace = trace.tb_next
    return f"{error!r} at {' < '.join(reversed(frames[-6:]))}"
