"""DeepSpeed: its JSON, and Python for a pipeline, whose stages the JSON cannot state.

The parser accepts unknown keys at the top and under `pipeline` without a word, so only known ones
are written; what JSON has no comments for goes to a side file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from trainwright.frameworks.launch import commented, header
from trainwright.model import LayerKind
from trainwright.plans.capability import RecomputeForm, capability_of
from trainwright.plans.job import ExportBundle

if TYPE_CHECKING:
    from trainwright.plans.job import Job, Stamp

FILE: Final = "ds_config.json"
CODE: Final = "pipeline.py"


def export_deepspeed(job: Job, stamp: Stamp) -> ExportBundle:
    """The JSON with its side file, and for a pipeline the module that cuts it."""
    target, version = "deepspeed", capability_of("deepspeed").version
    missing = (*_unsaid(job), "predicted times and memory")
    meta = {
        "written_by": f"trainwright {stamp.trainwright_version}",
        "plan_sha256": stamp.plan_sha256,
        "target": target,
        "version": version,
        "changes": list(stamp.changes),
        "not_represented": [*stamp.unsaid, *missing],
    }
    files = {
        FILE: text_of(job),
        "ds_config.meta.json": json.dumps(meta, indent=2) + "\n",
    }
    if job.degrees.pipeline > 1:
        files[CODE] = commented(header(stamp, target, version, missing)) + _code(job)
    return ExportBundle(
        target=target,
        version=version,
        files=files,
        command=(
            '"${TRAIN_SCRIPT:?a training script for DeepSpeed}"',
            "--deepspeed",
            f"--deepspeed_config {FILE}",
        ),
        not_represented=missing,
        asked_of_user=(
            "TRAIN_SCRIPT: model, data and optimizer",
            *((f"in it, the module of {CODE}",) if CODE in files else ()),
        ),
    )


def _unsaid(job: Job) -> Iterator[str]:
    degrees = job.degrees
    if degrees.tensor > 1:
        yield f"tensor parallel {degrees.tensor}: it is the model's own"
    if degrees.expert > 1:
        yield f"expert parallel {degrees.expert}: ep_size of the MoE layers in code"
    if degrees.pipeline == 1 and job.recompute_form is RecomputeForm.ALL:
        yield "recomputation: checkpoint every block in the model's code"
    yield f"sequences of {job.sequence_length} tokens"


def text_of(job: Job) -> str:
    """The JSON."""
    return json.dumps(settings(job), indent=2) + "\n"


def settings(job: Job) -> dict[str, Any]:
    """The values of the JSON; batch = microbatch x accumulation x replicas."""
    found: dict[str, Any] = {
        "train_batch_size": job.global_batch,
        "train_micro_batch_size_per_gpu": job.microbatch_size,
        "gradient_accumulation_steps": job.num_microbatches,
        "zero_optimization": {"stage": job.demands.zero_stage},
    }
    if job.demands.zero_stage:  # which overlaps by itself at its third stage alone
        found["zero_optimization"]["overlap_comm"] = job.overlap.gradients > 0
    if job.demands.offload:
        found["zero_optimization"]["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if job.precision == "bf16":
        found["bf16"] = {"enabled": True}
    elif job.precision == "fp16":
        found["fp16"] = {"enabled": True}
    if job.degrees.pipeline > 1:
        found["pipeline"] = {"activation_checkpoint_interval": _interval(job)}
    return found


def _interval(job: Job) -> int:
    return int(job.recompute_form is RecomputeForm.ALL)


def bounds(job: Job) -> tuple[int, ...]:
    """First layers of the stages, and the end, of embedding, blocks, norm and head in order."""
    kinds = {LayerKind.EMBEDDING, LayerKind.BLOCK, LayerKind.FINAL_NORM, LayerKind.LM_HEAD}
    counts = [sum(kind in kinds for kind in stage.kinds) for stage in job.stages]
    return tuple(accumulate(counts, initial=0))


def _code(job: Job) -> str:
    """A pipeline cut as planned, whatever DeepSpeed's own methods would do."""
    return f'''"""The pipeline of the plan, of embedding, blocks, norm and head as one list."""

from deepspeed.pipe import PipelineModule

NUM_STAGES = {job.degrees.pipeline}
BOUNDS = {list(bounds(job))}  # stage i holds layers BOUNDS[i] to BOUNDS[i + 1]


class PlannedPipeline(PipelineModule):
    """Cut at BOUNDS; DeepSpeed's own methods balance counts or parameters instead."""

    def _partition_layers(self, method="planned"):
        stage = self._topo.get_coord(self.global_rank).pipe
        self.parts = list(BOUNDS)
        self._set_bounds(start=BOUNDS[stage], stop=BOUNDS[stage + 1])


def pipeline(layers, loss_fn):
    """The module of this rank; `layers` must be as many as the plan's."""
    if len(layers) != BOUNDS[-1]:
        raise ValueError(f"the plan has {{BOUNDS[-1]}} layers, got {{len(layers)}}")
    return PlannedPipeline(
        layers=layers,
        num_stages=NUM_STAGES,
        loss_fn=loss_fn,
        activation_checkpoint_interval={_interval(job)},
    )
'''
