"""`swamp`: where a command begins."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

from swamp.repo.ahead import looking_ahead


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command: what loads it loads while a sync's look at its tree is under way."""
    args = list(sys.argv[1:] if argv is None else argv)
    gc.set_threshold(50_000, 20, 50)  # a command makes a million small values and no cycles: look for them less often
    try:
        with looking_ahead(args):
            from swamp.cli.program import run

            return run(args)
    except KeyboardInterrupt:  # while it was loaded: from then on it hears of signals in its own way
        from swamp.cli.program import interrupted

        return interrupted(args)
