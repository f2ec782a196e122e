"""What the demo is played with: machines that run the real command line, and promises that are checked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SWAMP = Path(sys.executable).with_name("swamp")
COLOUR = sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def tint(code: str, text: str) -> str:
    return f"\033[{code}m{text}\033[0m" if COLOUR else text


class Broken(Exception):
    """A promise that did not hold: the demo ends here, with exit code 1."""


@dataclass
class Audience:
    """Says what happens and remembers what was proven."""

    proven: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def chapter(self, title: str) -> None:
        print(f"\n{tint('1', f'== {title}')}", flush=True)

    def say(self, text: str) -> None:
        print(textwrap.fill(text, 100, initial_indent="   ", subsequent_indent="   "), flush=True)

    def command(self, machine: str, words: tuple[str, ...]) -> None:
        line = " ".join(word if word.isprintable() and " " not in word else repr(word) for word in words)
        print(f"   {tint('36', f'{machine}$')} swamp {line}", flush=True)

    def promise(self, holds: bool, text: str, seen: object = None) -> None:
        """Check it, say it, remember it."""
        if not holds:
            raise Broken(f"{text}\n      seen instead: {json.dumps(seen, indent=2, default=str)[:2000]}")
        self.proven.append(text)
        print(f"   {tint('32', 'ok')} {text}", flush=True)

    def quietly(self, holds: bool, text: str, seen: object = None) -> None:
        """Check it without a line of its own."""
        if not holds:
            raise Broken(f"{text}\n      seen instead: {json.dumps(seen, indent=2, default=str)[:2000]}")

    def end(self) -> None:
        seconds = time.monotonic() - self.began
        self.chapter(f"What this proved, in {seconds:.0f} s")
        for text in self.proven:
            print(f"   {tint('32', 'ok')} {text}")


@dataclass
class Machine:
    """A computer with a checkout and caches of its own. Nothing is shared with another one but the bucket."""

    name: str
    root: Path
    audience: Audience

    @property
    def repo(self) -> Path:
        return self.root / self.name / "repo"

    @property
    def home(self) -> Path:
        return self.root / self.name / "home"

    def prepare(self) -> None:
        self.repo.mkdir(parents=True)
        self.home.mkdir(parents=True)

    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("SWAMP_")}
        return {**kept, "SWAMP_HOME": str(self.home), "NO_COLOR": "1"}

    def swamp(self, *words: str, quiet: bool = False, code: int = 0, timeout: float = 900) -> Any:
        """Run a command and give its JSON document; any other exit code than `code` ends the demo."""
        if not quiet:
            self.audience.command(self.name, words)
        ran = subprocess.run(
            [SWAMP, *words, "--json"], cwd=self.repo, env=self.environment(), capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=timeout,
        )  # fmt: skip
        if ran.returncode != code:
            said = f"{ran.stdout[-1500:]}\n{ran.stderr[-3000:]}"
            raise Broken(f"`swamp {' '.join(words)}` on {self.name} exited {ran.returncode}, not {code}\n{said}")
        return json.loads(ran.stdout) if ran.stdout.strip() else None

    def start(self, *words: str) -> subprocess.Popen[str]:
        """The same, left running in a group of its own, so that it can be killed with all its children."""
        return subprocess.Popen(
            [SWAMP, *words, "--json"], cwd=self.repo, env=self.environment(), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def write(self, name: str, text: str) -> Path:
        file = self.repo / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text).lstrip())
        return file


def kill(process: subprocess.Popen[str]) -> tuple[int, str]:
    """kill -9, as a power cut would; gives the exit code and what had been said on stdout by then."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    said, _ = process.communicate(timeout=60)
    return process.returncode, said
