"""`manual/data`: data that people put there with `swamp data put`; it has no methods."""

from __future__ import annotations

from swamp.models.declare import ModelType

MANUAL = ModelType("manual/data", "2026.11.15", methods=(), description="Data put there by hand.")
