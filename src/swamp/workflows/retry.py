"""Steps that are tried again, and steps that may take only so long."""

from __future__ import annotations

from typing import Any, Final

from swamp.env import Env
from swamp.errors import Interrupted, NotFound, StoreError, SwampError, UsageError
from swamp.sync.progress import Cancel
from swamp.workflows.schema import Step
from swamp.workflows.state import StepState

LONGEST_PAUSE: Final = 300.0
_LOOK_AGAIN: Final = 0.2
POINTLESS: Final = (UsageError, NotFound, Interrupted, StoreError)
"""What another attempt would meet again, or must not be tried: wrong input, a stop, a store that is away."""


class Limit(Cancel):
    """Asks the work of one attempt to stop when its run is cancelled, or when its time is up."""

    def __init__(self, outer: Cancel, seconds: float | None, env: Env) -> None:
        super().__init__()
        self._outer, self._seconds, self._env = outer, seconds, env
        self._since = env.clock.monotonic()

    @property
    def requested(self) -> bool:
        return self._outer.requested or self.timed_out

    @property
    def timed_out(self) -> bool:
        return self._seconds is not None and self._env.clock.monotonic() - self._since >= self._seconds

    def request(self) -> None:
        self._outer.request()


def attempts_left(step: Step, state: StepState, error: SwampError) -> bool:
    """Whether a step that failed like this is tried again."""
    return not isinstance(error, POINTLESS) and len(attempts_of(state)) < step.retries


def attempts_of(state: StepState) -> list[dict[str, Any]]:
    """The attempts that failed before the one that counts."""
    return list(state.extra.get("attempts") or ())


def pause(step: Step, failed: int, cancel: Cancel, env: Env) -> None:
    """Waits before the next attempt: `backoff`, doubled with each, jittered, five minutes at most; ends with a stop."""
    left = env.jitter(min(step.backoff * 2 ** (failed - 1), LONGEST_PAUSE))
    until = env.clock.monotonic() + left
    while not cancel.requested and (left := until - env.clock.monotonic()) > 0:
        env.clock.sleep(min(left, _LOOK_AGAIN))
