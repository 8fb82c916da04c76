"""`trainwright codesign`: the best accelerator and the plans that train models on it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Unpack

from trainwright.api.codesign_request import CodesignOptions, question_of, request_of
from trainwright.api.keywords import refuse_unknown
from trainwright.api.printed import Report
from trainwright.errors import CheckFailed, InvalidInput
from trainwright.plan.results.codesign import (
    CodesignRequest,
    CodesignResult,
    RecheckRecord,
)
from trainwright.plan.status import Status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainwright.codesign.area import DieModel
    from trainwright.codesign.price import JobPricer
    from trainwright.codesign.question import CodesignQuestion
    from trainwright.codesign.search import CodesignOutcome
    from trainwright.execution import Budget
    from trainwright.formats.journal import FileJournal

    Prepared = Mapping[int, tuple[JobPricer, ...]]

DEFAULT_EPSILON: Final = 0.02
SEARCHES: Final = ("exact", "descending-area")


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
    workers: str | int | None = None
    journal: Path | None = None
    csv: Path | None = None
    recheck_sample: int = 0
    seed: int = 0


def codesign(
    models: Sequence[str | Path] | str | Path,
    *,
    devices: int,
    die: DieModel | None = None,
    extras: Extras | None = None,
    budget: Budget | None = None,
    **options: Unpack[CodesignOptions],
) -> CodesignReport:
    """Search all chip designs within an area for the one that trains `models` fastest.

    `options` are described at `CodesignOptions`. `die` adds the rest of the die and its cost,
    `extras` say what to work out beside the best design, `budget` may hold a time limit.

    Raises `InvalidInput` with everything wrong with the request.
    """
    from trainwright.execution import Budget as NoLimit

    refuse_unknown(codesign, options, CodesignOptions)
    request, warnings = request_of(models, devices=devices, **options)
    report = run_request(request, extras=extras or Extras(), die=die, budget=budget or NoLimit())
    document = report.document
    return CodesignReport(replace(document, warnings=(*warnings, *document.warnings)))


def run_request(
    request: CodesignRequest,
    *,
    extras: Extras,
    budget: Budget,
    die: DieModel | None = None,
    prepared: Prepared | None = None,
) -> CodesignReport:
    """Answer a request, from options or from a document; `prepared` as for `search`."""
    from trainwright.api.codesign_document import result_of
    from trainwright.codesign.descending import descending_area_search
    from trainwright.codesign.feasibility import why_infeasible
    from trainwright.codesign.search import search

    if extras.search not in SEARCHES:
        wanted = f"must be one of {', '.join(SEARCHES)}"
        raise InvalidInput.of("search", f'{wanted}, got "{extras.search}"')
    question = question_of(request)
    from trainwright.execution.executor import executor_of

    executor = executor_of(extras.workers)
    journal = None if extras.journal is None else _journal(extras.journal, request)
    if extras.search == "exact":
        outcome = search(question, budget, prepared, executor=executor, journal=journal)
    else:
        outcome = descending_area_search(question, budget, prepared)
    document = replace(result_of(request, question, outcome), search=extras.search)
    if outcome.best is None:
        if outcome.status is Status.INFEASIBLE:
            document = replace(document, infeasible_because=why_infeasible(question))
        return CodesignReport(document)
    document = _with_best(document, question, outcome, extras, budget, die, prepared)
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
    prepared: Prepared | None,
) -> CodesignResult:
    from trainwright.api import codesign_document as records
    from trainwright.api.codesign_layers import layer_records
    from trainwright.formats.catalog import accelerators

    best = outcome.best
    assert best is not None
    document = replace(
        document,
        best=records.design_record(question, best, budget, scale_s=outcome.scale_s, die=die),
    )
    if extras.pareto and not budget.stopped:
        document = _with_front(document, question, outcome, extras, budget, prepared)
    elif extras.csv is not None:
        _write_csv(extras.csv, question, outcome, None)
    if extras.details and not budget.stopped:
        variant = question.variants[best.variant]
        document = replace(
            document,
            fixed_strategies=tuple(records.fixed_strategies(question, best)),
            operators=tuple(records.operator_records(question, best)),
            layer_schedules=tuple(layer_records(question, best)),
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
    prepared: Prepared | None,
) -> CodesignResult:
    import numpy as np

    from trainwright.api.codesign_document import front_points
    from trainwright.codesign.pareto import front, hypervolume
    from trainwright.codesign.population import OBJECTIVES, populate
    from trainwright.execution.executor import executor_of

    start_s = budget.cpu_s
    everything, finished = populate(
        question,
        budget,
        scale_s=outcome.scale_s,
        executor=executor_of(extras.workers),
        journal=None if extras.journal is None else _journal(extras.journal, document.request),
        prepared=prepared,
    )
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


def _journal(path: Path, request: CodesignRequest) -> FileJournal:
    """The journal of a request; one about another request is refused."""
    from trainwright.api.inputs import content_hash
    from trainwright.formats.document_json import encode
    from trainwright.formats.journal import FileJournal

    return FileJournal(path, about=content_hash(encode(request)))


def _write_csv(
    path: Path, question: CodesignQuestion, outcome: CodesignOutcome, everything: object
) -> None:
    from trainwright.codesign.population import Population
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
