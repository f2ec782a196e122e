"""The repository as its readers see it: documents, their commands, the files git knows."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).parents[2]
FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: ```sh is run as it stands, ```sh show is only checked for commands that exist."""

    document: Path
    info: str
    body: str

    def lines(self) -> Iterator[str]:
        """Shell lines without comments; a trailing backslash joins."""
        for line in self.body.replace("\\\n", " ").splitlines():
            bare = re.sub(r"(^|\s)#.*$", "", line).strip()
            if bare:
                yield bare


def documents() -> list[Path]:
    """What people read: README and the guides."""
    return [REPO / "README.md", *sorted((REPO / "docs" / "guides").glob("*.md"))]


def blocks(document: Path) -> list[Block]:
    found = FENCE.finditer(document.read_text())
    return [Block(document, match["info"].strip(), match["body"]) for match in found]


def tracked() -> list[Path]:
    """Every file that a clone contains (or will, once it is committed)."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPO, capture_output=True, check=True,
    ).stdout  # fmt: skip
    return [REPO / name for name in listed.decode().split("\0") if name and (REPO / name).is_file()]
