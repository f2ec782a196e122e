"""File work in bulk, as the engine asks for it: one protocol, done in process or on Spark.

The engine keeps the journal, the units, the commit and the record; an executor only moves and reads files. So nothing
an executor does is true before the engine commits it. inv[spark.publish-once]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, Protocol

from swamp.cache.files import StatFingerprint
from swamp.sync.progress import IdleTimeout
from swamp.sync.result import Cause, EngineName
from swamp.values import value

if TYPE_CHECKING:
    from swamp.commit.bootstrap import Bootstrapped
    from swamp.commit.commit import Committer
    from swamp.sync.gather import Gathered, Gatherer
    from swamp.sync.record import EngineContext

Stage = Literal["compare", "hash", "upload", "download", "discover", "verify", "collect", "compact"]


@value
class Work:
    """What the choice of an engine depends on."""

    stage: Stage
    files: int
    size: int


@value
class Upload:
    """`packed`: it may share an object with others, where the store's format knows slices."""

    path: str
    file: str
    size: int = 0
    packed: bool = False


@value
class Sent:
    """One upload call. `hint` is the stat from before the first byte was read; `changed`: it differs afterwards."""

    path: str
    key: str | None = None
    size: int = 0
    sha256: str | None = None
    last_modified: str | None = None
    hint: StatFingerprint | None = None
    changed: bool = False
    error: str | None = None
    cause: Cause | None = None


@value
class Download:
    """`staging` is the directory for the file; `mtime_ns` backdates it so that its hint can be trusted.

    Who asks for a file that need not be `durable` flushes it before it is renamed; an executor may do it all the same.
    """

    path: str
    key: str
    size: int
    sha256: str | None
    staging: str
    mtime_ns: int | None = None
    durable: bool = True


@value
class Got:
    """A whole, verified file at `file`; or why there is none."""

    path: str
    key: str
    file: str | None = None
    size: int = 0
    sha256: str | None = None
    error: str | None = None
    cause: Cause | None = None


@value
class Hash:
    path: str
    file: str
    size: int = 0


@value
class Hashed:
    path: str
    size: int = 0
    sha256: str | None = None
    hint: StatFingerprint | None = None
    error: str | None = None


class Executor(Protocol):
    """Results come in any order, one per job; a single file's failure is a result, not an exception."""

    @property
    def name(self) -> EngineName: ...

    @property
    def reason(self) -> str:
        """Why this one was chosen, for the result."""
        ...

    @property
    def reports_progress(self) -> bool:
        """Whether it tells the progress bar itself, while the work runs; otherwise the results are the progress."""
        ...

    def upload(self, jobs: Iterable[Upload], idle_timeout: IdleTimeout) -> Iterator[Sent]: ...

    def download(self, jobs: Iterable[Download], idle_timeout: IdleTimeout) -> Iterator[Got]: ...

    def hash(self, jobs: Iterable[Hash], idle_timeout: IdleTimeout) -> Iterator[Hashed]: ...

    def compare(
        self, gatherer: Gatherer, most: int | None, context: EngineContext, idle_timeout: IdleTimeout
    ) -> Iterator[Gathered]:
        """What `gatherer.gathered` finds in base, tree and root, in path order and portions of about `most` facts."""
        ...

    def discover(self, committer: Committer, idle_timeout: IdleTimeout) -> Bootstrapped:
        """Publishes a first root over a bucket that something else has filled; none where it is empty."""
        ...

    def report(self) -> dict[str, Any] | None:
        """Application, stages and tasks of a Spark run; None in process."""
        ...


Pick = Callable[[Work], Executor]
Expect = Callable[[Work], None]
"""Told of work that will most likely come, before it is known in detail."""
