"""Unknown keywords of a public verb are refused: an option that is ignored is a wrong answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.errors import Fault, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

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
