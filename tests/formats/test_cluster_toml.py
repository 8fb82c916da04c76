"""Reading cluster files: what is accepted, and every fault with its path and the fix."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.cluster import REFERENCE_DESIGN, Cluster
from trainwright.errors import InvalidInput
from trainwright.formats import catalog
from trainwright.formats.cluster_toml import load_cluster, read_cluster
from trainwright.provenance import Origin
from trainwright.units import GIB

GOOD = """
device_kind = "H100-80GB-SXM"
num_devices = 16
[[level]]
name = "nvlink"
size = 8
bandwidth_bytes_per_s = 450e9
latency_s = 3e-6
sources = { bandwidth_bytes_per_s = "measured: our own nccl-tests" }
[[level]]
name = "rail"
size = 2
bandwidth_bytes_per_s = 50e9
latency_s = 8e-6
oversubscription = 2
"""
OWN_DEVICE = """
device_kind = "toy"
[accelerator.toy]
peak_flops_per_s = { bf16 = 1e14 }
memory = "80GiB"
memory_bandwidth_bytes_per_s = 1e12
[[level]]
name = "bus"
size = 2
bandwidth_bytes_per_s = 1e10
latency_s = 1e-6
"""
MIXED = """
[[pool]]
device_kind = "H100-80GB-SXM"
num_devices = 8
[[pool.level]]
name = "nvlink"
size = 8
bandwidth_bytes_per_s = 450e9
latency_s = 3e-6
[[pool]]
device_kind = "A100-80GB-SXM"
[[pool.level]]
name = "nvlink"
size = 8
bandwidth_bytes_per_s = 300e9
latency_s = 3e-6
[joint]
name = "ethernet"
bandwidth_bytes_per_s = 12.5e9
latency_s = 2e-5
"""


OWN_CHIP = """
device_kind = "mine"
[accelerator.mine]
memory_gib = 80
memory_bandwidth_bytes_per_s = 1.2e12
cores = { num_tc = 8, num_vc = 2, width = 128, depth = 128, glb_mib = 128, clock_hz = 1.05e9 }
[[level]]
name = "links"
size = 8
bandwidth_bytes_per_s = 300e9
latency_s = 1e-6
"""


def read(document: dict[str, Any]) -> Cluster:
    return read_cluster(document, name="mine", accelerators=catalog.accelerators())


def faults_of(text: str) -> list[str]:
    with pytest.raises(InvalidInput) as caught:
        read(tomllib.loads(text))
    return [str(fault) for fault in caught.value.faults]


def test_a_cluster_file_reads_with_its_sources(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(GOOD)
    cluster = load_cluster(file, accelerators=catalog.accelerators())
    assert cluster.name == "mine"
    assert cluster.num_devices == 16
    nvlink, rail = cluster.levels
    assert dict(nvlink.sources)["bandwidth_bytes_per_s"].origin is Origin.MEASURED
    assert rail.effective_bytes_per_s == pytest.approx(50e9 * rail.efficiency / 2)


def test_a_file_may_bring_its_own_device() -> None:
    cluster = read(tomllib.loads(OWN_DEVICE))
    assert cluster.accelerator.memory_bytes == 80 * GIB


def test_a_file_may_bring_the_cores_of_a_chip() -> None:
    device = read(tomllib.loads(OWN_CHIP)).accelerator
    assert device.cores is not None
    assert device.cores.chip == REFERENCE_DESIGN
    assert device.peak("bf16") == pytest.approx(275.25e12, rel=1e-4)  # TPUv4: 275
    assert (device.usable_fraction, device.launch_overhead_s) == (1.0, 1e-6)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("width = 128", "width = 1", "accelerator.mine.cores.width: must be >= 2, got 1"),
        (
            "glb_mib",
            "glb",
            'accelerator.mine.cores.glb: is not a known key; did you mean "glb_mib"?',
        ),
        ("clock_hz = 1.05e9", "clock_hz = 1.05", "is in Hz, got 1.05; did you mean 1.05e+09?"),
        (
            "memory_gib = 80",
            "memory_gib = 80\nefficiency = {}",
            "efficiency: must not be given with cores",
        ),
        (
            "memory_gib = 80",
            "memory_gib = 80\npeak_flops_per_s = {bf16 = 1e14}",
            "follows from them",
        ),
    ],
)
def test_a_wrong_chip_is_refused_with_the_fix(old: str, new: str, fault: str) -> None:
    assert any(fault in each for each in faults_of(OWN_CHIP.replace(old, new, 1)))


def test_pools_make_a_mixed_cluster() -> None:
    cluster = read(tomllib.loads(MIXED))
    assert len({pool.accelerator.name for pool in cluster.pools}) == 2
    assert cluster.num_devices == 16
    assert cluster.joint is not None
    assert cluster.joint.size == 2


POOL = """
[[pool]]
device_kind = "{kind}"
[[pool.level]]
name = "nvlink"
size = 4
bandwidth_bytes_per_s = 450e9
latency_s = 3e-6
"""
NODES = """
[[pool.level]]
name = "ethernet"
size = {nodes}
bandwidth_bytes_per_s = {rate}
latency_s = 20e-6
"""
JOINT = """
[joint]
name = "ethernet"
bandwidth_bytes_per_s = 12.5e9
latency_s = 20e-6
"""


@pytest.mark.parametrize(
    ("pools", "sizes"),
    [
        ([("H100-80GB-SXM", 0, "")], [[4]]),
        ([("H100-80GB-SXM", 0, "")] * 3, [[4, 3]]),
        ([("H100-80GB-SXM", 1, "1e9"), ("H100-80GB-SXM", 1, "2e9")], [[4, 2]]),
        ([("H100-80GB-SXM", 2, "12.5e9"), ("H100-80GB-SXM", 3, "12.5e9")], [[4, 5]]),
        ([("H100-80GB-SXM", 2, "50e9")] * 2, [[4, 2, 2]]),
        ([("H100-80GB-SXM", 2, "50e9"), ("H100-80GB-SXM", 3, "50e9")], [[4, 2], [4, 3]]),
        ([("H100-80GB-SXM", 0, ""), ("A100-80GB-SXM", 0, "")], [[4], [4]]),
        ([(kind, 0, "") for kind in ("H100-80GB-SXM", "A100-80GB-SXM") * 2], [[4, 2], [4, 2]]),
    ],
)
def test_pools_that_are_alike_are_one(
    pools: list[tuple[str, int, str]], sizes: list[list[int]]
) -> None:
    text = "".join(
        POOL.format(kind=kind) + NODES.format(nodes=nodes, rate=rate) * bool(nodes)
        for kind, nodes, rate in pools
    )
    found = read(tomllib.loads(text + JOINT * (len(pools) > 1)))
    assert [[level.size for level in pool.levels] for pool in found.pools] == sizes
    assert found.num_devices == sum(4 * (nodes or 1) for _, nodes, _ in pools)
    assert (found.joint is None) == (len(sizes) == 1)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (
            "num_devices = 16",
            "num_devices = 17",
            "num_devices: must be the product of the level sizes, 8 x 2 = 16, got 17; "
            "change a size or write num_devices = 16",
        ),
        ("450e9", "0", "level[0].bandwidth_bytes_per_s: must be > 0, got 0"),
        (
            "450e9",
            "450",
            "level[0].bandwidth_bytes_per_s: is in bytes per second, got 450; "
            "did you mean 4.5e+11?",
        ),
        (
            "450e9",
            "450e18",
            "level[0].bandwidth_bytes_per_s: is in bytes per second, must be <= 1e+15, got 4.5e+20",
        ),
        (
            "latency_s = 3e-6",
            "latency_s = 3",
            "level[0].latency_s: is in seconds, got 3; did you mean 3e-06?",
        ),
        ("450e9", "inf", "level[0].bandwidth_bytes_per_s: must be a finite number, got inf"),
        (
            "450e9",
            '"450 GB/s"',
            "level[0].bandwidth_bytes_per_s: must be a finite number, "
            'got "450 GB/s" (string); the unit is in the key\'s name',
        ),
        ("size = 8", "size = 0", "level[0].size: must be >= 1, got 0"),
        ("size = 8", "size = 8.5", "level[0].size: must be an integer, got 8.5"),
        (
            "oversubscription = 2",
            "oversubscription = 0.5",
            "level[1].oversubscription: must be >= 1, got 0.5",
        ),
        (
            "oversubscription",
            "oversubscribtion",
            'level[1].oversubscribtion: is not a known key; did you mean "oversubscription"?',
        ),
        (
            "num_devices",
            "nodez",
            "nodez: is not a known key; known keys are name, source, device_kind, "
            "num_devices, level, pool, joint, accelerator",
        ),
        ('name = "rail"', "", "level[1].name: required field is missing"),
        (
            '"measured: our own nccl-tests"',
            '"I heard"',
            "level[0].sources.bandwidth_bytes_per_s: must start with one of assumed, datasheet, "
            'fitted, interpolated, measured, imported and a colon, got "I heard"',
        ),
    ],
)
def test_a_fault_names_path_rule_and_value(old: str, new: str, fault: str) -> None:
    assert fault in faults_of(GOOD.replace(old, new))


@pytest.mark.parametrize(
    ("memory", "fault"),
    [
        (
            "memory = 80",
            'accelerator.toy.memory: a bare number is in bytes, got "80"; did you mean "80GiB"?',
        ),
        (
            "memory_gib = 85899345920",
            "accelerator.toy.memory_gib: is in GiB, got 8.58993e+10; did you mean 80?",
        ),
        (
            "memory_gib = 81559",
            "accelerator.toy.memory_gib: is in GiB, got 81559; did you mean 79.6475?",
        ),
        (
            "memory_gib = 80\nlaunch_overhead_s = 4",
            "accelerator.toy.launch_overhead_s: is in seconds, got 4; did you mean 4e-06?",
        ),
        ("", 'accelerator.toy: must give either memory_gib = 80 or memory = "80GiB"'),
        (
            'memory = "80 apples"',
            'accelerator.toy.memory: must be a quantity such as 80GiB, got "80 apples"',
        ),
    ],
)
def test_a_memory_in_the_wrong_unit_raises_the_question(memory: str, fault: str) -> None:
    assert faults_of(OWN_DEVICE.replace('memory = "80GiB"', memory)) == [fault]


def test_a_peak_in_the_wrong_unit_raises_the_question() -> None:
    assert faults_of(OWN_DEVICE.replace("1e14", "312")) == [
        "accelerator.toy.peak_flops_per_s.bf16: is in FLOP per second, got 312; "
        "did you mean 3.12e+14?"
    ]


@pytest.mark.parametrize(
    ("kind", "near"),
    [("H100", "H100-80GB-SXM"), ("h200", "H200-SXM"), ("A100-80GB-SMX", "A100-80GB-SXM")],
)
def test_an_unknown_device_kind_comes_with_the_nearest_known_one(kind: str, near: str) -> None:
    (fault,) = faults_of(GOOD.replace("H100-80GB-SXM", kind))
    assert fault.endswith(f'got "{kind}"; did you mean "{near}"?')


def test_all_faults_are_named_at_once() -> None:
    text = GOOD.replace("H100-80GB-SXM", "H100-80GB-SMX").replace("450e9", "0")
    faults = faults_of(text.replace("num_devices = 16", "num_devices = 17"))
    assert [fault.split(":")[0] for fault in faults] == [
        "level[0].bandwidth_bytes_per_s",
        "num_devices",
        "device_kind",
    ]


def test_pool_faults_are_found_in_their_pool() -> None:
    faults = faults_of(MIXED.replace("num_devices = 8", "num_devices = 9"))
    assert faults[0].startswith("pool[0].num_devices: must be the product")
    assert "cluster: must have a [joint] level if" in faults_of(MIXED.split("[joint]")[0])[0]


def test_a_file_is_one_pool_or_several_and_never_nothing() -> None:
    assert faults_of("") == ["cluster: must have device_kind and at least one [[level]]"]
    assert "not both" in faults_of('device_kind = "B200"\n' + MIXED)[0]


@pytest.mark.parametrize("content", [b"[[level", b"\xff", b"x = " + b"[" * 5000])
def test_files_that_are_not_toml_are_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "c.toml"
    file.write_bytes(content)
    with pytest.raises(InvalidInput, match="must be TOML"):
        load_cluster(file, accelerators={})


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        load_cluster(tmp_path / "c.toml", accelerators={})


def test_an_accelerator_of_a_file_names_its_faults() -> None:
    with pytest.raises(InvalidInput, match=r"accelerator\.x\.peak_flops_per_s: required"):
        read({"accelerator": {"x": {"memory_gib": 1.0}}})


_JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 10**12) | st.floats() | st.text("ab8 ", max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.text("ab8 ", max_size=4), inner, max_size=2)
    ),
    max_leaves=4,
)


@given(
    document=st.dictionaries(
        st.sampled_from(
            ["device_kind", "num_devices", "level", "pool", "joint", "accelerator", "x"]
        ),
        _JUNK,
        max_size=4,
    ),
    good=st.booleans(),
)
def test_any_document_is_a_cluster_or_names_its_faults(
    document: dict[str, Any], good: bool
) -> None:
    base = tomllib.loads(GOOD) if good else {}
    try:
        cluster = read(base | document)
    except InvalidInput:
        return
    assert cluster.num_devices >= 1


def test_levels_of_a_wrong_type_are_not_called_too_few() -> None:
    found = faults_of('[[pool]]\ndevice_kind = "H100-80GB-SXM"\nnum_devices = 8\nlevel = [1, 2]\n')
    assert "pool[0].level[1]: must be a table, got 2" in found
    assert not any("must have at least" in each for each in found)
    none = faults_of('[[pool]]\ndevice_kind = "H100-80GB-SXM"\nnum_devices = 8\nlevel = []\n')
    assert "pool[0].level: must have at least 1 entry, got 0" in none
