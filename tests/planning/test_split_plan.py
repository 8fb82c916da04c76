"""From splits to a priced plan: the fastest of those that a search came with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from exhaustive import LLAMA, asked
from trainwright.execution import Budget
from trainwright.planning.question.question import Candidate
from trainwright.planning.search.frontier import Shelf
from trainwright.planning.search.plans import PlanAsk
from trainwright.planning.search.prefetch import SplitAsk
from trainwright.planning.splits.chain import Split
from trainwright.planning.splits.types import best_family_split


@pytest.mark.parametrize(
    ("blocks", "fastest"), [(9, 1), pytest.param(15, 0, marks=pytest.mark.slow)]
)
def test_the_fastest_of_all_cuts_of_a_split_is_the_plan(blocks, fastest):
    """Of 9 blocks on 8 stages the even cut is faster, of 15 that which attains the bound."""
    question = asked(
        replace(LLAMA, num_layers=blocks), memory_gib=400, batch=8, sequence=4096, devices=4
    )
    candidate = Candidate(
        microbatch_size=1, tensor=1, pipeline=4, data=1, schedule="zb-v", virtual_stages=2
    )
    shelf, budget = Shelf.of(question), Budget()
    split = SplitAsk(best_family_split, candidate, 10.0).answer(shelf, budget)

    def step_s(split):
        return PlanAsk(candidate, split).answer(shelf, budget).step.step_time_s

    every = ((split.cuts, split.chosen), *split.others)
    alone_s = [
        step_s(Split(bound_s=split.bound_s, cuts=cuts, chosen=chosen)) for cuts, chosen in every
    ]
    assert step_s(split) == min(alone_s) == alone_s[fastest]
    assert max(alone_s) > 1.005 * min(alone_s)
