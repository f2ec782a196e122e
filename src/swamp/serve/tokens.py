"""Tokens, one-time logins and browser sessions: random words of which only hashes are kept."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from typing import Any, Final, Literal

from swamp.env import Env, rfc3339
from swamp.errors import NotFound, UsageError
from swamp.serve.database import Database

Role = Literal["viewer", "operator", "admin"]
ROLES: Final[tuple[Role, ...]] = ("viewer", "operator", "admin")
LOGIN_SECONDS: Final = 3600.0
SESSION_SECONDS: Final = 12 * 3600.0
_PREFIX: Final = "swamp_"


@dataclass(frozen=True)
class Caller:
    """Who asks: a token, or the session of a browser."""

    id: str
    role: Role
    kind: Literal["token", "session"]
    name: str | None = None
    csrf: str = ""

    def may(self, role: Role) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)


@dataclass(frozen=True)
class Tokens:
    """The tokens of one server's file."""

    db: Database
    env: Env

    def create(self, role: str, name: str | None = None) -> dict[str, Any]:
        """A new token; the only time that its word is shown."""
        known: Role | None = next((one for one in ROLES if one == role), None)
        if known is None:
            raise UsageError(f"there is no role {role!r}", hint=f"allowed: {', '.join(ROLES)}")
        made, word = self._made("token", known, name, None)
        return {"id": made, "token": word, "role": role, **({"name": name} if name else {})}

    def login(self) -> str:
        """A word with which a browser logs in once, within an hour."""
        return self._made("login", "admin", None, self._now() + LOGIN_SECONDS)[1]

    def _made(
        self, kind: str, role: Role, name: str | None, expires: float | None, token: str | None = None
    ) -> tuple[str, str]:
        """Its id, which begins with that of the `token` it stands for, and its word."""
        random = self.env.rng.getrandbits(256).to_bytes(32, "big")
        word = _PREFIX + base64.urlsafe_b64encode(random).decode().rstrip("=")
        identity = ".".join(filter(None, (token, self.env.ulid().lower())))
        row = (identity, kind, _hash(word), role, name, rfc3339(self.env.clock.now()), expires)
        sql = "INSERT INTO tokens (id, kind, hash, role, name, created_at, expires) VALUES (?, ?, ?, ?, ?, ?, ?)"
        self.db.execute(sql, row)
        return identity, word

    def list(self) -> list[dict[str, Any]]:
        keys = "id, role, name, created_at AS createdAt, revoked_at AS revokedAt"
        return [dict(row) for row in self.db.all(f"SELECT {keys} FROM tokens WHERE kind = 'token' ORDER BY created_at")]

    def revoke(self, identity: str) -> dict[str, Any]:
        sql = "UPDATE tokens SET revoked_at = ? WHERE id = ? AND kind = 'token' AND revoked_at IS NULL"
        now = rfc3339(self.env.clock.now())
        if not self.db.execute(sql, (now, identity)):
            raise NotFound(f"there is no token {identity} in use", hint="`swamp serve token list` shows all")
        sessions = "UPDATE tokens SET revoked_at = ? WHERE substr(id, 1, ?) = ? AND kind = 'session'"
        self.db.execute(sessions, (now, len(identity) + 1, f"{identity}."))
        return {"id": identity, "revoked": True}

    def find(self, word: str, kind: Literal["token", "session"]) -> Caller | None:
        """Whose word it is; None for one that is unknown, revoked or out of date."""
        row = self.db.one("SELECT * FROM tokens WHERE hash = ? AND kind = ?", (_hash(word), kind))
        if row is None or row["revoked_at"] or (row["expires"] is not None and row["expires"] < self._now()):
            return None
        csrf = hashlib.sha256(f"csrf:{word}".encode()).hexdigest() if kind == "session" else ""
        return Caller(row["id"], row["role"], kind, row["name"], csrf)

    def exchange(self, word: str) -> str | None:
        """A login's word for a session's; a login counts once, whoever is first."""
        unused = "hash = ? AND kind = 'login' AND revoked_at IS NULL AND expires > ?"
        sql = f"UPDATE tokens SET revoked_at = ? WHERE {unused}"
        spent = self.db.execute(sql, (rfc3339(self.env.clock.now()), _hash(word), self._now()))
        return self._session("admin", None, None) if spent else None

    def enter(self, word: str) -> str | None:
        """A session of the role that a token has, and that ends when the token is revoked."""
        caller = self.find(word, "token")
        return None if caller is None else self._session(caller.role, caller.name, caller.id)

    def _session(self, role: Role, name: str | None, token: str | None) -> str:
        return self._made("session", role, name, self._now() + SESSION_SECONDS, token)[1]

    def log_out(self, caller: Caller) -> None:
        sql = "UPDATE tokens SET revoked_at = ? WHERE id = ? AND kind = 'session'"
        self.db.execute(sql, (rfc3339(self.env.clock.now()), caller.id))

    def sweep(self) -> None:
        """Forgets logins and sessions that are over."""
        sql = "DELETE FROM tokens WHERE kind IN ('login', 'session') AND (expires < ? OR revoked_at IS NOT NULL)"
        self.db.execute(sql, (self._now(),))

    def _now(self) -> float:
        return self.env.clock.now().timestamp()


def _hash(word: str) -> str:
    """Enough for 256 random bits: there is nothing to guess from a list of passwords."""
    return hashlib.sha256(word.encode("utf-8", "surrogatepass")).hexdigest()
