"""Whether an improvement still says what its own request makes of the run.

The run is priced again; what other runs take only the search knows, so their ratios are held
against the times they state.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from trainwright._version import __version__
from trainwright.errors import Fault, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.plan.results.improvement import ImprovementResult

_TOLERANCE: Final = 1e-9


def recheck_improvement(document: ImprovementResult, *, source: str | None = None) -> None:
    """Raise `InvalidInput` with every contradiction. Costs what an estimate costs."""
    faults = [*_ratio_faults(document)]
    if document.request.trainwright_version == __version__:
        faults += _run_faults(document)
    if faults:
        raise InvalidInput(faults, source=source)


def _run_faults(document: ImprovementResult) -> Iterator[Fault]:
    """The run's own figures, which belong to the version that priced it."""
    from trainwright.cluster import Cluster
    from trainwright.formats.document_json import decode
    from trainwright.model import TransformerConfig
    from trainwright.pricing.configuration import price_configuration

    request = document.request
    model = decode(TransformerConfig, request.model.content, path="request.model.content")
    cluster = decode(Cluster, request.cluster.content, path="request.cluster.content")
    step = price_configuration(model, cluster, request.configuration)
    run = document.run
    yield from _differing("run.step_time_s", step.step_time_s, run.step_time_s)
    yield from _differing("run.peak_memory_bytes", step.peak_memory_bytes, run.peak_memory_bytes)
    usable = cluster.accelerator.usable_bytes
    yield from _differing("memory_limit_bytes", usable, document.memory_limit_bytes)


def _ratio_faults(document: ImprovementResult) -> Iterator[Fault]:
    base_s = document.run.step_time_s
    stated = [(f"changes[{at}]", one) for at, one in enumerate(document.changes)]
    if document.recommended is not None:
        stated.append(("recommended", document.recommended))
    for path, one in stated:
        yield from _differing(f"{path}.speedup", base_s / one.step_time_s, one.speedup)
    if (plan := document.best_plan) is not None:
        yield from _differing("best_plan.speedup", base_s / plan.step_time_s, plan.speedup)


def _differing(path: str, expected: float, found: float) -> Iterator[Fault]:
    if not math.isclose(expected, found, rel_tol=_TOLERANCE):
        yield Fault(path, f"must be {expected!r}, as the request gives, got {found!r}")
