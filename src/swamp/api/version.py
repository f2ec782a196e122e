"""One version of data as a program reads it, and lists of them as people look at them in a notebook."""

from __future__ import annotations

import builtins
import html
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, overload

from swamp.data.versions import DataVersion
from swamp.errors import MissingTool, UsageError
from swamp.extras import needs
from swamp.repo.contents import arrow_table

if TYPE_CHECKING:
    from swamp.repo.contents import Contents

SHOWN: Final = 20
_WIDTH: Final = 40


class SavedVersion:
    """One version of an artifact. Nothing of its content is read before one of the methods asks for it.

    Bytes are compared with their checksum before anything is made of them; what is not here yet is fetched.
    """

    def __init__(self, contents: Contents, found: DataVersion) -> None:
        self._contents = contents
        self._found = found

    @property
    def model(self) -> str:
        """The name of the model it belongs to."""
        return self._found.called

    @property
    def name(self) -> str:
        return self._found.name

    @property
    def version(self) -> int:
        """Its number, from 1."""
        return self._found.version

    @property
    def size(self) -> int:
        """Bytes, of all parts together."""
        return self._found.meta.size

    @property
    def content_type(self) -> str:
        return self._found.meta.content_type

    @property
    def checksum(self) -> str:
        """SHA-256 of its bytes."""
        return self._found.meta.checksum

    @property
    def created_at(self) -> str:
        """When it was saved, RFC 3339."""
        return self._found.meta.created_at

    @property
    def tags(self) -> Mapping[str, str]:
        return dict(self._found.meta.tags)

    @property
    def reference(self) -> Mapping[str, Any]:
        """How records name it: model, name, version, and its path in the datastore."""
        return self._found.artifact()

    @property
    def parts(self) -> Sequence[str]:
        """The names of its files; empty where it is a single file."""
        return [part.name for part in self._contents.artifacts.parts(self._found)]

    # -- as a table

    def to_arrow(self, columns: Sequence[str] | None = None) -> Any:
        """The rows as a `pyarrow.Table`: Parquet, CSV, JSON lines, or JSON objects. Raises UsageError for the rest."""
        return arrow_table(self._contents, self._found, columns)

    def to_pandas(self, columns: Sequence[str] | None = None) -> Any:
        """The rows as a `pandas.DataFrame`; an index that was written comes back."""
        needs("pandas", "to_pandas", "pandas")
        return self.to_arrow(columns).to_pandas()

    def to_polars(self, columns: Sequence[str] | None = None) -> Any:
        """The rows as a `polars.DataFrame`. Raises MissingTool where polars is not installed."""
        try:
            import polars
        except ImportError as error:
            raise MissingTool("polars is not installed", hint="pip install polars") from error
        return polars.from_arrow(self.to_arrow(columns))

    # -- as it was saved

    def json(self) -> Any:
        """The value of a JSON document; of JSON lines the list of their values."""
        text = self.text()
        plain = self.content_type.partition(";")[0].strip().lower()
        try:
            if plain in ("application/x-ndjson", "application/jsonl"):
                return [json.loads(line) for line in text.splitlines() if line.strip()]
            return json.loads(text)
        except ValueError as error:
            raise UsageError(f"{self._called} is not JSON: {error}", hint=f"it is {self.content_type}") from error

    def text(self, part: str | None = None) -> str:
        """The content as UTF-8 text."""
        try:
            return self.bytes(part).decode("utf-8")
        except UnicodeDecodeError as error:
            raise UsageError(
                f"{self._called} is not text: {error.reason}", hint=f"it is {self.content_type}"
            ) from error

    def bytes(self, part: str | None = None) -> builtins.bytes:
        """The bytes of the file, or of one part of several."""
        return self._contents.file(self._found, part).path.read_bytes()

    def path(self, part: str | None = None) -> Path:
        """The local file, or the directory of all parts: read it, never change it."""
        if part is None and self._found.meta.has_parts:
            return self._contents.artifacts.raw(self._found)
        return self._contents.file(self._found, part).path

    # -- shown

    @property
    def _called(self) -> str:
        return f"{self.model}/{self.name} version {self.version}"

    def __repr__(self) -> str:
        return f"<{self._called}: {self.content_type}, {self.size:,} bytes>"

    def _repr_html_(self) -> str:
        tags = ", ".join(f"{key}={value}" for key, value in sorted(self.tags.items()))
        rows = {"type": self.content_type, "size": f"{self.size:,} bytes", "created": self.created_at, "tags": tags}
        cells = "".join(f"<tr><th>{key}</th><td>{html.escape(value)}</td></tr>" for key, value in rows.items())
        return f"<b>{html.escape(self._called)}</b><table>{cells}</table>"


class Listing(Sequence[Mapping[str, Any]]):
    """Rows with the keys of `--json`. `columns` are those that are shown; a row has all of its keys."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
        self._rows = tuple(rows)
        self.columns = tuple(columns)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self._rows)

    @overload
    def __getitem__(self, at: int) -> Mapping[str, Any]: ...

    @overload
    def __getitem__(self, at: slice) -> Listing: ...

    def __getitem__(self, at: int | slice) -> Mapping[str, Any] | Listing:
        return Listing(self._rows[at], self.columns) if isinstance(at, slice) else self._rows[at]

    def to_pandas(self) -> Any:
        """All rows and keys as a `pandas.DataFrame`."""
        needs("pandas", "to_pandas", "pandas")
        import pandas as pd

        return pd.DataFrame([dict(row) for row in self._rows])

    def __repr__(self) -> str:
        cells = [self.columns, *self._cells()]
        widths = [max(len(row[at]) for row in cells) for at in range(len(self.columns))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
        ]
        return "\n".join([*lines, *self._more()])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(column)}</th>" for column in self.columns)
        rows = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in self._cells()
        )
        more = "".join(f"<p>{html.escape(line)}</p>" for line in self._more())
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{more}"

    def _cells(self) -> list[tuple[str, ...]]:
        return [tuple(_cell(row.get(column)) for column in self.columns) for row in self._rows[:SHOWN]]

    def _more(self) -> list[str]:
        left = len(self._rows) - SHOWN
        return [f"… and {left} more"] if left > 0 else []


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"
