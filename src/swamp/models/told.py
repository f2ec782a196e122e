"""Method runs as they are: one that says `running` and that nobody works on was interrupted. Nothing is written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from swamp.data.outputs import Output, OutputRepository
from swamp.locks.flock import Verdict
from swamp.repo.leases import model_verdict

if TYPE_CHECKING:
    from swamp.repo.datastore import Datastore

INTERRUPTED = "interrupted: the process that ran it is gone"


def with_interrupted(datastore: Datastore, records: OutputRepository, outputs: Iterable[Output]) -> Iterator[Output]:
    """The same outputs; each model is looked at once, and only if one of them says `running`."""

    @cache
    def verdict(model_type: str, model_id: str) -> Verdict:
        return model_verdict(datastore, model_type, model_id)

    for output in outputs:
        if output.status == "running" and verdict(output.model_type, output.definition_id) == "dead":
            output = records.get(output.id)  # it may have ended after it was read, and nobody had its lease then either
            if output.status == "running":
                output = replace(output, status="failed", error=output.error or INTERRUPTED)
        yield output
