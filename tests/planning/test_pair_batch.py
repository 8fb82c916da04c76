"""Pairs in all their forms against a plain loop over schedules, ZeRO stages and chunks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.formats import catalog
from trainwright.planning.bounds.step import Batch, PointPairs, Space
from trainwright.planning.question.layouts import (
    layouts_of,
    schedules_of,
    with_copies,
    with_mappings,
)
from trainwright.planning.question.question import (
    Allowed,
    ModelQuestion,
    Point,
    Span,
    StepAim,
    Workload,
)
from trainwright.plans.plan import AXIS_ORDERS

LEVELS = catalog.cluster("dgx-h100").with_nodes(4).levels
FAMILIES = (("1f1b",), ("1f1b", "interleaved"), ("interleaved", "zb-v", "v-half"), None)


@st.composite
def cases(draw):
    allowed = Allowed(
        schedules=draw(st.sampled_from(FAMILIES)),
        zero_stages=draw(st.sampled_from([(1,), (0, 1), (3, 1), (0, 1, 2, 3)])),
        state_copies=draw(st.sampled_from([Span(), Span.only(1), Span(least=2, most=4)])),
    )
    point = Point(
        microbatch_size=1,
        tensor=draw(st.sampled_from([1, 2])),
        context=draw(st.sampled_from([1, 2])),
    )
    blocks = draw(st.integers(1, 9))
    layouts = layouts_of(
        point,
        allowed,
        num_devices=draw(st.integers(4, 32)),
        num_blocks=blocks,
        num_microbatches=draw(st.sampled_from([1, 6, 8])),
    )
    layouts = with_copies(layouts, allowed.state_copies, point, LEVELS)
    return Space(schedules_of(allowed), blocks, allowed), point, layouts


def one_by_one(space, point, layouts):
    """(family, ZeRO stage, ranks, replicas, copies, chunks) of every candidate, in order."""
    first, *others = space.allowed.zero_stages
    found = []
    for schedule in space.schedules:
        for zero in (first, *others):
            for p, d, m, c in zip(
                layouts.pipeline.tolist(),
                layouts.data.tolist(),
                layouts.num_microbatches.tolist(),
                layouts.copies.tolist(),
                strict=True,
            ):
                if p < schedule.from_ranks or (schedule.family == "interleaved" and m % p):
                    continue
                if c > 1 and zero < 2 and not (zero and space.allowed.state_copies != Span()):
                    continue
                if zero != first and d * point.context == 1:
                    continue
                chunks = [v for v in range(1, 9) if v in schedule.virtual_stages]
                found += [
                    (schedule.family, zero, p, d, c, v) for v in chunks if p * v <= space.num_blocks
                ]
    return found


@given(cases())
def test_a_batch_holds_every_candidate_once_and_in_order(case):
    space, point, layouts = case
    wanted = one_by_one(space, point, layouts)
    batch = Batch.of(space, point, layouts)
    every = batch.layouts
    columns = (every.pipeline, every.data, every.copies, every.virtual_stages)
    rows = np.stack(columns, axis=1).tolist()
    found = [
        (part.schedule.family, part.zero_stage, *row)
        for part in batch.parts
        for row in rows[part.own]
    ]
    assert found == wanted
    assert space.num_candidates(point, layouts) == len(wanted)
    assert space.has_candidates(point, layouts) == bool(wanted)
    assert batch.zero_stage.tolist() == [row[1] for row in wanted]
    assert sum(batch.sizes) == len(wanted)


@given(cases(), st.sampled_from(["1f1b", "interleaved", "zb-v"]))
def test_families_set_aside_and_the_others_are_all(case, family):
    space, point, layouts = case
    parts = [space.of({family}), space.without({family})]
    counts = [part.num_candidates(point, layouts) for part in parts]
    assert sum(counts) == space.num_candidates(point, layouts)


@pytest.mark.parametrize("zero_stage", [0, 3])
def test_pairs_as_they_are_keep_their_chunks(zero_stage):
    (schedule,) = schedules_of(Allowed(schedules=("interleaved",)))
    point = Point(microbatch_size=1, tensor=1)
    layouts = layouts_of(point, Allowed(), num_devices=8, num_blocks=8, num_microbatches=8)
    batch = Batch.under(schedule, zero_stage, layouts)
    assert batch.layouts is layouts
    assert set(batch.zero_stage.tolist()) == {zero_stage}


@given(
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([Span(), Span.only(1), Span(least=2, most=4)]),
    st.sampled_from([Span(), Span(least=2, most=8)]),
)
def test_pairs_of_larger_microbatches_are_picked_from_those_of_one(tensor, expert, copies, data):
    allowed = Allowed(data=data, state_copies=copies, mappings=AXIS_ORDERS)
    cluster = catalog.cluster("dgx-h100").with_nodes(8)
    question = ModelQuestion(
        model=catalog.model("mixtral-8x7b").config,
        cluster=cluster,
        workload=Workload(global_batch=96, sequence_length=1024),
        num_devices=64,
        allowed=allowed,
    )
    schedules = schedules_of(allowed)
    pairs = PointPairs(question, StepAim(), schedules)
    sizes, total = (1, 2, 3, 8), 0
    for size in sizes:
        point = Point(microbatch_size=size, tensor=tensor, expert=expert)
        own = layouts_of(
            point,
            allowed,
            num_devices=64,
            num_blocks=question.model.num_layers,
            num_microbatches=96 // size,
        )
        own = with_mappings(own, allowed.mappings, point, cluster.levels)
        own = with_copies(own, copies, point, cluster.levels)
        found = pairs.of(point)
        for name in ("pipeline", "data", "num_microbatches", "virtual_stages", "inside", "copies"):
            assert getattr(found, name).tolist() == getattr(own, name).tolist()
        total += pairs.space.num_candidates(point, own)
    assert pairs.num_candidates(Point(microbatch_size=1, tensor=tensor, expert=expert), sizes) == (
        total
    )
