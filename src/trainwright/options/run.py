"""The options of a run, as `estimate` takes them, and the configuration they make."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final, TypedDict

from trainwright.errors import Fault, InvalidInput
from trainwright.options.clusters import LARGEST_CLUSTER
from trainwright.options.inputs import embed, naming_options
from trainwright.plans.plan import usual_schedule
from trainwright.units import parse_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trainwright.cluster import Accelerator
    from trainwright.model import LayerKind, LowRank, Recipe
    from trainwright.options.inputs import ModelInput
    from trainwright.options.question import ModelOptions
    from trainwright.plans.configuration import Configuration, MemoryOverheads, Overlap
    from trainwright.plans.parallelism import Parallelism


# How a model trains, as options that `estimate` and `plan` share, and back to words
# ----------------------------------------------------------------------------------


class RecipeOptions(TypedDict, total=False):
    """Number formats, optimizer, dropout, exchanges; `docs/cli-reference.md` has the defaults.

    `overlap` maps gradients, parameters, tensor, experts or pipeline to a share.
    """

    precision: str | None
    optimizer: str | None
    gradient_dtype: str | None
    main_weight_dtype: str | None
    moment_dtypes: Sequence[str] | None
    dropout: float | None
    context_exchange: str | None
    expert_imbalance: float | None
    capacity_factor: float | None
    dispatch_dtype: str | None
    token_dispatcher: str | None
    overlap: Mapping[str, float] | None


# Names of nouns' fields, as options.
RECIPE_OPTION_OF: Final = {
    "gradient_dtype": "gradient-dtype",
    "main_weight_dtype": "main-weight-dtype",
    "moment_dtypes": "moment-dtype",
    "context_exchange": "context-exchange",
    "expert_imbalance": "expert-imbalance",
    "capacity_factor": "capacity-factor",
    "dispatch_dtype": "dispatch-dtype",
    "token_dispatcher": "token-dispatcher",
}


def unknown_words(options: RecipeOptions) -> Iterator[Fault]:
    """Words of the options that name nothing."""
    from trainwright.model import ContextExchange, Optimizer, TokenDispatcher
    from trainwright.plans.configuration import Overlap

    for name, kind in (
        ("optimizer", Optimizer),
        ("context_exchange", ContextExchange),
        ("token_dispatcher", TokenDispatcher),
    ):
        word = _meant(options.get(name))
        if word is not None and word not in set(kind):
            offered = ", ".join(kind)
            yield Fault(name.replace("_", "-"), f'must be one of {offered}, got "{word}"')
    known = [field.name for field in fields(Overlap)]
    for kind_name in options.get("overlap") or {}:
        if kind_name not in known:
            yield Fault("overlap", f'must name {", ".join(known)}, got "{kind_name}"')


def _meant(word: Any) -> Any:
    """The word for what costs the same: AdamW decays weights, and keeps and computes as Adam."""
    return "adam" if word == "adamw" else word


def refuse_unknown_words(options: RecipeOptions) -> None:
    """Raise `InvalidInput` for words of the options that name nothing."""
    faults = tuple(unknown_words(options))
    if faults:
        raise InvalidInput(faults)


def recipe_of(options: RecipeOptions) -> Recipe:
    """The recipe; raises `InvalidInput` under the names of its fields."""
    from trainwright.model import ContextExchange, Optimizer, Recipe, TokenDispatcher

    words: dict[str, Callable[[Any], object]] = {
        "moment_dtypes": tuple,
        "optimizer": lambda word: Optimizer(_meant(word)),
        "context_exchange": ContextExchange,
        "token_dispatcher": TokenDispatcher,
    }
    given: dict[str, Any] = {}
    for name in RecipeOptions.__annotations__:
        value: Any = options.get(name)
        if name != "overlap" and value is not None and value not in ((), []):
            given[name] = words[name](value) if name in words else value
    return Recipe(**given)


def overlap_of(options: RecipeOptions) -> Overlap:
    """What hides; raises `InvalidInput` for what is no share."""
    from trainwright.plans.configuration import Overlap

    return Overlap(**(options.get("overlap") or {}))


def refuse_formats(recipe: Recipe, device: Accelerator) -> None:
    """Raise `InvalidInput` where the device does not multiply in the formats of the recipe."""
    from trainwright.plans.configuration import precision_faults

    faults = tuple(precision_faults(recipe.precision, device))
    if faults:
        raise InvalidInput(faults)


_OF_EXPERTS: Final = ("expert_imbalance", "capacity_factor", "dispatch_dtype", "token_dispatcher")


def without_effect(
    recipe: Recipe, *, model: str, expert_parallel: bool, experts: bool
) -> Iterator[str]:
    """Warnings about options that are about experts, where there are none or none travel."""
    if not experts:
        changed = [
            f"--{RECIPE_OPTION_OF[field.name]}"
            for field in fields(recipe)
            if field.name in _OF_EXPERTS and getattr(recipe, field.name) != field.default
        ]
        if changed:
            verb = "changes" if len(changed) == 1 else "change"
            yield f"{model} has no experts: {', '.join(changed)} {verb} nothing"
    elif not expert_parallel and (recipe.dispatch_dtype or recipe.dispatches_once):
        yield "dispatch-dtype, token-dispatcher: have no effect unless experts are dealt out (ep)"


def recipe_words(recipe: Recipe | None, overlap: Overlap | None) -> Iterator[str]:
    """The options as words of a command, where they differ from the defaults."""
    for field in fields(recipe) if recipe is not None else ():
        value = getattr(recipe, field.name)
        if value == field.default or field.name not in RecipeOptions.__annotations__:
            continue
        option = f"--{RECIPE_OPTION_OF.get(field.name, field.name)}"
        for each in value if isinstance(value, tuple) else (value,):
            yield from (option, str(each))
    for field in fields(overlap) if overlap is not None else ():
        if (share := getattr(overlap, field.name)) != field.default:
            yield from ("--overlap", f"{field.name}={share!r}")


# The options of a run, as `estimate` takes them, and the configuration they make
# -------------------------------------------------------------------------------


class RunOptions(RecipeOptions, total=False):
    """Everything about a run but model and cluster; `docs/cli-reference.md` has the defaults.

    `recompute` is none, selective, full, or full:N for the first N blocks of each stage; sizes are
    bytes or text with a unit.
    """

    tp: int | None
    pp: int | None
    dp: int | None
    cp: int | None
    ep: int | None
    etp: int | None
    zero: int | None
    mapping: str | None
    state_copies: int | None
    micro_batch: int | None
    global_batch: int | None
    sequence: int | None
    recompute: str | None
    recompute_modules: Sequence[str] | None
    schedule: str | None
    virtual_stages: int | None
    blocks: Sequence[int] | None
    sequence_parallel: bool | None
    flash_attention: bool | None
    fused_cross_entropy: bool | None
    vocabulary_multiple: int | None
    reserve: str | float | None
    workspace: str | float | None
    fragmentation: float | None
    lora_rank: int | None
    lora_targets: Sequence[str] | None
    lora_dropout: float | None
    freeze_blocks: int | None
    freeze: Sequence[str] | None


# Names of nouns' fields, as options.
OPTION_OF: Final = {
    "tensor": "tp",
    "tensor_parallel": "tp",
    "pipeline": "pp",
    "data": "dp",
    "context": "cp",
    "context_parallel": "cp",
    "expert": "ep",
    "expert_parallel": "ep",
    "expert_tensor": "etp",
    "expert_tensor_parallel": "etp",
    "zero_stage": "zero",
    "axis_order": "mapping",
    "state_copies": "state-copies",
    "microbatch_size": "micro-batch",
    "num_microbatches": "global-batch / (micro-batch x dp)",
    "global_batch": "global-batch",
    "sequence_length": "sequence",
    "virtual_stages": "virtual-stages",
    "recompute_blocks": "recompute",
    "selective_modules": "recompute-modules",
    "blocks_per_stage": "blocks",
    "vocabulary_multiple": "vocabulary-multiple",
    **RECIPE_OPTION_OF,
    "workspace_bytes": "workspace",
    "reserve_bytes": "reserve",
}


def configuration_of(options: RunOptions, *, num_devices: int | None) -> Configuration:
    """The run; degrees of data parallelism that are not given fill `num_devices`.

    Raises `InvalidInput` with every option that is missing or has no meaning.
    """
    from trainwright.plans.configuration import Configuration

    faults = [*_missing(options), *_beyond_all(options), *unknown_words(options)]
    if faults:
        raise InvalidInput(faults)
    degrees = _degrees(options, num_devices)
    mode, blocks = _recompute(options.get("recompute") or "none")
    given = {
        "recompute_modules": _tuple(options.get("recompute_modules")),
        "blocks_per_stage": _tuple(options.get("blocks")),
        "fused_attention": options.get("flash_attention"),
        "fused_cross_entropy": options.get("fused_cross_entropy"),
        "vocabulary_multiple": options.get("vocabulary_multiple"),
    }
    return Configuration(
        parallelism=degrees,
        microbatch_size=options.get("micro_batch") or 1,
        global_batch=options["global_batch"] or 1,
        sequence_length=options["sequence"] or 1,
        schedule=options.get("schedule") or usual_schedule(degrees.virtual_stages),
        recompute=mode,
        recompute_blocks=blocks,
        recipe=recipe_of(options),
        overlap=overlap_of(options),
        overheads=overheads_of(options),
        **_stated(given),
    )


def devices_asked_for(options: RunOptions) -> int | None:
    """The devices that the degrees multiply to, where data parallelism is among them."""
    data = options.get("dp")
    if data is None:
        return None
    return (options.get("tp") or 1) * (options.get("pp") or 1) * (options.get("cp") or 1) * data


def _missing(options: RunOptions) -> Iterator[Fault]:
    for name in ("global_batch", "sequence"):
        if options.get(name) is None:
            flag = name.replace("_", "-")
            yield Fault(flag, f"must be given for a model, as --{flag} N")


def _beyond_all(options: RunOptions) -> Iterator[Fault]:
    """Degrees larger than any machine, before anything is multiplied with them."""
    for name in ("tp", "pp", "dp", "cp", "ep", "etp"):
        degree = options.get(name)
        if isinstance(degree, int) and degree > LARGEST_CLUSTER:
            yield Fault(name, f"must be <= {LARGEST_CLUSTER}, got {degree}")


def _degrees(options: RunOptions, num_devices: int | None) -> Parallelism:
    from trainwright.plans.parallelism import DATA_INSIDE, Parallelism, mapping_named

    mapping = options.get("mapping")
    tensor, pipeline = options.get("tp") or 1, options.get("pp") or 1
    context = options.get("cp") or 1
    data = options.get("dp")
    if data is None:
        data = max(1, (num_devices or 1) // (tensor * pipeline * context))
    sequence_parallel = options.get("sequence_parallel")
    zero = options.get("zero")
    return Parallelism(
        tensor=tensor,
        pipeline=pipeline,
        data=data,
        context=context,
        expert=options.get("ep") or 1,
        expert_tensor=options.get("etp"),
        virtual_stages=options.get("virtual_stages") or 1,
        sequence_parallel=tensor > 1 if sequence_parallel is None else sequence_parallel,
        zero_stage=1 if zero is None else zero,
        state_copies=options.get("state_copies") or 1,
        axis_order=DATA_INSIDE if mapping is None else mapping_named(mapping),
    )


def _recompute(text: str) -> tuple[Any, int | None]:
    from trainwright.profile import Recompute

    mode, colon, count = text.partition(":")
    if mode not in set(Recompute) or (colon and not count.isdecimal()):
        offered = ", ".join((*Recompute, "full:N"))
        raise InvalidInput.of("recompute", f'must be one of {offered}, got "{text}"')
    return Recompute(mode), int(count) if colon else None


def overheads_of(options: RunOptions | ModelOptions) -> MemoryOverheads:
    """What a device keeps beside the model; raises `InvalidInput` under the names of fields."""
    from trainwright.plans.configuration import MemoryOverheads

    given = {
        "reserve_bytes": _bytes(options.get("reserve"), "reserve"),
        "workspace_bytes": _bytes(options.get("workspace"), "workspace"),
        "fragmentation": options.get("fragmentation"),
    }
    return MemoryOverheads(**_stated(given))


def _bytes(value: str | float | None, name: str) -> float | None:
    if isinstance(value, str) and value.strip() == "0":  # nothing, in any unit
        return 0.0
    return parse_memory(value, name=name) if isinstance(value, str) else value


def _tuple(values: Sequence[Any] | None) -> tuple[Any, ...] | None:
    return tuple(values) if values else None


def _stated(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


# Training a part of a model: options of `estimate` that freeze it or lay adapters beside it
# ------------------------------------------------------------------------------------------

DEFAULT_TARGETS = ("query", "value")  # as in Hu et al., LoRA, 2021, section 7.1
_OPTION_OF = {
    "tuning.low_rank.rank": "lora-rank",
    "tuning.low_rank.targets": "lora-targets",
    "tuning.low_rank.dropout": "lora-dropout",
    "tuning.num_frozen_blocks": "freeze-blocks",
}


def tuned(given: ModelInput, options: RunOptions) -> ModelInput:
    """The model with what `options` freezes; as it is where they say nothing of it.

    Raises `InvalidInput` for layers, ranks or targets that the model does not have, and where the
    folder of an adapter is given adapters again.
    """
    from trainwright.formats.document_json import encode
    from trainwright.model import RunShape, layer_graph

    rank, blocks = options.get("lora_rank"), options.get("freeze_blocks")
    kinds = options.get("freeze") or ()
    faults = tuple(_faults(given, options))
    if faults:
        raise InvalidInput(faults)
    if rank is None and not blocks and not kinds:
        return given
    before = given.config.tuning
    low_rank = before.low_rank if rank is None else _low_rank(options)
    with naming_options(_OPTION_OF):
        config = replace(
            given.config,
            tuning=replace(
                before,
                low_rank=low_rank,
                num_frozen_blocks=before.num_frozen_blocks if blocks is None else blocks,
                frozen_kinds=(*before.frozen_kinds, *_kinds(kinds)),
            ),
        )
        layer_graph(config, RunShape(microbatch_size=1, sequence_length=1))  # knows the targets
    name = given.embedded.name + "".join(_suffixes(rank, blocks, kinds))
    return replace(given, config=config, embedded=embed("model", name, encode(config)))


def _faults(given: ModelInput, options: RunOptions) -> Iterator[Fault]:
    from trainwright.model import LayerKind

    if options.get("lora_rank") is None:
        for name in ("lora_targets", "lora_dropout"):
            if options.get(name) is not None:
                yield Fault(name.replace("_", "-"), "needs --lora-rank N")
    elif given.config.tuning.low_rank is not None:
        yield Fault("lora-rank", "the model is an adapter's folder, which has its own")
    offered = [kind for kind in LayerKind if kind is not LayerKind.LOSS]
    for kind in options.get("freeze") or ():
        if kind not in offered:
            yield Fault("freeze", f'must be one of {", ".join(offered)}, got "{kind}"')


def _low_rank(options: RunOptions) -> LowRank:
    from trainwright.model import LowRank

    return LowRank(
        rank=options.get("lora_rank") or 0,
        targets=tuple(options.get("lora_targets") or DEFAULT_TARGETS),
        dropout=options.get("lora_dropout") or 0.0,
    )


def _kinds(names: Sequence[str]) -> Iterator[LayerKind]:
    from trainwright.model import LayerKind

    return (LayerKind(name) for name in dict.fromkeys(names))


def _suffixes(rank: int | None, blocks: int | None, kinds: Sequence[str]) -> Iterator[str]:
    if rank is not None:
        yield f" + LoRA rank {rank}"
    if blocks:
        yield f", {blocks} blocks frozen"
    if kinds:
        yield f", {', '.join(dict.fromkeys(kinds))} frozen"
