"""A whole step: time, memory and throughput of plans of estimated and imported profiles."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from trainwright.cluster import Cluster, group_hops
from trainwright.costing import Estimator
from trainwright.costing.communication import all_gather_time_s, all_reduce_time_s, memory_time_s
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.formats import catalog
from trainwright.model import LowRank, Tuning, model_flops_per_sequence
from trainwright.plans import Parallelism, Plan, Stage
from trainwright.profile import Profile, ProfilePoint
from trainwright.step import predict_step
from trainwright.step.zero import holders_of_tied


def cluster(nodes: int = 2) -> Cluster:
    return catalog.cluster("dgx-h100").with_nodes(nodes)


def profile_of(model: str = "llama3-8b", *, degree: int = 2, length: int = 2048) -> Profile:
    estimator = Estimator(model=catalog.model(model).config, cluster=cluster())
    return estimator.profile(
        ProfilePoint(sequence_length=length, tensor_parallel=(degree,), sequence_parallel=True)
    )


def even_plan(
    profile: Profile,
    *,
    pipeline: int,
    data: int = 1,
    tensor: int = 2,
    microbatches: int = 16,
    zero: int = 0,
    recompute: str = "none",
) -> Plan:
    layers = profile.structure.layers
    cuts = [round(i * len(layers) / pipeline) for i in range(pipeline + 1)]
    stages = tuple(
        Stage.uniform(
            tuple(layer.id for layer in layers[a:b]),
            tuple(recompute if layer.name == "block" else "none" for layer in layers[a:b]),
            data_parallel=data,
            tensor_parallel=tensor,
        )
        for a, b in pairwise(cuts)
    )
    return Plan(
        stages=stages,
        num_microbatches=microbatches,
        microbatch_size=1,
        parallelism=Parallelism(tensor=tensor, pipeline=pipeline, data=data, zero_stage=zero),
    )


def test_a_single_stage_without_replicas_only_computes_and_updates() -> None:
    profile = profile_of()
    step = predict_step(even_plan(profile, pipeline=1), profile, cluster())
    costs = profile.costs
    classes = [layer.layer_class for layer in profile.structure.layers]
    per_microbatch = sum(costs.duration_s[costs.rows_of(c)[0]] for c in classes)
    assert step.pipeline_s == pytest.approx(16 * per_microbatch)
    assert step.step_time_s == step.pipeline_s + step.optimizer_s
    assert step.bubble_of_makespan == pytest.approx(0.0, abs=1e-12)
    assert step.exposed_gradient_sync_s == 0.0


def test_throughput_and_mfu_follow_from_the_step_time() -> None:
    profile = profile_of()
    flops = model_flops_per_sequence(catalog.model("llama3-8b").config, 2048)
    plan = even_plan(profile, pipeline=2, data=2, microbatches=32)
    step = predict_step(plan, profile, cluster(), model_flops_per_sequence=flops)
    assert step.tokens_per_s == pytest.approx(32 * 2048 / step.step_time_s)
    assert step.mfu == pytest.approx(32 * flops / (step.step_time_s * 8 * 989.4e12))
    assert 0.2 < step.mfu < 0.8


def test_memory_adds_static_bytes_activations_in_flight_and_the_largest_transient() -> None:
    profile = profile_of()
    plan = even_plan(profile, pipeline=4, microbatches=8)
    step = predict_step(plan, profile, cluster())
    costs = profile.costs
    classes = {layer.id: layer.layer_class for layer in profile.structure.layers}
    for index, (stage, found) in enumerate(zip(plan.stages, step.stages, strict=True)):
        rows = [costs.rows_of(classes[layer])[0] for layer in stage.layers]
        memory = found.memory
        assert memory.microbatches_in_flight == 4 - index
        assert memory.static_bytes == pytest.approx(costs.total_static_bytes[rows].sum())
        kept = memory.activation_bytes + memory.logits_bytes
        assert kept == pytest.approx((4 - index) * costs.saved_bytes[rows].sum())
        assert (memory.logits_bytes > 0) == (index == 3)
        assert memory.transient_bytes == costs.transient_bytes[rows].max()
    assert step.peak_memory_bytes == max(s.memory.total_bytes for s in step.stages)
    assert step.stages[step.fullest_stage].memory.total_bytes == step.peak_memory_bytes


def test_few_microbatches_limit_what_is_in_flight() -> None:
    profile = profile_of()
    step = predict_step(even_plan(profile, pipeline=4, microbatches=2), profile, cluster())
    assert [s.memory.microbatches_in_flight for s in step.stages] == [2, 2, 2, 1]


def test_zero_shards_the_state_it_names() -> None:
    profile = profile_of()
    steps = [
        predict_step(even_plan(profile, pipeline=1, data=8, zero=z), profile, cluster())
        for z in range(4)
    ]
    plain = steps[0].stages[0].memory
    for zero, step in enumerate(steps):
        memory = step.stages[0].memory
        assert memory.optimizer_bytes == pytest.approx(plain.optimizer_bytes / (8 if zero else 1))
        assert memory.gradient_bytes == pytest.approx(plain.gradient_bytes / (8 if zero > 1 else 1))
        assert memory.weight_bytes == pytest.approx(plain.weight_bytes / (8 if zero > 2 else 1))
    assert steps[1].optimizer_s < steps[0].optimizer_s
    peaks = [step.peak_memory_bytes for step in steps]
    assert peaks == sorted(peaks, reverse=True)


def test_gradients_are_reduced_over_the_replicas_of_a_stage() -> None:
    profile = profile_of()
    plan = even_plan(profile, pipeline=1, data=8, microbatches=8)
    found = predict_step(plan, profile, cluster()).stages[0]
    placed = cluster()
    hops = group_hops(placed.levels, ranks=8, stride=2)
    costs = profile.costs
    rows = [costs.rows_of(layer.layer_class)[0] for layer in profile.structure.layers]
    reduce_s = all_reduce_time_s(costs.gradient_sync_bytes[rows].sum(), hops)
    assert found.gradient_sync_s == pytest.approx(reduce_s)
    hidden = 0.9 * found.backward_s
    assert found.exposed_gradient_sync_s == pytest.approx(max(0.0, reduce_s - hidden))
    sharded = predict_step(
        even_plan(profile, pipeline=1, data=8, microbatches=8, zero=1), profile, placed
    ).stages[0]
    weights = costs.static_bytes[rows, 0, 0].sum()
    both = all_gather_time_s(costs.gradient_sync_bytes[rows].sum(), hops)
    assert sharded.gradient_sync_s == pytest.approx(both + all_gather_time_s(weights, hops))


def adapted_profile() -> Profile:
    low_rank = LowRank(rank=16, targets=("query", "value"))
    config = replace(catalog.model("llama3-8b").config, tuning=Tuning(low_rank=low_rank))
    estimator = Estimator(model=config, cluster=cluster())
    return estimator.profile(ProfilePoint(sequence_length=2048, tensor_parallel=(2,)))


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_replicas_gather_only_adapters_unless_all_weights_are_cut(zero: int) -> None:
    profile = adapted_profile()
    rows = [profile.costs.rows_of(x.layer_class)[0] for x in profile.structure.layers]
    plan = even_plan(profile, pipeline=1, data=8, microbatches=8, zero=zero)
    found = predict_step(plan, profile, cluster())
    (gathers,) = (c for c in found.communication if c.kind == "parameters")
    parameters_s = gathers.exposed_s + gathers.hidden_s
    adapters = 2 * 32 * 16 * (4096 + 4096 / 2 + 4096 + 1024 / 2)
    held = profile.costs.static_bytes[rows, 0, 0].sum()
    hops = group_hops(cluster().levels, ranks=8, stride=2)
    wanted_s = 2 * all_gather_time_s(held, hops) if zero == 3 else all_gather_time_s(adapters, hops)
    assert parameters_s == pytest.approx(wanted_s)
    (stage,) = found.stages
    touched = (adapters + 4 / 2 * adapters + 2 * 12 / 2 * adapters) / 8
    assert stage.optimizer_s == pytest.approx(memory_time_s(touched, cluster().accelerator))


def test_full_recomputation_saves_memory_and_costs_time() -> None:
    profile = profile_of()
    none, full = (
        predict_step(even_plan(profile, pipeline=4, recompute=mode), profile, cluster())
        for mode in ("none", "full")
    )
    assert full.peak_memory_bytes < none.peak_memory_bytes
    assert full.step_time_s > none.step_time_s
    assert full.stages[1].recompute_s > 0 == none.stages[1].recompute_s


def test_tied_embeddings_count_once_in_one_stage_and_twice_in_two() -> None:
    profile = profile_of("gpt2", degree=1, length=512)
    one, two = (
        predict_step(even_plan(profile, pipeline=p, tensor=1), profile, cluster()) for p in (1, 2)
    )
    embedding = 18 * 50304 * 768
    static = [sum(s.memory.static_bytes for s in step.stages) for step in (one, two)]
    assert static[1] - static[0] == pytest.approx(embedding)
    assert static[0] == pytest.approx(18 * (124_439_808 + (50304 - 50257) * 768))
    assert one.stages[0].gradient_sync_s == 0.0
    assert all(stage.gradient_sync_s > 0 for stage in two.stages)


def test_ranks_that_hold_tied_layers_reduce_their_gradients_once() -> None:
    in_v = {0: 0, 1: 1, 2: 1, 3: 0}
    assert holders_of_tied((0, 1, 2, 3), in_v.__getitem__) == [0, 1]
    assert holders_of_tied((0, 3), in_v.__getitem__) == [0]  # an embedding and its head
    assert holders_of_tied((5, 2, 2), lambda stage: stage % 4) == [5, 2]


def test_stages_on_different_nodes_send_over_the_slower_network() -> None:
    profile = profile_of()
    near = predict_step(even_plan(profile, pipeline=2), profile, cluster())
    far = predict_step(even_plan(profile, pipeline=2, data=4), profile, cluster())
    size = 2 * 2048 * 4096 / 2
    assert near.stages[0].send_s == pytest.approx(3e-6 + size / (450e9 * 0.75))
    assert far.stages[0].send_s == pytest.approx(8e-6 + size / (50e9 * 0.8))


def test_more_microbatches_shrink_the_bubble() -> None:
    profile = profile_of()
    bubbles = [
        predict_step(
            even_plan(profile, pipeline=4, microbatches=m), profile, cluster()
        ).bubble_of_makespan
        for m in (4, 16, 64)
    ]
    assert bubbles == sorted(bubbles, reverse=True)
    assert 0 < bubbles[-1] < 0.1


def test_degrees_may_differ_from_stage_to_stage() -> None:
    profile = profile_of(degree=1)
    layers = profile.structure.ids
    halves = ((layers[:20], 3), (layers[20:], 1))
    stages = tuple(
        Stage.uniform(own, ("none",) * len(own), data_parallel=d, tensor_parallel=1)
        for own, d in halves
    )
    plan = Plan(stages=stages, num_microbatches=12, microbatch_size=1)
    step = predict_step(plan, profile, cluster())
    assert [s.memory.microbatches_in_flight for s in step.stages] == [2, 1]
    work = [s.forward_s + s.backward_s for s in step.stages]
    assert step.pipeline_s >= max(work[0] * 12 / 3, work[1] * 12)


def test_a_profile_with_fused_times_is_split_one_to_two() -> None:
    profile = profile_of()
    fused = replace(
        profile,
        costs=replace(profile.costs, phases=None, time_by_kind_s=None),
        point=replace(profile.point, microbatch_size=None, precision=None),
    )
    step = predict_step(even_plan(profile, pipeline=2), fused, cluster())
    for stage in step.stages:
        assert stage.backward_s == pytest.approx(2 * stage.forward_s)
        assert stage.tensor_parallel_s == 0.0
    assert step.tokens_per_s is None
    assert step.mfu is None


def test_a_plan_that_breaks_a_rule_is_refused() -> None:
    profile = profile_of()
    plan = even_plan(profile, pipeline=2)
    with pytest.raises(InvalidInput, match="must place every layer"):
        predict_step(replace(plan, stages=plan.stages[:1]), profile, cluster())
    with pytest.raises(InvalidInput, match="must use at most 8 devices, got 16"):
        predict_step(even_plan(profile, pipeline=1, data=8), profile, cluster(1))


def test_a_mixed_cluster_is_not_priced_yet() -> None:
    (pool,) = cluster().pools
    joint = replace(pool.levels[-1], size=2)
    mixed = Cluster(name="two", pools=(pool, pool), joint=joint)
    profile = profile_of()
    with pytest.raises(UnsupportedFeature, match="several pools"):
        predict_step(even_plan(profile, pipeline=2), profile, mixed)


def test_the_same_plan_is_priced_the_same_byte_for_byte() -> None:
    profile = profile_of()
    plan = even_plan(profile, pipeline=4, data=2)
    first, second = (predict_step(plan, profile, cluster()) for _ in range(2))
    assert first == second
    assert np.isfinite(first.step_time_s)
