"""trainwright: exact plans for training large models on many accelerators.

import trainwright

result = trainwright.plan("profile.json", devices=64, memory="80GiB")
print(result.explain())
result.save("plan.json")
"""

from importlib import import_module

from trainwright._version import __version__

# A package and the verb of its command share a name, twice. The packages are bound first, so that
# a later import of them does not take the name back from the verb.
import_module("trainwright.plan")
import_module("trainwright.codesign")

from trainwright.api.calibrate import calibrate  # noqa: E402
from trainwright.api.codesign import CodesignReport, codesign  # noqa: E402
from trainwright.api.diff import diff  # noqa: E402
from trainwright.api.estimate import estimate  # noqa: E402
from trainwright.api.explain import explain  # noqa: E402
from trainwright.api.export import export  # noqa: E402
from trainwright.api.improve import improve  # noqa: E402
from trainwright.api.plan import plan  # noqa: E402
from trainwright.api.profile import ProfileReport, import_layers, profile_model  # noqa: E402
from trainwright.api.reasons import reasons  # noqa: E402
from trainwright.api.report import Page, report  # noqa: E402
from trainwright.api.result import Report, Result  # noqa: E402
from trainwright.api.schedule import schedule  # noqa: E402
from trainwright.api.schedule_report import ScheduleReport  # noqa: E402
from trainwright.api.sweep import sweep  # noqa: E402
from trainwright.api.validate import validate  # noqa: E402
from trainwright.api.what_if import what_if  # noqa: E402
from trainwright.errors import (  # noqa: E402
    CheckFailed,
    Inexpressible,
    Infeasible,
    InvalidInput,
    MissingExtra,
    TrainwrightError,
    UnsupportedFeature,
)
from trainwright.execution import Budget, Progress  # noqa: E402

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
    "what_if",
]
