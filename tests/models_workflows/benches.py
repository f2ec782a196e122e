"""A repository with everything that runs in it, in this process; and short forms for what tests write often."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swamp.cache.paths import TIER_DIRECTORIES
from swamp.data.run_record import RunState
from swamp.models.context import RunContext
from swamp.models.run import Hooks, Request, Result, run_method
from swamp.repo.config import init_repo
from swamp.sync.progress import Cancel
from swamp.wiring import open_repo
from swamp.workflows.run import Driver


@dataclass
class Bench:
    """A repository with everything that runs in it, in this process."""

    path: Path
    context: RunContext
    driver: Driver
    lines: list[str] = field(default_factory=list)

    def workflow(self, name: str, body: str) -> None:
        """`body` is the part below `jobs:`, or a whole file."""
        text = body if "jobs:" in body else f"jobs:\n{body}"
        head = "" if text.lstrip().startswith("id:") else f"id: wf-{name}\nname: {name}\n"
        (self.path / "workflows" / f"workflow-{name}.yaml").write_text(head + text)

    def model(self, type_: str, name: str, **document: Any) -> None:
        target = self.path / "models" / type_ / f"{name}.yaml"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps({"id": f"id-{name}", "name": name, "type": type_, **document}))

    def method(self, model: str, method: str = "execute", cancel: Cancel | None = None, **inputs: Any) -> Result:
        definition = self.context.models.find(model)
        hooks = Hooks(line=self.lines.append)
        return run_method(self.context, Request(definition, method, inputs), cancel or Cancel(), hooks)

    def run(self, name: str, **inputs: Any) -> RunState:
        return self.driver.start(name, inputs)

    def content(self, model: str, name: str, version: int | None = None) -> Any:
        found = self.context.lookup.find(model, name, version)
        return json.loads(self.context.data.content(found))

    def raw(self, model: str, name: str) -> Path:
        return self.context.data.raw(self.context.lookup.find(model, name))

    def versions(self, model: str, name: str) -> list[int]:
        found = self.context.lookup.find(model, name)
        return sorted(version.version for version in self.context.data.versions(found.ref.data))

    def files(self) -> dict[str, str]:
        """Every file of the datastore tier as text."""
        root = self.context.repo.tree.root
        found = {p.relative_to(root).as_posix(): p for p in sorted(root.rglob("*")) if p.is_file()}
        return {
            path: file.read_text("utf-8", "replace")
            for path, file in found.items()
            if path.split("/")[0] in TIER_DIRECTORIES
        }


def statuses(run: RunState) -> dict[str, str]:
    return {step.name: step.status for _, step in run.steps}


@contextmanager
def open_bench(path: Path) -> Iterator[Bench]:
    if not (path / ".swamp.yaml").exists():
        init_repo(path)
    with open_repo(path) as repo, RunContext(repo) as context:
        yield Bench(path, context, Driver(context))


def shell(model: str, command: str) -> str:
    """A task that runs a command, as YAML in one line."""
    inputs = json.dumps({"run": command})
    return (
        f"{{type: model_method, modelType: command/shell, modelName: {json.dumps(model)}, "
        f"methodName: execute, inputs: {inputs}}}"
    )
