"""Number formats, memory stacks and overlap: what they change, and what they cannot."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from chips.jobs import BERT, GPT3, question, some_designs
from trainwright.chips.price import JobPricer, operator_uses
from trainwright.chips.search import AREA, mean_watts, search
from trainwright.chips.space import (
    DEFAULT_RULES,
    PLAIN,
    Making,
    enumerate_designs,
    number_format,
    template_area_um2,
)
from trainwright.cluster import Surroundings
from trainwright.errors import InvalidInput
from trainwright.execution import Budget
from trainwright.model import Phase

DESIGNS = np.arange(40)
FORMATS = ("fp8", "bf16", "fp32")
MAKINGS = [Making(mac_factor=number_format(name).area_factor) for name in FORMATS]


def pricer(precision: str, around: Surroundings | None = None) -> JobPricer:
    asked = replace(question(GPT3, space=some_designs(40, 2)), precisions=(precision,))
    if around is not None:
        asked = replace(asked, surroundings=(around,))
    return JobPricer(asked.jobs_of(asked.variants[0])[0], asked.variants[0], asked)


def test_an_area_trains_faster_the_narrower_its_numbers() -> None:
    space = enumerate_designs(replace(DEFAULT_RULES, width=(64, 128), depth=(64, 128)), MAKINGS)
    costs = []
    for name in FORMATS:
        found = search(replace(question(BERT, space=space), precisions=(name,)), Budget()).best
        assert found is not None
        costs.append(found.cost)
    assert costs == sorted(costs)
    assert costs[0] < costs[2]


def test_attention_and_head_stay_in_sixteen_bits() -> None:
    chain = pricer("fp8").chains[0]
    wide = {
        kernel.operator
        for kernels in chain.kernels
        for kernel in kernels
        for product in kernel.products
        if product.wide
    }
    assert wide == {"attention", "head"}
    assert chain.element_bytes == 1
    assert not any(
        p.wide for ks in pricer("bf16").chains[0].kernels for k in ks for p in k.products
    )


def test_bounds_hold_in_every_format() -> None:
    for name in FORMATS:
        one = pricer(name)
        times = one.times(DESIGNS)
        assert (one.ideal_bounds_s(DESIGNS) <= one.work_bounds_s(times)).all()


def test_flops_do_not_depend_on_the_format() -> None:
    flops = {
        name: [k.flops for ks in pricer(name).chains[0].kernels for k in ks if k.products]
        for name in FORMATS
    }
    assert flops["fp8"] == flops["bf16"] == flops["fp32"]
    chain = pricer("fp8").chains[0]
    forward = [k for ks in chain.kernels for k in ks if k.phase is Phase.FORWARD and k.products]
    assert any(k.array_flops == 2 * k.flops for k in forward)
    assert any(k.array_flops == k.flops for k in forward)


def test_the_space_holds_what_any_making_admits() -> None:
    plain = enumerate_designs()
    both = enumerate_designs(makings=(PLAIN, Making(mac_factor=0.5)))
    assert len(both) > len(plain)
    assert both.admitted(PLAIN).sum() == len(plain) == 29360
    narrow = both.areas_um2_of(Making(mac_factor=0.5))[both.admitted(Making(mac_factor=0.5))]
    assert (narrow <= DEFAULT_RULES.largest_um2).all()
    assert np.array_equal(both.areas_um2, template_area_um2(*both.designs))


def test_interfaces_take_area_from_cores() -> None:
    making = Making(interface_mm2=60.0)
    space = enumerate_designs(makings=(PLAIN, making))
    inside = space.admitted(making)
    assert (space.areas_um2[inside] + 60e6 <= DEFAULT_RULES.largest_um2).all()
    assert inside.sum() < space.admitted(PLAIN).sum()


def test_designs_outside_the_area_of_a_variant_are_never_placed() -> None:
    space = enumerate_designs(
        replace(DEFAULT_RULES, width=(64, 128), depth=(64, 128)),
        makings=[Making(mac_factor=number_format(n).area_factor) for n in ("fp8", "fp32")],
    )
    asked = replace(question(BERT, space=space, devices=64), precisions=("fp32", "fp8"))
    found = search(asked, Budget())
    assert found.best is not None
    assert asked.variants[found.best.variant].precision == "fp8"
    for variant, one in enumerate(asked.variants):
        outside = ~space.admitted(one.making)
        assert ((found.ledger.levels[variant] == AREA) == outside).all()


def test_mean_power_is_limited() -> None:
    free = search(question(BERT), Budget()).best
    assert free is not None
    asked = question(BERT)
    jobs = (JobPricer(BERT, asked.variants[0], asked),)
    _, watts = mean_watts(asked, jobs, np.array([free.index]), [free.plans])
    capped = replace(asked, max_mean_watts=float(watts[0]) * 0.8)
    found = search(capped, Budget()).best
    assert found is not None
    _, less = mean_watts(asked, jobs, np.array([found.index]), [found.plans])
    assert less[0] <= watts[0] * 0.8
    assert found.cost > free.cost
    assert 0 < jobs[0].static_watts(np.array([found.index]))[0] < less[0]


def test_overlap_is_never_slower_and_hides_no_more_than_there_is() -> None:
    base = Surroundings(link_bandwidth_bytes_per_s=30e9)
    steps = []
    for share in (0.0, 0.5, 1.0):
        around = replace(base, tensor_overlap=share, gradient_overlap=share)
        one = pricer("bf16", around)
        times = one.times(DESIGNS)
        assert (one.ideal_bounds_s(DESIGNS) <= one.work_bounds_s(times)).all()
        plans = one.plans(times, np.full(DESIGNS.size, np.inf))
        steps.append(np.array([plan.step_s for plan in plans if plan is not None]))
    assert (steps[0] >= steps[1]).all()
    assert (steps[1] >= steps[2]).all()
    assert (steps[0] > steps[2]).any()


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(InvalidInput, match="bf16, fp8, fp32"):
        number_format("int4")


def test_no_operator_is_busier_than_its_time() -> None:
    asked = replace(question(GPT3, space=some_designs(40, 2)), precisions=("fp8",))
    found = search(asked, Budget()).best
    assert found is not None
    chain = asked.jobs_of(asked.variants[0])[0].chain(found.plans[0].tensor_degree)
    uses = operator_uses(asked, found, chain)
    assert any(use.kernel.array_flops > use.kernel.flops for use in uses)
    assert all(0 < use.utilisation <= 1 + 1e-9 for use in uses if use.kernel.products)
