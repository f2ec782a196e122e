"""A repository as programs and notebooks use it.

    import swamp

    with swamp.open() as repo:
        orders = repo.read("web", "orders").to_pandas()
        repo.write("web", "paid", orders[orders.total > 0], tags={"by": "notebook"})

Every change takes the way of the command line: the model's lease, a pull, the change, one push.
"""

from __future__ import annotations

import html
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from swamp.api.version import Listing, SavedVersion
from swamp.data.names import version_of_directory
from swamp.data.records import Reads, note, read_so_far
from swamp.data.versions import DataVersion
from swamp.env import SYSTEM
from swamp.errors import Failed, Interrupted, SwampError
from swamp.repo.open import COMMAND
from swamp.repo.put import Puttable
from swamp.repo.repository import Repo
from swamp.sync.progress import Cancel, Progress
from swamp.values import mutable
from swamp.wiring import open_as, stoppable

if TYPE_CHECKING:
    from swamp.data.records import Output
    from swamp.data.run_record import RunState
    from swamp.repo.diff import Diff
    from swamp.repo.lineage import Lineage

_LIST: Final = ("modelName", "name", "version", "contentType", "size", "createdAt")
_VERSIONS: Final = ("version", "createdAt", "size", "checksum", "isLatest")
_LOG: Final = logging.getLogger("swamp")


def open_repository(
    path: str | Path | None = None, *, fresh: bool | None = None, settings: Mapping[str, Any] | None = None
) -> Repository:
    """The repository at `path`, else of SWAMP_REPO_DIR, else of the working directory or one above it.

    `fresh`: whether reads ask the store first. True: always; False: never, they show what is here; None: unless this
    machine asked within two seconds. `settings` beat every other source, such as `{"lock_timeout_ms": 5000}`. Remarks
    go to the logger `swamp`. Raises UsageError when there is no repository.
    """
    chosen = {} if fresh is None else {"fresh": "always" if fresh else "never"}
    return open_as(Repository, path, overrides={**(settings or {}), **chosen}, notify=_LOG.warning)


class Repository(Repo):
    """One open repository: read, write, list, query, compare and run. Close it, or use it as a context manager."""

    # -- reading: the store is asked first, as `fresh` says; without an answer what is here is shown, and that is said

    def read(self, model: str, name: str, version: int | None = None, *, fresh: bool | None = None) -> SavedVersion:
        """One version of an artifact, the latest by default. Raises NotFound, with what was probably meant.

        What is written afterwards is said to be made from it, unless `write` is told otherwise.
        """
        return self._shown(self._note(self.data.find(model, name, version, fresh=fresh)))

    def list(self, model: str | None = None, *, fresh: bool | None = None) -> Listing:
        """The latest version of every name, of one model or of all."""
        return Listing([row.listed() for row in self.data.list(model, fresh=fresh)], _LIST)

    def versions(self, model: str, name: str, *, fresh: bool | None = None) -> Listing:
        """The versions of an artifact, newest first. Raises NotFound."""
        return Listing([row.version_item() for row in self.data.versions(model, name, fresh=fresh)], _VERSIONS)

    def query(
        self, predicate: str, *, select: str | None = None, limit: int | None = None, fresh: bool | None = None
    ) -> Listing | Sequence[Any]:
        """Versions for which a CEL predicate is true, such as `size > 100 && tags.env == 'prod'`.

        With `select`, a CEL expression, the values of that instead.
        """
        found = self.data.query(predicate, select=select, limit=limit, fresh=fresh)
        for warning in found.warnings:
            self.notify(warning)
        return Listing(found.results, _LIST) if select is None else found.results

    def diff(
        self, model: str, name: str, first: int | None = None, second: int | None = None, *, fresh: bool | None = None
    ) -> Diff:
        """What changed between two versions: the last two, `first` and the latest, or `first` and `second`."""
        from swamp.repo.diff import diff

        old, new = self.data.pair(model, name, first, second, fresh=fresh)
        return diff(self.data.contents, old, new)

    def lineage(
        self,
        model: str,
        name: str,
        version: int | None = None,
        *,
        up: bool = True,
        down: bool = True,
        depth: int | None = None,
        fresh: bool | None = None,
    ) -> Lineage:
        """What a version was made from (`up`) and what was made from it (`down`), at most `depth` steps away."""
        from swamp.repo.lineage import lineage_of

        return lineage_of(self, self.data.find(model, name, version, fresh=fresh), up=up, down=down, depth=depth)

    # -- changing: shared before it returns

    def write(
        self,
        model: str,
        name: str,
        value: Puttable,
        *,
        content_type: str | None = None,
        tags: Mapping[str, str] | None = None,
        lifetime: str | None = None,
        keep: int | str | None = None,
        inputs: Iterable[SavedVersion] | None = None,
    ) -> SavedVersion:
        """Saves `value` as a new version: a table as Parquet, a dict or list as JSON, text, bytes, a file or a
        directory (a `Path`). A model without a definition is made.

        `inputs`: the versions it was made from; by default everything that this object has read so far.
        `lifetime`: `infinite`, `ephemeral`, `30d`, …; `keep`: versions that garbage collection leaves, 10 or `30d`.
        With the store away the value is kept here and Unavailable says so: the next command delivers it.
        """
        COMMAND.set("data put")
        self.changes.next_command()  # logged, audited and warned of by itself
        read = None if inputs is None else [one.reference for one in inputs]
        done = self.data.put(
            model,
            name,
            value,
            content_type=content_type,
            tags=tags,
            lifetime=lifetime,
            keep=keep,
            inputs=Reads([*read_so_far(), *self.reads.all()]).all() if read is None else read,
        )
        return self._shown(done.version)

    @cached_property
    def reads(self) -> Reads:
        """The versions that this object has read."""
        return Reads()

    def _note(self, found: DataVersion) -> DataVersion:
        """This version is read, by this object and by the run that the process belongs to, if any."""
        self.reads.add(found.artifact())
        note(found.artifact())
        return found

    # -- running

    def run(self, model: str, method: str, /, **inputs: Any) -> StartedRun:
        """Starts a method of a model: `repo.run("disk", "execute", run="df").wait()`. Raises NotFound, UsageError."""
        cancel = Cancel()
        work = _method_work(self._another(cancel), model, method, inputs, cancel)
        return StartedRun(f"{model}.{method}", work, cancel, self._saved_at, Course())

    def workflow(self, name: str) -> NamedWorkflow:
        """The workflow of that name, to run it."""
        return NamedWorkflow(self, name)

    def _another(self, cancel: Cancel) -> Repo:
        """The same repository for a thread of its own: what that keeps open, it closes."""
        context = replace(self.datastore.context, env=stoppable(SYSTEM, cancel), cancel=cancel, progress=Progress())
        return Repo(context, self.config)

    def _saved_at(self, path: str) -> SavedVersion:
        ref = version_of_directory(path)
        assert ref is not None, path
        return self._shown(self.artifacts.read(ref))

    def _shown(self, found: DataVersion) -> SavedVersion:
        return SavedVersion(self.data.contents, found)

    # -- shown

    @property
    def _where(self) -> str:
        return self.datastore.url if self.datastore.synced else "a directory of its own"

    def __repr__(self) -> str:
        return f"<swamp repository {self.path}, data in {self._where}>"

    def _repr_html_(self) -> str:
        return f"<b>swamp</b> {html.escape(str(self.path))}<br>data in {html.escape(self._where)}"


class NamedWorkflow:
    """A workflow of a repository."""

    def __init__(self, repo: Repository, name: str) -> None:
        self._repo, self.name = repo, name

    def run(self, **inputs: Any) -> StartedRun:
        """Starts it with these inputs. Raises NotFound, and UsageError for inputs that do not fit."""
        repo, cancel = self._repo, Cancel()
        run_id = repo.env.uuid()
        work = _workflow_work(repo._another(cancel), self.name, inputs, cancel, run_id)
        return StartedRun(f"workflow {self.name}", work, cancel, repo._saved_at, Course(run_id))

    def __repr__(self) -> str:
        return f"<workflow {self.name} of {self._repo.path}>"


# -- what runs: in a thread, and its data is shared when it ends


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


Work = Callable[[Course], None]
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


def _method_work(repo: Repo, model: str, method: str, inputs: Mapping[str, Any], cancel: Cancel) -> Work:
    """What runs a method, on a repository of its own. Raises NotFound and UsageError before anything runs."""
    from swamp.models.context import RunContext
    from swamp.models.run import Hooks, Request, run_method

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


def _workflow_work(repo: Repo, name: str, inputs: Mapping[str, Any], cancel: Cancel, run_id: str) -> Work:
    """What runs a workflow, on a repository of its own. Raises NotFound and UsageError before anything runs."""
    from swamp.models.context import RunContext
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
