"""Megatron-Bridge (and NeMo 2): a function that sets the plan's values on a recipe.

Code is the main form, because the letters of a layout mean something else in `key=value` overrides;
those are beside it, quoted, for scripts. A recipe may set its own layout and number of chunks, so
the function clears what the plan leaves out and is to be applied last. Keys are the fields of
Megatron-Core's configurations under `model`, `train`, `ddp` and `optimizer`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from trainwright.frameworks.launch import commented, header
from trainwright.frameworks.megatron import (
    decided_of_model,
    environment_of,
    hybrid_pattern,
    layout_of,
    megatron_fields,
    unsaid,
)
from trainwright.frameworks.megatron_rules import main_weights_of
from trainwright.plans.capability import capability_of
from trainwright.plans.job import ExportBundle

if TYPE_CHECKING:
    from trainwright.plans.job import Job, Stamp

FILE: Final = "trainwright_recipe.py"
OVERRIDES: Final = "overrides.txt"
# The fields of `model` that a plan decides; a recipe describes the model itself.
DECIDED: Final = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "pipeline_model_parallel_layout",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "sequence_parallel",
    "moe_token_dispatcher_type",
    "moe_flex_dispatcher_backend",
    "moe_router_dtype",
    "moe_expert_capacity_factor",
    "moe_pad_expert_input_to_capacity",
    "microbatch_group_size_per_vp_stage",
    "recompute_granularity",
    "recompute_method",
    "recompute_num_layers",
    "recompute_modules",
    "cross_entropy_loss_fusion",
    "activation_func_fp8_input_store",
    "cp_comm_type",
    "hierarchical_context_parallel_sizes",
    "cuda_graph_impl",
    "cuda_graph_scope",
)
# Those that only mean something where experts are, or that older versions lack.
_LEFT_WHERE_ABSENT: Final = frozenset(
    {
        *("moe_token_dispatcher_type", "moe_flex_dispatcher_backend", "moe_router_dtype"),
        *("moe_expert_capacity_factor", "moe_pad_expert_input_to_capacity"),
        *("activation_func_fp8_input_store", "cp_comm_type"),
        *("hierarchical_context_parallel_sizes", "cuda_graph_impl", "cuda_graph_scope"),
    }
)
_FALSE_WHERE_ABSENT: Final = frozenset({"cross_entropy_loss_fusion", "sequence_parallel"})


def export_megatron_bridge(job: Job, stamp: Stamp) -> ExportBundle:
    """The function, the overrides, and what runs them."""
    missing = (*unsaid(job), "the model itself: choose the recipe that describes it")
    if {*job.recipe.moment_dtypes, main_weights_of(job)} != {"fp32"}:
        missing += ("number formats of the optimizer's state",)
    target, version = "megatron-bridge", capability_of("megatron-bridge").version
    top = commented(header(stamp, target, version, missing))
    values = settings(job)
    body = "".join(f"    recipe.{key} = {value!r}\n" for key, value in values.items())
    code = f'{top}\n\ndef apply(recipe):\n    """Set what the plan decides; call it last."""\n'
    overrides = "".join(f"'{key}={_override(value)}'\n" for key, value in values.items())
    return ExportBundle(
        target=target,
        version=version,
        files={FILE: f"{code}{body}    return recipe\n", OVERRIDES: top + overrides},
        command=('"${TRAIN_SCRIPT:?a script that calls apply() on its recipe}"',),
        settings=FILE,
        environment=environment_of(job),
        not_represented=missing,
        asked_of_user=(
            f"TRAIN_SCRIPT: a script that builds a recipe, calls apply() of {FILE} on it last, "
            "and trains",
        ),
    )


# What `mixed_precision` calls a format; without it weights are in fp32.
_MIXED: Final = {
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "fp8": "bf16_with_fp8_delayed_scaling_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
    "fp32": None,
}


def settings(job: Job) -> dict[str, Any]:
    """Values by key, those that the plan leaves out cleared."""
    fields = megatron_fields(job)
    found: dict[str, Any] = {}
    for name in DECIDED:
        if name in _LEFT_WHERE_ABSENT and name not in fields.model:
            continue
        default = False if name in _FALSE_WHERE_ABSENT else None
        found[f"model.{name}"] = fields.model.get(name, default)
    if found["model.expert_tensor_parallel_size"] is None:
        found["model.expert_tensor_parallel_size"] = job.degrees.tensor
    if job.model.is_recurrent:
        found["model.hybrid_layer_pattern"] = hybrid_pattern(job)
        found["model.num_layers"] = fields.model["num_layers"]
    if layout_of(job) is None and job.degrees.pipeline == 1:
        found["model.virtual_pipeline_model_parallel_size"] = None
    found |= {f"model.{name}": value for name, value in decided_of_model(job, fields).items()}
    found |= {f"ddp.{name}": value for name, value in fields.ddp.items()}
    if "data_parallel_sharding_strategy" in fields.ddp:
        found["ddp.use_megatron_fsdp"] = True
        found["checkpoint.ckpt_format"] = "fsdp_dtensor"
    for name in _OF_OPTIMIZER:
        if name in fields.optimizer:
            found[f"optimizer.{name}"] = fields.optimizer[name]
    found["mixed_precision"] = _MIXED[job.precision]
    if "use_tp_pp_dp_mapping" in fields.run:
        found["dist.use_tp_pp_dp_mapping"] = True
    if "cuda_graph_impl" in fields.model:
        found |= {"model.use_te_rng_tracker": True, "rng.te_rng_tracker": True}
    if "check_for_nan_in_loss_and_grad" in fields.run:
        found["rerun_state_machine.check_for_nan_in_loss"] = False
        found["ddp.check_for_nan_in_grad"] = False
    found["train.micro_batch_size"] = job.microbatch_size
    found["train.global_batch_size"] = job.global_batch
    found["model.seq_length"] = job.sequence_length
    return found


_OF_OPTIMIZER: Final = (
    "optimizer",
    "use_distributed_optimizer",
    "sgd_momentum",
    "optimizer_cpu_offload",
    "optimizer_offload_fraction",
)


def _override(value: Any) -> str:
    """A value as the right side of an override; the text of a layout keeps its letters."""
    if value is None or isinstance(value, (bool, list)):
        return json.dumps(value)
    return str(value)
