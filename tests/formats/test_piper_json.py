"""What a sound Piper profile becomes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from piper_examples import diamond, reference_profile
from reference import needs_reference
from trainwright.errors import InvalidInput
from trainwright.formats.piper_json import read_piper, read_piper_bytes
from trainwright.profile import Edge, Origin, Recompute, Setting


def read_one(value):
    file = read_piper(value)
    (profile,) = file.profiles
    return profile


def rows_of_layer(profile, index):
    return profile.costs.rows_of(profile.structure.layers[index].layer_class)


def test_the_header_becomes_the_setting():
    assert read_piper(diamond()).setting == Setting(
        num_devices=4, memory_bytes=1000.0, bandwidth_bytes_per_s=50.0, num_microbatches=8
    )


@pytest.mark.parametrize("name", ["mbsInBatch", "maxBatchSize"])
def test_either_name_of_the_batch_size_will_do(name):
    value = diamond()
    value[name] = value.pop("mbsInBatch")
    assert read_piper(value).setting.num_microbatches == 8


def test_both_names_of_the_batch_size_may_agree():
    setting = read_piper(diamond() | {"maxBatchSize": 8.0}).setting
    assert setting.num_microbatches == 8
    assert type(setting.num_microbatches) is int


def test_given_values_stand_in_for_missing_header_fields():
    value = diamond()
    for name in ("maxDevices", "mbsInBatch", "bandwidth", "maxMemoryPerDevice"):
        del value[name]
    given = {
        "num_devices": 2,
        "num_microbatches": 6,
        "bandwidth_bytes_per_s": 1.5,
        "memory_bytes": 3.0,
    }
    assert read_piper(value, given=given).setting == Setting(**given)


def test_given_values_excuse_no_bad_header_field():
    with pytest.raises(InvalidInput, match="maxDevices: must be >= 1, got 0"):
        read_piper(diamond() | {"maxDevices": 0}, given={"num_devices": 2})


def test_layers_keep_their_ids_names_and_order():
    value = diamond()
    del value["nodes"][2]["name"]
    layers = read_one(value).structure.layers
    assert [layer.id for layer in layers] == [0, 1, 2, 3]
    assert [layer.name for layer in layers] == ["layer 0", "layer 1", "", "layer 3"]


def test_ids_may_be_sparse_negative_and_written_as_floats():
    text = json.dumps(diamond())
    for old, new in (("0", "-7"), ("3", "900000000000")):
        text = text.replace(f'"{old}": ', f'"{new}": ')
        for name in ("id", "sourceId", "destId"):
            text = text.replace(f'"{name}": {old},', f'"{name}": {new}.0,')
    profile = read_piper_bytes(text.encode()).profiles[0]
    assert profile.structure.ids == (-7, 1, 2, 900000000000)
    assert all(type(layer.id) is int for layer in profile.structure.layers)
    assert profile.structure.edges == read_one(diamond()).structure.edges


def test_figures_of_a_config_go_to_their_columns():
    costs = read_one(diamond()).costs
    row = 1
    assert costs.option_ids[row] == "activation recomp"
    assert costs.recompute[row] is Recompute.FULL
    assert costs.recompute[0] is Recompute.NONE
    assert costs.tensor_parallel[row] == 1
    assert costs.duration_s[row] == 1.0
    assert costs.gradient_sync_bytes[row].tolist() == [200.0, 0.0]
    assert costs.saved_until_input_grad_bytes[row] == 20.0
    assert costs.opaque_static_bytes[row] == 40.0
    assert costs.total_static_bytes[row] == 40.0
    assert costs.saved_bytes[row] == 20.0
    assert costs.provenance.origin is Origin.IMPORTED


def test_rows_of_a_layer_are_sorted_by_degree_and_keep_the_order_of_configs():
    value = diamond()
    table = value["nodes"][0]["TMPCs"]
    value["nodes"][0]["TMPCs"] = {"2": table["2"], "1": table["1"][::-1]}
    costs = read_one(value).costs
    assert costs.tensor_parallel[:3].tolist() == [1, 1, 2]
    assert costs.option_ids[:3] == ("activation recomp", "vanilla", "vanilla")


def test_boundary_bytes_are_incoming_then_outgoing_in_the_order_of_edges():
    value = diamond()
    value["edges"] = value["edges"][::-1]
    profile = read_one(value)
    # Layer 3 now sees edge 2 -> 3 before 1 -> 3; sync values are scale + id of the neighbour.
    first = rows_of_layer(profile, 3)[0]
    assert profile.costs.boundary_of(first).tolist() == [1.0 + 2, 1.0 + 1]
    second = rows_of_layer(profile, 1)[1]
    assert profile.costs.boundary_of(second).tolist() == [2.0 + 0, 4.0 + 3]


def test_boundary_bytes_that_are_all_zero_are_left_out():
    value = diamond()
    for each in value["nodes"]:
        for configs in each["TMPCs"].values():
            for config in configs:
                config["syncTimeFw"] = dict.fromkeys(config["syncTimeFw"], 0)
                config["syncTimeBw"] = dict.fromkeys(config["syncTimeBw"], 0.0)
    costs = read_one(value).costs
    assert len(costs.boundary_bytes) == 0
    assert costs.num_classes == 1  # and so all layers of the diamond cost the same


def test_layers_that_cost_the_same_share_a_class():
    profile = read_one(diamond())
    classes = [layer.layer_class for layer in profile.structure.layers]
    assert classes == [0, 1, 1, 2]
    assert profile.costs.num_classes == 3


def test_parallel_edges_merge_into_the_sum_and_sync_counts_once():
    value = diamond()
    value["edges"].append({"sourceId": 0, "destId": 1, "communicationCost": 5})
    profile = read_one(value)
    assert len(profile.structure.edges) == 4
    assert profile.structure.edges[0] == Edge(source=0, target=1, bytes=12.0)
    assert np.array_equal(profile.costs.boundary_bytes, read_one(diamond()).costs.boundary_bytes)


def test_no_edges_and_several_components_are_legal():
    value = diamond()
    value["edges"] = []
    for each in value["nodes"]:
        for configs in each["TMPCs"].values():
            for config in configs:
                config["syncTimeFw"] = config["syncTimeBw"] = {}
    assert read_one(value).structure.edges == ()


def test_a_layer_may_lack_degree_1_and_offer_nothing_at_a_degree():
    value = diamond()
    value["nodes"][1]["TMPCs"] = {"1": [], "16": value["nodes"][1]["TMPCs"]["1"]}
    profile = read_one(value)
    degrees = [profile.costs.tensor_parallel[row] for row in rows_of_layer(profile, 1)]
    assert degrees == [16, 16]
    assert profile.point.tensor_parallel == (1, 2, 16)


def test_any_number_of_configs_under_any_names():
    value = diamond()
    first = value["nodes"][0]["TMPCs"]["1"][0]
    names = ["vanilla", "x", "ü", " ", *map(str, range(50))]
    value["nodes"][0]["TMPCs"]["1"] = [first | {"id": name} for name in names]
    assert list(read_one(value).costs.option_ids[:54]) == names


def test_unknown_fields_are_ignored_everywhere():
    value = diamond() | {"kindOfMagic": [None]}
    value["nodes"][0]["colour"] = {}
    value["nodes"][0]["TMPCs"]["1"][0]["note"] = "x"
    value["edges"][0]["weight"] = -1
    assert read_one(value) == read_one(diamond())


def test_zero_costs_are_legal():
    value = diamond()
    for each in value["nodes"]:
        for configs in each["TMPCs"].values():
            for config in configs:
                config.update(timePerSample=0, parameterSize=0, memoryUsageA=0, memoryUsageB=0)
    assert read_one(value).costs.duration_s.sum() == 0


def test_a_million_devices_are_legal():
    assert read_piper(diamond() | {"maxDevices": 10**6}).setting.num_devices == 10**6


def test_the_source_is_named_without_its_folders():
    (profile,) = read_piper(diamond(), source="/somewhere/my profile.json").profiles
    assert profile.costs.provenance.source == "my profile.json"


@needs_reference
@pytest.mark.parametrize(
    ("name", "num_layers", "num_edges", "degrees"),
    [
        ("bert32a100", 37, 67, (1, 2, 4, 8)),
        ("bert48", 53, 83, (1, 2, 4, 8)),
        ("bert64", 69, 99, (1, 2, 4, 8)),
        ("bert96", 101, 131, (1, 2, 4, 8)),
        ("gnmt", 78, 104, (1,)),
        ("resnet", 177, 193, (1,)),
    ],
)
def test_published_profiles_are_read_figure_by_figure(name, num_layers, num_edges, degrees):
    data = reference_profile(name).read_bytes()
    (profile,) = read_piper_bytes(data, source=name).profiles
    value = json.loads(data)
    assert len(profile.structure.layers) == num_layers
    assert len(profile.structure.edges) == num_edges
    assert profile.point.tensor_parallel == degrees
    for index, each in enumerate(value["nodes"]):
        configs = [(int(t), config) for t, configs in each["TMPCs"].items() for config in configs]
        for row, (degree, config) in zip(rows_of_layer(profile, index), configs, strict=True):
            assert profile.costs.tensor_parallel[row] == degree
            assert profile.costs.option_ids[row] == config["id"]
            assert profile.costs.duration_s[row] == config["timePerSample"]
            synced = [*config["syncTimeFw"].values(), *config["syncTimeBw"].values()]
            assert profile.costs.boundary_of(row).sum() == pytest.approx(sum(synced), rel=1e-15)
