"""`improve` as a function: what it compares a run with, and what it says where it cannot."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trainwright
from random_cases import cases
from reported import of_unequal_degrees
from trainwright.cluster import Cluster
from trainwright.documents.explanation import recommended_plan
from trainwright.documents.improvement import (
    ImprovementResult,
    recommended_run,
)
from trainwright.documents.jobs import is_stated
from trainwright.documents.model_estimate import price_request
from trainwright.documents.model_plan import planned
from trainwright.documents.open import recheck
from trainwright.documents.printing import Report
from trainwright.documents.runs import gaps_of_run
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.execution import Budget
from trainwright.formats.document_json import decode, decode_document, encode
from trainwright.model import TransformerConfig
from trainwright.planning.reasons.improve import moves, reachable
from trainwright.step.predict import predict_step, price_configuration

RUN = {"cluster": "dgx-h100", "tp": 2, "pp": 2, "dp": 1, "global_batch": 8, "sequence": 1024}
TOO_LARGE = {
    "cluster": "dgx-h100",
    "tp": 1,
    "pp": 1,
    "dp": 4,
    "zero": 1,
    "micro_batch": 4,
    "global_batch": 16,
    "sequence": 4096,
}


def improved(model: str = "gpt2", framework: str | None = None, **options: Any) -> Any:
    run = trainwright.estimate(model, **{**RUN, **options})
    return trainwright.improve(run, framework=framework).document


@cache
def wasteful() -> ImprovementResult:
    found = improved(recompute="full")
    assert isinstance(found, ImprovementResult)
    return found


@cache
def too_large() -> ImprovementResult:
    run = trainwright.estimate("llama3-8b", **TOO_LARGE)
    found = trainwright.improve(run).document
    assert isinstance(found, ImprovementResult)
    return found


OTHERWISE: dict[str, dict[str, Any]] = {
    "all otherwise": {
        "precision": "fp32",
        "optimizer": "sgd",
        "overlap": {"gradients": 0.0, "parameters": 0.0},
        "flash_attention": False,
        "reserve": "8GiB",
    },
    "fp32": {"precision": "fp32"},
    "sgd": {"optimizer": "sgd", "gradient_dtype": "bf16"},
    "nothing overlaps": {"overlap": {"gradients": 0.0, "parameters": 0.0, "pipeline": 0.0}},
    "unfused": {"flash_attention": False, "dropout": 0.1},
    "kept free": {"reserve": "40GiB", "fragmentation": 0.2},
    "selective": {"recompute": "selective", "recompute_module": ["norm"]},
}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            options,
            id=name,
            marks=pytest.mark.slow if name == "all otherwise" else pytest.mark.papers,
        )
        for name, options in OTHERWISE.items()
    ],
)
def test_the_best_plan_trains_as_the_run_does(options: dict[str, Any]) -> None:
    """A plan whose blocks all run alike costs what `estimate` says of it with the run's options."""
    found = improved(**options)
    plan = found.best_plan
    assert plan is not None
    held = [layer for stage in plan.stages for layer in stage.layers]
    options_of = {layer: mode for stage in plan.stages for layer, mode in stage.options.items()}
    (mode,) = {options_of[str(layer)] for layer in held[1:-3]}
    degrees = plan.parallelism
    blocks = [len(set(stage.layers) & set(held[1:-3])) for stage in plan.stages]
    said = {
        **RUN,
        **options,
        "tp": degrees.tensor,
        "pp": degrees.pipeline,
        "dp": degrees.data,
        "cp": degrees.context,
        "zero": degrees.zero_stage,
        "micro_batch": plan.micro_batch,
        "recompute": mode,
        "schedule": plan.schedule,
        "virtual_stages": degrees.virtual_stages,
        "blocks": blocks if len(blocks) > 1 else None,
    }
    said |= {flag[2:].replace("-", "_"): True for flag in plan.options.split()}
    priced = trainwright.estimate("gpt2", **said).document
    assert plan.step_time_s == pytest.approx(priced.step_time_s, rel=1e-12)
    assert plan.peak_memory_bytes == pytest.approx(priced.peak_memory_bytes, rel=1e-12)


@pytest.mark.slow
def test_a_run_in_more_bits_is_compared_with_plans_in_as_many() -> None:
    usual, wide = wasteful(), improved(precision="fp32")
    assert wide.best_plan.step_time_s > 1.5 * usual.best_plan.step_time_s
    assert wide.lower_bound_s > usual.best_plan.step_time_s


@pytest.mark.slow
def test_nothing_that_is_listed_beats_the_best_that_is_known_or_the_bound() -> None:
    for found in (wasteful(), too_large(), improved(flash_attention=False)):
        asked = [each for each in found.changes if not each.another_training]
        times_s = [each.step_time_s for each in asked]
        times_s.append(found.best_plan.step_time_s)
        if found.run_fits:
            times_s.append(found.run.step_time_s)
        assert found.best_known_s == min(times_s)
        assert 0 < found.lower_bound_s <= min(times_s) * (1 + 1e-9)
        assert found.best_plan.step_time_s <= min(times_s) * (1 + 1e-9)


@pytest.mark.slow
def test_a_run_that_no_plan_is_like_gets_no_bound() -> None:
    found = improved(sequence_parallel=False)
    assert found.lower_bound_s is None
    assert "sequence parallelism" in " ".join(found.warnings)


@pytest.mark.slow
def test_kernels_that_a_change_adds_are_those_of_the_plan_that_it_would_beat() -> None:
    found = improved(flash_attention=False, sequence=4096, model="llama3-8b")
    assert "--flash-attention" in found.changes[0].options
    assert "--flash-attention" in found.best_plan.options
    assert found.best_plan.step_time_s <= found.changes[0].step_time_s


@pytest.mark.slow
def test_a_run_that_does_not_fit_is_offered_what_makes_it_fit() -> None:
    found = too_large()
    assert not found.run_fits
    assert found.recommended in found.changes
    overheads = found.request.configuration.overheads
    assert overheads.needed_bytes(found.run.peak_memory_bytes) > found.memory_limit_bytes
    others = [each for each in found.changes if each.another_training]
    times_s = [each.step_time_s for each in found.changes if not each.another_training]
    assert times_s == sorted(times_s)
    assert found.changes[len(times_s) :] == tuple(others)
    assert any("--lora-rank" in each.options for each in others)
    assert all("another training" in each.risk for each in others)
    assert found.recommended not in others
    assert times_s[0] > found.run.step_time_s
    for each in found.changes:
        assert overheads.needed_bytes(each.peak_memory_bytes) <= found.memory_limit_bytes
        assert each.gain_share is None
    assert any(len(each.dimensions) == 1 for each in found.changes)


@cache
def too_large_for_all() -> ImprovementResult:
    options = {"dp": 8, "global_batch": 8, "sequence": 4096}
    run = trainwright.estimate("llama3-405b", cluster="dgx-h100", **options)
    found = trainwright.improve(run, framework="torchtitan").document
    assert isinstance(found, ImprovementResult)
    return found


@pytest.mark.papers  # by the command in every change
def test_where_nothing_fits_only_what_the_framework_runs_is_enough() -> None:
    """torchtitan shards no optimizer state alone, and freezes no weights in fewer bits."""
    found = too_large_for_all()
    assert found.best_known_s is None
    assert found.enough == ()
    options = {"dp": 8, "zero": 3, "global_batch": 8, "sequence": 4096}
    run = trainwright.estimate("llama3-405b", cluster="dgx-h100", changes=True, **options)
    able = trainwright.improve(run, framework="torchtitan").document
    assert able.enough
    changes = run.document.changes
    assert able.enough == tuple(each for each in changes if "--weight-bits" not in each.options)
    assert recheck(able) == able
    with pytest.raises(InvalidInput, match="enough"):
        recheck(replace(able, enough=()))


@pytest.mark.slow
def test_every_number_says_where_it_comes_from() -> None:
    said = wasteful().assumptions
    assert said["times"].startswith("fitted: ")
    assert said["peak rates"].startswith("datasheet: ")
    assert "nvlink: bandwidth datasheet" in said["network"]
    assert "nine of ten measured steps" in said["range"]
    assert {"memory", "best plan", "changes", "state", "overlap", "kernels"} <= said.keys()


def test_what_a_framework_cannot_run_is_said_and_not_compared() -> None:
    found = improved(optimizer="muon", framework="torchtitan")
    assert found.best_plan is None
    assert found.lower_bound_s is None
    assert found.changes == ()
    assert "no plan of torchtitan@0.3 is for this run: optimizer: muon" in " ".join(found.warnings)


@pytest.mark.parametrize(
    "framework",
    [
        pytest.param(None, marks=pytest.mark.slow),
        pytest.param("deepspeed", marks=pytest.mark.papers),
    ],
)
def test_where_none_is_said_to_be_faster_no_pair_of_changes_is(framework: str | None) -> None:
    """Fastest change after fastest change, until none is left; then every pair by itself."""
    report = trainwright.estimate("gpt2", **{**RUN, "recompute": "full", "global_batch": 8})
    request = report.document.request
    model = decode(TransformerConfig, request.model.content, path="model")
    cluster = decode(Cluster, request.cluster.content, path="cluster")
    pool = cluster.pool_of()
    while True:
        found = trainwright.improve(report, framework=framework).document
        if not found.changes or found.changes[0].another_training:
            break
        first, run = found.changes[0], found.request.configuration
        changed = reachable(run, model, pool, dimensions=first.dimensions, options=first.options)
        assert changed is not None
        request = replace(request, configuration=changed[0])
        report = Report(price_request(model, cluster, request))
    assert found.tried_all
    run = found.request.configuration
    base_s, limit_bytes = found.run.step_time_s, found.memory_limit_bytes
    tried = 0
    for first_move in moves(run, model, pool):
        for second in (first_move, *moves(first_move.run, model, pool)):
            if second is not first_move and second.dimension == first_move.dimension:
                continue
            try:
                step = price_configuration(model, cluster, second.run)
                able = framework is None or not gaps_of_run(second.run, model, cluster, framework)
            except (InvalidInput, UnsupportedFeature):
                continue
            if able and run.overheads.needed_bytes(step.peak_memory_bytes) <= limit_bytes:
                tried += 1
                assert step.step_time_s >= base_s
    assert tried > 10


@pytest.mark.parametrize(
    "framework", ["deepspeed", pytest.param("torchtitan", marks=pytest.mark.slow)]
)
def test_a_run_that_the_framework_cannot_run_is_offered_a_pair_that_it_can(framework: str) -> None:
    asked = {"tp": 2, "pp": 2, "dp": 2, "recompute": "full", "global_batch": 32}
    if framework == "deepspeed":
        asked |= {"schedule": "v-half", "virtual_stages": 2, "zero": 0}
    found = improved(framework=framework, **asked)
    assert any("your run: " in line for line in found.warnings)
    assert found.tried_all
    assert len(found.changes[0].dimensions) == 2
    assert found.recommended in found.changes


def test_an_unknown_framework_is_refused_by_the_name_of_its_option() -> None:
    with pytest.raises(InvalidInput, match="framework: must be one of megatron"):
        improved(framework="megatrn")


def test_a_time_limit_is_said() -> None:
    run = trainwright.estimate("gpt2", **RUN)
    found = trainwright.improve(run, budget=Budget(time_limit_s=1e-9)).document
    assert found.changes == ()
    assert "the time limit ended the search" in " ".join(found.warnings)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values without parts."""
    if isinstance(value, dict):
        parts = list(value.items())
    elif isinstance(value, list):
        parts = list(enumerate(value))
    else:
        return [path]
    return [leaf for key, part in parts for leaf in leaves(part, (*path, key))]


def edited(value: Any, path: tuple[Any, ...], share: float) -> Any:
    """The document with one value changed."""
    copied = json.loads(json.dumps(value))
    inner = copied
    for key in path[:-1]:
        inner = inner[key]
    old = inner[path[-1]]
    match old:
        case bool():
            inner[path[-1]] = not old
        case int():
            inner[path[-1]] = old + 1
        case float():
            inner[path[-1]] = old * (1 + share)
        case str():
            inner[path[-1]] = f"{old}x"
        case _:
            inner[path[-1]] = 1.0
    return copied


# Known to the search alone (`lower_bound_s` is held below everything that fits), or words.
UNKNOWN = {("framework",), ("lower_bound_s",), ("tried_all",), ("kind",), ("format_version",)}
DOCUMENTS = {"fits": wasteful, "does not fit": too_large}


def read_again(value: Any) -> ImprovementResult:
    found = decode_document(value, {"improvement": ImprovementResult}, source="edited.json")
    return recheck(found)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_that_nobody_edited_is_let_through(name: str) -> None:
    document = DOCUMENTS[name]()
    assert read_again(json.loads(json.dumps(encode(document)))) == document


@cases(20)
@given(st.data())
def test_an_edited_figure_or_decision_is_refused(data: st.DataObject) -> None:
    value = encode(DOCUMENTS[data.draw(st.sampled_from(sorted(DOCUMENTS)))]())
    paths = [path for path in leaves(value) if path[0] != "request" and path not in UNKNOWN]
    path = data.draw(st.sampled_from(paths))
    share = data.draw(st.sampled_from([-0.5, -1e-6, 1e-6, 0.01, 2.0]))
    with pytest.raises(InvalidInput):
        read_again(edited(value, path, share))


@pytest.mark.papers  # drawn ones in every change, above
@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_edit_is_refused(name: str) -> None:
    value = encode(DOCUMENTS[name]())
    for path in leaves(value):
        if path[0] == "request" or path in UNKNOWN:
            continue
        with pytest.raises(InvalidInput):
            read_again(edited(value, path, 0.01))


WITHOUT_EFFECT = {"context_balanced", "expert_imbalance"}  # on one rank, without experts


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("fits", marks=pytest.mark.papers),
        pytest.param("does not fit", marks=pytest.mark.slow),
    ],
)
def test_an_edited_run_is_refused(name: str) -> None:
    value = encode(DOCUMENTS[name]())
    for path in leaves(value["request"]["configuration"], ("request", "configuration")):
        changed = edited(value, path, 0.1)
        if path[-1] not in WITHOUT_EFFECT and changed != value:
            with pytest.raises(InvalidInput):
                read_again(changed)


@pytest.mark.parametrize("count", [0, 40])
def test_a_change_of_no_decision_or_of_many_is_refused_at_once(count: int) -> None:
    found = wasteful()
    many = replace(found.changes[0], dimensions=("schedule",) * count)
    with pytest.raises(InvalidInput, match=f"must be one decision or two, got {count}"):
        read_again(encode(replace(found, changes=(many, *found.changes[1:]))))


def test_a_bound_above_what_is_known_and_changed_decisions_of_the_run_are_refused() -> None:
    found = wasteful()
    best_s = found.best_known_s
    assert best_s is not None
    configuration = found.request.configuration
    request = replace(found.request, configuration=replace(configuration, microbatch_size=2))
    for wrong in (
        replace(found, lower_bound_s=best_s * 1.001),
        replace(found, request=request),
        replace(found, changes=found.changes[::-1]),
        replace(found, recommended=None),
        replace(found, best_plan=None, best_known_s=found.changes[0].step_time_s, assumptions={}),
    ):
        with pytest.raises(InvalidInput):
            recheck(wrong)


def test_a_document_of_another_version_is_let_through_with_a_warning() -> None:
    found = wasteful()
    request = replace(found.request, trainwright_version="0.0.1")
    run = replace(found.run, step_time_s=1.5 * found.run.step_time_s)
    checked = recheck(replace(found, request=request, run=run))
    assert "made by version 0.0.1" in checked.warnings[-1]


def test_a_model_that_was_edited_is_refused() -> None:
    found = wasteful()
    content = {**found.request.model.content, "num_layers": 6}
    request = replace(found.request, model=replace(found.request.model, content=content))
    with pytest.raises(InvalidInput, match="sha256"):
        recheck(replace(found, request=request))


def test_a_saved_improvement_is_checked_before_it_is_shown(tmp_path: Path) -> None:
    value = edited(encode(too_large()), ("run_fits",), 0)
    path = tmp_path / "edited.json"
    path.write_text(json.dumps(value))
    with pytest.raises(InvalidInput, match="run_fits"):
        trainwright.report(path)


def test_an_improvement_is_shown_again_and_exports_its_recommended_change(tmp_path):
    found = wasteful()
    path = tmp_path / "better.json"
    Report(found).save(path)
    assert trainwright.explain(path).explain() == Report(found).explain()
    chosen = recommended_run(found)
    assert chosen.step_time_s == found.recommended.step_time_s
    assert chosen.peak_memory_bytes == found.recommended.peak_memory_bytes
    exported = trainwright.export(path, "megatron").document
    assert exported.files == trainwright.export(Report(chosen), "megatron").document.files


def test_an_improvement_without_a_change_has_nothing_to_export():
    with pytest.raises(InvalidInput, match="recommends no change"):
        trainwright.export(Report(replace(wasteful(), recommended=None)), "megatron")


# Plans that no options state: the run is the plan as it is
# ---------------------------------------------------------


@cache
def one_by_one() -> Any:
    """A plan of which two stages recompute some of their blocks, and two none."""
    made = trainwright.plan(
        "llama2-7b",
        cluster="dgx-a100",
        nodes=1,
        global_batch=32,
        sequence=4096,
        pp=4,
        tp=1,
        cp=1,
        zero=1,
        micro_batch=1,
        memory="30GiB",
        recompute="none,full",
        schedule="1f1b",
        framework="any",
        top=0,
    )
    counts = [stage.num_recomputed for stage in made.document.stages]
    assert len({*counts}) > 2
    assert not is_stated(made.document)
    return made


def test_a_plan_that_recomputes_block_by_block_is_improved_as_it_is(tmp_path):
    run = one_by_one().document
    found = trainwright.improve(one_by_one())
    document = found.document
    assert document.run.step_time_s == run.step_time_s
    assert document.run.peak_memory_bytes == run.peak_memory_bytes
    assert document.lower_bound_s <= document.best_known_s < run.step_time_s
    assert document.planned.step_time_s == document.best_known_s
    assert document.changes
    assert all(each.step_time_s < run.step_time_s for each in document.changes)
    found.save(tmp_path / "found.json")
    assert recheck(document) == document
    assert "layers recomputed" in found.explain()
    again = trainwright.improve(tmp_path / "found.json").document
    assert [each.options for each in again.changes] == [each.options for each in document.changes]
    edited = replace(document, run=replace(document.run, step_time_s=1.0))
    with pytest.raises(InvalidInput, match=r"run\.step_time_s"):
        recheck(edited)


def test_every_change_of_such_a_plan_is_a_plan_that_takes_what_is_said():
    document = trainwright.improve(one_by_one()).document
    for change in document.changes:
        made = recommended_plan(replace(document, recommended=change))
        assert made.step_time_s == pytest.approx(change.step_time_s, rel=1e-12)
        assert made.peak_memory_bytes == pytest.approx(change.peak_memory_bytes, rel=1e-12)
        assert all(rank.margin_bytes >= 0 for rank in made.ranks)
        assert recheck(made) == made
        question, plan, profile = planned(made)
        step = predict_step(plan, profile, question.cluster, **question.step_terms)
        assert step.step_time_s == made.step_time_s


def test_stages_that_differ_in_degrees_are_refused_with_what_to_do():
    made = of_unequal_degrees()
    with pytest.raises(UnsupportedFeature, match=r"plan again without --per-stage-degrees"):
        trainwright.improve(made)
