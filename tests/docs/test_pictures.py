"""The photographs of pages show what the pages are today."""

from __future__ import annotations

import json
import sys

import pytest

pytest.importorskip("fastapi", reason="needs the extra [serve]")

from browser import needs_chromium

pytestmark = [pytest.mark.browser, pytest.mark.serve, needs_chromium]


def test_pictures_of_pages_are_current(request, tmp_path, monkeypatch, browser, client):
    pictures = request.config.rootpath / "docs" / "pictures"
    monkeypatch.setattr(sys, "path", [str(pictures), *sys.path])
    from photograph import STORED, drawn_by, photograph_live, photograph_report

    stored = json.loads(STORED.read_text(encoding="utf-8"))
    found = {
        "drawn_by": drawn_by(),
        "report": photograph_report(browser, tmp_path),
        "serve": photograph_live(browser, client.address),
    }
    assert found == stored, "run `make pages`, and look at the pictures"
