"""Settings to live parts: the only module that knows everyone."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from swamp.env import SYSTEM, Env
from swamp.repo.config import locate, read_config
from swamp.repo.datastore import DatastoreContext
from swamp.repo.repository import Repo
from swamp.settings import load
from swamp.sync.progress import Cancel, Progress, StoppableClock

R = TypeVar("R", bound=Repo)


def open_repo(
    path: str | Path | None = None,
    *,
    env: Env | None = None,
    cancel: Cancel | None = None,
    progress: Progress | None = None,
    overrides: Mapping[str, Any] | None = None,
    notify: Callable[[str], None] = lambda _: None,
) -> Repo:
    """The repository at `path`, else of SWAMP_REPO_DIR, else of the working directory or one above it.

    `overrides` are settings that beat every other source, such as `engine="inline"`; `notify` gets remarks for people.
    Nothing is read from the datastore before it is needed. Raises UsageError when there is no repository.
    """
    return open_as(Repo, path, env=env, cancel=cancel, progress=progress, overrides=overrides, notify=notify)


def open_as(
    kind: type[R],
    path: str | Path | None = None,
    *,
    env: Env | None = None,
    cancel: Cancel | None = None,
    progress: Progress | None = None,
    overrides: Mapping[str, Any] | None = None,
    notify: Callable[[str], None] = lambda _: None,
) -> R:
    """The same as an object of this kind."""
    where = locate(Path(path) if path is not None else None, os.environ)
    config = read_config(where)
    cancel = cancel or Cancel()
    env = env or stoppable(SYSTEM, cancel)
    settings = load(overrides, os.environ, config.document)
    return kind(DatastoreContext(where, config.repo_id, settings, env, cancel, progress or Progress(), notify), config)


def stoppable(env: Env, cancel: Cancel) -> Env:
    """The same environment, whose waits end when the user has had enough."""
    return Env(StoppableClock(env.clock, cancel), env.rng)
