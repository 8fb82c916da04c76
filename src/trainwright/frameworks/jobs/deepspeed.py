"""DeepSpeed's JSON and FSDP's words: what replicas shard, formats, batches; also of trainers.

Source: the configuration page of DeepSpeed's documentation, with its defaults. "auto" stands for
what the Hugging Face trainer fills in, and counts as not stated.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from trainwright.errors import Fault, InvalidInput
from trainwright.formats.atomic_file import read_bytes
from trainwright.formats.json_text import parse_json
from trainwright.frameworks.jobs import settings
from trainwright.frameworks.launch import PIPELINE_CODE
from trainwright.model.recipe import Optimizer, optimizer_named

_MICS: Final = "mics_shard_size"
_HPZ: Final = "zero_hpz_partition_size"
_DEVICES: Final = ("none", "cpu", "nvme")
# What changes neither the time of a step nor its memory, or hardly.
_HARMLESS: Final = re.compile(
    r"gradient_clipping|steps_per_print|wall_clock_breakdown|dump_state|scheduler|"
    r"zero_allow_untested_optimizer|zero_force_ds_cpu_optimizer|tensorboard|wandb|csv_monitor|"
    r"comms_logger|flops_profiler|monitor_config|prescale_gradients|"
    r"gradient_predivide_factor|disable_allgather|memory_breakdown|checkpoint|"
    r"activation_checkpointing\.(number_checkpoints|synchronize.*|profile|contiguous.*)|"
    r"curriculum_learning|data_efficiency|elasticity|aio|nebula|eigenvalue|"
    r"zero_allow_untested|load_universal_checkpoint|seq_parallel_communication_data_type|"
    r"pipeline\.(?!activation).*|sparse_gradients|_.*|seed"
)
_UNMODELLED: Final = (
    "compression_training", "sparse_attention", "progressive_layer_drop", "quantize_training",
    "zero_optimization.zero_quantized_weights", "zero_optimization.zero_quantized_gradients",
    "torch_autocast", "amp", "hybrid_engine", "autotuning", "compile",
    "data_efficiency.enabled", "curriculum_learning.enabled",
)  # fmt: skip
# The keys of sections that are read, those of today and earlier ones; any other is a slip.
# Sources: deepspeed/runtime/zero/config.py and offload_config.py, runtime/precision_config.py.
_OF_HALF: Final = (
    "enabled", "auto_cast", "loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis",
    "min_loss_scale", "consecutive_hysteresis", "fp16_master_weights_and_grads", "fp16_opt_level",
    "opt_level", "immediate_grad_update", "check_grad_overflow", "bf16_master_weights_and_grads",
    "bf16_optimizer_states",
)  # fmt: skip
_OF_OFFLOAD: Final = (
    "device", "nvme_path", "buffer_count", "buffer_size", "max_in_cpu", "pin_memory", "pipeline",
    "pipeline_read", "pipeline_write", "fast_init", "ratio", "super_offload", "cpuadam_cores_perc",
)  # fmt: skip
_SECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "": ("zero_optimization", "bf16", "fp16", "optimizer", "train_batch_size", "data_types",
         "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping",
         "communication_data_type", "tensor_parallel", "activation_checkpointing"),
    "zero_optimization": (
        "stage", "contiguous_gradients", "reduce_scatter", "reduce_bucket_size",
        "allgather_partitions", "allgather_bucket_size", "allgather_size",
        "use_multi_rank_bucket_allreduce", "overlap_comm", "load_from_fp32_weights",
        "elastic_checkpoint", "offload_param", "offload_optimizer", "sub_group_size", "cpu_offload",
        "cpu_offload_param", "cpu_offload_params", "cpu_offload_use_pin_memory",
        "prefetch_bucket_size", "stage3_prefetch_bucket_size", "param_persistence_threshold",
        "stage3_param_persistence_threshold", "model_persistence_threshold",
        "stage3_model_persistence_threshold", "max_live_parameters", "stage3_max_live_parameters",
        "max_reuse_distance", "stage3_max_reuse_distance", "gather_16bit_weights_on_model_save",
        "stage3_gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save",
        "module_granularity_threshold", "stage3_module_granularity_threshold",
        "allgather_sequential", "use_all_reduce_for_fetch_params",
        "stage3_use_all_reduce_for_fetch_params", "stage3_allgather_sequential",
        "ignore_unused_parameters", "legacy_stage1", "round_robin_gradients",
        "zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_nontrainable_weights",
        "zero_quantized_gradients", "zeropp_loco_param", "mics_shard_size", "leaf_module",
        "mics_hierarchical_params_gather", "memory_efficient_linear", "pipeline_loading_checkpoint",
        "override_module_apply", "log_trace_cache_warnings", "enable_sanity_checks",
        "save_muon_momentum_buffer_in_memory",
    ),
    "zero_optimization.offload_optimizer": _OF_OFFLOAD,
    "zero_optimization.offload_param": _OF_OFFLOAD,
    "bf16": _OF_HALF,
    "bfloat16": _OF_HALF,
    "fp16": _OF_HALF,
    "optimizer": ("type", "params", "legacy_fusion"),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """What a JSON says of the run beside its model, and notes on what it says besides."""

    zero: int
    precision: str | None
    batch: int | None
    micro_batch: int | None
    steps: int | None
    offload: tuple[str, ...]
    optimizer: str | None
    tensor: int | None
    sequence_parallel: int | None
    overlap: Mapping[str, float]
    gradient_dtype: str | None = None
    reduce_dtype: str | None = None
    notes: tuple[str, ...] = ()

    def kept_in(self, precision: str | None) -> str | None:
        """What gradients are kept in, if not fp32: as said, or in 16 bit where weights are.

        Source: deepspeed/runtime/engine.py, get_data_types.
        """
        kept = self.gradient_dtype or (reduced_in(precision) if self.zero else None)
        return None if kept == "fp32" else kept

    @property
    def replicas(self) -> int | None:
        """Replicas, where the batches say how many there are."""
        if not (self.batch and self.micro_batch and self.steps):
            return None
        return self.batch // (self.micro_batch * self.steps) or None


def sharding_of(found: settings.Settings) -> Sharding:
    """What the settings say; faults are noted in them."""
    zero = found.table("zero_optimization")
    stage = zero.count("stage", least=0, most=3) or 0
    half = found.first("bfloat16", "bf16")
    formats = {name: found.table(name).is_enabled for name in (half, "fp16")}
    on = next((name for name, is_on in formats.items() if is_on), None)
    optimizer = found.table("optimizer")
    batch = found.count_or_auto("train_batch_size")
    steps = found.count_or_auto("gradient_accumulation_steps")
    if all(found.is_absent(name) for name in ("gradient_accumulation_steps", "train_batch_size")):
        steps = 1  # DeepSpeed's own; with a batch it is what the batch leaves
    precision = "bf16" if on == "bfloat16" else on
    overlaps = zero.value("overlap_comm")
    share = 0.9 if overlaps is True or (overlaps in (None, "auto") and stage == 3) else 0.0
    return Sharding(
        zero=stage,
        precision=precision,
        batch=batch,
        micro_batch=found.count_or_auto("train_micro_batch_size_per_gpu"),
        steps=steps,
        offload=_offload(zero, stage),
        optimizer=optimizer.text("type"),
        tensor=found.table("tensor_parallel").count("autotp_size"),
        sequence_parallel=found.count("sequence_parallel_size"),
        overlap={"gradients": share, "parameters": share},
        gradient_dtype=settings.format_named(found.table("data_types").text("grad_accum_dtype")),
        reduce_dtype=reduced_in(
            precision, settings.format_named(found.text("communication_data_type"))
        ),
    )


# What a trainer's file names
# ---------------------------


def named_sharding(found: settings.Settings, beside: settings.Beside) -> Sharding | None:
    """The sharding of DeepSpeed's JSON: inside this file, beside it, or by the file's name."""
    given = found.value("deepspeed")
    if given in (None, False, ""):
        return None
    if isinstance(given, dict):
        return sharding_of(found.table("deepspeed"))
    return sharding_beside(str(given), beside)


def read_sharding(text: str, name: str) -> Sharding:
    """What the JSON of a name says; raises `InvalidInput` with every fault in it."""
    try:
        found = settings.Settings(settings.parse_yaml(text), from_words=True)
        said = sharding_of(found)
        unknown, changing = _remarks(found)
    except InvalidInput as error:
        raise InvalidInput(
            [Fault(f"{name}: {each.path}", each.problem) for each in error.faults]
        ) from None
    lost = [f"not known here and not used: {', '.join(unknown)}"] if unknown else []
    return replace(said, notes=tuple(f"{name}: {each}" for each in (*lost, *changing)))


def _remarks(found: settings.Settings) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The keys that nobody asked for, with one that is like each, and notes on what counts."""
    unknown, changing = found.remarks(harmless=_HARMLESS, unmodelled=_UNMODELLED)
    named = []
    for path in unknown:
        section = path.rpartition(".")[0]
        while section and section not in _SECTIONS:
            section = section.rpartition(".")[0]
        key = path.removeprefix(f"{section}.").partition(".")[0]
        known = _SECTIONS[section]
        if section and key in known:
            continue
        near = [] if key in known else get_close_matches(key, known, n=1, cutoff=0.75)
        named.append(f'{path} (did you mean "{near[0]}"?)' if near else path)
    return tuple(named), changing


STAGE_IN_NAME: Final = re.compile(r"(?:zero|z|stage)[-_]?(?:stage[-_]?)?([0-3])", re.IGNORECASE)
_MOVES: Final = re.compile(r"(?<!no[-_])(?<!non[-_])(?<!without[-_])offload|cpu", re.IGNORECASE)


def sharding_beside(path: str, beside: settings.Beside) -> Sharding:
    """What the JSON at a path says, which may lie beside the file; else what its name says.

    A note says so where the name alone is read. Raises `InvalidInput` where that says no stage.
    """
    name, data = path.rpartition("/")[2], None
    folder = None if Path(path).is_absolute() else beside.folder
    # As the program finds it, or right beside the file.
    for place in () if folder is None else (folder / path, folder / name):
        with contextlib.suppress(InvalidInput):  # it is not there
            data = data or read_bytes(place, name="deepspeed", most=2**20)
    if data is not None:
        return read_sharding(data.decode(errors="replace"), name)
    said = STAGE_IN_NAME.search(name)
    if said is None:
        raise InvalidInput.of("deepspeed", f"{path} is not beside this file: put it there")
    offload = moved_by_zero(int(said[1]), {"optimizer": "cpu"}) if _MOVES.search(name) else ()
    told = "ZeRO stage, and that the optimizer is on the host," if offload else "ZeRO stage"
    verb = "are" if offload else "is"
    note = f"{name} is not beside this file: its {told} {verb} read from its name"
    return Sharding(
        zero=int(said[1]), precision=None, batch=None, micro_batch=None, steps=None,
        offload=offload, optimizer=None, tensor=None, sequence_parallel=None, overlap={},
        notes=(note,),
    )  # fmt: skip


def sharding_told(found: settings.Settings) -> Sharding:
    """What a program's own arguments say of DeepSpeed's settings, as those of DeepSpeed-Chat."""
    stage = found.count("zero_stage", least=0, most=3) or 0
    moved = {"optimizer": "cpu", "param": "cpu"} if found.switch("offload") else {}
    offload = moved_by_zero(stage, moved)
    return Sharding(
        zero=stage, precision=None, batch=None,
        micro_batch=None, steps=None, offload=offload, optimizer=None, tensor=None,
        sequence_parallel=None, overlap={},
    )  # fmt: skip


ENGINE: Final = "deepspeed"
FIRST_FSDP: Final = "fsdp1"


def first_fsdp(config: settings.Settings, version: object = None) -> str | None:
    """The engine of what FSDP shards, where that is its first version, as accelerate has it.

    Its settings, or what a file says beside them, name another.
    """
    said = (version, *(config.value(name) for name in ("fsdp_version", "version")))
    return FIRST_FSDP if all(str(each) in ("None", "1") for each in said) else None


def reduced_in(precision: str | None, said: str | None = None) -> str | None:
    """What replicas sum gradients in: as said, or in 16 bit where a program computes in that.

    So do DeepSpeed (deepspeed/runtime/engine.py, communication_data_type) and FSDP as accelerate
    sets it up (accelerate/utils/dataclasses.py, set_mixed_precision). None leaves it to the format
    in which gradients are kept.
    """
    return said or (precision if precision in ("bf16", "fp16") else None)


def _offload(zero: settings.Settings, stage: int) -> tuple[str, ...]:
    tables = {name: zero.table(f"offload_{name}") for name in ("optimizer", "param")}
    moved = {name: table.one_of("device", _DEVICES, "none") for name, table in tables.items()}
    if zero.value("cpu_offload") is True:
        moved["optimizer"] = "cpu"
    return moved_by_zero(stage, moved, share=tables["optimizer"].number("ratio"))


def moved_by_zero(
    stage: int, moved: Mapping[str, str | None], *, share: float | None = None
) -> tuple[str, ...]:
    """What lies on which device, of "optimizer" (a share of it) and "param".

    From stage 2 on gradients go where the optimizer is, all of them; weights move under stage 3
    alone. Source: deepspeed/runtime/zero/stage3.py, grad_partitions_flat_buffer on self.device, and
    stage_1_and_2.py, copy_grads_in_partition.
    """
    places = {name: place for name, place in moved.items() if place not in (None, "none")}
    found = [f"param to {places['param']}"] if "param" in places else []
    if (place := places.get("optimizer")) is not None:
        part = "" if share is None else f"{share:g} of "
        found.append(f"{part}optimizer to {place}")
        found += [f"gradients to {place}"] if stage > 1 else []
    return tuple(found)


def optimizer_of(name: str | None) -> dict[str, Any]:
    """The optimizer of a name, as options: what it keeps, and in how many bits.

    Names are those of PyTorch, DeepSpeed, Composer and the Hugging Face trainer.
    """
    if name is None:
        return {}
    if "lomo" in name.lower():  # Lv et al., 2023: no states, or factored ones (AdaLomo)
        kind = Optimizer.ADAFACTOR if "ada" in name.lower() else Optimizer.SGD
        # Each weight is changed in place, without a float32 copy that stays (OpenLMLab/LOMO).
        return {
            "optimizer": str(kind),
            "update_in_backward": True,
            "main_weight_dtype": "none",
        }
    kind, dtype = optimizer_named(name) or (Optimizer.ADAM, None)
    found: dict[str, Any] = {"optimizer": str(kind)}
    if dtype is not None and kind.num_moments:
        found["moment_dtypes"] = (dtype,)
    if name == "adamw_torch":  # of transformers, beside adamw_torch_fused
        found["fused_update"] = False
    return found


def odd_optimizer(name: str | None) -> Iterator[str]:
    """A note on an optimizer that is priced as one near it."""
    word = (name or "").lower()
    for odd, near in (
        ("lamb", "Adam"), ("galore", "Adam"), ("apollo", "Adam"),
        ("shampoo", "Adam"), ("soap", "Adam"), ("4bit", "Adam in 32 bit, which keeps more"),
        ("fp8", "Adam in 32 bit, which keeps more"),
        ("paged", "its unpaged form; --offload optimizer=1 has the memory where states give way"),
    ):  # fmt: skip
        if odd in word:
            yield f"optimizer {name} is priced as {near}"
            return
    if word and "lomo" not in word and optimizer_named(word) is None:
        yield f"optimizer {name} is not known here, and priced as Adam"


def fsdp_of(found: settings.Settings) -> tuple[int | None, tuple[str, ...]]:
    """The stage that FSDP stands for, None without it, and what it moves to the host."""
    given, config = found.value("fsdp"), found.value("fsdp_config")
    found.value("fsdp_version")
    if (not given and not config) or str(given).lower() == "false":
        return None, ()
    table = found.table("fsdp_config") if isinstance(config, dict) else settings.Settings({})
    words = given if isinstance(given, list) else re.split(r"[\s,]+", str(given or "").lower())
    offload = "offload" in words or any(
        table.switch(name) for name in ("fsdp_offload_params", "offload_params")
    )
    stage = fsdp_stage(table)
    for word, sharded in (("shard_grad_op", 2), ("hybrid_shard_zero2", 2), ("no_shard", 0)):
        stage = sharded if word in words else stage
    return stage, settings.BY_FSDP if offload else ()


def fsdp_stage(config: settings.Settings) -> int:
    """What the strategy of FSDP shards, in stages of ZeRO."""
    for name in ("fsdp_reshard_after_forward", "reshard_after_forward"):
        value = config.value(name)
        if isinstance(value, bool):
            return 3 if value else 2
        if value is not None:
            said = config.word(name, _STRATEGIES, "priced as FULL_SHARD")
            return _STRATEGIES.get(said or "", 3)
    name = config.first("sharding_strategy", "fsdp_sharding_strategy")
    said = config.word(name, _STRATEGIES, "priced as FULL_SHARD")
    return _STRATEGIES.get(said or "", 3)


# What they leave sharded, as stages of ZeRO: the words, and the numbers of PyTorch's enumeration.
_STRATEGIES: Final = {
    "1": 3, "2": 2, "3": 0, "4": 3, "5": 2, "full_shard": 3, "shard_grad_op": 2, "no_shard": 0,
    "hybrid_shard": 3, "hybrid_shard_zero2": 2, "_hybrid_shard_zero2": 2, "true": 3, "false": 2,
}  # fmt: skip


def read_deepspeed(text: str, beside: settings.Beside = settings.NOTHING) -> settings.StatedRun:
    """The run that a JSON states; raises `InvalidInput`."""
    found = settings.Settings(parse_json(text.encode(), source="deepspeed", what="config"))
    said = sharding_of(found)
    if said.batch and said.micro_batch and said.steps:
        each = said.micro_batch * said.steps
        if said.batch % each:
            wanted = f"must be a multiple of micro-batch x accumulation ({each})"
            found.fault("train_batch_size", f"{wanted}, got {said.batch}")
    zero = found.table("zero_optimization")
    replicas = said.replicas
    is_cut = "pipeline" in found
    interval = found.table("pipeline").count("activation_checkpoint_interval", least=0)
    stages = stages_beside(beside) if is_cut else None
    copies, notes = _copies(zero, replicas), [*_notes(zero, said, found)]
    if (precision := said.precision) is None and (precision := _left_open(found)) is not None:
        notes.append(
            f'{precision}.enabled is "auto", for the program beside it to fill in: taken as on; '
            "give --precision for another"
        )
    unknown, changing = _remarks(found)
    size, steps = said.micro_batch, said.steps
    return settings.StatedRun(
        tp=said.tensor,
        pp=None if stages is None else len(stages),
        blocks=stages,
        is_cut=is_cut,
        cp=said.sequence_parallel,
        context_exchange=None if said.sequence_parallel is None else "all_to_all",
        dp=replicas,
        zero=said.zero,
        state_copies=copies,
        micro_batch=size,
        global_batch=said.batch,
        batch_per_replica=size * steps if size and steps else None,
        precision=precision,
        recompute=None if interval is None else ("full" if interval else "none"),
        offload=said.offload,
        overlap=said.overlap,
        gradient_dtype=said.kept_in(precision),
        reduce_dtype=reduced_in(precision, said.reduce_dtype),
        **optimizer_of(said.optimizer),
        unknown=unknown,
        notes=(*notes, *changing),
    )


_BOUNDS: Final = re.compile(r"^BOUNDS = \[(\d+(?:, \d+)+)\]", re.MULTILINE)


def stages_beside(beside: settings.Beside) -> tuple[int, ...] | None:
    """Blocks of each stage, where the module of an export that cuts the model lies beside.

    Its bounds count the embedding before all blocks, and norm and head behind them.
    """
    data = None
    if beside.folder is not None:
        with contextlib.suppress(InvalidInput):  # it is not there
            data = read_bytes(beside.folder / PIPELINE_CODE, name="deepspeed", most=2**20)
    if data is None or (said := _BOUNDS.search(data.decode(errors="replace"))) is None:
        return None
    bounds = [int(each) for each in said[1].split(", ")]
    blocks = bounds[-1] - 3
    cuts = [min(max(each - 1, 0), blocks) for each in bounds]
    return tuple(after - before for before, after in pairwise(cuts))


def _left_open(found: settings.Settings) -> str | None:
    """The format of 16 bit that "auto" leaves to a trainer, bf16 where it leaves both."""
    for name in ("bf16", "bfloat16", "fp16"):
        if found.table(name).value("enabled") == "auto":
            return "fp16" if name == "fp16" else "bf16"
    return None


def _copies(zero: settings.Settings, replicas: int | None) -> int | None:
    """Of sharded state: MiCS shards it over so many replicas, and repeats it on the others."""
    shards = zero.count(_MICS, also=-1)
    if shards is None or shards == -1 or not replicas:
        return None
    if replicas % shards:
        zero.fault(_MICS, f"must divide the {replicas} replicas, got {shards}")
    return replicas // shards


def _notes(zero: settings.Settings, said: Sharding, found: settings.Settings) -> Iterator[str]:
    if said.replicas is None and zero.count(_MICS, also=-1) not in (None, -1):
        yield f"{_MICS} is not priced: the file does not say how many replicas there are"
    if zero.count(_HPZ, least=0) not in (None, 0, 1):
        yield f"{_HPZ} is not priced: it repeats the weights alone, and no gradients or states"
    yield from odd_optimizer(said.optimizer)
    if said.precision is None and found.is_absent("bf16") and found.is_absent("fp16"):
        yield "neither bf16 nor fp16 is said: the precision is that of --precision"
