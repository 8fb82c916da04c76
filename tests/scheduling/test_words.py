"""Orders as words: what is written is what was there, and nothing else is read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.errors import InvalidInput
from trainwright.plans.plan import SearchedOrder
from trainwright.plans.schedule import Placement, ScheduleCosts
from trainwright.scheduling.candidates import in_modes
from trainwright.scheduling.families import FamilyRequest, family_named
from trainwright.scheduling.orders import schedule_of_words, words_of

WORDS = ("0F*2 0I 0W 0I 0W", "1F 1I 1W 1F 1I 1W")


def read(*words, stages=2, microbatches=2):
    order = SearchedOrder(family="zb-h1", words=words)
    return schedule_of_words(order, num_stages=stages, num_microbatches=microbatches)


@given(
    family=st.sampled_from(["1f1b", "zb-h1", "zb-h2", "interleaved", "zb-v", "v-half", "v-min"]),
    ranks=st.integers(2, 4),
    groups=st.integers(1, 3),
)
def test_words_hold_all_of_an_order(family, ranks, groups):
    named = family_named(family)
    chunks = 1 if family in ("1f1b", "zb-h1", "zb-h2") else 2
    request = FamilyRequest(num_ranks=ranks, num_microbatches=groups * ranks, virtual_stages=chunks)
    placement = named.place(request)
    request = FamilyRequest(
        num_ranks=ranks,
        num_microbatches=groups * ranks,
        virtual_stages=chunks,
        costs=ScheduleCosts.of(placement),
    )
    none = np.zeros(placement.num_stages, np.bool_)
    schedule = in_modes(named.generate(request), fused=none, recomputed=none)
    order = words_of(schedule, family=family)
    assert (
        schedule_of_words(order, num_stages=placement.num_stages, num_microbatches=groups * ranks)
        == schedule
    )
    assert words_of(schedule, family=family) == order
    assert hash(words_of(schedule, family=family)) == hash(order)


def test_a_word_counts_the_microbatches_of_each_stage():
    schedule = read(*WORDS)
    assert schedule.placement == Placement.loop(2)
    assert " ".join(map(str, schedule.order(0))) == "0F0 0F1 0I0 0W0 0I1 0W1"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("0F 0I 0W", WORDS[1]), "words[0]: must run 0F 2 times, got 1"),
        (("0F*999999999 0I 0W", WORDS[1]), "words[0]: must run 0F 2 times, got 999999999"),
        (("2F 2I 2W", WORDS[1]), "words[0]: must name stages below 2, got 2"),
        (("0F*2 1F*2 1I*2 1W*2 0I*2 0W*2", WORDS[1]), "stage 1 must be on one rank"),
        ((WORDS[0], WORDS[0]), "words: must run every stage, misses 1"),
        (("0F*2 0I*2 0W*2", "1F*3 1I 1W*2"), "words[1]: must run 1F 2 times, got 3"),
        (("0F 0I 0W 0F 0W 0I", WORDS[1]), "0W1"),
        (("0I 0F 0W 0F 0I 0W", WORDS[1]), "0F0"),
        (("0F 0I 0W 0F 0I 0W", "1F*2 1I*2 1W*2"), "wait"),
    ],
)
def test_what_is_no_order_of_the_pipeline_is_refused(words, problem):
    with pytest.raises(InvalidInput) as caught:
        read(*words)
    assert problem in str(caught.value)


@pytest.mark.parametrize("word", ["", "0B", "F0", "0F*", "0F  0I", "0F\n0I", "-1F", "0F 0R"])
def test_a_word_is_written_in_one_way(word):
    with pytest.raises(InvalidInput) as caught:
        SearchedOrder(family="zb-v", words=("0F", word))
    assert str(caught.value).startswith("words[1]: must look like")


def test_ranks_without_words_are_refused():
    with pytest.raises(InvalidInput, match="words: must have at least 1 entry"):
        SearchedOrder(family="zb-v", words=())
