"""The parts of a step: they add up, and each is there just where its cause is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trainwright.costing.layer import static_bytes, trained_per_device
from trainwright.formats import catalog
from trainwright.model import Optimizer, Recipe, RunShape, layer_graph
from trainwright.model.recipe import Offload
from trainwright.plans.configuration import Configuration, Overlap
from trainwright.plans.plan import Parallelism
from trainwright.profile import Recompute
from trainwright.step import zero
from trainwright.step.account import time_by_part_s
from trainwright.step.predict import (
    estimator_of,
    plan_of,
    point_of,
    price_configuration,
    sharing_times,
    work_of_plan,
)
from trainwright.step.stages import Placement

CASES = {
    "alone": ("llama3-8b", {}),
    "tensor": ("llama3-8b", {"tensor": 4, "sequence_parallel": True}),
    "pipeline": ("llama3-8b", {"pipeline": 4, "data": 2}),
    "interleaved": ("llama3-8b", {"pipeline": 4, "virtual_stages": 2}),
    "sharded": ("llama3-8b", {"data": 16, "zero_stage": 3}),
    "gradients": ("llama3-8b", {"data": 16, "zero_stage": 2}),
    "context": ("llama3-8b", {"context": 4}),
    "experts": ("mixtral-8x7b", {"data": 8, "expert": 8}),
}


def parts(name: str, recompute: Recompute = Recompute.NONE, overlap: Overlap | None = None):
    model, degrees = CASES[name]
    config, cluster = catalog.model(model).config, catalog.cluster("dgx-h100").with_nodes(2)
    run = Configuration(
        parallelism=Parallelism(**degrees),
        microbatch_size=1,
        global_batch=64,
        sequence_length=4096,
        schedule="interleaved" if degrees.get("virtual_stages", 1) > 1 else "1f1b",
        recompute=recompute,
    )
    run = run if overlap is None else replace(run, overlap=overlap)
    both = point_of(replace(run, recompute=Recompute.FULL))
    profile = estimator_of(config, cluster, run).profile(both)
    step = price_configuration(config, cluster, run, profile)
    plan = plan_of(run, profile)
    ranks = Placement(plan=plan, pool=cluster.pool_of()).rank_of_stage
    return time_by_part_s(plan, profile, step, rank_of_stage=ranks), step


@pytest.mark.parametrize("recompute", [Recompute.NONE, Recompute.FULL])
@pytest.mark.parametrize("name", CASES)
def test_the_parts_are_not_negative_and_add_up_to_the_step(name, recompute):
    found, step = parts(name, recompute)
    assert min(found.values()) >= 0
    assert sum(found.values()) == pytest.approx(step.step_time_s)


@pytest.mark.parametrize("name", CASES)
def test_recomputation_leaves_the_other_work_as_it_is(name):
    plain, _ = parts(name)
    again, _ = parts(name, Recompute.FULL)
    assert plain["recompute"] == 0 < again["recompute"]
    for kind in ("tensor", "context", "expert"):
        assert again[kind] == pytest.approx(plain[kind])
    hidden = Overlap(gradients=0, parameters=0)
    once, twice = (
        parts(name, mode, hidden)[0]["compute"] for mode in (Recompute.NONE, Recompute.FULL)
    )
    assert once == pytest.approx(twice, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("tensor", "tensor"),
        ("pipeline", "bubble"),
        ("interleaved", "bubble"),
        ("sharded", "data"),
        ("gradients", "data"),
        ("experts", "expert"),
    ],
)
def test_each_part_has_its_cause(name, kind):
    slow = Overlap(gradients=0, parameters=0)
    assert parts(name, overlap=slow)[0][kind] > 0
    assert parts("alone", overlap=slow)[0][kind] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("schedule", "batch"), [("interleaved", 64), ("depth-first", 64), ("depth-first", 60)]
)
def test_later_chunks_exchange_while_a_group_passes_the_chunk_before(schedule, batch):
    config = catalog.model("llama3-8b").config
    cluster = catalog.cluster("dgx-h100").with_nodes(8).with_bandwidth("intra", 2e9)
    run = Configuration(
        parallelism=Parallelism(pipeline=4, virtual_stages=2, data=4, zero_stage=1),
        microbatch_size=1,
        global_batch=batch,
        sequence_length=4096,
        schedule=schedule,
    )
    profile = estimator_of(config, cluster, run).profile(point_of(run))
    plan, share = plan_of(run, profile), 0.5
    bare, hidden = (
        Overlap(gradients=0.0, parameters=0.0),
        Overlap(gradients=share, parameters=share),
    )
    work, layout = work_of_plan(plan, profile, cluster, overlap=bare)
    whole = sharing_times(work, layout)
    found = sharing_times(work, replace(layout, overlap=hidden))
    group = 4 if batch % 16 == 0 else 1  # groups of p where p divides the microbatches
    for stage, (own, all_of_it) in enumerate(zip(found, whole, strict=True)):
        now, before = work.stages[stage], work.stages[max(0, stage - 4)]
        ahead = group - 1 if stage >= 4 else 0
        forward_s = share * (now.forward_s + ahead * before.forward_s)
        backward_s = share * (now.backward_s + ahead * before.backward_s)
        left_s = max(0.0, all_of_it.parameters_s - forward_s)
        assert own.exposed_parameters_s == pytest.approx(left_s)
        left_s = max(0.0, all_of_it.gradients_s - backward_s)
        assert own.exposed_gradients_s == pytest.approx(left_s)
    assert sum(own.exposed_sync_s for own in found) > 0


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(),
        Recipe(optimizer=Optimizer.SGD),
        Recipe(gradient_dtype="bf16", moment_dtypes=("int8",)),
        Recipe(main_weight_dtype="none", offload=Offload(optimizer=0.25, gradients=0.5)),
    ],
)
def test_an_update_moves_of_a_layer_what_it_moves_of_each_parameter(recipe: Recipe) -> None:
    numbers = recipe.numbers("bf16")
    run = RunShape(microbatch_size=1, sequence_length=1024, precision=numbers)
    graph = layer_graph(catalog.model("mixtral-8x7b").config, run)
    for layer in graph.classes:
        counts = np.array(trained_per_device(layer))
        state = np.array(static_bytes(layer, numbers))
        found = zero.touched_bytes(0, (1, 1), state, counts * numbers.weight_bytes)
        each = zero.touched_per_parameter(numbers)
        assert float(found) == pytest.approx(each * counts.sum(), rel=1e-12)


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(),
        Recipe(reduce_dtype="bf16"),
        Recipe(gradient_dtype="bf16", reduce_dtype="fp32"),
        Recipe(offload=Offload(gradients=1.0)),
    ],
    ids=["kept", "narrow", "wide", "hosted"],
)
def test_gradients_of_tied_words_travel_once_and_as_wide_as_all_others(recipe: Recipe) -> None:
    tied = catalog.model("gpt2").config
    cluster = catalog.cluster("dgx-h100").with_nodes(1)

    def exchanged(model, pipeline: int) -> list[float]:
        run = Configuration(
            parallelism=Parallelism(data=2, pipeline=pipeline),
            microbatch_size=1,
            global_batch=16,
            sequence_length=1024,
            schedule="1f1b",
            recipe=recipe,
        )
        profile = estimator_of(model, cluster, run).profile(point_of(run))
        work, _ = work_of_plan(plan_of(run, profile), profile, cluster)
        elsewhere = work.stages[0].shared_gradient_bytes
        return [sum(float(each.sync_bytes.sum()) for each in work.stages), elsewhere]

    words = 50_304 * 768 * recipe.numbers("bf16").sync_bytes
    once, _ = exchanged(tied, 1)
    twice, elsewhere = exchanged(tied, 2)
    apart, nothing = exchanged(replace(tied, tied_embeddings=False), 1)
    assert elsewhere == pytest.approx(words)
    assert (twice - once, apart - once) == pytest.approx((words, words))
    assert nothing == 0
