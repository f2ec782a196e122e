"""What driver and tasks share: how work and answers travel, one store client a process, and signs of life.

A list of files is no relation, so it does not go through Spark's query planner: an RDD starts its first job for 2.4 s
of CPU, a DataFrame with `mapInArrow` for 15, its session included (docs/decisions/0011). Spark Connect has no RDDs:
there the same kernels run as `mapInArrow`. What has to be brought together first (rows of one path, claims on one
object) is a table of a name, a size and a pickled value: Spark sorts it, and a task works on what is in order.

Spark reports a task when it ends. A deadline that counts time without progress, and a progress bar, need more: tasks
send datagrams, nobody waits for them, and losing all of them costs smoothness and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from swamp.errors import CorruptData
from swamp.index.root import REPAIR_HINT

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from swamp.store.open import StoreSpec
    from swamp.store.port import ObjectStore

Kernel = Callable[[Iterator[Any]], Iterable[Any]]
"""What a task does: jobs in, results out, each as it is ready. Testable without Spark."""
Named = tuple[str, int, Any]
"""A value with the name by which it is brought together with others, and the size by which it is shared out."""
COLUMNS: Final = "name string, size bigint, value binary"
PAGE_ROWS: Final = 2_000


@dataclass(frozen=True)
class OnShares:
    """A kernel as a function of a partition of shares; `named`, where its results have to be rows of a table."""

    kernel: Kernel
    named: bool = False

    def __call__(self, shares: Iterable[Iterable[Any]]) -> Iterator[Any]:
        found = self.kernel(chain.from_iterable(shares))
        return (("", 0, one) for one in found) if self.named else iter(found)


@dataclass(frozen=True)
class InArrow:
    """A kernel that makes named values, as `mapInArrow` wants it."""

    kernel: Kernel

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = iter(self.kernel(value for batch in batches for value in values_of(batch)))
        while page := list(islice(found, PAGE_ROWS)):
            yield named_batch(page)


def values_of(table: pa.RecordBatch | pa.Table) -> Iterator[Any]:
    """The values of a table that tasks of ours have made."""
    return map(pickle.loads, table.column("value").to_pylist())


def named_batch(rows: Sequence[Named]) -> pa.RecordBatch:
    """Named values as Arrow. JSON can hold text that is no Unicode; a table cannot."""
    import pyarrow as pa

    schema = pa.schema([("name", pa.string()), ("size", pa.int64()), ("value", pa.binary())])
    values = [pickle.dumps(value, pickle.HIGHEST_PROTOCOL) for _, _, value in rows]
    try:
        columns = [[name for name, _, _ in rows], [size for _, size, _ in rows], values]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    except UnicodeEncodeError as error:
        raise CorruptData("the index holds text that is not Unicode", hint=REPAIR_HINT) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def frame_of(session: SparkSession, rows: Sequence[Named]) -> DataFrame:
    """What the driver has at hand as a table: addresses of work, never an index."""
    import pyarrow as pa

    return session.createDataFrame(pa.Table.from_batches([named_batch(rows)]), COLUMNS)


def named_frame(
    session: SparkSession, shares: Sequence[Sequence[Any]], kernel: Kernel, *, named: bool = False
) -> DataFrame:
    """A task for each share, whose kernel makes named values (or values, to be `named`): their table. Nothing runs
    before somebody asks for it."""
    numbered = frame_of(session, [("", number, share) for number, share in enumerate(shares)])
    shared = numbered.repartitionById(max(1, len(shares)), numbered["size"].cast("int"))
    return shared.mapInArrow(InArrow(OnShares(kernel, named)), COLUMNS)


# -- the store, inside tasks

_clients: Final[dict[bytes, ObjectStore]] = {}
_clients_lock: Final = threading.Lock()


def opened(address: StoreSpec) -> ObjectStore:
    """One client per store and process: connections are made once, not once per task or file."""
    name = pickle.dumps(address)
    with _clients_lock:
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


# -- signs of life

SEND_EVERY_SECONDS: Final = 0.5
_DATAGRAM: Final = 256


@dataclass(frozen=True, slots=True)
class Address:
    """Where the driver listens; picklable, so that it can travel in a task's closure."""

    host: str
    port: int
    token: str


@dataclass(frozen=True, slots=True)
class Heard:
    """Files and bytes that tasks have finished; `alive`: there was a sign at all."""

    files: int
    size: int
    alive: bool


class Beacon:
    """The driver's end: `take` what has arrived since the last call.

    Tasks send to `host`; behind a router that is not an address of this machine, and `bind` is the one to listen on.
    """

    def __init__(self, host: str, token: str, bind: str | None = None) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.bind((bind or host, 0))
        except OSError:  # not an address of this machine: then all of them
            self._socket.bind(("", 0))
        self._socket.setblocking(False)
        self.address = Address(host, self._socket.getsockname()[1], token)
        self.heard = False

    def take(self) -> Heard:
        """What was reported since last time; anything that is not ours is ignored."""
        files = size = signs = 0
        while True:
            try:
                text = self._socket.recv(_DATAGRAM).decode("ascii", "replace").split()
            except BlockingIOError:
                return Heard(files, size, signs > 0)
            if len(text) == 3 and text[0] == self.address.token and text[1].isdigit() and text[2].isdigit():
                files, size, signs = files + int(text[1]), size + int(text[2]), signs + 1
                self.heard = True

    def close(self) -> None:
        self._socket.close()


class Beat:
    """A task's end: `add` from any thread, sent twice a second. Without an address it does nothing."""

    def __init__(self, address: Address | None) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._files = 0
        self._size = 0
        self._at_work = 0
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Beat:
        if self._address is not None:
            self._thread = threading.Thread(target=self._send_often, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def add(self, files: int = 0, size: int = 0) -> None:
        with self._lock:
            self._files += files
            self._size += size

    def sent(self, size: int) -> None:
        """Bytes that have just come or gone."""
        self.add(size=size)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Signs of life while the body runs, for work that ends by itself in bounded time and does not count."""
        with self._lock:
            self._at_work += 1
        try:
            yield
        finally:
            with self._lock:
                self._at_work -= 1

    def _send_often(self) -> None:
        assert self._address is not None
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
            while not self._done.wait(SEND_EVERY_SECONDS):
                self._send(out, self._address)
            self._send(out, self._address)

    def _send(self, out: socket.socket, to: Address) -> None:
        with self._lock:
            files, size, self._files, self._size = self._files, self._size, 0, 0
            alive = bool(files or size or self._at_work)
        if alive:
            # A lost sign of life is no failure of the work that it reports.
            with contextlib.suppress(OSError):
                out.sendto(f"{to.token} {files} {size}".encode(), (to.host, to.port))
