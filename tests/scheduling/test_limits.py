"""Memory limits: families that obey them fit, and where nothing fits the answer says why."""

import heapq
import math
import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from random_cases import cases
from trainwright.errors import InvalidInput
from trainwright.execution.budget import Budget
from trainwright.plans.schedule import (
    ActionKind,
    Placement,
    Schedule,
    ScheduleCosts,
    ScheduleMemory,
)
from trainwright.plans.status import Status
from trainwright.scheduling.bounds import LimitTooSmall, limit_below_all
from trainwright.scheduling.candidates import Backward, SearchQuestion
from trainwright.scheduling.families import FAMILIES, FamilyRequest, generate
from trainwright.scheduling.orders import one_at_a_time
from trainwright.scheduling.search import search_schedule
from trainwright.scheduling.simulate import simulate, validate

OBEDIENT = [name for name, family in FAMILIES.items() if family.obeys_limits]
ANY_LIMIT = ["zb-v", "adaptive-v", "wave"]


@st.composite
def limited_requests(draw: st.DrawFn) -> FamilyRequest:
    return FamilyRequest(
        num_ranks=draw(st.integers(1, 5)),
        num_microbatches=draw(st.integers(1, 8)),
        virtual_stages=draw(st.integers(1, 3)),
        max_activations=draw(st.integers(1, 12)),
    )


@st.composite
def sized_costs(draw: st.DrawFn, placement: Placement) -> ScheduleCosts:
    """Per-stage times and sizes, I releasing a part; per-rank limits from just enough upwards."""

    def per(count: int, *values: float) -> list[float]:
        return draw(st.lists(st.sampled_from(values), min_size=count, max_size=count))

    stages = placement.num_stages
    sizes = np.array(per(stages, 1.0, 2.0, 3.5))
    released = sizes * draw(st.sampled_from([0.0, 0.25, 1.0]))
    transient = per(stages, 0.0, 0.5)
    least = [
        sum(sizes[s] for s in owned) + max(transient[s] for s in owned)
        for owned in placement.stages_of_rank
    ]
    slack = per(placement.num_ranks, 0.0, 1.0, 4.0, 20.0, math.inf)
    memory = ScheduleMemory.of(
        placement,
        forward_bytes=sizes.tolist(),
        input_grad_bytes=(-released).tolist(),
        weight_grad_bytes=(released - sizes).tolist(),
        transient_bytes={ActionKind.I: transient, ActionKind.W: transient},
        limit_bytes=[need + more for need, more in zip(least, slack, strict=True)],
    )
    return ScheduleCosts.of(
        placement,
        forward_s=per(stages, 0.5, 1.0, 3.0),
        input_grad_s=per(stages, 0.5, 1.0, 3.0),
        weight_grad_s=per(stages, 0.25, 1.0, 2.0),
        transfer_s=per(stages - 1, 0.0, 0.25),
        memory=memory,
    )


@pytest.mark.parametrize("name", FAMILIES)
@cases(25)
@given(request=limited_requests())
def test_a_schedule_fits_its_limit_or_the_answer_names_what_is_needed(name, request):
    family = FAMILIES[name]
    if list(family.rules(request)):
        return
    answer = generate(name, request)
    placement = family.place(request)
    chunks = placement.num_stages // placement.num_ranks
    limit = request.max_activations
    if isinstance(answer, Schedule):
        validate(answer)
        assert max(answer.peak_activations) <= limit
        return
    assert answer.limit == limit < answer.needed
    if limit < chunks and family.is_plain:
        assert (answer.family, answer.needed, answer.status) == (None, chunks, Status.INFEASIBLE)
        return
    assert (answer.family, answer.status) == (name, Status.UNKNOWN)
    assert name not in ANY_LIMIT
    # With what it says it needs, the family fits.
    assert isinstance(generate(name, replace(request, max_activations=answer.needed)), Schedule)


@pytest.mark.parametrize("name", OBEDIENT)
@cases(12)
@given(data=st.data())
def test_bytes_are_limited_per_rank(name, data):
    request = data.draw(limited_requests())
    limit = data.draw(st.sampled_from([None, request.max_activations]))
    request = replace(request, max_activations=limit)
    placement = FAMILIES[name].place(request)
    costs = data.draw(sized_costs(placement))
    answer = generate(name, replace(request, costs=costs))
    if isinstance(answer, Schedule):
        validate(answer)
        assert simulate(answer, costs).fits
        assert limit is None or max(answer.peak_activations) <= limit
    elif answer.family is None:
        assert limit is not None
        assert limit < placement.num_stages // placement.num_ranks
    else:
        assert name not in ANY_LIMIT


def test_one_microbatch_at_a_time_needs_least_in_bytes_too():
    placement = Placement.v(3)
    memory = ScheduleMemory.of(
        placement, forward_bytes=5.0, weight_grad_bytes=-5.0, limit_bytes=9.0
    )
    costs = ScheduleCosts.of(placement, memory=memory)
    answer = generate("adaptive-v", FamilyRequest(num_ranks=3, num_microbatches=4, costs=costs))
    assert answer == LimitTooSmall(rank=0, needed=10.0, limit=9.0, unit="bytes")
    roomy = replace(costs, memory=replace(memory, limit_bytes=np.full(3, 10.0)))
    request = FamilyRequest(num_ranks=3, num_microbatches=4, costs=roomy)
    assert isinstance(generate("adaptive-v", request), Schedule)


def test_a_family_that_needs_more_says_how_much():
    request = FamilyRequest(num_ranks=8, num_microbatches=16, max_activations=6)
    assert generate("1f1b", request) == LimitTooSmall(
        rank=0, needed=8, limit=6, unit="activations", family="1f1b"
    )
    assert generate("v-half", request) == LimitTooSmall(
        rank=0, needed=10, limit=6, unit="activations", family="v-half"
    )


@pytest.mark.parametrize("name", ANY_LIMIT)
def test_more_memory_never_gives_a_longer_schedule_at_unit_times(name):
    spans = []
    for limit in range(2, 17):
        request = FamilyRequest(num_ranks=8, num_microbatches=16, max_activations=limit)
        schedule = generate(name, request)
        spans.append(simulate(schedule, ScheduleCosts.of(schedule.placement)).span_s)
    assert spans == sorted(spans, reverse=True)
    assert spans[-1] == 96


# What is called infeasible: no order fits, with backwards whole or in halves
# ---------------------------------------------------------------------------

F, I, W, B, *_ = ActionKind  # noqa: E741


def needed_by_any_order(memory: ScheduleMemory, stages: tuple[int, ...], m: int, whole=None):
    """The least peak of a rank over all its orders, by counts of what has run; `whole` by stage."""
    delta, transient, at_end = memory.delta_bytes, memory.transient_bytes, len(stages) - 1
    begun = ((0, 0, 0, 0),) * len(stages)
    least, waiting = {begun: 0.0}, [(0.0, begun)]
    while waiting:
        peak, counts = heapq.heappop(waiting)
        if all(f == m == i + b and w == i for f, i, w, b in counts):
            return peak
        kinds = (F, I, W, B)
        level = sum(
            n * delta[kind, s]
            for s, own in zip(stages, counts, strict=True)
            for kind, n in zip(kinds, own, strict=True)
        )
        for q, (f, i, w, b) in enumerate(counts):
            came_back = f if q == at_end else min(f, counts[q + 1][1] + counts[q + 1][3])
            is_next = i + b < came_back
            may_run = {
                F: f < (m if q == 0 else counts[q - 1][0]),
                I: is_next and (whole is None or not whole[stages[q]]),
                W: w < i,
                B: is_next and (whole is None or whole[stages[q]]),
            }
            for place, kind in enumerate(kinds):
                if not may_run[kind]:
                    continue
                own = tuple(n + (place == at) for at, n in enumerate(counts[q]))
                after = (*counts[:q], own, *counts[q + 1 :])
                holds = max(delta[kind, stages[q]], 0.0) + transient[kind, stages[q]]
                then = max(peak, level + holds)
                if then < least.get(after, math.inf):
                    least[after] = then
                    heapq.heappush(waiting, (then, after))
    raise AssertionError("one microbatch at a time is an order")


def random_memory(draw: random.Random, placement: Placement) -> ScheduleMemory:
    """Input gradients that free a part or take some, and what halves need while they run."""
    stages = range(placement.num_stages)
    forward = [float(draw.randint(1, 9)) for _ in stages]
    input_grad = [float(draw.randint(-int(size), 5)) for size in forward]
    return ScheduleMemory.of(
        placement,
        forward_bytes=forward,
        input_grad_bytes=input_grad,
        weight_grad_bytes=[-(f + i) for f, i in zip(forward, input_grad, strict=True)],
        transient_bytes={kind: [draw.choice([0.0, 1.0, 6.0]) for _ in stages] for kind in (I, W)},
        static_bytes=float(draw.randint(0, 3)),
        limit_bytes=0.0,
    )


@cases(40)
@given(st.integers(0, 2**32))
def test_no_order_holds_less_than_one_microbatch_at_a_time(seed):
    draw = random.Random(seed)
    ranks, chunks, m = draw.choice([(1, 1, 2), (2, 1, 2), (1, 2, 2), (2, 2, 1), (1, 3, 1)])
    placement = draw.choice([Placement.loop, Placement.wave])(ranks, virtual_stages=chunks)
    memory, no_stage = random_memory(draw, placement), np.zeros(ranks * chunks, np.bool_)
    for whole in (None, no_stage, np.array([draw.random() < 0.5 for _ in no_stage])):
        needed = memory.static_bytes + [
            needed_by_any_order(memory, stages, m, whole) for stages in placement.stages_of_rank
        ]
        for limit in (memory.limit_bytes, needed, needed * 1.3):
            limited = replace(memory, limit_bytes=limit)
            once = one_at_a_time(placement, m, limited, fused=whole, recomputed=no_stage)
            validate(once)
            held = simulate(once, ScheduleCosts.of(placement, memory=limited)).peak_bytes
            assert (held <= np.maximum(limit, needed)).all()
        if whole is None:
            enough = replace(memory, limit_bytes=needed)
            assert limit_below_all(placement, enough, max_activations=None) is None
            less = replace(memory, limit_bytes=needed * 0.99)
            answer = limit_below_all(placement, less, max_activations=None)
            assert answer.needed == pytest.approx(needed[answer.rank])


@cache
def all_orders_of_two_ranks() -> list[Schedule]:
    """Of two microbatches, each backward whole or in halves; the first forward is of the first."""

    def merged(one, other):
        if not one or not other:
            yield one + other
            return
        yield from (one[:1] + rest for rest in merged(one[1:], other))
        yield from (other[:1] + rest for rest in merged(one, other[1:]))

    def of_rank(stage):
        ways = [[[(kind, stage, j) for kind in way] for way in ((F, I, W), (F, B))] for j in (0, 1)]
        return [order for one in ways[0] for two in ways[1] for order in merged(one, two)]

    return [
        Schedule.of_ranks(
            [np.array(first, np.int32), np.array(second, np.int32)],
            placement=Placement.loop(2),
            num_microbatches=2,
        )
        for first in of_rank(0)
        if first[0][2] == 0
        for second in of_rank(1)
    ]


@pytest.mark.parametrize("seed", range(12))
def test_where_a_search_finds_nothing_no_order_fits_and_none_is_below_its_bound(seed):
    draw, placement = random.Random(seed), Placement.loop(2)
    memory = random_memory(draw, placement)
    needed = [needed_by_any_order(memory, (s,), 1) for s in (0, 1)] + memory.static_bytes
    limit = [need * draw.choice([0.9, 1.0, 1.0, 1.3, 2.0]) for need in needed.tolist()]
    costs = ScheduleCosts.of(
        placement,
        forward_s=[draw.randint(1, 4), draw.randint(1, 4)],
        input_grad_s=draw.randint(1, 4),
        weight_grad_s=[draw.randint(0, 3), draw.randint(0, 3)],
        transfer_s=draw.choice([0.0, 0.5]),
        memory=replace(memory, limit_bytes=np.array(limit)),
    )
    shortest_s = math.inf
    for schedule in all_orders_of_two_ranks():
        try:
            timeline = simulate(schedule, costs)
        except InvalidInput:  # ranks that wait for each other
            continue
        if timeline.fits:
            shortest_s = min(shortest_s, timeline.makespan_s)
    question = SearchQuestion(
        placement=placement, num_ranks=2, num_microbatches=2, costs=costs, evaluations=100
    )
    answer = search_schedule(question, budget=Budget())
    if isinstance(answer, LimitTooSmall):
        assert shortest_s == math.inf
        assert answer.needed > answer.limit
        return
    assert answer.timeline.fits
    assert answer.lower_bound_s <= shortest_s * (1 + 1e-9) <= answer.value_s * (1 + 2e-9)


def with_kept_gradients(
    placement: Placement, *, kept: float, limit_bytes: float | list[float]
) -> ScheduleMemory:
    """Input gradients that keep more than they free, for the weight gradient."""
    return ScheduleMemory.of(
        placement,
        forward_bytes=2.0,
        input_grad_bytes=kept,
        weight_grad_bytes=-2.0 - kept,
        limit_bytes=limit_bytes,
    )


def test_a_backward_is_fused_where_its_halves_do_not_fit():
    placement = Placement.loop(2)
    memory = with_kept_gradients(placement, kept=1.0, limit_bytes=[2.0, 3.0])
    costs = ScheduleCosts.of(placement, memory=memory)
    question = SearchQuestion(placement=placement, num_ranks=2, num_microbatches=2, costs=costs)
    found = search_schedule(question, budget=Budget())
    assert {str(action)[1] for action in found.schedule.order(0)} == {"F", "B"}
    assert {str(action)[1] for action in found.schedule.order(1)} == {"F", "I", "W"}
    halves = search_schedule(replace(question, backward=Backward.SPLIT), budget=Budget())
    assert halves == LimitTooSmall(rank=0, needed=3.0, limit=2.0, unit="bytes")


def test_whole_backwards_are_tried_where_their_halves_fit_but_hold_more():
    placement = Placement.v(2)
    memory = with_kept_gradients(placement, kept=2.0, limit_bytes=6.0)
    costs = ScheduleCosts.of(
        placement,
        forward_s=[3, 4, 2, 3],
        input_grad_s=[1, 4, 5, 3],
        weight_grad_s=[5, 4, 3, 4],
        memory=memory,
    )
    question = SearchQuestion(
        placement=placement, num_ranks=2, num_microbatches=4, costs=costs, evaluations=50
    )
    either, whole, halves = (
        search_schedule(replace(question, backward=backward), budget=Budget())
        for backward in (Backward.ANY, Backward.FUSED, Backward.SPLIT)
    )
    assert whole.value_s < halves.value_s
    assert either.value_s == whole.value_s
    assert either.timeline.fits
    # The bound is on both, though whole backwards alone allow a larger one.
    assert either.bound.value_s <= halves.bound.value_s < whole.bound.value_s
    assert either.pipeline_bound == either.bound


def test_a_limit_that_differs_from_the_need_by_rounding_is_enough():
    placement = Placement.loop(2)
    sizes, released = (2.4233022884260156, 1.5625081639656166), (0.4, -0.2236541912855582)
    memory = ScheduleMemory.of(
        placement,
        forward_bytes=sizes,
        input_grad_bytes=released,
        weight_grad_bytes=[-(f + i) for f, i in zip(sizes, released, strict=True)],
        static_bytes=[1.5028287587017082, 0.49521173601419854],
    )
    costs = ScheduleCosts.of(placement, memory=memory)
    alone = {"fused": np.zeros(2, np.bool_), "recomputed": np.zeros(2, np.bool_)}
    for m in range(1, 6):  # what sums in another order differ by
        once = simulate(one_at_a_time(placement, m, memory, **alone), costs)
        for rounded in (once.peak_bytes, np.nextafter(once.peak_bytes, 0.0)):
            limited = replace(costs, memory=replace(memory, limit_bytes=rounded))
            for count in range(1, 6):
                question = SearchQuestion(
                    placement=placement,
                    num_ranks=2,
                    num_microbatches=count,
                    costs=limited,
                    evaluations=1,
                )
                assert search_schedule(question, budget=Budget()).timeline.fits
