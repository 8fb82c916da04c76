"""Splits in V that are not nearly even: never lost when more is allowed, never below the bound."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest

from exhaustive import holds, on_four_ranks
from trainwright.execution import Budget
from trainwright.planning.bounds.stages import nearly_even
from trainwright.planning.search import search as searches
from trainwright.planning.search.search import plan_model
from trainwright.step.predict import predict_step

FAMILIES = ("1f1b", "zb-h1", "zb-v", "v-half")


def outcome_of(blocks, memory_gib, schedules):
    return plan_model(on_four_ranks(blocks, memory_gib, schedules), Budget())


def step_s(outcome):
    return outcome.priced[0].step.step_time_s if outcome.priced else float("inf")


def test_what_is_told_is_priced_in_full():
    """The search itself leaves out of plans in V what they spend on communication."""
    question = on_four_ranks(8, 24, ("zb-v",))
    outcome = plan_model(question, Budget())
    assert outcome.priced
    for each in outcome.priced:
        again = predict_step(
            each.plan,
            each.profile,
            question.cluster,
            **question.step_terms,
        )
        assert again.communication
        assert again == each.step


LONGER = [(23, 36), (14, 30), (14, 60), (15, 60), (23, 42)]


def test_a_chain_beside_a_family_in_v_never_makes_its_plan_worse():
    alone, both = (outcome_of(8, 24, names) for names in (("zb-v",), ("1f1b", "zb-v")))
    assert step_s(both) <= step_s(alone) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("blocks", "memory_gib"),
    [
        pytest.param(15, 24, marks=pytest.mark.slow),
        *(pytest.param(*one, marks=pytest.mark.papers) for one in LONGER),
    ],
)
def test_more_families_never_make_the_plan_worse(blocks, memory_gib):
    alone = {name: outcome_of(blocks, memory_gib, (name,)) for name in FAMILIES}
    together = outcome_of(blocks, memory_gib, FAMILIES)
    assert step_s(together) <= min(map(step_s, alone.values())) * (1 + 1e-12)
    for pair in (("1f1b", "zb-v"), ("zb-h1", "v-half"), ("zb-v", "v-half")):
        both = outcome_of(blocks, memory_gib, pair)
        assert step_s(both) <= min(step_s(alone[name]) for name in pair) * (1 + 1e-12)
    for outcome in (together, *alone.values()):
        assert all(outcome.lower_bound_s <= each.step.step_time_s for each in outcome.priced)


def test_an_uneven_plan_is_found_where_no_nearly_even_one_fits():
    """Of 23 blocks in eight stages the first and the last must hold five together."""
    outcome = outcome_of(23, 36, ("zb-v",))
    found = outcome.priced[0]
    layers = [layer for stage in found.plan.stages for layer in stage.layers]
    assert len(layers) == len(set(layers)) == len(found.profile.structure.layers)
    stages = nearly_even(found.profile, 8).stages(len(layers))
    ends = accumulate((len(stage.layers) for stage in found.plan.stages), initial=0)
    assert not all(stages[cut] for cut in pairwise(ends))


# Plans that never pause, in the middle of a search
# -------------------------------------------------


@pytest.mark.parametrize(("blocks", "memory_gib"), [(11, 24), (14, 24), (15, 30)])
def test_a_plan_that_leads_a_search_is_kept_and_costs_nothing(blocks, memory_gib, monkeypatch):
    """It fits, none of the bounds is above it, and the search ends no worse than without."""
    led, lead = [], searches.lead_in_v

    def lead_in_v(search):
        known = len(search.priced)
        lead(search)
        led.extend(search.priced[known:])

    monkeypatch.setattr(searches, "lead_in_v", lead_in_v)
    alone = outcome_of(blocks, memory_gib, ("v-half", "v-fit"))
    assert not led
    monkeypatch.setattr(searches, "_LONG", 1)
    outcome = outcome_of(blocks, memory_gib, ("v-half", "v-fit"))
    assert step_s(outcome) <= step_s(alone) * (1 + 1e-12)
    assert "v-fit" in {each.candidate.schedule for each in led}
    question = on_four_ranks(blocks, memory_gib, ("v-fit",))
    for each in led:
        assert outcome.lower_bound_s <= each.step.step_time_s
        assert holds(question, each.step.peak_memory_bytes)
        assert step_s(outcome) <= each.step.step_time_s


def test_no_candidate_is_recomputed_twice_until_it_never_pauses(monkeypatch):
    asked, priced = [], searches.price_without_pauses

    def price_without_pauses(question, candidate, *rest, **more):
        asked.append(candidate)
        return priced(question, candidate, *rest, **more)

    monkeypatch.setattr(searches, "price_without_pauses", price_without_pauses)
    monkeypatch.setattr(searches, "_LONG", 1)
    outcome_of(15, 30, None)
    assert asked
    assert len(asked) == len(set(asked))


@pytest.mark.parametrize(
    ("blocks", "memory_gib"), [(16, 24), pytest.param(18, 24, marks=pytest.mark.slow)]
)
def test_by_default_a_small_pipeline_keeps_to_the_room_of_its_devices(blocks, memory_gib):
    """Once no plan of the family was made by default: the best took 14 % longer."""
    named, free = (outcome_of(blocks, memory_gib, names) for names in (("v-fit",), None))
    assert step_s(free) <= step_s(named) * (1 + 1e-12)
    assert free.lower_bound_s <= step_s(named)
