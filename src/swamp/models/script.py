"""`python/script`: run a Python script in a process of its own; the files it leaves become data."""

from __future__ import annotations

import json
import mimetypes
import sys
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from swamp.errors import Failed, UsageError
from swamp.models.declare import Arguments, Context, Method, ModelType
from swamp.models.shell import LOG, RESULT, Seconds, run_and_keep

PARQUET = "application/vnd.apache.parquet"
_TYPES = {".parquet": PARQUET, ".jsonl": "application/x-ndjson", ".ndjson": "application/x-ndjson"}


class Script(Arguments):
    """The code, as text or as a file of the repository, and what it is given."""

    script: str | None = Field(None, description="Python code.")
    file: str | None = Field(None, description="A Python file, relative to the repository.")
    args: list[str] = Field(default_factory=list, description="Its command-line arguments.")
    arguments: dict[str, Any] = Field(
        default_factory=dict, description="Values it finds as JSON in the file $SWAMP_ARGUMENTS."
    )
    working_dir: str | None = Field(None, description="Relative to the repository; the repository by default.")
    env: dict[str, str] = Field(default_factory=dict, description="Added to the environment.")
    timeout: Seconds = Field(None, description="Ends the script and its children: 90, 30s, 5m, 2h.")

    @model_validator(mode="after")
    def _one_source(self) -> Script:
        if (self.script is None) == (self.file is None):
            raise ValueError("give either `script` or `file`")
        return self


def run(args: Script, context: Context) -> None:
    """Every file it leaves in $SWAMP_OUTPUT_DIR becomes a version: `x.json` a resource `x`, others files."""
    output = context.scratch / "output"
    output.mkdir(parents=True)
    arguments = context.scratch / "arguments.json"
    arguments.write_text(json.dumps(args.arguments), encoding="utf-8")
    told = {"SWAMP_OUTPUT_DIR": str(output), "SWAMP_ARGUMENTS": str(arguments), "PYTHONUNBUFFERED": "1"}
    given = args.model_copy(update={"env": {**told, **args.env}})
    command = [sys.executable, str(source_file(args.script, args.file, context)), *args.args]
    try:
        run_and_keep(command, given, context, shown=args.file or "python script")
    finally:
        _collect(output, context)


def source_file(script: str | None, file: str | None, context: Context) -> Path:
    """The file with the code: the repository's own, or the given text in the scratch directory."""
    if script is not None:
        path = context.scratch / "script.py"
        path.write_text(script, encoding="utf-8")
        return path
    path = (context.repo_dir / str(file)).resolve()
    if not path.is_file():
        raise UsageError(f"the file {file} does not exist", hint="give it relative to the repository")
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
            context.write_resource(name, _json_of(path))
        else:
            context.write_file(name, path, content_type=content_type_of(path))


def _name_of(path: Path) -> str:
    return path.stem if _is_value(path) else path.name


def _is_value(path: Path) -> bool:
    return path.is_file() and path.suffix == ".json"


def _json_of(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise Failed(f"{path.name} that the script left is not JSON: {error}") from error


def content_type_of(path: Path) -> str:
    if path.is_dir():
        inner = next((file for file in sorted(path.rglob("*")) if file.is_file()), None)
        return content_type_of(inner) if inner else "application/octet-stream"
    return _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"


def _method(name: str) -> Method:
    return Method(name, Script, run, description="Run the script; keep what it leaves.", writes=(RESULT, LOG))


SCRIPT = ModelType(
    "python/script",
    "2026.11.15",
    methods=(_method("execute"), _method("run")),
    description="A Python script in a process of its own.",
)
