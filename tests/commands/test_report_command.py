"""The command: a file, and a line about it."""

import json
import webbrowser

import pytest

import reported
from html_page import Page
from trainwright.documents.printing import Report


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "plan.json"
    Report(reported.profile_plan()).save(path)
    return path


def test_it_writes_the_page(run, plan, tmp_path):
    target = tmp_path / "page.html"
    done = run("report", str(plan), "-o", str(target), "--title", "Tuesday", "--date", "2026-11-21")
    assert done.code == 0
    page = Page(target.read_text(encoding="utf-8"))
    assert page.all("h1")[0][1] == "Tuesday"
    assert "2026-11-21" in [text.strip() for _, text in page.all("p")]
    assert "1 document" in done.out


def test_json_says_what_was_written(run, plan, tmp_path):
    target = tmp_path / "page.html"
    done = run("report", str(plan), str(plan), "-o", str(target), "--json")
    document = json.loads(done.out)
    assert document["kind"] == "report"
    assert document["size_bytes"] == target.stat().st_size
    assert [one["name"] for one in document["documents"]] == ["plan.json", "plan.json"]


def test_it_never_replaces_what_it_reads(run, plan):
    before = plan.read_bytes()
    done = run("report", str(plan), "-o", str(plan))
    assert done.code == 2
    assert plan.read_bytes() == before


def test_a_file_of_another_kind_is_refused(run, tmp_path):
    other = tmp_path / "other.json"
    other.write_text('{"kind": "diff"}', encoding="utf-8")
    done = run("report", str(other), "-o", str(tmp_path / "page.html"))
    assert done.code == 2
    assert not (tmp_path / "page.html").exists()


def test_without_a_name_the_page_lies_beside_its_document_and_can_be_opened(
    run, plan, tmp_path, monkeypatch
):
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {opened}\n', encoding="utf-8")
    browser.chmod(0o700)
    monkeypatch.setattr(webbrowser, "_tryorder", None)  # what an earlier test found
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    done = run("report", str(plan), "--open")
    assert done.code == 0
    page = plan.with_suffix(".html")
    assert opened.read_text(encoding="utf-8") == page.as_uri()
    assert f"wrote {page}" in done.err


def test_where_a_page_is_steers_no_terminal(run, plan):
    named = plan.with_name("\x1b[31mred\x07.json")
    named.write_bytes(plan.read_bytes())
    done = run("report", str(named))
    assert done.code == 0
    assert "\x1b" not in done.err + done.out
    assert r"\x1b[31mred\x07.html" in done.err


def test_a_report_that_no_browser_shows_says_so_and_is_written(run, plan, monkeypatch):
    monkeypatch.setattr(webbrowser, "_tryorder", None)  # what an earlier test found
    monkeypatch.setenv("BROWSER", "/nowhere/at-all %s")
    monkeypatch.setenv("PATH", "")
    done = run("report", str(plan), "--open")
    assert done.code == 0
    assert "found no browser" in done.err
    assert plan.with_suffix(".html").exists()
