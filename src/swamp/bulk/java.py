"""Is there a Java that Spark can run on? Asked before anything is started, answered in words a user can act on."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from swamp.errors import MissingTool

SUPPORTED: Final = (17, 21)
ANSWER_SECONDS: Final = 60
INSTALL_HINT: Final = (
    "install Java 17 or 21: Debian and Ubuntu `sudo apt install openjdk-17-jre-headless`, macOS "
    "`brew install openjdk@17`, conda `conda install -c conda-forge openjdk=17`; "
    "or set JAVA_HOME. Everything that does not need Spark works without it (--engine inline)"
)


@dataclass(frozen=True, slots=True)
class Java:
    """An executable and the major version it says it has."""

    path: str
    major: int


def find_java(environ: Mapping[str, str]) -> Java:
    """The Java that Spark would start. Raises MissingTool when there is none or Spark cannot run on it."""
    path = _executable(environ)
    if path is None:
        raise MissingTool("Spark needs Java and none was found", hint=INSTALL_HINT)
    major = _major_version(path)
    if major not in SUPPORTED:
        found = f"version {major}" if major else "an unknown version"
        raise MissingTool(f"Spark runs on Java 17 and 21; {path} is {found}", hint=INSTALL_HINT, details={"java": path})
    return Java(path, major)


def _executable(environ: Mapping[str, str]) -> str | None:
    """Spark's own order: JAVA_HOME first, then the path."""
    home = environ.get("JAVA_HOME")
    if home:
        inside = Path(home) / "bin" / "java"
        return str(inside) if inside.is_file() else None
    return shutil.which("java", path=environ.get("PATH"))


def _major_version(path: str) -> int:
    try:
        done = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return parse_version(done.stderr + done.stdout)


def parse_version(banner: str) -> int:
    """The major version in what `java -version` prints; 0 if it says none (`1.8.0_392` is 8)."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', banner)
    if not found:
        return 0
    first, second = int(found[1]), int(found[2] or 0)
    return second if first == 1 else first
