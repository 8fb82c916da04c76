"""The page of published numbers beside ours is what the command computes; CITATION.cff agrees."""

from __future__ import annotations

import csv
import tomllib
from pathlib import Path

import papers
import pytest
import yaml

from reference import needs_reference

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
