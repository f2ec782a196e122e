"""Reads YAML and remembers where each value stood, so that every complaint can name a file and a line."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from swamp.cache.files import read_at_most
from swamp.data.document import MAX_BYTES, check_shape, keys_of, told
from swamp.errors import UsageError
from swamp.values import value

Path = tuple[str | int, ...]


@value
class Problem:
    """One thing wrong with a document: where, what, and what was probably meant."""

    path: Path
    message: str
    line: int | None = None
    suggestion: str | None = None

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line is not None else ""
        meant = f"; did you mean `{self.suggestion}`?" if self.suggestion else ""
        return f"{where}{self.message}{meant}"

    def to_json(self) -> dict[str, Any]:
        return {"path": spell(self.path), **told(self, keys_of("message line suggestion"))}


@value
class ParsedFile:
    """A parsed file: its plain value and the line of every key and item in it."""

    source: str
    value: Any
    lines: Mapping[Path, int] = field(default_factory=dict)

    def line_of(self, path: Path) -> int | None:
        """The line of `path`, or of the nearest thing around it that has one."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return None

    def problem(self, path: Path, message: str, suggestion: str | None = None) -> Problem:
        return Problem(path, message, self.line_of(path), suggestion)


def spell(path: Path) -> str:
    """`jobs[0].steps[1].task`: a path the way people write it."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def refuse(source: str, problems: Iterable[Problem], *, hint: str | None = None, in_file: bool = True) -> None:
    """Raises one UsageError with every problem in it, or returns when there is none.

    `in_file`: `source` is a file that the user can correct, not a name for what stood on the command line.
    """
    found = list(problems)
    if not found:
        return
    listed = "\n".join(f"  {source}: {problem}" for problem in found)
    count = "1 problem" if len(found) == 1 else f"{len(found)} problems"
    raise UsageError(
        f"{count} in {source}\n{listed}",
        hint=hint or "correct the file and run the command again",
        details={**({"file": source} if in_file else {}), "problems": [problem.to_json() for problem in found]},
    )


def read_text(file: pathlib.Path, source: str) -> str:
    """A definition's text. One of gigabytes is refused before it is in memory."""
    raw = read_at_most(file, MAX_BYTES)
    if len(raw) > MAX_BYTES:
        raise _too_large(source)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{source} is not UTF-8 text", hint="save it as UTF-8") from error


def _too_large(source: str) -> UsageError:
    return UsageError(f"{source} is larger than {MAX_BYTES} bytes", hint="a definition is a page or two: cut it down")


def parse(text: str, source: str) -> ParsedFile:
    """Safe YAML with lines. Syntax errors and keys that stand twice are UsageErrors that name the line."""
    import yaml

    if len(text) > MAX_BYTES:
        raise _too_large(source)
    try:
        check_shape(text, aliases=True)
        loader = yaml.CSafeLoader(text) if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader(text)
    except (yaml.YAMLError, ValueError) as error:
        raise _syntax(error, source) from error
    try:
        node = loader.get_single_node()
        if node is None:
            return ParsedFile(source, None, {(): 1})
        lines: dict[Path, int] = {}
        problems = list(_walk(node, (), lines))
        refuse(source, problems)
        return ParsedFile(source, loader.construct_document(node), lines)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date or a number that cannot be
        raise _syntax(error, source) from error
    finally:
        loader.dispose()


def _syntax(error: Exception, source: str) -> UsageError:
    mark = getattr(error, "problem_mark", None)
    line = mark.line + 1 if mark is not None else None
    what = getattr(error, "problem", None) or str(error).splitlines()[0]
    problem = Problem((), f"not valid YAML: {what}", line)
    return UsageError(
        f"{source}: {problem}",
        hint="quote values that hold `: `, `#`, `{` or `${{ … }}`",
        details={"file": source, "problems": [problem.to_json()]},
    )


def _walk(node: Any, path: Path, lines: dict[Path, int]) -> Iterable[Problem]:
    """Note the line of `node` and of everything in it; yield keys that stand twice."""
    import yaml

    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        for position, item in enumerate(node.value):
            yield from _walk(item, (*path, position), lines)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            name = str(key.value)
            if (*path, name) in lines:
                yield Problem((*path, name), f"`{name}` stands twice", key.start_mark.line + 1)
                continue
            lines[(*path, name)] = key.start_mark.line + 1
            yield from _walk(value, (*path, name), lines)


def dump(value: Any) -> str:
    """YAML the way people write it: keys in order, block style, no aliases."""
    import yaml

    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    Plain.add_representer(str, _represent_text)
    return yaml.dump(value, Dumper=Plain, sort_keys=False, allow_unicode=True, width=110)


def _represent_text(dumper: Any, text: str) -> Any:
    style = "|" if "\n" in text and not text.endswith(" ") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)
