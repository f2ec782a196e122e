"""Workflows of one job, as files in the repository of a machine."""

from __future__ import annotations

import json
from typing import Any

from machines import Machine


def flow(machine: Machine, name: str, *steps: dict[str, Any], **more: Any) -> None:
    """Writes a workflow of one job into the repository of that machine."""
    document = {"id": f"wf-{name}", "name": name, "jobs": [{"name": "j", "steps": list(steps)}], **more}
    (machine.repo / "workflows" / f"workflow-{name}.yaml").write_text(json.dumps(document, indent=1))


def shell(name: str, run: str, **more: Any) -> dict[str, Any]:
    """A step that runs a line of shell."""
    task = {
        "type": "model_method",
        "modelType": "command/shell",
        "modelName": f"m-{name}",
        "methodName": "execute",
        "inputs": {"run": run},
    }
    return {"name": name, "task": task, **more}
