"""PyTorch itself: the order of every action in both forms its runtime loads, and a loader.

`stages.json` says what a stage holds and what of it is recomputed; the model is the user's, cut by
a function of theirs. The runtime's loader is private in torch, so the version is pinned and the
few private names lie in one function of `run_pipeline.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any, Final

from trainwright.formats.schedule_json import (
    TESTED_TORCH_VERSION,
    format_compute_comms,
    format_compute_only,
)
from trainwright.frameworks.launch import commented, header
from trainwright.plans.capability import dispatch_features
from trainwright.plans.job import ExportBundle, Job, Stamp
from trainwright.profile import Recompute

STAGES: Final = "stages.json"
KIND: Final = "trainwright_stages"
RUN: Final = "run_pipeline.py"
_AXES: Final = ("pipeline", "data", "context", "tensor")


def export_pytorch(job: Job, stamp: Stamp) -> ExportBundle:
    """Orders, stages, and a program that runs a function of the user's on them."""
    missing = tuple(_missing(job))
    top = commented(header(stamp, "pytorch", TESTED_TORCH_VERSION, missing))
    found = {STAGES: _json(describe(job, stamp, missing)), RUN: top + _program()}
    if job.degrees.pipeline > 1:
        assert job.orders is not None, "this target takes the order of every action"
        found["schedule.csv"] = format_compute_only(job.orders.schedule)
        found["schedule_comms.csv"] = format_compute_comms(job.orders.lowered)
    return ExportBundle(
        target="pytorch",
        version=TESTED_TORCH_VERSION,
        files=found,
        command=(RUN, '"${STAGE_BUILDER:?module:function that builds a stage}"'),
        settings=STAGES,
        not_represented=missing,
        asked_of_user=(
            "STAGE_BUILDER=module:function; called with a stage of stages.json, the device mesh "
            "and this file's values, it returns the module of the stage",
            "in the same module: batch(step, mesh, plan), loss(output, target), "
            "optimizer(parameters) and NUM_STEPS",
        ),
    )


def _missing(job: Job) -> Iterator[str]:
    yield "the model: a function of yours builds every stage"
    if any(Recompute.OFFLOAD in stage.recompute for stage in job.stages):
        yield "copies to the host: your blocks marked offload move what hides beside their passes"
    if any(dispatch_features(job.demands)):
        yield f"how tokens travel to experts: your model sends {job.recipe.dispatch_in_words}"
    yield "predicted times and memory"


def describe(job: Job, stamp: Stamp, missing: tuple[str, ...]) -> dict[str, Any]:
    """Everything of the plan as plain values, and who wrote it."""
    degrees = job.degrees
    return {
        "kind": KIND,
        "format_version": 1,
        "written_by": f"trainwright {stamp.trainwright_version}",
        "plan_sha256": stamp.plan_sha256,
        "changes": list(stamp.changes),
        "torch_version": TESTED_TORCH_VERSION,
        "not_represented": [*stamp.unsaid, *missing],
        "mesh": {axis: getattr(degrees, axis) for axis in _AXES},
        "expert": degrees.expert,
        "expert_tensor": degrees.expert_shards if job.model.experts else None,
        "sequence_parallel": degrees.sequence_parallel,
        "zero_stage": job.demands.zero_stage,
        "state_copies": degrees.state_copies,
        "schedule": job.schedule,
        "num_microbatches": job.num_microbatches,
        "microbatch_size": job.microbatch_size,
        "sequence_length": job.sequence_length,
        "precision": job.precision,
        "optimizer": str(job.recipe.optimizer),
        "recompute_modules": list(job.selected_modules) if _is_selective(job) else [],
        **({"node_kinds": list(job.node_kinds)} if job.node_kinds else {}),
        "stages": [_stage(job, number) for number in range(len(job.stages))],
    }


def _is_selective(job: Job) -> bool:
    return any(Recompute.SELECTIVE in stage.recompute for stage in job.stages)


def _stage(job: Job, number: int) -> dict[str, Any]:
    stage = job.stages[number]
    block = stage.first_block
    layers = []
    for kind, mode in zip(stage.kinds, stage.recompute, strict=True):
        layer: dict[str, Any] = {"kind": kind.value, "recompute": mode.value}
        if kind.value == "block":
            layer["block"] = block
            block += 1
        layers.append(layer)
    return {"stage": number, "rank": job.placement.rank_of_stage[number], "layers": layers}


def _json(value: dict[str, Any]) -> str:
    """Values one to a line at the top, each stage on one line."""
    rest = {key: each for key, each in value.items() if key != "stages"}
    text = json.dumps(rest, indent=2).removesuffix("\n}")
    stages = ",\n".join(f"    {json.dumps(stage)}" for stage in value["stages"])
    return f'{text},\n  "stages": [\n{stages}\n  ]\n}}\n'


def _program() -> str:
    return files(__package__).joinpath("run_pipeline.py.txt").read_text(encoding="utf-8")
