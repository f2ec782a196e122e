"""Tries again what may be tried again: reads, listings and deletes. Never a write. inv[store.no-blind-retry]

`Backoff` is the one way to wait between attempts, of requests, commits and locks alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final, TypeVar

from swamp.env import SYSTEM, Env
from swamp.errors import OutcomeUnknown, StoreError, Unavailable
from swamp.store.port import Body, Condition, Layer, ObjectMeta, ObjectStore, StreamedBody, changed_while_read
from swamp.values import value

T = TypeVar("T")
_BUSY: Final = (429, 503)
BUSY_WAIT: Final = 1.0
FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 5.0


def pause_after(error: Exception | None, planned: float, env: Env) -> float:
    """How long to wait after `error` before the next attempt, when nothing else were said: `planned`, jittered.

    What the server asked for is honoured where the client shows it. obstore drops every header of a refusal, so a
    busy S3 or Azure is left alone for a second at least, and then at random, so that a crowd spreads out
    (docs/decisions/0005-retry-after.md).
    """
    details = error.details if isinstance(error, StoreError) else {}
    asked = details.get("retryAfter")
    if asked is not None:
        return max(env.jitter(planned), float(asked))
    if details.get("status") in _BUSY:
        return BUSY_WAIT + env.rng.random() * max(planned, BUSY_WAIT)
    return env.jitter(planned)


class Backoff:
    """Sleeps between attempts: pauses that double from `first` to `longest`, jittered, and end at a deadline (K12)."""

    def __init__(
        self, env: Env, seconds: float = math.inf, *, first: float = FIRST_PAUSE, longest: float = LONGEST_PAUSE
    ) -> None:
        self._env, self._next, self._longest = env, first, longest
        self._deadline = math.inf if seconds == math.inf else env.clock.monotonic() + seconds

    @property
    def left(self) -> float:
        return math.inf if self._deadline == math.inf else self._deadline - self._env.clock.monotonic()

    def pause(self, error: Exception | None = None) -> bool:
        """Sleeps, longer where `error` says that the store asked for it; False, at once, when the time is up."""
        left = self.left
        if left <= 0:
            return False
        self._env.clock.sleep(min(pause_after(error, self._next, self._env), left))
        self._next = min(self._next * 2, self._longest)
        return True


def put_again(
    store: ObjectStore, env: Env, key: str, body: bytes, condition: Condition = None, *, attempts: int = 5
) -> ObjectMeta:
    """Writes an object of which there can be no other version, so that sending it twice is harmless: tried again while
    the store does not answer."""
    backoff, left = Backoff(env), attempts
    while True:
        try:
            return store.put(key, body, condition)
        except Unavailable as error:
            left -= 1
            if not left:
                raise
            backoff.pause(error)


@value
class RetryPolicy:
    """How long and how often. `unreachable` bounds attempts at an endpoint that takes no connection at all."""

    seconds: float = 30.0
    first_wait: float = 0.1
    longest_wait: float = 5.0
    unreachable: int = 4


class Attempts:
    """The memory of one request: when it began, how often it failed. Progress starts it afresh."""

    def __init__(self, policy: RetryPolicy, env: Env, began: float | None = None) -> None:
        self._policy = policy
        self._env = env
        self.progressed(began)

    def progressed(self, at: float | None = None) -> None:
        self._count = 0
        self._until = (self._env.clock.monotonic() if at is None else at) + self._policy.seconds

    def wait(self, error: Unavailable) -> None:
        """Sleeps before the next attempt, or raises `error` when there is to be none."""
        self._count += 1
        if error.details.get("unreachable") and self._count >= self._policy.unreachable:
            raise error
        pause = min(self._policy.longest_wait, self._policy.first_wait * 2 ** (self._count - 1))
        pause = pause_after(error, pause, self._env)
        left = self._until - self._env.clock.monotonic()
        if pause > left and error.details.get("retryAfter") is None:
            # A pause of our own choosing gives way: under a short limit, too, one 503 is tried again.
            pause = left / 2 if left > 2 * self._policy.first_wait else pause
        if pause > left:
            raise error
        self._env.clock.sleep(pause)


class RetryStore(Layer):
    """Retries 5xx, 429, timeouts and cut connections for everything but writes."""

    def __init__(self, inner: ObjectStore, env: Env = SYSTEM, policy: RetryPolicy = RetryPolicy()) -> None:  # noqa: B008
        super().__init__(inner)
        self._env = env
        self._policy = policy

    def _through(self, verb: str, key: str, call: Callable[[], T]) -> T:
        return call() if verb == "put" else self._try(call)

    def _try(self, call: Callable[[], T], attempts: Attempts | None = None) -> T:
        began = self._env.clock.monotonic()
        while True:
            try:
                return call()
            except OutcomeUnknown:
                raise
            except Unavailable as error:
                attempts = attempts or Attempts(self._policy, self._env, began)
                attempts.wait(error)

    @contextmanager
    def open(self, key: str, *, start: int = 0) -> Iterator[StreamedBody]:
        """A body that, cut short, goes on from where it was, as long as the object is the same version."""
        with ExitStack() as stack:
            body = self._try(partial(self._enter, stack, key, start))
            yield StreamedBody(body.meta, self._resuming(stack, body, start))

    def _enter(self, stack: ExitStack, key: str, start: int) -> Body:
        stack.close()
        return stack.enter_context(self._inner.open(key, start=start))

    def _resuming(self, stack: ExitStack, body: Body, at: int) -> Iterator[bytes]:
        attempts, first = Attempts(self._policy, self._env), body.meta
        while True:
            try:
                for chunk in body:
                    at += len(chunk)
                    yield chunk
                    attempts.progressed()
                return
            except Unavailable as error:
                attempts.wait(error)
            body = self._try(partial(self._enter, stack, first.key, at), attempts)
            if body.meta.token != first.token:
                raise changed_while_read(first.key)

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[Sequence[ObjectMeta]]:
        attempts = Attempts(self._policy, self._env)
        after = start_after
        while True:
            try:
                for page in self._inner.list(prefix, start_after=after):
                    yield page
                    after = page[-1].key if page else after
                    attempts.progressed()
                return
            except Unavailable as error:
                attempts.wait(error)
