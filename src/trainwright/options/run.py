"""The options of a run, as `estimate` takes them, and the configuration they make."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from trainwright.errors import Fault, InvalidInput, one_of, refuse
from trainwright.formats.document_json import encode
from trainwright.model import NO_OFFLOAD, LayerKind, LowRank, Offload, Recipe, layer_graph
from trainwright.model.config import TRAIN_ALL, Tuning
from trainwright.model.operator import MODULE_NAMES
from trainwright.model.recipe import optimizer_named
from trainwright.model.transformer import linear_targets, usual_targets
from trainwright.options.clusters import ANY_FRAMEWORK, LARGEST_CLUSTER
from trainwright.options.inputs import ModelInput, embed, naming_options
from trainwright.options.option import Options
from trainwright.options.table import fields_given, option_of
from trainwright.plans import configuration
from trainwright.plans.plan import Parallelism, mapping_named, usual_schedule
from trainwright.profile import Recompute

if TYPE_CHECKING:
    from trainwright.cluster import Accelerator, Cluster
    from trainwright.model import TransformerConfig


# How a model trains: from options to the nouns that the table names
# ------------------------------------------------------------------


def unknown_words(options: Options) -> Iterator[Fault]:
    """Words of the options that name nothing."""
    flags = option_of("plan")
    words = fields_given("plan", "recipe", options)
    for field in fields(Recipe):
        word = words.get(field.name)
        if field.name == "optimizer" and _OPTIMIZER.fullmatch(str(word)):
            continue
        if isinstance(field.default, StrEnum) and word is not None:
            kind = type(field.default)
            if word not in set(kind):
                yield Fault(flags[field.name], one_of(kind, word))
    known = [field.name for field in fields(configuration.Overlap)]
    for kind_name in options.get("overlap") or {}:
        if kind_name not in known:
            yield Fault("overlap", one_of(known, kind_name))


# Names of optimizers as transformers' `optim` spells them, as paged_adamw_8bit.
_OPTIMIZER: Final = re.compile(
    r"(?:paged_)?(?:adamw?|lion|adafactor|sgd|momentum|muon|adagrad)"
    r"(?:_(?:torch|fused|hf|apex|xla|tpu|npu|bnb|anyprecision|8bit|32bit))*"
)


def refuse_unknown_words(options: Options) -> None:
    """Raise `InvalidInput` for words of the options that name nothing."""
    refuse(unknown_words(options))


def recipe_of(options: Options) -> Recipe:
    """The recipe; raises `InvalidInput` under the names of its fields."""
    given = fields_given("plan", "recipe", options)
    if (named := optimizer_named(str(given.get("optimizer", "")))) is not None:
        given["optimizer"], dtype = named
        if dtype is not None and given["optimizer"].num_moments:
            given.setdefault("moment_dtypes", (dtype,))
    for field in fields(Recipe):
        if field.name in given and isinstance(field.default, (StrEnum, tuple)):
            given[field.name] = type(field.default)(given[field.name])
    if given.get("loss_chunk") == 0:
        del given["loss_chunk"]
    if "offload" in given:
        given["offload"] = _offload(given["offload"])
    found = Recipe(**given)
    if found.offload_modules and not (found.offload or NO_OFFLOAD).activations:
        raise InvalidInput.of("offload_modules", "needs --offload activations=SHARE beside it")
    return found


def as_program_trains(options: Options, device: Accelerator) -> Options:
    """The options with what the program does by itself of which they say nothing.

    It is the framework that is named, or else the software.
    """
    from trainwright.plans.capability import known_target
    from trainwright.plans.capability_table import own_choices

    named = options.get("framework")
    program = (options.get("software") if named in (None, ANY_FRAMEWORK) else named) or ""
    precision = options.get("precision") or device.default_precision
    target, zero = known_target(program) or program, options.get("zero")
    own = own_choices(target, precision, program=program, zero=zero)
    return {**options, **{n: each for n, each in own.items() if options.get(n) is None}}


def _offload(shares: Mapping[str, float]) -> Offload | None:
    """What lies on the host; None where nothing does."""
    known = [each.name for each in fields(Offload)]
    shares = {name: share for name, share in shares.items() if share}
    refuse(Fault("offload", one_of(known, name)) for name in shares if name not in known)
    found = Offload(**shares)
    return None if found == NO_OFFLOAD else found


def overlap_of(options: Options) -> configuration.Overlap:
    """What hides; raises `InvalidInput` for what is no share."""
    return configuration.Overlap(**(options.get("overlap") or {}))


def refuse_formats(recipe: Recipe, device: Accelerator) -> None:
    """Raise `InvalidInput` where the device does not multiply in the formats of the recipe."""
    refuse(configuration.precision_faults(recipe.precision, device))


_OF_EXPERTS: Final = (
    *("expert_imbalance", "expert_loads", "capacity_factor"),
    *("dispatch_dtype", "token_dispatcher"),
)


def without_effect(
    recipe: Recipe, *, model: str, expert_parallel: bool, experts: bool
) -> Iterator[str]:
    """Warnings about options that are about experts, where there are none or none travel."""
    if not experts:
        changed = [
            f"--{option_of('plan')[field.name]}"
            for field in fields(recipe)
            if field.name in _OF_EXPERTS and getattr(recipe, field.name) != field.default
        ]
        if changed:
            verb = "changes" if len(changed) == 1 else "change"
            yield f"{model} has no experts: {', '.join(changed)} {verb} nothing"
    elif not expert_parallel and (recipe.dispatch_dtype or recipe.dispatches_once):
        yield "dispatch-dtype, token-dispatcher: have no effect unless experts are dealt out (ep)"


def overlap_not_taken(overlap: configuration.Overlap, cluster: Cluster) -> Iterator[str]:
    """What of an overlap the efficiencies of devices hold already, and how to count it."""
    held = dict.fromkeys(name for pool in cluster.pools for name in pool.accelerator.held_overlap)
    for name in held:
        if share := getattr(overlap, name):
            yield (
                f"overlap: {name}={share:g} leaves the step as it is, for the efficiencies hold "
                "what the runs behind them hid, which they do not say; --calibration none, or one "
                "of your own logs, counts it"
            )


# The options of a run, as `estimate` takes them, and the configuration they make
# -------------------------------------------------------------------------------

OPTION_OF: Final = {
    **option_of("estimate"),
    "num_microbatches": "global-batch / (micro-batch x dp)",
}


def configuration_of(options: Options, *, num_devices: int | None) -> configuration.Configuration:
    """The run; degrees of data parallelism that are not given fill `num_devices`.

    Raises `InvalidInput` with every option that is missing or has no meaning.
    """
    faults = [*_missing(options), *_beyond_all(options), *unknown_words(options)]
    if faults:
        raise InvalidInput(faults)
    degrees = _degrees(options, num_devices)
    mode, blocks = _recompute(options.get("recompute") or "none")
    given = {name: _kept(value) for name, value in fields_given("estimate", "run", options).items()}
    return configuration.Configuration(
        parallelism=degrees,
        recompute=mode,
        recompute_blocks=blocks,
        recipe=recipe_of(options),
        overlap=overlap_of(options),
        overheads=overheads_of(options),
        **{
            "microbatch_size": 1,
            "schedule": usual_schedule(degrees.virtual_stages),
            **given,
            "recompute_modules": modules_of(options),
        },
    )


def modules_of(options: Options) -> tuple[str, ...] | None:
    """What "selective" repeats, by our names; None where no module is named."""
    named = options.get("recompute_module")
    return tuple(dict.fromkeys(MODULE_NAMES.get(name, name) for name in named)) if named else None


def _kept(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def devices_asked_for(options: Options) -> int | None:
    """The devices that the degrees multiply to, where data parallelism is among them."""
    data: int | None = options.get("dp")
    if data is None:
        return None
    for name in ("tp", "pp", "cp"):
        data *= options.get(name) or 1
    return data


def _missing(options: Options) -> Iterator[Fault]:
    for name in ("global_batch", "sequence"):
        if options.get(name) is None:
            flag = name.replace("_", "-")
            yield Fault(flag, f"must be given, as --{flag} N")


def _beyond_all(options: Options) -> Iterator[Fault]:
    """Degrees larger than any machine, before anything is multiplied with them."""
    for name in ("tp", "pp", "dp", "cp", "ep", "etp"):
        degree = options.get(name)
        if isinstance(degree, int) and degree > LARGEST_CLUSTER:
            yield Fault(name, f"must be <= {LARGEST_CLUSTER}, got {degree}")


def _degrees(options: Options, num_devices: int | None) -> Parallelism:
    given = fields_given("estimate", "parallelism", options)
    tensor = given.get("tensor", 1)
    group = tensor * given.get("pipeline", 1) * given.get("context", 1)
    if (mapping := given.pop("axis_order", None)) is not None:
        given["axis_order"] = mapping_named(mapping)
    usual = {
        "data": max(1, (num_devices or 1) // group),
        "sequence_parallel": tensor > 1,
        "zero_stage": 1,
    }
    return Parallelism(**{**usual, **given})


def _recompute(text: str) -> tuple[Any, int | None]:
    mode, colon, count = text.partition(":")
    if mode not in set(Recompute) or (colon and not count.isdecimal()):
        raise InvalidInput.of("recompute", one_of((*Recompute, "offload:N", "full:N"), text))
    return Recompute(mode), int(count) if colon else None


def overheads_of(options: Options) -> configuration.MemoryOverheads:
    """What a device keeps beside the model; raises `InvalidInput` under the names of fields."""
    given = fields_given("plan", "overheads", options)
    return replace(
        configuration.overheads_at(
            given.get("fit_probability", configuration.USUAL_FIT_PROBABILITY)
        ),
        **given,
    )


# Images beside text, and layers that predict further tokens
# ---------------------------------------------------------


def as_trained(given: ModelInput, options: Options) -> ModelInput:
    """The model with the images and the layers for further tokens that `options` say."""
    return with_images(_predicting(given, options.get("mtp_layers")), options)


def _changed(given: ModelInput, config: TransformerConfig, name: str) -> ModelInput:
    return replace(given, config=config, embedded=embed("model", name, encode(config)))


def _predicting(given: ModelInput, count: int | None) -> ModelInput:
    """With so many of the layers for further tokens that the model's file names."""
    config = config_predicting(given.config, count, name=given.embedded.name)
    if config == given.config:
        return given

    name = f"{given.embedded.name}, {count or 'no'} MTP layer{'s' * (count != 1)}"
    return _changed(given, config, name)


def config_predicting(
    config: TransformerConfig, count: int | None, *, name: str
) -> TransformerConfig:
    """With so many of its layers for further tokens, all where None; `InvalidInput` for more."""
    own = config.num_mtp_layers
    if count is None or count == own:
        return config
    if count > own:
        problem = f"must be at most {own}, as {name} has, got {count}"
        raise InvalidInput.of("mtp-layers", problem)
    return replace(config, num_mtp_layers=count)


def with_images(given: ModelInput, options: Options) -> ModelInput:
    """The model with as many images in a sequence as `options` say, of their size."""
    count, pixels = options.get("images") or 0, options.get("image_size")
    if not count and pixels is None:
        return given

    config = config_with_images(
        given.config,
        name=given.embedded.name,
        count=count,
        pixels=pixels,
        sequence=options.get("sequence"),
    )
    seen = f"image{'s' if count > 1 else ''}"
    if config.towers[0].name == "sound":
        seen = f"window{'s' if count > 1 else ''} of sound"
    name = f"{given.embedded.name}, {count} {seen}"
    return _changed(given, config, name)


def config_with_images(
    config: TransformerConfig,
    *,
    name: str,
    count: int,
    pixels: int | None = None,
    sequence: int | None = None,
) -> TransformerConfig:
    """The model `name` with `count` images in a sequence, of `pixels` a side where it may choose.

    Raises `InvalidInput` for a model without an encoder, an image size that is fixed, and images
    that leave a `sequence` of tokens no room for text.
    """
    towers, faults = config.towers, []
    if not towers or config.crosses:
        faults.append(Fault("images", f"{name} takes no images; leave it out"))
    elif pixels is not None and not count:
        faults.append(Fault("image-size", "needs --images N"))
    elif pixels is not None and all(tower.patch_pixels is None for tower in towers):
        faults.append(Fault("image-size", "the model's images have one size; leave it out"))
    if pixels is not None:
        towers = tuple(tower.resized(pixels) for tower in towers)
    needed = count * sum(tower.tokens for tower in towers)
    if not faults and sequence is not None and needed > sequence:
        each = needed // count
        problem = f"must leave room: {count} x {each} tokens of images, {sequence} in a sequence"
        faults.append(Fault("images", problem))
    if faults:
        raise InvalidInput(tuple(faults))
    return replace(config, towers=towers, images=count)


# Training a part of a model: options of `estimate` that freeze it or lay adapters beside it
# ------------------------------------------------------------------------------------------

ALL_TARGETS = "all"  # every product of the model's blocks that an adapter can lie beside
USUAL_TARGETS = "usual"  # of a traced model: query and value where it has them, else all
TUNING_OPTIONS = (
    "lora_rank",
    "lora_targets",
    "lora_dropout",
    "weight_bits",
    "freeze_blocks",
    "freeze",
    "reference",
)


def tuned(given: ModelInput, options: Options) -> ModelInput:
    """The model with what `options` freezes; as it is where they say nothing of it.

    Raises `InvalidInput` for layers, ranks or targets that the model does not have, and where the
    folder of an adapter is given adapters again.
    """
    before = given.config.tuning
    if before.low_rank is not None and options.get("lora_rank") is not None:
        raise InvalidInput.of("lora-rank", "the model is an adapter's folder, which has its own")
    tuning = tuning_asked(options, given.config)
    if tuning == before:
        return given
    with naming_options(OPTION_OF):
        config = replace(given.config, tuning=tuning)
        layer_graph(config)  # knows the targets
    name = given.embedded.name + tuning_suffix(options)
    return _changed(given, config, name)


def tuning_asked(options: Options, model: TransformerConfig | None) -> Tuning:
    """What `options` freeze of a model beside what is frozen already; None is one to be traced.

    Raises `InvalidInput` for options that need another one, and for kinds of layers that there are
    not.
    """
    refuse(_faults(options))
    before = TRAIN_ALL if model is None else model.tuning
    rank, blocks = options.get("lora_rank"), options.get("freeze_blocks")
    kinds = dict.fromkeys(options.get("freeze") or ())
    return replace(
        before,
        low_rank=before.low_rank if rank is None else _low_rank(rank, options, model),
        num_frozen_blocks=before.num_frozen_blocks if blocks is None else blocks,
        frozen_kinds=(*before.frozen_kinds, *map(LayerKind, kinds)),
        reference=before.reference or bool(options.get("reference")),
    )


def _faults(options: Options) -> Iterator[Fault]:
    if options.get("lora_rank") is None:
        for name in ("lora_targets", "lora_dropout", "weight_bits"):
            if options.get(name) is not None:
                yield Fault(name.replace("_", "-"), "needs --lora-rank N")
    offered = [kind for kind in LayerKind if kind is not LayerKind.LOSS]
    for kind in options.get("freeze") or ():
        if kind not in offered:
            yield Fault("freeze", one_of(offered, kind))


def _low_rank(rank: int, options: Options, model: TransformerConfig | None) -> LowRank:
    targets = tuple(options.get("lora_targets") or ())
    if model is None:  # whose products only its trace shows
        targets = targets or (USUAL_TARGETS,)
    elif targets in ((), (ALL_TARGETS,)):
        targets = linear_targets(model) if targets else usual_targets(model)
    return LowRank(
        rank=rank,
        targets=targets,
        dropout=options.get("lora_dropout") or 0.0,
        bits=options.get("weight_bits"),
    )


def tuning_suffix(options: Options) -> str:
    """What a model is called beside its name where `options` freeze a part of it."""
    rank, bits = options.get("lora_rank"), options.get("weight_bits")
    blocks, kinds = options.get("freeze_blocks"), options.get("freeze") or ()
    parts = []
    if rank is not None:
        parts.append(f" + LoRA rank {rank}" + (f" over {bits} bit" if bits else ""))
    if blocks:
        parts.append(f", {blocks} blocks frozen")
    if kinds:
        parts.append(f", {', '.join(dict.fromkeys(kinds))} frozen")
    if options.get("reference"):
        parts.append(" beside a reference")
    return "".join(parts)
