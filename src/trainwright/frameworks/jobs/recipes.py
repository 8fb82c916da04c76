"""Trainers of research groups, by their files of settings.

OLMo-core (Python, read and not run), prime-rl, levanter, Fast-LLM, picotron, EasyR1 and NeuronX
Distributed Training. What a file does not say is the default of its program:
`olmo_core/train/train_module`, `prime_rl/configs`, `levanter/trainer.py`, `fast_llm/*/config.py`,
`picotron/train.py`, `verl/workers/actor/config.py` of EasyR1.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from trainwright.errors import InvalidInput
from trainwright.frameworks.jobs import megatron_model, script, settings
from trainwright.frameworks.jobs.bridge import run_of
from trainwright.frameworks.jobs.deepspeed import odd_optimizer, optimizer_of
from trainwright.model import TransformerConfig
from trainwright.model.config import Activation, Experts, Norm
from trainwright.model.recipe import ALL_IN_16_BIT

_ALL_LONGEST: Final = "sequences are priced at their longest: shorter ones take less"


# OLMo-core: a program whose calls state the run
# ----------------------------------------------
# Batches are tokens, those of a rank and those of all. Names stand for what the module or the
# function sets them to; `opts.x or DEFAULT` is the default.

_PRESETS: Final = {
    "olmo2_1B_v2": "olmo2-1b", "olmo2_7B": "olmo2-7b", "olmo2_13B": "olmo2-13b",
    "olmo2_32B": "olmo2-32b", "olmo3_7B": "olmo3-7b", "olmo3_32B": "olmo3-32b",
    "olmoe_1B_7B": "olmoe-1b-7b", "llama2_7B": "llama2-7b", "llama2_13B": "llama2-13b",
    "llama2_70B": "llama2-70b", "llama3_8B": "llama3-8b", "llama3_405B": "llama3-405b",
    "qwen3_0_6B": "qwen3-0.6b", "qwen3_1_7B": "qwen3-1.7b", "qwen3_4B": "qwen3-4b",
    "qwen3_8B": "qwen3-8b", "qwen3_14B": "qwen3-14b", "qwen3_32B": "qwen3-32b",
}  # fmt: skip
# Vocabularies of its tokenizers, padded to a multiple of 128.
_PADDED: Final = {"dolma2": 100_352, "dolma2_sigdig": 100_352, "gpt2": 50_304,
                  "gpt_neox_olmo_dolma_v1_5": 50_304}  # fmt: skip
_AC_MODES: Final = {"full": "full", "selected_modules": "selective", "selected_ops": "selective"}
_EXCHANGED: Final = {"llama3": "all_gather", "zig_zag": "ring", "ulysses": "all_to_all"}


def is_olmo_core(text: str) -> bool:
    """Whether a Python program trains with OLMo-core."""
    return "olmo_core" in text and "TrainModuleConfig(" in text


def read_olmo_core(text: str, beside: settings.Beside = settings.NOTHING) -> settings.StatedRun:
    """A training script of OLMo-core, as far as its values stand in it."""
    tree = settings.python_module(text, "olmo-core")
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    known = _named_values(tree, calls)
    words: dict[str, ast.expr] = {}
    for call in calls:
        words |= {each.arg: each.value for each in call.keywords if each.arg in _OF_OLMO_CORE}
    open_ = list[str]()
    for word, node in words.items():
        words[word], is_known = _chosen(node, known)
        open_ += [] if is_known else [f"{word} ({ast.unparse(node)[:60]})"]

    def number(name: str) -> int | None:
        node = words.get(name)
        value = None if node is None else _folded(node, known)
        if value is None and node is not None:
            open_.append(f"{name} ({ast.unparse(node)[:60]})")
        return None if value is None else int(value)

    sequence = number("max_sequence_length") or number("sequence_length")
    tokens, whole = number("rank_microbatch_size"), number("global_batch_size")
    notes = list[str]()
    if sequence is None:
        missing = ", ".join(open_) or "max_sequence_length"
        raise InvalidInput.of("olmo-core", f"computes what is needed: {missing}; write the values")
    dp, ac = (_call_of(words.get(f"{name}_config")) for name in ("dp", "ac"))
    degrees = {name: _degree_of(words.get(f"{name}_config"), known) for name in ("tp", "cp", "ep")}
    pipe, exchange = _degree_of(words.get("pp_config"), known), words.get("cp_config")
    how = _last(dp.get("name")) or "ddp"
    copies, shards = (_number_of(dp.get(name), known) for name in ("num_replicas", "shard_degree"))
    if how == "hsdp" and copies is None:
        each = "a node" if "shard_degree" not in dp else f"{shards or 'a part'} of the devices"
        notes.append(f"hsdp: priced as sharded over all; a copy has {each}: give --state-copies")
    mode = _last(ac.get("mode"))
    recompute = _AC_MODES.get(mode, "none")
    if mode and mode not in _AC_MODES:
        notes.append(f"ac_config {mode}: changes the answer, not modelled")
    name, changes = _olmo_preset(tree, calls, known, notes)
    optimizer = _last(words.get("optim")) or "AdamWConfig"
    eight = _call_of(words.get("float8_config"))
    is_eight = bool(eight) and not _is_false(eight.get("enabled"))
    reduced = settings.format_named(_last(dp.get("reduce_dtype")))
    half = settings.format_named(_last(dp.get("param_dtype"))) or "fp32"
    if "autocast_precision" in words:
        half = settings.format_named(_last(words["autocast_precision"])) or half
    notes += odd_optimizer(optimizer)
    if open_:
        notes.append(f"not known before it runs: {', '.join(open_)}")
    if changed := sorted(_changed_later(tree)):
        notes.append(f"changed under a condition, which is not used: {', '.join(changed)}")
    zero = 3 if how in ("fsdp", "hsdp") else 0
    return settings.StatedRun(
        tp=degrees["tp"],
        pp=pipe,
        cp=degrees["cp"],
        ep=degrees["ep"],
        etp=1 if degrees["ep"] > 1 else None,
        context_exchange=_EXCHANGED.get(_last(exchange)),
        zero=zero,
        state_copies=copies if (copies or 1) > 1 else None,
        sequence_parallel=degrees["tp"] > 1,
        micro_batch=None if tokens is None else max(1, tokens // sequence),
        global_batch=None if whole is None else max(1, whole // sequence),
        sequence=sequence,
        recompute=recompute,
        precision="fp8" if is_eight else half,
        loaded_in=None if zero else "fp32",
        reduce_dtype=reduced,
        compiled=not _is_false(words.get("compile_model")) if "compile_model" in words else None,
        model_name=name,
        model_changes=changes,
        **optimizer_of(optimizer.removesuffix("Config").removeprefix("SkipStep")),
        notes=tuple(notes),
    )


_OF_OLMO_CORE: Final = frozenset(
    {"max_sequence_length", "sequence_length", "rank_microbatch_size", "global_batch_size"}
    | {"optim", "compile_model", "float8_config", "autocast_precision"}
    | {f"{name}_config" for name in ("dp", "tp", "cp", "ep", "pp", "ac")}
)


def _chosen(node: ast.expr, known: Mapping[str, ast.expr]) -> tuple[ast.expr, bool]:
    """What a name or a choice stands for, and whether that is known; else its first part."""
    if isinstance(node, ast.Name) and not isinstance(known.get(node.id), ast.Constant | None):
        return _chosen(known[node.id], {k: v for k, v in known.items() if k != node.id})
    if not isinstance(node, ast.IfExp):
        return node, True
    test = known.get(node.test.id) if isinstance(node.test, ast.Name) else node.test
    if isinstance(test, ast.Constant):
        return _chosen(node.body if test.value else node.orelse, known)
    return _chosen(node.body, known)[0], False


def _changed_later(tree: ast.Module) -> Iterator[str]:
    """What a branch of the program sets anew."""
    branches = (node for node in ast.walk(tree) if isinstance(node, ast.If))
    for node in {id(each): each for branch in branches for each in ast.walk(branch)}.values():
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            name = ast.unparse(target).rpartition(".")[2]
            if name in _OF_OLMO_CORE:
                yield name


def _named_values(tree: ast.Module, calls: list[ast.Call]) -> dict[str, ast.expr]:
    """What names stand for: assignments, then what a configuration is built from."""
    found: dict[str, ast.expr] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            found[node.target.id] = node.value
    built = ("max_sequence_length", "global_batch_size")
    for call in calls:
        flag = (
            call.args[0] if call.args and ast.unparse(call.func).endswith("add_argument") else None
        )
        default = _call_of(call).get("default")
        if isinstance(flag, ast.Constant) and default is not None:
            found.setdefault(str(flag.value).lstrip("-").replace("-", "_"), default)
        if ast.unparse(call.func) in ("partial", "build_config", "functools.partial"):
            found |= {each.arg: each.value for each in call.keywords if each.arg in built}
    return found


def _folded(node: ast.expr, known: Mapping[str, ast.expr], depth: int = 0) -> float | None:
    """The number that an expression comes to, None where that is known only when it runs."""
    if depth > 20:
        return None
    if isinstance(node, ast.Constant):
        value = node.value
        return value if isinstance(value, (int, float)) and type(value) is not bool else None
    if isinstance(node, (ast.Name, ast.Attribute)):
        inside = known.get(node.id if isinstance(node, ast.Name) else node.attr)
        return None if inside is None or inside is node else _folded(inside, known, depth + 1)
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
        return _folded(node.values[-1], known, depth + 1)
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "int" and len(node.args) == 1:
        return _folded(node.args[0], known, depth + 1)
    if isinstance(node, ast.BinOp):
        left, right = (_folded(each, known, depth + 1) for each in (node.left, node.right))
        if left is None or right is None or max(abs(left), abs(right)) > 2**62:
            return None
        match node.op:
            case ast.Mult():
                return left * right
            case ast.Add():
                return left + right
            case ast.Sub():
                return left - right
            case ast.FloorDiv() | ast.Div() if right:
                return left // right
            case ast.Pow() if abs(right) <= 62:
                return float(left**right)
    return None


def _call_of(node: ast.expr | None) -> dict[str, ast.expr]:
    """The keywords of a call; what stands first is its name or mode."""
    if not isinstance(node, ast.Call):
        return {}
    first = dict.fromkeys(("name", "mode", "degree"), node.args[0]) if node.args else {}
    return {**first, **{each.arg: each.value for each in node.keywords if each.arg is not None}}


def _number_of(node: ast.expr | None, known: Mapping[str, ast.expr]) -> int | None:
    value = None if node is None else _folded(node, known)
    return None if value is None else int(value)


def _degree_of(node: ast.expr | None, known: Mapping[str, ast.expr]) -> int:
    return _number_of(_call_of(node).get("degree"), known) or 1


def _last(node: ast.expr | None) -> str:
    """The last part of a name: bfloat16 of DType.bfloat16, AdamWConfig of a call of it."""
    inside = node.func if isinstance(node, ast.Call) else node
    if isinstance(inside, ast.Constant):
        return str(inside.value)
    return "" if inside is None else ast.unparse(inside).rpartition(".")[2]


def _is_false(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


# What a program may set of a preset without another model.
_OF_NO_SIZE: Final = frozenset(
    {"init_seed", "init_method", "init_std", "dtype", "loss_implementation", "backend", "use_flash"}
    | {"fused_ops", "rope", "scaling", "freeze_params", "embed_scale"}
)


def _parts_changed(tree: ast.Module) -> list[str]:
    """What a program sets of a model after it was made from a preset."""
    made = {
        node.targets[0].id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and "TransformerConfig." in ast.unparse(node.value)
    }
    found = dict.fromkeys(
        ast.unparse(target)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Assign, ast.AugAssign))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, (ast.Attribute, ast.Subscript))
    )
    names = (each.partition("[")[0].split(".") for each in found)
    return [".".join(each) for each in names if each[0] in made and each[-1] not in _OF_NO_SIZE]


def _olmo_preset(
    tree: ast.Module, calls: list[ast.Call], known: Mapping[str, ast.expr], notes: list[str]
) -> tuple[str | None, dict[str, Any] | None]:
    """The catalog's name of the preset that a script takes, and the vocabulary it gives it."""
    kind = "TransformerConfig."
    made = [call for call in calls if ast.unparse(call.func).startswith(kind)]
    presets = {ast.unparse(each.func).removeprefix(kind): each for each in made}
    preset, call = next(iter(presets.items()), ("", None))
    name = _PRESETS.get(preset) if len(presets) == 1 else None
    if call is None or name is None:
        shown = f"{', '.join(presets)} is not known here" if presets else "no preset is named"
        notes.insert(0, f"{settings.UNDESCRIBED}: {shown}; give the model")
        return None, None
    if changed := _parts_changed(tree):
        notes.insert(
            0, f"{settings.UNDESCRIBED}: {preset} with another {', '.join(changed)}; give the model"
        )
        return None, None
    given = _call_of(call)
    size = _number_of(given.get("vocab_size"), known)
    if size is None:
        tokenizers = [ast.unparse(each.func) for each in calls]
        named = [each.rpartition(".")[2] for each in tokenizers if "TokenizerConfig." in each]
        size = _PADDED.get(named[0] if named else "dolma2")
    others = sorted(given.keys() - {"vocab_size", "attn_backend", "use_flash", "fused_ops"})
    if others:
        notes.append(f"{preset}: not used: {', '.join(others)}")
    return name, {"vocab_size": size} if size and settings.catalog_name(name) else None


# prime-rl: what its trainer trains, supervised or by reinforcement
# -----------------------------------------------------------------

_PRIME_HARMLESS: Final = re.compile(
    r"(?:max_steps|log|ckpt|slurm|env_vars|monitors|wandb|weight_broadcast|resume|eval|val|inference|"
    r"orchestrator|scheduler|run|output_dir|clean|tokenizer|renderer|matmul_precision|gc|dry_run|"
    r"rollout_transport|heartbeat|trace_path|memory_profiler_path|dist_timeout_seconds|bench\w*|"
    r"deployment|data|optim|trainer\.(?!model|optim)\w+|(?:trainer\.)?optim)(?:\..*)?|"
    r"(?:trainer\.)?model\.(?:impl|attn|trust_remote_code|debug|conversion_dir|compile|"
    r"ep_comm_backend|deepep_\w+|moe_router_dtype|moe_use_grouped_mm|lora\.alpha|ac\.freq|"
    r"ac_offloading|full_offload|vlm|reshard_after_forward|load_using_meta)(?:\..*)?"
)
_PRIME_UNMODELLED: Final = (
    "moe_fused_kernel", "index_cache", "freeze_moe_router", "ac.targets", "lora.modules_to_save",
)  # fmt: skip
_PRIME_SEQUENCES: Final = (128, 2048)  # of supervised and of reinforced training


def is_prime_rl(tables: Mapping[str, Any]) -> bool:
    """Whether tables of TOML are those of prime-rl."""
    if "orchestrator" in tables:
        return {"trainer", "deployment", "model", "inference"} & tables.keys() != set()
    data, model = tables.get("data"), tables.get("model")
    is_named = isinstance(model, dict) and "name" in model and "flavor" not in model
    return is_named and isinstance(data, dict) and "seq_len" in data and "training" not in tables


def read_prime_rl(text: str, beside: settings.Beside = settings.NOTHING) -> settings.StatedRun:
    """A TOML file of prime-rl: FSDP2, one packed sequence to a microbatch where it reinforces."""
    try:
        tables = settings.parse_toml(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput.of("prime-rl", f"is not TOML: {error}") from None
    reinforces = "orchestrator" in tables
    found = settings.Settings(tables)
    shared = found.table("model")
    trainer = found.table("trainer") if reinforces else found
    model = trainer.table("model")
    data, deployment = found.table("data"), found.table("deployment")
    name = model.text("name") or shared.text("name") or "Qwen/Qwen3-0.6B"
    usual = _PRIME_SEQUENCES[reinforces]
    sequence = model.count("seq_len") or found.count("seq_len") or data.count("seq_len") or usual
    batch = data.count("batch_size") or 128
    if reinforces:
        batch = found.table("orchestrator").count("batch_size") or 128
    each = deployment.count("gpus_per_node") or 8
    devices = deployment.count("num_train_gpus") or 1
    if deployment.text("type") == "multi_node":
        devices = each * (deployment.count("num_train_nodes") or (1 if reinforces else 2))
    context, experts = model.count("cp") or 1, 1
    notes = ["what is not said is the default of its releases of 2026: every block is recomputed, "
             "activations and what Adam keeps lie on the host"]  # fmt: skip
    if model.value("ep") not in (None, "auto"):
        experts = model.count("ep") or 1
    elif reinforces or "ep" in model:
        notes.append("ep auto: priced without expert parallelism; give --ep")
    if reinforces:
        notes.append("only what the trainer does is priced, of answers at their longest")
    else:
        notes.append(_ALL_LONGEST)
    ac = model.table("ac")
    mode = ac.one_of("mode", ("full", "selective"), "full")
    frequency = ac.count("freq") or 1
    if mode == "full" and frequency > 1:
        notes.append(f"ac.freq {frequency}: every block is priced as recomputed")
    offload = ["activations to cpu"] if model.value("ac_offloading") is not False else []
    whole = model.value("full_offload") not in (None, False)
    if model.switch("fsdp_cpu_offload"):
        offload += settings.BY_FSDP
    elif whole:
        offload += ("optimizer to cpu", "gradients to cpu")
    elif model.switch("optim_cpu_offload", default=True):
        offload.append("optimizer to cpu")
    lora = model.table("lora")
    adapters: dict[str, Any] = {}
    if "lora" in model:
        named = lora.texts("target_modules") or ("all-linear",)
        adapters = {
            "lora_rank": lora.count("rank") or 16,
            "lora_targets": settings.products_of(each for each in named if "latent" not in each),
            "lora_dropout": lora.number("dropout") or None,
        }
    kernel = model.text("attn") or "auto"
    if kernel in ("sdpa", "flash_attention_2"):
        notes.append(f"attn {kernel}: priced as the fastest kernel, which auto picks")
    chunk = model.value("fused_lm_head_token_chunk_size")
    chunked = model.count("fused_lm_head_token_chunk_size") if type(chunk) is int else 8192
    eight = model.table("quantization").text("type") if "quantization" in model else None
    half = model.text("optimization_dtype") == "bfloat16"
    optimizer = trainer.table("optim").text("type") or "adamw"
    notes += odd_optimizer(optimizer)
    if optimizer == "sign_sgd":
        notes.append("sign_sgd keeps nothing: priced as SGD")
    copies = model.count("dp_replicate") or 1
    exchange = model.one_of("cp_style", ("ring", "ulysses"), "ring")
    zero = 3 if model.switch("reshard_after_forward", default=True) else 2
    reduced = settings.format_named(model.text("reduce_dtype")) or "fp32"
    size = data.count("micro_batch_size") or 1
    unknown, changing = found.remarks(harmless=_PRIME_HARMLESS, unmodelled=_PRIME_UNMODELLED)
    return settings.StatedRun(
        tp=1,
        pp=1,
        cp=context,
        context_exchange="all_to_all" if context > 1 and exchange == "ulysses" else None,
        ep=experts,
        etp=1 if experts > 1 else None,
        zero=zero,
        state_copies=copies if copies > 1 else None,
        micro_batch=1 if reinforces else size,
        global_batch=batch,
        sequence=sequence,
        recompute=mode,
        loss_chunk=chunked if reinforces and chunk != "disabled" else None,
        precision="mxfp8" if eight == "mxfp8" else "fp8_blockwise" if eight else "bf16",
        reduce_dtype=reduced,
        offload=tuple(offload),
        num_devices=devices,
        devices_per_node=min(each, devices),
        compiled=model.value("compile") is not False,
        loaded_in="bf16" if half else "fp32",  # get_model, as optimization_dtype says
        model_name=name,
        **{**(ALL_IN_16_BIT if half else {}), **optimizer_of(_PRIME_OPTIMIZERS.get(optimizer))},
        **adapters,
        unknown=unknown,
        notes=(*notes, *changing),
    )


_PRIME_OPTIMIZERS: Final = {"adamw": "adamw", "sgd": "sgd", "muon": "muon", "sign_sgd": "sgd"}


# levanter: JAX on a mesh, which shards weights along the hidden size unless told otherwise
# -----------------------------------------------------------------------------------------

_LEVANTER_HARMLESS: Final = re.compile(
    r"(?:data|optimizer|checkpointer|tracker|wandb|hf_save_\w+|supervised_data|chat_\w+|dataset_type|"
    r"tokenizer|epoch|eval_harness\w*|log_entropy|data_seed|initialize_from_hf|use_hf_model_config|"
    r"peft_save_path|lora\.alpha|model_name_or_path|messages_field|input_role|output_role|reinit_tokens|"
    r"model\.(?:rope|reference_checkpoint|initializer_range|layer_norm_epsilon|scan_layers|upcast_attn|"
    r"use_layer_norm_weight|attn_backend|flash_attention_block_size|cross_entropy_block_size|"
    r"scale_attn_by_inverse_layer_idx|use_flash_attention|tokenizer|embed_pdrop)|"
    r"trainer\.(?:seed|id|log\w*|ray|jax_\w+|num_train_steps|steps_per_eval|max_eval_batches|"
    r"load_\w+|initialize_from|require_accelerator|shutdown_at_exit|per_device_eval\w*|profiler\w*|"
    r"distributed|batch_axis|axis_resources|parameter_axis_resources|watch|crash_\w+|"
    r"allow_\w+))(?:\..*)?"
)
# Sizes of each type where a file does not say them (levanter/models).
_LLAMA: Final = {"seq_len": 2048, "hidden_dim": 4096, "intermediate_dim": 11_008,
                 "num_layers": 32, "num_heads": 32, "num_kv_heads": 32}  # fmt: skip
_MISTRAL: Final = {**_LLAMA, "seq_len": 8192, "intermediate_dim": 14_336, "num_kv_heads": 8}
_GPT2: Final = {"seq_len": 1024, "hidden_dim": 768, "num_layers": 12, "num_heads": 12}
_TYPES: Final = {"llama": _LLAMA, "mistral": _MISTRAL, "gpt2": _GPT2}


def read_levanter(text: str, beside: settings.Beside = settings.NOTHING) -> settings.StatedRun:
    """A file of levanter."""
    found = settings.read_yaml(text, beside)
    trainer, model = found.table("trainer"), found.table("model")
    notes = list[str]()
    described, sequence = _levanter_model(found, model, beside, notes)
    longest = found.count("max_train_length") or found.count("max_seq_len")
    batch = trainer.count("train_batch_size", also=-1)
    own = trainer.count("per_device_parallelism", also=-1) or -1
    axes = trainer.texts("tensor_parallel_axes")
    tensor = trainer.count("model_axis_size") or 1
    if tensor > 1 and not axes:
        notes.append(f"model_axis_size {tensor} without tensor_parallel_axes: weights are cut all "
                     "the same here")  # fmt: skip
    policy = dict(
        part.strip().partition("=")[::2] for part in (trainer.text("mp") or "f32").split(",")
    )
    compute = _jmp(policy, "compute", "c")
    kept = _jmp(policy, "params", "p")
    numbers: dict[str, Any] = {}
    if kept == compute == "bf16":
        numbers = dict(ALL_IN_16_BIT)
    again = model.value("gradient_checkpointing")
    if again not in (None, True, False):
        notes.append(f"gradient_checkpointing {again}: priced as every block recomputed")
    sharded = trainer.value("fsdp_axis") != "" and (
        "fsdp_axis" not in trainer or trainer.value("fsdp_axis") is not None
    )
    copies = trainer.count("replica_dcn_axis_size") or 1
    copies *= trainer.count("replica_ici_axis_size") or 1
    quantized = trainer.table("quantization").whole()
    lora = found.table("lora")
    adapters: dict[str, Any] = {}
    if "peft_save_path" in found or "lora" in found:
        named = lora.texts("target_modules") or ("all-linear",)
        adapters = {"lora_rank": lora.count("r") or 8, "lora_targets": settings.products_of(named)}
    kind = found.table("optimizer").text("type")
    notes += odd_optimizer(kind)
    if own == -1:
        notes.append("per_device_parallelism: a device takes its part of the batch at once")
    hub = found.value("initialize_from_hf")
    name = found.text("model_name_or_path") if hub is True else hub
    unknown, changing = found.remarks(harmless=_LEVANTER_HARMLESS, unmodelled=("hybrid_norm",))
    per_device = None if own == -1 else own
    return settings.StatedRun(
        tp=tensor,
        pp=1,
        cp=1,
        zero=3 if sharded else 0,
        state_copies=copies if copies > 1 and sharded else None,
        micro_batch=per_device or (512 if batch is None else batch if batch > 0 else None),
        global_batch=None if batch == -1 else batch or 512,
        batch_per_replica=per_device if batch == -1 else None,
        sequence=longest or sequence,
        recompute="none" if again is False else "full",
        precision="fp8" if quantized else compute,
        model=described,
        model_name=str(name) if described is None and name else None,
        **{**numbers, **optimizer_of(kind or "adam")},
        **adapters,
        unknown=unknown,
        notes=(*notes, *changing),
    )


def _jmp(policy: Mapping[str, str], long: str, short: str) -> str:
    """The format of a policy of jmp: `p=f32,c=bfloat16`, or one word for all."""
    said = policy.get(long) or policy.get(short) or next(iter(policy))
    words = {"f32": "fp32", "full": "fp32", "bf16": "bf16", "f16": "fp16", "half": "fp16"}
    return words.get(said) or settings.format_named(said) or "fp32"


def _levanter_model(
    found: settings.Settings, model: settings.Settings, beside: settings.Beside, notes: list[str]
) -> tuple[TransformerConfig | None, int | None]:
    """The model in full, None where it is one of a hub or of a type that is not known here."""
    kind = model.text("type") or "gpt2"
    usual = _TYPES.get(kind)
    own = {key: model.count(key) for key in _LLAMA}
    sequence = own["seq_len"] or (usual or {}).get("seq_len")
    switches = {name: model.switch(name, default=kind == "gpt2") for name in
                ("use_bias", "tie_word_embeddings")}  # fmt: skip
    size, scale = model.count("head_dim"), model.number("mlp_scale") or 4
    dropouts = [model.number(name) or 0.0 for name in ("resid_pdrop", "attn_pdrop")]
    activation = model.text("activation_function")
    named = "model" not in found and "initialize_from_hf" in found
    if found.switch("use_hf_model_config") or named:
        return None, own["seq_len"]
    if usual is None:
        notes.insert(0, f"{settings.UNDESCRIBED}: {kind} is not known here; give the model")
        return None, sequence
    sizes = {**usual, **{key: value for key, value in own.items() if value is not None}}
    data = found.value("data")  # or the name of another file
    tokenizer = found.table("data").text("tokenizer") if isinstance(data, dict) else None
    vocabulary = beside.vocabulary or megatron_model.vocabulary_of(
        None, tokenizer or found.text("tokenizer")
    )
    if vocabulary is None:
        notes.insert(
            0, f"{settings.UNDESCRIBED}: its tokenizer decides the vocabulary; give --vocab-size"
        )
        return None, sequence
    if beside.vocabulary is None:
        notes.append(f"the vocabulary of {vocabulary} is that of its tokenizer; --vocab-size "
                     "replaces it")  # fmt: skip
    gated, hidden, heads = kind != "gpt2", sizes["hidden_dim"], sizes["num_heads"]
    return TransformerConfig(
        family=kind,
        num_layers=sizes["num_layers"],
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=sizes.get("num_kv_heads", heads),
        head_size=size or hidden // heads,
        ffn_size=sizes["intermediate_dim"] if gated else int(scale * hidden),
        vocabulary_size=vocabulary,
        norm=Norm.RMS if gated else Norm.LAYER,
        activation=Activation.GELU
        if "gelu" in (activation or kind)
        else (Activation.SILU if gated else Activation.GELU),
        gated=gated,
        query_key_value_bias=switches["use_bias"],
        attention_output_bias=switches["use_bias"],
        mlp_bias=switches["use_bias"],
        tied_embeddings=switches["tie_word_embeddings"],
        rotary=gated,
        max_positions=0 if gated else sizes["seq_len"],
        hidden_dropout=dropouts[0],
        attention_dropout=dropouts[1],
    ), sequence


# Fast-LLM: tokens of a microbatch, in which documents follow each other
# ----------------------------------------------------------------------

_FAST_HARMLESS: Final = re.compile(
    r"(?:training|run|pretrained|callbacks|data|optimizer|model\.distributed\.(?:seed|backend|timeout|"
    r"world_size|rank|local_world_size|reproducible_init|use_cuda|\w+_seed_shift)|"
    r"batch\.(?:cross_document\w*|use_loss_masking\w*|truncate_documents)|"
    r"model\.base_model\.(?:head|cross_entropy_implementation|sequence_first|use_megatron_init\w*|"
    r"init_method\w*|peft\.alpha)|model\.multi_stage\.(?:debug_\w+|full_precision_gradients|"
    r"store_frozen\w*|compute_recompute)|schedule\.(?:debug_\w+|data_overlap|throttle\w*|"
    r"skip_step\w*|estimate_critical_batch))(?:\..*)?|"
    r".*\.(?:normalization|rotary|initialization|weight_initialization|linear|use_flash_attention|"
    r"normalize_\w+|lr_scale|add_linear_biases|causal|softmax_scale_power|type|name|"
    r"query_layer|key_layer|value_layer|dense_layer|router|auxiliary_loss_coefficient|"
    r"z_loss_coefficient|routing|implementation)(?:\..*)?"
)
_FAST_UNMODELLED: Final = (
    "recompute_level",
    "window_size",
    "micro_batch_splits",
    "layers_per_stage",
    "num_weight_buffers",
    "num_grad_buffers",
)


def read_fast_llm(text: str, beside: settings.Beside = settings.NOTHING) -> settings.StatedRun:
    """A file for `fast-llm train gpt`; states of the optimizer are always sharded."""
    found = settings.read_yaml(text, beside)
    whole, data, order = found.table("model"), found.table("data"), found.table("schedule")
    old, base = found.table("batch"), whole.table("base_model")
    degrees, stages = whole.table("distributed"), whole.table("multi_stage")
    notes = list[str]()
    tensor, pipeline = degrees.count("tensor_parallel") or 1, degrees.count("pipeline_parallel")
    context = degrees.count("sequence_data_parallel") or 1
    steps = 1
    for table in (order, old):
        for name in ("depth_first_micro_batches", "breadth_first_micro_batches"):
            steps *= table.count(name) or 1
    batch = None
    if "batch" in found:  # until 0.2: sequences
        sequence, size = old.count("sequence_length") or 2048, old.count("micro_batch_size") or 1
        batch = old.count("batch_size")
    else:
        tokens = data.count("micro_batch_size") or 2048
        sequence = min(data.count("maximum_document_length") or tokens, tokens)
        size = max(1, tokens // sequence)
        notes.append(f"a microbatch of {tokens} tokens is priced as {size} longest documents")
    parts = order.count("micro_batch_splits") or 1
    if parts > 1:
        notes.append(f"micro_batch_splits {parts}: changes the answer, not modelled")
    pretrained = found.table("pretrained").text("path")
    model = _fast_model(base, beside)
    if model is None and pretrained is None:
        notes.insert(0, f"{settings.UNDESCRIBED}: base_model has no sizes, and pretrained no path")
    peft = base.table("peft")
    adapters: dict[str, Any] = {}
    if (peft.text("type") or "none") == "lora":
        adapters = {"lora_rank": peft.count("rank") or 8,
                    "lora_targets": settings.products_of(["q_proj", "v_proj"])}  # fmt: skip
    precision = settings.format_named(
        degrees.text(degrees.first("compute_dtype", "training_dtype"))
    )
    cuts = degrees.switch("sequence_tensor_parallel") and tensor > 1
    stage = stages.count("zero_stage", least=1, most=3) or 1
    in_half = not stages.switch("full_precision_gradients", default=True)
    unknown, changing = found.remarks(harmless=_FAST_HARMLESS, unmodelled=_FAST_UNMODELLED)
    half = precision if precision in ("bf16", "fp16") else None
    return settings.StatedRun(
        tp=tensor,
        pp=pipeline or 1,
        cp=context,
        zero=stage,
        sequence_parallel=cuts,
        micro_batch=size,
        global_batch=batch,
        batch_per_replica=None if batch else size * steps,
        sequence=sequence,
        recompute="none",
        precision=precision or "fp32",
        gradient_dtype=half if in_half else None,
        optimizer="adam",
        model=model,
        model_name=None if model or not pretrained else pretrained,
        **adapters,
        unknown=unknown,
        notes=(*notes, *changing),
    )


def _fast_model(base: settings.Settings, beside: settings.Beside) -> TransformerConfig | None:
    """The model in full; until 0.2 its sizes stood in `transformer`."""
    decoder, old = base.table("decoder"), base.table("transformer")
    block = decoder.table("block")
    mixer, mlp = block.table("mixer"), block.table("mlp")
    layers = decoder.count("num_blocks") or old.count("num_layers")
    hidden = base.count("hidden_size") or old.count("hidden_size")
    heads = mixer.count("heads") or old.count("num_attention_heads")
    groups = mixer.count("head_groups") or old.count("head_groups")
    width = mlp.count("intermediate_size") or old.count("ffn_hidden_size")
    size = mixer.count("head_size") or old.count("kv_channels")
    vocabulary = base.table("embeddings").count("vocab_size") or base.count("vocab_size")
    vocabulary = beside.vocabulary or vocabulary
    gated = mlp.switch("gated") or old.switch("gated")
    biased = mixer.switch("add_linear_biases", default=True) and old.switch(
        "add_linear_biases", default=True
    )
    activation = mlp.text("activation") or old.text("activation_type") or ""
    kinds = [t.table("normalization").text("type") for t in (block, old)]
    tied = base.switch("tied_embedding_weight", default="transformer" in base) and base.switch(
        "tie_word_embeddings", default=True
    )
    places = [t.table("rotary").text("type") or "none" for t in (mixer, old)]
    dropouts = [t.number("dropout") or 0.0 for t in (block, mixer, base.table("embeddings"))]
    positions = base.table("embeddings").count("num_position_embeddings")
    count = mlp.count("experts") or old.count("num_experts")
    chosen = mlp.count("experts_per_token") or old.count("num_experts_per_token")
    shared = mlp.count("shared_experts", least=0) or old.count("num_shared_experts", least=0) or 0
    if (mixer.text("type") or "attention") != "attention":
        return None
    if not (layers and hidden and heads and vocabulary):
        return None
    width = width or 4 * hidden
    routed = None
    if count and count > 1:
        routed = Experts(
            num_experts=count - shared,
            experts_per_token=chosen or 1,
            ffn_size=width,
            shared_ffn_size=shared * width,
        )
    rotary = any(kind != "none" for kind in places)
    return TransformerConfig(
        family="fast-llm",
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=groups or 1,
        head_size=size or hidden // heads,
        ffn_size=width,
        vocabulary_size=vocabulary,
        norm=Norm.RMS if "rms_norm" in kinds else Norm.LAYER,
        activation=Activation.SILU
        if "silu" in activation or (gated and not activation)
        else Activation.GELU,
        gated=gated,
        query_key_value_bias=biased,
        attention_output_bias=biased,
        mlp_bias=biased,
        tied_embeddings=tied,
        rotary=rotary,
        max_positions=0 if rotary else positions or 0,
        hidden_dropout=dropouts[0],
        attention_dropout=dropouts[1],
        experts=routed,
    )


# picotron: a model of a hub, all in bf16, whose replicas sum gradients in float32
# --------------------------------------------------------------------------------

_OF_PICOTRON: Final = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads")


def read_picotron(text: str, beside: settings.Beside = settings.NOTHING) -> settings.StatedRun:
    """A JSON file of picotron."""
    found = settings.Settings(settings.parse_settings(text, variables=beside.variables))
    mesh, model, training = (found.table(name) for name in ("distributed", "model", "training"))
    tensor, pipeline, context, data = (
        mesh.count(f"{name}_size") or 1 for name in ("tp", "pp", "cp", "dp")
    )
    size, steps = training.count("micro_batch_size"), training.count("gradient_accumulation_steps")
    sizes = {name: model.count(name) for name in _OF_PICOTRON}
    changes = {name: size for name, size in sizes.items() if size is not None}
    engine = mesh.one_of("pp_engine", ("1f1b", "afab"), "1f1b")
    fused, sequence = model.switch("use_fused_adam"), training.count("seq_length")
    plain = model.value("use_flash_attention") is False
    name = model.text("name")
    unknown, _ = found.remarks(harmless=re.compile(
        r"(?:dataset|checkpoint|logging|environment)(?:\..*)?|distributed\.(?:backend|use_cpu)|"
        r"model\.dtype|training\.(?:seed|learning_rate|total_train_steps|num_samples|max_tokens)"
    ))  # fmt: skip
    same = settings.catalog_name(name or "")
    return settings.StatedRun(
        tp=tensor,
        pp=pipeline,
        cp=context,
        dp=data,
        zero=0,
        sequence_parallel=False,
        micro_batch=size,
        global_batch=None if size is None else size * (steps or 1) * data,
        sequence=sequence,
        schedule="gpipe" if engine == "afab" else "1f1b",
        recompute="none",
        precision="bf16",
        flash_attention=False if plain else None,
        model_name=name,
        model_changes=changes if same is not None and changes else None,
        optimizer="adam",
        fused_update=None if fused else False,
        num_devices=tensor * pipeline * context * data,
        **{**ALL_IN_16_BIT, **({"gradient_dtype": "fp32"} if data * context > 1 else {})},
        unknown=unknown,
    )


# EasyR1: verl's actors in words of its own
# -----------------------------------------

EASY_R1: Final = re.compile(r"\bverl\.trainer\.main\b(?!_)")
_EASY_HARMLESS: Final = re.compile(
    r"(?:algorithm|config|data|trainer|ray\w*|worker\.(?:rollout|ref|reward|critic)|"
    r"worker\.actor\.(?:clip_\w+|loss_\w+|ppo_epochs|max_grad_norm|padding_free|use_torch_compile|"
    r"tau_\w+|strategy|micro_batch_size_per_device_for_experience|dynamic_batching)|"
    r"worker\.actor\.optim\.(?!strategy).*|worker\.actor\.model\.(?:trust_remote_code|"
    r"tokenizer_path|override_config|lora\.(?:alpha|exclude_modules))|"
    r"worker\.actor\.fsdp\.(?:enable_rank0_init|use_orig_params|mp_buffer_dtype|mp_param_dtype))(?:\..*)?"
)


def read_easy_r1(text: str, beside: settings.Beside = settings.NOTHING) -> settings.StatedRun:
    """What the actor of EasyR1 trains: its file, and words behind the program."""
    notes, launch = ["only what the actor trains is priced"], script.Launch(program="", words=())
    tables: dict[str, Any] = {}
    if beside.name.endswith((".yaml", ".yml")):
        tables = settings.parse_yaml(text, variables=beside.variables)
    else:
        launch = script.read_launch(text, beside)
        words = script.overrides_of(launch.words)
        path = words.pop("config", None)
        inside = script.text_beside(str(path), launch, beside) if path else None
        if path and inside is None:
            notes.append(f"{path} is not beside this file, and what it says is not used")
        settings.put_over(tables, settings.parse_yaml(inside) if inside else {})
        settings.put_over(tables, words)
    found = settings.Settings(tables, from_words=True)
    worker, data, trainer = (found.table(name) for name in ("worker", "data", "trainer"))
    actor, rollout = worker.table("actor"), worker.table("rollout")
    model, fsdp, held = (actor.table(name) for name in ("model", "fsdp", "offload"))
    answers, heads = rollout.count("n") or 1, actor.count("ulysses_size") or 1
    size = actor.count("micro_batch_size_per_device_for_update") or 4
    mini = actor.count("global_batch_size") or 256
    lengths = [data.count(f"max_{part}_length") for part in ("prompt", "response")]
    nodes, each = trainer.count("nnodes") or 1, trainer.count("n_gpus_per_node") or 8
    strategy = actor.table("optim").text("strategy") or "adamw"
    dtype = settings.format_named(fsdp.text("torch_dtype"))
    offload = settings.BY_FSDP if fsdp.switch("enable_cpu_offload") else ()
    for part in ("params", "optimizer"):
        if held.switch(f"offload_{part}"):
            offload = (*offload, f"{part} to cpu {settings.BETWEEN}")
    lora = model.table("lora")
    rank = lora.count("rank", least=0)
    adapters: dict[str, Any] = {}
    named = (lora.text("target_modules") or "all-linear").split(",")
    if rank:
        adapters = {"lora_rank": rank, "lora_targets": settings.products_of(named)}
    again = model.switch("enable_gradient_checkpointing", default=True)
    frozen = model.switch("freeze_vision_tower")
    zero = 3 if fsdp.switch("enable_full_shard", default=True) else 2
    notes += settings.partly_sharded(fsdp, nodes * each)
    reduced, name = settings.format_named(fsdp.text("mp_reduce_dtype")), model.text("model_path")
    unknown, changing = found.remarks(harmless=_EASY_HARMLESS)
    numbers: dict[str, Any] = {}
    if dtype == "bf16":
        numbers = dict(ALL_IN_16_BIT)
    elif strategy == "adamw_bf16":
        numbers = {"moment_dtypes": ("bf16",)}
    known = [length for length in lengths if length is not None]
    return settings.StatedRun(
        tp=1,
        pp=1,
        cp=heads,
        context_exchange="all_to_all" if heads > 1 else None,
        zero=zero,
        program="verl",
        micro_batch=size,
        global_batch=mini * answers,
        sequence=sum(known) if len(known) == len(lengths) else None,
        recompute="full" if again else "none",
        precision="bf16",
        reduce_dtype=reduced or "fp32",
        offload=offload,
        optimizer="adam",
        freeze=settings.VISION if frozen and not adapters else None,
        num_devices=nodes * each,
        devices_per_node=each,
        model_name=name,
        **numbers,
        **adapters,
        unknown=unknown,
        notes=(*launch.notes, *notes, *changing),
    )


# NeuronX Distributed Training: Megatron's fields in tables of NeMo
# -----------------------------------------------------------------

_NEURON_MODEL: Final = {
    "num_layers": "num_layers", "hidden_size": "hidden_size", "encoder_seq_length": "seq_length",
    "ffn_hidden_size": "ffn_hidden_size", "num_attention_heads": "num_attention_heads",
    "num_kv_heads": "num_query_groups", "activations_checkpoint_granularity":
    "recompute_granularity", "make_vocab_size_divisible_by": "make_vocab_size_divisible_by",
    "max_position_embeddings": "max_position_embeddings", "hidden_dropout": "hidden_dropout",
    "attention_dropout": "attention_dropout", "kv_channels": "kv_channels",
    "normalization": "normalization", "activation": "activation",
    "share_embeddings_and_output_weights": "share_embeddings_and_output_weights",
    "has_bias": "bias", "position_embedding_type": "position_embedding_type",
}  # fmt: skip
_NEURON_AGAIN: Final = {"CoreAttention": "core_attn", "LlamaMLP": "mlp"}
_NEURON_PRECISION: Final = {"mixed_precision": "bf16", "mixed_precisionSR": "bf16", "fp32": "32"}


def read_neuronx(text: str, beside: settings.Beside = settings.NOTHING) -> settings.StatedRun:
    """A file of NeuronX Distributed Training; its devices are cores."""
    whole = settings.parse_yaml(text, variables=beside.variables)
    found = settings.Settings(whole, from_words=True)
    mesh, data, model = (found.table(n) for n in ("distributed_strategy", "data", "model"))
    trainer = found.table("trainer")
    nodes, each = trainer.count("num_nodes") or 1, trainer.count("devices")
    values: dict[str, Any] = {
        name: mesh.value(name) for name in mesh if name.endswith(("_size", "sequence_parallel"))
    }
    if values.get("virtual_pipeline_model_parallel_size") == 1:
        del values["virtual_pipeline_model_parallel_size"]
    values |= {name: data.count(name) for name in ("micro_batch_size", "global_batch_size")}
    values |= {own: model.value(key) for key, own in _NEURON_MODEL.items() if key in model}
    values["use_distributed_optimizer"] = mesh.switch("zero1", default=True)
    values["sequence_parallel"] = mesh.switch("sequence_parallel")
    modules = model.value("activations_checkpoint_recompute")
    notes = list[str]()
    if values.get("recompute_granularity") == "selective" and isinstance(modules, list):
        values["recompute_modules"] = [_NEURON_AGAIN.get(str(each), str(each)) for each in modules]
    elif values.get("recompute_granularity") == "full":
        values |= {"recompute_method": "uniform", "recompute_num_layers": 1}
    moe = model.table("moe")
    if (experts := moe.count("num_experts")) is not None:
        values |= {"num_moe_experts": experts, "moe_router_topk": moe.count("top_k") or 1}
    kind = found.table("precision").text("type") or "mixed_precision"
    if kind not in _NEURON_PRECISION:
        notes.append(f"precision {kind}: priced as bf16 with float32 states")
    config = script.config_beside(model.text("model_config"), beside, notes)
    if str(values.get("position_embedding_type")) == "rope" or "num_attention_heads" not in values:
        values.pop("max_position_embeddings", None)
    aligned = found.table("model_alignment_strategy")
    peft = aligned.table("peft") if "peft" in aligned else aligned.table("sft").table("peft")
    values["seq_length"] = data.count("seq_length") or values.get("seq_length")
    adapters: dict[str, Any] = {}
    if (rank := peft.count("lora_rank")) is not None:
        names = peft.texts("target_modules") or ("all-linear",)
        adapters = {"lora_rank": rank, "lora_targets": settings.products_of(names),
                    "lora_dropout": peft.number("lora_dropout") or None}  # fmt: skip
    by = next((each for each in sorted(script.PAIRED) if each in aligned), None)
    table = aligned.table(by or "dpo")
    refers = by in script.REFERS and not table.switch("precompute_ref_log_probs")
    found.check()
    values |= {"mcore_gpt": True, "precision": _NEURON_PRECISION.get(kind, "bf16")}
    devices = None if each is None else script.Devices.on_nodes(nodes, each)
    run = run_of(values, beside, recipe=None, devices=devices)
    described = config or run.model
    own = [note for note in run.notes if settings.UNDESCRIBED not in note or config is None]
    run = replace(run, model=described, **adapters, program=None, notes=(*notes, *own))
    if by is None or run.micro_batch is None:
        return run
    notes = [*run.notes, *script.unpriced(by, table, adapts=bool(adapters))]
    batch = None if run.global_batch is None else 2 * run.global_batch
    return replace(
        run,
        micro_batch=2 * run.micro_batch,
        global_batch=batch,
        per_example=2,
        reference=refers or None,
        notes=tuple(notes),
    )
