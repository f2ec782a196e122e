"""Charts as SVG elements, described as plain values: templates write them out, so nothing here escapes or styles."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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

    job: str
    name: str
    status: str
    x: int
    y: int


@dataclass(frozen=True)
class Frame:
    """A job in the graph of a run, around its steps."""

    name: str
    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True)
class Graph:
    """The steps of a run and what waits for what."""

    boxes: Sequence[Box]
    frames: Sequence[Frame]
    curves: Sequence[str]
    width: int
    height: int


@dataclass(frozen=True)
class Needs:
    """What waits for what: jobs for jobs, and within a job steps for steps."""

    jobs: Mapping[str, Sequence[str]]
    steps: Mapping[str, Mapping[str, Sequence[str]]]


FRAME: Final = 12
"""Between a job's frame and its steps."""
TITLE: Final = 22
"""Above the steps of a job: its name."""


def graph_of_run(jobs: Sequence[Mapping[str, Any]], needs: Needs) -> Graph:
    """Jobs as frames from left to right in the order of their dependencies, each with its steps in columns."""
    columns = {str(job["name"]): _columns(job, needs) for job in jobs}
    starts: dict[str, int] = {}
    for name in columns:
        _start(name, columns, needs.jobs, starts)
    below: Counter[int] = Counter()
    boxes: list[Box] = []
    frames: dict[str, Frame] = {}
    for job in jobs:
        name = str(job["name"])
        taken = range(starts[name], starts[name] + len(columns[name]))
        top = max(below[column] for column in taken)
        made = [
            Box(name, str(step["name"]), str(step["status"]), *_place(starts[name] + column, row, top))
            for column, steps in enumerate(columns[name])
            for row, step in enumerate(steps)
        ]
        boxes += made
        frames[name] = _frame(name, made, *_place(starts[name], 0, top))
        below.update({column: frames[name].y + frames[name].height + GAP_Y - below[column] for column in taken})
    curves = [*_between_jobs(frames, needs.jobs), *_between_steps(boxes, needs.steps)]
    width = max((frame.x + frame.width for frame in frames.values()), default=0)
    height = max((frame.y + frame.height for frame in frames.values()), default=0)
    return Graph(boxes, list(frames.values()), curves, width, height)


def _columns(job: Mapping[str, Any], needs: Needs) -> list[list[Mapping[str, Any]]]:
    """A job's steps by how many others they wait for, one after the other; at least one column."""
    waits = needs.steps.get(str(job["name"]), {})
    found: list[list[Mapping[str, Any]]] = [[]]
    for step in job["steps"]:
        depth = _depth(str(step["name"]), waits)
        found += [[] for _ in range(depth + 1 - len(found))]
        found[depth].append(step)
    return found


def _depth(name: str, waits: Mapping[str, Sequence[str]], seen: frozenset[str] = frozenset()) -> int:
    before = [other for other in waits.get(name, ()) if other not in seen and other != name]
    return 1 + max(_depth(other, waits, seen | {name}) for other in before) if before else 0


def _start(
    name: str, columns: Mapping[str, Sequence[Any]], waits: Mapping[str, Sequence[str]], starts: dict[str, int]
) -> int:
    """The first column of a job: behind the last one of all that it waits for."""
    if name not in starts:
        starts[name] = 0  # for a circle, which a workflow cannot have
        before = [other for other in waits.get(name, ()) if other in columns]
        starts[name] = max((_start(o, columns, waits, starts) + len(columns[o]) for o in before), default=0)
    return starts[name]


def _place(column: int, row: int, top: int) -> tuple[int, int]:
    return FRAME + column * (STEP_WIDTH + GAP_X), top + TITLE + FRAME + row * (STEP_HEIGHT + GAP_Y)


def _frame(name: str, boxes: Sequence[Box], x: int, y: int) -> Frame:
    right = max((box.x for box in boxes), default=x) + STEP_WIDTH
    bottom = max((box.y for box in boxes), default=y) + STEP_HEIGHT
    return Frame(name, x - FRAME, y - FRAME - TITLE, right - x + 2 * FRAME, bottom - y + 2 * FRAME + TITLE)


def _between_jobs(frames: Mapping[str, Frame], waits: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for name, frame in frames.items():
        for one in (frames[other] for other in waits.get(name, ()) if other in frames):
            yield _curve(one.x + one.width, one.y + one.height / 2, frame.x, frame.y + frame.height / 2)


def _between_steps(boxes: Sequence[Box], waits: Mapping[str, Mapping[str, Sequence[str]]]) -> Iterator[str]:
    places = {(box.job, box.name): box for box in boxes}
    for box in boxes:
        for other in waits.get(box.job, {}).get(box.name, ()):
            if (one := places.get((box.job, other))) is not None:
                yield _curve(one.x + STEP_WIDTH, one.y + STEP_HEIGHT / 2, box.x, box.y + STEP_HEIGHT / 2)


def _curve(x1: float, y1: float, x2: float, y2: float) -> str:
    """The path from the right of one box to the left of another."""
    middle = (x1 + x2) / 2
    return f"M{x1:g} {y1:g}C{middle:g} {y1:g} {middle:g} {y2:g} {x2:g} {y2:g}"


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
    curves: Sequence[str]
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
    curves = [
        _curve(boxes[a].x + STEP_WIDTH, boxes[a].y + STEP_HEIGHT / 2, boxes[b].x, boxes[b].y + STEP_HEIGHT / 2)
        for a, b in found.edges
        if a in boxes and b in boxes
    ]
    width = (max(places.values()) - first + 1) * (STEP_WIDTH + GAP_X) - GAP_X
    height = min(MOST_BESIDE, max(beside.values())) * (STEP_HEIGHT + GAP_Y) - GAP_Y
    return Descent(list(boxes.values()), curves, width, height, len(found.nodes) - len(boxes))
