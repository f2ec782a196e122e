"""What a commit that came to no end tells its caller."""

from __future__ import annotations

from swamp.errors import OutcomeUnknown, StoreError


def unknown(why: StoreError) -> OutcomeUnknown:
    """With what the store last said: status, code and request id are what its operator asks for (C20)."""
    return OutcomeUnknown(
        f"the commit was sent and the store does not say whether it happened: {why.message}",
        hint="run the same command again: it finds out, and nothing is done twice",
        details=why.details,
    )
