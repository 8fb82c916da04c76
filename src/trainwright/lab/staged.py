"""Runs whose stages are stated replica by replica, priced from measured layer times.

The layers of each stage cost what a profile of the same model on the same device says; the step is
a 1F1B pipeline over them, the gradient reduction of the slowest stage and the update. Where the
replicas of a stage differ in kind, each works at its own pace and the slowest ends the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trainwright.errors import UnsupportedFeature
from trainwright.lab.predict import RunPrediction
from trainwright.lab.run_shapes import Known, line_of
from trainwright.plans.measured_run import MeasuredRun
from trainwright.profile.measured_layers import LayerSizes, LayerTimes, MeasuredLayers
from trainwright.step.pipeline import PipelineStage, one_f_one_b_ends_s
from trainwright.units import GIB

# What one device of a stage holds at its fullest, where the sizes of its layers were measured
# --------------------------------------------------------------------------------------------
#     P · parameters + k · saved bytes · microbatches in flight + gradients passed on + C
#
# in float32 with attention that is not fused. The fullest moment is the start of a backward pass:
# there are the gradients before and after one softmax, in the last stage those of the logits too. P
# (bytes per parameter: weights, gradients twice, two moments of Adam), k (what the allocator holds
# over what layers save) and C (device context, communicators) are fitted once per kind of device.

_FLOAT_BYTES: Final = 4


def stage_peak_bytes(
    run: MeasuredRun,
    held: LayerSizes,
    own: range,
    *,
    tensor: int,
    in_flight: int,
    constants: Mapping[str, float],
) -> float:
    """Bytes of a device that holds the layers `own` of `held` at a tensor degree.

    `in_flight` microbatches are kept at most. Raises `UnsupportedFeature` where the run does not
    state its heads and vocabulary.
    """
    assert run.microbatch_size is not None and run.global_batch is not None
    parameters = sum(held[i][0] for i in own) + _tied_copy(run, held, own, tensor)
    saved_bytes = sum(held[i][2] for i in own) * run.microbatch_size * in_flight
    peak_bytes = constants["parameter_bytes"] * parameters + constants["saved_ratio"] * saved_bytes
    if run.global_batch // (run.microbatch_size * run.data) <= in_flight:
        peak_bytes -= _FLOAT_BYTES * parameters  # full only before the first gradients exist
    with_loss = own[-1] + 1 == len(held)
    peak_bytes += _backward_bytes(run, tensor, with_loss=with_loss)
    return peak_bytes + constants["fixed_bytes"]


def _tied_copy(run: MeasuredRun, held: LayerSizes, own: range, tensor: int) -> float:
    """Word embeddings that the last of several stages holds for a head without weights."""
    last = len(held) - 1
    embeddings = (run.vocabulary_size or 0) * (run.hidden_size or 0) / tensor
    needs_copy = own[-1] == last and own[0] > 0 and held[last][0] < embeddings
    return embeddings if needs_copy else 0.0


def _backward_bytes(run: MeasuredRun, tensor: int, *, with_loss: bool) -> float:
    if run.num_heads is None or run.vocabulary_size is None:
        raise UnsupportedFeature("the row does not state its heads and vocabulary")
    assert run.microbatch_size is not None
    scores = 2 * run.num_heads * run.sequence_length
    logits = run.vocabulary_size if with_loss else 0
    tokens = run.microbatch_size * run.sequence_length
    return _FLOAT_BYTES * tokens * (scores + logits) / tensor


# Runs whose stages are stated replica by replica, priced from measured layer times
# ---------------------------------------------------------------------------------

_DEVICE_NAMES = {"GH-96": "GH200-96GB"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedReplica:
    """One replica of a stage: its device kind and tensor degree."""

    accelerator: str
    tensor: int


# Stand in where nothing was fitted: layers in a step run as alone, 10 GB/s per device, Adam in
# float32 with gradients twice.
DEFAULTS: Final = {
    "layer_ratio": 1.0,
    "reduce_bytes_per_s": 10e9,
    "send_bytes_per_s": 10e9,
    "parameter_bytes": 20.0,
    "saved_ratio": 1.05,
    "fixed_bytes": 4.0 * GIB,
}
Constants = Mapping[str, float]


def staged_constants(run: MeasuredRun, known: Known) -> Constants:
    """The constants fitted to a run's devices and software, defaults for the rest."""
    fitted = known.calibration(run.accelerator, line_of(run).name)
    if fitted is None:
        return DEFAULTS
    return {name: fitted.value(name, default) for name, default in DEFAULTS.items()}


def predict_staged(
    run: MeasuredRun, layers: MeasuredLayers | None, constants: Constants
) -> RunPrediction:
    """Price one run; raises `UnsupportedFeature` where no profile covers its layers."""
    if layers is None:
        raise UnsupportedFeature("no layer profiles were given")
    microbatches = _microbatches(run)
    stages = _stages(run)
    ranges = _ranges(run, layers, stages)
    assert run.microbatch_size is not None
    pipeline = []
    for index, (replicas, own) in enumerate(zip(stages, ranges, strict=True)):
        paces = [_pace(run, layers, replica, own) for replica in set(replicas)]
        forward_s, backward_s = max(f for f, _ in paces), max(b for _, b in paces)
        send_s = 0.0
        if index + 1 < len(stages):
            held = _sizes(run, layers, replicas[0].tensor)
            send_s = held[own[-1]][1] * run.microbatch_size / constants["send_bytes_per_s"]
        pipeline.append(
            PipelineStage(
                forward_s=constants["layer_ratio"] * forward_s,
                backward_s=constants["layer_ratio"] * backward_s,
                in_flight=min(len(stages) - index, microbatches),
                feeds=((index + 1, send_s),) if index + 1 < len(stages) else (),
            )
        )
    ends_s = one_f_one_b_ends_s(pipeline, num_microbatches=microbatches)
    reduce_s = [
        _reduce_s(run, layers, r, own, constants) for r, own in zip(stages, ranges, strict=True)
    ]
    update_s = [_update_s(run, layers, r, own) for r, own in zip(stages, ranges, strict=True)]
    step_s = max(map(sum, zip(ends_s, reduce_s, update_s, strict=True)))
    return RunPrediction(
        step_time_s=step_s,
        step_time_low_s=step_s,
        step_time_high_s=step_s,
        peak_memory_bytes=max(stage_peaks_bytes(run, layers, constants)),
    )


def stage_peaks_bytes(
    run: MeasuredRun, layers: MeasuredLayers, constants: Constants
) -> tuple[float, ...]:
    """What a device of each stage holds at most, first stage first."""
    microbatches, stages = _microbatches(run), _stages(run)
    return tuple(
        stage_peak_bytes(
            run,
            _sizes(run, layers, replicas[0].tensor),
            own,
            tensor=replicas[0].tensor,
            in_flight=min(len(stages) - index, microbatches),
            constants=constants,
        )
        for index, (replicas, own) in enumerate(
            zip(stages, _ranges(run, layers, stages), strict=True)
        )
    )


def _microbatches(run: MeasuredRun) -> int:
    if run.microbatch_size is None or run.global_batch is None:
        raise UnsupportedFeature("the row does not state its microbatches and batch")
    microbatches, rest = divmod(run.global_batch, run.microbatch_size * run.data)
    if rest or not microbatches:
        raise UnsupportedFeature("the microbatches do not divide the batch")
    return microbatches


def _stages(run: MeasuredRun) -> list[list[StagedReplica]]:
    """Replicas of each stage from `TYPExCOUNT:tpN,…/…`."""
    text = run.setting("stage_replicas")
    if text is None:
        raise UnsupportedFeature("the row does not state its stages")
    stages = []
    for stage in text.split("/"):
        replicas = []
        for part in stage.split(","):
            kind, _, degree = part.partition(":tp")
            name = kind.rpartition("x")[0]
            if not (degree.isascii() and degree.isdigit()) or int(degree) < 1:
                raise UnsupportedFeature(f'stage replica "{part}" is not TYPExCOUNT:tpN')
            replicas.append(
                StagedReplica(accelerator=_DEVICE_NAMES.get(name, name), tensor=int(degree))
            )
        stages.append(replicas)
    return stages


def _ranges(
    run: MeasuredRun, layers: MeasuredLayers, stages: Sequence[Sequence[StagedReplica]]
) -> list[range]:
    """The layers of each stage from `N|N|…`, which must be those that were measured."""
    text = run.setting("layers_per_stage") or ""
    parts = text.split("|")
    numbers = [int(part) for part in parts if part.isascii() and part.isdigit()]
    num_layers = len(_sizes(run, layers, stages[0][0].tensor))
    if (len(numbers), sum(numbers)) != (len(parts), num_layers) or 0 in numbers:
        raise UnsupportedFeature(f'layers per stage "{text}" do not add up to {num_layers}')
    if len(numbers) != len(stages):
        raise UnsupportedFeature("layers and replicas are stated of different numbers of stages")
    return [range(sum(numbers[:i]), sum(numbers[: i + 1])) for i in range(len(numbers))]


def _pace(
    run: MeasuredRun, layers: MeasuredLayers, replica: StagedReplica, own: range
) -> tuple[float, float]:
    """Forward and backward seconds of a stage's layers on one replica."""
    times = _times(run, layers, replica)
    return sum(times[i][0] for i in own), sum(times[i][1] for i in own)


def _times(run: MeasuredRun, layers: MeasuredLayers, replica: StagedReplica) -> LayerTimes:
    assert run.microbatch_size is not None
    times = layers.steady_times_at(
        run.model,
        replica.accelerator,
        microbatch_size=run.microbatch_size,
        tensor_parallel=replica.tensor,
    )
    if times is None:
        raise UnsupportedFeature(f"no layer profile of {run.model} on {replica.accelerator}")
    return times


def _sizes(run: MeasuredRun, layers: MeasuredLayers, tensor: int) -> LayerSizes:
    sizes = layers.sizes.get((run.model, tensor))
    if sizes is None:
        raise UnsupportedFeature(f"no layer sizes of {run.model} at tensor degree {tensor}")
    return sizes


def _reduce_s(
    run: MeasuredRun,
    layers: MeasuredLayers,
    replicas: list[StagedReplica],
    own: range,
    constants: Constants,
) -> float:
    """Ring all-reduce of float32 gradients between the replicas of a stage."""
    d = len(replicas)
    if d == 1:
        return 0.0
    held = _sizes(run, layers, replicas[0].tensor)
    size = 4 * sum(held[i][0] for i in own)
    return 2 * (d - 1) / d * size / constants["reduce_bytes_per_s"]


def _update_s(
    run: MeasuredRun, layers: MeasuredLayers, replicas: list[StagedReplica], own: range
) -> float:
    """The optimizer's pass over a stage's parameters, on its slowest replica."""
    every = [_times(run, layers, replica) for replica in set(replicas)]
    return max(sum(times[i][2] for i in own) for times in every)
