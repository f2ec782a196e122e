"""What a command says: one JSON document, a table on a terminal, plain lines in a pipe; errors with a next step."""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from swamp.env import SYSTEM, parse_rfc3339
from swamp.errors import Interrupted, SwampError, UsageError
from swamp.sync.progress import Progress
from swamp.values import value

if TYPE_CHECKING:
    from swamp.cli.command import Common


@value
class Printer:
    """Where results, notes and progress go. inv[cli.one-document]: with `--json` stdout holds the result alone."""

    json: bool = False
    quiet: bool = False
    verbose: bool = False
    color: bool = True
    requests: Callable[[], int | None] | None = None
    """How many requests this command has made so far; None where the datastore is no bucket."""
    bars: bool = True
    """Whether transfers are shown; two live displays on one terminal would overwrite each other."""

    @classmethod
    def of(cls, common: Common) -> Printer:
        return cls(common.json, common.quiet, common.verbose, not common.no_color)

    def result(self, document: Any, text: Callable[[], None] | str | None = None) -> None:
        """The command's one result: the document with `--json`, else what `text` prints or is."""
        if self.json:
            write_json(self._recounted(document), sys.stdout)
        elif callable(text):
            text()
        elif text is not None:
            self.line(text)

    def _recounted(self, document: Any) -> Any:
        """`requests` is what the whole command has asked of the store: leases, probes and retries too (C21)."""
        asked = self.requests() if self.requests else None
        if asked is None or not isinstance(document, dict):
            return document
        if isinstance(document.get("sync"), dict):
            return {**document, "sync": {**document["sync"], "requests": asked}}
        return {**document, "requests": asked} if "requests" in document else document

    def line(self, text: str = "") -> None:
        """A line of the human-readable result."""
        if not self.json:
            print_line(text, sys.stdout)

    def info(self, text: str) -> None:
        """A remark about the work, on stderr."""
        if not self.quiet:
            print_line(masked(text), sys.stderr)

    def detail(self, text: str) -> None:
        """A remark for those who asked with `-v`."""
        if self.verbose:
            print_line(masked(text), sys.stderr)

    def warn(self, text: str) -> None:
        print_line(masked(f"Warning: {text}"), sys.stderr)

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

    def items(self, items: Sequence[Any], columns: Sequence[str], rows: Iterable[Iterable[Any]], **more: Any) -> None:
        """The result of a command that lists: `items`, `total` and what else the document says; a table for people."""
        document = {"items": items, "total": len(items), **more}
        self.result(document, lambda: self.table(columns, [tuple(row) for row in rows]))

    def fields(self, pairs: Mapping[str, Any]) -> None:
        """Name and value, one per line; names aligned."""
        width = max((len(name) for name in pairs), default=0)
        for name, told in pairs.items():
            self.line(f"{name.ljust(width)}  {_cell(told)}")

    def confirm(self, question: str, yes: bool) -> None:
        """Destructive commands ask on a terminal and need `--yes` otherwise. Raises UsageError when not agreed.

        Ctrl-C while the answer is awaited is no answer: raises Interrupted.
        """
        if yes:
            return
        agreed = self.ask(question)
        if agreed is None:
            raise UsageError(f"{question} This needs your consent.", hint="add --yes")
        if not agreed:
            raise UsageError("not confirmed: nothing was changed")

    def ask(self, question: str) -> bool | None:
        """What a person at the terminal answers; None where nobody can be asked."""
        if not (sys.stdin.isatty() and sys.stderr.isatty()) or self.json:
            return None
        return _answer(question).strip().lower() in ("y", "yes")

    def progress(self) -> Progress:
        """Bars on a terminal, a plain line per stage in a pipe with `-v`, nothing otherwise."""
        if self.quiet or not self.bars:
            return Progress()
        from swamp.cli.watch import Bars, ProgressLines

        if sys.stderr.isatty():
            return Bars(self.color)
        return ProgressLines(sys.stderr) if self.verbose else Progress()


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
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, header_style="bold" if color else "", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(escape(_cell(value)) for value in row))
    Console(no_color=not color, highlight=False).print(table)


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


def short(one: str, among: Sequence[str]) -> str:
    """An id for the terminal: as much of it as tells it from the others shown; whole where a program may read it."""
    if not sys.stdout.isatty():
        return one
    length = next((n for n in range(8, len(one)) if sum(other[:n] == one[:n] for other in among) <= 1), len(one))
    return one[:length]


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


_MASKS: list[Callable[[str], str]] = []


def hide(mask: Callable[[str], str]) -> None:
    """From now on every remark and every error of this process goes through `mask`: it knows secrets."""
    _MASKS.append(mask)


def masked(text: str) -> str:
    for mask in _MASKS:
        text = mask(text)
    return text


def _with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """`value` with every text in it changed, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {
            change(key) if isinstance(key, str) else key: _with_texts(inner, change) for key, inner in value.items()
        }
    return [_with_texts(inner, change) for inner in value] if isinstance(value, list | tuple) else value


def print_line(text: str, stream: TextIO) -> None:
    stream.write(printable(text) + "\n")
    stream.flush()


def printable(text: str) -> str:
    """Text that is valid UTF-8: bytes of a name that are not stand as `\\xff`, as `ls -b` shows them. inv[cli.utf-8]"""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        # Whether every lone surrogate in it stands for a byte of a file name or an argument.
        from_bytes = all("\udc80" <= letter <= "\udcff" for letter in text if "\ud800" <= letter <= "\udfff")
        return text.encode("utf-8", "surrogateescape" if from_bytes else "replace").decode("utf-8", "backslashreplace")
    return text


def write_json(document: Any, stream: TextIO) -> None:
    indent = 2 if stream.isatty() else None
    stream.write(json_text(document, indent, ascii_only=_is_narrow(stream)) + "\n")
    stream.flush()


def json_text(document: Any, indent: int | None = None, *, ascii_only: bool = False) -> str:
    """JSON that every parser takes, whatever names are in it."""
    text = json.dumps(document, ensure_ascii=ascii_only, indent=indent, default=str)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(_with_texts(document, printable), ensure_ascii=ascii_only, indent=indent, default=str)
    if ascii_only and "\\ud" in text:
        return json.dumps(_with_texts(document, printable), ensure_ascii=True, indent=indent, default=str)
    return text


def _is_narrow(stream: TextIO) -> bool:
    """Whether the terminal's encoding cannot take every letter."""
    return (getattr(stream, "encoding", None) or "utf-8").lower().replace("-", "") != "utf8"


def print_error(error: BaseException, *, as_json: bool, verbose: bool) -> None:
    """`Error:` and `Hint:`, or one JSON object as the last line of stderr."""
    if verbose:
        import traceback

        sys.stderr.write(masked("".join(traceback.format_exception(error))))
    known = error if isinstance(error, SwampError) else _unexpected(error)
    if as_json:
        document = _with_texts(json.loads(json.dumps(known.to_json(), default=str)), masked)
        sys.stderr.write(json_text(document, ascii_only=_is_narrow(sys.stderr)) + "\n")
    else:
        print_line(masked(f"Error: {known.message}"), sys.stderr)
        if known.hint:
            print_line(masked(f"Hint: {known.hint}"), sys.stderr)
    sys.stderr.flush()


def _unexpected(error: BaseException) -> SwampError:
    if isinstance(error, OSError) and error.strerror:
        where = f": {os.fspath(error.filename)}" if error.filename else ""
        return SwampError(f"{error.strerror}{where}", hint="check the path, its permissions and the free space")
    return SwampError(
        f"unexpected {type(error).__name__}: {error}", hint="run it again with -v for the traceback, and report it"
    )


def when(moment: str | None) -> str:
    """A time of a record for the terminal; ISO, as it is, where a program may read it."""
    if not moment or not sys.stdout.isatty():
        return moment or ""
    try:
        return say(parse_rfc3339(moment).astimezone(), SYSTEM.clock.now().astimezone())
    except ValueError:
        return moment


def say(moment: dt.datetime, now: dt.datetime) -> str:
    """`moment` as somebody would tell it at `now`; both in the same zone."""
    past = (now - moment).total_seconds()
    if -60 < past < 60:
        return "just now"
    if 0 < past < 3600:
        return f"{plural(int(past // 60), 'minute')} ago"
    if 0 < past < 86400 and moment.date() == now.date():
        return f"{plural(int(past // 3600), 'hour')} ago"
    if moment.date() == now.date() - dt.timedelta(days=1):
        return f"yesterday {moment:%H:%M}"
    if moment.year == now.year:
        return f"{moment.day} {moment:%b %H:%M}"
    return f"{moment.day} {moment:%b %Y}"
