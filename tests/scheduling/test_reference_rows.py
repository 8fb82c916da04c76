"""Families against rows measured elsewhere: closed forms, other generators, published bubble rates.

Families with one possible order must give equal times; families that search must give no longer
span at no higher peak.
"""

from __future__ import annotations

from collections.abc import Container

import pytest

from published_schedules import SEARCHED, measured, profiled_bubble, rows
from reference import needs_reference


def worse_rows(file: str, *, peak: str, ranks: Container[int] = range(10**6)) -> list[tuple]:
    found = []
    for row in rows(file):
        if "error" in row or row["p"] not in ranks:
            continue
        span_s, held = measured(row)
        if row["family"] in SEARCHED:
            good = span_s <= row["span"] * (1 + 1e-9) and held <= row[peak]
        else:
            good = span_s == pytest.approx(row["span"], rel=1e-9) and held == row[peak]
        if not good:
            found.append((row["family"], row["p"], row["m"], row["params"], span_s, held))
    return found


@needs_reference
@pytest.mark.parametrize("ranks", [range(9), pytest.param(range(9, 65), marks=pytest.mark.slow)])
def test_closed_forms_at_unit_times_hold(ranks):
    assert worse_rows("closed_forms.json", peak="peak_chunks", ranks=ranks) == []


@needs_reference
@pytest.mark.parametrize("ranks", [range(5), pytest.param(range(5, 65), marks=pytest.mark.slow)])
def test_no_other_generator_gives_a_shorter_span_in_the_same_memory(ranks):
    """220 runs with transfers and unequal F, I, W, up to 64 ranks and 256 microbatches."""
    assert worse_rows("peer_runs.json", peak="peak_max", ranks=ranks) == []


@needs_reference
@pytest.mark.parametrize("name", ["1F1B", "ZB-1p", "ZB-2p"])
def test_bubble_rates_of_the_zero_bubble_paper_are_reached(name):
    """Qi et al., ICLR 2024, Table 5: profiled times, and memory per layer and token."""
    for row in rows("zero_bubble_table5.json"):
        rate, peak_bytes = profiled_bubble(row, name)
        if name == "1F1B":
            assert rate == pytest.approx(row["bubble_of_span_published"][name], abs=1e-4)
        else:
            assert rate <= row["bubble_of_span_reproduced"][name] + 1e-4
            limit = row["memory_limit_in_F"][name] * row["memory_delta"]["F"]
            assert peak_bytes <= limit * (1 + 1e-9)


@pytest.mark.slow
@needs_reference
def test_adaptive_v_is_no_longer_than_the_published_search_at_any_limit():
    """v_probe.json: every published V schedule within the limit, unequal F, I and W."""
    worse = []
    for row in rows("v_probe.json"):
        if "span" not in row or "solver" in row["source"].lower():
            continue
        probe = {
            "family": "Adaptive-V",
            "p": row["p"],
            "m": row["m"],
            "cost_FIW_comm": row["cost_FIW_comm"],
            "params": {"limit": row["limit"]},
        }
        span_s, held = measured(probe)
        if span_s > row["span"] * (1 + 1e-9) or held > row["limit"]:
            worse.append((row["source"], row["cost_FIW_comm"], row["limit"], span_s, row["span"]))
    assert worse == []
