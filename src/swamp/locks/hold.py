"""Holds a lease: a thread renews it while the work goes on, and `check` says when it was lost.

`LocalLock` is its shadow on this machine: a flock that dies with its process, so a crash does not cost its own user a
TTL. The file names the nonces for which this machine held (or tried to hold) the lease. Whoever has the flock knows
that none of them is alive any more. That is proof by kernel, not by host name or pid (K08). A second file says what
this machine left in the store when it released the lease last: who finds just that there knows that nobody has held it
since.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Final, Self

from swamp.env import Env
from swamp.errors import ConditionFailed, LockTimeout, StoreError, Unavailable
from swamp.locks.decide import LeaseBody, read_lease
from swamp.locks.flock import try_lock
from swamp.store.port import Match, ObjectStore, Token
from swamp.values import value


@value
class Left:
    """A released lease as its last holder left it."""

    token: str
    epoch: int


class LocalLock:
    """One process's hold on the local side of a lease."""

    def __init__(self, directory: Path, url: str, key: str) -> None:
        name = hashlib.sha256(f"{url}\n{key}".encode()).hexdigest()[:24]
        self._path = directory / f"lease-{name}.lock"
        self._descriptor: int | None = None
        self._dead: frozenset[str] = frozenset()

    def dead(self) -> frozenset[str]:
        """Nonces whose process is provably gone: empty while another process of this machine has the flock."""
        self._try_flock()
        return self._dead

    def take(self, nonce: str) -> bool:
        """Writes `nonce` down before the store hears of it; False while another process has the flock."""
        if not self._try_flock():
            return False
        self._write(self._dead | {nonce})
        return True

    def settle(self, nonce: str) -> None:
        """The lease is held: older nonces can no longer stand in the store."""
        if self._descriptor is not None:
            self._write({nonce})

    def left(self) -> Left | None:
        """What this machine left there last, if it remembers. Asked for with the flock."""
        try:
            found = json.loads(self._memory.read_bytes())
            return Left(str(found["token"]), int(found["epoch"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None  # a hint: whoever has none looks

    def leave(self, left: Left) -> None:
        """Torn or lost it costs one request."""
        with suppress(OSError):
            self._memory.write_bytes(json.dumps({"token": left.token, "epoch": left.epoch}).encode())

    @property
    def _memory(self) -> Path:
        return self._path.with_suffix(".left")

    def close(self) -> None:
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = None

    def _try_flock(self) -> bool:
        if self._descriptor is None:
            self._descriptor = try_lock(self._path, fcntl.LOCK_EX, 0o600)
            if self._descriptor is not None:
                self._dead = frozenset(os.pread(self._descriptor, 65536, 0).decode("ascii", "replace").split())
        return self._descriptor is not None

    def _write(self, nonces: frozenset[str] | set[str]) -> None:
        assert self._descriptor is not None
        text = "\n".join(sorted(nonces)).encode() + b"\n"
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text, 0)
        os.fsync(self._descriptor)


_PROVEN_FOR = 5 / 6  # of a TTL: after that another machine may be about to take it
_CERTAIN_FOR = 1 / 3  # of a TTL: until then nobody may take it, by anybody's clock
_RETRY_PAUSE = 0.1  # of the renewal interval
LEASES_VARIABLE: Final = "SWAMP_LEASES"


class HeldLease:
    """A lease that is mine until `check` says otherwise. Use as a context manager: leaving releases it."""

    def __init__(
        self,
        store: ObjectStore,
        env: Env,
        key: str,
        body: LeaseBody,
        token: Token,
        proven_at: float,
        *,
        safe: bool,
        renew_s: float,
        on_lost: Callable[[str], None],
        local: LocalLock | None,
        inherited: bool = False,
        unbroken: bool = False,
    ) -> None:
        self._store, self._env, self.key, self._safe = store, env, key, safe
        self._body, self._token, self._proven_at = body, token, proven_at
        self._renew_s, self._on_lost, self._local = renew_s, on_lost, local
        self._lost: str | None = None
        self._over = False
        self._mutex = threading.RLock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.inherited = inherited
        self.unbroken = unbroken
        """Nobody else has held it since this machine did, or since ever."""

    @property
    def nonce(self) -> str:
        return self._body.nonce

    @property
    def epoch(self) -> int:
        return self._body.epoch

    def child_environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """`environ` for a child process, which then does not wait for its parent (K09)."""
        nonces = [n for n in environ.get(LEASES_VARIABLE, "").split(",") if n and n != self.nonce]
        return {**environ, LEASES_VARIABLE: ",".join([*nonces, self.nonce])}

    def check(self) -> None:
        """Raises LockTimeout (75) when the lease can no longer be shown to be mine."""
        with self._mutex:
            if self._lost is None and not self.inherited and self._age() >= self._body.ttl_ms / 1000:
                self._lose("it could not be renewed in time")
            if self._lost is not None:
                raise LockTimeout(
                    f"the lease {self.key} was lost: {self._lost}",
                    hint="run the command again; what was already committed is safe",
                    details={"key": self.key},
                )

    def verify(self) -> bool:
        """Whether the store shows my own last write. Not proven is not mine: what was done under it is looked at again.

        By the whole body, not by the nonce, and only within its time: an older write of mine that lands late, or twice,
        over another's proves nothing.
        """
        with self._mutex:
            if self._age() >= self._body.ttl_ms / 1000:
                return False
            try:
                seen = read_lease(self._store, self.key)
            except StoreError:
                return False
            # The second one: a renewal whose answer was lost.
            mine = seen is not None and seen.body in (self._body, self._body.renewed())
            return mine and self._lost is None and not self._over

    def shows(self, key: str, token: Token) -> bool:
        """Whether one listing shows my own last write, and `token` at `key`, an object beside it.

        By tokens: those that the store has given to these very writes. False says nothing, and then both are read:
        a listing may have other tokens, and a renewal of mine may have gone unanswered.
        """
        with self._mutex:
            if not token or self._lost is not None or self._over or self._age() >= self._body.ttl_ms / 1000:
                return False
            try:
                same = takewhile(lambda pair: pair[0] == pair[1], zip(self.key, key, strict=False))
                pages = self._store.list("".join(letter for letter, _ in same))
                seen = {meta.key: meta.token for page in pages for meta in page}
            except StoreError:
                return False
            return seen.get(self.key) == self._token and seen.get(key) == token

    # -- renewal

    def start(self) -> None:
        """Begins to renew, unless somebody else does: a parent process, or the simulator by hand."""
        if self.inherited or self._renew_s <= 0:
            return
        self._thread = threading.Thread(target=self._renew_forever, name=f"lease {self.key}", daemon=True)
        self._thread.start()

    def _renew_forever(self) -> None:
        pause = self._renew_s
        while not self._stop.wait(pause):
            pause = self._renew_s if self.renew_once() else self._renew_s * _RETRY_PAUSE
            if self._lost is not None:
                return

    def renew_once(self) -> bool:
        """Renews; False when that is not certain yet, and then it is to be tried again soon."""
        with self._mutex:
            if self._over or self._lost is not None or self.inherited:
                return True
            try:
                renewed = self._renew()
            except StoreError:
                renewed = False  # one failure gives nothing up (K01): it is retried until it is too late
            if not renewed and self._lost is None and self._age() >= self._body.ttl_ms / 1000 * _PROVEN_FOR:
                self._lose("the store could not be reached to renew it")
            return renewed

    def _renew(self) -> bool:
        """Puts the next body there; after an unclear answer what stands there decides."""
        sent_at = self._env.clock.monotonic()
        if self._put_renewed(sent_at):
            return True
        seen = read_lease(self._store, self.key)
        if seen is None or seen.body is None:
            self._lose("its object is gone or unreadable")
        elif seen.nonce != self.nonce:
            self._lose(f"{seen.holder} holds it now")
        elif not seen.held:
            self._lose("it was released by force")
        elif seen.token != self._token:
            self._body, self._token = seen.body, seen.token  # my own unanswered write had landed
            return self._put_renewed(sent_at)
        return False

    def _put_renewed(self, sent_at: float) -> bool:
        body = self._body.renewed()
        token = self._put(body)
        if token is None:
            return False
        self._body, self._token, self._proven_at = body, token, sent_at
        return True

    def _put(self, body: LeaseBody, *, sure: bool = False) -> Token | None:
        """The new token; None when the answer was not a clear success. `sure`: nobody can have taken it meanwhile."""
        if not self._safe and not sure:  # the store checks nothing, so look first
            seen = read_lease(self._store, self.key)
            if seen is None or seen.token != self._token:
                return None
        try:
            return self._store.put(self.key, body.encode(), Match(self._token)).token
        except (ConditionFailed, Unavailable):
            return None

    def _age(self) -> float:
        return self._env.clock.monotonic() - self._proven_at

    def _lose(self, why: str) -> None:
        self._lost = why
        self._stop.set()
        self._on_lost(why)

    # -- release

    def release(self) -> None:
        """Marks the lease released, once; never touches a lease that is no longer mine. Best effort: it also ages."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        try:
            with self._mutex:
                if not self._over and not self.inherited and self._lost is None:
                    self._release()
                self._over = True
        finally:
            if self._local is not None:
                self._local.close()

    def _release(self) -> None:
        for _ in range(3):
            try:
                freed = self._body.released()
                certain = self._age() < self._body.ttl_ms / 1000 * _CERTAIN_FOR
                token = self._put(freed, sure=certain)
                if token is not None:
                    if self._local is not None and token and self._safe:
                        self._local.leave(Left(token, freed.epoch))
                    return
                seen = read_lease(self._store, self.key)
            except StoreError:
                return  # the look was tried again and again below: the command has waited long enough
            if seen is None or seen.body is None or seen.nonce != self.nonce or not seen.held:
                return
            self._body, self._token = seen.body, seen.token

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
