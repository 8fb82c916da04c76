import json

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference import needs_reference, reference
from strategies_schedule import schedules
from trainwright.errors import InvalidInput
from trainwright.formats.schedule_json import (
    format_compute_comms,
    orders_schema,
    parse_orders,
    read_compute_only,
    read_orders,
    read_orders_bytes,
    read_schedule_spec,
    write_orders,
)
from trainwright.plans.schedule import Action, ActionKind, Schedule
from trainwright.scheduling.families import FamilyRequest, generate
from trainwright.scheduling.lower import lower

VALIDATOR = jsonschema.Draft202012Validator(orders_schema())

SMALL = {
    "kind": "orders",
    "format_version": 1,
    "num_microbatches": 2,
    "rank_of_stage": [0, 1],
    "orders": [["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]],
}


@st.composite
def schedules_with_pairs(draw: st.DrawFn) -> Schedule:
    schedule = draw(schedules())
    kinds, ranks = schedule.actions[:, 0], schedule.rank_of_row
    may_pair = (kinds[:-1] == ActionKind.F) & np.isin(kinds[1:], [ActionKind.I, ActionKind.B])
    rows = np.flatnonzero(may_pair & (ranks[1:] == ranks[:-1])).tolist()
    chosen = sorted(draw(st.sets(st.sampled_from(rows)))) if rows else []
    return Schedule(
        placement=schedule.placement,
        num_microbatches=schedule.num_microbatches,
        actions=schedule.actions,
        rank_offsets=schedule.rank_offsets,
        pairs=np.array(chosen, np.int64),
    )


@given(schedules_with_pairs())
def test_reading_what_was_written_gives_the_same_schedule(schedule):
    value = write_orders(schedule)
    VALIDATOR.validate(value)
    assert read_orders(value) == schedule
    assert read_orders_bytes(json.dumps(value).encode()) == schedule


def test_the_small_example_is_one_forward_one_backward():
    assert read_orders(SMALL) == generate("1f1b", FamilyRequest(num_ranks=2, num_microbatches=2))


def test_every_fault_is_named_in_the_order_of_the_document():
    value = {
        "kind": "orders",
        "format_version": 1,
        "num_microbatches": 2,
        "rank_of_stage": [0, 5],
        "orders": [["0F0", "0X1", "9F0"], ["1F0", "(1B0;1F1)OVERLAP_F_B", "1B7", "1F1zzz"]],
    }
    with pytest.raises(InvalidInput) as refused:
        read_orders(value, source="orders.json")
    assert str(refused.value).splitlines() == [
        "rank_of_stage[1]: must be a rank that has an order, 0 to 1, got 5",
        'orders[0][1]: must look like "3F0", got "0X1"',
        "orders[0][2]: stage must be from 0 to 1, got 9",
        'orders[1][1]: must hold F and then B or I, got "(1B0;1F1)OVERLAP_F_B"',
        "orders[1][2]: microbatch must be from 0 to 1, got 7",
        'orders[1][3]: must look like "3F0", got "1F1zzz"',
    ]
    assert refused.value.source == "orders.json"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"format_version": 2}, "format_version: must be <= 1, got 2; a newer trainwright"),
        ({"num_microbatches": 0}, "num_microbatches: must be >= 1, got 0"),
        ({"orders": []}, "orders: must have at least 1 entry, got 0"),
        ({"orders": [["0F0"], "1F0"]}, 'orders[1]: must be an array, got "1F0" (string)'),
        ({"order": []}, "order: must be a field of this format, did you mean orders?"),
        ({"kind": "plan"}, 'kind: must be "orders", got "plan"'),
        ({"orders": [["999999999F0"], []]}, "orders[0][0]: stage must be from 0 to 1, got 999"),
        ({"orders": [["0F9999999999"], []]}, 'orders[0][0]: must look like "3F0", got "0F999'),
        ({"num_microbatches": 10**9}, "actions: must hold F of 2 stages x 1000000000 microbatches"),
        ({"kind": None}, "kind: must be a string, got null"),
    ],
)
def test_documents_of_another_shape_are_refused(change, problem):
    with pytest.raises(InvalidInput) as refused:
        read_orders({**SMALL, **change})
    assert str(refused.value).startswith(problem)


@pytest.mark.parametrize(
    ("read", "own"), [(read_orders, "orders"), (read_schedule_spec, "schedule_spec")]
)
def test_a_document_of_a_result_is_refused_in_one_sentence(read, own):
    with pytest.raises(InvalidInput) as refused:
        read({"kind": "model-plan", "format_version": 1, "request": {}}, source="plan.json")
    (fault,) = refused.value.faults
    assert str(fault).startswith(f'kind: must be "{own}" or "schedule", got "model-plan"')
    assert "trainwright report plan.json" in str(fault)


def test_files_are_told_apart_by_content(tmp_path):
    schedule = generate("1f1b", FamilyRequest(num_ranks=2, num_microbatches=2))
    texts = {
        "json": "\ufeff\n" + json.dumps(write_orders(schedule)),
        "plain": "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n",
        "lowered": format_compute_comms(lower(schedule, sharded_stages=(0, 1))),
    }
    for name, text in texts.items():
        path = tmp_path / name
        path.write_text(text.lstrip("\n"), encoding="utf-8")
        assert parse_orders(path.read_bytes(), source=str(path)) == schedule, name


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\n", "rows: must have at least 1 action, got none"),
        (b"\xff\xfe", "orders: must be JSON or PyTorch's CSV, got text that is not UTF-8"),
        (b"{", "orders: must be a JSON object, got text that breaks off"),
        (b"0F0,0B999999999", "actions: must hold F of 1 stages x 1000000000 microbatches, got 2"),
        (b"999999999F0", "placement: misses stage 0; no rank owns it"),
        (b"# orders\n0F0", 'row 1, column 1: must look like "3F0", got "# orders"'),
    ],
)
def test_files_of_neither_kind_are_refused(tmp_path, content, problem):
    path = tmp_path / "orders"
    path.write_bytes(content)
    with pytest.raises(InvalidInput) as refused:
        parse_orders(path.read_bytes(), source=str(path))
    assert str(refused.value).startswith(problem)
    assert refused.value.source == str(path)


def test_ranks_without_actions_and_recomputation_are_kept():
    schedule = Schedule.from_orders([[Action.parse(t) for t in ("0F0", "0R0", "0B0")], []])
    assert write_orders(schedule)["orders"] == [["0F0", "0R0", "0B0"], []]
    assert read_orders(write_orders(schedule)) == schedule


@needs_reference
def test_reference_orders_survive():
    paths = sorted((reference() / "schedules/csv").glob("*.csv"))
    assert paths
    for path in paths:
        schedule = read_compute_only(path)
        assert (
            read_orders(write_orders(schedule))
            == parse_orders(path.read_bytes(), source=str(path))
            == schedule
        )
