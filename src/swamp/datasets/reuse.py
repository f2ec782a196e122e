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
    columns: str
    """Of a table of `format("swamp")`, as JSON; "" of a relation, which has all of them."""


def identity_of(
    place: Bucket | Folder, artifact: Artifact, copies: tuple[str, ...] = (), columns: str = ""
) -> Identity:
    where = place.tree if isinstance(place, Folder) else repr(place.spec)
    parts = tuple((file.key, file.size) for file in artifact.files)
    return Identity(where, artifact.meta.id, parts, copies, columns)


def frame_again(session: SparkSession, identity: Identity) -> DataFrame | None:
    """A DataFrame of the relation that this session has kept of it; None if it has none."""
    from pyspark.sql.classic.dataframe import DataFrame

    relation = kept(session, identity)
    if relation is None:
        return None
    made: Any = session._jsparkSession.baseRelationToDataFrame(relation)
    return DataFrame(made, session)


def keep_frame(session: SparkSession, identity: Identity, frame: DataFrame) -> None:
    """Keeps the relation of a DataFrame that was just read and that is nothing else."""
    plan: Any = frame._jdf.queryExecution().analyzed()
    if plan.nodeName() == "LogicalRelation":
        keep(session, identity, plan.relation())


def kept(session: SparkSession, identity: Identity) -> Any | None:
    """The relation or table of the JVM that this session has kept; None if it has none."""
    with _LOCK:
        known = _kept.get(session)
        if known is None or identity not in known:
            return None
        known.move_to_end(identity)
        return known[identity]


def keep(session: SparkSession, identity: Identity, made: Any) -> None:
    with _LOCK:
        known = _kept.setdefault(session, OrderedDict())
        known[identity] = made
        while len(known) > MOST_KEPT:
            known.popitem(last=False)
