"""The space of designs against its published counts, checksums and order."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import numpy as np
import pytest

from reference import needs_reference, reference
from trainwright.chips.space import (
    DEFAULT_RULES,
    FIELDS,
    DesignSpace,
    SpaceRules,
    area_um2,
    enumerate_designs,
    subspace,
)
from trainwright.cluster import REFERENCE_DESIGN, Surroundings, peak_flops_per_s
from trainwright.errors import InvalidInput


@pytest.fixture(scope="module")
def space() -> DesignSpace:
    return enumerate_designs()


@needs_reference
def test_counts_and_checksums_are_the_published_ones(space: DesignSpace) -> None:
    want = json.loads((reference() / "codesign/area/space.json").read_text())
    assert space.num_candidates == want["candidates"] == 75_712
    assert len(space) == want["feasible"] == 29_360
    assert int(space.has_one_core().sum()) == want["with_one_core_exception"] == 9_308
    low = space.areas_um2 < DEFAULT_RULES.least_share * DEFAULT_RULES.largest_um2
    assert int(low.sum()) == want["feasible_below_lower_factor"]
    assert space.checksum() == want["sha256_of_feasible_set"]
    assert space.checksum(space.by_descending_area()) == want["sha256_of_visit_order"]
    assert len(np.unique(space.buckets())) == want["buckets_of_10000_um2"]
    for name in FIELDS[:5]:
        values, counts = np.unique(space.column(name), return_counts=True)
        assert dict(zip(map(str, values), counts.tolist(), strict=True)) == want["counts"][name]


@needs_reference
def test_the_first_buckets_are_the_published_ones(space: DesignSpace) -> None:
    want = json.loads((reference() / "codesign/area/space.json").read_text())["first_buckets"]
    order, buckets = space.by_descending_area(), space.buckets()
    for bucket in want:
        inside = [i for i in order[:100] if buckets[i] == bucket["bucket"]]
        assert [list(space.template(i).key) for i in inside] == bucket["configs"]


@needs_reference
def test_distinct_cores_are_far_fewer_than_designs(space: DesignSpace) -> None:
    want = json.loads((reference() / "codesign/area/space.json").read_text())
    tensor = np.unique(space.designs[[0, 2, 3, 4]], axis=1).shape[1]
    vector = np.unique(space.designs[[1, 2, 4]], axis=1).shape[1]
    assert (tensor, vector) == (
        want["unique_tc_configs_with_glb"],
        want["unique_vc_configs_with_glb"],
    )


def test_the_reference_design_is_in_the_space(space: DesignSpace) -> None:
    chips = [space.template(int(i)) for i in space.by_descending_area()[:2]]
    assert REFERENCE_DESIGN in chips


def test_enumerating_takes_less_than_a_tenth_of_a_second() -> None:
    enumerate_designs()
    start = time.process_time()
    enumerate_designs()
    assert time.process_time() - start < 0.1


def test_peaks_are_those_of_the_template() -> None:
    assert peak_flops_per_s(REFERENCE_DESIGN, Surroundings()) == pytest.approx(275e12, rel=2e-3)
    space = enumerate_designs()
    macs = space.column("num_tc") * space.column("width") * space.column("depth")
    assert int(macs.max()) == 262_144
    assert 2 * int(macs.max()) * 1.05e9 == pytest.approx(550.5e12, rel=1e-4)


def test_narrower_rules_admit_fewer_designs() -> None:
    some = enumerate_designs(SpaceRules(num_tc=(8,), num_vc=(2,), width=(128,), depth=(128,)))
    assert some.template(0) == REFERENCE_DESIGN
    assert len(some) <= 7
    assert len(subspace(some, np.array([0]))) == 1


@pytest.mark.parametrize(
    ("field", "value"), [("num_tc", ()), ("least_share", 2.0), ("largest_um2", 0.0)]
)
def test_rules_without_sense_are_refused(field: str, value: object) -> None:
    with pytest.raises(InvalidInput, match=field):
        SpaceRules(**{field: value})  # type: ignore[arg-type]


def test_buffers_of_cores_are_an_axis_where_several_are_given() -> None:
    ranges = {"num_tc": (8,), "num_vc": (8,), "width": (64, 256), "depth": (256,), "glb_mib": (2,)}
    rules = replace(DEFAULT_RULES, least_share=0.0, **ranges, buffer_bytes_per_mac=(8, 16, 64))
    found = enumerate_designs(replace(rules, largest_um2=1e12))
    area = {
        (chip.width, chip.buffer_bytes_per_mac): area_um2(chip)
        for chip in map(found.template, range(len(found)))
    }
    # 256 x 256 multipliers with 64 bytes each have 4 MiB, more than the global buffer of all.
    assert set(area) == {(w, b) for w in (64, 256) for b in (8, 16, 64)} - {(256, 64)}
    assert area[64, 8] < area[64, 16] < area[64, 64]
    assert found.areas_um2 == pytest.approx(list(area.values()))
    usual = enumerate_designs(replace(rules, buffer_bytes_per_mac=(16,)))
    assert usual.checksum() != found.checksum()
