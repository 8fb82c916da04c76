"""The run that `improve` recommends, as `estimate` would price it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trainwright.errors import InvalidInput

if TYPE_CHECKING:
    from trainwright.plan.results.improvement import ImprovementResult
    from trainwright.plan.results.model_estimate import ModelEstimateResult


def recommended_run(document: ImprovementResult) -> ModelEstimateResult:
    """The document's run with its recommended change.

    Raises `InvalidInput` where none is recommended.
    """
    from trainwright.api.estimate_model import price_request
    from trainwright.cluster import Cluster
    from trainwright.formats.document_json import decode
    from trainwright.model import TransformerConfig
    from trainwright.planning.improve import reachable

    request, chosen = document.request, document.recommended
    if chosen is None:
        problem = "recommends no change: give the run's own estimate, or plan with `plan`"
        raise InvalidInput.of("document", problem)
    model = decode(TransformerConfig, request.model.content, path="request.model.content")
    cluster = decode(Cluster, request.cluster.content, path="request.cluster.content")
    changed = reachable(
        request.configuration,
        model,
        cluster.pool_of(),
        dimensions=chosen.dimensions,
        options=chosen.options,
    )
    if changed is None:
        raise InvalidInput.of("document", f'has no change "{chosen.options}" of its run')
    return price_request(model, cluster, replace(request, configuration=changed))
