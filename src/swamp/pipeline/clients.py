"""Store clients inside executors: one per store and Python worker, whatever number of tasks it runs."""

from __future__ import annotations

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
