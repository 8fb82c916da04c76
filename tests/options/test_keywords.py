"""A keyword that a verb does not know is refused, and the nearest one is named."""

from __future__ import annotations

import inspect
import math
import re
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import trainwright
from trainwright.commands.main import COMMANDS
from trainwright.errors import InvalidInput
from trainwright.options.table import ROWS, read, rows_of_command
from trainwright.options.tool_rows import ARGUMENTS

CALLS = {
    "plan": {"cluster": "dgx-h100"},
    "sweep": {"cluster": "dgx-h100", "devices": "8..16"},
    "estimate": {"cluster": "dgx-h100"},
    "codesign": {"devices": 64},
}


@pytest.mark.parametrize(
    ("verb", "name", "nearest"),
    [
        ("plan", "zeros", "zero"),
        ("plan", "device", "devices"),
        ("sweep", "objectives", "objective"),
        ("estimate", "microbatch", "micro_batch"),
        ("codesign", "max_areas", "max_area"),
    ],
)
def test_an_unknown_keyword_is_refused_with_the_nearest(verb, name, nearest):
    problem = f'{name}: is no option of {verb}; did you mean "{nearest}"?'
    with pytest.raises(InvalidInput, match=re.escape(problem)):
        getattr(trainwright, verb)("gpt2", **CALLS[verb], **{name: 1})


# Words of Python itself, which no parameter may have, or would hide.
OF_PYTHON = {"from": "source", "set": "figures", "json": "as_json"}


# In Python alone: nouns, which no shell has, and texts where a shell has files.
BESIDE_THE_TABLE = {
    "codesign": {"die", "energy", "extras", "least_area_share", "ranges"},
    "calibrate": {"logs"},
    "capture": {"command", "limit_s"},
}
# A command by another name in Python, where its own is a module; a sweep is a plan in a shell.
CALLED = {"whatif": "what_if", "model": "describe_model", "profile": "profile_model"}
SHELL = {"sweep": "plan"}


@pytest.mark.parametrize("verb", [*COMMANDS, "sweep"])
def test_an_option_has_one_name_with_dashes_and_underscores(verb):
    rows = rows_of_command(SHELL.get(verb, verb))
    for row in rows:  # a switch off is its contrary, given False
        spelled = row.flag.removeprefix("no-") if row.reader.given is False else row.flag
        assert row.name == OF_PYTHON.get(spelled, spelled.replace("-", "_"))
    made = getattr(trainwright, CALLED.get(verb, verb), None)
    if inspect.isfunction(made):
        known = {row.name for row in rows} | {
            each.name for each in ARGUMENTS.get(SHELL.get(verb, verb), ())
        }
        taken = inspect.signature(made).parameters.keys()
        assert taken - known - {"budget"} <= BESIDE_THE_TABLE.get(verb, set())


def test_a_name_of_an_option_is_not_the_name_of_a_field():
    for verb, name in (("plan", "zero_stage"), ("plan", "no_recompute"), ("codesign", "clock_hz")):
        with pytest.raises(InvalidInput, match=f"{name}: is no option of {verb}"):
            read(verb, {name: 1})


def test_a_time_limit_is_asked_for_as_a_budget():
    with pytest.raises(InvalidInput, match=re.escape("give budget=Budget(time_limit_s=30)")):
        trainwright.plan("gpt2", **CALLS["plan"], time_limit="30s")


def test_a_model_that_is_neither_a_name_nor_a_path_is_refused():
    with pytest.raises(InvalidInput, match="got dict"):
        trainwright.plan({"model_type": "gpt2"}, **CALLS["plan"])


def test_every_unknown_keyword_is_named():
    with pytest.raises(InvalidInput) as refused:
        trainwright.codesign("gpt2", devices=64, qqq=1, max_areas=60)
    assert [fault.path for fault in refused.value.faults] == ["qqq", "max_areas"]


def test_a_single_text_is_one_of_those_that_may_be_several():
    assert read("plan", {"freeze": "embedding"}) == read("plan", {"freeze": ("embedding",)})


def test_numbers_and_arrays_of_numpy_are_taken_as_those_of_python():
    given = {"expert_imbalance": np.float64(1.5), "expert_loads": np.array([3.0, 1.0])}
    assert read("estimate", given) == {"expert_imbalance": 1.5, "expert_loads": (3.0, 1.0)}


STRANGE = (object(), {"a": 1}, {1, 2}, [1, 2], (None,), b"x", math.nan, math.inf, 10**30, True)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.flag)
def test_a_value_of_no_sort_that_an_option_takes_is_refused_by_its_name(row):
    for value in STRANGE:
        with suppress(InvalidInput):
            row.value(value)
    for value in (object(), b"x"):
        with pytest.raises(InvalidInput, match=rf"^{row.flag}: "):
            row.value(value)


@pytest.mark.parametrize(
    "given",
    [
        {"precision": ["bf16"]},
        {"recompute": [1, 2]},
        {"offload": [1]},
        {"sequence_parallel": "yes"},
        {"mapping": 5},
        {"tp": math.nan},
    ],
    ids=str,
)
def test_a_verb_never_ends_in_an_error_that_is_not_its_own(given):
    run = {"cluster": "dgx-h100", "dp": 8, "global_batch": 16, "sequence": 1024}
    (name,) = given
    with pytest.raises(InvalidInput, match=rf"^{'.'.join(name.split('_'))}: "):
        trainwright.estimate("gpt2", **{**run, **given})


def test_a_job_is_its_format_and_its_file():
    (row,) = (row for row in rows_of_command("estimate") if row.flag == "from")
    for source in (("log", "job.log"), ("trl", Path("sft.yaml"))):
        assert row.value(source) == source
