"""Instants that can be the fullest, against every pair of instants."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from random_cases import cases
from trainwright.plans.schedule import Schedule
from trainwright.scheduling.families import FamilyRequest, family_named
from trainwright.step.memory import StageActivations, peak_rows, rank_peaks, undominated

counts = st.lists(st.tuples(*[st.integers(0, 5)] * 3), min_size=1, max_size=40, unique=True)


@given(rows=counts.map(np.array))
def test_rows_that_are_left_are_those_no_other_has_as_much_of_everything_as(rows):
    found = undominated(rows).tolist()
    left = [
        row.tolist()
        for row in rows
        if not any((other >= row).all() and (other > row).any() for other in rows)
    ]
    assert sorted(found) == sorted(left)
    assert found == sorted(found, key=lambda row: -sum(row))


def peaks(schedule: Schedule, stages: StageActivations) -> list[float]:
    """Bytes that every rank holds at its fullest beside static memory, by the rows alone."""
    found = peak_rows(schedule)
    held = np.concatenate(
        [
            stages.until_input_grad[found.stage],
            stages.until_weight_grad[found.stage],
            stages.transient[found.stage],
        ],
        axis=-1,
    )
    return list(np.maximum.reduceat((found.rows * held).sum(axis=1), found.starts))


COUNTED = ("gpipe", "1f1b", "eager-1f1b", "interleaved", "zb-h1", "zb-h2", "v-half", "zb-v")


@cases(60)
@given(
    family=st.sampled_from(COUNTED),
    p=st.integers(2, 4),
    groups=st.integers(2, 3),
    seed=st.integers(0, 10**6),
)
def test_counts_of_instants_give_the_peak_of_any_stages(
    family: str, p: int, groups: int, seed: int
) -> None:
    request = FamilyRequest(num_ranks=p, num_microbatches=p * groups, virtual_stages=2)
    schedule = family_named(family).generate(request)
    assert isinstance(schedule, Schedule)
    rng = np.random.default_rng(seed)
    shape = (4, schedule.placement.num_stages)
    kept, later, transient, logits = rng.integers(0, 9, shape).astype(float)
    stages = StageActivations(
        until_input_grad=kept, until_weight_grad=later, transient=transient, logits=0 * logits
    )
    expected = [peak.total_bytes for peak in rank_peaks(schedule, stages)]
    assert peaks(schedule, stages) == expected
