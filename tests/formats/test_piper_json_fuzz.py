"""Whatever the bytes: `InvalidInput`, or a profile that obeys the rules. Never anything else."""

from __future__ import annotations

import copy
import json
import math

from hypothesis import given
from hypothesis import strategies as st

from piper_examples import config, diamond, is_legal, node
from random_cases import cases, places
from trainwright.errors import InvalidInput
from trainwright.formats.piper_json import read_piper, read_piper_bytes
from trainwright.profile import ProfileFile

WORDS = ["id", "TMPCs", "nodes", "edges", "0", "1", "2", "3", "-1", "01", "vanilla", "", "ü", "𝟚"]
NUMBERS = [
    0,
    1,
    2,
    3,
    -1,
    4.0,
    0.5,
    -0.0,
    1e308,
    1e999,
    -1e999,
    math.nan,
    10**19,
    10**400,
    10**4000,
]

scalars = st.sampled_from([None, True, False, *NUMBERS, *WORDS])
arbitrary = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=3)
    ),
    max_leaves=6,
)
parts = st.sampled_from(
    [
        node(4, [], []),
        node(0, [], [1, 2]),
        config("other", [0], [3]),
        config("vanilla", [], [1, 2]),
        {"sourceId": 0, "destId": 3, "communicationCost": 1},
        {"sourceId": 0, "destId": 1, "communicationCost": 1},
        {"sourceId": 3, "destId": 0, "communicationCost": 1},
        {},
        [],
    ]
)


@st.composite
def mutated_profiles(draw):
    """The diamond with up to three entries replaced, removed, renamed, added or swapped."""
    value = diamond()
    for _ in range(draw(st.integers(1, 3))):
        *way, key = draw(st.sampled_from(list(places(value))))
        holder = value
        for step in way:
            holder = holder[step]
        entry = copy.deepcopy(draw(arbitrary | parts))
        change = draw(st.sampled_from(["replace", "replace", "remove", "add", "repeat"]))
        if change == "replace":
            holder[key] = entry
        elif change == "remove":
            del holder[key]
        elif isinstance(holder, list):
            holder.append(entry if change == "add" else copy.deepcopy(holder[key]))
        elif change == "add":
            holder[draw(st.sampled_from(WORDS))] = entry
        else:
            holder[draw(st.sampled_from(WORDS))] = copy.deepcopy(holder[key])
        if not list(places(value)):
            break
    return value


def outcome(read, argument):
    try:
        file = read(argument)
    except InvalidInput as error:
        assert str(error)
        assert all(fault.path and fault.problem for fault in error.faults)
        return None
    assert isinstance(file, ProfileFile)
    return file


@cases(150)
@given(mutated_profiles())
def test_a_changed_profile_is_accepted_exactly_when_it_obeys_the_rules(value):
    assert (outcome(read_piper, value) is not None) == is_legal(value)


@cases(120)
@given(mutated_profiles())
def test_text_and_value_are_judged_alike(value):
    text = json.dumps(value)
    from_text = outcome(read_piper_bytes, text.encode())
    if from_text is not None:
        assert from_text == read_piper(value)
    elif outcome(read_piper, value) is not None:
        assert "NaN" in text or "Infinity" in text  # in a field that the format does not know


@cases(120)
@given(st.dictionaries(st.sampled_from([*diamond(), "maxBatchSize"]), arbitrary))
def test_arbitrary_values_under_known_names_are_refused_or_read(value):
    assert (outcome(read_piper, value) is not None) == is_legal(value)


@cases(120)
@given(st.data())
def test_damaged_text_is_refused_or_read(data):
    text = json.dumps(diamond())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.sampled_from([0, 0, 1, 1, 2, 40]))
        junk = data.draw(
            st.sampled_from(["", "}", '"', "-", "9e999", "null", ":", ",", "[" * 3000])
        )
        text = text[:at] + junk + text[at + cut :]
    outcome(read_piper_bytes, text.encode())


@given(st.binary())
def test_arbitrary_bytes_are_refused(data):
    assert outcome(read_piper_bytes, data) is None
