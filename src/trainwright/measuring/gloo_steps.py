"""Training steps of one rank on PyTorch's runtime, beside the same model in one piece."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed
from torch.distributed.pipelining import PipelineStage

from trainwright.measuring import tiny_transformer as tiny
from trainwright.measuring.autograd_replay import kept_by_stage, worst_gradient
from trainwright.measuring.kept_curve import compare_curve
from trainwright.measuring.kept_tensors import KeptTensors
from trainwright.measuring.run_folder import RankReport
from trainwright.measuring.torch_pipelining import load_pipeline, report_actions

if TYPE_CHECKING:
    from trainwright.measuring.run_folder import Job, RunFolder, RunOrder


def run_steps(folder: RunFolder, job: Job, order: RunOrder, process: int) -> RankReport:
    """The worst of all steps; weights move in between, so that what is stale shows."""
    reports = list(_steps(folder, job, order, process))
    loss_errors = [report.loss_error for report in reports if report.loss_error is not None]
    worst = max(reports, key=lambda report: report.error / report.limit)
    return RankReport(
        error=worst.error,
        limit=worst.limit,
        parameter=worst.parameter,
        loss_error=max(loss_errors, default=None),
        torch_version=torch.__version__,
        kept=max((report.kept for report in reports), key=lambda k: k.largest_difference_bytes),
    )


def _steps(folder: RunFolder, job: Job, order: RunOrder, process: int) -> Iterator[RankReport]:
    replica, rank = divmod(process, order.num_ranks)
    stages, last = order.stages, len(order.stages) - 1
    whole = [tiny.build_stage(stages, stage) for stage in range(last + 1)]
    own = {
        stage: tiny.build_stage(stages, stage)
        for stage in range(last + 1)
        if order.rank_of_stage[stage] == rank
    }
    kept = KeptTensors(each for module in own.values() for each in module.parameters())
    alone = kept_by_stage(stages)
    pipeline_group, replica_group = _groups(order, process)
    pipeline = _pipeline(folder, order, own, pipeline_group)
    for step in range(job.num_steps):
        tokens, wanted = tiny.build_batch(step, order.num_microbatches, replica=replica)
        losses: list[Any] = []
        given = (tokens,) if 0 in own else ()
        also = {"target": wanted, "losses": losses} if last in own else {}
        with watched(kept) as seen:
            pipeline.step(*given, **also)
        _average(own, replica_group, order.num_replicas)
        expected_loss = tiny.run_unpartitioned(
            whole, step, order.num_microbatches, num_replicas=order.num_replicas
        )
        error, limit, parameter = worst_gradient(own, whole)
        yield RankReport(
            error=error,
            limit=limit,
            parameter=parameter,
            loss_error=_loss_error(losses, expected_loss, order, replica_group),
            torch_version="",
            kept=compare_curve(rank, seen, alone),
        )
        tiny.descend(list(own.values()))
        tiny.descend(whole)


class watched:  # noqa: N801
    """A context whose value lists each action with the bytes that were kept before it."""

    def __init__(self, kept: KeptTensors) -> None:
        self._kept, self._hooks = kept, kept.counting()
        self._seen: list[tuple[str, float]] = []

    def __enter__(self) -> list[tuple[str, float]]:
        """Count from here on."""
        report_actions("bytes", self._note)
        self._hooks.__enter__()
        return self._seen

    def __exit__(self, *exception: object) -> None:
        """The state at the end is noted as one more action, without a name."""
        self._hooks.__exit__(*exception)
        self._note("")

    def _note(self, action: str) -> None:
        self._seen.append((action, float(self._kept.total_bytes())))
        self._kept.owner = action


def _groups(order: RunOrder, process: int) -> tuple[Any, Any]:
    """The processes of this one's pipeline, and those with its stages in all replicas."""
    ranks, replicas = range(order.num_ranks), range(order.num_replicas)
    pipelines = [[r * order.num_ranks + rank for rank in ranks] for r in replicas]
    shared = [[r * order.num_ranks + rank for r in replicas] for rank in ranks]
    # Every process takes part in making every group.
    made = [
        [(group, distributed.new_group(group)) for group in kind] for kind in (pipelines, shared)
    ]
    pipeline, same = (next(made for ids, made in kind if process in ids) for kind in made)
    return pipeline, same


def _average(own: dict[int, Any], group: Any, num_replicas: int) -> None:
    """Data parallelism: the mean of the replicas' gradients."""
    if num_replicas > 1:
        for module in own.values():
            for parameter in module.parameters():
                if parameter.grad is not None:
                    distributed.all_reduce(parameter.grad, group=group)
                    parameter.grad /= num_replicas


def _loss_error(losses: list[Any], expected: float, order: RunOrder, group: Any) -> float | None:
    if not losses:
        return None
    mean = torch.stack([loss.detach() for loss in losses]).double().mean()
    if order.num_replicas > 1:
        distributed.all_reduce(mean, group=group)
        mean /= order.num_replicas
    loss = mean.item()
    return abs(loss - expected) if loss == loss else math.inf


def _pipeline(folder: RunFolder, order: RunOrder, own: dict[int, Any], group: Any) -> Any:
    shapes = tiny.example_tensors(order.stages)
    stages = [
        PipelineStage(
            module,
            stage,
            len(order.stages),
            torch.device("cpu"),
            input_args=shapes[stage],
            output_args=shapes[stage + 1],
            group=group,
        )
        for stage, module in sorted(own.items())
    ]
    return load_pipeline(
        stages,
        str(folder.path / order.csv_name),
        form=order.form,
        num_microbatches=order.num_microbatches,
        loss=tiny.mean_loss,
    )
