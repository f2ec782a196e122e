"""Reads a segment that no root names: what it says of itself is all there is to check."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from swamp.index.columns import read_columns
from swamp.index.footer import Source
from swamp.index.root import Span
from swamp.index.segment import AnyRow, rows_of


def read_segment(
    source: Source,
    added_seq: int,
    *,
    start: str = "",
    stop: str | None = None,
    paths: Collection[str] | None = None,
    dropped: bool = True,
) -> Iterator[AnyRow]:
    return rows_of(read_columns(source, added_seq, Span(start, stop), paths), dropped)
