"""Draws what a terminal shows as SVG: `python docs/pictures.py` runs the commands and writes docs/guides/pictures.

`tests/docs/test_site.py` runs them again and compares the words.
"""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

PICTURES = Path(__file__).parent / "guides" / "pictures"
WIDTH = 100
# rich names a font of another host; the reader's own will do.
PLAIN = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace("Fira Code, ", "")
BEFORE = (
    "swamp repo init",
    "swamp datastore setup file://{home}/bucket",
    "swamp data put inventory scan scan.json --tag team=blue",
    "swamp data put inventory scan scan.json --tag team=blue",
    "swamp data put web orders orders.csv",
)
SHOWN = {
    "terminal-data": ("swamp data list", "swamp data versions inventory scan"),
    "terminal-status": ("swamp datastore status",),
}


def draw() -> dict[str, str]:
    """Every picture, by name, of commands that are run now in a repository of their own."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        (home / "scan.json").write_text('{"hosts": 3, "zone": "north"}\n')
        (home / "orders.csv").write_text("id,total\n1,10.5\n2,7\n")
        for line in BEFORE:
            _run(home, line)
        return {title: _svg(title, [(line, _run(home, line)) for line in lines]) for title, lines in SHOWN.items()}


def _run(home: Path, line: str) -> str:
    env = {
        "HOME": str(home), "SWAMP_HOME": str(home / "cache"), "TERM": "xterm-256color",
        "COLUMNS": str(WIDTH), "LANG": "C.UTF-8",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (50, WIDTH))
    with subprocess.Popen(line.format(home=home).split(), cwd=home, env=env, stdout=slave, stderr=slave) as process:
        os.close(slave)
        shown = _all_of(master)
    if process.returncode:
        raise SystemExit(f"{line}: {shown}")
    return shown.replace(str(home), "~")


def _all_of(terminal: int) -> str:
    """What was written to a terminal until nobody has it open any more, which Linux tells with an error."""
    found = b""
    with open(terminal, "rb", buffering=0) as file:
        while True:
            try:
                piece = file.read(65536)
            except OSError:
                piece = b""
            if not piece:
                return found.decode().replace("\r\n", "\n")
            found += piece


def _svg(title: str, ran: list[tuple[str, str]]) -> str:
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line, out in ran:
        console.print(Text("$ ", style="green") + Text(line, style="bold"))
        console.print(Text.from_ansi(out.rstrip()))
        console.print()
    return console.export_svg(title="swamp", code_format=PLAIN, unique_id=title)


def main() -> None:
    for name, text in draw().items():
        (PICTURES / f"{name}.svg").write_text(text)


if __name__ == "__main__":
    main()
