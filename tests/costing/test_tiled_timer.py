"""The tiled estimator behind a profile: the same kernels, the same planner."""

from __future__ import annotations

import numpy as np
import pytest

from trainwright.cluster import REFERENCE_DESIGN, Surroundings
from trainwright.codesign.design_times import ProductCache, exact_times
from trainwright.codesign.space import SpaceRules, enumerate_designs
from trainwright.codesign.workload import TrainingJob
from trainwright.costing.chip_work import PHASES, operator_kernels
from trainwright.costing.estimate import Estimator
from trainwright.costing.tiled import machine_of
from trainwright.costing.tiled_timer import TiledTimer
from trainwright.formats.catalog import cluster, model
from trainwright.model import Phase, RunShape, layer_graph
from trainwright.profile import ProfilePoint

AROUND = Surroundings()
TIMER = TiledTimer(
    machine=machine_of(REFERENCE_DESIGN, AROUND),
    lanes_per_s=REFERENCE_DESIGN.num_lanes * AROUND.clock_hz,
)


def test_a_layer_takes_what_the_search_says_of_the_same_design() -> None:
    job = TrainingJob(
        name="bert", model=model("bert-large").config, sequence_length=512, tensor_degrees=(1,)
    )
    chain = job.chain(1)
    space = enumerate_designs(
        SpaceRules(num_tc=(8,), num_vc=(2,), width=(128,), depth=(128,), glb_mib=(128,))
    )
    table = ProductCache(space, chain, AROUND).table(np.arange(1))
    times = exact_times(space, chain, AROUND, table)
    for index, layer in enumerate(chain.graph.classes):
        seconds = sum(
            TIMER.operator_s(op, Phase.FORWARD, chain.graph.run) for op in layer.operators
        )
        assert seconds == pytest.approx(times.forward_s[0, index], rel=1e-12)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", ["gpt2-xl", "llama2-7b", "mixtral-8x7b", "opt-350m"])
def test_kernels_compute_what_their_operators_do(name: str, fused: bool) -> None:
    run = RunShape(microbatch_size=2, sequence_length=1024, fused_attention=fused)
    for layer in layer_graph(model(name).config, run).classes:
        for operator in layer.operators:
            for phase in PHASES:
                flops = sum(k.flops for k in operator_kernels(operator, phase, run))
                assert flops == pytest.approx(operator.work(phase).flops, rel=1e-9)


def test_an_estimated_profile_can_run_on_a_tiled_machine() -> None:
    point = ProfilePoint(microbatch_size=1, sequence_length=512, tensor_parallel=(1,))
    estimator = Estimator(model=model("bert-large").config, cluster=cluster("dgx-a100"))
    tiled = Estimator(model=estimator.model, cluster=estimator.cluster, tiled=TIMER)
    plain, chip = estimator.profile(point), tiled.profile(point)
    assert plain.structure == chip.structure
    assert (plain.costs.static_bytes == chip.costs.static_bytes).all()
    assert not np.array_equal(plain.costs.duration_s, chip.costs.duration_s)
