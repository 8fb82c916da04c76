"""Pictures of the pages: what they show, and that the stored ones are those of the code."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest
from generated.accuracy import (
    SOURCES,
    accuracy_chart,
    accuracy_part,
    predicted_chart,
    with_figures,
)
from generated.chart import Axis, Bar, Series, bars_chart, points_chart, rows_chart
from generated.charts import charts

import trainwright
from reference import needs_reference, reference

SVG = "{http://www.w3.org/2000/svg}"


def lengths(picture: str, kind: str) -> list[float]:
    root = ElementTree.fromstring(picture)
    rects = root.iter(f"{SVG}rect")
    return [float(each.get("width")) for each in rects if each.get("class") == kind]


def test_bars_are_as_long_as_their_numbers():
    picture = bars_chart(
        "Two",
        [Bar(name="a", parts=[("x", 2.0), ("y", 1.0)]), Bar(name="b", parts=[("x", 4.0)])],
        x=Axis(label="s"),
    )
    _, first, second = lengths(picture, "f0")  # the legend's own square comes first
    assert second == pytest.approx(2 * first, abs=0.02)


def test_points_lie_where_their_numbers_say():
    series = Series(name="only", points=[(0.0, 0.0), (1.0, 10.0), (2.0, 20.0)])
    picture = points_chart("Points", [series], x=Axis(label="x"), y=Axis(label="y"))
    root = ElementTree.fromstring(picture)
    places = [(float(p.get("cx")), float(p.get("cy"))) for p in root.iter(f"{SVG}circle")]
    (ax, ay), (bx, by), (cx, cy) = places
    assert bx - ax == pytest.approx(cx - bx, abs=0.02)
    assert ay - by == pytest.approx(by - cy, abs=0.02)
    assert ay > by


def test_rows_share_one_axis():
    picture = rows_chart(
        "Rows", [("a", [(0.0, 1.0, "one")]), ("b", [(1.0, 3.0, "two")])], x=Axis(label="s")
    )
    (one,), (two,) = lengths(picture, "f0 outlined"), lengths(picture, "f1 outlined")
    assert two == pytest.approx(2 * one, abs=0.02)


def test_words_from_outside_cannot_break_a_picture():
    picture = bars_chart("<&>", [Bar(name="<a>", parts=[("&", 1.0)])], x=Axis(label='"'))
    assert "<a>" not in picture
    ElementTree.fromstring(picture)


def test_every_picture_is_on_one_page(request):
    docs = request.config.rootpath / "docs"
    stored = {path.stem for path in (docs / "pictures" / "charts").glob("*.svg")}
    assert stored == {*charts(), "accuracy-figures", "accuracy-runs"}
    pages = [path.read_text(encoding="utf-8") for path in docs.glob("*.md")]
    for name in stored - {"accuracy-runs"}:  # on the front
        shown = f"(pictures/charts/{name}.svg)"
        assert sum(shown in page for page in pages) == 1, name


@pytest.mark.slow
@pytest.mark.parametrize("name", charts())
def test_stored_charts_are_current(name, request):
    stored = request.config.rootpath / "docs" / "pictures" / "charts" / f"{name}.svg"
    assert charts()[name]() == stored.read_text(encoding="utf-8"), "run `make pages`"


@needs_reference
@pytest.mark.slow
def test_stored_figures_of_accuracy_are_current(request):
    found = trainwright.validate(str(reference() / "measured")).document
    docs = request.config.rootpath / "docs"
    page = (docs / "accuracy.md").read_text(encoding="utf-8")
    assert with_figures(page, found) == page, "run `make pages`"
    for name, draw in {"figures": accuracy_chart, "runs": predicted_chart}.items():
        picture = docs / "pictures" / "charts" / f"accuracy-{name}.svg"
        assert draw(found) == picture.read_text(encoding="utf-8"), "run `make pages`"
    assert {dataset.name for dataset in found.datasets} == set(SOURCES)


def test_the_page_of_accuracy_has_every_table(request):
    found = trainwright.validate(str(request.config.rootpath / "examples" / "measured")).document
    page = accuracy_part(found)
    (dataset,) = found.datasets
    assert re.search(rf"^\| {dataset.name} \| 2 of 2 \| step time \| 2 \|", page, re.M)
    assert f"{100 * dataset.time.mape:.1f}" in page
