"""The audit trail: one line per mutating command, one file per machine and day.

No two machines, and no two caches of one machine, ever write the same file: its name holds an identity that lives and
dies with the cache. So a line can always be added without asking anybody.
"""

from __future__ import annotations

import json
import os
import re
import socket
from pathlib import Path

from swamp.env import Env, rfc3339, user_name
from swamp.repo.transaction import Change
from swamp.sync.port import Tree
from swamp.values import value


@value
class Audit:
    """Writes lines for one cache; `identity` is a file beside the tree, made when first needed."""

    tree: Tree
    identity: Path
    repo_id: str
    env: Env

    @property
    def path(self) -> str:
        """Today's file of this cache, relative to the tree."""
        day = rfc3339(self.env.clock.now())[:10]
        host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:40] or "host"
        return f"audit/{day}-{host}-{self._identity()}.jsonl"

    def write(self, change: Change, outcome: str) -> None:
        line = {
            "at": rfc3339(self.env.clock.now()),
            "command": change.command,
            "outcome": outcome,
            "user": user_name(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "repoId": self.repo_id,
            "paths": sorted(set(change.announced))[:20],
        }
        path = self.path
        with self.tree.announce([path]):
            file = self.tree.root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(line, ensure_ascii=False) + "\n")

    def _identity(self) -> str:
        try:
            return self.identity.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            pass
        self.identity.parent.mkdir(parents=True, exist_ok=True)
        made = self.env.ulid()[-8:].lower()
        temp = self.identity.with_name(f"{self.identity.name}.{made}")
        temp.write_text(made, encoding="ascii")
        try:
            os.link(temp, self.identity)  # whoever is first decides for all
        except FileExistsError:
            pass
        finally:
            temp.unlink()
        return self.identity.read_text(encoding="ascii").strip()
