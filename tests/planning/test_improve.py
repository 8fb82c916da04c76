"""The smallest change that gets most of the gain."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from itertools import pairwise

import pytest

from export_jobs import cluster_of, config_of
from trainwright.execution import Budget
from trainwright.model import ContextExchange, CudaGraph, Recipe
from trainwright.model.recipe import Offload
from trainwright.options.table import rows_of
from trainwright.planning.reasons.improve import (
    MOST_OF_IT,
    Improvement,
    Neighbourhood,
    every_improvement,
    flag_of,
    improvements,
    moves,
    options_between,
    reachable,
    recommended,
    settings_between,
    worth_listing,
)
from trainwright.plans.configuration import Configuration
from trainwright.plans.plan import Parallelism, mapping_named
from trainwright.profile import Recompute
from trainwright.step.predict import price_configuration

WASTEFUL = Configuration(
    parallelism=Parallelism(tensor=4, pipeline=2, data=2, sequence_parallel=True, zero_stage=1),
    microbatch_size=1,
    global_batch=32,
    sequence_length=2048,
    recompute=Recompute.FULL,
)
LLAMA, WHERE = config_of("llama3-8b"), cluster_of(2)


def around(limit_bytes: float = 80e9, schedule: str | None = None) -> Neighbourhood:
    return Neighbourhood(
        model=LLAMA,
        cluster=WHERE,
        wanted=lambda _, run: schedule is None or run.schedule == schedule,
        fits=lambda _model, _run, step: step.peak_memory_bytes <= limit_bytes,
    )


@cache
def found_around() -> tuple[Improvement, ...]:
    return improvements(WASTEFUL, around(), Budget())


def test_a_move_changes_one_dimension_and_keeps_the_devices() -> None:
    for move in moves(WASTEFUL, LLAMA, WHERE.pool_of()):
        run = move.run
        assert run != WASTEFUL
        assert run.parallelism.num_devices == WASTEFUL.parallelism.num_devices
        assert (run.global_batch, run.sequence_length) == (32, 2048)


@pytest.mark.slow
def test_no_change_that_is_offered_beats_its_own_price() -> None:
    for found in found_around():
        assert found.step == price_configuration(LLAMA, WHERE, found.run)
        assert 1 <= len(found.dimensions) <= 2
        assert found.step.peak_memory_bytes <= 80e9


@pytest.mark.slow
def test_recomputing_for_nothing_is_the_first_thing_to_drop() -> None:
    found = found_around()
    single = next(each for each in found if each.dimensions == ("recompute",))
    assert single.options == "--recompute none"
    base_s = price_configuration(LLAMA, WHERE, WASTEFUL).step_time_s
    assert single.step.step_time_s < base_s
    assert found[0].step.step_time_s <= single.step.step_time_s


@pytest.mark.slow
def test_pairs_reach_what_no_single_change_reaches() -> None:
    """With little memory, fewer tensor ranks fit only together with another change."""
    found = improvements(replace(WASTEFUL, recompute=Recompute.NONE), around(22e9), Budget())
    fastest = found[0]
    singles = [each.step.step_time_s for each in found if len(each.dimensions) == 1]
    assert len(fastest.dimensions) == 2
    assert fastest.step.step_time_s < min(singles)


@pytest.mark.slow
def test_only_wanted_runs_are_offered() -> None:
    found = improvements(WASTEFUL, around(schedule="1f1b"), Budget())
    assert found
    assert all(each.run.schedule == "1f1b" for each in found)


def test_a_change_that_is_needed_is_tried_with_all_others_though_it_costs() -> None:
    """Of all pairs, taken in both orders, the fastest that is wanted and fits."""
    pool, legal = WHERE.pool_of(), []
    wanted = replace_wanted(around(), zero_stage=2)
    for first in moves(WASTEFUL, LLAMA, pool):
        for second in (first, *moves(first.run, LLAMA, pool)):
            if second is first or second.dimension != first.dimension:
                step = wanted.price(second.run)
                legal += (
                    [step.step_time_s]
                    if step is not None and wanted.fits(LLAMA, second.run, step)
                    else []
                )
    found = every_improvement(WASTEFUL, wanted, Budget())
    assert found[0].step.step_time_s == min(legal)
    assert found[0].options == "--zero 2 --recompute none"
    assert all(each.run.parallelism.zero_stage == 2 for each in found)
    for each in found:
        dimensions = each.dimensions
        reached = reachable(WASTEFUL, LLAMA, pool, dimensions=dimensions, options=each.options)
        assert reached == (each.run, LLAMA)


def replace_wanted(found: Neighbourhood, *, zero_stage: int) -> Neighbourhood:
    return replace(found, wanted=lambda _, run: run.parallelism.zero_stage == zero_stage)


def test_an_ended_budget_keeps_what_was_found() -> None:
    assert improvements(WASTEFUL, around(), Budget(time_limit_s=1e-9)) == ()
    assert every_improvement(WASTEFUL, around(), Budget(time_limit_s=1e-9)) == ()


@pytest.mark.slow
def test_the_smallest_change_with_most_of_the_gain_is_recommended() -> None:
    found = found_around()
    base_s = price_configuration(LLAMA, WHERE, WASTEFUL).step_time_s
    best_s = found[0].step.step_time_s
    chosen = recommended(found, base_s=base_s, best_s=best_s)
    assert chosen is not None
    gains = {each.options: (base_s - each.step.step_time_s) / (base_s - best_s) for each in found}
    assert gains[chosen.options] >= MOST_OF_IT
    smaller = [each for each in found if len(each.dimensions) < len(chosen.dimensions)]
    assert all(gains[each.options] < MOST_OF_IT for each in smaller)


def test_nothing_is_recommended_where_nothing_is_faster() -> None:
    step = price_configuration(LLAMA, WHERE, WASTEFUL)
    same = Improvement(dimensions=("zero",), options="--zero 1", run=WASTEFUL, step=step)
    assert recommended([same], base_s=step.step_time_s, best_s=step.step_time_s) is None


def made(options: str, step_s: float, *dimensions: str) -> Improvement:
    step = replace(price_configuration(LLAMA, WHERE, WASTEFUL), step_time_s=step_s)
    return Improvement(dimensions=dimensions, options=options, run=WASTEFUL, step=step)


def test_of_a_run_that_does_not_fit_the_smallest_change_near_the_fastest_is_recommended() -> None:
    slow = made("--zero 3", 2.0, "zero")
    near = made("--tp 8", 1.04, "tensor")
    pair = made("--tp 8 --zero 2", 1.0, "tensor", "zero")
    assert recommended([slow, near, pair], base_s=None, best_s=1.0) is near
    assert recommended([slow, pair], base_s=None, best_s=1.0) is pair
    assert recommended([slow], base_s=None, best_s=1.0) is slow
    assert recommended([], base_s=None, best_s=1.0) is None


def test_equal_changes_are_told_apart_by_what_is_quicker_to_say() -> None:
    one, other = made("--micro-batch 2", 1.0, "microbatch"), made("--cp 2 --dp 4", 1.0, "context")
    assert worth_listing([other, one]) == worth_listing([one, other]) == (one, other)


def test_pairs_are_listed_where_they_beat_every_single_change() -> None:
    single = made("--zero 2", 1.0, "zero")
    better, worse = made("--tp 2 --zero 2", 0.9, "a", "b"), made("--tp 4 --zero 2", 1.1, "a", "b")
    assert worth_listing([worse, single, better]) == (better, single)


@pytest.mark.slow
def test_a_run_that_does_not_fit_is_offered_changes_that_do_and_none_else() -> None:
    run = replace(
        WASTEFUL,
        parallelism=Parallelism(data=16, zero_stage=1),
        microbatch_size=2,
        recompute=Recompute.NONE,
    )
    limit_bytes = 30e9
    assert price_configuration(LLAMA, WHERE, run).peak_memory_bytes > limit_bytes
    found = improvements(run, around(limit_bytes), Budget())
    assert found
    assert all(each.step.peak_memory_bytes <= limit_bytes for each in found)


BASES = {
    "two chunks, stated split": Configuration(
        parallelism=Parallelism(
            tensor=2, pipeline=4, data=2, virtual_stages=2, sequence_parallel=True, zero_stage=1
        ),
        microbatch_size=1,
        global_batch=32,
        sequence_length=2048,
        schedule="interleaved",
        blocks_per_stage=(3, 4, 4, 4, 4, 4, 4, 5),
    ),
    "sequences whole": replace(
        WASTEFUL, parallelism=replace(WASTEFUL.parallelism, sequence_parallel=False)
    ),
    "no flash attention": replace(WASTEFUL, fused_attention=False),
}


@pytest.mark.parametrize("run", BASES.values(), ids=BASES)
def test_what_a_move_says_is_all_that_it_changes(run: Configuration) -> None:
    """Added to the options of the run, as the command line takes them."""
    for move in moves(run, LLAMA, WHERE.pool_of()):
        options = options_between(run, move.run)
        assert with_options(run, options) == move.run, options
        again = reachable(
            run, LLAMA, WHERE.pool_of(), dimensions=(move.dimension,), options=options
        )
        assert again == (move.run, LLAMA)


def with_options(run: Configuration, options: str) -> Configuration:
    """The run with options added, read here by hand; sequence parallelism needs a tensor group."""
    words = options.split()
    pairs = zip(words, [*words[1:], ""], strict=True)
    said = {flag: value for flag, value in pairs if flag.startswith("--")}
    names = {"tp": "tensor", "pp": "pipeline", "cp": "context", "dp": "data", "ep": "expert"}
    names |= {"zero": "zero_stage", "state-copies": "state_copies"}
    names |= {"virtual-stages": "virtual_stages"}
    changed = {name: int(said.pop(f"--{f}")) for f, name in names.items() if f"--{f}" in said}
    if "--mapping" in said:
        changed["axis_order"] = mapping_named(said.pop("--mapping"))
    degrees = replace(run.parallelism, **changed)
    sequence = degrees.sequence_parallel or said.pop("--sequence-parallel", None) is not None
    degrees = replace(degrees, sequence_parallel=sequence and degrees.tensor > 1)
    fields: dict[str, object] = {"parallelism": degrees}
    if "--micro-batch" in said:
        fields["microbatch_size"] = int(said.pop("--micro-batch"))
    if "--recompute" in said:
        mode, _, first = said.pop("--recompute").partition(":")
        fields["recompute"] = Recompute(mode)
        fields["recompute_blocks"] = int(first) if first else None
    if "--schedule" in said:
        fields["schedule"] = said.pop("--schedule")
    if "--blocks" in said:
        fields["blocks_per_stage"] = tuple(map(int, said.pop("--blocks").split(",")))
    if said.pop("--flash-attention", None) is not None:
        fields["fused_attention"] = True
    if said.pop("--fused-cross-entropy", None) is not None:
        fields["fused_cross_entropy"] = True
    fields["recipe"] = with_recipe(run.recipe, options)
    names = ("loss-chunk", "mlp-tile", "offload", "context-exchange", "cuda-graph")
    assert said.keys() <= {f"--{name}" for name in names}
    return replace(run, **fields)


def with_recipe(recipe: Recipe, options: str) -> Recipe:
    """The recipe with options that make room, which may come several times."""
    words = options.split()
    for flag, value in pairwise(words):
        match flag:
            case "--loss-chunk" | "--mlp-tile":
                field = flag.removeprefix("--").replace("-", "_")
                recipe = replace(recipe, **{field: int(value)})
            case "--offload":
                kind, _, share = value.partition("=")
                held = replace(recipe.offload or Offload(), **{kind: float(share)})
                recipe = replace(recipe, offload=held)
            case "--context-exchange":
                recipe = replace(recipe, context_exchange=ContextExchange(value))
            case "--cuda-graph":
                recipe = replace(recipe, cuda_graph=CudaGraph(value), cuda_graph_modules=())
    return recipe


def test_every_field_of_the_recipe_is_said_by_its_own_option() -> None:
    """Whatever a move changes there, by the flag of its row: nothing is dropped in silence."""
    rows = {
        noun.removeprefix("recipe."): row
        for row in rows_of("estimate")
        for noun in row.nouns
        if noun.startswith("recipe.")
    }
    named = {each.name for each in fields(Recipe)}
    assert named - rows.keys() == {"context_balanced"}  # which the exchange decides
    assert {name: flag_of(name) for name in rows} == {name: row.flag for name, row in rows.items()}
    run = Configuration(
        parallelism=Parallelism(data=8), microbatch_size=1, global_batch=8, sequence_length=512
    )
    for name, value, said in (
        ("dropout", 0.1, "--dropout 0.1"),
        ("moment_dtypes", ("int8", "fp32"), "--moment-dtype int8,fp32"),
        ("update_in_backward", True, "--update-in-backward"),
        ("fused_update", False, "--no-fused-update"),
    ):
        other = replace(run, recipe=replace(run.recipe, **{name: value}))
        assert settings_between(run, other) == said
