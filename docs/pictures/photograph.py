"""Photographs of pages, for the README and the site: `report.png` and `serve.png`.

Beside each lies what it showed, `screens.json`, and the hash of the styles, scripts and templates
that drew it: a test makes the pages anew and compares, so a picture that is out of date is found.
It needs a Chromium, and the extra [serve] for the live page.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trainwright

STORED = Path(__file__).with_name("screens.json")
# The first command of the README.
PLAN = {"cluster": "dgx-h100", "nodes": 2, "global_batch": 512, "sequence": 8192}
LIVE = "?model=llama3-8b&cluster=dgx-h100&devices=1&batch=9&sequence=13&option.software=typical"
QUICK = "?model=gpt2&cluster=dgx-a100&devices=0&batch=4&sequence=9"
# What a reader sees of a page first.
_SHOWN = (
    "[...document.querySelectorAll('h1, h2, h3, nav a, .card .label')]"
    ".map((each) => each.textContent.trim().replace(/\\s+/g, ' '))"
)


class _Address:
    def __init__(self, text: str) -> None:
        self._text = text

    def as_uri(self) -> str:
        return self._text


def report_page(folder: Path) -> Path:
    """The page of the README's plan with what its choices buy, as the command line writes it."""
    from trainwright.documents.explanation import with_reasons
    from trainwright.documents.open import Result
    from trainwright.execution import Budget

    plan = trainwright.plan("llama3-8b", **PLAN)
    found = Result(with_reasons(plan.document, Budget()))
    page = folder / "report.html"
    trainwright.report(found).save_html(page)
    return page


def drawn_by() -> str:
    """The hash of all that gives pages their looks."""
    assets = Path(trainwright.__file__).parent / "pages" / "assets"
    looks = b"".join(path.read_bytes() for path in sorted(assets.iterdir()) if path.is_file())
    return hashlib.sha256(looks).hexdigest()


def shown(browser: Any) -> list[str]:
    """What the page in the browser says, without its figures: those change with every fit."""
    return [re.sub(r"[\d.]+", "0", text) for text in browser.run(_SHOWN)]


def photograph_report(browser: Any, folder: Path, picture: Path | None = None) -> list[str]:
    """The page of a plan; its words."""
    browser.open(report_page(folder), width=1280, height=860)
    browser.settle()
    if picture is not None:
        browser.screenshot(picture)
    return shown(browser)


def photograph_live(browser: Any, address: str, picture: Path | None = None) -> list[str]:
    """The live page, and for a picture at one question; the names of its controls."""
    browser.open(_Address(address + (LIVE if picture else QUICK)), width=1280, height=860)
    if picture is not None:
        browser.wait_until(
            "document.getElementById('answer').getAttribute('aria-busy') === 'false' "
            "&& !document.querySelector('iframe.coming')"
        )
        browser.settle()
        browser.screenshot(picture)
    labels = "[...document.querySelectorAll('label, #summary button, #summary a')]"
    found: list[str] = browser.run(f"{labels}.map((each) => each.textContent.trim())")
    return found


def main(folder: Path) -> None:
    """Take every picture, and store what each shows."""
    sys.path.append(str(Path(__file__).parents[2] / "tests"))
    from browser import chromium
    from served import served

    with chromium() as browser, TemporaryDirectory() as name, served() as client:
        said: dict[str, Any] = {
            "drawn_by": drawn_by(),
            "report": photograph_report(browser, Path(name), folder / "report.png"),
            "serve": photograph_live(browser, client.address, folder / "serve.png"),
        }
    STORED.write_text(json.dumps(said, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(__file__).parent)
