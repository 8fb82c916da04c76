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
    from trainwright.api.calibrate import calibrate
    from trainwright.api.codesign import CodesignReport, codesign
    from trainwright.api.diff import diff
    from trainwright.api.estimate import estimate
    from trainwright.api.explain import explain
    from trainwright.api.export import export
    from trainwright.api.improve import improve
    from trainwright.api.plan import plan
    from trainwright.api.printed import Report
    from trainwright.api.profile import ProfileReport, import_layers, profile_model
    from trainwright.api.reasons import reasons
    from trainwright.api.report import Page, report
    from trainwright.api.result import Result
    from trainwright.api.schedule import schedule
    from trainwright.api.schedule_report import ScheduleReport
    from trainwright.api.sweep import sweep
    from trainwright.api.validate import validate
    from trainwright.api.verify import VerifyReport, verify
    from trainwright.api.what_if import what_if
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

# Where each public name lives; a program that prices one run need not load what draws pages.
_HOMES = {
    "api.calibrate": ("calibrate",),
    "api.codesign": (
        "CodesignReport",
        "codesign",
    ),
    "api.diff": ("diff",),
    "api.estimate": ("estimate",),
    "api.explain": ("explain",),
    "api.export": ("export",),
    "api.improve": ("improve",),
    "api.plan": ("plan",),
    "api.profile": (
        "ProfileReport",
        "import_layers",
        "profile_model",
    ),
    "api.reasons": ("reasons",),
    "api.report": (
        "Page",
        "report",
    ),
    "api.printed": ("Report",),
    "api.result": ("Result",),
    "api.schedule": ("schedule",),
    "api.schedule_report": ("ScheduleReport",),
    "api.sweep": ("sweep",),
    "api.validate": ("validate",),
    "api.verify": (
        "VerifyReport",
        "verify",
    ),
    "api.what_if": ("what_if",),
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
