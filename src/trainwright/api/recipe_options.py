"""How a model trains, as options that `estimate` and `plan` share, and back to words."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, TypedDict

from trainwright.errors import Fault, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trainwright.cluster import Accelerator
    from trainwright.model import Recipe
    from trainwright.plan.overlap import Overlap


class RecipeOptions(TypedDict, total=False):
    """Number formats, optimizer, dropout, exchanges; see `docs/costs.md` for the defaults.

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
    from trainwright.plan.overlap import Overlap

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
    from trainwright.plan.overlap import Overlap

    return Overlap(**(options.get("overlap") or {}))


def refuse_formats(recipe: Recipe, device: Accelerator) -> None:
    """Raise `InvalidInput` where the device does not multiply in the formats of the recipe."""
    from trainwright.plan.legality import precision_faults

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
