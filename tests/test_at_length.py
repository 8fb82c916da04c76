"""Tests that are left to the longer runs are there, under the names by which they are left."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.parametrize("listed", ["variants.txt", "at_length.txt"])
def test_every_test_that_is_left_to_the_longer_runs_exists(listed: str) -> None:
    names = (HERE / listed).read_text(encoding="utf-8").splitlines()
    assert names == sorted(set(names))
    for name in names:
        path, *_, test = name.split("::")
        function = re.escape(test.partition("[")[0])
        text = (HERE / path).read_text(encoding="utf-8")
        assert re.search(rf"^ *def {function}\(", text, re.MULTILINE), name
