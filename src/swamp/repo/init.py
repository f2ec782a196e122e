"""`repo init`: an identity and three directories; nothing in the datastore tier."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swamp.env import SYSTEM, Env, rfc3339
from swamp.errors import UsageError
from swamp.repo.config import FILE_NAME, write_config

_IGNORED = ".swamp/\n"


@dataclass(frozen=True)
class Initialized:
    path: Path
    repo_id: str
    initialized_at: str

    def to_json(self) -> dict[str, Any]:
        return {"path": str(self.path), "repoId": self.repo_id, "initializedAt": self.initialized_at}


def init_repo(path: Path, *, env: Env = SYSTEM) -> Initialized:
    """Makes `path` a repository. Raises UsageError when it is one already."""
    from swamp import __version__

    path = path.expanduser().absolute()
    if (path / FILE_NAME).exists():
        raise UsageError(f"{path} is a swamp repository already", hint=f"remove {FILE_NAME} to start anew")
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is not a directory")
    for name in ("models", "workflows", ".swamp"):
        (path / name).mkdir(parents=True, exist_ok=True)
    made = Initialized(path, env.uuid(), rfc3339(env.clock.now()))
    _ignore_local_files(path)
    # Last: a repository exists from the moment this file does, and a crash before it leaves nothing to undo.
    identity = {"swampVersion": __version__, "initializedAt": made.initialized_at, "repoId": made.repo_id}
    write_config(path, {**identity, "datastore": {"type": "filesystem"}})
    return made


def _ignore_local_files(path: Path) -> None:
    ignore = path / ".gitignore"
    text = ignore.read_text(encoding="utf-8") if ignore.exists() else ""
    if ".swamp/" not in text.splitlines():
        ignore.write_text(text + ("" if not text or text.endswith("\n") else "\n") + _IGNORED, encoding="utf-8")
