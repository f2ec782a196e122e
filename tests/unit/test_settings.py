"""Settings: flag > environment > .swamp.yaml > default, and bad values are named with what is allowed."""

from pathlib import Path

import pytest

from swamp.errors import UsageError
from swamp.settings import TUNABLES, load


def test_defaults_stand_when_nothing_is_said():
    found = load({}, {"HOME": "/home/x"}, {})
    assert (found.engine, found.lock_timeout, found.sync_timeout) == ("auto", 60.0, 300.0)
    assert found.home == Path("/home/x/.swamp")


def test_a_flag_beats_the_environment_beats_the_file():
    document, environ = {"engine": "inline"}, {"SWAMP_ENGINE": "spark"}
    assert load({}, {}, document).engine == "inline"
    assert load({}, environ, document).engine == "spark"
    assert load({"engine": "auto"}, environ, document).engine == "auto"


def test_an_empty_environment_variable_says_nothing():
    assert load({}, {"SWAMP_ENGINE": ""}, {"engine": "inline"}).engine == "inline"


def test_nested_keys_of_the_file_are_read():
    assert load({}, {}, {"datastore": {"config": {"pushConcurrency": 3}}}).push_concurrency == 3


@pytest.mark.parametrize(
    ("environ", "document", "key", "allowed"),
    [
        ({"SWAMP_ENGINE": "fast"}, {}, "SWAMP_ENGINE", "auto, spark or inline"),
        ({"SWAMP_LOCK_TIMEOUT_MS": "soon"}, {}, "SWAMP_LOCK_TIMEOUT_MS", "milliseconds"),
        ({"SWAMP_DATASTORE_SYNC_TIMEOUT_MS": "-1"}, {}, "SWAMP_DATASTORE_SYNC_TIMEOUT_MS", "milliseconds"),
        ({}, {"autoGc": "perhaps"}, "autoGc", "true or false"),
        ({}, {"spark": []}, "spark", "a mapping"),
        ({}, {"datastore": {"config": {"pullConcurrency": True}}}, "datastore.config.pullConcurrency", "whole"),
    ],
)
def test_a_bad_value_is_named_with_its_source_and_what_is_allowed(environ, document, key, allowed):
    with pytest.raises(UsageError) as caught:
        load({}, environ, document)
    assert key in caught.value.message
    assert allowed in caught.value.hint


def test_every_tunable_is_documented_and_has_a_source():
    for tunable in TUNABLES:
        assert tunable.doc and tunable.allowed
        assert tunable.env or tunable.flag or tunable.yaml, tunable.name
