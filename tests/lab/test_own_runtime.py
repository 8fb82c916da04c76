"""Orders that PyTorch's runtime has no actions for: lowered, replayed and run like all others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import trainwright
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.lab.gloo_check import (
    OWN_RUNTIME,
    PipelineRun,
    check_gradients,
    format_orders,
    with_exchanged_messages,
    without_gradient_reduction,
)
from trainwright.lab.token_replay import plain_stages, replay_tokens, whole_model
from trainwright.plans.lowered import LoweredKind
from trainwright.plans.schedule import ActionKind, Placement, Schedule, ScheduleMemory
from trainwright.scheduling.families import FAMILIES, FamilyRequest, generate
from trainwright.scheduling.lower import lower, validate_lowered

SECOND_RESOURCE = tuple(name for name, family in FAMILIES.items() if not family.is_plain)
PATIENCE_S = 300.0  # the machines that run this may be busy


def made(family: str, ranks: int, microbatches: int):
    return generate(family, FamilyRequest(num_ranks=ranks, num_microbatches=microbatches))


def lowered_of(family: str, ranks: int = 4, microbatches: int = 8):
    return lower(made(family, ranks, microbatches))


def run_of(family: str, ranks: int, microbatches: int) -> PipelineRun:
    schedule = made(family, ranks, microbatches)
    return PipelineRun(
        csv=format_orders(lower(schedule)),
        form=OWN_RUNTIME,
        placement=schedule.placement,
        num_microbatches=schedule.num_microbatches,
        num_slices=schedule.num_slices,
        head_barriers=schedule.head_barriers,
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (4, 8), (6, 24)])
def test_every_family_is_lowered_by_one_rule(family, ranks, microbatches):
    schedule = made(family, ranks, microbatches)
    lowered = lower(schedule)
    validate_lowered(lowered)
    validate_lowered(lowered, rendezvous=True)
    assert lowered.compute_only() == schedule
    replayed = replay_tokens(lowered, ScheduleMemory.of(schedule.placement))
    assert replayed.peak_activations == schedule.peak_activations


@pytest.mark.parametrize("kind", ["SHARE_F", "GET_F", "SHARE_V", "GET_V", "SHARE_T", "GET_T"])
def test_an_exchange_of_a_cut_head_that_is_missing_is_found(kind):
    lowered = lowered_of("vocab-1")
    broken = lowered.without(int(np.flatnonzero(lowered.actions[:, 0] == LoweredKind[kind])[0]))
    with pytest.raises(InvalidInput, match=f"must run {kind} of 8 microbatches, got 7"):
        validate_lowered(broken)
    with pytest.raises(InvalidInput):
        replay_tokens(broken, ScheduleMemory.of(lowered.placement))


def test_collectives_of_a_cut_head_come_in_one_order():
    lowered = lowered_of("vocab-2")
    rows = lowered.rows_of(0)
    own = rows.start + np.flatnonzero(lowered.actions[rows, 0] == LoweredKind.GET_V)
    actions = lowered.actions.copy()
    actions[own[:2], 2] = actions[own[1::-1], 2]
    with pytest.raises(InvalidInput, match=r"in one order on all ranks|must come before"):
        validate_lowered(replace(lowered, actions=actions))


def test_a_backward_cannot_have_what_is_on_the_host():
    lowered = lowered_of("po-f")
    back = int(np.flatnonzero(lowered.actions[:, 0] == LoweredKind.L)[0])
    with pytest.raises(InvalidInput, match="its activations are on the host"):
        replay_tokens(lowered.without(back), ScheduleMemory.of(lowered.placement))


def test_slices_of_a_sequence_run_in_turn():
    lowered = lowered_of("seq1f1b", 1, 2)
    forwards = np.flatnonzero(lowered.actions[:, 0] == LoweredKind.F)
    actions = lowered.actions.copy()
    actions[forwards[:2]] = actions[forwards[1::-1]]
    with pytest.raises(InvalidInput, match="comes before its neighbouring slice"):
        replay_tokens(replace(lowered, actions=actions), ScheduleMemory.of(lowered.placement))


@pytest.mark.torch
@pytest.mark.parametrize("family", [*SECOND_RESOURCE, "stp", "hanayo", "2bp", "breadth-first"])
@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 2), (2, 4), (4, 8)])
def test_gradients_and_kept_bytes_are_those_predicted(family, ranks, microbatches):
    from trainwright.lab.autograd_replay import replay_autograd

    if ranks == 1 and family in ("chimera", "dualpipe"):
        return  # two directions need two ranks
    lowered = lowered_of(family, ranks, microbatches)
    found = replay_autograd(lowered, whole_model(plain_stages(lowered.placement)))
    assert found.error <= found.limit, found.parameter
    assert found.loss_error <= 1e-5
    assert max(rank.largest_difference_bytes for rank in found.ranks) == 0


@pytest.mark.torch
def test_activations_on_the_host_are_not_kept_on_the_device():
    from trainwright.lab.autograd_replay import replay_autograd

    peaks = {}
    for family in ("1f1b", "po-f"):
        lowered = lowered_of(family, 6, 12)
        found = replay_autograd(lowered, whole_model(plain_stages(lowered.placement)))
        peaks[family] = found.ranks[0].peak_bytes
    assert peaks["po-f"] == peaks["1f1b"] * 4 / 6  # four activations at most, six otherwise


@pytest.mark.torch
def test_a_reload_left_out_is_found_with_autograd():
    from trainwright.lab.autograd_replay import replay_autograd

    lowered = lowered_of("po-f")
    back = int(np.flatnonzero(lowered.actions[:, 0] == LoweredKind.L)[0])
    with pytest.raises(InvalidInput, match="its activations are on the host"):
        replay_autograd(lowered.without(back), whole_model(plain_stages(lowered.placement)))


def test_a_rank_without_a_stage_is_not_run():
    order = np.array([[ActionKind.F, 0, 0], [ActionKind.B, 0, 0]], np.int32)
    idle = Schedule.of_ranks(
        [order, order[:0]],
        placement=Placement(rank_of_stage=(0,), num_ranks=2),
        num_microbatches=1,
    )
    with pytest.raises(UnsupportedFeature, match="needs an action on every rank"):
        trainwright.schedule(simulate=idle).verified()


@pytest.mark.torch
def test_a_recomputed_forward_keeps_nothing_until_it_runs_again():
    from trainwright.lab.autograd_replay import replay_autograd

    schedule = made("gpipe", 2, 4)
    rows = []
    for rank in range(2):
        own = schedule.actions[schedule.rows_of(rank)]
        again = own.copy()
        again[:, 0] = ActionKind.R
        both = [[again[at], row] for at, row in enumerate(own) if row[0] == ActionKind.B]
        forwards = own[own[:, 0] == ActionKind.F]
        rows.append(np.concatenate([forwards, np.array(both).reshape(-1, 3)]))
    recomputed = type(schedule).of_ranks(rows, placement=schedule.placement, num_microbatches=4)
    stages = whole_model(plain_stages(schedule.placement))
    plain, again = (replay_autograd(lower(each), stages) for each in (schedule, recomputed))
    assert again.error <= again.limit
    assert again.ranks[0].peak_bytes == plain.ranks[0].peak_bytes / 4


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "microbatches"), [(2, 4), pytest.param(4, 8, marks=pytest.mark.papers)]
)
def test_processes_give_the_gradients_of_the_model_in_one_piece(ranks, microbatches):
    runs = [run_of(family, ranks, microbatches) for family in SECOND_RESOURCE]
    for run, found in zip(runs, check_gradients(runs, stall_timeout_s=PATIENCE_S), strict=True):
        assert found.passed, found
        assert found.max_error <= 1e-6
        assert all(kept.largest_difference_bytes == 0 for kept in found.kept), run


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("broken", [without_gradient_reduction, with_exchanged_messages])
def test_orders_broken_on_purpose_are_caught(broken):
    """All families in one set of processes: most of a run is their start."""
    runs = [run_of(family, 2, 4) for family in SECOND_RESOURCE]
    harmed = [replace(run, csv=broken(run.csv)) for run in runs]
    found = check_gradients(harmed, stall_timeout_s=PATIENCE_S)
    passed = [f for f, each in zip(SECOND_RESOURCE, found, strict=True) if each.passed]
    assert passed == []


@pytest.mark.torch
@pytest.mark.slow
def test_replicas_and_copies_are_averaged():
    run = replace(run_of("chimera", 2, 4), num_replicas=2)
    (found,) = check_gradients([run], stall_timeout_s=PATIENCE_S)
    assert found.passed, found
    assert found.num_replicas == 2


@pytest.mark.torch
@pytest.mark.slow
def test_a_schedule_document_says_that_its_own_runtime_ran_it():
    report = trainwright.schedule(family="slimpipe", ranks=8, microbatches=8).verified()
    found = report.document.verification
    assert found.passed, found
    assert [run.form for run in found.runs] == [OWN_RUNTIME]
    assert (len(found.controls), found.folded_from) == (2, "8 ranks, 64 microbatches")


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    [*(pytest.param(n, marks=pytest.mark.papers) for n in ("dualpipe", "po-f")), "vocab-2"],
)
def test_verify_replays_the_whole_and_runs_the_folded_orders(family):
    report = trainwright.verify(
        trainwright.schedule(family=family, ranks=8, microbatches=16), self_test=True
    )
    assert report.passed, report.explain()
    levels = {check.level for check in report.document.checks if check.outcome == "pass"}
    assert levels == {0, 1, 2}
    assert all(control.caught for control in report.document.controls)
    assert {control.level for control in report.document.controls} == {0, 1, 2}


def test_an_estimate_with_a_cut_head_is_replayed():
    estimate = trainwright.estimate(
        "llama3-8b",
        cluster="dgx-h100",
        global_batch=32,
        sequence=2048,
        tp=2,
        pp=4,
        schedule="vocab-1",
    )
    report = trainwright.verify(estimate, level=1)
    assert report.passed, report.explain()
