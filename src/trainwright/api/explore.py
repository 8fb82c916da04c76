"""Questions of the live page: names of the catalog and bounded numbers, never a path.

A question has a model of the catalog or the content of a `config.json`, a cluster of the catalog,
and what the sliders stand for: devices, their memory, the bandwidth of the outermost network level,
the batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from trainwright.api.result import Result
from trainwright.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trainwright.api.models import ModelInput
    from trainwright.cluster import Cluster
    from trainwright.execution import Budget

_TOP = 12  # runners-up to pick from


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked: a `model` of the catalog or a `config`; absent figures are the catalog's.

    `bandwidth_bytes_per_s` is that of one device across the outermost network level.
    """

    model: str | None = None
    config: Mapping[str, Any] | None = None
    cluster: str
    devices: int
    global_batch: int
    sequence: int
    memory_bytes: float | None = None
    bandwidth_bytes_per_s: float | None = None
    framework: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoice:
    """A model to choose."""

    name: str
    num_parameters: int
    max_positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterChoice:
    """A cluster to choose, and where its sliders start; `most_devices` None grows without limit."""

    name: str
    accelerator: str
    devices: int
    devices_per_node: int
    most_devices: int | None
    memory_bytes: float
    bandwidth_bytes_per_s: float


def answer(question: Question, budget: Budget) -> Result:
    """The best plan; raises `InvalidInput` with every fault of the question."""
    from trainwright.api.model_options import model_call
    from trainwright.api.plan_model import plan_model

    given = _model(question)
    call = model_call(
        given,
        {
            "cluster": cluster_of(question),
            "global_batch": question.global_batch,
            "sequence": question.sequence,
            "framework": question.framework,
            "top": _TOP,
        },
        devices=question.devices,
        memory_bytes=question.memory_bytes,
    )
    return Result(plan_model(call, budget, warnings=given.warnings))


def cluster_of(question: Question) -> Cluster:
    """The catalog's cluster with the bandwidth asked for; not yet sized."""
    from trainwright.formats.catalog import cluster, cluster_names

    _require("cluster", question.cluster, cluster_names())
    found = cluster(question.cluster)
    if question.bandwidth_bytes_per_s is None:
        return found
    pool = found.pool_of()
    outer = replace(pool.levels[-1], bandwidth_bytes_per_s=question.bandwidth_bytes_per_s)
    return replace(found, pools=(replace(pool, levels=(*pool.levels[:-1], outer)),))


def model_choices() -> Iterator[ModelChoice]:
    """The models of the catalog."""
    from trainwright.formats.catalog import model, model_names
    from trainwright.model import count_parameters

    for name in model_names():
        config = model(name).config
        yield ModelChoice(
            name=name,
            num_parameters=count_parameters(config),
            max_positions=config.max_positions,
        )


def cluster_choices() -> Iterator[ClusterChoice]:
    """The clusters of the catalog that have one kind of device."""
    from trainwright.formats.catalog import cluster, cluster_names

    for name in cluster_names():
        found = cluster(name)
        if len(found.pools) > 1:
            continue
        pool = found.pool_of()
        yield ClusterChoice(
            name=name,
            accelerator=pool.accelerator.name,
            devices=pool.num_devices,
            devices_per_node=pool.devices_per_node,
            most_devices=pool.num_devices if len(pool.levels) == 1 else None,
            memory_bytes=pool.accelerator.memory_bytes,
            bandwidth_bytes_per_s=pool.levels[-1].bandwidth_bytes_per_s,
        )


def framework_choices() -> tuple[str, ...]:
    """Frameworks that a plan can be limited to."""
    from trainwright.plan.capability import TARGETS

    return tuple(TARGETS)


def _model(question: Question) -> ModelInput:
    from trainwright.api.models import catalog_input, config_input
    from trainwright.formats.catalog import model_names

    if question.config is not None:
        if question.model is not None:
            raise InvalidInput.of("model", "must not be given together with a config")
        return config_input(question.config, name="config.json")
    if question.model is None:
        raise InvalidInput.of("model", "must be given, or else a config")
    _require("model", question.model, model_names())
    return catalog_input(question.model)


def _require(field: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise InvalidInput.of(field, f"must be a name of the catalog: {', '.join(known)}")
