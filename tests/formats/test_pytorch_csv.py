import json

import pytest
from hypothesis import given

from reference import needs_reference, reference
from strategies_schedule import schedules
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.formats.pytorch_csv import (
    format_compute_only,
    parse_compute_only,
    read_compute_only,
)
from trainwright.plan.schedule import ActionKind
from trainwright.plan.schedule_costs import ScheduleCosts
from trainwright.scheduling.simulate import simulate
from trainwright.scheduling.validate import validate


@given(schedules())
def test_reading_what_was_written_gives_the_same_schedule(schedule):
    if (schedule.actions[:, 0] == ActionKind.R).any():
        with pytest.raises(UnsupportedFeature, match="no recompute action"):
            format_compute_only(schedule)
        return
    text = format_compute_only(schedule)
    assert parse_compute_only(text) == schedule
    assert format_compute_only(parse_compute_only(text)) == text


def test_overlapped_pairs_share_a_cell():
    text = "0F0,1F0,(0F1;1B0)OVERLAP_F_B,0B0,1F1,1B1,0B1\n"
    schedule = parse_compute_only(text)
    validate(schedule)
    assert schedule.pairs.tolist() == [2]
    assert format_compute_only(schedule) == text


def test_idle_cells_are_skipped():
    assert parse_compute_only("0F0,,0B0,\n") == parse_compute_only("0F0,0B0\n")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0F0,0F1zzz\n", 'row 1, column 2: must look like "3F0", got "0F1zzz"'),
        ("0F0\n0R0\n", 'row 2, column 1: must be F, I, W or B, got "0R0"'),
        ("(0B0;0F1)OVERLAP_F_B\n", "row 1, column 1: must hold F and then B or I"),
        ("0SEND_F0\n", 'row 1, column 1: must look like "3F0", got "0SEND_F0"'),
        ("", "rows: must have at least 1 action, got none"),
        ("0F0\n0B0\n", "placement[1]: stage 0 must be on one rank, is also on rank 0"),
    ],
)
def test_cells_that_pytorch_would_guess_at_are_refused(text, problem):
    with pytest.raises(InvalidInput) as refused:
        parse_compute_only(text, source="orders.csv")
    assert str(refused.value).startswith(problem)
    assert refused.value.source == "orders.csv"


@needs_reference
def test_reference_files_come_back_byte_for_byte():
    paths = sorted((reference() / "schedules/csv").glob("*.csv"))
    assert paths
    for path in paths:
        schedule = read_compute_only(path)
        validate(schedule)
        assert format_compute_only(schedule).encode() == path.read_bytes()


@needs_reference
def test_reference_orders_have_the_expected_times_and_peaks():
    """csv/expected.json: makespan, span and peaks of given orders under two cost sets."""
    folder = reference() / "schedules/csv"
    times = {
        "unit_F_I_W_comm0": {},
        "F3_I4_W2_comm1": {
            "forward_s": 3.0,
            "input_grad_s": 4.0,
            "weight_grad_s": 2.0,
            "transfer_s": 1.0,
        },
    }
    for row in json.loads((folder / "expected.json").read_text()):
        schedule = read_compute_only(folder / row["file"])
        for key, costs in times.items():
            timeline = simulate(schedule, ScheduleCosts.of(schedule.placement, **costs))
            assert timeline.makespan_s == row[key]["makespan"]
            assert timeline.span_s == row[key]["span"]
            assert list(schedule.peak_activations) == row[key]["peak_chunks"]
            assert timeline.peak_bytes.tolist() == row[key]["peak_chunks"]
