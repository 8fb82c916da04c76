"""A keyword that a verb does not know is refused, and the nearest one is named."""

from __future__ import annotations

import re

import pytest

import trainwright
from trainwright.errors import InvalidInput
from trainwright.options.table import read

CALLS = {
    "plan": {"cluster": "dgx-h100"},
    "sweep": {"cluster": "dgx-h100", "devices": "8..16"},
    "estimate": {"cluster": "dgx-h100"},
    "codesign": {"devices": 64},
}


@pytest.mark.parametrize(
    ("verb", "name", "nearest"),
    [
        ("plan", "zero_stages", "zero_stage"),
        ("plan", "device", "devices"),
        ("sweep", "objectives", "objective"),
        ("estimate", "microbatch", "micro_batch"),
        ("codesign", "max_areas", "max_area_mm2"),
    ],
)
def test_an_unknown_keyword_is_refused_with_the_nearest(verb, name, nearest):
    problem = f'{name}: is no option of {verb}; did you mean "{nearest}"?'
    with pytest.raises(InvalidInput, match=re.escape(problem)):
        getattr(trainwright, verb)("gpt2", **CALLS[verb], **{name: 1})


def test_the_name_of_a_flag_is_a_keyword_everywhere():
    assert read("plan", {"zero": "0,1"}) == read("plan", {"zero_stage": "0,1"})
    assert read("estimate", {"zero": 1}) == {"zero_stage": 1}
    assert read("codesign", {"max_area": 60.0}) == {"max_area_mm2": 60.0}
    with pytest.raises(InvalidInput, match="zero: must not be given together with zero_stage"):
        read("plan", {"zero": 1, "zero_stage": 1})
    with pytest.raises(InvalidInput, match="no_recompute: is no option of plan"):
        read("plan", {"no_recompute": True})


def test_a_time_limit_is_asked_for_as_a_budget():
    with pytest.raises(InvalidInput, match=re.escape("give budget=Budget(time_limit_s=30)")):
        trainwright.plan("gpt2", **CALLS["plan"], time_limit="30s")


def test_a_model_that_is_neither_a_name_nor_a_path_is_refused():
    with pytest.raises(InvalidInput, match="got dict"):
        trainwright.plan({"model_type": "gpt2"}, **CALLS["plan"])


def test_every_unknown_keyword_is_named():
    with pytest.raises(InvalidInput) as refused:
        trainwright.codesign("gpt2", devices=64, qqq=1, max_areas=60)
    assert [fault.path for fault in refused.value.faults] == ["qqq", "max_areas"]


def test_a_single_text_is_one_of_those_that_may_be_several():
    assert read("plan", {"freeze": "embedding"}) == read("plan", {"freeze": ("embedding",)})
