"""A simulator that tries to break the sync engine: same seed, same run. Start it: `python -m sim`."""
