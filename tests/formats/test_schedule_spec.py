import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies_schedule import placements
from trainwright.errors import InvalidInput
from trainwright.formats.document_json import encode_compact
from trainwright.formats.schedule_json import (
    ScheduleSpec,
    load_schedule_spec,
    read_schedule_spec,
    schedule_spec_schema,
)
from trainwright.plans.schedule import ActionKind, Placement, TransferModel
from trainwright.scheduling.families import FamilyRequest, generate
from trainwright.scheduling.simulate import simulate

VALIDATOR = jsonschema.Draft202012Validator(schedule_spec_schema())
F, I, W, B, R, *_ = ActionKind  # noqa: E741

TIMES = {"forward_s": [1, 2, 3, 4], "input_grad_s": [2], "weight_grad_s": [0.5, 1, 1, 1]}


@st.composite
def specs(draw: st.DrawFn) -> tuple[ScheduleSpec, Placement]:
    placement = draw(placements().filter(lambda p: all(p.stages_of_rank)))
    amounts, deltas = st.sampled_from([0.0, 0.5, 3.0]), st.sampled_from([-2.0, 0.0, 1.5])

    def some(size: int, values: st.SearchStrategy[float], least: int = 0) -> tuple[float, ...]:
        count = draw(st.sampled_from([n for n in (0, 1, size) if n >= least]))
        return tuple(draw(st.lists(values, min_size=count, max_size=count)))

    stages, ranks = placement.num_stages, placement.num_ranks
    counted = draw(st.booleans())
    memory = (
        {}
        if counted
        else {
            "forward_bytes": some(stages, amounts, 1),
            "input_grad_bytes": some(stages, deltas),
            "weight_grad_bytes": some(stages, deltas),
            "weight_grad_transient_bytes": some(stages, amounts),
        }
    )
    spec = ScheduleSpec(
        rank_of_stage=draw(st.sampled_from([None, placement.rank_of_stage])),
        forward_s=some(stages, amounts, 1),
        input_grad_s=some(stages, amounts, 1),
        weight_grad_s=some(stages, amounts, 1),
        backward_s=some(stages, amounts),
        overhead_s=some(stages, amounts),
        transfer_s=some(stages - 1, amounts) if stages > 1 else (),
        static_bytes=some(ranks, amounts),
        limit_bytes=some(ranks, amounts),
        transfer_model=draw(st.sampled_from(TransferModel)),
        **memory,
    )
    return spec, placement


@given(specs())
def test_reading_what_was_written_gives_the_same_spec(drawn):
    spec, placement = drawn
    value = json.loads(json.dumps(encode_compact(spec)))
    VALIDATOR.validate(value)
    assert read_schedule_spec(value) == spec
    assert spec.num_stages in (None, placement.num_stages)
    costs = spec.costs(placement)
    assert costs.num_stages == placement.num_stages
    assert costs.memory.num_ranks == placement.num_ranks


def test_one_value_stands_for_all_stages():
    spec = read_schedule_spec({**TIMES, "transfer_s": [0.25], "limit_bytes": [6]})
    assert spec.num_stages == 4
    assert spec.placement is None
    costs = spec.costs(Placement.v(2))
    assert costs.compute_s[F].tolist() == [1, 2, 3, 4]
    assert costs.compute_s[B].tolist() == [2.5, 3, 3, 3]
    assert costs.forward_transfer_s.tolist() == costs.backward_transfer_s.tolist() == [0.25] * 3
    assert costs.memory.limit_bytes.tolist() == [6, 6]


def test_without_memory_activations_are_counted():
    costs = read_schedule_spec(TIMES).costs(Placement.loop(4))
    assert costs.memory.delta_bytes[[F, I, W, B], 0].tolist() == [1, 0, -1, -1]
    assert np.isinf(costs.memory.limit_bytes).all()


def test_a_weight_gradient_frees_what_is_left():
    value = {**TIMES, "forward_bytes": [8.0], "input_grad_bytes": [-3.0, -2.0, -1.0, 0.0]}
    memory = read_schedule_spec(value).costs(Placement.loop(4)).memory
    assert memory.delta_bytes[W].tolist() == [-5, -6, -7, -8]
    assert (memory.delta_bytes[B] == -8).all()


def test_the_overhead_is_added_to_every_action():
    costs = read_schedule_spec({**TIMES, "overhead_s": [0.5]}).costs(Placement.loop(4))
    assert costs.duration_s[[F, I, W], 0].tolist() == [1.5, 2.5, 1.0]


def test_a_spec_prices_a_schedule():
    """Two ranks, one microbatch: down and back, 1 + 1/4 + 2, then 2 + 1 for B, 1/4, 2 + 1/2."""
    value = {
        "forward_s": [1, 2],
        "input_grad_s": [2],
        "weight_grad_s": [0.5, 1],
        "transfer_s": [0.25],
    }
    schedule = generate("1f1b", FamilyRequest(num_ranks=2, num_microbatches=1))
    timeline = simulate(schedule, read_schedule_spec(value).costs(schedule.placement))
    assert timeline.makespan_s == 1 + 0.25 + 2 + 3 + 0.25 + 2.5


def test_every_fault_is_named_in_the_order_of_the_document():
    value = {
        "format_version": 1,
        "forward_s": [1, -2, float("nan"), "4"],
        "input_grad": [1],
        "weight_grad_s": [],
        "transfer_model": "wormhole",
    }
    with pytest.raises(InvalidInput) as refused:
        read_schedule_spec(value, source="spec.json")
    assert str(refused.value).splitlines() == [
        "input_grad_s: required field is missing",
        "forward_s[1]: must be >= 0, got -2",
        "forward_s[2]: must be finite, got NaN",
        'forward_s[3]: must be a number, got "4" (string)',
        "input_grad: must be a field of this format, did you mean input_grad_s?",
        "weight_grad_s: must have at least 1 entry, got 0",
        'transfer_model: must be one of "free", "link", "blocking", got "wormhole"',
    ]
    assert refused.value.source == "spec.json"


@pytest.mark.parametrize(
    ("more", "problems"),
    [
        (
            {"transfer_s": [1, 1], "overhead_s": [1, 2, 3]},
            [
                "overhead_s: must have 4 entries or 1, as forward_s is for 4 stages, got 3",
                "transfer_s: must have 3 entries or 1, as forward_s is for 4 stages, got 2",
            ],
        ),
        (
            {"rank_of_stage": [0, 1, 1], "limit_bytes": [1, 2, 3]},
            [
                "forward_s: must have 3 entries or 1 for 3 stages on 2 ranks, got 4",
                "weight_grad_s: must have 3 entries or 1 for 3 stages on 2 ranks, got 4",
                "limit_bytes: must have 2 entries or 1 for 3 stages on 2 ranks, got 3",
            ],
        ),
        (
            {"rank_of_stage": [0, 3, 999999999, 0]},
            ["rank_of_stage: must use every rank up to 999999999, misses 1"],
        ),
        ({"rank_of_stage": []}, ["rank_of_stage: must have at least 1 entry, got 0"]),
        (
            {"weight_grad_bytes": [-1]},
            ["weight_grad_bytes: must come with forward_bytes, which is missing"],
        ),
        (
            {"format_version": 9},
            ["format_version: must be <= 1, got 9; a newer trainwright wrote this file"],
        ),
    ],
)
def test_lists_that_do_not_fit_together_are_refused(more, problems):
    with pytest.raises(InvalidInput) as refused:
        read_schedule_spec({**TIMES, **more})
    assert str(refused.value).splitlines() == problems


def test_a_placement_the_lists_are_not_for_is_refused():
    with pytest.raises(InvalidInput, match="forward_s: must have 8 entries or 1 for 8 stages on 4"):
        read_schedule_spec(TIMES).costs(Placement.v(4))


def test_the_placement_may_be_in_the_file(tmp_path):
    path = tmp_path / "spec.json"
    path.write_text(json.dumps({**TIMES, "rank_of_stage": [0, 1, 1, 0]}))
    assert load_schedule_spec(path).placement == Placement.v(2)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="spec: cannot be read, there is no such file"):
        load_schedule_spec(tmp_path / "none.json")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs /dev/zero")
def test_a_file_without_end_is_refused():
    with pytest.raises(InvalidInput, match="spec: must be at most 512 MiB"):
        load_schedule_spec(Path("/dev/zero"))


def test_the_schema_is_a_sound_schema():
    jsonschema.Draft202012Validator.check_schema(schedule_spec_schema())
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate({**TIMES, "forward_s": [-1]})
