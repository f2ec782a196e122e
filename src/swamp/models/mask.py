"""Masks secrets in everything that is written: records, logs, evaluated copies, captured output.

A secret may show itself as it is, per line, and as JSON, URLs, shells or base64 write it. Base64 is a case of its own:
where the secret stands in a longer text decides how it looks, and the text may be folded.
"""

from __future__ import annotations

import base64
import html
import json
import re
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import quote, quote_plus

from swamp.errors import SwampError, UsageError

MASK = "***"
TELLING: Final = 8
"""So long a text is nowhere by chance: a name that holds it holds the secret."""
_SECRET_NAME = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|APIKEY|KEY|PWD)(_|$|S$)", re.IGNORECASE
)
_NOT_SECRET = {"PWD", "OLDPWD", "AWS_ACCESS_KEY_ID"}
_CERTAIN_NAME = re.compile(r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|APIKEY)$", re.IGNORECASE)
_SWITCHES = {"true", "false", "none", "null", "yes", "no", "on", "off", "0", "1"}
_FOLDS = re.compile(r"[\r\n]+|\\+(?:[rn]|\Z)")
"""Line ends, also as JSON and Python write them; a backslash at the end of what is known may become one."""
_AROUND = 4
_BASE64 = re.compile(r"[A-Za-z0-9+/_=-]{0,4}")
Span = tuple[int, int]
Error = TypeVar("Error", bound=SwampError)


class Masker:
    """Replaces every known secret, in all its encodings, in text and in values. Grows while a run evaluates."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        self._secrets: set[str] = set()
        self.generation = 0
        """Grows when a new secret is known: what was masked before may have to be masked again."""
        self._literal = _Forms(())
        self._base64 = _Forms(())
        telling = (value for name, value in environment.items() if looks_secret(name))
        self.learn(value for value in telling if len(value) >= SHORTEST and value.lower() not in _SWITCHES)

    def learn(self, values: Iterable[str]) -> None:
        """These are secrets from now on, as they are and in every encoding. Each line of a longer one counts."""
        with self._lock:  # steps learn in parallel: none may undo what another has just learned
            new = {value for value in values if len(value.strip()) >= SHORTEST} - self._secrets
            if not new:
                return
            self._secrets |= new
            literal = set(self._literal.all).union(*map(literal_forms, new))
            folded = set(self._base64.all).union(*map(base64_forms, new))
            self._literal, self._base64 = _Forms(literal), _Forms(folded)
            self.generation += 1

    def must_learn(self, what: str, value: str) -> None:
        """The same, of a value that is about to be used. Raises UsageError if it is too short to be masked.

        inv[secrets.too-short]
        """
        if value and len(value.strip()) < SHORTEST:
            raise UsageError(
                f"{what} has fewer than {SHORTEST} characters: too short to be masked where it would be written",
                hint="use a longer secret; if it is no secret, pass it as an input that is not `writeOnly`",
            )
        self.learn([value])

    def text(self, text: str) -> str:
        spans = self.spans(text)
        return _replaced(text, spans) if spans else text

    def spans(self, text: str) -> list[Span]:
        """Where secrets stand in a text, in order, without overlaps."""
        found = [(start, start + len(form)) for start, form in self._literal.find(text)]
        if self._base64:
            found += _in_folded(text, self._base64)
        return _joined(found)

    def certain(self, text: str) -> tuple[int, list[Span]]:
        """How much of a text can be judged before more of it is known, and where secrets stand in that."""
        plain = [(start, start + len(form)) for start, form in self._literal.find(text)]
        held = self._literal.open_end(text)
        folded: list[Span] = []
        if self._base64:
            flat, place = _flattened(text)
            held = min(held, place(self._base64.open_end(flat)))
            folded = _in_folded(text, self._base64)
            held = min([held, *(start for start, end in folded if end > len(text) - _AROUND)])
        spans = _joined(plain + folded)
        held = min([held, *(start for start, end in spans if start < held < end)])
        return held, [span for span in spans if span[1] <= held]

    def reveals(self, name: str) -> bool:
        """Whether a name holds a secret that is too long to be there by chance."""
        return any(end - start >= TELLING for start, end in self.spans(name))

    def value(self, value: Any) -> Any:
        """`value` with every text in it masked, keys included; a number that is a secret becomes a mask."""
        if isinstance(value, str):
            return self.text(value)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, Mapping):
            return {self.value(key): self.value(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(inner) for inner in value]
        if isinstance(value, int | float):
            return MASK if str(value) in self._secrets else value
        shown = str(value)  # a path, a time, bytes: written as text
        return value if self.text(shown) == shown else self.text(shown)

    def error(self, error: Error) -> Error:
        """The same error, without secrets in anything that it says."""
        error.message = self.text(error.message)
        error.args = (error.message,)
        error.hint = None if error.hint is None else self.text(error.hint)
        error.details = self.value(error.details)
        if hasattr(error, "__notes__"):
            error.__notes__ = [self.text(note) for note in error.__notes__]
        return error

    def stream(self) -> MaskStream:
        return MaskStream(self)


class MaskStream:
    """Masks a text that comes in pieces: a secret that two pieces share is found too. inv[secrets.stream]"""

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._held = ""

    def feed(self, piece: str) -> str:
        """What is certain by now; the end of it waits if it may be the beginning of a secret."""
        text = self._held + piece
        certain, spans = self._masker.certain(text)
        self._held = text[certain:]
        return _replaced(text[:certain], spans)

    def end(self) -> str:
        """What was waiting, when nothing more comes."""
        text, self._held = self._held, ""
        return self._masker.text(text)


class _Forms:
    """Texts to look for, found by their first characters."""

    def __init__(self, forms: Iterable[str]) -> None:
        self.all = sorted(forms)
        self._by_head: dict[str, list[str]] = {}
        for form in sorted(self.all, key=len, reverse=True):
            self._by_head.setdefault(form[:SHORTEST], []).append(form)
        self._head = re.compile(_branch(set(self._by_head))) if self.all else None
        self._starts = {form[:n] for form in self.all for n in range(1, SHORTEST)}
        self._longest = max(map(len, self.all), default=0)

    def __bool__(self) -> bool:
        return bool(self.all)

    def find(self, text: str) -> Iterator[tuple[int, str]]:
        """Each place where a form stands, with the longest that stands there."""
        at = 0
        while (match := self._head and self._head.search(text, at)) is not None and match:
            start = match.start()
            form = next((form for form in self._by_head[match[0]] if text.startswith(form, start)), None)
            if form is not None:
                yield start, form
            at = start + 1

    def open_end(self, text: str) -> int:
        """The first place from which on the rest of `text` is the beginning of a form, but not the whole of one."""
        if self._head is None:
            return len(text)
        at = max(0, len(text) - self._longest + 1)
        while (match := self._head.search(text, at)) is not None:
            if self._goes_on(text[match.start() :]):
                return match.start()
            at = match.start() + 1
        short = (len(text) - n for n in range(SHORTEST - 1, 0, -1) if n <= len(text))
        return next((start for start in short if text[start:] in self._starts), len(text))

    def _goes_on(self, rest: str) -> bool:
        at = bisect_left(self.all, rest)
        near = self.all[at : at + 2]  # the text itself, if it is a form, and the next one
        return any(form.startswith(rest) and form != rest for form in near)


def _flattened(text: str) -> tuple[str, Callable[[int], int]]:
    """The text without its line ends, and where a place in it is in the text with them."""
    ends = [match.span() for match in _FOLDS.finditer(text)]
    if not ends:
        return text, lambda place: place
    kept: list[int] = []  # how long the flat text is where a fold was taken out
    gone: list[int] = [0]
    for start, end in ends:
        kept.append(start - gone[-1])
        gone.append(gone[-1] + end - start)
    return _FOLDS.sub("", text), lambda place: place + gone[bisect_right(kept, place)]


def _in_folded(text: str, forms: _Forms) -> list[Span]:
    """Where forms of base64 stand, folded or not, with the characters around that hold a few of their bits."""
    flat, place = _flattened(text)
    found = []
    for start, form in forms.find(flat):
        end = start + len(form)
        before = _BASE64.match(flat[max(0, start - _AROUND) : start][::-1])
        after = _BASE64.match(flat, end)
        first, last = start - len(before[0] if before else ""), after.end() if after else end
        found.append((place(first), place(last - 1) + 1))
    return found


def _joined(spans: list[Span]) -> list[Span]:
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start < found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def _replaced(text: str, spans: list[Span]) -> str:
    pieces, at = [], 0
    for start, end in spans:
        pieces += [text[at:start], MASK]
        at = end
    return "".join(pieces) + text[at:]


def looks_secret(name: str) -> bool:
    """Names that mean secrets by convention, such as `GITHUB_TOKEN` or `DB_PASSWORD`."""
    return name not in _NOT_SECRET and _SECRET_NAME.search(name) is not None


def too_short_to_pass_on(environment: Mapping[str, str]) -> list[str]:
    """Variables that are secrets by their name and cannot be masked: whoever is given them may write them anywhere."""
    return sorted(
        name
        for name, value in environment.items()
        if _CERTAIN_NAME.search(name) and 0 < len(value.strip()) < SHORTEST and value.lower() not in _SWITCHES
    )


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


def _branch(texts: set[str]) -> str:
    """A regular expression that finds these texts: a tree over their characters."""
    by_first: dict[str, set[str]] = {}
    for text in texts:
        if text:
            by_first.setdefault(text[0], set()).add(text[1:])
    ends = [re.escape(first) for first, rest in by_first.items() if rest == {""}]
    longer = [re.escape(first) + _branch(rest) for first, rest in by_first.items() if rest != {""}]
    options = [*longer, *ends]
    return options[0] if len(options) == 1 else f"(?:{'|'.join(options)})"
