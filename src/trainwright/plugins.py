"""The door for somebody else's partitioner, schedule or cost model, held to the rules of our own.

A plug-in is a function, given where the option is asked in Python, or named in a package:

    [project.entry-points."trainwright.partitioners"]
    halves = "my_package:halves"

and then asked for by that name, on the command line too. What it returns is checked and priced by
the same evaluator, simulator and bounds as what this program finds itself.

partitioners (`planner`)
    `(profile, setting, restrictions) -> Plan | None`, None where it finds no plan.
schedules (`family`)
    `(FamilyRequest) -> Schedule`, or a `Family` that says more of its orders.
cost_models (`cost_model`)
    `(profile) -> Profile`: the same layers, other times and bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from trainwright.errors import Fault, InvalidInput, TrainwrightError, meant

PARTITIONERS: Final = "trainwright.partitioners"
SCHEDULES: Final = "trainwright.schedules"
COST_MODELS: Final = "trainwright.cost_models"

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlugIn:
    """A plug-in under the name that it has in documents, and the option that asked for it."""

    option: str
    name: str
    given: Any

    def call(self, kind: type[_Result], *arguments: object) -> _Result | None:
        """What it returns, a `kind` or None; raises `InvalidInput` with what went wrong in it."""
        try:
            found = self.given(*arguments)
        except TrainwrightError:
            raise
        except Exception as error:
            raise self.fault(f"raised {type(error).__name__}: {error}") from error
        if found is None or isinstance(found, kind):
            return found
        raise self.fault(f"must return a {kind.__name__}, got {type(found).__name__}")

    def fault(self, problem: str) -> InvalidInput:
        """What is wrong with it, under its name."""
        return InvalidInput.of(self.option, f"plug-in {self.name} {problem}")

    def faults(self, found: Iterable[Fault]) -> InvalidInput:
        """Rules that what it returned breaks."""
        told = (f"plug-in {self.name} breaks a rule: {each}" for each in found)
        return InvalidInput(Fault(self.option, each) for each in told)


def plug_in(
    option: str, group: str, given: str | Callable[..., Any], known: Iterable[str]
) -> PlugIn:
    """The plug-in that was given, or that a package registers under a name in `group`.

    Raises `InvalidInput` with the names that there are, `known` ones first.
    """
    from importlib.metadata import entry_points

    if not isinstance(given, str):
        name = getattr(given, "name", None) or getattr(given, "__name__", type(given).__name__)
        return PlugIn(option=option, name=str(name), given=given)
    found = entry_points(group=group)
    if given not in found.names:
        offered = "".join(f"{name}, " for name in (*known, *sorted(found.names)))
        wanted = f"must be {offered and 'one of '}{offered}{offered and 'or '}a plug-in of {group}"
        near = meant(given, (*known, *found.names))
        raise InvalidInput.of(option, f'{wanted}, got "{given}"{near}')
    try:
        return PlugIn(option=option, name=given, given=found[given].load())
    except Exception as error:
        whose = found[given].value
        problem = f"plug-in {given} ({whose}) cannot be loaded: {type(error).__name__}: {error}"
        raise InvalidInput.of(option, problem) from error
