"""Write docs/accuracy-figures.md from a folder of measured runs."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from generated.accuracy import accuracy_chart, accuracy_page

import trainwright

if __name__ == "__main__":
    found = trainwright.validate(sys.argv[1]).document
    docs = Path(__file__).parent
    (docs / "accuracy-figures.md").write_text(accuracy_page(found), encoding="utf-8")
    picture = docs / "pictures" / "charts" / "accuracy-figures.svg"
    picture.write_text(accuracy_chart(found), encoding="utf-8")
