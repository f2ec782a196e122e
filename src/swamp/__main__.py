"""`python -m swamp`: the command of the interpreter that runs it, also where no script is on the PATH."""

from __future__ import annotations

import sys

from swamp.cli.main import main

if __name__ == "__main__":  # who imports every module, as the tests' forking process does, starts nothing
    sys.exit(main())
