"""Splits in V that miss the memory are looked for again with less room: no plan is lost to more."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exhaustive import holds, on_four_ranks
from family_cases import case
from random_cases import cases
from trainwright.execution import Budget
from trainwright.planning.search.search import plan_model
from trainwright.planning.splits.vee_cuts import Tried, fastest_with_less_room
from trainwright.units import GIB

MEMORIES_GIB = (16, 18, 20, 22, 24, 30, 32, 34, 36, 44, 60)


def outcome_of(family, blocks, memory_gib):
    question = on_four_ranks(blocks, memory_gib, (family,))
    return question, plan_model(question, Budget())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("blocks", "family"),
    [
        (8, "v-half"),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in ((8, "v-min"), (12, "zb-v"))),
        *(
            pytest.param(*one, marks=pytest.mark.papers)
            for one in ((8, "zb-v"), (12, "v-half"), (12, "v-min"))
        ),
        *(pytest.param(23, name, marks=pytest.mark.papers) for name in ("zb-v", "v-half", "v-min")),
    ],
)
def test_more_memory_never_turns_a_plan_in_v_to_none(family, blocks):
    had_plan = False
    for memory_gib in MEMORIES_GIB if blocks > 8 else MEMORIES_GIB[3::3]:
        question, outcome = outcome_of(family, blocks, memory_gib)
        assert outcome.priced or not had_plan, memory_gib
        had_plan = bool(outcome.priced)
        for each in outcome.priced:
            assert holds(question, each.step.peak_memory_bytes)
            assert outcome.lower_bound_s <= each.step.step_time_s
    assert had_plan


@pytest.mark.slow
@cases(25)
@given(
    family=st.sampled_from(("zb-v", "v-half", "v-min", "adaptive-v")),
    blocks=st.integers(8, 23),
    memory_gib=st.floats(14, 60),
    factor=st.floats(1.0, 1.5),
)
def test_more_memory_never_loses_a_plan_in_v(family, blocks, memory_gib, factor):
    if outcome_of(family, blocks, memory_gib)[1].priced:
        assert outcome_of(family, blocks, memory_gib * factor)[1].priced


@pytest.mark.parametrize("beyond_gib", [0.1, 1.0, 4.0, 8.0, 11.0])
def test_room_is_cut_until_a_split_fits(beyond_gib):
    """As if orders held so much more than splits have room for, whatever the split."""
    halves = case(blocks=12, pipeline=4, virtual_stages=2, num_microbatches=16, memory_gib=40)
    costs, usable_bytes = halves.profile.costs, 40 * GIB

    def missing_bytes(ways):
        cuts, chosen = ways
        state = costs.static_bytes.sum(axis=(1, 2))
        own = [sum(n * state[row] for row, n in enumerate(rows)) for rows in chosen]
        kept = [sum(n * costs.saved_bytes[row] for row, n in enumerate(rows)) for rows in chosen]
        held = [own[r] + own[7 - r] + 4 * (kept[r] + kept[7 - r]) for r in range(4)]
        assert cuts[0] == 0
        assert all(a < b for a, b in pairwise(cuts))
        return max(held) + beyond_gib * GIB - usable_bytes

    def try_splits(splits, limit_s):
        missing = [missing_bytes(each) for each in splits]
        if min(missing) <= 0:
            return Tried(plan=object(), step_s=1.0)
        return Tried(missing_bytes=min(missing))

    asked_of = halves.question("v-half")
    found = fastest_with_less_room(asked_of, 0.1 * GIB, try_splits, limit_s=math.inf)
    assert found.plan is not None
    nothing = fastest_with_less_room(
        asked_of, 0.1 * GIB, lambda splits, limit_s: Tried(missing_bytes=GIB), limit_s=math.inf
    )
    assert nothing.plan is None
