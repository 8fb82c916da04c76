"""The table of docs/schedules.md, held against what is generated."""

from __future__ import annotations

import re
from math import ceil
from pathlib import Path

import pytest

from trainwright.plans.schedule import ScheduleCosts
from trainwright.scheduling.families import FAMILIES, FamilyRequest, generate
from trainwright.scheduling.simulate import simulate

PAGE = Path(__file__).parents[2] / "docs" / "schedules.md"
_ROW = re.compile(r"^\| (`[^|]+`) \| ([^|]+) \| ([^|]+) \| ([^|]+) \| [^|]+ \|$", re.MULTILINE)

# What each cell says of p ranks, m microbatches, v chunks and k activations.
BUBBLES = {
    "3(p-1)": lambda p, m, v, k: 3 * (p - 1),
    "2(p-1)": lambda p, m, v, k: 2 * (p - 1),
    "2(p-1) + (p-g)(v-1)": lambda p, m, v, k: 2 * (p - 1) + (p - ceil(p / 2)) * (v - 1),
    "p-1": lambda p, m, v, k: p - 1,
    "p-1, less with overlap": lambda p, m, v, k: p - 1,
    "0": lambda p, m, v, k: 0,
    "at most 5p-7 (5p-5 if p mod 3 = 1; p = 2: 4)": lambda p, m, v, k: (
        4 if p == 2 else 5 * p - (5 if p % 3 == 1 else 7)
    ),
    "at most 4p-5 (4p-7 if 3 divides p)": lambda p, m, v, k: 4 * p - (5 if p % 3 else 7),
    "at most 3p-7 (odd p: 3p-4; p = 2: 0)": lambda p, m, v, k: (
        0 if p == 2 else 3 * p - (4 if p % 2 else 7)
    ),
    "6p-1-3k up to k = 2p-2": lambda p, m, v, k: 6 * p - 1 - 3 * k,
    "at most p-1 at k = vp (v = 2: 0)": lambda p, m, v, k: 0 if v == 2 else p - 1,
}
PEAKS = {
    "m": lambda p, m, v, k: m,
    "vm": lambda p, m, v, k: v * m,
    "p": lambda p, m, v, k: p,
    "2p": lambda p, m, v, k: 2 * p,
    "vp": lambda p, m, v, k: v * p,
    "2p-1": lambda p, m, v, k: 2 * p - 1,
    "2p+1": lambda p, m, v, k: 2 * p + 1,
    "p(v+1)-1": lambda p, m, v, k: p * (v + 1) - 1,
    "g(v-1)+2p-1": lambda p, m, v, k: p * (v - 1) + 2 * p - 1,  # g = p where p divides m
    "g(v-1)+p, g = ceil(p/2)": lambda p, m, v, k: ceil(p / 2) * (v - 1) + p,
    "2 floor(2p/3) + 2": lambda p, m, v, k: 2 * (2 * p // 3) + 2,
    "2 floor((p+4)/3)": lambda p, m, v, k: 2 * ((p + 4) // 3),
    "2 floor(p/2) + 2": lambda p, m, v, k: 2 * (p // 2) + 2,
    "at most k": lambda p, m, v, k: k,
}
TEXT = PAGE.read_text(encoding="utf-8")
GROUPED = ("interleaved", "depth-first", "gis", "gis-h")
ROWS = {
    name: cells for names, *cells in _ROW.findall(TEXT) for name in re.findall(r"`([^`]+)`", names)
}


# Their figures are held against orders in test_closed_forms.
BESIDE = set(re.findall(r"^\| `([^`|]+)` \| [^|]+ \| [^|]+ \| [^|]+ \|$", TEXT, re.MULTILINE))


def test_the_tables_have_a_row_for_every_family():
    assert set(ROWS) | BESIDE == set(FAMILIES)
    assert {family.name for family in FAMILIES.values() if not family.is_plain} <= BESIDE


def sizes(name: str, chunks: str, p: int):
    """Microbatches, chunks and limits that a row speaks of."""
    group = ceil(p / 2) if name == "gis-h" else p
    least = -(-2 * p // group) * group
    counts = (1, 2, 3) if chunks.startswith("v") else (int(chunks[0]),)
    for m in (least, least + (group if name in GROUPED else 1)):
        for v in (2, 3) if name == "wave" else counts:
            if name == "adaptive-v":
                yield from ((m, v, k) for k in range(2 * ((p + 4) // 3), 2 * p - 1))
            else:
                yield m, v, v * p


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("p", range(2, 10))
def test_the_table_says_what_is_generated(name, p):
    chunks, bubble, peak = ROWS[name]
    for m, v, k in sizes(name, chunks, p):
        limit = k if name in ("adaptive-v", "wave") else None
        request = FamilyRequest(
            num_ranks=p, num_microbatches=m, virtual_stages=v, max_activations=limit
        )
        schedule = generate(name, request)
        timeline = simulate(schedule, ScheduleCosts.of(schedule.placement))
        idle = timeline.span_s - timeline.work_by_rank_s.max()
        held = max(schedule.peak_activations)
        said, most = BUBBLES[bubble](p, m, v, k), PEAKS[peak](p, m, v, k)
        assert idle <= said if bubble.startswith("at most") else idle == said, (m, v, k)
        assert held <= most if peak.startswith("at most") else held == most, (m, v, k)


def test_pictures_of_families_are_those_that_the_page_shows():
    """So that drawing them again leaves no file that nobody asked for."""
    said = PAGE.read_text(encoding="utf-8")
    shown = set(re.findall(r"\(pictures/families/([\w-]+)\.svg\)", said))
    stored = {path.stem for path in (PAGE.parent / "pictures" / "families").glob("*.svg")}
    assert stored == shown <= FAMILIES.keys()
