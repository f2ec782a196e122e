"""The options of the `swamp` format: an unknown one is an error that says what was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Final

from swamp.errors import UsageError

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
            near = difflib.get_close_matches(name.lower(), by_lower, 1, 0.6)
            meant = f"did you mean {by_lower[near[0]]!r}?" if near else f"there are: {', '.join(by_lower.values())}"
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
