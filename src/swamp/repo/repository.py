"""A repository as commands see it: its data, its datastore, and the one way to change them.

    with swamp.open_repo("~/work/infra") as repo:
        repo.data.put("web", "report", Path("report.json"))
        for row in repo.data.list():
            print(row.fields["name"], row.fields["version"])
        repo.datastore.sync()

Programs have `swamp.open`, which gives the same and more (`api/repository.py`).
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Self

from swamp.repo.config import DatastoreConfig, RepoConfig, read_config
from swamp.repo.datastore import Datastore, DatastoreContext
from swamp.sync.port import Tree

if TYPE_CHECKING:
    from swamp.catalog.catalog import Catalog
    from swamp.data.artifacts import DataRepository
    from swamp.data.records import DefinitionRepository, OutputRepository
    from swamp.data.run_record import RunRepository
    from swamp.repo.ask import Freshness
    from swamp.repo.data import Data
    from swamp.repo.definitions import Definitions
    from swamp.repo.put import Keeper
    from swamp.repo.setup import SetUp
    from swamp.repo.transaction import Audit, Transactions


class Repo:
    """One open repository. Close it, or use it as a context manager. Parts are made when they are first asked for."""

    def __init__(self, context: DatastoreContext, config: RepoConfig) -> None:
        self.path = context.repo
        self.config = config
        self.settings = context.settings
        self.env = context.env
        self.cancel = context.cancel
        self.notify = context.notify
        self.datastore = Datastore(context, config.datastore)
        self.freshness: Freshness | None = None
        """Whether what the last read showed is what the store holds; None before the first."""

    @property
    def id(self) -> str:
        return self.config.repo_id

    def freshen(self, fresh: bool | None = None) -> Freshness:
        """Asks the store whether it has anything new, and takes that in: what every read does first.

        True: always; False: never; None: as the settings say, which is: unless this machine has just asked. What came
        of it stays in `freshness`.
        """
        from swamp.repo.ask import Question

        chosen = self.settings.fresh if fresh is None else "always" if fresh else "never"
        self.freshness = Question(self.datastore).ask(chosen)
        told = self.freshness.told(self.env.clock.now())
        if told is not None:
            self.notify(told)
        if self.freshness.silence is None and chosen != "never" and self.datastore.synced:
            self.kept.deliver_in_passing()
        return self.freshness

    @cached_property
    def tree(self) -> Tree:
        """The datastore tier as a directory, hydrated if this machine has never seen it."""
        from swamp.repo.transaction import WatchedTree

        self.datastore.hydrate_once()
        return WatchedTree(self.datastore.tree)

    @cached_property
    def catalog(self) -> Catalog:
        from swamp.catalog.catalog import Catalog

        self.datastore.hydrate_once()
        # The tree itself, not the watched one: the catalog asks a plain directory in another way, and never announces.
        return Catalog(
            self.path / ".swamp" / "_catalog.db",
            self.datastore.tree,
            namespace=self.config.datastore.namespace or "",
            env=self.env,
        )

    @cached_property
    def artifacts(self) -> DataRepository:
        """The versioned data itself, below model names and leases."""
        from swamp.data.artifacts import DataRepository

        context = self.datastore.context
        return DataRepository(self.tree, self.catalog, self.env, context.progress, context.cancel.check)

    @cached_property
    def outputs(self) -> OutputRepository:
        """One record per method run."""
        from swamp.data.records import OutputRepository

        return OutputRepository(self.tree)

    @cached_property
    def runs(self) -> RunRepository:
        """One record per workflow run."""
        from swamp.data.run_record import RunRepository

        return RunRepository(self.tree)

    @cached_property
    def evaluated(self) -> DefinitionRepository:
        """Definitions with their expressions resolved, as a method ran them."""
        from swamp.data.records import DefinitionRepository

        return DefinitionRepository(self.tree)

    @cached_property
    def data(self) -> Data:
        """Data by model and name: what `swamp data` does."""
        from swamp.repo.data import Data

        return Data(self)

    @cached_property
    def kept(self) -> Keeper:
        """Puts that wait for the store, and their delivery."""
        from swamp.repo.put import Keeper

        return Keeper(self)

    @cached_property
    def definitions(self) -> Definitions:
        from swamp.repo.definitions import Definitions

        return Definitions(self.path, self.tree, lambda: self.catalog.models())

    @cached_property
    def audit(self) -> Audit:
        from swamp.repo.transaction import Audit

        self.datastore.hydrate_once()
        # The tree itself: steps in parallel write the same file, and none answers for its arrival.
        return Audit(self.datastore.tree, self.datastore.identity_file, self.id, self.env)

    @cached_property
    def changes(self) -> Transactions:
        """The one door for mutating commands: `with repo.changes.model("data put", type, id) as change:`."""
        from swamp.repo.transaction import Transactions

        return Transactions(self)

    def set_up(self, wanted: DatastoreConfig, *, migrate: bool = True, hydrate: str | None = None) -> SetUp:
        """Moves to another datastore with everything in it; afterwards this repository works with that one. `hydrate`
        is what this machine chooses for itself: full, lazy, or None for what it has chosen before."""
        from swamp.repo.setup import set_up

        done = set_up(self, wanted, migrate=migrate, hydrate=hydrate)
        if done.joined:
            self.close()
            for name in "tree catalog artifacts outputs runs evaluated data definitions audit".split():
                self.__dict__.pop(name, None)
            self.config = read_config(self.path)
            self.datastore = Datastore(self.datastore.context, self.config.datastore)
        return done

    def close(self) -> None:
        if "catalog" in self.__dict__:
            self.catalog.close()
        self.datastore.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
