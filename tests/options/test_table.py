"""The table of options: one row is all that an option needs, and nothing contradicts it."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from dataclasses import fields
from importlib import import_module

import pytest
from hypothesis import given
from hypothesis import strategies as st
from write_signatures import STUB, stub

import trainwright
from trainwright.commands.main import COMMANDS
from trainwright.errors import InvalidInput
from trainwright.model import Recipe
from trainwright.options.option import KEPT, LARGEST_MEMORY_BYTES, RATE, SIZE
from trainwright.options.table import ROWS, VERBS, keywords_of, read, rows_of_command
from trainwright.options.tool_rows import ARGUMENTS, FIRST
from trainwright.planning.question.question import Allowed
from trainwright.planning.reasons.objectives import Training
from trainwright.plans.configuration import Configuration, MemoryOverheads
from trainwright.plans.plan import Parallelism, SettingRecord, SpaceRecord, WorkloadRecord

NOUNS = {
    "recipe": Recipe,
    "overheads": MemoryOverheads,
    "parallelism": Parallelism,
    "run": Configuration,
    "space": Allowed,
    "workload": WorkloadRecord,
    "setting": SettingRecord,
    "record": SpaceRecord,
    "flat": SpaceRecord,
    "searched": SpaceRecord,
    "training": Training,
}
# Verbs that write their signature out, with what of it is no option.
WRITTEN = {
    "schedule": ("schedule", {"budget"}),
    "improve": ("improve", {"budget", "document", "source"}),
    "export": ("export", {"document", "output"}),
    "verify": ("verify", {"document"}),
    "report": ("report", {"documents"}),
    "validate": ("validate", {"folders"}),
    "calibrate": ("calibrate", {"sources", "logs"}),
    "profile_model": ("profile", {"model", "budget"}),
}


def test_a_command_has_each_flag_once():
    verbs = {verb for row in ROWS for verb in row.commands}
    assert verbs - {verb for several in VERBS.values() for verb in several} <= set(COMMANDS)
    for verb in verbs:
        flags = [row.flag for row in ROWS if verb in row.commands]
        assert len(flags) == len(set(flags)), verb


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.commands[0]}-{row.flag}")
def test_a_row_names_fields_that_there_are(row):
    for path in row.nouns:
        head, _, name = path.partition(".")
        if head in NOUNS:
            assert name in {field.name for field in fields(NOUNS[head])}, path
    assert row.help.endswith((".", "…", "?")), row.help
    assert row.default is None or row.value(row.default) is not None


def test_what_matters_first_is_an_option_of_its_command():
    for command, flags in FIRST.items():
        assert set(flags) <= {row.flag for row in rows_of_command(command)}
    assert set(ARGUMENTS) <= set(COMMANDS)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_signature_that_is_written_out_has_the_keywords_of_the_table(name):
    command, beside = WRITTEN[name]
    written = set(inspect.signature(getattr(trainwright, name)).parameters)
    assert written - beside == set(keywords_of(command))


@pytest.mark.parametrize("name", ["plan", "sweep", "estimate", "codesign", "what_if"])
def test_help_lists_every_keyword(name):
    verb = getattr(trainwright, name)
    shown = inspect.signature(verb).parameters
    assert set(keywords_of(name.replace("_", ""))) <= set(shown)
    assert not any(each.kind is each.VAR_KEYWORD for each in shown.values())
    assert verb.__doc__


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_takes_what_the_table_reads_for_it(command):
    own = inspect.signature(import_module(f"trainwright.commands.{command}").command).parameters
    known = {row.name for row in rows_of_command(command)}
    known |= {argument.name for argument in ARGUMENTS.get(command, ())}
    takes_all = any(each.kind is each.VAR_KEYWORD for each in own.values())
    named = {name for name, each in own.items() if each.kind is not each.VAR_KEYWORD}
    assert named <= known
    shell = {row.name for row in rows_of_command(command) if row.shell} - {"config"}
    extras = set(getattr(import_module(f"trainwright.commands.{command}"), "_EXTRAS", ()))
    assert takes_all or known == named
    assert shell - extras - {"no_pareto"} <= named


# In the place of the row of an option, the same under a name that nobody has heard of: what is said
# of it anywhere can only come from the row.
HYPOTHETICAL = """
import inspect, json, sys
from dataclasses import replace
from trainwright.options import table

known = [row for row in table.ROWS if row.flag == "dispatch-dtype"]
table.ROWS[:] = [
    replace(row, flag="wire-format", help="Of what nobody has seen.") if row in known else row
    for row in table.ROWS
]
import trainwright
from trainwright.commands.main import main
from trainwright.errors import InvalidInput
from trainwright.pages.command import command_of

job = dict(cluster="dgx-h100", nodes=1, global_batch=8, sequence=512, top=0, tp=1, pp=1, cp=1)
moe = dict(ep=8, recompute="none", schedule="1f1b")
found = trainwright.plan("deepseek-v2-lite", **job, **moe, wire_format="fp8").document
said = {
    "keyword": "wire_format" in inspect.signature(trainwright.plan).parameters,
    "record": found.request.recipe.dispatch_dtype,
    "command": command_of(found).text,
}
for wrong in ({"wire_format": "int8"}, {"dispatch_dtype": "fp8"}):
    try:
        trainwright.plan("deepseek-v2-lite", **job, **moe, **wrong)
    except InvalidInput as error:
        said[next(iter(wrong))] = str(error)
json.dump(said, sys.stdout)
sys.stdout.write("\\n")
try:
    main(sys.argv[1:])
except SystemExit as ended:
    sys.exit(ended.code)
"""


def hypothetical(*arguments: str) -> tuple[dict, str]:
    """What is said of the option, and what the command line then prints."""
    done = subprocess.run(
        [sys.executable, "-c", HYPOTHETICAL, *arguments], capture_output=True, text=True, check=True
    )
    said, _, shown = done.stdout.partition("\n")
    return json.loads(said), shown


@pytest.mark.slow
def test_a_row_is_all_that_an_option_needs(tmp_path):
    said, shown = hypothetical("plan", "--help")
    assert re.search(r"--wire-format DTYPE +Of what nobody has seen\.", shown)
    assert "dispatch-dtype" not in shown
    assert said["keyword"]
    assert said["record"] == "fp8"
    assert "--wire-format fp8" in said["command"]
    assert said["wire_format"].startswith("wire-format: must be one of fp32")
    assert said["dispatch_dtype"].startswith("dispatch_dtype: is no option of plan")
    request = tmp_path / "request.toml"
    request.write_text('wire-format = "fp8"\n')
    job = ("--cluster", "dgx-h100", "--nodes", "1", "--global-batch", "8", "--sequence", "512")
    _, printed = hypothetical(
        "estimate", "deepseek-v2-lite", *job, "--ep", "8", "--config", str(request), "--json"
    )
    recipe = json.loads(printed)["request"]["configuration"]["recipe"]
    assert recipe["dispatch_dtype"] == "fp8"


def test_the_types_of_public_names_are_those_of_the_table():
    assert STUB.read_text(encoding="utf-8") == stub(), "run: python docs/write_signatures.py"


@pytest.mark.parametrize("verb", sorted({verb for row in ROWS for verb in row.commands}))
def test_the_name_of_a_flag_is_a_keyword_of_its_verb(verb):
    """The same word everywhere: on the command line, in files of options, in Python."""
    for keyword, rows in keywords_of(verb).items():
        flags = {row.flag.replace("-", "_") for row in rows if not is_switch(row, keyword)}
        assert len(flags) <= 1
        for name in {keyword, *flags}:
            try:
                read(verb, {name: "no value of any option"})
            except InvalidInput as error:
                assert not any("is no option" in fault.problem for fault in error.faults), name


def is_switch(row, keyword):
    """Whether a row only sets a value of another one's keyword, as --no-recompute does."""
    return row.reader.is_flag and row.flag.replace("-", "_") != keyword


@given(
    st.one_of(
        st.integers(1, 2**50),
        st.integers(1, 2**20).map(lambda n: float(n * 2**30)),
        st.integers(1, 10**6).map(lambda n: n * 1e9),
        st.floats(1, 2.0**50, allow_nan=False),
    )
)
def test_bytes_and_rates_in_a_command_to_repeat_are_read_back_exactly(value):
    if value <= LARGEST_MEMORY_BYTES:
        (size,) = SIZE.words(value, None)
        assert SIZE.read(size, "memory") == value
    (rate,) = RATE.words(value, None)
    assert RATE.read(rate, "bandwidth") == value


def test_bytes_in_a_command_to_repeat_are_whole_units_where_they_are():
    assert SIZE.words(3221225472.0, None) == ("3GiB",)
    assert SIZE.words(80e9, None) == ("80000000000",)
    assert SIZE.words(4096.0, None) == ("4096B",)
    assert KEPT.words(0.0, None) == ("0",)
    assert RATE.words(25e9, None) == ("25GB/s",)
