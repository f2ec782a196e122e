"""Where the data of a repository lies, as a value that executors can use: a bucket at one root, or a directory.

Root and version are resolved once, on the driver; tasks get keys. A job of hours reads one snapshot.
inv[read.snapshot]
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from swamp.bulk.spread import opened
from swamp.cache.layout import CacheDir, cache_dir
from swamp.cache.paths import is_below
from swamp.cache.scan import Observed, scan
from swamp.data.names import version_of
from swamp.datasets.options import flag
from swamp.errors import NotFound, ObjectMissing, Unavailable, UsageError
from swamp.index.entry import slice_of
from swamp.index.footer import Proven
from swamp.index.lookup import live_rows, mentioned_paths
from swamp.index.pack import read_payload
from swamp.index.read import kept_segment, read_root, read_segment
from swamp.index.root import EVERYTHING, Root, SegmentRef, Span
from swamp.settings import swamp_home
from swamp.store.port import ObjectStore, Token

if TYPE_CHECKING:
    from swamp.store.open import StoreSpec

RANGE_ROWS: Final = 50_000
READ_AHEAD: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class FileRef:
    """A file of the snapshot: `key` in the bucket, or its absolute name on disk."""

    path: str
    key: str
    size: int
    sha256: str | None = None


@dataclass(frozen=True)
class Bucket:
    """A store at one root."""

    spec: StoreSpec
    root: Root
    keeps: bool = False
    """Whether segments stay in memory: on a driver, which looks into the same ones for every question."""

    def spans(self, prefix: str) -> list[Span]:
        """Cut where segments begin: about as many rows in each, whole names only."""
        rows = sum(ref.rows for ref in self.root.segments)
        wanted = max(1, rows // RANGE_ROWS)
        starts = sorted({_whole_name(ref.min_path) for ref in self.root.segments if is_below(ref.min_path, prefix)})
        cuts = starts[:: max(1, len(starts) // wanted)][1:] if wanted > 1 else []
        return list(map(Span, ["", *cuts], [*cuts, None]))

    def files(self, prefix: str, span: Span = EVERYTHING) -> Iterator[FileRef]:
        for row in live_rows(_narrowed(self.root, prefix, span), self.fetch, prefix):
            if span.holds(row.path):
                yield FileRef(row.path, row.key, row.size, row.sha256)

    def mentions(self, prefix: str, name: str | None = None) -> Iterator[list[str]]:
        """Paths below `prefix`, those of files that are gone too: all (with a directory `name`), and some others."""
        return mentioned_paths(self.root, self.fetch, prefix, name)

    @property
    def store(self) -> ObjectStore:
        return opened(self.spec)

    def fetch(self, ref: SegmentRef) -> Proven:
        return kept_segment(self.store, ref) if self.keeps else read_segment(self.store, ref)

    def keeping(self) -> Bucket:
        """The same for who plans, and asks again."""
        return replace(self, keeps=True)

    def within(self, prefix: str, span: Span) -> Bucket:
        """The same snapshot with only what this part of it needs: what a task carries."""
        return replace(self, root=_narrowed(self.root, prefix, span), keeps=False)

    def keys_only(self) -> Bucket:
        """The store without its index: all that a task needs which is given keys."""
        return replace(self, root=replace(_narrowed(self.root, "", Span("", "")), segments=()), keeps=False)

    def read(self, file: FileRef) -> bytes:
        return read_payload(self.store, file.key, file.size)

    def open(self, file: FileRef) -> BinaryIO:
        if slice_of(file.key) is not None:  # small: all of it with one request
            return io.BytesIO(self.read(file))
        return io.BufferedReader(_Ranged(self.store, file.key, file.size), READ_AHEAD)


@dataclass(frozen=True)
class Folder:
    """A plain directory: the `filesystem` datastore, or a path that every executor sees."""

    tree: str

    def spans(self, prefix: str) -> list[Span]:
        del prefix
        return [EVERYTHING]

    def files(self, prefix: str, span: Span = EVERYTHING) -> Iterator[FileRef]:
        for seen in scan(Path(self.tree), prefix):
            if isinstance(seen, Observed) and span.holds(seen.path):
                yield FileRef(seen.path, f"{self.tree}/{seen.path}", seen.size)

    def mentions(self, prefix: str, name: str | None = None) -> Iterator[list[str]]:
        del name
        yield [file.path for file in self.files(prefix)]

    def keeping(self) -> Folder:
        return self

    def within(self, prefix: str, span: Span) -> Folder:
        del prefix, span
        return self

    def keys_only(self) -> Folder:
        return self

    def read(self, file: FileRef) -> bytes:
        return Path(file.key).read_bytes()

    def open(self, file: FileRef) -> BinaryIO:
        return Path(file.key).open("rb")


def open_place(options: Mapping[str, str], *, empty: bool = False) -> Bucket | Folder:
    """The newest state of the repository that the options name. Runs on the driver, once per read.

    With `empty` a store that nothing was pushed to is a state too: its tables have no rows.
    """
    spec = spec_of(options)
    if spec is None:
        return Folder(str(tree_of(repo_path(options))))
    if not flag(options, "fresh", True):
        raise UsageError("only tables can be read without asking the store; leave out fresh", hint="leave out fresh")
    try:
        return Bucket(spec, current_root(opened(spec)))
    except NotFound:
        if not empty:
            raise
        return Bucket(spec, Root("", 0, "", "", "", {}))


def open_tables(options: Mapping[str, str], table: str) -> Bucket | Folder:
    """The state whose rows a table shows. With `fresh` false that is this machine's cache, and nobody is asked: every
    cache holds all metadata and records, a lazy one too, while of content it may hold a part."""
    spec = None if flag(options, "fresh", True) else spec_of(options)
    if spec is None:
        return open_place(options, empty=True)
    if table == "commits":
        raise UsageError(
            "commits are kept in the store, and nobody was to be asked", hint="leave out --cached, or the table commits"
        )
    cache = cache_of(spec, repo_path(options), swamp_home(os.environ))
    if not cache.tree.is_dir():
        raise NotFound("nothing of the datastore is here yet", hint="run `swamp datastore sync --pull` first")
    return Folder(str(cache.tree))


def cache_of(spec: StoreSpec, repo: Path, home: Path) -> CacheDir:
    """The cache that a repository of this machine has, or would have, of the store."""
    from swamp.repo.config import read_config

    repo_id = read_config(repo.expanduser().absolute()).repo_id
    return cache_dir(home, repo_id, replace(spec, namespace=None).open().url, spec.namespace)


def current_root(store: ObjectStore) -> Root:
    try:
        return read_root(store)[0]
    except ObjectMissing as error:
        raise NotFound("the datastore has no index yet", hint="push something first: swamp datastore sync") from error


def repo_path(options: Mapping[str, str]) -> Path:
    repo = options.get("repo")
    if not repo:
        raise UsageError("which repository?", hint='add .option("repo", "/path/to/repository")')
    return Path(repo).expanduser().absolute()


def spec_of(options: Mapping[str, str]) -> StoreSpec | None:
    """How to open the store, or None when the repository's datastore is a plain directory."""
    from swamp.store.open import StoreSpec

    if options.get("url"):
        return StoreSpec(options["url"], {}, options.get("namespace"))
    from swamp.repo.config import read_config

    block = read_config(repo_path(options)).datastore
    if not block.synced:
        return None
    return StoreSpec(block.url or block.type, dict(block.config), block.namespace)


def namespace_of(options: Mapping[str, str]) -> str:
    """What `ns` says of every row there: "" without a namespace, as in the catalog."""
    if options.get("url"):
        return options.get("namespace", "")
    from swamp.repo.config import read_config

    return read_config(repo_path(options)).datastore.namespace or ""


def tree_of(repo: Path) -> Path:
    """The tree of a repository whose datastore is a plain directory."""
    from swamp.repo.config import read_config

    path = read_config(repo).datastore.path
    return (repo / path).absolute() if path else repo / ".swamp"


def _narrowed(root: Root, prefix: str, span: Span) -> Root:
    """Only the rows and segments that can say something about this part."""
    below = Span.below(prefix)

    def near(path: str) -> bool:
        return span.holds(path) and is_below(path, prefix)

    return replace(
        root,
        entries={p: e for p, e in root.entries.items() if near(p)},
        deleted={p: t for p, t in root.deleted.items() if near(p)},
        dropped={},
        segments=tuple(ref for ref in root.segments if span.meets(ref) and below.meets(ref)),
        recent_ops=(),
        collecting=(),
    )


def _whole_name(path: str) -> str:
    """The beginning of the data name that `path` belongs to, so that a name's versions stay together."""
    ref = version_of(path)
    return f"{ref.data.path}/" if ref is not None else path


class _Ranged(io.RawIOBase):
    """An object as a file to seek in: Parquet reads its footer and the columns it needs, nothing else."""

    def __init__(self, store: ObjectStore, key: str, size: int) -> None:
        self._store, self._key, self._size = store, key, size
        self._at = 0
        self._token: Token | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, origin + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), max(0, self._size - self._at))
        if not length:
            return 0
        found = self._store.get(self._key, start=self._at, length=length)
        self._token = self._token or found.meta.token
        if found.meta.token != self._token:  # inv[store.pinned-read]: bytes of two versions are never joined
            raise Unavailable(f"{self._key} changed while it was read", hint="read it again")
        body = found.body
        buffer[: len(body)] = body
        self._at += len(body)
        return len(body)
