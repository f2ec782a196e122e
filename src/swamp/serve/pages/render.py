"""Templates to HTML, and what they show: words for numbers, charts and graphs as boxes and curves.

Everything that comes from data is text: escaping is on and no template switches it off. Charts are plain values:
templates write them out, so nothing here escapes or styles.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fastapi import Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse

from swamp.env import parse_rfc3339
from swamp.errors import SwampError
from swamp.repo.lineage import Lineage
from swamp.serve.respond import STATUS, HttpError
from swamp.serve.tokens import Caller

if TYPE_CHECKING:
    from swamp.serve.state import Server

HERE: Final = Path(__file__).parent
PAGES: Final = (
    ("/", "Overview"),
    ("/data", "Data"),
    ("/runs", "Runs"),
    ("/commits", "Commits"),
    ("/datastore", "Datastore"),
    ("/events", "Events"),
)
_UNITS: Final = (("day", 86_400), ("hour", 3_600), ("minute", 60))


@cache
def _templates() -> Environment:
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    made.policies["json.dumps_kwargs"] = {"sort_keys": False, "default": str}
    made.filters["size"] = size_text
    made.filters["duration"] = duration_text
    made.filters["words"] = words_text
    return made


def page(request: Request, template: str, title: str, code: int = 200, **more: Any) -> HTMLResponse:
    """A whole page; `more` is cleaned of this machine's paths like every answer. inv[serve.no-paths]"""
    server: Server = request.app.state.server
    caller: Caller = request.scope["state"]["caller"]
    now = server.repo.env.clock.now()
    text = (
        _templates()
        .get_template(template)
        .render(
            title=title,
            pages=PAGES,
            here=request.url.path,
            csrf=caller.csrf,
            may={role: caller.may(role) for role in ("viewer", "operator", "admin")},
            last_event=server.events.last,
            repository=server.repo.path.name,
            ago=lambda moment: ago_text(moment, now),
            **server.clean(more),
        )
    )
    return HTMLResponse(text, code)


def login_page(server: Server, problem: str | None = None) -> HTMLResponse:
    """The form that asks for a token. It says where it came from: without that a browser's POST has no Origin."""
    text = _templates().get_template("login.html").render(repository=server.repo.path.name, problem=problem)
    return HTMLResponse(text, 401 if problem else 200, {"Referrer-Policy": "same-origin"})


def wants_page(request: Request) -> bool:
    """Whether a person looks at the answer: somebody who is logged in and asks for HTML."""
    caller = request.scope.get("state", {}).get("caller")
    asked = "text/html" in request.headers.get("accept", "")
    return asked and caller is not None and not request.url.path.startswith(("/api/", "/hooks/"))


def error_page(request: Request, error: SwampError) -> HTMLResponse:
    """The error document as a page, with the same status."""
    code = error.code if isinstance(error, HttpError) else error.kind
    said = {"error": error.message, "hint": error.hint, "word": code}
    return page(request, "error.html", "Not here", STATUS.get(code, 500), **said)


def size_text(size: Any) -> str:
    """Bytes as people say them."""
    if size is None:
        return "?"
    amount = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def words_text(name: str) -> str:
    """The name of a field as people write it: `createOnly` is "create only"."""
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name)


def duration_text(milliseconds: Any) -> str:
    if milliseconds is None:
        return ""
    seconds = float(milliseconds) / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60)} s"


def ago_text(moment: str | None, now: dt.datetime) -> str:
    """How long ago a time of a document was, in words."""
    if not moment:
        return "never"
    seconds = (now - parse_rfc3339(moment)).total_seconds()
    ahead, seconds = seconds < -1, abs(seconds)
    for unit, length in _UNITS:
        if seconds >= length:
            count = int(seconds // length)
            words = f"{count} {unit}{'s' if count > 1 else ''}"
            return f"in {words}" if ahead else f"{words} ago"
    return "in a moment" if ahead else "just now"


def compact(values: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is not there: for links that keep their filters."""
    return {key: value for key, value in values.items() if value not in (None, "")}


# -- charts and graphs

HOURS: Final = 24
BAR_HEIGHT: Final = 60
STEP_WIDTH, STEP_HEIGHT, GAP_X, GAP_Y = 180, 34, 60, 14
FRAME: Final = 12
"""Between a job's frame and its steps."""
TITLE: Final = 22
"""Above the steps of a job: its name."""
MOST_BESIDE: Final = 12
"""Versions in one column of a lineage; of more, the number is told."""
_GROUPS: Final = {"succeeded": "good", "failed": "bad", "cancelled": "bad"}


@dataclass(frozen=True)
class Box:
    """A part of a bar, a step, a frame around steps, or a version; `kind` is how it is drawn, `of` what it is part of
    or stands for."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    title: str
    of: Any = None


@dataclass(frozen=True)
class Graph:
    """Boxes, what is around them, and curves from each to those that follow."""

    boxes: Sequence[Box]
    curves: Sequence[str]
    frames: Sequence[Box] = ()
    hidden: int = 0
    """Boxes for which there was no room."""

    @property
    def width(self) -> float:
        return max((box.x + box.width for box in (*self.boxes, *self.frames)), default=0)

    @property
    def height(self) -> float:
        return max((box.y + box.height for box in (*self.boxes, *self.frames)), default=0)


@dataclass(frozen=True)
class Needs:
    """What waits for what: jobs for jobs, and within a job steps for steps."""

    jobs: Mapping[str, Sequence[str]]
    steps: Mapping[str, Mapping[str, Sequence[str]]]


def bars_of_runs(runs: Sequence[Mapping[str, Any]], now: dt.datetime) -> list[Box]:
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
                found.append(Box(place * 12, round(top, 1), 10, round(height, 1), kind, title))
    return found


def line_of_sizes(versions: Sequence[Mapping[str, Any]], width: int = 320, height: int = 60) -> str:
    """The points of a line: a version's size over its number, oldest first."""
    sizes = [int(version["size"]) for version in reversed(versions)]
    if not sizes:
        return ""
    most, step = max(sizes) or 1, width / max(1, len(sizes) - 1)
    return " ".join(f"{n * step:.1f},{height - size / most * (height - 4) - 2:.1f}" for n, size in enumerate(sizes))


def graph_of_run(jobs: Sequence[Mapping[str, Any]], needs: Needs) -> Graph:
    """Jobs as frames from left to right in the order of their dependencies, each with its steps in columns."""
    steps = {job["name"]: {step["name"]: step["status"] for step in job["steps"]} for job in jobs}
    columns = {job: _columns(dict.fromkeys(names, 1), needs.steps.get(job, {})) for job, names in steps.items()}
    widths = {job: 1 + max(within.values(), default=0) for job, within in columns.items()}
    starts = _columns(widths, needs.jobs)
    below: Counter[int] = Counter()
    boxes: dict[tuple[str, str], Box] = {}
    frames: dict[str, Box] = {}
    for job, names in steps.items():
        taken = range(starts[job], starts[job] + widths[job])
        left, top = FRAME + starts[job] * (STEP_WIDTH + GAP_X), max(below[at] for at in taken) + TITLE + FRAME
        rows: Counter[int] = Counter()
        for name, status in names.items():
            at = columns[job][name]
            boxes[job, name] = _cell(left, top, at, rows[at], status, name, job)
            rows[at] += 1
        last = _cell(left, top, widths[job] - 1, max(rows.values(), default=1) - 1, "", "")
        width, height = last.x + STEP_WIDTH - left + 2 * FRAME, last.y + STEP_HEIGHT - top + 2 * FRAME + TITLE
        frames[job] = Box(left - FRAME, top - FRAME - TITLE, width, height, "job", job)
        below |= dict.fromkeys(taken, int(frames[job].y + height + GAP_Y))
    pairs = [(frames.get(before), frame) for job, frame in frames.items() for before in needs.jobs.get(job, ())]
    for (job, name), box in boxes.items():
        pairs += [(boxes.get((job, before)), box) for before in needs.steps.get(job, {}).get(name, ())]
    return Graph(list(boxes.values()), [_curve(a, b) for a, b in pairs if a is not None], list(frames.values()))


def _columns(widths: Mapping[str, int], waits: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """The first column of each: behind the last one of all that it waits for."""
    found: dict[str, int] = {}

    def first(name: str) -> int:
        if name not in found:
            found[name] = 0  # for a circle, which a workflow cannot have
            before = [other for other in waits.get(name, ()) if other in widths and other != name]
            found[name] = max((first(other) + widths[other] for other in before), default=0)
        return found[name]

    for name in widths:
        first(name)
    return found


def _cell(left: float, top: float, column: int, row: int, kind: str, title: str, of: Any = None) -> Box:
    x, y = left + column * (STEP_WIDTH + GAP_X), top + row * (STEP_HEIGHT + GAP_Y)
    return Box(x, y, STEP_WIDTH, STEP_HEIGHT, kind, title, of)


def _curve(one: Box, other: Box) -> str:
    """The path from the right of one box to the left of another."""
    x1, y1, x2, y2 = one.x + one.width, one.y + one.height / 2, other.x, other.y + other.height / 2
    middle = (x1 + x2) / 2
    return f"M{x1:g} {y1:g}C{middle:g} {y1:g} {middle:g} {y2:g} {x2:g} {y2:g}"


def graph_of_lineage(found: Lineage) -> Graph:
    """What a version was made from to its left, what was made from it to its right, by the shortest way to it."""
    places = {found.of: 0}
    for near, step in ((found.before, -1), (found.after, 1)):
        ring = [found.of]
        while ring:
            pairs = {node.path: path for path in ring for node in near(path) if node.path not in places}
            places |= {path: places[nearer] + step for path, nearer in pairs.items()}
            ring = list(pairs)
    first = min(places.values())
    beside: Counter[int] = Counter()
    boxes: dict[str, Box] = {}
    for path, place in places.items():
        if beside[place] < MOST_BESIDE:
            node = found.by_path[path]
            kind = "chosen" if path == found.of else "" if node.here else "gone"
            boxes[path] = _cell(0, 0, place - first, beside[place], kind, node.title, node)
        beside[place] += 1
    curves = [_curve(boxes[a], boxes[b]) for a, b in found.edges if a in boxes and b in boxes]
    return Graph(list(boxes.values()), curves, hidden=len(found.nodes) - len(boxes))
