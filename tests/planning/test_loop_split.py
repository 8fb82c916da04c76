"""Nearly even splits over chunks in a loop, and the layout that balances Llama-3-70B."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from family_cases import Case, case, every_cut, is_one_of, rows_of_split, step_of
from oracles_loop import least_recompute_s
from oracles_loop import rank_times_s as reference_times_s
from trainwright.costing.estimate import Estimator
from trainwright.formats import catalog
from trainwright.planning.bounds.layers import Blocks
from trainwright.planning.bounds.loop import rank_ends, rank_times_s, spread_order
from trainwright.planning.bounds.stages import StageKinds, nearly_even
from trainwright.planning.question.question import ModelQuestion, Point, Workload, estimate_profile
from trainwright.planning.splits.loop import Loop, best_loop_split
from trainwright.planning.splits.types import SplitQuestion
from trainwright.plans.configuration import even_blocks
from trainwright.plans.plan import Parallelism


def llama_on_64() -> Case:
    cluster = catalog.cluster("dgx-h100").with_nodes(8)
    question = ModelQuestion(
        model=catalog.model("llama3-70b").config,
        cluster=cluster,
        workload=Workload(global_batch=128, sequence_length=8192),
        num_devices=64,
    )
    estimator = Estimator(model=question.model, cluster=cluster)
    profile = estimate_profile(estimator, question, Point(microbatch_size=1, tensor=4))
    return Case(
        kinds=StageKinds.of(profile),
        degrees=Parallelism(
            tensor=4,
            pipeline=8,
            data=2,
            virtual_stages=5,
            sequence_parallel=True,
            zero_stage=1,
        ),
        cluster=cluster,
        num_microbatches=64,
    )


def llama_405b_on_8192(virtual_stages) -> Case:
    """With more memory than anyone needs."""
    cluster = catalog.cluster("dgx-h100").with_nodes(1024).with_memory(400 * 2**30)
    question = ModelQuestion(
        model=catalog.model("llama3-405b").config,
        cluster=cluster,
        workload=Workload(global_batch=2048, sequence_length=8192),
        num_devices=8192,
    )
    estimator = Estimator(model=question.model, cluster=cluster)
    profile = estimate_profile(estimator, question, Point(microbatch_size=1, tensor=8))
    return Case(
        kinds=StageKinds.of(profile),
        degrees=Parallelism(
            tensor=8,
            pipeline=16,
            data=64,
            virtual_stages=virtual_stages,
            sequence_parallel=True,
            zero_stage=1,
        ),
        cluster=cluster,
        num_microbatches=32,
    )


def test_the_uneven_layout_of_llama_70b_balances_the_head_and_gains_three_percent():
    asked = llama_on_64()
    split = best_loop_split(asked.question("interleaved"))
    step, fits = step_of(asked, "interleaved", split.cuts, rows_of_split(asked, split))
    lengths = [b - a for a, b in pairwise(split.cuts)]
    assert fits
    # An embedding and two blocks first; one block, norm, head and loss last.
    assert lengths[0] == 3
    assert lengths[-1] == 4
    assert sorted(lengths[1:-1]) == [2] * 37 + [3]
    even = (0, *np.cumsum([3] + [2] * 38 + [5]).tolist())
    rows = [
        next(iter(asked.profile.costs.rows_of(x.layer_class)))
        for x in asked.profile.structure.layers
    ]
    even_step, _ = step_of(asked, "interleaved", even, rows)
    assert even_step.step_time_s / step.step_time_s == pytest.approx(1.031, abs=0.004)
    assert split.bound_s <= step.step_time_s <= 1.01 * split.bound_s


@pytest.mark.parametrize("memory_gib", [22, 30, 80])
def test_the_split_is_near_the_best_nearly_even_one(memory_gib):
    asked = case(blocks=9, pipeline=2, virtual_stages=3, num_microbatches=8, memory_gib=memory_gib)
    split = best_loop_split(asked.question("interleaved"))
    even = nearly_even(asked.profile, 6)
    costs = asked.profile.costs
    steps = []
    for cuts in every_cut(asked.kinds.num_layers, 6):
        if not is_one_of(even, cuts):
            continue
        for choice in (0, -1):
            rows = [
                list(costs.rows_of(x.layer_class))[choice] for x in asked.profile.structure.layers
            ]
            step, fits = step_of(asked, "interleaved", cuts, rows)
            if fits:
                steps.append(step.step_time_s)
    if not steps:
        assert not split.cuts or split.bound_s > 0
        return
    assert split.bound_s <= min(steps) * (1 + 1e-9)
    own, fits = step_of(asked, "interleaved", split.cuts, rows_of_split(asked, split))
    assert fits
    assert own.step_time_s <= 1.03 * min(steps)


def test_nearly_even_splits_hold_one_number_of_blocks_or_one_more():
    asked = case(blocks=9, pipeline=2, virtual_stages=2)
    even = nearly_even(asked.profile, 4)  # embedding, nine blocks, norm, head, loss
    assert is_one_of(even, (0, 3, 5, 7, 13))
    assert is_one_of(even, (0, 4, 7, 10, 13))
    assert not is_one_of(even, (0, 5, 7, 9, 13))
    assert not is_one_of(even, (0, 3, 4, 7, 13))
    assert nearly_even(asked.profile, 12) is None


@pytest.mark.parametrize("memory_gib", [12, 20, 28, 79])
@pytest.mark.parametrize(
    ("pipeline", "virtual_stages", "data", "zero_stage"),
    [(1, 3, 1, 1), (2, 2, 2, 0), (3, 2, 2, 3), (4, 3, 2, 2)],
)
def test_the_core_times_every_rank_of_a_loop_like_the_plain_reference(
    memory_gib, pipeline, virtual_stages, data, zero_stage
):
    asked = case(
        blocks=14,
        pipeline=pipeline,
        virtual_stages=virtual_stages,
        data=data,
        zero_stage=zero_stage,
        num_microbatches=12,
        memory_gib=memory_gib,
    )
    loop = Loop.of(asked.question("interleaved"))
    chain, ends = loop.chain(14), rank_ends(loop.shape)
    held, running = loop.memory.held, loop.memory.running
    for rank, times_s in enumerate(rank_times_s(chain, ends, held, running)):
        wanted_s = reference_times_s(chain, rank, ends[rank], held[rank], running[rank])
        np.testing.assert_allclose(times_s, wanted_s, rtol=1e-12)


def _switched_one_option_at_a_time(loop: Loop, rank: int, kinds: tuple[int, ...]):
    """Layers by row of a rank's chunks: switches that free most per second."""
    costs, memory = loop.kinds.profile.costs, loop.memory
    held, running = memory.held[rank], memory.running[rank]
    choice, classes = [], range(len(loop.kinds.counts[0]))
    for kind in kinds:
        own = np.zeros(costs.num_rows, dtype=np.int64)
        for layer_class, count in enumerate(loop.kinds.counts[kind].tolist()):
            rows = list(costs.rows_of(layer_class))
            own[min(rows, key=lambda row: costs.phases.total_s[row])] = count
        choice.append(own)
    room = memory.room_bytes(kinds)
    while True:
        kept = np.array([own @ costs.saved_bytes for own in choice])
        beside = np.array([costs.transient_bytes[own > 0].max() for own in choice])
        needed = held @ kept + running @ beside
        at = int(needed.argmax())
        if needed[at] <= room:
            return [own.tolist() for own in choice]
        best, found = 0.0, None
        for chunk, own in enumerate(choice):
            for layer_class in classes:
                rows = list(costs.rows_of(layer_class))
                for row in (r for r in rows if own[r]):
                    for other in (o for o in rows if costs.saved_bytes[o] < costs.saved_bytes[row]):
                        freed = held[at][chunk] * (
                            costs.saved_bytes[row] - costs.saved_bytes[other]
                        )
                        longer_s = costs.duration_s[other] - costs.duration_s[row]
                        if (rate := freed / max(longer_s, 1e-12)) > best:
                            best, found = rate, (chunk, row, other, freed)
        if found is None:
            return None
        chunk, row, other, freed = found
        count = min(choice[chunk][row], max(1, math.ceil((needed[at] - room) / freed)))
        choice[chunk][row] -= count
        choice[chunk][other] += count


@pytest.mark.parametrize(
    ("model", "dense", "memory_gib"),
    [
        *(("llama3-8b", (), memory_gib) for memory_gib in (14, 18, 24, 79)),
        *(("mixtral-8x7b", (1, 4, 7), memory_gib) for memory_gib in (60, 140, 180)),
    ],
)
def test_a_rank_switches_the_options_that_free_most_per_second(model, dense, memory_gib):
    asked = case(
        blocks=12,
        pipeline=2,
        virtual_stages=2,
        num_microbatches=6,
        memory_gib=memory_gib,
        model=model,
        dense=dense,
    )
    loop = Loop.of(asked.question("interleaved"))
    cuts = (0, 4, 7, 10, asked.kinds.num_layers)
    found = loop.memory.recomputed(np.diff(cuts))
    kinds = [int(loop.kinds.kind_of[a, b]) for a, b in pairwise(cuts)]
    ranks = [_switched_one_option_at_a_time(loop, r, (kinds[r], kinds[r + 2])) for r in (0, 1)]
    assert (found is None) == (None in ranks)
    if found is not None:
        assert [list(found[r + 2 * c]) for r in (0, 1) for c in (0, 1)] == [*ranks[0], *ranks[1]]
        if memory_gib == 18:
            assert sum(any(own[row] for own in found) for row in range(len(found[0]))) > 5


def test_recomputation_that_memory_asks_for_is_the_fractional_knapsack():
    blocks = Blocks.of(
        count=8,
        forward_s=1.0,
        time_s=np.array([3.0, 3.5, 4.0]),
        kept_bytes=np.array([10.0, 9.9, 2.0]),
        static=0.0,
    )
    assert blocks.time_s.tolist() == [3.0, 4.0]  # the second lies above the hull
    least, spare = np.array([2, 2]), np.array([1, 1])
    instants = np.array([[4.0, 1.0]])
    # Two blocks wait fourfold, two once: 100 bytes. Of 60 bytes 40 are over; a block of the first
    # chunk frees 32 for a second, so one and a quarter of them do.
    needed_s = least_recompute_s(blocks, least, spare, instants, np.array([[60.0]]))
    assert needed_s == pytest.approx([1.25])
    # A fifth block goes where fewer wait: 110 bytes.
    needed_s = least_recompute_s(blocks, least, spare, instants, np.array([[60.0], [60.0]]))
    assert needed_s == pytest.approx([1.25, 50 / 32])
    assert np.isinf(least_recompute_s(blocks, least, spare, instants, np.array([[19.0]])))[0]


def test_the_bound_ends_below_the_limit_or_is_the_limit():
    asked = replace(llama_on_64(), num_microbatches=32)
    free = best_loop_split(asked.question("interleaved"))
    cut = best_loop_split(asked.question("interleaved"), limit_s=0.9 * free.bound_s)
    assert cut.bound_s == 0.9 * free.bound_s
    assert not cut.cuts


def test_blocks_of_two_classes_are_dealt_out_whole():
    """The bound knows nine blocks of one class and may leave a rank fewer than it must hold."""
    cluster = catalog.cluster("dgx-h100").with_nodes(1)
    mixtral = catalog.model("mixtral-8x7b").config
    model = replace(
        mixtral, num_layers=12, ffn_size=4096, experts=replace(mixtral.experts, num_dense_layers=3)
    )
    question = ModelQuestion(
        model=model,
        cluster=cluster,
        workload=Workload(global_batch=16, sequence_length=2048),
        num_devices=8,
    )
    point = Point(microbatch_size=1, tensor=1, expert=4, expert_tensor=1)
    kinds = StageKinds.of(estimate_profile(question.estimator(), question, point))
    degrees = Parallelism(
        pipeline=2, data=4, expert=4, expert_tensor=1, virtual_stages=6, zero_stage=1
    )
    loop = Loop.of(
        SplitQuestion(
            kinds=kinds,
            degrees=degrees,
            cluster=cluster,
            family="interleaved",
            num_microbatches=4,
        )
    )
    found = loop.likely_split(limit_s=float("inf"))
    assert found is not None
    assert found.cuts[-1] == kinds.num_layers
    assert is_one_of(loop.lengths, found.cuts)


@pytest.mark.parametrize("virtual_stages", [2, 3, 4, 7])
def test_no_loop_is_slower_than_the_even_split(virtual_stages):
    """Of 126 blocks in 48 stages the even one alone was faster by six percent."""
    asked = llama_405b_on_8192(virtual_stages)
    split = best_loop_split(asked.question("interleaved"))
    blocks = np.array(even_blocks(126, 16 * virtual_stages))
    blocks[0] += 1  # the embedding
    blocks[-1] += 3  # norm, head and loss
    even = (0, *np.cumsum(blocks).tolist())
    rows = [
        next(iter(asked.profile.costs.rows_of(x.layer_class)))
        for x in asked.profile.structure.layers
    ]
    even_step, fits = step_of(asked, "interleaved", even, rows)
    assert fits
    every = [(split.cuts, split.chosen), *split.others]
    own = [replace(split, cuts=cuts, chosen=chosen) for cuts, chosen in every]
    steps = [step_of(asked, "interleaved", s.cuts, rows_of_split(asked, s)) for s in own]
    assert all(fits for _, fits in steps)
    assert min(step.step_time_s for step, _ in steps) <= even_step.step_time_s * (1 + 1e-9)
    assert all(step.step_time_s >= split.bound_s for step, _ in steps)


def test_extra_blocks_are_spread_over_any_number_of_chunks():
    assert spread_order(8).tolist() == [0, 4, 2, 6, 1, 5, 3, 7]
    assert spread_order(5).tolist() == [0, 4, 2, 1, 3]
    for count in (1, 2, 3, 64, 65, 100, 200):
        order = spread_order(count)
        assert sorted(order.tolist()) == list(range(count))
        reversed_bits = [int(f"{chunk:08b}"[::-1], 2) for chunk in order.tolist()]
        assert reversed_bits == sorted(reversed_bits)
