"""The first example of docs/partitioning.md runs and says what the page says."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "partitioning.md").read_text(encoding="utf-8")


def test_the_first_example_runs():
    example, *_ = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    exec(example, {})
