"""P05: a bucket of any size is discovered page by page, in the memory of one segment."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

SMALL, LARGE = 20_000, 140_000


def measure(objects: int) -> dict[str, int]:
    """Discovers a bucket with so many plain objects; its peak memory and what the index then names. In a child."""

    from peers import Peer, Watched, root_of
    from swamp.commit import bootstrap
    from swamp.store.open import open_store
    from swamp.store.port import ObjectMeta, Token

    bootstrap.SEGMENT_ROWS = 10_000
    then = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)

    class Crowded(Watched):
        """A bucket whose listing is long; pages are made when they are asked for, as a server does."""

        def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[Sequence[ObjectMeta]]:
            if prefix not in ("", "data/"):
                yield from super().list(prefix, start_after=start_after)
                return
            for page in range(0, objects, 1000):
                yield [ObjectMeta(f"data/t/m/n/{i:09d}", 10, Token(f"{i}"), then) for i in range(page, page + 1000)]

    peer = Peer(store=Crowded(open_store("memory://p05"), lambda verb, key: None), home=Path(sys.argv[2]))
    engine = peer.process(hydrate="lazy")
    made = bootstrap.bootstrap(engine.committer, lambda: None, create=False)
    assert made.discovered
    rows = sum(ref.rows for ref in root_of(engine).segments)
    return {"rows": rows, "peak": int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0])}


def test_P05_a_long_listing_is_never_held_in_memory(tmp_path):
    """Seven times the objects cost (almost) the same memory: 120,000 held objects would be more than 40 MB."""
    found = {}
    for objects in (SMALL, LARGE):
        done = subprocess.run(
            [sys.executable, __file__, str(objects), str(tmp_path / str(objects))],
            capture_output=True,
            text=True,
            timeout=240,
            env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": ""},
        )
        assert done.returncode == 0, done.stderr
        found[objects] = json.loads(done.stdout)
    assert {n: f["rows"] for n, f in found.items()} == {SMALL: SMALL, LARGE: LARGE}
    grown = found[LARGE]["peak"] - found[SMALL]["peak"]
    assert grown < 20 * 1024, f"{grown} KiB more for {LARGE} objects than for {SMALL}"


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
