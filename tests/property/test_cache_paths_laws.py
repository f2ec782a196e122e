"""Laws of paths over any text: safe means inside, and folding is an equivalence."""

import os
import unicodedata

from hypothesis import example, given
from hypothesis import strategies as st

from swamp.cache.paths import fold, is_below, is_internal, is_safe, safe_path, shown
from swamp.cache.scan import collisions
from swamp.errors import UsageError

_nasty = st.lists(st.sampled_from(["..", ".", "", "a", "B", "\\", "C:", "\0", "~", "é", "e\u0301", "data"]), max_size=6)
_paths = st.one_of(st.text(max_size=30), _nasty.map("/".join))


@given(_paths)
@example("a/../b")
@example("\udcff")
def test_a_safe_path_stays_below_any_root(path):
    if not is_safe(path):
        try:
            safe_path(path)
        except UsageError as error:
            assert error.message.isprintable()
            return
        raise AssertionError("refused by one, accepted by the other")
    joined = os.path.normpath(os.path.join("/root", path))
    assert joined == f"/root/{path}"
    assert len(path.encode()) + 27 <= 1024
    assert is_internal(path) in (True, False)


@given(_paths, _paths)
def test_folding_is_stable_and_joins_what_unicode_joins(one, other):
    assert fold(fold(one)) == fold(one)
    assert fold(one.lower()) == fold(one) or not one.isascii()
    for form in ("NFC", "NFD"):
        assert fold(unicodedata.normalize(form, one)) == fold(one)
    if unicodedata.normalize("NFC", one) == unicodedata.normalize("NFC", other):
        assert fold(one) == fold(other)


@given(st.lists(st.lists(st.sampled_from(["a", "A", "b", "é", "E\u0301"]), min_size=1, max_size=3).map("/".join)))
def test_collisions_are_found_exactly_when_two_paths_cannot_coexist(paths):
    def clash(one, other):
        return one != other and (is_below(fold(one), fold(other)) or is_below(fold(other), fold(one)))

    expected = any(clash(a, b) for a in paths for b in paths)
    found = collisions(paths)
    assert bool(found) == expected
    assert all(clash(c.first, c.second) for c in found)


@given(st.text())
def test_any_path_can_be_shown(path):
    assert shown(path).isprintable() and shown(path)
