"""What a framework cannot express of a stated run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainwright.cluster import Cluster
    from trainwright.model import TransformerConfig
    from trainwright.plan.configuration import Configuration


def gaps_of_run(
    run: Configuration, model: TransformerConfig, cluster: Cluster, target: str
) -> tuple[str, ...]:
    """One line each; empty where the framework runs all of it."""
    from trainwright.api.jobs import job_of_configuration
    from trainwright.formats.exports import gaps_of

    job = job_of_configuration(run, model, cluster, model_name="model")
    return tuple(dict.fromkeys(str(gap.fault) for gap in gaps_of(job, target)))
