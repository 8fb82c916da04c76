"""Launch scripts of public repositories, and the arguments that their trainers got from bash."""

from __future__ import annotations

import json
import os
import re
import time

import pytest

from reference import needs_reference, reference
from trainwright.frameworks.shell import ScriptRun, Value, read_script


def scripts():
    """Cases with a recorded command; none, and so a visible skip, without the data."""
    if "TRAINWRIGHT_SHARED" not in os.environ:
        return []
    cases = json.loads((reference() / "jobs" / "truth.json").read_text())
    return [case for case in cases if "command" in case]


def read(case, *, given: bool = True) -> ScriptRun:
    with_ = case["with"] if given else {}
    path = reference() / "jobs" / case["file"]
    return read_script(
        path.read_text(),
        name=path.name,
        folder=path.parent,
        arguments=with_.get("args", ()),
        variables=with_.get("env", {}),
    )


def agree(words: tuple[Value, ...], recorded: list[str]) -> bool:
    """Whether words can come to the recorded ones: an unknown part is any text, an unset word
    that stands alone may be no word at all."""
    reached = {0}
    for word in words:
        pattern = "".join(re.escape(p) if isinstance(p, str) else ".*" for p in word.parts)
        following = {
            at + 1
            for at in reached
            if at < len(recorded) and re.fullmatch(pattern, recorded[at], re.DOTALL)
        }
        reached = following | (reached if word.is_unset else set())
    return len(recorded) in reached


@pytest.mark.parametrize("case", scripts(), ids=lambda case: case["file"][6:])
def test_a_trainer_gets_the_arguments_that_bash_gave_it(case) -> None:
    assert agree(read(case).trainer().arguments, case["command"])


@needs_reference
def test_few_arguments_stay_unknown_and_none_that_says_what_is_trained() -> None:
    paths = re.compile(r"path|file|save|load|dir|config|split|prompt|tokenizer|decay-tokens")
    for case in scripts():
        words = read(case).trainer().arguments
        flag = ""
        for word in words:
            text = word.text or ""
            flag = text if text.startswith("--") else flag
            # what is unknown is a path, a name with the date or the host in it, or an option list
            assert not word.unknowns or word.is_unset or paths.search(flag), (case["file"], flag)


@needs_reference
def test_scripts_are_read_without_what_they_ask_for() -> None:
    for case in scripts():
        run = read(case, given=False)
        assert run.trainer().arguments, case["file"]


@needs_reference
def test_a_script_is_read_in_a_tenth_of_a_second() -> None:
    cases = scripts()
    read(cases[0])
    for case in cases:
        # the least of three: the machine may be busy
        least_s = float("inf")
        for _ in range(3):
            start_s = time.process_time()
            read(case)
            least_s = min(least_s, time.process_time() - start_s)
        assert least_s < 0.1, case["file"]
