"""The reference pages hold what the code holds."""

from __future__ import annotations

import re
import shlex
import shutil

import pytest
from generated import PARTS, fill
from generated.commands import commands_part
from generated.documents import (
    document_types,
    documents_part,
    heading,
    nested_records,
    slug,
    type_text,
    unit,
)
from generated.outputs import EXAMPLES, Question, questions
from generated.python import python_part
from generated.reports import REPORTS, reports_part, write_reports
from generated.targets import targets_part

import trainwright
from trainwright import results
from trainwright.commands.main import COMMANDS, main
from trainwright.formats.records import record_fields
from trainwright.plans.capability import TARGETS, Support, capability_of
from trainwright.plans.capability_table import Feature


def test_every_option_that_help_prints_is_in_the_reference(capfd):
    page = commands_part()
    with pytest.raises(SystemExit):
        main(["--help"])
    listed = re.findall(r"^  ([a-z]+) ", capfd.readouterr().out, re.M)
    assert re.findall(r"^## (\w+)$", page, re.M) == list(COMMANDS)
    assert sorted(listed) == sorted(COMMANDS)  # each once, in whatever group
    for command in listed:
        section = re.search(rf"^## {command}$(.*?)(?=^## |\Z)", page, re.M | re.S)[1]
        with pytest.raises(SystemExit):
            main([command, "--help"])
        options = set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", capfd.readouterr().out, re.M))
        assert options - {"--help"} <= set(re.findall(r"--[a-z][a-z-]*", section)), command


def test_every_public_name_is_in_the_reference_with_what_it_takes():
    page = python_part()
    listed = (*trainwright.__all__, *results.__all__)
    names = [name for name in listed if not name.startswith("_")]
    assert sorted(re.findall(r"^#### (\w+)$", page, re.M)) == sorted(names)
    assert "    global_batch: int | None = None," in page
    assert "- `to_dataframe()`: One of the document's tables" in page


@pytest.mark.slow
def test_every_key_of_every_document_is_in_the_reference():
    page = documents_part()
    for record in nested_records(document_types()):
        for field in record_fields(record):
            assert f"| `{field.name}` |" in page
    kinds = re.findall(r"^### ([a-z-]+)$", page.partition("## Records")[0], re.M)
    assert {"plan", "model-plan", "model-estimate", "schedule", "codesign"} <= set(kinds)


def test_names_of_records_are_not_used_twice():
    names = [slug(heading(record)) for record in nested_records(document_types())]
    assert len(names) == len(set(names))


@pytest.mark.slow
def test_links_between_records_lead_to_a_heading():
    page = documents_part()
    headings = {slug(title) for title in re.findall(r"^#+ (.+)$", page, re.M)}
    links = set(re.findall(r"\]\(#([^)]+)\)", page))
    assert links
    assert links <= headings


@pytest.mark.parametrize(
    ("name", "hint", "written"),
    [
        ("step_time_s", float, "s"),
        ("tokens_per_s", float, "tokens/s"),
        ("tokens_per_s_per_device", float, "tokens/s per device"),
        ("bandwidth_bytes_per_s", float, "bytes/s"),
        ("peak_memory_bytes_per_rank", tuple[float, ...], "bytes"),
        ("checkpoint_interval_s", float, "s"),
        ("energy_per_token_j", float, "J per token"),
        ("area_mm2", float, "mm²"),
        ("mfu", float, ""),
        ("stages", str, ""),
    ],
)
def test_units_are_read_from_names(name, hint, written):
    assert unit(name, hint) == written


def test_types_are_written_in_words():
    assert type_text(float | None) == "number, or absent"
    assert type_text(tuple[int, ...]) == "list of integer"
    assert type_text(dict[str, float]) == "number by name"


def test_the_table_of_targets_says_of_every_feature_who_can():
    rows = [line.split(" | ") for line in targets_part().splitlines() if line.startswith("| ")]
    by_name = {cells[0].strip("| "): [cell.strip(" |") for cell in cells[1:]] for cells in rows}
    for feature in Feature:
        can = [capability_of(target).cells[feature].support is not Support.NO for target in TARGETS]
        assert [cell != "–" for cell in by_name[feature.value]] == can, feature


def test_a_page_with_an_unknown_part_is_refused():
    assert fill("# Plain\n") == "# Plain\n"
    with pytest.raises(KeyError):
        fill("<!-- generated: nonsense -->\n")


def test_every_part_is_on_a_page(request):
    pages = request.config.rootpath.joinpath("docs").glob("*.md")
    used = re.findall(r"<!-- generated: (\w+) -->", "".join(page.read_text() for page in pages))
    assert sorted(used) == sorted(PARTS)


def test_every_report_is_listed_and_has_a_page(tmp_path):
    write_reports(tmp_path)
    names = re.findall(r"^- \[.+\]\(reports/([\w.-]+\.md)\), \d{4}-", reports_part(), re.M)
    assert names == sorted(path.name for path in REPORTS.glob("*.md"))
    for name in names:
        assert (tmp_path / "reports" / name).read_bytes() == (REPORTS / name).read_bytes()


def test_the_gallery_lists_its_twelve_questions():
    page = fill("<!-- generated: gallery -->")
    names = re.findall(r"\(gallery/([a-z-]+)\.md\)", page)
    assert names == [each.name for each in questions()]
    assert len(set(names)) == 12


AT_LENGTH = pytest.mark.papers
LONGEST = {
    *("best-plan", "out-of-memory", "half-the-network"),
    *("mixed-cluster", "my-job", "design-a-chip"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(
            each,
            id=each.name,
            marks=() if not each.dear else AT_LENGTH if each.name in LONGEST else pytest.mark.slow,
        )
        for each in questions()
    ],
)
def test_a_question_of_the_gallery_is_answered(asked: Question, tmp_path, monkeypatch, capsys):
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    lines = re.findall(r"^trainwright (.+)$", asked.text, re.M)
    for line in lines:
        with pytest.raises(SystemExit) as ended:
            main(shlex.split(line))
        assert ended.value.code in (0, 3), line
        printed = capsys.readouterr().out
        assert len(printed.splitlines()) > 3, line
    assert f"<h1>{asked.title}</h1>" in (tmp_path / f"{asked.name}.html").read_text()
