"""Whole packs in hand, as only tests have them."""

from __future__ import annotations

from swamp.index.pack import Packed, read_footer


def read_pack(body: bytes) -> list[Packed]:
    """The files of a pack."""
    return read_footer(body, len(body))
