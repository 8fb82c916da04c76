"""Plans on several pools against exhaustion: every legal plan of a small space, priced."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import partial

import pytest

from exhaustive_pools import (
    CASES,
    asked,
    coarse_bound_s,
    every_candidate,
    every_step_s,
    exhausted,
    is_launched,
    pair,
)
from exhaustive_profiles import drawn_on_pools
from mixed_clusters import ETHERNET
from trainwright.errors import TrainwrightError
from trainwright.execution import Budget
from trainwright.planning.bounds.pools import Across, MixedShelf, beside_grid
from trainwright.planning.question.question import ModelQuestion, Point, Span
from trainwright.planning.search.pools import (
    MixedLayouts,
    host_bytes_by_rank,
    plan_mixed,
    plan_on_pools,
)
from trainwright.planning.splits.pools import best_mixed_split

NAMED = re.compile("hosts|copies|slices|heads|many held|unlike|in V|in loops")
MARKS = {
    **dict.fromkeys(("small", "tied", "nothing hidden", "alike, in step"), ()),
    **dict.fromkeys(("tight A100", "slow joint", "all hidden"), pytest.mark.slow),
    **{name: pytest.mark.slow for name in CASES if NAMED.search(name)},
}
IN_TURN = [pytest.param(name, marks=MARKS.get(name, pytest.mark.papers)) for name in CASES]


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_TURN)
def test_no_plan_on_two_pools_is_faster_than_the_planners(name: str) -> None:
    outcome = plan_mixed(CASES[name], Budget())
    best_s = outcome.priced[0].step.step_time_s
    least_s = min(least for _, least in exhausted(name))
    alone_s = [p.step.step_time_s for p in outcome.priced if p.shape.name == "alone"]
    assert outcome.lower_bound_s <= min(best_s, least_s) * (1 + 1e-12)
    assert best_s == pytest.approx(min([least_s, *alone_s]), rel=1e-9)


@pytest.mark.parametrize("name", IN_TURN)
def test_the_bounds_of_a_candidate_hold_for_all_its_plans(name: str) -> None:
    question = CASES[name]
    shelf = MixedShelf.of(question)
    sharp = []
    for candidate, least_s in exhausted(name):
        split = best_mixed_split(shelf, candidate)
        assert split.bound_s <= least_s * (1 + 1e-12)
        assert coarse_bound_s(question, shelf, candidate) <= least_s * (1 + 1e-9)
        if math.isfinite(least_s):
            sharp.append(split.bound_s / least_s)
    # With few microbatches ranks wait for barriers of a cut head, and for chunks of each other,
    # which bounds leave out.
    least, most = (0.5, 0.95) if re.search("heads|in V|in loops", name) else (0.8, 0.999)
    assert min(sharp) > least
    assert max(sharp) > most


def test_the_exchange_of_a_tied_tensor_between_pools_is_in_the_bound() -> None:
    shelf = MixedShelf.of(CASES["tied"])
    found = [
        (candidate, best_mixed_split(shelf, candidate).bound_s / least_s)
        for candidate, least_s in exhausted("tied")
        if math.isfinite(least_s) and isinstance(candidate, Across)
    ]
    assert max(ratio for _, ratio in found) <= 1 + 1e-12
    deep = [ratio for candidate, ratio in found if candidate.degrees.pipeline == 2]
    assert min(deep) > 0.95


@pytest.mark.parametrize("family", ["1f1b", "zb-h1"])
@pytest.mark.parametrize("depths", [(1, 1), (2, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("pools", [(0, 1), (1, 0)])
def test_a_tied_tensor_may_lie_in_the_first_pool_before_few_layers_of_others(
    pools: tuple[int, int], depths: tuple[int, int], family: str
) -> None:
    """A pool behind that has the loss alone spares the exchange, and makes the first one slow."""
    shelf = MixedShelf.of(CASES["tied"])
    candidate = Across(
        point=Point(microbatch_size=1, tensor=1),
        zero_stage=1,
        schedule=family,
        pools=pools,
        depths=depths,
        data=1,
    )
    least_s = min(every_step_s(CASES["tied"], shelf, candidate))
    assert 0.9 * least_s < best_mixed_split(shelf, candidate).bound_s <= least_s * (1 + 1e-12)


def test_layers_wait_on_hosts_that_have_room() -> None:
    case = CASES["layers on hosts, more room"]

    def most_held(question: ModelQuestion) -> float:
        found = plan_mixed(question, Budget())
        assert found.lower_bound_s == pytest.approx(roomy.lower_bound_s, rel=1e-12)
        shelf = MixedShelf.of(question)
        return max(max(host_bytes_by_rank(shelf, own), default=0.0) for own in found.priced)

    roomy = plan_mixed(case, Budget())
    held = most_held(case)
    assert 0 < most_held(with_hosts(case, 1.001 * held)) == held
    assert most_held(with_hosts(case, 0.999 * held)) <= 0.999 * held
    assert most_held(with_hosts(case, 1.0)) == 0.0


def with_hosts(question: ModelQuestion, memory_bytes: float) -> ModelQuestion:
    """The question with so much memory on the hosts of all devices."""
    pools = []
    for pool in question.cluster.pools:
        device = pool.accelerator
        assert device.host is not None
        host = replace(device.host, memory_bytes=memory_bytes)
        pools.append(replace(pool, accelerator=replace(device, host=host)))
    return replace(question, cluster=replace(question.cluster, pools=tuple(pools)))


def test_one_pool_is_the_case_of_one() -> None:
    cluster = pair()
    question = asked(replace(cluster, pools=cluster.pools[1:], joint=None))
    general = plan_mixed(question, Budget())
    plain = plan_on_pools(question, Budget())
    (found,), (expected,) = general.priced, plain.priced
    (chain,) = found.step.chains
    whole = replace(chain.step, tokens_per_s=found.step.tokens_per_s, mfu=found.step.mfu)
    assert replace(whole, hfu=expected.step.hfu) == expected.step
    assert found.step.step_time_s == expected.step.step_time_s
    assert [stage.layers for stage in found.plan.stages] == [
        stage.layers for stage in expected.plan.stages
    ]
    assert replace(general, priced=()) == replace(
        plain, priced=(), lower_bound_one_stage_s=None, loosest=None
    )


@pytest.mark.parametrize("name", ["small", pytest.param("tight A100", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("pipeline", "data"), [(1, 4), (2, 2), (1, 2), (2, 1)])
def test_no_plan_that_a_framework_launches_on_two_pools_is_faster(
    name: str, pipeline: int, data: int
) -> None:
    case = CASES[name]
    fixed = {"pipeline": Span.only(pipeline), "data": Span.only(data), "zero_stages": (1,)}
    question = replace(
        case,
        workload=replace(case.workload, global_batch=4),
        allowed=replace(case.allowed, framework="megatron", **fixed),
    )
    shelf = MixedShelf.of(replace(question, allowed=replace(question.allowed, framework=None)))
    found, least_s = plan_mixed(question, Budget()), math.inf
    launched = partial(is_launched, cluster=question.cluster)
    for candidate in every_candidate(question):
        if (candidate.degrees.pipeline, candidate.degrees.data) == (pipeline, data):
            steps_s = every_step_s(question, shelf, candidate, allows=launched)
            least_s = min((least_s, *steps_s))
    alone_s = [p.step.step_time_s for p in found.priced if p.shape.name == "alone"]
    best = found.priced[0]
    assert best.step.step_time_s == pytest.approx(min([least_s, *alone_s]), rel=1e-9)
    assert found.lower_bound_s <= best.step.step_time_s * (1 + 1e-12)
    assert all(launched(p.plan) for p in found.priced if p.shape.name != "alone")
    assert bool(alone_s) == (pipeline * data <= 2)


def test_the_bounds_of_replicas_alike_hold_for_all_their_plans() -> None:
    case = replace(CASES["small"], workload=replace(CASES["small"].workload, global_batch=4))
    question = replace(case, allowed=replace(case.allowed, framework="megatron"))
    shelf, sharp = MixedShelf.of(question), []
    launched = partial(is_launched, cluster=question.cluster)
    for candidate in every_candidate(question):
        steps_s = every_step_s(question, shelf, candidate, allows=launched)
        if isinstance(candidate, Across) or not steps_s:
            continue
        least_s = min(steps_s)
        split = best_mixed_split(shelf, candidate)
        assert split.bound_s <= least_s * (1 + 1e-12)
        coarse_s = coarse_bound_s(question, shelf, candidate)
        assert coarse_s <= least_s * (1 + 1e-9)
        sharp.append(coarse_s / least_s)
    assert max(sharp) > 0.9


def test_replicas_alike_are_asked_for_only_where_nodes_can_hold_them() -> None:
    for nodes, data, is_kept in ((2, 2, True), (1, 2, False)):
        cluster = pair(2)
        level = replace(ETHERNET, name="between", size=2)
        pools = [replace(pool, levels=(*pool.levels, level)) for pool in cluster.pools]
        pools[1] = pools[1].with_nodes(nodes)
        question = asked(
            replace(cluster, pools=tuple(pools)),
            framework="megatron",
            pipeline=Span.only(2),
            data=Span.only(data),
        )
        point = Point(microbatch_size=1, tensor=1)
        grid = beside_grid(question, point, (0, 1))
        assert ((1, 1) in map(tuple, grid.counts.tolist())) == is_kept


def test_a_family_that_was_named_alone_is_asked_for_on_one_rank_too() -> None:
    """Where replicas are one rank deep all families are one, whichever that is."""
    question = asked(pair(), schedules=("zb-h1",), pipeline=Span.only(1))
    found = MixedLayouts(MixedShelf.of(question)).bounded(Point(microbatch_size=1, tensor=1))
    assert any(each.shape.name == "beside" for each in found)


def test_pools_without_a_common_format_are_refused_by_the_field() -> None:
    cluster = pair()
    old = cluster.pools[0]
    device = replace(old.accelerator, peak_flops_per_s=(("fp16", 1e14),))
    mixed = replace(cluster, pools=(replace(old, accelerator=device), cluster.pools[1]))
    only = replace(
        mixed.pools[1],
        accelerator=replace(mixed.pools[1].accelerator, peak_flops_per_s=(("bf16", 1e15),)),
    )
    question = asked(replace(mixed, pools=(mixed.pools[0], only)))
    with pytest.raises(TrainwrightError, match=r"^precision: .* share no 16-bit format"):
        MixedShelf.of(question)


MEASURED = [pytest.param(seed, marks=() if seed < 6 else pytest.mark.slow) for seed in range(20)]


@pytest.mark.parametrize("seed", MEASURED)
def test_a_profile_on_two_pools_of_its_device_is_planned_as_exhaustion_does(seed: int) -> None:
    question = drawn_on_pools(seed)
    shelf, shards = MixedShelf.of(question), question.model.tells_state_apart
    least_s = math.inf
    for candidate in every_candidate(question):
        is_measured = (1, candidate.point.tensor) in question.model.offered
        if not is_measured or (candidate.zero_stage and not shards):
            continue
        own_s = min(every_step_s(question, shelf, candidate), default=math.inf)
        assert best_mixed_split(shelf, candidate).bound_s <= own_s * (1 + 1e-12)
        assert coarse_bound_s(question, shelf, candidate) <= own_s * (1 + 1e-9)
        least_s = min(least_s, own_s)
    outcome = plan_mixed(question, Budget())
    alone_s = [p.step.step_time_s for p in outcome.priced if p.shape.name == "alone"]
    best_s = outcome.priced[0].step.step_time_s if outcome.priced else math.inf
    assert outcome.lower_bound_s <= min(best_s, least_s) * (1 + 1e-12)
    least_s = min([least_s, *alone_s])
    if best_s < math.inf:  # what no cut of unlike layers by the recurrence reaches lies in the gap
        is_proved = outcome.lower_bound_s >= best_s * (1 - 1e-9)
        assert least_s <= best_s * (1 + 1e-9)
        assert best_s <= least_s * (1 + (1e-9 if is_proved else 0.01))
    else:
        assert least_s == math.inf
