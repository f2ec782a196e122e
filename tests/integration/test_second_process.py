"""Many files are moved by two processes: all of them arrive, whatever becomes of the second one."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Pipe
from pathlib import Path

import pytest

from machines import Place, Team, read_tree
from swamp.env import SYSTEM
from swamp.errors import AccessDenied, Interrupted
from swamp.pipeline.choose import Chooser
from swamp.store.layers import Meter
from swamp.store.open import StoreSpec
from swamp.sync import deal, share
from swamp.sync.bulk import Download, Upload, Work
from swamp.sync.progress import Cancel, Patience, Silent
from swamp.sync.share import Other, Returned, Shared, can_share
from swamp.sync.transfer import Inline

FILES = 400


class Slow:
    """This process' store: slow enough for the other one to have its part."""

    def __init__(self, inner, seconds: float = 0.03) -> None:
        self._inner = inner
        self._seconds = seconds

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def put_file(self, key, path):
        time.sleep(self._seconds)
        return self._inner.put_file(key, path)

    def get(self, key, **range_):
        time.sleep(self._seconds)
        return self._inner.get(key, **range_)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for number in range(FILES):
        file = tmp_path / "tree" / f"files/{number % 7}/{number}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"content {number}")
    return tmp_path / "tree"


@pytest.fixture
def spec(tmp_path: Path) -> StoreSpec:
    (tmp_path / "bucket").mkdir()
    return StoreSpec((tmp_path / "bucket").as_uri())


def uploads(tree: Path) -> list[Upload]:
    files = sorted(p for p in tree.rglob("*.txt"))
    return [Upload(str(p.relative_to(tree)), str(p), p.stat().st_size) for p in files]


def awaited(other: Other) -> Other:
    """Waits until it works, or never will: on a busy machine this process could be done before."""
    deadline = time.monotonic() + 60
    while not other._working and time.monotonic() < deadline:
        if other._process is None or other._process.poll() is not None:
            break
        time.sleep(0.01)
    return other


class Together(Shared):
    """Deals nothing out before the second process works."""

    def _begun(self, kind):
        return awaited(super()._begun(kind))


def shared(spec: StoreSpec, seconds: float = 0.03) -> Shared:
    return Together(Inline(Slow(spec.open(), seconds), threads=4), spec, Meter())


def patience(cancel: Cancel | None = None) -> Patience:
    return Patience(SYSTEM, 60, cancel or Cancel())


def others(parent: int | None = None) -> list[int]:
    """Second processes of this process (or of `parent`) that are alive."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            above = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if b"swamp.sync.share" in command and above == (parent or os.getpid()):
            found.append(int(entry.name))
    return found


def staged_by(executor: Shared, sent, staging: Path) -> Iterator:
    staging.mkdir(exist_ok=True)
    jobs = [Download(s.path, s.key, s.size, s.sha256, str(staging), None, False) for s in sent]
    return executor.download(jobs, patience())


def test_both_move_files_and_all_is_counted(tree, spec, tmp_path):
    executor = shared(spec)
    sent = list(executor.upload(uploads(tree), patience()))
    assert sorted(s.path for s in sent) == sorted(j.path for j in uploads(tree))
    assert all(s.error is None and s.sha256 == hashlib.sha256((tree / s.path).read_bytes()).hexdigest() for s in sent)
    theirs = executor.meter.calls["put"]
    assert 0 < theirs < FILES and executor.meter.sent > 0
    assert len({s.key for s in sent}) == FILES
    got = list(staged_by(executor, sent, tmp_path / "staging"))
    assert {g.path: Path(g.file).read_bytes() for g in got} == {
        j.path: Path(j.file).read_bytes() for j in uploads(tree)
    }
    assert 0 < executor.meter.calls["get"] < FILES
    assert others() == []


def test_what_a_killed_one_had_in_hand_is_done_here(tree, spec):
    executor = shared(spec, 0.01)
    sent = []
    killed = 0
    for result in executor.upload(uploads(tree), patience()):
        sent.append(result)
        if not killed and executor.meter.calls["put"]:
            (process,) = others()
            os.kill(process, signal.SIGKILL)
            killed += 1
    assert killed == 1
    assert sorted(s.path for s in sent) == sorted(j.path for j in uploads(tree))
    assert all(s.error is None for s in sent)


def test_a_machine_that_cannot_start_one_does_it_alone(tree, spec, monkeypatch):
    for broken in ("/bin/false", "/nowhere/python"):
        monkeypatch.setattr(sys, "executable", broken)
        executor = Shared(Inline(spec.open(), threads=4), spec, Meter())
        sent = list(executor.upload(uploads(tree), patience()))
        assert len(sent) == FILES and all(s.error is None for s in sent)
        assert executor.meter.requests == 0


def test_one_that_cannot_open_the_store_is_no_trouble(tree, spec):
    elsewhere = StoreSpec("s3://bucket", {"endpoint": "not an address"})
    executor = Shared(Inline(spec.open(), threads=4), elsewhere, Meter())
    assert len(list(executor.upload(uploads(tree), patience()))) == FILES


def test_stopping_ends_the_other_and_leaves_nothing_in_staging(tree, spec, tmp_path):
    sent = list(Inline(spec.open()).upload(uploads(tree), patience()))
    executor, cancel, staging = shared(spec), Cancel(), tmp_path / "staging"
    staging.mkdir()
    jobs = [Download(s.path, s.key, s.size, s.sha256, str(staging), None, False) for s in sent]
    taken = []
    with pytest.raises(Interrupted):
        for got in executor.download(jobs, patience(cancel)):
            taken.append(got)
            if executor.meter.calls["get"]:
                cancel.request()
    assert others() == []
    left = {str(p) for p in staging.iterdir()} - {g.file for g in taken}
    from swamp.cache.sweep import sweep_staging

    mine = {p for p in left if f"-{os.getpid()}-" in p}
    assert mine == set()
    sweep_staging(staging, time.time(), 0)
    assert {str(p) for p in staging.iterdir()} == {g.file for g in taken if f"-{os.getpid()}-" in g.file}


class Refusing:
    """A store that lets nobody write, as its address and its client at once."""

    gentle = False

    def open(self):
        return self

    def put_file(self, key, path):
        raise AccessDenied("no")


def test_a_refusal_comes_back_to_where_somebody_is_told(tree):
    here, there = Pipe()
    serving = threading.Thread(target=share.serve, args=(there,), daemon=True)
    serving.start()
    here.send((Refusing(), "upload", 2))
    assert here.recv()[0] == []  # it works
    job = uploads(tree)[0]
    here.send([job])
    (answer,), counted = here.recv()
    assert answer == Returned(job) and counted.calls == {"put": 1}
    here.send(None)
    serving.join(10)
    assert not serving.is_alive()


class Forbidding(BaseHTTPRequestHandler):
    """A bucket that refuses every write."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None: ...


def test_what_is_refused_in_the_other_process_is_done_in_this_one(tree, spec, monkeypatch):
    """With a real process: its answers must be what this one knows."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    with ThreadingHTTPServer(("127.0.0.1", 0), Forbidding) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        elsewhere = StoreSpec("s3://bucket", {"endpoint": f"http://127.0.0.1:{server.server_port}"})
        executor = Together(Inline(Slow(spec.open(), 0.01), threads=4), elsewhere, Meter())
        sent = list(executor.upload(uploads(tree), patience()))
        server.shutdown()
    assert executor.meter.calls["put"] > 0, "it was asked"
    assert sorted(s.path for s in sent) == sorted(j.path for j in uploads(tree)) and not any(s.error for s in sent)


def test_one_that_stands_still_keeps_nobody_from_stopping(tree, spec):
    executor, cancel = shared(spec, 0.01), Cancel()
    with pytest.raises(Interrupted):
        for _ in executor.upload(uploads(tree), patience(cancel)):
            if executor.meter.calls["put"] and not cancel.requested:
                (process,) = others()
                os.kill(process, signal.SIGSTOP)
                cancel.request()
    assert others() == []


ALONE = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from integration.test_second_process import patience, shared, uploads
from swamp.store.open import StoreSpec
for done in shared(StoreSpec({url!r}), 0.5).upload(uploads(Path({tree!r})), patience()):
    print(done.path, flush=True)
"""


def test_it_ends_with_the_process_that_started_it(tree, spec):
    code = ALONE.format(tests=str(Path(__file__).parents[1]), url=spec.url, tree=str(tree))
    running = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert running.stdout is not None and running.stdout.readline()
    deadline = time.monotonic() + 60
    while not (found := others(running.pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    running.kill()
    running.wait()
    assert len(found) == 1
    deadline = time.monotonic() + 60
    while runs(found[0]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not runs(found[0])


def runs(pid: int) -> bool:
    """One that only waits for somebody to reap it does not: in a container nobody may."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def downloads(tree: Path, spec: StoreSpec, staging: Path) -> list[Download]:
    staging.mkdir()
    sent = Inline(spec.open()).upload(uploads(tree), patience())
    return [Download(s.path, s.key, s.size, s.sha256, str(staging), None, False) for s in sent]


def chooser(spec: StoreSpec, tmp_path: Path) -> Chooser:
    return Chooser("inline", {}, spec, Slow(spec.open()), tmp_path, Silent(), 4, 4, Meter())


def test_one_that_was_started_ahead_is_the_one_that_works(tree, spec, tmp_path, monkeypatch):
    monkeypatch.setattr(deal, "SHARED_FILES", 100)
    jobs, pick = downloads(tree, spec, tmp_path / "staging"), chooser(spec, tmp_path)
    pick.expect(Work("download", FILES, 0))
    (ahead,) = others()
    pick.expect(Work("download", FILES, 0))
    assert others() == [ahead]
    assert awaited(pick._ahead)._working
    seen = set()
    got = []
    for result in pick(Work("download", FILES, 0)).download(jobs, patience()):
        seen.update(others())
        got.append(result)
    assert seen == {ahead} and 0 < pick.meter.calls["get"] < FILES
    assert sorted(g.path for g in got) == sorted(j.path for j in jobs) and not any(g.error for g in got)
    assert others() == []
    pick.close()


def one_that_never_works(tmp_path: Path) -> str:
    """Instead of Python: starts, and waits for what nobody sends."""
    os.mkfifo(tmp_path / "nobody")
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\nread word < {tmp_path / 'nobody'}\n")
    program.chmod(0o700)
    return str(program)


@pytest.mark.parametrize("ready", [False, True])
def test_one_that_was_started_ahead_and_died_is_no_trouble(tree, spec, tmp_path, monkeypatch, ready):
    monkeypatch.setattr(deal, "SHARED_FILES", 100)
    jobs, pick = downloads(tree, spec, tmp_path / "staging"), chooser(spec, tmp_path)
    with monkeypatch.context() as patch:
        if not ready:
            patch.setattr(sys, "executable", one_that_never_works(tmp_path))
        pick.expect(Work("download", FILES, 0))
    if ready:
        awaited(pick._ahead)
    assert pick._ahead._working == ready
    (ahead,) = others()
    os.kill(ahead, signal.SIGKILL)
    seen, got = set(), []
    for result in pick(Work("download", FILES, 0)).download(jobs, patience()):
        seen.update(others())
        got.append(result)
    assert sorted(g.path for g in got) == sorted(j.path for j in jobs) and not any(g.error for g in got)
    assert pick.meter.calls["get"] == 0 and seen <= {ahead}, "nobody started another one"


def test_one_that_nobody_needed_ends_with_the_command(spec, tmp_path):
    pick = chooser(spec, tmp_path)
    pick.expect(Work("download", deal.SHARED_FILES - 1, 0))
    assert others() == []
    pick.expect(Work("download", deal.SHARED_FILES, 0))
    assert len(others()) == 1
    pick(Work("compare", 10, 0))
    assert len(others()) == 1
    pick(Work("download", 3, 0))  # it was less than expected
    assert others() == []
    pick.expect(Work("download", 1_000_000, 0))
    assert len(others()) == 1
    pick.close()
    assert others() == []


def test_a_store_in_memory_has_no_second_reader(spec):
    assert not can_share(StoreSpec("memory://here"))
    assert can_share(spec) == ((os.cpu_count() or 1) > 1)


def test_a_command_shares_its_work_on_a_server_that_stumbles(servers, tmp_path, fresh_prefix):
    """`rclone serve s3` loses what two requests put into one new directory at once: push and pull are whole."""
    rclone = servers["rclone"]
    place = Place(f"{rclone.url}/{fresh_prefix()}", dict(rclone.config), dict(rclone.environ))
    team = Team(tmp_path, place)
    a, files = team.machine("a"), deal.SHARED_FILES + 500
    tree = a.tree
    for number in range(files):
        file = tree / f"files/{number % 50:02d}/{number}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"content {number}")
    pushed = a.sync("--push", "--full", "--engine", "inline")
    assert pushed["filesPushed"] == files < pushed["requests"]
    b = team.machine("b")
    assert read_tree(b.tree / "files") == read_tree(tree / "files")
