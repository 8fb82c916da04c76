"""What is built in: complete, consistent, and cheap to load."""

import subprocess
import sys
import tomllib
from dataclasses import replace
from importlib import resources

import pytest

from trainwright.errors import InvalidInput
from trainwright.formats import catalog
from trainwright.formats.cluster_schema import AcceleratorTable, faults_of
from trainwright.formats.cluster_toml import read_cluster
from trainwright.model import Tuning, count_parameters
from trainwright.provenance import Origin


@pytest.mark.parametrize("name", catalog.model_names())
def test_a_model_has_the_parameters_its_file_states(name: str) -> None:
    file = resources.files("trainwright.model") / "catalog" / f"{name}.toml"
    stated = tomllib.loads(file.read_text())["parameters"]
    assert count_parameters(catalog.model(name).config) == stated
    assert catalog.model(name).ignored == ()


def test_the_models_people_ask_for_are_there() -> None:
    assert {
        "bert-large",
        "bloom-176b",
        "deepseek-v2",
        "deepseek-v3",
        "gpt-oss-120b",
        "gpt-oss-20b",
        "gpt2",
        "gpt2-xl",
        "gpt3-175b",
        "grok-1",
        "llama2-70b",
        "llama2-7b",
        "llama3-405b",
        "llama3-70b",
        "llama3-8b",
        "megatron-gpt2-8.3b",
        "mistral-7b",
        "mixtral-8x22b",
        "mpt-30b",
        "nemotron-4-340b",
        "opt-350m",
        "opt-6.7b",
        "qwen2.5-7b",
        "qwen3-vl-8b",
        "llama4-scout",
        "gemma3-27b",
        "nemotron-h-56b",
        "deepseek-v3.2",
        "kimi-k2.5",
    } <= set(catalog.model_names())
    assert len(catalog.model_names()) >= 120
    assert all(entry.source for entry in catalog.model_entries())


def test_the_clusters_people_ask_for_are_there() -> None:
    assert {"dgx2-v100", "dgx-a100", "dgx-h100", "dgx-h200", "dgx-b200", "mi300x"} <= set(
        catalog.cluster_names()
    )
    assert all(entry.source for entry in catalog.cluster_entries())


def test_a_known_layout_has_whole_replicas_of_the_model_it_names_on_devices_of_the_catalog() -> (
    None
):
    for known in catalog.known_layouts():
        assert known.parallelism.num_devices == known.num_devices, known
        assert catalog.accelerator(known.device).memory_bytes > 0
        assert known.source and known.by
        if known.model in catalog.model_names():
            config = catalog.model(known.model).config
            assert known.parameters == pytest.approx(count_parameters(config), rel=0.03), known
            assert known.has_experts == (config.experts is not None)


# Labelled as assumed.
WITHOUT_A_SHEET = {"H800-80GB-SXM", "A800-80GB-SXM", "H20-96GB", "L20", "H100-96GB-HBM2e-500W"}


def test_every_accelerator_that_was_promised_is_there() -> None:
    promised = ("V100", "A100-40GB", "A100-80GB", "H100", "H800", "H200", "B200", "GB200")
    promised += ("MI250X", "MI300X", "TPU-v4", "TPU-v5p")
    for name in promised:
        assert [n for n in catalog.accelerator_names() if n.startswith(name)], name


def test_the_dies_of_a_module_are_nearer_than_the_modules_of_a_node() -> None:
    cluster = catalog.cluster("mi250x").with_nodes(2)
    assert [level.size for level in cluster.levels] == [2, 4, 2]
    assert cluster.pool_of().devices_per_node == 8
    bandwidths = [level.effective_bytes_per_s for level in cluster.levels]
    assert bandwidths == sorted(bandwidths, reverse=True)


@pytest.mark.parametrize("name", catalog.accelerator_names())
def test_an_accelerator_says_where_its_peaks_come_from(name: str) -> None:
    device = catalog.accelerator(name)
    for field in ("peak_flops_per_s", "memory_bandwidth_bytes_per_s"):
        known = device.provenance_of(field).origin is Origin.DATASHEET
        assert known or name in WITHOUT_A_SHEET
    assert device.provenance_of("efficiency").origin is Origin.ASSUMED
    assert 0 < device.usable_bytes <= device.memory_bytes


@pytest.mark.parametrize("name", catalog.cluster_names())
def test_a_cluster_is_one_node_or_one_domain(name: str) -> None:
    cluster = catalog.cluster(name)
    assert cluster.levels[-1].size == 1
    assert (
        cluster.with_nodes(cluster.pool_of().num_nodes * 2).num_devices == 2 * cluster.num_devices
    )
    for level in cluster.levels:
        assert "bandwidth_bytes_per_s" in dict(level.sources)


@pytest.mark.parametrize(
    ("open_it", "wrong", "near"),
    [
        (catalog.open_model, "llama3-8B", "llama3-8b"),
        (catalog.open_cluster, "dgx-h10", "dgx-h100"),
        (catalog.accelerator, "H100-80GB", "H100-80GB-SXM"),
    ],
)
def test_a_wrong_name_is_refused_with_the_nearest(open_it, wrong: str, near: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidInput, match=f'did you mean "{near}"'):
        open_it(wrong)


@pytest.mark.parametrize("find", [catalog.model, catalog.accelerator, catalog.open_cluster])
def test_an_empty_name_is_near_none(find) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidInput, match=r'must be a file or .*, got ""$'):
        find("")


@pytest.mark.parametrize("name", ["accelerators", *catalog.cluster_names()])
def test_a_built_in_file_follows_the_schema_it_is_not_held_to(name: str) -> None:
    file = resources.files("trainwright.cluster") / "catalog" / f"{name}.toml"
    document = tomllib.loads(file.read_text())
    if name == "accelerators":
        for table in document["accelerator"].values():
            assert tuple(faults_of(AcceleratorTable, table)) == ()
    else:
        read = read_cluster(document, name=name, accelerators=catalog.accelerators())
        assert read == catalog.cluster(name)


def test_reading_what_is_built_in_does_not_load_pydantic() -> None:
    code = (
        "import sys\n"
        "from trainwright.formats import catalog\n"
        "catalog.model('llama3-8b'), catalog.cluster('dgx-h100')\n"
        "sys.exit('pydantic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_constants_are_those_of_the_built_in_model_alone() -> None:
    config = catalog.model("llama3-8b").config
    assert catalog.constants_of("llama3-8b", config) == {"rope_theta": 5e5, "rms_norm_eps": 1e-5}
    adapted = replace(config, tuning=Tuning(num_frozen_blocks=2))
    assert catalog.constants_of("llama3-8b", adapted) == catalog.constants_of("llama3-8b", config)
    assert catalog.constants_of("llama3-8b", replace(config, num_layers=16)) == {}
    assert catalog.constants_of("llama3-8b", catalog.model("llama2-7b").config) == {}
    assert catalog.constants_of("mine", config) == {}
