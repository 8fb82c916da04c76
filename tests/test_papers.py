"""The page of published numbers beside ours is what the command computes; CITATION.cff agrees."""

from __future__ import annotations

import csv
import tomllib
from pathlib import Path

import papers
import pytest
import yaml

from reference import needs_reference
from trainwright.formats.measured_csv import MeasuredRun

ROOT = Path(__file__).parents[1]
TOLERANCE = papers.Tolerance(relative=0.01, absolute=1.0)
CHEAP = [paper for paper in papers.PAPERS if paper.needs is None and paper.kind == papers.DERIVED]
LONG = "Vocabulary Parallelism, passes"


@pytest.mark.parametrize(
    "paper",
    [
        pytest.param(paper, marks=[pytest.mark.slow] * (paper.name == LONG), id=paper.name)
        for paper in CHEAP
    ],
)
def test_the_stored_page_and_table_are_what_is_computed(paper: papers.Paper) -> None:
    found = list(paper.numbers())
    assert found
    assert "\n".join(papers.section(paper, found)) in papers.PAGE.read_text("utf-8")
    lines = papers.numbers_csv({paper: found}).splitlines()[1:]
    assert set(lines) <= set(papers.NUMBERS.read_text("utf-8").splitlines())


def test_a_miss_that_other_rows_of_its_table_contradict_says_which() -> None:
    def row(name: str, tensor: int, data: int, size: int, pipeline: int = 1) -> MeasuredRun:
        sizes = {"devices_per_node": 8, "microbatch_size": size, "pipeline": pipeline}
        sizes |= {"num_layers": 8, "global_batch": 64}
        degrees = {"tensor": tensor, "data": data, "num_devices": tensor * data * pipeline}
        return MeasuredRun(row_id=name, table="t", model="m", accelerator="a", **sizes, **degrees)

    one, two, deep = row("one", 1, 8, 4), row("two", 2, 4, 4), row("deep", 2, 1, 4, 4)
    four, fewer = row("four", 4, 2, 8), row("fewer", 4, 2, 4)
    times = [(one, 9.0), (two, 14.0), (four, 11.0), (fewer, 5.0)]
    found = papers.at_odds(two, "step_time", 14.0, 9.5, times)  # 4 microbatches in both
    assert found == (
        "at odds with four: 438 ms a layer and slot, 344 there, with no less work on a device"
    )
    assert papers.at_odds(two, "step_time", 11.5, 8.0, times) is None
    found = papers.at_odds(deep, "step_time", 19 * 1.0, 12.0, [(two, 14.0)])  # 16 microbatches
    assert found is not None
    assert found.startswith("at odds with two: 500 ms a layer and slot, 438 there")
    larger = row("larger", 1, 8, 8)
    found = papers.at_odds(larger, "step_time", 12.0, 8.5, [*times, (larger, 12.0)])
    assert found == "at odds with one: 9 s in microbatches of 4, without a pipeline"
    held = [(one, 5 * 2.0**30), (two, 8 * 2.0**30)]
    found = papers.at_odds(one, "peak_memory", held[0][1], 9 * 2.0**30, held)
    assert found is None  # with twice the data degree it need not hold less
    wide = row("wide", 2, 8, 4)
    found = papers.at_odds(one, "peak_memory", 5 * 2.0**30, 9e9, [*held, (wide, 8 * 2.0**30)])
    assert found == "at odds with wide, which splits as much or more and holds 8 GiB at tp 2, dp 8"
    found = papers.at_odds(wide, "peak_memory", 8 * 2.0**30, 4e9, held)
    assert found == "at odds with one, which splits no more and holds 5 GiB at tp 1, dp 8"


@needs_reference
@pytest.mark.papers
def test_the_whole_page_is_what_is_computed() -> None:
    found = {paper: list(paper.numbers()) for paper in papers.PAPERS}
    assert papers.page(found) == papers.PAGE.read_text("utf-8")
    assert papers.numbers_csv(found) == papers.NUMBERS.read_text("utf-8")


def test_every_paper_has_numbers_in_the_stored_table_and_a_miss_says_why() -> None:
    with papers.NUMBERS.open(encoding="utf-8", newline="") as file:
        stored = {row["paper"] for row in csv.DictReader(file)}
    assert stored == {paper.name for paper in papers.PAPERS}
    shown = [line for line in papers.PAGE.read_text("utf-8").splitlines() if "| miss |" in line]
    cells = [line.strip("| ").split("|") for line in shown if "| ok |" not in line]
    assert cells
    assert all(len(row) == 6 and row[-1].strip() for row in cells)


@pytest.mark.parametrize(
    ("ours", "at_most", "verdict"),
    [
        (102.0, False, "ok"),
        (97.9, False, "miss"),
        (102.1, False, "miss"),
        (97.9, True, "better"),
        (102.1, True, "miss"),
        (98.0, True, "ok"),
    ],
)
def test_a_number_outside_its_tolerance_is_a_miss(ours: float, at_most: bool, verdict: str) -> None:
    number = papers.Number(what="", published=100.0, ours=ours, unit="", at_most=at_most)
    assert number.verdict(TOLERANCE) == verdict


def test_the_citation_says_what_the_package_says() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert cited["title"] == project["name"]
    assert cited["license"] == project["license"]
    assert cited["authors"] == project["authors"]
    assert cited["abstract"] == project["description"]
    assert cited["keywords"] == project["keywords"]
