"""`spark/sql` and `spark/python`: methods on the run's one Spark session; inputs by data name, datasets out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator

from swamp.errors import Failed, UsageError
from swamp.models.declare import Arguments, Method, ModelType, OutputSpec, import_file
from swamp.models.shell import PARQUET, Code, source_file

if TYPE_CHECKING:
    from swamp.models.context import Context

_READERS = {
    PARQUET: ("parquet", {}),
    "application/x-parquet": ("parquet", {}),
    "application/parquet": ("parquet", {}),
    "application/x-ndjson": ("json", {}),
    "application/jsonl": ("json", {}),
    "application/json": ("json", {"multiLine": "true"}),
    "text/csv": ("csv", {"header": "true", "inferSchema": "true"}),
    "text/plain": ("text", {}),
}


class DataInput(Arguments):
    """A version of somebody's data."""

    model: str
    name: str
    version: int | None = None
    format: str | None = Field(None, description="parquet, json, csv or text; by content type when not given.")


def _as_input(value: Any) -> Any:
    """`model/name` is short for {model, name}."""
    if isinstance(value, str):
        model, slash, name = value.rpartition("/")
        if not slash or not model or not name:
            raise ValueError("an input is {model, name, version?} or the text model/name")
        return {"model": model, "name": name}
    return value


class _WithInputs(Arguments):
    inputs: dict[str, DataInput] = Field(
        default_factory=dict, description="Views by name: {model, name, version?} or model/name."
    )
    output: str = Field("table", description="The name of the dataset that is written.")

    @field_validator("inputs", mode="before")
    @classmethod
    def _short_forms(cls, value: Any) -> Any:
        return {key: _as_input(one) for key, one in value.items()} if isinstance(value, dict) else value


class Sql(_WithInputs):
    """A query over named inputs."""

    query: str = Field(min_length=1, description="Spark SQL; each input is a view.")


class Python(Code, _WithInputs):
    """A function of the session, the context and its inputs, which the code defines."""

    function: str = Field("run", description="Called as function(spark, context); a DataFrame it returns is written.")
    arguments: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments for the function.")


def run_sql(args: Sql, context: Context) -> None:
    session = _session(args, context)
    context.log(f"query: {' '.join(context.mask(args.query).split())[:500]}")
    _write(_spoken(lambda: session.sql(args.query), context), args.output, context)


def run_python(args: Python, context: Context) -> None:
    session = _session(args, context)
    module = import_file(source_file(args, context))
    function = getattr(module, args.function, None)
    if not callable(function):
        raise UsageError(f"the code defines no function `{args.function}`", hint="define it, or name another one")
    returned = _spoken(lambda: function(session, context, **args.arguments), context)
    if returned is not None:
        _write(returned, args.output, context)


def _session(args: _WithInputs, context: Context) -> Any:
    """A session of its own names on the run's one Spark application: parallel steps do not see each other's views."""
    session = _of_its_own(context.spark())
    for name, source in args.inputs.items():
        frame = _read(session, source, context)
        frame.createOrReplaceTempView(name)
        context.log(f"input {name}: {source.model}/{source.name}, {len(frame.columns)} columns")
    return session


def _of_its_own(shared: Any) -> Any:
    """Spark looks formats up in the thread's active session, so that must be the one that knows ours."""
    from swamp.datasets.compile import make_native
    from swamp.datasets.source import data_source

    session = shared.newSession()
    if hasattr(session, "_jsparkSession"):
        java = type(session)._get_j_spark_session_class(session._jvm)
        java.setActiveSession(session._jsparkSession)
    session.dataSource.register(data_source())
    make_native(session)
    return session


def _read(session: Any, source: DataInput, context: Context) -> Any:
    """From this machine's cache where Spark runs here; straight from the datastore where it does not."""
    spark = getattr(session, "_sc", None)
    if spark is None or not str(spark.master).startswith("local"):
        version = context.note(source.model, source.name, source.version)
        options = {"repo": str(context.repo_dir), "model": source.model, "name": source.name, "version": str(version)}
        return _spoken(lambda: session.read.format("swamp").options(**options).load(), context)
    path, content_type = context.locate(source.model, source.name, source.version)
    plain = content_type.partition(";")[0].strip().lower()
    reader, options = (source.format, {}) if source.format else _READERS.get(plain, (None, {}))
    if reader is None:
        raise UsageError(
            f"{source.model}/{source.name} has the type {content_type}, which is no table",
            hint="say how to read it: `format: parquet`, json, csv or text",
        )
    return _spoken(lambda: session.read.format(reader).options(**options).load(str(path)), context)


def _write(frame: Any, name: str, context: Context) -> None:
    written = _spoken(lambda: context.write_dataset(name, frame, spec="dataset"), context)
    context.log(f"wrote {name} version {written.version}")


def _spoken(work: Callable[[], Any], context: Context) -> Any:
    """Spark's errors in one line: the cause in its own words, without the Java stack around it."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        return work()
    except (PySparkException, Py4JError) as error:
        text = context.mask(str(error)).split("\n\nJVM stacktrace")[0].strip()
        lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("at ")]
        telling = [line for line in lines if not line.startswith(("An error occurred while calling", "Traceback"))]
        said = (telling or lines or [type(error).__name__])[0].removeprefix(": ")
        raise Failed(said[:1000], details={"spark": text[:8000]}) from error


DATASET = OutputSpec("dataset", content_type=PARQUET, description="The rows, as Parquet.")

_SQL = Method("run", Sql, run_sql, "Run a query over named inputs; write its rows as a dataset.", (DATASET,), "spark")
SPARK_SQL = ModelType("spark/sql", "2026.11.15", methods=(_SQL,), description="A Spark SQL query.")

_PYTHON = Method(
    "run", Python, run_python, "Call a function with the Spark session and the context.", (DATASET,), "spark"
)
SPARK_PYTHON = ModelType("spark/python", "2026.11.15", methods=(_PYTHON,), description="A Python function on Spark.")
