"""The versions of one artifact as rows, newest first, found without going through the whole index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from swamp.datasets.content import find_artifact
from swamp.datasets.place import Span, namespace_of, open_place
from swamp.datasets.resolve import known_places
from swamp.datasets.tables import VERSIONS, Row, rows


def versions_of(options: Mapping[str, str]) -> Iterator[tuple[Any, ...]]:
    """Rows of the table `versions` for the artifact that the options name, as tuples of its columns."""
    place = open_place(options)
    known = known_places(place, options, options["model"])
    data = find_artifact(place, options["model"], options["name"], None, options.get("type"), known=known).ref.data
    span = Span(f"{data.path}/", f"{data.path}0")  # `0` follows `/`: all below the name and nothing else
    found: list[Row] = sorted(rows(VERSIONS, place, span, namespace_of(options)), key=lambda r: -int(r["version"]))
    return (tuple(row.get(column) for column in VERSIONS.names) for row in found)
