"""How many HTTP requests this process has sent: counted where they are sent, so that retries and probes are among them.

Results tell this number, and a proxy in front of the store counts the same. What a client library repeats inside one
call (parts of a large upload, after an error) is not seen from here. inv[store.requests-counted]
"""

from __future__ import annotations

import threading
from typing import Any


class Wire:
    """A count that many threads add to."""

    def __init__(self) -> None:
        self._sent = 0
        self._lock = threading.Lock()

    @property
    def sent(self) -> int:
        return self._sent

    def count(self, requests: int = 1) -> None:
        with self._lock:
            self._sent += requests


WIRE = Wire()


def wire_of(store: Any) -> Wire | None:
    """Where the requests of this store are counted; None for one that sends none: a directory, memory, a plug-in's."""
    while (inner := getattr(store, "_inner", None)) is not None:
        store = inner
    return WIRE if getattr(store, "on_wire", False) else None
