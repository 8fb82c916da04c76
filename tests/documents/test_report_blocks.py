"""Charts of the page: geometry, the front, colours."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.documents.view import Cell
from trainwright.pages.blocks import (
    Bar,
    BarChart,
    Part,
    Point,
    front,
    lay_out,
    squarify,
    time_against_memory,
    upside_down,
)
from trainwright.pages.blocks import lay_out_areas as floor_plan
from trainwright.pages.gantt import DARK, LIGHT, contrast
from trainwright.pages.page import PARTS, TONES

amounts = st.floats(1e-6, 1e12)


def point(x, y):
    return Point(name="a plan", x=x, y=y, x_text="", y_text="", facts=())


def chart(*bars, limit=None):
    made = tuple(
        Bar(
            label=str(index),
            parts=tuple(Part(kind="compute", label="c", amount=a, text="") for a in bar),
            total="",
        )
        for index, bar in enumerate(bars)
    )
    return BarChart(title="bars", bars=made, limit=limit)


def length(text):
    assert text.endswith("%")
    return float(text[:-1])


@given(st.lists(st.lists(amounts, min_size=1, max_size=5), min_size=1, max_size=5))
def test_segments_follow_each_other_and_stay_in_the_plot(bars):
    drawn = chart(*bars)
    for bar in drawn.bars:
        at = 0.0
        for segment in drawn.segments(bar):
            assert length(segment.start) == pytest.approx(at, abs=0.02)
            at += length(segment.width)
        assert at <= 100.1
        assert at == pytest.approx(100 * bar.amount / drawn.top, abs=0.05)


def test_a_limit_beyond_all_bars_is_drawn_inside_the_plot():
    drawn = chart([1.0, 2.0], limit=6.0)
    assert 90 < length(drawn.limit_at) < 100
    assert drawn.top > 6.0


def test_what_has_no_length_is_not_drawn_and_not_in_the_legend():
    drawn = chart([0.0, 0.0])
    assert drawn.segments(drawn.bars[0]) == ()
    assert drawn.kinds == ()


@given(st.lists(st.tuples(amounts, amounts), min_size=1, max_size=12))
def test_no_point_beats_one_of_the_front(pairs):
    points = [point(x, y) for x, y in pairs]
    best = front(points)
    assert best
    for one in best:
        assert not any(
            other.x <= one.x and other.y <= one.y and (other.x, other.y) != (one.x, one.y)
            for other in points
        )
    beaten = [p for p in points if p not in best]
    for one in beaten:
        assert any(other.x <= one.x and other.y <= one.y for other in best)


def test_what_is_above_the_limit_is_not_on_the_front():
    drawn = time_against_memory([point(1, 9.0), point(2, 4.0), point(3, 2.0)], limit_bytes=5.0)
    assert [mark.on_front for mark in drawn.marks] == [False, True, True]
    assert len(drawn.front) == 2
    assert time_against_memory([point(1, 9.0)], limit_bytes=5.0).front == ()


@given(st.lists(st.tuples(amounts, amounts), min_size=1, max_size=12))
def test_every_point_lies_inside_the_plot(pairs):
    drawn = time_against_memory([point(x, y) for x, y in pairs], limit_bytes=None)
    for mark in drawn.marks:
        assert -0.01 <= length(mark.x) <= 100.01
        assert -0.01 <= length(mark.y) <= 100.01
    for tick in (*drawn.x_ticks, *drawn.y_ticks):
        assert -0.1 <= length(tick.at) <= 100.1


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_tones_can_be_read_on_page_and_card(theme):
    index = 0 if theme is LIGHT else 1
    for name, colors in TONES.items():
        for ground in (theme.page, theme.row):
            assert contrast(colors[index], ground) >= 4.5, name
    for ground in (theme.page, theme.row):
        assert contrast(theme.faint_ink, ground) >= 4.5


def test_neighbours_in_a_memory_bar_differ_in_lightness():
    order = ("weights", "gradient", "state", "activations", "logits", "transient")
    for index in (0, 1):
        for one, other in pairwise(order):
            assert contrast(PARTS[one][index], PARTS[other][index]) > 1.25, (one, other)


def test_cells_keep_numbers_to_full_precision():
    assert float(Cell(text="0.1 s", value=0.1 + 0.2).raw) == 0.1 + 0.2
    assert Cell.of(3).raw == "3"
    assert Cell.of("none").raw == "none"


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=12))
def test_a_floor_plan_fills_the_square_in_proportion(areas):
    areas = sorted(areas, reverse=True)
    boxes = squarify(areas)
    for area, (x, y, width, height) in zip(areas, boxes, strict=True):
        assert width * height == pytest.approx(area / sum(areas))
        assert x >= -1e-9
        assert y >= -1e-9
        assert x + width <= 1 + 1e-9
        assert y + height <= 1 + 1e-9
    for (ax, ay, aw, ah), (bx, by, bw, bh) in combinations(boxes, 2):
        across = min(ax + aw, bx + bw) - max(ax, bx)
        along = min(ay + ah, by + bh) - max(ay, by)
        assert min(across, along) <= 1e-9, "two rectangles overlap"


def test_a_floor_plan_has_the_largest_area_first():
    parts = [Part(kind="plain", label=str(a), amount=a, text="") for a in (1.0, 0.0, 8.0, 2.0)]
    drawn = floor_plan(parts, title="floor")
    assert [block.part.amount for block in drawn.blocks] == [8.0, 2.0, 1.0]


def test_what_is_better_the_more_there_is_goes_up():
    drawn = lay_out([point(1, -10.0), point(2, -30.0)], y_unit=1, title="", x_title="", y_title="")
    drawn = upside_down(drawn)
    low, high = drawn.marks
    assert length(high.y) < length(low.y)
    assert all(mark.on_front for mark in drawn.marks)
    assert {tick.text for tick in drawn.y_ticks} >= {"10", "20", "30"}
