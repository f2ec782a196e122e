"""What can be tuned, and where it is read from: flag > environment > `.swamp.yaml` > default.

Each tunable stands once in `TUNABLES` with its sources, its allowed values and what it does; `docs/reference` prints
that table. A value that is not allowed is a `UsageError` that names the source it came from.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from swamp.errors import UsageError
from swamp.values import value

EngineChoice = Literal["auto", "spark", "inline"]
ENGINES: Final = ("auto", "spark", "inline")
SqlChoice = Literal["auto", "duckdb", "spark"]
SQL_ENGINES: Final = ("auto", "duckdb", "spark")
HYDRATE: Final = ("full", "lazy")
FreshChoice = Literal["auto", "always", "never"]
FRESH: Final = ("auto", "always", "never")


@value
class Tunable:
    """One setting: `flag` is the keyword a command passes, `yaml` a dotted key of `.swamp.yaml`."""

    name: str
    default: Any
    parse: Callable[[Any], Any]
    allowed: str
    doc: str
    env: str | None = None
    flag: str | None = None
    yaml: str | None = None
    also: str | None = None
    """Another dotted key of `.swamp.yaml` for the same: where people look for it."""


def _whole(low: int, high: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        if isinstance(value, bool):
            raise ValueError(value)
        number = int(value)
        if not low <= number <= high:
            raise ValueError(value)
        return number

    return parse


def _seconds_from_ms(value: Any) -> float:
    if isinstance(value, bool) or not 1 <= float(value) <= 86_400_000:
        raise ValueError(value)
    return float(value) / 1000


def _choice(*allowed: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if value not in allowed:
            raise ValueError(value)
        return str(value)

    return parse


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).lower()
    if text not in ("true", "false", "1", "0", "yes", "no", "on", "off"):
        raise ValueError(value)
    return text in ("true", "1", "yes", "on")


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ValueError(value)
    return dict(value)


def _directory(value: Any) -> Path:
    return Path(str(value)).expanduser().absolute()


TUNABLES: Final[tuple[Tunable, ...]] = (
    Tunable("home", None, _directory, "a directory", "caches of all repositories of this machine",
            env="SWAMP_HOME"),
    Tunable("engine", "auto", _choice(*ENGINES), "auto, spark or inline",
            "what runs bulk work; auto uses Spark when the work is larger than starting Spark costs",
            env="SWAMP_ENGINE", flag="engine", yaml="engine"),
    Tunable("sql_engine", "auto", _choice(*SQL_ENGINES), "auto, duckdb or spark",
            "what answers `swamp sql`; auto uses Spark when the datasets of the query are larger than that costs",
            env="SWAMP_SQL_ENGINE", flag="sql_engine", yaml="sql.engine"),
    Tunable("lock_timeout", 60.0, _seconds_from_ms, "milliseconds, 1 to 86400000",
            "how long to wait for somebody else's lease before exit 75", env="SWAMP_LOCK_TIMEOUT_MS",
            flag="lock_timeout_ms"),
    Tunable("sync_timeout", 300.0, _seconds_from_ms, "milliseconds, 1 to 86400000",
            "how long a push or pull may go without progress before exit 69",
            env="SWAMP_DATASTORE_SYNC_TIMEOUT_MS", flag="timeout_ms"),
    Tunable("query_timeout", 60.0, _seconds_from_ms, "milliseconds, 1 to 86400000",
            "how long the expressions of one query, or SQL in process, may be evaluated", env="SWAMP_QUERY_TIMEOUT_MS",
            flag="query_timeout_ms"),
    Tunable("push_concurrency", 32, _whole(1, 256), "a whole number, 1 to 256", "uploads at a time",
            env="SWAMP_PUSH_CONCURRENCY", yaml="datastore.config.pushConcurrency"),
    Tunable("pull_concurrency", 32, _whole(1, 256), "a whole number, 1 to 256", "downloads at a time",
            env="SWAMP_PULL_CONCURRENCY", yaml="datastore.config.pullConcurrency"),
    Tunable("request_timeout", 30.0, _seconds_from_ms, "milliseconds, 1 to 86400000",
            "how long one request is tried, its retries included", env="SWAMP_REQUEST_TIMEOUT_MS",
            yaml="datastore.config.requestTimeoutMs"),
    Tunable("fresh", "auto", _choice(*FRESH), "auto, always or never",
            "whether reads ask the store first: auto unless this machine asked within 2 s, never shows what is here",
            env="SWAMP_FRESH", flag="fresh"),
    Tunable("hydrate", "full", _choice(*HYDRATE), "full or lazy",
            "whether a pull brings content or leaves it in the bucket until it is read; the flag is the choice of "
            "this machine, the file the default of machines that have not chosen; where neither says anything, large "
            "parts of Spark datasets stay in the bucket", flag="hydrate",
            yaml="datastore.hydrate"),
    Tunable("keep_days", 7, _whole(0, 3650), "days, 0 to 3650", "the undo window of deleted and overwritten data",
            flag="keep_days", yaml="datastore.keepDays"),
    Tunable("allow_deletes", None, _whole(0, 10**9), "a whole number", "deletes that one push may carry out at most",
            flag="allow_deletes"),
    Tunable("packs", True, _flag, "on or off", "whether small files travel together in one object", env="SWAMP_PACKS",
            yaml="datastore.packs", also="packs"),
    Tunable("auto_gc", False, _flag, "true or false", "collect expired data versions after a run", yaml="autoGc"),
    Tunable("lineage_to", None, str, "a file, or a URL with http:// or https://",
            "where the OpenLineage events of method runs go: appended to the file, or sent to the URL",
            env="SWAMP_LINEAGE_TO", yaml="lineage.to"),
    Tunable("spark", {}, _mapping, "a mapping with master, remote, conf", "the Spark session that swamp builds",
            yaml="spark"),
)  # fmt: skip


@value
class Settings:
    """Every tunable with its value; times in seconds."""

    home: Path
    engine: EngineChoice
    sql_engine: SqlChoice
    lock_timeout: float
    sync_timeout: float
    query_timeout: float
    push_concurrency: int
    pull_concurrency: int
    request_timeout: float
    fresh: FreshChoice
    hydrate: Literal["full", "lazy"]
    keep_days: int
    allow_deletes: int | None
    packs: bool
    auto_gc: bool
    lineage_to: str | None
    spark: Mapping[str, Any]


def load(
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    document: Mapping[str, Any] | None = None,
) -> Settings:
    """The settings of one command. Raises UsageError that names the bad key and what it may be."""
    environ = os.environ if environ is None else environ
    values = {t.name: _resolve(t, flags or {}, environ, document or {}) for t in TUNABLES}
    values["home"] = values["home"] or swamp_home(environ)
    return Settings(**values)


def _resolve(
    tunable: Tunable, flags: Mapping[str, Any], environ: Mapping[str, str], document: Mapping[str, Any]
) -> Any:
    if tunable.flag and flags.get(tunable.flag) is not None:
        # A time on the command line is in seconds, and so is the complaint about it.
        word, in_seconds = tunable.flag.removesuffix("_ms").replace("_", "-"), tunable.flag.endswith("_ms")
        return _parsed(tunable, flags[tunable.flag], f"--{word}", in_seconds=in_seconds)
    if tunable.env and environ.get(tunable.env):
        return _parsed(tunable, environ[tunable.env], tunable.env)
    for key in filter(None, (tunable.yaml, tunable.also)):
        found = _dotted(document, key)
        if found is not None:
            return _parsed(tunable, found, f"{key} in .swamp.yaml")
    return tunable.default


def _parsed(tunable: Tunable, value: Any, source: str, *, in_seconds: bool = False) -> Any:
    try:
        return tunable.parse(value)
    except (TypeError, ValueError, OverflowError) as error:
        shown = f"{value / 1000:g}" if in_seconds else repr(value)
        allowed = "seconds, 0.001 to 86400" if in_seconds else tunable.allowed
        hint = f"allowed: {allowed} ({tunable.doc})"
        raise UsageError(f"{source} is {shown}", hint=hint, details={"key": source}) from error


def _dotted(document: Mapping[str, Any], key: str) -> Any:
    found: Any = document
    for part in key.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(part)
    return found


def swamp_home(environ: Mapping[str, str]) -> Path:
    """`SWAMP_HOME`, or `.swamp` in the user's home directory."""
    chosen = environ.get("SWAMP_HOME")
    if chosen:
        return _directory(chosen)
    home = environ.get("HOME")
    return (Path(home) if home else Path.home()) / ".swamp"
