import re
from xml.etree import ElementTree

import pytest
from hypothesis import given

import pictures
from strategies_schedule import schedules_with_costs
from trainwright.errors import UnsupportedFeature
from trainwright.pages.gantt import THEMES, MemoryUnit, contrast, label_ink
from trainwright.pages.schedule_report import MAX_BARS, gantt_svg
from trainwright.plans.schedule import ActionKind, ScheduleCosts
from trainwright.scheduling.families import FamilyRequest, generate
from trainwright.scheduling.simulate import critical_path, simulate
from trainwright.units import TimeUnit

SVG = "{http://www.w3.org/2000/svg}"


def elements(root, tag, css_class):
    found = root.iter(SVG + tag)
    return [e for e in found if css_class in e.get("class", "").split()]


def bars_of(root, rank):
    """Bars of a rank, as opposed to those of the legend."""
    row = next(group for group in root.iter(SVG + "g") if group.get("id") == f"rank-{rank}")
    return elements(row, "rect", "bar")


@given(schedules_with_costs())
def test_every_action_is_one_bar_on_the_row_of_its_rank(case):
    drawn = simulate(*case)
    root = ElementTree.fromstring(gantt_svg(drawn, critical=critical_path(drawn)))
    for rank in range(drawn.schedule.num_ranks):
        names = [bar.find(SVG + "title").text.split(":")[0] for bar in bars_of(root, rank)]
        assert names == [str(action) for action in drawn.schedule.order(rank)]


def test_bars_lie_where_their_times_say():
    drawn = pictures.timeline()
    root = ElementTree.fromstring(gantt_svg(drawn))
    rows = drawn.schedule.rows_of(2)
    bars = bars_of(root, 2)
    last = max(
        float(b.get("x")) + float(b.get("width")) for r in range(4) for b in bars_of(root, r)
    )
    scale = last / drawn.makespan_s
    for bar, start_s, end_s in zip(bars, drawn.start_s[rows], drawn.end_s[rows], strict=True):
        assert float(bar.get("x")) == pytest.approx(start_s * scale, abs=0.02)
        assert float(bar.get("width")) == pytest.approx((end_s - start_s) * scale, abs=0.02)


def test_the_class_of_a_bar_is_its_kind_and_chunk():
    drawn = pictures.timeline()
    root = ElementTree.fromstring(gantt_svg(drawn))
    classes = [bar.get("class") for bar in bars_of(root, 1)]
    stages = drawn.schedule.placement.stages_of_rank[1]
    expected = [f"bar {a.kind.name}{stages.index(a.stage)}" for a in drawn.schedule.order(1)]
    assert classes == expected


def test_the_critical_path_is_outlined():
    drawn = pictures.timeline()
    path = critical_path(drawn)
    outlined = elements(ElementTree.fromstring(gantt_svg(drawn, critical=path)), "rect", "critical")
    assert len(outlined) == len(path) + 1  # and one in the legend
    assert not elements(ElementTree.fromstring(gantt_svg(drawn)), "rect", "critical")


def test_overlapping_actions_share_the_height_of_their_row():
    first, forward, backward, last = bars_of(
        ElementTree.fromstring(gantt_svg(pictures.paired())), 0
    )
    assert forward.get("x") == backward.get("x")
    assert float(forward.get("height")) == float(first.get("height")) / 2
    assert float(backward.get("y")) == float(forward.get("y")) + float(forward.get("height"))
    assert last.get("height") == first.get("height")


def test_memory_has_a_curve_a_peak_and_a_limit_per_rank():
    drawn = pictures.timeline(limit_gib=50)
    root = ElementTree.fromstring(gantt_svg(drawn))
    assert len(elements(root, "path", "curve")) == 4
    assert len(elements(root, "circle", "peak")) == 4 + 1
    assert len(elements(root, "path", "limit")) == 4 + 1
    assert not elements(root, "text", "over")


def test_a_broken_limit_is_said_in_words():
    root = ElementTree.fromstring(gantt_svg(pictures.timeline(limit_gib=20)))
    words = [text.text for text in elements(root, "text", "over")]
    assert len(words) == 4
    assert all(text.endswith("over") for text in words)


def test_titles_are_escaped():
    root = ElementTree.fromstring(gantt_svg(pictures.timeline(), title="<script>\"&'</script>"))
    assert root.find(SVG + "title").text == "<script>\"&'</script>"
    assert not list(root.iter(SVG + "script"))


def test_the_picture_is_named_and_described():
    root = ElementTree.fromstring(gantt_svg(pictures.timeline(), title="mine"))
    named = {e.get("id") for e in (root.find(SVG + "title"), root.find(SVG + "desc"))}
    assert root.get("role") == "img"
    assert set(root.get("aria-labelledby").split()) == named
    assert "4 ranks · 8 microbatches · 192 actions" in root.find(SVG + "desc").text


def test_the_same_timeline_gives_the_same_bytes():
    drawn = pictures.timeline()
    assert gantt_svg(drawn) == gantt_svg(drawn)


@pytest.mark.parametrize("microbatches", [16, 64, 300])
def test_what_shows_no_numbers_fits_a_window_and_still_shows_its_bars(microbatches):
    request = FamilyRequest(num_ranks=8, num_microbatches=microbatches)
    schedule = generate("1f1b", request)
    drawn = simulate(schedule, ScheduleCosts.of(schedule.placement))
    text = gantt_svg(drawn)
    root = ElementTree.fromstring(text)
    narrowest = min(float(bar.get("width")) for bar in bars_of(root, 0))
    gap = float(re.findall(r"\.bar { stroke-width: ([\d.]+) }", text)[-1])
    assert gap <= narrowest / 3
    if len(elements(root, "text", "on")) < len(bars_of(root, 0)):
        assert float(root.get("width")) <= 1200


def test_more_bars_than_a_viewer_shows_are_refused():
    largest = pictures.timeline(family="1f1b", ranks=8, microbatches=208)
    assert largest.schedule.num_actions == 4992 <= MAX_BARS
    assert len(gantt_svg(largest)) < 1_200_000
    with pytest.raises(UnsupportedFeature, match="write HTML"):
        gantt_svg(pictures.timeline(family="1f1b", ranks=8, microbatches=209))


def test_activations_are_not_called_bytes():
    schedule = generate("gpipe", FamilyRequest(num_ranks=2, num_microbatches=3))
    drawn = simulate(schedule, ScheduleCosts.of(schedule.placement))
    text = gantt_svg(drawn, memory_unit=MemoryUnit.ACTIVATIONS)
    assert "peak 3 act." in text
    assert "3 B" not in text


def test_slots_are_not_called_seconds():
    schedule = generate("gpipe", FamilyRequest(num_ranks=2, num_microbatches=3))
    drawn = simulate(schedule, ScheduleCosts.of(schedule.placement))
    text = gantt_svg(drawn, time_unit=TimeUnit.SLOTS)
    assert "makespan 12 slots" in text
    assert "0 slots to 1 slots (1 slots)" in text
    assert ">time, slots<" in text
    assert "makespan 12 s" in gantt_svg(drawn)
    assert " s)" not in text


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
def test_words_and_marks_stand_out_in_both_themes(theme):
    assert contrast(theme.ink, theme.page) >= 7
    assert contrast(theme.faint_ink, theme.page) >= 4.5
    assert contrast(theme.faint_ink, theme.row) >= 4.5
    assert contrast(theme.limit, theme.row) >= 4.5
    for kind in ActionKind:
        for chunk in range(4):
            fill = theme.bar(kind, chunk, 4)
            assert contrast(label_ink(fill), fill) >= 4.5


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
def test_kinds_that_meet_differ_in_lightness(theme):
    for first, second in (("F", "I"), ("F", "W"), ("I", "W"), ("F", "R")):
        fills = theme.kind[ActionKind[first]], theme.kind[ActionKind[second]]
        assert contrast(*fills) >= 1.2
