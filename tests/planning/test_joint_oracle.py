"""The joint planner against exhaustion: every legal plan of a small space, priced one by one."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise, product

import pytest

from trainwright.costing.estimate import Estimator
from trainwright.errors import InvalidInput
from trainwright.execution import Budget
from trainwright.formats import catalog
from trainwright.plan import Plan, Stage
from trainwright.plan.configuration import Configuration
from trainwright.plan.legality import broken_rules
from trainwright.plan.parallelism import Parallelism
from trainwright.planning.allowed import Allowed, Span
from trainwright.planning.model_planner import plan_model
from trainwright.planning.model_question import ModelQuestion, estimate_profile
from trainwright.planning.model_space import Candidate, Workload
from trainwright.pricing.step import predict_step
from trainwright.profile import Recompute

LLAMA = catalog.model("llama3-8b").config
MIXTRAL = catalog.model("mixtral-8x7b").config
TINY_MIXTURE = replace(
    MIXTRAL,
    num_layers=2,
    ffn_size=4096,
    experts=replace(MIXTRAL.experts, num_experts=4, ffn_size=4096),
)
MODES = (Recompute.NONE, Recompute.FULL)


def asked(model, *, memory_gib, devices=4, batch=4, sequence=2048, **allowed):
    cluster = catalog.cluster("dgx-h100").with_nodes(1).with_memory(memory_gib * 2**30)
    return ModelQuestion(
        model=model,
        cluster=cluster,
        workload=Workload(global_batch=batch, sequence_length=sequence),
        num_devices=devices,
        allowed=Allowed(**{"recompute": MODES, "schedules": ("1f1b",)} | allowed),
    )


def every_candidate(question):
    """All degrees by brute force; the rules of legality decide."""
    model, allowed = question.model, question.allowed
    pool, devices = question.cluster.pool_of(), question.num_devices
    counts = range(1, devices + 1)
    batch = question.workload.global_batch
    cuts = (None,) if model.experts is None else (1, 2, 4)
    for size, tp, cp, pp, dp in product((1, 2, 4), counts, counts, counts, counts):
        if tp * cp * pp * dp > devices or pool.devices_per_node % tp or size > batch:
            continue
        for ep, etp, zero in product(counts, cuts, allowed.zero_stages):
            if etp not in (None, 1, tp) or cp not in allowed.context:
                continue
            degrees = Parallelism(
                tensor=tp,
                pipeline=pp,
                data=dp,
                context=cp,
                expert=ep,
                expert_tensor=etp,
                sequence_parallel=tp > 1,
                zero_stage=zero,
            )
            configuration = Configuration(
                parallelism=degrees,
                microbatch_size=size,
                global_batch=batch,
                sequence_length=question.workload.sequence_length,
            )
            if not broken_rules(configuration, model, pool):
                for family, chunks in families(allowed):
                    if pp * chunks <= model.num_layers and (pp > 1 or family == "1f1b"):
                        yield Candidate(
                            microbatch_size=size,
                            tensor=tp,
                            pipeline=pp,
                            data=dp,
                            context=cp,
                            expert=ep,
                            expert_tensor=etp,
                            zero_stage=zero,
                            schedule=family,
                            virtual_stages=chunks,
                        )


def families(allowed):
    for family in allowed.schedules:
        if family == "interleaved":
            yield from ((family, chunks) for chunks in (2, 3, 4))
        else:
            yield family, 2 if "v" in family else 1


def every_step_s(question, candidate, profile):
    """Step times of all plans of a candidate that fit."""
    layers, costs = profile.structure.layers, profile.costs
    options = [[costs.option_ids[r] for r in costs.rows_of(x.layer_class)] for x in layers]
    stages = candidate.pipeline * candidate.virtual_stages
    for inner in combinations(range(1, len(layers)), stages - 1):
        cuts = list(pairwise((0, *inner, len(layers))))
        for chosen in product(*options):
            if any(not _in_order(chosen[a:b]) for a, b in cuts):
                continue
            plan = Plan(
                stages=tuple(
                    Stage.uniform(
                        tuple(layer.id for layer in layers[a:b]),
                        tuple(chosen[a:b]),
                        data_parallel=candidate.data,
                        tensor_parallel=candidate.tensor,
                    )
                    for a, b in cuts
                ),
                num_microbatches=question.workload.global_batch // candidate.microbatch_size,
                microbatch_size=candidate.microbatch_size,
                schedule=candidate.schedule,
                parallelism=candidate.degrees,
            )
            try:
                step = predict_step(plan, profile, question.cluster)
            except InvalidInput:  # a rule of the family
                return
            if step.peak_memory_bytes <= question.cluster.accelerator.usable_bytes:
                yield step.step_time_s


def _in_order(options) -> bool:
    """Of blocks of one stage only how many recompute matters: those that do come first."""
    again = [option == Recompute.FULL for option in options]
    first = again.index(True) if any(again) else 0
    return again[first : first + sum(again)] == [True] * sum(again)


@cache
def least_step_s(question):
    estimator, profiles, least_s = (
        Estimator(model=question.model, cluster=question.cluster),
        {},
        None,
    )
    for candidate in every_candidate(question):
        if candidate.point not in profiles:
            profiles[candidate.point] = estimate_profile(estimator, question, candidate.point)
        for step_s in every_step_s(question, candidate, profiles[candidate.point]):
            least_s = step_s if least_s is None else min(least_s, step_s)
    return least_s


SMALL = {
    "roomy": asked(replace(LLAMA, num_layers=2), memory_gib=60),
    "tight": asked(replace(LLAMA, num_layers=2), memory_gib=16),
    "experts": asked(TINY_MIXTURE, memory_gib=24, zero_stages=(1, 3), context=Span.only(1)),
    "slow to synchronise": asked(replace(LLAMA, num_layers=2), memory_gib=40, sequence=128),
}


@pytest.mark.parametrize("question", SMALL.values(), ids=SMALL)
def test_the_planner_finds_what_exhaustion_finds(question):
    outcome = plan_model(question, Budget())
    least_s = least_step_s(question)
    found_s = outcome.priced[0].step.step_time_s
    assert found_s == pytest.approx(least_s, rel=1e-9)
    assert outcome.lower_bound_s <= least_s * (1 + 1e-12)
    assert outcome.considered == sum(1 for _ in distinct(question))


def distinct(question):
    """Candidates; where nothing is replicated all ZeRO stages are one."""
    seen = set()
    for candidate in every_candidate(question):
        dense = candidate.data * candidate.context
        experts = dense * candidate.tensor // candidate.point.expert_devices
        alike = dense == 1 and experts <= 1
        key = replace(candidate, zero_stage=question.allowed.zero_stages[0] if alike else 9)
        key = key if alike else candidate
        if key not in seen:
            seen.add(key)
            yield key
