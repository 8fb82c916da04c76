"""Pages about documents: what they say is what the documents say."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
from dataclasses import replace

import numpy as np
import pytest

import reported
import trainwright
from html_page import Page, text_of
from trainwright.commands.main import main
from trainwright.documents.explanation import (
    GainRecord,
    ModelExplanation,
    WithoutRecord,
    remake_explanation,
)
from trainwright.documents.printing import Report
from trainwright.errors import InvalidInput
from trainwright.pages.command import command_of
from trainwright.pages.gantt import SCRIPTS
from trainwright.pages.page import subject_of
from trainwright.plans.plan import CommandLine
from trainwright.plans.status import Status
from trainwright.units import format_bytes, format_seconds

KINDS = {
    "model-plan": reported.model_plan,
    "model-estimate": reported.model_estimate,
    "model-sweep": reported.model_sweep,
    "plan": reported.profile_plan,
    "codesign": reported.codesign,
    "placement": reported.placement,
    "schedule": reported.schedule,
    "model-plan on pools": reported.mixed_plan,
    "whatif": reported.what_if,
    "improvement": reported.improvement,
    "validation": reported.validation,
    "machine-room": reported.machine_room,
    "model": reported.model,
    "fit": reported.fit,
}
SECTIONS = {
    "model-plan": "summary schedule why plan ranks network alternatives provenance reproduce",
    "model-estimate": "summary schedule why plan ranks network provenance reproduce",
    "model-sweep": "sizes summary schedule why plan ranks network alternatives provenance "
    "reproduce",
    "plan": "summary plan alternatives why provenance reproduce",
    "codesign": "summary chip plan front why utilisation chips provenance reproduce",
    "placement": "summary plan why provenance reproduce",
    "schedule": "summary schedule why plan provenance reproduce",
    "model-plan on pools": "summary schedule why groups plan ranks alternatives provenance "
    "reproduce",
    "whatif": "comparison schedule summary-1 why-1 plan-1 ranks-1 network-1 alternatives-1 "
    "provenance-1 reproduce-1 summary-2 why-2 plan-2 ranks-2 network-2 alternatives-2 "
    "provenance-2 reproduce-2",
    "improvement": "summary changes distance provenance reproduce",
    "validation": "summary errors ranking runs provenance reproduce",
    "machine-room": "summary system plan next front ends cost provenance reproduce",
    "model": "summary made-of limits reproduce",
    "fit": "table reproduce",
}


@pytest.fixture(params=KINDS, scope="module")
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def html(kind):
    return trainwright.report(KINDS[kind]()).html


@pytest.fixture(scope="module")
def page(html):
    return Page(html)


def values(page, key, table=0):
    """The bare values under a column, by its key, of one of the tables that have it."""
    found = []
    for tag, attrs, _ in page.elements:
        if tag == "tr":
            column = -1
        if tag == "thead":
            keys = []
        if tag == "th" and "data-key" in attrs:
            keys.append(attrs["data-key"])
            if attrs["data-key"] == key:
                found.append([])
        if tag == "td" and "data-value" in attrs:
            column += 1
            if keys[column] == key:
                found[-1].append(attrs["data-value"])
    return found[table]


@pytest.mark.slow
def test_every_section_of_its_kind_is_there(kind, page):
    assert [attrs["id"] for attrs, _ in page.all("section")] == SECTIONS[kind].split()


def test_the_answer_comes_first_and_sources_are_folded(page, kind):
    if kind != "whatif" or page.all("section")[0][0]["id"] != "comparison":
        assert page.all("section")[0][0]["id"] in ("summary", "sizes", "table")
    classes = [attrs.get("class", "") for _, attrs, _ in page.elements]
    verdict = next(at for at, each in enumerate(classes) if each.startswith("verdict "))
    assert all(not each.startswith(("card", "table")) for each in classes[:verdict])
    ends = [a for a, _ in page.all("section") if a["id"].startswith(("provenance", "reproduce"))]
    assert ends
    assert {each.get("class") for each in ends} == {"folded"}


def test_no_heading_is_empty_and_no_two_regions_have_one_name(page, html):
    assert not re.search(r"<(th|h[1-4]|button)\b[^>]*>\s*</", html)
    regions = [a["aria-label"] for _, a, _ in page.elements if a.get("role") == "region"]
    sections = {a["aria-labelledby"] for a, _ in page.all("section") if "aria-labelledby" in a}
    regions += [text for a, text in page.all("h2") if a.get("id") in sections]
    assert len(regions) == len(set(regions))


def test_no_column_of_a_table_is_empty(html):
    for table in re.findall(r'<table class="sortable">.*?</table>', html, re.DOTALL):
        rows = [re.findall(r"<td.*?</td>", row, re.DOTALL) for row in table.split("<tr")[2:]]
        said = [
            {re.sub(r"<[^>]*>", "", cell).strip() for cell in cells}
            for cells in zip(*rows, strict=True)
        ]
        assert {""} not in said, table[:400]


def test_nothing_is_loaded_from_outside(page, html):
    assert not re.search(r"""(src|href|action)\s*=\s*["']?\s*([a-z]+:)?//""", html)
    assert not re.search(r"@import|url\((?!#)|fetch\(|XMLHttpRequest|WebSocket", html)
    for tag in ("link", "img", "iframe", "object", "form", "base"):
        assert not page.all(tag), tag
    assert all("src" not in attrs for attrs, _ in page.all("script"))


def test_the_policy_admits_exactly_the_style_and_the_scripts(page):
    (policy,) = (m["content"] for m, _ in page.all("meta") if "http-equiv" in m)
    scripts = [text for attrs, text in page.all("script") if attrs.get("type") is None]
    inline = scripts + [text for _, text in page.all("style")]
    digests = {hashlib.sha256(text.encode()).digest() for text in inline}
    hashes = {f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests}
    assert policy.startswith("default-src 'none';")
    assert set(re.findall(r"'sha256-[^']+'", policy)) == hashes
    assert "unsafe" not in policy
    assert all("style" not in attrs for _, attrs, _ in page.elements), "the policy forbids these"
    assert not [a for _, attrs, _ in page.elements for a in attrs if a.startswith("on")]


def test_links_within_the_page_lead_somewhere(page):
    anchors = {attrs["id"] for _, attrs, _ in page.elements if "id" in attrs}
    assert len(anchors) == sum("id" in attrs for _, attrs, _ in page.elements)
    for attrs, _ in page.all("a"):
        assert attrs["href"].removeprefix("#") in anchors
    for _, attrs, _ in page.elements:
        assert set(attrs.get("aria-labelledby", "").split()) <= anchors


def test_the_same_document_gives_the_same_bytes(kind, html):
    assert trainwright.report(KINDS[kind]()).html == html


def test_what_is_faster_is_said_of_documents_about_one_model():
    def states(*documents):
        page = Page(trainwright.report(*documents).html)
        return [text for _, text in page.all("strong")][:1]

    plan = reported.model_plan()
    assert states(plan, replace(plan, step_time_s=plan.step_time_s * 2)) == [
        "Fastest is model-plan 1:"
    ]
    assert states(plan, plan) == ["Equally fast:"]
    assert "Fastest" not in str(states(plan, reported.machine_room()))


def test_names_steer_no_terminal_that_the_page_is_printed_in():
    hostile = reported.renamed(reported.model_plan(), "\x1b[31mred\x07")
    html = trainwright.report(hostile).html
    assert "\\x1b[31mred\\x07" in html
    assert not set(html) & {"\x1b", "\x07"}


def test_what_would_make_it_fit_has_no_empty_columns():
    page = Page(trainwright.report(reported.small_plan("512MiB")).html)
    assert "vs plan" not in [text for _, text in page.all("th")]


def test_the_figures_of_a_plan_are_those_of_its_document():
    document = reported.model_plan()
    html = trainwright.report(document).html
    page, text = Page(html), text_of(html)
    assert format_seconds(document.step_time_s) in text
    assert format_seconds(document.step_time_low_s) in text
    assert f"{document.tokens_per_s:,.0f}" in text
    assert f"{document.mfu:.1%}" in text
    assert format_bytes(max(document.peak_memory_bytes_per_rank)) in text
    ranks = document.ranks
    assert list(map(float, values(page, "forward_s"))) == [rank.forward_s for rank in ranks]
    assert list(map(float, values(page, "backward_s"))) == [rank.backward_s for rank in ranks]
    peaks = list(map(float, values(page, "memory_bytes")))
    assert peaks == list(document.peak_memory_bytes_per_rank)
    repeated = [
        sum(stage.num_recomputed for stage in document.stages if stage.rank == rank)
        for rank in range(len(ranks))
    ]
    assert list(map(int, values(page, "num_recomputed"))) == repeated
    times = [document.step_time_s, *(other.step_time_s for other in document.alternatives)]
    assert list(map(float, values(page, "step_time_s"))) == times
    largest = sorted(document.time_by_part_s.values(), reverse=True)[:5]
    shown = list(map(float, values(page, "seconds")))
    assert shown == pytest.approx([spent_s for spent_s in largest if spent_s > 0])


def test_the_figures_of_a_profile_plan_are_those_of_its_document():
    document = reported.profile_plan()
    page = Page(trainwright.report(document).html)
    stages = document.stages
    times = [stage.time_per_sample_s for stage in stages]
    assert list(map(float, values(page, "time_per_sample_s"))) == times
    assert list(map(float, values(page, "memory_bytes"))) == [s.memory_bytes for s in stages]
    assert values(page, "plan") == [other.name for other in document.baselines]


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(reported.model_plan, marks=pytest.mark.slow),
        reported.small_plan,
        reported.model_estimate,
    ],
)
def test_every_rank_fills_the_step(make):
    document = make()
    priced = subject_of(document, name="x").priced
    for parts_s in priced.parts_of_rank_s:
        assert sum(parts_s.values()) == pytest.approx(document.step_time_s)
        assert min(parts_s.values()) >= 0


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(reported.model_plan, marks=pytest.mark.slow),
        reported.small_plan,
        reported.model_estimate,
    ],
)
def test_the_schedule_drawn_is_the_one_that_was_priced(make):
    subject = subject_of(make(), name="x")
    timeline, step = subject.panel.timeline, subject.priced.step
    assert timeline.makespan_s == pytest.approx(step.pipeline_s, rel=1e-12)
    peaks = [stage.memory.total_bytes for stage in step.stages]
    assert timeline.peak_bytes == pytest.approx(peaks, rel=1e-12)
    assert np.isfinite(timeline.costs.memory.limit_bytes).all()


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(reported.model_plan, marks=pytest.mark.slow),
        reported.small_plan,
        reported.model_estimate,
    ],
)
def test_levels_carry_all_that_is_communicated(make):
    priced = subject_of(make(), name="x").priced
    carried = sum(axis.total_s for level in priced.network for axis in level.axes)
    every = sum(part.exposed_s + part.hidden_s for part in priced.step.communication)
    assert carried == pytest.approx(every)
    assert carried > 0


def test_names_are_escaped_wherever_they_stand():
    document = reported.renamed(reported.model_plan(), reported.HOSTILE)
    typed = CommandLine(words=("plan", reported.HOSTILE), files=(reported.HOSTILE,))
    request = replace(document.request, command_line=typed)
    document = replace(document, request=request, warnings=(reported.HOSTILE,))
    text = trainwright.report(document, title=reported.HOSTILE, date=reported.HOSTILE).html
    page = Page(text)
    assert not page.all("img")
    assert len(page.all("script")) == len(SCRIPTS) + 2
    assert page.all("h1")[0][1] == reported.HOSTILE
    (command,) = (text for _, text in page.all("pre"))
    assert shlex.split(command)[2] == reported.HOSTILE


def test_a_page_of_a_hundred_thousand_bars_stays_below_its_limit():
    """64 ranks of 768 microbatches: 98,304 bars with times that follow no pattern."""
    made = trainwright.estimate(
        "llama3-70b",
        cluster="dgx-h100",
        nodes=8,
        pp=64,
        dp=1,
        micro_batch=1,
        global_batch=768,
        sequence=512,
    )
    subject = subject_of(made.document, name="x")
    assert subject.panel.num_bars == 98_304
    assert trainwright.report(made.document).document.size_bytes < 1_500_000


def test_schedules_beyond_drawing_are_left_out_and_that_is_said(monkeypatch):
    monkeypatch.setattr("trainwright.pages.page.MOST_DRAWN_ACTIONS", 10)
    page = trainwright.report(reported.model_plan())
    (one,) = page.document.documents
    assert "more than 10 are not drawn" in one.left_out[0]
    assert one.left_out[0] in " ".join(text for _, _, text in Page(page.html).elements)
    assert not [a for a, _ in Page(page.html).all("canvas")]


def test_stages_of_unequal_degrees_have_a_page_without_a_schedule():
    plan = reported.of_unequal_degrees()
    page = trainwright.report(plan)
    assert "differ in degrees" in page.document.documents[0].left_out[0]
    shown = Page(page.html)
    degrees = list(
        zip(values(shown, "data_parallel"), values(shown, "tensor_parallel"), strict=True)
    )
    expected = [
        (str(s.data_parallel), str(s.tensor_parallel)) for s in reported.of_unequal_degrees().stages
    ]
    assert degrees == expected
    assert len(set(degrees)) > 1


@pytest.mark.slow
def test_the_page_of_a_search_that_was_ended_does_not_say_that_nothing_fits():
    asked = {"cluster": "dgx-a100", "devices": 8, "global_batch": 8, "sequence": 1024}
    made = trainwright.plan("gpt2", **asked, memory="128MiB").document
    assert made.status == "infeasible"
    ended = replace(made, status=Status.UNKNOWN, binding=None, relaxations=())
    text = " ".join(text for _, _, text in Page(trainwright.report(ended).html).elements)
    assert "Why there is no plan yet" in text
    assert "nothing fits" not in text


@pytest.mark.slow
def test_a_plan_that_does_not_exist_has_a_page_that_says_why():
    made = trainwright.plan(
        "gpt2", cluster="dgx-a100", devices=8, memory="300MiB", global_batch=8, sequence=1024
    )
    assert made.status == "infeasible"
    page = Page(trainwright.report(made).html)
    text = " ".join(text for _, _, text in page.elements)
    assert "Why nothing fits" in text
    assert made.document.binding.description in text
    assert made.document.relaxations
    for fix in made.document.relaxations:
        assert fix.description in text


def test_several_documents_are_compared():
    first, second = reported.model_plan(), reported.small_plan()
    page = Page(trainwright.report(first, second, reported.model_estimate()).html)
    times = [d.step_time_s for d in (first, second, reported.model_estimate())]
    assert list(map(float, values(page, "step_time_s"))) == times
    names = [attrs["id"] for attrs, _ in page.all("section")]
    assert names[:2] == ["comparison", "schedule"]
    assert {"summary-1", "summary-2", "summary-3", "network-3"} <= set(names)
    assert len(page.all("canvas")) == 2
    (data,) = (text for attrs, text in page.all("script") if attrs.get("id") == "data")
    assert len(json.loads(data)["panels"]) == 3


def test_unlike_documents_share_a_page_without_differences():
    page = Page(trainwright.report(reported.schedule(), reported.profile_plan()).html)
    assert values(page, "document") == ["schedule 1", "plan 2"]


def test_a_page_needs_a_document():
    with pytest.raises(InvalidInput, match="at least 1 document"):
        trainwright.report()


def test_the_figures_of_a_placement_are_those_of_its_document():
    document = reported.placement()
    page = Page(trainwright.report(document).html)
    assert list(map(float, values(page, "load_s"))) == [stage.load_s for stage in document.stages]
    memories = [stage.memory_bytes for stage in document.stages]
    assert list(map(float, values(page, "memory_bytes"))) == memories


def test_the_figures_of_a_chip_are_those_of_its_document(tmp_path):
    document = reported.codesign()
    path = tmp_path / "chip.json"
    Report(document).save(path)
    page = Page(trainwright.report(path).html)
    shares = sorted((one.utilisation for one in document.operators), reverse=True)
    found = sorted(map(float, values(page, "utilisation")), reverse=True)
    assert found == shares
    text = " ".join(text for _, _, text in page.elements)
    for area in document.best.area_parts_mm2.values():
        assert f"{area:.2f} mm²" in text
    assert len([a for a, _ in page.all("g") if "data-pick" in a]) == len(document.pareto)
    mine = document.best.plans[0]
    assert float(values(page, "tokens_per_s")[0]) == mine.tokens_per_s


def test_the_page_of_an_explanation_says_what_choices_buy(tmp_path):
    path = tmp_path / "why.json"
    plan = reported.model_plan()
    document = ModelExplanation(
        busiest_rank=0,
        fullest_rank=0,
        free_bytes=1e9,
        binding="memory",
        time_by_part_s=plan.time_by_part_s,
        memory_by_class_bytes={},
        plan=plan,
        without=(
            WithoutRecord(name="recomputation", status=Status.INFEASIBLE),
            WithoutRecord(name="ZeRO", status=Status.OPTIMAL, step_time_s=4.0, slowdown=1.25),
        ),
        gains=(
            GainRecord(
                resource="memory", change="+10 GiB", step_time_s=2.5, saved=0.1, replanned=True
            ),
        ),
    )
    Report(document).save(path)
    with pytest.raises(InvalidInput, match=r"without\[1\]\.slowdown: must be"):
        trainwright.report(path)
    document = remake_explanation(document)
    Report(document).save(path)
    page = Page(trainwright.report(path).html)
    assert values(page, "name") == ["recomputation", "ZeRO"]
    assert values(page, "slowdown") == ["", repr(document.without[1].slowdown - 1)]
    assert values(page, "saved") == [repr(document.gains[0].saved)]
    assert [attrs["id"] for attrs, _ in page.all("section")] == SECTIONS["model-plan"].split()


def test_a_sweep_lists_its_rows_and_shows_the_preferred_plan():
    document = reported.model_sweep()
    page = Page(trainwright.report(document).html)
    assert list(map(int, values(page, "devices"))) == [row.devices for row in document.rows]
    times = list(map(float, values(page, "step_time_s")))
    assert times == [row.step_time_s for row in document.rows]
    forward = list(map(float, values(page, "forward_s")))
    assert forward == [rank.forward_s for rank in document.best_plan.ranks]


def test_a_sweep_marks_the_rows_that_miss_the_deadline():
    document = reported.model_sweep()
    slow, fast = (row.train_s for row in document.rows)
    training = replace(document.training, deadline_s=(slow + fast) / 2)
    late = replace(document, training=training, best=1, pareto=())
    page = Page(trainwright.report(late).html)
    assert values(page, "marks") == ["late", "best"]


def test_the_command_of_a_sweep_states_the_unit_of_its_deadline():
    document = reported.model_sweep()
    training = replace(document.training, deadline_s=1800.0)
    assert "--deadline 1800.0s" in command_of(replace(document, training=training)).text


@pytest.mark.slow
def test_the_command_of_a_sweep_gives_it_again(capsys):
    document = reported.model_sweep()
    with pytest.raises(SystemExit):
        main([*command_of(document).words[1:], "--json"])
    again = json.loads(capsys.readouterr().out)
    found = [(row["devices"], row["step_time_s"], row["cost"]) for row in again["rows"]]
    assert found == [(row.devices, row.step_time_s, row.cost) for row in document.rows]


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(reported.model_plan, marks=pytest.mark.slow),
        reported.small_plan,
        reported.model_estimate,
    ],
)
def test_the_command_gives_the_document_again(make, capsys):
    document = make()
    words = command_of(document).words
    with pytest.raises(SystemExit):
        main([*words[1:], "--json"])
    again = json.loads(capsys.readouterr().out)
    assert again["step_time_s"] == document.step_time_s
    assert again["request"]["model"]["sha256"] == document.request.model.sha256
    assert again["request"]["cluster"]["sha256"] == document.request.cluster.sha256


@pytest.mark.parametrize(
    "asked",
    [
        "estimate gpt2 --cluster dgx-a100 --nodes 1 --global-batch 8 --sequence 1024",
        "estimate gpt2 --cluster dgx-a100 --nodes 1 --global-batch 8 --sequence 1024 "
        "--software megatron-core",
        pytest.param("fit llama3-8b --gpu rtx4090 --fit-probability 80%", marks=pytest.mark.slow),
        pytest.param(
            "plan gpt2 --cluster dgx-a100 --devices 1,2 --global-batch 8 --sequence 1024 --tp 1 "
            "--pp 1",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "plan gpt2 --cluster dgx-a100 --devices 2 --global-batch 8 --sequence 1024 --tp 1 "
            "--pp 1 --sweep sequence=512,1024 --sweep precision=bf16,fp32",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_a_page_prints_to_reproduce_it_gives_it_again(asked, tmp_path, capsys):
    def answer(line):
        with pytest.raises(SystemExit):
            main([*shlex.split(line), "--json"])
        return json.loads(capsys.readouterr().out)

    document = answer(asked)
    (tmp_path / "run.json").write_text(json.dumps(document), encoding="utf-8")
    page = Page(trainwright.report(tmp_path / "run.json").html)
    printed = [text for _, text in page.all("pre") if text.startswith("trainwright ")]
    again = answer(printed[-1].removeprefix("trainwright "))
    for key in ("step_time_s", "rows", "request", "device_bytes"):
        assert without_times(again.get(key)) == without_times(document.get(key)), key


def without_times(value):
    """What two searches of one question have in common."""
    if isinstance(value, list):
        return [without_times(each) for each in value]
    if isinstance(value, dict):
        return {key: without_times(each) for key, each in value.items() if key != "search_s"}
    return value


def test_a_name_that_means_something_else_by_now_is_told():
    known = command_of(reported.model_estimate())
    assert known.note == ""
    other = command_of(reported.renamed(reported.model_plan(), "my-model"))
    assert other.words[2] == "model-plan.json"
    assert "model-plan.json is this document, saved" in other.note


def test_the_page_of_a_run_with_states_on_the_host_prices_the_step_of_its_document():
    made = trainwright.estimate(
        "llama3-8b",
        cluster="dgx-h100",
        dp=4,
        pp=2,
        zero=1,
        global_batch=8,
        sequence=4096,
        offload=("optimizer=1",),
    ).document
    step = subject_of(made, name="run").priced.step
    assert step.step_time_s == made.step_time_s
    assert step.optimizer_s == made.optimizer_s
