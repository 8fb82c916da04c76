"""`trainwright codesign`: the best accelerator and the plans that train models on it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trainwright.api.codesign_request import (
    Quantity,
    job_record,
    make_request,
    question_of,
    rules_record,
    surroundings_records,
)
from trainwright.api.result import Report
from trainwright.errors import CheckFailed, InvalidInput
from trainwright.plan.results.codesign import (
    CodesignRequest,
    CodesignResult,
    JobRecord,
    RecheckRecord,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainwright.codesign.area import DieModel
    from trainwright.codesign.question import CodesignQuestion
    from trainwright.codesign.search import CodesignOutcome
    from trainwright.execution import Budget
    from trainwright.plan.status import Status

DEFAULT_EPSILON: Final = 0.02
RECOMPUTE_MODES: Final = ("none", "full")


class CodesignReport(Report[CodesignResult]):
    """The answer of `codesign`: the best design, its proof, the front."""

    __slots__ = ()

    @property
    def status(self) -> Status:
        """How much is proved."""
        return self.document.status


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """What to work out beside the best design."""

    pareto: bool = True
    epsilon: float = DEFAULT_EPSILON
    details: bool = True  # operators, sensitivity, fixed strategies, real chips
    search: str = "exact"
    csv: Path | None = None
    recheck_sample: int = 0
    seed: int = 0


def codesign(
    models: Sequence[str | Path] | str | Path,
    *,
    devices: int,
    global_batch: int | None = None,
    sequence: int | None = None,
    micro_batch: Sequence[int] = (1,),
    tensor_parallel: Sequence[int] | None = None,
    recompute: Sequence[str] = RECOMPUTE_MODES,
    memory: Sequence[Quantity] | None = None,
    memory_bandwidth: Sequence[Quantity] | None = None,
    link_bandwidth: Sequence[Quantity] | None = None,
    clock_hz: Sequence[float] | None = None,
    weights: Sequence[float] | None = None,
    objective: str = "geometric",
    max_area_mm2: float | None = None,
    least_area_share: float | None = None,
    ranges: Mapping[str, Sequence[int]] | None = None,
    max_power_watts: float | None = None,
    energy: Mapping[str, float] | None = None,
    die: DieModel | None = None,
    extras: Extras | None = None,
    budget: Budget | None = None,
) -> CodesignReport:
    """Search all chip designs within an area for the one that trains `models` fastest.

    `memory`, `memory_bandwidth`, `link_bandwidth` (numbers in SI, or text with a unit) and
    `clock_hz` list values that the search may choose from, `micro_batch` sizes of a microbatch.
    `weights` are shares of the models in `objective`. Areas are of cores and buffers. `ranges`
    replaces values of num_tc, num_vc, width, depth or glb_mib; `energy` entries of the energy
    table. `die` adds the rest of the die and its cost.

    Raises `InvalidInput` with everything wrong with the request.
    """
    from trainwright.execution import Budget as NoLimit

    names = [models] if isinstance(models, (str, Path)) else list(models)
    shares = list(weights) if weights is not None else [1.0] * len(names)
    if len(shares) != len(names):
        raise InvalidInput.of("weights", f"must be {len(names)} numbers, got {len(shares)}")
    jobs: list[JobRecord] = []
    warnings: list[str] = []
    for name, share in zip(names, shares, strict=True):
        record, notes = job_record(
            name,
            sequence=sequence,
            global_batch=global_batch,
            tensor_degrees=tensor_parallel,
            recompute=recompute,
            weight=share,
        )
        jobs.append(record)
        warnings += notes
    request = make_request(
        jobs,
        num_devices=devices,
        rules=rules_record(max_area_mm2=max_area_mm2, least_share=least_area_share, ranges=ranges),
        surroundings=surroundings_records(
            memory=memory,
            memory_bandwidth=memory_bandwidth,
            link_bandwidth=link_bandwidth,
            clock_hz=clock_hz,
        ),
        microbatch_sizes=micro_batch,
        objective=objective,
        energy=energy,
        max_power_watts=max_power_watts,
    )
    report = run_request(request, extras=extras or Extras(), die=die, budget=budget or NoLimit())
    return CodesignReport(replace(report.document, warnings=tuple(warnings)))


def run_request(
    request: CodesignRequest, *, extras: Extras, budget: Budget, die: DieModel | None = None
) -> CodesignReport:
    """Answer a request, from options or from a document."""
    from trainwright.api.codesign_document import result_of
    from trainwright.codesign.descending import descending_area_search
    from trainwright.codesign.search import search

    searches = {"exact": search, "descending-area": descending_area_search}
    if extras.search not in searches:
        wanted = f"must be one of {', '.join(searches)}"
        raise InvalidInput.of("search", f'{wanted}, got "{extras.search}"')
    question = question_of(request)
    outcome = searches[extras.search](question, budget)
    document = replace(result_of(request, question, outcome), search=extras.search)
    if outcome.best is None:
        return CodesignReport(replace(document, infeasible_because=_why_nothing(question)))
    document = _with_best(document, question, outcome, extras, budget, die)
    if extras.recheck_sample:
        document = replace(document, recheck=_recheck(question, outcome, extras, budget))
    return CodesignReport(document)


def _with_best(
    document: CodesignResult,
    question: CodesignQuestion,
    outcome: CodesignOutcome,
    extras: Extras,
    budget: Budget,
    die: DieModel | None,
) -> CodesignResult:
    from trainwright.api import codesign_document as records
    from trainwright.formats.catalog import accelerators

    best = outcome.best
    assert best is not None
    document = replace(
        document,
        best=records.design_record(question, best, budget, scale_s=outcome.scale_s, die=die),
    )
    if extras.pareto and not budget.stopped:
        document = _with_front(document, question, outcome, extras, budget)
    elif extras.csv is not None:
        _write_csv(extras.csv, question, outcome, None)
    if extras.details and not budget.stopped:
        variant = question.variants[best.variant]
        document = replace(
            document,
            fixed_strategies=tuple(records.fixed_strategies(question, best)),
            operators=tuple(records.operator_records(question, best)),
            sensitivity=tuple(
                records.sensitivity_records(document.request, question, outcome, budget)
            ),
            real_chips=tuple(records.real_chip_records(question, accelerators(), variant)),
        )
    return document


def _with_front(
    document: CodesignResult,
    question: CodesignQuestion,
    outcome: CodesignOutcome,
    extras: Extras,
    budget: Budget,
) -> CodesignResult:
    import numpy as np

    from trainwright.api.codesign_document import front_points
    from trainwright.codesign.pareto import OBJECTIVES, front, hypervolume, populate

    start_s = budget.cpu_s
    everything, finished = populate(question, budget, scale_s=outcome.scale_s)
    if not finished:
        warning = "the front was interrupted and is left out"
        return replace(document, warnings=(*document.warnings, warning))
    if extras.csv is not None:
        _write_csv(extras.csv, question, outcome, everything)
    figures = everything.figures()
    best = everything.take(front(figures, epsilon=extras.epsilon))
    three = figures[:, [0, 1, 3]]
    exact = three[front(three)]
    return replace(
        document,
        pareto=tuple(front_points(question, best)),
        pareto_objectives=("tokens_per_s", *OBJECTIVES[1:]),
        pareto_epsilon=extras.epsilon,
        hypervolume=hypervolume(exact, np.nextafter(three.max(axis=0), np.inf)),
        front_s=budget.cpu_s - start_s,
    )


def _write_csv(
    path: Path, question: CodesignQuestion, outcome: CodesignOutcome, everything: object
) -> None:
    from trainwright.codesign.pareto import Population
    from trainwright.codesign.rows import COLUMNS, design_rows
    from trainwright.formats.design_csv import write_designs

    found = everything if isinstance(everything, Population) else None
    write_designs(path, COLUMNS, design_rows(question, outcome, found))


def _recheck(
    question: CodesignQuestion, outcome: CodesignOutcome, extras: Extras, budget: Budget
) -> RecheckRecord:
    from trainwright.codesign.certificate import recheck

    found = recheck(question, outcome, budget, sample=extras.recheck_sample, seed=extras.seed)
    if found.contradictions:
        variant, design = found.contradictions[0]
        raise CheckFailed(
            f"{len(found.contradictions)} of {found.sampled} pruned designs contradict the search, "
            f"the first is design {design} of variant {variant}"
        )
    return RecheckRecord(sampled=found.sampled, confirmed=found.confirmed, seed=found.seed)


def recheck_document(path: str | Path, *, sample: int, seed: int, budget: Budget) -> CodesignReport:
    """Search a document's request again, price a sample of pruned designs, compare the best.

    Raises `CheckFailed` where the document and its proof disagree.
    """
    from trainwright.formats.atomic_file import read_bytes
    from trainwright.formats.document_json import decode_document
    from trainwright.formats.json_text import parse_json

    value = parse_json(read_bytes(path, name="document"), source=str(path))
    stored = decode_document(value, {"codesign": CodesignResult}, source=str(path))
    extras = Extras(pareto=False, details=False, recheck_sample=sample, seed=seed)
    again = run_request(stored.request, extras=extras, budget=budget)
    if budget.stopped:
        return again
    found, told = again.document, stored
    if found.status != told.status or _objective(found) != _objective(told):
        raise CheckFailed(
            f"{path} says {told.status} at {_objective(told)}, "
            f"its request gives {found.status} at {_objective(found)}"
        )
    return again


def _objective(document: CodesignResult) -> float | None:
    return None if document.best is None else document.best.objective


def _why_nothing(question: CodesignQuestion) -> str:
    """The reason for which no design holds a plan: a limit, or the memory of the devices."""
    from trainwright.codesign.feasibility import why_infeasible

    return why_infeasible(question)
