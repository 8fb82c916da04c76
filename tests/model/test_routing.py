"""How many units of devices tokens reach, against every choice of experts counted one by one."""

from dataclasses import replace
from itertools import combinations
from math import comb

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from random_cases import cases
from trainwright.errors import InvalidInput
from trainwright.formats import catalog
from trainwright.model import Routing

DEEPSEEK = Routing(num_experts=256, experts_per_token=8, num_groups=8, groups_per_token=4, ranks=64)


def counted(routing: Routing, size: int) -> float:
    """The mean over all groups and experts that a token can choose."""
    experts = range(routing.num_experts)
    group = routing.num_experts // routing.num_groups
    unit = size * routing.num_experts // routing.ranks
    met = [
        len({expert // unit for expert in chosen})
        for groups in combinations(range(routing.num_groups), routing.groups_per_token)
        for chosen in combinations(
            [expert for expert in experts if expert // group in groups], routing.experts_per_token
        )
    ]
    return sum(met) / len(met)


@st.composite
def routings(draw: st.DrawFn) -> Routing:
    experts = draw(st.sampled_from([4, 6, 8, 12]))
    divisors = [n for n in range(1, experts + 1) if experts % n == 0]
    groups = draw(st.sampled_from(divisors))
    used = draw(st.integers(1, groups))
    return Routing(
        num_experts=experts,
        experts_per_token=draw(st.integers(1, min(4, used * experts // groups))),
        num_groups=groups,
        groups_per_token=used,
        ranks=draw(st.sampled_from(divisors)),
    )


@given(routing=routings(), size=st.integers(1, 12))
@cases(50)
def test_units_met_are_those_of_every_choice_counted(routing: Routing, size: int) -> None:
    """Units and groups may overlap in any way, and the last unit may be smaller."""
    assume(size <= routing.ranks)
    assert routing.units_met(size) == pytest.approx(counted(routing, size), rel=1e-12)


@given(routing=routings())
def test_larger_units_are_met_less_often_and_no_more_than_there_are(routing: Routing) -> None:
    sizes = [n for n in range(1, routing.ranks + 1) if routing.ranks % n == 0]
    met = {size: routing.units_met(size) for size in sizes}
    for size, several in ((a, b) for a in sizes for b in sizes if b % a == 0):  # b holds whole a's
        assert met[several] <= met[size] * (1 + 1e-12)
    assert met[1] <= routing.experts_per_token
    assert met[routing.ranks] == pytest.approx(1.0)


def test_deepseek_v3_reaches_four_nodes_at_most() -> None:
    """A group is a node of 8 ranks with 4 experts each: 4 nodes, less those without a choice."""
    missed = comb(96, 8) / comb(128, 8)
    assert DEEPSEEK.units_met(8) == pytest.approx(4 * (1 - missed))
    free = replace(DEEPSEEK, num_groups=1, groups_per_token=1)
    assert free.units_met(8) == pytest.approx(8 * (1 - comb(224, 8) / comb(256, 8)))
    assert 3.6 < DEEPSEEK.units_met(8) < 4 < 5.2 < free.units_met(8) < 5.4


def test_catalog_models_have_their_published_groups() -> None:
    published = {
        "deepseek-v3": (8, 4),
        "deepseek-v2": (8, 3),
        "deepseek-v2-lite": (1, 1),
        "kimi-k2": (1, 1),
        "mixtral-8x7b": (1, 1),
    }
    for name, groups in published.items():
        experts = catalog.model(name).config.experts
        assert experts is not None
        assert (experts.num_groups, experts.groups_per_token) == groups


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"num_groups": 3}, "num_groups: must divide the 256 experts, got 3"),
        ({"groups_per_token": 9}, "groups_per_token: must be in 1..8, got 9"),
        (
            {"experts_per_token": 40, "groups_per_token": 1},
            "groups_per_token: must leave a token 40 experts, leaves 32",
        ),
        ({"ranks": 3}, "ranks: must divide the 256 experts, got 3"),
        ({"num_experts": 0}, "num_experts: must be >= 1, got 0"),
    ],
)
def test_routing_that_cannot_be_is_refused(changed: dict[str, int], fault: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        replace(DEEPSEEK, **changed)
    assert [str(found) for found in caught.value.faults] == [fault]
