"""Defects of the published co-design program that the native model does not have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from chips.jobs import BERT, GPT3, job, question, some_designs
from trainwright.chips.design_times import ProductCache, exact_times
from trainwright.chips.document import EXPERTS, even_starts, expert_plan
from trainwright.chips.population import populate
from trainwright.chips.price import operator_uses
from trainwright.chips.search import search
from trainwright.chips.space import SpaceRules, enumerate_designs
from trainwright.cluster import REFERENCE_DESIGN, Surroundings
from trainwright.costing.tiled import PHASES
from trainwright.execution import Budget
from trainwright.model import LayerKind, Phase, count_parameters
from trainwright.units import MIB

REFERENCE_SPACE = enumerate_designs(
    SpaceRules(num_tc=(8,), num_vc=(2,), width=(128,), depth=(128,), glb_mib=(128,))
)


def test_backward_of_a_linear_layer_is_twice_its_forward() -> None:
    for kernels in GPT3.chain(4).kernels:
        linear = [k for k in kernels if k.products and not k.is_fused]
        for name in {k.operator for k in linear}:
            flops = {k.phase: k.flops for k in linear if k.operator == name}
            assert flops[Phase.INPUT_GRAD] + flops[Phase.WEIGHT_GRAD] == 2 * flops[Phase.FORWARD]


def test_attention_contracts_its_inner_dimension() -> None:
    block = GPT3.chain(4).kernels[1]
    (attention,) = [k for k in block if k.is_fused and k.phase is Phase.FORWARD]
    scores, values = attention.products
    assert scores.flops == values.flops == 2.0 * 24 * 2048 * 2048 * 128
    assert (scores.k, values.k) == (128, 2048)


def test_vector_operators_take_no_less_than_their_bytes() -> None:
    chain, around = BERT.chain(1), Surroundings()
    space = some_designs(50)
    table = ProductCache(space, chain, around).table(np.arange(50))
    times = exact_times(space, chain, around, table)
    for index, kernels in enumerate(chain.kernels):
        moved = sum(k.memory_bytes for k in kernels if k.phase is Phase.FORWARD)
        assert (times.forward_s[:, index] >= moved / around.memory_bandwidth_bytes_per_s).all()


@pytest.mark.parametrize(
    ("name", "official"), [("llama2-7b", 6.738e9), ("bert-large", 0.3362e9), ("gpt2-xl", 1.5576e9)]
)
def test_every_parameter_counts_once(name: str, official: float) -> None:
    asked = job(name, 512, (1,))
    assert count_parameters(asked.model) == pytest.approx(official, rel=5e-3)
    kinds = asked.chain(1).graph.kinds
    assert kinds.count(LayerKind.LM_HEAD) == kinds.count(LayerKind.FINAL_NORM) + (
        0 if LayerKind.FINAL_NORM in kinds else 1
    )


def test_flops_are_six_per_parameter_and_token_plus_attention() -> None:
    chain = GPT3.chain(1)
    per_class = np.array([sum(k.flops for k in kernels) for kernels in chain.kernels])
    total = float(per_class @ chain.class_counts)
    config, tokens = GPT3.model, 2048
    attention = config.num_layers * 2 * 3.5 * 2048 * 2048 * config.hidden_size
    assert total == pytest.approx(6 * count_parameters(config) * tokens + attention, rel=0.03)


def test_activations_are_those_of_korthikanti() -> None:
    """s·b·h·34 for a block with dropout, without the scores a fused kernel never keeps."""
    gpt = replace(GPT3.model, hidden_dropout=0.1, attention_dropout=0.1)
    chain = replace(GPT3, model=gpt).chain(1)
    block = int(np.argmax(chain.class_counts))
    assert chain.saved_bytes[0, block] == pytest.approx(34 * 2048 * 12288, rel=0.05)


def test_an_embedding_does_not_shift_the_groups_of_a_published_strategy() -> None:
    chain = GPT3.chain(4)
    sizes = np.diff([*even_starts(chain, 32), len(chain.graph.layers)]).tolist()
    assert sizes[1:-1] == [3] * 30
    assert sizes[0] == 3 + 1  # the embedding
    assert sizes[-1] == 3 + 3  # final norm, head, loss
    assert sum(sizes) == len(chain.graph.layers)


def test_a_strategy_out_of_memory_is_told_and_costs_nothing_else() -> None:
    around = Surroundings(memory_bytes=2**30)
    chain = GPT3.chain(4)
    table = ProductCache(REFERENCE_SPACE, chain, around).table(np.arange(1))
    times = exact_times(REFERENCE_SPACE, chain, around, table)
    strategy = EXPERTS["gpt3-175b"]
    assert expert_plan(chain, times, strategy, job=GPT3, surroundings=around) is None
    roomy = Surroundings()
    assert expert_plan(chain, times, strategy, job=GPT3, surroundings=roomy) is not None


def test_adam_keeps_eighteen_bytes_per_parameter() -> None:
    chain = BERT.chain(1)
    per_class = [sum(p.count for p in c.parameters) for c in chain.graph.classes]
    held = chain.static_bytes.sum(axis=(1, 2))
    np.testing.assert_allclose(held, 18.0 * np.array(per_class))


def test_the_lanes_and_the_arrays_report_their_own_use() -> None:
    asked = question(BERT, space=REFERENCE_SPACE, devices=8)
    found = search(asked, Budget()).best
    assert found is not None
    uses = operator_uses(asked, found, BERT.chain(1))
    surroundings = Surroundings()
    for use in uses:
        if use.kernel.products:
            peak = 2.0 * REFERENCE_DESIGN.num_macs * surroundings.clock_hz
            assert use.utilisation == pytest.approx(use.kernel.flops / peak / use.seconds)
        else:
            lanes = REFERENCE_DESIGN.num_lanes * surroundings.clock_hz
            assert use.utilisation == pytest.approx(use.kernel.lane_cycles / lanes / use.seconds)
    assert {use.kernel.phase for use in uses} == set(PHASES)


@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_scaling_every_time_keeps_the_plans(scale: float) -> None:
    around = Surroundings(launch_s=0.0)
    scaled = replace(
        around,
        clock_hz=around.clock_hz / scale,
        memory_bandwidth_bytes_per_s=around.memory_bandwidth_bytes_per_s / scale,
        link_bandwidth_bytes_per_s=around.link_bandwidth_bytes_per_s / scale,
        link_latency_s=around.link_latency_s * scale,
    )
    space = some_designs(20)
    plans = []
    for one in (around, scaled):
        asked = replace(question(BERT, space=space, devices=32), surroundings=(one,))
        found, _ = populate(asked, Budget(), scale_s=np.ones(1))
        plans.append([(p.data_degree, p.recompute, p.starts) for (p,) in found.plans])
    assert plans[0] == plans[1]


def test_returned_plans_hold_their_memory() -> None:
    asked = question(GPT3, space=some_designs(20), devices=256, memory_gib=40)
    found, _ = populate(asked, Budget(), scale_s=np.ones(1))
    assert len(found) == 20
    for (plan,) in found.plans:
        chain = GPT3.chain(plan.tensor_degree)
        m = GPT3.num_microbatches // plan.data_degree
        for rank, stage in enumerate(np.split(chain.layer_class, plan.starts[1:])):
            option = chain.recompute.index(plan.recompute[rank])
            held = (
                chain.static_bytes[stage, 0, :2].sum()
                + chain.static_bytes[stage, 0, 2].sum() / plan.data_degree
                + min(plan.num_ranks - rank, m) * chain.saved_bytes[option, stage].sum()
                + chain.transient_bytes[option, stage].max()
            )
            assert held <= 40 * 1024 * MIB
