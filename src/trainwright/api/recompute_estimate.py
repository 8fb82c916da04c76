"""The figures of a model's estimate, computed again from the request it carries."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainwright.plan.results.model_estimate import ModelEstimateResult


def recompute_model_estimate(document: ModelEstimateResult) -> ModelEstimateResult:
    """The document with every figure that follows from its request, warnings as they are.

    Raises `InvalidInput` where model or cluster cannot be read or the run breaks a rule.
    """
    from trainwright.api.estimate_model import price_request
    from trainwright.cluster import Cluster
    from trainwright.formats.document_json import decode
    from trainwright.model import TransformerConfig

    request = document.request
    model = decode(TransformerConfig, request.model.content, path="request.model.content")
    cluster = decode(Cluster, request.cluster.content, path="request.cluster.content")
    return replace(price_request(model, cluster, request), warnings=document.warnings)
