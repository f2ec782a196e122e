"""`python -m sim --seeds N [--start S] [--mix NAME] [--without NAME]`: plays seeds."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from contextlib import ExitStack

from sim.broken import RULES, broken
from sim.lean import mix_named, mixes
from sim.mix import Mix
from sim.run import Outcome, run

FLOOR = {"operations": 5.0, "faults": 0.5, "crashes": 0.1}
"""Per seed, on average: a run below this has tested nothing."""


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    chosen = [mix_named(options.mix)] if options.mix else mixes()
    total: Counter[str] = Counter()
    failing = 0
    with ExitStack() as stack:
        if options.without:
            stack.enter_context(broken(options.without))
        for seed in range(options.start, options.start + options.seeds):
            outcome = run(seed, chosen[seed % len(chosen)])
            if options.trace:
                _say(outcome.report(options.without))
            if not outcome.ok and not options.keep_going:
                _say(outcome.report(options.without))
                return 1
            if not outcome.ok:
                failing += 1
                _say(f"seed {seed} ({outcome.mix}): {outcome.violation}")
            _add(total, outcome)
    return _summary(total, options.seeds, chosen) or (1 if failing else 0)


def _add(total: Counter[str], outcome: Outcome) -> None:
    total["operations"] += sum(outcome.operations.values())
    total["faults"] += sum(outcome.faults.values())
    total["crashes"] += outcome.crashes
    total["steps"] += outcome.steps
    total["roots"] += outcome.roots
    for name, count in outcome.refusals.items():
        total[f"refused {name}"] += count


def _summary(total: Counter[str], seeds: int, chosen: list[Mix]) -> int:
    _say(f"{seeds} seeds, {len(chosen)} mixes: " + ", ".join(f"{n} {c}" for n, c in total.most_common()))
    thin = [n for n, floor in FLOOR.items() if seeds >= 50 and total[n] / seeds < floor]
    if thin:
        _say(f"too little happened: {', '.join(thin)}")
    return 1 if thin else 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--mix", help="one kind of run only")
    parser.add_argument("--without", choices=sorted(RULES), help="break what upholds a protocol rule and watch")
    parser.add_argument("--keep-going", action="store_true", help="one line per failing seed instead of one trace")
    parser.add_argument("--trace", action="store_true", help="print what happened also when all is well")
    return parser


if __name__ == "__main__":
    sys.exit(main())
