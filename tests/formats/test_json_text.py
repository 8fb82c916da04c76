"""Strict JSON text: what is refused, and in which words."""

from __future__ import annotations

import gc
import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from random_cases import cases
from trainwright.errors import InvalidInput
from trainwright.formats.json_text import (
    Inner,
    Key,
    parse_json,
    quote,
    scan_json,
    show_path,
    show_typed,
    show_value,
)

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=6
)


def refusal(data: bytes) -> list[str]:
    with pytest.raises(InvalidInput) as caught:
        parse_json(data, source="a.json", what="profile")
    assert caught.value.source == "a.json"
    return list(map(str, caught.value.faults))


@cases(50)
@given(st.dictionaries(st.text(max_size=3), json_values, max_size=3))
def test_sound_text_is_read_as_the_standard_library_reads_it(value):
    assert parse_json(json.dumps(value).encode()) == value
    assert parse_json(json.dumps(value, ensure_ascii=False, indent=2).encode()) == value


@given(st.binary())
def test_any_bytes_are_an_object_or_invalid_input(data):
    try:
        assert isinstance(parse_json(data), dict)
    except InvalidInput as error:
        assert error.faults


@given(st.text(alphabet='{}[]",:0123456789eE+-.ntrufals \n\\uD8'))
def test_nearly_json_is_an_object_or_invalid_input(text):
    try:
        assert isinstance(parse_json(text.encode()), dict)
    except InvalidInput as error:
        assert error.faults


@pytest.mark.parametrize(
    ("data", "got"),
    [
        (b"", "an empty file"),
        (b"\xef\xbb\xbf", "an empty file"),
        (b"[]", "[] (array)"),
        (b"null", "null"),
        (b"-1.5", "-1.5 (number)"),
        (b"NaN", "NaN (number)"),
        (b'"text"', '"text" (string)'),
        (b'{"a": 1,\n "b": ]}', "text that is not JSON at line 2, column 7 (Expecting value)"),
        (b'{"a": 1} {}', "text that is not JSON at line 1, column 10 (Extra data)"),
        (b'{"a": [1, 2', "text that breaks off at line 1, column 12"),
        (b'{"a": \n"never closed', "text that breaks off at line 2, column 1"),
        (b'{"a": "\xff"}', "text that is not UTF-8 (invalid start byte at line 1, byte 8)"),
        (
            b'{\n"a": "\xc3"}',
            "text that is not UTF-8 (invalid continuation byte at line 2, byte 7)",
        ),
        ("{}".encode("utf-16"), "text that is not UTF-8 (invalid start byte at line 1, byte 1)"),
    ],
)
def test_what_is_no_object_is_said_with_line_and_column(data, got):
    assert refusal(data) == [f"profile: must be a JSON object, got {got}"]


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":'])
def test_absurd_nesting_is_refused(opening):
    assert refusal((opening * 100_000).encode()) == [
        "profile: must be a JSON object, got arrays or objects nested too deeply"
    ]


def test_a_byte_order_mark_is_let_pass():
    assert parse_json(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


@pytest.mark.parametrize("zeros", [309, 400, 4000, 5000])
def test_integers_beyond_floats_are_faults_however_long(zeros):
    """Whoever computes with one would overflow, so no reader ever sees it."""
    (fault,) = refusal(('{"b": 7, "a": [-1' + "0" * zeros + "]}").encode())
    assert fault.startswith("a[0]: must be ")
    largest = int(sys.float_info.max)
    assert parse_json(f'{{"a": {largest}, "{"1" * 400}": 7}}'.encode())["a"] == largest


def test_constants_are_faults_at_their_paths():
    assert refusal(b'{"a": [1, NaN, {"b c": -Infinity}], "d": Infinity, "e": 1e999}') == [
        "a[1]: must be finite, got NaN",
        'a[2]["b c"]: must be finite, got -Infinity',
        "d: must be finite, got Infinity",
        "e: must be finite, got Infinity",
    ]


def test_repeated_keys_are_counted_at_every_depth():
    assert refusal(b'{"a": {"x": 1, "y": 2, "x": 3, "x": 4}, "b": [{"": 1, "": 1}], "a": 0}') == [
        "a: must appear once in its object, got 2 entries",
        'b[0][""]: must appear once in its object, got 2 entries',
    ]


def test_many_distinct_keys_with_one_repeated_take_no_quadratic_time():
    keys = ", ".join(f'"k{i}": 0' for i in range(50_000))
    assert len(refusal(f'{{{keys}, "k7": 1}}'.encode())) == 1


def test_half_a_surrogate_pair_is_a_fault_and_a_whole_one_is_text():
    assert refusal(rb'{"a": "x\ud83d", "\udc00": 1}') == [
        "a: must be valid Unicode text, got half a surrogate pair",
        '["\\udc00"]: must be valid Unicode text, got half a surrogate pair',
    ]
    assert parse_json(rb'{"a": "\ud83d\ude00"}') == {"a": "😀"}


def test_a_reader_gets_the_value_together_with_the_faults_of_the_text():
    text = scan_json(b'{"a": NaN, "b": 2}')
    assert text.value["b"] == 2
    assert [show_path(fault.path) for fault in text.faults] == ["a"]


def test_the_garbage_collector_is_left_as_it_was():
    assert gc.isenabled()
    with pytest.raises(InvalidInput):
        parse_json(b"[")
    assert gc.isenabled()


def test_paths_are_printed_as_code_would_reach_them():
    assert (
        show_path(("nodes", 3, "TMPCs", Key("two"), 0, "p q")) == 'nodes[3].TMPCs["two"][0]["p q"]'
    )
    assert show_path(("a", "k" * 100)) == 'a["' + "k" * 60 + '…"]'
    assert show_path(("request", Inner("stages[0].layers"))) == "request.stages[0].layers"


def test_values_are_printed_short_and_printable():
    assert show_value("x" * 100) == '"' + "x" * 60 + '…"'
    assert show_value(10**70) == "100000000000… (71 digits)"
    assert show_typed(False) == "false (boolean)"
    assert show_typed({"a": 1}) == "{...} (object)"
    assert quote("\ud800\n") == '"\\ud800\\n"'
