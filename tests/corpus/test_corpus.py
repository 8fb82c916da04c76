"""The regression corpus: its questions can be read, and its runner notices what changes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from corpus import run

RUNNER = Path(run.__file__)
# At least so many questions of each kind: what a change may lose without a word.
LEAST = {
    "model": 300,
    "mixed": 40,
    "stages": 10,
    "sweep": 15,
    "estimate": 150,
    "follow": 40,
    "calibrated": 20,
    "profile": 150,
    "placement": 80,
    "codesign": 80,
    "schedule": 200,
}
DOCUMENT = {
    "kind": "plan",
    "status": "optimal",
    "step_time_s": 1.25,
    "parallelism": {"tensor": 2, "data": 4},
    "alternatives": [{"step_time_s": 1.5}],
    "ranks": [{"forward_s": 0.1}],
    "considered": 120,
    "search_s": 0.3,
    "request": {"trainwright_version": "0.1.0", "num_devices": 8},
}


def answer(document: dict[str, object], exit_code: int = 0, err: str = "") -> dict[str, object]:
    kept = run.answer_of(exit_code, json.dumps(document), err, {})
    return {"id": "q", "commands": [kept], "cpu_s": 0.1}


def changed_keys(**changes: object) -> list[str]:
    new = answer({**DOCUMENT, **changes})
    return [difference.key for difference in run.differences("q", answer(DOCUMENT), new)]


def test_every_question_has_a_name_of_its_own_and_each_group_is_large_enough():
    questions = run.read_questions()
    counts = Counter(question.group for question in questions)
    assert len({question.name for question in questions}) == len(questions)
    assert all(question.name.startswith(f"{question.group}/") for question in questions)
    assert {group: n for group, n in LEAST.items() if counts[group] < n} == {}


def test_two_questions_of_one_name_are_refused(tmp_path):
    line = '{"id": "a/b", "argv": ["catalog"]}\n'
    (tmp_path / "a.jsonl").write_text(line * 2)
    with pytest.raises(ValueError, match="a/b"):
        run.read_questions(tmp_path)


def test_every_question_has_a_stored_answer_and_no_answer_is_left_over():
    names = {question.name for question in run.read_questions()}
    assert names == set(run.read_answers())


@pytest.mark.parametrize(
    ("change", "keys"),
    [
        ({"step_time_s": 1.25 * (1 + 1e-9)}, ["rest", "step_time_s"]),
        ({"status": "gap"}, ["rest", "status"]),
        ({"parallelism": {"tensor": 4, "data": 2}}, ["decision"]),
        ({"alternatives": []}, ["alternatives"]),
        ({"ranks": [{"forward_s": 0.1001}]}, ["rest"]),
        ({"request": {"num_devices": 16}}, ["request"]),
        ({"new_key": "a word"}, ["rest"]),
    ],
)
def test_a_changed_answer_is_noticed(change, keys):
    assert changed_keys(**change) == keys


@pytest.mark.parametrize(
    "change",
    [
        {"search_s": 9.0},
        {"considered": 7},
        {"step_time_s": 1.25 * (1 + 1e-15)},
        {"ranks": [{"forward_s": 0.1 * (1 + 1e-15)}]},
        {"request": {"num_devices": 8, "trainwright_version": "0.2.0"}},
    ],
)
def test_effort_versions_and_the_last_bit_are_no_part_of_an_answer(change):
    assert changed_keys(**change) == []


def test_another_effort_is_told_apart():
    new = answer({**DOCUMENT, "considered": 7})
    (found,) = run.differences("q", answer(DOCUMENT), new, effort=True)
    assert (found.key, found.stored, found.new) == ("effort", 120, 7)


def test_another_refusal_and_a_missing_answer_are_noticed():
    before, now = answer({}, 2, "error: tp: 3"), answer({}, 2, "error: tp: 4")
    assert [found.key for found in run.differences("q", before, now)] == ["error"]
    assert [found.key for found in run.differences("q", None, now)] == ["answer"]


def test_an_exception_covers_its_keys_only_and_needs_a_reason(tmp_path):
    path = tmp_path / "exceptions.toml"
    path.write_text('[[exception]]\nquestion = "a/*"\nkeys = ["decision"]\nreason = "a tie"\n')
    (exempt,) = run.read_exceptions(path)
    tie = run.Difference(question="a/b", key="0:decision", stored="x", new="y")
    assert exempt.covers(tie)
    assert not exempt.covers(run.Difference(question="a/b", key="status", stored="x", new="y"))
    path.write_text('[[exception]]\nquestion = "a/*"\nkeys = ["decision"]\nreason = ""\n')
    with pytest.raises(ValueError, match="without a reason"):
        run.read_exceptions(path)


@pytest.mark.slow
def test_stored_questions_are_answered_as_stored():
    """Cheap ones of three kinds, through the runner as it is called; CPU is not judged."""
    only = ("estimate/option/lora", "mixed/options/nodes", "model/refused/two-faults")
    words = [word for name in only for word in ("--only", name)]
    done = subprocess.run(
        [sys.executable, RUNNER, "--no-start-up", *words], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 questions: 3 as stored, 0 differences" in done.stdout
