"""The split bound against exhaustive enumeration: every split, every choice of recomputation."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations, pairwise, product
from typing import Any

import pytest

from trainwright.costing.estimate import Estimator
from trainwright.execution import Budget
from trainwright.formats import catalog
from trainwright.planning.bounds.stages import StageKinds
from trainwright.planning.question.question import (
    Candidate,
    ModelQuestion,
    Point,
    Workload,
    estimate_profile,
)
from trainwright.planning.search.frontier import Shelf
from trainwright.planning.search.plans import PlanAsk
from trainwright.planning.splits.chain import best_chain_split
from trainwright.planning.splits.types import SplitQuestion
from trainwright.plans import Plan, Stage
from trainwright.step.predict import predict_step

BLOCKS = 4


def asked(*, memory_gib: float, model: str = "llama3-8b") -> ModelQuestion:
    config = replace(catalog.model(model).config, num_layers=BLOCKS)
    cluster = catalog.cluster("dgx-h100").with_nodes(1).with_memory(memory_gib * 2**30)
    return ModelQuestion(
        model=config,
        cluster=cluster,
        workload=Workload(global_batch=16, sequence_length=4096),
        num_devices=cluster.num_devices,
    )


def every_step_s(question: ModelQuestion, candidate: Candidate, profile):
    """Step times of all plans of the candidate that fit."""
    layers, costs = profile.structure.layers, profile.costs
    options = [[costs.option_ids[r] for r in costs.rows_of(x.layer_class)] for x in layers]
    for inner in combinations(range(1, len(layers)), candidate.pipeline - 1):
        cuts = list(pairwise((0, *inner, len(layers))))
        # Within a stage only how many blocks take each option matters: take them sorted.
        for chosen in product(*options):
            stages = [(layers[a:b], chosen[a:b]) for a, b in cuts]
            if any(not _sorted_by_class(*stage) for stage in stages):
                continue
            plan = Plan(
                stages=tuple(
                    Stage.uniform(
                        tuple(layer.id for layer in own),
                        tuple(taken),
                        data_parallel=candidate.data,
                        tensor_parallel=candidate.tensor,
                    )
                    for own, taken in stages
                ),
                num_microbatches=question.workload.global_batch // candidate.microbatch_size,
                microbatch_size=candidate.microbatch_size,
                parallelism=candidate.degrees,
            )
            step = predict_step(plan, profile, question.cluster)
            if step.peak_memory_bytes <= question.cluster.accelerator.usable_bytes:
                yield step.step_time_s


def _sorted_by_class(layers, options) -> bool:
    pairs = list(zip((layer.layer_class for layer in layers), options, strict=True))
    return all(a[0] != b[0] or a[1] <= b[1] for a, b in pairwise(pairs))


EACH_ONCE = {(13, 1), (19, 2), (26, 3)}  # memories and ZeRO stages


def marks_of(pipeline: int, memory_gib: int, zero_stage: int) -> Any:
    """Three stages have many splits; of fewer, what lies between the ends waits."""
    each = memory_gib, zero_stage
    if pipeline < 3 and memory_gib != 19 and zero_stage != 2:
        return ()
    return pytest.mark.slow if each in EACH_ONCE else pytest.mark.papers


CASES = [
    pytest.param(
        *case,
        marks=marks_of(case[0], *case[2:]),
    )
    for case in product((1, 2, 3), (1, 2, 8), (13, 19, 26), (1, 2, 3))
    if case[:2] in {(1, 2), (2, 2), (2, 8), (3, 1)}
]


@pytest.mark.parametrize(("pipeline", "data", "memory_gib", "zero_stage"), CASES)
def test_the_best_split_is_a_bound_on_all_plans_and_the_plan_is_the_best(
    pipeline, data, memory_gib, zero_stage
):
    question = asked(memory_gib=memory_gib)
    candidate = Candidate(
        microbatch_size=1, tensor=1, pipeline=pipeline, data=data, zero_stage=zero_stage
    )
    if candidate.num_devices > question.num_devices:
        candidate = replace(candidate, data=data // 2)
    estimator = Estimator(model=question.model, cluster=question.cluster)
    profile = estimate_profile(estimator, question, Point(microbatch_size=1, tensor=1))
    split = best_chain_split(
        SplitQuestion(
            kinds=StageKinds.of(profile),
            degrees=candidate.degrees,
            cluster=question.cluster,
            family="1f1b",
            num_microbatches=question.workload.global_batch // candidate.data,
        )
    )
    least_s = min(every_step_s(question, candidate, profile), default=math.inf)
    assert math.isinf(split.bound_s) == math.isinf(least_s)
    if math.isinf(least_s):
        return
    assert split.bound_s <= least_s * (1 + 1e-12)
    assert split.bound_s >= 0.97 * least_s
    found = PlanAsk(candidate, split).answer(Shelf.of(question), Budget())
    assert found is not None
    assert least_s * (1 - 1e-12) <= found.step.step_time_s <= least_s * 1.01
