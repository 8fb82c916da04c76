"""What the user fixes, bounds or forbids: read from options, kept in documents, obeyed by plans."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trainwright
from trainwright.errors import InvalidInput
from trainwright.options.question import call_of
from trainwright.options.space import (
    SPANS,
    allowed_by,
    allowed_of,
    parse_span,
    record_of,
)
from trainwright.options.table import words_of
from trainwright.planning.question.question import ANY, EVERYTHING, ZERO_STAGES, Allowed, Span
from trainwright.plans.plan import PIPELINE_INSIDE, SpaceRecord
from trainwright.profile import USUAL_MODES, Recompute

JOB = {"cluster": "dgx-h100", "devices": 4, "global_batch": 16, "sequence": 1024, "cp": 1}
CHAINS = {"schedule": "1f1b,zb-h1"}  # found in a tenth of the time of all families

spans = st.builds(
    lambda least, more: Span(least=least, most=None if more is None else least + more),
    st.integers(1, 64),
    st.none() | st.integers(0, 64),
)
chosen = st.builds(
    Allowed,
    **dict.fromkeys(SPANS, st.just(ANY) | spans),
    zero_stages=st.sets(st.sampled_from(ZERO_STAGES), min_size=1).map(sorted).map(tuple),
    recompute=st.sets(st.sampled_from(Recompute), min_size=1).map(
        lambda modes: tuple(mode for mode in Recompute if mode in modes)
    ),
    schedules=st.none() | st.just(("1f1b", "v-half")),
    framework=st.none() | st.just("megatron"),
)


def by(**options) -> Allowed:
    return allowed_by(options)


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("8", Span.only(8)),
        (8, Span.only(8)),
        ("4..8", Span(least=4, most=8)),
        ("..8", Span(least=1, most=8)),
        ("4..", Span(least=4)),
        (" 1_024 ", Span.only(1024)),
        (Span(least=2), Span(least=2)),
    ],
)
def test_a_degree_is_a_number_or_a_range(text, span):
    assert parse_span(text, "tp") == span
    assert by(tp=text).tensor == span


@pytest.mark.parametrize("text", ["", "..", "x", "4.5", "-1", "4-8", "1e3", "4...8", True])
def test_anything_else_is_refused_by_its_flag(text):
    with pytest.raises(InvalidInput, match="virtual-stages: must be a number or a range such as 8"):
        by(virtual_stages=text)


def test_an_empty_range_is_turned_round_and_zero_is_no_degree():
    with pytest.raises(InvalidInput, match=r"tp: must not be empty, got 8\.\.4; write 4\.\.8"):
        by(tp="8..4")
    for text in ("0", "0..4", "..0"):
        with pytest.raises(InvalidInput, match="pp: must be >= 1, got 0"):
            by(pp=text)


def test_every_fault_of_the_options_is_named_at_once():
    with pytest.raises(InvalidInput) as refused:
        allowed_by(
            {
                "tp": "x",
                "dp": "2",
                "zero": "4,1",
                "recompute": "all",
                "schedule": "1f1b,best",
                "data_parallel": False,
            }
        )
    assert [fault.path for fault in refused.value.faults] == [
        "tp",
        "dp",
        "recompute",
        "zero",
        "schedule",
    ]


@pytest.mark.parametrize("given_", [None, "3,0,1,2", (0, 1, 2, 3), [3, 2, 1, 0]])
def test_zero_stages_are_a_list_and_all_where_none_is_named(given_):
    assert allowed_by({"zero": given_}).zero_stages == ZERO_STAGES


def test_recomputation_is_switched_off_or_listed():
    modes = {
        True: USUAL_MODES,
        False: (Recompute.NONE,),
        "full,none": (Recompute.NONE, Recompute.FULL),
        ("selective",): (Recompute.SELECTIVE,),
    }
    for asked, left in modes.items():
        assert allowed_by({"recompute": asked}).recompute == left
    with pytest.raises(InvalidInput, match="exclude-option: must leave one of full, got full"):
        allowed_by({"recompute": "full"}, excluded=frozenset({"full"}))


@given(chosen)
def test_what_is_allowed_survives_a_document(allowed):
    record = record_of(allowed, excluded=(), per_stage_degrees=False, recompute_modules=None)
    assert allowed_of(record) == allowed


def test_a_record_of_unknown_modes_is_refused_by_its_key():
    with pytest.raises(InvalidInput, match=r'recompute_modes: must list .* got "some"'):
        allowed_of(SpaceRecord(recompute_modes=("some",)))


@pytest.fixture(scope="module")
def free():
    return trainwright.plan("gpt2", **JOB).document


CHOICES = {
    "tp": {"tp": "2..", "schedule": None},
    "pp": {"pp": 2},
    "dp": {"dp": "..2"},
    "zero": {"zero": "0"},
    "microbatch": {"micro_batch": "4.."},
    "recompute": {"recompute": "full"},
    "family": {"schedule": "1f1b"},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(each, id=name, marks=pytest.mark.slow if name == "tp" else ())
        for name, each in CHOICES.items()
    ],
)
def test_a_plan_is_one_of_those_that_were_allowed_and_its_document_can_be_re_run(
    options, free, tmp_path
):
    found = trainwright.plan("gpt2", **JOB, **{**CHAINS, **options})
    document = found.document
    call = call_of(document.request)
    allowed, degrees = call.question.allowed, document.parallelism
    assert degrees.tensor in allowed.tensor
    assert degrees.pipeline in allowed.pipeline
    assert degrees.data in allowed.data
    assert document.micro_batch in allowed.microbatch_size
    assert degrees.zero_stage in allowed.zero_stages
    modes = {option for stage in document.stages for option in stage.options.values()}
    assert modes - {"none"} <= set(allowed.recompute)  # embedding and head offer nothing else
    assert document.schedule in (allowed.schedules or (document.schedule,))
    found.save(tmp_path / "plan.json")
    assert trainwright.explain(tmp_path / "plan.json").document == document
    assert free.step_time_s <= document.step_time_s


def test_a_document_outside_its_own_space_is_refused(tmp_path):
    values = trainwright.plan("gpt2", **JOB, **CHAINS, tp="..2", zero="0,1").to_dict()
    path = tmp_path / "edited.json"
    for key, changed, fault in (
        ("tensor", {"least": 8}, "parallelism.tensor: must be one that the request allows"),
        ("zero_stages", [3], "parallelism.zero_stage: must be one of 3"),
        ("schedules", ["v-half"], 'schedule: must be one of v-half, got "1f1b"'),
    ):
        edited = json.loads(json.dumps(values))
        edited["request"]["space"][key] = changed
        path.write_text(json.dumps(edited), encoding="utf-8")
        with pytest.raises(InvalidInput, match=fault):
            trainwright.explain(path)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (
            {"tp": 5},
            "tp: must hold one of 1, 2, 4, which the model, its sequence and devices allow, got 5",
        ),
        ({"micro_batch": "3..3"}, "micro-batch: must divide the global batch of 16, got 3"),
        ({"micro_batch": "9..15"}, "micro-batch: must hold one of 1, 2, 4, 8, 16"),
        ({"ep": "2.."}, "ep: must be 1: the model has no experts; leave it out"),
        ({"tp": 4, "dp": 4}, "tp x pp x dp x cp: must be at most the 4 devices, got at least 16"),
        ({"top": -1}, "top: must be from 0 to 1000, got -1"),
    ],
)
def test_options_that_leave_nothing_say_what_is_offered(options, fault):
    with pytest.raises(InvalidInput, match=fault):
        trainwright.plan("gpt2", **JOB, **options)


def test_top_says_how_many_runners_up_are_shown():
    for top in (0, 1, 3):
        others = trainwright.plan(
            "gpt2", **JOB, schedule="1f1b", top=top, calibration="none"
        ).document.alternatives
        assert len(others) == top
        times = [other.step_time_s for other in others]
        assert times == sorted(times)
        for other in others:
            assert sum(other.lost_s.values()) == pytest.approx(
                other.step_time_s * (1 - 1 / other.slowdown), abs=1e-12
            )


def test_mappings_are_named_as_megatron_does_and_kept_in_a_record():
    allowed = allowed_by({"state_copies": "2..8", "mapping": "tp-cp-pp-dp"})
    assert allowed.mappings == (PIPELINE_INSIDE,)
    record = record_of(allowed, excluded=(), per_stage_degrees=False, recompute_modules=None)
    assert record.mappings == ("tp-cp-ep-pp-dp",)
    assert allowed_of(record) == allowed
    assert list(words_of("plan", {"space": allowed}, usual={"space": EVERYTHING})) == [
        *("--state-copies", "2..8", "--mapping", "tp-cp-ep-pp-dp"),
    ]


def test_a_mapping_nobody_has_is_refused_with_those_there_are():
    with pytest.raises(InvalidInput, match="mapping: must be tp-cp-ep-dp-pp or tp-cp-ep-pp-dp"):
        allowed_by({"mapping": "pp-tp-dp-cp"})
