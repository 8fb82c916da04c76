"""Result documents by type: what goes out, what comes back, what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.errors import Fault, InvalidInput
from trainwright.formats.document_json import decode, decode_document, encode, encode_compact
from trainwright.formats.json_text import scan_json
from trainwright.formats.records import AtLeast, NonEmpty


class Mood(StrEnum):
    GOOD = "good"
    BAD = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    name: str
    sizes: tuple[int, ...] = ()
    share: Annotated[float, AtLeast(0)] = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    kind: str = "answer"
    format_version: int = 2
    mood: Mood
    time_s: float | None = None
    limit_s: float | None
    parts: tuple[Part, ...] = ()
    first: Part | None = None
    options: dict[str, str] = field(default_factory=dict)
    grid: tuple[tuple[float, ...], ...] = ()
    done: bool = False
    content: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.parts) == 3:
            raise InvalidInput([Fault("parts", "three is a crowd"), Fault("parts[2]", "go")])


@dataclass(frozen=True, slots=True, kw_only=True)
class Other:
    kind: str = "other"
    format_version: int = 1
    values: Annotated[tuple[float, ...], NonEmpty()]


KINDS = {"answer": Answer, "other": Other}

finite = st.floats(allow_nan=False, allow_infinity=False)
part = st.builds(
    Part,
    name=st.text(max_size=5),
    sizes=st.lists(st.integers(), max_size=3).map(tuple),
    share=finite.map(abs),
)
answers = st.builds(
    Answer,
    mood=st.sampled_from(Mood),
    time_s=st.none() | finite,
    limit_s=st.none() | finite,
    parts=st.lists(part, max_size=2).map(tuple),
    first=st.none() | part,
    options=st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=3),
    grid=st.lists(st.lists(finite, max_size=2).map(tuple), max_size=2).map(tuple),
    done=st.booleans(),
    content=st.dictionaries(st.text(max_size=2), st.none() | finite | st.lists(st.integers())),
)


def faults_of(value, **more) -> list[str]:
    with pytest.raises(InvalidInput) as caught:
        decode_document(value, KINDS, source="doc.json", **more)
    assert caught.value.source == "doc.json"
    return list(map(str, caught.value.faults))


@given(answers)
def test_what_is_written_is_read_back(answer):
    for write in (encode, encode_compact):
        value = json.loads(json.dumps(write(answer), allow_nan=False))
        value.setdefault("kind", "answer")
        assert decode_document(value, KINDS) == answer


def test_keys_come_in_field_order_and_none_is_left_out():
    answer = Answer(mood=Mood.BAD, limit_s=None, first=Part(name="a", sizes=(1, 2)))
    assert json.dumps(encode(answer)) == (
        '{"kind": "answer", "format_version": 2, "mood": "bad", "parts": [], '
        '"first": {"name": "a", "sizes": [1, 2], "share": 1.0}, "options": {}, "grid": [], '
        '"done": false, "content": {}}'
    )


def test_the_compact_form_leaves_out_defaults():
    answer = Answer(mood=Mood.GOOD, limit_s=2.0, parts=(Part(name="a"),))
    assert encode_compact(answer) == {"mood": "good", "limit_s": 2.0, "parts": [{"name": "a"}]}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_lacks_is_our_own_mistake(value):
    with pytest.raises(AssertionError, match="finite"):
        encode(Answer(mood=Mood.GOOD, limit_s=value))


def test_a_value_that_no_document_holds_is_our_own_mistake():
    with pytest.raises(AssertionError, match="object"):
        encode(Answer(mood=Mood.GOOD, limit_s=None, content={"a": object()}))


def test_defaults_are_not_shared_between_documents():
    one, two = (decode_document({"kind": "answer", "mood": "good"}, KINDS) for _ in range(2))
    assert one == two
    assert one.options is not two.options


def test_unknown_keys_are_ignored():
    value = {"kind": "answer", "mood": "good", "novelty": [], "parts": [{"name": "a", "x": 1}]}
    assert decode_document(value, KINDS) == Answer(
        mood=Mood.GOOD, limit_s=None, parts=(Part(name="a"),)
    )


def test_null_is_no_value_only_where_a_value_is_optional():
    value = {"kind": "answer", "mood": None, "time_s": None, "first": None, "done": None}
    assert faults_of(value) == [
        "mood: must be a string, got null",
        "done: must be true or false, got null",
    ]


def test_integers_may_be_written_as_floats_and_floats_as_integers():
    value = {"kind": "answer", "mood": "good", "time_s": 3, "parts": [{"name": "", "sizes": [2.0]}]}
    answer = decode_document(value, KINDS)
    assert type(answer.time_s) is float
    assert type(answer.parts[0].sizes[0]) is int


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    by_format: tuple[tuple[str, float], ...]


def test_a_tuple_of_fixed_length_is_read_entry_by_entry():
    peaks = Peaks(by_format=(("bf16", 9e14), ("fp8", 2e15)))
    assert decode(Peaks, encode(peaks)) == peaks
    odd = {"by_format": [["bf16"], ["fp8", "fast"], "x"]}
    with pytest.raises(InvalidInput) as refused:
        decode(Peaks, odd)
    assert list(map(str, refused.value.faults)) == [
        "by_format[0]: must have 2 entries, got 1",
        'by_format[1][1]: must be a number, got "fast" (string)',
        'by_format[2]: must be an array, got "x" (string)',
    ]


def test_all_faults_are_named_at_once_in_document_order():
    value = {
        "kind": "answer",
        "done": 1,
        "parts": [{"name": 5, "share": -1}, 7, {"sizes": [1, 2.5, "3", True]}],
        "mood": "sad",
        "options": {"1": "a", "b c": 2},
        "grid": [[1, "x"], 3],
        "time_s": 10**400,
        "limit_s": math.nan,
        "format_version": "1",
        "content": [],
    }
    assert faults_of(value) == [
        "done: must be true or false, got 1 (number)",
        "parts[0].name: must be a string, got 5 (number)",
        "parts[0].share: must be >= 0, got -1",
        "parts[1]: must be an object, got 7 (number)",
        "parts[2].name: required field is missing",
        "parts[2].sizes[1]: must be an integer, got 2.5",
        'parts[2].sizes[2]: must be an integer, got "3" (string)',
        "parts[2].sizes[3]: must be an integer, got true (boolean)",
        'mood: must be one of "good", "bad", got "sad"',
        'options["b c"]: must be a string, got 2 (number)',
        'grid[0][1]: must be a number, got "x" (string)',
        "grid[1]: must be an array, got 3 (number)",
        "time_s: must be finite, got 100000000000… (401 digits)",
        "limit_s: must be finite, got NaN",
        'format_version: must be an integer, got "1" (string)',
        "content: must be an object, got [] (array)",
    ]


def test_faults_of_the_text_are_named_together_with_those_of_the_values():
    text = scan_json(b'{"kind": "other", "values": [], "x": NaN}')
    assert faults_of(text.value, text_faults=text.faults) == [
        "values: must have at least 1 entry, got 0",
        "x: must be finite, got NaN",
    ]


def test_rules_that_a_record_checks_itself_are_told_with_their_path():
    parts = [{"name": "a"}] * 3
    assert faults_of({"kind": "answer", "mood": "good", "parts": parts}) == [
        "parts: three is a crowd",
        "parts[2]: go",
    ]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (
            {},
            'kind: must be one of "answer", "other", got none; a profile or a config.json becomes '
            "a document where it is planned: trainwright plan doc.json -o plan.json",
        ),
        ({"kind": "plan"}, 'kind: must be one of "answer", "other", got "plan"'),
        ({"kind": 3}, 'kind: must be one of "answer", "other", got 3 (number)'),
        ([1], "document: must be a JSON object, got [...] (array)"),
    ],
)
def test_a_document_of_no_known_kind_is_refused(value, problem):
    assert faults_of(value) == [problem]


def test_a_version_from_the_future_is_refused_before_all_else():
    assert faults_of({"kind": "answer", "format_version": 3, "mood": 1}) == [
        "format_version: must be <= 2, got 3; a newer trainwright wrote this file"
    ]


def test_a_part_of_a_document_is_read_with_its_path():
    with pytest.raises(InvalidInput) as caught:
        decode(Part, {"sizes": [None]}, path="request.first", source="x")
    assert list(map(str, caught.value.faults)) == [
        "request.first.name: required field is missing",
        "request.first.sizes[0]: must be an integer, got null",
    ]
    with pytest.raises(InvalidInput, match=r"^request: must be an object, got 3 \(number\)$"):
        decode(Part, 3, path="request")


@given(st.recursive(st.none() | st.booleans() | finite | st.text(max_size=3), st.lists))
def test_any_value_in_any_field_is_read_or_refused(junk):
    sound = encode(replace(Answer(mood=Mood.GOOD, limit_s=1.0), first=Part(name="a")))
    for key in sound:
        if key != "content":
            try:
                assert isinstance(decode(Answer, sound | {key: junk}), Answer)
            except InvalidInput as error:
                assert all(fault.path.startswith(key) for fault in error.faults)
