"""Files that somebody put beside the index: `doctor --repair` lists them, and a person adopts or leaves them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from swamp.errors import Failed

if TYPE_CHECKING:
    from swamp.commit.appeared import Appeared
    from swamp.repo.datastore import Datastore


@dataclass(frozen=True)
class Beside:
    """What appeared beside the index, what of it was adopted, and what could not be."""

    found: tuple[Appeared, ...] = ()
    adopted: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        left = [one.to_json() for one in self.found if one.path not in self.adopted]
        return {"appeared": left, "adopted": list(self.adopted), "refused": list(self.refused)}


Decide = Callable[[Sequence["Appeared"]], Sequence["Appeared"]]


def look_beside(datastore: Datastore, decide: Decide) -> Beside:
    """Lists what appeared beside the index and adopts what `decide` picks of it. Running it again changes nothing."""
    from swamp.commit.appeared import adopt, appeared

    committer, pace = datastore.must_sync().committer, datastore.context.cancel.check
    root = committer.read().root
    if root is None:
        raise Failed("the store has no index yet", hint="run: swamp datastore sync")
    found = tuple(appeared(committer, root))
    adopted, refused = adopt(committer, pace, tuple(decide(found)))
    return Beside(found, tuple(adopted), tuple(refused))
