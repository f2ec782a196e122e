"""A real PostgreSQL of the tests' own: Debian's programs, a private directory and port, a login with a password."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from swamp.env import SYSTEM
from swamp.errors import MissingTool
from swamp.testing.listen import free_port

KIND = "@swamp-postgres/datastore"
ADMIN, PASSWORD = "keeper", "of-the-tests"


@dataclass
class Postgres:
    folder: Path
    port: int
    user: list[str]

    def connect(self, database: str = "postgres", **login: str) -> psycopg.Connection:
        login = {"user": ADMIN, "password": PASSWORD} | login
        return psycopg.connect(host="127.0.0.1", port=self.port, dbname=database, autocommit=True, **login)

    def control(self, *words: str) -> None:
        command = [*self.user, str(programs() / "pg_ctl"), "-D", str(self.folder / "data"), "-s", "-w", *words]
        subprocess.run(command, check=True, cwd=self.folder, timeout=120, stdout=subprocess.DEVNULL)

    def start(self) -> None:
        # No fsync: nobody pulls this machine's plug. Nobody else's socket directory.
        options = f"-p {self.port} -h 127.0.0.1 -k {self.folder} -c fsync=off -c max_connections=60"
        self.control("start", "-l", str(self.folder / "log"), "-o", options)

    def pids(self) -> list[int]:
        """The server and everything that works for it."""
        main = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        return [main, *map(int, children)]


def programs() -> Path:
    """Where initdb and pg_ctl are: Debian keeps them off the path, one directory per version."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: float(p.parts[-3]))
    path = str(found[-1]) if found else shutil.which("initdb")
    if path is None:
        raise MissingTool("PostgreSQL is not installed", hint="apt install postgresql")
    return Path(path).parent


@contextmanager
def running() -> Iterator[Postgres]:
    programs()
    with tempfile.TemporaryDirectory(prefix="swamp-postgres-") as name:
        folder = Path(name)
        server = Postgres(folder, free_port(), _as_nobody_special(folder))
        secret = folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        made = [str(programs() / "initdb"), "-D", str(folder / "data"), "-U", ADMIN, "-A", "scram-sha-256"]
        made += ["--pwfile", str(secret), "-E", "UTF8", "--locale", "C", "--no-sync"]
        subprocess.run([*server.user, *made], check=True, cwd=folder, stdout=subprocess.DEVNULL, timeout=120)
        server.start()
        try:
            yield server
        finally:
            server.control("stop", "-m", "immediate")


def _as_nobody_special(folder: Path) -> list[str]:
    """PostgreSQL refuses to run as root: then it runs as the user that Debian's package made for it."""
    if os.getuid() != 0:
        return []
    if shutil.which("runuser") is None:
        raise MissingTool("runuser is not installed", hint="apt install util-linux, or run the tests as another user")
    shutil.chown(folder, "postgres", "postgres")
    return ["runuser", "-u", "postgres", "--"]


def fresh_name() -> str:
    return f"s{SYSTEM.ulid().lower()}"
