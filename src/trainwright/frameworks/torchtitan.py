"""torchtitan: a TOML file for 0.2, a Python module for 0.3, and the order of actions as CSV.

Where a schedule is not one of torchtitan's own, its CSV replaces the class of the schedule while
the name still decides where stages lie: `ZBVZeroBubble` places them in a V, any other name in a
loop. The CSV holds computations only; gradients are scaled by the loss.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from trainwright.cluster.framework_memory import EAGER
from trainwright.errors import Fault, UnsupportedFeature
from trainwright.formats.schedule_json import format_compute_only
from trainwright.frameworks.launch import commented, header
from trainwright.model import ContextExchange, LayerKind
from trainwright.plans.capability import RecomputeForm, capability_of
from trainwright.plans.job import ExportBundle, Job, StagePart, Stamp
from trainwright.plans.schedule import Placing

# Names in torchtitan, by version: modules of a stage, models and their sizes
# ---------------------------------------------------------------------------
# torchtitan does not check the names of a stage, so they are owned here; `check_names.py` of a
# bundle compares them with the model in place. Read from torchtitan 0.2.2 and 0.3.0.


@dataclass(frozen=True, slots=True, kw_only=True)
class Titan:
    """One version: what the head is called, whether degrees of its own exist, known models.

    `models` maps a catalog name to the model and its size (0.2) or the module and its function.
    """

    target: str
    head: str
    models: Mapping[str, tuple[str, str]]

    def registered(self, job: Job) -> tuple[str, str] | None:
        """The model of a job, whatever of it the run leaves out or adds; None where it has none."""
        return self.models.get(_BESIDE_NAME.split(job.model_name)[0])


# What follows a model's name where a run has fewer layers, images or frozen parts.
_BESIDE_NAME: Final = re.compile(r", | \+ ")

_QWEN, _KIMI = "qwen3_5", "kimi_k2_7"  # with an encoder, which their pipelines keep in stage 0
TITAN_02: Final = Titan(
    target="torchtitan@0.2",
    head="output",
    models=MappingProxyType(
        {
            "llama3-8b": ("llama3", "8B"),
            "llama3-70b": ("llama3", "70B"),
            "llama3-405b": ("llama3", "405B"),
            "deepseek-v2-lite": ("deepseek_v3", "16B"),
            "deepseek-v2": ("deepseek_v3", "236B"),
            "deepseek-v3": ("deepseek_v3", "671B"),
            "qwen3-32b": ("qwen3", "32B"),
            "qwen3-30b-a3b": ("qwen3", "30B-A3B"),
            "qwen3-235b-a22b": ("qwen3", "235B-A22B"),
            "gpt-oss-20b": ("gpt_oss", "20b"),
            "gpt-oss-120b": ("gpt_oss", "120b"),
        }
    ),
)
TITAN_03: Final = Titan(
    target="torchtitan@0.3",
    head="lm_head",
    models=MappingProxyType(
        {
            "llama3-8b": ("llama3", "llama3_8b"),
            "llama3-70b": ("llama3", "llama3_70b"),
            "llama3-405b": ("llama3", "llama3_405b"),
            "deepseek-v2-lite": ("deepseek_v3", "deepseek_v3_16b"),
            "deepseek-v3": ("deepseek_v3", "deepseek_v3_671b"),
            "qwen3-32b": ("qwen3", "qwen3_32b"),
            "qwen3-30b-a3b": ("qwen3", "qwen3_30b_a3b"),
            "gpt-oss-20b": ("gpt_oss", "gpt_oss_20b"),
            "gpt-oss-120b": ("gpt_oss", "gpt_oss_120b"),
            "qwen3.5-27b": (_QWEN, "qwen35_27b"),
            "qwen3.5-35b-a3b": (_QWEN, "qwen35_35b_a3b"),
            "qwen3.5-122b-a10b": (_QWEN, "qwen35_122b_a10b"),
            "qwen3.5-397b-a17b": (_QWEN, "qwen35_397b_a17b"),
            "kimi-k2.5": (_KIMI, "kimi_k2_5"),
        }
    ),
)
# How PyTorch's context parallelism calls an exchange of keys and values.
ROTATES: Final = MappingProxyType(
    {ContextExchange.RING: "alltoall", ContextExchange.ALL_GATHER: "allgather"}
)
_LAYER: Final = re.compile(r"layers\.(\d+)")


def module_names(job: Job, titan: Titan) -> list[list[str]]:
    """The modules of every stage, in pipeline order.

    Raises `UnsupportedFeature` where loss and head lie apart: the loss belongs to the last stage.
    """
    if job.splits_head:
        raise UnsupportedFeature(
            f"{titan.target} computes the loss where the head is; this plan has them apart",
            alternative="none: give head and loss to one stage",
        )
    return [list(_names(stage, titan)) for stage in job.stages]


def _names(stage: StagePart, titan: Titan) -> list[str]:
    names = ["vision_encoder"] if stage.has(LayerKind.PROJECTOR) else []
    names += ["tok_embeddings"] if stage.has(LayerKind.EMBEDDING) else []
    names += [f"layers.{block}" for block in stage.blocks]
    if stage.has(LayerKind.FINAL_NORM):
        names.append("norm")
    if stage.has(LayerKind.LM_HEAD):
        names.append(titan.head)
    return names


def faults_of_encoder(job: Job, target: str) -> Iterator[Fault]:
    """What torchtitan cannot do with the encoder of a plan.

    Models of 0.3 that have one run it whole beside the embedding, and not over context groups.
    """
    known = (TITAN_03.registered(job) or ("", ""))[0] in (_QWEN, _KIMI)
    if target != TITAN_03.target or not known:
        if len(job.stages) > 1:
            yield Fault("pipeline", "has an encoder, which no list of layers here names")
        return
    first = job.stages[0]
    if not (first.has(LayerKind.EMBEDDING) and first.has(LayerKind.PROJECTOR)):
        yield Fault("pipeline", "must keep the whole encoder and the embedding in its first stage")
    if job.degrees.context > 1:
        yield Fault("cp", f"must be 1: this model of {target} has no context parallelism")


def blocks_of(names: list[list[str]]) -> tuple[int, ...]:
    """How many blocks every stage names."""
    return tuple(sum(1 for name in stage if _LAYER.fullmatch(name)) for stage in names)


# torchtitan: a TOML file for 0.2, a Python module for 0.3, and the order of actions as CSV
# -----------------------------------------------------------------------------------------

CSV: Final = "schedule.csv"
TOML: Final = "torchtitan.toml"
MODULE: Final = "trainwright_config.py"
CHECK: Final = "check_names.py"
Tables = dict[str, dict[str, Any]]


def export_torchtitan_02(job: Job, stamp: Stamp) -> ExportBundle:
    """A TOML file in full."""
    titan, tables = TITAN_02, tables_of(job, TITAN_02) | _compile(stamp)
    name, flavor = titan.registered(job) or ("", "")
    model: dict[str, Any] = {"name": name, "flavor": flavor} if name else {}
    if job.precision == "fp8":
        model["converters"] = ["float8"]
    if model:
        tables = {"model": model, **tables}
    missing = _missing(job)
    top = commented(header(stamp, titan.target, capability_of(titan.target).version, missing))
    return ExportBundle(
        target=titan.target,
        version=capability_of(titan.target).version,
        files={TOML: top + to_toml(tables), **_beside(job, stamp, titan)},
        command=("-m", "torchtitan.train", "--job.config_file", TOML),
        not_represented=missing,
        warnings=tuple(_warnings(job)),
        asked_of_user=(
            *(() if name else (f"[model] name and flavor{_of_one(job, titan)}",)),
            "[model] hf_assets_path and [training] dataset, steps",
        ),
    )


def export_torchtitan_03(job: Job, stamp: Stamp) -> ExportBundle:
    """A module with a function that returns the configuration, changed where the plan decides."""
    titan, tables = TITAN_03, tables_of(job, TITAN_03) | _compile(stamp)
    module, function = titan.registered(job) or ("MODEL", "CONFIG")
    missing = _missing(job)
    version = capability_of(titan.target).version
    top = commented(header(stamp, titan.target, version, missing))
    lines = "".join(f"    {line}\n" for line in _assignments(tables))
    code = f"""{top}
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.models.{module}.config_registry import {function} as base


def planned():
    \"\"\"The configuration of the model, with what the plan decides.\"\"\"
    config = base()
{lines}    return config
"""
    return ExportBundle(
        target=titan.target,
        version=version,
        files={MODULE: code, **_beside(job, stamp, titan)},
        command=("-m", "torchtitan.train", "--module", "trainwright_config", "--config", "planned"),
        setup=('export PYTHONPATH="$PWD:${PYTHONPATH:-}"',),
        not_represented=missing,
        warnings=tuple(_warnings(job)),
        asked_of_user=(
            *(
                ()
                if module != "MODEL"
                else (f"in {MODULE}: module and function{_of_one(job, titan)}",)
            ),
            *_asked_dispatch(job),
            "assets of the tokenizer, dataset and steps",
        ),
    )


def _of_one(job: Job, titan: Titan) -> str:
    """Of what model the user must say where the registry holds none of this name."""
    if job.model.is_recurrent:
        return f" of a model that you register: {titan.target} has none with these recurrences"
    return f": {titan.target}'s name of this model"


def _asked_dispatch(job: Job) -> Iterator[str]:
    if job.recipe.dispatches_once and job.degrees.expert > 1:
        yield f'in {MODULE}: the model\'s own function with moe_comm_backend="deepep"'


def tables_of(job: Job, titan: Titan) -> Tables:
    """Settings by table; the names are the same in both versions where both have them."""
    degrees, sharding, shards = job.degrees, job.demands.zero_stage, job.state_shards
    parallelism: dict[str, Any] = {
        "data_parallel_replicate_degree": degrees.data // shards,
        "data_parallel_shard_degree": shards,
        "tensor_parallel_degree": degrees.tensor,
        "context_parallel_degree": degrees.context,
        "expert_parallel_degree": degrees.expert,
        "pipeline_parallel_degree": degrees.pipeline,
    }
    if sharding:
        parallelism["fsdp_reshard_after_forward"] = "never" if sharding == 2 else "always"
    if titan is TITAN_02 and job.model.experts is not None and degrees.expert > 1:
        parallelism["expert_tensor_parallel_degree"] = degrees.expert_shards
        if job.recipe.dispatches_once:
            parallelism["expert_parallel_comm_backend"] = "deepep"
    if titan is TITAN_02 and degrees.context > 1:
        parallelism["context_parallel_rotate_method"] = ROTATES[job.recipe.context_exchange]
    if titan is TITAN_03 and degrees.tensor > 1:
        parallelism["enable_sequence_parallel"] = degrees.sequence_parallel
    training: dict[str, Any] = {
        "seq_len": job.sequence_length,
        "global_batch_size": job.global_batch,
        "local_batch_size": job.microbatch_size,
    }
    if job.precision == "fp32":
        training["mixed_precision_param"] = "float32"
    if degrees.pipeline > 1:
        training["local_batch_size"] = job.microbatch_size * job.num_microbatches
        parallelism |= _pipeline(job, titan)
    if titan is TITAN_03 and (degrees.pipeline > 1 or degrees.expert > 1):
        training["disable_cuda_graphs"] = True
    return {
        "training": training,
        "parallelism": parallelism,
        "activation_checkpoint": _recompute(job),
    }


def _compile(stamp: Stamp) -> Tables:
    """Blocks are compiled, as plans for it expect: torchtitan's own default is not to."""
    return {"compile": {"enable": not (stamp.software or "").endswith(EAGER)}}


def _pipeline(job: Job, titan: Titan) -> dict[str, Any]:
    found: dict[str, Any] = {"pipeline_parallel_schedule": schedule_name(job)}
    if _needs_csv(job):
        found["pipeline_parallel_schedule_csv"] = CSV
    found["pipeline_parallel_microbatch_size"] = job.microbatch_size
    found["module_fqns_per_model_part"] = module_names(job, titan)
    return found


def schedule_name(job: Job) -> str:
    """torchtitan's name of the schedule, or that of one with the same placement."""
    own = capability_of("torchtitan").schedules
    if job.schedule in own:
        return own[job.schedule]
    if job.shape.placing is Placing.V:
        return "ZBVZeroBubble"
    return "Interleaved1F1B" if job.degrees.virtual_stages > 1 else "1F1B"


def _needs_csv(job: Job) -> bool:
    return job.schedule not in capability_of("torchtitan").schedules


def _recompute(job: Job) -> dict[str, Any]:
    match job.recompute_form:
        case RecomputeForm.NONE:
            return {"mode": "none"}
        case RecomputeForm.MODULES:
            return {"mode": "selective", "selective_ac_option": "op"}
        case _:
            return {"mode": "full"}


def _beside(job: Job, stamp: Stamp, titan: Titan) -> dict[str, str]:
    """The schedule, where it has no name, with its side file; names to be checked."""
    if job.degrees.pipeline == 1:
        return {}
    found = {CHECK: _check_names(job, stamp, titan)}
    if not _needs_csv(job):
        return found
    assert job.orders is not None, "a schedule without a name is written in full"
    meta = {
        "written_by": f"trainwright {stamp.trainwright_version}",
        "plan_sha256": stamp.plan_sha256,
        "target": titan.target,
        "version": capability_of(titan.target).version,
        "schedule": job.schedule,
        "not_represented": ["durations", "memory"],
    }
    csv = format_compute_only(job.orders.schedule)
    return found | {CSV: csv, "schedule.meta.json": json.dumps(meta, indent=2) + "\n"}


def _check_names(job: Job, stamp: Stamp, titan: Titan) -> str:
    names = sorted({name for stage in module_names(job, titan) for name in stage})
    top = commented(header(stamp, titan.target, capability_of(titan.target).version, ()))
    return f'''{top}"""Compare the modules that the plan names with those of a model."""

NAMES = {json.dumps(names)}


def check_names(model):
    """Raise where a module of the plan is not in the model, or one of the model in no stage."""
    found = {{name for name, _ in model.named_modules()}}
    top = {{name for name, _ in model.named_children()}} - {{"layers"}}
    wanted = top | {{name for name in found if name.count(".") == 1 and name.startswith("layers.")}}
    missing, left = sorted(set(NAMES) - found), sorted(wanted - set(NAMES))
    if missing or left:
        raise ValueError(f"not in the model: {{missing}}; in no stage: {{left}}")
'''


def _missing(job: Job) -> tuple[str, ...]:
    found = ["predicted times and memory"]
    if job.recompute_form is RecomputeForm.MODULES:
        found.append("which operators are recomputed: torchtitan decides by its own policy")
    if job.recipe.gradient_dtype or {*job.recipe.moment_dtypes} != {"fp32"}:
        found.append("number formats of gradients and optimizer state")
    return tuple(found)


def _warnings(job: Job) -> Iterator[str]:
    if job.recompute_form is RecomputeForm.MODULES:
        yield "selective recomputation by operator saves and costs other amounts than planned"
    if job.recipe.dispatches_once and job.degrees.expert > 1:
        yield (
            "tokens travel once to a node by DeepEP, which 0.2 has for DeepSeek-V3 and Llama 4 and "
            "0.3 where the model is made with moe_comm_backend"
        )


def _assignments(tables: Tables) -> Iterator[str]:
    """Attributes of the configuration object; recomputation is an object of its own."""
    for table, values in tables.items():
        if table == "activation_checkpoint":
            made = {"none": "None", "full": "FullAC.Config()", "selective": "SelectiveAC.Config()"}
            yield f"config.activation_checkpoint = {made[values['mode']]}"
            continue
        for key, value in values.items():
            yield f"config.{table}.{key} = {value!r}"


def to_toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Tables of plain values; lists of names go one to a line."""
    return "\n".join(_toml_lines(tables)) + "\n"


def _toml_lines(tables: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for table, values in tables.items():
        yield f"\n[{table}]"
        for key, value in values.items():
            if isinstance(value, list):
                yield f"{key} = ["
                yield from (f"  {json.dumps(each)}," for each in value)
                yield "]"
            else:
                yield f"{key} = {json.dumps(value)}"
