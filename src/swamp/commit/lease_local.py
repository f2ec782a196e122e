"""The local shadow of a lease: a flock that dies with its process, so a crash does not cost its own user a TTL.

The file names the nonces for which this machine held (or tried to hold) the lease. Whoever has the flock knows that
none of them is alive any more. That is proof by kernel, not by host name or pid (K08).

A second file says what this machine left in the store when it released the lease last: who finds just that there
knows that nobody has held it since.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
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
        if self._descriptor is not None:
            return True
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        self._dead = frozenset(os.pread(descriptor, 65536, 0).decode("ascii", "replace").split())
        return True

    def _write(self, nonces: frozenset[str] | set[str]) -> None:
        assert self._descriptor is not None
        text = "\n".join(sorted(nonces)).encode() + b"\n"
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text, 0)
        os.fsync(self._descriptor)
