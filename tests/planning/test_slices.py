"""Sequences cut into slices, in estimates and plans: simulated and exhausted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import trainwright
from exhaustive import LLAMA, asked, least_step_s
from trainwright.errors import InvalidInput
from trainwright.execution import Budget
from trainwright.formats import catalog
from trainwright.planning.question.question import Span
from trainwright.planning.search.search import plan_model
from trainwright.plans.configuration import Configuration
from trainwright.plans.plan import Parallelism
from trainwright.plans.schedule import ScheduleCosts
from trainwright.scheduling.families import FamilyRequest, generate
from trainwright.scheduling.orders import cut_microbatches
from trainwright.scheduling.simulate import simulate
from trainwright.step.pipeline import PipelineShape, PipelineTimes, simulated_ends_s
from trainwright.step.predict import price_configuration

ONE = Span.only(1)
SLICES = 4
RUN = {"cluster": "dgx-h100", "tp": 1, "dp": 1, "micro_batch": 1, "global_batch": 2, "pp": 2}
CLUSTER = catalog.cluster("dgx-h100")


def estimated(schedule: str, *, ranks: int, microbatches: int, chunks: int = 1):
    run = Configuration(
        parallelism=Parallelism(pipeline=ranks, virtual_stages=chunks),
        microbatch_size=1,
        global_batch=microbatches,
        sequence_length=32768,
        schedule=schedule,
    )
    return price_configuration(catalog.model("llama3-8b").config, CLUSTER, run)


@pytest.mark.parametrize("seed", range(8))
def test_slices_take_in_plans_what_they_take_in_schedules(seed):
    random = np.random.default_rng(seed)
    ranks, microbatches = int(random.integers(1, 6)), int(random.integers(1, 9))
    for family, slices, chunks in (("seq1f1b", SLICES, 1), ("slimpipe", ranks, 2)):
        kinds, stages = ("forward_s", "input_grad_s", "weight_grad_s"), ranks * chunks
        whole = dict(zip(kinds, random.uniform(0.2, 2.0, (3, stages)), strict=True))
        whole["transfer_s"] = random.uniform(0.0, 0.5, stages - 1)
        request = FamilyRequest(
            num_ranks=ranks,
            num_microbatches=microbatches,
            virtual_stages=chunks,
            num_slices=slices,
        )
        schedule = generate(family, request)
        costs = ScheduleCosts.of(schedule.placement, **whole)
        times = PipelineTimes(**{name: own / slices for name, own in whole.items()})
        shape = PipelineShape(
            family=family,
            num_ranks=ranks,
            num_microbatches=slices * microbatches,
            virtual_stages=chunks,
        )
        found_s = simulated_ends_s(shape, times).max()
        expected_s = simulate(schedule, cut_microbatches(costs, slices)).makespan_s
        assert found_s == pytest.approx(expected_s)


def test_slices_cost_nothing_where_there_is_no_pipeline_and_fill_one_where_there_is():
    alone = [estimated(name, ranks=1, microbatches=2) for name in ("1f1b", "seq1f1b")]
    assert alone[1].pipeline_s == pytest.approx(alone[0].pipeline_s)
    whole, cut = (estimated(name, ranks=8, microbatches=8) for name in ("1f1b", "seq1f1b"))
    assert cut.bubble_of_makespan < whole.bubble_of_makespan / 2
    assert cut.mfu > whole.mfu
    for own, other in zip(cut.stages, whole.stages, strict=True):
        assert own.forward_s == pytest.approx(other.forward_s)
        assert own.backward_s == pytest.approx(other.backward_s)


def test_a_rank_holds_one_microbatch_and_a_slice_for_each_rank_behind_it():
    whole, cut = (estimated(name, ranks=8, microbatches=16) for name in ("1f1b", "seq1f1b"))
    for rank in range(7):  # the last has the logits, too
        slices = SLICES + 7 - rank
        held = cut.stages[rank].memory.activation_bytes / whole.stages[rank].memory.activation_bytes
        assert held == pytest.approx(slices / SLICES / (8 - rank), rel=1e-6)


def test_with_chunks_a_rank_holds_one_microbatch_and_two_slices_of_a_chunk_per_rank_behind_it():
    """SlimPipe: p slices, vp + 2(p-1-r) of them, each of a v-th of the rank's layers."""
    whole = estimated("1f1b", ranks=8, microbatches=16)
    cut = estimated("slimpipe", ranks=8, microbatches=16, chunks=2)
    for rank in range(1, 7):  # the first has the embedding, the last the logits
        units = 2 * 8 + 2 * (7 - rank)
        held = cut.stages[rank].memory.activation_bytes / whole.stages[rank].memory.activation_bytes
        assert held == pytest.approx(units / 16 / (8 - rank), rel=1e-6)
    assert cut.bubble_of_makespan < whole.bubble_of_makespan / 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layers", "memory_gib", "schedules"),
    [
        (3, 60, ("seq1f1b",)),
        (3, 12, ("1f1b", "seq1f1b")),
        (4, 60, ("slimpipe",)),
        pytest.param(4, 12, ("seq1f1b",), marks=pytest.mark.papers),
        pytest.param(4, 12, ("1f1b", "seq1f1b"), marks=pytest.mark.slow),
        pytest.param(4, 16, ("slimpipe", "interleaved"), marks=pytest.mark.slow),
    ],
)
def test_no_sliced_plan_is_below_the_bound(layers, memory_gib, schedules):
    question = asked(
        replace(LLAMA, num_layers=layers),
        memory_gib=memory_gib,
        batch=4,
        sequence=4096,
        schedules=schedules,
        pipeline=Span(least=2),
        tensor=ONE,
        context=ONE,
        microbatch_size=ONE,
    )
    outcome, least_s = plan_model(question, Budget()), least_step_s(question)
    assert outcome.lower_bound_s <= least_s * (1 + 1e-12)
    assert outcome.priced[0].step.step_time_s <= 1.02 * least_s


def test_what_cannot_be_cut_is_refused():
    with pytest.raises(InvalidInput, match="multiple of 4 slices"):
        trainwright.estimate("llama3-8b", sequence=4098, schedule="seq1f1b", **RUN)
    with pytest.raises(InvalidInput, match="multiple of 2 slices"):
        trainwright.estimate("llama3-8b", sequence=4097, schedule="slimpipe", **RUN)
    for family in ("seq1f1b", "slimpipe"):
        with pytest.raises(InvalidInput, match="see later ones"):
            trainwright.estimate("bert-large", sequence=512, schedule=family, **RUN)
        with pytest.raises(InvalidInput, match="see later ones"):
            trainwright.plan(
                "bert-large", cluster="dgx-h100", global_batch=8, sequence=512, schedule=family
            )


@pytest.mark.slow
def test_slices_that_are_not_equal_are_no_candidates():
    asked_of = {"cluster": "dgx-h100", "devices": 6, "global_batch": 6, "framework": "any"}
    asked_of |= {"schedule": "slimpipe", "tp": 1, "cp": 1, "dp": 1}
    found = trainwright.plan("llama3-8b", sequence=8192, pp="2..6", **asked_of)
    assert found.document.parallelism.pipeline in (2, 4)
