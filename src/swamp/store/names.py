"""How a key becomes a path in a directory bucket, and back. Nearly always they are the same.

A bucket has no directories, so two keys may be `a` and `a/b`, and a segment may be 1,024 bytes long. A file
system allows neither. Two endings, which no key's own segment is ever given, mark the exceptions:

    a%2F      the directory `a`, while a file `a` stands in its way; or the object `a`, while a directory does
    aaa…%2B   a piece of a name too long for a file system; the next path component continues it
"""

from __future__ import annotations

import re

INTERNAL = ".swamp-bucket"
"""Locks and unfinished writes; never part of a listing, at any depth (a bucket may lie in another)."""
ASIDE, MORE = "%2F", "%2B"
_MARKED = re.compile(r"%((?:25)*)2([FB])$")
_PIECE_CHARS, _NAME_BYTES = 60, 245


def plain_path(key: str) -> str:
    """Where the object lies unless something stands in its way."""
    if "%" not in key and len(key) <= _NAME_BYTES and key.isascii():
        return key
    return "/".join(part for s in key.split("/") for part in components_of(s))


def components_of(segment: str) -> tuple[str, ...]:
    *pieces, last = _pieces(segment)
    return (*(p + MORE for p in pieces), _MARKED.sub(lambda m: f"%25{m.group(1)}2{m.group(2)}", last))


def segment_of(pieces: str, last: str) -> str:
    """A key's segment from the pieces collected so far and the component that ends it."""
    return pieces + _MARKED.sub(lambda m: f"%{m.group(1)[2:]}2{m.group(2)}", last.removesuffix(ASIDE))


def _pieces(segment: str) -> list[str]:
    if len(segment.encode()) <= _NAME_BYTES:
        return [segment]
    # The last piece must not come out as `.` or `..`: it gets at least half of a full one.
    count = -(-len(segment) // _PIECE_CHARS)
    step = -(-len(segment) // count)
    return [segment[i : i + step] for i in range(0, len(segment), step)]
