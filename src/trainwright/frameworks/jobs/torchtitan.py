"""Jobs of torchtitan, TOML or a Python module of its registry, and `stages.json` of an export.

Versions 0.1 to 0.3 are read: until 0.1 degrees stood under `training` and `experimental`; from 0.3
jobs are functions of a module, whose values are read from its syntax tree. Nothing is imported.
Defaults are those of `torchtitan/config`.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

from trainwright.errors import InvalidInput, one_of
from trainwright.formats import catalog
from trainwright.frameworks.jobs import script, settings
from trainwright.frameworks.jobs.deepspeed import odd_optimizer, optimizer_of
from trainwright.frameworks.pytorch import KIND
from trainwright.frameworks.torchtitan import ROTATES, TITAN_02, TITAN_03, blocks_of
from trainwright.model import TransformerConfig
from trainwright.model.config import BESIDE_BLOCKS, Activation, Experts, LatentAttention, Norm
from trainwright.model.operator import usual_modules
from trainwright.plans.plan import DEFAULT_SCHEDULE, usual_schedule

_HARMLESS: Final = re.compile(
    r"(?:job|profiling|profiler|metrics|lr_scheduler|checkpoint|comm|experimental|validation|"
    r"validator|fault_tolerance|memory_estimation|loss|dataloader|hf_assets_path|tokenizer|debug|"
    r"quantize|float8|mx|override|ft|encoder|eval)(?:\..*)?|"
    r"(?:steps|dataset|dataset_path|max_norm|gc_freq|gc_debug|seed|deterministic|warmup_steps|"
    r"dataset_subset|disable_cuda_graphs|print_args|print_config|file_sink_level|stderr_sink_level|mixed_precision_param|"
    r"tokenizer_path|hf_assets_path|disable_loss_parallel|spmd_backend|context_parallel_(?:load|ptrr).*|"
    r"pipeline_parallel_(?:first|last)_stage_less_layers|data_parallel_.*|"
    r"per_op_sac_force_recompute_mm_shapes_by_fqns|early_stop|visualize_memory_budget_pareto|"
    r"lr|eps|beta1|beta2|betas|weight_decay|implementation|fused|foreach|name|print_after_.*|"
    r"norm_type|tensor_parallel_.*|_class|moe_force_load_balance|lora_.*|components|backend|"
    r"enable_symm_mem.*|enable_fsdp_symm_mem|preserve_rng_state|determinism_check|debug)"
)
_UNMODELLED: Final = (
    "enable_async_tensor_parallel",
    "optimizer.early_step_in_backward", "early_step_in_backward", "memory_budget",
    "enable_fsdp_float8_all_gather",
    "pipeline_parallel_layers_per_stage", "pipeline_parallel_split_points",
    "enable_compiled_autograd", "primus_turbo",
)  # fmt: skip
_DISPATCHERS: Final = {
    "standard": "all_to_all",
    "deepep": "hierarchical",
    "hybridep": "hierarchical",
}
# What PyTorch's context parallelism exchanges, and in 0.3 always gathers.
_EXCHANGES: Final = {theirs: str(ours) for ours, theirs in ROTATES.items()}
_FAMILIES: Final = {
    "1F1B": "1f1b",
    "GPipe": "gpipe",
    "Interleaved1F1B": "interleaved",
    "LoopedBFS": "breadth-first",
    "InterleavedZeroBubble": "zb-1p",
    "ZBVZeroBubble": "zb-v",
    "DualPipeV": "dualpipe-v",
}
_LOOPED: Final = ("interleaved", "breadth-first", "zb-1p", "zb-v", "dualpipe-v")
_MODES: Final = ("none", "selective", "full", "memory_budget")
_LOCAL_BATCH: Final = 8  # torchtitan's own, where the file does not say
_REPEATED: Final = (
    "the pipeline fills and drains in each accumulation step, which is priced once: the step takes "
    "longer than this"
)


def read_torchtitan(text: str, beside: settings.Beside = settings.NOTHING) -> settings.StatedRun:
    """The run that a file states; raises `InvalidInput` where it is neither TOML nor such a module.

    Every field that is used is checked, and all faults are raised together. A schedule from a CSV
    file is taken for the named one beside it, and a note says so.
    """
    if (logged := logged_tables(text)) is not None:
        run = read_tables(settings.Settings(logged), names_unknown=False)
        return replace(run, num_devices=_mesh_size(text))
    try:
        is_json = text.startswith("{")  # with words of a command line in place of some
        tables: Mapping[str, Any] = json.loads(text) if is_json else settings.parse_toml(text)
    except (ValueError, RecursionError) as error:
        if "def " not in text:
            raise InvalidInput.of("torchtitan", f"is not a TOML file: {error}") from None
        tables = _tables_of_module(text, beside)
    found = settings.Settings(tables)
    for name, value in tables.items():
        is_table = isinstance(value, dict) or name in ("model_name", "loss", "hf_assets_path")
        if not is_table and value is not None:
            found.table(name)
    return read_tables(found)


# The configuration in a log, and the mesh that says on how many devices it ran
# -----------------------------------------------------------------------------

_LOGGED: Final = re.compile(r"Running with (?:args|configs): (?=\{)")
_MESH: Final = re.compile(r"Building \d+-D device mesh with \[[^\]]*\], \[([0-9, ]+)\]")
_RANK: Final = re.compile(r"^\[\w+\]:", re.MULTILINE)
_LONGEST: Final = 2**18  # characters of a configuration


def logged_tables(text: str) -> dict[str, Any] | None:
    """The tables that a log of torchtitan begins with (`print_config`); None of other texts."""
    found = _LOGGED.search(text)
    if found is None:
        return None
    body = _RANK.sub("", text[found.end() : found.end() + _LONGEST])
    try:
        tables = json.JSONDecoder().raw_decode(body)[0]  # until 0.2 it was printed as Python does
    except ValueError:
        try:
            tables = ast.literal_eval(body.partition("\n")[0].strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
    is_whole = isinstance(tables, dict) and isinstance(tables.get("training"), dict)
    return tables if is_whole else None


def _mesh_size(text: str) -> int | None:
    found = _MESH.search(text)
    return None if found is None else math.prod(int(each) for each in found[1].split(","))


def read_tables(found: settings.Settings, *, names_unknown: bool = True) -> settings.StatedRun:
    """The run that the tables state; raises `InvalidInput` with every fault."""
    training, parallel = found.table("training"), found.table("parallelism")
    experimental, checkpoint = found.table("experimental"), found.table("activation_checkpoint")
    places = (parallel, training, experimental)  # until 0.1 degrees stood elsewhere
    named = _model(found)
    ranks, tensor = _degree(places, "pipeline"), _degree(places, "tensor")
    context = _degree(places, "context")
    parts, chunks = _parts(parallel, ranks)
    replicas = _degree(places, "data_parallel_replicate_degree")
    shards = _first(places, "data_parallel_shard_degree", also=-1) or -1
    data = None if shards == -1 else replicas * shards
    zero = _zero(parallel, has_pipeline=ranks > 1, is_whole=shards == 1 and context == 1)
    mode, every = _recompute(checkpoint)
    sequence = training.count("seq_len") or training.count("max_context_length") or 2048
    batch, micro_batch, accumulated = _batches(training, parallel, places, ranks, data, sequence)
    schedule = _schedule(places, ranks, chunks)
    if ranks > 1 and chunks == 1 and not parts and schedule in _LOOPED:
        chunks = 2  # as many as such a schedule needs, where stages are not listed
    rotates = parallel.one_of("context_parallel_rotate_method", _EXCHANGES, "allgather")
    backend = parallel.one_of("expert_parallel_comm_backend", ("", *_DISPATCHERS), "")
    sequence_parallel = parallel.switch("enable_sequence_parallel", default=True)
    half = training.one_of("mixed_precision_param", ("bfloat16", "float32"), "bfloat16")
    whole = training.one_of("dtype", ("bfloat16", "float32", ""), "float32")
    reduced = training.one_of("mixed_precision_reduce", ("bfloat16", "float32"), "float32")
    experts = _degree(places, "expert")
    expert_tensor = _degree(places, "expert_tensor")
    precision, converted = _converters(found, half)
    optimizer = _optimizer(found.table("optimizer"))
    run = {
        "tp": tensor,
        "pp": ranks,
        "cp": context,
        "ep": experts,
        "etp": expert_tensor if experts > 1 else None,
        "dp": data,
        "zero": zero,
        "state_copies": replicas if zero else None,
        "micro_batch": micro_batch,
        "global_batch": batch,
        "batch_per_replica": _local_batch(training, parallel, ranks, sequence),
        "sequence": sequence,
        "virtual_stages": chunks,
        "schedule": schedule,
        "blocks": blocks_of(parts) if parts else None,
        "sequence_parallel": tensor > 1 and sequence_parallel,
        "token_dispatcher": _DISPATCHERS.get(backend),
        "context_exchange": _EXCHANGES.get(rotates),
        "recompute": mode if mode in ("none", "selective", "full") else None,
        "recompute_modules": _recomputed(named[0]) if (mode, every) == ("selective", "") else None,
        "precision": precision,
        "offload": settings.BY_FSDP if training.switch("enable_cpu_offload") else (),
        **optimizer_of(optimizer),
        **(_PURE if whole == "bfloat16" else {}),
        "reduce_dtype": None if reduced == whole else settings.format_named(reduced),
        "compiled": _compiles(found.table("compile"), training),
    }
    notes = (
        *named[1],
        *_chunked(found.value("loss")),
        *accumulated,
        *converted,
        *odd_optimizer(optimizer),
        *_notes(places, mode, every),
    )
    unknown, changing = found.remarks(
        harmless=_HARMLESS, unmodelled=_UNMODELLED, names_unknown=names_unknown
    )
    own, name = named[0] if isinstance(named[0], TransformerConfig) else None, named[0]
    return settings.StatedRun(
        **run,
        model=own,
        model_name=name if isinstance(name, str) else None,
        unknown=unknown,
        notes=(*notes, *changing),
    )


def _compiles(tables: settings.Settings, training: settings.Settings) -> bool:
    """Whether blocks are compiled, and not the loss alone; nothing is where the file does not say.

    Source: torchtitan/config, `CompileConfig`; before 0.1 a field of `[training]`.
    """
    parts = tables.texts("components")
    return (tables.switch("enable") and "model" in (parts or ("model",))) or training.switch(
        "compile"
    )


# Everything in 16 bits: weights, gradients and moments, without a second copy of the weights.
_PURE: Final[dict[str, Any]] = {
    "gradient_dtype": "bf16",
    "main_weight_dtype": "none",
    "moment_dtypes": ("bf16",),
}


def _model(found: settings.Settings) -> tuple[str | TransformerConfig | None, tuple[str, ...]]:
    """The catalog's name of the model, or its sizes where it is torchtitan's own."""
    model = found.table("model")
    name, flavor = model.text("name"), model.text("flavor")
    given = found.value("model_name")
    for key in ("hf_assets_path", "tokenizer_path", "print_after_conversion", "norm_type"):
        model.value(key)
    if isinstance(given, str):
        return given, ()
    if name is None or flavor is None:
        return None, ()
    known = {sizes: own for own, sizes in TITAN_02.models.items()}
    plain = re.sub(r"_(?:flex|varlen|irope)(?:_attn)?$|_flex_attn$|_varlen_attn$", "", flavor)
    if (name, plain) in known:
        return known[name, plain], ()
    if (name, plain) in _OWN:
        return _own(name, **_OWN[name, plain]), ()
    if (same := settings.catalog_name(f"{name}-{plain}")) is not None:
        return same, ()
    return None, (f"the model is not described: {name} {flavor} is not known here",)


# Models that only torchtitan has, by name and flavor: `torchtitan/models/*/__init__.py`.
_OWN: Final[Mapping[tuple[str, str], Mapping[str, Any]]] = {
    ("llama3", "debugmodel"): {"ffn_size": 768},
    ("llama3", "32B"): {
        "num_layers": 32, "hidden_size": 8192, "num_heads": 64, "num_kv_heads": 8,
        "ffn_size": 32_768, "vocabulary_size": 128_256,
    },
    ("llama3", "coreweave"): {
        "num_layers": 60, "hidden_size": 6144, "num_heads": 48, "num_kv_heads": 8,
        "ffn_size": 21_504, "vocabulary_size": 128_256,
    },
    ("llama4", "debugmodel"): {"ffn_size": 768, "experts": (8, 1, 512, 512, 2)},
    ("llama4", "17bx16e"): {
        "num_layers": 48, "hidden_size": 5120, "num_heads": 40, "num_kv_heads": 8,
        "ffn_size": 16384, "vocabulary_size": 202_048, "experts": (16, 1, 8192, 8192, 1),
    },
    ("llama4", "17bx128e"): {
        "num_layers": 48, "hidden_size": 5120, "num_heads": 40, "num_kv_heads": 8,
        "ffn_size": 16384, "vocabulary_size": 202_048, "experts": (128, 1, 8192, 8192, 2),
    },
    ("qwen3", "debugmodel"): {
        "num_layers": 8, "num_kv_heads": 8, "head_size": 128, "ffn_size": 3072, "tied": True,
    },
    ("qwen3", "debugmodel_moe"): {
        "num_layers": 8, "num_kv_heads": 8, "head_size": 128, "ffn_size": 3072,
        "experts": (64, 8, 768, 0, 1),
    },
    ("qwen3", "0.6B"): {
        "num_layers": 28, "hidden_size": 1024, "num_kv_heads": 8, "head_size": 128,
        "ffn_size": 3072, "vocabulary_size": 151_936, "tied": True,
    },
    ("qwen3", "1.7B"): {
        "num_layers": 28, "hidden_size": 2048, "num_kv_heads": 8, "head_size": 128,
        "ffn_size": 6144, "vocabulary_size": 151_936, "tied": True,
    },
    ("deepseek_v3", "debugmodel"): {
        "ffn_size": 1024, "experts": (8, 3, 256, 512, 1), "dense": 1,
        "latent": LatentAttention(
            key_value_rank=512, rotary_head_size=64, plain_head_size=128, value_head_size=128
        ),
    },
}  # fmt: skip


def _own(
    name: str,
    *,
    ffn_size: int,
    num_layers: int = 6,
    hidden_size: int = 256,
    num_heads: int = 16,
    num_kv_heads: int = 16,
    head_size: int | None = None,
    vocabulary_size: int = 2048,
    tied: bool = False,
    experts: tuple[int, int, int, int, int] | None = None,
    dense: int = 0,
    latent: LatentAttention | None = None,
) -> TransformerConfig:
    """Experts are how many, of a token, their width, that of shared ones, one layer in so many."""
    routed = None
    if experts is not None:
        count, chosen, width, shared, step = experts
        plain = tuple(layer for layer in range(num_layers) if (layer + 1) % step)
        routed = Experts(
            num_experts=count,
            experts_per_token=chosen,
            ffn_size=width,
            shared_ffn_size=shared,
            num_dense_layers=dense,
            dense_layers=plain,
        )
    size = head_size or hidden_size // num_heads
    return TransformerConfig(
        family=name,
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=size if latent is None else latent.head_size,
        ffn_size=ffn_size,
        vocabulary_size=vocabulary_size,
        norm=Norm.RMS,
        activation=Activation.SILU,
        gated=True,
        query_key_norm=name == "qwen3",
        tied_embeddings=tied,
        rotary=True,
        experts=routed,
        latent=latent,
    )


# Degrees, batches, formats
# -------------------------


def _first(
    places: tuple[settings.Settings, ...], name: str, *, also: int | None = None
) -> int | None:
    for place in places:
        if (count := place.count(name, also=also)) is not None:
            return count
    return None


def _degree(places: tuple[settings.Settings, ...], name: str) -> int:
    whole = name if name.endswith("_degree") else f"{name}_parallel_degree"
    return _first(places, whole) or 1


def _parts(parallel: settings.Settings, ranks: int) -> tuple[list[list[str]], int]:
    """Modules of every stage, none where the file lists none, and stages per rank."""
    parts = parallel.names("module_fqns_per_model_part")
    if len(parts) % ranks:
        problem = f"must have a multiple of {ranks} stages, got {len(parts)}"
        parallel.fault("module_fqns_per_model_part", problem)
    return parts, max(len(parts) // ranks, 1)


def _local_batch(
    training: settings.Settings, parallel: settings.Settings, ranks: int, sequence: int
) -> int:
    """Sequences of a replica in one accumulation step."""
    tokens = training.count("num_tokens_per_microbatch_per_dp_rank")
    pipelined = parallel.count("num_pp_microbatches") or 1
    local = training.count(training.first("batch_size", "local_batch_size"))
    if tokens is not None:
        return max(1, tokens // sequence) * (pipelined if ranks > 1 else 1)
    return local or _LOCAL_BATCH


def _batches(
    training: settings.Settings,
    parallel: settings.Settings,
    places: tuple[settings.Settings, ...],
    ranks: int,
    data: int | None,
    sequence: int,
) -> tuple[int | None, int, tuple[str, ...]]:
    """Global batch where it is stated, microbatch, and what is to be said of accumulation.

    A pipeline takes `local_batch_size` in microbatches; where that times the replicas is less than
    the global batch, whole pipelines follow each other, each with a fill and a drain of its own.
    """
    batch = training.count("global_batch_size", also=-1)
    step_tokens = training.count("num_tokens_per_train_step", also=-1)
    if step_tokens not in (None, -1):
        batch = max(1, (step_tokens or 0) // sequence)
    local = _local_batch(training, parallel, ranks, sequence)
    size = _first(places, "pipeline_parallel_microbatch_size") or 1
    if training.count("num_tokens_per_microbatch_per_dp_rank") is not None:
        size = local // (parallel.count("num_pp_microbatches") or 1) or 1
    wanted = _first(places, "pipeline_parallel_microbatches")  # until 0.1: how many, not how large
    if wanted is not None and local % wanted == 0:
        size = local // wanted
    batch = None if batch == -1 else batch
    if ranks == 1:
        return batch, local, ()
    if local % size:
        problem = f"must be a multiple of pipeline_parallel_microbatch_size {size}, got {local}"
        training.fault("local_batch_size", problem)
    if batch is None or batch == local * (data or 0):
        return batch, size, ()
    if data is None:
        enough = -(-batch // local)
        note = (
            f"on fewer than {enough} replicas local_batch_size {local} is less than the "
            f"part of the batch that each has, and {_REPEATED}"
        )
        return batch, size, (note,)
    steps, left = divmod(batch, local * data)
    if left:
        problem = f"must be a multiple of local_batch_size x replicas = {local * data}, got {batch}"
        training.fault("global_batch_size", problem)
    note = (
        f"the batch takes {steps} accumulation steps of local_batch_size {local} x {data} "
        f"replicas; {_REPEATED}; local_batch_size = {batch // data} makes one"
    )
    return batch, size, (note,)


def _zero(parallel: settings.Settings, *, has_pipeline: bool, is_whole: bool) -> int:
    policy = parallel.one_of(
        "fsdp_reshard_after_forward", ("default", "always", "never"), "default"
    )
    if is_whole:
        return 0
    return 2 if policy == "never" or (policy == "default" and has_pipeline) else 3


def _schedule(places: tuple[settings.Settings, ...], ranks: int, chunks: int) -> str:
    """PyTorch looks schedules up without regard to upper and lower case."""
    holder = next((p for p in places if "pipeline_parallel_schedule" in p), places[0])
    name = holder.text("pipeline_parallel_schedule") or "1F1B"
    known = {theirs.lower(): own for theirs, own in _FAMILIES.items()}
    if name.lower() not in known:
        problem = one_of(_FAMILIES, name)
        holder.fault("pipeline_parallel_schedule", problem)
    if ranks == 1:
        return usual_schedule(chunks)
    return known.get(name.lower(), DEFAULT_SCHEDULE)


def _recompute(checkpoint: settings.Settings) -> tuple[str, str]:
    """What is recomputed, and which layers "selective" leaves as they are."""
    mode = checkpoint.one_of("mode", _MODES, "selective")
    every = checkpoint.value("selective_ac_option")
    return mode, str(every) if every not in (None, "op") else ""


def _recomputed(model: str | TransformerConfig | None) -> tuple[str, ...] | None:
    """What recomputation by operator repeats of blocks with experts: all of these, too.

    Outputs of their grouped products are not among those that it saves
    (torchtitan/distributed/activation_checkpoint.py), while those of exchanges are, which is left
    out.
    """
    known = settings.catalog_name(model) if isinstance(model, str) else None
    config = catalog.model(known).config if known else model
    has_experts = isinstance(config, TransformerConfig) and config.experts is not None
    return (*usual_modules(fused_attention=True), "moe") if has_experts else None


_EIGHT: Final = re.compile(r"float8|mxfp8|\bmx\b|fp8", re.IGNORECASE)
_FOUR: Final = re.compile(r"nvfp4|mxfp4|fp4", re.IGNORECASE)


def _converters(found: settings.Settings, half: str) -> tuple[str | None, tuple[str, ...]]:
    """The number format that converters of the model's products give, and notes on it."""
    model = found.table("model")
    value = model.value("converters")
    names = [str(each) for each in value] if isinstance(value, (list, tuple)) else []
    if isinstance(value, str):
        names = value.split(",")
    old = found.table("float8").switch("enable_float8_linear")
    notes = []
    has_recipe = found.table("quantize").table("linear").value("mx") is not None
    if has_recipe and any("mx" in name for name in names):
        notes.append("the recipe of quantize.linear.mx is priced as fp8 with one scale a tensor")
    precision = "bf16" if half == "bfloat16" else "fp32"
    for name in names:
        if _FOUR.search(name):
            notes.append(f"converter {name} is priced as fp8")
            precision = "fp8"
        elif _EIGHT.search(name):
            precision = "fp8"
        elif name.strip():
            notes.append(f"converter {name}: changes the answer, not modelled")
    return ("fp8" if old else precision), tuple(notes)


def _optimizer(found: settings.Settings) -> str | None:
    """The name of the optimizer; where groups of parameters have their own, Muon before others."""
    groups = found.value("param_groups")
    found.value("optimizer_factory_kwargs_by_name")
    names = [
        str(group["optimizer_name"])
        for group in (groups if isinstance(groups, list) else ())
        if isinstance(group, dict) and "optimizer_name" in group
    ]
    if any("muon" in name.lower() for name in names):
        return "muon"
    return found.text("name") or next(iter(names), None)


def _chunked(loss: object) -> Iterator[str]:
    if isinstance(loss, dict) and loss.get("_class") == "ChunkedLossWrapper":
        parts = loss.get("num_chunks", 8)
        yield f"the loss has logits of 1 of {parts} parts at once: not modelled; give --loss-chunk"


def _notes(places: tuple[settings.Settings, ...], mode: str, every: str) -> Iterator[str]:
    holder = next((p for p in places if "pipeline_parallel_schedule_csv" in p), places[0])
    if holder.text("pipeline_parallel_schedule_csv"):
        name = holder.text("pipeline_parallel_schedule") or "1F1B"
        yield f"the order of actions is in a CSV file; it is priced as {name}"
    if mode == "selective":
        which = f" in one layer of every {every}" if every.isdecimal() else ""
        yield (
            f"torchtitan decides which operators to recompute{which}; the default ones here are "
            "priced, in every layer"
        )
    if mode not in ("none", "selective", "full"):
        yield f"activation_checkpoint.mode {mode} is not priced"


# Modules of Python, read from their syntax tree
# ----------------------------------------------
# A job is a function that returns `Trainer.Config(…)`, or one of another job with values set anew.
# What is not written out (a computed name) stays a `_Computed`, which is refused where it is used.

_CHECKPOINTS: Final = {
    "SelectiveAC": "selective",
    "FullAC": "full",
    "MemoryBudgetAC": "memory_budget",
}
_MOST_DEPTH: Final = 20


@dataclass(frozen=True, slots=True)
class _Computed:
    text: str

    def __str__(self) -> str:
        return self.text


def _tables_of_module(text: str, beside: settings.Beside) -> dict[str, Any]:
    tree = settings.python_module(text, "torchtitan")
    module = _Module(tree)
    found = module.job(beside.function)
    made = found.get("activation_checkpoint")
    if isinstance(made, dict):
        kind = str(made.get("_class", ""))
        found["activation_checkpoint"] = {**made, "mode": _CHECKPOINTS.get(kind, kind)}
    elif "activation_checkpoint" in found:
        mode = "none" if made is None else str(made)
        found["activation_checkpoint"] = {"mode": mode}
    elif module.is_registry:
        found["activation_checkpoint"] = {"mode": "none"}  # since 0.3 it is off unless it is said
    spec = found.pop("model_spec", None)
    if isinstance(spec, dict) and "flavor" in spec:
        found["model"] = {"name": spec["name"], "flavor": spec["flavor"], **_converted(spec)}
    return {
        key: {} if isinstance(value, _Computed) else value
        for key, value in found.items()
        if key != "_class"
    }


def _converted(spec: Mapping[str, Any]) -> dict[str, Any]:
    given = spec.get("converters")
    if not isinstance(given, list):
        return {}
    return {"converters": [e.get("_class", "") if isinstance(e, dict) else str(e) for e in given]}


class _Module:
    """The jobs that a module defines."""

    def __init__(self, tree: ast.Module) -> None:
        self._functions = {
            each.name: each for each in tree.body if isinstance(each, ast.FunctionDef)
        }
        self._imported = {
            alias.asname or alias.name: alias.name
            for each in ast.walk(tree)
            if isinstance(each, ast.ImportFrom) and (each.module or "").endswith("config_registry")
            for alias in each.names
        }
        self.is_registry = not self._imported

    def job(self, name: str | None) -> dict[str, Any]:
        """The tables of a function; raises `InvalidInput` listing all where none is named."""
        made = self._call(settings.chosen_function(self._functions, name), 0)
        if not isinstance(made, dict):
            raise InvalidInput.of("function", f"{name} returns no configuration that is known here")
        return made

    def _call(self, name: str, depth: int) -> Any:
        if depth > _MOST_DEPTH:
            raise InvalidInput.of("function", f"{name} calls itself")
        names: dict[str, Any] = {}
        for line in self._functions[name].body:
            if isinstance(line, ast.Assign) and len(line.targets) == 1:
                self._assign(line.targets[0], self._value(line.value, names, name, depth), names)
            elif isinstance(line, ast.AnnAssign) and line.value is not None:
                self._assign(line.target, self._value(line.value, names, name, depth), names)
            elif isinstance(line, ast.Return) and line.value is not None:
                return self._value(line.value, names, name, depth)
        return None

    def _assign(self, target: ast.expr, value: Any, names: dict[str, Any]) -> None:
        path: list[str] = []
        while isinstance(target, ast.Attribute):
            path.insert(0, target.attr)
            target = target.value
        if not isinstance(target, ast.Name):
            return
        if not path:
            names[target.id] = value
            return
        inside = names.setdefault(target.id, {})
        for part in path[:-1]:
            if not isinstance(inside, dict):
                return
            inside = inside.setdefault(part, {})
        if isinstance(inside, dict):
            inside[path[-1]] = value

    def _value(self, node: ast.expr, names: dict[str, Any], function: str, depth: int) -> Any:
        if isinstance(node, ast.Name) and node.id in names:
            return names[node.id]
        if isinstance(node, (ast.List, ast.Tuple)):
            return [self._value(each, names, function, depth) for each in node.elts]
        if isinstance(node, ast.Call):
            return self._made(node, names, function, depth)
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Add, ast.Sub)):
            left, right = (
                self._value(each, names, function, depth) for each in (node.left, node.right)
            )
            if type(left) is int and type(right) is int and max(abs(left), abs(right)) < 2**31:
                if isinstance(node.op, ast.Mult):
                    return left * right
                return left + right if isinstance(node.op, ast.Add) else left - right
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            return _Computed(ast.unparse(node))

    def _made(self, node: ast.Call, names: dict[str, Any], function: str, depth: int) -> Any:
        """What a call makes: another job, a model of the registry, or an object's fields."""
        called = ast.unparse(node.func)
        if called in self._functions:
            return self._call(called, depth + 1)
        if called in self._imported:
            known = {theirs: own for own, (_, theirs) in TITAN_03.models.items()}
            original = self._imported[called]
            return {"model_name": known.get(original) or settings.catalog_name(original)}
        given = {
            each.arg: self._value(each.value, names, function, depth)
            for each in node.keywords
            if each.arg
        }
        if called == "model_registry" and node.args:
            flavor = self._value(node.args[0], names, function, depth)
            return {"name": _family(function, str(flavor)), "flavor": flavor, **given}
        parts = called.split(".")
        kind = parts[-2] if parts[-1] == "Config" and len(parts) > 1 else parts[-1]
        if parts[-1] != "Config" and not kind.endswith("Config"):
            return _Computed(ast.unparse(node)[:80])
        return {"_class": kind, **given}


def _family(function: str, flavor: str) -> str:
    """`llama3_8b` makes a llama3 of the flavor 8B."""
    plain = re.sub(r"[-.]", "_", flavor.lower())
    found = re.match(rf"(.+?)_{re.escape(plain)}(?:_|$)", function)
    return found[1] if found else re.match(r"[a-z]+(?:_v\d+|_oss)?\d*", function)[0]  # type: ignore[index]


# `stages.json`, on which an export to PyTorch starts its own program
# -------------------------------------------------------------------


_PARTS: Final = ("none", "offload", "selective", "full")


def read_stages(text: str, beside: settings.Beside = settings.NOTHING) -> settings.StatedRun:
    """The run that a `stages.json` states; raises `InvalidInput` with every fault."""
    found = settings.Settings(settings.parse_settings(text, variables=beside.variables))
    if found.one_of("kind", (KIND,), "") != KIND and found.is_absent("kind"):
        found.fault("kind", f'must be "{KIND}"')
    mesh = found.table("mesh")
    axes = {name: mesh.count(name) or 1 for name in ("tensor", "pipeline", "data", "context")}
    stages = tuple(_stages(found))
    size, steps = found.count("microbatch_size"), found.count("num_microbatches")
    if not stages or len(stages) % axes["pipeline"]:
        found.fault("stages", f"must be a multiple of {axes['pipeline']}, got {len(stages)}")
    again = [block for each in stages for block, mode in each if mode == "full"]
    modes = [[mode for _, mode in each] for each in stages]
    run = settings.StatedRun(
        tp=axes["tensor"],
        pp=axes["pipeline"],
        dp=axes["data"],
        cp=axes["context"],
        ep=found.count("expert"),
        etp=found.count("expert_tensor"),
        zero=found.count("zero_stage", least=0, most=3),
        state_copies=found.count("state_copies"),
        sequence_parallel=found.switch("sequence_parallel"),
        schedule=found.text("schedule"),
        virtual_stages=len(stages) // axes["pipeline"],
        blocks=tuple(map(len, stages)),
        recompute=_mode(modes, beside=set(_modes_beside(found))),
        recompute_modules=found.texts("recompute_modules") or None,
        recomputed_blocks=tuple(again),
        micro_batch=size,
        global_batch=None if size is None or steps is None else size * steps * axes["data"],
        sequence=found.count("sequence_length"),
        precision=found.text("precision"),
        optimizer=found.text("optimizer"),
    )
    found.check()
    return run


def _layers_of(found: settings.Settings) -> Iterator[list[dict[str, Any]]]:
    """The tables of the layers of each stage."""
    listed = found.value("stages")
    for stage in listed if isinstance(listed, list) else ():
        layers = stage.get("layers") if isinstance(stage, dict) else None
        yield [e for e in layers if isinstance(e, dict)] if isinstance(layers, list) else []


def _stages(found: settings.Settings) -> Iterator[list[tuple[int, str]]]:
    """The blocks of each stage, with what of them is recomputed."""
    for layers in _layers_of(found):
        blocks = []
        for layer in layers:
            if layer.get("kind") != "block":
                continue
            block, mode = layer.get("block"), layer.get("recompute")
            if type(block) is not int or mode not in _PARTS:
                found.fault("stages", "must hold blocks with their number and what is recomputed")
                return
            blocks.append((block, str(mode)))
        yield blocks


def _modes_beside(found: settings.Settings) -> Iterator[object]:
    """What is recomputed of layers that blocks of the text pass on to, or take from."""
    for layer in chain.from_iterable(_layers_of(found)):
        if layer.get("kind") in BESIDE_BLOCKS:
            yield layer.get("recompute")


def _mode(modes: list[list[str]], *, beside: Collection[object]) -> str | None:
    """All blocks alike, or the first ones of every stage; others are told one by one."""
    every = {mode for each in modes for mode in each} or {"none"}
    if len(every) == 1 and ("offload" not in every or set(beside) <= every):
        return every.pop()
    for mode in ("full", "offload"):
        first = max(each.count(mode) for each in modes)
        is_first = all(
            each == [mode] * min(first, len(each)) + ["none"] * (len(each) - first)
            for each in modes
        )
        if first and is_first and (mode == "full" or set(beside) <= {"none"}):
            return f"{mode}:{first}"
    return None


# flame: torchtitan's settings and a model of flash-linear-attention
# ------------------------------------------------------------------


FLAME: Final = re.compile(r"\bflame\.train\b|--model\.config[ =]\S+\.json")


def read_flame(text: str, beside: settings.Beside = settings.NOTHING) -> settings.StatedRun:
    """A script for flame, whose batch of a device is cut by accumulation into no more."""
    launch, notes = script.read_launch(text, beside), list[str]()
    flags, tables = script.flags_of(launch.words), dict[str, Any]()
    if isinstance(path := flags.get("job.config_file"), str):
        inside = script.text_beside(path, launch, beside)
        if inside is None:
            notes.append(f"{path} is not beside this file, and what it says is not used")
        else:
            tables = settings.parse_toml(inside)
    for name, value in flags.items():
        table, _, key = name.partition(".")
        if key and isinstance(inner := tables.setdefault(table, {}), dict):
            inner[key] = script.as_yaml(value)
    model, training = tables.pop("model", {}), dict(tables.get("training", {}))
    steps = training.pop("gradient_accumulation_steps", 1)
    steps = steps if type(steps) is int and steps > 0 else 1
    size = training.pop("batch_size", None)
    training |= {"local_batch_size": size} if type(size) is int else {}
    degree = training.pop("tensor_parallel_degree", None)
    parallel = {"tensor_parallel_degree": degree} if degree else {}
    for key in ("data_parallel_replicate_degree", "data_parallel_shard_degree"):
        if key in training:
            parallel[key] = training.pop(key)
    for key in _OF_FLAME:
        training.pop(key, None)
    kept: dict[str, Any] = {name: tables[name] for name in _OF_TITAN if name in tables}
    kept |= {"training": training, "parallelism": {**parallel, **tables.get("parallelism", {})}}
    run = read_tables(settings.Settings(kept, from_words=True))
    notes += [each for each in run.notes if settings.UNDESCRIBED not in each]
    config = model.get("config")
    described = script.config_beside(
        config if isinstance(config, str) else None, beside, notes, launch
    )
    if config is None:
        notes.insert(0, f"{settings.UNDESCRIBED}: no --model.config")
    each = run.batch_per_replica or run.micro_batch or 1
    devices = launch.devices
    return replace(
        run,
        model=described,
        model_name=None,
        program="torchtitan",
        global_batch=None,
        batch_per_replica=each * steps,
        num_devices=devices.total or devices.visible,
        devices_per_node=devices.per_node,
        notes=(*launch.notes, *devices.notes, *notes),
    )


_OF_TITAN: Final = ("optimizer", "activation_checkpoint", "float8", "compile")
_OF_FLAME: Final = (
    "skip_nan_inf", "dataset_name", "dataset_split", "streaming", "num_workers", "prefetch_factor",
    "max_norm", "varlen", "context_len", "data_dir", "data_files", "disable_loss_parallel",
    "data_probs", "persistent_workers", "pin_memory", "snapshot_every_n_steps",
)  # fmt: skip


# Lingua: FSDP2 and a compiled model, described in the file
# ---------------------------------------------------------
# Sources: lingua/distributed.py, lingua/transformer.py, apps/main/train.py.

_LINGUA_HARMLESS: Final = re.compile(
    r"(?:name|dump_dir|steps|seed|probe_freq|gc_collect_freq|optim|env|checkpoint|profiling|logging|"
    r"async_eval_gpus|eval)(?:\..*)?|data\.(?!seq_len|batch_size)\w+(?:\..*)?|"
    r"distributed\.(?:matmul_allow_tf32|allow_bf16\w*|detect_anomaly|compile_cache\w*|spawn_method)|"
    r"model\.(?:rope_theta|norm_eps|init_\w+|seed|max_seqlen)(?:\..*)?"
)
_LINGUA_UNMODELLED: Final = ("float8_recipe", "sliding_window")
_OF_OTHER_MIXERS: Final = ("state_dim", "conv_size", "lru_dim_multiplier", "n_groups")


def read_lingua(text: str, beside: settings.Beside = settings.NOTHING) -> settings.StatedRun:
    """A file of Meta Lingua's Llama; models of its other applications are asked for."""
    found = settings.Settings(
        settings.parse_settings(text, variables=beside.variables), from_words=True
    )
    mesh, model, data = (found.table(name) for name in ("distributed", "model", "data"))
    sharded = mesh.one_of("fsdp_type", ("full_shard", "no_shard"), "no_shard") == "full_shard"
    copies, shards = (mesh.count(f"dp_{part}") for part in ("replicate", "shard"))
    dtype = settings.format_named(mesh.text("model_dtype")) or "bf16"
    again = mesh.switch("selective_activation_checkpointing")
    tensor = mesh.count("tp_size") or 1
    size, sequence = data.count("batch_size") or 1, data.count("seq_len")
    steps = found.count("grad_acc_steps") or 1
    notes = list[str]()
    if sharded and (shards or 1) > 1 and copies is None:
        notes.append(f"dp_shard {shards}: priced as sharded over all; give --state-copies")
    hidden, layers = model.count("dim"), model.count("n_layers")
    heads, groups, head = (model.count(name) for name in ("n_heads", "n_kv_heads", "head_dim"))
    factor, multiple = model.number("ffn_dim_multiplier"), model.count("multiple_of") or 256
    tied, own = model.switch("weight_tying"), model.count("vocab_size", also=-1)
    vocabulary = beside.vocabulary or (None if own == -1 else own)
    described = None
    if any(name in model for name in _OF_OTHER_MIXERS) or not (hidden and layers):
        notes.insert(
            0, f"{settings.UNDESCRIBED}: its blocks are not those of Llama; give the model"
        )
    elif vocabulary is None:
        notes.insert(
            0, f"{settings.UNDESCRIBED}: its tokenizer decides the vocabulary; give --vocab-size"
        )
    else:
        heads = heads or hidden // (head or 64)
        wide = int((1 if factor is None else factor) * int(8 * hidden / 3))
        described = _own(
            name="lingua",
            num_layers=layers,
            hidden_size=hidden,
            num_heads=heads,
            num_kv_heads=groups or heads,
            head_size=head,
            ffn_size=multiple * -(-wide // multiple),
            vocabulary_size=vocabulary,
            tied=tied,
        )
    compiled = mesh.switch("compile")
    unknown, changing = found.remarks(harmless=_LINGUA_HARMLESS, unmodelled=_LINGUA_UNMODELLED)
    return settings.StatedRun(
        tp=tensor,
        pp=1,
        cp=1,
        zero=3 if sharded else 0,
        state_copies=copies if sharded and (copies or 1) > 1 and (shards or 1) > 1 else None,
        program="torchtitan",
        compiled=compiled,
        micro_batch=size,
        batch_per_replica=size * steps,
        sequence=sequence,
        recompute="selective" if again else "none",
        precision=dtype if sharded or dtype == "fp32" else f"{dtype}_autocast",
        reduce_dtype="fp32" if sharded else None,
        optimizer="adam",
        model=described,
        unknown=unknown,
        notes=(*notes, *changing),
    )
