import base64
import hashlib
import json
import re
import zlib

import numpy as np
import pytest
from hypothesis import given

import pictures
from html_page import Page
from strategies_schedule import schedules_with_costs
from trainwright.errors import InvalidInput
from trainwright.pages.gantt import SCRIPTS, GanttPanel, gantt_html, pack_panel
from trainwright.scheduling.simulate import simulate


@given(schedules_with_costs())
def test_unpacked_columns_give_the_times_back(case):
    drawn = simulate(*case)
    packed = pack_panel(pictures.panel(drawn))
    data = zlib.decompress(base64.b64decode(packed["columns"]))
    n = drawn.schedule.num_actions
    assert len(data) == 17 * n
    gaps = np.frombuffer(data, "<i4", n, 0)
    lengths = np.frombuffer(data, "<u4", n, 4 * n).astype(np.int64)
    for rank in range(drawn.schedule.num_ranks):
        rows = drawn.schedule.rows_of(rank)
        ends = np.cumsum(gaps[rows].astype(np.int64) + lengths[rows])
        tick_s = packed["tick"]
        assert ends * tick_s == pytest.approx(drawn.end_s[rows], abs=1.01 * tick_s)
    assert packed["tick"] <= drawn.makespan_s / 1e8 or drawn.makespan_s == 0
    assert np.array_equal(np.frombuffer(data, "<u4", n, 8 * n), drawn.schedule.actions[:, 1])
    assert np.array_equal(np.frombuffer(data, "<u4", n, 12 * n), drawn.schedule.actions[:, 2])
    marks = np.frombuffer(data, "u1", n, 16 * n)
    assert np.array_equal(marks & 7, drawn.schedule.actions[:, 0])
    critical = {step.row for step in pictures.panel(drawn).critical}
    assert set(np.flatnonzero(marks >> 5).tolist()) == critical


def test_a_hundred_thousand_bars_stay_small():
    drawn = pictures.timeline(ranks=64, microbatches=256)
    assert drawn.schedule.num_actions == 98_304
    assert len(gantt_html(pictures.panel(drawn))) < 400_000


def test_times_without_any_pattern_stay_within_the_budget():
    drawn = pictures.timeline(ranks=64, microbatches=256)
    lengths = np.random.default_rng(0).uniform(1e-3, 5e-3, drawn.schedule.num_actions)
    ends = np.concatenate([np.cumsum(lengths[drawn.schedule.rows_of(rank)]) for rank in range(64)])
    fields = {name: getattr(drawn, name) for name in drawn.__dataclass_fields__}
    noisy = type(drawn)(**{**fields, "start_s": ends - lengths, "end_s": ends})
    assert len(gantt_html(GanttPanel(timeline=noisy))) < 1_500_000


def test_the_page_asks_for_nothing_from_outside():
    text = gantt_html(pictures.panel(pictures.timeline()))
    page = Page(text)
    assert not re.search(r"""(src|href|action)\s*=\s*["']?\s*(https?:)?//""", text)
    assert not page.all("link")
    assert not page.all("img")
    assert all("src" not in attrs for attrs, _ in page.all("script"))


def test_the_policy_admits_exactly_the_style_and_the_scripts():
    page = Page(gantt_html(pictures.panel(pictures.timeline())))
    (policy,) = (m["content"] for m, _ in page.all("meta") if "http-equiv" in m)
    scripts = [text for attrs, text in page.all("script") if attrs.get("type") is None]
    inline = scripts + [text for _, text in page.all("style")]
    digests = {hashlib.sha256(text.encode()).digest() for text in inline}
    hashes = {f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests}
    assert len(scripts) == len(SCRIPTS)
    assert policy.startswith("default-src 'none';")
    assert set(re.findall(r"'sha256-[^']+'", policy)) == hashes
    assert "unsafe" not in policy


@pytest.mark.parametrize("title", ["</script><script>x()</script>", '"><b>&', "<!--<script>"])
def test_titles_are_escaped(title):
    page = Page(gantt_html(pictures.panel(pictures.timeline(), title)))
    assert len(page.all("script")) == len(SCRIPTS) + 1
    assert not page.all("b")
    ((_, heading),) = page.all("h1")
    assert heading == title
    (data,) = (text for attrs, text in page.all("script") if attrs.get("id") == "data")
    assert json.loads(data)["panels"][0]["title"] == title


def test_every_rank_is_in_the_table():
    drawn = pictures.timeline(limit_gib=50)
    page = Page(gantt_html(pictures.panel(drawn)))
    cells = [text.strip() for _, text in page.all("td")]
    assert len(cells) == 4 * 5
    peaks = [f"{peak / 2**30:.2f} GiB" for peak in drawn.peak_bytes]
    assert cells[3::5] == peaks
    assert set(cells[4::5]) == {"50.00 GiB"}


def test_compared_schedules_have_a_panel_each():
    first, second = pictures.timeline(), pictures.timeline(family="1f1b")
    page = Page(gantt_html(pictures.panel(first, "one"), pictures.panel(second, "two")))
    assert [text for _, text in page.all("h1")] == ["one", "two"]
    assert page.all("title")[0][1] == "one and two"


def test_the_same_panel_gives_the_same_bytes():
    shown = pictures.panel(pictures.timeline())
    assert gantt_html(shown) == gantt_html(shown)


def test_a_page_needs_a_panel():
    with pytest.raises(InvalidInput, match="at least 1 schedule"):
        gantt_html()
