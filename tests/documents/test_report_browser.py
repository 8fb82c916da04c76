"""The report page in a real browser."""

from __future__ import annotations

import csv

import pytest

import reported
import trainwright
from browser import needs_chromium
from trainwright.pages.gantt import DARK, LIGHT, rgb

pytestmark = [pytest.mark.browser, needs_chromium]
DOCUMENTS = {
    "model-plan": (reported.model_plan,),
    "model-estimate": (reported.model_estimate,),
    "model-sweep": (reported.model_sweep,),
    "plan": (reported.profile_plan,),
    "placement": (reported.placement,),
    "codesign": (reported.codesign,),
    "schedule": (reported.schedule,),
    "model-plan on pools": (reported.mixed_plan,),
    "what-if": (reported.what_if,),
    "improvement": (reported.improvement,),
    "validation": (reported.validation,),
    "model": (reported.model,),
    "fit": (reported.fit,),
    "machine-room": (reported.machine_room,),
    "verified": (reported.model_plan, reported.verification),
    "several": (reported.model_plan, reported.model_estimate, reported.profile_plan),
}

MARK = "document.querySelector('.mark[data-pick=\"%d\"]')"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("reports"), {}

    def write(name):
        if name not in made:
            made[name] = folder / f"{name}.html"
            page = trainwright.report(*(make() for make in DOCUMENTS[name]))
            page.save_html(made[name])
        return made[name]

    return write


CONTRASTS = """(() => {
  const channels = (color) => color.match(/[\\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => [r, g, b].map((c) => c / 255).map((c) => (
    c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4
  )).reduce((sum, c, k) => sum + c * [0.2126, 0.7152, 0.0722][k], 0);
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const color = channels(getComputedStyle(e).backgroundColor);
      if (color.length === 3 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const found = {};
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    const box = element.getBoundingClientRect(), isSvg = element instanceof SVGElement;
    if (!own || isSvg || !box.width || !box.height) continue;
    const one = luminance(channels(getComputedStyle(element).color));
    const other = luminance(behind(element));
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (ratio < 4.5) found[element.className || element.tagName] = ratio;
  }
  return found;
})()"""


@pytest.mark.parametrize("name", DOCUMENTS)
def test_it_opens_quietly_at_any_width_in_both_themes(browser, written, name):
    path = written(name)
    browser.open(path, height=900, width=1400)
    assert browser.requests == [path.as_uri()]
    for dark in (False, True):
        browser.prefer(dark=dark)
        background = browser.run("getComputedStyle(document.body).backgroundColor")
        assert background == f"rgb{rgb((DARK if dark else LIGHT).page)}"
        assert browser.run(CONTRASTS) == {}
    for width in (1400, 900, 390):
        browser.resize(width, 900)
        assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.messages == []


# Texts in bars that are cut by the bar's end, and bars beside each other that start elsewhere.
CUT = """[...document.querySelectorAll(".segment text")].filter((each) => {
  const bar = each.parentElement.querySelector("rect").getBoundingClientRect();
  return each.getClientRects().length && each.getBoundingClientRect().right > bar.right + 0.5;
}).map((each) => each.textContent)"""
STARTS = """[...document.querySelectorAll("section:has(.plot.named)")].map((section) => (
  [...section.querySelectorAll(".plot td > svg")].filter((bar) => !bar.closest(".beside"))
    .map((bar) => Math.round(bar.getBoundingClientRect().left))
)).filter((starts) => new Set(starts).size > 1)"""


@pytest.mark.parametrize("name", DOCUMENTS)
def test_unfolded_nothing_overflows_and_no_text_is_cut(browser, written, name):
    browser.open(written(name))
    browser.run(
        "document.querySelectorAll('.notes').forEach((each) => {"
        " each.append('docs/source/performance/performance_summary_of_everything.md'); })"
    )
    unfold(browser)
    for width in (1400, 900, 390):
        browser.resize(width, 900)
        browser.settle()
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.run(CUT) == []
        if width > 560:
            assert browser.run(STARTS) == []


# Each page at one width, wide and narrow in turn; at the other at length.
@pytest.mark.parametrize(
    ("name", "width"),
    [
        pytest.param(name, width, marks=[] if width == own else pytest.mark.papers)
        for number, name in enumerate(DOCUMENTS)
        for own in ((1400, 390)[number % 2],)
        for width in (1400, 390)
    ],
)
def test_axe_finds_nothing_folded_or_not(browser, written, name, width):
    browser.open(written(name), width=width)
    for dark in (False, True):
        browser.prefer(dark=dark)
        assert browser.barriers() == {}
    unfold(browser)
    assert browser.barriers() == {}


def unfolded(browser, path):
    """Open the page and all that is folded on it."""
    browser.open(path)
    unfold(browser)


def unfold(browser):
    browser.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")


def column(browser, key):
    script = f"""(() => {{
      const header = document.querySelector("#plan th[data-key={key}]");
      const rows = header.closest("table").tBodies[0].rows;
      return [...rows].map((row) => row.cells[header.cellIndex].dataset.value);
    }})()"""
    return browser.run(script)


def test_a_column_sorts_both_ways(browser, written):
    browser.open(written("model-plan"))
    given = list(map(float, column(browser, "forward_s")))
    for expected, sort in (
        (sorted(given), "ascending"),
        (sorted(given, reverse=True), "descending"),
    ):
        browser.run("document.querySelector('#plan th[data-key=forward_s] button').click()")
        assert list(map(float, column(browser, "forward_s"))) == expected
        header = "document.querySelector('#plan th[data-key=forward_s]')"
        assert browser.run(f"{header}.getAttribute('aria-sort')") == sort


def test_tables_are_copied_as_csv_with_bare_numbers(browser, written):
    document = reported.model_plan()
    browser.open(written("model-plan"))
    browser.run("document.querySelector('#plan button.copy').click()")
    browser.wait_until("window.copied !== undefined")
    copied = browser.run("window.copied")
    assert copied.endswith("\r\n")
    keys, *rows = csv.reader(copied.splitlines())
    assert len(rows) == len(document.ranks)
    first = dict(zip(keys, rows[0], strict=True))
    assert float(first["forward_s"]) == document.ranks[0].forward_s
    assert float(first["memory_bytes"]) == document.peak_memory_bytes_per_rank[0]


@pytest.mark.parametrize(
    ("text", "field"),
    [("=1+1", "'=1+1"), ("-3.5", "-3.5"), ("@x", "'@x"), ('a,"b', '"a,""b"'), ("-a", "'-a")],
)
def test_copied_text_is_no_formula(browser, written, text, field):
    browser.open(written("plan"))
    assert browser.run(f"csvField({text!r})") == field


def shown_pick(browser):
    return browser.run("document.querySelector('.pick:not([hidden])').innerText")


def test_a_plan_of_the_scatter_can_be_picked(browser, written):
    document = reported.model_plan()
    unfolded(browser, written("model-plan"))
    assert "the plan" in shown_pick(browser)
    centre = "{block: 'center', behavior: 'instant'}"
    browser.run(f"{MARK % 1}.scrollIntoView({centre})")
    x, y = browser.run(
        f"(() => {{ const b = {MARK % 1}.querySelector('.target')"
        ".getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
    )
    browser.mouse("mousePressed", x, y, button="left", clickCount=1)
    browser.mouse("mouseReleased", x, y, button="left", clickCount=1)
    assert f"{document.alternatives[0].slowdown - 1:+.1%}" in shown_pick(browser)
    pressed = [browser.run(f"{MARK % k}.getAttribute('aria-pressed')") for k in range(2)]
    assert pressed == ["false", "true"]


def test_marks_that_lie_on_each_other_are_picked_in_turn(browser, written):
    browser.open(written("codesign"))
    centre = "{block: 'center', behavior: 'instant'}"
    browser.run(f"{MARK % 1}.scrollIntoView({centre})")
    seen = set()
    x, y = browser.run(
        f"(() => {{ const b = {MARK % 1}.querySelector('.target')"
        ".getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
    )
    near = browser.run(f"""(() => {{
      const targets = [...document.querySelectorAll('.mark .target')];
      return targets.map((m) => m.getBoundingClientRect()).filter((b) => (
        Math.hypot(b.x + b.width / 2 - {x}, b.y + b.height / 2 - {y}) <= 11)).length;
    }})()""")
    for _ in range(near):
        browser.mouse("mousePressed", x, y, button="left", clickCount=1)
        browser.mouse("mouseReleased", x, y, button="left", clickCount=1)
        picked = "document.querySelector('.mark[aria-pressed=true]').dataset.pick"
        seen.add(browser.run(picked))
    assert len(seen) == near
    assert "1" in seen


def test_a_plan_can_be_picked_by_keyboard(browser, written):
    unfolded(browser, written("model-plan"))
    browser.run(f"{MARK % 1}.focus()")
    browser.key("Enter")
    document = reported.model_plan()
    assert f"{document.alternatives[0].slowdown - 1:+.1%}" in shown_pick(browser)


def test_the_theme_can_be_chosen_for_page_and_schedule(browser, written):
    browser.open(written("model-plan"))
    browser.run(
        "(select => { select.value = 'dark'; select.dispatchEvent(new Event('change')); })"
        "(document.getElementById('theme'))"
    )
    browser.settle()
    background = browser.run("getComputedStyle(document.body).backgroundColor")
    assert background == f"rgb{rgb(DARK.page)}"
    corner = browser.run("[...gantt.bars.getContext('2d').getImageData(1, 1, 1, 1).data]")
    assert tuple(corner[:3]) == rgb(DARK.page)


def test_a_page_without_a_schedule_changes_its_theme_too(browser, written):
    browser.open(written("plan"))
    browser.run(
        "(select => { select.value = 'dark'; select.dispatchEvent(new Event('change')); })"
        "(document.getElementById('theme'))"
    )
    background = browser.run("getComputedStyle(document.body).backgroundColor")
    assert background == f"rgb{rgb(DARK.page)}"


def middle_of_the_schedule(browser):
    browser.run(
        "document.documentElement.style.scrollBehavior = 'auto'; "
        "gantt.bars.scrollIntoView({block: 'center'})"
    )
    browser.run("new Promise((done) => setTimeout(done, 400))")  # a scroll must have come to rest
    return browser.run(
        "(() => { const b = gantt.bars.getBoundingClientRect(); "
        "return [b.x + b.width / 2, b.y + 60]; })()"
    )


def test_the_wheel_zooms_the_schedule_and_scrolls_the_page_when_all_is_shown(browser, written):
    browser.open(written("model-plan"))
    x, y = middle_of_the_schedule(browser)
    browser.mouse("mouseWheel", x, y, deltaX=0, deltaY=-300)
    low, high = browser.run("[gantt.from, gantt.to]")
    assert high - low < browser.run("gantt.whole") / 1.2
    browser.run("gantt.fit()")
    before = browser.run("scrollY")
    browser.mouse("mouseWheel", x, y, deltaX=0, deltaY=200)
    browser.wait_until(f"scrollY > {before}")
    assert browser.run("[gantt.from, gantt.to]") == [0, browser.run("gantt.whole")]


def test_a_wheel_that_scrolls_the_page_does_not_get_caught_in_the_schedule(browser, written):
    browser.open(written("model-plan"))
    x, y = middle_of_the_schedule(browser)
    browser.run("window.dispatchEvent(new Event('scroll'))")
    browser.mouse("mouseWheel", x, y, deltaX=0, deltaY=-200)
    assert browser.run("[gantt.from, gantt.to]") == [0, browser.run("gantt.whole")]


def test_memory_follows_the_cursor(browser, written):
    browser.open(written("model-plan"))
    x, _ = middle_of_the_schedule(browser)
    y = browser.run(
        "gantt.layout.sections[0].memory[1].y + 8 + gantt.bars.getBoundingClientRect().y"
    )
    browser.mouse("mouseMoved", x, y)
    words = browser.run("document.getElementById('tip').innerText")
    peak = reported.model_plan().peak_memory_bytes_per_rank[1]
    assert f"peak {peak / 2**30:.2f} GiB" in words
    assert "limit" in words


def test_everything_can_be_reached_by_keyboard(browser, written):
    unfolded(browser, written("model-plan"))
    reached = set()
    for _ in range(160):
        browser.call("Input.dispatchKeyEvent", type="keyDown", key="Tab", code="Tab")
        reached.add(
            browser.run(
                "document.activeElement.id || document.activeElement.getAttribute('class') "
                "|| document.activeElement.tagName"
            )
        )
    assert {"theme", "bars", "zoom-in", "fit", "copy", "mark", "copy-code", "scroll"} <= reached


def test_it_prints_everything_on_white(browser, written):
    browser.open(written("model-plan"), dark=True)
    assert browser.pdf().startswith(b"%PDF")
    browser.settle()
    assert browser.messages == []


def test_paper_keeps_short_tables_whole_and_every_total_in_its_column(browser, written):
    browser.open(written("model-plan"))
    browser.call("Emulation.setEmulatedMedia", media="print")
    browser.run("dispatchEvent(new Event('beforeprint'))")
    printed = browser.run("""(() => {
      const totals = [...document.querySelectorAll('.plot td.total')];
      totals.forEach((each) => { each.textContent = '1,141.08 GiB, over'; });
      return {
        picture: getComputedStyle(document.getElementById('pieces')).breakInside,
        tables: [...document.querySelectorAll('.table')].map((each) => [
          each.querySelectorAll('tbody tr').length, getComputedStyle(each).breakInside]),
        spills: totals.filter((each) => each.scrollWidth > each.clientWidth).length,
        totals: totals.length,
      };
    })()""")
    browser.run("dispatchEvent(new Event('afterprint'))")
    browser.call("Emulation.setEmulatedMedia", media="")
    assert printed["picture"] == "avoid"
    short = {kept for rows, kept in printed["tables"] if rows <= 8}
    long = {kept for rows, kept in printed["tables"] if rows > 8}
    assert short == {"avoid"}
    assert long <= {"auto"}
    assert printed["totals"] > 0
    assert printed["spills"] == 0


def test_paper_says_where_the_schedule_was_not_read_yet(browser, written):
    browser.open(written("model-plan"))
    browser.call("Emulation.setEmulatedMedia", media="print")
    said = "getComputedStyle(document.getElementById('pieces'), '::before').content"
    assert browser.run(said) == "none"
    browser.run("delete document.documentElement.dataset.ready")
    assert "print it again" in browser.run(said)
    browser.call("Emulation.setEmulatedMedia", media="")


def test_nothing_moves_for_those_who_ask_for_it(browser, written):
    browser.open(written("model-plan"))
    features = [{"name": "prefers-reduced-motion", "value": "reduce"}]
    browser.call("Emulation.setEmulatedMedia", features=features)
    assert browser.run("getComputedStyle(document.documentElement).scrollBehavior") == "auto"


def test_nothing_is_printed_over_the_picture(browser, written):
    browser.open(written("several"))
    browser.call("Emulation.setEmulatedMedia", media="print")
    browser.run("dispatchEvent(new Event('beforeprint'))")
    picture = "document.getElementById('pieces').getBoundingClientRect()"
    assert browser.run(f"{picture}.height") > 100
    assert browser.run(f"document.getElementById('scroller').clientHeight >= {picture}.height")
    browser.run("dispatchEvent(new Event('afterprint'))")
    browser.call("Emulation.setEmulatedMedia", media="")


def test_a_link_to_a_folded_section_opens_it(browser, written):
    browser.open(written("model-plan"))
    assert browser.run("document.querySelector('#network > details').open") is False
    browser.run("document.querySelector('nav a[href=\"#network\"]').click()")
    browser.wait_until("document.querySelector('#network > details').open")


def test_a_change_is_copied_as_a_whole_command(browser, written):
    browser.open(written("model-plan"))
    browser.run("document.querySelector('.changes .copy-command').click()")
    browser.wait_until("window.copied !== undefined")
    copied = browser.run("window.copied")
    options = browser.run("document.querySelector('.changes .copy-command').dataset.options")
    assert copied.startswith("trainwright plan ")
    assert copied.endswith(options)
    flags = [word for word in copied.split() if word.startswith("--")]
    assert len(flags) == len(set(flags))


def test_a_long_schedule_opens_on_its_warm_up_and_a_period(browser, tmp_path):
    options = {"cluster": "dgx-h100", "nodes": 1, "global_batch": 512, "sequence": 1024}
    run = trainwright.estimate("gpt2", pp=4, dp=2, micro_batch=1, **options)
    path = tmp_path / "long.html"
    trainwright.report(run).save_html(path)
    browser.open(path)
    browser.wait_until("document.documentElement.dataset.ready === 'yes'")
    assert browser.run("gantt.to") < 0.2 * browser.run("gantt.whole")
    browser.run("document.getElementById('fit').click()")
    assert browser.run("gantt.to") == browser.run("gantt.whole")
    browser.run("document.getElementById('open').click()")
    assert browser.run("gantt.to") < 0.2 * browser.run("gantt.whole")
