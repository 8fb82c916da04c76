"""The exact solver equals exhaustive search, in value and in the legality of its plan."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import event, given

from instances import profile_of, setting_of, stages_of
from oracles import least_time, time_of_legal_plan
from random_cases import cases, marked
from seeded_pipers import least_time_of
from strategies import piper_objects, random_piper
from trainwright.partitioning.downset_dp import UNRESTRICTED, Restrictions, solve
from trainwright.plans import Status


def without_configs(piper, *, dropped=frozenset(), degrees=None):
    """The instance with only the given degrees, and without the configs of the given ids."""
    return piper | {
        "nodes": [
            node
            | {
                "TMPCs": {
                    t: [config for config in configs if config["id"] not in dropped]
                    for t, configs in node["TMPCs"].items()
                    if degrees is None or int(t) in degrees
                }
            }
            for node in piper["nodes"]
        ]
    }


def assert_equals_the_oracle(piper, *, restrictions=UNRESTRICTED, least):
    outcome = solve(profile_of(piper), setting_of(piper), restrictions=restrictions)
    if least is None:
        assert (outcome.status, outcome.plan) == (Status.INFEASIBLE, None)
        return outcome
    assert outcome.status is Status.OPTIMAL
    assert outcome.time_per_sample_s == pytest.approx(least, rel=1e-9, abs=0)
    assert least * (1 - 1e-9) <= outcome.lower_bound_s <= least * (1 + 1e-12)
    exact = time_of_legal_plan(piper, stages_of(outcome.plan))
    assert outcome.time_per_sample_s == pytest.approx(exact, rel=1e-13, abs=0)
    return outcome


@given(piper_objects())
@cases(150)
def test_it_equals_exhaustive_search(piper):
    outcome = assert_equals_the_oracle(piper, least=least_time(piper))
    event(f"{outcome.status}, {len(outcome.stage_costs)} stages")


def test_it_equals_exhaustive_search_on_a_fixed_corpus_of_every_kind():
    seen = Counter()
    for seed in range(200):
        piper = random_piper(Random(seed))
        outcome = assert_equals_the_oracle(piper, least=least_time_of(seed))
        seen[outcome.status] += 1
        seen[len(outcome.stage_costs)] += 1
        seen["no edges"] += not piper["edges"]
        pairs = [(edge["sourceId"], edge["destId"]) for edge in piper["edges"]]
        seen["parallel edges"] += len(set(pairs)) < len(pairs)
    assert seen[Status.OPTIMAL] > 125
    assert seen[Status.INFEASIBLE] > 12
    assert min(seen[2], seen[3], seen["no edges"], seen["parallel edges"]) > 12


@pytest.mark.parametrize("block", marked(range(21), slow=(0,), papers=range(1, 21)))
def test_it_equals_exhaustive_search_at_length(block):
    for seed in range(1000 * block, 1000 * (block + 1)):
        piper = random_piper(Random(seed))
        assert_equals_the_oracle(piper, least=least_time(piper))


@given(piper_objects())
@cases(60)
def test_restrictions_equal_exhaustive_search_over_what_they_leave(piper):
    for restrictions, least in (
        (Restrictions(data_parallel=False), least_time(piper, data_degrees=(1,))),
        (Restrictions(data_degrees=(2, 3)), least_time(piper, data_degrees=(2, 3))),
        (Restrictions(tensor_parallel=False), least_time(without_configs(piper, degrees=(1,)))),
        (Restrictions(tensor_degrees=(2, 4)), least_time(without_configs(piper, degrees=(2, 4)))),
        (
            Restrictions(recompute=False),
            least_time(without_configs(piper, dropped={"activation recomp"})),
        ),
        (
            Restrictions(excluded_options=frozenset({"vanilla", "offload"})),
            least_time(without_configs(piper, dropped={"vanilla", "offload"})),
        ),
    ):
        assert_equals_the_oracle(piper, restrictions=restrictions, least=least)
