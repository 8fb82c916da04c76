"""Efficiencies of pairs that were measured, and of those that borrow from neighbours."""

from __future__ import annotations

import math
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace

import pytest

from reference import needs_reference, reference
from trainwright.cluster.calibration import (
    PACE,
    TYPICAL,
    Distance,
    Effect,
    Key,
    PooledEfficiencies,
    Range,
    software_named,
)
from trainwright.commands.validate import known
from trainwright.formats import catalog
from trainwright.formats.calibration_toml import built_in_efficiencies
from trainwright.formats.measured_csv import measured_files, read_beside, read_measured
from trainwright.lab.pooling import PooledRun, pooled_runs, power_shifts, told_apart
from trainwright.plans.configuration import Overlap
from trainwright.provenance import Origin, Provenance

NEMO, FSDP = software_named("nemo"), software_named("fms-fsdp")


def made(**more: Effect) -> PooledEfficiencies:
    """Two devices of a family, one of them measured under NeMo."""
    effects: dict[Key, Effect] = {
        ("centre",): Effect(shifts=MappingProxyType({"gemm_max": -0.5, "host_pass_s": -6.0})),
        ("family", "hopper"): Effect(shifts=MappingProxyType({PACE: -0.1}), runs=9),
        ("device", "H100-80GB-SXM"): Effect(shifts=MappingProxyType({PACE: 0.05}), runs=9),
        ("class", "nemo"): Effect(shifts=MappingProxyType({"host_pass_s": -1.0}), runs=9),
        ("pair", "H100-80GB-SXM", "nemo"): Effect(
            shifts=MappingProxyType({PACE: 0.02}), runs=9, sources=("one",)
        ),
        ("publication", "a.paper", "H100-80GB-SXM"): Effect(
            shifts=MappingProxyType({PACE: 0.1}), runs=9, sources=("one",)
        ),
    }
    return PooledEfficiencies(
        effects=MappingProxyType(effects | {(name,): e for name, e in more.items()}),
        families=MappingProxyType({"H100-80GB-SXM": "hopper", "H200-SXM": "hopper"}),
        spreads=MappingProxyType({"gemm_max": 0.1}),
        ranges=MappingProxyType(
            {d: Range(low_ratio=0.9 - 0.1 * d, high_ratio=1.1 + 0.1 * d) for d in Distance}
        ),
    )


def test_a_constant_is_the_sum_of_the_effects_on_its_logarithm() -> None:
    found = made().value_of("gemm_max", "H100-80GB-SXM", NEMO)
    assert found == pytest.approx(2.718281828 ** (-0.5 - 0.1 + 0.05 + 0.02))
    of_paper = made().value_of("gemm_max", "H100-80GB-SXM", NEMO, "a.paper")
    assert of_paper == pytest.approx(found * 2.718281828**0.1)


def test_a_share_of_a_peak_is_never_above_one() -> None:
    whole = {("centre",): Effect(shifts=MappingProxyType({"gemm_max": 0.2}))}
    pool = PooledEfficiencies(
        effects=MappingProxyType(whole),
        families=MappingProxyType({}),
        spreads=MappingProxyType({}),
        ranges=made().ranges,
    )
    assert pool.value_of("gemm_max", "anything", NEMO) == 1.0


def test_ranges_widen_with_the_distance_from_evidence() -> None:
    pool = made()
    at = [
        pool.evidence("H100-80GB-SXM", NEMO, "a.paper"),
        pool.evidence("H100-80GB-SXM", NEMO),
        pool.evidence("H200-SXM", NEMO),
        pool.evidence("H200-SXM", FSDP),
        pool.evidence("unheard-of", FSDP),
    ]
    assert [found.distance for found in at] == list(Distance)
    widths = [found.high_ratio - found.low_ratio for found in at]
    assert widths == sorted(widths)
    assert at[-1].runs == 0 and "no run" in at[-1].sentence


def test_a_sentence_says_which_runs_were_on_the_device_itself() -> None:
    pool = made()
    assert "of H100-80GB-SXM under other software;" in pool.evidence("H100-80GB-SXM", FSDP).sentence
    assert "like nemo, none on H200-SXM;" in pool.evidence("H200-SXM", NEMO).sentence
    assert ", all borrowed from 9 of H100" in pool.evidence("H100-80GB-SXM", FSDP).sentence
    pair = Effect(shifts=MappingProxyType({}), runs=2, sources=("three",))
    of_its_own = replace(pool, effects=pool.effects | {("pair", "H200-SXM", "nemo"): pair})
    mixed = of_its_own.evidence("H200-SXM", NEMO)
    assert (mixed.runs, mixed.own_runs) == (11, 2)
    said = (
        "11 measured runs in 2 public tables, 2 its own, the others borrowed from 9 of its family"
    )
    assert said in mixed.sentence
    few = Effect(shifts=MappingProxyType({}), runs=2, sources=("two",))
    with_few = replace(pool, effects=pool.effects | {("device", "H200-SXM"): few})
    found = with_few.evidence("H200-SXM", software_named("typical"))
    assert (found.runs, found.runs_on_device) == (11, 2)
    assert found.distance is Distance.FAR  # two runs are few
    assert "of the family of H200-SXM, 2 on it" in found.sentence


def test_the_built_in_ranges_widen_too_and_hold_for_every_device() -> None:
    pool = built_in_efficiencies()
    widths = [pool.ranges[d].high_ratio - pool.ranges[d].low_ratio for d in Distance]
    assert widths == sorted(widths)
    for name in catalog.cluster_names():
        cluster = catalog.cluster(name)
        if cluster.accelerator.cores is None:
            calibrated = pool.applied(cluster, NEMO)
            assert calibrated.accelerator.calibration is not None
            assert 0 < calibrated.accelerator.efficiency.gemm.max <= 1


def test_own_software_is_told_by_its_name_and_by_whether_it_is_compiled() -> None:
    assert software_named("Megatron-Bridge").kind == "nemo"
    assert software_named(None).kind == software_named("my own trainer").kind == "typical"
    assert software_named("torchtitan", compiled=False).kind == FSDP.kind
    fastest = [software_named(name).picks_fastest_attention for name in ("prime-rl", "torchtitan")]
    assert fastest == [True, False]


def test_a_fabric_that_is_described_as_slow_stays_slow() -> None:
    usual = catalog.cluster("dgx-h100").with_nodes(2)
    (pool,) = usual.pools
    inner, outer = pool.levels
    ethernet = replace(
        usual, pools=(replace(pool, levels=(inner, replace(outer, latency_s=1e-4))),)
    )
    found = built_in_efficiencies().applied(ethernet, NEMO).pools[0].levels
    fitted = built_in_efficiencies().applied(usual, NEMO).pools[0].levels
    assert found[1].latency_s == 1e-4 > fitted[1].latency_s
    assert found[0] == fitted[0]
    narrow = replace(outer, efficiency=0.2)
    slow = replace(usual, pools=(replace(pool, levels=(inner, narrow)),))
    found = built_in_efficiencies().applied(slow, NEMO).pools[0].levels
    assert found[1].efficiency == 0.2 < fitted[1].efficiency < outer.efficiency


def test_a_link_that_was_timed_is_taken_as_it_was_timed() -> None:
    usual = catalog.cluster("dgx-h100").with_nodes(2)
    (pool,) = usual.pools
    inner, outer = pool.levels
    timed = Provenance(origin=Origin.MEASURED, source="all_reduce over 16 ranks")
    link = replace(
        outer,
        bandwidth_bytes_per_s=2e10,
        latency_s=5e-6,
        efficiency=1.0,
        sources=(("bandwidth_bytes_per_s", timed), ("latency_s", timed)),
    )
    own = replace(usual, pools=(replace(pool, levels=(inner, link)),))
    assert built_in_efficiencies().applied(own, NEMO).pools[0].levels[1] == link


@pytest.mark.parametrize("field", ["efficiency", "latency_s"])
@pytest.mark.parametrize("origin", [Origin.MEASURED, Origin.ASSUMED])
def test_a_figure_whose_source_is_said_is_kept_alone(field: str, origin: Origin) -> None:
    usual = catalog.cluster("dgx-h100").with_nodes(2)
    (pool,) = usual.pools
    inner, outer = pool.levels
    ours = Provenance(origin=origin, source="our own fabric")
    own = replace(outer, latency_s=1e-6, efficiency=0.99, sources=((field, ours),))
    stated = replace(usual, pools=(replace(pool, levels=(inner, own)),))
    found = built_in_efficiencies().applied(stated, NEMO).pools[0].levels[1]
    fitted = built_in_efficiencies().applied(usual, NEMO).pools[0].levels[1]
    other = "latency_s" if field == "efficiency" else "efficiency"
    assert getattr(found, field) == getattr(own, field) != getattr(fitted, field)
    assert getattr(found, other) == getattr(fitted, other) != getattr(own, other)
    sources = dict(found.sources)
    assert sources[field] == ours
    assert sources[other].origin is Origin.FITTED


def test_a_slower_figure_that_stays_is_not_said_to_be_fitted() -> None:
    usual = catalog.cluster("dgx-h100").with_nodes(2)
    (pool,) = usual.pools
    inner, outer = pool.levels
    slow = replace(outer, latency_s=5e-4, efficiency=0.3, sources=())
    stated = replace(usual, pools=(replace(pool, levels=(inner, slow)),))
    found = built_in_efficiencies().applied(stated, NEMO).pools[0].levels
    assert found[1] == slow
    assert dict(found[0].sources)["latency_s"].origin is Origin.FITTED


def test_what_one_program_put_in_place_another_replaces() -> None:
    usual = catalog.cluster("dgx-h100").with_nodes(2)
    pooled = built_in_efficiencies()
    (once,) = pooled.applied(usual, NEMO).pools
    (twice,) = pooled.applied(replace(usual, pools=(once,)), FSDP).pools
    (fresh,) = pooled.applied(usual, FSDP).pools
    assert twice.levels[1].efficiency == fresh.levels[1].efficiency != once.levels[1].efficiency


def test_trays_of_one_nvlink_domain_are_as_fast_as_a_node() -> None:
    shifts = {"scale_up_efficiency": -0.25, "scale_out_efficiency": -0.75}
    pool = PooledEfficiencies(
        effects=MappingProxyType({("centre",): Effect(shifts=MappingProxyType(shifts))}),
        families=MappingProxyType({}),
        spreads=MappingProxyType({}),
        ranges=made().ranges,
    )
    tray, domain, network = pool.applied(catalog.cluster("gb200-nvl72"), NEMO).levels
    assert tray.efficiency == domain.efficiency == pytest.approx(math.exp(-0.25))
    assert network.efficiency == pytest.approx(math.exp(-0.75))


@pytest.mark.parametrize(
    ("name", "joined"),
    [("dgx-h100", ["nvlink"]), ("gb200-nvl72", ["tray", "nvlink-domain"]),
     ("tpu-v4", ["cube", "optical-torus"])],
)  # fmt: skip
def test_a_fabric_ends_at_the_networks_between_nodes(name: str, joined: list[str]) -> None:
    pool = catalog.cluster(name).pool_of()
    assert [level.name for level in pool.fabric] == joined


def test_the_outermost_switch_is_a_network_however_fast() -> None:
    pool = catalog.cluster("dgx-h100").pool_of()
    node, network = pool.levels
    fast = replace(network, bandwidth_bytes_per_s=2 * node.bandwidth_bytes_per_s)
    assert replace(pool, levels=(node, fast)).fabric == (node,)
    assert replace(pool, levels=(node,)).fabric == (node,)


def test_a_run_that_hosts_bind_has_a_range_that_says_something() -> None:
    for software in ("megatron-core", "nemo", "nanotron", "torchtitan", ""):
        device = built_in_efficiencies().calibration("H100-80GB-SXM", software_named(software))
        assert device.spreads
        for spread in device.spreads:
            assert spread.high_ratio / spread.low_ratio < 5


def test_less_power_slows_only_beside_devices_of_about_the_same_peak():
    shifts = power_shifts(known())
    assert shifts["H100-96GB-HBM2e-500W"] == pytest.approx(0.6 * math.log(500 / 700))
    assert shifts["B200"] < shifts["GB200"] < 0 == shifts["B300"]
    # Desktop cards of the family draw far more for each FLOP, which says nothing of a module.
    assert shifts["A100-40GB-SXM"] == shifts["A100-80GB-SXM"] == 0


def test_a_card_of_a_desktop_reaches_more_of_its_peak_than_one_for_servers():
    pool = built_in_efficiencies()
    shares = {
        name: pool.value_of("gemm_max", name, TYPICAL)
        for name in ("RTX-4090", "L40S", "RTX-3090", "A100-80GB-SXM", "RTX-5090", "B200")
    }
    assert shares["RTX-4090"] > 1.5 * shares["L40S"]
    assert shares["RTX-3090"] > shares["A100-80GB-SXM"]
    assert shares["RTX-5090"] > shares["B200"]


def test_what_ships_of_devices_without_runs_is_what_their_products_say():
    shifts, effects = power_shifts(known()), built_in_efficiencies().effects
    for name, shift in shifts.items():
        own = effects.get(("device", name))
        if own is None or not own.runs:
            assert (own.shifts["pace"] if own else 0.0) == pytest.approx(shift, abs=1e-4)


def test_the_evidence_counts_every_run_of_a_device_and_says_what_is_known_without_any():
    pool = built_in_efficiencies()
    for device in ("A100-80GB-SXM", "H100-80GB-SXM", "H200-SXM", "B200", "GB200"):
        found = pool.evidence(device, TYPICAL)
        runs = pool.effects["device", device].runs
        assert found.runs == found.runs_on_device == runs
        assert found.sentence.startswith(f"rests on {runs} measured runs in ")
    said = pool.evidence("RTX-4090", TYPICAL).sentence
    assert said.startswith("no run of RTX-4090 or of its family is known, and no software is named")
    assert "paced by its products and power" in said
    assert "products" not in pool.evidence("Gaudi3", TYPICAL).sentence


def runs_under(program: str, *said: bool | None, degree: int = 8) -> list[PooledRun]:
    """Runs of tensor groups that hide their exchanges, do not, or do not say."""
    found = []
    for each in said:
        settings = {} if each is None else {"tp_comm_overlap": str(int(each))}
        question = SimpleNamespace(
            line=SimpleNamespace(software=software_named(program), pairs_passes=False),
            configuration=SimpleNamespace(
                parallelism=SimpleNamespace(tensor=degree, expert=1),
                overlap=Overlap(tensor=0.9 if each else 0.0),
            ),
        )
        run = SimpleNamespace(setting=settings.get, states_arguments=False, options={})
        found.append(PooledRun(source="one", run=run, question=question, measured_s=1.0))
    return found


@pytest.mark.parametrize(
    ("runs", "told"),
    [
        (runs_under("nemo", True, True, False), True),
        (runs_under("nemo", True, True, False, None), True),
        (runs_under("nemo", True, None, None), False),  # most leave it open
        (runs_under("nemo", False, False), False),  # nobody saw a difference
        (runs_under("nemo", True, True, degree=1), False),  # nothing was exchanged
        # A class whose runs hide nothing has what it borrows from all runs.
        (runs_under("nemo", False) + runs_under("torchtitan", True, True), True),
        (
            runs_under("nemo", False)
            + runs_under("torchtitan", True)
            + 4 * runs_under("trl", None),
            False,
        ),
    ],
)
def test_an_overlap_is_told_apart_where_runs_say_it_and_some_hide(
    runs: list[PooledRun], told: bool
) -> None:
    assert ("tensor" in told_apart(runs)[NEMO.kind]) is told


def test_constants_hold_every_overlap_that_no_table_tells_apart() -> None:
    assert made().held_overlap(NEMO) == ("tensor", "experts")
    shipped = built_in_efficiencies()
    assert shipped.held_overlap(software_named("torchtitan")) == ()
    assert {shipped.held_overlap(each) for each in (NEMO, FSDP, TYPICAL)} == {("tensor",)}


@pytest.mark.slow
@needs_reference
def test_what_ships_is_told_apart_by_the_runs_it_was_fitted_to() -> None:
    catalog_alone = replace(known(), efficiencies=None)
    tables = []
    for folder in ("measured", "measured2"):
        for path in measured_files(reference() / folder):
            runs = read_measured(path)
            beside = read_beside(path, runs)
            near = replace(catalog_alone, models=beside.models, beside=beside.clusters)
            tables.append((path.stem, runs, near))
    assert told_apart(pooled_runs(tables)) == built_in_efficiencies().told_apart
