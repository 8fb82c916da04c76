"""The host's time to start a block's kernels is a floor of each of its passes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainwright.cluster import Accelerator
from trainwright.cluster.calibration import software_named
from trainwright.costing.communication import memory_time_s
from trainwright.costing.estimate import axis_hops
from trainwright.costing.layer import KEEP_ALL, Platform, RecomputeRule, price_layer
from trainwright.formats import catalog
from trainwright.model import LayerClass, LayerKind, Phase, RunShape, layer_graph
from trainwright.model.operator import NORM
from trainwright.model.run_shape import BF16, FP16
from trainwright.profile import Recompute

IN_PLACE = replace(FP16, gradient_bytes=2)
SLOW_HOST_S = 1e3  # far beyond any kernel


def block_of(model: str, run: RunShape) -> LayerClass:
    graph = layer_graph(catalog.model(model).config, run)
    return next(layer for layer in graph.classes if layer.kind is LayerKind.BLOCK)


def passes_s(model: str, device: Accelerator) -> tuple[float, float]:
    run = RunShape(microbatch_size=1, sequence_length=512)
    platform = Platform(accelerator=device, dtype="bf16", hops={})
    (price,) = price_layer(block_of(model, run), run, {Recompute.NONE: KEEP_ALL}, platform)
    backward_s = price.phase_s[Phase.INPUT_GRAD] + price.phase_s[Phase.WEIGHT_GRAD]
    return price.phase_s[Phase.FORWARD], backward_s


@pytest.mark.parametrize(("model", "passes"), [("llama3-8b", 1), ("mixtral-8x7b", 2)])
def test_a_slow_host_sets_the_pace_and_experts_take_it_twice(model, passes):
    device = replace(catalog.accelerators()["H100-80GB-SXM"], host_pass_s=SLOW_HOST_S)
    assert passes_s(model, device) == pytest.approx((passes * SLOW_HOST_S,) * 2)


def test_starting_the_exchanges_of_a_group_takes_the_host_a_part_of_a_pass():
    device = replace(catalog.accelerators()["H100-80GB-SXM"], host_pass_s=SLOW_HOST_S)
    run = RunShape(microbatch_size=1, sequence_length=512, tensor_parallel=2)
    hops = axis_hops(
        catalog.cluster("dgx-h100").pool_of(), tensor=2, context=1, expert=1, expert_tensor=1
    )
    platform = Platform(accelerator=device, dtype="bf16", hops=hops)
    (price,) = price_layer(block_of("llama3-8b", run), run, {Recompute.NONE: KEEP_ALL}, platform)
    assert price.phase_s[Phase.FORWARD] == pytest.approx(1.15 * SLOW_HOST_S)


@pytest.mark.parametrize("model", ["llama3-8b", "mixtral-8x7b"])
def test_a_fast_host_changes_nothing(model):
    device = catalog.accelerators()["H100-80GB-SXM"]
    assert passes_s(model, replace(device, host_pass_s=1e-9)) == passes_s(model, device)


def test_recomputing_a_module_waits_for_its_own_kernels_alone():
    """A norm again is a few kernels: the host needs a part of a pass for them, not a whole one."""
    device = replace(catalog.accelerators()["H100-80GB-SXM"], host_pass_s=SLOW_HOST_S)
    run = RunShape(microbatch_size=1, sequence_length=512)
    rules = {
        Recompute.SELECTIVE: RecomputeRule(modules=frozenset({NORM})),
        Recompute.FULL: RecomputeRule(whole_layer=True),
    }
    platform = Platform(accelerator=device, dtype="bf16", hops={})
    named, whole = price_layer(block_of("mixtral-8x7b", run), run, rules, platform)
    assert whole.phase_s[Phase.RECOMPUTE] == pytest.approx(2 * SLOW_HOST_S)
    assert 0 < named.phase_s[Phase.RECOMPUTE] < 0.3 * whole.phase_s[Phase.RECOMPUTE]


@pytest.mark.parametrize(("precision", "moved"), [(IN_PLACE, 2 + 2 + 2), (BF16, 2 + 4 + 4 + 8)])
def test_kernels_apart_add_gradients_where_software_has_them(precision, moved):
    """In fp16 in place; those of bf16 are cast, and then added to what is kept in float32."""
    device = catalog.accelerators()["A100-80GB-SXM"]
    apart = software_named("megatron-deepspeed").on(device)
    run = RunShape(microbatch_size=1, sequence_length=512, precision=precision)
    block = block_of("llama3-8b", run)

    def backward_s(device: Accelerator) -> float:
        platform = Platform(accelerator=device, dtype="bf16", hops={})
        (price,) = price_layer(block, run, {Recompute.NONE: KEEP_ALL}, platform)
        assert sum(price.phase_s.values()) == pytest.approx(sum(price.kind_s))
        return price.phase_s[Phase.WEIGHT_GRAD]

    parameters = sum(p.count_per_device for p in block.parameters)
    wanted = memory_time_s(moved * parameters, device)
    assert backward_s(apart) - backward_s(device) == pytest.approx(wanted)
    for name in ("deepspeed", "megatron-core"):
        assert software_named(name).on(device) == device
