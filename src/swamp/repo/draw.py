"""Draws a lineage: as an indented list for people, as Mermaid for pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from swamp.repo.lineage import Lineage, LineageNode

_Near = Callable[[str], Sequence[LineageNode]]


def as_text(lineage: Lineage) -> str:
    """The version, below it what it was made from, and what was made from it."""
    lines = [_line(lineage.by_path[lineage.of])]
    for title, near in (("made from", lineage.before), ("used by", lineage.after)):
        if near(lineage.of):
            lines += [f"  {title}:", *_branches(lineage.of, near, 4, frozenset({lineage.of}))]
    return "\n".join(lines if len(lines) > 1 else [*lines, "  made from nothing that is known, used by nothing"])


def _branches(path: str, near: _Near, indent: int, above: frozenset[str]) -> Iterator[str]:
    for node in near(path):
        yield f"{' ' * indent}{_line(node)}"
        if node.path not in above:
            yield from _branches(node.path, near, indent + 2, above | {node.path})


def _line(node: LineageNode) -> str:
    notes = [node.maker] if node.maker else []
    notes += [] if node.here else ["not here any more"]
    return f"{node.title}  ({', '.join(notes)})" if notes else node.title


def as_mermaid(lineage: Lineage) -> str:
    """A flow chart from left to right; the version that was asked for stands out."""
    ids = {node.path: f"n{number}" for number, node in enumerate(lineage.nodes)}
    lines = ["flowchart LR"]
    for node in lineage.nodes:
        label = f"{node.model}/{node.name}<br/>version {node.version}".replace('"', "#quot;")
        lines.append(f'  {ids[node.path]}["{label}"]')
    lines += [f"  {ids[first]} --> {ids[second]}" for first, second in lineage.edges]
    lines.append(f"  style {ids[lineage.of]} stroke-width:3px")
    return "\n".join(lines)
