"""Five minutes of chaos in `make test`, as many as you like in `make soak`: nothing acknowledged is lost.

`make soak MINUTES=60 ARGS="-k chaos"`; SWAMP_CHAOS_SEED=7 plays the schedule of one run again.
"""

from __future__ import annotations

import os
import time

import pytest

from chaos import run_chaos
from swamp.testing.s3_bucket import Manners

SOAKING = "SWAMP_SOAK_MINUTES" in os.environ
MINUTES = float(os.environ.get("SWAMP_SOAK_MINUTES", "5"))
SEED = int(os.environ.get("SWAMP_CHAOS_SEED") or (time.time() if SOAKING else 15))
MACHINES = int(os.environ.get("SWAMP_CHAOS_MACHINES", "3"))
VENDORS = {
    "amazon": Manners(),
    "ceph": Manners(if_match="bare", missing_match=412, delete_conditions=False, multipart_conditions=False),
    "pages": Manners(if_match="quoted", missing_match=412, page=5, ranges=False),
}


@pytest.mark.timeout(0)
@pytest.mark.parametrize("vendor", VENDORS)
@pytest.mark.inv("commit.single-winner")
@pytest.mark.inv("commit.unknown-is-not-failure")
@pytest.mark.inv("journal.survives")
@pytest.mark.inv("entry.keeps")
def test_chaos_loses_nothing(vendor, tmp_path, fresh_prefix, report, capsys):
    """Machines are killed, paused for longer than a lease, lied to; data is deleted, collected, moved, brought back."""
    seconds = MINUTES * 60 / len(VENDORS)
    with capsys.disabled():
        said = run_chaos(tmp_path, fresh_prefix(), SEED, seconds, MACHINES, VENDORS[vendor])
        print(f"\nchaos, {vendor}: {said}")
    if SOAKING:
        report.add(f"chaos on a store that lies, {vendor}, {seconds / 60:.1f} minutes", *said.split(", faults "))
