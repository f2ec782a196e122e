"""The texts in which a secret may show itself: as it is, per line, and as JSON, URLs, shells or base64 write it.

Base64 is a case of its own: where the secret stands in a longer text decides how it looks, and the text may be folded.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus

SHORTEST = 4
"""A shorter text is in everything: it cannot be masked."""
_SHORTEST_BASE64 = 6


def literal_forms(value: str) -> set[str]:
    """Every text that is `value`, or a line of it, in an encoding that does not depend on what stands around it."""
    found = {form for piece in _pieces(value) for form in _spelled(piece)}
    return {form for form in found if len(form) >= SHORTEST}


def base64_forms(value: str) -> set[str]:
    """The characters of base64 that `value`, or a line of it, decides alone, wherever in a text it begins."""
    return {form for piece in _pieces(value) for form in _in_base64(piece.encode("utf-8", "surrogateescape"))}


def _pieces(value: str) -> set[str]:
    """The value, with and without blanks around it, and each line of a longer one (a key file)."""
    pieces = {value, value.strip(), *(line.strip() for line in value.splitlines())}
    return {piece for piece in pieces if len(piece) >= SHORTEST}


def _spelled(piece: str) -> Iterator[str]:
    yield piece
    escaped = {json.dumps(piece)[1:-1], json.dumps(piece, ensure_ascii=False)[1:-1]}
    escaped |= {form.replace("/", "\\/") for form in escaped}
    yield from escaped
    yield from (json.dumps(form)[1:-1] for form in escaped)  # JSON as a text in JSON
    yield repr(piece)[1:-1]
    yield repr(piece.encode("utf-8", "surrogateescape"))[2:-1]
    yield from _in_urls(piece)
    yield from (html.escape(piece, quote=True), html.escape(piece, quote=False))
    yield from (piece.replace("'", "'\\''"), piece.replace("'", "'\"'\"'"), piece.replace("'", "''"))
    raw = piece.encode("utf-8", "surrogateescape")
    yield from (raw.hex(), raw.hex().upper())


def _in_urls(piece: str) -> Iterator[str]:
    for form in (quote(piece, safe=safe, errors="surrogateescape") for safe in ("", "/", "!'()*", "/:@!$&'()*+,;=")):
        yield from (form, _lower_escapes(form))
    plus = quote_plus(piece, errors="surrogateescape")
    yield from (plus, _lower_escapes(plus))


def _lower_escapes(form: str) -> str:
    head, *rest = form.split("%")
    return head + "".join(f"%{part[:2].lower()}{part[2:]}" for part in rest)


def _in_base64(raw: bytes) -> Iterator[str]:
    for offset, leading in ((0, 0), (1, 2), (2, 3)):
        whole = base64.b64encode(b"\0" * offset + raw).decode()
        shared = 0 if (len(raw) + offset) % 3 == 0 else 4  # the last group holds bits of what follows
        form = whole[leading : len(whole) - shared]
        if len(form) >= _SHORTEST_BASE64:
            yield from (form, form.replace("+", "-").replace("/", "_"))
    alone = base64.b64encode(raw).decode().rstrip("=")
    yield from (alone, alone.replace("+", "-").replace("/", "_"))


def prefix_pattern(texts: Iterable[str], length: int) -> str:
    """A regular expression that finds where one of `texts` may begin: a tree over their first characters."""
    return _branch({text[:length] for text in texts})


def _branch(texts: set[str]) -> str:
    by_first: dict[str, set[str]] = {}
    for text in texts:
        if text:
            by_first.setdefault(text[0], set()).add(text[1:])
    ends = [re.escape(first) for first, rest in by_first.items() if rest == {""}]
    longer = [re.escape(first) + _branch(rest) for first, rest in by_first.items() if rest != {""}]
    options = [*longer, *ends]
    return options[0] if len(options) == 1 else f"(?:{'|'.join(options)})"
