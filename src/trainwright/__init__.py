"""trainwright: exact plans for training large models on many accelerators.

import trainwright

result = trainwright.plan("profile.json", devices=64, memory="80GiB")
print(result.explain())
result.save("plan.json")
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from trainwright._version import __version__

if TYPE_CHECKING:
    from trainwright.commands.calibrate import calibrate
    from trainwright.commands.codesign import CodesignReport, codesign
    from trainwright.commands.diff import diff
    from trainwright.commands.estimate import estimate
    from trainwright.commands.explain import explain
    from trainwright.commands.export import export
    from trainwright.commands.improve import improve
    from trainwright.commands.model import describe_model
    from trainwright.commands.plan import plan
    from trainwright.commands.profile import ProfileReport, import_layers, profile_model
    from trainwright.commands.report import Page, report
    from trainwright.commands.schedule import schedule
    from trainwright.commands.sweep import sweep
    from trainwright.commands.validate import validate
    from trainwright.commands.verify import VerifyReport, verify
    from trainwright.commands.whatif import what_if
    from trainwright.documents.explanation import reasons
    from trainwright.documents.open import Result
    from trainwright.documents.printing import Report
    from trainwright.errors import (
        CheckFailed,
        Inexpressible,
        Infeasible,
        InvalidInput,
        MissingExtra,
        TrainwrightError,
        UnsupportedFeature,
    )
    from trainwright.execution import Budget, Progress
    from trainwright.pages.schedule_report import ScheduleReport

# Where each public name lives; a program that prices one run need not load what draws pages.
_HOMES = {
    "commands.calibrate": ("calibrate",),
    "commands.codesign": (
        "CodesignReport",
        "codesign",
    ),
    "commands.diff": ("diff",),
    "commands.estimate": ("estimate",),
    "commands.explain": ("explain",),
    "commands.export": ("export",),
    "commands.improve": ("improve",),
    "commands.model": ("describe_model",),
    "commands.plan": ("plan",),
    "commands.profile": (
        "ProfileReport",
        "import_layers",
        "profile_model",
    ),
    "documents.explanation": ("reasons",),
    "commands.report": (
        "Page",
        "report",
    ),
    "documents.printing": ("Report",),
    "documents.open": ("Result",),
    "commands.schedule": ("schedule",),
    "pages.schedule_report": ("ScheduleReport",),
    "commands.sweep": ("sweep",),
    "commands.validate": ("validate",),
    "commands.verify": (
        "VerifyReport",
        "verify",
    ),
    "commands.whatif": ("what_if",),
    "errors": (
        "CheckFailed",
        "Inexpressible",
        "Infeasible",
        "InvalidInput",
        "MissingExtra",
        "TrainwrightError",
        "UnsupportedFeature",
    ),
    "execution": (
        "Budget",
        "Progress",
    ),
}


class _Public:
    """A public name of the package, loaded when it is first asked for.

    Two verbs share their name with a subpackage (`plan`, `codesign`). An import of that would bind
    it here, and is let pass: the name belongs to the verb.
    """

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def __get__(self, package: object, kind: type | None = None) -> Any:
        return getattr(import_module(self._module), self._name)

    def __set__(self, package: object, value: object) -> None:
        if not isinstance(value, ModuleType):
            raise AttributeError(f"trainwright.{self._name} cannot be replaced")


class _Package(ModuleType):
    """This package, with its public names."""

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


for _home, _names in _HOMES.items():
    for _name in _names:
        setattr(_Package, _name, _Public(f"{__name__}.{_home}", _name))
sys.modules[__name__].__class__ = _Package

__all__ = [
    "Budget",
    "CheckFailed",
    "CodesignReport",
    "Inexpressible",
    "Infeasible",
    "InvalidInput",
    "MissingExtra",
    "Page",
    "ProfileReport",
    "Progress",
    "Report",
    "Result",
    "ScheduleReport",
    "TrainwrightError",
    "UnsupportedFeature",
    "VerifyReport",
    "__version__",
    "calibrate",
    "codesign",
    "describe_model",
    "diff",
    "estimate",
    "explain",
    "export",
    "import_layers",
    "improve",
    "plan",
    "profile_model",
    "reasons",
    "report",
    "schedule",
    "sweep",
    "validate",
    "verify",
    "what_if",
]
