"""Training steps of one rank on PyTorch's runtime, beside the same model in one piece."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed
from torch.distributed import pipelining
from torch.distributed.pipelining import PipelineStage

from trainwright.errors import UnsupportedFeature
from trainwright.lab import autograd_replay as tiny
from trainwright.lab.autograd_replay import KeptTensors, kept_by_stage, worst_gradient
from trainwright.lab.gloo_check import RankReport
from trainwright.lab.token_replay import compare_curve

if TYPE_CHECKING:
    from trainwright.lab.gloo_check import Job, RunFolder, RunOrder


# The one place that touches private names of PyTorch: its pipeline runtime (torch 2.13)
# --------------------------------------------------------------------------------------
# The runtime has no public loader of schedules. Everything used here is looked for first, so that
# another version is refused with a clear word instead of failing half way.

_LOGGER = "torch.distributed.pipelining.schedules"


def find_runtime() -> Any:
    """The runtime class; raises UnsupportedFeature where this PyTorch lacks what is needed."""
    if not (distributed.is_available() and distributed.is_gloo_available()):
        raise _unsupported("is built without gloo")
    schedules = getattr(pipelining, "schedules", None)
    runtime = getattr(schedules, "_PipelineScheduleRuntime", None)
    if runtime is None or not hasattr(pipelining, "PipelineStage"):
        raise _unsupported("has no pipeline runtime of the known name")
    if "format" not in inspect.signature(runtime._load_csv).parameters:
        raise _unsupported("cannot load lowered schedules")
    return runtime


def load_pipeline(
    stages: Sequence[Any], csv_path: str, *, form: str, num_microbatches: int, loss: Any
) -> Any:
    """A runtime that executes the file; `stages` are this rank's, in ascending order."""
    runtime = find_runtime()(list(stages), num_microbatches, loss_fn=loss, scale_grads=True)
    runtime._load_csv(csv_path, format=form)
    return runtime


def report_actions(name: str, report: Callable[[str], None]) -> None:
    """Call `report` with each action before it runs, in place of an earlier one of that name.

    The runtime only tells its log.
    """

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if isinstance(record.args, tuple) and "running time_step" in str(record.msg):
                report(str(record.args[-1]))

    logger, listener = logging.getLogger(_LOGGER), Listener()
    listener.set_name(name)
    others = [handler for handler in logger.handlers if handler.get_name() not in (None, name)]
    logger.handlers, logger.propagate = [*others, listener], False
    logger.setLevel(logging.DEBUG)


def _unsupported(problem: str) -> UnsupportedFeature:
    return UnsupportedFeature(f"torch {torch.__version__} {problem}", alternative="use torch 2.13")


# Training steps of one rank on PyTorch's runtime, beside the same model in one piece
# -----------------------------------------------------------------------------------


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
