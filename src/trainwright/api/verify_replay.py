"""Level 1 of `verify`: the whole schedule, unfolded, replayed on this machine.

Times are held against costs and needs without a simulator, every message is passed through queues
without names, memory is added up action by action. Where PyTorch is installed, the same actions run
with real autograd on small stages, and gradients and kept bytes are compared.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Final

from trainwright.api.verify_orders import check, left_out
from trainwright.api.verify_subject import Pipeline
from trainwright.errors import Fault, InvalidInput
from trainwright.measuring.tiny_layers import fewer_layers, whole_model
from trainwright.plan.results.verification import Check, Outcome
from trainwright.reporting.text import counted
from trainwright.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.api.verify_subject import Replicas
    from trainwright.measuring.token_replay import Replayed
    from trainwright.plan.lowered import LoweredSchedule
    from trainwright.plan.results.gradient_check import KeptBytes

MOST_STEPS: Final = 3_000_000  # about 15 s and 1 GB
MOST_VISITS: Final = 6_000  # of a stage by a microbatch, with autograd: about 20 s
_TOLERANCE: Final = 1e-9
NO_TORCH: Final = "needs PyTorch: pip install 'trainwright[torch]'"


def pipeline_checks(
    subject: Pipeline, lowered: LoweredSchedule
) -> tuple[tuple[Check, ...], tuple[KeptBytes, ...]]:
    """All checks of level 1, and what autograd kept on each rank."""
    checks = [_check_times(subject), _check_tokens(subject, lowered)]
    autograd, kept = _autograd_checks(subject, lowered)
    return (*checks, *autograd), kept


def _check_times(subject: Pipeline) -> Check:
    from trainwright.scheduling.check_timeline import timeline_faults

    timeline = subject.timeline
    faults = timeline_faults(timeline)
    claimed_s, found_s = subject.makespan_s, timeline.makespan_s
    if claimed_s is not None and abs(claimed_s - found_s) > 1e-6 * found_s:
        fault = Fault("makespan_s", f"is {claimed_s!r} in the document, {found_s!r} unfolded")
        faults = (*faults, fault)
    actions = counted(timeline.schedule.num_actions, "action")
    detail = f"{actions}: durations, one at a time, every input, arrival and peak"
    return check(1, "times", detail, InvalidInput(faults) if faults else None)


def _check_tokens(subject: Pipeline, lowered: LoweredSchedule) -> Check:
    from trainwright.measuring.token_replay import replay_tokens

    if len(lowered.actions) > MOST_STEPS:
        return left_out(1, "replay", f"more than {MOST_STEPS:,} steps are not replayed")
    try:
        found = replay_tokens(lowered, subject.timeline.costs.memory)
    except InvalidInput as error:
        return check(1, "replay", "", error)
    faults = tuple(_memory_faults(subject, found))
    detail = (
        f"{counted(found.num_steps, 'step')}, {counted(found.num_messages, 'message')}; "
        "memory of every rank peaks as predicted"
    )
    return check(1, "replay", detail, InvalidInput(faults) if faults else None)


def _memory_faults(subject: Pipeline, found: Replayed) -> Iterator[Fault]:
    for rank, peak in enumerate(found.peak_bytes):
        simulated = float(subject.timeline.peak_bytes[rank])
        claims = {"simulated": simulated}
        if subject.peak_bytes:
            claims["in the document"] = subject.peak_bytes[rank]
        for whose, claimed in claims.items():
            if abs(peak - claimed) > _TOLERANCE * max(1.0, abs(peak)):
                yield Fault(f"rank {rank}", f"peaks at {peak!r} bytes, {claimed!r} {whose}")
    for rank, claimed in enumerate(subject.peak_activations):
        if claimed != (held := found.peak_activations[rank]):
            yield Fault(f"peak_activations_per_rank[{rank}]", f"is {claimed}, replayed {held}")


def _autograd_checks(
    subject: Pipeline, lowered: LoweredSchedule
) -> tuple[tuple[Check, ...], tuple[KeptBytes, ...]]:
    names = ("gradients", "kept bytes")
    schedule = subject.timeline.schedule
    visits = schedule.placement.num_stages * schedule.num_microbatches
    if importlib.util.find_spec("torch") is None:
        return tuple(left_out(1, name, NO_TORCH) for name in names), ()
    if visits > MOST_VISITS:
        why = f"{visits:,} forwards; more than {MOST_VISITS:,} are not replayed with autograd"
        return tuple(left_out(1, name, why) for name in names), ()
    from trainwright.measuring.autograd_replay import replay_autograd
    from trainwright.measuring.tolerance import LOSS_LIMIT

    most = max(schedule.placement.num_stages, min(64, MOST_VISITS // schedule.num_microbatches))
    stages = whole_model(fewer_layers(subject.stages, most=most))
    try:
        found = replay_autograd(lowered, stages)
    except InvalidInput as error:
        return (check(1, names[0], "", error),), ()
    right = found.error <= found.limit and found.loss_error <= LOSS_LIMIT
    layers = counted(sum(map(len, stages)), "layer")
    gradients = Check(
        level=1,
        name=names[0],
        outcome=Outcome.PASS if right else Outcome.FAIL,
        detail=(
            f"{counted(found.num_actions, 'action')} with autograd, {layers}: max error "
            f"{found.error:.1e} (limit {found.limit:.1e}), loss {found.loss_error:.1e}"
        ),
        where=() if right else (found.parameter,),
    )
    saving = _saving(found.kept_bytes, found.kept_without_recompute_bytes)
    return (gradients, kept_check(1, found.ranks, saving)), found.ranks


def _saving(kept: float, without: float) -> str:
    return "" if kept == without else f"; recomputation keeps {kept / without:.0%} of all"


def kept_check(level: int, ranks: tuple[KeptBytes, ...], more: str = "") -> Check:
    """Whether what saved tensors hold follows the predicted curve on every rank."""
    off = [
        f"rank {each.rank}: {each.largest_difference_bytes:,.0f} bytes off its curve, which peaks "
        f"at {each.predicted_peak_bytes:,.0f}"
        for each in ranks
        if each.largest_difference_bytes > 0
    ]
    peaks = [each.peak_bytes for each in ranks]
    actions = counted(sum(each.num_actions for each in ranks), "action")
    detail = (
        f"saved tensors follow the curve at {actions}, "
        f"peaks {min(peaks) / 1024:.0f} to {max(peaks) / 1024:.0f} KiB{more}"
    )
    return Check(
        level=level,
        name="kept bytes",
        outcome=Outcome.FAIL if off else Outcome.PASS,
        detail=detail,
        where=tuple(off),
    )


def replica_checks(subject: Replicas) -> tuple[Check, ...]:
    """1F1B over replicated stages: it gets to its end, holds what is claimed, takes that long."""
    from trainwright.measuring.replica_replay import replay_replicas

    stages, m = subject.replicated, subject.num_microbatches
    if 2 * m * len(stages) > MOST_STEPS:
        why = f"{2 * m * len(stages):,} actions; more than {MOST_STEPS:,} are not replayed"
        return (left_out(1, "replay", why),)
    try:
        found = replay_replicas(stages, m)
    except InvalidInput as error:
        return (check(1, "replay", "", error),)
    faults = tuple(_replica_faults(subject, found.end_s, found.most_in_flight))
    batch_s = max(found.end_s)
    workers = counted(sum(stage.replicas for stage in stages), "worker")
    detail = (
        f"{counted(found.num_actions, 'action')} of {workers} in {counted(len(stages), 'stage')}: "
        f"a batch in {format_seconds(batch_s)}"
    )
    if subject.time_per_sample_s:
        detail += f", {batch_s / (m * subject.time_per_sample_s):.2f}x its steady state"
    return (check(1, "replay", detail, InvalidInput(faults) if faults else None),)


def _replica_faults(
    subject: Replicas, end_s: tuple[float, ...], most: tuple[int, ...]
) -> Iterator[Fault]:
    from trainwright.pricing.pipeline import PipelineStage, one_f_one_b_ends_s

    m = subject.num_microbatches
    for at, (claimed, held) in enumerate(zip(subject.in_flight, most, strict=True)):
        if min(claimed, -(-m // subject.replicated[at].replicas)) != held:
            yield Fault(f"stages[{at}]", f"holds {held} microbatches, {claimed} in the document")
    simulated = one_f_one_b_ends_s(
        [
            PipelineStage(
                forward_s=stage.forward_s,
                backward_s=stage.backward_s,
                in_flight=stage.in_flight,
                replicas=stage.replicas,
                feeds=tuple((target, 0.0) for target in stage.feeds),
            )
            for stage in subject.replicated
        ],
        num_microbatches=m,
    )
    for at, (own_s, other_s) in enumerate(zip(end_s, simulated, strict=True)):
        if abs(own_s - other_s) > _TOLERANCE * max(own_s, other_s):
            yield Fault(f"stages[{at}]", f"ends at {own_s!r} s, {other_s!r} s simulated")
    if subject.batch_s is not None and abs(max(end_s) - subject.batch_s) > 1e-6 * subject.batch_s:
        yield Fault("simulated_time_s", f"is {subject.batch_s!r} s less syncs, got {max(end_s)!r}")
