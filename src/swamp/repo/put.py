"""Puts a version: takes what a program gives, saves it under its model's lease, pushes it, proves that it arrived."""

from __future__ import annotations

import json
import mimetypes
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol, runtime_checkable

from swamp.data.lifetimes import FOREVER, KEEP_TEN, Lifetime, Retention
from swamp.data.metadata import PARQUET, SNIFFED, Draft, Owner, sniff
from swamp.data.names import DataName
from swamp.data.records import MANUAL_TYPE, auto_definition
from swamp.data.versions import DataVersion
from swamp.errors import NotFound, Unavailable, UsageError
from swamp.extras import needs
from swamp.repo.conflicts import kept_version
from swamp.repo.outbox import AlreadyDelivered, Writing
from swamp.repo.transaction import NOTHING_KEPT, NOTHING_MORE
from swamp.sync.result import Conflict, SyncResult
from swamp.values import value

if TYPE_CHECKING:
    from swamp.cache.outbox import Kept
    from swamp.repo.repository import Repo


@value
class Put:
    """What `put` made, and how it reached the datastore (None: a plain directory)."""

    version: DataVersion
    sync: SyncResult | None


class Putting:
    """Puts into one repository."""

    def __init__(self, repo: Repo) -> None:
        self._repo = repo

    def put(self, model: str, name: str, content: Path | bytes | BinaryIO, said: Mapping[str, Any]) -> Put:
        """A new version, or a kept put and Unavailable that says so."""
        if said.get("keep"):
            Retention.parse(str(said["keep"]))  # what is wrong is said before anything is kept for later
        writing = Writing()
        try:
            return self._put(model, name, content, said, writing)
        except Unavailable as error:
            if writing.begun or not self._repo.datastore.synced:
                raise
            error.message = error.message.removesuffix(NOTHING_KEPT).removesuffix(NOTHING_MORE)
            kept = self._repo.kept.keep(model, name, content, said, error)
            raise kept from error

    def put_kept(self, kept: Kept) -> DataVersion | None:
        """Delivers one put from the outbox: an ordinary put whose `writeId` says whether it has happened already.

        None if it had, and its version was deleted since. inv[outbox.once]
        """
        writing = Writing(kept)
        try:
            return self._put(kept.model, kept.name, kept.content, kept.said, writing).version
        except AlreadyDelivered:
            return None

    def _put(
        self, model: str, name: str, content: Path | bytes | BinaryIO, said: Mapping[str, Any], writing: Writing
    ) -> Put:
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
            write_id=writing.kept.write_id if writing.kept else None,
            inputs=tuple(said.get("inputs") or ()),
        )
        self._repo.artifacts.surveyed(data, content)  # before a lease is taken or anything is made for it
        wanted = Retention.parse(said["keep"]) if said.get("keep") else None
        auto_path = self._repo.definitions.auto_path(ref.type, ref.name)
        with self._repo.changes.model("data put", ref.type, ref.id, (auto_path,)) as change:
            writing.begun = True
            if known is None:
                self._repo.definitions.auto(ref.type, ref.name)
            newest = None if wanted else self._repo.artifacts.newest(data, readable=True)
            # A put that says nothing of it changes nothing: as the newest version that can be read says.
            before = newest.meta.draft.retention if newest is not None and newest.meta.active else KEEP_TEN
            draft = replace(draft, retention=wanted or before)
            saved = [self._saved(data, draft, content, writing)]
            change.made = lambda: {saved[-1].path: saved[-1].meta.id}
            change.save_again = lambda conflicts: saved.append(
                writing.noted(self._repo, self._saved_again(saved[-1], conflicts))
            )
        change.must_be_delivered()
        return Put(saved[-1], change.sync)

    def _saved(self, data: DataName, draft: Draft, content: Path | bytes | BinaryIO, writing: Writing) -> DataVersion:
        """A new version; for a kept put the one that an earlier attempt has made, if it made one. inv[outbox.once]"""
        made = writing.made_before(self._repo, data)
        if made is not None:
            with self._repo.tree.announce([made.path]):
                return made  # saved, and perhaps not pushed: this command's push answers for it
        writing.begin()
        return writing.noted(self._repo, self._repo.artifacts.save(data, draft, content))

    def _saved_again(self, lost: DataVersion, conflicts: Sequence[Conflict]) -> DataVersion:
        """The same bytes as the next version, if another machine was first with this one; any other clash stays."""
        kept = kept_version(self._repo.datastore.cache, lost.ref, conflicts)
        try:  # whether that very version is there now, from elsewhere: not merely a name that looks like it (S14)
            taken = kept is not None and self._repo.artifacts.read(lost.ref).meta.id != lost.meta.id
        except NotFound:
            taken = False
        return self._repo.artifacts.save_again(lost, kept) if taken and kept is not None else lost


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
