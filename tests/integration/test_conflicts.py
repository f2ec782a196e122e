"""Two machines publish the same version number: the later one saves again, and nothing is lost."""

from __future__ import annotations

import threading
import time

from machines import Place, Team, read_tree
from proxies import proxy_to


def test_a_put_that_lost_its_number_becomes_the_next_version(moto, tmp_path, fresh_prefix):
    """B's lease is taken away while its push is under way (as after a long sleep), and A publishes version 1."""
    prefix = fresh_prefix()
    with proxy_to(moto.endpoint) as proxy:
        direct = Place(f"{moto.url}/{prefix}", dict(moto.config), dict(moto.environ))
        patient = {"endpoint": proxy.endpoint, "requestTimeoutMs": 120_000}  # it waits for three commands of A
        slow = Place(direct.url, {**moto.config, **patient}, dict(moto.environ))
        a = Team(tmp_path, direct).machine("a")
        b = Team(tmp_path, slow).machine("b")
        a.put("other", "first", "x")  # so that there is a root
        b.sync()
        done = threading.Event()

        def wait(handler, request) -> bool:
            done.wait(110)
            return False

        proxy.once(lambda r: r.is_write and r.is_payload, wait)
        file = b.home / "f"
        file.write_text("from b")
        late = b.start("data", "put", "web", "same", str(file))
        deadline = time.monotonic() + 60
        while not proxy.count(lambda r: r.is_write and r.is_payload) and time.monotonic() < deadline:
            time.sleep(0.05)
        [held] = a("datastore", "lock", "status").ok()["models"]
        a("datastore", "lock", "release", "--force", "--model", held["model"]).ok()
        a.put("web", "same", "from a")
        done.set()
        out, err = late.communicate(timeout=120)
        assert late.returncode == 0, (out, err)
        a.sync()
        b.sync()
        assert a.versions("web", "same") == b.versions("web", "same") == [2, 1]
        assert [a.get("web", "same", "--version", v)["content"] for v in "12"] == ["from a", "from b"]
        assert read_tree(a.tree / "data") == read_tree(b.tree / "data")
