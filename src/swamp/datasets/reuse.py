"""Relations that a session has made before. The parts of a version never change, so Spark need not look at each of them
again for every read of it.

Kept is what Spark calls the relation: which files there are, how large, which columns. A DataFrame made of it has
columns of its own, as if it had been read anew: joined with another of the same version they are told apart.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from swamp.datasets.place import Bucket, Folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from swamp.datasets.content import Artifact

MOST_KEPT: Final = 32
_LOCK: Final = threading.Lock()
_kept: Final[WeakKeyDictionary[SparkSession, OrderedDict[Identity, Any]]] = WeakKeyDictionary()


class Identity(NamedTuple):
    """What a relation was made of: a version, by the id that only it has, its parts, and where they lie. A copy of a
    bucket has the same names: who reads it does not read the first one."""

    place: str
    version: str
    parts: tuple[tuple[str, int], ...]
    copies: tuple[str, ...]
    """Which of them are read as files of this machine instead."""


def identity_of(place: Bucket | Folder, artifact: Artifact, copies: tuple[str, ...] = ()) -> Identity:
    where = place.tree if isinstance(place, Folder) else repr(place.spec)
    return Identity(where, artifact.meta.id, tuple((file.key, file.size) for file in artifact.files), copies)


def frame_again(session: SparkSession, identity: Identity) -> DataFrame | None:
    """A DataFrame of the relation that this session has kept of it; None if it has none."""
    from pyspark.sql.classic.dataframe import DataFrame

    with _LOCK:
        kept = _kept.get(session)
        if kept is None or identity not in kept:
            return None
        kept.move_to_end(identity)
        relation = kept[identity]
    made: Any = session._jsparkSession.baseRelationToDataFrame(relation)
    return DataFrame(made, session)


def keep(session: SparkSession, identity: Identity, frame: DataFrame) -> None:
    """Keeps the relation of a DataFrame that was just read and that is nothing else."""
    plan: Any = frame._jdf.queryExecution().analyzed()
    if plan.nodeName() != "LogicalRelation":
        return
    with _LOCK:
        kept = _kept.setdefault(session, OrderedDict())
        kept[identity] = plan.relation()
        while len(kept) > MOST_KEPT:
            kept.popitem(last=False)
