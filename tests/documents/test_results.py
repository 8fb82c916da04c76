"""What every call returns: short to print, in full in a notebook, its tables as data frames."""

from __future__ import annotations

import copy
import pickle
import sys

import pytest
from rich.cells import cell_len

import reported
from html_page import Page
from trainwright.documents.printing import Report
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.pages.schedule_report import ScheduleReport


@pytest.fixture(scope="module")
def found():
    return Report(reported.profile_plan())


def test_a_result_is_one_line_where_it_is_echoed(found):
    assert repr(found) == f"<Report: {found.explain().splitlines()[0]}>"
    schedule = ScheduleReport(reported.schedule())
    assert repr(schedule).startswith("<ScheduleReport: ")
    assert "\n" not in repr(schedule)


def test_a_notebook_shows_every_table_and_runs_nothing(found):
    page = Page(f"<!doctype html><html><body>{found._repr_html_()}</body></html>")
    assert len(page.all("table")) >= 1
    assert page.all("script") == []
    assert "slowest" in [text.strip() for _, text in page.all("td")]


def test_every_figure_of_the_document_is_one_of_the_result(found):
    assert found.time_per_sample_s == found.document.time_per_sample_s
    assert "lower_bound_s" in dir(found)
    with pytest.raises(AttributeError, match="neither the result nor its PlanResult has 'stepp'"):
        _ = found.stepp
    assert copy.copy(found) == pickle.loads(pickle.dumps(found)) == found


@pytest.mark.slow
def test_a_table_is_a_data_frame_in_si_units(found):
    pytest.importorskip("pandas")
    frame = found.to_dataframe()
    assert len(frame) == len(found.stages)
    assert frame["stage"].tolist() == list(range(len(found.stages)))
    assert found.to_dataframe("Plan").equals(frame)
    with pytest.raises(InvalidInput, match=r'table: must be one of "Plan".*, got "none"'):
        found.to_dataframe("none")


KINDS = (
    *("model_plan", "model_estimate", "model_sweep", "profile_plan", "placement", "mixed_plan"),
    *("what_if", "improvement", "validation", "verification", "codesign", "machine_room"),
    *("schedule", "model", "fit"),
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_result_is_a_line_a_page_a_frame_and_a_table_of_any_width(kind):
    made = Report(getattr(reported, kind)())
    assert repr(made).startswith("<Report: ")
    assert "\n" not in repr(made)
    page = Page(f"<!doctype html><html><body>{made._repr_html_()}</body></html>")
    assert page.all("table") or page.all("p")
    assert page.all("script") == []
    for width in (60, 80, 100, 200):
        for verbose in (False, True):
            lines = made.explain(verbose=verbose, width=width).splitlines()
            assert max(map(cell_len, lines)) <= width
    pytest.importorskip("pandas")
    assert len(made.to_dataframe().columns) > 1


def test_without_pandas_it_says_what_to_install(found, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UnsupportedFeature, match="pip install pandas"):
        found.to_dataframe()
