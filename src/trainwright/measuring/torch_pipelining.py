"""The one place that touches private names of PyTorch: its pipeline runtime (torch 2.13).

The runtime has no public loader of schedules. Everything used here is looked for first, so that
another version is refused with a clear word instead of failing half way.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import distributed
from torch.distributed import pipelining

from trainwright.errors import UnsupportedFeature

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
