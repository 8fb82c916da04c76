"""Galvatron's two tables: what they say becomes a profile, what they leave open is told."""

from __future__ import annotations

import json

import pytest

from trainwright.commands.plan import plan
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.formats.galvatron_json import read_galvatron
from trainwright.profile import Recompute, StaticKind
from trainwright.units import MIB

OTHER = {"model_states": {"1": 800.0, "2": 400.0}, "activation": {"1": 30.0, "2": 15.0}}


def times(sizes=(1, 2), length=2048):
    made = {f"layernum[2]_bsz{size}_seq{length}": 99.0 for size in sizes}
    for size in sizes:
        made[f"layertype_0_bsz{size}_seq{length}"] = 2.0 + 1 / size
        made[f"layertype_other_bsz{size}_seq{length}"] = 1.0
    return made


def sizes(length=2048, **changed):
    layer = {
        "parameter_size": 400.0,
        "tp_activation_per_bsz_dict": {"1": 300.0, "2": 160.0, "checkpoint": 8.0},
    }
    table = {"model_config": {"n_layers": 3}, "layertype_0": {str(length): layer}}
    for part in ("off", "on_first", "on_last"):
        table[f"other_memory_pp_{part}"] = {str(length): OTHER}
    return table | changed


@pytest.fixture
def write(tmp_path):
    def write(first=None, second=None, precision="bf16"):
        for name, table in (("computation", first or times()), ("memory", second or sizes())):
            file = tmp_path / f"{name}_profiling_{precision}_toy.json"
            file.write_text(json.dumps(table), encoding="utf-8")
        return tmp_path

    return write


def test_times_and_sizes_are_those_of_the_microbatch(write):
    file, _ = read_galvatron(write())
    assert [(p.point.microbatch_size, p.point.sequence_length) for p in file.profiles] == [
        *((1, 2048), (2, 2048))
    ]
    costs, structure = file.profiles[1].costs, file.profiles[1].structure
    assert [layer.name for layer in structure.layers] == ["embedding", *["block"] * 3, "lm_head"]
    assert {edge.bytes for edge in structure.edges} == {2 * 8 * MIB}
    plain, checkpoint = costs.rows_of(structure.layers[1].layer_class)
    forward_s = 2 * 2.5e-3  # of two sequences
    assert costs.duration_s[plain] == pytest.approx(3 * forward_s)
    assert costs.duration_s[checkpoint] == pytest.approx(4 * forward_s)
    assert costs.recompute[checkpoint] is Recompute.FULL
    assert costs.saved_bytes[plain] == 600 * MIB
    assert costs.saved_bytes[checkpoint] == 16 * MIB
    assert costs.transient_bytes[checkpoint] == 584 * MIB
    (embedding,) = costs.rows_of(structure.layers[0].layer_class)
    assert costs.duration_s[embedding] == pytest.approx(3 * 2 * 0.5e-3)


@pytest.mark.parametrize(("precision", "weight"), [("bf16", 200), ("fp16", 200), ("fp32", 400)])
def test_state_is_four_times_the_parameters_in_every_precision(write, precision, weight):
    file, _ = read_galvatron(write(precision=precision))
    costs, structure = file.profiles[0].costs, file.profiles[0].structure
    for layer, parameters in ((0, 200), (1, 400)):
        row = costs.rows_of(structure.layers[layer].layer_class)[0]
        assert costs.total_static_bytes[row] == 4 * parameters * MIB
    assert costs.static_bytes[row, 0, StaticKind.WEIGHT] == weight * MIB
    assert costs.gradient_sync_bytes[row].sum() == weight * MIB


def test_either_file_and_their_folder_are_the_same_profile(write):
    folder = write()
    first = read_galvatron(folder)
    assert read_galvatron(folder / "computation_profiling_bf16_toy.json") == first
    assert read_galvatron(folder / "memory_profiling_bf16_toy.json") == first


def test_each_type_of_layers_has_its_own_number(write):
    table = times() | {f"layertype_1_bsz{b}_seq2048": 7.0 for b in (1, 2)}
    memory = sizes(model_config={"n_layers": [2, 4]})
    memory["layertype_1"] = memory["layertype_0"]
    file, _ = read_galvatron(write(table, memory))
    costs, structure = file.profiles[0].costs, file.profiles[0].structure
    plain_s = [costs.duration_s[costs.rows_of(e.layer_class)[0]] for e in structure.layers]
    assert plain_s[1:-1] == pytest.approx([9e-3] * 2 + [21e-3] * 4)


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        (None, sizes(model_config={}), "model_config.n_layers: must be the number of layers"),
        (None, sizes(model_config={"n_layers": [3, 3]}), "of each of 1 types"),
        (None, sizes(length=4096), 'must have an entry "2048"'),
        (None, {k: v for k, v in sizes().items() if "on_last" not in k}, "other_memory_pp_on_last"),
        (None, sizes(layertype_0={"2048": {"parameter_size": 0}}), "parameter_size: must be > 0"),
        ({"layertype_0_bsz1_seq2048": 1.0}, None, "layertype_other_bsz1_seq2048: required"),
        ({"layertype_0_bsz1_seq2048": -1.0}, None, "must be milliseconds >= 0"),
        (None, {"1_1_8": {}}, "layertype_0: required field is missing"),
        ({"layertype_0": 4.0}, None, "must have keys such as layertype_0_bsz1_seq4096"),
    ],
)
def test_what_is_wrong_is_named(write, first, second, told):
    with pytest.raises(InvalidInput) as caught:
        read_galvatron(write(first, second))
    assert told in str(caught.value)


def test_layers_measured_in_parts_are_refused(write):
    with pytest.raises(UnsupportedFeature, match="profile whole layers"):
        read_galvatron(write({"layertype_0_bsz1_seq4096_mlp": 3.0}))


@pytest.mark.parametrize("part", ["attention", "mlp"])
def test_a_file_named_for_a_part_is_refused_though_its_keys_are_those_of_whole_layers(write, part):
    folder = write()
    for file in sorted(folder.iterdir()):
        file.rename(file.with_stem(f"{file.stem}_{part}"))
    with pytest.raises(UnsupportedFeature, match="profile whole layers"):
        read_galvatron(folder)


def test_types_of_layers_with_lengths_of_their_own_are_refused(write):
    table = times() | {"layertype_other_bsz1_seq[512,512]": 4.0}
    with pytest.raises(UnsupportedFeature, match="lengths of their own"):
        read_galvatron(write(table))


def test_what_is_no_layer_may_be_numbered(write):
    plain = read_galvatron(write())
    named = {key.replace("_other_", "_other_0_"): ms for key, ms in times().items()}
    assert read_galvatron(write(named)) == plain


def test_a_length_without_memory_is_left_out_and_told(write):
    plain, _ = read_galvatron(write())
    file, told = read_galvatron(write(times() | times(length=4096) | times(length=8192)))
    assert file == plain
    assert "sequence length 4096, 8192 has no entry in the table of memory" in told[0]


def test_a_table_alone_misses_the_other(write):
    folder = write()
    (folder / "memory_profiling_bf16_toy.json").unlink()
    with pytest.raises(InvalidInput, match="must lie beside computation_profiling_bf16_toy"):
        read_galvatron(folder / "computation_profiling_bf16_toy.json")


def test_a_plan_comes_out(write):
    found = plan(write(), cluster="dgx-a100", devices=8, global_batch=16)
    assert found.status == "optimal"
    assert found.document.stages[0].tensor_parallel == 1
    assert any("tensor degree 2 are not measured" in text for text in found.document.warnings)
