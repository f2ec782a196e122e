"""Kinds of runs, each leaning towards some rules, and which kind shows the absence of which rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sim.mix import DEFAULT, EVERYTHING, NO_SABOTAGE, Mix

_FILES: Final = {"write": 12, "delete": 5, "push": 12, "pull": 6, "sync": 8, "wait": 2}

ONE_FILE: Final = DEFAULT.leaning(
    "one-file", _FILES, paths=("files/a",), processes=0.7, crash=0.012, lazy=0.0, sabotage={"none": 9, "state": 1}
)
_HANDED_ON: Final = {"write": 8, "delete": 8, "sync": 20, "push": 2, "pull": 2, "wait": 1}
AMNESIA: Final = ONE_FILE.leaning(
    "amnesia", _HANDED_ON, sabotage={"none": 1, "state": 3, "backup": 1, "restore": 1}, crash=0.02
)
LANDED: Final = ONE_FILE.leaning(
    "landed", _HANDED_ON, sabotage=NO_SABOTAGE, crash=0.001,
    fatal=(("answer to PUT .datastore-index", 0.15), ("PUT _index/log", 0.1)),
)  # fmt: skip
SAME_BYTES: Final = ONE_FILE.leaning("same-bytes", repeat=0.7, crash=0.003, sabotage=NO_SABOTAGE)
CROWDED: Final = DEFAULT.leaning(
    "crowded", {**_FILES, "pull": 10, "version": 2, "record": 1}, processes=1.0, peers=(2, 2), sabotage=NO_SABOTAGE,
    crash=0.001, layer_rows=4, paths=("files/a", "files/b"),
)  # fmt: skip
RACE: Final = DEFAULT.leaning(
    "race", {"write": 10, "delete": 1, "push": 9, "pull": 12, "sync": 2}, processes=1.0, peers=(2, 2), lazy=0.0,
    sabotage=NO_SABOTAGE, crash=0.0, pause=0.0, weather=0.2, repeat=0.0, paths=("files/a",), stay=(0.2, 0.5),
    operations=(10, 20), linger=(("before files", 0.4, 1.5), ("OPEN", 0.4, 1.0)),
)  # fmt: skip
COLLECTOR: Final = DEFAULT.leaning(
    "collector", {"write": 10, "delete": 2, "push": 10, "sync": 5, "collect": 8, "wait": 2, "undelete": 1},
    linger=(("DELETE", 0.8, 5000.0), ("PUT .datastore-index", 0.2, 4000.0)), pause=0.01, keep_s=3600.0,
    crash=0.012, sabotage=NO_SABOTAGE, lazy=0.0, paths=("files/a", "files/b"),
)  # fmt: skip
SEGMENTS: Final = DEFAULT.leaning(
    "segments", {**_FILES, "compact": 8, "collect": 2, "wait": 5}, layer_rows=2, forget_s=900.0, keep_s=600.0,
    sabotage=NO_SABOTAGE, crash=0.002, paths=("files/a", "files/b", "files/c", "files/d/e"), peers=(2, 4),
)  # fmt: skip
DISASTER: Final = DEFAULT.leaning(
    "disaster", {**EVERYTHING, "damage": 2, "wait": 2}, crash=0.012,
    sabotage={"none": 2, "backup": 2, "restore": 2, "cache": 1, "state": 3, "tree": 2},
)  # fmt: skip
LOST_ROOT: Final = DEFAULT.leaning(
    "lost-root", {**_FILES, "damage": 3}, crash=0.004, sabotage=NO_SABOTAGE, paths=("files/a", "files/b"), lazy=0.0
)
NEW_BUCKET: Final = DEFAULT.leaning(
    "new-bucket", {**_FILES, "recreate": 2}, crash=0.001, sabotage=NO_SABOTAGE, lazy=0.0, pause=0.0,
    paths=("files/a", "files/b"),
)  # fmt: skip
VERSIONS: Final = DEFAULT.leaning(
    "versions", {"version": 10, "drop_version": 6, "record": 3, "push": 8, "pull": 4, "sync": 8, "hydrate": 4},
    names=("n", "o"), lazy=0.5,
)  # fmt: skip

FORGETFUL: Final = VERSIONS.leaning(
    "forgetful", sabotage={"none": 1, "state": 4}, crash=0.01, names=("n",), lazy=0.0, peers=(2, 2)
)
ADOPTED: Final = DEFAULT.leaning(
    "adopted", {**_FILES, "collect": 3, "hydrate": 1, "undelete": 1, "full": 1}, rooted=0.0, keep_s=600.0, crash=0.008,
    foreign=("files/a", "files/b", "files/x/y", "logs/old.txt"),
    paths=("files/a", "files/b", "files/x/y"),
)  # fmt: skip

HOSTILE: Final = DEFAULT.leaning(
    "hostile", {"write": 10, "delete": 3, "push": 10, "sync": 6, "collect": 5, "hostile": 3, "lease": 1, "wait": 3,
    "undelete": 1}, keep_s=600.0, crash=0.004, sabotage=NO_SABOTAGE, foreign=("logs/old.txt",), rooted=0.0,
)  # fmt: skip
STRANGERS: Final = ADOPTED.leaning(
    "strangers", {"write": 6, "delete": 8, "push": 10, "sync": 8, "collect": 6, "stranger": 5, "wait": 5},
    keep_s=300.0, crash=0.002, sabotage=NO_SABOTAGE, lazy=0.0,
)  # fmt: skip
ROTTEN: Final = DEFAULT.leaning(
    "rotten", {**_FILES, "delete": 0, "verify": 8, "rot": 5, "compact": 1}, layer_rows=2, crash=0.002,
    sabotage=NO_SABOTAGE, paths=("files/a", "files/b"), lazy=0.0,
    linger=(("PUT .datastore-index", 0.2, 20.0), ("PUT _index/", 0.2, 20.0)),
)  # fmt: skip

MOVED: Final = DEFAULT.leaning(
    "moved", {**_FILES, "delete": 8, "move": 8, "undelete": 3, "version": 3, "drop_version": 2, "hydrate": 2},
    crash=0.004, sabotage=NO_SABOTAGE, layer_rows=6, linger=(("PUT .datastore-index", 0.2, 20.0),),
)  # fmt: skip

REPACKED: Final = DEFAULT.leaning(
    "repacked", {**_FILES, "delete": 9, "move": 4, "undelete": 6, "collect": 8, "version": 4, "drop_version": 5,
    "wait": 4, "verify": 1}, crash=0.006, sabotage=NO_SABOTAGE, layer_rows=6, keep_s=600.0, lazy=0.3,
    linger=(("PUT .datastore-index", 0.2, 700.0), ("DELETE", 0.3, 900.0), ("LIST", 0.1, 700.0)),
)  # fmt: skip

CARELESS: Final = DEFAULT.leaning(
    "careless", {**_FILES, "version": 3, "full": 1}, conditions=False, sabotage=NO_SABOTAGE, lazy=0.1,
    paths=("files/a", "files/b"),
)  # fmt: skip
OVERTAKEN: Final = CARELESS.leaning(
    "overtaken", crash=0.002, lazy=0.0, stay=(0.3, 0.9),
    linger=(("PUT .datastore-index", 0.15, 50.0), ("PUT .datastore-commit", 0.1, 50.0), ("PUT _index/log", 0.1, 50.0)),
)  # fmt: skip
DISAGREEING: Final = CARELESS.leaning(
    "disagreeing", misled=0.5, rooted=0.4, rough_probe=6.0, lazy=0.0, crash=0.002, peers=(2, 3), stay=(0.2, 0.5),
)  # fmt: skip
DOUBTFUL: Final = DEFAULT.leaning(
    "doubtful", {**_FILES, "version": 3, "collect": 1, "lease": 1}, misled=0.5, rooted=0.5, rough_probe=4.0,
)  # fmt: skip
NEWER: Final = DEFAULT.leaning(
    "newer", {**EVERYTHING, "newer": 3, "damage": 3, "collect": 4}, keep_s=600.0, crash=0.008,
)  # fmt: skip

READERS: Final = DEFAULT.leaning(
    "readers", {**EVERYTHING, "read": 22, "damage": 0.6}, processes=0.25, sabotage={"none": 12, "state": 1, "tree": 1}
)

AWAY: Final = DEFAULT.leaning(
    "away", {"keep": 10, "deliver": 14, "version": 4, "read": 3, "push": 3, "sync": 8, "pull": 3, "wait": 1},
    sabotage=NO_SABOTAGE, crash=0.012, names=("n", "o"), processes=0.6, lazy=0.2,
    fatal=(("kept put", 0.06), ("answer to PUT .datastore-index", 0.03)),
)  # fmt: skip

HOLLOW: Final = DEFAULT.leaning(
    "hollow", {**_FILES, "version": 4, "drop_version": 1, "hydrate": 2}, sabotage={"none": 1, "part": 5}, crash=0.02,
)  # fmt: skip
OLD_TREE: Final = DEFAULT.leaning(
    "old-tree", {"write": 10, "delete": 9, "sync": 16, "full": 8, "wait": 1}, lazy=0.0, crash=0.03, repeat=0.0,
    sabotage={"backup": 3, "old_tree": 3}, layer_rows=3, paths=("files/a", "files/b"),
)  # fmt: skip
LIES: Final = DEFAULT.leaning(
    "lies",
    {**_FILES, "version": 3, "compact": 2, "full": 2},
    lies=0.06,
    layer_rows=3,
    crash=0.002,
    sabotage=NO_SABOTAGE,
)
HALF_LISTED: Final = ADOPTED.leaning(
    "half-listed", {**_FILES, "collect": 3, "damage": 2, "full": 1}, halves=0.15, crash=0.004, sabotage=NO_SABOTAGE,
    lazy=0.0,
)  # fmt: skip
TWINS: Final = VERSIONS.leaning("twins", {"twins": 4, "version": 4, "push": 8, "sync": 8}, sabotage=NO_SABOTAGE)
PAGES: Final = DEFAULT.leaning("pages", {**_FILES, "version": 3}, sabotage={"none": 1, "page": 5}, crash=0.02)

MIXES: Final[tuple[Mix, ...]] = (
    DEFAULT, ONE_FILE, LANDED, AMNESIA, SAME_BYTES, CROWDED, RACE, COLLECTOR, SEGMENTS, DISASTER, LOST_ROOT, NEW_BUCKET,
    VERSIONS, FORGETFUL, ADOPTED, HOSTILE, STRANGERS, ROTTEN, MOVED, REPACKED, CARELESS, OVERTAKEN, READERS, AWAY,
    DISAGREEING, DOUBTFUL, NEWER,
    HOLLOW, OLD_TREE, TWINS, LIES, HALF_LISTED,
)  # fmt: skip

SHOWN_BY: Final[Mapping[str, Mix]] = {
    "commit.condition": DEFAULT,
    "commit.read-back": DEFAULT,
    "store.one-verdict": DISAGREEING,
    "probe.evidence": DISAGREEING,
    "format.newer": NEWER,
    "commit.log-before-record": LOST_ROOT,
    "commit.alone": OVERTAKEN,
    "gc.collecting-check": COLLECTOR,
    "gc.epoch-check": COLLECTOR,
    "gc.own-keys": HOSTILE,
    "gc.plain-unchanged": STRANGERS,
    "verify.winner": ROTTEN,
    "object.key-once": DEFAULT,
    "journal.first": ONE_FILE,
    "journal.survives": RACE,
    "tree-lock.plan": CROWDED,
    "tree-lock.rename": RACE,
    "sync-lock": VERSIONS,
    "pull.base-unchanged": RACE,
    "staged.mine": LANDED,
    "delete.intent": DISASTER,
    "delete.by-key": SAME_BYTES,
    "found.tombstone": AMNESIA,
    "pulled.op": DEFAULT,
    "pull.deferred": RACE,
    "segment.added-seq": SEGMENTS,
    "index.highest-seq": SEGMENTS,
    "compact.tombstones": SEGMENTS,
    "hint.racy": CROWDED,
    "outbox.once": AWAY,
    "read.harmless": READERS,
    "state.identity": NEW_BUCKET,
    "unit.whole": VERSIONS,
    "pack.live-if-any": REPACKED,
    "pack.moved-only-unchanged": MOVED,
    "gc.objects": REPACKED,
    "pack.identity": MOVED,
    "pack.place-now": MOVED,
    "tree.damage": HOLLOW,
    "full.view": OLD_TREE,
    "coexist.unit": TWINS,
    "read.twice": LIES,
    "store.whole-listing": HALF_LISTED,
}
"""The kind of run in which a rule's absence shows soonest."""


COMPANIONS: Final[Mapping[str, tuple[str, ...]]] = {"pull.base-unchanged": ("sync-lock",)}
"""A rule that another one covers completely is shown with that one taken out on both sides of the comparison."""


def mixes() -> list[Mix]:
    return list(MIXES)


def mix_named(name: str) -> Mix:
    found = {m.name: m for m in MIXES}
    if name not in found:
        raise SystemExit(f"no mix called {name}; there are: {', '.join(sorted(found))}")
    return found[name]
