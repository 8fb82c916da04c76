"""Whatever text the options hold: a document or a message, never our crash (exit code 1)."""

from __future__ import annotations

import json
import os
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from random_cases import cases
from small_profiles import transformer, write_json
from trainwright.commands.main import main

words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
numbers = st.one_of(
    st.integers(-3, 100).map(str),
    st.sampled_from(["1e7", "1e12", "1e18", "1e300", "1e999", "-0", "1_0", "1e-300", "5e-324"]),
    st.floats(width=32).map(str),
    st.floats(0, 1e3).map(str),
)
units = st.sampled_from(["", "B", "kB", "GiB", "GB/s", "Gb/s", "s", "ms", "h", " GiB", "%", "PiB"])
quantities = st.builds(str.__add__, numbers, units)
# A command is a hundred times what most laws cost.
fewer = settings(max_examples=settings().max_examples // 2)
values = st.one_of(quantities, quantities, words)
topics = st.sampled_from(["vanilla", "activation recomp", "all", "Head", "exact", "equal", "none"])

FLAGS = ("no-data-parallel", "no-tensor-parallel", "no-recompute", "compare", "json")
COUNTS = ("devices", "memory", "bandwidth", "microbatches", "point", "time-limit")
NAMES = ("planner", "block-layer", "exclude-option", "cluster", "config")
MODEL = ("nodes", "devices", "global-batch", "sequence", "micro-batch", "zero", "time-limit")


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """A folder of its own, with a small profile and a plan of it."""
    before, path = os.getcwd(), tmp_path_factory.mktemp("fuzz")  # noqa: PTH109
    os.chdir(path)
    write_json(path / "small.json", transformer(2))
    assert run("plan", "small.json", "-o", "plan.json") == 0
    yield
    os.chdir(before)


def run(*arguments: str) -> int:
    """The exit code; a document on stdout must be whole."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main(arguments)
    if "--json" in arguments and ended.value.code in (0, 3, 5) and "--help" not in arguments:
        json.loads(out.getvalue())
    assert ended.value.code in (0, 2, 3, 5)
    if ended.value.code == 2 and out.getvalue():
        assert json.loads(out.getvalue())["kind"] == "refusal"
    else:
        assert (ended.value.code == 2) == (out.getvalue() == "")
    return ended.value.code


@st.composite
def options(draw, names, texts):
    chosen = draw(st.lists(st.tuples(st.sampled_from(names), texts), max_size=3))
    return [part for name, text in chosen for part in (f"--{name}", text)]


flags = st.lists(st.sampled_from(FLAGS).map("--{}".format), max_size=3, unique=True)


@pytest.mark.slow
@given(options(COUNTS, values), options(NAMES, words | topics), flags)
@example(["--devices", "inf"], [], [])
@example(["--bandwidth", "1e-305"], [], [])
@example(["--memory", "1e308"], [], ["--compare"])
@example(["--memory", "1e-300GiB"], [], ["--json"])
@example(["--microbatches", "999999999989"], [], [])
def test_plan_of_a_profile(counts, names, chosen):
    run("plan", "small.json", *counts, *names, *chosen)


@pytest.mark.slow
@fewer
@given(options(COUNTS[:-1], values), words)
def test_estimate_and_explain(counts, text):
    run("estimate", "small.json", "--plan", "plan.json", *counts, "--json")
    run("estimate", "small.json", "--plan", text)
    run("explain", text, "--json")


@pytest.mark.slow
@fewer
@given(options(MODEL, values), flags)
@example(["--global-batch", "1e12"], [])
@example(["--nodes", "1e9"], [])
@example(["--exclude-option", "none"], [])
def test_plan_of_a_model(counts, chosen):
    cluster = ("--cluster", "dgx-h100", "--global-batch", "16", "--sequence", "256")
    run("plan", "gpt2", *cluster, "--time-limit", "1s", *counts, *chosen)


SPACE = ("tp", "pp", "dp", "cp", "ep", "virtual-stages", "micro-batch", "zero", "top")
LISTS = ("recompute", "schedule", "framework", "objective", "pareto", "zero")
TOTALS = ("tokens", "price", "power", "deadline", "mtbf", "checkpoint-bandwidth", "restart")
numerals = st.integers(0, 9).map(str) | st.just("")
degrees = st.builds("{}..{}".format, numerals, numerals) | numerals | words
named = st.lists(
    st.sampled_from(
        ["none", "full", "1f1b", "v-half", "megatron", "cost", "energy", "devices", "0"]
    ),
    max_size=2,
).map(",".join)


@pytest.mark.slow
@cases(25)
@given(options(SPACE, degrees), options(LISTS, named), options(TOTALS, quantities))
@example(["--tp", "..", "--pp", "4..2"], [], [])
@example([], ["--objective", "cost"], ["--tokens", "1e300", "--price", "1e300"])
@example([], ["--objective", "devices"], ["--tokens", "1e-300", "--deadline", "1e300s"])
@example([], ["--pareto", "cost,energy"], ["--mtbf", "5e-324s", "--tokens", "1", "--price", "1"])
def test_space_and_objectives_of_a_model(space, lists, totals):
    asked = ("--cluster", "dgx-h100", "--devices", "8", "--global-batch", "8", "--sequence", "64")
    run("plan", "gpt2", *asked, "--time-limit", "1s", *space, *lists, *totals, "--json")


@given(st.lists(words | st.sampled_from(["plan", "diff", "--json", "-o", "--help"]), max_size=4))
def test_any_words(arguments):
    run(*[word for word in arguments if word != "-o"])


def leaves(value, path=()):
    """Paths of all scalars of a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, entry in items:
        if isinstance(entry, (dict, list)):
            yield from leaves(entry, (*path, key))
        else:
            yield (*path, key)


odd = st.one_of(
    st.none(), st.booleans(), words, st.integers(-2, 2), st.floats(allow_nan=False), st.just([])
)


@pytest.mark.slow
@fewer
@given(st.data())
def test_explain_and_diff_of_documents_with_odd_values(data):
    with open("plan.json", encoding="utf-8") as file:  # noqa: PTH123
        document = json.load(file)
    paths = [path for path in leaves(document) if "content" not in path]
    for *parents, last in data.draw(st.lists(st.sampled_from(paths), min_size=1, max_size=3)):
        place = document
        for key in parents:
            place = place[key]
        place[last] = data.draw(odd)
    with open("odd.json", "w", encoding="utf-8") as file:  # noqa: PTH123
        json.dump(document, file)
    run("explain", "odd.json")
    run("diff", "plan.json", "odd.json", "--json")
    run("diff", "odd.json", "plan.json")
    run("estimate", "small.json", "--plan", "odd.json", "--json")
