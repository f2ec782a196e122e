"""A method or a workflow that a program has started: it runs in a thread, and its data is shared when it ends."""

from __future__ import annotations

import html
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import field
from typing import TYPE_CHECKING, Any

from swamp.errors import Failed, Interrupted, SwampError
from swamp.models.context import RunContext
from swamp.models.run import Hooks, Request, run_method
from swamp.repo.open import COMMAND
from swamp.sync.progress import Cancel
from swamp.values import mutable

if TYPE_CHECKING:
    from swamp.api.version import SavedVersion
    from swamp.data.records import Output
    from swamp.data.run_record import RunState
    from swamp.repo.repository import Repo


@mutable
class Course:
    """What is known of a run while it goes; its thread writes, others read."""

    id: str = ""
    status: str = "running"
    lines: list[str] = field(default_factory=list)
    artifacts: Sequence[Mapping[str, Any]] = ()
    error: BaseException | None = None

    def changed(self, run: RunState) -> None:
        """As the `Watcher` of a workflow's run."""
        self.status = run.status

    def said(self, job: str, step: str, line: str) -> None:
        self.lines.append(f"{job}/{step} | {line}")


Work = Callable[["Course"], None]
"""Does all of a run and tells its course how it ended; what it raises is the run's error."""


class StartedRun:
    """A run of a method or a workflow: `wait()` for its end, `logs()` at any time, `outputs()` when it is done.

    It goes on in a thread of this process, which does not end before its runs have.
    """

    def __init__(
        self, title: str, work: Work, cancel: Cancel, find: Callable[[str], SavedVersion], course: Course
    ) -> None:
        self._title, self._find, self._cancel, self._course = title, find, cancel, course
        self._thread = threading.Thread(target=self._go, args=(work,), name=f"swamp {title}")
        self._thread.start()

    def _go(self, work: Work) -> None:
        try:
            work(self._course)
        except BaseException as error:  # noqa: BLE001 - whoever waits for the run gets it
            self._course.status, self._course.error = "failed", error

    @property
    def id(self) -> str:
        """The id of the run's record; of a method once it has begun."""
        return self._course.id

    @property
    def status(self) -> str:
        """running, succeeded, failed, cancelled, or suspended: it waits for somebody's approval."""
        return "running" if self._thread.is_alive() else self._course.status

    def wait(self, timeout: float | None = None) -> StartedRun:
        """Returns when the run is over or waits for a person, after `timeout` seconds at the latest.

        Raises what made it fail: Failed, Interrupted when it was cancelled, or the store's error. Ctrl-C ends the
        waiting and not the run.
        """
        self._thread.join(timeout)
        if not self._thread.is_alive() and self._course.error is not None:
            raise self._course.error
        return self

    def logs(self) -> str:
        """What it has said so far, without secrets."""
        return "\n".join(self._course.lines)

    def outputs(self) -> Sequence[SavedVersion]:
        """The versions that it wrote, when it is over. Raises as `wait` does."""
        self.wait()
        return [self._find(str(artifact["path"])) for artifact in self._course.artifacts]

    def cancel(self) -> None:
        """Asks it to stop: its processes are ended, what it wrote stays."""
        self._cancel.request()

    def __repr__(self) -> str:
        known = f", {len(self._course.artifacts)} data version(s)" if self.status != "running" else ""
        return f"<run of {self._title}: {self.status}{known}>"

    def _repr_html_(self) -> str:
        return f"<b>{html.escape(repr(self)[1:-1])}</b><pre>{html.escape(self.logs())}</pre>"


def method_work(repo: Repo, model: str, method: str, inputs: Mapping[str, Any], cancel: Cancel) -> Work:
    """What runs a method, on a repository of its own. Raises NotFound and UsageError before anything runs."""
    context = RunContext(repo)
    definition = context.models.find(model)
    context.registry.get(definition.type).method(method)

    def work(course: Course) -> None:
        COMMAND.set("model method run")

        def begun(output: Output, path: str) -> None:
            del path
            course.id = output.id

        with closing(repo), context:
            hooks = Hooks(begin=begun, line=course.lines.append)
            result = run_method(context, Request(definition, method, dict(inputs)), cancel, hooks)
            repo.data.collect_after_run()
        course.artifacts, course.status = result.artifacts, result.output.status
        course.error = result.error

    return work


def workflow_work(repo: Repo, name: str, inputs: Mapping[str, Any], cancel: Cancel, run_id: str) -> Work:
    """What runs a workflow, on a repository of its own. Raises NotFound and UsageError before anything runs."""
    from swamp.models.inputs import check_inputs
    from swamp.workflows.run import Driver

    context = RunContext(repo)
    driver = Driver(context, cancel=cancel)
    workflow = driver.files.find(name).workflow
    check_inputs(inputs, workflow.inputs, f"workflow {workflow.name}")

    def work(course: Course) -> None:
        COMMAND.set("workflow run")
        driver.watcher = course
        with closing(repo), context:
            done = driver.start(name, dict(inputs), run_id=run_id)
            repo.data.collect_after_run()
        course.artifacts = [artifact for _, step in done.steps for artifact in step.artifacts]
        course.status = done.status
        course.error = _error_of(done)

    return work


def _error_of(run: RunState) -> SwampError | None:
    if run.status == "cancelled":
        return Interrupted(f"run {run.id} was cancelled", hint=f"`swamp workflow resume {run.id}` goes on")
    if run.status != "failed":
        return None
    failed = next((step for _, step in run.steps if step.status == "failed"), None)
    why = run.error or (f"{failed.name}: {failed.error}" if failed else "")
    return Failed(
        f"{run.workflow_name} failed{f' at {why}' if why else ''}",
        hint=f"`swamp workflow logs {run.id}` shows what it said; `swamp workflow resume {run.id}` goes on",
    )
