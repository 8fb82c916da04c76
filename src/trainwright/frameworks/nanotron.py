"""nanotron: its YAML configuration's parallelism, tokens and optimizer.

It cuts the model itself: blocks and head have weights by their matrix products, and a stage ends
after the block with which the running sum passes its share. A plan with other stages is refused.
Written after nanotron's sources (0.4, and the repository of 2026 for recomputation and context);
the package does not import without a GPU, so only our own schema checks it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from trainwright.frameworks.launch import commented, header, to_yaml
from trainwright.plans.capability import RecomputeForm, capability_of
from trainwright.plans.job import ExportBundle
from trainwright.plans.plan import DEFAULT_SCHEDULE

if TYPE_CHECKING:
    from trainwright.plans.job import Job, Stamp

FILE: Final = "nanotron.yaml"


def export_nanotron(job: Job, stamp: Stamp) -> ExportBundle:
    """The three sections that a plan decides."""
    target, version = "nanotron", capability_of("nanotron").version
    missing = ("the model, its tokenizer and data", "predicted times and memory")
    top = commented(header(stamp, target, version, missing))
    return ExportBundle(
        target=target,
        version=version,
        files={FILE: top + to_yaml(settings(job))},
        command=('"${NANOTRON_PATH:?a checkout}"/run_train.py', "--config-file", FILE),
        environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
        not_represented=missing,
        asked_of_user=("the sections general, model, tokenizer, data_stages and optimizer rates",),
        warnings=("checked against our reading of its schema only",),
    )


_DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def settings(job: Job) -> dict[str, Any]:
    """The sections with their values."""
    degrees, engines = job.degrees, capability_of("nanotron").schedules
    parallelism: dict[str, Any] = {
        "dp": degrees.data,
        "pp": degrees.pipeline,
        "tp": degrees.tensor,
        "pp_engine": engines.get(job.schedule, engines[DEFAULT_SCHEDULE]),
        "tp_mode": "REDUCE_SCATTER" if degrees.sequence_parallel else "ALL_REDUCE",
        "recompute_layer": job.recompute_form is RecomputeForm.ALL,
        "expert_parallel_size": degrees.expert,
        "context_parallel_size": degrees.context,
    }
    return {
        "parallelism": parallelism,
        "tokens": {
            "micro_batch_size": job.microbatch_size,
            "batch_accumulation_per_replica": job.num_microbatches,
            "sequence_length": job.sequence_length,
        },
        "model": {"dtype": _DTYPES[job.precision]},
        "optimizer": {
            "zero_stage": job.demands.zero_stage,
            "accumulate_grad_in_fp32": job.recipe.gradient_dtype in (None, "fp32"),
        },
    }
