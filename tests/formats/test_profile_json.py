"""Our own profile: exact round trips, every fault at once, and a schema that tells the truth."""

from __future__ import annotations

import copy
import json
import math

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from piper_examples import diamond, reference_profile
from profile_strategies import profile_files
from random_cases import cases, places
from reference import needs_reference
from trainwright.errors import InvalidInput
from trainwright.formats.json_text import scan_json
from trainwright.formats.piper_json import read_piper, read_piper_bytes
from trainwright.formats.profile_json import profile_schema, read_profile, write_profile
from trainwright.profile import ProfileFile

VALIDATOR = jsonschema.Draft202012Validator(profile_schema())


def small():
    """The smallest profile that has an edge, written by hand."""
    return {
        "kind": "profile",
        "format_version": 1,
        "points": [
            {
                "provenance": {"origin": "measured", "source": "a bench"},
                "layers": [{"id": 10, "layer_class": 0}, {"id": 20, "layer_class": 1}],
                "edges": [{"source": 10, "target": 20, "bytes": 4096}],
                "classes": [
                    {"options": [{"id": "plain", "duration_s": 1}]},
                    {
                        "options": [
                            {"id": "plain", "duration_s": 2, "boundary_bytes": [5]},
                            {"id": "plain", "tensor_parallel": 2, "duration_s": 1.5},
                        ]
                    },
                ],
            }
        ],
    }


def read_text(text: str) -> ProfileFile:
    scanned = scan_json(text.encode())
    return read_profile(scanned.value, text_faults=scanned.faults)


def faults_of(value) -> list[str]:
    with pytest.raises(InvalidInput) as caught:
        read_profile(value, source="p.json")
    assert caught.value.source == "p.json"
    return list(map(str, caught.value.faults))


def changed(change) -> list[str]:
    value = small()
    change(value["points"][0])
    return [fault.removeprefix("points[0].") for fault in faults_of(value)]


@given(profile_files)
def test_what_is_written_is_read_back_exactly(file):
    text = json.dumps(write_profile(file), allow_nan=False)
    assert read_text(text) == file


@given(profile_files)
def test_what_is_written_satisfies_the_schema(file):
    VALIDATOR.validate(json.loads(json.dumps(write_profile(file))))


def test_the_schema_is_a_sound_schema():
    jsonschema.Draft202012Validator.check_schema(profile_schema())


def test_defaults_may_be_left_out_and_are_left_out():
    value = small()
    file = read_profile(value)
    assert write_profile(file) == value
    costs = file.profiles[0].costs
    assert costs.tensor_parallel.tolist() == [1, 1, 2]
    assert costs.static_bytes.sum() == 0
    assert costs.phases is None
    assert costs.boundary_of(1).tolist() == [5.0]
    assert file.setting is None


def test_an_imported_profile_survives():
    file = read_piper(diamond())
    assert read_profile(write_profile(file)) == file


@needs_reference
@pytest.mark.parametrize("name", ["bert32a100", "bert48", "bert64", "bert96", "gnmt", "resnet"])
def test_published_profiles_survive(name):
    file = read_piper_bytes(reference_profile(name).read_bytes(), source=name)
    value = write_profile(file)
    VALIDATOR.validate(value)
    assert read_text(json.dumps(value)) == file


def test_a_profile_that_is_read_holds_read_only_arrays():
    costs = read_profile(small()).profiles[0].costs
    with pytest.raises(ValueError, match="read-only"):
        costs.duration_s[0] = 1
    assert costs.duration_s.dtype == np.float64


ONE_FAULT = {
    "missing": (
        lambda p: p["classes"][0]["options"][0].pop("duration_s"),
        "classes[0].options[0].duration_s: required field is missing",
    ),
    "misspelt": (
        lambda p: p["classes"][0]["options"][0].update(transient_byte=1),
        "classes[0].options[0].transient_byte: must be a field of this format, "
        "did you mean transient_bytes?",
    ),
    "unknown": (lambda p: p.update(zzz=1), "zzz: must be a field of this format"),
    "negative": (
        lambda p: p["classes"][0]["options"][0].update(static_bytes={"expert": {"weight": -1}}),
        "classes[0].options[0].static_bytes.expert.weight: must be >= 0, got -1",
    ),
    "non-finite": (
        lambda p: p["edges"][0].update(bytes=math.inf),
        "edges[0].bytes: must be finite, got Infinity",
    ),
    "wrong word": (
        lambda p: p["classes"][0]["options"][0].update(recompute="some"),
        'classes[0].options[0].recompute: must be one of "none", "offload", "selective", "full", '
        'got "some"',
    ),
    "empty id": (
        lambda p: p["classes"][0]["options"][0].update(id=""),
        'classes[0].options[0].id: must be non-empty, got ""',
    ),
    "no options": (
        lambda p: p["classes"][0].update(options=[]),
        "classes[0].options: must have at least 1 entry, got 0",
    ),
    "degree 0": (
        lambda p: p["classes"][0]["options"][0].update(tensor_parallel=0),
        "classes[0].options[0].tensor_parallel: must be >= 1, got 0",
    ),
    "huge degree": (
        lambda p: p["classes"][0]["options"][0].update(tensor_parallel=10**19),
        "classes[0].options[0].tensor_parallel: must be <= 1000000000000, got 10000000000000000000",
    ),
    "duplicate layer": (
        lambda p: p["layers"].append({"id": 20.0, "layer_class": 0}),
        "layers[2].id: must be unique, got 20 (also layers[1])",
    ),
    "unknown class": (
        lambda p: p["layers"][1].update(layer_class=2),
        "layers[1].layer_class: must be the index of a class, got 2 of 2",
    ),
    "unknown end": (
        lambda p: p["edges"].append({"source": 10, "target": 30, "bytes": 1}),
        "edges[1].target: must be the id of a layer, got 30",
    ),
    "parallel edges": (
        lambda p: p["edges"].append({"source": 10, "target": 20, "bytes": 1}),
        "edges[1]: must join each pair once, got 10 -> 20 (also edges[0])",
    ),
    "unknown sharer": (
        lambda p: p.update(shared_parameters=[{"layers": [20, 7], "bytes": 1}]),
        "shared_parameters[0].layers[1]: must be the id of a layer, got 7",
    ),
    "duplicate option": (
        lambda p: p["classes"][1]["options"][1].update(tensor_parallel=1),
        'classes[1].options[1].id: must be unique within the degree, got "plain" (also options[0])',
    ),
    "boundary of a wrong length": (
        lambda p: p["classes"][1]["options"][1].update(boundary_bytes=[1, 2, 3]),
        "classes[1].options[1].boundary_bytes: must have 0 or 1 entries "
        "(layer 20 has 1 incoming and 0 outgoing edges), got 3",
    ),
    "energy for some": (
        lambda p: (
            p["classes"][0]["options"][0].update(energy_j=1)
            or p["classes"][1]["options"][0].update(energy_j=2)
        ),
        "classes[1].options[1].energy_j: must be given here too: all options have it, or none",
    ),
}


@pytest.mark.parametrize("case", ONE_FAULT)
def test_one_mistake_is_one_fault_with_path_rule_and_value(case):
    change, message = ONE_FAULT[case]
    assert changed(change) == [message]


def test_thousands_of_unknown_fields_take_no_long_search_for_what_was_meant():
    value = small()
    value["points"][0] |= {f"layer{i}": 0 for i in range(50_000)} | {"x" * 10**7: 0}
    assert len(faults_of(value)) == 50_001


def test_a_cycle_is_named_by_the_ids_on_it():
    def close(point):
        point["layers"].append({"id": -3, "layer_class": 0})
        point["edges"] = [
            {"source": u, "target": v, "bytes": 1} for u, v in ((20, -3), (10, 20), (-3, 10))
        ]
        del point["classes"][1]["options"][0]["boundary_bytes"]

    assert changed(close) == ["edges: must be acyclic, got the cycle 10 -> 20 -> -3 -> 10"]


def test_faults_of_every_sort_are_reported_together_in_document_order():
    value = small()
    point = value["points"][0]
    point["layers"][0]["name"] = 7
    point["edges"].append({"source": 20, "target": 20, "bytes": -1})
    point["classes"][0]["options"][0]["duration_s"] = "1 s"
    value["points"].append({"layers": []})
    value["setting"] = {"num_devices": 0}
    assert faults_of(value) == [
        "points[0].layers[0].name: must be a string, got 7 (number)",
        "points[0].edges: must be acyclic, got the cycle 20 -> 20",
        "points[0].edges[1].bytes: must be >= 0, got -1",
        'points[0].classes[0].options[0].duration_s: must be a number, got "1 s" (string)',
        "points[0].classes[1].options[0].boundary_bytes: must have 0 or 3 entries "
        "(layer 20 has 2 incoming and 1 outgoing edges), got 1",
        "points[1].provenance: required field is missing",
        "points[1].classes: required field is missing",
        "points[1].layers: must have at least 1 entry, got 0",
        "setting.memory_bytes: required field is missing",
        "setting.bandwidth_bytes_per_s: required field is missing",
        "setting.num_microbatches: required field is missing",
        "setting.num_devices: must be >= 1, got 0",
    ]


def test_faults_of_the_text_are_among_them():
    text = json.dumps(small()).replace("4096", "NaN").replace('"id": 10', '"id": 1, "id": 10')
    with pytest.raises(InvalidInput) as caught:
        read_text(text)
    assert list(map(str, caught.value.faults)) == [
        "points[0].layers[0].id: must appear once in its object, got 2 entries",
        "points[0].edges[0].bytes: must be finite, got NaN",
    ]


def test_a_version_from_the_future_is_refused_before_all_else():
    assert faults_of({"kind": "profile", "format_version": 2}) == [
        "format_version: must be <= 1, got 2; a newer trainwright wrote this file"
    ]


JUNK = st.sampled_from(
    [None, True, -1, 0, 1, 2, 0.5, 10.0, 10**400, math.nan, math.inf, "", "x", [], {}, [1], [[]]]
) | st.just({"id": 10, "layer_class": 0})


@cases(400)
@given(st.data())
def test_a_changed_profile_is_refused_or_read(data):
    value = small()
    for _ in range(data.draw(st.integers(1, 3))):
        *way, key = data.draw(st.sampled_from(list(places(value))))
        holder = value
        for step in way:
            holder = holder[step]
        if data.draw(st.booleans()):
            holder[key] = copy.deepcopy(data.draw(JUNK))
        elif isinstance(holder, list):
            holder.append(copy.deepcopy(holder[key]))
        elif len(value) > 1:
            del holder[key]
    try:
        file = read_profile(value)
    except InvalidInput as error:
        assert all(fault.path and fault.problem for fault in error.faults)
    else:
        assert isinstance(file, ProfileFile)
        VALIDATOR.validate(value)  # what the reader takes, the schema takes
        assert read_profile(write_profile(file)) == file
