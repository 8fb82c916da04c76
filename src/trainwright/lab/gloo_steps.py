"""Training steps of one rank on PyTorch's runtime, beside the same model in one piece."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import distributed
from torch.distributed import pipelining
from torch.distributed.pipelining import PipelineStage

from trainwright.errors import UnsupportedFeature
from trainwright.lab import autograd_replay
from trainwright.lab import autograd_replay as tiny
from trainwright.lab.gloo_check import Job, RankReport, RunFolder, RunOrder, parse_orders, worst_of
from trainwright.lab.token_replay import compare_curve
from trainwright.plans.lowered import HEAD_EXCHANGES, LoweredAction, LoweredKind, LoweredSchedule

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
    worst = worst_of(reports)
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
    counts = order.counts
    share, order = counts[replica] / sum(counts), order.of_replica(replica)
    stages, last = order.stages, len(order.stages) - 1
    whole = [tiny.build_stage(stages, stage) for stage in range(last + 1)]
    own = {
        stage: tiny.build_stage(stages, stage)
        for stage in range(last + 1)
        if order.rank_of_stage[stage] == rank
    }
    kept = autograd_replay.KeptTensors(
        each for module in own.values() for each in module.parameters()
    )
    alone = autograd_replay.kept_by_stage(stages)
    pipeline_group, replica_group = _groups(order.num_ranks, len(counts), process)
    pipeline = _pipeline(folder, order, own, pipeline_group)
    for step in range(job.num_steps):
        tokens, wanted = tiny.build_batch(step, order.num_microbatches, replica=replica)
        losses: list[Any] = []
        given = (tokens,) if 0 in own else ()
        also = {"target": wanted, "losses": losses} if last in own else {}
        with watched(kept) as seen:
            pipeline.step(*given, **also)
        _average(own, replica_group, share)
        expected_loss = tiny.run_unpartitioned(whole, step, counts)
        error, limit, parameter = autograd_replay.worst_gradient(own, whole)
        yield RankReport(
            error=error,
            limit=limit,
            parameter=parameter,
            loss_error=_loss_error(losses, expected_loss, share, replica_group),
            torch_version="",
            kept=compare_curve(rank, seen, alone),
        )
        tiny.descend(list(own.values()))
        tiny.descend(whole)


class watched:  # noqa: N801
    """A context whose value lists each action with the bytes that were kept before it."""

    def __init__(self, kept: autograd_replay.KeptTensors) -> None:
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


def _groups(num_ranks: int, num_replicas: int, process: int) -> tuple[Any, Any]:
    """The processes of this one's pipeline, and those with its stages in all replicas."""
    ranks, replicas = range(num_ranks), range(num_replicas)
    pipelines = [[r * num_ranks + rank for rank in ranks] for r in replicas]
    shared = [[r * num_ranks + rank for r in replicas] for rank in ranks]
    # Every process takes part in making every group.
    made = [
        [(group, distributed.new_group(group)) for group in kind] for kind in (pipelines, shared)
    ]
    pipeline, same = (next(made for ids, made in kind if process in ids) for kind in made)
    return pipeline, same


def _average(own: dict[int, Any], group: Any, share: float) -> None:
    """Data parallelism: the mean over all microbatches, of which this replica ran a share."""
    if share < 1:
        for module in own.values():
            for parameter in module.parameters():
                if parameter.grad is not None:
                    parameter.grad *= share
                    distributed.all_reduce(parameter.grad, group=group)


def _loss_error(losses: list[Any], expected: float, share: float, group: Any) -> float | None:
    if not losses:
        return None
    mean = torch.stack([loss.detach() for loss in losses]).double().mean()
    if share < 1:
        mean *= share
        distributed.all_reduce(mean, group=group)
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


# Lowered orders on gloo, one process per rank, without PyTorch's pipeline runtime
# --------------------------------------------------------------------------------
# That runtime has no actions for copies to the host, a head cut over all ranks, slices of a
# sequence or two copies of the model, and none to recompute. Here a rank walks through its own
# order: what it computes is the worker's of `autograd_replay`, what it sends and receives are
# messages between processes. As on accelerators they carry no name: those from stage to stage of
# two ranks share one channel, each exchange around a cut head has its own.
#
# Afterwards gradients of stages that several processes hold, copies and replicas, are averaged.


_CHANNELS = {kind: tag for tag, pair in enumerate(HEAD_EXCHANGES.items(), 1) for kind in pair}
_TARGET = {
    LoweredKind.SEND_F: 1,
    LoweredKind.SEND_B: -1,
    LoweredKind.RECV_F: -1,
    LoweredKind.RECV_B: 1,
}
_GRADIENTS = 100  # channel of stage s: this + s


def run_orders(
    folder: RunFolder, job: Job, order: RunOrder, process: int, note: Callable[[str], None]
) -> RankReport:
    """The worst of all steps, as `gloo_steps.run_steps`; `note` hears of each step before it."""
    replica, rank = divmod(process, order.num_ranks)
    own = order.of_replica(replica)
    lowered = parse_orders((folder.path / own.csv_name).read_text(encoding="utf-8"), own)
    model = autograd_replay.CutModel.of(lowered, own.stages, [rank])
    whole = [autograd_replay.build_stage(order.stages, stage) for stage in range(len(order.stages))]
    counts = [count for count in order.counts for _ in range(order.num_pipelines)]
    reports = []
    for step in range(job.num_steps):
        worker = autograd_replay.AutogradWorker(lowered, model, step=step, replica=replica)
        with worker.kept.counting():
            _walk(lowered, worker, rank, replica * order.num_ranks, note)
        note("the exchange of gradients")
        _average_copies(order, model)
        total = torch.tensor(math.fsum(worker.losses), dtype=torch.float64)
        distributed.all_reduce(total)
        expected = autograd_replay.run_unpartitioned(whole, step, counts)
        loss_error = abs(total.item() / sum(counts) - expected)
        error, limit, parameter = model.worst_gradient(whole)
        reports.append(
            RankReport(
                error=error,
                limit=limit,
                parameter=parameter,
                loss_error=loss_error if loss_error == loss_error else math.inf,
                torch_version=torch.__version__,
                kept=worker.rank_bytes()[rank],
            )
        )
        autograd_replay.descend(list(model.modules.values()))
        autograd_replay.descend([torch.nn.ParameterList(part for _, part in model.heads.values())])
        autograd_replay.descend(whole)
    return worst_of(reports)


def _walk(
    lowered: LoweredSchedule,
    worker: autograd_replay.AutogradWorker,
    rank: int,
    first: int,
    note: Callable[[str], None],
) -> None:
    """Every step of a rank; `first` is the process of rank 0 of its pipeline."""
    under_way: list[tuple[Any, Any]] = []
    owner = lowered.placement.rank_of_stage

    def send(tensor: Any, target: int, channel: int) -> None:
        sent = tensor.detach().contiguous()
        under_way.append((distributed.isend(sent, first + target, tag=channel), sent))

    def receive(step: LoweredAction, source: int, channel: int) -> Any:
        tensor = torch.empty(autograd_replay.message_shape(lowered, step))
        distributed.recv(tensor, first + source, tag=channel)
        return tensor

    for step in lowered.order(rank):
        note(str(step))
        channel = _CHANNELS.get(step.kind, 0)
        if step.kind in (LoweredKind.SEND_F, LoweredKind.SEND_B):
            send(worker.send(step), owner[step.stage + _TARGET[step.kind]], channel)
        elif step.kind in (LoweredKind.RECV_F, LoweredKind.RECV_B):
            source = owner[step.stage + _TARGET[step.kind]]
            worker.receive(step, receive(step, source, channel))
        elif step.kind in HEAD_EXCHANGES:
            message = worker.send(step)
            for target in lowered.peers(step.kind, rank):
                send(message, target, channel)
        elif step.kind in _CHANNELS:
            peers = lowered.peers(step.kind, rank)
            worker.receive(step, [receive(step, source, channel) for source in peers])
        elif step.kind is LoweredKind.REDUCE_GRAD:
            worker.reduce(step.stage)
        elif step.kind < LoweredKind.SEND_F:
            worker.compute(step)
    for work, _ in under_way:
        work.wait()


def _average_copies(order: RunOrder, model: autograd_replay.CutModel) -> None:
    """The mean of the gradients of whoever holds the same parameters, in one order for all."""
    length = len(order.rank_of_stage) // order.num_pipelines
    shared = [
        ([order.rank_of_stage[stage + copy * length] for copy in range(order.num_pipelines)], stage)
        for stage in range(length)
    ]
    for ranks, stage in shared:
        own = {
            copy: list(model.modules[stage + copy * length].parameters())
            for copy in range(order.num_pipelines)
            if stage + copy * length in model.modules
        }
        _average_among(order, ranks, own, _GRADIENTS + stage)
    for rank, (_, part) in model.heads.items():
        _average_among(order, [rank], {0: [part]}, _GRADIENTS + length + rank)


def _average_among(
    order: RunOrder, ranks: Sequence[int], own: dict[int, list[Any]], channel: int
) -> None:
    """`own` has the parameters of this process by copy, `ranks` who holds each copy."""
    holders = [
        (replica * order.num_ranks + rank, copy)
        for replica in range(len(order.counts))
        for copy, rank in enumerate(ranks)
    ]
    if len(holders) == 1 or not own:
        return
    here = distributed.get_rank()
    flat = {
        copy: torch.cat([_gradient(parameter).flatten() for parameter in parameters])
        for copy, parameters in own.items()
    }
    works = [
        distributed.isend(mine, process, tag=channel)
        for mine in flat.values()
        for process in sorted({process for process, _ in holders} - {here})
    ]
    parts = []
    for process, copy in holders:
        if process == here:
            parts.append(flat[copy])
        else:
            parts.append(torch.empty_like(next(iter(flat.values()))))
            distributed.recv(parts[-1], process, tag=channel)
    for work in works:
        work.wait()
    counts = [order.counts[process // order.num_ranks] for process, _ in holders]
    weighed = [part * (n / sum(counts)) for part, n in zip(parts, counts, strict=True)]
    mean = sum(weighed[1:], weighed[0])
    for parameters in own.values():
        sizes = [parameter.numel() for parameter in parameters]
        for parameter, each in zip(parameters, mean.split(sizes), strict=True):
            parameter.grad = each.view_as(parameter).clone()


def _gradient(parameter: Any) -> Any:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
