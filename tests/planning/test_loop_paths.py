"""What bounds splits of a loop by paths: below every plan, reached by parts or by whole blocks."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import chain, product
from itertools import combinations_with_replacement as choices
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from family_cases import case, every_cut, rows_of_split, step_of
from random_cases import cases
from trainwright._native import _core
from trainwright.planning.bounds.loop import Count, least_step_s, rank_ends
from trainwright.planning.question.layouts import LOOPED
from trainwright.planning.splits.chain import Split
from trainwright.planning.splits.cuts import every_lengths, finish_loop
from trainwright.planning.splits.loop import (
    Loop,
    bound_dealt_loops,
    bound_whole_loops,
    least_of_whole,
    program_of,
)
from trainwright.planning.splits.types import Effort, best_family_split, bound_every_split
from trainwright.scheduling.simulate import native_orders
from trainwright.step.pipeline import (
    PipelineShape,
    PipelineTimes,
    schedule_of,
    simulated_ends_s,
)

BOUNDS = (bound_dealt_loops, bound_whole_loops)


@pytest.mark.parametrize("bounded", BOUNDS)
@cases(40)
@given(data=st.data())
def test_no_plan_of_any_lengths_is_shorter(bounded, data):
    p, v = data.draw(st.sampled_from(((2, 2), (2, 3), (3, 2))))
    blocks = data.draw(st.integers(p * v, p * v + 5))
    asked = case(
        blocks=blocks,
        pipeline=p,
        virtual_stages=v,
        data=data.draw(st.sampled_from((1, 2))),
        num_microbatches=p * data.draw(st.integers(1, 4)),
        memory_gib=data.draw(st.sampled_from((20, 26, 32, 80))),
        zero_stage=data.draw(st.integers(0, 3)),
    )
    family = data.draw(st.sampled_from(LOOPED))
    bound = bounded(asked.question(family))
    layers, costs = asked.profile.structure.layers, asked.profile.costs
    for _ in range(4):
        inner = data.draw(
            st.lists(
                st.integers(1, blocks - 1), min_size=p * v - 1, max_size=p * v - 1, unique=True
            )
        )
        ends = len(layers) - blocks - 1  # but for the embedding all that is no block is at the end
        cuts = (0, *(1 + cut for cut in sorted(inner)), blocks + 1 + ends)
        rows = [data.draw(st.sampled_from(costs.rows_of(layer.layer_class))) for layer in layers]
        step, fits = step_of(asked, family, cuts, rows)
        if fits:
            assert bound.bound_s <= step.step_time_s * (1 + 1e-9)


def test_whole_blocks_take_longer_than_parts():
    question = case(
        blocks=11, pipeline=2, virtual_stages=2, num_microbatches=8, memory_gib=80
    ).question("interleaved")
    program, whole = program_of(Loop.of(question), limit_s=math.inf), bound_dealt_loops(question)
    parts = program.solved().step_s + question.overhead_s
    assert whole.bound_s > 1.01 * parts
    assert bound_dealt_loops(question, limit_s=parts).bound_s == parts


@pytest.mark.parametrize("bounded", BOUNDS)
@cases(12)
@given(data=st.data())
def test_the_least_of_all_lengths_is_no_shorter_whatever_the_limit(bounded, data):
    """What ranks can hold within the limit is taken for granted, so the limit must not matter."""
    p, v = data.draw(st.sampled_from(((2, 2), (2, 3), (3, 2))))
    blocks = data.draw(st.integers(p * v, p * v + 3))
    asked = case(
        blocks=blocks,
        pipeline=p,
        virtual_stages=v,
        num_microbatches=p * data.draw(st.integers(1, 3)),
        memory_gib=data.draw(st.sampled_from((24, 32, 80))),
        zero_stage=data.draw(st.integers(0, 3)),
    )
    question = asked.question(data.draw(st.sampled_from(LOOPED)))
    layers, costs = asked.profile.structure.layers, asked.profile.costs
    rows = [data.draw(st.sampled_from(costs.rows_of(layer.layer_class))) for layer in layers]
    steps_s = []
    for lengths in every_lengths([1] * (p * v), [blocks] * (p * v), blocks):
        ends = np.cumsum(lengths)
        cuts = (0, *(1 + ends[:-1]).tolist(), len(layers))
        step, fits = step_of(asked, question.family, cuts, rows)
        if fits:
            steps_s.append(step.step_time_s)
    for share in (0.9, 1.0, 1.001, 1.1):
        limit_s = share * min(steps_s, default=1.0)
        bound_s = bounded(question, limit_s=limit_s).bound_s
        assert bound_s <= limit_s
        assert bound_s <= min(steps_s, default=math.inf) * (1 + 1e-9)


@cases(3)
@given(data=st.data())
def test_of_whole_blocks_the_bound_is_the_step_of_the_best_split(data):
    """Where memory is plenty and nothing is exchanged; the ends have layers of their own."""
    p, v = data.draw(st.sampled_from(((2, 2), (2, 3), (3, 2))))
    blocks = data.draw(st.integers(p * v, p * v + 2))
    asked = case(
        blocks=blocks,
        pipeline=p,
        virtual_stages=v,
        num_microbatches=p * data.draw(st.integers(1, 3)),
        memory_gib=4000,
        sequence_length=data.draw(st.sampled_from((256, 2048))),
    )
    question = asked.question(data.draw(st.sampled_from(LOOPED)))
    layers, costs = asked.profile.structure.layers, asked.profile.costs
    rows = [
        min(costs.rows_of(layer.layer_class), key=lambda row: costs.phases.total_s[row])
        for layer in layers
    ]
    least_s = min(
        step_of(
            asked, question.family, (0, *(1 + np.cumsum(each)[:-1]).tolist(), len(layers)), rows
        )[0].step_time_s
        for each in every_lengths([0, *[1] * (p * v - 2), 0], [blocks] * (p * v), blocks)
    )
    for share in (0.97, 1.0, 1.005, 1.05, math.inf):
        bound_s = bound_whole_loops(question, limit_s=share * least_s).bound_s
        assert bound_s <= least_s * (1 + 1e-9)
        assert bound_s == pytest.approx(min(1.0, share) * least_s, rel=5e-3)


def test_whole_blocks_say_more_than_parts_where_stages_have_few():
    """31 blocks on 24 stages: in parts each has a quarter more than one."""
    asked = case(blocks=31, pipeline=8, virtual_stages=3, num_microbatches=16, memory_gib=400)
    question = asked.question("interleaved")
    split = best_family_split(question)
    step, fits = step_of(asked, "interleaved", split.cuts, rows_of_split(asked, split))
    assert fits
    program = program_of(Loop.of(question), limit_s=math.inf)
    parts_s = program.solved().step_s + question.overhead_s
    whole = bound_whole_loops(question, limit_s=step.step_time_s)
    assert 1.01 * parts_s < whole.bound_s < step.step_time_s
    nearer, fits = step_of(asked, "interleaved", whole.cuts, rows_of_split(asked, whole))
    assert fits
    assert whole.bound_s * (1 - 1e-9) <= nearer.step_time_s < step.step_time_s
    # With a hundredth of the work only a bound further below is proved.
    hurried = replace(question, effort=0.01)
    assert not least_of_whole(Loop.of(question), limit_s=step.step_time_s, effort=0.01).step_s
    assert 0.95 * step.step_time_s < bound_whole_loops(hurried, limit_s=step.step_time_s).bound_s


def least_of_all_s(asked, family, blocks, size):
    """Of all ways to cut the blocks and to run each, simulated; infinite where none fits."""
    layers, costs = asked.profile.structure.layers, asked.profile.costs
    classes = [layer.layer_class for layer in layers]
    main = max(set(classes), key=classes.count)
    own = [at for at, each in enumerate(classes) if each == main]
    rows = [min(costs.rows_of(each), key=lambda row: costs.duration_s[row]) for each in classes]
    least_s = math.inf
    for lengths in every_lengths([0, *[1] * (size - 2), 0], [blocks] * size, blocks):
        cuts = (0, *(1 + np.cumsum(lengths)[:-1]).tolist(), len(layers))
        ways = [list(choices(costs.rows_of(main), int(count))) for count in lengths]
        for chosen in product(*ways):
            for at, row in zip(own, chain.from_iterable(chosen), strict=True):
                rows[at] = row
            step, fits = step_of(asked, family, cuts, rows)
            least_s = min(least_s, step.step_time_s if fits else math.inf)
    return least_s


@pytest.mark.parametrize("zero_stage", [0, 2])
@pytest.mark.parametrize(
    ("family", "microbatches"), [("interleaved", 4), ("depth-first", 5), ("breadth-first", 2)]
)
def test_of_whole_blocks_what_ranks_recompute_counts_and_no_plan_is_shorter(
    family, microbatches, zero_stage
):
    def of(memory_gib):
        return case(
            blocks=4,
            pipeline=2,
            virtual_stages=2,
            data=1 + zero_stage // 2,
            num_microbatches=microbatches,
            memory_gib=memory_gib,
            zero_stage=zero_stage,
        )

    def bound_s(asked, limit_s=math.inf):
        return bound_whole_loops(asked.question(family), limit_s=limit_s).bound_s

    roomy_s, raised_s = bound_s(of(4000)), 0.0
    first = next(gib for gib in range(4, 40) if math.isfinite(bound_s(of(gib))))
    for memory_gib in (first, first + 1.5):
        asked = of(memory_gib)
        least_s = least_of_all_s(asked, family, 4, 4)
        for limit_s in (math.inf, 1.02 * least_s, 0.99 * least_s):
            assert bound_s(asked, limit_s) <= least_s * (1 + 1e-9)
        raised_s = max(raised_s, min(bound_s(asked), least_s))
    assert raised_s > 1.01 * roomy_s


def test_orders_with_too_many_rows_are_bounded_as_if_all_blocks_ran_fastest():
    asked = case(blocks=75, pipeline=8, virtual_stages=9, num_microbatches=8, memory_gib=400)
    question = asked.question("interleaved")
    loop = Loop.of(question)
    assert program_of(loop, limit_s=math.inf) is None
    bound_s = bound_dealt_loops(question).bound_s
    split = best_family_split(question)
    step, fits = step_of(asked, "interleaved", split.cuts, rows_of_split(asked, split))
    assert fits
    assert 0.96 * step.step_time_s < bound_s <= step.step_time_s


def test_a_program_that_begins_with_another_ends_where_it_would_by_itself():
    question = case(
        blocks=23, pipeline=4, virtual_stages=3, num_microbatches=8, memory_gib=40
    ).question("interleaved")
    program = program_of(Loop.of(question), limit_s=math.inf)
    rows, start = (), program.solved()
    for place, blocks, is_most in ((0, 5, True), (1, 6, False), (5, 2, True), (0, 4, True)):
        rows = (*rows, Count(place, blocks, is_most))
        start, alone = program.solved(rows, start.found), program.solved(rows)
        assert start.step_s == pytest.approx(alone.step_s, rel=2e-4)


def splits(order, *, num_blocks, forward_s=1.0, backward_s=2.0, held=(), room=(), limit_s=math.inf):
    """Blocks alike and nothing beside them, in one way unless times are several."""
    size = len(order.placement.rank_of_stage)
    backwards = np.atleast_1d(np.asarray(backward_s, np.float64))
    ways = len(backwards)
    return _core.OrderSplits(
        num_ways=ways,
        num_blocks=num_blocks,
        limit_s=limit_s,
        near=1e-4,
        least=np.zeros(size, np.int64),
        forward_s=np.zeros(size),
        backward_s=np.zeros(size),
        block_forward_s=np.full((size, ways), forward_s),
        block_backward_s=np.tile(backwards, (size, 1)),
        after_s=np.zeros(order.num_ranks),
        block_after_s=np.zeros((size, ways)),
        transfer_s=np.zeros(size - 1),
        block_held=np.reshape(np.array(held, np.float64), (len(room), size * ways)),
        room=np.array(room, np.float64),
    )


def times_of(lengths, forward_s=1.0, backward_s=2.0):
    blocks = np.array(lengths, np.float64)
    none = np.zeros(len(blocks))
    return PipelineTimes(
        forward_s=forward_s * blocks,
        input_grad_s=backward_s * blocks,
        weight_grad_s=none,
        transfer_s=none[1:],
    )


@pytest.mark.parametrize("family", LOOPED)
@pytest.mark.parametrize("microbatches", [2, 4, 6])
def test_where_parts_may_be_cut_the_bound_is_the_least_of_a_fine_grid(family, microbatches):
    shape = PipelineShape(
        family=family, num_ranks=2, num_microbatches=microbatches, virtual_stages=2
    )
    parts = 24
    least_s = min(
        float(simulated_ends_s(shape, times_of(lengths)).max()) / parts
        for lengths in every_lengths([0] * 4, [parts] * 4, parts)
    )
    order = schedule_of(shape, times_of([1] * 4))
    found = _core.least_of_order(splits(order, num_blocks=1), native_orders(order))
    assert found.step_s <= least_s * (1 + 1e-9)
    assert found.step_s >= least_s * 0.97
    reached = simulated_ends_s(shape, times_of(found.blocks)).max()
    assert float(reached) == pytest.approx(found.step_s, rel=3e-4)


def test_memory_makes_as_much_recompute_as_it_must_and_no_less_room_than_needed_is_infinite():
    """Four blocks keep 1 or, in three quarters more time, nothing; two ranks of two chunks."""
    shape = PipelineShape(family="breadth-first", num_ranks=2, num_microbatches=2, virtual_stages=2)
    order = schedule_of(shape, times_of([1] * 4))
    orders = native_orders(order)

    def step_s(room, leanest):
        held = [[1.0, leanest] * 4]
        asked = splits(order, num_blocks=4, backward_s=(2.0, 2.75), held=held, room=[room])
        return _core.least_of_order(asked, orders).step_s

    roomy = step_s(4.0, 0.0)
    rooms = [step_s(room, 0.0) for room in (3.0, 2.0, 1.0, 0.0)]
    assert all(a <= b * (1 + 1e-9) for a, b in zip([roomy, *rooms], rooms, strict=False))
    assert rooms[-1] > 1.1 * roomy
    assert math.isinf(step_s(0.9, 0.25))
    assert math.isfinite(step_s(1.01, 0.25))


def test_paths_say_more_than_each_rank_by_itself():
    asked = case(blocks=32, pipeline=4, virtual_stages=2, num_microbatches=8, memory_gib=400)
    question = asked.question("interleaved")
    by_rank, by_path = bound_every_split(question).bound_s, bound_dealt_loops(question).bound_s
    split = best_family_split(question)
    step, fits = step_of(asked, "interleaved", split.cuts, rows_of_split(asked, split))
    assert fits
    assert 1.02 * by_rank < by_path <= step.step_time_s
    assert by_path > 0.96 * step.step_time_s


def test_it_stops_at_the_limit():
    asked = case(blocks=16, pipeline=4, virtual_stages=2, num_microbatches=8)
    question = asked.question("interleaved")
    whole_s = bound_dealt_loops(question).bound_s
    for share in (0.5, 0.9, 0.99):
        assert bound_dealt_loops(question, limit_s=share * whole_s).bound_s <= share * whole_s


@pytest.mark.parametrize("family", LOOPED)
@pytest.mark.parametrize("memory_gib", [6, 16, 400])
def test_by_ranks_it_is_cut_down_to_a_limit_just_where_no_split_is_shorter(family, memory_gib):
    """A weaker test may tell so first; it may not say more than the bound without a limit."""
    asked = case(
        blocks=16,
        pipeline=4,
        virtual_stages=2,
        num_microbatches=8,
        data=4,
        nodes=2,
        zero_stage=2,
        memory_gib=memory_gib,
    )
    question = asked.question(family)
    whole_s = bound_every_split(question).bound_s
    reach_s = whole_s if math.isfinite(whole_s) else 1e3
    for share in (0.5, 0.99, 1.0, 1.01, 2.0):
        limit_s = share * reach_s
        found_s = bound_every_split(question, limit_s=limit_s).bound_s
        assert found_s == (limit_s if whole_s == math.inf else min(limit_s, whole_s))


@pytest.mark.parametrize("family", LOOPED)
@pytest.mark.parametrize("zero_stage", [1, 3])
@pytest.mark.parametrize("dense", [(0,), (0, 1), (1, 3, 4)])
def test_where_blocks_are_of_two_classes_exchanges_count_and_no_split_is_shorter(
    family, zero_stage, dense
):
    asked = case(
        model="mixtral-8x7b",
        dense=dense,
        blocks=7,
        pipeline=2,
        virtual_stages=2,
        num_microbatches=4,
        data=4,
        zero_stage=zero_stage,
        memory_gib=4000,
        sequence_length=512,
    )
    layers, costs = asked.profile.structure.layers, asked.profile.costs
    rows = [
        min(costs.rows_of(layer.layer_class), key=lambda row: costs.phases.total_s[row])
        for layer in layers
    ]
    question = asked.question(family)
    by_rank, by_path = bound_every_split(question).bound_s, bound_dealt_loops(question).bound_s
    by_path = max(by_path, bound_whole_loops(question).bound_s)
    steps_s = [step_of(asked, family, cuts, rows)[0] for cuts in every_cut(len(layers), 4)]
    least_s = min(step.step_time_s for step in steps_s)
    assert max(by_rank, by_path) <= least_s * (1 + 1e-9)
    loop = Loop.of(question)
    silent = loop.chain(loop.lengths.num_blocks, exchanging=False)
    memory, ends = loop.memory, rank_ends(loop.shape)
    assert by_rank > 1.02 * least_step_s(silent, ends, memory.held, memory.running).step_s


@pytest.mark.parametrize("sequence_length", [256, 512, 1024])
def test_a_rank_exchanges_while_others_drain(sequence_length):
    """The last rank has most to exchange, and is through two stages before the first."""
    asked = case(
        model="mixtral-8x7b",
        blocks=10,
        pipeline=3,
        virtual_stages=2,
        num_microbatches=1,
        data=8,
        nodes=4,
        memory_gib=4000,
        sequence_length=sequence_length,
    )
    layers, costs = asked.profile.structure.layers, asked.profile.costs
    rows = [
        min(costs.rows_of(layer.layer_class), key=lambda row: costs.phases.total_s[row])
        for layer in layers
    ]
    step, _ = step_of(asked, "depth-first", (0, 2, 4, 8, 10, 11, len(layers)), rows)
    assert bound_every_split(asked.question("depth-first")).bound_s <= step.step_time_s


@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    [
        "interleaved",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("depth-first", "breadth-first")),
    ],
)
def test_what_is_looked_through_knows_what_hides_under_the_group_before(family):
    """A chunk exchanges while a group of microbatches runs the one before it, whatever the way."""
    asked = case(
        blocks=4,
        pipeline=2,
        virtual_stages=2,
        num_microbatches=4,
        data=8,
        nodes=4,
        memory_gib=4000,
        sequence_length=512,
    )
    question, found = asked.question(family), []

    def priced(split):
        rows = rows_of_split(asked, Split(bound_s=0.0, cuts=split[0], chosen=split[1]))
        step, _ = step_of(asked, family, split[0], rows)
        found.append(step.step_time_s)
        return SimpleNamespace(step=step)

    finished = finish_loop(question, priced, Effort(), limit_s=1e3)
    layers, costs = asked.profile.structure.layers, asked.profile.costs
    ways = [costs.rows_of(layer.layer_class) for layer in layers]
    least_s = min(
        step_of(asked, family, (0, *(1 + np.cumsum(lengths)[:-1]).tolist(), len(layers)), rows)[
            0
        ].step_time_s
        for lengths in every_lengths([0, 1, 1, 0], [4] * 4, 4)
        for rows in product(*ways)
    )
    assert finished.bound_s == pytest.approx(least_s, rel=1e-9)
    assert min(found) == pytest.approx(least_s, rel=1e-9)
    assert 0.97 * least_s < bound_whole_loops(question).bound_s <= least_s * (1 + 1e-9)


@pytest.mark.parametrize("family", LOOPED)
def test_what_the_ends_share_is_reduced_after_the_pipeline(family):
    """Of 50,257 words in two layers: more than the blocks of a short model exchange."""
    asked = case(
        model="gpt2-xl",
        blocks=6,
        pipeline=2,
        virtual_stages=2,
        num_microbatches=2,
        memory_gib=4000,
        sequence_length=256,
    )
    question, layers, costs = (
        asked.question(family),
        asked.profile.structure.layers,
        asked.profile.costs,
    )
    rows = [
        min(costs.rows_of(layer.layer_class), key=lambda row: costs.phases.total_s[row])
        for layer in layers
    ]
    first = next(i for i, each in enumerate(layers) if each.layer_class == layers[2].layer_class)
    steps = [
        step_of(asked, family, (0, *(first + np.cumsum(each)[:-1]).tolist(), len(layers)), rows)[0]
        for each in every_lengths([0, 1, 1, 0], [6] * 4, 6)
    ]
    best = min(steps, key=lambda step: step.step_time_s)
    assert best.exposed_gradient_sync_s > 0.05 * best.step_time_s
    by_path = bound_dealt_loops(question)
    assert best.step_time_s - best.exposed_gradient_sync_s / 2 < by_path.bound_s
    assert by_path.bound_s <= best.step_time_s * (1 + 1e-9)
    for bounded in (bound_every_split, bound_whole_loops):
        assert bounded(question).bound_s <= best.step_time_s * (1 + 1e-9)
