"""The small pieces of every table."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.documents.printing import TEXT_WIDTH, ranges, to_text
from trainwright.documents.view import Facts, column, table_of, to_terminal, words


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ((), ""),
        ((5,), "5"),
        ((0, 1), "0, 1"),
        ((0, 1, 2), "0-2"),
        ((7, 3, 2, 1, 9, 10), "1-3, 7, 9, 10"),
        ((-3, -2, -1, 0), "-3-0"),
    ],
)
def test_ids_are_written_as_ranges(ids, text):
    assert ranges(ids) == text


@given(st.sets(st.integers(0, 60)))
def test_ranges_name_exactly_the_ids(ids):
    named = set()
    for part in ranges(ids).split(", ") if ids else []:
        first, _, last = part.partition("-")
        named |= set(range(int(first), int(last or first) + 1))
    assert named == ids


def shown(*cells: str, width: int = TEXT_WIDTH) -> str:
    made = table_of("title", (words("left"), column("right")), (cells,))
    return to_text(to_terminal([made]), width=width)


def test_lines_have_no_trailing_blanks_and_end_once():
    text = to_text(to_terminal([table_of("t", (words("a"),), ()), "x  "]))
    assert not re.search(r"[ \t]$", text, flags=re.MULTILINE)
    assert text.endswith("x\n")
    assert not text.startswith("\n")


def test_cells_are_shown_as_they_are():
    assert "[red]x[/b]" in shown("[red]x[/b]", ":smile:")
    assert ":smile:" in shown("[red]x[/b]", ":smile:")


def test_numbers_stay_whole_and_long_words_are_folded_not_cut():
    word = "x" * 150
    text = shown(word, "123.4 GiB")
    assert "123.4 GiB" in text
    assert text.count("x") == 150
    assert "…" not in text


@given(
    rows=st.lists(
        st.tuples(*(st.lists(st.text("ab-|µ", min_size=1, max_size=36), max_size=6),) * 3),
        min_size=1,
        max_size=3,
    ),
    width=st.sampled_from((40, 80, 100, 120, 200)),
)
def test_no_width_breaks_a_word_or_a_number(rows, width):
    said = [(" ".join(first), "12.34 GiB", *map(" ".join, rest)) for first, *rest in rows]
    columns = (words("change"), column("memory needed"), words("options"), words("risk"))
    text = to_text(to_terminal([table_of("t", columns, said)]), width=width)
    assert sorted(word for row in rows for cell in row for word in cell) == sorted(
        word for word in re.split(r"[\s;]+", text) if set(word) <= set("ab-|µ") and word
    )
    assert all(len(line) <= width for line in text.splitlines())
    assert text.count("12.34 GiB") == len(rows)


@given(st.integers(0, 40))
def test_a_line_of_text_is_not_broken_before_a_unit(length):
    text = to_text(
        to_terminal([f"  {'x' * length} takes 49.61 s of 77.21 GiB, and goes on"]), width=40
    )
    assert "49.61 s" in text
    assert "77.21 GiB" in text
    assert all(len(line) <= 40 for line in text.splitlines())


def test_facts_are_two_columns_under_their_title():
    text = to_text(to_terminal([Facts(title="chip", rows=(("area", "3 mm²"), ("clock", "1 GHz")))]))
    assert [line.split() for line in text.splitlines() if "mm²" in line or "GHz" in line] == [
        ["area", "3", "mm²"],
        ["clock", "1", "GHz"],
    ]
    assert text.startswith("chip\n")
