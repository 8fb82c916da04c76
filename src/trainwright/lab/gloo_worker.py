"""One rank of a check: runs schedule files on PyTorch and compares with the model in one piece.

Started by `gloo_check` as `python -m trainwright.lab.gloo_worker FOLDER RANK`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from trainwright.errors import UnsupportedFeature
from trainwright.lab import gloo_check


def main() -> None:
    """Do the runs of the job in order; stop at the first that fails."""
    folder, rank = gloo_check.RunFolder(Path(sys.argv[1])), int(sys.argv[2])
    threading.Thread(target=_end_with_parent, daemon=True).start()
    job, run = folder.read_job(), 0
    try:
        note = _listen(folder, rank)
        for run, order in enumerate(job.runs):
            folder.write_report(run, rank, _run(folder, job, run, order, rank, note))
    except Exception as error:
        failure = gloo_check.RankFailure(
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


def _listen(folder: gloo_check.RunFolder, rank: int) -> Callable[[str], None]:
    """Keep the action of this rank in its file; returns who else may tell of one."""
    from trainwright.lab.gloo_steps import find_runtime, report_actions

    find_runtime()
    file = os.open(folder.action_path(rank), os.O_WRONLY | os.O_CREAT)

    def note(action: str) -> None:
        _write_over(file, action)

    note("the start")
    report_actions("place", note)
    return note


def _write_over(file: int, action: str) -> None:
    os.pwrite(file, action.encode("ascii").ljust(64), 0)


def _run(
    folder: gloo_check.RunFolder,
    job: gloo_check.Job,
    run: int,
    order: gloo_check.RunOrder,
    rank: int,
    note: Callable[[str], None],
) -> gloo_check.RankReport:
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    store = distributed.FileStore(str(folder.store(run)), job.num_processes)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=job.num_processes)
    try:
        from trainwright.lab.gloo_steps import run_orders, run_steps

        if order.form == gloo_check.OWN_RUNTIME:
            return run_orders(folder, job, order, rank, note)
        return run_steps(folder, job, order, rank)
    finally:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
