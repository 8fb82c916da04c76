"""The dated reports of `benchmarks/reports`: a page each for each build, and their list."""

from __future__ import annotations

import shutil
from pathlib import Path

REPORTS = Path(__file__).parents[2] / "benchmarks" / "reports"


def reports_part() -> str:
    """The question of each report, with a link to its page, by name and date of its file."""
    rows, names = [], []
    for path in sorted(REPORTS.glob("*.md")):
        title = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        rows.append(f"- [{title}](reports/{path.name}), {path.stem.rpartition('_')[2]}")
        names.append(f"reports/{path.stem}")
    tree = ["```{toctree}", ":hidden:", "", *names, "```"]
    return "\n".join((*rows, "", *tree, ""))


def write_reports(docs: Path) -> None:
    """The reports as they are, into a folder that is made anew."""
    folder = docs / "reports"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for path in REPORTS.glob("*.md"):
        shutil.copy(path, folder)
