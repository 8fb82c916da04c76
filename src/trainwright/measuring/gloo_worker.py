"""One rank of a check: runs schedule files on PyTorch and compares with the model in one piece.

Started by `gloo_check` as `python -m trainwright.measuring.gloo_worker FOLDER RANK`.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from trainwright.errors import UnsupportedFeature
from trainwright.measuring.run_folder import Job, RankFailure, RankReport, RunFolder, RunOrder
from trainwright.measuring.tolerance import gradient_limit


def main() -> None:
    """Do the runs of the job in order; stop at the first that fails."""
    folder, rank = RunFolder(Path(sys.argv[1])), int(sys.argv[2])
    threading.Thread(target=_end_with_parent, daemon=True).start()
    job, run = folder.read_job(), 0
    try:
        _listen(folder, rank)
        for run, order in enumerate(job.runs):
            folder.write_report(run, rank, _run(folder, job, run, order, rank))
    except Exception as error:
        failure = RankFailure(
            run=run,
            problem=f"{type(error).__name__}: {error}",
            time_s=time.monotonic(),
            unsupported=isinstance(error, UnsupportedFeature),
        )
        folder.write_failure(rank, failure)
        os._exit(1)  # peers may hold threads of the process group for ever


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def _listen(folder: RunFolder, rank: int) -> None:
    from trainwright.measuring.torch_pipelining import find_runtime, report_actions

    find_runtime()
    file = os.open(folder.action_path(rank), os.O_WRONLY | os.O_CREAT)
    _write_over(file, "the start")
    report_actions(lambda action: _write_over(file, action))


def _write_over(file: int, action: str) -> None:
    os.pwrite(file, action.encode("ascii").ljust(64), 0)


def _run(folder: RunFolder, job: Job, run: int, order: RunOrder, rank: int) -> RankReport:
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    store = distributed.FileStore(str(folder.store(run)), job.num_ranks)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=job.num_ranks)
    try:
        reports = list(_steps(folder, job, order, rank))
    finally:
        distributed.destroy_process_group()
    loss_errors = [report.loss_error for report in reports if report.loss_error is not None]
    worst = max(reports, key=lambda report: report.error / report.limit)
    return RankReport(
        error=worst.error,
        limit=worst.limit,
        parameter=worst.parameter,
        loss_error=max(loss_errors, default=None),
        torch_version=torch.__version__,
    )


def _steps(folder: RunFolder, job: Job, order: RunOrder, rank: int) -> Any:
    """A report per step; weights move in between, so that what is stale shows."""
    from trainwright.measuring import residual_mlp

    num_stages = len(order.rank_of_stage)
    whole = [residual_mlp.build_stage(stage) for stage in range(num_stages)]
    own = {
        stage: residual_mlp.build_stage(stage)
        for stage in range(num_stages)
        if order.rank_of_stage[stage] == rank
    }
    pipeline = _pipeline(folder, order, own)
    for step in range(job.num_steps):
        inputs, targets = residual_mlp.build_batch(step, order.num_microbatches)
        losses: list[Any] = []
        given = (inputs,) if 0 in own else ()
        wanted = {"target": targets, "losses": losses} if num_stages - 1 in own else {}
        pipeline.step(*given, **wanted)
        expected_loss = residual_mlp.run_unpartitioned(whole, step, order.num_microbatches)
        loss = sum(loss.item() for loss in losses) / order.num_microbatches
        loss_error = abs(loss - expected_loss) if loss == loss else math.inf
        yield _compare(own, whole, loss_error if losses else None)
        residual_mlp.descend(list(own.values()))
        residual_mlp.descend(whole)


def _pipeline(folder: RunFolder, order: RunOrder, own: dict[int, Any]) -> Any:
    import torch
    from torch.distributed.pipelining import PipelineStage

    from trainwright.measuring.residual_mlp import example_tensor, mean_loss
    from trainwright.measuring.torch_pipelining import load_pipeline

    stages = [
        PipelineStage(
            module,
            stage,
            len(order.rank_of_stage),
            torch.device("cpu"),
            input_args=example_tensor(requires_grad=stage > 0),
            output_args=example_tensor(requires_grad=True),
        )
        for stage, module in sorted(own.items())
    ]
    return load_pipeline(
        stages,
        str(folder.path / order.csv_name),
        form=order.form,
        num_microbatches=order.num_microbatches,
        loss=mean_loss,
    )


def _compare(own: dict[int, Any], whole: list[Any], loss_error: float | None) -> RankReport:
    """The gradient nearest to, or farthest beyond, its limit; a missing one counts as zeros."""
    found = []
    for stage, module in own.items():
        expected = dict(whole[stage].named_parameters())
        for name, parameter in module.named_parameters():
            reference = expected[name].grad
            gradient = reference * 0 if parameter.grad is None else parameter.grad
            error = (gradient - reference).abs().nan_to_num(nan=math.inf).max().item()
            limit = gradient_limit(reference.abs().max().item())
            found.append((error, limit, f"stage {stage} {name}"))
    error, limit, parameter = max(found, key=lambda entry: entry[0] / entry[1])
    return RankReport(
        error=error, limit=limit, parameter=parameter, loss_error=loss_error, torch_version=""
    )


if __name__ == "__main__":
    main()
