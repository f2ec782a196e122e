"""`command/shell`: run a shell command, keep what it said and how it ended."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TextIO

from pydantic import BeforeValidator, Field

from swamp.env import SYSTEM
from swamp.errors import Failed, Interrupted, UsageError
from swamp.models.declare import Arguments, Context, Method, ModelType, OutputSpec
from swamp.models.process import Finished, run_process

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
    context.write_resource("result", _result(finished, shown, context))
    context.write_file("log", said, content_type="text/plain")
    _judge(finished, args.timeout, context)


def _run(command: Sequence[str], args: Any, context: Context, log: TextIO) -> Finished:
    """Everything it says goes to the screen and to `log` as it comes, without secrets and without limit."""
    lock = threading.Lock()

    def on_line(stream: str, line: str) -> None:
        with lock:
            log.write(line)
        context.log(line.rstrip("\n") if stream == "stdout" else f"[stderr] {line.rstrip()}")

    return run_process(
        command,
        cwd=working_dir(args.working_dir, context),
        environment={**context.environment, **args.env},
        cancel=context.cancel,
        env=SYSTEM,
        timeout=args.timeout,
        on_line=on_line,
        new_filter=context.mask_stream,
    )


def working_dir(wanted: str | None, context: Context) -> Path:
    found = (context.repo_dir / wanted).resolve() if wanted else context.repo_dir
    if not found.is_dir():
        raise UsageError(f"the working directory {found} does not exist", hint="correct `workingDir`")
    return found


def _result(finished: Finished, shown: str, context: Context) -> dict[str, Any]:
    return {
        "command": context.mask(shown),
        "exitCode": finished.exit_code,
        "stdout": context.mask(finished.stdout),
        "stderr": context.mask(finished.stderr),
        "durationMs": finished.duration_ms,
        "truncated": finished.truncated,
        "ending": finished.ending,
    }


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
        last = context.mask(finished.stderr).strip().splitlines()[-1:]
        raise Failed(
            f"the command failed: {_ending_text(finished.exit_code)}" + (f": {last[0][:500]}" if last else ""),
            hint="`swamp model output logs` shows everything it said",
            details={"exitCode": finished.exit_code},
        )


def _ending_text(code: int) -> str:
    """A negative code is the signal that ended the process."""
    return f"ended by signal {-code}" if code < 0 else f"exit code {code}"


RESULT = OutputSpec("result", description="Exit code, stdout, stderr and duration.")
LOG = OutputSpec("log", content_type="text/plain", description="Everything it said, in order.")

SHELL = ModelType(
    "command/shell",
    "2026.11.15",
    methods=(
        Method(
            "execute",
            Execute,
            execute,
            description="Run a shell command; write its result and its log.",
            writes=(RESULT, LOG),
        ),
    ),
    description="A shell command.",
)
