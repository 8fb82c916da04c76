"""The joint planner against exhaustion: every legal plan of a small space, priced one by one.

Under families with one stage per rank and in loops the planner finds the best plan and proves that
it is. In V, where actions are ordered by time, it finds the best of a small space.
"""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest

from exhaustive import (
    LLAMA,
    TINY_MIXTURE,
    asked,
    distinct,
    least_step_s,
    least_steps_s,
    one_a_node,
    two_nodes_of_two,
)
from random_spaces import CHAINS as ONE_STAGE_PER_RANK
from random_spaces import LOOPED, random_question
from trainwright.cluster import REFERENCE_DESIGN, Surroundings, networked, template_device
from trainwright.execution import Budget
from trainwright.model import ContextExchange, Optimizer, Recipe, TokenDispatcher
from trainwright.planning.question.question import RunSettings, Span
from trainwright.planning.search.search import plan_model
from trainwright.plans.configuration import DEFAULT_OVERHEADS, Kernels, Overlap
from trainwright.profile import Recompute

TWO, THREE, FOUR = (replace(LLAMA, num_layers=count) for count in (2, 3, 4))
ONE = Span.only(1)
ALONE = {"context": ONE, "microbatch_size": ONE, "tensor": ONE}
CHAINS = ("1f1b", "zb-h1", "zb-h2")
SHARDED = {"schedules": ("zb-h1", "zb-h2"), "zero_stages": (0, 1, 2, 3)}
LOOP = {"schedules": ("interleaved",), "zero_stages": (1,), "pipeline": Span(least=2)}

CHIPS = networked(template_device(REFERENCE_DESIGN, Surroundings()), Surroundings(), num_devices=4)

BARE = RunSettings(
    recipe=Recipe(optimizer=Optimizer.SGD, gradient_dtype="bf16", main_weight_dtype="none"),
    overlap=Overlap(gradients=0, parameters=0, pipeline=0),
    kernels=Kernels(fused_attention=False, fused_cross_entropy=True),
)
HIDDEN = RunSettings(
    recipe=Recipe(expert_imbalance=1.5),
    overlap=Overlap(gradients=1, parameters=1, tensor=1, experts=1),
)
ONCE = RunSettings(
    recipe=Recipe(dispatch_dtype="fp8", token_dispatcher=TokenDispatcher.HIERARCHICAL)
)
GROUPED = replace(
    TINY_MIXTURE,
    experts=replace(TINY_MIXTURE.experts, num_experts=8, num_groups=4, groups_per_token=2),
)
TRADED = RunSettings(recipe=Recipe(context_exchange=ContextExchange.ALL_TO_ALL, dropout=0.1))
SMALL = {
    "a chip design": asked(TWO, memory_gib=20, cluster=CHIPS, zero_stages=(1, 3)),
    "roomy": asked(TWO, memory_gib=60),
    "tight": asked(TWO, memory_gib=16),
    "experts": asked(TINY_MIXTURE, memory_gib=24, zero_stages=(1, 3), context=ONE),
    "no optimizer states, nothing overlaps": asked(TWO, memory_gib=12, settings=BARE),
    "experts, all overlaps": asked(
        TINY_MIXTURE, memory_gib=24, zero_stages=(1, 3), context=ONE, settings=HIDDEN
    ),
    "tokens dispatched once": asked(
        GROUPED,
        memory_gib=30,
        cluster=two_nodes_of_two(25e9),
        zero_stages=(1,),
        context=ONE,
        settings=ONCE,
    ),
    "heads traded": asked(
        replace(TWO, num_heads=6, num_kv_heads=6, head_size=64),
        memory_gib=60,
        sequence=8192,
        settings=TRADED,
    ),
    "tensor groups across nodes": asked(
        TWO, memory_gib=9, batch=1, zero_stages=(1,), cluster=one_a_node(400e9)
    ),
    "slow to synchronise": asked(TWO, memory_gib=40, sequence=128),
    "chains that recompute": asked(
        THREE, memory_gib=12, batch=8, sequence=4096, schedules=CHAINS, zero_stages=(1,), **ALONE
    ),
}
LARGER = {
    "experts, one of them hot": asked(
        TINY_MIXTURE,
        memory_gib=24,
        zero_stages=(1, 3),
        context=ONE,
        settings=RunSettings(recipe=Recipe(expert_loads=(1.72,))),
    ),
    "heads traded, their groups in a ring": asked(
        replace(TWO, num_heads=6, num_kv_heads=6, head_size=64),
        memory_gib=60,
        sequence=8192,
        cluster=two_nodes_of_two(25e9),
        settings=RunSettings(
            recipe=Recipe(context_exchange=ContextExchange.ALL_TO_ALL_RING, ulysses=2)
        ),
    ),
    "chains with more memory": asked(
        THREE, memory_gib=13, batch=8, sequence=4096, schedules=CHAINS, zero_stages=(1,), **ALONE
    ),
    "memory kept free": asked(
        THREE,
        memory_gib=14,
        sequence=4096,
        schedules=CHAINS,
        zero_stages=(1,),
        overheads=DEFAULT_OVERHEADS,
        **ALONE,
    ),
    "state sharded": asked(THREE, memory_gib=10, **SHARDED, **ALONE),
    "state sharded, more memory": asked(THREE, memory_gib=12, **SHARDED, **ALONE),
    "context": asked(TWO, memory_gib=11, sequence=8192, tensor=ONE, microbatch_size=ONE),
    "experts, zero bubble": asked(
        TINY_MIXTURE,
        memory_gib=5,
        zero_stages=(1, 3),
        schedules=("zb-h1",),
        context=ONE,
        microbatch_size=ONE,
    ),
    "tokens dispatched once, zero bubble": asked(
        GROUPED,
        memory_gib=8,
        cluster=two_nodes_of_two(25e9),
        zero_stages=(1, 3),
        schedules=("zb-h1",),
        context=ONE,
        microbatch_size=ONE,
        settings=ONCE,
    ),
    "experts on a chip design": asked(
        TINY_MIXTURE,
        memory_gib=5,
        cluster=CHIPS,
        zero_stages=(1, 3),
        context=ONE,
        microbatch_size=ONE,
    ),
    "loops": asked(FOUR, memory_gib=60, **LOOP, **ALONE),
    "loops, all overlaps": asked(FOUR, memory_gib=60, settings=HIDDEN, **LOOP, **ALONE),
    "loops, nothing overlaps": asked(FOUR, memory_gib=40, settings=BARE, **LOOP, **ALONE),
    "loops that recompute": asked(FOUR, memory_gib=15.3, sequence=4096, **LOOP, **ALONE),
}
LARGER |= {
    family: asked(
        FOUR,
        memory_gib=60,
        devices=2,
        batch=3,
        schedules=(family,),
        zero_stages=(0,),
        pipeline=Span.only(2),
        recompute=(Recompute.NONE,),
        **ALONE,
    )
    for family in ("zb-v", "v-half", "v-min")
}


def found_and_least(question):
    outcome = plan_model(question, Budget())
    least_s = least_step_s(question)
    assert outcome.lower_bound_s <= least_s * (1 + 1e-12)
    assert outcome.considered == sum(1 for _ in distinct(question))
    return outcome.priced[0].step.step_time_s, least_s


SLOW, PAPERS = (pytest.mark.slow,), (pytest.mark.papers,)
AT_LENGTH = {
    *("tensor groups across nodes", "experts, all overlaps", "slow to synchronise"),
    *("heads traded, their groups in a ring", "chains with more memory"),
    *("state sharded, more memory", "tokens dispatched once, zero bubble"),
    *("loops, all overlaps", "loops, nothing overlaps", "v-half"),
}


def named(questions):
    """The questions, with the marker of those that are asked in the longest runs alone."""
    return [
        pytest.param(each, id=name, marks=PAPERS if name in AT_LENGTH else SLOW)
        for name, each in questions.items()
    ]


@pytest.mark.parametrize("question", named(SMALL))
def test_the_planner_finds_what_exhaustion_finds(question):
    found_s, least_s = found_and_least(question)
    assert found_s == pytest.approx(least_s, rel=1e-9)


@pytest.mark.parametrize("question", named(LARGER))
def test_so_it_does_under_more_families_and_with_less_memory(question):
    found_s, least_s = found_and_least(question)
    assert found_s == pytest.approx(least_s, rel=1e-9)


def holds_for_drawn(seed, families, *, most_plans):
    question = random_question(Random(seed), families, most_plans=most_plans)
    least_s = min(least_steps_s(question).values(), default=math.inf)
    outcome = plan_model(question, Budget())
    found_s = min((one.step.step_time_s for one in outcome.priced), default=math.inf)
    assert outcome.lower_bound_s <= least_s * (1 + 1e-9)
    assert found_s == pytest.approx(least_s, rel=1e-9)
    assert outcome.lower_bound_s == pytest.approx(found_s, rel=1e-9) or math.isinf(found_s)


def of_both(seeds, marks):
    """Parameters (seed, families): one stage per rank, and loops."""
    for seed in seeds:
        yield pytest.param(seed, ONE_STAGE_PER_RANK, id=f"{seed}-chains", marks=marks)
        yield pytest.param(seed, LOOPED, id=f"{seed}-loops", marks=marks)


@pytest.mark.parametrize(
    ("seed", "families"),
    [*of_both(range(10), ()), *of_both(range(10, 14), SLOW), *of_both(range(14, 20), PAPERS)],
)
def test_of_a_drawn_space_the_best_plan_is_found_and_proved(seed, families):
    holds_for_drawn(seed, families, most_plans=150)


@pytest.mark.parametrize(
    ("decade", "families"),
    [
        *of_both((2,), SLOW),
        *of_both((0, 1, *range(3, 20)), PAPERS),
    ],
)
def test_so_it_is_of_larger_ones(decade, families):
    for seed in range(10):
        holds_for_drawn(f"{decade}{seed}", families, most_plans=1000)


@pytest.mark.slow
@pytest.mark.parametrize("memory_gib", [20, 60])
@pytest.mark.parametrize("tied", [False, True])
def test_no_plan_with_a_head_on_all_ranks_is_below_the_bound(memory_gib, tied):
    question = asked(
        replace(TWO, tied_embeddings=tied, vocabulary_size=256_000),
        memory_gib=memory_gib,
        batch=6,
        sequence=4096,
        schedules=("1f1b", "vocab-1", "vocab-2"),
        zero_stages=(3,),
        pipeline=Span(least=2),
        **ALONE,
    )
    outcome, least_s = plan_model(question, Budget()), least_step_s(question)
    found = outcome.priced[0]
    assert found.candidate.schedule.startswith("vocab")
    assert outcome.lower_bound_s <= least_s * (1 + 1e-12)
    assert least_s * (1 - 1e-12) <= found.step.step_time_s <= least_s * 1.02


@pytest.mark.slow
@pytest.mark.parametrize(("memory_gib", "sequence"), [(14, 4096), (24, 4096), (32, 32_768)])
def test_where_activations_wait_on_the_host_the_bound_holds_and_plans_mind_the_link(
    memory_gib, sequence
):
    question = asked(
        FOUR,
        memory_gib=memory_gib,
        batch=8,
        sequence=sequence,
        schedules=("po-f",),
        zero_stages=(1,),
        pipeline=Span.only(4),
        **ALONE,
    )
    found_s, least_s = found_and_least(question)
    assert found_s <= 1.1 * least_s
