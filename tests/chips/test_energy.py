"""Energy: sums, monotony, an example by hand."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from chips.jobs import BERT, question, some_designs
from trainwright.chips.design_times import ProductCache
from trainwright.chips.plans import UniformPlan
from trainwright.chips.price import (
    EnergyTable,
    JobPricer,
    VoltageCurve,
    kernel_energy_j,
    layer_energy_j,
    step_energy_j,
)
from trainwright.cluster import Surroundings
from trainwright.costing.tiled import PHASES, ChipKernel, Product
from trainwright.errors import InvalidInput
from trainwright.model import Phase
from trainwright.profile import Recompute

NOTHING = EnergyTable(
    **{f.name: 1.0 if f.name == "supply_efficiency" else 0.0 for f in fields(EnergyTable)}
)


DIES = np.full(5, 100.0)  # mm2


def test_a_product_alone_costs_its_multiplications() -> None:
    space = some_designs(3)
    chain = BERT.chain(1)
    products = ProductCache(space, chain, Surroundings()).table(np.arange(3))
    product = next(iter(products.column_of))
    kernel = ChipKernel(operator="x", phase=Phase.FORWARD, products=(product,))
    energy = kernel_energy_j(kernel, products, replace(NOTHING, mac_j=2e-12), DIES[:3])
    assert energy == pytest.approx(np.full(3, product.flops / 2 * 2e-12))


def test_a_vector_kernel_costs_lanes_and_bytes_at_every_level() -> None:
    space, chain = some_designs(1), BERT.chain(1)
    products = ProductCache(space, chain, Surroundings()).table(np.arange(1))
    kernel = ChipKernel(operator="x", phase=Phase.FORWARD, lane_cycles=100.0, memory_bytes=10.0)
    table = replace(
        NOTHING, lane_j=1.0, memory_byte_j=3.0, glb_byte_j=2.0, core_byte_j=1.0, link_byte_j=9.0
    )
    assert kernel_energy_j(kernel, products, table, DIES[:1])[0] == 100.0 + 10.0 * (3 + 2 + 1)
    wired = replace(table, wire_byte_mm_j=0.3)  # 2/3 of a side of 10 mm
    more = kernel_energy_j(kernel, products, wired, DIES[:1])[0]
    assert more == pytest.approx(100.0 + 10.0 * (3 + 2 + 1) + 10.0 * 0.3 * 20 / 3)


def test_layers_are_the_sum_of_their_kernels() -> None:
    space, chain, table = some_designs(4), BERT.chain(2), EnergyTable()
    products = ProductCache(space, chain, Surroundings()).table(np.arange(4))
    layers = layer_energy_j(chain, products, table, DIES[:4])
    links = chain.link_bytes()
    for index, kernels in enumerate(chain.kernels):
        once = sum(kernel_energy_j(k, products, table, DIES[:4]) for k in kernels)
        once = once + sum(links[phase][index] for phase in PHASES) * table.link_byte_j
        np.testing.assert_allclose(layers[:, 0, index], once, rtol=1e-12)
    blocks = np.flatnonzero(chain.repeats)
    assert (layers[:, 1, blocks] > layers[:, 0, blocks]).all()  # recomputing costs energy too


def test_backward_of_a_vector_operator_has_its_own_energy() -> None:
    chain = BERT.chain(1)
    space = some_designs(1)
    products = ProductCache(space, chain, Surroundings()).table(np.arange(1))
    block = chain.kernels[int(np.argmax(chain.class_counts))]
    energy = {
        (k.operator, k.phase): float(kernel_energy_j(k, products, EnergyTable(), DIES[:1])[0])
        for k in block
        if "norm" in k.operator or "activation" in k.operator
    }
    names = {name for name, _ in energy}
    assert names
    for name in names:
        assert energy[name, Phase.INPUT_GRAD] != energy[name, Phase.FORWARD]


@pytest.mark.parametrize(
    "name", [f.name for f in fields(EnergyTable) if f.name != "supply_efficiency"]
)
def test_a_step_costs_more_when_any_event_does(name: str) -> None:
    asked = question(replace(BERT, tensor_degrees=(2,)), space=some_designs(2), devices=16)

    def energy(table: EnergyTable) -> float:
        priced = replace(asked, energy=table)
        pricer = JobPricer(priced.jobs[0], priced.variants[0], priced)
        designs = np.arange(1)
        (plan,) = pricer.plans(pricer.times(designs), np.full(1, np.inf))
        assert plan is not None
        return float(pricer.energies_j(designs, [plan])[0])

    base = EnergyTable()
    assert energy(replace(base, **{name: getattr(base, name) * 2})) > energy(base)


def test_idle_power_runs_on_all_devices_for_the_whole_step() -> None:
    chain = BERT.chain(1)
    plan = UniformPlan(
        step_s=3.0, tensor_degree=1, data_degree=1, recompute=(Recompute.NONE,), starts=(0,)
    )
    layers = np.zeros((2, len(chain.kernels)))
    energy = step_energy_j(
        layers,
        chain,
        plan,
        job=BERT,
        num_devices=10,
        die_mm2=100.0,
        table=replace(NOTHING, idle_watts=5.0, leakage_watts_per_mm2=0.1),
    )
    assert energy == pytest.approx(10 * (5.0 + 0.1 * 100.0) * 3.0)


def test_what_converters_lose_is_drawn_too() -> None:
    drawn = replace(EnergyTable(), supply_efficiency=0.8).drawn()
    assert drawn.mac_j == pytest.approx(EnergyTable().mac_j / 0.8)
    assert drawn.static_watts(DIES[0]) == pytest.approx(EnergyTable().static_watts(DIES[0]) / 0.8)


def test_a_voltage_changes_logic_by_its_square_and_leakage_by_itself() -> None:
    table, lower = EnergyTable(), EnergyTable().at_voltage(0.8)
    assert lower.mac_j == pytest.approx(0.64 * table.mac_j)
    assert lower.leakage_watts_per_mm2 == pytest.approx(0.8 * table.leakage_watts_per_mm2)
    assert lower.memory_byte_j == table.memory_byte_j  # memory has a supply of its own


def test_a_faster_clock_takes_more_voltage_and_has_an_end() -> None:
    curve = VoltageCurve(volts=0.75)
    volts = [curve.volts_for(hz) for hz in (0.2e9, 0.8e9, 1.05e9, 1.3e9)]
    assert volts == sorted(volts)
    assert (volts[0], volts[2]) == (pytest.approx(curve.least_volts), 0.75)
    assert curve.clock_at(volts[3]) * 1.05e9 == pytest.approx(1.3e9)
    with pytest.raises(InvalidInput, match=r"clock: must be at most 1.6.* Hz, which takes 1.2 V"):
        curve.volts_for(2e9)


def test_watts_rise_faster_than_the_clock() -> None:
    asked = replace(question(BERT, space=some_designs(2)), curve=VoltageCurve(volts=0.75))
    watts = []
    for hz in (1.05e9, 1.365e9):
        (around,) = asked.surroundings
        faster = replace(asked, surroundings=(replace(around, clock_hz=hz),))
        pricer = JobPricer(BERT, faster.variants[0], faster)
        static = faster.energy_of(faster.variants[0]).static_watts(
            faster.dies_mm2(faster.variants[0], np.arange(2))
        )
        watts.append(pricer.hungriest_watts(np.arange(2)) - static)
    assert (watts[1] > watts[0]).all()
    assert watts[1][0] > 1.3 * watts[0][0]  # its operator is held by multipliers, not by memory


def test_a_table_without_sense_is_refused() -> None:
    with pytest.raises(InvalidInput, match="mac_j"):
        EnergyTable(mac_j=-1.0)
    with pytest.raises(InvalidInput, match="supply_efficiency"):
        EnergyTable(supply_efficiency=1.1)
    with pytest.raises(InvalidInput, match="most_volts: must rise"):
        VoltageCurve(volts=0.75, least_volts=0.8)


def test_products_are_keyed_by_their_whole_shape() -> None:
    space, chain = some_designs(5), BERT.chain(1)
    cache = ProductCache(space, chain, Surroundings())
    first = cache.table(np.array([3, 1]))
    again = cache.table(np.arange(5))
    assert len(first) == 2
    for product, column in first.column_of.items():
        assert isinstance(product, Product)
        assert (
            first.seconds[first.row_of[0], column]
            == again.seconds[again.row_of[3], again.column_of[product]]
        )
