"""Begins the look at a tree that a sync will want, before the command is even loaded: half of its time is that.

It imports next to nothing, so that the look begins at once, and so it finds the cache by itself. A guess: whoever syncs
takes only the look at its own tree, and what is wrong with the line or the repository is said by the command.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise


def looking_ahead(args: Sequence[str]) -> AbstractContextManager[None]:
    """Looks at the tree that this line seems to want synced."""
    try:
        cache = _newest_cache(_repo_of(args)) if _is_sync(args) else None
    except (OSError, ValueError):
        cache = None
    if cache is None:
        return nullcontext()
    from swamp.cache.second import begun_ahead  # with it comes sqlite3, which most commands do without

    return begun_ahead(f"{cache}/state.db", f"{cache}/tree")


def _is_sync(args: Sequence[str]) -> bool:
    return "sync" in args[:2] and not {"--full", "--dry-run", "--help"} & set(args)


def _repo_of(args: Sequence[str]) -> str:
    """As `cli/command.py` and `repo/config.py` find it."""
    named = [after for word, after in pairwise(args) if word == "--repo-dir"]
    named += [word.removeprefix("--repo-dir=") for word in args if word.startswith("--repo-dir=")]
    given = named[-1] if named else os.environ.get("SWAMP_REPO_DIR")
    if given:
        return os.path.abspath(os.path.expanduser(given))  # noqa: PTH100, PTH111
    return next(filter(_has_config, _here_and_above()), "/")


def _here_and_above() -> Iterator[str]:
    directory = os.getcwd()  # noqa: PTH109
    while directory != "/":
        yield directory
        directory = os.path.dirname(directory)  # noqa: PTH120


def _has_config(directory: str) -> bool:
    return os.path.isfile(f"{directory}/.swamp.yaml")  # noqa: PTH113


def _newest_cache(repo: str) -> str | None:
    """The cache that was used last of those that the repository has: it may have moved from one store to another."""
    with open(f"{repo}/.swamp.yaml", encoding="utf-8") as file:  # noqa: PTH123
        [name] = (line.split(":")[1].strip(" \n'\"") for line in file if line.startswith("repoId:"))
    if "/" in name:
        return None
    home = os.environ.get("SWAMP_HOME") or f"{os.environ.get('HOME') or '~'}/.swamp"
    with os.scandir(os.path.expanduser(f"{home}/repos/{name}")) as caches:  # noqa: PTH111
        used = sorted((os.stat(f"{cache.path}/state.db").st_mtime_ns, cache.path) for cache in caches)  # noqa: PTH116
    return used[-1][1] if used else None
