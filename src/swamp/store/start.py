"""How many threads obstore's runtime has: it asks the environment once, when it is first used."""

from __future__ import annotations

import os
import threading
from functools import cache
from typing import Final

VARIABLE: Final = "TOKIO_WORKER_THREADS"
FEW_CORES: Final = 2
"""Up to here one thread: two wake each other for every request. A GET of 2 KB costs 0.13 to 0.16 ms of CPU with one
and 0.16 to 0.17 with two; more cores were not measured (docs/design/PERFORMANCE.md)."""
_lock = threading.Lock()


@cache
def start_runtime() -> None:
    """Right before the first request of this process, not sooner: threads do not survive a fork, and who has only
    opened a store may still fork. A number that the user has set stays."""
    with _lock:
        if VARIABLE in os.environ or (os.cpu_count() or 1) > FEW_CORES:
            return
        import obstore
        from obstore.store import MemoryStore

        os.environ[VARIABLE] = "1"
        try:
            obstore.list_with_delimiter(MemoryStore())
        finally:
            os.environ.pop(VARIABLE, None)
