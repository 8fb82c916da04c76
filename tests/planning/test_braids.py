"""Braided orders in plans: pairs hide the tensor network, and bounds say by how much at most."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import trainwright
from exhaustive import LLAMA, asked, least_step_s
from trainwright.errors import TrainwrightError
from trainwright.execution import Budget
from trainwright.planning.bounds.step import Hidden
from trainwright.planning.question.question import Span, estimate_profile
from trainwright.planning.search.frontier import Shelf
from trainwright.planning.search.search import plan_model
from trainwright.profile import TimeKind
from trainwright.scheduling.families import FamilyRequest, generate
from trainwright.scheduling.families.stp import STP, in_flight
from trainwright.step.pipeline import PipelineShape, PipelineTimes, simulated_ends_s

ONE = Span.only(1)
RUN = {
    "cluster": "dgx-h100",
    "global_batch": 32,
    "sequence": 4096,
    "micro_batch": 1,
    "pp": 2,
    "virtual_stages": 2,
}


def makespan_s(times: PipelineTimes, *, ranks: int, microbatches: int) -> float:
    shape = PipelineShape(
        family="stp", num_ranks=ranks, num_microbatches=microbatches, virtual_stages=2
    )
    return float(simulated_ends_s(shape, times).max())


@pytest.mark.parametrize("seed", range(40))
def test_no_braided_order_is_below_what_its_bound_takes_off(seed):
    """φ and δ of random layers, against the simulator with and without hidden networks."""
    random = np.random.default_rng(seed)
    ranks, microbatches = int(random.integers(2, 5)), int(random.integers(1, 20))
    stages = 2 * ranks
    forward_s, input_grad_s, weight_grad_s = random.uniform(0.2, 2.0, (3, stages))
    waits_s = random.uniform(0.0, random.uniform(0.1, 1.5), stages) * (forward_s + input_grad_s)
    times = PipelineTimes(
        forward_s=forward_s,
        input_grad_s=input_grad_s,
        weight_grad_s=weight_grad_s,
        transfer_s=random.uniform(0.0, 0.1, stages - 1),
    )
    braided_s = makespan_s(
        replace(times, network_s=waits_s), ranks=ranks, microbatches=microbatches
    )
    apart_s = makespan_s(times, ranks=ranks, microbatches=microbatches)
    ways_s = np.stack((forward_s, input_grad_s))
    shares = (waits_s / 2 / ways_s).max(axis=0)
    hidden = Hidden(share=min(0.5, float(shares.max())), alone_s=0.0, work_s=0.0)
    assert hidden.bound_s(apart_s, microbatches) <= braided_s * (1 + 1e-9)
    # The stage that hides most may be taken to take no time at all.
    most = int(shares.argmax())
    share = min(0.5, float(np.delete(shares, most).max()))
    taken_s = np.maximum(ways_s, waits_s / 2).sum(axis=0)
    alone = Hidden(share=share, alone_s=float(taken_s[most]), work_s=0.0)
    assert alone.bound_s(apart_s, microbatches) <= braided_s * (1 + 1e-9)


def test_pairs_hide_only_what_is_exposed():
    alone, split = (
        [
            trainwright.estimate("llama3-8b", tp=tp, schedule=family, **RUN).document.pipeline_s
            for family in ("stp", "zb-v")
        ]
        for tp in (1, 4)
    )
    assert alone[0] == pytest.approx(alone[1], rel=0.02)  # nothing to hide
    assert split[0] < 0.95 * split[1]


def test_what_is_hidden_is_no_longer_exposed_and_parts_add_up():
    found = {
        family: trainwright.estimate("llama3-8b", tp=4, schedule=family, **RUN).document
        for family in ("stp", "zb-v")
    }
    braided, plain = (each.exposed_communication_s["tensor"] for each in found.values())
    assert 0 < braided < 0.5 * plain
    hidden = found["stp"].hidden_communication_s["tensor"]
    assert hidden + braided == pytest.approx(
        plain + found["zb-v"].hidden_communication_s["tensor"], rel=0.02
    )
    assert 0 < found["stp"].bubble_of_makespan < 0.2


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 3), (3, 9), (4, 40), (8, 24)])
def test_braids_hold_what_planners_are_told(ranks, microbatches):
    request = FamilyRequest(num_ranks=ranks, num_microbatches=microbatches)
    schedule = generate("stp", request)
    near, far = in_flight(ranks, microbatches)
    assert max(schedule.peak_activations) <= STP.most_activations(ranks)
    for rank in range(ranks):
        rows = schedule.actions[schedule.rows_of(rank)]
        held = {rank: 0, 2 * ranks - 1 - rank: 0}
        seen = set()
        for kind, stage, _ in rows.tolist():
            held[stage] += kind == 0
            seen.add(tuple(held.values()))
            held[stage] -= kind in (1, 3)
        for instant in zip(near[:, rank].tolist(), far[:, rank].tolist(), strict=True):
            assert instant in seen
        assert max(map(sum, seen)) == (near + far)[:, rank].max()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("memory_gib", "tensor"),
    [*(pytest.param(60, tensor, marks=pytest.mark.papers) for tensor in (1, 2)), (18, 2)],
)
def test_no_braided_plan_is_below_the_bound(memory_gib, tensor):
    question = asked(
        replace(LLAMA, num_layers=4),
        memory_gib=memory_gib,
        batch=6,
        sequence=4096,
        schedules=("stp",),
        zero_stages=(1,),
        pipeline=Span.only(2),
        tensor=Span.only(tensor),
        context=ONE,
        microbatch_size=ONE,
    )
    outcome, least_s = plan_model(question, Budget()), least_step_s(question)
    assert outcome.lower_bound_s <= least_s * (1 + 1e-12)
    assert outcome.priced[0].step.step_time_s <= 1.02 * least_s


@pytest.mark.slow
def test_a_block_hides_no_more_than_it_waits_for():
    question = asked(
        replace(LLAMA, num_layers=4),
        memory_gib=60,
        schedules=("stp",),
        tensor=Span.only(2),
        pipeline=Span.only(2),
        context=ONE,
    )
    shelf = Shelf.of(question)
    outcome = plan_model(question, Budget())
    point = outcome.priced[0].candidate.point
    profile = estimate_profile(shelf.estimator, question, point)
    hidden, costs = Hidden.of(profile), profile.costs
    rows = list(costs.rows_of(profile.structure.layers[1].layer_class))
    back_s = costs.phases.input_grad_s[rows] + costs.phases.recompute_s[rows]
    shorter_s = np.minimum(costs.phases.forward_s[rows], back_s)
    waits_s = costs.time_by_kind_s[rows, TimeKind.TENSOR_PARALLEL]
    assert 0 < hidden.share == pytest.approx(float((waits_s / 2 / shorter_s).max()))
    assert outcome.lower_bound_s < outcome.priced[0].step.step_time_s


@pytest.mark.parametrize("schedule", ["stp", "seq1f1b", "slimpipe"])
@pytest.mark.parametrize("framework", ["megatron", "torchtitan", "pytorch"])
def test_frameworks_without_braids_and_slices_refuse_them_by_name(framework, schedule):
    with pytest.raises(TrainwrightError, match=f"must name one that {framework}.* runs"):
        trainwright.plan(
            "llama3-8b",
            cluster="dgx-h100",
            global_batch=32,
            sequence=4096,
            schedule=schedule,
            framework=framework,
        )
