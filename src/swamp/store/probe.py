"""Finds out by trying what a bucket enforces, in a scratch prefix that is cleaned up.

A name proves nothing: servers exist that accept `If-Match` and `If-None-Match` and ignore them. So every promise
that the commit protocol stands on is put to the test, also with eight writers at once.

Questions that do not depend on each other are asked side by side, each under names of its own: to a store that is far
away a setup waits for the longest of them and not for their sum (docs/decisions/0020-a-probe-side-by-side.md).
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, Final

from swamp.env import SYSTEM, Env
from swamp.errors import StoreError, SwampError, Unavailable
from swamp.store.port import Capabilities, ObjectStore
from swamp.store.together import together
from swamp.store.trial import Seen, Trial
from swamp.values import as_document, camel, value

SCRATCH: Final = ".swamp-probe"
ROUNDS: Final = 3
SKEW_SECONDS: Final = 60.0
LEFT_FOR: Final = dt.timedelta(days=1)
_LEFT: Final = re.compile(
    rf"{re.escape(SCRATCH)}/[0-9A-HJKMNP-TV-Z]{{26}}/(clock|read|list|create|swap|nothing|race-create|race-swap|delete|parts)"
    r"(-[0-9]+)?(/[0-9]+)?(-[0-9]+)?"
)


@value
class ProbedPromise:
    """One promise, whether it was kept, and what that means to a person."""

    name: str
    kept: bool
    text: str


@value
class Probed:
    """What was seen at `url`. `skew` is the store's clock minus ours, in seconds."""

    url: str
    capabilities: Capabilities
    findings: tuple[ProbedPromise, ...]
    skew: float | None = None

    def to_json(self) -> dict[str, Any]:
        seen = {"url": self.url, "capabilities": self.capabilities.to_json(), "clockSkewSeconds": self.skew}
        return seen | {"findings": list(map(as_document, self.findings))}


def probe(store: ObjectStore, env: Env = SYSTEM) -> Probed:
    """Tries every promise. Raises StoreError if the store cannot be used, Unavailable also if it cannot be told what it
    enforces: nothing may be set up on a guess. inv[probe.evidence]"""
    findings: list[ProbedPromise] = []
    with _scratch(store, env, findings) as trial:
        tick = trial.told(trial.tick)
        trial.answered = True
        read, listed, created, swapped, deletes, parts, skews = (trial.beside() for _ in range(7))
        asked: list[Callable[[], bool | float | None]] = [
            lambda: skews.told(lambda: skews.clock_skew(tick)),
            lambda: read.keeps(lambda: read.reads_its_writes(ROUNDS)),
            lambda: listed.keeps(lambda: listed.lists_its_writes(ROUNDS)),
            lambda: created.keeps(created.refuses_second_create) and _always(trial, Trial.one_creator_wins),
            lambda: swapped.keeps(swapped.swaps_only_on_match) and _always(trial, Trial.one_swapper_wins),
            lambda: deletes.told(deletes.deletes_on_match),
            lambda: parts.told(parts.uploads_on_condition),
        ]
        skew, *kept = together([*asked, lambda: _note_leftovers(trial, tick.key)], trial.stopped.set)[:-1]
        for (name, texts), answer in zip(_PROMISES, kept, strict=True):
            if answer is not None:
                findings.append(_found(name, bool(answer), texts))
        findings.append(_found("clock", abs(skew or 0.0) <= SKEW_SECONDS, _clock_text(skew or 0.0)))
    told = {found.name: found.kept for found in findings}
    seen = {f.name: told[camel(f.name)] for f in fields(Capabilities) if camel(f.name) in told}
    return Probed(store.url, Capabilities(**seen), tuple(findings), skew)


def _found(name: str, kept: bool, texts: tuple[str, str]) -> ProbedPromise:
    return ProbedPromise(name, kept, texts[0] if kept else texts[1])


def _always(trial: Trial, experiment: Callable[[Trial], Seen]) -> bool:
    """Whether a promise is kept in every one of some rounds at once."""

    def round_of(beside: Trial) -> Callable[[], bool]:
        return lambda: beside.keeps(lambda: experiment(beside))

    return all(together([round_of(trial.beside()) for _ in range(ROUNDS)]))


def ignores_conditions(store: ObjectStore, env: Env = SYSTEM) -> bool:
    """The one question that commits depend on, by one writer. Raises Unavailable when it cannot be told."""
    with _scratch(store, env, []) as trial:
        return not (trial.keeps(trial.refuses_second_create) and trial.keeps(trial.swaps_only_on_match))


_READ: Final = ("what was written is read at once", "reads may return an older version for a while")
_LIST: Final = ("what was written is listed at once", "listings may lag behind: discovery and clean-up wait longer")
_CREATE: Final = (
    "two machines cannot create the same object",
    "create-only writes are accepted although the object exists: two machines must not write at once",
)
_SWAP: Final = (
    "a write based on an older version is refused",
    "writes based on an older version are accepted: two machines must not write at once",
)


_DELETE: Final = ("a delete can depend on a version", "deletes ignore conditions (nothing here needs them)")
_PARTS: Final = (
    "an upload in parts can depend on a version",
    "uploads in parts ignore conditions (nothing here needs them)",
)
_PROMISES: Final = (
    ("readAfterWrite", _READ),
    ("listAfterWrite", _LIST),
    ("createOnly", _CREATE),
    ("compareAndSwap", _SWAP),
    ("conditionalDelete", _DELETE),
    ("conditionalMultipart", _PARTS),
)


def _clock_text(skew: float) -> tuple[str, str]:
    told = f"the store's clock and this machine's differ by {abs(skew):.0f} s"
    return (told, f"{told}: set this machine's clock, signatures may be refused")


def _note_leftovers(trial: Trial, ours: str) -> None:
    """What a probe that was killed has left goes with this one: names that only probes give, a day old by the store's
    own clock, which stamped our first object just now. Another probe may be at work under its own."""
    try:
        found = {meta.key: meta.last_modified for page in trial.store.list(f"{SCRATCH}/") for meta in page}
    except SwampError:
        return  # the next probe looks again; what listings are worth is another question's answer
    if ours in found:
        old = {key for key, at in found.items() if found[ours] - at >= LEFT_FOR and _LEFT.fullmatch(key)}
        with trial.lock:
            trial.used |= old


@contextmanager
def _scratch(store: ObjectStore, env: Env, findings: list[ProbedPromise]) -> Iterator[Trial]:
    trial, silent = Trial(store, f"{SCRATCH}/{env.ulid()}/", env), False
    try:
        yield trial
    except Unavailable:
        silent = not trial.answered  # one that never answered at all would only be waited for once more
        raise
    finally:
        try:
            store.delete([] if silent else sorted(trial.used))
        except StoreError as error:
            # What stays is a few bytes under an internal name; the finding says so.
            stayed = f"some objects under {trial.prefix} stayed ({error.kind})"
            findings.append(ProbedPromise("cleanUp", False, stayed))
