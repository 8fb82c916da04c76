"""Layers that leave on the host what hides: held against exhaustion, and within the host's room."""

from __future__ import annotations

from dataclasses import replace

import pytest

from exhaustive import LLAMA, asked, least_step_s
from trainwright.errors import InvalidInput
from trainwright.execution import Budget
from trainwright.formats import catalog
from trainwright.model import Offload, Optimizer, Recipe
from trainwright.planning.question.question import EVERYTHING, RunSettings, Span
from trainwright.planning.search.framework import frameworks_for, plan_runnable
from trainwright.planning.search.plans import bytes_on_host, host_bytes_of_ranks
from trainwright.planning.search.search import plan_model
from trainwright.profile import Recompute
from trainwright.units import GIB

NONE, OFFLOAD, FULL = Recompute.NONE, Recompute.OFFLOAD, Recompute.FULL
ONE = Span.only(1)
PLAIN = Recipe(optimizer=Optimizer.SGD, gradient_dtype="bf16", main_weight_dtype="none")
H100 = catalog.cluster("dgx-h100").with_nodes(1)


def linked(gigabytes_per_s, gib=256.0):
    """H100 devices whose hosts are so far away and so large."""
    device = H100.accelerator
    host = replace(device.host, link_bytes_per_s=gigabytes_per_s * 1e9, memory_bytes=gib * GIB)
    pool = replace(H100.pools[0], accelerator=replace(device, host=host))
    return replace(H100, pools=(pool,))


def small(memory_gib, *, layers=4, link=55, host_gib=256.0, batch=4, **allowed):
    return asked(
        replace(LLAMA, num_layers=layers),
        devices=2,
        batch=batch,
        memory_gib=memory_gib,
        sequence=8192,
        cluster=linked(link, host_gib),
        settings=RunSettings(recipe=PLAIN),
        **{
            "recompute": (NONE, OFFLOAD, FULL),
            "zero_stages": (1,),
            "context": ONE,
            "tensor": ONE,
            "microbatch_size": ONE,
        }
        | allowed,
    )


def modes_of(found):
    return [option for stage in found.plan.stages for option in stage.option_of.values()]


CHAINS = {"schedules": ("1f1b", "zb-h1"), "pipeline": Span.only(2)}
LOOPS = {"schedules": ("interleaved",), "pipeline": Span(least=2)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "question",
    [
        pytest.param(small(12, layers=5, batch=2), id="beside recomputation"),
        pytest.param(small(10.5, link=200, **CHAINS), id="a fast link, two families"),
        pytest.param(small(12, **LOOPS), id="loops"),
        pytest.param(small(9, recompute=(OFFLOAD, FULL), **CHAINS), id="no layer keeps all"),
    ],
)
def test_the_planner_finds_what_exhaustion_finds(question):
    outcome, least_s = plan_model(question, Budget()), least_step_s(question)
    found = outcome.priced[0]
    assert found.step.step_time_s == pytest.approx(least_s, rel=1e-9)
    assert outcome.lower_bound_s <= least_s * (1 + 1e-12)
    assert OFFLOAD in modes_of(found)


@pytest.mark.parametrize("share", [0.5, 0.7, 0.9])
@pytest.mark.parametrize("family", ["1f1b", "zb-h1"])
def test_blocks_that_all_wait_for_the_host_are_planned_as_exhaustion_plans_them(share, family):
    """What keeps more waits longer; with such waits in the forward, bounds were too high."""
    a100 = catalog.cluster("dgx-a100").with_nodes(1)
    question = asked(
        replace(LLAMA, num_layers=2, vocabulary_size=32000),
        devices=2,
        batch=4,
        memory_gib=6,
        sequence=8192,
        cluster=a100,
        settings=RunSettings(recipe=replace(PLAIN, offload=Offload(activations=share))),
        schedules=(family,),
        pipeline=Span.only(2),
        recompute=(NONE, FULL),
        zero_stages=(1,),
        context=ONE,
        tensor=ONE,
        microbatch_size=ONE,
    )
    outcome, least_s = plan_model(question, Budget()), least_step_s(question)
    assert outcome.lower_bound_s <= least_s * (1 + 1e-12)
    assert outcome.priced[0].step.step_time_s == pytest.approx(least_s, rel=1e-9)


@pytest.mark.parametrize(("family", "memory_gib"), [("1f1b", 6), ("zb-h1", 6), ("interleaved", 7)])
@pytest.mark.parametrize("link", [4, 20])
@pytest.mark.parametrize("modules", [("core_attn",), ("qkv_linear", "core_attn", "attn_proj")])
def test_modules_on_the_host_are_planned_as_exhaustion_plans_them(
    modules, link, family, memory_gib
):
    """Selective recomputation drops a part of what modules would move, so that it may be faster."""
    recipe = replace(PLAIN, offload=Offload(activations=1.0), offload_modules=modules)
    question = asked(
        replace(LLAMA, num_layers=4, vocabulary_size=32000),
        devices=2,
        batch=4,
        memory_gib=memory_gib,
        sequence=8192,
        cluster=linked(link),
        settings=RunSettings(recipe=recipe),
        schedules=(family,),
        pipeline=Span.only(2),
        recompute=(NONE, Recompute.SELECTIVE),
        zero_stages=(1,),
        context=ONE,
        tensor=ONE,
    )
    outcome, least_s = plan_model(question, Budget()), least_step_s(question)
    assert outcome.lower_bound_s <= least_s * (1 + 1e-12)
    assert outcome.priced[0].step.step_time_s == pytest.approx(least_s, rel=1e-9)
    assert set(modes_of(outcome.priced[0])) == {NONE, Recompute.SELECTIVE}


@pytest.mark.parametrize("link", [0.1, 55, 450])
def test_modes_share_their_forward_and_split_what_is_kept(link):
    """Bounds on chains rest on the former; a link that is slow moves little, a fast one all."""
    (found, *_) = plan_model(small(40, link=link, recompute=(NONE, OFFLOAD)), Budget()).priced
    costs = found.profile.costs
    block = next(n for n in range(costs.num_classes) if len(costs.rows_of(n)) == 2)
    kept, moving = costs.rows_of(block)
    assert costs.phases.forward_s[kept] == costs.phases.forward_s[moving]
    assert costs.duration_s[kept] < costs.duration_s[moving] < 1.05 * costs.duration_s[kept]
    left = costs.saved_bytes[moving] / costs.saved_bytes[kept]
    beside = costs.transient_bytes[moving] - costs.transient_bytes[kept]
    assert beside == pytest.approx(2 * (1 - left) * costs.saved_bytes[kept])
    assert (left > 0.99, left == 0) == (link < 1, link > 100)
    assert set(modes_of(found)) == {NONE}  # what takes no room is not moved


def test_it_pays_where_recomputation_takes_longer():
    question = small(13, layers=5, batch=2)
    without = replace(question, allowed=replace(question.allowed, recompute=(NONE, FULL)))
    lighter, heavier = (plan_model(each, Budget()) for each in (question, without))
    assert lighter.priced[0].step.step_time_s < 0.96 * heavier.priced[0].step.step_time_s
    assert lighter.lower_bound_s <= heavier.lower_bound_s


@pytest.mark.parametrize("host_gib", [0.3, 1.6])
def test_no_plan_leaves_more_on_a_host_than_it_has(host_gib):
    question = small(13, layers=5, batch=2, host_gib=host_gib)
    outcome = plan_model(question, Budget())
    roomy = plan_model(small(13, layers=5, batch=2), Budget())
    found = outcome.priced[0]
    held = bytes_on_host(question, found.plan, found.profile, found.step)
    assert held <= host_gib * GIB
    # The bound is that of a host with room, which the plan no longer reaches.
    assert outcome.lower_bound_s == pytest.approx(roomy.lower_bound_s)
    assert found.step.step_time_s > roomy.priced[0].step.step_time_s


def test_what_leaves_the_device_is_what_the_host_holds():
    question = small(13, layers=5, batch=2)
    (found, *_) = plan_model(question, Budget()).priced
    profile = found.profile
    costs = profile.costs
    block = next(n for n in range(costs.num_classes) if len(costs.rows_of(n)) == 3)
    kept = {costs.recompute[row]: costs.saved_bytes[row] for row in costs.rows_of(block)}
    moved = kept[NONE] - kept[OFFLOAD]
    assert moved > 0
    counts = [list(stage.option_of.values()).count(OFFLOAD) for stage in found.plan.stages]
    in_flight = [rank.memory.microbatches_in_flight for rank in found.step.stages]
    told = host_bytes_of_ranks(question, found.plan, profile, found.step)
    expected = [moved * count * held for count, held in zip(counts, in_flight, strict=True)]
    assert told == pytest.approx(expected)


def test_it_is_searched_only_where_it_is_named():
    assert OFFLOAD not in EVERYTHING.recompute
    usual = replace(small(60), settings=RunSettings(), allowed=EVERYTHING)
    asked_for = replace(EVERYTHING, recompute=(NONE, OFFLOAD, FULL))
    assert frameworks_for(usual)[0][0] == "megatron"
    able, why_not = frameworks_for(replace(usual, allowed=asked_for))
    assert able == ("pytorch",)
    moved = "all that some blocks keep, or modules of every block"
    assert f"must not list offload: megatron moves {moved}; plan with" in why_not
    framed = replace(usual, allowed=replace(asked_for, framework="megatron"))
    with pytest.raises(InvalidInput, match="what can: pytorch"):
        plan_runnable(framed, Budget())


def test_the_link_has_one_user():
    recipe = replace(PLAIN, offload=Offload(activations=0.5))
    with pytest.raises(InvalidInput, match="must not list offload where all blocks leave a share"):
        replace(small(13), settings=RunSettings(recipe=recipe))
    question = small(13, pipeline=Span.only(2), schedules=("po-f",))
    for found in plan_model(question, Budget()).priced:
        assert OFFLOAD not in modes_of(found)
