"""trainwright: exact plans for training large models on many accelerators.

import trainwright

result = trainwright.plan("profile.json", devices=64, memory="80GiB")
print(result.explain())
result.save("plan.json")
"""

from importlib import import_module
from typing import Any

# Where each public name lives; a program that prices one run need not load what draws pages.
_HOMES = {
    "Budget": "execution",
    "CheckFailed": "errors",
    "CodesignReport": "commands.codesign",
    "Inexpressible": "errors",
    "Infeasible": "errors",
    "InvalidInput": "errors",
    "MissingExtra": "errors",
    "Page": "commands.report",
    "ProfileReport": "commands.profile",
    "Progress": "execution",
    "Report": "documents.printing",
    "Result": "documents.open",
    "ScheduleReport": "pages.schedule_report",
    "TrainwrightError": "errors",
    "UnsupportedFeature": "errors",
    "VerifyReport": "commands.verify",
    "__version__": "provenance",
    "calibrate": "commands.calibrate",
    "capture": "commands.capture",
    "codesign": "commands.codesign",
    "describe_model": "commands.model",
    "diff": "commands.diff",
    "estimate": "commands.estimate",
    "explain": "commands.explain",
    "export": "commands.export",
    "fit": "commands.fit",
    "import_layers": "commands.profile",
    "improve": "commands.improve",
    "plan": "commands.plan",
    "profile_model": "commands.profile",
    "reasons": "documents.explanation",
    "report": "commands.report",
    "schedule": "commands.schedule",
    "support": "commands.support",
    "sweep": "commands.sweep",
    "validate": "commands.validate",
    "verify": "commands.verify",
    "what_if": "commands.whatif",
}

# Listed in `trainwright.results`: what a call returns is rarely named.
_RESULTS = frozenset({"CodesignReport", "Page", "ProfileReport", "ScheduleReport", "VerifyReport"})

__all__ = [name for name in _HOMES if name not in _RESULTS]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
