"""Puts a version: takes what a program gives, saves it under its model's lease, pushes it, proves that it arrived.

A put that cannot begin because the store is away is kept in the outbox (`cache/outbox.py`), and delivered once, in its
order, by whoever reaches the store next.
"""

from __future__ import annotations

import json
import mimetypes
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol, runtime_checkable

from swamp.cache.files import hash_file
from swamp.cache.outbox import Kept, Outbox
from swamp.data.lifetimes import FOREVER, KEEP_TEN, Lifetime, Retention
from swamp.data.metadata import PARQUET, SNIFFED, Draft, Owner, sniff
from swamp.data.names import DataName, check_model_name, check_name
from swamp.data.records import MANUAL_TYPE, auto_definition
from swamp.data.versions import DataVersion
from swamp.env import rfc3339
from swamp.errors import LockTimeout, NotFound, StoreError, SwampError, Unavailable, UsageError
from swamp.extras import needs
from swamp.repo.conflicts import kept_version
from swamp.repo.transaction import NOTHING_KEPT, NOTHING_MORE
from swamp.sync.result import Conflict, SyncResult
from swamp.values import value

if TYPE_CHECKING:
    from swamp.repo.repository import Repo

KEPT: Final = "kept here, not shared: delivered when the store answers"
STILL_WAITS: Final = "; what was kept before still waits"
AT_ONCE: Final = 64 << 20
"""What a read delivers before it shows anything: more than this waits for a command that writes, or a sync."""


@value
class Put:
    """What `put` made, and how it reached the datastore (None: a plain directory)."""

    version: DataVersion
    sync: SyncResult | None


class AlreadyDelivered(Exception):
    """A kept put whose version was shared and is deleted by now: there is nothing left to deliver."""


class Putting:
    """One put at work: a new one, or one that is delivered from the outbox."""

    def __init__(self, repo: Repo) -> None:
        self._repo = repo
        self._kept: Kept | None = None
        self._begun = False
        """Whether something may have been saved."""

    def put(self, model: str, name: str, content: Path | bytes | BinaryIO, said: Mapping[str, Any]) -> Put:
        """A new version, or a kept put and Unavailable that says so."""
        if said.get("keep"):
            Retention.parse(str(said["keep"]))  # what is wrong is said before anything is kept for later
        try:
            return self._put(model, name, content, said)
        except Unavailable as error:
            if self._begun or not self._repo.datastore.synced:
                raise
            error.message = error.message.removesuffix(NOTHING_KEPT).removesuffix(NOTHING_MORE)
            kept = self._repo.kept.keep(model, name, content, said, error)
            raise kept from error

    def deliver(self, kept: Kept) -> DataVersion | None:
        """A put of the outbox, as any other: its `writeId` says whether it has happened already.

        None if it had, and its version was deleted since. inv[outbox.once]
        """
        self._kept = kept
        try:
            return self._put(kept.model, kept.name, kept.content, kept.said).version
        except AlreadyDelivered:
            return None

    def _put(self, model: str, name: str, content: Path | bytes | BinaryIO, said: Mapping[str, Any]) -> Put:
        tags: Mapping[str, str] = said["tags"]
        lifetime: str | None = said.get("lifetime")
        known = self._repo.definitions.find(model)
        ref = known or auto_definition(MANUAL_TYPE, model)
        data = DataName.of(ref.type, ref.id, name)
        if tags.get("modelName", ref.name) != ref.name:
            raise UsageError(
                "the tag `modelName` is swamp's own: it says which model the data belongs to",
                hint=f"choose another key; the model is `{ref.name}`",
            )
        draft = Draft(
            owner=Owner.manual(ref.id),
            content_type=said["contentType"],
            lifetime=Lifetime.parse(lifetime) if lifetime else FOREVER,
            tags={**tags, "modelName": ref.name},
            write_id=self._kept.write_id if self._kept else None,
            inputs=tuple(said.get("inputs") or ()),
        )
        self._repo.artifacts.surveyed(data, content)  # before a lease is taken or anything is made for it
        wanted = Retention.parse(said["keep"]) if said.get("keep") else None
        auto_path = self._repo.definitions.autos.path_of(ref.type, ref.name)
        with self._repo.changes.model("data put", ref.type, ref.id, (auto_path,)) as change:
            self._begun = True
            if known is None:
                self._repo.definitions.auto(ref.type, ref.name)
            newest = None if wanted else self._repo.artifacts.newest(data, readable=True)
            # A put that says nothing of it changes nothing: as the newest version that can be read says.
            before = newest.meta.draft.retention if newest is not None and newest.meta.active else KEEP_TEN
            draft = replace(draft, retention=wanted or before)
            saved = [self._saved(data, draft, content)]
            change.made = lambda: {saved[-1].path: saved[-1].meta.id}
            change.save_again = lambda conflicts: saved.append(self._noted(self._saved_again(saved[-1], conflicts)))
        change.must_be_delivered()
        return Put(saved[-1], change.sync)

    def _saved(self, data: DataName, draft: Draft, content: Path | bytes | BinaryIO) -> DataVersion:
        """A new version; for a kept put the one that an earlier attempt has made, if it made one. inv[outbox.once]"""
        made = self._made_before(data)
        if made is not None:
            with self._repo.tree.announce([made.path]):
                return made  # saved, and perhaps not pushed: this command's push answers for it
        if self._kept is not None:
            self._kept.begin()
        return self._noted(self._repo.artifacts.save(data, draft, content))

    def _noted(self, version: DataVersion) -> DataVersion:
        """Which version a kept put became, so that one that somebody deletes at once is not delivered again."""
        if self._kept is not None:
            metadata = version.ref.metadata_path
            self._kept.begin(f"{metadata} {hash_file(self._repo.tree.root / metadata).sha256}")
        return version

    def _saved_again(self, lost: DataVersion, conflicts: Sequence[Conflict]) -> DataVersion:
        """The same bytes as the next version, if another machine was first with this one; any other clash stays."""
        kept = kept_version(self._repo.datastore.cache, lost.ref, conflicts)
        try:  # whether that very version is there now, from elsewhere: not merely a name that looks like it (S14)
            taken = kept is not None and self._repo.artifacts.read(lost.ref).meta.id != lost.meta.id
        except NotFound:
            taken = False
        return self._repo.artifacts.save_again(lost, kept) if taken and kept is not None else lost

    def _made_before(self, data: DataName) -> DataVersion | None:
        """The version that an earlier attempt made. Raises AlreadyDelivered if it was shared and deleted since."""
        if self._kept is None or not self._kept.has_begun:
            return None
        made = (self._repo.artifacts.read(data.at(number)) for number in self._repo.artifacts.numbers(data))
        found = next((version for version in made if version.meta.draft.write_id == self._kept.write_id), None)
        if found is None and self._is_buried(self._kept):
            raise AlreadyDelivered
        return found

    def _is_buried(self, kept: Kept) -> bool:
        """Whether the store says that the very metadata which was saved then is deleted now."""
        from swamp.index.entry import Tombstone
        from swamp.index.lookup import lookup

        path, _, sha256 = kept.became.partition(" ")
        engine = self._repo.datastore.engine
        root = engine.committer.read().root if engine is not None and path else None
        if engine is None or root is None:
            return False
        row = lookup(root, [path], engine.committer.fetch).get(path)
        return isinstance(row, Tombstone) and row.sha256 == sha256


@value
class Delivered:
    """What a delivery did: versions that are shared now, and what is left with the reason."""

    versions: list[DataVersion] = field(default_factory=list)
    left: list[tuple[Kept, SwampError]] = field(default_factory=list)


class Keeper:
    """The outbox of a repository's datastore, and the way out of it."""

    def __init__(self, repo: Repo) -> None:
        self._repo = repo
        self._busy = False

    @property
    def outbox(self) -> Outbox | None:
        """None for a plain directory, which is never away."""
        datastore = self._repo.datastore
        return Outbox(datastore.cache, self._repo.env) if datastore.synced else None

    def waiting(self) -> list[Kept]:
        return [] if self.outbox is None else self.outbox.entries()

    # -- in

    def keep(
        self, model: str, name: str, content: Path | bytes | BinaryIO, said: Mapping[str, Any], why: Unavailable
    ) -> Unavailable:
        """Keeps a put that could not begin; the error to raise says so. Raises what is wrong with it or the disk."""
        outbox = self.outbox
        assert outbox is not None
        check_model_name(model)
        check_name(name)
        if said.get("lifetime"):
            Lifetime.parse(str(said["lifetime"]))
        self._repo.datastore.cache.ensure()
        words = {"model": model, "name": name, **said, "keptAt": rfc3339(self._repo.env.clock.now())}
        kept = outbox.keep(words, content, self._repo.cancel.check)
        return Unavailable(
            f"{why.message}; {model}/{name} is {KEPT}",
            hint="`swamp datastore status` counts it; the next command that reaches the store delivers it",
            details={**why.details, "kept": {"modelName": model, "name": name, "size": kept.size}},
        )

    # -- out

    def deliver_in_passing(self) -> None:
        """The store answers: what was kept for it goes there, unless that would keep who only reads waiting."""
        try:
            self.deliver(wait=0.0, at_most=AT_ONCE)
        except SwampError as error:
            self._repo.notify(f"what is kept here was not delivered: {error.message}")

    def deliver(self, *, wait: float = 5.0, at_most: int | None = None) -> Delivered:
        """Delivers what waits, oldest first. What cannot be delivered now stays, and so does what was put after it
        under the same name. Raises StoreError when the store is away again."""
        outbox, done = self.outbox, Delivered()
        if outbox is None or self._busy or not outbox.count():
            return done
        if at_most is not None and sum(kept.size for kept in outbox.entries()) > at_most:
            return done
        self._busy = True
        try:
            with outbox.delivering(wait):
                self._deliver_all(outbox, done)
        except LockTimeout:
            pass  # another process is at it
        finally:
            self._busy = False
        return done

    def _deliver_all(self, outbox: Outbox, done: Delivered) -> None:
        stuck: set[tuple[str, str]] = set()
        for kept in outbox.entries():
            if (kept.model, kept.name) in stuck:
                continue
            try:
                version = Putting(self._repo).deliver(kept)
            except StoreError as error:
                error.message = f"{error.message.removesuffix(NOTHING_KEPT)}{STILL_WAITS}"
                error.args = (error.message,)
                raise
            except SwampError as error:
                stuck.add((kept.model, kept.name))
                done.left.append((kept, error))
                self._repo.notify(
                    f"{kept.model}/{kept.name}, kept since {kept.said['keptAt']}, could not be delivered: "
                    f"{error.message}; it stays in {kept.place}"
                )
                continue
            outbox.drop(kept)
            if version is not None:
                done.versions.append(version)
                self._repo.notify(f"Delivered what was kept: {kept.model}/{kept.name} is version {version.version}")


# -- what may be put

JSON: Final = "application/json"
_ROWS: Final = {
    ".jsonl": "application/x-ndjson",
    ".ndjson": "application/x-ndjson",
    ".parquet": PARQUET,
    ".csv": "text/csv",
}
"""What Python's own table of types does not know, or not on every machine."""


@runtime_checkable
class Tabular(Protocol):
    """A table of any library that speaks Arrow: pandas, polars, pyarrow, DuckDB."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


Puttable = Path | bytes | bytearray | memoryview | str | Mapping[str, Any] | Sequence[Any] | Tabular | BinaryIO
"""A file or a directory of parts, bytes, text, a value for JSON, a table, or an open file."""


@contextmanager
def accepted(value: Puttable) -> Iterator[tuple[Path | bytes | BinaryIO, str]]:
    """`value` as bytes, a file or a stream, and its content type, for as long as the block lasts. Raises UsageError."""
    if isinstance(value, Tabular):
        with tempfile.TemporaryDirectory(prefix="swamp-") as folder:
            yield _parquet(value, Path(folder) / "table.parquet"), PARQUET
    elif isinstance(value, Path) or hasattr(value, "read"):
        given: Any = value
        yield given, guess_type(given)
    elif isinstance(value, bytes | bytearray | memoryview):
        yield bytes(value), guess_type(bytes(value))
    elif isinstance(value, str):
        yield _encoded(value), "text/plain"
    else:
        yield _encoded(value), JSON


def _encoded(value: Any) -> bytes:
    """Text as it is, anything else as JSON."""
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False)
        return text.encode()
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"a {type(value).__name__} cannot be saved: {error}",
            hint="give a Path, bytes, text, a value for JSON, or a table of pandas, polars, pyarrow or DuckDB",
        ) from error


def _parquet(table: Tabular, file: Path) -> Path:
    needs("pyarrow", "saving a table", "arrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        pq.write_table(pa.RecordBatchReader.from_stream(table).read_all(), file)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise UsageError(
            f"a {type(table).__name__} cannot be saved as Parquet: {str(error)[:500]}",
            hint="give each column a name of its own and one type of values",
        ) from error
    return file


def guess_type(content: Path | bytes | BinaryIO) -> str:
    """By the file's name, else by its first bytes: text or not."""
    if isinstance(content, Path):
        known = _ROWS.get(content.suffix.lower()) or mimetypes.guess_type(content.name)[0]
        if known or not content.is_file():
            return known or "application/octet-stream"
        with content.open("rb") as file:
            return sniff(file.read(SNIFFED))
    if isinstance(content, bytes):
        return sniff(content[:SNIFFED])
    peek = getattr(content, "peek", None)  # standard input: its first bytes, without taking them
    return sniff(peek(SNIFFED)[:SNIFFED]) if peek else "application/octet-stream"
