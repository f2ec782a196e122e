"""Runs child processes in a group of their own, with live output and a deadline; all of them end with the step."""

from __future__ import annotations

import codecs
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import IO, Literal

from swamp.env import Env
from swamp.errors import UsageError
from swamp.models.mask import Masker, MaskStream
from swamp.sync.progress import Cancel
from swamp.values import mutable, value

GRACE_SECONDS = 5.0
DRAIN_SECONDS = 0.5
KEPT_BYTES = 1 << 20
LAST_WORDS_SECONDS = 10.0
PIECE = 1 << 16
PIPES_HOLD = 1 << 20
"""More than any two pipes of the system hold."""

Ending = Literal["exited", "timeout", "cancelled"]
OnLine = Callable[[str, str], None]


# The watcher lives in the child's group and reads a pipe that only swamp holds open. A line means that the command
# has ended by itself; end of file means that swamp was killed, and then the whole group goes. inv[process.no-orphan]
_LEASH = """exec 3<&0 </dev/null
{ read -r _ <&3 || { trap '' TERM; kill -TERM 0; sleep %d; kill -KILL 0; }; } >/dev/null 2>&1 &
exec 3<&-; exec "$@"
"""


@value
class Finished:
    """How a child process ended and what it said (the last part of it, when it said a lot)."""

    exit_code: int
    stdout: str
    stderr: str
    truncated: bool
    duration_ms: int
    ending: Ending


@mutable
class _Kept:
    """The end of a stream, bounded: a talkative command must not fill the memory."""

    chunks: list[str] = field(default_factory=list)
    size: int = 0
    read: int = 0
    truncated: bool = False

    def add(self, line: str) -> None:
        self.chunks.append(line)
        self.read += len(line)
        self.size += len(line)
        while self.size > KEPT_BYTES and len(self.chunks) > 1:
            self.size -= len(self.chunks.pop(0))
            self.truncated = True


def run_process(
    command: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    cancel: Cancel,
    env: Env,
    timeout: float | None = None,
    on_line: OnLine = lambda stream, line: None,
    new_filter: Callable[[], MaskStream] = lambda: MaskStream(Masker({})),
) -> Finished:
    """Run `command` to one of its ends: it exits, its time is up, or the user wants to stop.

    What it says goes through a mask of its own per stream before anyone sees it or any of it is left out.
    """
    started = env.clock.monotonic()
    child, leash = _start(command, cwd, environment)
    kept = {"stdout": _Kept(), "stderr": _Kept()}
    readers = [
        _reader(pipe, stream, kept[stream], on_line, new_filter())
        for stream, pipe in (("stdout", child.stdout), ("stderr", child.stderr))
    ]
    try:
        ending = _await(child, cancel, env, None if timeout is None else started + timeout)
    finally:
        code = _bury(child, leash, readers, list(kept.values()), env)
    return Finished(
        exit_code=code,
        stdout="".join(kept["stdout"].chunks),
        stderr="".join(kept["stderr"].chunks),
        truncated=kept["stdout"].truncated or kept["stderr"].truncated,
        duration_ms=round((env.clock.monotonic() - started) * 1000),
        ending=ending,
    )


def _start(command: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], int]:
    read_end, write_end = os.pipe()
    try:
        child = subprocess.Popen(
            ["/bin/sh", "-c", _LEASH % GRACE_SECONDS, "sh", *command],
            cwd=cwd,
            env=dict(environment),
            stdin=read_end,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        os.close(write_end)
        raise UsageError(
            f"cannot start {command[0]}: {error.strerror}", hint=f"check the working directory {cwd}"
        ) from error
    finally:
        os.close(read_end)
    return child, write_end


def _reader(pipe: IO[bytes] | None, stream: str, kept: _Kept, on_line: OnLine, masking: MaskStream) -> threading.Thread:
    def read() -> None:
        assert pipe is not None
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        begun = ""
        with pipe:
            while chunk := os.read(pipe.fileno(), PIECE):
                begun = tell(begun + masking.feed(decoder.decode(chunk)))
        rest = tell(begun + masking.feed(decoder.decode(b"", True)) + masking.end())
        if rest:
            pass_on(rest)

    def tell(text: str) -> str:
        """Passes on whole lines, and pieces of one that is very long; the beginning of a line is left."""
        *lines, rest = text.split("\n")
        for line in lines:
            pass_on(line + "\n")
        if len(rest) < PIECE:
            return rest
        pass_on(rest)
        return ""

    def pass_on(line: str) -> None:
        kept.add(line)
        on_line(stream, line)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def _await(child: subprocess.Popen[bytes], cancel: Cancel, env: Env, deadline: float | None) -> Ending:
    """Wait without reaping, so that the group's number cannot be given to anybody else meanwhile."""
    pause = 0.002
    while not _exited(child.pid):
        if cancel.requested:
            _stop_group(child.pid, env)
            return "cancelled"
        if deadline is not None and env.clock.monotonic() >= deadline:
            _stop_group(child.pid, env)
            return "timeout"
        env.clock.sleep(pause)
        pause = min(pause * 1.5, 0.05)
    return "exited"


def _exited(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _stop_group(pid: int, env: Env) -> None:
    """Ask the whole group to end; after a grace period, end it. inv[process.group-killed]"""
    _signal_group(pid, signal.SIGTERM)
    deadline = env.clock.monotonic() + GRACE_SECONDS
    while not _exited(pid) and env.clock.monotonic() < deadline:
        env.clock.sleep(0.02)
    _signal_group(pid, signal.SIGKILL)
    while not _exited(pid):
        env.clock.sleep(0.01)


def _signal_group(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):  # every member is gone: what we wanted
        os.killpg(pid, number)


def _bury(
    child: subprocess.Popen[bytes], leash: int, readers: list[threading.Thread], kept: list[_Kept], env: Env
) -> int:
    """Let the watcher go, end what still holds our pipes, reap. Background jobs with their own output may stay."""
    if not _exited(child.pid):
        _stop_group(child.pid, env)
    with suppress(BrokenPipeError):  # the watcher went with its group
        os.write(leash, b"done\n")
    if not _drained(readers, kept, env):
        _signal_group(child.pid, signal.SIGKILL)
        for reader in readers:
            reader.join(DRAIN_SECONDS)
    code = child.wait()
    os.close(leash)
    return code


def _drained(readers: list[threading.Thread], kept: list[_Kept], env: Env) -> bool:
    """Whether both streams have ended. What still comes is waited for, because a reader may be slow and the machine
    busy; but whoever goes on for long after the command's end, or says more than pipes hold, is somebody else."""
    until = env.clock.monotonic() + LAST_WORDS_SECONDS
    begun = seen = sum(stream.read for stream in kept)
    while True:
        for reader in readers:
            reader.join(DRAIN_SECONDS / len(readers))
        if not any(reader.is_alive() for reader in readers):
            return True
        now = sum(stream.read for stream in kept)
        if now == seen or now - begun > PIPES_HOLD or env.clock.monotonic() > until:
            return False
        seen = now
