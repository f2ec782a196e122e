"""How the rows of a dataset are laid out in parts, and whether its columns fit those of the version before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from swamp.datasets.options import flag
from swamp.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

PART_BYTES: Final = 512 << 20
_WIDER: Final = {
    "byte": ("short", "integer", "long", "float", "double"),
    "short": ("integer", "long", "float", "double"),
    "integer": ("long", "double"),
    "long": (),
    "float": ("double",),
    "date": ("timestamp_ntz",),
}
"""Types that hold every value of the first one: what `mergeSchema` lets a column become."""


@dataclass(frozen=True, slots=True)
class Layout:
    """`partition_by`: a part holds one combination of these columns; `part_bytes`: about how large it gets."""

    partition_by: tuple[str, ...] = ()
    part_bytes: int = PART_BYTES

    @classmethod
    def of(cls, options: Mapping[str, str], schema: Mapping[str, Any]) -> Layout:
        """As the options of a write say. Raises UsageError."""
        columns = tuple(name.strip() for name in options.get("partitionBy", "").split(",") if name.strip())
        kinds = {field["name"]: field["type"] for field in schema["fields"]}
        for name in columns:
            if not isinstance(kinds.get(name), str):
                there = ", ".join(found for found, kind in kinds.items() if isinstance(kind, str))
                raise UsageError(f"partitionBy: there is no plain column {name!r}; there are: {there}", hint=there)
        size = options.get("maxPartBytes", str(PART_BYTES))
        if not size.isdecimal() or int(size) < 1:
            raise UsageError(f"maxPartBytes is {size!r}; use a number of bytes", hint="e.g. 134217728")
        return cls(columns, int(size))

    def apart(self, batch: pa.RecordBatch) -> Iterator[tuple[tuple[Any, ...], pa.RecordBatch]]:
        """The rows of each combination of values, with it."""
        import pyarrow as pa

        if not self.partition_by or not batch.num_rows:
            yield (), batch
            return
        places: dict[tuple[Any, ...], list[int]] = {}
        values = [batch.column(batch.schema.get_field_index(name)).to_pylist() for name in self.partition_by]
        for at, found in enumerate(zip(*values, strict=True)):
            places.setdefault(found, []).append(at)
        for found, rows in places.items():
            yield found, batch if len(rows) == batch.num_rows else batch.take(pa.array(rows))


def check_schema(options: Mapping[str, str], before: object, now: Mapping[str, Any], name: str) -> None:
    """With `mergeSchema` the columns have to fit those of the latest version. Raises UsageError.

    `true`: new columns and wider types are welcome; `false`: nothing may change. Without it nothing is compared.
    """
    if options.get("mergeSchema") is None or not isinstance(before, dict):
        return
    merge = flag({"mergeschema": options["mergeSchema"]}, "mergeSchema", False)
    old = {field["name"]: field["type"] for field in before["fields"]}
    new = {field["name"]: field["type"] for field in now["fields"]}
    for column, kind in old.items():
        if column not in new:
            raise _differs(name, f"has lost the column {column!r}")
        if new[column] != kind and not (merge and _holds(new[column], kind)):
            told, was = (one if isinstance(one, str) else "another structure" for one in (new[column], kind))
            raise _differs(name, f"has {column!r} as {told}, which was {was}")
    added = [column for column in new if column not in old]
    if added and not merge:
        raise _differs(name, f"has a new column {added[0]!r}")


def _holds(wider: object, kind: object) -> bool:
    return isinstance(kind, str) and wider in _WIDER.get(kind, ())


def _differs(name: str, how: str) -> UsageError:
    way_out = "mergeSchema true takes new columns and wider types; without mergeSchema a version may have any columns"
    return UsageError(f"this version of {name} {how}; {way_out}", hint=way_out)
