"""The options of the `swamp` format: an unknown one is an error that says what was probably meant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from swamp.data.names import suggest
from swamp.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

WHERE: Final = ("repo", "url", "namespace", "fresh")
ARTIFACT: Final = ("model", "name", "type")
AS_OF: Final = ("version", "versionAsOf", "timestampAsOf")
CONTENT: Final = (*ARTIFACT, *AS_OF, "columns", "contentFormat")
STREAM_ONLY: Final = ("startingFrom", "maxVersionsPerTrigger")
SPARKS_OWN: Final = ("checkpointLocation", "queryName", "path")
"""Options of a streaming query that Spark hands to its sink, too."""
WRITE: Final = (
    *ARTIFACT,
    *("writeId", "tags", "lifetime", "garbageCollection", "specName", "ownerType", "ownerRef"),
    *("partitionBy", "maxPartBytes", "mergeSchema"),
    *("workflowId", "workflowRunId", "workflowName", "jobName", "stepName", "source"),
    *("inputs", "outputId"),
)
CSV: Final = ("sep", "delimiter", "header", "quote", "escape", "nullValue", "inferSchema", "encoding", "multiLine")
JSON: Final = ("encoding", "multiLine")
BY_FORMAT: Final[Mapping[str, tuple[str, ...]]] = {"csv": CSV, "json": JSON, "jsonl": JSON, "text": ("encoding",)}
_FORMAT_OPTIONS: Final = tuple(dict.fromkeys(name for names in BY_FORMAT.values() for name in names))


def check_table_options(given: Iterable[str], *, maybe_stream: bool = False) -> None:
    """Raises UsageError for an option that a table does not have. Who is asked for columns cannot tell a stream."""
    _check(given, (*WHERE, "table", *(STREAM_ONLY if maybe_stream else ())), "a table")


def check_content_options(given: Iterable[str], kind: str | None, *, maybe_stream: bool = False) -> None:
    """Raises UsageError for an option that content does not have; of `kind`, once that is known."""
    known = BY_FORMAT.get(kind, ()) if kind else _FORMAT_OPTIONS
    stream = STREAM_ONLY if maybe_stream else ()
    _check(given, (*WHERE, *CONTENT, *known, *stream), f"{kind} content" if kind else "content")


def check_stream_options(given: Iterable[str]) -> None:
    _check(given, (*WHERE, *ARTIFACT, "table", "contentFormat", *STREAM_ONLY), "a stream")


def check_write_options(given: Iterable[str]) -> None:
    _check(given, (*WHERE, *WRITE), "a write")


def check_sink_options(given: Iterable[str]) -> None:
    _check(given, (*WHERE, *WRITE, *SPARKS_OWN), "a stream's sink")


def _check(given: Iterable[str], known: Iterable[str], what: str) -> None:
    """Spark knows no case in option names; neither does this."""
    by_lower = {name.lower(): name for name in known}
    for name in given:
        if name.lower() not in by_lower:
            near = suggest(name, by_lower.values())
            meant = f"did you mean {near!r}?" if near else f"there are: {', '.join(by_lower.values())}"
            raise UsageError(f"{what} has no option {name!r}; {meant}", hint=meant)


def flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    """A yes-or-no option. Raises UsageError for anything else."""
    text = options.get(name.lower())
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise UsageError(f"{name} is {text!r}; use true or false", hint="use true or false")
    return text.strip().lower() == "true"


def asked_version(options: Mapping[str, str]) -> tuple[int | None, str | None]:
    """The version number and the time that were asked for, as Delta's users write them: at most one of the three."""
    given = [name for name in AS_OF if options.get(name.lower())]
    if len(given) > 1:
        raise UsageError(f"{given[0]} and {given[1]} both say which version; use one", hint="use one of them")
    if not given:
        return None, None
    text = options[given[0].lower()]
    if given[0] == "timestampAsOf":
        return None, text
    if not text.isdigit() or int(text) < 1:
        raise UsageError(f"{text!r} is not a version; versions are whole numbers from 1", hint="e.g. 3")
    return int(text), None


# -- how the rows of a dataset are laid out in parts, and whether its columns fit those of the version before

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
