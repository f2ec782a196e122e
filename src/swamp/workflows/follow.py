"""Reads a run's log while it grows, here or elsewhere (docs/decisions/0015-running-logs.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from swamp.data.run_record import path_of
from swamp.errors import StoreError
from swamp.workflows.decide import as_seen
from swamp.workflows.run import Driver

HERE_SECONDS: Final = 0.3
ELSEWHERE_SECONDS: Final = 2.0


def followed(driver: Driver, run_id: str, notify: Callable[[str], None]) -> Iterator[str]:
    """Each line once, until the run is over, waits for a person, or its process is gone.

    Elsewhere a line is seen when a push has brought it into the store: at the end of the step that said it.
    """
    told = 0
    away = False
    while True:
        run = as_seen(driver, driver.find(run_id))  # first: what was said before its end is then all there
        text = driver.logs.text(run)
        whole = text[: text.rfind("\n") + 1] if run.status == "running" else text
        if len(whole) > told:
            yield from whole[told:].splitlines()
            told = len(whole)
        if run.status != "running":
            return
        here = driver.logs.is_here(run)
        driver.context.env.clock.sleep(HERE_SECONDS if here else ELSEWHERE_SECONDS)
        if not here:
            away = _fetched(driver, path_of(run.workflow_id, run.id), run.id, notify, away)


def _fetched(driver: Driver, record: str, run_id: str, notify: Callable[[str], None], was_away: bool) -> bool:
    """Brings the record and the log; whether the store was away. One conditional request where nothing has changed."""
    engine = driver.context.repo.datastore.engine
    if engine is None:
        return False
    try:
        engine.pull((record, f"logs/workflow-runs/{run_id}.log"))
    except StoreError as error:
        if not was_away:
            notify(f"the store does not answer, trying again: {error.message}")
        return True
    return False
