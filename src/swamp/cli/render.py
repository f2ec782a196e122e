"""What a command says: one JSON document, a table on a terminal, plain lines in a pipe; errors with a next step."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from swamp.errors import Interrupted, SwampError, UsageError
from swamp.sync.progress import Progress, Silent

if TYPE_CHECKING:
    from swamp.cli.command import Common


@dataclass(frozen=True)
class Output:
    """Where results, notes and progress go. inv[cli.one-document]: with `--json` stdout holds the result alone."""

    json: bool = False
    quiet: bool = False
    verbose: bool = False
    color: bool = True

    @classmethod
    def of(cls, common: Common) -> Output:
        return cls(common.json, common.quiet, common.verbose, not common.no_color)

    def result(self, document: Any, text: Callable[[], None] | str | None = None) -> None:
        """The command's one result: the document with `--json`, else what `text` prints or is."""
        if self.json:
            write_json(document, sys.stdout)
        elif callable(text):
            text()
        elif text is not None:
            self.line(text)

    def line(self, text: str = "") -> None:
        """A line of the human-readable result."""
        if not self.json:
            print_line(text, sys.stdout)

    def info(self, text: str) -> None:
        """A remark about the work, on stderr."""
        if not self.quiet:
            print_line(text, sys.stderr)

    def detail(self, text: str) -> None:
        """A remark for those who asked with `-v`."""
        if self.verbose:
            print_line(text, sys.stderr)

    def warn(self, text: str) -> None:
        print_line(f"Warning: {text}", sys.stderr)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """A table on a terminal; in a pipe one tab-separated line per row under a header line."""
        if self.json:
            return
        if sys.stdout.isatty():
            _rich_table(columns, rows, self.color)
        else:
            print_line("\t".join(columns), sys.stdout)
            for row in rows:
                print_line("\t".join(_cell(value) for value in row), sys.stdout)

    def fields(self, pairs: Mapping[str, Any]) -> None:
        """Name and value, one per line; names aligned."""
        width = max((len(name) for name in pairs), default=0)
        for name, value in pairs.items():
            self.line(f"{name.ljust(width)}  {_cell(value)}")

    def confirm(self, question: str, yes: bool) -> None:
        """Destructive commands ask on a terminal and need `--yes` otherwise. Raises UsageError when not agreed.

        Ctrl-C while the answer is awaited is no answer: raises Interrupted.
        """
        if yes:
            return
        if not (sys.stdin.isatty() and sys.stderr.isatty()) or self.json:
            raise UsageError(f"{question} This needs your consent.", hint="add --yes")
        if _answer(question).strip().lower() not in ("y", "yes"):
            raise UsageError("not confirmed: nothing was changed")

    def progress(self) -> Progress:
        """Bars on a terminal, a plain line per stage in a pipe with `-v`, nothing otherwise."""
        if self.quiet:
            return Silent()
        from swamp.cli.progress import Bars, Lines

        if sys.stderr.isatty():
            return Bars(self.color)
        return Lines(sys.stderr) if self.verbose else Silent()


def _answer(question: str) -> str:
    """A line from the terminal. The first signal ends the wait: a question holds nothing that must be let go of."""
    import signal

    before = {one: signal.signal(one, signal.default_int_handler) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        sys.stderr.write(f"{question} [y/N] ")
        sys.stderr.flush()
        return sys.stdin.readline()
    except KeyboardInterrupt as error:
        print_line("", sys.stderr)  # the cursor stands behind the question
        raise Interrupted("interrupted: nothing was changed") from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _rich_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], color: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold" if color else "", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(_escape(_cell(value)) for value in row))
    Console(no_color=not color, highlight=False).print(table)


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return " ".join(f"{k}={v}" for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return " ".join(str(v) for v in value)
    return str(value)


def size_text(size: float) -> str:
    """`412 B`, `3.1 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def print_line(text: str, stream: TextIO) -> None:
    stream.write(text + "\n")
    stream.flush()


def write_json(document: Any, stream: TextIO) -> None:
    indent = 2 if stream.isatty() else None
    stream.write(json.dumps(document, ensure_ascii=False, indent=indent, default=str) + "\n")
    stream.flush()


def print_error(error: BaseException, *, as_json: bool, verbose: bool) -> None:
    """`Error:` and `Hint:`, or one JSON object as the last line of stderr."""
    if verbose:
        import traceback

        traceback.print_exception(error, file=sys.stderr)
    known = error if isinstance(error, SwampError) else _unexpected(error)
    if as_json:
        sys.stderr.write(json.dumps(error_document(known), ensure_ascii=False, default=str) + "\n")
    else:
        sys.stderr.write(f"Error: {known.message}\n")
        if known.hint:
            sys.stderr.write(f"Hint: {known.hint}\n")
    sys.stderr.flush()


def error_document(error: SwampError) -> dict[str, Any]:
    document: dict[str, Any] = {"error": error.message, "code": error.kind}
    if error.hint:
        document["hint"] = error.hint
    if error.details:
        document["details"] = error.details
    return document


def _unexpected(error: BaseException) -> SwampError:
    if isinstance(error, OSError) and error.strerror:
        where = f": {os.fspath(error.filename)}" if error.filename else ""
        return SwampError(f"{error.strerror}{where}", hint="check the path, its permissions and the free space")
    return SwampError(
        f"unexpected {type(error).__name__}: {error}", hint="run it again with -v for the traceback, and report it"
    )
