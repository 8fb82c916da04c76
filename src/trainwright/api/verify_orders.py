"""Level 0 of `verify`: is the document true, and are its orders fit to run?

Nothing runs. The document's figures are computed again from its own request; orders are held
against the laws of `scheduling.validate` and, with every transfer written out, against those of
`scheduling.validate_lowered`, with buffered messages and with sends that wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from trainwright.api.verify_subject import Pipeline
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.measuring.tiny_layers import BLOCK
from trainwright.model.layer_kind import LayerKind
from trainwright.plan.results.model_estimate import ModelEstimateResult
from trainwright.plan.results.schedule import ScheduleResult
from trainwright.plan.results.verification import Check, Outcome
from trainwright.reporting.text import counted
from trainwright.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trainwright.api.verify_subject import Replicas, Verifiable
    from trainwright.plan.lowered import LoweredSchedule

_MOST_PLACES = 8


def check(level: int, name: str, detail: str, faults: InvalidInput | None = None) -> Check:
    """A check that passed, or failed with these faults."""
    if faults is None:
        return Check(level=level, name=name, outcome=Outcome.PASS, detail=detail)
    where = tuple(map(str, faults.faults[:_MOST_PLACES]))
    more = len(faults.faults) - len(where)
    return Check(
        level=level,
        name=name,
        outcome=Outcome.FAIL,
        detail=f"{counted(len(faults.faults), 'contradiction')}",
        where=where if more <= 0 else (*where, f"and {more} more"),
    )


def left_out(level: int, name: str, why: str) -> Check:
    """A check that was not done, and why."""
    return Check(level=level, name=name, outcome=Outcome.LEFT_OUT, detail=why)


def check_document(document: Verifiable) -> tuple[Check, Verifiable]:
    """Every figure, from the request and the decisions that the document carries.

    The document comes back with figures that its version did not have yet.
    """
    from trainwright.api.recheck import recheck, recheck_estimate
    from trainwright.api.schedule_recheck import recheck_schedule

    detail = "hashes, decisions, prices and claims follow from its request"
    try:
        if isinstance(document, ScheduleResult):
            known: Verifiable = recheck_schedule(document)
        elif isinstance(document, ModelEstimateResult):
            known = recheck_estimate(document)
        else:
            known = cast("Verifiable", recheck(document))
    except InvalidInput as error:
        return check(0, "document", detail, error), document
    said = "; ".join((detail, *known.warnings[len(document.warnings) :]))
    return check(0, "document", said), known


def check_memory(document: Verifiable, subject: Pipeline | Replicas) -> Check:
    """No rank above its limit."""
    name = "memory"
    if isinstance(subject, Pipeline):
        return _pipeline_memory(subject)
    setting = getattr(document.request, "setting", None)
    limit = setting.memory_bytes if setting else getattr(document, "memory_limit_bytes", None)
    stages = [stage.memory_bytes for stage in getattr(document, "stages", ())]
    if limit is None or not stages:
        return left_out(0, name, "the document states no limit")
    over = [
        f"stages[{at}].memory_bytes: needs {format_bytes(each)} of {format_bytes(limit)}"
        for at, each in enumerate(stages)
        if each > limit * (1 + 1e-9)
    ]
    detail = f"at most {format_bytes(max(stages))} of {format_bytes(limit)} on a device"
    outcome = Outcome.FAIL if over else Outcome.PASS
    return Check(level=0, name=name, outcome=outcome, detail=detail, where=tuple(over))


def _pipeline_memory(subject: Pipeline) -> Check:
    timeline = subject.timeline
    limits, peaks = timeline.costs.memory.limit_bytes, timeline.peak_bytes
    held, most = timeline.schedule.peak_activations, subject.max_activations
    in_bytes = bool(subject.peak_bytes)
    over = []
    for rank in range(timeline.schedule.num_ranks):
        if peaks[rank] > limits[rank] * (1 + 1e-9):
            sizes = [format_bytes(x) if in_bytes else f"{x:g}" for x in (peaks[rank], limits[rank])]
            over.append(f"rank {rank}: holds {sizes[0]} of {sizes[1]}")
        if most is not None and held[rank] > most:
            over.append(f"rank {rank}: holds {held[rank]} activations of {most}")
    detail = f"at most {counted(max(held), 'chunk activation')} on a rank"
    if in_bytes:
        detail += f", {format_bytes(float(peaks.max()))} of {format_bytes(float(limits.min()))}"
    elif most is not None:
        detail += f", limit {most}"
    outcome = Outcome.FAIL if over else Outcome.PASS
    return Check(level=0, name="memory", outcome=outcome, detail=detail, where=tuple(over))


def check_orders(subject: Pipeline) -> Check:
    """Owners, counts, order on each rank, no cycle."""
    from trainwright.scheduling.validate import validate

    schedule = subject.timeline.schedule
    sizes = (
        counted(schedule.placement.num_stages, "stage"),
        counted(schedule.num_ranks, "rank"),
        f"{schedule.num_microbatches} microbatches",
    )
    actions = counted(schedule.num_actions, "action")
    detail = f"{actions}: {', '.join(sizes)}; one owner each, no cycle"
    try:
        validate(schedule)
    except InvalidInput as error:
        return check(0, "orders", detail, error)
    return check(0, "orders", detail)


def check_transfers(lowered: LoweredSchedule) -> Check:
    """Each tensor sent and received once, in one order, buffered or not; gradients reduced once."""
    from trainwright.scheduling.validate_lowered import validate_lowered

    detail = f"{counted(len(lowered.actions), 'step')}: sends match receives, also where sends wait"
    try:
        validate_lowered(lowered)
        validate_lowered(lowered, rendezvous=True)
    except InvalidInput as error:
        return check(0, "transfers", detail, error)
    return check(0, "transfers", detail)


def check_last_stage(subject: Pipeline) -> Check:
    """PyTorch's runtime looks losses up by the order in which the last stage ran its forwards."""
    from trainwright.plan.pytorch_limits import refuse_misordered
    from trainwright.scheduling.pytorch_rules import as_pytorch_runs, meets_in_order

    schedule = subject.timeline.schedule
    try:
        refuse_misordered(as_pytorch_runs(schedule))
    except UnsupportedFeature as error:
        return left_out(0, "last stage", str(error))
    done = "runs" if meets_in_order(schedule) else "with microbatches numbered anew, runs"
    return check(0, "last stage", f"{done} its forwards as 0, 1, 2, …, which PyTorch needs")


def exported_checks(folder: Path, subject: Pipeline) -> Iterator[Check]:
    """The schedule files of an export, against the laws and against the plan.

    A pipeline of one rank has none: there its stages are held against the plan.
    """
    if subject.timeline.schedule.num_ranks == 1:
        yield _stages_check(folder, subject)
        return
    yield from _order_checks(folder, subject)


def _stages_check(folder: Path, subject: Pipeline) -> Check:
    from trainwright.formats.exports.pytorch import STAGES
    from trainwright.formats.json_text import parse_json

    path = folder / STAGES
    detail = "one rank, which needs no schedule; layers, replicas and microbatches of this plan"
    if not path.is_file():
        raise InvalidInput.of("exported", f'holds no {STAGES}; export the plan to "pytorch"')
    expected = (
        1,
        subject.data_parallel,
        subject.timeline.schedule.num_microbatches,
        tuple(sum(name.startswith(BLOCK) for name in stage) for stage in subject.stages),
    )
    try:
        if _stated(parse_json(path.read_bytes(), source=STAGES)) != expected:
            raise InvalidInput.of("stages", "are not those of this plan")
    except InvalidInput as error:
        return check(0, STAGES, detail, error)
    return check(0, STAGES, detail)


def _stated(found: Any) -> tuple[int, int, int, tuple[int, ...]]:
    """Pipeline ranks, replicas, microbatches, and the blocks of each stage."""
    kinds = {LayerKind.BLOCK.value, LayerKind.MTP.value}
    try:
        return (
            found["mesh"]["pipeline"],
            found["mesh"]["data"],
            found["num_microbatches"],
            tuple(
                sum(layer["kind"] in kinds for layer in stage["layers"])
                for stage in found["stages"]
            ),
        )
    except (KeyError, TypeError):
        raise InvalidInput.of("stages", "must be as `export --to pytorch` writes them") from None


def _order_checks(folder: Path, subject: Pipeline) -> Iterator[Check]:
    from trainwright.formats.pytorch_csv import read_compute_comms, read_compute_only
    from trainwright.scheduling.pytorch_rules import as_pytorch_runs
    from trainwright.scheduling.validate import validate
    from trainwright.scheduling.validate_lowered import validate_lowered

    expected = as_pytorch_runs(subject.timeline.schedule)
    for name in ("schedule.csv", "schedule_comms.csv"):
        path, detail = folder / name, "legal, and the orders of this plan"
        if not path.is_file():
            raise InvalidInput.of("exported", f'holds no {name}; export the plan to "pytorch"')
        try:
            if name == "schedule.csv":
                found = read_compute_only(path)
                validate(found)
            else:
                lowered = read_compute_comms(path)
                validate_lowered(lowered)
                found = lowered.compute_only()
            if found != expected:
                raise InvalidInput.of("orders", "are not those of this plan")
        except InvalidInput as error:
            yield check(0, name, detail, error)
        else:
            yield check(0, name, detail)
