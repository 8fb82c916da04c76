"""The tiled estimator behind a profile: the same kernels, the same planner."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trainwright.chips.design_times import ProductCache, exact_times
from trainwright.chips.space import SpaceRules, enumerate_designs
from trainwright.chips.technology import losses_of, with_losses
from trainwright.chips.workload import TrainingJob
from trainwright.cluster import REFERENCE_DESIGN, Surroundings, networked, template_device
from trainwright.costing.communication import memory_time_s
from trainwright.costing.estimate import Estimator
from trainwright.costing.tiled import PHASES, TiledTimer, machine_of, operator_kernels, timer_of
from trainwright.errors import InvalidInput
from trainwright.formats.catalog import accelerators, cluster, model
from trainwright.model import Phase, RunShape, layer_graph, precision_named
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


CHIP = template_device(REFERENCE_DESIGN, AROUND)
CHIPS = networked(CHIP, AROUND, num_devices=8)


LOSSY = with_losses(replace(AROUND, node_devices=2), losses_of("typical"))


@pytest.mark.parametrize("precision", ["bf16", "fp8", "fp32"])
@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize("around", [AROUND, LOSSY], ids=["perfect", "typical losses"])
def test_a_design_takes_in_a_profile_what_it_takes_in_a_search(
    precision: str, degree: int, around: Surroundings
) -> None:
    job = TrainingJob(
        name="bert",
        model=model("bert-large").config,
        sequence_length=512,
        tensor_degrees=(degree,),
        precision=precision,
    )
    chain = job.chain(degree)
    space = enumerate_designs(
        SpaceRules(num_tc=(8,), num_vc=(2,), width=(128,), depth=(128,), glb_mib=(128,))
    )
    table = ProductCache(space, chain, around).table(np.arange(1))
    times = exact_times(space, chain, around, table)
    device = template_device(REFERENCE_DESIGN, around, precision=precision)
    point = ProfilePoint(
        microbatch_size=1,
        sequence_length=512,
        tensor_parallel=(degree,),
        sequence_parallel=degree > 1,
        recompute=("none",),
    )
    cluster = networked(device, around, num_devices=8)
    profile = Estimator(model=job.model, cluster=cluster).profile(point)
    assert profile.costs.phases is not None
    assert profile.point.precision == precision
    assert profile.costs.phases.forward_s == pytest.approx(times.forward_s[0], rel=1e-12)
    if degree == 1:  # else a product hides an exchange in the one, and not in the other
        assert profile.costs.duration_s == pytest.approx(
            times.forward_s[0] + times.backward_s[0, 0], rel=1e-12
        )


def test_arrays_for_8_bit_multiply_16_bit_at_half_their_rate() -> None:
    narrow = template_device(REFERENCE_DESIGN, AROUND, precision="fp8")
    assert narrow.peak("bf16") * 2 == narrow.peak("fp8") == CHIP.peak("bf16")
    timer = timer_of(narrow, precision_named("bf16"))
    assert timer is not None
    assert timer.machine.peak_flops_per_s * timer.machine.compute_efficiency == narrow.peak("bf16")
    assert timer.machine.element_bytes == 2.0


def test_updating_states_waits_for_memory_or_lanes() -> None:
    states = 30e9  # of a billion parameters: ten operations each
    lanes = REFERENCE_DESIGN.num_lanes * AROUND.clock_hz
    assert memory_time_s(states, CHIP) == pytest.approx(10e9 / lanes)
    wider = template_device(replace(REFERENCE_DESIGN, num_vc=64), AROUND)
    assert memory_time_s(states, wider) == pytest.approx(states / 1.2e12)


def test_more_flops_are_a_faster_clock_of_the_cores() -> None:
    faster = CHIPS.with_peak_scaled(2.0).accelerator
    assert faster.peak_flops_per_s == faster.cores.peak_flops_per_s  # type: ignore[union-attr]
    assert faster.peak("bf16") == 2 * CHIP.peak("bf16")


def test_tiles_say_how_small_products_fill_a_device_of_cores() -> None:
    lossy = accelerators()["A100-80GB-SXM"].efficiency
    with pytest.raises(InvalidInput, match=r"efficiency\.gemm\.half: must be 0"):
        replace(CHIP, efficiency=lossy)
