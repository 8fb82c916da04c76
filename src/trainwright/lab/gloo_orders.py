"""Lowered orders on gloo, one process per rank, without PyTorch's pipeline runtime.

That runtime has no actions for copies to the host, a head cut over all ranks, slices of a sequence
or two copies of the model, and none to recompute. Here a rank walks through its own order: what it
computes is the worker's of `autograd_replay`, what it sends and receives are messages between
processes. As on accelerators they carry no name: those from stage to stage of two ranks share one
channel, each exchange around a cut head has its own.

Afterwards gradients of stages that several processes hold, copies and replicas, are averaged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from trainwright.lab.autograd_replay import (
    AutogradWorker,
    CutModel,
    build_stage,
    descend,
    message_shape,
    run_unpartitioned,
)
from trainwright.lab.gloo_check import RankReport, parse_orders
from trainwright.plans.lowered import HEAD_EXCHANGES, LoweredKind

if TYPE_CHECKING:
    from trainwright.lab.gloo_check import Job, RunFolder, RunOrder
    from trainwright.plans.lowered import LoweredAction, LoweredSchedule

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
    text = (folder.path / order.csv_name).read_text(encoding="utf-8")
    lowered = parse_orders(text, order)
    replica, rank = divmod(process, order.num_ranks)
    model = CutModel.of(lowered, order.stages, [rank])
    whole = [build_stage(order.stages, stage) for stage in range(len(order.stages))]
    count = order.num_microbatches // order.num_slices
    shares = order.num_pipelines * order.num_replicas
    reports = []
    for step in range(job.num_steps):
        worker = AutogradWorker(lowered, model, step=step, replica=replica)
        with worker.kept.counting():
            _walk(lowered, worker, rank, replica * order.num_ranks, note)
        note("the exchange of gradients")
        _average(order, model)
        total = torch.tensor(math.fsum(worker.losses), dtype=torch.float64)
        distributed.all_reduce(total)
        expected = run_unpartitioned(whole, step, count, num_replicas=shares)
        loss_error = abs(total.item() / (count * shares) - expected)
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
        descend(list(model.modules.values()))
        descend([torch.nn.ParameterList(part for _, part in model.heads.values())])
        descend(whole)
    return max(reports, key=lambda report: report.error / report.limit)


def _walk(
    lowered: LoweredSchedule,
    worker: AutogradWorker,
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
        tensor = torch.empty(message_shape(lowered, step))
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


def _average(order: RunOrder, model: CutModel) -> None:
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
        for replica in range(order.num_replicas)
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
    mean = sum(parts[1:], parts[0]) / len(parts)
    for parameters in own.values():
        sizes = [parameter.numel() for parameter in parameters]
        for parameter, each in zip(parameters, mean.split(sizes), strict=True):
            parameter.grad = each.view_as(parameter).clone()


def _gradient(parameter: Any) -> Any:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
