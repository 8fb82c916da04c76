"""The site builds without a warning, needs no network, and can be read at any width."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from browser import chromium, needs_chromium

PAGES = ("index", "schedules", "cli-reference", "json-reference", "accuracy")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(request, tmp_path_factory):
    for module in ("sphinx", "furo", "myst_parser"):
        pytest.importorskip(module, reason="needs the extra [docs]")
    folder = tmp_path_factory.mktemp("site")
    docs = request.config.rootpath / "docs"
    options = ["-W", "--keep-going", "-q", "-b", "html", "-d", folder / "cache"]
    command = [sys.executable, "-m", "sphinx", *options, docs, folder / "html"]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder / "html"


def test_nothing_is_loaded_from_elsewhere(site):
    for page in site.glob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r'\ssrc="(https?:)?//', text), page.name
        assert not re.search(r'<link[^>]+href="(https?:)?//', text), page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", style.read_text(encoding="utf-8"))


def test_every_page_is_reached_from_the_index(site, request):
    index = (site / "index.html").read_text(encoding="utf-8")
    for page in request.config.rootpath.joinpath("docs").glob("*.md"):
        if page.stem != "index":
            assert f'href="{page.stem}.html"' in index, page.stem


def test_links_inside_the_site_lead_to_their_headings(site):
    anchors = {
        page.name: set(re.findall(r'\sid="([^"]+)"', page.read_text(encoding="utf-8")))
        for page in site.glob("*.html")
    }
    for page in site.glob("*.html"):
        for target in re.findall(r'href="([^":]*#[^"]+)"', page.read_text(encoding="utf-8")):
            name, _, anchor = target.partition("#")
            if name in anchors or not name:
                assert anchor in anchors[name or page.name], f"{page.name}: {target}"


@needs_chromium
@pytest.mark.browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_pages_fit_any_width_and_ask_nobody(site, dark):
    with chromium() as browser:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        browser.call("Emulation.setEmulatedMedia", features=[scheme])
        for page in PAGES:
            for width in (1280, 400):
                browser.resize(width, 900)
                browser.call("Page.navigate", url=(site / f"{page}.html").as_uri())
                browser.wait_until("document.readyState === 'complete'")
                assert browser.run("document.documentElement.scrollWidth") <= width, page
        color = browser.run("getComputedStyle(document.body).backgroundColor")
        brightness = sum(map(int, re.findall(r"\d+", color)[:3]))
        assert (brightness < 300) == dark
        assert not browser.messages
        assert all(url.startswith(("file:", "data:")) for url in browser.requests)
