"""Rows as people look at them in a notebook: a short table, as text and as HTML."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, overload

from swamp.extras import needs

SHOWN: Final = 20
_WIDTH: Final = 40


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
