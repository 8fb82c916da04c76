"""Memory limits: families that obey them fit, and where nothing fits the answer says why."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from random_cases import cases
from trainwright.plans.schedule import (
    ActionKind,
    Placement,
    Schedule,
    ScheduleCosts,
    ScheduleMemory,
)
from trainwright.plans.status import Status
from trainwright.scheduling.bounds import LimitTooSmall
from trainwright.scheduling.families import FAMILIES, FamilyRequest, generate
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
