"""Options of another kind of input are refused: a plan without them answers another question."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from trainwright.api.inputs import PlacementInput
from trainwright.errors import Fault, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainwright.api.inputs import ProfileInput
    from trainwright.api.models import ModelInput


class Kind(StrEnum):
    """What an option may be for."""

    MODEL = "a model"
    PROFILE = "a profile"
    PLACEMENT = "a placement problem"


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
_DEFAULT_OF: Final = {"compare": False, "per_stage_degrees": False, "planner": "exact"}


def kind_of(given: ModelInput | ProfileInput | PlacementInput) -> Kind:
    """What was handed in."""
    from trainwright.api.models import ModelInput

    if isinstance(given, ModelInput):
        return Kind.MODEL
    return Kind.PLACEMENT if isinstance(given, PlacementInput) else Kind.PROFILE


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
    of_models = {} if kind is Kind.MODEL else of_models or {}
    table = {name: (Kind.MODEL, _INSTEAD.get(name, _MEASURED)) for name in of_models} | table
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
