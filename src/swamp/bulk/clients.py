"""Store clients inside executors: one per store and Python worker, whatever number of tasks it runs."""

from __future__ import annotations

import os
import pickle
import threading
from typing import Final, Protocol

from swamp.store.port import ObjectStore


class StoreAddress(Protocol):
    """How a task finds the store: a picklable value without secrets. `swamp.store.open.StoreSpec` is one."""

    def open(self) -> ObjectStore: ...


_clients: Final[dict[bytes, ObjectStore]] = {}
_lock: Final = threading.Lock()


def opened(address: StoreAddress) -> ObjectStore:
    """One client per store and process: connections are made once, not once per task or file."""
    name = pickle.dumps(address)
    with _lock:
        if name not in _clients:
            _clients[name] = address.open()
        return _clients[name]


def spool_dir(number: int = 0) -> str | None:
    """Where a task may put large files for a while: one of the directories that Spark has for its work, which may be
    other disks than the system's; None outside of Spark."""
    found = [
        place for place in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if place and os.access(place, os.W_OK)
    ]
    return found[number % len(found)] if found else None
