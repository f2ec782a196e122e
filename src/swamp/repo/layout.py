"""Which directories are shared and which never leave the machine; finding a repository from inside it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from swamp.cache.paths import TIER_DIRECTORIES
from swamp.errors import UsageError
from swamp.values import value

LOCAL_DIRECTORY: Final = ".swamp"


def locate(start: Path | None, environ: Mapping[str, str]) -> Path:
    """The repository: `start` if given, else SWAMP_REPO_DIR, else the nearest directory upwards with `.swamp.yaml`."""
    named = start or (Path(environ["SWAMP_REPO_DIR"]) if environ.get("SWAMP_REPO_DIR") else None)
    if named is not None:
        return _named(named)
    here = Path.cwd()
    for directory in (here, *here.parents):
        if (directory / ".swamp.yaml").is_file():
            return directory
    raise UsageError(
        f"no swamp repository in {here} or above", hint="run `swamp repo init`, or name one with --repo-dir"
    )


def _named(path: Path) -> Path:
    path = path.expanduser().absolute()
    if not (path / ".swamp.yaml").is_file():
        raise UsageError(f"{path} is not a swamp repository", hint=f"run `swamp repo init {path}`")
    return path


@value
class Exclude:
    """Gitignore-like patterns: the last one that matches decides, `!` takes a path back in."""

    patterns: tuple[str, ...] = ()
    directories: tuple[str, ...] = TIER_DIRECTORIES

    def __call__(self, path: str, is_directory: bool = False) -> bool:
        """Whether this path of the tree, or everything below this directory, stays on this machine."""
        if path.split("/", 1)[0] not in self.directories:
            return True
        excluded = False
        for pattern in self.patterns:
            if _matches(pattern.removeprefix("!"), path, is_directory):
                excluded = not pattern.startswith("!")
        return excluded


def _matches(pattern: str, path: str, is_directory: bool) -> bool:
    shown = f"{path}/" if is_directory and pattern.endswith("/") else path
    return bool(_compiled(pattern).match(shown))


_cache: dict[str, re.Pattern[str]] = {}


def _compiled(pattern: str) -> re.Pattern[str]:
    if pattern not in _cache:
        _cache[pattern] = re.compile(_regex(pattern), re.DOTALL)
    return _cache[pattern]


def _regex(pattern: str) -> str:
    """A pattern with a slash inside is anchored at the tree's root; a trailing slash means a directory."""
    directory_only = pattern.endswith("/")
    body = pattern.strip("/")
    anchored = pattern.startswith("/") or "/" in body
    head = "" if anchored else "(?:.*/)?"
    return f"^{head}{_translate(body)}{'/.*' if directory_only else '(?:/.*)?'}$"


def _translate(body: str) -> str:
    out: list[str] = []
    for token in re.findall(r"\*\*/|/\*\*|\*\*|\*|\?|\[[^\]]+\]|.", body, re.DOTALL):
        out.append(_TOKENS.get(token) or (_char_class(token) if token.startswith("[") else re.escape(token)))
    return "".join(out)


_TOKENS: Final = {"**/": "(?:.*/)?", "/**": "/.*", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def _char_class(token: str) -> str:
    if len(token) < 3:
        return re.escape(token)
    inner = token[1:-1]
    negated = inner[0] in "!^"
    return f"[{'^/' if negated else ''}{(inner[1:] if negated else inner).replace(chr(92), chr(92) * 2)}]"


def excluder(patterns: Iterable[str], directories: Iterable[str]) -> Exclude:
    """Raises UsageError for a pattern that cannot be read."""
    made = Exclude(tuple(patterns), tuple(directories))
    for pattern in made.patterns:
        try:
            _compiled(pattern.removeprefix("!"))
        except re.error as error:
            raise UsageError(f"datastore.exclude: {pattern!r} is not a pattern", hint=str(error)) from error
    return made
