from __future__ import annotations

import datetime as dt
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # `trees` is shared by the tests of data and of the catalog

from swamp.data.artifacts import DataRepository
from swamp.data.metadata import Draft, Owner
from swamp.data.names import DataName, auto_id
from swamp.env import Env


@dataclass
class Watch:
    """A clock that tests move by hand."""

    moment: dt.datetime = field(default_factory=lambda: dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC))

    def now(self) -> dt.datetime:
        return self.moment

    def monotonic(self) -> float:
        return self.moment.timestamp()

    def sleep(self, seconds: float) -> None:
        self.moment += dt.timedelta(seconds=seconds)


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def env(watch: Watch) -> Env:
    return Env(watch, random.Random(1))


@pytest.fixture
def tree(tmp_path: Path):
    from trees import WatchedTree

    found = WatchedTree(tmp_path / "tree")
    yield found
    found.check()


@pytest.fixture
def repo(tree, env) -> DataRepository:
    return DataRepository(tree, env=env)


@pytest.fixture
def name() -> DataName:
    return DataName.of("manual/data", auto_id("manual/data", "box"), "result")


@pytest.fixture
def draft() -> Draft:
    return Draft(Owner.manual("box"), "text/plain", tags={"modelName": "box"})
