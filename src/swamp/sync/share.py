"""Transfers shared with a second process: one interpreter lock keeps Python at little more than one core.

This process deals the jobs out, does a part of them itself, and takes all results. The other one only moves files, as a
Spark task does; what it was given and has not answered comes back here when it dies, so it can be killed at any time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from multiprocessing.connection import Connection, Pipe
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, Literal, TypeVar

from swamp.env import SYSTEM
from swamp.store.layers import Meter, MeterStore
from swamp.store.open import StoreSpec, parse_target
from swamp.sync.bulk import Download, Got, Hash, Hashed, Sent, Upload
from swamp.sync.deal import Supply
from swamp.sync.pool import IN_HAND, Crew, breathe
from swamp.sync.progress import Cancel, Patience
from swamp.sync.result import EngineName
from swamp.sync.transfer import Inline, download_one, unwanted, upload_one

CHUNK: Final = 32
LENT: Final = 512
LAST: Final = 4
"""Nobody is given more than this part of what is left: at the end nobody waits long for the other."""
FAREWELL_SECONDS: Final = 5.0

J = TypeVar("J", Upload, Download)
R = TypeVar("R", Sent, Got)
Kind = Literal["upload", "download"]


def can_share(address: StoreSpec) -> bool:
    """Whether this machine has room for a second process, and that process could reach the store."""
    able = os.name == "posix" and bool(sys.executable) and (os.cpu_count() or 1) > 1
    return able and parse_target(address.url, address.config).kind != "memory"


@dataclass(frozen=True, slots=True)
class Returned(Generic[J]):
    """A job that the other process has not done: it is done here."""

    job: J


@dataclass
class Shared:
    """The executor without Spark for many files: threads of this process and of another one."""

    inline: Inline
    address: StoreSpec
    meter: Meter | None = None
    """Told of the other process' requests."""
    ahead: Callable[[], Other | None] = lambda: None
    """A process that was started before anybody knew the jobs, for downloads."""

    def get_ready(self) -> Other:
        """A second process for downloads to come; who has it uses or stops it."""
        return self._begun("download")

    @property
    def name(self) -> EngineName:
        return self.inline.name

    @property
    def reason(self) -> str:
        return self.inline.reason

    @property
    def reports_progress(self) -> bool:
        return False

    def upload(self, jobs: Iterable[Upload], patience: Patience) -> Iterator[Sent]:
        work, tick = self.inline.sending(patience)
        supply = Supply(jobs, by_directory=self.address.gentle)
        return self._shared(partial(self._begun, "upload"), supply, work, tick, patience)

    def download(self, jobs: Iterable[Download], patience: Patience) -> Iterator[Got]:
        work, tick = self.inline.fetching(patience)
        return self._shared(lambda: self.ahead() or self.get_ready(), Supply(jobs), work, tick, patience, unwanted)

    def hash(self, jobs: Iterable[Hash], patience: Patience) -> Iterator[Hashed]:
        return self.inline.hash(jobs, patience)

    def report(self) -> dict[str, Any] | None:
        return None

    def _begun(self, kind: Kind) -> Other:
        other = Other(self.meter)
        other.start(replace(self.address, gentle=False), kind, self._theirs)
        return other

    @property
    def _theirs(self) -> int:
        """Both together have as many threads as the user allows."""
        return self.inline.threads // 2

    def _shared(
        self,
        begin: Callable[[], Other],
        supply: Supply[J],
        work: Callable[[J], R],
        tick: Callable[[], None],
        patience: Patience,
        discard: Callable[[R], None] | None = None,
    ) -> Iterator[R]:
        crew: Crew[J, R | Returned[J]] = Crew(work, self.inline.threads - self._theirs, gather=True)
        other = begin()
        try:
            other.work_for(crew.deliver)
            for turn in count():
                if patience.cancel.requested:
                    break
                if not crew.ready or turn % CHUNK == 0:
                    deal(supply, crew, other)
                    if not crew.in_hand:
                        break
                result = crew.take(tick)
                if isinstance(result, Returned):
                    supply.take_back(result.job)
                    continue
                patience.progressed()
                supply.settle(result.path, done=result.error is None)
                yield result
        finally:
            try:
                other.stop()
            finally:
                for left in crew.dismiss():
                    if discard is not None and not isinstance(left, Returned):
                        discard(left)
        patience.cancel.check()


def deal(supply: Supply[J], crew: Crew[J, Any], other: Other) -> None:
    """Both have work in hand, and towards the end both have little."""
    part = max(1, supply.left // LAST)
    while (room := other.room(part)) > 0 and (chunk := supply.to_lend(min(CHUNK, room))):
        crew.in_hand += len(chunk)
        other.give(chunk)
    most = min(crew.threads * IN_HAND, max(part, crew.threads))
    while crew.in_hand - other.lent < most and (job := supply.next()) is not None:
        crew.give(job)


class Other:
    """The second process, as this one sees it. What it answers, and as `Returned` what it leaves, goes to whom it works
    for; before that it has no jobs."""

    def __init__(self, meter: Meter | None) -> None:
        self._deliver: Callable[[Any], None] = _nobody
        self._meter = meter
        self._lent: dict[str, Upload | Download] = {}
        self._working = False
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._line, self._theirs = Pipe()
        self._outbox: SimpleQueue[Any] = SimpleQueue()
        self._listener = threading.Thread(target=self._listen, name="transfer-other", daemon=True)
        self._speaker = threading.Thread(target=self._speak, name="transfer-other-jobs", daemon=True)

    @property
    def lent(self) -> int:
        return len(self._lent)

    def room(self, part: int) -> int:
        """How many jobs it can take, if nobody is to have more than `part`; none, unless it works."""
        return min(LENT, part) - len(self._lent) if self._working else 0

    def start(self, address: StoreSpec, kind: Kind, threads: int) -> None:
        """Without waiting for it: until it says that it works, everything is done here."""
        number = self._theirs.fileno()
        with self._theirs, suppress(OSError):  # a machine that starts no process does the work in this one
            # Its own session: Ctrl-C is for this process, which says good-bye in order.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(number)],
                pass_fds=[number],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        try:
            self._outbox.put((address, kind, threads))
            self._speaker.start()
            self._listener.start()
        except BaseException:  # no thread to be had, or Ctrl-C: a process that nobody would stop must not stay
            self.stop()
            raise

    def work_for(self, deliver: Callable[[Any], None]) -> None:
        self._deliver = deliver

    def give(self, chunk: Sequence[Upload | Download]) -> None:
        with self._lock:
            working = self._working
            if working:
                self._lent.update((job.path, job) for job in chunk)
        if working:
            self._outbox.put(chunk)
        else:
            self._return(chunk)

    def stop(self) -> None:
        """Waits for its end, not for what it has begun."""
        self._outbox.put(None)
        try:
            if self._process is not None:
                self._process.wait(FAREWELL_SECONDS)
        except subprocess.TimeoutExpired:
            pass  # stopped or stuck: nothing of it is needed any more
        finally:
            if self._process is not None:
                self._process.kill()
                self._process.wait()
            for thread in (self._speaker, self._listener):
                if thread.ident is not None:
                    thread.join()
            self._line.close()

    def _speak(self) -> None:
        """By a thread of its own: a process that does not read must keep nobody from the deadline and from Ctrl-C."""
        with suppress(OSError):  # broken: the listener hears that too, and returns what is lent
            while (message := self._outbox.get()) is not None:
                self._line.send(message)
            self._line.send(None)

    def _listen(self) -> None:
        try:
            with suppress(EOFError, OSError):  # its end
                while True:
                    results, counted = self._line.recv()
                    self._working = True
                    if self._meter is not None:
                        self._meter.add(counted)
                    for result in results:
                        self._answered(result)
        finally:  # also when it says what it should not: that is shown, and its jobs are done here
            with self._lock:
                self._working = False
                left = list(self._lent.values())
                self._lent.clear()
            self._return(left)

    def _answered(self, result: Any) -> None:
        path = result.job.path if isinstance(result, Returned) else result.path
        with self._lock:
            self._lent.pop(path)
        self._deliver(result)

    def _return(self, jobs: Iterable[Upload | Download]) -> None:
        for job in jobs:
            self._deliver(Returned(job))


def _nobody(result: Any) -> None:
    raise AssertionError(f"nobody has given a job to answer {result!r}")


# -- the other side of the line


def serve(line: Connection[Any, Any]) -> None:
    """Does what comes down the line until it ends; whoever is at the other end may be gone at any time."""
    address, kind, threads = line.recv()
    store = MeterStore(address.open())
    patience = Patience(SYSTEM, float("inf"), Cancel())
    todo: SimpleQueue[Any] = SimpleQueue()
    done: SimpleQueue[Any] = SimpleQueue()

    def labour() -> None:
        while True:
            job = todo.get()
            try:
                done.put((upload_one if kind == "upload" else download_one)(store, job, SYSTEM, patience))
            except BaseException:  # noqa: BLE001  (it fails there in the same way, and there somebody is told)
                done.put(Returned(job))

    def answer() -> None:
        results: list[Any] = []
        while True:
            line.send((results, store.meter.drain()))
            results = [done.get()]
            breathe(todo, threads)  # not a message for each
            results += _ready(done)

    for task in (answer, *(labour for _ in range(threads))):
        threading.Thread(target=task, daemon=True).start()
    with suppress(EOFError, OSError):
        while (chunk := line.recv()) is not None:
            for job in chunk:
                todo.put(job)


def _ready(done: SimpleQueue[Any]) -> Iterator[Any]:
    with suppress(Empty):
        while True:
            yield done.get_nowait()


def main() -> None:
    """Ends at once with the line: what is half done has no name yet, neither in the bucket nor in the tree."""
    try:
        serve(Connection(int(sys.argv[1])))
    finally:
        os._exit(0)


if __name__ == "__main__":
    # Under its real name: what is sent from here must be what the other side knows.
    from swamp.sync.share import main as real_main

    real_main()
