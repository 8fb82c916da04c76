"""The figure of a co-design, where matplotlib is there, and one clear sentence where it is not."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import trainwright
from trainwright.chips.tables import plot_codesign
from trainwright.errors import InvalidInput, MissingExtra
from trainwright.formats.codesign_document import CodesignResult

HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None


@pytest.fixture(scope="module")
def found() -> CodesignResult:
    ranges = {"num_tc": (4, 8), "num_vc": (2, 8), "width": (64, 128), "depth": (64, 128)}
    job = {"devices": 8, "global_batch": 64, "schedule": ("1f1b",)}
    return trainwright.codesign("bert-large", ranges=ranges, **job).document


@pytest.mark.slow
def test_area_parts_add_up(found: CodesignResult) -> None:
    assert found.best is not None
    assert sum(found.best.area_parts_mm2.values()) == pytest.approx(found.best.area_mm2)


@pytest.mark.skipif(HAS_MATPLOTLIB, reason="matplotlib is installed")
def test_a_missing_package_is_one_clear_sentence(found: CodesignResult, tmp_path: Path) -> None:
    with pytest.raises(MissingExtra, match=r"'\.\[plot\]' in a checkout"):
        plot_codesign(found, tmp_path / "x.svg")


@pytest.mark.slow
@pytest.mark.skipif(not HAS_MATPLOTLIB, reason="matplotlib is not installed")
def test_a_figure_is_written(found: CodesignResult, tmp_path: Path) -> None:
    plot_codesign(found, tmp_path / "x.svg")
    assert "utilisation" in (tmp_path / "x.svg").read_text()
    with pytest.raises(InvalidInput, match="figure"):
        plot_codesign(found, tmp_path / "x.unknown")
