"""`swamp`: where a command begins."""

from __future__ import annotations

TYPE_CHECKING = False
try:
    import atexit
    import gc
    import os
    import signal
    import sys

    from swamp.repo.ahead import looking_ahead
except KeyboardInterrupt:
    raise SystemExit(130) from None

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Without `argv` it is this process's own, which ends with it."""
    if argv is not None:
        return _ran(list(argv))
    # Until it listens to signals it holds nothing. An exception would be told as a traceback, or lost in an import.
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    code: int | None = None

    def leave() -> None:
        if code is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    atexit.register(leave)  # first, so it is called last: after all clean-up, but nobody frees every value one by one
    code = _ran(sys.argv[1:])
    return code


def _ran(args: list[str]) -> int:
    """What loads the command loads while a sync's look at its tree is under way."""
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # closed by whoever began this (`>&-`); no file of ours may get its number
            setattr(sys, stream, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - pathlib is not loaded yet
    gc.set_threshold(50_000, 20, 50)  # a command makes a million small values and no cycles: look for them less often
    try:
        with looking_ahead(args):
            from swamp.cli.program import run

            return run(args)
    except KeyboardInterrupt:  # while it was loaded: from then on it hears of signals in its own way
        from swamp.cli.program import interrupted

        return interrupted(args)
