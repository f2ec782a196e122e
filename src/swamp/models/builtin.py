"""The types of models that come with swamp.

`command/shell` and `python/script` run a process and keep what it said, left and how it ended; `spark/sql` and
`spark/python` work on the run's one session.
"""

from __future__ import annotations

import json
import mimetypes
import re
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TextIO

from pydantic import BeforeValidator, Field, model_validator

from swamp.data.document import keys_of, values_of
from swamp.env import SYSTEM
from swamp.errors import Failed, Interrupted, UsageError
from swamp.models.declare import Arguments, Method, ModelType, OutputSpec, import_file
from swamp.models.process import Finished, run_process

if TYPE_CHECKING:
    from swamp.models.context import Context

PARQUET = "application/vnd.apache.parquet"
_TYPES = {".parquet": PARQUET, ".jsonl": "application/x-ndjson", ".ndjson": "application/x-ndjson"}
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}


def parse_seconds(value: Any) -> float | None:
    """`90`, `1.5`, `30s`, `5m`, `2h`: a positive length of time, in seconds."""
    if value is None:
        return None
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|)\s*", str(value))
    if isinstance(value, bool) or found is None or float(found[1]) <= 0:
        raise ValueError("a length of time looks like 90, 30s, 5m or 2h")
    return float(found[1]) * _UNITS[found[2]]


Seconds = Annotated[float | None, BeforeValidator(parse_seconds, json_schema_input_type=str | float | None)]


class Execute(Arguments):
    """What to run, and where."""

    run: str = Field(description="The command line, run by /bin/sh.", min_length=1)
    working_dir: str | None = Field(None, description="Relative to the repository; the repository by default.")
    env: dict[str, str] = Field(default_factory=dict, description="Added to the environment.")
    timeout: Seconds = Field(None, description="Ends the command and its children: 90, 30s, 5m, 2h.")


def execute(args: Execute, context: Context) -> None:
    run_and_keep(["/bin/sh", "-c", args.run], args, context, shown=args.run)


def run_and_keep(command: Sequence[str], args: Any, context: Context, *, shown: str) -> None:
    """Run `command`, write `result` and `log` whatever happens, then fail if it failed. inv[model.failure-keeps]"""
    said = context.scratch / "said.txt"
    with said.open("w", encoding="utf-8") as log:
        finished = _run(command, args, context, log)
    output = {"stdout": context.mask(finished.stdout), "stderr": context.mask(finished.stderr)}
    known = values_of(finished, keys_of("duration_ms truncated ending"))
    result = {"command": context.mask(shown), "exitCode": finished.exit_code, **output, **known}
    context.write_resource("result", result)
    context.write_file("log", said, content_type="text/plain")
    _judge(finished, args.timeout, context)


def _run(command: Sequence[str], args: Any, context: Context, log: TextIO) -> Finished:
    """Everything it says goes to the screen and to `log` as it comes, without secrets and without limit."""
    cwd = (context.repo_dir / args.working_dir).resolve() if args.working_dir else context.repo_dir
    if not cwd.is_dir():
        raise UsageError(f"the working directory {cwd} does not exist", hint="correct `workingDir`")
    lock = threading.Lock()

    def on_line(stream: str, line: str) -> None:
        with lock:
            log.write(line)
        context.log(line.rstrip("\n") if stream == "stdout" else f"[stderr] {line.rstrip()}")

    return run_process(
        command,
        cwd=cwd,
        environment={**context.environment, **args.env},
        cancel=context.cancel,
        env=SYSTEM,
        timeout=args.timeout,
        on_line=on_line,
        new_filter=context.mask_stream,
    )


def _judge(finished: Finished, timeout: float | None, context: Context) -> None:
    if finished.ending == "cancelled":
        raise Interrupted("cancelled: the command and its children were ended")
    if finished.ending == "timeout":
        raise Failed(
            f"the command took longer than {timeout:g} s and was ended with its children",
            hint="raise `timeout`, or look at the log for where it hangs",
            details={"exitCode": finished.exit_code, "timeout": timeout},
        )
    if finished.exit_code != 0:
        code = finished.exit_code  # a negative one is the signal that ended the process
        how = f"ended by signal {-code}" if code < 0 else f"exit code {code}"
        last = context.mask(finished.stderr).strip().splitlines()[-1:]
        raise Failed(
            f"the command failed: {how}" + (f": {last[0][:500]}" if last else ""),
            hint="`swamp model output logs` shows everything it said",
            details={"exitCode": finished.exit_code},
        )


RESULT = OutputSpec("result", description="Exit code, stdout, stderr and duration.")
LOG = OutputSpec("log", content_type="text/plain", description="Everything it said, in order.")

_EXECUTE = Method("execute", Execute, execute, "Run a shell command; write its result and its log.", (RESULT, LOG))
SHELL = ModelType("command/shell", "2026.11.15", methods=(_EXECUTE,), description="A shell command.")


class Code(Arguments):
    """Python code, as text or as a file of the repository."""

    script: str | None = Field(None, description="Python code.")
    file: str | None = Field(None, description="A Python file, relative to the repository.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.script is None) == (self.file is None):
            raise ValueError("give either `script` or `file`")
        return self


class Script(Code):
    """A script and what it is given."""

    args: list[str] = Field(default_factory=list, description="Its command-line arguments.")
    arguments: dict[str, Any] = Field(
        default_factory=dict, description="Values it finds as JSON in the file $SWAMP_ARGUMENTS."
    )
    working_dir: str | None = Field(None, description="Relative to the repository; the repository by default.")
    env: dict[str, str] = Field(default_factory=dict, description="Added to the environment.")
    timeout: Seconds = Field(None, description="Ends the script and its children: 90, 30s, 5m, 2h.")


def run_script(args: Script, context: Context) -> None:
    """Every file it leaves in $SWAMP_OUTPUT_DIR becomes a version: `x.json` a resource `x`, others files."""
    output = context.scratch / "output"
    output.mkdir(parents=True)
    arguments = context.scratch / "arguments.json"
    arguments.write_text(json.dumps(args.arguments), encoding="utf-8")
    told = {"SWAMP_OUTPUT_DIR": str(output), "SWAMP_ARGUMENTS": str(arguments), "PYTHONUNBUFFERED": "1"}
    given = args.model_copy(update={"env": {**told, **args.env}})
    command = [sys.executable, str(source_file(args, context)), *args.args]
    try:
        run_and_keep(command, given, context, shown=args.file or "python script")
    finally:
        _collect(output, context)


def source_file(code: Code, context: Context) -> Path:
    """The file with the code: the repository's own, or the given text in the scratch directory."""
    if code.script is not None:
        path = context.scratch / "script.py"
        path.write_text(code.script, encoding="utf-8")
        return path
    path = (context.repo_dir / str(code.file)).resolve()
    if not path.is_file():
        raise UsageError(f"the file {code.file} does not exist", hint="give it relative to the repository")
    return path


def _collect(output: Path, context: Context) -> None:
    """The one rule for names: data is called as its file, but a JSON file is a value and its ending is left out."""
    names: dict[str, Path] = {}
    for path in sorted(output.iterdir()):
        twin = names.setdefault(_name_of(path), path)
        if twin != path:
            raise Failed(
                f"{twin.name} and {path.name} that the script left would both be the data `{_name_of(path)}`",
                hint="give one of them another name",
            )
    for name, path in names.items():
        if _is_value(path):
            try:
                value = json.loads(path.read_text(encoding="utf-8"))
            except (json.JSONDecodeError, UnicodeDecodeError) as error:
                raise Failed(f"{path.name} that the script left is not JSON: {error}") from error
            context.write_resource(name, value)
        else:
            context.write_file(name, path, content_type=content_type_of(path))


def _name_of(path: Path) -> str:
    return path.stem if _is_value(path) else path.name


def _is_value(path: Path) -> bool:
    return path.is_file() and path.suffix == ".json"


def content_type_of(path: Path) -> str:
    if path.is_dir():
        inner = next((file for file in sorted(path.rglob("*")) if file.is_file()), None)
        return content_type_of(inner) if inner else "application/octet-stream"
    return _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"


_RUN = Method("run", Script, run_script, "Run the script; keep what it leaves.", (RESULT, LOG))
SCRIPT = ModelType(
    "python/script",
    "2026.11.15",
    methods=(replace(_RUN, name="execute"), _RUN),
    description="A Python script in a process of its own.",
)


# -- on Spark: inputs by data name, datasets out

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

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        """`model/name` is short for {model, name}."""
        if not isinstance(value, str):
            return value
        model, _, name = value.rpartition("/")
        if not model or not name:
            raise ValueError("an input is {model, name, version?} or the text model/name")
        return {"model": model, "name": name}


class _WithInputs(Arguments):
    inputs: dict[str, DataInput] = Field(
        default_factory=dict, description="Views by name: {model, name, version?} or model/name."
    )
    output: str = Field("table", description="The name of the dataset that is written.")


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

MANUAL = ModelType("manual/data", "2026.11.15", methods=(), description="Data put there by hand.")
BUILTIN = (SHELL, SCRIPT, SPARK_SQL, SPARK_PYTHON, MANUAL)
