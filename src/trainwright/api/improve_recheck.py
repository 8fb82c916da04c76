"""Whether an improvement still says what its own request makes of the run.

The run, each change and the best plan are decisions, and so is what they take: all are priced again
and the document is put together as `improve` does. What only the search knows (that no other change
is worth listing, whether all were tried, the bound, whether a framework was asked for) is held
against the rest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trainwright._version import __version__
from trainwright.errors import Fault, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.api.improve_document import Surroundings
    from trainwright.api.improve_plan import PricedPlan
    from trainwright.plan.configuration import Configuration
    from trainwright.plan.results.improvement import ImprovementResult
    from trainwright.planning.improve import Improvement


def recheck_improvement(
    document: ImprovementResult, *, source: str | None = None
) -> ImprovementResult:
    """The document, perhaps with a warning; raises `InvalidInput` with every contradiction.

    Costs what pricing each of its runs costs. A document of another version is let through with a
    warning where only figures differ.
    """
    from trainwright.api.recheck import changes, hash_faults, refuse_figures

    version = document.request.trainwright_version
    try:
        faults = tuple(hash_faults(document.request))
        if faults:
            raise InvalidInput(faults)
        faults = tuple(changes(_made_again(document), document, ""))
        if faults and version != __version__:
            warning = (
                f"made by version {version}; {__version__} computes other figures: {faults[0]}"
            )
            return replace(document, warnings=(*document.warnings, warning))
        refuse_figures(faults)
    except InvalidInput as error:
        raise InvalidInput(error.faults, source=source) from None
    return document


def _made_again(document: ImprovementResult) -> ImprovementResult:
    from trainwright.api.improve_document import Surroundings, document_of
    from trainwright.cluster import Cluster
    from trainwright.formats.document_json import decode
    from trainwright.model import TransformerConfig
    from trainwright.pricing.configuration import price_configuration

    request = document.request
    model = decode(TransformerConfig, request.model.content, path="request.model.content")
    cluster = decode(Cluster, request.cluster.content, path="request.cluster.content")
    bare = Surroundings(
        model=model,
        cluster=cluster,
        request=request,
        framework=document.framework,
        step=price_configuration(model, cluster, request.configuration),
        changes=(),
        plan=None,
        bound_s=document.lower_bound_s or 0.0,
        tried_all=document.tried_all,
        warnings=document.warnings,
    )
    found = tuple(_changes(document, bare))
    plan = _plan(document, bare)
    _refuse_what_does_not_fit(bare, found, plan)
    return document_of(replace(bare, changes=found, plan=plan))


def _changes(document: ImprovementResult, bare: Surroundings) -> Iterator[Improvement]:
    from trainwright.planning.improve import Improvement, reachable
    from trainwright.pricing.configuration import price_configuration

    run, pool = document.request.configuration, bare.cluster.pool_of()
    for index, one in enumerate(document.changes):
        if len(one.dimensions) not in (1, 2):
            problem = f"must be one decision or two, got {len(one.dimensions)}"
            raise InvalidInput.of(f"changes[{index}].dimensions", problem)
        changed = reachable(run, bare.model, pool, dimensions=one.dimensions, options=one.options)
        if changed is None:
            problem = f'is no change of {" and ".join(one.dimensions)}: "{one.options}"'
            raise InvalidInput.of(f"changes[{index}].options", problem)
        _refuse_unable(document, changed, bare, path=f"changes[{index}]")
        step = price_configuration(bare.model, bare.cluster, changed)
        yield Improvement(dimensions=one.dimensions, options=one.options, run=changed, step=step)


def _refuse_unable(
    document: ImprovementResult, changed: Configuration, bare: Surroundings, *, path: str
) -> None:
    from trainwright.api.improve_gaps import gaps_of_run

    if document.framework is None:
        return
    gaps = gaps_of_run(changed, bare.model, bare.cluster, document.framework)
    if gaps:
        raise InvalidInput.of(path, f"must be what {document.framework} runs: {gaps[0]}")


def _plan(document: ImprovementResult, bare: Surroundings) -> PricedPlan | None:
    from trainwright.api.improve_plan import priced_again, question_of, unrunnable, with_kernels
    from trainwright.planning.allowed import Allowed

    if document.best_plan is None:
        return None
    asked = with_kernels(document.request.configuration, document.best_plan.options)
    allowed = Allowed(framework=document.framework)
    question = question_of(bare.model, bare.cluster, asked, allowed)
    priced = priced_again(document.best_plan, question, asked)
    if gaps := unrunnable(priced, question):
        problem = f"must be what {document.framework} runs: {gaps[0]}"
        raise InvalidInput.of("best_plan", problem)
    return priced


def _refuse_what_does_not_fit(
    bare: Surroundings, found: tuple[Improvement, ...], plan: PricedPlan | None
) -> None:
    faults = [
        Fault(f"changes[{index}]", "must fit in the memory of a device")
        for index, each in enumerate(found)
        if not bare.fits(each.step)
    ]
    if plan is not None and not bare.fits(plan.step):
        faults.append(Fault("best_plan", "must fit in the memory of a device"))
    if faults:
        raise InvalidInput(faults)
