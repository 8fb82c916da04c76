"""The page that `schedule --gantt` writes, in a real browser."""

from __future__ import annotations

import pytest

from browser import needs_chromium

pytestmark = [pytest.mark.browser, needs_chromium]


def test_the_page_shows_the_schedule_of_the_document(run, folder, browser):
    asked = ("schedule", "--family", "v-half", "--ranks", "4", "--microbatches", "8")
    document = run(*asked, "--gantt", "page.html", "--json").document
    browser.open(folder / "page.html")
    text = browser.run("document.body.innerText")
    assert f"makespan {document['makespan_s']:g} slots" in text
    assert f"peak {document['peak_activations']} act." in text
    assert browser.run("gantt.panels[0].numBars") == len(",".join(document["orders"]).split(","))
    assert browser.run("gantt.whole") == pytest.approx(document["makespan_s"])
    assert browser.run("formatTime(3)") == "3 slots"
    marked = browser.run("gantt.panels[0].marks.filter((m) => m & CRITICAL_BIT).length")
    assert marked == document["critical_path"]["num_actions"]


def test_a_page_of_seconds_says_so(run, folder, browser):
    times = ("--forward", "3ms", "--input-grad", "3ms", "--weight-grad", "2ms")
    asked = ("schedule", "--family", "1f1b", "--ranks", "3", "--microbatches", "4")
    run(*asked, *times, "--gantt", "page.html")
    browser.open(folder / "page.html")
    assert browser.run("formatTime(0.003)") == "3 ms"
    assert "slots" not in browser.run("document.body.innerText")
