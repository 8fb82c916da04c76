"""Reading documents back, whatever command wrote them: checked, or refused with every fault."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from trainwright.documents.printing import Report
from trainwright.documents.recheck import recheck
from trainwright.documents.registry import COMPARABLE, EXPLAINED, READABLE, REPORTED, records
from trainwright.errors import InvalidInput
from trainwright.formats.atomic_file import read_bytes
from trainwright.formats.document_json import decode_document
from trainwright.formats.json_text import parse_json

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from trainwright.documents.difference import WhatIfResult
    from trainwright.documents.improvement import ImprovementResult
    from trainwright.documents.mixed_plan import MixedPlanResult, MixedStageRecord
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
    Explained: TypeAlias = Comparable | MixedPlanResult | ImprovementResult
    AnyDocument: TypeAlias = str | Path | Report[Any] | Readable

OF_SEVERAL_POOLS: Final = (
    'must not be "mixed-plan": a plan on several kinds of devices can be shown (explain, report), '
    "and nothing else yet; plan again with what you would change, or on a cluster of one pool"
)


def read_document(
    path: str | Path, kinds: Collection[str], *, advice: Mapping[str, str] = MappingProxyType({})
) -> Any:
    """A document of these kinds as it is stored; raises `InvalidInput` with every fault.

    `advice` says of some other kinds what to do instead.
    """
    value = parse_json(read_bytes(path, name="document"), source=str(path))
    kind = value.get("kind") if isinstance(value, dict) else None
    known = {"mixed-plan": OF_SEVERAL_POOLS, **advice}
    if kind not in kinds and kind in known:
        raise InvalidInput.of("kind", known[kind], source=str(path))
    return decode_document(value, records(kinds), source=str(path))


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
    """Like `load_any_document`, and also plans on several kinds of devices, and improvements."""
    found: Explained = load(path, EXPLAINED)
    return found


def open_document(document: AnyDocument) -> Readable:
    """The plan, estimate or schedule document at a path, or the one a result carries."""
    found = document.document if isinstance(document, Report) else document
    return load_document(found) if isinstance(found, (str, Path)) else found


def open_model_plan(document: AnyDocument) -> ModelPlanResult:
    """A model's plan at a path, its figures checked, or the one a result carries.

    Raises `InvalidInput` for documents of other kinds.
    """
    found: Any = document.document if isinstance(document, Report) else document
    if isinstance(found, (str, Path)):
        found = load(found, ("model-plan",))
    if found.kind == "mixed-plan":
        raise InvalidInput.of("kind", OF_SEVERAL_POOLS)
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


def opened(given: Any) -> Iterator[tuple[Any, str]]:
    """The documents of a path or a result, each with its name; none where it has no file.

    A what-if is two plans. Raises `InvalidInput` for other kinds, naming those that have a page.
    """
    document = given.document if isinstance(given, Report) else given
    name = ""
    if isinstance(document, (str, Path)):
        name, document = Path(document).name, load(document, REPORTED, advice=_WITHOUT_PAGE)
    if document.kind == "whatif":
        start = f"{name}: " if name else ""
        yield document.before, f"{start}before"
        yield document.after, f"{start}after"
    else:
        yield document, name


# The answer of `plan`
# --------------------

if TYPE_CHECKING:
    Planned: TypeAlias = PlanResult | ModelPlanResult | MixedPlanResult | PlacementResult
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
        | tuple[MixedStageRecord, ...]
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
