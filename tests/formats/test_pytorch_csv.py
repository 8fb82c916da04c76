import json

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from reference import needs_reference, reference
from strategies_schedule import schedules
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.formats.schedule_json import (
    format_compute_comms,
    format_compute_only,
    parse_compute_comms,
    parse_compute_only,
    read_compute_only,
)
from trainwright.plans.schedule import Action, Placement, Schedule, ScheduleCosts
from trainwright.scheduling.lower import as_pytorch_runs, lower, validate_lowered
from trainwright.scheduling.simulate import simulate, validate


def for_pytorch(schedule: Schedule) -> Schedule:
    try:
        return as_pytorch_runs(schedule)
    except UnsupportedFeature:
        reject()


@given(schedules(may_recompute=False))
def test_reading_what_was_written_gives_the_same_schedule(schedule):
    schedule = for_pytorch(schedule)
    text = format_compute_only(schedule)
    assert parse_compute_only(text) == schedule
    assert format_compute_only(parse_compute_only(text)) == text


@given(schedules(may_recompute=False), st.booleans())
def test_reading_lowered_orders_gives_the_same_orders(schedule, sharded):
    schedule = for_pytorch(schedule)
    stages = range(schedule.placement.num_stages) if sharded else ()
    lowered = lower(schedule, sharded_stages=stages)
    text = format_compute_comms(lowered)
    assert parse_compute_comms(text) == lowered
    assert format_compute_comms(parse_compute_comms(text)) == text


def test_overlapped_pairs_stay_together_in_lowered_orders():
    schedule = parse_compute_only("0F0,1F0,(0F1;1B0)OVERLAP_F_B,0B0,1F1,1B1,0B1\n")
    text = format_compute_comms(lower(schedule))
    assert text == ("0F0,1F0,(0F1;1B0)OVERLAP_F_B,0B0,1F1,1B1,1REDUCE_GRAD,0B1,0REDUCE_GRAD\n")
    assert parse_compute_comms(text).pairs.tolist() == [2]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0F0,0R0,0B0\n", "PyTorch schedules have no recompute action; checkpoint inside"),
        ("0F1,0F0,0B0,0B1\n", "PyTorch gives wrong gradients unless the last stage runs forwards"),
    ],
)
def test_what_pytorch_cannot_run_is_refused_with_what_can_be_done(text, problem):
    order = [Action.parse(cell) for cell in text.replace("\n", ",").split(",") if cell]
    schedule = Schedule.from_orders([order])
    for write in (format_compute_only, lambda given: format_compute_comms(lower(given))):
        with pytest.raises(UnsupportedFeature) as refused:
            write(schedule)
        assert str(refused.value).startswith(problem)


def test_a_rank_without_actions_is_refused():
    idle = Schedule(
        placement=Placement(rank_of_stage=(0,), num_ranks=2),
        num_microbatches=1,
        actions=np.array([[0, 0, 0], [3, 0, 0]]),
        rank_offsets=np.array([0, 2, 2]),
    )
    with pytest.raises(UnsupportedFeature, match="and rank 1 has none; place a stage there"):
        format_compute_only(idle)


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


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0F0,0SEND_F0zzz\n", 'row 1, column 2: must look like "3F0", "3SEND_F0" or "3UNSHARD"'),
        ("0F0,0UNSHARD0\n", 'row 1, column 2: must look like "3F0", "3SEND_F0" or "3UNSHARD"'),
        ("0F0,0SEND_F\n", 'row 1, column 2: must look like "3F0", "3SEND_F0" or "3UNSHARD"'),
        ("0F0,,0B0\n", 'row 1, column 2: must look like "3F0", "3SEND_F0" or "3UNSHARD"'),
        ("0F0,0R0\n", "row 1, column 2: must be no recomputation"),
        ("", "rows: must have at least 1 action, got none"),
        ("0F0,0B0\n0RECV_F0\n", "placement[1]: stage 0 must be on one rank, is also on rank 0"),
    ],
)
def test_lowered_cells_that_pytorch_would_guess_at_are_refused(text, problem):
    with pytest.raises(InvalidInput) as refused:
        parse_compute_comms(text, source="orders.csv")
    assert str(refused.value).startswith(problem)
    assert refused.value.source == "orders.csv"


def test_every_wrong_cell_is_named():
    with pytest.raises(InvalidInput) as refused:
        parse_compute_comms("0F0,x,0B0\n1F0,,1B0\n")
    assert [fault.path for fault in refused.value.faults] == [
        "row 1, column 2",
        "row 2, column 2",
    ]


@needs_reference
def test_reference_files_come_back_byte_for_byte():
    paths = sorted((reference() / "schedules/csv").glob("*.csv"))
    assert paths
    for path in paths:
        schedule = read_compute_only(path)
        validate(schedule)
        assert format_compute_only(schedule).encode() == path.read_bytes()
        lowered = lower(schedule, sharded_stages=range(schedule.placement.num_stages))
        validate_lowered(lowered, rendezvous=True)
        text = format_compute_comms(lowered)
        assert format_compute_comms(parse_compute_comms(text)) == text


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
