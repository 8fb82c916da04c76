"""docs/schedules.md shows what the code draws."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs"
PAGE = (FOLDER / "schedules.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_picture_is_what_its_script_draws(tmp_path):
    runpy.run_path(str(FOLDER / "pictures" / "draw.py"))["main"](tmp_path)
    drawn = (tmp_path / "interleaved.svg").read_bytes()
    assert drawn == (FOLDER / "pictures" / "interleaved.svg").read_bytes(), (
        "run docs/pictures/draw.py, and look at what it drew"
    )


def test_every_named_file_exists():
    for name in re.findall(r"\]\((pictures/[^)]+)\)", PAGE):
        assert (FOLDER / name).is_file()
