"""A simulator that tries to break the sync engine: same seed, same run. See `run`, and `python -m swamp.testing.sim`."""
