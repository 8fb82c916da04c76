"""The layout string of Megatron: what is written reads back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.errors import InvalidInput
from trainwright.frameworks.megatron import format_layout, parse_layout

stages = st.lists(st.integers(0, 12).map(lambda n: "t" * n), min_size=1, max_size=40).map(
    lambda middle: ("E" + middle[0], *middle, "t" * 3 + "m", "L")
)


@given(stages=stages)
def test_a_layout_reads_back(stages: tuple[str, ...]) -> None:
    assert parse_layout(format_layout(stages)) == stages


@pytest.mark.parametrize(
    ("given_stages", "text"),
    [
        (("Ett", "ttt", "ttt", "ttL"), "Ett|ttt|ttt|ttL"),
        (("Ettt", *["tt"] * 29, "m", "L"), "Ettt|(tt|)*29m|L"),
        (("E" + "t" * 20, "t" * 21, "t" * 20, "t" * 19 + "L"), "Et*20|t*21|t*20|t*19L"),
        (("EtttL",), "EtttL"),
    ],
)
def test_layouts_are_short(given_stages: tuple[str, ...], text: str) -> None:
    assert format_layout(given_stages) == text


def test_commas_mean_nothing_and_groups_unroll() -> None:
    assert parse_layout("Ettt|(tt|)*3,m|L") == ("Ettt", "tt", "tt", "tt", "m", "L")
    assert parse_layout("E|(t|tt|)*2L") == ("E", "t", "tt", "t", "tt", "L")


@pytest.mark.parametrize("text", ["Ett |ttL", "Ett|xxL", "E((t|)*2|)*2L", "E(t|L"])
def test_what_the_grammar_does_not_know_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"must hold E, t, m, L"):
        parse_layout(text)
