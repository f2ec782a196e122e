"""HTTP on the wire: a connection that does not say what it wants is closed."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS: Final = 15.0


class Protocol(H11Protocol):
    """uvicorn's own, with a deadline for the headers of a request."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._calm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._calm()
        elif self._deadline is None:
            self._expect()

    def _expect(self) -> None:
        self._deadline = self.loop.call_later(HEADER_SECONDS, self._late)

    def _calm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._deadline = None
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self.transport is not None and not self.transport.is_closing():
            self.transport.close()
