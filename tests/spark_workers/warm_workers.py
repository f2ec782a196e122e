"""Spark's daemons of Python workers, forked from a process that has imported everything.

Spark starts a daemon (`python -m pyspark.daemon MODULE`) for each kind of worker of each JVM, and every worker imports
pyspark, pyarrow, pandas and swamp after its fork: more processor time than the JVM takes for a small job. A line in
`.venv` (`tests/java_archive.py` writes it) has every Python import this module where SPARK_TEST_WORKERS names a
directory for its sockets. One that is to be such a daemon has it forked here instead, with the environment, directory
and streams that Spark gave it; what the daemon and its workers do is pyspark's own code. Daemons whose interpreters
would differ (another PYTHONPATH) never share a process, and what cannot be imported beforehand starts from nothing.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sys
import zlib

PLACE = "SPARK_TEST_WORKERS"
_INTERPRETER = ("PYTHON", "LC_", "LANG", "LD_", "TZ")
"""Settings that an interpreter reads when it starts."""
LOOK_SECONDS = 2.0
LONGEST = 200_000


# --- what Spark starts ----------------------------------------------------------------------------------------------


def stand_in() -> None:
    """Has the daemon forked that this process was to be, and ends with it; returns where that is not possible."""
    place = os.environ.get(PLACE, "")
    if not os.path.isdir(place):
        return
    with _connected(f"{place}/{_fingerprint():08x}") as daemon:
        asked = repr((sys.orig_argv[3:], os.getcwd(), dict(os.environ))).encode()
        daemon.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * LONGEST)
        try:
            socket.send_fds(daemon, [asked], [0, 1, 2])
            pid = int(daemon.recv(16) or b"0")
        except OSError:
            pid = 0
        if not pid:
            return
        os.setpgid(0, 0)
        for number in (0, 1, 2):  # whoever reads what a daemon says waits until all have closed it
            os.close(number)
        signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))
        daemon.recv(1)  # nothing, when the daemon and its last worker have ended
        os._exit(0)


def _fingerprint() -> int:
    """Of the interpreter: Spark names the same directories once or twice, and its own settings are PYTHON_…."""
    read = [name for name in sorted(os.environ) if name.startswith(_INTERPRETER) and not name.startswith("PYTHON_")]
    told = [(name, list(dict.fromkeys(os.environ[name].split(os.pathsep)))) for name in read]
    return zlib.crc32(repr((sys.executable, told)).encode())


def _connected(path: str) -> socket.socket:
    """To the process that forks; whoever comes first starts it."""
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ours = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            ours.connect(path)
        except OSError:
            _start(path)
            ours.connect(path)
        return ours


def _start(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        if os.path.exists(path):
            os.unlink(path)
        listening.bind(path)
        listening.listen(64)
        number = listening.fileno()
        os.set_inheritable(number, True)
        if os.fork() == 0:
            os.setsid()
            nothing = os.open(os.devnull, os.O_RDWR)
            for standard in (0, 1, 2):
                os.dup2(nothing, standard)
            os.execv(sys.executable, [sys.executable, "-P", __file__, str(number), path])


# --- the process that forks -----------------------------------------------------------------------------------------


def serve(listening: socket.socket, path: str) -> None:
    """Forks a daemon for everyone who connects, until the tests have removed the directory."""
    listening.settimeout(LOOK_SECONDS)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        try:
            asking, _ = listening.accept()
        except TimeoutError:
            if os.path.exists(path):
                continue
            os._exit(0)
        with asking:
            asking.setblocking(True)
            packed, numbers, _, _ = socket.recv_fds(asking, LONGEST, 3)
            if packed and os.fork() == 0:
                listening.close()
                _become(asking, packed, numbers)
            for number in numbers:
                os.close(number)


def _become(asking: socket.socket, packed: bytes, numbers: list[int]) -> None:
    """This child is that daemon from here on."""
    import ast

    from pyspark.daemon import manager

    words, directory, environ = ast.literal_eval(packed.decode())
    for standard, number in enumerate(numbers):
        os.dup2(number, standard)
        os.close(number)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environ)
    sys.argv = ["pyspark.daemon", *words]
    sys.path.insert(0, directory)  # as `-m` does
    asking.sendall(str(os.getpid()).encode())
    asking.detach()  # stays open as long as this process and its workers live
    try:
        manager()
    finally:
        os._exit(1)


def import_everything() -> None:
    """What workers import. One thread is there afterwards beside this one, jemalloc's, which minds forks itself."""
    import importlib
    import pkgutil

    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # the children have the environment that they were given
    import pandas  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import pyspark.sql.worker

    import swamp

    for package, left_out in ((pyspark.sql.worker, ()), (swamp, _NEVER_IN_A_WORKER)):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith(left_out or "-"):
                importlib.import_module(module.name)
    importlib.import_module("pyspark.worker")


_NEVER_IN_A_WORKER = ("swamp.cli", "swamp.serve", "swamp.testing", "swamp.sql", "swamp.__main__", "swamp.workflows")


if __name__ == "__main__":
    import gc

    import_everything()
    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
elif sys.orig_argv[1:3] == ["-m", "pyspark.daemon"]:
    stand_in()
