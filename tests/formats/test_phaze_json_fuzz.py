"""Whatever a placement input holds, it is read and planned, or refused with its faults."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from random_cases import cases, places
from small_placements import chain
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.execution import Budget
from trainwright.formats.json_text import scan_json
from trainwright.formats.phaze_json import read_phaze
from trainwright.partitioning.downset_dp import Restrictions
from trainwright.partitioning.placement import NATIVE_RULES
from trainwright.partitioning.placement_planner import plan_placement

STRANGE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10**30),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(("", "1", "SGD", [], {}, [1], {"1": []}, 5e-324, 1e308, 0.5)),
)


PLACES = tuple(places(chain()))


@cases(250)
@given(st.lists(st.tuples(st.sampled_from(PLACES), STRANGE), min_size=1, max_size=3))
def test_a_changed_file_is_planned_or_refused(changes):
    value = copy.deepcopy(chain())
    for (*parents, last), strange in changes:
        at = value
        try:
            for key in parents:
                at = at[key]
            at[last] = strange
        except (KeyError, IndexError, TypeError):
            continue
    try:
        case = read_phaze(json.loads(json.dumps(value)))
        found = plan_placement(
            case, rules=NATIVE_RULES, restrictions=Restrictions(), budget=Budget(time_limit_s=5)
        )
    except (InvalidInput, UnsupportedFeature):
        return
    if found.outcome.cost is not None:
        assert found.outcome.cost.time_s < float("inf")
        assert found.outcome.lower_bound_s <= found.outcome.cost.time_s
    else:
        assert found.binding is None or found.binding.description


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"nodes": {}, "nodes": {}}', "nodes"),
        ('{"nodes": {"1": []}, "bandwidth": NaN}', "bandwidth"),
        ("[]", "must be a JSON object"),
    ],
)
def test_faults_of_the_text_itself_are_named(text, problem):
    with pytest.raises(InvalidInput, match=problem):
        scanned = scan_json(text.encode())
        read_phaze(scanned.value, text_faults=scanned.faults)


@pytest.mark.parametrize(
    ("name", "unit"), [("optimalLatencyFw", "seconds"), ("activationSize", "bytes")]
)
def test_sums_beyond_all_floats_are_refused(name, unit):
    value = chain()
    for node in value["nodes"]["1"]:
        node[name] = 1e308
    with pytest.raises(InvalidInput, match=f"finite {unit}"):
        plan_placement(
            read_phaze(value), rules=NATIVE_RULES, restrictions=Restrictions(), budget=Budget()
        )
