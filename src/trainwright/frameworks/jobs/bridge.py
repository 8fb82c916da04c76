"""Recipes of Megatron-Bridge and NeMo: what a file changes of a recipe that lies elsewhere.

The same fields of Megatron-Core stand as YAML overrides, as `model.field=value` behind a script's
`--recipe`, as short options of the performance scripts, as assignments in a recipe's function, and
flat in Primus. What none of them says is decided by the recipe: it is named, not guessed. Defaults
are those that all recipes share (`megatron/bridge/recipes/common.py`): a distributed optimizer,
bf16, gradients and parameters overlapped. Files of NeMo RL say all themselves.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

from trainwright.errors import InvalidInput
from trainwright.frameworks.jobs import script, settings
from trainwright.frameworks.jobs.fine_tuning import engine_degrees
from trainwright.frameworks.jobs.megatron import layers_named, read_arguments, settings_of
from trainwright.frameworks.shell import Value

Values = dict[str, Any]
_SHARED: Final[Mapping[str, Any]] = {
    "use_distributed_optimizer": True,
    "overlap_grad_reduce": True,
    "overlap_param_gather": True,
    "sequence_parallel": False,
}
# Megatron's own values, which are taken where the file does not say what its recipe has.
_ASSUMED: Final = {
    "context_parallel_size": 1, "expert_model_parallel_size": 1,
    "virtual_pipeline_model_parallel_size": 1, "recompute_granularity": None,
}  # fmt: skip
_OF_FORMATS: Final = frozenset(
    {"mixed_precision", "precision_config", "compute_dtype", "precision", "bf16", "fp16", "fp8"}
)
# What a recipe decides where the file does not, by the option that replaces it.
_OF_THE_RECIPE: Final = {
    "tensor_model_parallel_size": "--tp",
    "pipeline_model_parallel_size": "--pp",
    "micro_batch_size": "--micro-batch",
    "global_batch_size": "--global-batch",
    "seq_length": "--sequence",
}
_EXPERTS: Final = {"expert_model_parallel_size": "--ep"}
# Other names of the same: of NeMo's functions, and short ones of the performance scripts.
_ALSO: Final = {
    "tensor_parallelism": "tensor_model_parallel_size",
    "pipeline_parallelism": "pipeline_model_parallel_size",
    "virtual_pipeline_parallelism": "virtual_pipeline_model_parallel_size",
    "context_parallelism": "context_parallel_size",
    "expert_parallelism": "expert_model_parallel_size",
    "sequence_parallelism": "sequence_parallel",
    "encoder_seq_length": "seq_length",
    "max_seq_length": "seq_length",
    "tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size", "ep": "expert_model_parallel_size",
    "et": "expert_tensor_parallel_size", "vp": "virtual_pipeline_model_parallel_size",
    "mb": "micro_batch_size", "gb": "global_batch_size", "sl": "seq_length",
    "rl": "recompute_num_layers", "ol": "cpu_offloading_num_layers",
    "activation_offload_layers": "cpu_offloading_num_layers",
    "moe_a2a_overlap": "overlap_moe_expert_parallel_comm", "deterministic": "deterministic_mode",
    "optimizer_type": "optimizer",
    # of NeMo 1
    "activations_checkpoint_granularity": "recompute_granularity",
    "activations_checkpoint_num_layers": "recompute_num_layers",
    "ub_tp_comm_overlap": "tp_comm_overlap", "fp8_params": "fp8_param_gather",
}  # fmt: skip
# What NeMo 1 sets of every model, without an effect on time or memory.
_NEMO_HARMLESS: Final = (
    "mcore_gpt", "megatron_amp_O2", "use_scaled_init_method", "pre_process", "post_process",
    "transformer_block_type", "normalize_attention_scores", "attention_type", "headscale",
    "native_amp_init_scale", "native_amp_growth_interval", "grad_allreduce_chunk_size_mb",
    "grad_div_ar_fusion", "apex_transformer_log_level", "gradient_as_bucket_view",
    "transformer_engine", "gc_interval", "scale_positional_embedding", "tp_only_amax_red",
    "reduce_amax", "get_attention_mask_from_fusion", "use_emha", "precision",
    "fsdp_grad_reduce_dtype", "ffn_dropout",
)  # fmt: skip
# Optimizers of NeMo 1, and whether they shard what they keep.
_OPTIMIZERS: Final = {
    "mcore_distributed_optim": True, "distributed_fused_adam": True, "fused_adam": False,
    "adamw": False, "adam": False, "sgd": False, "megatron_fused_adam": False,
}  # fmt: skip
_NEMO_FSDP: Final = {
    "full": "optim_grads_params",
    "grad": "optim_grads",
    "hybrid": "optim_grads_params",
}
_TABLES: Final = ("model", "train", "ddp", "dist", "optimizer", "dataset", "data", "comm_overlap")
_TARGETS: Final = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj"),
    "linear_proj": ("o_proj",),
    "linear_fc1": ("gate_proj", "up_proj"),
    "linear_fc2": ("down_proj",),
}
_LORA_RANK: Final = 32
_LAUNCHERS: Final = re.compile(
    r"run_recipe\.py|setup_experiment\.py|megatron\.bridge|nemo_run|Megatron-Bridge|"
    r"^def \w+\((\w+)\):\n(?:[^\n]*\n){0,3}    \1\.model\.\w+ = ",
    re.MULTILINE,
)
_OVERRIDE: Final = re.compile(r"['\"]?[a-z][\w.]*=.*")
_OWN_OVERRIDE: Final = re.compile(r"['\"]?model\.tensor_model_parallel_size=")
_RECIPE: Final = re.compile(
    r"^(?P<model>.+?)_(?:pretrain|sft|peft|lora|dora|finetune|8k|16k|64k|128k|recipe)(?:_.*)?$"
)


def is_bridge(text: str) -> bool:
    """Whether a script or a module is one of Megatron-Bridge, or of NeMo's recipes."""
    if _LAUNCHERS.search(text) is not None or ("nemo.collections" in text and "def " in text):
        return True
    return _is_overrides(text)


def _is_overrides(text: str) -> bool:
    """Whether overrides of a recipe stand there, one a line, and nothing else."""
    lines = [line for each in text.splitlines() if (line := each.strip()) and line[0] != "#"]
    return any(map(_OWN_OVERRIDE.match, lines)) and all(map(_OVERRIDE.fullmatch, lines))


# What NeMo trains with PyTorch's own sharding: models of transformers, not of Megatron.
_OF_TRANSFORMERS: Final = re.compile(r"\b(?:FSDP2Strategy|HFAutoModel\w*|hf_auto_model\w*)\b")


def read_bridge(text: str, beside: settings.Beside = settings.NOTHING) -> settings.StatedRun:
    """The run of overrides, a script or a recipe; raises `InvalidInput` with every fault."""
    run = _read(text, beside)
    if not _OF_TRANSFORMERS.search(text):
        return run
    return replace(run, program="automodel", zero=3 if "FSDP2Strategy" in text else run.zero)


def _read(text: str, beside: settings.Beside) -> settings.StatedRun:
    if beside.name.endswith(".py") or re.search(r"^def \w+\(", text, re.MULTILINE):
        return _read_recipe(text, beside)
    if beside.name.endswith((".yaml", ".yml", ".json")):
        return _read_overrides(settings.parse_settings(text, variables=beside.variables), beside)
    if _is_overrides(text):
        return _read_lines(text, beside)
    return _read_script(text, beside)


def run_of(
    values: Values,
    beside: settings.Beside,
    *,
    recipe: str | None,
    devices: script.Devices | None = None,
) -> settings.StatedRun:
    """The run of fields by their names, over what the recipe of a name decides."""
    notes = list[str]()
    is_whole = "megatron_amp_O2" in values or "mcore_gpt" in values  # a file of NeMo 1
    if is_whole:
        values = _of_nemo_one(values)
    given = {_ALSO.get(name, name): value for name, value in values.items() if value is not None}
    adapters = adapters_of(given, notes)
    is_formatted = not _OF_FORMATS.isdisjoint(given)
    numbers = _number_format(given)
    name = _model_of(recipe, beside.name.rpartition(".")[0])
    fields = {**_SHARED, **numbers, **given}
    if "seq_length" not in fields and "dataset_seq_length" in fields:
        fields["seq_length"] = fields["dataset_seq_length"]
    fields.pop("dataset_seq_length", None)
    kwargs: dict[str, Any] = {} if devices is None else {"devices": devices}
    layers = None if name is None else layers_named(name)
    run = read_arguments(settings_of(fields), beside, num_layers=layers, **kwargs)
    described = run.model is not None or name is None
    notes += [n for n in run.notes if described or settings.UNDESCRIBED not in n]
    left = {key: flag for key, flag in _OF_THE_RECIPE.items() if key not in fields}
    if (run.tp or 1) > 1 and "sequence_parallel" not in given:
        left["sequence_parallel"] = "--sequence-parallel or --no-sequence-parallel"
    if run.model is None and recipe is not None and _has_experts(recipe):
        left |= {key: flag for key, flag in _EXPERTS.items() if key not in fields}
    if left:
        which = "the recipe" if recipe is None else f"the recipe {recipe}"
        notes.insert(
            0,
            f"{', '.join(left)}: decided by {which}, which is not in this file, and not known "
            f"here; give {', '.join(left.values())}",
        )
    if not is_whole:
        format_ = {} if is_formatted else {"precision": "bf16_mixed"}
        shared = {**{key: value for key, value in _SHARED.items() if key not in left}, **format_}
        notes += unsaid_of(given, shared, taken="what recipes share", assumed=_ASSUMED)
    absent = {"tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size"}
    unset: dict[str, Any] = {field: None for field, key in absent.items() if key in left}
    return replace(
        run,
        **unset,
        **adapters,
        notes=tuple(notes),
        model_name=None if run.model else name or recipe,
    )


def unsaid_of(
    given: Mapping[str, Any], known: Mapping[str, Any], *, taken: str, assumed: Mapping[str, Any]
) -> Iterator[str]:
    """What is not in a file: that which its program is known to set, and that which is assumed."""
    for how, values in (
        (f"taken from {taken}", known),
        ("assumed, which its recipe may set", assumed),
    ):
        unsaid = {key: value for key, value in values.items() if given.get(key) is None}
        if unsaid:
            shown = ", ".join(f"{key} {str(value).lower()}" for key, value in unsaid.items())
            yield f"not in this file, {how}: {shown}"


def _of_nemo_one(values: Values) -> Values:
    """Megatron's switches for the words of NeMo 1, which has its own for the same."""
    found = {key: value for key, value in values.items() if key not in _NEMO_HARMLESS}
    if "precision" in values:
        found["precision"] = values["precision"]
    kind = str(found.get("activation", "gelu")).lower()
    switch = "swiglu" if "swiglu" in kind else "squared_relu" if "squared" in kind else None
    if switch or kind in ("gelu", "fast-gelu"):
        found.pop("activation", None)
    if switch:
        found[switch] = True
    if "normalization" in found:
        is_rms = "rms" in str(found["normalization"]).lower()
        found["normalization"] = "RMSNorm" if is_rms else "LayerNorm"
    if found.pop("share_embeddings_and_output_weights", True) is False:
        found["untie_embeddings_and_output_weights"] = True
    if found.pop("bias", True) is False:
        found["disable_bias_linear"] = True
    hybrid, narrow = found.pop("fp8_hybrid", False), found.pop("fp8_e4m3", False)
    if found.pop("fp8", False) is True:
        found["fp8_format"] = "e4m3" if narrow and not hybrid else "hybrid"
    if (groups := found.pop("mamba_ssm_ngroups", None)) is not None:  # NeMo 1's state spaces
        layers, letters = found.get("num_layers"), found.get("hybrid_override_pattern")
        found |= {"mamba_num_groups": groups}
        if letters is None and isinstance(layers, int) and not found.get("hybrid_attention_ratio"):
            found["hybrid_override_pattern"] = "M" * layers
    if found.get("num_query_groups") is not None:  # without a switch that turns groups on
        found["group_query_attention"] = True
    strategy = found.pop("fsdp_sharding_strategy", "full")
    if found.pop("fsdp", False) is True:
        found["use_megatron_fsdp"] = True
        found["data_parallel_sharding_strategy"] = _NEMO_FSDP.get(
            str(strategy), "optim_grads_params"
        )
    return found


def _has_experts(recipe: str) -> bool:
    return re.search(r"a\d+b|moe|mixtral|deepseek|gpt_?oss|kimi|x\d+b", recipe.lower()) is not None


def _model_of(recipe: str | None, stem: str) -> str | None:
    """The model that the name of a recipe says, or that of its file, if it is one of the catalog's.

    NeMo's recipes are called alike in each file: `pretrain_recipe` of `llama3_8b_64k.py`.
    """
    if recipe is None:
        return None
    for said in (recipe, stem):
        found = _RECIPE.match(said)
        plain = found["model"] if found else said
        plain = re.sub(r"^(llama|qwen)([23])([1-5])(?=_)", r"\1\2.\3", plain)
        if settings.catalog_name(plain) is not None:
            return plain
    return recipe


# Parts of the names of its recipes, which keep weights in 8 bit alone unless told otherwise.
_RECIPES: Final = (
    ("mx", "mxfp8"), ("block", "blockwise"), ("subchannel", "blockwise"), ("delayed", "delayed"),
)  # fmt: skip
_GATHERED: Final = {"fp8_param_gather": True}


def _number_format(given: Values) -> Values:
    """Megatron's switches for a recipe of mixed precision."""
    said = given.pop("mixed_precision", None) or given.pop("precision_config", None)
    given.pop("precision_config", None)
    said = said or given.pop("compute_dtype", None) or given.pop("precision", None)
    if isinstance(said, dict):
        return {key: value for key, value in said.items() if key in ("bf16", "fp16", "fp8")}
    word = str(said or "bf16_mixed").lower()
    if word.startswith(("fp32", "32")):
        return {}
    if "fp8" in word or "mx" in word:
        recipe = next((r for part, r in _RECIPES if part in word), "tensorwise")
        return {"bf16": True, "fp8_format": "hybrid", "fp8_recipe": recipe, **_GATHERED}
    if "fp4" in word:
        return {"bf16": True, "fp4_format": "e2m1"}
    return {"fp16": True} if "fp16" in word or word.startswith("16") else {"bf16": True}


def adapters_of(given: Values, notes: list[str] | None = None) -> dict[str, Any]:
    """Low-rank adapters as options of a run; their settings are taken out of those given."""
    peft = given.pop("peft", None) or given.pop("lora", None)
    scheme = given.pop("peft_scheme", None)
    table = peft if isinstance(peft, dict) else {}
    is_on = bool(table) and table.get("enabled", True)
    kind = str(scheme or (peft if isinstance(peft, str) else "lora" if is_on else "none")).lower()
    if kind in ("none", "null", "false", ""):
        return {}
    if kind != "lora" and notes is not None:
        notes.append(f"peft {kind} is priced as low-rank adapters")
    rank = table.get("dim", table.get("adapter_dim", _LORA_RANK))
    names = table.get("target_modules") or list(_TARGETS)
    words = [word for name in names for word in _TARGETS.get(str(name), (str(name),))]
    return {
        "lora_rank": rank if type(rank) is int and rank > 0 else _LORA_RANK,
        "lora_targets": settings.products_of(words),
        "lora_dropout": table.get("dropout") or None,
    }


# YAML
# ----


def _read_overrides(whole: Mapping[str, Any], beside: settings.Beside) -> settings.StatedRun:
    values = flat(whole)
    devices = None
    trainer = whole.get("trainer")
    if isinstance(trainer, dict):  # of NeMo
        values.setdefault("precision", trainer.get("precision"))
        each, nodes = trainer.get("devices"), trainer.get("num_nodes")
        if type(each) is int and type(nodes) is int:
            devices = script.Devices.on_nodes(nodes, each)
    return run_of(values, beside, recipe=_recipe_of(whole, beside), devices=devices)


def _read_lines(text: str, beside: settings.Beside) -> settings.StatedRun:
    """Overrides one a line, as a shell takes each."""
    try:
        words = shlex.split(text, comments=True)
    except ValueError as error:
        raise InvalidInput.of("megatron-bridge", f"cannot be read: {error}") from None
    return _read_overrides(_plain(script.overrides_of([Value((word,)) for word in words])), beside)


def _plain(table: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a table of words as YAML has them."""
    return {k: _plain(v) if isinstance(v, dict) else script.as_yaml(v) for k, v in table.items()}


def flat(whole: Mapping[str, Any]) -> Values:
    """The fields of the tables that matter, by their own names."""
    values: Values = {}
    for name in _TABLES:
        table = whole.get(name)
        if not isinstance(table, dict):
            continue
        for key, value in table.items():
            is_data = name in ("dataset", "data")
            if is_data and key in ("seq_length", "sequence_length"):
                values["dataset_seq_length"] = value
            elif is_data and key not in ("micro_batch_size", "global_batch_size"):
                continue
            elif key == "optim" and isinstance(value, dict):
                optimizer = str(value.get("name", ""))
                values["optimizer"] = "sgd" if "sgd" in optimizer else "adam"
                if optimizer in _OPTIMIZERS:
                    values["use_distributed_optimizer"] = _OPTIMIZERS[optimizer]
            elif key == "tokenizer" and isinstance(value, dict):
                hub, kind = value.get("library") == "huggingface", value.get("type")
                values["tokenizer_type"] = "HuggingFaceTokenizer" if hub else kind
                values["tokenizer_model"] = kind if hub else value.get("model")
            elif not isinstance(value, dict):
                values[str(key)] = value
    for key in ("mixed_precision", "peft", "lora"):
        if key in whole:
            values[key] = whole[key]
    if "mixed_precision" in whole and whole["mixed_precision"] is None:
        values["mixed_precision"] = "fp32"  # weights as they are made
    return {key: value for key, value in values.items() if not str(key).startswith("_")}


def _recipe_of(whole: Mapping[str, Any], beside: settings.Beside) -> str | None:
    for key in ("recipe", "recipe_name", "flavor"):
        if isinstance(whole.get(key), str):
            return str(whole[key])
    model = whole.get("model")
    if isinstance(model, dict):
        for key in ("hf_path", "hf_model_path", "pretrained_model_name_or_path", "name"):
            if isinstance(model.get(key), str):
                return str(model[key])
    plain = re.sub(r"\.\w+$", "", beside.name)
    return (
        plain
        if _RECIPE.match(plain) and settings.catalog_name(_model_of(plain, "") or "")
        else None
    )


# Scripts
# -------


def _read_script(text: str, beside: settings.Beside) -> settings.StatedRun:
    launch = script.read_launch(text, beside)
    flags = {  # overrides stand behind the last of them
        name: each[0] if isinstance(each, tuple) else each
        for name, each in script.flags_of(launch.words).items()
    }
    values: Values = flat(script.overrides_of(launch.words))
    words = [word.text if word.text is not None else word for word in launch.words]
    for first, second in pairwise(words):
        short = first[1:] if isinstance(first, str) and re.fullmatch(r"-[a-z]{2}", first) else None
        if short in _ALSO:
            values[short] = second
    taken = {name: value for name, value in flags.items() if value != "None"}
    values |= {name: value for name, value in taken.items() if name in _OF_SCRIPTS}
    _decide(values, taken)
    recipe = next((flags[n] for n in ("recipe", "model_recipe_name") if n in flags), None)
    devices = launch.devices
    total, each = (_count(flags.get(name)) for name in ("num_gpus", "gpus_per_node"))
    if total is not None:
        devices = script.Devices(total=total, per_node=each)
    shown = None if recipe is None else str(recipe)
    run = run_of(values, beside, recipe=shown, devices=devices)
    unknown = [f"--{n}" for n in flags if n not in _OF_SCRIPTS and not _HARMLESS.fullmatch(n)]
    return replace(run, unknown=(*run.unknown, *unknown), notes=(*launch.notes, *run.notes))


# Options of the performance scripts, by the names of the fields that they set.
_OF_SCRIPTS: Final = frozenset(
    {*_ALSO, *_ALSO.values(), "compute_dtype", "peft_scheme", "use_megatron_fsdp", "nccl_ub"}
    | {"recompute_modules", "cuda_graph_impl", "cuda_graph_scope", "use_tokendrop", "num_layers"}
    | {"hidden_size", "num_moe_experts", "pipeline_model_parallel_layout"}
)


# Other options of its scripts: where, how long and what is written; what is read above.
_HARMLESS: Final = re.compile(
    r"recipe|model|model_\w+|num_gpus|gpus_per_node|gpu|domain|use_recipes|nemo_home|hf_token|offline|"
    r"detach|max_\w+|dryrun|task|lr|min_lr|warmup_\w+|data|c4_\w+|dataset\w*|index_\w+|head_only|"
    r"pretrained_\w+|save_\w+|load_\w+|most_\w+|tokenizer_\w+|vocab_size|account|partition|"
    r"time_limit|preempt_\w+|container_\w+|custom_\w+|env|gres|additional_\w+|packager|enable_\w+|"
    r"kubeflow_\w+|csp|lock_\w+|peak_\w+|export_\w+|pytorch_profiler|profiling_\w+|nsys_\w+|record_\w+|"
    r"wandb_\w+|log\w*|config\w*|step_func|mode|verbose|distributed_timeout\w*|moe_flex_\w+|"
    r"convergence_\w+|golden_\w+|\w*timing\w*|\w*(?:dir|path|name|seed|checkpoint)"
)


def _decide(values: Values, flags: Mapping[str, Any]) -> None:
    """What an option sets beside its own field (scripts/performance/utils/overrides.py)."""
    if str(values.get("use_megatron_fsdp")).lower() == "true":
        values["data_parallel_sharding_strategy"] = _NEMO_FSDP["full"]
    if isinstance(modules := values.get("recompute_modules"), str):
        values["recompute_modules"] = tuple(modules.split(","))
        values["recompute_granularity"] = "selective"
    if {"recompute_num_layers", "rl"} & values.keys():
        values |= {"recompute_granularity": "full", "recompute_method": "block"}
    if flags.get("task") == "peft":
        values.setdefault("peft", "lora")


def _count(value: object) -> int | None:
    return int(value) if isinstance(value, str) and value.isdecimal() and int(value) else None


# Recipes in Python
# -----------------
# A recipe is a function. Its own assignments, the keywords that it hands on and the tables that it
# writes are taken in their order, and those of functions of the same file that it calls before its
# own. Nothing is run: a value that is computed is named.

_MOST_DEPTH: Final = 10
_HUB: Final = re.compile(r"[\w.-]+/[\w.-]+")


def _read_recipe(text: str, beside: settings.Beside) -> settings.StatedRun:
    tree = settings.python_module(text, "megatron-bridge")
    functions = {each.name: each for each in tree.body if isinstance(each, ast.FunctionDef)}
    public = [name for name in functions if not name.startswith("_")]
    made = [name for name in public if _begins_with(functions[name])] if len(public) > 1 else public
    if not public:
        raise InvalidInput.of("megatron-bridge", "defines no recipe: give the file that does")
    only = made[0] if len(made) == 1 else None
    name = settings.chosen_function(functions, beside.function or only)
    if (whole := _assigned(functions[name])) is not None:
        return _read_overrides(whole, beside)
    values: Values = {}
    open_: dict[str, str] = {}
    constants = dict(_constants(tree))
    hub = _harvest(functions[name], functions, constants, values, open_, 0)
    hub = hub or _begins_with(functions[name])
    for called in map(ast.unparse, ast.walk(functions[name])):
        if (mixed := _MIXED.fullmatch(called)) is not None:
            values["mixed_precision"] = mixed[1]
    if open_:
        shown = ", ".join(f"{key} ({code})" for key, code in open_.items())
        raise InvalidInput.of(name, f"computes what is needed: {shown}; write the values")
    nodes, each = values.pop("num_nodes", None), values.pop("num_gpus_per_node", None)
    devices = None
    if type(nodes) is int and type(each) is int:
        devices = script.Devices.on_nodes(nodes, each)
    other = _other_model(functions[name], tree)
    run = run_of(values, beside, recipe=hub or name, devices=devices)
    if other is None:
        return run
    why = f"{settings.UNDESCRIBED}: {name} makes it of {other}"
    return replace(run, model=None, model_name=None, notes=(why, *run.notes))


_FIELDS: Final = frozenset(
    {*_ALSO, *_ALSO.values(), *_SHARED, "micro_batch_size", "global_batch_size", "seq_length"}
    | {"num_nodes", "num_gpus_per_node", "recompute_granularity", "recompute_method", "peft"}
    | {"recompute_num_layers", "recompute_modules", "pipeline_model_parallel_layout", "fp8"}
    | {"precision_config", "mixed_precision", "use_megatron_fsdp", "cross_entropy_loss_fusion"}
    | {"num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "vocab_size"}
    | {"num_query_groups", "num_moe_experts", "moe_router_topk", "moe_ffn_hidden_size"}
)
_SHORT: Final = frozenset({"tp", "pp", "cp", "ep", "et", "vp", "mb", "gb"})


def _assigned(function: ast.FunctionDef) -> dict[str, Any] | None:
    """What a function sets of the recipe that it is given; None where it does anything else."""
    names = [each.arg for each in function.args.args]
    body = [line for line in function.body if not isinstance(line, (ast.Expr, ast.Return))]
    whole: dict[str, Any] = {}
    for line in body:
        if not (isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Attribute)):
            return None
        recipe, *above, last = ast.unparse(line.targets[0]).split(".", settings.DEEPEST)
        inside: Any = whole
        for part in above:
            inside = inside.setdefault(part, {}) if isinstance(inside, dict) else None
        if [recipe] != names or not isinstance(inside, dict):
            return None
        try:
            inside[last] = ast.literal_eval(line.value)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            return None
    return whole or None


def _harvest(
    function: ast.FunctionDef,
    functions: Mapping[str, ast.FunctionDef],
    constants: Mapping[str, ast.expr],
    values: Values,
    open_: dict[str, str],
    depth: int,
) -> str | None:
    """Fields by their last name, into `values`; the model of a hub, where one is named."""
    hub = None
    if depth > _MOST_DEPTH:
        return None
    for called in _calls(function):
        if called in functions and functions[called] is not function:
            inner = functions[called]
            hub = _harvest(inner, functions, constants, values, open_, depth + 1) or hub
    arguments = function.args
    names = [each.arg for each in (*arguments.args, *arguments.kwonlyargs)]
    for key, node in _settings(function):
        if key == "devices" and isinstance(node, ast.Constant):
            key = "num_gpus_per_node"
        if key in _SHORT or key not in _FIELDS:
            continue
        if isinstance(node, ast.Name):
            node = constants.get(node.id, node)
        try:
            values[key] = ast.literal_eval(node)
            open_.pop(key, None)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            called = ast.unparse(node)
            passed_on = isinstance(node, ast.Name) and node.id in (*names, key)
            passed_on |= isinstance(node, ast.Attribute) and node.attr == key
            if key in _OF_THE_RECIPE and not passed_on:
                open_[key] = called[:60]
                values.pop(key, None)
    for part in ast.walk(function):
        text = part.value if isinstance(part, ast.Constant) else None
        if isinstance(text, str) and _HUB.fullmatch(text) and settings.catalog_name(text):
            hub = hub or text
    return hub


# NeMo's recipes, which a function begins with and changes: `llm.llama3_8b.pretrain_recipe(…)`.
_MADE_BY: Final = ("pretrain_recipe", "finetune_recipe")
_MIXED: Final = re.compile(r"(?:\w+\.)*((?:bf16|fp16)(?:_with_\w+)?_mixed)\(\)")
_SIZED: Final = re.compile(r"[A-Z]\w*Config\w*\d[MB]")


def _begins_with(function: ast.FunctionDef) -> str | None:
    """The recipe of NeMo that a function calls, None where it calls none or several."""
    calls = (node.value for node in ast.walk(function) if isinstance(node, ast.Attribute)
             and node.attr in _MADE_BY)  # fmt: skip
    found = {ast.unparse(each).rpartition(".")[2] for each in calls}
    return found.pop() if len(found) == 1 else None


def _other_model(function: ast.FunctionDef, tree: ast.Module) -> str | None:
    """The class that a function makes its model of, in place of what the recipe has."""
    own = {each.name for each in tree.body if isinstance(each, ast.ClassDef)}
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    words = (ast.unparse(each) for call in calls for each in (call.func, *call.args))
    names = (word.rpartition(".")[2] for word in words)
    return next((each for each in names if each in own or _SIZED.fullmatch(each)), None)


def _constants(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """What the module's own names stand for."""
    for line in tree.body:
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            yield line.targets[0].id, line.value


def _calls(function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id


def _settings(function: ast.FunctionDef) -> Iterator[tuple[str, ast.expr]]:
    """Names with what they are set to, in the order of the lines."""
    found: list[tuple[int, str, ast.expr]] = []
    defaults = function.args.defaults
    plain = function.args.args[len(function.args.args) - len(defaults) :]
    pairs = [*zip(plain, defaults, strict=True)]
    pairs += [
        (name, node)
        for name, node in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
        if node is not None
    ]
    found += [(0, name.arg, node) for name, node in pairs]
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            found.append((node.lineno, node.targets[0].attr, node.value))
        elif isinstance(node, ast.Dict):
            found += [
                (value.lineno, key.value, value)
                for key, value in zip(node.keys, node.values, strict=True)
                if isinstance(key, ast.Constant) and isinstance(key.value, str)
            ]
        elif isinstance(node, ast.Call):
            found += [(k.value.lineno, k.arg, k.value) for k in node.keywords if k.arg]
    found.sort(key=lambda each: each[0])
    yield from ((key, node) for _, key, node in found)


# NeMo RL
# -------
# What its policy trains, by PyTorch's sharding (weights in float32, summed in float32) or by
# Megatron-Core (nemo_rl/models/policy). A file changes another, which `defaults` names.

_RL_HARMLESS: Final = re.compile(
    r"(?:sft|dpo|grpo|rm|distillation|loss_fn|checkpointing|data|env|logger|cluster|defaults|teacher|"
    r"policy\.(?:tokenizer|generation|optimizer|scheduler|max_grad_norm|make_sequence\w*|"
    r"refit\w*|logprob\w*|hf_config\w*|reward_model_cfg|offload_\w+|dynamic_batching|"
    r"sequence_packing|generation_batch_size|debug|router_replay))(?:\..*)?|"
    r"policy\.dtensor_cfg\.(?:_v2|env_vars|custom_parallel_plan|automodel_kwargs|lora_cfg|"
    r"clear_cache\w*|defer_\w+)(?:\..*)?|"
    r"policy\.megatron_cfg\.(?:optimizer|scheduler|checkpoint|env_vars|"
    r"distributed_data_parallel_config|converter_type|empty_unused\w*|pipeline_dtype|freeze_moe\w*|"
    r"moe_(?!flex)\w+|apply_rope\w*|bias_\w+|defer_\w+|track_\w+|train_iters|force_\w+|"
    r"use_gloo\w*|gradient_acc\w*|peft|fp8_cfg|fused_linear_logprobs_chunk\w*|layernorm\w*|cuda_graph_\w+|use_linear\w*|"
    r"recompute_\w+|num_layers_in\w*)(?:\..*)?"
)
_RL_UNMODELLED: Final = ("fine_grained_activation_offloading",)
_FUSED_CHUNK: Final = 256  # positions, as examples/configs/grpo_math_1B.yaml has them


def read_nemo_rl(text: str, beside: settings.Beside = settings.NOTHING) -> settings.StatedRun:
    """A file of NeMo RL over those that its `defaults` name, where they lie beside it."""
    whole, notes = _with_defaults(text, beside), list[str]()
    found = settings.Settings(whole, from_words=True)
    policy, cluster = found.table("policy"), found.table("cluster")
    fsdp, megatron = policy.table("dtensor_cfg"), policy.table("megatron_cfg")
    fsdp.switch("enabled")
    is_megatron = megatron.switch("enabled")
    (fsdp if is_megatron else megatron).whole()  # the engine that does not train
    words = engine_degrees(megatron, heads=1, is_on=is_megatron)
    if not is_megatron:
        experts = fsdp.count("expert_parallel_size") or 1
        words |= {
            "tp": fsdp.count("tensor_parallel_size") or 1,
            "cp": fsdp.count("context_parallel_size") or 1,
            "ep": experts,
            "etp": 1 if experts > 1 else None,
        }
    engine = megatron if is_megatron else fsdp
    words["sequence_parallel"] = engine.switch("sequence_parallel") and words["tp"] > 1
    sequence = policy.count("max_total_sequence_length")
    size, batch = (policy.count(f"train_{part}_batch_size") for part in ("micro", "global"))
    answers = 2 if "dpo" in whole or "rm" in whole else 1
    if answers > 1:
        notes.append("a pair of answers is priced as two sequences of one microbatch")
    for way in ("sequence_packing", "dynamic_batching"):
        table = policy.table(way)
        tokens = table.count("train_mb_tokens") if table.switch("enabled") else None
        if tokens and sequence:
            size = max(1, tokens // sequence)
            notes.append(f"{way}: a microbatch is priced as {size} longest sequences")
    again = engine.switch("activation_checkpointing")
    # Logits of so many positions of a microbatch, again backward (nemo_rl/distributed/model_utils).
    chunk = None
    if is_megatron and megatron.switch("use_fused_linear_logprobs"):
        positions = megatron.count("fused_linear_logprobs_chunk_size") or _FUSED_CHUNK
        chunk = positions * answers * (size or 1)
    elif (part := policy.count("logprob_chunk_size", least=0, also=-1) or 0) > 0:
        # NVIDIA-NeMo/RL, issue 2871, pull requests 2872 and 4114: the loss of Megatron takes it
        # since June 2026, that of automodel keeps what each part leaves for backward.
        where = "passes that answer alone" + ", and since June 2026 in the loss" * is_megatron
        priced = f"in {where}: the loss is priced with all of them at once"
        notes.append(f"logprob_chunk_size {part}: float32 logits of so many positions, {priced}")
    lora = megatron.table("peft") if is_megatron else fsdp.table("lora_cfg")
    adapters: dict[str, Any] = {}
    if lora.switch("enabled"):
        targets = lora.texts("target_modules") or ("all-linear",)
        adapters = {
            "lora_rank": lora.count("dim") or 8,
            "lora_targets": settings.products_of(targets),
            "lora_dropout": lora.number("dropout") or None,
        }
    each, nodes = cluster.count("gpus_per_node"), cluster.count("num_nodes") or 1
    offload = ("params to cpu", "optimizer to cpu") if fsdp.switch("cpu_offload") else ()
    if "grpo" in whole or "distillation" in whole:
        notes.append("only what the policy trains is priced, of sequences at their longest")
    if "grpo" in whole and (passes := " and ".join(_answering(found))):
        notes.append(f"not priced: log-probabilities before an update, {passes}")
    if "dpo" in whole:
        notes.append(
            "the reference is priced as a frozen copy on the devices; its weights wait on the "
            "host, and their exchange with the policy's is not priced"
        )
    dtype, name = policy.text("precision"), policy.text("model_name")
    narrow = megatron.table("fp8_cfg")
    scaled = "fp8_blockwise" if narrow.text("fp8_recipe") == "blockwise" else "fp8"
    eight = is_megatron and narrow.switch("enabled")
    copies = None if is_megatron else fsdp.count("dp_replicate_size")
    unknown, changing = found.remarks(harmless=_RL_HARMLESS, unmodelled=_RL_UNMODELLED)
    return settings.StatedRun(
        **words,
        zero=1 if is_megatron else 3,
        program="megatron" if is_megatron else None,
        state_copies=copies if (copies or 1) > 1 else None,
        micro_batch=None if size is None else answers * size,
        global_batch=None if batch is None else answers * batch,
        per_example=answers,
        reference=("dpo" in whole) or None,
        sequence=sequence,
        recompute="full" if again else "none",
        loss_chunk=chunk,
        precision=scaled if eight else settings.format_named(dtype) or "bf16",
        reduce_dtype=None if is_megatron else "fp32",
        offload=() if is_megatron else offload,
        num_devices=None if each is None else each * nodes,
        devices_per_node=each,
        model_name=name,
        **adapters,
        unknown=unknown,
        notes=(*notes, *changing),
    )


def _answering(found: settings.Settings) -> Iterator[str]:
    """Forward passes of GRPO before it trains (nemo_rl/algorithms/grpo.py, `grpo_train`)."""
    loss, grpo = found.table("loss_fn"), found.table("grpo")
    stated = grpo.value("seq_logprob_error_threshold") is not None
    if not loss.switch("force_on_policy_ratio") or stated:
        yield "a forward pass of the policy"
    if loss.number("reference_policy_kl_penalty"):
        yield "one of the reference, whose weights wait on the host"


_MOST_DEFAULTS: Final = 5


def _with_defaults(text: str, beside: settings.Beside) -> dict[str, Any]:
    """The tables of a file over those of the files that it is based on."""
    layers = [settings.parse_yaml(text, resolved=False)]
    while (base := layers[-1].get("defaults")) is not None and len(layers) < _MOST_DEFAULTS:
        name = base[0] if isinstance(base, list) and base else base
        inner = script.text_beside(str(name), script.Launch(program="", words=()), beside)
        if inner is None:
            wanted = f"{name}, which this file changes, is not beside it: put it there"
            raise InvalidInput.of("defaults", wanted)
        layers.append(settings.parse_yaml(inner, resolved=False))
    whole: dict[str, Any] = {}
    for each in reversed(layers):
        settings.put_over(whole, each)
    return settings.parse_yaml(json.dumps(whole, default=str), variables=beside.variables)
