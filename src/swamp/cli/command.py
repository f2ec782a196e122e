"""How a command group is made: one Typer per group, the common options on every command, arguments that many share.

A group module holds `app = group("What it is for.")` and commands that do their work inside `with session() as s:`
(`s.repo`, `s.out`). `swamp.cli.program` names the modules.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from swamp.cli.render import Printer, hide
from swamp.errors import Failed, Interrupted, SwampError
from swamp.sync.progress import Cancel
from swamp.values import mutable

if TYPE_CHECKING:
    from swamp.models.context import RunContext
    from swamp.repo.repository import Repo

_META = "swamp.common"
_NOT_TWICE = ("data put", "model method run", "workflow run", "workflow resume", "run", "serve")
F = TypeVar("F", bound=Callable[..., Any])


class Stop(Cancel):
    """Set by the first SIGINT or SIGTERM. `raises`: the main thread is also thrown out of whatever it is doing."""

    raises = False


CANCEL = Stop()


@mutable
class Common:
    """What every command accepts, wherever on the line it stands."""

    json: bool = False
    repo_dir: str | None = None
    quiet: bool = False
    verbose: bool = False
    cached: bool = False
    no_color: bool = field(default_factory=lambda: bool(os.environ.get("NO_COLOR")))


class Command(TyperCommand):
    """A command that accepts the common options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.extend(common_options())

    def invoke(self, ctx: Any) -> Any:
        """A command that meets a damaged page of the cache's state, where the engine could not go on by itself, is done
        from its beginning; unless somebody's work may have run in it already. inv[state.checked]"""
        try:
            return super().invoke(ctx)
        except Failed as error:
            from swamp.cache.state import StateRebuilt

            if not isinstance(error, StateRebuilt) or _command_name() in _NOT_TWICE:
                raise
            return super().invoke(ctx)


class Reading(Command):
    """A command that shows what the store holds, or with `--cached` what is here."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(_option(["--cached"], "cached", "Ask nobody: show what is here.", is_flag=True))


class Group(TyperGroup):
    """A group that accepts the common options too, so that their place on the line does not matter."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.extend(common_options())


class _App(typer.Typer):
    def command(self, name: str | None = None, **kwargs: Any) -> Any:
        kwargs.setdefault("cls", Command)
        return super().command(name, **kwargs)


def reading(app: typer.Typer, name: str) -> Callable[[F], F]:
    """`@reading(app, "list")`: a command that reads, and so accepts `--cached` too."""
    decorator: Callable[[F], F] = app.command(name, cls=Reading)
    return decorator


def group(help_text: str) -> typer.Typer:
    """A command group whose commands accept `--json --repo-dir -q -v --no-color`."""
    return _App(help=help_text, cls=Group, no_args_is_help=True, add_completion=False, rich_markup_mode=help_style())


def single(help_text: str = "") -> typer.Typer:
    """A module with exactly one command that stands directly below `swamp`, such as `swamp sql`."""
    return _App(help=help_text, add_completion=False, rich_markup_mode=help_style())


def help_style() -> Literal["rich"] | None:
    """Boxes and colours on a terminal; plain text, without importing rich, in a pipe."""
    plain = os.environ.get("NO_COLOR") or "--no-color" in sys.argv  # help is printed before its options are parsed
    return "rich" if sys.stdout.isatty() and not plain else None


def common_options() -> list[TyperOption]:
    return [
        _option(["--json"], "json", "One JSON document on stdout, nothing else there.", is_flag=True),
        _option(["--repo-dir"], "repo_dir", "The repository (default: SWAMP_REPO_DIR, else walk up)."),
        _option(["--quiet", "-q"], "quiet", "Say nothing but the result.", is_flag=True),
        _option(["--verbose", "-v"], "verbose", "More detail, and tracebacks.", is_flag=True),
        _option(["--no-color"], "no_color", "No colours (also: NO_COLOR).", is_flag=True),
    ]


def _option(decls: list[str], attribute: str, help_text: str, *, is_flag: bool = False) -> TyperOption:
    def remember(ctx: Any, param: Any, value: Any) -> Any:
        del param
        if value:
            setattr(common(ctx), attribute, value)
        return value

    kwargs: dict[str, Any] = {"is_flag": True} if is_flag else {"metavar": "DIR", "type": str}
    return TyperOption(
        param_decls=[*decls, f"swamp_{attribute}"],
        help=help_text,
        expose_value=False,
        callback=remember,
        rich_help_panel="Common options",
        **kwargs,
    )


def common(ctx: Any = None) -> Common:
    """The common options of the running command."""
    from typer._click.globals import get_current_context

    ctx = ctx or get_current_context(silent=True)
    if ctx is None:
        return Common()
    found: Common = ctx.meta.setdefault(_META, Common())
    return found


def _command_name() -> str:
    """`data put` for `swamp data put …`."""
    from typer._click.globals import get_current_context

    ctx = get_current_context(silent=True)
    return ctx.command_path.removeprefix("swamp").strip() if ctx is not None else ""


@mutable
class CommandSession:
    """One command at work: where it prints, and the repository it opens when it first asks for it."""

    common: Common
    out: Printer
    overrides: dict[str, Any] = field(default_factory=dict)
    reading: bool = False
    cancel: Cancel = field(default_factory=lambda: CANCEL)

    @cached_property
    def repo(self) -> Repo:
        """The repository of `--repo-dir`, SWAMP_REPO_DIR or the working directory, with its datastore hydrated."""
        from swamp.repo.open import COMMAND
        from swamp.wiring import open_repo

        COMMAND.set(_command_name())
        where = Path(self.common.repo_dir) if self.common.repo_dir else None
        repo = open_repo(
            where, cancel=self.cancel, progress=self.out.progress(), overrides=self.overrides, notify=self.out.info
        )
        self.out = replace(self.out, requests=lambda: repo.datastore.asked)
        return repo

    def run_context(self) -> RunContext:
        """What methods and workflows run with; what it knows to be secret is said nowhere.

        A command that reads asks the store before it looks at models, runs and outputs.
        """
        from swamp.models.context import RunContext

        if self.reading:
            self.repo.freshen()
        context = RunContext(self.repo)
        hide(context.masker.text)
        return context

    def answer(self, document: Mapping[str, Any], text: Callable[[], None] | str | None = None) -> None:
        """The result of a read, which also says whether it is what the store holds."""
        known = self.repo.freshness
        self.out.result({**document, "fresh": known is not None and known.fresh}, text)

    def items(self, items: Sequence[Any], columns: Sequence[str], rows: Iterable[Sequence[Any]], **more: Any) -> None:
        """The result of a read that lists: `items`, `total` and what else the document says; a table for people."""
        self.answer({"items": items, "total": len(items), **more}, lambda: self.out.table(columns, rows))


_M_ARENA_MAX: Final = -8
"""What glibc's `mallopt` calls the number of heaps that a process may have."""


@contextmanager
def session(*, reading: bool = False, **overrides: Any) -> Iterator[CommandSession]:
    """`overrides` are flags that beat every other setting (`engine=…`, `timeout_ms=…`); None means not given.

    `reading`: the command holds no lease and writes nothing shared, so that a signal may end it anywhere.
    """
    CANCEL.raises = reading
    options = common()
    if options.verbose:
        import logging  # here: no other command should wait for it

        logging.getLogger("swamp").setLevel(logging.DEBUG)
    if "engine" in overrides:
        share_one_heap()  # a command that can do without Spark what Spark can do
    given = {k: v for k, v in overrides.items() if v is not None}
    if options.cached:
        given["fresh"] = "never"
    opened = CommandSession(options, Printer.of(options), given, reading)
    try:
        yield opened
    except KeyboardInterrupt as error:
        raise Interrupted("interrupted", hint="nothing was lost: run the same command again") from error
    finally:
        if "repo" in opened.__dict__:
            opened.repo.close()


def share_one_heap() -> None:
    """Ask glibc to give the threads of this process no heaps of their own; another C library is left alone.

    It keeps what each thread frees for that thread: a first push of 100,000 files of 2 KB held 521 MB so, and 262 MB
    with one heap, in no more time. Before the store's client starts its threads, or they have theirs already.
    """
    import ctypes

    with suppress(AttributeError, OSError):  # musl and macOS have nothing to be set
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


# -- arguments that commands share, and what the shell completes for them from this machine's files. Nobody waits for a
# completion: it asks no store, imports no more than it needs, and knows nothing of a repository that cannot be read


def models(ctx: Any, incomplete: str) -> list[str]:
    """Models with a definition, and those that have data."""
    repo = _repo(ctx)
    if repo is None:
        return []
    from swamp.catalog import glance

    defined = [file.stem for _, file in _definitions(repo)]
    return _fitting([*defined, *glance.model_names(repo / ".swamp" / "_catalog.db")], incomplete)


def data_names(ctx: Any, incomplete: str) -> list[str]:
    """The data of the model that was typed before."""
    repo, model = _repo(ctx), ctx.params.get("model")
    if repo is None or not model:
        return []
    from swamp.catalog import glance

    here = (child.name for folder in _folders(repo, str(model)) for child in folder.glob("*/") if child.is_dir())
    return _fitting([*here, *glance.data_names(repo / ".swamp" / "_catalog.db", str(model))], incomplete)


def workflows(ctx: Any, incomplete: str) -> list[str]:
    repo = _repo(ctx)
    files = (repo / "workflows").glob("workflow-*.y*ml") if repo is not None else ()
    return _fitting((file.stem.removeprefix("workflow-") for file in files), incomplete)


def runs(ctx: Any, incomplete: str) -> list[str]:
    """The ids of runs that this machine knows, the newest records first."""
    repo = _repo(ctx)
    files = [file for tree in _trees(repo) for file in tree.glob("workflow-runs/*/workflow-run-*.yaml")] if repo else []
    newest = sorted(files, key=lambda file: file.stat().st_mtime, reverse=True)
    found = dict.fromkeys(["latest", *(file.stem.removeprefix("workflow-run-") for file in newest)])
    return [one for one in found if one.startswith(incomplete)][:100]


def _fitting(found: Iterable[str], incomplete: str) -> list[str]:
    return sorted({one for one in found if one.startswith(incomplete)})


def _repo(ctx: Any) -> Path | None:
    from swamp.repo.config import locate

    given = common(ctx).repo_dir
    try:
        return locate(Path(given) if given else None, os.environ)
    except (SwampError, OSError):
        return None


def _definitions(repo: Path) -> Iterator[tuple[str, Path]]:
    """Files that are called as a model, with the type that their place says: in the checkout, and made on the spot."""
    for folder in (repo / "models", *(tree / "auto-definitions" for tree in _trees(repo))):
        for file in folder.rglob("*.yaml"):
            yield file.parent.relative_to(folder).as_posix(), file


def _folders(repo: Path, model: str) -> Iterator[Path]:
    """Where the data of a model lies that has a definition; its id is a line of that."""
    for kind, file in _definitions(repo):
        if file.stem != model:
            continue
        found = re.search(r"^id: *['\"]?([\w-]+)", file.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
        if found:
            yield from (tree / "data" / kind / found[1] for tree in _trees(repo))


def _trees(repo: Path) -> Iterator[Path]:
    """Where records of this repository lie on this machine: the plain directory, and its caches."""
    from swamp.repo.config import read_config
    from swamp.settings import swamp_home

    try:
        config = read_config(repo)
    except (SwampError, OSError):
        return
    yield repo / (config.datastore.path or ".swamp")
    yield from (swamp_home(os.environ) / "repos" / config.repo_id).glob("*/tree")


Model = Annotated[
    str,
    typer.Argument(help="A model's name, id, or a beginning of its id.", metavar="MODEL", autocompletion=models),
]
SomeModel = Annotated[str | None, typer.Argument(help="Only this model's.", metavar="MODEL", autocompletion=models)]
Name = Annotated[str, typer.Argument(help="The data's name.", metavar="NAME", autocompletion=data_names)]
Workflow = Annotated[str, typer.Argument(help="A workflow's name or id.", metavar="NAME", autocompletion=workflows)]
RunId = Annotated[
    str,
    typer.Argument(help="A run's id, a beginning of it, or `latest`.", metavar="RUN", autocompletion=runs),
]
Version = Annotated[int | None, typer.Option("--version", metavar="N", help="This version, not the latest.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would happen and change nothing.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", metavar="K=V", help="A tag; may be repeated.")]
Since = Annotated[str | None, typer.Option(metavar="T", help="An ISO time, or 1h, 2d.")]
Limit = Annotated[int, typer.Option(metavar="N", min=1, help="At most so many.")]
Engine = Annotated[str | None, typer.Option(metavar="auto|spark|inline", help="What runs bulk work.")]
Inputs = Annotated[
    list[str] | None, typer.Option("--input", metavar="K=V", help="k=v, k:json=…, k=@file; dotted keys nest.")
]
InputFile = Annotated[str | None, typer.Option("--input-file", metavar="F", help="Inputs as YAML or JSON.")]
NewText = Annotated[str | None, typer.Option("--file", metavar="F", help="The new text (- for stdin).")]
