"""Plans under other schedules: replayed on their own, against bounds, and where memory is short."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from chips.jobs import GPT3, job, question, some_designs
from trainwright.chips.plans import Shape, UniformPlan, num_chunks, order_of, ratios
from trainwright.chips.price import JobPricer
from trainwright.chips.search import search
from trainwright.chips.workload import SCHEDULES, Chain, TrainingJob
from trainwright.cluster import Surroundings
from trainwright.errors import InvalidInput
from trainwright.execution import Budget
from trainwright.plans.schedule import ActionKind, Schedule, ScheduleCosts
from trainwright.plans.status import Status
from trainwright.profile import Recompute
from trainwright.scheduling.families import FamilyRequest, family_named
from trainwright.scheduling.simulate import simulate
from trainwright.units import GIB

SMALL = job("gpt2-xl", 1024, (1,), layers=14, global_batch=64)


def only(family: str, base: TrainingJob = SMALL) -> TrainingJob:
    return replace(base, schedules=("1f1b", family))


def orders(chain: Chain, plan: UniformPlan, m: int) -> Schedule:
    """The family's orders, from the family."""
    option = chain.recompute.index(plan.recompute[0])
    input_grad, weight_grad = ratios(chain, option)
    request = FamilyRequest(num_ranks=plan.num_ranks, num_microbatches=m)
    family = family_named(plan.schedule)
    costs = ScheduleCosts.of(
        family.place(request), input_grad_s=input_grad, weight_grad_s=weight_grad
    )
    found = family.generate(replace(request, costs=costs))
    assert found is not None
    return found


def fullest_bytes(chain: Chain, plan: UniformPlan, schedule: Schedule, rank: int) -> float:
    """What a rank holds at most, action by action."""
    option = chain.recompute.index(plan.recompute[0])
    stages = plan.stages(chain.layer_class.size)
    owned = schedule.placement.stages_of_rank[rank]
    classes = {s: chain.layer_class[stages[s].start : stages[s].stop] for s in owned}
    held = sum(
        chain.static_bytes[c, 0, :2].sum() + chain.static_bytes[c, 0, 2].sum() / plan.data_degree
        for c in classes.values()
    )
    most = held
    for kind, stage, _ in schedule.actions[schedule.rows_of(rank)].tolist():
        c = classes[stage]
        saved, pending = chain.saved_bytes[option, c].sum(), chain.pending_bytes[c].sum()
        if kind == ActionKind.F:
            held += saved
            most = max(most, held)
        elif kind == ActionKind.I:
            running = chain.transient_bytes[option, c].max() + chain.restored_bytes[option, c].sum()
            most = max(most, held + running)
            held += pending - saved
        else:
            held -= pending
    return float(most)


@pytest.mark.parametrize("family", SCHEDULES[1:])
@pytest.mark.parametrize("mode", [Recompute.NONE, Recompute.FULL])
def test_plans_run_as_long_and_hold_as_much_as_a_replay_says(family: str, mode: Recompute) -> None:
    batch, memory_gib = (64, 3.0) if mode is Recompute.NONE else (4, 2.5)
    trained = replace(only(family), recompute=(mode,), global_batch=batch)
    asked = question(trained, space=some_designs(3, 4), devices=8, memory_gib=memory_gib)
    variant = asked.variants[0]
    pricer = JobPricer(trained, variant, asked)
    times = pricer.times(np.arange(3))
    plans = pricer.plans(times, np.full(3, np.inf))
    chain, links = pricer.chains[0], variant.surroundings
    replayed = 0
    for row, plan in enumerate(plans):
        assert plan is not None
        if plan.schedule == "1f1b":
            continue
        replayed += 1
        m = trained.num_microbatches // plan.data_degree
        schedule = orders(chain, plan, m)
        option = chain.recompute.index(mode)
        stages = [chain.layer_class[s.start : s.stop] for s in plan.stages(chain.layer_class.size)]
        weight = np.array([times[0].weight_grad_s[row, s].sum() for s in stages])
        backward = np.array([times[0].backward_s[row, option, s].sum() for s in stages])
        transfer = chain.transfer_s(links)[[start - 1 for start in plan.starts[1:]]]
        line = simulate(
            schedule,
            ScheduleCosts.of(
                schedule.placement,
                forward_s=np.array([times[0].forward_s[row, s].sum() for s in stages]),
                input_grad_s=backward - weight,
                weight_grad_s=weight,
                transfer_s=transfer,
            ),
        )
        d, step_s = plan.data_degree, 0.0
        for rank, owned in enumerate(schedule.placement.stages_of_rank):
            update = sum(times[0].update_s[row, stages[s]].sum() for s in owned) / d
            ring_s = sum(
                2 * (d - 1) * (links.link_latency_s + sync / d / links.link_bandwidth_bytes_per_s)
                for s in owned
                if (sync := chain.sync_bytes[stages[s]].sum())
            )
            end_s = line.end_s[schedule.rows_of(rank)].max()
            step_s = max(step_s, end_s + ring_s + update)
            assert fullest_bytes(chain, plan, schedule, rank) <= links.memory_bytes * (1 + 1e-12)
        assert plan.step_s == pytest.approx(step_s, rel=1e-12)
    assert replayed, "no design runs the family"


@pytest.mark.slow
def test_more_families_are_never_slower() -> None:
    steps = []
    for count in (1, 2, 3, 4):
        trained = replace(GPT3, schedules=SCHEDULES[:count])
        asked = question(trained, space=some_designs(4, 3), devices=128, memory_gib=40)
        found = search(asked, Budget()).best
        assert found is not None
        steps.append(found.cost)
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] < steps[0]


@pytest.mark.parametrize("family", SCHEDULES[1:])
@pytest.mark.parametrize("ranks", [2, 5])
def test_ranks_together_keep_state_and_a_microbatch(family: str, ranks: int) -> None:
    chain, d = SMALL.chain(1), 2
    plan = UniformPlan(
        step_s=1.0,
        tensor_degree=1,
        data_degree=d,
        recompute=(Recompute.FULL,),
        starts=tuple(range(ranks * num_chunks(family))),
        schedule=family,
    )
    schedule = orders(chain, plan, 2 * ranks)
    held = sum(fullest_bytes(chain, plan, schedule, rank) for rank in range(ranks))
    full = chain.recompute.index(Recompute.FULL)
    state = chain.static_bytes[:, 0, :2].sum(axis=1) + chain.static_bytes[:, 0, 2] / d
    kept = state + chain.saved_bytes[full]
    assert held >= kept @ chain.class_counts


def test_that_nothing_fits_is_told_without_an_order() -> None:
    trained = replace(SMALL, schedules=SCHEDULES)
    asked = question(trained, space=some_designs(3, 4), devices=64, memory_gib=0.001)
    order_of.cache_clear()
    assert search(asked, Budget()).status is Status.INFEASIBLE
    assert order_of.cache_info().misses == 0


def test_bounds_hold_for_every_family() -> None:
    trained = replace(SMALL, schedules=SCHEDULES)
    asked = question(trained, space=some_designs(100, 12), devices=16, memory_gib=4)
    pricer = JobPricer(trained, asked.variants[0], asked)
    designs = np.arange(100)
    times = pricer.times(designs)
    plans = pricer.plans(times, np.full(100, np.inf))
    steps = np.array([np.inf if plan is None else plan.step_s for plan in plans])
    assert (pricer.ideal_bounds_s(designs) <= pricer.work_bounds_s(times)).all()
    assert (pricer.work_bounds_s(times) <= steps).all()
    assert {plan.schedule for plan in plans if plan is not None} - {"1f1b"}


@pytest.mark.slow
def test_little_memory_wins_with_v_half() -> None:
    """16 GiB a chip, 175 billion parameters: half the activations, no recomputation."""
    little = replace(Surroundings(), memory_bytes=16 * GIB)
    steps = {}
    for families in (("1f1b",), ("1f1b", "v-half")):
        trained = replace(GPT3, global_batch=1024, schedules=families)
        asked = replace(
            question(trained, space=some_designs(6, 3), devices=1024), surroundings=(little,)
        )
        found = search(asked, Budget()).best
        assert found is not None
        steps[families] = found
    without, beside = steps.values()
    assert beside.plans[0].schedule == "v-half"
    assert beside.cost < without.cost


def test_orders_hold_what_their_family_promises() -> None:
    for p in (4, 6, 8):
        for family, most in (("v-half", 2 * (p // 2) + 2), ("v-min", 2 * ((p + 4) // 3))):
            order = order_of(
                Shape(
                    family=family, num_ranks=p, num_microbatches=2 * p, input_grad=1, weight_grad=1
                )
            )
            assert order is not None
            schedule = family_named(family).generate(
                FamilyRequest(num_ranks=p, num_microbatches=2 * p)
            )
            assert schedule is not None
            kinds = schedule.actions[:, 0]
            for rank in range(p):
                mine = kinds[schedule.rows_of(rank)]
                alive = np.cumsum(mine == ActionKind.F) - np.cumsum(mine == ActionKind.W)
                assert alive.max() <= most


def test_a_search_without_1f1b_is_refused() -> None:
    with pytest.raises(InvalidInput, match="1f1b"):
        replace(SMALL, schedules=("v-half",))


def test_a_plan_in_v_sends_nothing_at_its_turn() -> None:
    plan = UniformPlan(
        step_s=1.0,
        tensor_degree=1,
        data_degree=1,
        recompute=(Recompute.NONE,) * 4,
        starts=(0, 3, 6, 9),
        schedule="v-half",
    )
    assert plan.num_ranks == 2
    assert plan.num_devices == 2
    assert plan.crossed_cuts == (3, 9)
