"""Write the figures of docs/accuracy.md from a folder of measured runs."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from generated.accuracy import accuracy_chart, predicted_chart, with_figures

import trainwright

if __name__ == "__main__":
    found = trainwright.validate(sys.argv[1]).document
    page = Path(__file__).with_name("accuracy.md")
    page.write_text(with_figures(page.read_text(encoding="utf-8"), found), encoding="utf-8")
    charts = Path(__file__).parent / "pictures" / "charts"
    for name, draw in {"figures": accuracy_chart, "runs": predicted_chart}.items():
        (charts / f"accuracy-{name}.svg").write_text(draw(found), encoding="utf-8")
