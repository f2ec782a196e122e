"""One Spark session for all of these tests; they skip (or fail, with SWAMP_REQUIRE=spark) where there is no Java."""

import pytest

from jobs import require_java
from swamp.repo.config import init_repo, write_config
from swamp.store.open import StoreSpec


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    require_java()
    from swamp.bulk.session import open_session, stop_session
    from swamp.bulk.settings import SparkSettings
    from swamp.datasets.source import register

    conf = {
        "spark.sql.shuffle.partitions": "4",
        "spark.driver.memory": "1g",
        "spark.swamp.copyBytes": "0",  # the same rows are the same bytes: one test would read what another has fetched
    }
    settings = SparkSettings("local[2]", None, conf)
    session = register(open_session(settings, log=tmp_path_factory.mktemp("spark") / "spark.log"))
    yield session
    stop_session(session)


@pytest.fixture
def jobs(spark):
    from swamp.bulk.jobs import Jobs

    made = Jobs(spark)
    yield made
    made.close()


@pytest.fixture
def bucket(tmp_path):
    """A bucket in a directory, as executors find it."""
    place = tmp_path / "bucket"
    place.mkdir()
    return StoreSpec(place.as_uri())


@pytest.fixture
def shared_repo(tmp_path, bucket):
    """A repository whose datastore is that bucket."""
    repo = tmp_path / "repo"
    init_repo(repo)
    write_config(repo, {"datastore": {"type": "file", "url": bucket.url}})
    return repo


@pytest.fixture
def plain_repo(tmp_path):
    """A repository with the default datastore: a plain directory."""
    repo = tmp_path / "plain"
    init_repo(repo)
    return repo


@pytest.fixture
def tree(tmp_path):
    folder = tmp_path / "tree"
    folder.mkdir()
    return folder
