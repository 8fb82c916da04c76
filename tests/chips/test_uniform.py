"""Uniform plans: the kernel against every cut tried, and laws."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from oracles_uniform import SmallChain, fastest
from random_cases import cases
from trainwright._native._core import (
    Sharing,
    UniformProblem,
    fastest_family_plans,
    fastest_uniform_plans,
)
from trainwright.chips.plans import Shape, order_of

whole = st.integers(0, 9).map(float)
times = st.integers(1, 9).map(float)


@st.composite
def chains(draw: st.DrawFn) -> SmallChain:
    layers, options = draw(st.integers(1, 6)), draw(st.integers(1, 2))
    microbatches = draw(st.sampled_from([1, 2, 4, 6]))

    def row(values: st.SearchStrategy[float], count: int = layers) -> list[float]:
        return draw(st.lists(values, min_size=count, max_size=count))

    return SmallChain(
        forward=row(times),
        backward=[row(times) for _ in range(options)],
        update=row(whole),
        saved=[row(whole) for _ in range(options)],
        transient=[row(whole) for _ in range(options)],
        static=row(whole),
        sharded=row(whole),
        sync=row(whole),
        transfer=row(whole, layers - 1),
        memory=draw(st.sampled_from([20.0, 40.0, 80.0, 1e9])),
        byte_s=draw(st.sampled_from([0.0, 0.5])),
        latency_s=draw(st.sampled_from([0.0, 0.25])),
        overlap=draw(st.sampled_from([0.0, 0.5])),
        beside_bytes=draw(st.sampled_from([0.0, 3.0])),
        beside_s=draw(st.sampled_from([0.0, 2.0])),
        tensor=draw(st.sampled_from([1, 2])),
        devices=draw(st.integers(1, 12)),
        microbatches=microbatches,
        degrees=[d for d in range(microbatches, 0, -1) if microbatches % d == 0],
    )


def sharing(chain: SmallChain) -> Sharing:
    d = np.array(chain.degrees, dtype=float)
    start_s, byte_s = (d - 1) * chain.latency_s, (d - 1) / d * chain.byte_s
    static, sharded = np.array(chain.static), np.array(chain.sharded)
    return Sharing(
        layer_bytes=static + sharded / d[:, np.newaxis],
        beside_bytes=np.full(len(d), chain.beside_bytes),
        gradients_start_s=start_s,
        gradients_byte_s=byte_s,
        parameters_start_s=start_s,
        parameters_byte_s=byte_s,
        beside_s=np.full(len(d), chain.beside_s),
        update_parts=d,
        gradients_under=chain.overlap,
        parameters_under=chain.overlap,
    )


def problem(chain: SmallChain) -> UniformProblem:
    return UniformProblem(
        layer_class=np.arange(len(chain.forward), dtype=np.int32),
        transfer_s=np.array(chain.transfer, dtype=float),
        saved_bytes=np.array(chain.saved, dtype=float),
        transient_bytes=np.array(chain.transient, dtype=float),
        sync_bytes=np.array(chain.sync, dtype=float),
        data_degrees=np.array(chain.degrees, dtype=np.int64),
        sharing=sharing(chain),
        memory_bytes=chain.memory,
        tensor_degree=chain.tensor,
        num_devices=chain.devices,
        num_microbatches=chain.microbatches,
    )


def solve(chain: SmallChain, cutoff: float = math.inf) -> tuple[float, list[int]]:
    step_s, _, starts, _ = fastest_uniform_plans(
        problem(chain),
        forward_s=np.array([chain.forward], dtype=float),
        backward_s=np.array(chain.backward, dtype=float).reshape(1, -1),
        update_s=np.array([chain.update], dtype=float),
        cutoff_s=np.array([cutoff]),
    )
    return float(step_s[0]), starts[0]


@given(chain=chains())
@cases(120)
def test_the_kernel_equals_every_cut_tried(chain: SmallChain) -> None:
    found, starts = solve(chain)
    assert found == approx(fastest(chain), rel=1e-12)
    assert bool(starts) == math.isfinite(found)


def narrow_middle() -> SmallChain:
    """The second stage has no room for the last layer beside two microbatches, the third has."""
    return SmallChain(
        forward=[1.0, 1.0, 1.0],
        backward=[[2.0, 2.0, 2.0]],
        update=[0.0, 0.0, 0.0],
        saved=[[1.0, 1.0, 6.0]],
        transient=[[0.0, 0.0, 0.0]],
        static=[0.0, 0.0, 0.0],
        sharded=[0.0, 0.0, 0.0],
        sync=[0.0, 0.0, 0.0],
        transfer=[0.0, 0.0],
        memory=7.0,
        byte_s=0.0,
        latency_s=0.0,
        tensor=1,
        devices=3,
        microbatches=4,
        degrees=[1],
    )


def test_a_stage_does_not_take_a_layer_that_the_next_cannot_do_without() -> None:
    found, starts = solve(narrow_middle())
    assert found == approx(fastest(narrow_middle()))
    assert starts == [0, 1, 2]


def test_nor_does_one_of_another_family() -> None:
    shape = Shape(family="zb-h1", num_ranks=3, num_microbatches=4, input_grad=1, weight_grad=1)
    step_s, starts = fastest_family_plans(
        problem(narrow_middle()),
        order_of(shape),
        forward_s=np.ones((1, 3)),
        backward_s=np.full((1, 3), 2.0),
        weight_grad_s=np.ones((1, 3)),
        update_s=np.zeros((1, 3)),
        pending_bytes=np.zeros(3),
        restored_bytes=np.zeros(3),
        cutoff_s=np.array([math.inf]),
        option=0,
        degree=0,
    )
    assert starts == [[0, 1, 2]]
    assert step_s[0] < solve(narrow_middle())[0]  # less bubble than 1F1B


@given(chain=chains())
def test_a_cutoff_changes_nothing_but_what_is_worse(chain: SmallChain) -> None:
    found, starts = solve(chain)
    if math.isfinite(found):
        assert solve(chain, found * 1.001 + 1e-9) == (found, starts)
        assert math.isinf(solve(chain, found)[0])


@given(chain=chains())
def test_devices_share_the_work_at_best(chain: SmallChain) -> None:
    found, _ = solve(chain)
    least = min(sum(chain.forward) + sum(option) for option in chain.backward)
    bound = chain.microbatches * chain.tensor * least / chain.devices
    assert found >= bound * (1 - 1e-12)


def test_the_gradients_of_the_last_stage_count_by_the_ring_formula() -> None:
    base = SmallChain(
        forward=[1.0, 1.0],
        backward=[[2.0, 2.0]],
        update=[0.0, 0.0],
        saved=[[0.0, 0.0]],
        transient=[[0.0, 0.0]],
        static=[0.0, 0.0],
        sharded=[0.0, 0.0],
        sync=[0.0, 0.0],
        transfer=[0.0],
        memory=1.0,
        byte_s=0.5,
        latency_s=0.0,
        tensor=1,
        devices=4,
        microbatches=4,
        degrees=[4],
    )
    free, _ = solve(base)
    synced, _ = solve(replace(base, sync=[0.0, 100.0]))
    assert synced - free == approx(2 * 3 / 4 * 100.0 * 0.5)
