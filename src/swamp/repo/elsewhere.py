"""Lists versions that the store has and that could not be fetched: as there and not here, with the reason (S23)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from swamp.catalog.schema import Row
from swamp.data.names import DataName, VersionRef

if TYPE_CHECKING:
    from swamp.catalog.query import QueryMatches

Elsewhere = dict[VersionRef, str]


def newest_shown(rows: Sequence[Row], elsewhere: Elsewhere, ns: str, model_type: str | None = None) -> list[Row]:
    """One row per name, the newest that there is anywhere: an older one is never shown in its place."""
    found = {row.ref.data: row for row in rows}
    for ref, why in sorted(elsewhere.items()):
        known = found.get(ref.data)
        if model_type not in (None, ref.data.type) or (known is not None and known.ref.version > ref.version):
            continue
        same = known is not None and known.ref == ref
        found[ref.data] = replace(known, away=why) if same and known else Row.elsewhere(ref, ns, why, known)
    return list(found.values())


def versions_shown(rows: Sequence[Row], elsewhere: Elsewhere, data: DataName, ns: str) -> list[Row]:
    """The versions of a name, newest first, those that are not here among them."""
    wanted = {ref: why for ref, why in elsewhere.items() if ref.data == data}
    here = [replace(row, away=wanted.get(row.ref)) for row in rows]
    known = {row.ref for row in here}
    here += [Row.elsewhere(ref, ns, why, rows[0] if rows else None) for ref, why in wanted.items() if ref not in known]
    here.sort(key=lambda row: -row.ref.version)
    return [replace(row, fields={**row.fields, "isLatest": at == 0}) for at, row in enumerate(here)]


def with_elsewhere(result: QueryMatches, elsewhere: Elsewhere) -> QueryMatches:
    """The same answer, with what it could not ask."""
    items: list[dict[str, Any]] = [
        {"name": ref.data.name, "version": ref.version, "modelType": ref.data.type, "modelId": ref.data.model_id,
         "reason": why}
        for ref, why in sorted(elsewhere.items())
    ]  # fmt: skip
    told = [f"version {i['version']} of {i['name']} is in the datastore and not here: {i['reason']}" for i in items]
    return replace(result, not_here=items, warnings=[*result.warnings, *told])


def version_item(row: Row) -> dict[str, Any]:
    """A version as a line of `data versions`."""
    item = {
        "version": row.ref.version,
        "createdAt": row.fields["createdAt"],
        "size": row.fields["size"],
        "checksum": row.checksum,
        "isLatest": row.fields["isLatest"],
    }
    return item if row.away is None else {**item, "here": False, "reason": row.away}
