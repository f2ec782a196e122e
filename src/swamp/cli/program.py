"""Finds the command, runs it, and turns what happens into an exit code."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import threading
from copy import copy
from types import FrameType
from typing import Any, Literal

import typer
from typer.core import TyperGroup

from swamp.cli.command import CANCEL, Common, Group, help_style
from swamp.cli.render import print_error
from swamp.errors import Interrupted, SwampError, UsageError
from swamp.trace import span
from swamp.values import value


@value
class CommandPart:
    """A command group in its own module, imported only when it is called; or a short form of one of its commands."""

    name: str
    help: str
    kind: Literal["group", "command"] = "group"
    short_for: str = ""
    """The group whose command of the same name this is."""

    @property
    def module(self) -> str:
        return f"swamp.cli.{self.short_for or self.name}"

    def load(self, following: str = "") -> Any:
        """The group, for a line that goes on with this word: if it names a command, with that command alone."""
        app = copy(importlib.import_module(self.module).app)
        wanted = self.name if self.short_for else following
        commands = [command for command in app.registered_commands if command.name == wanted]
        groups = [group for group in app.registered_groups if group.name == wanted]
        if commands or groups:  # the others cost a millisecond each: typer evaluates the annotations of what it makes
            app.registered_commands, app.registered_groups = commands, groups
        if self.short_for:
            return typer.main.get_group(app).commands[self.name]
        made = typer.main.get_group(app) if self.kind == "group" else typer.main.get_command(app)
        made.name = self.name
        return made


PARTS = (
    CommandPart("repo", "Make a repository."),
    CommandPart("datastore", "Share the data: set up a bucket, sync, look into trouble."),
    CommandPart("data", "Versioned data: put, list, get, query."),
    CommandPart("model", "Models and their methods."),
    CommandPart("workflow", "Workflows and their runs."),
    CommandPart("sql", "SQL over datasets and over data, versions, outputs, runs and commits.", "command"),
    CommandPart("schema", "JSON Schemas of workflows, model definitions and .swamp.yaml, for editors.", "command"),
    CommandPart("spark", "The Spark session that bulk work runs on."),
    CommandPart("serve", "Serve the repository: an API, webhooks, schedules, pages."),
    CommandPart("status", "Short for `datastore status`.", short_for="datastore"),
    CommandPart("sync", "Short for `datastore sync`.", short_for="datastore"),
    CommandPart("log", "Short for `datastore log`.", short_for="datastore"),
    CommandPart("run", "Short for `workflow run`.", short_for="workflow"),
)


class RootGroup(Group):
    """Lists every group without importing one; imports the one that is called."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for part in PARTS:
            self.commands[part.name] = TyperGroup(name=part.name, help=part.help)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and (meant := _commands_called(args[0])):
            raise UsageError(f"No such command '{args[0]}'.", hint=f"did you mean {' or '.join(meant)}?")
        name, command, rest = super().resolve_command(ctx, args)
        part = next((p for p in PARTS if p.name == name), None)
        return name, part.load(rest[0] if rest else "") if part else command, rest


def _commands_called(name: str) -> list[str]:
    """The commands of that name in any group: whoever comes from Git types `swamp init`. Imports every group."""
    groups = [part for part in PARTS if part.kind == "group" and not part.short_for]
    return [f"`swamp {part.name} {name}`" for part in groups if name in getattr(part.load(), "commands", ())]


def _version(wanted: bool) -> None:
    if wanted:
        from swamp import __version__

        typer.echo(f"swamp {__version__}")
        raise typer.Exit(0)


def _root(
    version: bool = typer.Option(False, "--version", help="Show the version.", callback=_version, is_eager=True),
) -> None:
    """Versioned, shared data for automation and Spark pipelines, on nothing but a bucket."""
    del version


def build() -> Any:
    """The whole command line as one (lazy) click group."""
    app = typer.Typer(cls=RootGroup, no_args_is_help=True, rich_markup_mode=help_style())
    app.callback()(_root)
    return typer.main.get_command(app)


def run(args: list[str]) -> int:
    """Runs one command; the only place that catches everything. Never a traceback unless `-v`."""
    if os.name == "nt":
        sys.stderr.write("Error: swamp runs on Linux and macOS\nHint: on Windows, use it in WSL 2\n")
        return 1
    _listen_to_signals()
    common = _guess(args)
    try:
        with span("command", line=" ".join(word for word in args[:3] if not word.startswith("-"))[:60]):
            return _run(args)
    except Exception as error:  # noqa: BLE001 - the last door: every failure becomes a message and a code
        return _failed(error, common)
    finally:
        _flush()
        if "_duckdb" not in sys.modules:  # which complains on stderr of what was not freed
            gc.freeze()  # the process ends: nobody needs what a last search for cycles would free


def _run(args: list[str]) -> int:
    try:
        code = build().main(args, prog_name="swamp", standalone_mode=False)
    except typer.Abort as error:
        raise Interrupted("aborted") from error
    except typer.TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(error.format_message(), err=True)
            return 2
        ctx = getattr(error, "ctx", None)
        hint = f"see `{ctx.command_path if ctx else 'swamp'} --help`"
        raise UsageError(error.format_message(), hint=hint) from error
    return code if isinstance(code, int) else 0


def _failed(error: Exception, common: Common) -> int:
    if isinstance(error, BrokenPipeError):
        # The reader went away: nobody is left to tell, and Python must not complain at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if CANCEL.requested and not isinstance(error, SwampError):
        error = Interrupted("interrupted", hint="nothing was lost: run the same command again to continue")
    if isinstance(error, ImportError):
        from swamp.extras import explain

        error = explain(error) or error
    print_error(error, as_json=common.json, verbose=common.verbose)
    return error.exit_code if isinstance(error, SwampError) else 1


def interrupted(args: list[str]) -> int:
    """What is said, and the exit code, where somebody did not even wait for the command to begin."""
    return _failed(Interrupted("interrupted", hint="nothing was lost: run the same command again"), _guess(args))


def _guess(args: list[str]) -> Common:
    """The options that matter for reporting an error, read before (and even if) the line can be parsed."""
    words = args[: args.index("--")] if "--" in args else args
    return Common(json="--json" in words, verbose="-v" in words or "--verbose" in words)


def _listen_to_signals() -> None:
    """The first SIGINT or SIGTERM asks the work to stop, the second ends the process at once.

    A thread does the counting: it hears of a signal also while the main thread is stuck in a request.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _in_main_thread)
    threading.Thread(target=_count_signals, args=(reading,), name="signals", daemon=True).start()


def _count_signals(reading: int) -> None:
    while True:
        for number in os.read(reading, 1):
            if number not in (signal.SIGINT, signal.SIGTERM):
                continue
            if CANCEL.requested:
                os._exit(130)  # the second one: whatever is held runs out by itself
            CANCEL.request()


def _in_main_thread(number: int, frame: FrameType | None) -> None:
    """A command that only reads holds nothing: it ends where it stands."""
    del number, frame
    if CANCEL.raises:
        raise KeyboardInterrupt


def _flush() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
