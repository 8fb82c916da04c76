"""`estimate` on a model: one stated run on a cluster, as a document."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trainwright._version import __version__
from trainwright.api.inputs import embed, naming_options
from trainwright.api.model_records import (
    memory_assumption,
    mfu_in_words,
    overlap_in_words,
    state_in_words,
)
from trainwright.api.recipe_options import without_effect
from trainwright.api.run_options import OPTION_OF, configuration_of
from trainwright.errors import InvalidInput
from trainwright.plan.results.model_estimate import (
    ModelEstimateRequest,
    ModelEstimateResult,
    PricedChange,
    RankMemory,
    Verdict,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainwright.api.models import ModelInput
    from trainwright.api.run_options import RunOptions
    from trainwright.cluster import Cluster
    from trainwright.model import TransformerConfig
    from trainwright.plan.configuration import Configuration
    from trainwright.plan.prediction import StageMemory, StepPrediction

_CLASSES = ("weight", "gradient", "optimizer", "activation", "logits", "transient", "buffer")


def estimate_model(
    given: ModelInput,
    *,
    cluster: Cluster,
    num_devices: int,
    options: RunOptions,
    warnings: Sequence[str] = (),
) -> ModelEstimateResult:
    """Price the run; raises `InvalidInput` naming every rule it breaks, by its option.

    Data parallelism that is not given fills `num_devices`, of which the last node may have more.
    """
    from trainwright.formats.document_json import encode

    with naming_options(OPTION_OF):
        run = configuration_of(options, num_devices=num_devices)
        used = run.parallelism.num_devices
        if num_devices < used <= cluster.num_devices:
            wanted = f"tp x pp x dp x cp must be at most the {num_devices} devices"
            raise InvalidInput.of("devices", f"{wanted}, got {used}")
        request = ModelEstimateRequest(
            trainwright_version=__version__,
            model=given.embedded,
            cluster=embed("cluster", cluster.name, encode(cluster)),
            configuration=run,
        )
        document = price_request(given.config, cluster, request)
    notes = (*given.warnings, *warnings, *document.warnings)
    return replace(document, warnings=notes)


def price_request(
    model: TransformerConfig, cluster: Cluster, request: ModelEstimateRequest
) -> ModelEstimateResult:
    """The document of a request: the step, and where it does not fit the changes that help."""
    from trainwright.pricing.configuration import price_configuration
    from trainwright.pricing.interval import time_range

    run, limit_bytes = request.configuration, cluster.accelerator.usable_bytes
    spread = time_range(model, cluster, run)
    step = price_configuration(model, cluster, run)
    fits = _margin_bytes(step.peak_memory_bytes, run, limit_bytes) >= 0
    verdict = Verdict.TIGHT if step.peak_memory_bytes <= limit_bytes else Verdict.DOES_NOT_FIT
    devices, tokens_per_s = run.parallelism.num_devices, step.tokens_per_s or 0.0
    return ModelEstimateResult(
        step_time_s=step.step_time_s,
        step_time_low_s=spread.low_ratio * step.step_time_s,
        step_time_high_s=spread.high_ratio * step.step_time_s,
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_device=tokens_per_s / devices,
        mfu=step.mfu or 0.0,
        hfu=step.hfu or 0.0,
        pipeline_s=step.pipeline_s,
        optimizer_s=step.optimizer_s,
        exposed_communication_s={part.kind: part.exposed_s for part in step.communication},
        hidden_communication_s={part.kind: part.hidden_s for part in step.communication},
        bubble_of_makespan=max(0.0, step.bubble_of_makespan),
        devices_used=devices,
        num_microbatches=run.num_microbatches,
        memory=tuple(_rank_memories(step, run, limit_bytes)),
        peak_memory_bytes=step.peak_memory_bytes,
        heaviest_rank=step.fullest_stage,
        memory_limit_bytes=limit_bytes,
        margin_bytes=_margin_bytes(step.peak_memory_bytes, run, limit_bytes),
        fits=fits,
        verdict=Verdict.FITS if fits else verdict,
        changes=() if fits else changes_enough(model, cluster, run, step),
        warnings=tuple(_warnings(request.model.name, model, cluster, run)),
        assumptions=assumptions_of(cluster, run, spread.source),
        request=request,
    )


def changes_enough(
    model: TransformerConfig,
    cluster: Cluster,
    run: Configuration,
    step: StepPrediction,
    *,
    framework: str | None = None,
) -> tuple[PricedChange, ...]:
    """What makes the run fit, cheapest first, compared with its own `step`.

    With a framework, only what that can run.
    """
    from trainwright.api.improve_gaps import gaps_of_run
    from trainwright.pricing.changes import changes_that_fit

    limit_bytes = cluster.accelerator.usable_bytes
    found = changes_that_fit(
        model,
        cluster,
        run,
        lambda other: _margin_bytes(other.peak_memory_bytes, run, limit_bytes) >= 0,
        wanted=lambda new: framework is None or not gaps_of_run(new, model, cluster, framework),
    )
    device_s = step.step_time_s * run.parallelism.num_devices
    return tuple(
        PricedChange(
            options=change.options,
            description=change.description,
            step_time_s=change.step.step_time_s,
            slowdown=change.step.step_time_s / step.step_time_s,
            device_time_ratio=change.device_s / device_s,
            devices_used=change.configuration.parallelism.num_devices,
            peak_memory_bytes=change.step.peak_memory_bytes,
        )
        for change in found
    )


def _margin_bytes(peak_bytes: float, run: Configuration, limit_bytes: float) -> float:
    return limit_bytes - run.overheads.needed_bytes(peak_bytes)


def _rank_memories(
    step: StepPrediction, run: Configuration, limit_bytes: float
) -> Iterator[RankMemory]:
    for rank, stage in enumerate(step.stages):
        memory = stage.memory
        yield RankMemory(
            rank=rank,
            weight_bytes=memory.weight_bytes,
            gradient_bytes=memory.gradient_bytes,
            optimizer_bytes=memory.optimizer_bytes,
            activation_bytes=memory.activation_bytes,
            logits_bytes=memory.logits_bytes,
            transient_bytes=memory.transient_bytes,
            buffer_bytes=memory.buffer_bytes,
            workspace_bytes=memory.workspace_bytes,
            total_bytes=memory.total_bytes,
            margin_bytes=_margin_bytes(memory.total_bytes, run, limit_bytes),
            microbatches_in_flight=memory.microbatches_in_flight,
            largest_class=_largest_class(memory),
        )


def _largest_class(memory: StageMemory) -> str:
    return max(_CLASSES, key=lambda name: float(getattr(memory, f"{name}_bytes")))


def _warnings(
    name: str, model: TransformerConfig, cluster: Cluster, run: Configuration
) -> Iterator[str]:
    """Options without effect, and choices that are rarely meant."""
    degrees, pool = run.parallelism, cluster.pool_of()
    if degrees.num_devices < pool.num_devices:
        yield f"uses {degrees.num_devices} of {pool.num_devices} devices"
    if degrees.tensor > pool.devices_per_node:
        size = pool.devices_per_node
        yield f"tp: a tensor group of {degrees.tensor} leaves its node of {size} devices"
    if degrees.sequence_parallel and degrees.tensor == 1:
        yield "sequence-parallel: has no effect without tensor parallelism"
    if degrees.pipeline > 1 and degrees.zero_stage >= 2:
        yield f"zero: stage {degrees.zero_stage} communicates for every microbatch of a pipeline"
    yield from without_effect(
        run.recipe,
        model=name,
        expert_parallel=degrees.expert > 1,
        experts=model.experts is not None,
    )
    if run.recompute_modules and run.recompute != "selective":
        yield "recompute-modules: have no effect unless recompute is selective"


def assumptions_of(cluster: Cluster, run: Configuration, interval: str) -> dict[str, str]:
    """What the figures of a run rest on, by subject; `interval` says where the range comes from."""
    from trainwright.costing.estimate import roofline_provenance

    device, recipe = cluster.accelerator, run.recipe
    times = roofline_provenance(cluster.pool_of())
    numbers = recipe.numbers(recipe.precision or device.default_precision)
    degrees = run.parallelism
    dispatch = {"dispatch": recipe.dispatch_in_words} if degrees.expert > 1 else {}
    return {
        "times": f"{times.origin}: {times.source}",
        "range": interval,
        "mfu": mfu_in_words((device,), numbers),
        "precision": numbers.name,
        "state": state_in_words(recipe, numbers),
        "kernels": f"{'fused' if run.fused_attention else 'unfused'} attention, "
        f"{'fused' if run.fused_cross_entropy else 'unfused'} cross entropy",
        "sequence parallel": "on" if degrees.sequence_parallel else "off",
        **dispatch,
        "overlap": overlap_in_words(run.overlap),
        "memory": memory_assumption(device, run.overheads),
    }
