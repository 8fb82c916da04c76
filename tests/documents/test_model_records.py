"""A priced plan as a document carries it, also where a rank runs several stages."""

from __future__ import annotations

import pytest

from trainwright.documents.model_plan import (
    ModelPlanResult,
    profile_of,
    with_plan,
)
from trainwright.documents.open import recheck
from trainwright.documents.printing import render, to_text
from trainwright.formats import catalog
from trainwright.formats.document_json import encode
from trainwright.options.inputs import embed
from trainwright.options.question import ModelCall, request_of
from trainwright.planning.question.question import ModelQuestion, Workload
from trainwright.plans.configuration import Configuration
from trainwright.plans.plan import Parallelism
from trainwright.plans.status import BoundKind, Status
from trainwright.step.predict import plan_of, predict_step, profile_of_run

FAMILIES = {"1f1b": 1, "interleaved": 3, "v-half": 2, "zb-h1": 1, "dualpipe-v": 2}


def documented(schedule: str) -> ModelPlanResult:
    """Llama-3 8B on 8 devices under a family, as a document with the bound of nothing."""
    config, cluster = catalog.model("llama3-8b").config, catalog.cluster("dgx-h100")
    degrees = Parallelism(pipeline=4, data=2, virtual_stages=FAMILIES[schedule], zero_stage=1)
    run = Configuration(
        parallelism=degrees,
        microbatch_size=1,
        global_batch=32,
        sequence_length=2048,
        schedule=schedule,
    )
    question = ModelQuestion(
        model=config,
        cluster=cluster,
        workload=Workload(global_batch=32, sequence_length=2048),
        num_devices=8,
    )
    plan = plan_of(run, profile_of_run(config, cluster, run))
    profile = profile_of(question, plan)
    model = embed("model", "llama3-8b", encode(config))
    call = ModelCall(model=model, question=question)
    empty = ModelPlanResult(
        status=Status.GAP,
        lower_bound_s=0.0,
        bound_kind=BoundKind.PROVED,
        memory_limit_bytes=cluster.accelerator.usable_bytes,
        request=request_of(call, time_limit_s=None),
    )
    step = predict_step(plan, profile, question.cluster, **question.step_terms)
    return with_plan(empty, question, plan, profile, step)


@pytest.mark.parametrize("schedule", FAMILIES)
def test_the_stages_of_a_rank_share_its_time_and_its_memory(schedule):
    document = documented(schedule)
    assert document.num_stages == 4 * FAMILIES[schedule]
    assert len(document.ranks) == len(document.peak_memory_bytes_per_rank) == 4
    for rank, found in enumerate(document.ranks):
        own = [stage for stage in document.stages if stage.rank == rank]
        assert len(own) == FAMILIES[schedule]
        share = (found.forward_s + found.backward_s) / 2
        assert sum(stage.time_per_sample_s for stage in own) == pytest.approx(share)
        assert {stage.memory_bytes for stage in own} == {found.memory.total_bytes}
    assert sum(document.time_by_part_s.values()) == pytest.approx(document.step_time_s)
    assert document.step_time_low_s < document.step_time_s < document.step_time_high_s


@pytest.mark.parametrize("schedule", FAMILIES)
def test_a_document_of_any_family_is_priced_again_to_the_same_figures(schedule):
    document = documented(schedule)
    assert recheck(document) == document
    table = to_text(render(document))
    assert f"schedule {schedule}" in table
    layers = {layer for stage in document.stages for layer in stage.layers}
    assert layers == set(range(max(layers) + 1))


def test_v_placement_puts_the_first_and_the_last_stage_on_one_rank():
    document = documented("v-half")
    assert document.stages[0].rank == document.stages[-1].rank == 0
    assert "slowest" in to_text(render(document))
