"""The search against pricing everything, and what it promises."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from chips.jobs import BERT, GPT2_XL, GPT3, SPACE, job, question, some_designs
from trainwright.chips.population import populate, recheck
from trainwright.chips.price import JobPricer
from trainwright.chips.request import CodesignQuestion, Objective, cost
from trainwright.chips.search import (
    PEAK,
    PLACEMENT,
    POWER,
    WORK,
    reference_steps_s,
    scale_of,
    search,
)
from trainwright.chips.space import subspace
from trainwright.chips.workload import SCHEDULES
from trainwright.cluster import Surroundings
from trainwright.errors import InvalidInput
from trainwright.execution import Budget, Progress
from trainwright.plans.status import Status
from trainwright.profile import Recompute
from trainwright.units import GIB

SPACES = [(seed, devices) for seed in (2, 3, 4) for devices in (64, 1000, 1024)]
EACH_ONCE = ((2, 64), (3, 1000), (4, 1024))  # all others at length


def exhaustive(asked: CodesignQuestion) -> float:
    found, finished = populate(asked, Budget(), scale_s=scale_of(asked, Budget()))
    assert finished
    return float(found.cost.min())


@pytest.mark.parametrize("seed", [1])
def test_the_search_equals_pricing_every_design(seed: int) -> None:
    asked = question(GPT3, space=some_designs(1000, seed), devices=1024)
    found = search(asked, Budget())
    assert found.status is Status.OPTIMAL
    assert found.best is not None
    assert found.best.cost == exhaustive(asked) == found.lower_bound
    assert found.ledger.count(PLACEMENT) < 0.1 * len(asked.space)
    assert sum(found.ledger.count(level) for level in (PEAK, WORK, PLACEMENT)) == 1000


@pytest.mark.parametrize(
    "schedules",
    [
        pytest.param(("1f1b",), marks=pytest.mark.papers, id="1f1b"),
        pytest.param(SCHEDULES, marks=pytest.mark.papers, id="all families"),
    ],
)
def test_the_whole_space_has_no_better_design(schedules: tuple[str, ...]) -> None:
    """All 29,360 designs priced, with both tensor degrees and both recompute settings."""
    asked = question(replace(GPT3, schedules=schedules), space=SPACE, devices=1024)
    found = search(asked, Budget())
    assert found.best is not None
    assert found.best.cost == exhaustive(asked) == found.lower_bound


@pytest.mark.slow
def test_the_whole_space_is_searched_with_few_placements() -> None:
    asked = question(GPT3, space=SPACE, devices=1024)
    found = search(asked, Budget())
    assert found.status is Status.OPTIMAL
    assert found.ledger.count(PLACEMENT) < 0.02 * len(SPACE)
    assert found.solver_s < 30  # 0.3 s on a quiet machine
    again = recheck(asked, found, Budget(), sample=300, seed=7)
    assert again.sampled == again.confirmed == 300


@pytest.mark.parametrize("objective", list(Objective))
def test_several_models_share_the_design_that_pricing_everything_finds(
    objective: Objective,
) -> None:
    asked = question(GPT3, BERT, GPT2_XL, space=some_designs(80, 5), objective=objective)
    found = search(asked, Budget())
    assert found.best is not None
    assert found.best.cost == exhaustive(asked)
    assert len(found.best.plans) == 3


def test_one_model_is_its_step_time_whatever_the_objective() -> None:
    costs = set()
    for objective in Objective:
        found = search(question(BERT, objective=objective), Budget()).best
        assert found is not None
        assert found.cost == found.plans[0].step_s
        costs.add(found.cost)
    assert len(costs) == 1


def test_no_bound_exceeds_the_plan_it_bounds() -> None:
    asked = question(GPT3, space=some_designs(400, 11), devices=512)
    pricer = JobPricer(GPT3, asked.variants[0], asked)
    designs = np.arange(len(asked.space))
    times = pricer.times(designs)
    ideal, work = pricer.ideal_bounds_s(designs), pricer.work_bounds_s(times)
    plans = pricer.plans(times, np.full(designs.size, np.inf))
    steps = np.array([plan.step_s for plan in plans if plan is not None])
    assert steps.size == designs.size
    assert (ideal <= work).all()
    assert (work <= steps).all()


def test_pruned_designs_that_would_be_better_are_reported() -> None:
    asked = question(BERT)
    found = search(asked, Budget())
    assert found.best is not None
    doctored = replace(found, best=replace(found.best, cost=1e9))
    doctored.ledger.levels[found.best.variant, found.best.index] = WORK
    checked = recheck(asked, doctored, Budget(), sample=len(asked.space))
    assert checked.contradictions


def test_a_power_limit_is_kept_and_costs_throughput() -> None:
    free = search(question(BERT), Budget())
    assert free.best is not None
    asked = question(BERT)
    watts = JobPricer(BERT, asked.variants[0], asked).hungriest_watts(np.arange(len(asked.space)))
    limit = float(watts[free.best.index]) * 0.5
    capped = search(replace(asked, max_power_watts=limit), Budget())
    assert capped.best is not None
    assert watts[capped.best.index] <= limit
    assert capped.best.cost > free.best.cost
    assert capped.ledger.count(POWER) > 0


def test_a_model_that_fits_nowhere_is_infeasible() -> None:
    found = search(question(GPT3, devices=8, memory_gib=16), Budget())
    assert found.status is Status.INFEASIBLE
    assert found.best is None


def test_a_model_that_fits_nowhere_excludes_designs_for_all() -> None:
    assert search(question(BERT, GPT3, devices=8, memory_gib=16), Budget()).best is None


def test_an_interrupted_search_keeps_its_best_and_a_bound() -> None:
    asked = question(BERT, space=SPACE)
    full = search(asked, Budget())
    budget = Budget()
    seen: list[Progress] = []

    def stop(progress: Progress) -> None:
        seen.append(progress)
        if len(seen) == 2:
            budget.interrupt()

    budget.on_progress = stop
    found = search(asked, budget)
    if found.status is Status.OPTIMAL:  # a single batch was enough
        assert len(seen) < 2
        return
    assert found.status is Status.GAP
    assert found.best is not None
    assert full.best is not None
    assert found.lower_bound is not None
    assert found.lower_bound <= full.best.cost <= found.best.cost


def test_a_search_stopped_before_it_starts_knows_nothing() -> None:
    budget = Budget()
    budget.interrupt()
    found = search(question(BERT), budget)
    assert found.status is Status.UNKNOWN
    assert found.best is None


@pytest.mark.parametrize("field", ["memory_bandwidth_bytes_per_s", "link_bandwidth_bytes_per_s"])
def test_more_bandwidth_never_lowers_the_best_throughput(field: str) -> None:
    costs = []
    for factor in (0.25, 1.0, 4.0):
        around = Surroundings()
        more = replace(around, **{field: getattr(around, field) * factor})
        found = search(replace(question(BERT, devices=64), surroundings=(more,)), Budget()).best
        assert found is not None
        costs.append(found.cost)
    assert costs == sorted(costs, reverse=True)


def test_variants_are_searched_as_nested_loops_would() -> None:
    around = [Surroundings(memory_bytes=m * GIB) for m in (16, 80)]
    asked = replace(
        question(BERT, space=some_designs(60, 3), devices=64),
        surroundings=tuple(around),
        microbatch_sizes=(1, 2, 4),
    )
    found = search(asked, Budget()).best
    assert found is not None
    single = []
    for one in around:
        for size in (1, 2, 4):
            alone = replace(asked, surroundings=(one,), microbatch_sizes=(size,))
            best = search(alone, Budget()).best
            single.append(np.inf if best is None else best.cost)
    assert found.cost == min(single)


def test_a_geometric_mean_does_not_change_when_one_model_is_rescaled() -> None:
    steps = np.array([[1.0, 8.0], [2.0, 3.0], [4.0, 1.0]])
    weights, scale = np.array([0.5, 0.5]), np.array([1.0, 1.0])
    before = cost(Objective.GEOMETRIC, steps, scale_s=scale, weights=weights)
    rescaled = steps * np.array([0.001, 1.0])
    after = cost(Objective.GEOMETRIC, rescaled, scale_s=scale, weights=weights)
    assert np.argsort(before).tolist() == np.argsort(after).tolist()
    arithmetic = [
        int(np.argmin(cost(Objective.ARITHMETIC, s, scale_s=scale, weights=weights)))
        for s in (steps, rescaled)
    ]
    assert arithmetic[0] != arithmetic[1]  # the small model decides


def test_regret_is_never_below_one_and_is_one_for_a_model_alone_at_its_best() -> None:
    asked = question(BERT, GPT2_XL, objective=Objective.REGRET, space=some_designs(100, 2))
    found = search(asked, Budget()).best
    assert found is not None
    assert found.cost >= 1


def test_the_reference_is_what_throughput_is_relative_to() -> None:
    asked = question(BERT, GPT2_XL)
    assert (reference_steps_s(asked) > 0).all()
    assert scale_of(asked, Budget()).tolist() == reference_steps_s(asked).tolist()


def test_the_answer_does_not_depend_on_the_order_of_designs() -> None:
    asked = question(BERT, space=some_designs(150, 9))
    backwards = replace(asked, space=subspace(asked.space, np.arange(149, -1, -1)))
    first, second = search(asked, Budget()).best, search(backwards, Budget()).best
    assert first is not None
    assert second is not None
    assert first.cost == second.cost


@pytest.mark.parametrize(
    "change",
    [{"num_devices": 0}, {"jobs": ()}, {"max_power_watts": -1.0}, {"surroundings": ()}],
)
def test_questions_without_sense_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        replace(question(BERT), **change)  # type: ignore[arg-type]


def test_doubling_compute_time_and_link_time_double_the_step() -> None:
    tiny = job("bert-large", 512, (1,), layers=2, global_batch=64)
    base = Surroundings(launch_s=0.0)
    slower = replace(
        base,
        clock_hz=base.clock_hz / 2,
        memory_bandwidth_bytes_per_s=base.memory_bandwidth_bytes_per_s / 2,
        link_bandwidth_bytes_per_s=base.link_bandwidth_bytes_per_s / 2,
        link_latency_s=base.link_latency_s * 2,
    )
    steps = []
    for around in (base, slower):
        asked = replace(question(tiny, devices=8), surroundings=(around,))
        found = search(asked, Budget()).best
        assert found is not None
        steps.append(found.cost)
    assert steps[1] == pytest.approx(2 * steps[0], rel=1e-9)


@pytest.mark.parametrize(
    ("seed", "devices"),
    [
        pytest.param(*one, marks=pytest.mark.slow if one in EACH_ONCE else pytest.mark.papers)
        for one in SPACES
    ],
)
def test_more_random_spaces_are_searched_exactly(seed: int, devices: int) -> None:
    asked = question(GPT3, space=some_designs(1000, seed), devices=devices)
    found = search(asked, Budget())
    assert found.best is not None
    assert found.best.cost == exhaustive(asked)


@pytest.mark.slow
def test_of_equally_fast_designs_the_smallest_is_the_answer() -> None:
    asked = question(GPT3, space=some_designs(1500, 6), devices=1024)
    found = search(asked, Budget()).best
    assert found is not None
    everything, _ = populate(asked, Budget(), scale_s=np.ones(1))
    equal = everything.index[everything.cost == found.cost]
    assert asked.space.areas_um2[found.index] == asked.space.areas_um2[equal].min()


def test_nodes_with_links_like_those_between_them_are_a_flat_network() -> None:
    flat = Surroundings(link_latency_s=0.0, node_latency_s=0.0)
    nodes = replace(flat, node_devices=8)
    faster = replace(nodes, node_bandwidth_bytes_per_s=900e9)
    costs = []
    for around in (flat, nodes, faster):
        asked = replace(question(GPT3, devices=1024), surroundings=(around,))
        found = search(asked, Budget()).best
        assert found is not None
        costs.append(found.cost)
    assert costs[0] == costs[1] > costs[2]


def test_a_tensor_group_beyond_its_node_pays_for_the_links_between() -> None:
    small = Surroundings(node_devices=4, node_bandwidth_bytes_per_s=900e9)
    large = replace(small, node_devices=8)
    across = GPT3.chain(8).collective_s(small)
    inside = GPT3.chain(8).collective_s(large)
    assert all((across[phase] >= inside[phase]).all() for phase in across)
    assert any((across[phase] > inside[phase]).any() for phase in across)
    same = GPT3.chain(4)
    for phase, found in same.collective_s(small).items():
        assert (found == same.collective_s(large)[phase]).all()


def test_stages_that_recompute_as_they_need_are_never_slower() -> None:
    costs = {}
    for modes in ((Recompute.NONE,), (Recompute.FULL,), (Recompute.NONE, Recompute.FULL)):
        llama = job("llama2-7b", 4096, (1,), global_batch=32)
        asked = question(replace(llama, recompute=modes), devices=16, memory_gib=16)
        found = search(asked, Budget()).best
        costs[modes] = np.inf if found is None else found.cost
    *single, both = costs.values()
    assert both < min(single) < np.inf
