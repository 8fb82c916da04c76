"""Options of another kind of input are refused: a plan without them answers another question."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from trainwright.errors import Fault, InvalidInput
from trainwright.options.inputs import PlacementInput
from trainwright.options.run import RecipeOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from trainwright.options.inputs import ModelInput, ProfileInput


# Unknown keywords of a public verb are refused: an option that is ignored is a wrong answer
# ------------------------------------------------------------------------------------------

_TIME_LIMIT = "time_limit"  # the command line's name of what a budget holds


def refuse_unknown(verb: Callable[..., Any], options: Mapping[str, object], known: type) -> None:
    """Raise `InvalidInput` for options that neither `known`, a `TypedDict`, nor the verb has.

    Each fault names the nearest option that there is.
    """
    unknown = [name for name in options if name not in known.__annotations__]
    if not unknown:
        return
    import difflib
    import inspect

    own = (
        name
        for name, each in inspect.signature(verb).parameters.items()
        if each.kind is not each.VAR_KEYWORD
    )
    offered = [*known.__annotations__, *own]
    faults = []
    for name in unknown:
        part_of = [option for option in offered if name in option.split("_")]
        nearest = part_of or difflib.get_close_matches(name, offered, n=1)
        hint = f'; did you mean "{nearest[0]}"?' if nearest else ""
        if name == _TIME_LIMIT and "budget" in offered:
            hint = "; give budget=Budget(time_limit_s=30)"
        faults.append(Fault(name, f"is no option of {verb.__name__}{hint}"))
    raise InvalidInput(faults)


# Options of another kind of input are refused: a plan without them answers another question
# ------------------------------------------------------------------------------------------


class Kind(StrEnum):
    """What an option may be for."""

    MODEL = "a model"
    PROFILE = "a profile"
    PLACEMENT = "a placement problem"
    MEASURED = "a profile on a cluster"
    FLAT = "a profile without --cluster"


# Of each kind of input, the options that are for another: whose they are, and what to do instead.
_NOT_OF_A_MODEL: Final = {
    "bandwidth": (
        Kind.PROFILE,
        "a model's links come from --cluster: edit its file, or ask whatif --bandwidth inter=RATE",
    ),
    "microbatches": (
        Kind.PROFILE,
        "those of a model follow from --global-batch, --micro-batch and --dp",
    ),
    "point": (Kind.PROFILE, "a model has no points; leave it out"),
    "time_unit": (Kind.PROFILE, "times of a model are seconds; leave it out"),
    "planner": (Kind.PROFILE, "a model has one planner; leave it out"),
    "block_layer": (Kind.PROFILE, "a model is not split by names of layers; leave it out"),
    "compare": (Kind.PROFILE, "plan a model with each restriction, as --pp 1, and ask diff"),
    "cost_model": (Kind.PLACEMENT, "costs of a model come from --cluster and --calibration"),
    "plan": (Kind.PROFILE, "a model is given its degrees, as --tp and --pp"),
}
_NOT_OF_A_PLACEMENT: Final = {
    "exclude_options": (Kind.PROFILE, "--no-recompute drops what recomputes"),
    "block_layer": (Kind.PROFILE, "leave it out"),
    "compare": (Kind.PROFILE, "leave it out"),
    "point": (Kind.PROFILE, "a placement problem has no points; leave it out"),
}
_NOT_OF_A_PROFILE: Final = {
    "cost_model": (Kind.PLACEMENT, "costs of a profile are its own; leave it out"),
}
_ON_A_CLUSTER: Final = "a profile on a cluster has one planner; leave out this or --cluster"
_NOT_OF_A_PROFILE_ON_A_CLUSTER: Final = {
    "bandwidth": (Kind.FLAT, "links are those of --cluster"),
    "microbatches": (Kind.FLAT, "the batch is given as --global-batch"),
    "planner": (Kind.FLAT, _ON_A_CLUSTER),
    "block_layer": (Kind.FLAT, _ON_A_CLUSTER),
    "compare": (Kind.FLAT, _ON_A_CLUSTER),
    "cost_model": (Kind.PLACEMENT, "costs of a profile are its own; leave it out"),
    "framework": (Kind.MODEL, "a profile does not say what a framework would build; leave it out"),
    "per_stage_degrees": (Kind.MODEL, "without --cluster stages of a profile differ in degrees"),
}
_MACHINE: Final = "the machine is given as --devices, --memory and --bandwidth"
_BATCH: Final = "the batch is given as --microbatches"
_MEASURED: Final = "a file with times and sizes states how it trains; leave it out"
# Every other option of a model has `_MEASURED` in its place.
_INSTEAD: Final = {
    "cluster": _MACHINE,
    "nodes": _MACHINE,
    "global_batch": _BATCH,
    "micro_batch": _BATCH,
    "recompute": "--no-recompute drops what recomputes",
}
_OPTION_OF: Final = {
    "zero_stage": "zero",
    "moment_dtypes": "moment-dtype",
    "recompute_modules": "recompute-module",
    "exclude_options": "exclude-option",
}
_HOW_A_MODEL_TRAINS: Final = tuple(
    name for name in RecipeOptions.__annotations__ if name != "overlap"
)
_DEFAULT_OF: Final = {"compare": False, "per_stage_degrees": False, "planner": "exact"}


def kind_of(given: ModelInput | ProfileInput | PlacementInput, *, on_cluster: bool = False) -> Kind:
    """What was handed in; a profile that is planned on a cluster is asked another question."""
    from trainwright.options.inputs import ModelInput

    if isinstance(given, ModelInput):
        return Kind.MODEL
    if isinstance(given, PlacementInput):
        return Kind.PLACEMENT
    return Kind.MEASURED if on_cluster else Kind.PROFILE


def given_foreign(
    kind: Kind, options: Mapping[str, object], of_models: Mapping[str, object] | None = None
) -> tuple[Fault, ...]:
    """A fault for every option that was given and is not for an input of this kind.

    `options` and `of_models`, those that only a model has, are values by keyword.
    """
    table: Mapping[str, tuple[Kind, str]]
    match kind:
        case Kind.MODEL:
            table = _NOT_OF_A_MODEL
        case Kind.PROFILE:
            table = _NOT_OF_A_PROFILE
        case Kind.PLACEMENT:
            table = _NOT_OF_A_PLACEMENT
        case _:
            table = _NOT_OF_A_PROFILE_ON_A_CLUSTER
    of_models = of_models or {}
    foreign: Iterable[str] = of_models
    if kind in (Kind.MODEL, Kind.MEASURED):
        foreign = () if kind is Kind.MODEL else _HOW_A_MODEL_TRAINS
    table = {name: (Kind.MODEL, _INSTEAD.get(name, _MEASURED)) for name in foreign} | table
    return tuple(
        Fault(_option(name), f"must be given for {whose} only; {instead}")
        for name, (whose, instead) in table.items()
        if _was_given(name, {**options, **of_models}.get(name))
    )


def refuse_foreign(
    kind: Kind, options: Mapping[str, object], of_models: Mapping[str, object] | None = None
) -> None:
    """Raise `InvalidInput` with all faults of `given_foreign`."""
    if faults := given_foreign(kind, options, of_models):
        raise InvalidInput(faults)


def _option(name: str) -> str:
    return _OPTION_OF.get(name, name.replace("_", "-"))


def _was_given(name: str, value: object) -> bool:
    return value not in (None, (), []) and value != _DEFAULT_OF.get(name)
