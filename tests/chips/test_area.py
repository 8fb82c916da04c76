"""The area model against its published constants, samples and checks."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference import needs_reference, reference
from trainwright.chips import space as area
from trainwright.chips.space import DieModel, area_mm2, area_um2, template_area_um2
from trainwright.cluster import REFERENCE_DESIGN, ChipTemplate
from trainwright.errors import InvalidInput
from trainwright.units import MIB


@needs_reference
def test_the_constants_are_the_published_ones() -> None:
    model = json.loads((reference() / "codesign/area/model.json").read_text())
    assert model["tc_area_per_pe"] == area.TC_UM2_PER_MAC
    assert model["vc_area_per_lane"] == area.VC_UM2_PER_LANE
    buffers = {str(1024 * 2**k): a for k, a in enumerate(area.CORE_BUFFER_UM2)}
    assert model["l2_area_by_bytes"] == buffers
    assert model["glb_area_by_mib"] == {str(2 * 2**k): a for k, a in enumerate(area.GLB_UM2)}


@needs_reference
def test_published_areas_are_met_to_rounding() -> None:
    text = (reference() / "codesign/area/samples.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    assert len(rows) == 100
    for row in rows:
        chip = ChipTemplate(
            num_tc=int(row["num_tc"]),
            num_vc=int(row["num_vc"]),
            width=int(row["width"]),
            depth=int(row["depth"]),
            glb_bytes=int(row["glb_bytes"]),
        )
        assert chip.width_vc == int(row["width_vc"])
        assert area_um2(chip) == pytest.approx(float(row["area_um2"]), rel=1e-12)


def test_the_reference_designs_have_their_published_areas() -> None:
    assert area_um2(REFERENCE_DESIGN) == pytest.approx(278_826_676.31216, rel=1e-12)
    second = ChipTemplate(num_tc=1, num_vc=1, width=128, depth=128, glb_bytes=128 * MIB)
    assert area_mm2(second) == pytest.approx(188.427588951408, rel=1e-12)


def test_a_buffer_beyond_the_table_is_refused() -> None:
    with pytest.raises(InvalidInput, match="glb"):
        template_area_um2(1, 1, 2, 2, 256)


def test_a_die_without_extras_has_the_area_of_its_cores_and_buffers() -> None:
    assert DieModel().die_area_mm2(278.8) == 278.8


@given(area_mm2=st.floats(10, 800), defects=st.floats(1e-5, 0.02), more=st.floats(1.01, 3))
def test_a_good_die_costs_more_with_more_defects_or_more_area(
    area_mm2: float, defects: float, more: float
) -> None:
    die = DieModel(defects_per_mm2=defects)
    worse = DieModel(defects_per_mm2=defects * more)
    assert worse.cost_per_good_die(area_mm2) > die.cost_per_good_die(area_mm2)
    assert die.cost_per_good_die(area_mm2 * more) > die.cost_per_good_die(area_mm2)
    assert 0 < die.yield_share(area_mm2) < 1


@pytest.mark.parametrize("name", ["num_tc", "num_vc", "width", "depth", "glb_bytes"])
def test_a_template_without_parts_is_refused_by_name(name: str) -> None:
    parts = {"num_tc": 1, "num_vc": 1, "width": 2, "depth": 2, "glb_bytes": 2 * MIB}
    with pytest.raises(InvalidInput) as caught:
        ChipTemplate(**{**parts, name: 0})
    assert name in {fault.path for fault in caught.value.faults}


def test_areas_of_many_designs_equal_those_of_each() -> None:
    columns = np.array([[1, 2], [4, 1], [8, 256], [2, 256], [2, 128]])
    chips = [
        ChipTemplate(num_tc=a, num_vc=b, width=c, depth=d, glb_bytes=e * MIB)
        for a, b, c, d, e in columns.T.tolist()
    ]
    assert template_area_um2(*columns).tolist() == [area_um2(chip) for chip in chips]
