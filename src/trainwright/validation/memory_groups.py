"""Which measured memories count towards a table's score, and which are reported apart.

A figure is only as good as what its table records. Of the tests of megatron-core apart go: runs
whose device count was assumed, repeats that disagree by more than 5 %, kinds of training whose
memory does not follow from the columns (FSDP, FP8, Muon, offloading, distillation). Figures copied
from another row instead of measured are not scored at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from trainwright.plan.measured_run import MeasuredRun
from trainwright.validation.repeats import spread_of

LARGEST_SPREAD = 0.05
_APART_FLAGS = ("use_megatron_fsdp", "fp8_format", "fine_grained_activation_offloading")


class Quality(StrEnum):
    """How a memory figure is used."""

    RECORDED = "recorded"
    APART = "apart"
    COPIED = "copied"


def quality_of(runs: Sequence[MeasuredRun]) -> Quality:
    """How the memory of one configuration's rows is used."""
    run = runs[0]
    if run.setting("memory_measured_here") == "0":
        return Quality.COPIED
    if run.schema != "megatron_ci":
        return Quality.RECORDED
    recorded = run.setting("gpus_source") in (None, "recipe")
    unusual = any(run.setting(name) for name in _APART_FLAGS)
    unusual = unusual or run.setting("optimizer") == "muon" or "distill" in run.model
    unusual = unusual or run.zero_stage == 3
    agrees = spread_of([r.peak_memory_bytes for r in runs]) <= LARGEST_SPREAD
    return Quality.RECORDED if recorded and agrees and not unusual else Quality.APART
