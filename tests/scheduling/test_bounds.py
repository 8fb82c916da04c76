"""Every bound against schedules of every origin: families, the search, plain enumeration."""

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from oracles_schedule_bounds import shortest_of_all_orders, shortest_s
from random_cases import cases
from reference import needs_reference, reference
from strategies_schedule import costs, placements, schedules, seconds
from trainwright._native import _core
from trainwright.errors import InvalidInput
from trainwright.plans.schedule import Placement, ScheduleCosts, ScheduleMemory, TransferModel
from trainwright.plans.status import BoundName, Objective
from trainwright.scheduling.bounds import (
    LeastCosts,
    LimitTooSmall,
    best_bound,
    crossings_bound,
    lower_bounds,
    two_ranks_bound,
)
from trainwright.scheduling.candidates import activation_steps
from trainwright.scheduling.families import FAMILIES, FamilyRequest
from trainwright.scheduling.simulate import simulate

ROUNDING = 1 + 1e-9


def assert_all_below(placement, num_microbatches, its_costs, value_s, objective, **known):
    least = LeastCosts.of(placement, its_costs, **known)
    bounds = lower_bounds(least, num_microbatches, objective=objective)
    searched = [of(least, num_microbatches, objective, 2_000) for of in (crossings, two_ranks)]
    for bound in (*bounds, *searched):
        assert bound.value_s <= value_s * ROUNDING + 1e-9, bound


def crossings(least, num_microbatches, objective, num_labels=20_000):
    return crossings_bound(least, num_microbatches, objective=objective, num_labels=num_labels)


def two_ranks(least, num_microbatches, objective, num_labels=20_000):
    plain_s = best_bound(least, num_microbatches, objective=objective).value_s
    return two_ranks_bound(
        least,
        num_microbatches,
        objective=objective,
        enough_s=10 * plain_s + 1,
        num_labels=num_labels,
    )


@st.composite
def limited_costs(draw: st.DrawFn, placement: Placement) -> ScheduleCosts:
    """Per-stage times of either backward, activations of several sizes, limits in bytes."""
    stages = placement.num_stages
    times = st.lists(seconds(), min_size=stages, max_size=stages)
    sizes = draw(st.lists(st.sampled_from([1.0, 2.0, 3.0]), min_size=stages, max_size=stages))
    freed_by_i = draw(st.sampled_from([0.0, 0.25, 0.5, 1.0, -0.25]))
    largest = 1 + max(0.0, -freed_by_i)
    room = st.sampled_from([0.0, 1.0, 2.0, 3.5, 6.0, math.inf])
    memory = ScheduleMemory.of(
        placement,
        forward_bytes=sizes,
        input_grad_bytes=[-freed_by_i * size for size in sizes],
        weight_grad_bytes=[(freed_by_i - 1) * size for size in sizes],
        limit_bytes=[
            largest * (sum(sizes[stage] for stage in owned) + draw(room))
            for owned in placement.stages_of_rank
        ],
    )
    split = draw(times), draw(times)
    return ScheduleCosts.of(
        placement,
        forward_s=draw(times),
        input_grad_s=split[0],
        weight_grad_s=split[1],
        backward_s=draw(st.sampled_from([None, np.add(*split) * 0.75, np.add(*split) + 0.5])),
        transfer_s=draw(seconds()) if stages > 1 else [],
        memory=memory,
    )


def searched_s(placement, num_microbatches, its_costs, objective, max_activations, fused):
    """What the core finds in a moment, with no bound to stop it; None where it finds nothing."""
    memory = its_costs.memory
    delta, room = [memory.delta_bytes], [memory.limit_bytes - memory.static_bytes]
    if max_activations is not None:
        delta.append(activation_steps(placement.num_stages))
        room.append(np.full(placement.num_ranks, float(max_activations)))
    problem = _core.StreamProblem(
        rank_of_stage=np.array(placement.rank_of_stage, np.int32),
        num_ranks=placement.num_ranks,
        num_microbatches=num_microbatches,
        duration_s=its_costs.duration_s,
        forward_transfer_s=its_costs.forward_transfer_s,
        backward_transfer_s=its_costs.backward_transfer_s,
        fused=fused,
        recomputed=np.zeros(placement.num_stages, np.bool_),
        resource_delta=np.vstack(delta),
        resource_transient=np.zeros_like(np.vstack(delta)),
        resource_room=np.vstack(room),
        objective=objective.value,
    )
    found = _core.search_schedule(
        problem, [], seed=0, work=400 * problem.num_actions, stop_at_s=0.0, poll=None
    )
    if not len(found.actions):
        return None
    return found.span_s if objective is Objective.SPAN else found.makespan_s


JOBS = st.lists(
    st.tuples(seconds(), seconds(), st.one_of(seconds(), st.just(-math.inf))), max_size=6
)


@given(JOBS)
def test_one_machine_takes_what_the_worst_set_of_jobs_needs(jobs):
    counted = [job for job in jobs if job[2] > -math.inf]
    worst_s = 0.0
    for size in range(1, len(counted) + 1):
        for chosen in itertools.combinations(counted, size):
            heads_s, work_s, tails_s = zip(*chosen, strict=True)
            worst_s = max(worst_s, min(heads_s) + sum(work_s) + min(tails_s))
    columns = np.array(jobs, np.float64).reshape(-1, 3).T
    found_s = _core.one_machine_s(*map(np.ascontiguousarray, columns))
    assert found_s == pytest.approx(worst_s)


def test_the_last_microbatch_of_few_goes_the_whole_way_whatever_the_host_holds():
    """Its eight forwards and input gradients and a weight gradient follow the first's forward.

    On the last rank one of them waits for the other's input gradient or forward: 1 + 8 + 1 + 8 + 1.
    """
    placement = Placement.loop(4, virtual_stages=2)
    least = LeastCosts.of(placement, ScheduleCosts.of(placement), max_activations=4, offload=True)
    bounds = {name: value for value, name in lower_bounds(least, 2, objective=Objective.MAKESPAN)}
    assert bounds[BoundName.MEMORY_PATH] == 19 > bounds[BoundName.RANK_WORK]


@st.composite
def small_cases(draw: st.DrawFn):
    placement = draw(
        st.one_of(
            st.integers(1, 4).map(Placement.v),
            st.integers(1, 4).map(Placement.loop),
            st.integers(1, 3).map(lambda p: Placement.loop(p, virtual_stages=2)),
            st.integers(1, 2).map(lambda p: Placement.wave(p, virtual_stages=3)),
            placements(max_ranks=3, max_stages=6),
        )
    )
    most = max(map(len, placement.stages_of_rank))
    limit = draw(st.sampled_from([None, most, most + 1, most + 2, most + 4]))
    return placement, draw(st.integers(1, 7)), draw(limited_costs(placement)), limit


@pytest.mark.parametrize("offload_s", [0.0, 0.5, 1.5, 4.0, 30.0])
@pytest.mark.parametrize("name", ["po-f", "po-h"])
def test_no_bound_with_copies_exceeds_a_family_that_copies_at_its_peak(name, offload_s):
    for p, m in ((2, 4), (4, 8), (8, 24)):
        request = FamilyRequest(num_ranks=p, num_microbatches=m, virtual_stages=2)
        schedule = FAMILIES[name].generate(request)
        costs = ScheduleCosts.of(schedule.placement, forward_s=2.0, offload_s=offload_s)
        timeline = simulate(schedule, costs)
        least = LeastCosts.of(
            schedule.placement,
            costs,
            max_activations=max(schedule.peak_activations),
            offload=True,
        )
        for objective in (Objective.SPAN, Objective.MAKESPAN):
            for bound in lower_bounds(least, m, objective=objective):
                assert bound.value_s <= objective.of(timeline) * (1 + 1e-9)


@pytest.mark.slow
@cases(150)
@given(small_cases(), st.sampled_from(Objective), st.sampled_from([True, False, None]))
def test_no_bound_exceeds_what_the_search_finds(case, objective, fused):
    placement, num_microbatches, its_costs, limit = case
    modes = np.full(placement.num_stages, bool(fused))
    value_s = searched_s(placement, num_microbatches, its_costs, objective, limit, modes)
    assume(value_s is not None)
    known = {"max_activations": limit, "fused": None if fused is None else modes}
    assert_all_below(placement, num_microbatches, its_costs, value_s, objective, **known)


@cases(100)
@given(st.data(), st.sampled_from(Objective))
def test_no_bound_exceeds_any_schedule_at_its_own_peaks(data, objective):
    """Backwards of one stage fused and split, recomputed, transfers of every model, transients."""
    schedule = data.draw(schedules(max_microbatches=5))
    its_costs = data.draw(costs(schedule.placement))
    timeline = simulate(schedule, its_costs)
    memory = its_costs.memory
    tight = ScheduleMemory(
        delta_bytes=memory.delta_bytes,
        transient_bytes=memory.transient_bytes,
        static_bytes=memory.static_bytes,
        limit_bytes=timeline.peak_bytes,
    )
    its_costs = ScheduleCosts(
        **{
            name: tight if name == "memory" else getattr(its_costs, name)
            for name in ScheduleCosts.__slots__
        }
    )
    peak = max(schedule.peak_activations)
    assert_all_below(
        schedule.placement,
        schedule.num_microbatches,
        its_costs,
        objective.of(timeline),
        objective,
        max_activations=peak,
    )


@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize("pair_s", [np.inf, 2.25, 0.5])
def test_no_bound_exceeds_a_family_at_its_peak(objective, pair_s):
    compared = 0
    for p, chunks in ((2, 1), (4, 1), (4, 2), (2, 3)):
        times = 1.0 + 0.25 * np.arange(p * chunks)
        for family in (known for known in FAMILIES.values() if known.is_plain):
            request = FamilyRequest(num_ranks=p, num_microbatches=3 * p, virtual_stages=chunks)
            if list(family.rules(request)):
                continue
            placement = family.place(request)
            its_costs = ScheduleCosts.of(
                placement,
                forward_s=times[0],
                weight_grad_s=np.resize(times, placement.num_stages),
                transfer_s=0.25,
                pair_s=pair_s,
            )
            schedule = family.generate(request)
            if schedule is None or isinstance(schedule, LimitTooSmall):
                continue
            timeline = simulate(schedule, its_costs)
            compared += 1
            assert_all_below(
                placement,
                3 * p,
                its_costs,
                objective.of(timeline),
                objective,
                max_activations=max(schedule.peak_activations),
            )
    assert compared > 20


@st.composite
def tiny_cases(draw: st.DrawFn):
    placement = draw(st.sampled_from([Placement.loop(2), Placement.v(1), Placement.v(2)]))
    stages = placement.num_stages
    times = st.lists(st.sampled_from([1.0, 2.0, 3.0]), min_size=stages, max_size=stages)
    its_costs = ScheduleCosts.of(
        placement,
        forward_s=draw(times),
        input_grad_s=draw(times),
        weight_grad_s=draw(times),
        transfer_s=draw(st.sampled_from([0.0, 1.0])),
    )
    chunks = stages // placement.num_ranks
    spare = draw(st.integers(0, 1)) if stages < 4 else 0
    return placement, 4 - chunks, its_costs, chunks + spare


@pytest.mark.slow
@cases(15)
@given(tiny_cases(), st.sampled_from(Objective))
def test_no_bound_exceeds_the_shortest_of_all_schedules(case, objective):
    placement, num_microbatches, its_costs, limit = case
    optimum_s = shortest_s(placement, num_microbatches, its_costs, limit, objective)
    split = np.zeros(placement.num_stages, np.bool_)
    found_s = searched_s(placement, num_microbatches, its_costs, objective, limit, split)
    assert found_s == pytest.approx(optimum_s)  # the search as its own oracle elsewhere
    assert_all_below(
        placement, num_microbatches, its_costs, optimum_s, objective, max_activations=limit
    )


@st.composite
def small_pipelines(draw: st.DrawFn):
    name, p = draw(st.sampled_from([("loop", 2), ("loop", 3), ("loop", 4), ("v", 2), ("v", 3)]))
    placement = Placement.v(p) if name == "v" else Placement.loop(p)
    stages = placement.num_stages
    times = st.lists(st.integers(1, 7), min_size=stages, max_size=stages)
    if draw(st.booleans()):
        times = st.integers(1, 7).map(lambda time: [time] * stages)
    m = draw(st.integers(2, {2: 4, 3: 4, 4: 3, 6: 2}[stages]))
    limit = draw(st.integers(stages // p, stages // p + 2))
    times_s = (draw(times), draw(times), draw(times))
    return placement, times_s, draw(st.sampled_from([0, 0, 1, 3])), m, limit


@cases(40)
@given(small_pipelines(), st.sampled_from([1, 50_000]))
def test_no_searched_bound_exceeds_the_shortest_of_all_orders(case, num_labels):
    placement, times_s, transfer_s, m, limit = case
    ranks = tuple(placement.rank_of_stage)
    optimum_s = shortest_of_all_orders(ranks, times_s, transfer_s, m, limit)
    least = least_of(placement, (*times_s, transfer_s), limit)
    for bound in (crossings, two_ranks):
        assert bound(least, m, Objective.MAKESPAN, num_labels).value_s <= optimum_s * ROUNDING


def least_of(placement, times, limit):
    names = ("forward_s", "input_grad_s", "weight_grad_s", "transfer_s")
    its_costs = ScheduleCosts.of(placement, **dict(zip(names, times, strict=True)))
    return LeastCosts.of(placement, its_costs, max_activations=limit)


def test_two_ranks_of_a_v_wait_for_each_other():
    # Of memory and work of any one rank alone 2,770 would do, of one that meets others 2,854.
    least = least_of(Placement.v(4), (26, 28, 20, 0), 4)
    values_s = [
        best_bound(least, 16, objective=Objective.MAKESPAN).value_s,
        crossings(least, 16, Objective.MAKESPAN, 1_000_000).value_s,
        two_ranks(least, 16, Objective.MAKESPAN, 4_000_000).value_s,
    ]
    assert values_s == [2770, 2854, 2920]  # 2,922 is found


def test_the_best_two_ranks_are_told_with_enough_labels():
    # With a third of the labels rank 3 looks best, with all of them rank 1 is: 2,076 is found.
    # Labels that differ in what nobody waits for would not be few enough to prove as much.
    least = least_of(Placement.v(6), (29, 25, 31, 1), 5)
    assert two_ranks(least, 8, Objective.MAKESPAN, 300_000).value_s == 2043


def test_bounds_that_take_long_end_when_they_are_told_to():
    asked = {"objective": Objective.MAKESPAN, "num_labels": 300_000}
    for of, more in ((crossings_bound, {}), (two_ranks_bound, {"enough_s": 2100.0})):
        whole_s, *told_s = (
            of(least_of(Placement.v(6), (29, 25, 31, 1), 5), 8, **asked, **more, poll=poll).value_s
            for poll in (lambda: False, lambda: True, asks_until(3), asks_until(5))
        )
        assert max(told_s) < whole_s
    uneven = [30 + stage for stage in range(16)]
    least = least_of(Placement.loop(4, virtual_stages=4), (uneven, uneven[::-1], uneven, 1), 16)
    asks = itertools.count(1)
    crossings_bound(least, 16, **asked, poll=lambda: next(asks) >= 2)
    assert next(asks) < 20  # once told, each look asks once more; untold they ask 2,000 times


def asks_until(last):
    asks = itertools.count(1)
    return lambda: next(asks) >= last


def test_what_a_poll_raises_ends_a_bound():
    least = least_of(Placement.v(6), (54, 80, 51, 1), 5)

    def refuse() -> bool:
        raise InvalidInput.of("seed", "enough")

    with pytest.raises(InvalidInput, match="enough"):
        crossings_bound(least, 16, objective=Objective.MAKESPAN, num_labels=300_000, poll=refuse)


@pytest.mark.slow
def test_two_ranks_that_labels_help_most_get_them():
    # A third of the labels is enough for ranks 2, 3 and 4, and rank 1 gains by more of them.
    least = least_of(Placement.v(6), (54, 80, 51, 1), 5)
    asked = {"objective": Objective.MAKESPAN, "enough_s": 8916, "num_labels": 3_000_000}
    assert two_ranks_bound(least, 16, **asked).value_s == 8728
    # Unless that promises no more than what is proved.
    assert two_ranks_bound(least, 16, **asked, known_s=9010).value_s == 8672


def test_crossings_say_nothing_where_states_alone_are_too_many(monkeypatch):
    uneven = [30 + stage for stage in range(8)]
    least = least_of(Placement.v(4), (uneven, uneven[::-1], uneven, 0), 8)
    assert crossings(least, 8, Objective.MAKESPAN).value_s > 0
    monkeypatch.setattr("trainwright.scheduling.bounds._MOST_LABELS", 1_000)
    assert crossings(least, 8, Objective.MAKESPAN).value_s == 0


def test_forwards_and_input_gradients_cross_on_every_stage_of_a_loop():
    # A microbatch takes 8 (F + I) and W, a sixth of that per microbatch where only memory counts.
    # Six that start so far apart do not meet stage by stage: they need nine F + I between them.
    least = least_of(Placement.loop(8), (24, 37, 20, 0), 6)
    values_s = [crossings(least, m, Objective.MAKESPAN, 2_000_000).value_s for m in (24, 48)]
    others_s = [best_bound(least, m, objective=Objective.MAKESPAN).value_s for m in (24, 48)]
    assert np.diff(others_s) / 24 == pytest.approx((8 * (24 + 37) + 20) / 6, rel=1e-3)
    assert np.diff(values_s) / 24 == pytest.approx(9 / 6 * (24 + 37), rel=3e-3)


def test_fewer_labels_give_a_bound_that_is_less():
    least = least_of(Placement.loop(6), (23, 34, 24, 2), 5)
    values_s = [crossings(least, 16, Objective.MAKESPAN, num).value_s for num in (1, 1_000_000)]
    assert 0 < values_s[0] < values_s[1]


def test_labels_that_few_states_need_go_to_those_that_have_many():
    # In equal shares for all states, of the same number of labels, these prove 7,696.
    least = least_of(Placement.v(16), (23, 24, 18, 0), 13)
    assert crossings(least, 48, Objective.MAKESPAN, 2_000_000).value_s == 7762


@pytest.mark.parametrize("p", [2, 4, 5, 8, 16])
def test_the_window_bound_is_the_published_one_for_equal_times(p):
    """Span >= 6m + 6p - 1 - 3k at k <= 2p - 2 (Qi et al., NeurIPS 2024), for F = I = W = 1."""
    placement, m = Placement.v(p), 4 * p
    its_costs = ScheduleCosts.of(placement)
    for limit in range(2 * ((p + 4) // 3), 2 * p - 1):
        least = LeastCosts.of(placement, its_costs, max_activations=limit)
        bound = best_bound(least, m, objective=Objective.SPAN)
        assert bound.value_s >= 6 * m + 6 * p - 1 - 3 * limit
        if limit >= p:  # below, trips add to it
            assert bound == (6 * m + 6 * p - 1 - 3 * limit, BoundName.WINDOW)


def test_bounds_of_a_worked_example():
    """V, p = 4, m = 8, (F, I, W) = (3, 4, 2): figures of an independent prototype."""
    placement = Placement.v(4)
    its_costs = ScheduleCosts.of(placement, forward_s=3, input_grad_s=4, weight_grad_s=2)

    def of(limit: int, objective: Objective) -> dict[BoundName, float]:
        least = LeastCosts.of(placement, its_costs, max_activations=limit)
        return {name: value for value, name in lower_bounds(least, 8, objective=objective)}

    spans = [of(limit, Objective.SPAN)[BoundName.WINDOW] for limit in range(4, 9)]
    assert spans == pytest.approx([193, 178, 169, 160, 151])
    makespans = [of(limit, Objective.MAKESPAN)[BoundName.WINDOW] for limit in (4, 6, 8)]
    assert makespans == pytest.approx([193, 169, 156])
    areas = [of(limit, Objective.MAKESPAN)[BoundName.MEMORY_AREA] for limit in (4, 6, 8)]
    prototype = [143, 98 + 1 / 3, 76]  # without ramps
    assert all(area > plain - 0.5 for area, plain in zip(areas, prototype, strict=True))
    assert areas[0] < 200  # which a constraint solver proves to be the shortest


def test_memory_that_fills_and_empties_one_activation_at_a_time_adds_to_its_area():
    """One stage, one rank, room for three: 8 activations that are held from F to W.

    F = 2, I = 3 and W = 1 leave no trip: 8 x (2 + 3 + 1) / 3 of area, and the corners of a memory
    that gains one activation in 2 s and loses one in 1 s at most: 2 x (4 + 2) / 2 / 3.
    """
    placement = Placement.loop(1)
    its_costs = ScheduleCosts.of(placement, forward_s=2, input_grad_s=3, weight_grad_s=1)
    least = LeastCosts.of(placement, its_costs, max_activations=3)
    bounds = {name: value for value, name in lower_bounds(least, 8, objective=Objective.SPAN)}
    assert bounds[BoundName.MEMORY_AREA] == pytest.approx((48 + 6) / 3, rel=1e-6)


def test_with_room_for_one_microbatch_the_path_is_one_at_a_time():
    placement = Placement.loop(3)
    its_costs = ScheduleCosts.of(placement, forward_s=3, input_grad_s=4, weight_grad_s=2)
    least = LeastCosts.of(placement, its_costs, max_activations=1)
    bounds = {b.name: b.value_s for b in lower_bounds(least, 5, objective=Objective.SPAN)}
    assert bounds[BoundName.MEMORY_PATH] == pytest.approx(5 * (3 * 3 + 3 * 4 + 2))
    assert max(bounds.values()) == pytest.approx(
        searched_s(placement, 5, its_costs, Objective.SPAN, 1, np.zeros(3, np.bool_))
    )


def test_more_memory_never_raises_a_bound_and_longer_times_never_lower_one():
    placement = Placement.v(4)
    values = []
    for limit in (*range(2, 20), None):
        least = LeastCosts.of(placement, ScheduleCosts.of(placement), max_activations=limit)
        slower = LeastCosts.of(
            placement, ScheduleCosts.of(placement, forward_s=1.5), max_activations=limit
        )
        for objective in Objective:
            fast_s = best_bound(least, 8, objective=objective).value_s
            assert fast_s <= best_bound(slower, 8, objective=objective).value_s
        values.append(best_bound(least, 8, objective=Objective.SPAN).value_s)
    assert values == sorted(values, reverse=True)


@cases(50)
@given(small_cases(), st.sampled_from(Objective), st.sampled_from([0.125, 2.0, 1024.0]))
@example(
    (Placement.v(2), 3, ScheduleCosts.of(Placement.v(2), transfer_s=1.0), 3), Objective.SPAN, 2.0
)
def test_bounds_scale_with_the_times(case, objective, factor):
    placement, num_microbatches, its_costs, limit = case
    scaled = ScheduleCosts(
        **{
            name: getattr(its_costs, name) * factor
            if name.endswith("_s")
            else getattr(its_costs, name)
            for name in ScheduleCosts.__slots__
        }
    )
    values = [
        best_bound(
            LeastCosts.of(placement, each, max_activations=limit),
            num_microbatches,
            objective=objective,
        ).value_s
        for each in (its_costs, scaled)
    ]
    assert values[1] == pytest.approx(factor * values[0])


def test_contention_and_overhead_only_lengthen_what_is_bounded():
    placement = Placement.v(2)
    free = ScheduleCosts.of(placement, transfer_s=1.0)
    blocking = ScheduleCosts.of(
        placement, transfer_s=1.0, transfer_model=TransferModel.BLOCKING, blocking_fraction=1.0
    )
    bounds = [
        best_bound(LeastCosts.of(placement, each, max_activations=3), 4, objective=Objective.SPAN)
        for each in (free, blocking)
    ]
    assert bounds[0] == bounds[1]


@needs_reference
def test_head_and_work_is_that_of_the_probe_with_unequal_stages():
    rows = json.loads((reference() / "schedules" / "heterogeneous_probe.json").read_text())
    for row in rows:
        placement = Placement.loop(row["p"])
        its_costs = ScheduleCosts.of(
            placement,
            forward_s=row["F"],
            input_grad_s=row["I"],
            weight_grad_s=row["W"],
            transfer_s=row["comm"],
        )
        least = LeastCosts.of(placement, its_costs, max_activations=row["limit"])
        bounds = lower_bounds(least, row["m"], objective=Objective.MAKESPAN)
        by_name = {name: value_s for value_s, name in bounds}
        assert by_name[BoundName.RANK_WORK] >= row["head_plus_work_bound"] * (1 - 1e-12)
        runs = (row["makespan_median_policy"], row["makespan_per_stage_times"])
        authors_s = min(run for run in runs if run is not None)
        assert max(by_name.values()) <= authors_s * ROUNDING
        if row["limit"] == 2 * row["p"]:
            assert max(by_name.values()) == pytest.approx(authors_s)


@needs_reference
def test_no_solver_run_is_below_the_bound_of_its_limit():
    rows = json.loads((reference() / "schedules" / "cpsat_small.json").read_text())
    for row in rows:
        forward_s, input_grad_s, weight_grad_s, transfer_s = row["cost_FIW_comm"]
        placement, limit = Placement.v(row["p"]), row["limit"]
        its_costs = ScheduleCosts.of(
            placement,
            forward_s=forward_s,
            input_grad_s=input_grad_s,
            weight_grad_s=weight_grad_s,
            transfer_s=transfer_s,
        )
        least = LeastCosts.of(placement, its_costs, max_activations=limit)
        bound = best_bound(least, row["m"], objective=Objective.SPAN)
        assert max(row["work"], row["solver_bound"]) <= bound.value_s <= row["span_reached"]
        if (forward_s, input_grad_s, weight_grad_s) == (1, 1, 1) and limit <= 2 * row["p"] - 2:
            assert bound.value_s == 6 * row["m"] + 6 * row["p"] - 1 - 3 * limit
