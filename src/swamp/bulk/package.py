"""How the code reaches executors that do not have it: an archive that Spark unpacks beside each of them."""

from __future__ import annotations

import importlib.metadata as metadata
import re
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from swamp.errors import MissingTool
from swamp.plugins import GROUPS

# What a Spark installation that runs Python with Arrow has anyway.
ON_EXECUTORS: Final = frozenset({"pyspark", "py4j", "pyarrow", "pandas", "numpy"})
# What only the command line needs.
DRIVER_ONLY: Final = frozenset({"typer", "rich", "shellingham", "markdown-it-py", "mdurl", "pygments"})


@dataclass(frozen=True, slots=True)
class Package:
    file: Path
    bytes: int
    distributions: tuple[str, ...]


def build_archive(file: Path, *, full: bool = False, exclude: Iterable[str] = ()) -> Package:
    """swamp and what it needs as a tar.gz for the same platform and Python. `full` adds pyarrow, pandas and numpy."""
    left_out = DRIVER_ONLY | {_normal(name) for name in exclude}
    left_out |= {"pyspark", "py4j"} if full else ON_EXECUTORS
    more = [name for name in ("pyarrow", "pandas") if full and _is_installed(name)]
    # The packages that bring datastores: what they store must be opened on executors too.
    points = metadata.entry_points(group=GROUPS["datastores"])
    roots = ("swamp", *{point.dist.name for point in points if point.dist}, *more)
    wanted = sorted(set[str]().union(*(_closure(name, left_out) for name in roots)))
    with tarfile.open(file, "w:gz", compresslevel=6) as archive:
        for name in wanted:
            for source, target in _files_of(name):
                archive.add(source, target, recursive=False)
    return Package(file, file.stat().st_size, tuple(wanted))


def _closure(start: str, left_out: frozenset[str] | set[str]) -> set[str]:
    """The distribution and everything it requires here, extras aside."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        name = _normal(waiting.pop())
        if name in found or name in left_out:
            continue
        found.add(name)
        waiting += list(_requires(name))
    return found


def _requires(name: str) -> Iterator[str]:
    for text in _distribution(name).requires or []:
        requirement, _, marker = text.partition(";")
        match = re.match(r"[A-Za-z0-9._-]+", requirement.strip())
        if match and "extra ==" not in marker and _is_installed(match[0]):
            yield match[0]


def _is_installed(name: str) -> bool:
    """A requirement under a marker that does not hold here is not installed here."""
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _distribution(name: str) -> metadata.Distribution:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError as error:
        raise MissingTool(f"{name} is not installed here", hint="install swamp as a package first") from error


def _files_of(name: str) -> Iterator[tuple[Path, str]]:
    if name == "swamp":
        yield from _own_files()
        return
    files = _distribution(name).files
    if files is None:
        raise MissingTool(
            f"the package {name} does not say which files it has",
            hint=f"install it with pip, or leave it out with --exclude {name}",
        )
    for entry in files:
        source = Path(str(entry.locate()))
        if ".." not in entry.parts and source.is_file() and "__pycache__" not in entry.parts:
            yield source, str(entry)


def _own_files() -> Iterator[tuple[Path, str]]:
    """From the package itself: an editable installation lists no files."""
    import swamp

    root = Path(swamp.__file__).parent
    for source in sorted(root.rglob("*")):
        if source.is_file() and "__pycache__" not in source.parts:
            yield source, f"swamp/{source.relative_to(root).as_posix()}"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
