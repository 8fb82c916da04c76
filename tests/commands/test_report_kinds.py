"""Every kind of document has a page that says what the document says, or says what has one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import reported
import trainwright
from html_page import Page, text_of
from trainwright.documents.printing import Report
from trainwright.documents.registry import REPORTED
from trainwright.errors import InvalidInput
from trainwright.formats.document_json import content_hash
from trainwright.pages.command import command_of
from trainwright.pages.page import subject_of
from trainwright.units import format_bytes, format_seconds


def saved(document: object, folder: Path) -> Path:
    path = folder / "document.json"
    Report(document).save(path)
    return path


def cells(html: str, key: str) -> list[str]:
    """The bare values under the first column of this key."""
    page = Page(html)
    keys: list[str] = []
    found: list[str] = []
    column = -1
    for tag, attrs, _ in page.elements:
        if tag == "thead":
            if found:
                return found
            keys = []
        if tag == "th" and "data-key" in attrs:
            keys.append(attrs["data-key"])
        if tag == "tr":
            column = -1
        if tag == "td" and "data-value" in attrs:
            column += 1
            if keys[column] == key:
                found.append(attrs["data-value"])
    return found


def cells_of_all(html: str, key: str) -> list[str]:
    """The same of all tables together."""
    parts = html.split("<thead>")
    return [cell for part in parts[1:] for cell in cells(f"<thead>{part}", key)]


@pytest.mark.parametrize("layout", ["across", "beside"])
def test_the_figures_of_a_plan_on_two_kinds_are_those_of_its_document(layout, tmp_path):
    document = reported.mixed_plan(layout)
    html = trainwright.report(saved(document, tmp_path)).html
    assert list(map(float, cells(html, "forward_s"))) == [rank.forward_s for rank in document.ranks]
    assert list(map(float, cells(html, "layer_share"))) == [g.layer_share for g in document.groups]
    assert list(map(float, cells(html, "step_time_s"))) == [
        each.step_time_s for each in (document, *document.alternatives) if document.alternatives
    ]
    text = text_of(html)
    assert format_seconds(document.step_time_s) in text
    assert document.binding.description in text
    for group in document.groups:
        assert f"usable {format_bytes(group.memory_limit_bytes)}" in text


@pytest.mark.parametrize("layout", ["across", "beside"])
def test_the_schedule_drawn_of_two_kinds_is_that_of_the_chain_that_ends_the_step(layout):
    document = reported.mixed_plan(layout)
    timeline = subject_of(document, name="x").panel.timeline
    assert timeline.makespan_s <= document.pipeline_s * (1 + 1e-12)
    own = [rank for rank in document.ranks if rank.chain == document.binding.chain]
    assert timeline.peak_bytes == pytest.approx([rank.memory_bytes for rank in own], rel=1e-12)
    limits = [rank.memory_limit_bytes for rank in own]
    assert list(timeline.costs.memory.limit_bytes) == limits


def test_an_edited_plan_on_two_kinds_is_refused(tmp_path):
    document = reported.mixed_plan()
    edited = replace(document, step_time_s=document.step_time_s * 0.9)
    with pytest.raises(InvalidInput, match="step_time_s: must be"):
        trainwright.report(saved(edited, tmp_path))


def test_a_what_if_is_shown_as_its_two_plans_with_what_changed(tmp_path):
    document = reported.what_if()
    page = trainwright.report(saved(document, tmp_path))
    names = [one.name for one in page.document.documents]
    assert names == ["document.json: before", "document.json: after"]
    times = [document.before.step_time_s, document.after.step_time_s]
    assert list(map(float, cells(page.html, "step_time_s"))) == times
    assert "What was asked differently" in text_of(page.html)
    memory = "cluster.pools[0].accelerator.memory_bytes"
    assert memory in cells_of_all(page.html, "key")
    shown = text_of(page.html)
    sizes = (max(p.peak_memory_bytes_per_rank) for p in (document.before, document.after))
    assert all(format_bytes(size) in shown for size in sizes)
    assert "peak memory" in shown
    assert "peak_memory_bytes" not in shown


def test_an_improvement_lists_every_change_beside_the_run_and_the_best_plan(tmp_path):
    document = reported.improvement()
    html = trainwright.report(saved(document, tmp_path)).html
    assert cells(html, "options") == [one.options for one in document.changes]
    assert list(map(float, cells(html, "gain_share"))) == [o.gain_share for o in document.changes]
    text = text_of(html)
    assert f"your run {format_seconds(document.run.step_time_s)}" in text
    assert f"best plan {format_seconds(document.best_plan.step_time_s)}" in text
    assert document.recommended.options in text
    points = [a for a, _ in Page(html).all("g") if "data-pick" in a]
    assert len(points) == len(document.changes) + 2


@pytest.mark.slow
def test_the_page_of_a_run_that_nothing_makes_fit_lists_what_would_be_enough(tmp_path):
    """Megatron leaves no weights on the host; more devices are no change of the same ones."""
    where = {"cluster": "dgx-h100", "memory": "6GiB", "dp": 1}
    run = trainwright.estimate("opt-1.3b", **where, global_batch=8, sequence=1024, changes=True)
    document = trainwright.improve(run, framework="megatron").document
    assert document.best_known_s is None
    known = {change.options for change in run.document.changes}
    assert document.enough and {change.options for change in document.enough} < known
    html = trainwright.report(saved(document, tmp_path)).html
    assert "Any one of these is enough" in text_of(html)
    rest = html[html.index("Any one of these is enough") :]
    assert cells(rest, "options") == [one.options for one in document.enough]
    assert document.enough


@pytest.mark.slow
def test_the_page_of_a_run_that_does_not_fit_says_what_makes_it_fit(tmp_path):
    run = trainwright.estimate(
        "gpt2",
        cluster="dgx-h100",
        memory="8GiB",
        dp=8,
        micro_batch=16,
        global_batch=128,
        sequence=1024,
    )
    document = trainwright.improve(run).document
    assert not document.run_fits
    html = trainwright.report(saved(document, tmp_path)).html
    text = text_of(html)
    assert f"does not fit in the {format_bytes(document.memory_limit_bytes)} usable" in text
    assert "Changes that make it fit, fastest first" in text
    best = format_seconds(document.recommended.step_time_s)
    assert f"best small change that makes it fit {best}" in text
    assert cells(html, "gain_share") == []
    needed = list(map(float, cells(html, "needed_bytes")))
    assert needed
    assert max(needed) <= document.memory_limit_bytes < needed_of_run(document)


def needed_of_run(document):
    return document.request.configuration.overheads.needed_bytes(document.run.peak_memory_bytes)


@pytest.mark.parametrize("field", ["run", "changes"])
def test_an_edited_improvement_is_refused(field, tmp_path):
    document = reported.improvement()
    if field == "run":
        run = replace(document.run, step_time_s=document.run.step_time_s * 2)
        edited = replace(document, run=run)
    else:
        first = replace(document.changes[0], speedup=9.0)
        edited = replace(document, changes=(first, *document.changes[1:]))
    with pytest.raises(InvalidInput, match=r"must be .*, as the request gives, got"):
        trainwright.report(saved(edited, tmp_path))


def test_a_validation_lists_errors_by_file_and_every_run(tmp_path):
    document = reported.validation()
    html = trainwright.report(saved(document, tmp_path)).html
    (scored,) = document.datasets
    assert list(map(float, cells(html, "mape"))) == [scored.time.mape]
    found = sorted(map(float, cells(html, "measured_step_time_s")))
    assert found == sorted(run.measured_step_time_s for run in scored.runs)
    assert f"error of step times {scored.time.mape:.1%}" in text_of(html)


def test_a_difference_is_refused_with_what_to_do_instead(tmp_path):
    made = trainwright.diff(reported.small_plan("40GiB"), reported.small_plan("60GiB"))
    with pytest.raises(InvalidInput, match=r'"diff" has no page; put the two .* report A B'):
        trainwright.report(saved(made.document, tmp_path))


def test_an_unknown_kind_is_refused_with_all_that_have_a_page(tmp_path):
    path = tmp_path / "other.json"
    path.write_text(json.dumps({"kind": "calibration", "format_version": 1}))
    with pytest.raises(InvalidInput) as refused:
        trainwright.report(path)
    for kind in REPORTED:
        assert f'"{kind}"' in str(refused.value)


def test_the_command_of_a_plan_on_two_kinds_reads_its_cluster_from_the_document():
    command = command_of(reported.mixed_plan())
    assert "--nodes" not in command.words
    assert command.words[3:5] == ("--cluster", "model-plan.json")
    assert "model-plan.json is this document" in command.note


@pytest.mark.parametrize("software", ["trl", "trl with deepspeed"])
def test_the_command_of_a_run_names_what_shards_the_model_of_its_program(software):
    where = {"cluster": "dgx-h100", "nodes": 1, "zero": 3, "global_batch": 8, "sequence": 1024}
    run = trainwright.estimate("qwen3-0.6b", **where, software=software).document
    words = command_of(run).words
    assert words[words.index("--software") + 1] == software


def test_a_difference_names_what_differs_inside_clusters_of_one_name():
    before, after = reported.small_plan("40GiB"), reported.small_plan("60GiB")
    changes = trainwright.diff(before, after).document.request_changes
    (memory,) = (one for one in changes if one.key.startswith("cluster."))
    assert memory.key == "cluster.pools[0].accelerator.memory_bytes"
    assert (memory.before, memory.after) == (40 * 2**30, 60 * 2**30)


def test_a_run_that_does_not_fit_is_shown_with_what_would_make_it_fit_though_nobody_asked():
    where = {"cluster": "dgx-h100", "memory": "8GiB", "dp": 8, "micro_batch": 16}
    run = trainwright.estimate("gpt2", **where, global_batch=128, sequence=1024)
    assert run.document.changes is None
    page = trainwright.report(run)
    assert "Any one of these makes it fit" in text_of(page.html)
    shown = page.document.documents[0]
    assert shown.sha256 == content_hash(run.to_dict())  # of the document as it was given
