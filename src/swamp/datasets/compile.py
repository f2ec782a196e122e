"""`format("swamp")` by Spark's own Parquet reader, in sessions whose JVM answers to this process.

What a format's name means to Spark is a class or a Python source. The class (`NativeFormat.java`) is compiled with the
compiler that Spark brings for code of its own, once for each JVM. In sessions that ask for it here it stands before the
Python source: of a read it asks this process which files to open, and leaves everything else to the Python source. What
keeps a session from that stands in its log, and the Python source reads, as it does everywhere else.
"""

from __future__ import annotations

import hmac
import json
import logging
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from py4j.clientserver import ClientServer
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql.types import StructType

from swamp.bulk.settings import NATIVE_FORMAT
from swamp.data.records import file_of_run
from swamp.datasets.content import format_of
from swamp.datasets.native import native_table
from swamp.datasets.options import check_content_options
from swamp.datasets.place import open_place
from swamp.datasets.source import find_asked, note_read
from swamp.errors import SwampError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("swamp.spark")
SOURCE: Final = Path(__file__).with_name("NativeFormat.java")
CLASS: Final = "swamp.NativeFormat"
ANNOUNCED: Final = "META-INF/services/org.apache.spark.sql.sources.DataSourceRegister"
"""Where Java finds the names of classes that are formats."""
KNOWN_SPARK: Final = "4.3."
"""The class builds on parts of Spark that are not promised to stay: only where it was tried."""
_LOCK: Final = threading.Lock()


def make_native(session: SparkSession) -> bool:
    """Has a session, which knows the Python source, read the format by Spark's own reader; False where it cannot."""
    why = _unfit(session)
    if why is None:
        try:
            with _LOCK:
                known = _class_of(session)
            _introduce(session, known)
            return True
        except (Py4JError, PySparkException, OSError) as error:
            why = f"its class cannot be made: {str(error)[:300]}"
    log.info('format("swamp") is the Python source alone: %s', why)
    return False


def _unfit(session: SparkSession) -> str | None:
    if getattr(session, "_jvm", None) is None:
        return "a Spark Connect client has no JVM of its own"
    if not session.version.startswith(KNOWN_SPARK):
        return f"this is Spark {session.version}, and it was tried with {KNOWN_SPARK}x"
    if not isinstance(session.sparkContext._gateway, ClientServer):
        return "Python's threads are not those of Java (PYSPARK_PIN_THREAD)"
    return None if _is_wanted(session) else f"{NATIVE_FORMAT} is false"


def _is_wanted(session: SparkSession) -> bool:
    return str(session.conf.get(NATIVE_FORMAT, "true")).lower() != "false"


def _class_of(session: SparkSession) -> Any:
    """The class in the JVM of that session, compiled if it is not there. Raises Py4JError, OSError."""
    jvm: Any = session._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        return loader.loadClass(CLASS)
    except Py4JError:  # not there yet
        pass
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(loader)
    compiler.cook(SOURCE.read_text("utf-8"))
    # Java removes this directory when it ends, and reads in it whenever Spark looks for a format.
    folder = Path(jvm.org.apache.spark.util.Utils.createTempDir(_temporary(jvm), "swamp").getAbsolutePath())
    compiled = {str(name): bytes(code) for name, code in compiler.getBytecodes().items()}
    for name, code in compiled.items():
        _put(folder / f"{name.replace('.', '/')}.class", code)
    loader.addURL(jvm.java.io.File(f"{folder}/").toURI().toURL())
    for name in compiled:
        loader.loadClass(name)  # all of them now: what is announced below must never be missing
    _put(folder / ANNOUNCED, CLASS.encode())
    return loader.loadClass(CLASS)


def _introduce(session: SparkSession, known: Any) -> None:
    """Has the class ask this process for reads of that session, on the port of py4j that `foreachBatch` opens, too."""
    ensure_callback_server_started(session.sparkContext._gateway)  # type: ignore[no-untyped-call]
    planner = ContentPlanner(session, str(known.getField("SECRET").get(None)))
    known.getField("PLANNERS").get(None).put(session._jsparkSession, planner)


def _temporary(jvm: Any) -> str:
    return str(jvm.java.lang.System.getProperty("java.io.tmpdir"))


def _put(file: Path, body: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(body)


class ContentPlanner:
    """Tells the JVM which files a read of one session opens."""

    Java: Final = SimpleNamespace(implements=["java.util.function.BiFunction"])
    """What the JVM takes it for (py4j)."""

    def __init__(self, session: SparkSession, secret: str) -> None:
        self._secret = secret
        self._session = weakref.ref(session)  # the JVM keeps this as long as it keeps the session
        self._reads = file_of_run()

    def apply(self, secret: str, read: str) -> Any:
        """A ParquetTable; None where the Python source has to read, or to say what is wrong. What the JVM asks is JSON:
        every look into a Java map is a question back."""
        session = self._session()
        if not hmac.compare_digest(secret, self._secret) or session is None or not _is_wanted(session):
            return None
        try:
            return self._table(session, **json.loads(read))
        except SwampError as error:
            log.debug("the Python source says what is wrong with a read: %s", error)
        except Exception:  # the JVM asks: an error here would end a read that the Python source can do
            log.warning("a read is left to the Python source", exc_info=True)
        return None

    def _table(self, session: SparkSession, options: dict[str, str], columns: str | None) -> Any:
        by_lower = {key.lower(): value for key, value in options.items()}
        if by_lower.get("repo"):
            by_lower["repo"] = _as_java_sees(session, by_lower["repo"])
        place = open_place(by_lower)
        artifact = find_asked(place, by_lower)
        kind = format_of(artifact, by_lower.get("contentformat"))
        check_content_options(options, kind)
        described = artifact.meta.extra.get("schema")
        if kind != "parquet" or not isinstance(described, dict):
            return None
        chosen = _chosen(StructType.fromJson(described), by_lower.get("columns", ""), columns)
        table = None if chosen is None else native_table(session, place, artifact, chosen)
        if table is not None:
            note_read(artifact, self._reads)
        return table


def _as_java_sees(session: SparkSession, repo: str) -> str:
    """A path as the Python source resolves it: by the directory in which Java was started."""
    if repo.startswith(("/", "~")):
        return repo
    jvm: Any = session._jvm
    return str(Path(jvm.java.lang.System.getProperty("user.dir")) / repo)


def _chosen(described: StructType, named: str, asked: str | None) -> StructType | None:
    """The columns of a read; None where some of them would have to be made of what was written."""
    if asked is None:
        wanted = [name.strip() for name in named.split(",") if name.strip()] or described.names
    else:
        fields = StructType.fromJson(json.loads(asked)).fields
        wanted = [field.name for field in fields] or described.names
        known = {field.name: field.dataType.simpleString() for field in described}
        if any(known.get(field.name) != field.dataType.simpleString() for field in fields):
            return None
    if not set(wanted) <= set(described.names) or len(set(wanted)) < len(wanted):
        return None
    return StructType([described[name] for name in wanted])
