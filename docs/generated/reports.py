"""The dated reports of `benchmarks/reports`, one under the other."""

from __future__ import annotations

import re
from pathlib import Path

REPORTS = Path(__file__).parents[2] / "benchmarks" / "reports"


def reports_part() -> str:
    """Every report, its headings one level lower, newest question first by name."""
    return "\n".join(
        _lowered(path.read_text(encoding="utf-8")) for path in sorted(REPORTS.glob("*.md"))
    )


def _lowered(text: str) -> str:
    """Headings one level lower; lines of code that begin with `#` stay."""
    parts = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(
        part if part.startswith("```") else re.sub(r"^#", "##", part, flags=re.MULTILINE)
        for part in parts
    )
