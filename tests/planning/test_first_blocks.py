"""Stages that recompute their first k blocks, one or more in each: bounds on all their splits."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from family_cases import case, every_cut, is_one_of, step_of
from random_cases import cases
from trainwright.model import LayerKind
from trainwright.planning.bounds.stages import StageKinds, any_lengths
from trainwright.planning.question.layouts import CHAIN, LOOPED
from trainwright.planning.splits.loop import bound_dealt_loops, bound_whole_loops
from trainwright.planning.splits.types import best_family_split, bound_every_split
from trainwright.profile import Recompute

ALL_OR_NONE = (Recompute.NONE, Recompute.FULL)


def repeating(asked):
    """The case, where every stage recomputes one block, if it has any, or more."""
    return replace(asked, kinds=StageKinds.of(asked.profile, repeats_first=True))


def rows_with_first(asked, cuts, count):
    """The row of every layer where so many first blocks of each stage recompute."""
    layers, costs, rows = asked.profile.structure.layers, asked.profile.costs, []
    for a, b in pairwise(cuts):
        left = count
        for layer in layers[a:b]:
            again = layer.name == LayerKind.BLOCK and left > 0
            left -= again
            mode = Recompute.FULL if again else Recompute.NONE
            own = costs.rows_of(layer.layer_class)
            rows.append(next((r for r in own if costs.option_ids[r] == mode), own[0]))
    return rows


def cuts_of(asked, family):
    """All cuts; in a loop each stage but the ends has a block."""
    stages = asked.degrees.pipeline * asked.degrees.virtual_stages
    found = [*every_cut(asked.kinds.num_layers, stages)]
    lengths = any_lengths(asked.profile, stages)
    return [cuts for cuts in found if family in CHAIN or is_one_of(lengths, cuts)]


@cases(20)
@given(data=st.data())
def test_no_plan_that_repeats_first_blocks_is_shorter_than_a_bound(data):
    family = data.draw(st.sampled_from((*CHAIN[:4], *LOOPED, *LOOPED)))
    p, v = data.draw(st.sampled_from(((2, 2), (2, 3), (3, 2)))) if family in LOOPED else (3, 1)
    model, dense = data.draw(
        st.sampled_from((("llama3-8b", ()), ("mixtral-8x7b", ()), ("mixtral-8x7b", (0,))))
    )
    asked = case(
        blocks=data.draw(st.integers(p * v, p * v + 3)),
        pipeline=p,
        virtual_stages=v,
        data=data.draw(st.sampled_from((1, 2))),
        num_microbatches=p * data.draw(st.integers(1, 3)),
        memory_gib=data.draw(st.sampled_from((16, 24, 40, 400))),
        zero_stage=data.draw(st.integers(0, 2)),
        model=model,
        dense=dense,
        modes=ALL_OR_NONE,
    )
    question = repeating(asked).question(family)
    steps_s, every = [], cuts_of(asked, family)
    for cuts in every[:: math.ceil(len(every) / 40)]:
        for count in (1, 2, 3):
            rows = rows_with_first(asked, cuts, count)
            step, fits = step_of(asked, family, cuts, rows)
            if fits:
                steps_s.append(step.step_time_s)
                break
    bounds = [bound_every_split, best_family_split] if family in CHAIN else [bound_every_split]
    bounds += [bound_dealt_loops, bound_whole_loops] if family in LOOPED else []
    for limit_s in (math.inf, 1.01 * min(steps_s, default=1.0)):
        for bound in bounds:
            assert bound(question, limit_s=limit_s).bound_s <= min(
                (*steps_s, limit_s), default=math.inf
            ) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("family", "virtual_stages", "near"), [("1f1b", 1, 0.99), ("interleaved", 2, 0.97)]
)
def test_the_block_that_each_stage_repeats_counts(family, virtual_stages, near):
    """Six blocks on four stages or on two: of loops with two stages a rank it is most of them."""
    asked = case(
        blocks=6,
        pipeline=2,
        virtual_stages=virtual_stages,
        num_microbatches=8,
        memory_gib=400,
        modes=ALL_OR_NONE,
    )
    least_s = min(
        step_of(asked, family, cuts, rows_with_first(asked, cuts, 1))[0].step_time_s
        for cuts in cuts_of(asked, family)
    )
    bounds = (bound_every_split, bound_dealt_loops, bound_whole_loops)
    own = bounds if family in LOOPED else bounds[:1]
    for bound in own:
        free_s = bound(asked.question(family)).bound_s
        repeating_s = bound(repeating(asked).question(family)).bound_s
        assert free_s < repeating_s <= least_s * (1 + 1e-9)
    best_s = max(bound(repeating(asked).question(family)).bound_s for bound in own)
    assert best_s >= near * least_s
