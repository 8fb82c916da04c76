"""The roofline: two floors and the laws that follow."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.cluster import Accelerator, Saturating
from trainwright.costing.communication import memory_time_s, operator_time_s
from trainwright.formats import catalog
from trainwright.model import MatrixShape, Operator, OperatorKind, Phase, Work

DEVICE = catalog.accelerator("H100-80GB-SXM")

sizes = st.floats(1.0, 1e15)
kinds = st.sampled_from(OperatorKind)


def operator(kind: OperatorKind, flops: float, traffic: float) -> Operator:
    work = Work(flops=flops, read_bytes=traffic / 2, written_bytes=traffic / 2)
    return Operator(name="op", kind=kind, forward=work, input_grad=work)


def time_s(op: Operator, device: Accelerator, phase: Phase = Phase.FORWARD) -> float:
    return operator_time_s(op, phase, accelerator=device, dtype="bf16")


def scaled(device: Accelerator, *, peak: float = 1.0, bandwidth: float = 1.0) -> Accelerator:
    return replace(
        device,
        peak_flops_per_s=tuple((name, value * peak) for name, value in device.peak_flops_per_s),
        memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s * bandwidth,
    )


def test_a_large_product_runs_at_its_share_of_the_peak() -> None:
    op = operator(OperatorKind.GEMM, 1e15, 1.0)
    share = 0.8 * 1e15 / (1e15 + 2e9)
    assert time_s(op, DEVICE) == pytest.approx(4e-6 + 1e15 / (989.4e12 * share))


def test_a_large_copy_runs_at_its_share_of_the_bandwidth() -> None:
    op = operator(OperatorKind.MEMORY, 0.0, 1e12)
    share = 0.85 * 1e12 / (1e12 + 2e6)
    assert time_s(op, DEVICE) == pytest.approx(4e-6 + 1e12 / (3.35e12 * share))


def test_attention_has_an_efficiency_per_direction() -> None:
    op = operator(OperatorKind.ATTENTION, 1e13, 1.0)
    assert time_s(op, DEVICE) == pytest.approx(4e-6 + 1e13 / (989.4e12 * 0.6))
    backward = time_s(op, DEVICE, Phase.INPUT_GRAD)
    assert backward == pytest.approx(4e-6 + 1e13 / (989.4e12 * 0.5))


def test_no_work_takes_no_time_and_no_launch() -> None:
    op = operator(OperatorKind.GEMM, 1e9, 1e6)
    assert time_s(op, DEVICE, Phase.WEIGHT_GRAD) == 0.0
    assert memory_time_s(0.0, DEVICE) == 0.0


def test_recomputing_an_operator_costs_its_forward_pass() -> None:
    op = operator(OperatorKind.ATTENTION, 1e13, 1e6)
    assert time_s(op, DEVICE, Phase.RECOMPUTE) == time_s(op, DEVICE, Phase.FORWARD)


def test_efficiency_is_half_its_maximum_at_half_size() -> None:
    assert Saturating(max=0.8, half=2e9).at(2e9) == pytest.approx(0.4)


def kernels(**fields: float) -> Accelerator:
    return replace(DEVICE, efficiency=replace(DEVICE.efficiency, **fields))


# TFLOP/s at 16,384 tokens, heads of 64 over heads of 128: FlashAttention-3 on H100, figures 5 and 6
# of Shah et al., 2024; FlashAttention-4 on B200, pull request 2605 of its repository.
@pytest.mark.parametrize(
    ("device", "phase", "small", "usual"),
    [
        ("H100-80GB-SXM", Phase.FORWARD, 497.0, 648.0),
        ("H100-80GB-SXM", Phase.INPUT_GRAD, 474.0, 561.0),
        ("B200", Phase.FORWARD, 879.0, 1330.0),
    ],
)
def test_small_heads_slow_attention_as_kernels_are_measured_to(
    device: str, phase: Phase, small: float, usual: float
) -> None:
    op = operator(OperatorKind.ATTENTION, 1e15, 1.0)
    took = [
        time_s(replace(op, head_size=size), catalog.accelerator(device), phase)
        for size in (64.0, 128.0)
    ]
    assert took[1] / took[0] == pytest.approx(small / usual, rel=0.03)


def test_larger_heads_and_devices_of_unknown_exponentials_keep_their_share() -> None:
    op = operator(OperatorKind.ATTENTION, 1e13, 1.0)
    unknown = replace(DEVICE, flops_per_exponential=0.0)
    assert time_s(replace(op, head_size=256.0), DEVICE) == time_s(op, DEVICE)
    assert time_s(replace(op, head_size=64.0), unknown) == time_s(op, unknown)


def test_attention_loses_by_bytes_what_short_sequences_cost() -> None:
    device = kernels(attention_half_intensity=150.0)
    long, short = (operator(OperatorKind.ATTENTION, 1e13, 1e13 / x) for x in (1e9, 150.0))
    full_s = 1e13 / (989.4e12 * 0.6)
    assert time_s(long, device) == pytest.approx(4e-6 + full_s)
    assert time_s(short, device) == pytest.approx(4e-6 + 2 * full_s)


@pytest.mark.parametrize(("phase", "depth"), [(Phase.FORWARD, 1024), (Phase.INPUT_GRAD, 8192)])
def test_a_shallow_product_loses_less_than_a_deep_one(phase: Phase, depth: int) -> None:
    """A wave of tiles takes as long as they are deep: what is summed over, by phase."""
    matrix = MatrixShape(rows=512, inputs=1024, outputs=8192)
    op = replace(operator(OperatorKind.GEMM, 2.0 * 512 * 1024 * 8192, 1.0), matrix=matrix)
    half = DEVICE.efficiency.gemm.half
    seconds = {d: time_s(op, kernels(gemm_half_depth=float(d)), phase) for d in (0, 4096)}
    lost = seconds[4096] - seconds[0]
    expected = half * (min(1.0, depth / 4096) - 1) / (989.4e12 * 0.8)
    assert lost == pytest.approx(expected, abs=1e-12)


@given(kind=kinds, flops=sizes, traffic=sizes)
def test_an_operator_never_beats_either_peak(
    kind: OperatorKind, flops: float, traffic: float
) -> None:
    time = time_s(operator(kind, flops, traffic), DEVICE)
    assert time >= flops / DEVICE.peak("bf16")
    assert time >= traffic / DEVICE.memory_bandwidth_bytes_per_s
    assert time >= DEVICE.launch_overhead_s


@given(kind=kinds, flops=sizes, traffic=sizes, factor=st.floats(1.0, 100.0))
def test_a_faster_device_is_never_slower(
    kind: OperatorKind, flops: float, traffic: float, factor: float
) -> None:
    op = operator(kind, flops, traffic)
    base = time_s(op, DEVICE)
    assert time_s(op, scaled(DEVICE, peak=factor)) <= base * (1 + 1e-12)
    assert time_s(op, scaled(DEVICE, bandwidth=factor)) <= base * (1 + 1e-12)
    both = time_s(op, scaled(DEVICE, peak=factor, bandwidth=factor)) - DEVICE.launch_overhead_s
    assert both == pytest.approx((base - DEVICE.launch_overhead_s) / factor, rel=1e-6)


@given(kind=kinds, flops=sizes, traffic=sizes, more=st.floats(1.0, 10.0))
def test_more_work_never_takes_less_time(
    kind: OperatorKind, flops: float, traffic: float, more: float
) -> None:
    base = time_s(operator(kind, flops, traffic), DEVICE)
    assert time_s(operator(kind, flops * more, traffic), DEVICE) >= base * (1 - 1e-12)
    assert time_s(operator(kind, flops, traffic * more), DEVICE) >= base * (1 - 1e-12)


@pytest.mark.parametrize(("matrices", "alike"), [(1, 1), (3, 1), (4, 1), (8, 2), (64, 16)])
def test_grouped_products_are_as_efficient_as_four_of_them_at_once(
    matrices: int, alike: int
) -> None:
    """64 products of 1e9 FLOPs run like 16 of 4e9."""
    grouped = replace(
        operator(OperatorKind.GEMM, matrices * 1e9, 1.0),
        matrix=MatrixShape(rows=1, inputs=1, outputs=1, matrices=matrices),
    )
    single = operator(OperatorKind.GEMM, matrices * 1e9 / alike, 1.0)
    overhead_s = DEVICE.launch_overhead_s
    assert time_s(grouped, DEVICE) - overhead_s == pytest.approx(
        alike * (time_s(single, DEVICE) - overhead_s)
    )
