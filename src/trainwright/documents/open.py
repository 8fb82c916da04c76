"""Reading documents back, whatever command wrote them: checked, or refused with every fault."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from trainwright.documents.printing import Report
from trainwright.documents.registry import (
    COMPARABLE,
    EXPLAINED,
    KINDS,
    OF_PLANS,
    READABLE,
    REPORTED,
    kind_of,
    part,
    records,
    where_it_goes,
)
from trainwright.errors import Fault, InvalidInput, refuse, sourced
from trainwright.formats.atomic_file import read_bytes
from trainwright.formats.document_json import content_hash, decode_document
from trainwright.formats.json_text import parse_json
from trainwright.options.inputs import inside
from trainwright.plans.plan import Embedded
from trainwright.plans.status import OPTIMAL_TOLERANCE, BoundKind, Status
from trainwright.provenance import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from trainwright.documents.difference import WhatIfResult
    from trainwright.documents.improvement import ImprovementResult
    from trainwright.documents.model_estimate import ModelEstimateResult
    from trainwright.documents.model_plan import ModelPlanResult, ModelStageRecord
    from trainwright.documents.placement import PlacedStageRecord, PlacementResult
    from trainwright.documents.profile_plan import EstimateResult, PlanResult, StageRecord
    from trainwright.documents.schedule import ScheduleResult
    from trainwright.documents.sweep import ModelSweepResult
    from trainwright.plans.status import Status

    Priced: TypeAlias = PlanResult | ModelPlanResult | EstimateResult
    Readable: TypeAlias = Priced | PlacementResult | ScheduleResult
    Comparable: TypeAlias = Readable | ModelEstimateResult | ModelSweepResult | WhatIfResult
    Explained: TypeAlias = Comparable | ImprovementResult
    AnyDocument: TypeAlias = str | Path | Report[Any] | Readable

# Whether a document still says what its own request makes of its decisions
# -------------------------------------------------------------------------
# A document carries its inputs and its decisions, so it can be made again; a file that was edited
# by hand says something else and is refused, each lying field by name with the value that it must
# have. What only the search knows (the bound, other plans' times, the reasons) is taken over and
# held against the rest. Prices of a profile or of given costs are a matter of definition;
# estimates, orders of families and bounds on schedules belong to the version that made them, so a
# document of another version is let through with a warning.


Document = TypeVar("Document")

_TOLERANCE: Final = 1e-9
_ROUNDING: Final = 1e-14  # of a gap or a bubble, which are differences of numbers near 1


def recheck(document: Document, *, source: str | None = None) -> Document:
    """The document itself, perhaps with a warning; raises `InvalidInput` with every contradiction.

    Costs what making it again costs without a search: reading the inputs that it carries and
    pricing its decisions. Documents inside it are checked first. `source` is the file that faults
    are of.
    """
    with sourced(source):
        found: Document = _rechecked(document)
    return found


def _rechecked(document: Any) -> Any:
    kind, request = kind_of(document), getattr(document, "request", None)
    refuse(_hash_faults(request, "request"))
    for name, inner in _inner_documents(document):
        with inside(name):
            document = replace(document, **{name: _rechecked(inner)})
    made = document if kind.remake is None else part(kind.remake)(document)
    changed, claims = tuple(changes(made, document)), tuple(_claim_faults(document))
    if changed and (kind.is_estimated or kind.lasting):
        version = document.request.trainwright_version
        if version == __version__:
            how = f"was edited, or made by another build of version {__version__}"
            fix = "make it anew with the command that wrote it"
            refuse((*changed, *claims, Fault("document", f"{how}; {fix}")))
        lasting = kind.lasting and tuple(changes(part(kind.lasting)(document), document))
        if not lasting:
            said = f"made by version {version}; {__version__} computes other figures: {changed[0]}"
            document = replace(document, warnings=(*document.warnings, said))
        changed = lasting or ()
    refuse((*changed, *claims))
    return document


def _inner_documents(document: Any) -> Iterator[tuple[str, Any]]:
    """The documents that are fields of this one: plans of a sweep, a what-if, an explanation."""
    for field in fields(document):
        value = getattr(document, field.name)
        if getattr(value, "kind", None) in KINDS and hasattr(value, "format_version"):
            yield field.name, value


def _hash_faults(value: Any, path: str) -> Iterator[Fault]:
    """Contents that their hash does not belong to, however deep in a request."""
    if isinstance(value, Embedded):
        if (found := content_hash(value.content)) != value.sha256:
            wanted = f'must be {found}, the hash of the content, got "{value.sha256}"'
            yield Fault(f"{path}.sha256", f"{wanted}; it was edited")
    elif is_dataclass(value):
        for field in fields(value):
            yield from _hash_faults(getattr(value, field.name), f"{path}.{field.name}")
    elif isinstance(value, tuple):
        for index, entry in enumerate(value):
            yield from _hash_faults(entry, f"{path}[{index}]")


# What status, bound and gap claim about each other
# -------------------------------------------------

# What an objective of a plan or a schedule is called under `objective`, and the figure it names.
_FIGURE_OF: Final = {
    "time_per_sample_s": "time_per_sample_s",
    "step_time_s": "step_time_s",
    "time_per_batch_s": "time_per_batch_s",
    "makespan": "makespan_s",
    "span": "span_s",
}


def _claim_faults(document: Any) -> Iterator[Fault]:
    """Of a plan or a schedule: the gap itself is one of its figures, and was made again."""
    figure = _FIGURE_OF.get(getattr(document, "objective", ""), "")
    decisions = next((n for n in ("orders", "stages") if hasattr(document, n)), None)
    if decisions is None or not hasattr(document, "status"):
        return
    if not hasattr(document, figure):
        known = " or ".join(name for name, key in _FIGURE_OF.items() if hasattr(document, key))
        yield Fault("objective", f'must be {known}, got "{document.objective}"')
        return
    time_s, bound_s, status = getattr(document, figure), document.lower_bound_s, document.status
    planned, decided = status in (Status.OPTIMAL, Status.GAP), bool(getattr(document, decisions))
    # orders that were given may break a limit: they are priced all the same
    over = status is Status.INFEASIBLE and getattr(document, "fits", None) is False
    if planned != decided and not (decided and over):
        having = f"{'with' if decided else 'without'} {decisions}"
        yield Fault("status", f'must fit a document {having}, got "{status}"')
    most_s = math.inf if time_s is None or not decided else time_s
    if bound_s is not None and not 0 <= bound_s <= most_s * (1 + _TOLERANCE):
        yield Fault("lower_bound_s", f"must be from 0 to the {most_s!r} found, got {bound_s!r}")
    if time_s is None or not decided:
        return
    for name in ("lower_bound_one_stage_s", "lower_bound_one_order_s"):
        own_s = getattr(document, name, None)
        if own_s is not None and not (bound_s or 0.0) <= own_s <= most_s * (1 + _TOLERANCE):
            wanted = f"must be from the {bound_s!r} of all plans to the {most_s!r} found"
            yield Fault(name, f"{wanted}, got {own_s!r}")
    is_proved = document.bound_kind is BoundKind.PROVED
    proved = is_proved and (document.gap or 0.0) <= OPTIMAL_TOLERANCE
    if status is Status.OPTIMAL and not proved:
        yield Fault("status", 'must be "gap" unless bound and time prove more, got "optimal"')


# Where a document differs from what it must be
# ---------------------------------------------


def changes(expected: Any, found: Any, path: str = "") -> Iterator[Fault]:
    """Every figure of `found` that differs from the expected one, leaf by leaf."""
    if expected is found:
        return
    for name, one, other in _members(expected, found):
        dot = "." if path and not name.startswith("[") else ""
        yield from changes(one, other, f"{path}{dot}{name}")
        found = expected
    if not _same(expected, found):
        yield Fault(path, f"must be {_shown(expected)}, as the request gives, got {_shown(found)}")


def _members(expected: Any, found: Any) -> Iterator[tuple[str, Any, Any]]:
    """Parts of two values of the same shape; nothing for leaves and other shapes."""
    if is_dataclass(expected) and type(expected) is type(found):
        for field in fields(expected):
            yield field.name, getattr(expected, field.name), getattr(found, field.name)
    elif isinstance(expected, tuple) and isinstance(found, tuple) and len(expected) == len(found):
        for index, pair in enumerate(zip(expected, found, strict=True)):
            yield f"[{index}]", *pair
    elif isinstance(expected, dict) and isinstance(found, dict) and expected.keys() == found.keys():
        for key, value in expected.items():
            yield f'["{key}"]', value, found[key]


def _same(expected: Any, found: Any) -> bool:
    if isinstance(expected, float) and isinstance(found, (int, float)):
        return math.isclose(expected, found, rel_tol=_TOLERANCE, abs_tol=_ROUNDING)
    return bool(expected == found)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"{len(value)} entries"
    return "nothing" if value is None else repr(value) if isinstance(value, float) else f"{value}"


# ----------------------------------------------------------------------------------------------


def read_document(
    path: str | Path, kinds: Collection[str], *, advice: Mapping[str, str] = MappingProxyType({})
) -> Any:
    """A document of these kinds as it is stored; raises `InvalidInput` with every fault.

    `advice` says of some other kinds what to do instead.
    """
    value = parse_json(read_bytes(path, name="document"), source=str(path))
    kind = value.get("kind") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind not in kinds and kind in advice:
        raise InvalidInput.of("kind", advice[kind], source=str(path))
    wanted = [own for own in kinds if own == kind] or kinds  # others only name what is wanted
    try:
        return decode_document(value, records(wanted), source=str(path))
    except InvalidInput as error:
        if not isinstance(kind, str) or kind in kinds or kind not in KINDS:
            raise
        problem = f"{error.faults[0].problem}; {where_it_goes(kind)}"
        raise InvalidInput.of("kind", problem, source=str(path)) from None


def load(
    path: str | Path, kinds: Collection[str], *, advice: Mapping[str, str] = MappingProxyType({})
) -> Any:
    """Read a document of these kinds and check its figures; every fault of the file is named."""
    return recheck(read_document(path, kinds, advice=advice), source=str(path))


def load_document(path: str | Path) -> Readable:
    """Load a plan, an estimate of a profile, a placement or a schedule."""
    found: Readable = load(path, READABLE)
    return found


def load_any_document(path: str | Path) -> Comparable:
    """Like `load_document`, and also estimates of a model, plans on several sizes, what-ifs."""
    found: Comparable = load(path, COMPARABLE)
    return found


def load_explained_document(path: str | Path) -> Explained:
    """Like `load_any_document`, and also improvements."""
    found: Explained = load(path, EXPLAINED)
    return found


def opened_by(read: Callable[[str | Path], Any], document: Any) -> Any:
    """The document at a path as `read` gives it, the one that a result carries, or as it is."""
    found = document.document if isinstance(document, Report) else document
    return read(found) if isinstance(found, (str, Path)) else found


def open_document(document: AnyDocument) -> Readable:
    """The plan, estimate or schedule document at a path, or the one a result carries."""
    found: Readable = opened_by(load_document, document)
    return found


def plan_meant(document: Any) -> Any:
    """The plan that a document about several stands for, or else the document.

    Of a what-if it is the plan with the changes, of a sweep that of its best row.
    """
    match getattr(document, "kind", None):
        case "whatif":
            return document.after
        case "model-explanation":
            return document.plan
        case "model-sweep":
            if document.best_plan is None:
                problem = f"no row of the sweep met its objective ({document.objective})"
                raise InvalidInput.of("document", f"{problem}: there is no plan that it stands for")
            return document.best_plan
    return document


def priced_plan(document: Any) -> Any:
    """The plan of which an estimate on several pools says the price, or else the document."""
    return (document.kind == "model-estimate" and document.plan) or document


_NO_CLUSTER: Final = (
    'must be "model-plan", a model\'s plan, got "plan", of a profile without --cluster: plan the '
    "profile again with what changes, such as --memory"
)


def open_model_plan(document: AnyDocument) -> ModelPlanResult:
    """A model's plan at a path, its figures checked, or the one a result carries.

    It may be on one pool or several, and stand in a document about several plans. Raises
    `InvalidInput` for documents of other kinds.
    """
    kinds = ("model-plan", "model-estimate", *OF_PLANS)
    read = partial(load, kinds=kinds, advice={"plan": _NO_CLUSTER})
    found = priced_plan(plan_meant(opened_by(read, document)))
    if found.kind == "plan":
        raise InvalidInput.of("kind", _NO_CLUSTER)
    if found.kind != "model-plan":
        raise InvalidInput.of("kind", f'must be "model-plan", a model\'s plan, got "{found.kind}"')
    plan: ModelPlanResult = found
    return plan


# Documents that have a page, from files or from results
# ------------------------------------------------------

_WITHOUT_PAGE: Final = {
    "diff": '"diff" has no page; put the two documents it compares on one: trainwright report A B',
    "export": '"export" has no page; put the plan or the estimate that was exported on one',
    "explanation": '"explanation" has no page; put the plan that it explains on one',
}


def opened(given: Any) -> Iterator[tuple[Any, str, str]]:
    """The documents of a path or a result, each with its name and its file; none where without.

    A what-if is two plans. Raises `InvalidInput` for other kinds, naming those that have a page.
    """
    document = given.document if isinstance(given, Report) else given
    name = ""
    if isinstance(document, (str, Path)):
        name, document = Path(document).name, load(document, REPORTED, advice=_WITHOUT_PAGE)
    if document.kind == "whatif":
        start = f"{name}: " if name else ""
        yield document.before, f"{start}before", ""
        yield document.after, f"{start}after", name
    else:
        yield document, name, name


# The answer of `plan`
# --------------------

if TYPE_CHECKING:
    Planned: TypeAlias = PlanResult | ModelPlanResult | PlacementResult
else:
    Planned: TypeAlias = Any


class Result(Report[Planned]):
    """The answer of `plan`: status, stages, times, and the proof's bound."""

    __slots__ = ()

    @property
    def status(self) -> Status:
        """How much is proved."""
        return self.document.status

    @property
    def stages(
        self,
    ) -> (
        tuple[StageRecord, ...]
        | tuple[ModelStageRecord, ...]
        | tuple[ModelStageRecord, ...]
        | tuple[PlacedStageRecord, ...]
    ):
        """Stages in pipeline order; empty without a plan."""
        return self.document.stages

    @property
    def time_per_sample_s(self) -> float | None:
        """Seconds per microbatch at steady state; `None` for a placement or without a plan."""
        return getattr(self.document, "time_per_sample_s", None)

    @property
    def time_per_batch_s(self) -> float | None:
        """Seconds of a batch; `None` without a placement."""
        return getattr(self.document, "time_per_batch_s", None)

    @property
    def step_time_s(self) -> float | None:
        """Predicted seconds of a training step; `None` for a profile or without a plan."""
        return getattr(self.document, "step_time_s", None)

    @property
    def lower_bound_s(self) -> float | None:
        """No plan of the searched space is faster than this."""
        return self.document.lower_bound_s

    @property
    def gap(self) -> float | None:
        """How far, relatively, the plan can be from the optimum at most."""
        return self.document.gap
