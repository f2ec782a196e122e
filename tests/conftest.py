"""Servers for the whole session, one of each per worker, started when the first test asks; and who kills their clients.

`SWAMP_REQUIRE=moto,ministack,azurite,rclone,gcs` turns "skipped, it is not installed" into a failure.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

import java_archive
from servers.start import start
from swamp.env import SYSTEM
from swamp.errors import MissingTool
from swamp.testing.running import RunningServer

if TYPE_CHECKING:
    from kills import Killer
    from machines import Place, Team
    from swamp.testing.s3_double import S3Double

# What is slow on a busy machine is not wrong. The same examples in every run, so that what turns a change down is in
# the change; SWAMP_EXPLORE=1 draws new ones.
settings.register_profile(
    "swamp",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=not os.environ.get("SWAMP_EXPLORE"),
)
settings.load_profile("swamp")


_FIRST = (
    "tests/spark/",
    "tests/docs/test_documents.py",
    "tests/regressions/test_L54_restarted_job.py",
    "tests/simulation/test_same_run.py",
)


MEMORY = Path("/dev/shm")
"""Where tests write, if there is room: swamp flushes every rename and every row, and half of the processor time of a
short command, and most of its waiting, was the disk's."""
ROOM_BYTES = 4 << 30
FREE_BYTES = 12 << 30


def pytest_configure(config: pytest.Config) -> None:
    """In memory, unless somebody names another place; SWAMP_TEST_DISK=1 puts everything on the disk."""
    if not config.option.basetemp and not os.environ.get("SWAMP_TEST_DISK") and _has_room():
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def _has_room() -> bool:
    if not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < ROOM_BYTES:
        return False
    free = Path("/proc/meminfo").read_text().partition("MemAvailable:")[2]
    return int(free.split()[0]) << 10 >= FREE_BYTES


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """A directory on the disk, for tests of what is written to one."""
    with TemporaryDirectory(prefix="swamp-test-") as place:
        yield Path(place)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long ones first: workers begin at different places and steal from the end of each other's list, so that Spark
    stays in the worker that has a session, and nobody is left alone with a long one at the end."""
    items.sort(key=lambda item: not item.nodeid.startswith(_FIRST))


@pytest.fixture
def one_object_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """No packs: for a test in which the store loses one file and nothing else."""
    monkeypatch.setenv("SWAMP_PACKS", "off")


_REQUIRED_AS = {"gcs-emulator": "gcs"}


def is_required(name: str) -> bool:
    wanted = {n.strip() for n in os.environ.get("SWAMP_REQUIRE", "").split(",")}
    return name in wanted or _REQUIRED_AS.get(name, name) in wanted


class Servers:
    """Starts each server once."""

    def __init__(self, stack: ExitStack):
        self._stack = stack
        self._running: dict[str, RunningServer | MissingTool] = {}

    def __getitem__(self, name: str) -> RunningServer:
        if name not in self._running:
            try:
                self._running[name] = self._stack.enter_context(start(name))
            except MissingTool as missing:
                self._running[name] = missing
        found = self._running[name]
        if isinstance(found, RunningServer):
            os.environ.update(found.environ)
            return found
        if is_required(name):
            pytest.fail(f"SWAMP_REQUIRE names {name}: {found} ({found.hint})")
        pytest.skip(f"{found} ({found.hint})")


@pytest.fixture(scope="session", autouse=True)
def _no_cloud_settings_of_this_machine() -> Iterator[None]:
    """Tests talk to their own servers: whatever the developer is logged in to stays out."""
    kept = dict(os.environ)
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_", "STORAGE_EMULATOR")) or name.lower() in _PROXIES:
            del os.environ[name]
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    os.environ["AWS_CONFIG_FILE"] = os.environ["AWS_SHARED_CREDENTIALS_FILE"] = os.devnull
    yield
    os.environ.clear()
    os.environ.update(kept)


_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


@pytest.fixture(scope="session", autouse=True)
def _java_that_lives_for_seconds(_no_cloud_settings_of_this_machine: None) -> None:
    """Every JVM of these tests ends before its second compiler has paid, and reads its classes from an archive that
    `make` has made: each halves the processor time of a Spark start.

    Through the environment, because users' own jobs, drivers of a cluster and its executors are processes of their own.
    """
    # Whoever has options keeps theirs: two collectors named at once would end the JVM.
    os.environ.setdefault("JDK_JAVA_OPTIONS", java_archive.options())


@pytest.fixture(scope="session", autouse=True)
def _workers_of_spark(_no_cloud_settings_of_this_machine: None) -> Iterator[None]:
    """Spark's Python workers need not import everything first: see tests/spark_workers."""
    if os.environ.get("SWAMP_TEST_COLD"):
        yield
        return
    with TemporaryDirectory(prefix="spark-workers-") as place:
        os.environ["SPARK_TEST_WORKERS"] = place
        yield


@pytest.fixture(scope="session")
def servers(_no_cloud_settings_of_this_machine: None) -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(stack)


@pytest.fixture
def fresh_prefix() -> Callable[[], str]:
    """A new place in a shared bucket for every test."""
    return lambda: f"t{SYSTEM.ulid().lower()}"


@pytest.fixture(params=["file", "moto"])
def killer(request: pytest.FixtureRequest, servers: Servers, tmp_path: Path) -> Iterator[Killer]:
    """Kills commands at their requests to S3, or at their calls to the file system of a bucket in a directory."""
    from kills import Killer
    from servers.proxy import FaultProxy

    if request.param == "file":
        yield Killer(tmp_path)
        return
    with FaultProxy(servers["moto"].endpoint) as proxy:
        yield Killer(tmp_path, proxy)


@pytest.fixture
def new_place(killer: Killer, servers: Servers, tmp_path: Path, fresh_prefix: Callable[[], str]) -> Callable[[], Place]:
    """Makes buckets where that killer can reach them."""
    from machines import Place

    def make() -> Place:
        if killer.proxy is None:
            return Place((tmp_path / fresh_prefix()).as_uri())
        moto = servers["moto"]
        config = {**moto.config, "endpoint": killer.proxy.endpoint}
        return Place(f"{moto.url}/{fresh_prefix()}", config, dict(moto.environ))

    return make


@pytest.fixture
def double() -> Iterator[S3Double]:
    """A strict S3 in this process, whose login only its own clients have."""
    from swamp.testing.s3_double import S3Double

    with S3Double("b") as made:
        yield made


@pytest.fixture
def double_team(double: S3Double, tmp_path: Path) -> Team:
    """Machines that share a prefix in it."""
    from machines import Place, Team

    return Team(tmp_path, Place("s3://b/p", dict(double.config), dict(double.environ)))


@pytest.fixture
def lying() -> Iterator[S3Double]:
    """A strict S3 in this process, which lies when it is told to: `lying.add(Lie("cut after", "PUT", "*~*"))`."""
    from swamp.testing.s3_double import S3Double

    with S3Double() as double:
        os.environ.update(double.environ)
        yield double


@pytest.fixture
def lying_place(lying: S3Double, fresh_prefix: Callable[[], str]) -> Place:
    """A prefix in it, for machines."""
    from machines import Place

    return Place(f"{lying.running().url}/{fresh_prefix()}", lying.config, lying.environ)


def _fixture_of(name: str) -> Callable[[Servers], RunningServer]:
    @pytest.fixture(scope="session", name=name.replace("-", "_"))
    def running(servers: Servers) -> RunningServer:
        return servers[name]

    return running


moto = _fixture_of("moto")
ministack = _fixture_of("ministack")
azurite = _fixture_of("azurite")
rclone = _fixture_of("rclone")
gcs = _fixture_of("gcs")
