"""Charts as SVG elements, described as plain values: templates write them out, so nothing here escapes or styles."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from swamp.env import parse_rfc3339
from swamp.repo.lineage import Lineage, LineageNode

HOURS: Final = 24
BAR_HEIGHT: Final = 60
STEP_WIDTH, STEP_HEIGHT, GAP_X, GAP_Y = 180, 34, 60, 14
MOST_BESIDE: Final = 12
"""Versions in one column of a lineage; of more, the number is told."""
_GROUPS: Final = {"succeeded": "good", "failed": "bad", "cancelled": "bad"}


@dataclass(frozen=True)
class Rect:
    """A part of a bar."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    title: str


def bars_of_runs(runs: Sequence[Mapping[str, Any]], now: dt.datetime) -> list[Rect]:
    """Runs of the last day, a bar an hour: good, bad and others on top of each other."""
    counts: list[Counter[str]] = [Counter() for _ in range(HOURS)]
    for run in runs:
        hour = int((now - parse_rfc3339(str(run["startedAt"]))).total_seconds() // 3600)
        if 0 <= hour < HOURS:
            counts[HOURS - 1 - hour][_GROUPS.get(str(run["status"]), "other")] += 1
    most = max((sum(count.values()) for count in counts), default=0) or 1
    found = []
    for place, count in enumerate(counts):
        top = float(BAR_HEIGHT)
        for kind in ("good", "bad", "other"):
            if count[kind]:
                height = count[kind] / most * BAR_HEIGHT
                top -= height
                title = f"{HOURS - place} h ago: {count[kind]} {kind}"
                found.append(Rect(place * 12, round(top, 1), 10, round(height, 1), kind, title))
    return found


def line_of_sizes(versions: Sequence[Mapping[str, Any]], width: int = 320, height: int = 60) -> str:
    """The points of a line: a version's size over its number, oldest first."""
    sizes = [int(version["size"]) for version in reversed(versions)]
    if not sizes:
        return ""
    most, step = max(sizes) or 1, width / max(1, len(sizes) - 1)
    return " ".join(f"{n * step:.1f},{height - size / most * (height - 4) - 2:.1f}" for n, size in enumerate(sizes))


@dataclass(frozen=True)
class Box:
    """A step in the graph of a run."""

    id: str
    job: str
    name: str
    status: str
    x: float
    y: float


@dataclass(frozen=True)
class Graph:
    """The steps of a run and what waits for what."""

    boxes: Sequence[Box]
    lines: Sequence[tuple[float, float, float, float]]
    width: int
    height: int
    columns: Sequence[tuple[float, str]] = ()


def graph_of_run(jobs: Sequence[Mapping[str, Any]], needs: Mapping[str, Sequence[str]]) -> Graph:
    """Jobs as columns in the order of their dependencies, their steps below each other, lines between jobs."""
    depth = {str(job["name"]): _depth(str(job["name"]), needs) for job in jobs}
    boxes: list[Box] = []
    below: Counter[int] = Counter()
    middle: dict[str, float] = {}
    for job in jobs:
        name = str(job["name"])
        column, first = depth[name], below[depth[name]]
        for number, step in enumerate(job["steps"]):
            x, y = column * (STEP_WIDTH + GAP_X), (first + number) * (STEP_HEIGHT + GAP_Y) + 24
            boxes.append(Box(f"step-{len(boxes)}", name, str(step["name"]), str(step["status"]), x, y))
        below[column] += max(1, len(job["steps"]))
        middle[name] = (first + max(1, len(job["steps"])) / 2) * (STEP_HEIGHT + GAP_Y) + 24
    lines = [
        (
            depth[before] * (STEP_WIDTH + GAP_X) + STEP_WIDTH,
            middle[before],
            depth[name] * (STEP_WIDTH + GAP_X),
            middle[name],
        )
        for name in depth
        for before in needs.get(name, ())
        if before in depth
    ]
    columns = [(depth[str(job["name"])] * (STEP_WIDTH + GAP_X), str(job["name"])) for job in jobs]
    width = (max(depth.values(), default=0) + 1) * (STEP_WIDTH + GAP_X) - GAP_X
    height = max(below.values(), default=1) * (STEP_HEIGHT + GAP_Y) + 24
    return Graph(boxes, lines, width, height, columns if len({x for x, _ in columns}) == len(columns) else ())


def _depth(name: str, needs: Mapping[str, Sequence[str]], seen: frozenset[str] = frozenset()) -> int:
    before = [other for other in needs.get(name, ()) if other not in seen and other != name]
    return 1 + max(_depth(other, needs, seen | {name}) for other in before) if before else 0


@dataclass(frozen=True)
class Placed:
    """A version in the graph of a lineage."""

    node: LineageNode
    x: int
    y: int
    chosen: bool


@dataclass(frozen=True)
class Descent:
    """What a version was made from to its left, what was made from it to its right."""

    boxes: Sequence[Placed]
    lines: Sequence[tuple[float, float, float, float]]
    width: int
    height: int
    hidden: int
    """Versions for which there was no room."""


def graph_of_lineage(found: Lineage) -> Descent:
    """Columns by the shortest way to the version that was asked for."""
    places = {found.of: 0}
    for near, step in ((found.before, -1), (found.after, 1)):
        ring = [found.of]
        while ring:
            pairs = {node.path: path for path in ring for node in near(path) if node.path not in places}
            places |= {path: places[nearer] + step for path, nearer in pairs.items()}
            ring = list(pairs)
    first = min(places.values())
    beside: Counter[int] = Counter()
    boxes: dict[str, Placed] = {}
    for path, place in places.items():
        if beside[place] < MOST_BESIDE:
            x, y = (place - first) * (STEP_WIDTH + GAP_X), beside[place] * (STEP_HEIGHT + GAP_Y)
            boxes[path] = Placed(found.by_path[path], x, y, path == found.of)
        beside[place] += 1
    lines = [
        (boxes[a].x + STEP_WIDTH, boxes[a].y + STEP_HEIGHT / 2, boxes[b].x, boxes[b].y + STEP_HEIGHT / 2)
        for a, b in found.edges
        if a in boxes and b in boxes
    ]
    width = (max(places.values()) - first + 1) * (STEP_WIDTH + GAP_X) - GAP_X
    height = min(MOST_BESIDE, max(beside.values())) * (STEP_HEIGHT + GAP_Y) - GAP_Y
    return Descent(list(boxes.values()), lines, width, height, len(found.nodes) - len(boxes))
