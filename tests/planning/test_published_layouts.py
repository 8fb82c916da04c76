"""Published layouts: estimated near what was measured, and predicted no faster than our plans."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "benchmarks" / "reports" / "known_layouts_2026-11-23.md"


def _script() -> ModuleType:
    path = ROOT / "benchmarks" / "known_layouts.py"
    spec = importlib.util.spec_from_file_location("known_layouts", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look their annotations up
    spec.loader.exec_module(module)
    return module


known = _script()
NAMES = [run.name for run in known.RUNS]
RUNS = {run.name: run for run in known.RUNS}
MARKS = {"GPT-3 175B, 768 A100": (), "Llama-3-405B, 8,192 H100": pytest.mark.slow}


def line_of(name: str) -> list[str]:
    """The cells of a row of the page."""
    (line,) = (
        each for each in PAGE.read_text("utf-8").splitlines() if each.startswith(f"| {name} | tp")
    )
    return [cell.strip() for cell in line.strip("| ").split("|")]


@pytest.mark.parametrize("name", NAMES)
def test_a_published_layout_is_estimated_within_ten_percent(name: str) -> None:
    """As the report says."""
    run = RUNS[name]
    found = known.estimated(run)
    assert found.step_time_s == pytest.approx(run.step_time_s, rel=0.10)
    shown = line_of(name)
    assert shown[2:4] == [f"{run.step_time_s:.2f}", f"{found.step_time_s:.2f}"]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=MARKS.get(n, pytest.mark.papers)) for n in NAMES]
)
def test_a_plan_from_a_small_part_of_the_space_is_no_slower_than_a_published_layout(
    name: str,
) -> None:
    run = RUNS[name]
    found = known.planned(run, **small_space(name))
    assert found.step_time_s <= known.estimated(run).step_time_s


def small_space(name: str) -> dict[str, object]:
    """The degrees of the layout where they fit into a device by our account, else deeper ones.

    DualPipeV is no family that is searched; ZB-V has its places and its split backward.
    """
    if name.startswith("Llama"):
        return {"tp": 4, "pp": 64, "cp": 4, "micro_batch": 1, "schedule": ["zb-h2"]}
    run = RUNS[name]
    family = "zb-v" if run.layout.get("schedule") == "dualpipe-v" else "interleaved"
    stages = {"virtual_stages": run.layout["virtual_stages"], "schedule": [family]}
    return {**known.published_degrees(run), "zero": run.layout["zero"], **stages}


@pytest.mark.papers
@pytest.mark.parametrize("name", NAMES)
def test_our_plan_is_no_slower_than_a_published_layout(name: str) -> None:
    run = RUNS[name]
    line = known.row(run)
    assert line in PAGE.read_text("utf-8").splitlines()
    assert known.planned(run).step_time_s <= known.estimated(run).step_time_s


@pytest.mark.papers
def test_what_each_assumption_is_worth_is_in_the_report() -> None:
    lines = PAGE.read_text("utf-8").splitlines()
    assert [line for line in known.variant_rows(known.DEEPSEEK) if line not in lines] == []
