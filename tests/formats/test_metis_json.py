"""Metis' profiles: one file for each degree and batch size, a folder for all of them."""

from __future__ import annotations

import json

import pytest

from trainwright.commands.plan import plan
from trainwright.documents.open import open_document
from trainwright.errors import InvalidInput
from trainwright.formats.metis_json import read_metis
from trainwright.units import MIB


def table(tensor=1, size=1, layers=4, **parameters):
    return {
        "model": {
            "model_name": "toy",
            "num_layers": layers,
            "parameters": {"parameters_per_layer_bytes": [1e8] * layers, **parameters},
        },
        "execution_time": {
            "optimizer_time_ms": 20.0,
            "layer_compute_total_ms": [1.0, *[10.0 * size / tensor] * (layers - 2), 2.0],
        },
        "execution_memory": {"layer_memory_total_mb": [900.0 + 300 * size] * layers},
    }


@pytest.fixture
def write(tmp_path):
    def write(*points, device="A100", **parameters):
        for tensor, size in points:
            file = tmp_path / f"DeviceType.{device}_tp{tensor}_bs{size}.json"
            file.write_text(json.dumps(table(tensor, size, **parameters)), encoding="utf-8")
        return tmp_path

    return write


def test_the_name_states_the_configuration(write):
    file, _ = read_metis(write((2, 4)) / "DeviceType.A100_tp2_bs4.json")
    (profile,) = file.profiles
    assert profile.point.tensor_parallel == (2,)
    assert profile.point.microbatch_size == 4
    assert profile.point.device_kind == "A100"
    assert profile.costs.duration_s[1] == pytest.approx(20e-3)
    assert profile.costs.gradient_sync_bytes[0].sum() == 0.5e8


def test_several_sizes_split_memory_into_state_and_activations(write):
    file, _ = read_metis(write((1, 1), (1, 2), (1, 4)))
    for profile, size in zip(file.profiles, (1, 2, 4), strict=True):
        assert profile.costs.saved_bytes == pytest.approx(300 * size * MIB)
        assert profile.costs.total_static_bytes == pytest.approx(900 * MIB)


def test_a_single_size_takes_no_more_state_than_adam_has(write):
    file, notes = read_metis(write((1, 2), (2, 2)))
    for profile, tensor in zip(file.profiles, (1, 2), strict=True):
        assert profile.costs.total_static_bytes == pytest.approx(4e8 / tensor)
        whole = profile.costs.total_static_bytes + profile.costs.saved_bytes
        assert whole == pytest.approx(1500 * MIB)
    assert any("at tensor degree 1, 2 there is one batch size" in note for note in notes)


def test_what_layers_hand_on_is_what_stages_send(write):
    file, notes = read_metis(write((1, 1), activation_parameters_bytes=[5e6, 6e6, 7e6, 8e6]))
    assert [edge.bytes for edge in file.profiles[0].structure.edges] == [5e6, 6e6, 7e6]
    assert not any("activation_parameters_bytes" in note for note in notes)


def test_devices_of_two_kinds_are_no_profile(write):
    write((1, 1))
    with pytest.raises(InvalidInput, match="must be of one kind of device, got A100, H100"):
        read_metis(write((1, 1), device="H100"))


def test_files_of_two_models_are_no_profile(write):
    write((1, 1))
    with pytest.raises(InvalidInput, match="the files of a folder are of one model"):
        read_metis(write((1, 2), layers=5))


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (lambda t: t["execution_time"].pop("layer_compute_total_ms"), "required field is missing"),
        (lambda t: t["execution_memory"]["layer_memory_total_mb"].pop(), "4 entries, .*got 3"),
        (lambda t: t["execution_time"]["layer_compute_total_ms"].append(-1), "must be >= 0"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, broken, told):
    value = table()
    broken(value)
    file = tmp_path / "DeviceType.A100_tp1_bs1.json"
    file.write_text(json.dumps(value), encoding="utf-8")
    with pytest.raises(InvalidInput, match=told):
        read_metis(file)


def test_another_name_is_refused(tmp_path):
    (tmp_path / "mine.json").write_text(json.dumps(table()), encoding="utf-8")
    with pytest.raises(InvalidInput, match=r"must be DeviceType\.DEVICE_tpDEGREE_bsSIZE\.json"):
        plan(tmp_path / "mine.json", cluster="dgx-a100", global_batch=8)


def test_a_plan_comes_out_and_is_read_again(write, tmp_path):
    folder = write((1, 1), (2, 1), (1, 2))
    found = plan(folder, cluster="dgx-a100", devices=8, global_batch=16)
    assert found.status == "optimal"
    found.save(tmp_path / "plan.json")
    assert open_document(tmp_path / "plan.json") == found.document
