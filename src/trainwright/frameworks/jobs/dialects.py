"""A run in the words of the file that it was read from, the inverse of the readers.

A dialect says which decisions of a run its framework takes, and how they are spelled: flags of a
script, keys of a table. What a change of the run is in those words is the difference of two such
spellings; where the dialect has no word for a part of it, there is none. Sources are those of the
readers beside this file.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from trainwright.frameworks.jobs.settings import spaced
from trainwright.frameworks.megatron import SHARDING, format_layout
from trainwright.model import NO_OFFLOAD
from trainwright.model.operator import modules_by_block, usual_modules
from trainwright.planning.question.question import ZERO_STAGES, Allowed, Span
from trainwright.plans.capability import capability_of
from trainwright.plans.capability_table import LOSS_CHUNKS, PRODUCTS
from trainwright.plans.configuration import Configuration, even_blocks, modes_beside
from trainwright.plans.plan import PIPELINE_INSIDE, usual_schedule
from trainwright.profile import Recompute
from trainwright.profile.measured_model import MeasuredModel

if TYPE_CHECKING:
    from trainwright.model import LowRank, TransformerConfig
    from trainwright.profile.measured_model import Trained

Words = dict[str, Any]
Spell: TypeAlias = "Callable[[Configuration, TransformerConfig], Words | None]"
_OVERLAPS: Final = 0.9
_MODES: Final = {Recompute.NONE: False, Recompute.FULL: True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """What makes room, decided at once by `words` under these ZeRO stages.

    `again` beside recomputed blocks alone.
    """

    decided: Mapping[str, Any]
    words: Words
    again: bool = False
    stages: tuple[int, ...] = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The decisions that a format takes, and their words.

    `decisions` are names of `decisions_of`. `spell` gives keys with dots and their values, True for
    a switch of a script; None where the run has no words. `savings` are what makes room; `adapters`
    spells adapters beside a model that trained in full, `in_16_bit` weights that are loaded so
    instead of in float32. `target` is the framework whose limits
    hold, where plans know one. `batch` is the key of the global batch, which a file that leaves it
    out derives from what changes.
    """

    decisions: frozenset[str]
    spell: Spell
    savings: tuple[Saving, ...] = ()
    adapters: Callable[[LowRank], Words | None] | None = None
    in_16_bit: Words = field(default_factory=dict)
    target: str | None = None
    flags: bool = False
    batch: str | None = None

    def shown(self, key: str, value: Any) -> str:
        """A setting as it would be written; a value of None takes it away."""
        if not self.flags:
            return f"without {key}" if value is None else f"{key} = {plain(value)}"
        flag = "--" + key.replace("_", "-")
        if value is None:
            return f"without {flag}"
        if value is True:
            return flag
        values = value if isinstance(value, (list, tuple)) else (plain(value),)
        return " ".join((flag, *(shlex.quote(str(each)) for each in values)))


def plain(value: Any) -> str:
    """A value as YAML and TOML agree on it, texts without quotes."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return spaced(value)


def changed_words(
    name: str,
    before: Configuration,
    after: Configuration,
    model: TransformerConfig,
    trained: Trained | None = None,
) -> Words | None:
    """The settings that make one run of the other, None for those to take away.

    `trained` is what the other trains, the model itself where absent. None instead of a mapping
    where the dialect cannot say the change.
    """
    dialect = DIALECTS[name]
    old, new = decisions_of(before, model), decisions_of(after, model)
    changed = {key for key in old if old[key] != new[key]}
    said = _saving_words(dialect, {key: new[key] for key in changed & _ROOM}, after)
    adapted = _adapter_words(dialect, model, trained)
    halved = {} if before.recipe.precision == after.recipe.precision else dialect.in_16_bit
    if said is None or adapted is None or not changed - _ROOM <= dialect.decisions:
        return None
    first, second = dialect.spell(before, model), dialect.spell(after, model)
    if first is None or second is None:
        return None
    words = {key: value for key, value in second.items() if first.get(key) != value}
    return {
        **words,
        **{key: None for key in first if key not in second},
        **said,
        **adapted,
        **halved,
    }


def _saving_words(dialect: Dialect, left: dict[str, Any], after: Configuration) -> Words | None:
    """What decides all that is left, the most at once; None where something is left over."""
    words: Words = {}
    for each in sorted(dialect.savings, key=lambda saving: -len(saving.decided)):
        again = after.recompute is Recompute.FULL and after.recompute_blocks is None
        holds = (again or not each.again) and after.parallelism.zero_stage in each.stages
        if holds and each.decided.items() <= left.items():
            words |= each.words
            left = {key: value for key, value in left.items() if key not in each.decided}
    return None if left else words


def _adapter_words(
    dialect: Dialect, model: TransformerConfig, trained: Trained | None
) -> Words | None:
    """What lays adapters beside the model; None where that is not sayable."""
    if trained is None or trained == model:
        return {}
    low_rank = None if isinstance(trained, MeasuredModel) else trained.tuning.low_rank
    if low_rank is None or dialect.adapters is None or not {*low_rank.targets} <= _NAMES.keys():
        return None
    return dialect.adapters(low_rank)


def shown_words(name: str, words: Mapping[str, Any]) -> tuple[str, ...]:
    """The settings one by one, as the file would have them."""
    return tuple(DIALECTS[name].shown(key, value) for key, value in words.items())


def decisions_of(run: Configuration, model: TransformerConfig) -> dict[str, Any]:
    """What a change may alter of a run; replicas follow from the rest."""
    degrees = run.parallelism
    blocks = run.blocks_per_stage or even_blocks(model.num_layers, run.num_stages)
    is_even = blocks == even_blocks(model.num_layers, run.num_stages)
    return {
        "tensor": degrees.tensor,
        "pipeline": degrees.pipeline,
        "context": degrees.context,
        "expert": degrees.expert,
        "sequence parallel": degrees.sequence_parallel and degrees.tensor > 1,
        "zero": degrees.zero_stage,
        "copies": degrees.state_copies,
        "mapping": degrees.axis_order if degrees.pipeline > 1 else None,
        "microbatch": run.microbatch_size,
        "recompute": (run.recompute, run.recompute_blocks),
        "schedule": (run.schedule, degrees.virtual_stages) if degrees.pipeline > 1 else None,
        "split": None if is_even else blocks,
        "attention": run.fused_attention,
        "cross entropy": run.fused_cross_entropy,
        **_room_of(run),
    }


def _room_of(run: Configuration) -> dict[str, Any]:
    """Decisions of the recipe that make room, and those that train in another way."""
    recipe, held = run.recipe, run.recipe.offload or NO_OFFLOAD
    return {
        "loss": recipe.loss_chunk,
        "feed-forward": recipe.mlp_tile,
        "host activations": held.activations,
        "host modules": recipe.offload_modules,
        "host optimizer": held.optimizer,
        "host gradients": held.gradients,
        "host weights": held.weights,
        "exchange": (str(recipe.context_exchange), recipe.ulysses),
        "graphs": (str(recipe.cuda_graph), recipe.cuda_graph_modules),
        "optimizer": str(recipe.optimizer),
        "moments": recipe.moment_dtypes,
        "gradients": recipe.gradient_dtype,
        "reduction": recipe.reduce_dtype,
        "update": recipe.fused_update,
    }


_ROOM: Final = frozenset(
    {"loss", "feed-forward", "host activations", "host modules", "host optimizer"}
    | {
        "host gradients",
        "host weights",
        "exchange",
        "graphs",
        "optimizer",
        "moments",
        "gradients",
        "reduction",
        "update",
    }
)


def said_in(
    dialect: str, run: Configuration, allowed: Allowed, wanted: Callable[[Configuration], bool]
) -> Allowed:
    """What a dialect has no word for stays as the run has it."""
    spoken, degrees = DIALECTS[dialect].decisions, run.parallelism
    kept: dict[str, Any] = {
        axis: Span.only(value)
        for axis, value in (
            ("tensor", degrees.tensor), ("pipeline", degrees.pipeline),
            ("context", degrees.context), ("expert", degrees.expert),
        )
        if axis not in spoken
    }  # fmt: skip
    if "microbatch" not in spoken:
        kept["microbatch_size"] = Span.only(run.microbatch_size)
    if "copies" not in spoken:
        kept["state_copies"] = Span.only(degrees.state_copies)
    if "mapping" not in spoken:
        kept["mappings"] = (degrees.axis_order,)
    if "schedule" not in spoken:
        chunks = degrees.virtual_stages
        kept |= {"schedules": (run.schedule,), "virtual_stages": Span.only(chunks)}
    elif allowed.framework is None:
        kept["schedules"] = tuple(dict.fromkeys((run.schedule, *map(usual_schedule, (1, 2)))))
    stages = [
        stage
        for stage in ZERO_STAGES
        if stage == degrees.zero_stage
        or wanted(replace(run, parallelism=replace(degrees, zero_stage=stage)))
    ]
    modes = [
        mode
        for mode in modes_beside(run.recipe)
        if mode is run.recompute or wanted(replace(run, recompute=mode, recompute_blocks=None))
    ]
    return replace(allowed, **kept, zero_stages=tuple(stages), recompute=tuple(modes))


def _accumulation(run: Configuration) -> int:
    """Microbatches of a replica in a step."""
    return run.num_microbatches


# Megatron-LM and what takes its arguments
# ----------------------------------------


def _megatron(run: Configuration, model: TransformerConfig) -> Words | None:
    degrees = run.parallelism
    words: Words = {
        "tensor_model_parallel_size": degrees.tensor,
        "pipeline_model_parallel_size": degrees.pipeline,
        "context_parallel_size": degrees.context,
        "expert_model_parallel_size": degrees.expert,
        "micro_batch_size": run.microbatch_size,
    }
    if degrees.sequence_parallel and degrees.tensor > 1:
        words["sequence_parallel"] = True
    if degrees.zero_stage == 1:
        words["use_distributed_optimizer"] = True
    elif degrees.zero_stage > 1:
        share = run.overlap
        if min(share.gradients, share.parameters) < _OVERLAPS:
            return None  # FSDP overlaps by itself
        words |= {
            "use_megatron_fsdp": True,
            "data_parallel_sharding_strategy": SHARDING[degrees.zero_stage],
            "ckpt_format": "fsdp_dtensor",
        }
    if degrees.state_copies > 1:
        words["num_distributed_optimizer_instances"] = degrees.state_copies
    if degrees.axis_order == PIPELINE_INSIDE and degrees.pipeline > 1:
        words["use_tp_pp_dp_mapping"] = True
    if not run.fused_attention:
        words["attention_backend"] = "unfused"
    if run.fused_cross_entropy:
        words["cross_entropy_loss_fusion"] = True
    stages = _megatron_stages(run, model)
    recompute = _megatron_recompute(run, model)
    return None if stages is None or recompute is None else words | stages | recompute


def _megatron_recompute(run: Configuration, model: TransformerConfig) -> Words | None:
    match run.recompute:
        case Recompute.NONE:
            return {}
        case Recompute.SELECTIVE if run.recompute_blocks is None:
            names = capability_of("megatron").modules or {}
            modules = run.recompute_modules or usual_modules(fused_attention=run.fused_attention)
            modules = modules_by_block(modules, model)
            if not set(modules) <= set(names):
                return None
            shown = [names[each] for each in modules]
            return {"recompute_granularity": "selective", "recompute_modules": shown}
        case Recompute.FULL:
            first = run.recompute_blocks
            method = "uniform" if first is None else "block"
            return {
                "recompute_granularity": "full",
                "recompute_method": method,
                "recompute_num_layers": 1 if first is None else first,
            }
    return None


def _megatron_stages(run: Configuration, model: TransformerConfig) -> Words | None:
    degrees, chunks = run.parallelism, run.parallelism.virtual_stages
    if run.schedule != usual_schedule(chunks):
        return None
    count = degrees.pipeline * chunks
    split = run.blocks_per_stage or even_blocks(model.num_layers, count)
    if len(set(split)) == 1:
        return {} if chunks == 1 else {"num_layers_per_virtual_pipeline_stage": split[0]}
    letters = ["t" * blocks for blocks in split]
    letters[0] = "E" + letters[0]
    letters[-1] += "m" * model.num_mtp_layers + "L"
    return {"pipeline_model_parallel_layout": format_layout(letters)}


# Where Megatron-Bridge keeps them; all others are fields of `model`.
_TABLE_OF: Final = {
    "micro_batch_size": "train", "global_batch_size": "train",
    "use_distributed_optimizer": "ddp", "data_parallel_sharding_strategy": "ddp",
    "num_distributed_optimizer_instances": "ddp", "use_megatron_fsdp": "dist",
    "use_tp_pp_dp_mapping": "dist", "ckpt_format": "checkpoint",
}  # fmt: skip


def _megatron_bridge(run: Configuration, model: TransformerConfig) -> Words | None:
    words = _megatron(run, model)
    if words is None:
        return None
    if words.pop("num_layers_per_virtual_pipeline_stage", None) is not None:
        words["virtual_pipeline_model_parallel_size"] = run.parallelism.virtual_stages
    return {f"{_TABLE_OF.get(key, 'model')}.{key}": value for key, value in words.items()}


def _megatron_deepspeed(run: Configuration, model: TransformerConfig) -> Words | None:
    degrees = run.parallelism
    words: Words = {
        "tensor_model_parallel_size": degrees.tensor,
        "pipeline_model_parallel_size": degrees.pipeline,
        "micro_batch_size": run.microbatch_size,
    }
    if degrees.sequence_parallel and degrees.tensor > 1:
        words["sequence_parallel"] = True
    if run.recompute not in _MODES or run.recompute_blocks is not None:
        return None
    if _MODES[run.recompute]:
        words["checkpoint_activations"] = True
    return words


# torchtitan
# ----------


def _torchtitan(run: Configuration, model: TransformerConfig) -> Words | None:
    degrees = run.parallelism
    words: Words = {
        "parallelism.tensor_parallel_degree": degrees.tensor,
        "parallelism.pipeline_parallel_degree": degrees.pipeline,
        "parallelism.context_parallel_degree": degrees.context,
        "parallelism.expert_parallel_degree": degrees.expert,
        "activation_checkpoint.mode": str(run.recompute),
    }
    if run.recompute_blocks is not None or degrees.zero_stage < 2:
        return None
    policy = "never" if degrees.zero_stage == 2 else "always"
    words["parallelism.fsdp_reshard_after_forward"] = policy
    replicas = degrees.state_copies
    words["parallelism.data_parallel_replicate_degree"] = replicas
    words["parallelism.data_parallel_shard_degree"] = degrees.data // replicas
    if degrees.pipeline == 1:
        words["training.local_batch_size"] = run.microbatch_size
        return words
    names = capability_of("torchtitan@0.2").schedules
    if run.schedule not in names or run.blocks_per_stage is not None:
        return None
    words |= {
        "training.local_batch_size": run.global_batch // degrees.data,
        "parallelism.pipeline_parallel_microbatch_size": run.microbatch_size,
        "parallelism.pipeline_parallel_schedule": names[run.schedule],
    }
    return words


# YAML and JSON of other trainers
# -------------------------------


def _checkpointed(run: Configuration, on: str, off: str | None = None) -> Words | None:
    """The key that recomputes every block, or the one that does not."""
    if run.recompute not in _MODES or run.recompute_blocks is not None:
        return None
    again = _MODES[run.recompute]
    return {on: again} if off is None else {off: not again}


def _with(words: Words, more: Words | None) -> Words | None:
    return None if more is None else {**words, **more}


def _verl(run: Configuration, model: TransformerConfig) -> Words | None:
    actor, modes = "actor_rollout_ref.actor", "actor_rollout_ref.model"
    words = {f"{actor}.ppo_micro_batch_size_per_gpu": run.microbatch_size}
    return _with(words, _checkpointed(run, f"{modes}.enable_gradient_checkpointing"))


def _trainer(size: str, on: str, off: str | None = None) -> Spell:
    """The words of a trainer that accumulates microbatches and recomputes all or nothing."""

    def spell(run: Configuration, model: TransformerConfig) -> Words | None:
        words = {size: run.microbatch_size, "gradient_accumulation_steps": _accumulation(run)}
        return _with(words, _checkpointed(run, on, off))

    return spell


def _automodel(run: Configuration, model: TransformerConfig) -> Words | None:
    degrees = run.parallelism
    if degrees.pipeline > 1 or degrees.zero_stage < 2 or run.global_batch % degrees.data:
        return None
    words: Words = {
        "distributed.dp_size": degrees.data,
        "distributed.tp_size": degrees.tensor,
        "distributed.cp_size": degrees.context,
        "distributed.ep_size": degrees.expert,
        "distributed.dp_replicate_size": degrees.state_copies,
        "distributed.sequence_parallel": degrees.sequence_parallel and degrees.tensor > 1,
        "distributed.reshard_after_forward": degrees.zero_stage == 3,
        "step_scheduler.local_batch_size": run.microbatch_size,
    }
    return _with(words, _checkpointed(run, "distributed.activation_checkpointing"))


def _deepspeed(run: Configuration, model: TransformerConfig) -> Words | None:
    return {
        "train_micro_batch_size_per_gpu": run.microbatch_size,
        "gradient_accumulation_steps": _accumulation(run),
        "zero_optimization.stage": run.parallelism.zero_stage,
    }


def _neox(run: Configuration, model: TransformerConfig) -> Words | None:
    degrees = run.parallelism
    if degrees.pipeline > 1 and degrees.zero_stage > 1:
        return None
    words = {
        "pipe_parallel_size": degrees.pipeline,
        "model_parallel_size": degrees.tensor,
        "train_micro_batch_size_per_gpu": run.microbatch_size,
        "gradient_accumulation_steps": _accumulation(run),
        "zero_optimization.stage": degrees.zero_stage,
    }
    return _with(words, _checkpointed(run, "checkpoint_activations"))


def _nanotron(run: Configuration, model: TransformerConfig) -> Words | None:
    degrees = run.parallelism
    if degrees.zero_stage > 1:
        return None
    words = {
        "parallelism.dp": degrees.data,
        "parallelism.pp": degrees.pipeline,
        "parallelism.tp": degrees.tensor,
        "tokens.micro_batch_size": run.microbatch_size,
        "tokens.batch_accumulation_per_replica": _accumulation(run),
        "optimizer.zero_stage": degrees.zero_stage,
    }
    return _with(words, _checkpointed(run, "parallelism.recompute_layer"))


def _llm_foundry(run: Configuration, model: TransformerConfig) -> Words | None:
    strategies = {0: "NO_SHARD", 2: "SHARD_GRAD_OP", 3: "FULL_SHARD"}
    if run.parallelism.zero_stage not in strategies:
        return None
    words = {
        "device_train_microbatch_size": run.microbatch_size,
        "fsdp_config.sharding_strategy": strategies[run.parallelism.zero_stage],
    }
    return _with(words, _checkpointed(run, "fsdp_config.activation_checkpointing"))


def _olmo(run: Configuration, model: TransformerConfig) -> Words | None:
    strategies = {2: "SHARD_GRAD_OP", 3: "FULL_SHARD"}
    if run.parallelism.zero_stage not in strategies:
        return None
    if run.recompute not in _MODES or run.recompute_blocks is not None:
        return None
    words: Words = {
        "device_train_microbatch_size": run.microbatch_size,
        "fsdp.sharding_strategy": strategies[run.parallelism.zero_stage],
    }
    if _MODES[run.recompute]:
        words["activation_checkpointing"] = "whole_layer"
    return words


def _maxtext(run: Configuration, model: TransformerConfig) -> Words | None:
    degrees = run.parallelism
    group = degrees.tensor * degrees.context
    if run.microbatch_size % group or degrees.pipeline > 1 or run.recompute_blocks is not None:
        return None
    policies = {Recompute.NONE: "none", Recompute.FULL: "full", Recompute.SELECTIVE: "minimal"}
    if run.recompute not in policies:
        return None
    return {
        "per_device_batch_size": run.microbatch_size // group,
        "gradient_accumulation_steps": _accumulation(run),
        "remat_policy": policies[run.recompute],
    }


def _accelerate(run: Configuration, model: TransformerConfig) -> Words | None:
    stages = {2: False, 3: True}
    if run.parallelism.zero_stage not in stages:
        return None
    words = {"fsdp_config.fsdp_reshard_after_forward": stages[run.parallelism.zero_stage]}
    return _with(words, _checkpointed(run, "fsdp_config.fsdp_activation_checkpointing"))


# What makes room, and what trains in another way, as readers of the formats understand it
# -----------------------------------------------------------------------------------------

_NAMES: Final = {ours: theirs for theirs, ours in reversed(PRODUCTS.items())}
_STATES_TO_HOST: Final = {"host optimizer": 1.0, "host gradients": 1.0}
_ADAM_8BIT: Final = {"moments": ("int8",)}
_FACTORED: Final = {"optimizer": "adafactor"}


def _optim(key: str) -> tuple[Saving, ...]:
    """Optimizers by the names of transformers."""
    return (
        Saving(decided=_ADAM_8BIT, words={key: "adamw_bnb_8bit"}),
        Saving(decided=_FACTORED, words={key: "adafactor"}),
        Saving(decided={"update": True}, words={key: "adamw_torch_fused"}),
    )


def _peft(keys: Mapping[str, str], bits: Callable[[int], Words] | None, **on: Any) -> Any:
    """Adapters by the keys for rank and targets, `on` what turns them on.

    `bits` spells how frozen weights are kept; None where a format has no words for that.
    """

    def spell(low_rank: LowRank) -> Words | None:
        targets = [_NAMES[each] for each in low_rank.targets]
        words = {**on, keys["rank"]: low_rank.rank, keys["targets"]: targets}
        if low_rank.bits is None:
            return words
        return None if bits is None or low_rank.is_wide else {**words, **bits(low_rank.bits)}

    return spell


def _loaded(bits: int) -> Words:
    return {f"load_in_{bits}bit": True}


_LORA: Final = {"rank": "lora_r", "targets": "lora_target_modules"}
_OF_TRL: Final = (
    Saving(decided={"loss": LOSS_CHUNKS["trl"]}, words={"loss_type": "chunked_nll"}),
    *_optim("optim"),
)
_STATES_BY_ZERO: Final = {
    "zero_optimization.offload_optimizer.device": "cpu",
    "zero_optimization.offload_optimizer.pin_memory": True,
}
_OF_DEEPSPEED: Final = (  # whose gradients follow from stage 2 on (`deepspeed.moved_by_zero`)
    Saving(decided=_STATES_TO_HOST, words=_STATES_BY_ZERO, stages=(2, 3)),
    Saving(decided={"host optimizer": 1.0}, words=_STATES_BY_ZERO, stages=(0, 1)),
    Saving(
        decided={"host weights": 1.0},
        words={
            "zero_optimization.offload_param.device": "cpu",
            "zero_optimization.offload_param.pin_memory": True,
        },
        stages=(3,),
    ),
)


def _by_fsdp(word: str) -> tuple[Saving, ...]:
    """FSDP moves all that it shards."""
    return (
        Saving(decided={**_STATES_TO_HOST, "host weights": 1.0}, words={word: True}, stages=(3,)),
        Saving(decided=_STATES_TO_HOST, words={word: True}, stages=(1, 2)),
    )


_OF_CORE: Final = (
    Saving(
        decided={"host optimizer": 1.0},
        words={
            "optimizer_cpu_offload": True,
            "optimizer_offload_fraction": 1.0,
            "use_precision_aware_optimizer": True,  # which Megatron asks for beside it
        },
    ),
    Saving(decided={"exchange": ("all_to_all", None)}, words={"cp_comm_type": "a2a"}),
    Saving(decided={"exchange": ("ring", None)}, words={"cp_comm_type": "p2p"}),
    Saving(decided={"gradients": "bf16"}, words={"grad_reduce_in_bf16": True}),
    Saving(
        decided={"moments": ("bf16",)},
        words={
            "use_precision_aware_optimizer": True,
            "exp_avg_dtype": "bf16",
            "exp_avg_sq_dtype": "bf16",
        },
    ),
)
_TO_HOST: Final = {"host activations": 1.0}
_QLORA: Final[Mapping[int, Words]] = {4: {"adapter": "qlora"}, 8: {}}

_TRAINER: Final = frozenset({"microbatch", "recompute"})
_SHARDED: Final = _TRAINER | {"zero"}
_OF_MEGATRON: Final = frozenset(
    {"tensor", "pipeline", "context", "expert", "sequence parallel", "zero", "copies", "mapping"}
    | {"microbatch", "recompute", "schedule", "split", "attention", "cross entropy"}
)
DIALECTS: Final[Mapping[str, Dialect]] = {
    "megatron": Dialect(
        decisions=_OF_MEGATRON,
        spell=_megatron,
        savings=_OF_CORE,
        target="megatron",
        flags=True,
        batch="global_batch_size",
    ),
    "megatron-bridge": Dialect(
        decisions=_OF_MEGATRON,
        spell=_megatron_bridge,
        target="megatron-bridge",
        batch="train.global_batch_size",
    ),
    "megatron-deepspeed": Dialect(
        decisions=_TRAINER | {"tensor", "pipeline", "sequence parallel"},
        spell=_megatron_deepspeed,
        flags=True,
        batch="global_batch_size",
    ),
    "torchtitan": Dialect(
        decisions=_SHARDED
        | {"tensor", "pipeline", "context", "expert", "sequence parallel", "copies", "schedule"},
        spell=_torchtitan,
        savings=(
            Saving(
                decided={"reduction": "bf16"}, words={"training.mixed_precision_reduce": "bfloat16"}
            ),
        ),
        target="torchtitan@0.2",
        batch="training.global_batch_size",
    ),
    "deepspeed": Dialect(
        decisions=frozenset({"microbatch", "zero"}),
        spell=_deepspeed,
        savings=(
            *_OF_DEEPSPEED,
            Saving(decided={"gradients": "bf16"}, words={"data_types.grad_accum_dtype": "bf16"}),
            Saving(decided={"reduction": "bf16"}, words={"communication_data_type": "bf16"}),
        ),
        target="deepspeed",
    ),
    "accelerate": Dialect(
        decisions=frozenset({"recompute", "zero"}),
        spell=_accelerate,
        savings=_by_fsdp("fsdp_config.fsdp_offload_params"),
        target="accelerate",
    ),
    "verl": Dialect(decisions=_TRAINER, spell=_verl),
    "trl": Dialect(
        decisions=_TRAINER,
        spell=_trainer("per_device_train_batch_size", "gradient_checkpointing"),
        savings=(
            *_OF_TRL,
            Saving(
                decided=_TO_HOST,
                words={"gradient_checkpointing_kwargs.offload": True},
                again=True,
            ),
        ),
        adapters=_peft(_LORA, _loaded, use_peft=True),
        in_16_bit={"dtype": "bfloat16"},
    ),
    "trl-script": Dialect(
        decisions=_TRAINER,
        spell=_trainer("per_device_train_batch_size", "gradient_checkpointing"),
        savings=_OF_TRL,
        adapters=_peft(_LORA, _loaded, use_peft=True),
        flags=True,
    ),
    "trainer-script": Dialect(  # a program of one's own, with the arguments of transformers alone
        decisions=_TRAINER,
        spell=_trainer("per_device_train_batch_size", "gradient_checkpointing"),
        savings=_optim("optim"),
        flags=True,
    ),
    "axolotl": Dialect(
        decisions=_TRAINER,
        spell=_trainer("micro_batch_size", "gradient_checkpointing"),
        savings=(
            *_optim("optimizer"),
            Saving(decided=_TO_HOST, words={"activation_offloading": True}, again=True),
        ),
        adapters=_peft(_LORA, lambda bits: {**_loaded(bits), **_QLORA[bits]}, adapter="lora"),
    ),
    "llamafactory": Dialect(
        decisions=_TRAINER,
        spell=_trainer("per_device_train_batch_size", "", "disable_gradient_checkpointing"),
        savings=_optim("optim"),
        adapters=_peft(
            {"rank": "lora_rank", "targets": "lora_target"},
            lambda bits: {"quantization_bit": bits},
            finetuning_type="lora",
        ),
    ),
    "automodel": Dialect(
        decisions=_SHARDED | {"tensor", "context", "expert", "sequence parallel", "copies"},
        spell=_automodel,
        adapters=_peft(
            {"rank": "peft.dim", "targets": "peft.target_modules"},
            None,
            **{"peft._target_": "nemo_automodel.components._peft.lora.PeftConfig"},
        ),
        target="automodel",
        batch="step_scheduler.global_batch_size",
    ),
    "torchtune": Dialect(
        decisions=_TRAINER,
        spell=_trainer("batch_size", "enable_activation_checkpointing"),
        savings=(
            Saving(decided=_TO_HOST, words={"enable_activation_offloading": True}, again=True),
            *_by_fsdp("fsdp_cpu_offload"),
            Saving(
                decided=_ADAM_8BIT,
                words={"optimizer._component_": "bitsandbytes.optim.AdamW8bit"},
            ),
        ),
    ),
    "neox": Dialect(
        decisions=_SHARDED | {"tensor", "pipeline"}, spell=_neox, savings=_OF_DEEPSPEED
    ),
    "nanotron": Dialect(
        decisions=_SHARDED | {"tensor", "pipeline"},
        spell=_nanotron,
        savings=(
            Saving(
                decided={"gradients": "bf16"}, words={"optimizer.accumulate_grad_in_fp32": False}
            ),
        ),
        target="nanotron",
    ),
    "llm-foundry": Dialect(
        decisions=_SHARDED,
        spell=_llm_foundry,
        savings=(Saving(decided=_TO_HOST, words={"fsdp_config.activation_cpu_offload": True}),),
    ),
    "olmo": Dialect(decisions=_SHARDED, spell=_olmo),
    "maxtext": Dialect(
        decisions=_TRAINER,
        spell=_maxtext,
        savings=(
            Saving(decided={"host optimizer": 1.0}, words={"optimizer_memory_host_offload": True}),
        ),
    ),
}
