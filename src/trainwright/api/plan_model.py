"""`plan` on a model without a profile: uniform plans on a cluster, as a document."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trainwright._version import __version__
from trainwright.api.inputs import embed, naming_options
from trainwright.api.model_records import alternatives, with_plan
from trainwright.errors import Fault, InvalidInput
from trainwright.plan.results.model_plan import ModelPlanResult
from trainwright.plan.results.request import PlanRequest, SpaceRecord, WorkloadRecord
from trainwright.plan.status import BoundKind, Status, relative_gap

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainwright.api.models import ModelInput
    from trainwright.cluster import Cluster
    from trainwright.execution import Budget
    from trainwright.partitioning.restrictions import Restrictions
    from trainwright.planning.allowed import Allowed
    from trainwright.planning.model_planner import ModelOutcome
    from trainwright.planning.model_question import ModelQuestion

_OPTION_OF: Final = {
    "global_batch": "global-batch",
    "sequence_length": "sequence",
    "num_devices": "devices",
    "microbatch_size": "micro-batch",
    "zero_stages": "zero",
    "recompute": "recompute",
}
_DEFAULT_ZERO_STAGE: Final = 1
LARGEST_CLUSTER: Final = 10**9  # devices or nodes; far beyond any machine


def resolve_cluster(
    cluster: str | Path | Cluster | None,
    *,
    nodes: int | None,
    devices: int | None,
    memory_bytes: float | None = None,
) -> tuple[Cluster, int]:
    """A catalog cluster or a file, sized, and how many of its devices to use.

    `memory_bytes` replaces what the driver shows of a device, of which a fraction is usable.
    """
    from trainwright.cluster import Cluster
    from trainwright.formats.catalog import open_cluster

    if cluster is None:
        raise InvalidInput.of(
            "cluster", "must be given for a model; see: trainwright catalog clusters"
        )
    found = cluster if isinstance(cluster, Cluster) else open_cluster(str(cluster))
    if memory_bytes is not None:
        found = found.with_memory(memory_bytes)
    if nodes is not None:
        _refuse_too_many("nodes", nodes)
        found = found.with_nodes(nodes)
    if devices is None:
        return found, found.num_devices
    _refuse_too_many("devices", devices)
    if nodes is None and devices > found.num_devices:
        found = found.with_nodes(-(-devices // found.pool_of().devices_per_node))
    if devices > found.num_devices:
        raise InvalidInput.of(
            "devices", f"must be at most the {found.num_devices} of {nodes} nodes, got {devices}"
        )
    return found, devices


def _refuse_too_many(name: str, count: int) -> None:
    if count > LARGEST_CLUSTER:
        raise InvalidInput.of(name, f"must be <= {LARGEST_CLUSTER}, got {count}")


def resolve_workload(*, global_batch: int | None, sequence: int | None) -> WorkloadRecord:
    """The workload, or every part of it that is missing."""
    missing = [
        Fault(name, f"must be given for a model, as --{name} N")
        for name, value in (("global-batch", global_batch), ("sequence", sequence))
        if value is None
    ]
    if missing:
        raise InvalidInput(missing)
    assert global_batch is not None
    assert sequence is not None
    return WorkloadRecord(global_batch=global_batch, sequence_length=sequence)


def plan_model(
    given: ModelInput,
    *,
    cluster: Cluster,
    num_devices: int,
    workload: WorkloadRecord,
    restrictions: Restrictions,
    micro_batch: int | None,
    zero_stage: int | None,
    per_stage_degrees: bool,
    warnings: Sequence[str],
    budget: Budget,
) -> ModelPlanResult:
    """Search the uniform plans (or, opted in, those with degrees per stage)."""
    from trainwright.planning.model_infeasible import diagnose_model
    from trainwright.planning.model_planner import plan_model as search
    from trainwright.planning.model_question import ModelQuestion
    from trainwright.planning.model_space import Workload
    from trainwright.planning.per_stage import plan_per_stage

    with naming_options(_OPTION_OF):
        question = ModelQuestion(
            model=given.config,
            cluster=cluster,
            workload=Workload(
                global_batch=workload.global_batch, sequence_length=workload.sequence_length
            ),
            num_devices=num_devices,
            allowed=allowed_by(restrictions, micro_batch=micro_batch, zero_stage=zero_stage),
        )
        started_s = budget.cpu_s
        outcome = (plan_per_stage if per_stage_degrees else search)(question, budget)
    document = ModelPlanResult(
        status=_status(outcome),
        lower_bound_s=outcome.lower_bound_s,
        bound_kind=BoundKind.PROVED,
        memory_limit_bytes=cluster.accelerator.usable_bytes,
        interrupted=outcome.interrupted,
        warnings=(
            *given.warnings,
            *warnings,
            *_warnings(restrictions, outcome),
        ),
        considered=outcome.considered,
        pruned=outcome.pruned,
        not_reached=outcome.not_reached,
        request=_request(
            given,
            question,
            workload,
            restrictions=restrictions,
            micro_batch=micro_batch,
            zero_stage=zero_stage,
            per_stage_degrees=per_stage_degrees,
            budget=budget,
        ),
    )
    if outcome.priced:
        best = outcome.priced[0]
        document = replace(
            with_plan(document, question, best.plan, best.profile, best.step),
            alternatives=tuple(alternatives(question, outcome.priced)),
        )
    elif not budget.stopped:  # also where what is missing is too little for a proof
        diagnosis = diagnose_model(question, budget)
        document = replace(document, binding=diagnosis.binding, relaxations=diagnosis.relaxations)
    return replace(document, search_s=budget.cpu_s - started_s)


def allowed_by(
    restrictions: Restrictions, *, micro_batch: int | None, zero_stage: int | None
) -> Allowed:
    """What the options leave; ZeRO 1 where no stage is named."""
    from trainwright.planning.allowed import ANY, Allowed, Span
    from trainwright.profile import Recompute

    modes = tuple(Recompute) if restrictions.recompute else (Recompute.NONE,)
    return Allowed(
        tensor=ANY if restrictions.tensor_parallel else Span.only(1),
        data=ANY if restrictions.data_parallel else Span.only(1),
        microbatch_size=ANY if micro_batch is None else Span.only(micro_batch),
        zero_stages=(_DEFAULT_ZERO_STAGE if zero_stage is None else zero_stage,),
        recompute=tuple(mode for mode in modes if mode not in restrictions.excluded_options),
    )


def _status(outcome: ModelOutcome) -> Status:
    if not outcome.priced:
        return Status.INFEASIBLE if outcome.exhausted else Status.UNKNOWN
    best_s = outcome.priced[0].step.step_time_s
    return Status.OPTIMAL if relative_gap(best_s, outcome.lower_bound_s) <= 1e-9 else Status.GAP


def _warnings(restrictions: Restrictions, outcome: ModelOutcome) -> Iterator[str]:
    from trainwright.profile import Recompute

    for option in sorted(restrictions.excluded_options - set(Recompute)):
        offered = ", ".join(f'"{mode}"' for mode in Recompute)
        yield f'exclude-option: layers of a model offer {offered}, none is "{option}"'
    if outcome.priced and outcome.priced[0].plan.parallelism is None:
        yield "degrees that differ between stages: no framework runs such a plan yet"


def _request(
    given: ModelInput,
    question: ModelQuestion,
    workload: WorkloadRecord,
    *,
    restrictions: Restrictions,
    micro_batch: int | None,
    zero_stage: int | None,
    per_stage_degrees: bool,
    budget: Budget,
) -> PlanRequest:
    from trainwright.formats.document_json import encode

    return PlanRequest(
        trainwright_version=__version__,
        model=given.embedded,
        cluster=embed("cluster", question.cluster.name, encode(question.cluster)),
        workload=workload,
        num_devices=question.num_devices,
        space=SpaceRecord(
            data_parallel=restrictions.data_parallel,
            tensor_parallel=restrictions.tensor_parallel,
            recompute=restrictions.recompute,
            excluded_options=tuple(sorted(restrictions.excluded_options)),
            per_stage_degrees=per_stage_degrees,
            micro_batch=micro_batch,
            zero_stage=_DEFAULT_ZERO_STAGE if zero_stage is None else zero_stage,
        ),
        time_limit_s=budget.time_limit_s,
    )
