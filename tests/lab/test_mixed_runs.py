"""Measured runs on mixed devices, as plans on a cluster of several pools.

Times of single layers on each kind of device are those of the same publication; the factor between
layers alone and in a step, and the bandwidth of the network, were fitted to these four runs
(`cluster/calibrations.toml`, mixed). Memory and bandwidth of the devices are of their datasheets.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from trainwright.cluster import Accelerator, Cluster, Efficiency, NetworkLevel, Pool, Saturating
from trainwright.costing.measured import profile_of_tables
from trainwright.formats import catalog
from trainwright.formats.measured_csv import MeasuredRun, read_layer_tables, read_measured
from trainwright.model import precision_named
from trainwright.planning.bounds.pools import Beside, MixedShelf
from trainwright.planning.question.question import Allowed, ModelQuestion, Point, Workload
from trainwright.planning.splits.pools import best_mixed_split
from trainwright.plans import Parallelism, Plan, ReplicaGroup, Stage
from trainwright.plans.configuration import Overlap
from trainwright.plans.prediction import MixedPrediction
from trainwright.profile import PhaseTimes, Profile
from trainwright.step.pools import predict_mixed_step

SHARED = os.environ.get("TRAINWRIGHT_SHARED")
pytestmark = pytest.mark.skipif(not SHARED, reason="TRAINWRIGHT_SHARED names no reference data")
DATA = Path(SHARED or "") / "data"
LAYER_RATIO, BYTES_PER_S = 1.3285, 9.6597e9
KINDS = {"RTX-3090": (24, 936e9), "RTX-2080": (11, 616e9), "Titan-RTX": (24, 672e9)}
ALONE = Overlap(gradients=0.0, parameters=0.0)


def runs() -> dict[str, MeasuredRun]:
    found = read_measured(DATA / "measured" / "sailor_mixed.csv")
    return {run.settings["plan"]: run for run in found}


def replicas_of(run: MeasuredRun) -> list[list[str]]:
    """The kind of each replica of each stage."""
    text = run.settings["stage_replicas"]
    return [
        [part.partition(":")[0].rpartition("x")[0] for part in stage.split(",")]
        for stage in text.split("/")
    ]


def pool(kind: str, replicas: int, tensor: int) -> Pool:
    gib, bandwidth = KINDS[kind]
    device = Accelerator(
        name=kind,
        peak_flops_per_s=(("fp32", 13e12),),
        memory_bytes=gib * 2**30,
        memory_bandwidth_bytes_per_s=bandwidth,
        launch_overhead_s=0.0,
        usable_fraction=0.95,
        efficiency=Efficiency(
            gemm=Saturating(max=0.8, half=0.0),
            memory=Saturating(max=0.8, half=0.0),
            attention_forward=0.5,
            attention_backward=0.5,
        ),
    )
    return Pool(accelerator=device, levels=(network(tensor), network(replicas)))


def network(size: int) -> NetworkLevel:
    return NetworkLevel(name="network", size=size, bandwidth_bytes_per_s=BYTES_PER_S, latency_s=0.0)


@cache
def profile(model: str, kind: str, microbatch_size: int, tensor: int) -> Profile:
    """Times of layers alone, scaled to those in a step; a third of the backward each way."""
    layers = read_layer_tables(DATA / "profiles")
    assert layers is not None
    found = profile_of_tables(
        layers,
        model,
        kind,
        microbatch_size=microbatch_size,
        tensor_parallel=(tensor,),
        precision=precision_named("fp32"),
        source="tables",
    )
    times = layers.times_at(model, kind, microbatch_size=microbatch_size, tensor_parallel=tensor)
    assert times is not None
    classes = [layer.layer_class for layer in found.structure.layers]
    first = [classes.index(c) for c in range(found.costs.num_classes)]
    forward_s = LAYER_RATIO * np.array([times[i][0] for i in first])
    backward_s = LAYER_RATIO * np.array([times[i][1] for i in first])
    phases = PhaseTimes(
        forward_s=forward_s,
        input_grad_s=backward_s / 2,
        weight_grad_s=backward_s / 2,
        recompute_s=np.zeros(len(first)),
    )
    return replace(
        found,
        costs=replace(found.costs, phases=phases, duration_s=forward_s + backward_s),
        point=replace(found.point, sequence_length=2048),
    )


def machine(run: MeasuredRun) -> tuple[Cluster, dict[str, int]]:
    """The pools of a run, and the number of each kind."""
    stages = replicas_of(run)
    kinds = sorted({kind for stage in stages for kind in stage})
    counts = {kind: sum(stage.count(kind) for stage in stages) for kind in kinds}
    pools = tuple(pool(kind, counts[kind], run.tensor) for kind in kinds)
    cluster = Cluster(name="mixed", pools=pools, joint=network(len(pools)))
    return cluster, {kind: index for index, kind in enumerate(kinds)}


def estimate(run: MeasuredRun) -> MixedPrediction:
    """The run as it was laid out: every replica runs as many microbatches."""
    cluster, numbers = machine(run)
    assert run.microbatch_size is not None and run.global_batch is not None
    first, stages = 0, []
    lengths = [int(n) for n in run.settings["layers_per_stage"].split("|")]
    for length, kinds in zip(lengths, replicas_of(run), strict=True):
        groups = tuple(
            ReplicaGroup(
                count=1, tensor_parallel=run.tensor, pool=numbers[kind], share=1 / run.data
            )
            for kind in kinds
        )
        layers = tuple(range(first, first + length))
        stages.append(Stage(layers=layers, options=("none",) * length, replicas=groups))
        first += length
    plan = Plan(
        stages=tuple(stages),
        num_microbatches=run.global_batch // run.microbatch_size,
        microbatch_size=run.microbatch_size,
        parallelism=Parallelism(tensor=run.tensor, pipeline=run.pipeline, data=run.data),
    )
    return predict_mixed_step(plan, profiles_of(run, numbers), cluster, overlap=ALONE)


def profiles_of(run: MeasuredRun, numbers: dict[str, int]) -> dict[int, Profile]:
    assert run.microbatch_size is not None
    return {
        number: profile(run.model, kind, run.microbatch_size, run.tensor)
        for kind, number in numbers.items()
    }


def test_steps_of_the_measured_layouts_are_estimated_within_a_tenth_on_average() -> None:
    errors = {
        name: estimate(run).step_time_s / (run.step_time_s or 0) - 1 for name, run in runs().items()
    }
    assert len(errors) == 4
    assert sum(map(abs, errors.values())) / 4 < 0.12
    assert max(map(abs, errors.values())) < 0.20


def test_of_two_measured_layouts_of_one_job_the_faster_is_predicted_faster() -> None:
    """Four nodes, 256 sequences: two stages by two replicas, and four replicas."""
    both = runs()["N4_D2"], runs()["N4_D4"]
    assert {(run.num_devices, run.global_batch) for run in both} == {(32, 256)}
    assert (both[0].step_time_s or 0) < (both[1].step_time_s or 0)
    assert estimate(both[0]).step_time_s < estimate(both[1]).step_time_s


def test_every_stage_is_as_slow_as_its_slowest_kind_where_shares_are_equal() -> None:
    step = estimate(runs()["N4_D4"])
    kinds = {chain.pools: chain.step.pipeline_s for chain in step.chains}
    assert step.pipeline_s == max(kinds.values())
    assert min(kinds.values()) < 0.9 * max(kinds.values())


def test_shares_by_speed_are_predicted_faster_than_the_measured_equal_ones() -> None:
    run = runs()["N4_D4"]
    cluster, numbers = machine(run)
    question = ModelQuestion(
        model=catalog.model("opt-350m").config,
        cluster=cluster,
        workload=Workload(global_batch=256, sequence_length=2048, precision="fp32"),
        num_devices=cluster.num_devices,
        allowed=Allowed(schedules=("1f1b",)),
    )
    profiles = profiles_of(run, numbers)
    shelf = MixedShelf(question, lambda pool, _: profiles[pool])
    counts = tuple(p.num_devices // 8 for p in cluster.pools)
    candidate = Beside(
        point=Point(microbatch_size=2, tensor=8),
        zero_stage=0,
        schedule="1f1b",
        pools=tuple(range(len(counts))),
        replicas=counts,
        depth=1,
    )
    split = best_mixed_split(shelf, candidate)
    (plan,) = split.plans
    shared = predict_mixed_step(plan, profiles, cluster, overlap=ALONE)
    assert shared.step_time_s < 0.95 * estimate(run).step_time_s
    fastest = min(range(len(profiles)), key=lambda p: profiles[p].costs.duration_s.sum())
    most = max(shared.chains, key=lambda chain: chain.num_microbatches)
    assert most.pools == (fastest,)
