"""Runs every mutating command as one transaction: lease, bounded pull, run, push exactly once, release.

| class      | lease  | pull              | used by |
|------------|--------|-------------------|---------|
| model      | model  | the model's scope | `data put/delete/rename`, `model method run`, a workflow's model step |
| structural | global | everything        | `data gc/prune`, `workflow delete`, `datastore gc/compact` |
| records    | none   | the records' scope| a run's own record: start, finish, approve, reject, cancel |
Reads and the explicit `sync` and `setup` do not come here.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from swamp.cache.paths import is_below
from swamp.env import Env, rfc3339, user_name
from swamp.errors import Failed, Interrupted, LockTimeout, OutcomeUnknown, StoreError, SwampError, Unavailable
from swamp.locks.flock import Held, NoLease
from swamp.repo.conflicts import moved_aside
from swamp.sync.port import Deferred, Kind, RemoteFile, Touched, Tree
from swamp.sync.progress import Cancel, StoppableClock
from swamp.sync.result import Conflict, SyncResult
from swamp.values import mutable, value

if TYPE_CHECKING:
    from swamp.cache.rows import JournalRow
    from swamp.repo.repository import Repo


@mutable
class Change:
    """One mutating command at work: what it announced, and after its end what its push did."""

    command: str
    held: Held
    announced: list[str] = field(default_factory=list)
    deletes: list[str] = field(default_factory=list)
    """Announced deletes that nobody confirmed: only these can be held back by the delete cap."""
    sync: SyncResult | None = None
    scope: tuple[str, ...] = ()
    once: bool = False
    """One line in the audit for all changes of this command."""
    made: Callable[[], Mapping[str, str]] = dict
    """The versions that this command has made: the id of each by its path. They are looked for after the push."""
    save_again: Callable[[Sequence[Conflict]], object] | None = None
    """Called when the push found somebody else's bytes at paths of ours, which are here by then: write the next
    version. If that announces something it is pushed once more; if not, the conflict stays one."""

    def must_be_delivered(self) -> None:
        """Raises when something of this command stayed behind: it never exits 0. C02

        Unavailable if the store did not answer any more, Failed if it did.
        """
        if self.sync is None:
            return
        reasons = {f.path: f.error for f in self.sync.failed}
        left = [path for path in (*reasons, *(c.path for c in self.sync.conflicts)) if self.owns(path)]
        left += self.deletes if self.sync.deletes_held else []
        if not left:
            return
        held = "too many deletes at once are held back"
        first = reasons.get(left[0], held if left[0] in self.deletes else "another machine's version is there")
        allowing = f" --allow-deletes {self.sync.deletes_held}" if self.sync.deletes_held else ""
        kind = Unavailable if self.sync.lost_store else Failed
        raise kind(
            f"saved here, but {len(left)} of its files did not reach the datastore: {left[0]}: {first}",
            hint=f"look at `swamp datastore status`, then run `swamp datastore sync{allowing}`",
            details={"sync": self.sync.to_json()},
        )

    def owns(self, path: str) -> bool:
        """Whether a file or a whole unit is of this command."""
        return any(is_below(path, mine) or is_below(mine, path) for mine in self.announced)


DELIVERS: Final = "`swamp datastore sync` delivers it"


@contextmanager
def _work_is_kept() -> Iterator[None]:
    """Whatever ends a push loses nothing: the error says where the work is and what delivers it. Who were to run the
    command again, after Ctrl-C or on a disk that has room again, would do it twice. C18"""
    try:
        yield
    except SwampError as error:
        unknown = isinstance(error, OutcomeUnknown)  # a commit may have landed
        delivered = "whether it was delivered is not known" if unknown else "not all of it was delivered"
        error.message = f"{error.message}; the work is kept here, {delivered}"
        error.args = (error.message,)
        error.hint = f"{error.hint}; then " if error.hint and not isinstance(error, Interrupted) else ""
        error.hint += DELIVERS
        raise


NOTHING_KEPT: Final = "; nothing ran and nothing was kept"
NOTHING_MORE: Final = "; nothing more ran, and what ran before is kept here"


@contextmanager
def _nothing_began(worked: bool) -> Iterator[None]:
    """A store that is lost before the work begins: the error says that there is nothing to look for later. What a
    command that `worked` before did, such as the steps of a run whose end could not be shared, is there. C18"""
    try:
        yield
    except (StoreError, LockTimeout) as error:
        if not error.message.endswith((NOTHING_KEPT, NOTHING_MORE)):  # said where a kept put was to be delivered first
            error.message = f"{error.message}{NOTHING_MORE if worked else NOTHING_KEPT}"
            error.args = (error.message,)
            if worked:
                error.hint = f"{error.hint}; then {DELIVERS}" if error.hint else DELIVERS
        raise


_current: ContextVar[Change | None] = ContextVar("swamp_change", default=None)


@value
class WatchedTree:
    """The tree, noting which command announced what."""

    tree: Tree

    @property
    def root(self) -> Path:
        return self.tree.root

    def announce(
        self, paths: Iterable[str], kind: Kind = "write", *, confirmed: bool = False
    ) -> AbstractContextManager[None]:
        paths = tuple(paths)
        change = _current.get()
        if change is not None:
            change.announced.extend(paths)
            if kind == "delete" and not confirmed:
                change.deletes.extend(paths)
        return self.tree.announce(paths, kind, confirmed=confirmed)

    def materialize(self, path: str) -> Path:
        return self.tree.materialize(path)

    def remote_only(self, prefix: str = "") -> Iterator[RemoteFile]:
        return self.tree.remote_only(prefix)

    def deferred(self, prefix: str) -> Sequence[Deferred]:
        return self.tree.deferred(prefix)

    def bring_back(self, prefix: str) -> None:
        self.tree.bring_back(prefix)

    def touched_since(self, mark: int) -> Touched:
        return self.tree.touched_since(mark)


@value
class Audit:
    """The audit trail of one cache: one line per mutating command, one file per machine and day.

    No two machines, and no two caches of one machine, ever write the same file: its name holds an identity that lives
    and dies with the cache (`identity`, a file beside the tree, made when first needed). So a line can always be added
    without asking anybody.
    """

    tree: Tree
    identity: Path
    repo_id: str
    env: Env

    @property
    def path(self) -> str:
        """Today's file of this cache, relative to the tree."""
        day = rfc3339(self.env.clock.now())[:10]
        host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:40] or "host"
        return f"audit/{day}-{host}-{self._identity()}.jsonl"

    def write(self, change: Change, outcome: str) -> None:
        line = {
            "at": rfc3339(self.env.clock.now()),
            "command": change.command,
            "outcome": outcome,
            "user": user_name(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "repoId": self.repo_id,
            "paths": sorted(set(change.announced))[:20],
        }
        path = self.path
        with self.tree.announce([path]):
            file = self.tree.root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(line, ensure_ascii=False) + "\n")

    def _identity(self) -> str:
        if not self.identity.exists():
            self.identity.parent.mkdir(parents=True, exist_ok=True)
            made = self.env.ulid()[-8:].lower()
            temp = self.identity.with_name(f"{self.identity.name}.{made}")
            temp.write_text(made, encoding="ascii")
            with suppress(FileExistsError):  # whoever is first decides for all
                os.link(temp, self.identity)
            temp.unlink()
        return self.identity.read_text(encoding="ascii").strip()


class Transactions:
    """Makes changes of one repository."""

    def __init__(self, repo: Repo) -> None:
        self._repo = repo
        self._told: set[str] = set()
        """Commands whose records were audited: a run that saves its record many times is one command."""
        self._warned: set[str] = set()
        self._worked = False
        """Whether this command has written anything yet."""

    def next_command(self) -> None:
        """In a process that carries out many commands: each is audited and warned of by itself."""
        self._told.clear()
        self._warned.clear()
        self._worked = False

    def model(
        self,
        command: str,
        model_type: str,
        model_id: str,
        scope: tuple[str, ...] = (),
        *,
        reads_all: bool = False,
        cancel: Cancel | None = None,
        waiting: Callable[[], None] = lambda: None,
    ) -> AbstractContextManager[Change]:
        """Work on one model: nobody else runs it meanwhile, and its newest versions are here.

        `reads_all`: the work may read any data, so that all there is in the store is known here. inv[run.fresh]
        `cancel` ends the wait for the lease too: a run that only waits its turn is stopped at once; `waiting` is called
        before such a wait.
        """

        def lease() -> AbstractContextManager[Held]:
            leases = self._repo.datastore.leases
            if cancel is not None:
                leases = leases.within(lambda env: Env(StoppableClock(env.clock, cancel, waiting), env.rng))
            return leases.model(model_type, model_id)

        own = (f"data/{model_type}/{model_id}", *scope)
        return self._change(command, lease, own, reads_all=reads_all)

    def structural(self, command: str) -> AbstractContextManager[Change]:
        """Work on everything: no model command runs meanwhile."""
        return self._change(command, lambda: self._repo.datastore.leases.whole_store(), ())

    def records(self, command: str, scope: tuple[str, ...]) -> AbstractContextManager[Change]:
        """Work on records that only this command writes, such as a run's."""
        return self._change(command, lambda: nullcontext(NoLease()), scope, once=True)

    def take_over(self, change: Change, kind: Kind, below: Sequence[str] = ("",)) -> int:
        """What an earlier command announced there and was killed before it could push becomes this one's to deliver:
        with exit 0 nothing of it waits any more. How much that is. C02"""
        waiting = (row for row in self._journal() if row.kind == kind and not change.owns(row.path))
        left = [row for row in waiting if any(is_below(row.path, top) for top in below)]
        change.announced.extend(row.path for row in left)
        change.deletes.extend(row.path for row in left if kind == "delete" and not row.confirmed)
        if left:
            self._repo.notify("what an earlier command left waiting here is delivered, too")
        return len(left)

    def wait_here(self, path: str = "") -> bool:
        """Whether something at or below `path` was announced and is not known to have reached the store."""
        return any(is_below(row.path, path) or is_below(path, row.path) for row in self._journal())

    def _journal(self) -> Iterable[JournalRow]:
        engine = self._repo.datastore.engine
        return () if engine is None else engine.state.journal()

    @contextmanager
    def _change(
        self,
        command: str,
        lease: Callable[[], AbstractContextManager[Held]],
        scope: tuple[str, ...],
        *,
        once: bool = False,
        reads_all: bool = False,
    ) -> Iterator[Change]:
        with ExitStack() as stack:
            with _nothing_began(self._worked):
                self._repo.cancel.check()
                self._repo.datastore.must_be_there()
                if not once or _current.get() is None:  # else a kept put might wait for the lease around it
                    self._repo.kept.deliver()
                change = Change(command, stack.enter_context(lease()), scope=scope, once=once)
                if reads_all or not self._is_known(change.held):
                    self._pull(scope, reads_all=reads_all)
            outer = _current.set(change)
            try:
                yield change
            except BaseException as error:
                self._after_failure(change, error)
                raise
            finally:
                _current.reset(outer)
                self._worked |= bool(change.announced)
            with _work_is_kept():
                self._deliver(change, "succeeded")

    def _is_known(self, held: Held) -> bool:
        """Whether a pull could bring nothing that the work has to see: this very process has pulled or committed a
        moment ago, and nobody has held the lease since this machine did, so that no other run of the model lies in
        between. What runs is not content with that: it always asks for itself. S22 inv[run.fresh]"""
        datastore = self._repo.datastore
        return datastore.synced and held.unbroken and datastore.just_synced()

    def _pull(self, scope: tuple[str, ...], *, reads_all: bool) -> None:
        """After the lease is held: what the work reads is what the store holds. S22"""
        if not self._repo.datastore.synced:
            return
        # The audit file of this cache comes along, so that a line is always added to what the bucket has.
        narrow = () if reads_all or not scope else (*scope, self._repo.audit.path)
        result = self._repo.datastore.pull_to_commit(narrow, lazy=reads_all)
        self._pass_on(result)
        for failed in result.failed:
            self._repo.notify(f"{failed.path} was not pulled: {failed.error}")
        for conflict in result.conflicts:
            self._repo.notify(f"{conflict.path} was changed here and elsewhere; your copy is kept in {conflict.kept}")

    def _after_failure(self, change: Change, error: BaseException) -> None:
        """What a failed command did write (its run's record) is still shared, once; its error stays the error."""
        stopped = self._repo.cancel.requested or isinstance(error, Interrupted) or not isinstance(error, Exception)
        if stopped or not change.announced:
            return
        try:
            self._deliver(change, "failed")
        except SwampError as push_error:
            self._repo.notify(
                f"the push failed too: {push_error.message}; the work is kept and the next sync delivers it"
            )

    def _deliver(self, change: Change, outcome: str) -> None:
        """The one push of a command. C01: exactly one attempt, whatever comes of it."""
        if not change.announced:
            return
        if not (change.once and change.command in self._told):
            self._repo.audit.write(change, outcome)
            self._told.add(change.command)
        if not self._repo.datastore.synced:
            return
        self._repo.cancel.check()
        change.sync = self._with_moved(change, self._repo.datastore.push(after_pull=True))
        self._pass_on(change.sync)
        lost = [conflict for conflict in change.sync.conflicts if change.owns(conflict.path)]
        if change.save_again is not None and lost:
            change.sync = self._saved_again(change, change.save_again, change.sync, lost)
        for failed in change.sync.failed:
            # A parallel step wrote it meanwhile, and that step's own push takes it.
            if not change.owns(failed.path) and failed.cause != "changed":
                self._repo.notify(f"{failed.path}, of an earlier command, did not reach the datastore: {failed.error}")

    def _with_moved(self, change: Change, result: SyncResult) -> SyncResult:
        """A push that meets nothing of ours has not delivered it: another process of this machine may have synced in
        between, met somebody else's version under our number, and moved ours aside. inv[put.proven]"""
        told = {conflict.path for conflict in result.conflicts}
        aside = moved_aside(self._repo.datastore.cache, made) if (made := change.made()) else ()
        moved = tuple(conflict for conflict in aside if conflict.path not in told)
        return replace(result, conflicts=result.conflicts + moved) if moved else result

    def _pass_on(self, result: SyncResult) -> None:
        """What the engine wants the user to know, once per command."""
        for warning in result.warnings:
            if warning not in self._warned:
                self._warned.add(warning)
                self._repo.notify(warning)

    def _saved_again(
        self, change: Change, save: Callable[[Sequence[Conflict]], object], first: SyncResult, lost: list[Conflict]
    ) -> SyncResult:
        """Somebody else published this very version first: the command still knows what it wrote."""
        before = len(change.announced)
        self._repo.datastore.pull(change.scope)  # so that the next number is one that nobody has
        token = _current.set(change)
        try:
            save(lost)
        finally:
            _current.reset(token)
        if len(change.announced) == before:
            return first
        others = tuple(conflict for conflict in first.conflicts if conflict not in lost)
        pushed = replace(first, conflicts=others).merged(self._repo.datastore.push(), "push")
        return self._with_moved(change, pushed)
