"""A client that nobody here knows upgrades the store, and later everybody has that client."""

from __future__ import annotations

from dataclasses import replace

from sim.oracle import Oracle
from swamp.commit.log import log_key
from swamp.index.root import NEWEST, ROOT_KEY, decode, encode


def upgrade(oracle: Oracle, *, recorded: bool) -> None:
    """A client that nobody here knows commits: its root is of a later format, and so is its record, unless that client
    died between the two. Nobody is told. Without a record, the root itself is all that says so."""
    assert oracle.root is not None
    root = replace(oracle.root, seq=oracle.root.seq + 1, op="z" * 26, prev_op=oracle.root.op)
    root = replace(root, recent_ops=((root.op, root.seq), *root.recent_ops))
    oracle.newer = encode(root)
    later = encode(replace(root, version=NEWEST + 1))
    oracle.bucket.forget_under_way(f"PUT {ROOT_KEY}")  # as with `damage`: a late create-only write is another story
    oracle.bucket.replace(log_key(oracle.root.seq, oracle.root.op), oracle.bucket.objects[ROOT_KEY].body)
    for key in (log_key(root.seq, root.op), ROOT_KEY) if recorded else (ROOT_KEY,):
        oracle.bucket.replace(key, later)


def is_recorded(oracle: Oracle) -> bool:
    """Whether the log knows the commit of that client: whoever loses its root then can tell that it was there."""
    assert oracle.newer is not None
    root = decode(oracle.newer)
    return log_key(root.seq, root.op) in oracle.bucket.objects


def make_known(oracle: Oracle) -> None:
    """Everybody has upgraded: the same root and record, in a format that they know."""
    if oracle.newer is not None:
        root = decode(oracle.newer)
        for key in (log_key(root.seq, root.op), ROOT_KEY):
            oracle.bucket.replace(key, oracle.newer)
        oracle.root, oracle.newer, oracle.damaged = root, None, False
