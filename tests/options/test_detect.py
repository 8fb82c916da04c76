"""A MODEL file is known by its content."""

from __future__ import annotations

import json

import pytest

from piper_examples import diamond, reference_profile
from reference import needs_reference, reference
from trainwright.errors import InvalidInput
from trainwright.formats.piper_json import read_piper
from trainwright.formats.profile_json import write_profile
from trainwright.options.inputs import ModelFormat, detect, model_file

PLACEMENT = {"maxDevices": 4, "nodes": {"1": [], "2": []}, "edges": {"1": []}}


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (diamond(), "piper"),
        ({"nodes": 3}, "piper"),
        ({"mbsInBatch": 8}, "piper"),
        (diamond() | {"model_type": "bert", "kind": "toy"}, "piper"),
        (write_profile(read_piper(diamond())), "profile"),
        ({"kind": "profile"}, "profile"),
        ({"points": []}, "profile"),
        ({"model_type": "llama", "hidden_size": 1}, "hf_config"),
        ({"architectures": ["GPT2LMHeadModel"]}, "hf_config"),
        (PLACEMENT, "phaze"),
        ({"format": 1, "case": "x", "input": PLACEMENT}, "phaze"),
        ({"layernum[2]_bsz1_seq4096": 9.0, "layertype_0_bsz1_seq4096": 3.0}, "galvatron"),
        ({"layertype_0": {}, "model_config": {}}, "galvatron"),
        ({"model": {}, "execution_time": {}}, "metis"),
        ({"kind": "plan", "format_version": 1, "stages": []}, "document"),
    ],
)
def test_each_format_is_recognised(value, found):
    assert detect(value) is ModelFormat(found)


@pytest.mark.parametrize("value", [{}, {"a\n": 1}, {"kind": 3}, {"input": {}}, {"points": 1}])
def test_what_is_none_of_them_is_told_what_was_looked_for(value):
    with pytest.raises(InvalidInput) as caught:
        detect(value, source="x.json")
    (fault,) = caught.value.faults
    assert fault.path == "model"
    for name in (
        "Piper",
        "trainwright profile",
        "Hugging Face",
        "PHAZE",
        "Galvatron",
        "Metis",
        "document",
    ):
        assert name in fault.problem
    assert "\n" not in fault.problem


def test_many_keys_are_not_all_repeated():
    with pytest.raises(InvalidInput, match=r'got keys "k0", .*"k5", …$'):
        detect({f"k{i}": 0 for i in range(50)})


def test_a_folder_stands_for_its_config(tmp_path):
    with pytest.raises(InvalidInput, match=r"a folder with config\.json"):
        model_file(tmp_path)
    config = tmp_path / "config.json"
    config.write_text("{}")
    assert model_file(tmp_path) == config
    assert model_file(str(config)) == config
    assert model_file(tmp_path / "missing") == tmp_path / "missing"


@needs_reference
@pytest.mark.parametrize("name", ["bert32a100", "bert48", "gnmt", "resnet"])
def test_published_profiles_are_recognised(name):
    assert detect(json.loads(reference_profile(name).read_text())) == "piper"


@needs_reference
def test_placement_inputs_are_recognised():
    files = sorted((reference() / "codesign" / "placement").glob("*.json"))
    assert files
    for file in files:
        value = json.loads(file.read_text())
        assert detect(value) == "phaze"
        assert detect(value["input"]) == "phaze"
