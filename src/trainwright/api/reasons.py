"""Why a model's plan is what it is: what binds, what each choice buys, what more would help."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trainwright.api.documents import open_document
from trainwright.api.printed import Report
from trainwright.api.recompute_model import planned, predicted, profile_of
from trainwright.errors import InvalidInput
from trainwright.plan.results.model_explanation import (
    GainRecord,
    ModelExplanation,
    WithoutRecord,
)
from trainwright.plan.results.model_plan import ModelPlanResult
from trainwright.plan.status import Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.api.documents import AnyDocument
    from trainwright.cluster import Cluster
    from trainwright.execution import Budget
    from trainwright.plan.prediction import StageMemory
    from trainwright.planning.why import Gain, Without

SHARE_S: Final = 20.0  # wall seconds of each search for another plan
_CLASSES: Final = (
    "weight",
    "gradient",
    "optimizer",
    "opaque",
    "activation",
    "logits",
    "transient",
    "buffer",
    "workspace",
)


def reasons(document: AnyDocument, *, budget: Budget | None = None) -> Report[ModelExplanation]:
    """Explain the plan of a model (a path or a result).

    The plan is priced again with 1 % more of each resource, and planned again with 10 GiB more
    memory and without each thing that it uses: each of these searches takes at most 20 s, all
    together what `budget` allows; what was not reached is listed. Raises `InvalidInput` where the
    document holds no plan of a model.
    """
    from trainwright.execution import Budget as NoLimit

    found = open_document(document)
    if not isinstance(found, ModelPlanResult) or not found.stages or found.step_time_s is None:
        raise InvalidInput.of("document", "must hold a plan of a model")
    return Report(_explained(found, budget or NoLimit()))


def _explained(document: ModelPlanResult, budget: Budget) -> ModelExplanation:
    from trainwright.planning.why import memory_gain, repriced_gains, uses, without

    started_s, step_s = budget.cpu_s, document.step_time_s
    assert step_s is not None
    question, plan, _ = planned(document)

    def reprice(cluster: Cluster) -> float:
        changed = replace(question, cluster=cluster)
        return predicted(changed, plan, profile_of(changed, plan)).step_time_s

    gains = list(repriced_gains(question.cluster, reprice))
    binding = max(gains, key=lambda gain: -gain.step_time_s, default=None)
    not_asked: list[str] = []
    part = budget.part(SHARE_S, stage="with more memory")
    more = None if budget.stopped else memory_gain(question, step_s, part)
    if more is None:
        not_asked.append("10 GiB more memory")
    else:
        gains.append(more)
    lacking: list[Without] = []
    spaces = [] if plan.parallelism is None else uses(plan, plan.parallelism, question.allowed)
    for name, space in spaces:
        if budget.stopped:
            not_asked.append(f"without {name}")
        else:
            part = budget.part(SHARE_S, stage=f"without {name}")
            lacking.append(without(question, name, space, part))
    busy_s = [rank.forward_s + rank.backward_s for rank in document.ranks]
    sizes = document.peak_memory_bytes_per_rank
    fullest = sizes.index(max(sizes))
    saves = binding is not None and binding.step_time_s < step_s * (1 - 1e-6)
    return ModelExplanation(
        busiest_rank=busy_s.index(max(busy_s)),
        fullest_rank=fullest,
        free_bytes=(document.memory_limit_bytes or 0.0)
        - question.overheads.needed_bytes(sizes[fullest]),
        binding=binding.resource if binding is not None and saves else None,
        time_by_part_s=document.time_by_part_s,
        memory_by_class_bytes=_classes(document.ranks[fullest].memory),
        without=tuple(_without_records(lacking, step_s)),
        gains=tuple(_gain_record(gain, step_s) for gain in gains),
        not_asked=tuple(not_asked),
        search_s=budget.cpu_s - started_s,
        plan=document,
    )


def _classes(memory: StageMemory) -> dict[str, float]:
    sizes = {name: float(getattr(memory, f"{name}_bytes")) for name in _CLASSES}
    return {name: size for name, size in sizes.items() if size > 0}


def _without_records(lacking: list[Without], step_s: float) -> Iterator[WithoutRecord]:
    for each in lacking:
        record = WithoutRecord(name=each.name, status=each.status)
        if each.best is not None:
            time_s = each.best.step.step_time_s
            record = replace(
                record,
                step_time_s=time_s,
                slowdown=time_s / step_s,
                parallelism=each.best.plan.parallelism,
                micro_batch=each.best.plan.microbatch_size,
                schedule=each.best.plan.schedule,
            )
        yield record


def _gain_record(gain: Gain, step_s: float) -> GainRecord:
    return GainRecord(
        resource=gain.resource,
        change=gain.change,
        step_time_s=gain.step_time_s,
        saved=max(0.0, 1 - gain.step_time_s / step_s),
        replanned=gain.replanned,
    )


def has_reasons(document: object) -> bool:
    """Whether a document holds a plan of a model."""
    found = isinstance(document, ModelPlanResult) and bool(document.stages)
    return found and document.status in (Status.OPTIMAL, Status.GAP)  # type: ignore[attr-defined]
