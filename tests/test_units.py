"""Quantities: what people write is what is meant, or is refused with a question."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.errors import InvalidInput
from trainwright.units import (
    GIB,
    TimeUnit,
    format_bytes,
    format_count,
    format_part,
    format_percent_up,
    format_seconds,
    parse_action_time,
    parse_bandwidth,
    parse_deadline,
    parse_duration,
    parse_hardware_bandwidth,
    parse_memory,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8GiB", 8 * GIB),
        ("8 GiB", 8 * GIB),
        ("80GB", 80e9),
        ("1073741824.0", GIB),
        ("1.5e10", 1.5e10),
        ("0.5TiB", 512 * GIB),
    ],
)
def test_memory_reads_units_and_bare_bytes(text: str, value: float) -> None:
    assert parse_memory(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("25GiB/s", 25 * GIB), ("800Gb/s", 100e9), ("400Gbps", 50e9), ("26843545600.0", 25 * GIB)],
)
def test_bandwidth_tells_bits_from_bytes(text: str, value: float) -> None:
    assert parse_bandwidth(text) == value


def test_bare_memory_below_a_mebibyte_asks_what_was_meant() -> None:
    with pytest.raises(InvalidInput, match='did you mean "80GiB"'):
        parse_memory("80")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("80Gb", "80GB or 80GiB"),
        (" 80 Gb ", "80GB or 80GiB"),
        ("80Gib", "80GiB"),
        ("8e9kb", "8e9kB or 8e9KiB"),
        ("80000000000b", "80000000000B"),
    ],
)
def test_memory_in_bits_asks_what_was_meant(text: str, meant: str) -> None:
    with pytest.raises(InvalidInput, match=rf"is in bytes, got bits, .*; did you mean {meant}\?"):
        parse_memory(text)


def test_a_bare_bandwidth_of_hardware_asks_what_was_meant() -> None:
    with pytest.raises(InvalidInput, match='did you mean "800Gb/s" or "800GB/s"'):
        parse_hardware_bandwidth("800")
    with pytest.raises(InvalidInput, match='inter: must be >= 1 MB/s, got "800B/s"'):
        parse_hardware_bandwidth("800B/s", name="inter")
    assert parse_hardware_bandwidth("25e9") == 25e9
    assert parse_hardware_bandwidth("1MB/s") == 1e6
    assert parse_bandwidth("800") == 800  # of a profile: any number is in bytes per second


@pytest.mark.parametrize("text", ["", "GiB", "8 parsecs", "nan", "inf", "-8GiB", "1e999", "0x10"])
def test_nonsense_memory_is_refused_with_its_field(text: str) -> None:
    with pytest.raises(InvalidInput, match="memory: "):
        parse_memory(text)


def test_durations_take_seconds_and_minutes() -> None:
    assert parse_duration("30s") == 30
    assert parse_duration("5min") == 300
    assert parse_duration("1.5") == 1.5


@pytest.mark.parametrize("text", ["30", "30.5", "3e1", " 30 ", "3599"])
def test_a_bare_deadline_below_an_hour_is_a_slip_however_it_is_spelled(text: str) -> None:
    with pytest.raises(InvalidInput, match=f'did you mean "{re.escape(text.strip())}d"'):
        parse_deadline(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("43200", 43200), ("3600", 3600), ("3e4", 3e4), ("30s", 30), ("0.5 d", 43200), ("0", 0)],
)
def test_other_deadlines_are_what_they_say(text: str, value: float) -> None:
    assert parse_deadline(text) == value


@given(st.floats(min_value=1e-12, max_value=1.0))
def test_a_printed_gap_never_claims_less_than_the_gap(fraction: float) -> None:
    printed = float(format_percent_up(fraction).removesuffix("%"))
    assert printed >= fraction * 100 * (1 - 1e-9)


@given(st.floats(min_value=2.0**20, max_value=2.0**60))
def test_printed_bytes_read_back_within_their_digits(value: float) -> None:
    assert math.isclose(parse_memory(format_bytes(value)), value, rel_tol=5.1e-3)


def test_seconds_print_with_a_readable_prefix() -> None:
    assert format_seconds(0.0025611) == "2.561 ms"
    assert format_seconds(0) == "0 s"


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("1", 1.0, TimeUnit.SLOTS),
        ("0", 0.0, TimeUnit.SLOTS),
        ("2.5", 2.5, TimeUnit.SLOTS),
        ("3.5ms", 3.5e-3, TimeUnit.SECONDS),
        ("2 s", 2.0, TimeUnit.SECONDS),
    ],
)
def test_a_time_without_a_unit_counts_slots(text: str, value: float, unit: TimeUnit) -> None:
    assert parse_action_time(text, name="forward") == (pytest.approx(value), unit)


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "1e999", "3 apples", ""])
def test_a_time_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="forward: must be"):
        parse_action_time(text, name="forward")


def test_slots_print_as_plain_numbers() -> None:
    assert TimeUnit.SLOTS.describe(57.0) == "57 slots"
    assert TimeUnit.SECONDS.describe(0.057) == "57 ms"


def test_a_part_of_a_step_is_printed_without_rounding_errors() -> None:
    assert format_part(3.3e-16, 1e-6) == "0 s"
    assert format_part(0.9e-9, 1.0) == "0 s"
    assert format_part(-1e-16, 0.0) == "0 s"
    assert format_part(2e-9, 1.0) == "2 ns"


@pytest.mark.parametrize(
    ("count", "noun", "words"),
    [(1, "device", "1 device"), (8, "device", "8 devices"), (2, "microbatch", "2 microbatches")],
)
def test_a_count_agrees_with_its_noun(count, noun, words):
    assert format_count(count, noun) == words
