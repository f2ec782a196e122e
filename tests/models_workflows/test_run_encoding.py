"""The record that is made piece by piece is the record that is made as a whole, after every kind of change."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swamp.data.document import load_mapping
from swamp.data.run_record import JobState, RunState, StepState, decode, encode, read_summary
from swamp.models.mask import MASK, Masker
from swamp.workflows.recorder import RunEncoder

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=12)
LINES = st.one_of(
    TEXT, st.sampled_from(["a\nb", " lead", "tail ", "x: y", "- z", "'", '"', "yes", "1.0", "#", "\n\nq\n"])
)
STATUS = st.sampled_from(["pending", "running", "succeeded", "failed", "skipped", "suspended", "cancelled"])
STEPS = st.builds(
    StepState,
    name=LINES,
    template=TEXT,
    status=STATUS,
    error=st.none() | LINES,
    duration_ms=st.none() | st.integers(0, 10**9),
    allowed_failure=st.booleans(),
    artifacts=st.lists(st.fixed_dictionaries({"name": TEXT, "version": st.integers(1, 99)}), max_size=2),
    extra=st.dictionaries(st.sampled_from(["outputId", "approval"]), LINES | st.dictionaries(TEXT, LINES, max_size=2)),
)
JOBS = st.lists(st.builds(JobState, name=LINES, status=STATUS, steps=st.lists(STEPS, max_size=4)), max_size=3)


def run_with(jobs: list[JobState], **extra) -> RunState:
    return RunState(
        "r", "w", "name", "running", "2026-01-01T00:00:00.000Z", jobs, {"a": [1]}, {}, 1, "h", "cli", **extra
    )


def check(encoder: RunEncoder, run: RunState) -> None:
    made = encoder.encode(run)
    whole = encode(run)
    assert load_mapping(made, "p") == load_mapping(whole, "p")
    assert read_summary(made, "p") == read_summary(whole, "p")
    assert decode(load_mapping(made, "p"), "p") == run


@settings(max_examples=200, deadline=None)
@given(JOBS, st.lists(st.tuples(st.integers(0, 11), STATUS, LINES), max_size=5))
def test_piece_by_piece_is_the_whole(jobs, changes):
    encoder, run = RunEncoder(Masker({})), run_with(jobs)
    check(encoder, run)
    steps = [step for _, step in run.steps]
    for number, status, text in changes:
        if steps:
            step = steps[number % len(steps)]
            step.status, step.error = status, text
            step.artifacts.append({"name": text, "version": number + 1})
            step.extra["outputId"] = text
        check(encoder, run)
    run.jobs.reverse()
    run.completed_at, run.error = "2026-01-01T00:00:01.000Z", "why"
    check(encoder, run)


@pytest.mark.inv("secrets.never-written")
def test_a_secret_that_becomes_known_later_is_masked_in_what_was_encoded_before():
    masker = Masker({})
    encoder = RunEncoder(masker)
    run = run_with([JobState("j", "running", [StepState("s", "s", error="it was hunter2222")])])
    assert b"hunter2222" in encoder.encode(run)
    masker.learn(["hunter2222"])
    made = encoder.encode(run)
    assert b"hunter2222" not in made
    assert MASK.encode() in made
