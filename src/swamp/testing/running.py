"""A store that runs for a test: how it is opened, by this process or by a command."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from swamp.env import SYSTEM, Env
from swamp.store.open import StoreSpec, open_store
from swamp.store.port import ObjectStore

ACCESS, SECRET = "swamptesting", "swamptesting-secret"


@dataclass(frozen=True)
class RunningServer:
    """A server that answers. `url` and `config` open its bucket, `environ` holds the login it wants."""

    name: str
    url: str
    config: Mapping[str, Any] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    endpoint: str | None = None
    pid: int | None = None

    def spec(self, prefix: str = "", namespace: str | None = None) -> StoreSpec:
        return StoreSpec(self.url + (f"/{prefix}" if prefix else ""), dict(self.config), namespace)

    def open(self, prefix: str = "", env: Env = SYSTEM) -> ObjectStore:
        """Credentials are put into the process environment: clients read them there and nowhere else."""
        os.environ.update(self.environ)
        spec = self.spec(prefix)
        return open_store(spec.url, spec.config, env)
