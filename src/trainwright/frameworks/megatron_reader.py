"""An existing Megatron-LM job: a launch script or a file of arguments, as a stated run.

Degrees that are absent are Megatron's defaults. Flags that change neither time nor memory (data,
rates, checkpoints, logging) are passed over; any other flag this reader does not know is reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final

from trainwright.errors import InvalidInput
from trainwright.frameworks.launch_script import Flags, read_flags
from trainwright.frameworks.megatron import (
    MODEL_FLAGS,
    dispatcher_of,
    mapping_of,
    parse_layout,
    read_model,
)
from trainwright.frameworks.stated_run import StatedRun
from trainwright.plans.capability import capability_of
from trainwright.plans.plan import usual_schedule

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

_RUN_FLAGS_TEXT: Final = """
tensor-model-parallel-size pipeline-model-parallel-size context-parallel-size
expert-model-parallel-size expert-tensor-parallel-size sequence-parallel
pipeline-model-parallel-layout num-virtual-stages-per-pipeline-rank
num-layers-per-virtual-pipeline-stage microbatch-group-size-per-virtual-pipeline-stage
micro-batch-size global-batch-size seq-length use-distributed-optimizer use-megatron-fsdp
data-parallel-sharding-strategy recompute-granularity recompute-method recompute-num-layers
recompute-modules recompute-activations bf16 fp16 fp8-format optimizer sgd-momentum
overlap-grad-reduce overlap-param-gather make-vocab-size-divisible-by cross-entropy-loss-fusion
attention-backend use-flash-attn grad-reduce-in-bf16 accumulate-allreduce-grads-in-fp32
ckpt-format decoder-first-pipeline-num-layers decoder-last-pipeline-num-layers nnodes
nproc-per-node nproc_per_node world-size use-precision-aware-optimizer main-params-dtype
exp-avg-dtype exp-avg-sq-dtype moe-expert-capacity-factor moe-pad-expert-input-to-capacity
moe-flex-dispatcher-backend moe-enable-deepep
use-tp-pp-dp-mapping num-distributed-optimizer-instances
"""
RUN_FLAGS: Final = frozenset(_RUN_FLAGS_TEXT.split())
# What changes neither the time of a step nor its memory; a prefix stands for a family of flags.
_HARMLESS: Final = (
    *("lr", "min-lr", "weight-decay", "clip-grad", "adam-", "muon-", "seed", "init-method-std"),
    *("train-", "valid-", "test-", "data-", "split", "eval-", "log-", "tensorboard", "wandb"),
    *("save", "load", "ckpt-", "no-load", "no-save", "exit-", "tokenizer-", "vocab-file", "merge-"),
    *("mock-data", "num-workers", "distributed-", "master-", "node-rank", "node_rank", "rdzv-"),
    *("dataloader-type", "timing-", "profile", "manual-gc", "no-mmap", "no-create-attention"),
    *(
        "use-mcore-models",
        "transformer-impl",
        "moe-router-",
        "moe-aux-loss",
        "moe-z-loss",
        "async-",
    ),
    *(
        "rotary-",
        "use-rotary",
        "initial-loss-scale",
        "loss-scale",
        "norm-epsilon",
        "use-checkpoint",
    ),
    *("override-opt", "cross-entropy-fusion-impl", "attention-softmax", "mtp-loss", "dist-ckpt"),
    *("num-dataset", "reset-", "eod-", "create-attention", "check-for", "no-check", "finetune"),
)
_PRECISIONS: Final = ("bf16", "fp16")
_LAUNCHED: Final = ("nnodes", "nproc-per-node", "nproc_per_node", "world-size")


def read_megatron(text: str, folder: Path | None = None) -> StatedRun:
    """The run that a script or a file of arguments states; `folder` is where the script lies."""
    flags = read_flags(text, folder)
    model, notes = read_model(flags)
    devices = _devices(flags)
    return StatedRun(
        **_degrees(flags),
        **_pipeline(flags, None if model is None else model.num_layers),
        **_recompute(flags),
        **_numbers(flags),
        micro_batch=flags.positive("micro-batch-size"),
        global_batch=flags.positive("global-batch-size"),
        sequence=flags.positive("seq-length"),
        vocabulary_multiple=flags.positive("make-vocab-size-divisible-by"),
        fused_cross_entropy="cross-entropy-loss-fusion" in flags.values or None,
        flash_attention=False if flags.one("attention-backend") == "unfused" else None,
        zero=_zero(flags),
        state_copies=flags.positive("num-distributed-optimizer-instances"),
        mapping=mapping_of("use-tp-pp-dp-mapping" in flags.values),
        capacity_factor=flags.number("moe-expert-capacity-factor"),
        token_dispatcher=dispatcher_of(flags.one("moe-token-dispatcher-type")),
        model=model,
        num_devices=devices,
        unknown=tuple(f"--{name}" for name in flags.values if not _is_known(name)),
        notes=tuple(chain(notes, flags.notes, _notes(flags))),
    )


def _is_known(name: str) -> bool:
    return name in RUN_FLAGS or name in MODEL_FLAGS or name.startswith(_HARMLESS)


def _devices(flags: Flags) -> int | None:
    if any(flags.is_unset(name) for name in _LAUNCHED):
        return None
    nodes = flags.positive("nnodes")
    each = flags.positive("nproc-per-node") or flags.positive("nproc_per_node")
    if each is None:
        return flags.positive("world-size") or (None if nodes else _devices_of_slurm(flags))
    return each * (nodes or 1)


def _devices_of_slurm(flags: Flags) -> int | None:
    """Devices where srun starts the job: a task to each, or one to a node that starts the others.

    None where the tasks of a node are neither one nor as many as its devices.
    """
    names = ("NNODES", "NTASKS", "NTASKS_PER_NODE", "GPUS_PER_NODE")
    nodes, tasks, each, devices = (_slurm_size(flags, name) for name in names)
    if devices is None or each == devices or (nodes and tasks == nodes * devices):
        return tasks
    if nodes is None or tasks not in (None, nodes):
        return None
    return nodes * devices


def _slurm_size(flags: Flags, name: str) -> int | None:
    """A variable that Slurm sets, None where the script computes it."""
    size = flags.variables.get(f"SLURM_{name}", "")
    return int(size) if size.isdecimal() else None


def _degrees(flags: Flags) -> dict[str, Any]:
    tensor = flags.positive("tensor-model-parallel-size") or 1
    return {
        "tp": tensor,
        "pp": flags.positive("pipeline-model-parallel-size") or 1,
        "cp": flags.positive("context-parallel-size") or 1,
        "ep": flags.positive("expert-model-parallel-size") or 1,
        "etp": flags.positive("expert-tensor-parallel-size"),
        "sequence_parallel": "sequence-parallel" in flags.values and tensor > 1,
    }


def _pipeline(flags: Flags, num_layers: int | None) -> dict[str, Any]:
    ranks = flags.positive("pipeline-model-parallel-size") or 1
    layout = flags.one("pipeline-model-parallel-layout")
    if layout is not None:
        stages = parse_layout(layout)
        if len(stages) % ranks:
            problem = f"must have a multiple of {ranks} stages, got {len(stages)}"
            raise InvalidInput.of("--pipeline-model-parallel-layout", problem)
        chunks = len(stages) // ranks
        blocks: tuple[int, ...] | None = tuple(stage.count("t") for stage in stages)
    else:
        chunks = _chunks(flags, ranks, num_layers)
        blocks = _uneven_ends(flags, ranks, num_layers) if chunks == 1 else None
    return {"virtual_stages": chunks, "blocks": blocks, "schedule": usual_schedule(chunks)}


def _chunks(flags: Flags, ranks: int, num_layers: int | None) -> int:
    chunks = flags.positive("num-virtual-stages-per-pipeline-rank")
    if chunks is not None:
        return chunks
    each = flags.positive("num-layers-per-virtual-pipeline-stage")
    if each is None:
        return 1
    if num_layers is None or num_layers % (ranks * each):
        problem = f"must divide the layers of a rank, got {each}"
        raise InvalidInput.of("--num-layers-per-virtual-pipeline-stage", problem)
    return num_layers // (ranks * each)


def _uneven_ends(flags: Flags, ranks: int, num_layers: int | None) -> tuple[int, ...] | None:
    first = flags.count("decoder-first-pipeline-num-layers")
    last = flags.count("decoder-last-pipeline-num-layers")
    if num_layers is None or (first is None and last is None):
        return None
    middle = ranks - (first is not None) - (last is not None)
    left = num_layers - (first or 0) - (last or 0)
    if middle == 0 or left % middle:
        problem = f"must leave a multiple of {middle} stages, got {left} layers"
        raise InvalidInput.of("--decoder-first-pipeline-num-layers", problem)
    ends = [[] if count is None else [count] for count in (first, last)]
    return (*ends[0], *[left // middle] * middle, *ends[1])


def _recompute(flags: Flags) -> dict[str, Any]:
    granularity = flags.one("recompute-granularity")
    if granularity is None and "recompute-activations" in flags.values:
        granularity = "selective"
    if granularity is None:
        return {"recompute": "none"}
    if granularity == "selective":
        given = flags.values.get("recompute-modules") or ("core_attn",)
        return {"recompute": "selective", "recompute_modules": _our_modules(given)}
    if flags.one("recompute-method") == "block":
        return {"recompute": f"full:{flags.positive('recompute-num-layers') or 1}"}
    return {"recompute": "full"}


def _our_modules(given: tuple[str, ...]) -> tuple[str, ...] | None:
    names = capability_of("megatron").modules or {}
    ours = {theirs: own for own, theirs in names.items()} | {"moe_act": "mlp_activation"}
    return tuple(dict.fromkeys(ours[name] for name in given if name in ours)) or None


def _numbers(flags: Flags) -> dict[str, Any]:
    optimizer = flags.one("optimizer") or "adam"
    if optimizer == "sgd" and (flags.number("sgd-momentum") or 0.0) > 0:
        optimizer = "momentum"
    precision = next((name for name in _PRECISIONS if name in flags.values), "fp32")
    found: dict[str, Any] = {
        "precision": "fp8" if "fp8-format" in flags.values else precision,
        "optimizer": "muon" if optimizer == "dist_muon" else optimizer,
        "gradient_dtype": "bf16" if "grad-reduce-in-bf16" in flags.values else None,
    }
    if "use-precision-aware-optimizer" in flags.values:
        moments = [flags.one(name) or "fp32" for name in ("exp-avg-dtype", "exp-avg-sq-dtype")]
        found["moment_dtypes"] = tuple(moments)
        found["main_weight_dtype"] = flags.one("main-params-dtype") or "fp32"
    return found


def _zero(flags: Flags) -> int:
    strategy = flags.one("data-parallel-sharding-strategy") or "no_shard"
    if "use-megatron-fsdp" in flags.values:
        stages = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
        if strategy not in stages:
            problem = f'must be one of {", ".join(stages)}, got "{strategy}"'
            raise InvalidInput.of("--data-parallel-sharding-strategy", problem)
        return stages[strategy]
    return int("use-distributed-optimizer" in flags.values)


def _dispatcher(flags: Flags) -> str | None:
    """How tokens travel, None where none do; allgather is Megatron's default."""
    if (flags.positive("expert-model-parallel-size") or 1) == 1:
        return None
    return flags.one("moe-token-dispatcher-type") or "allgather"


def _notes(flags: Flags) -> Iterator[str]:
    """Settings that are read and priced as something near."""
    for name in filter(flags.is_unset, _LAUNCHED):
        yield (
            f"--{name} {flags.one(name)} is set outside of the script; the devices are those of "
            "--nodes, or of one node"
        )
    known = {*(capability_of("megatron").modules or {}).values()}
    for name in flags.values.get("recompute-modules", ()):
        if name not in known:
            yield f"--recompute-modules {name} is not priced: it repeats a whole module"
    if _dispatcher(flags) == "allgather":
        yield "--moe-token-dispatcher-type allgather is priced as alltoall"
    group = flags.positive("microbatch-group-size-per-virtual-pipeline-stage")
    ranks = flags.positive("pipeline-model-parallel-size") or 1
    if group is not None and group != ranks:
        yield f"a microbatch group of {group} is priced as {ranks}, the pipeline's size"
