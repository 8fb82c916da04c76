"""Write the questions of the regression corpus about profiles, placements, chips and schedules.

    python benchmarks/corpus/questions/make_profiles_and_schedules.py [FOLDER]

One file of JSON lines per subject. Every question states all options that could change its answer,
so that a changed default changes none; where an option has no way to say its default (a flag such
as `--compare`), it is absent. Everything random comes from a seed that is the question's own name:
adding a question moves no other.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from codesign_questions import codesign_questions
from placement_questions import placement_questions
from profile_questions import profile_questions
from question_lines import compact
from road_questions import road_questions
from schedule_questions import schedule_questions

SUBJECTS: Final = {
    "profile": profile_questions,
    "placement": placement_questions,
    "road": road_questions,
    "codesign": codesign_questions,
    "schedule": schedule_questions,
}


def write(folder: Path) -> None:
    """All files of this generator, each question on a line; names are unique."""
    seen: set[str] = set()
    for subject, questions in SUBJECTS.items():
        lines = []
        for made in questions():
            assert made["id"] not in seen, made["id"]
            seen.add(made["id"])
            lines.append(compact(made) + "\n")
        (folder / f"{subject}.jsonl").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent)
