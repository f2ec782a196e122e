"""Content read by Spark's own readers: parts are immutable objects, so the JVM may open them wherever it can.

Whether it can is found out by asking it: a part that its file system opens with the right length is one that the
executors can open too, if they run here or the store is a cloud's. What it cannot open, this process lends to executors
on this machine (`lend`), until there are copies of it (`copies`). Everything else goes through the Python source, which
needs nothing but this package.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from swamp.bulk.settings import COPIED_HERE, COPY_BYTES, SHARED_CACHE
from swamp.datasets.content import Artifact, Format, format_of
from swamp.datasets.copies import shelf_at
from swamp.datasets.lend import Room, lender
from swamp.datasets.options import check_content_options
from swamp.datasets.place import Bucket, FileRef, Folder, open_place
from swamp.datasets.reuse import frame_again, identity_of, keep, keep_frame, kept
from swamp.datasets.source import data_source, find_asked, note_read
from swamp.errors import UsageError
from swamp.index.entry import is_payload_key, object_of
from swamp.settings import swamp_home
from swamp.store.open import is_plugin_type, parse_target
from swamp.store.walk import plain_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import StructType

log = logging.getLogger("swamp.spark")
_SCHEMES: Final = {"s3": "s3a", "gcs": "gs"}
_GLOB: Final = frozenset("{}[]*?\\")
_LISTED_HERE: Final = "spark.sql.sources.parallelPartitionDiscovery.threshold"
MANY_PATHS: Final = 32
"""Spark's own default for `_LISTED_HERE`."""
FEW_PARTS: Final = 64
SMALL_PART: Final = 1 << 20
BY_POSITION: Final = "parquet.hadoop.vectored.io.enabled"
"""How Parquet asks for columns. Of lent parts it takes them one after the other instead: for every read by position
Hadoop's client opens a part anew, so that reading all columns sent them two to three times."""
CSV_DEFAULTS: Final = {"header": "true", "inferSchema": "true"}


def read_version(session: SparkSession, asked: Mapping[str, str], options: Mapping[str, str]) -> DataFrame:
    """The version that `asked` names (options of `format("swamp")`), by Spark's own reader where that can open it and
    by the Python source elsewhere. Root and version are looked up once."""
    by_lower = {key.lower(): value for key, value in asked.items()}
    place = open_place(by_lower)
    artifact = find_asked(place, by_lower)
    note_read(artifact)
    kind = format_of(artifact, by_lower.get("contentformat"))
    check_content_options(asked, kind)
    frame = read_native(session, place, artifact, kind, options)
    if frame is None:
        pinned = {**asked, "version": str(artifact.ref.version), "type": artifact.ref.data.type}
        pinned.pop("timestampAsOf", None)
        session.dataSource.register(data_source())  # only here: it costs as much as all other questions to the JVM
        return session.read.format("swamp").options(**pinned).load()
    columns = [column.strip() for column in options.get("columns", "").split(",") if column.strip()]
    return frame.select(*columns) if columns else frame


def read_native(
    session: SparkSession, place: Bucket | Folder, artifact: Artifact, kind: Format, options: Mapping[str, str]
) -> DataFrame | None:
    """The content by Spark's own reader, or None with the reason in the log."""
    filled = [file for file in artifact.files if file.size]
    copies = _copies_of(session, place, filled)
    known = None
    if _never_changes(session, place, artifact, kind):
        known = identity_of(place, artifact, tuple(copies.here.values()))
        if (again := frame_again(session, known)) is not None:
            return again
    found = _opened(session, place, artifact, kind, copies)
    if found is None:
        return None
    with _listed_by_the_driver(session, len(found.paths)):
        reader = session.read.option(BY_POSITION, "false") if found.are_lent else session.read
        frame = _frame(reader, artifact, kind, options, found.paths)
    if known is not None:
        keep_frame(session, known, frame)
    return frame


def native_table(session: SparkSession, place: Bucket | Folder, artifact: Artifact, columns: StructType) -> Any | None:
    """Parquet content with these columns as a ParquetTable of the JVM, which every scan of the format is made of
    (`compile`); None with the reason in the log."""
    filled = [file for file in artifact.files if file.size]
    copies = _copies_of(session, place, filled)
    known = None
    if _never_changes(session, place, artifact, "parquet"):
        known = identity_of(place, artifact, tuple(copies.here.values()), columns.json())
        if (again := kept(session, known)) is not None:
            return again
    found = _opened(session, place, artifact, "parquet", copies)
    if found is None:
        return None
    table = _table_of(session, found, columns)
    with _listed_by_the_driver(session, len(found.paths)):
        table.schema()  # looks at the parts; what Spark refuses is told here, and not to the user
    if known is not None:
        keep(session, known, table)
    return table


def _table_of(session: SparkSession, found: _Reachable, columns: StructType) -> Any:
    jvm: Any = session._jvm
    sources = jvm.org.apache.spark.sql.execution.datasources
    options = {BY_POSITION: "false"} if found.are_lent else {}
    return sources.v2.parquet.ParquetTable(
        "swamp",
        session._jsparkSession,
        jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap(options),
        jvm.PythonUtils.toSeq(list(found.paths)),
        jvm.scala.Some(session._jsparkSession.parseDataType(columns.json())),
        jvm.java.lang.Class.forName("org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat"),
    )


def _opened(
    session: SparkSession, place: Bucket | Folder, artifact: Artifact, kind: Format, copies: _Copies
) -> _Reachable | None:
    """Which paths Spark's own reader opens, or None; either is told in the log."""
    filled = [file for file in artifact.files if file.size]
    why = _unfit(session, filled, kind)
    found = why if why is not None else _reachable(session, place, filled, copies)
    if isinstance(found, str):
        log.info("%s is read by the Python source: %s", artifact.ref.path, found)
        return None
    log.info("%s is read by Spark's own %s reader: %d parts%s", artifact.ref.path, kind, len(found.paths), found.how)
    return found


class _Reachable(NamedTuple):
    """Parts as the JVM can open them."""

    paths: Sequence[str]
    how: str = ""
    are_lent: bool = False


class _Copies(NamedTuple):
    """The parts that are files of this machine already, by key, and where more of them may be kept."""

    here: Mapping[str, str]
    room: Room | None = None


def _reachable(
    session: SparkSession, place: Bucket | Folder, filled: Sequence[FileRef], copies: _Copies
) -> _Reachable | str:
    """How the JVM reads the parts, or why it cannot."""
    if len(copies.here) == len(filled):
        paths = [copies.here[file.key] for file in filled]
        if _is_here(session) or _refusal(session, paths[0], filled[0].size) is None:
            return _Reachable(paths, ", copies of it on this machine")
    paths = [_path_of(place, file) for file in filled]
    why = _obstacle(session, place, filled, paths)
    if why is None:
        return _Reachable(paths)
    if isinstance(place, Bucket) and _may_lend(session, filled):
        lent = [copies.here.get(file.key) or lender().lend(place, file, copies.room) for file in filled]
        asked = next((number for number, file in enumerate(filled) if file.key not in copies.here), 0)
        if _refusal(session, lent[asked], filled[asked].size) is None:
            return _Reachable(lent, f", lent by this process: {why}", are_lent=True)
    return why


def _copies_of(session: SparkSession, place: Bucket | Folder, filled: Sequence[FileRef]) -> _Copies:
    """Only of objects that are nobody else's to write over and whose hash is known, and only where all tasks see this
    disk."""
    none = _Copies({})
    sha256s = {file.key: file.sha256 for file in filled if file.sha256 and is_payload_key(file.key)}
    if isinstance(place, Folder) or not sha256s or _path_of(place, filled[0]).startswith("file:"):
        return none
    most = _bytes_for_copies(session)
    if not most or not _sees_copies(session):
        return none
    shelf = shelf_at(swamp_home(os.environ))
    if shelf is None:
        return none
    taken = {f.key: shelf.take(f.path, f.size, sha256s[f.key]) for f in filled if f.key in sha256s}
    here = {key: f"file://{_escaped(path)}" for key, path in taken.items() if path}
    more = sum(file.size for file in filled if file.key not in here)
    return _Copies(here, Room(shelf, most) if shelf.has_room(more, most) else None)


def _bytes_for_copies(session: SparkSession) -> int:
    given = str(session.conf.get(COPY_BYTES, str(COPIED_HERE)))
    if not given.isdecimal():
        raise UsageError(f"{COPY_BYTES} is {given!r}", hint="a number of bytes; 0: no copies")
    return int(given)


def _sees_copies(session: SparkSession) -> bool:
    """Whether all tasks run on this machine, as this user: in a JVM of this process, or in the user's warm server."""
    if _is_remote(session):
        master = str(session.conf.get("spark.master", ""))
        return master.startswith("local[") and session.conf.get(SHARED_CACHE, "false") == "true"
    return _is_here(session)


def _never_changes(session: SparkSession, place: Bucket | Folder, artifact: Artifact, kind: Format) -> bool:
    """Whether a relation of it can be kept: no setting of the session decides which columns there are, and nobody
    writes over a part, as may happen to an object that was adopted. inv[store.pinned-read]"""
    described = kind == "parquet" and isinstance(artifact.meta.extra.get("schema"), dict)
    own = isinstance(place, Folder) or all(is_payload_key(object_of(file.key)) for file in artifact.files)
    return described and own and not _is_remote(session)


def _frame(
    reader: DataFrameReader, artifact: Artifact, kind: Format, options: Mapping[str, str], paths: Sequence[str]
) -> DataFrame:
    described = artifact.meta.extra.get("schema")
    match kind:
        case "parquet":
            if isinstance(described, dict):
                from pyspark.sql.types import StructType

                return reader.schema(StructType.fromJson(described)).parquet(*paths)
            return reader.option("mergeSchema", "true").parquet(*paths)
        case "csv":
            return reader.options(**{**CSV_DEFAULTS, **options}).csv(list(paths))
        case "json":
            return reader.options(**{"multiLine": "true", **options}).json(list(paths))
        case "jsonl":
            return reader.options(**options).json(list(paths))
        case "text":
            return reader.options(**options).text(list(paths))


def _unfit(session: SparkSession, filled: Sequence[FileRef], kind: Format) -> str | None:
    """Why Spark's own readers would not do, wherever the parts lie; None when they would."""
    if not filled:
        return "it has no content"
    if _is_remote(session) and kind != "parquet":
        return "a Spark Connect client looks up columns for every query again, which costs a reading of all rows"
    if kind == "csv" and len(filled) > 1:
        return "CSV parts may differ in their columns, which Spark's reader takes by their place"
    return None


def _obstacle(
    session: SparkSession, place: Bucket | Folder, filled: Sequence[FileRef], paths: Sequence[str]
) -> str | None:
    """Why the JVM cannot open the parts where they lie; None when it can."""
    if isinstance(place, Bucket) and any(object_of(file.key) != file.key for file in filled):
        return "parts of it lie in packs, which Spark's readers cannot open"
    if not paths[0]:
        return "the JVM has no address for this store"
    # This user's warm server says of itself that it shares the disk.
    shared = _is_here(session) or session.conf.get(SHARED_CACHE, "false") == "true"
    if paths[0].startswith("file:") and not shared:
        return f"its executors do not see this machine's files; {SHARED_CACHE} is not set"
    hidden = next((f for f in filled if Path(f.key).name.startswith(("_", ".")) or ":" in f.key), None)
    if hidden is not None:
        return f"Spark's readers pass over files called like {Path(hidden.key).name}"
    if paths[0].startswith("file:") and _is_here(session):
        file = Path(paths[0].removeprefix("file://").replace("\\", ""))
        return None if file.is_file() and file.stat().st_size == filled[0].size else f"{file} is not the part"
    return _refusal(session, paths[0], filled[0].size)


def _may_lend(session: SparkSession, filled: Sequence[FileRef]) -> bool:
    """Whether all tasks run on this machine, where loopback is ours. Many small parts cost a reader that asks for each
    of them more than the Python source, which takes several at a time."""
    if len(filled) > FEW_PARTS and sum(file.size for file in filled) < len(filled) * SMALL_PART:
        return False
    return str(session.conf.get("spark.master", "")).startswith("local[")


def _is_remote(session: SparkSession) -> bool:
    """Whether this is a Spark Connect client: the JVM is elsewhere and answers queries, not questions."""
    return getattr(session, "_jvm", None) is None


def _is_here(session: SparkSession) -> bool:
    """Whether this process has started the JVM that runs all tasks: nobody has to be asked what it sees of a disk."""
    return not _is_remote(session) and re.match(r"local(\[|$)", str(session.sparkContext.master)) is not None


def _refusal(session: SparkSession, path: str, size: int) -> str | None:
    """What the JVM says when it is asked to look at a part; None when it sees it whole."""
    from py4j.protocol import Py4JError, Py4JJavaError

    jvm: Any = getattr(session, "_jvm", None)
    if jvm is None:
        return _refusal_of_server(session, path)
    configuration = session._jsc.hadoopConfiguration()
    try:
        target = jvm.org.apache.hadoop.fs.Path(path.replace("\\", ""))
        length = target.getFileSystem(configuration).getFileStatus(target).getLen()
    except Py4JJavaError as error:
        return f"the JVM cannot open it: {str(error.java_exception)[:200]}"
    except Py4JError as error:
        return f"the JVM cannot be asked: {str(error)[:200]}"
    return None if length == size else f"the JVM sees {length} bytes of {size}"


def _refusal_of_server(session: SparkSession, path: str) -> str | None:
    """The same of a Spark Connect server, which looks at the files of a query when it is asked for its columns."""
    from pyspark.errors import PySparkException

    try:
        _ = session.read.format("binaryFile").load(path).schema
    except PySparkException as error:
        return f"the server cannot open it: {str(error)[:200]}"
    return None


def _path_of(place: Bucket | Folder, file: FileRef) -> str:
    """A part as the JVM names it, with what it would take for a pattern escaped; "" where it has no name for it."""
    if isinstance(place, Folder):
        return f"file://{_escaped(file.key)}"
    if is_plugin_type(place.spec.url):
        return ""
    target = parse_target(place.spec.url, place.spec.config)
    prefix = "/".join(part for part in (target.prefix, place.spec.namespace) if part)
    key = f"{prefix}/{file.key}" if prefix else file.key
    if target.kind == "file":
        return f"file://{_escaped(f'{target.bucket}/{plain_path(key)}')}"
    if target.kind == "azure" and target.config.get("account"):
        account = quote(str(target.config["account"]))
        return f"abfss://{target.bucket}@{account}.dfs.core.windows.net/{_escaped(key)}"
    scheme = _SCHEMES.get(target.kind)
    return f"{scheme}://{target.bucket}/{_escaped(key)}" if scheme else ""


def _escaped(path: str) -> str:
    return "".join(f"\\{char}" if char in _GLOB else char for char in path)


@contextmanager
def _listed_by_the_driver(session: SparkSession, parts: int) -> Iterator[None]:
    """Spark starts a job with a task per path to look at many of them; we know that they are there."""
    if parts < MANY_PATHS:
        yield
        return
    before = session.conf.get(_LISTED_HERE, "32")
    session.conf.set(_LISTED_HERE, str(max(parts + 1, int(before or 32))))
    try:
        yield
    finally:
        session.conf.set(_LISTED_HERE, before or "32")
