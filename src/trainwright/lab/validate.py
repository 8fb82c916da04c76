"""Every run of a folder: predicted, collapsed, scored (protocol of the documentation, accuracy).

Repeats of one configuration are collapsed to their median before anything is scored. A run that
cannot be modelled is counted under its reason, never dropped: modelled and skipped rows add up to
the rows of the file.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import NormalDist, median
from typing import Any, Final

from trainwright.cluster.accelerator import UNFITTED
from trainwright.documents import validation
from trainwright.errors import TrainwrightError, UnsupportedFeature
from trainwright.formats.measured_csv import MeasuredRun
from trainwright.lab.fitting import answer
from trainwright.lab.predict import RunPrediction
from trainwright.lab.run_shapes import Known, cluster_of, config_of, line_of
from trainwright.profile.measured_model import LayerSizes, LayerTimes, MeasuredLayers
from trainwright.step.pipeline import PipelineStage, one_f_one_b_ends_s
from trainwright.units import GIB

# How far predictions are from measurements, and whether they rank plans rightly
# ------------------------------------------------------------------------------
# With e = predicted / measured - 1: mean, median, 90th percentile and largest |e|, and the mean of
# e.
# Kendall's tau-b and the regret of picking the plan predicted fastest are taken inside groups of
# one
# job with several layouts (at least 3); pairs measured within the noise floor of 2% say nothing
# about ranking and are left out of tau.


# Whether a file's runs lie inside their 90% intervals as often as intervals of 90% allow
# -----------------------------------------------------------------------------------------
# Of n runs that each lie inside with probability 0.9, the number inside is binomial. A count is
# accepted where neither tail beyond it is rarer than 2.5%: the two-sided test at 95%. Runs of a
# file resemble each other, so the true tails are fatter; a file that fails deserves a look.

COVERED: Final = 0.9
_TAIL: Final = 0.025


def coverage_check(inside: Sequence[bool]) -> validation.CoverageCheck | None:
    """The check of runs of which it is known whether they lie inside; `None` without any."""
    n, count = len(inside), sum(inside)
    if n == 0:
        return None
    least, most = acceptance_region(n)
    return validation.CoverageCheck(
        n=n,
        inside=count,
        least_accepted=least,
        most_accepted=most,
        accepted=least <= count <= most,
    )


def acceptance_region(n: int) -> tuple[int, int]:
    """The smallest and the largest accepted number of n runs inside.

    A count k is accepted where P(X <= k) and P(X >= k) are both above 2.5%.
    """
    logs = (math.log(COVERED), math.log(1 - COVERED))  # whole numbers of many runs pass all floats
    chance = [
        math.exp(math.log(math.comb(n, k)) + k * logs[0] + (n - k) * logs[1]) for k in range(n + 1)
    ]
    accepted = [
        k
        for k in range(n + 1)
        if math.fsum(chance[: k + 1]) > _TAIL and math.fsum(chance[k:]) > _TAIL
    ]
    return accepted[0], accepted[-1]


# How far predictions are from measurements, and whether they rank plans rightly
# ------------------------------------------------------------------------------

NOISE_FLOOR = 0.02  # of a step: what repeated runs differ by
LEAST_LAYOUTS = 3
MEMORY_MARGIN = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One prediction against one measurement, the median of `repeats`."""

    predicted: float
    measured: float
    repeats: int = 1

    @property
    def error(self) -> float:
        """Relative error, positive where the prediction is too high."""
        return self.predicted / self.measured - 1


def errors(pairs: Sequence[Pair]) -> validation.ErrorRecord | None:
    """The summary of a quantity; `None` where nothing was scored."""
    if not pairs:
        return None
    signed = [pair.error for pair in pairs]
    sizes = sorted(abs(e) for e in signed)
    return validation.ErrorRecord(
        n=len(pairs),
        mape=sum(sizes) / len(sizes),
        median_ape=_quantile(sizes, 0.5),
        p90_ape=_quantile(sizes, 0.9),
        max_ape=sizes[-1],
        bias=sum(signed) / len(signed),
    )


def counts_for_ranking(a: Pair, b: Pair) -> bool:
    """Whether two runs of a job were measured further apart than the noise floor."""
    low, high = sorted((a.measured, b.measured))
    return high / low - 1 > NOISE_FLOOR


def kendall_tau(groups: Sequence[Sequence[Pair]]) -> float | None:
    """Tau-b inside each group, averaged by the pairs that count."""
    weighted, weight = 0.0, 0
    for group in groups:
        agreeing, ties, pairs = 0, 0, 0
        for i, a in enumerate(group):
            for b in group[:i]:
                if not counts_for_ranking(a, b):
                    continue
                pairs += 1
                sign = (a.predicted - b.predicted) * (a.measured - b.measured)
                agreeing += (sign > 0) - (sign < 0)
                ties += sign == 0
        if pairs:
            weighted += agreeing / math.sqrt(pairs * max(1, pairs - ties)) * pairs
            weight += pairs
    return weighted / weight if weight else None


def regret(
    groups: Sequence[Sequence[Pair]], *, first: int = 1, scatter: float | None = None
) -> validation.RegretRecord | None:
    """How much slower the best of the `first` plans predicted fastest was than the fastest one.

    `scatter` is the standard deviation of the logarithm of repeats. Two runs of one configuration
    differ by exp(2 σ / √π) - 1 in the mean; `beyond_repeats` is the regret beyond that.
    """
    if not groups:
        return None
    noise = math.expm1(2 * scatter / math.sqrt(math.pi)) if scatter else 0.0
    each = []
    for group in groups:
        chosen = sorted(group, key=lambda pair: pair.predicted)[:first]
        taken = min(pair.measured for pair in chosen)
        each.append(taken / min(pair.measured for pair in group) - 1)
    return validation.RegretRecord(
        mean=sum(each) / len(each),
        max=max(each),
        beyond_repeats=sum(max(0.0, lost - noise) for lost in each) / len(each),
    )


def pooled_regret(
    scores: Sequence[tuple[int, validation.RegretRecord | None]],
) -> validation.RegretRecord | None:
    """That of all groups together, from those of files with their numbers of groups."""
    known = [(count, found) for count, found in scores if count and found is not None]
    if not known:
        return None
    total = sum(count for count, _ in known)
    mean = sum(count * found.mean for count, found in known) / total
    beyond = sum(count * found.beyond_repeats for count, found in known) / total
    return validation.RegretRecord(
        mean=mean, max=max(found.max for _, found in known), beyond_repeats=beyond
    )


def false_fits(pairs: Sequence[Pair]) -> float | None:
    """Share of runs whose measured peak exceeds the predicted one by more than the margin."""
    if not pairs:
        return None
    wrong = sum(pair.measured > pair.predicted * (1 + MEMORY_MARGIN) for pair in pairs)
    return wrong / len(pairs)


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Linear interpolation between order statistics."""
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


# How well measurements that scatter can be ranked at all: the ceiling of Kendall's tau
# -------------------------------------------------------------------------------------
# Repeats of one configuration scatter by σ in the logarithm of their time, pooled over a file. Two
# layouts of one job that truly differ by d in that logarithm are measured in their right order with
# probability Φ(d / s), s² = σ²/n + σ²/n' for n and n' repeats, so whoever knows the true times
# agrees with the measurements in
#
#     E[tau] = mean over pairs of 2 Φ(d / s) - 1
#
# Only pairs that count for tau count here, and d is that of the measured times: it holds some of
# the noise itself, so the ceiling is a little high. A file without repeats has none.

_NORMAL: Final = NormalDist()


def log_scatter(repeats: Iterable[Sequence[float]]) -> float | None:
    """σ of the logarithm inside each group of repeats, pooled; None where nothing is repeated."""
    squares, freedom = 0.0, 0
    for values in repeats:
        logs = [math.log(value) for value in values]
        centre = sum(logs) / len(logs) if logs else 0.0
        squares += sum((each - centre) ** 2 for each in logs)
        freedom += max(0, len(logs) - 1)
    return math.sqrt(squares / freedom) if freedom else None


def tau_ceiling(groups: Sequence[Sequence[Pair]], scatter: float | None) -> float | None:
    """The tau to expect of the true times, weighted as `scores.kendall_tau` weights pairs."""
    if scatter is None:
        return None
    agreeing = [
        _agreement(a, b, scatter)
        for group in groups
        for i, a in enumerate(group)
        for b in group[:i]
        if counts_for_ranking(a, b)
    ]
    return sum(agreeing) / len(agreeing) if agreeing else None


def _agreement(a: Pair, b: Pair, scatter: float) -> float:
    distance = abs(math.log(a.measured / b.measured))
    spread = scatter * math.sqrt(1 / a.repeats + 1 / b.repeats)
    return 2 * _NORMAL.cdf(distance / spread) - 1 if spread > 0 else 1.0


# Runs measured several times count once: with their median, their spread printed beside it
# -----------------------------------------------------------------------------------------

# Columns that tell repeats of one configuration apart and no more.
_NOISE: Final = frozenset(
    {
        "source",
        "note",
        "quality",
        "memory_kind",
        "memory_rank",
        "release",
        "plan",
        "campaign",
        "config_source",
        "timed_steps",
        "test_type",
        "step_time_origin",
        "tokens_per_s",
        "tokens_per_s_per_gpu",
        "mfu_percent",
        "hfu_percent",
        "model_tflops_per_gpu",
        "tflops_per_gpu",
        "grad_reduce_time_s",
        "peak_reserved_bytes",
        "peak_memory_last_rank_bytes",
        "peer_step_time_s",
        "peer_peak_memory_bytes",
        "peer_tokens_per_s_per_gpu",
    }
)


def repeat_key(run: MeasuredRun) -> tuple[object, ...]:
    """What two measurements must share to be repeats of each other."""
    if run.states_arguments:  # a test's name stands for its arguments
        return (run.model, run.accelerator, run.num_devices)
    settings = tuple(sorted((k, v) for k, v in run.settings.items() if k not in _NOISE))
    return (
        run.model,
        run.accelerator,
        run.num_devices,
        run.sequence_length,
        run.global_batch,
        run.precision,
        run.num_layers,
        run.layout,
        settings,
        json.dumps(dict(run.options), sort_keys=True),
    )


def median_of(values: Sequence[float | None]) -> float | None:
    """The median of what was measured; `None` where nothing was."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def spread_of(values: Sequence[float | None]) -> float:
    """Largest over smallest, less one; 0 for one value."""
    known = [value for value in values if value is not None]
    return max(known) / min(known) - 1 if len(known) > 1 else 0.0


# Which measured memories count towards a table's score, and which are reported apart
# -----------------------------------------------------------------------------------
# A figure is only as good as what its table records. Of the tests of megatron-core apart go: runs
# whose device count was assumed, repeats that disagree by more than 5%, kinds of training whose
# memory does not follow from the columns (FSDP, FP8, Muon, distillation). Figures
# copied from another row instead of measured are not scored at all.

LARGEST_SPREAD = 0.05
_APART_FLAGS = ("use_megatron_fsdp", "fp8_format")


class Quality(StrEnum):
    """How a memory figure is used."""

    RECORDED = "recorded"
    APART = "apart"
    COPIED = "copied"


def quality_of(runs: Sequence[MeasuredRun]) -> Quality:
    """How the memory of one configuration's rows is used."""
    run = runs[0]
    if run.setting("memory_measured_here") == "0":
        return Quality.COPIED
    if not run.states_arguments:
        return Quality.RECORDED
    recorded = run.setting("gpus_source") in (None, "recipe")
    unusual = any(run.setting(name) for name in _APART_FLAGS)
    unusual = unusual or run.setting("optimizer") == "muon" or "distill" in run.model
    unusual = unusual or run.zero_stage == 3
    agrees = spread_of([r.peak_memory_bytes for r in runs]) <= LARGEST_SPREAD
    return Quality.RECORDED if recorded and agrees and not unusual else Quality.APART


# ----------------------------------------------------------------------------------------------


# Runs whose stages are stated replica by replica, priced from measured layer times
# ---------------------------------------------------------------------------------
# The layers of each stage cost what a profile of the same model on the same device says; the step
# is a 1F1B pipeline over them, the gradient reduction of the slowest stage and the update. Where
# the replicas of a stage differ in kind, each works at its own pace and the slowest ends the step.


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


# ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One configuration: its rows, and either a prediction or the reason there is none."""

    runs: tuple[MeasuredRun, ...]
    prediction: RunPrediction | None = None
    assumed: tuple[str, ...] = ()
    reason: str | None = None

    @property
    def run(self) -> MeasuredRun:
        """The first row, which stands for all."""
        return self.runs[0]


_FIRST = 3  # layouts that a careful user would try
Predictor = Callable[[MeasuredRun], tuple[RunPrediction, tuple[str, ...]]]


def predictor(known: Known, layers: MeasuredLayers | None) -> Predictor:
    """How one run is predicted, given what the catalog and the folder of profiles know."""

    def predicted(run: MeasuredRun) -> tuple[RunPrediction, tuple[str, ...]]:
        line = line_of(run)
        if run.setting("stage_replicas") is not None:
            priced = predict_staged(run, layers, staged_constants(run, known))
            calibration = known.calibration(run.accelerator, line.name)
            ratios = (UNFITTED.low_ratio, UNFITTED.high_ratio)
            if calibration is not None:
                ratios = (calibration.low_ratio, calibration.high_ratio)
            return priced.within(*ratios), ()
        found = answer(run, line, config_of(run, line, known), cluster_of(run, line, known))
        return found.prediction, found.assumed

    return predicted


def stated_predictor(stated: Mapping[str, Mapping[str, float]]) -> Predictor:
    """Predictions that somebody else made, by row (`read_predictions`)."""

    def predicted(run: MeasuredRun) -> tuple[RunPrediction, tuple[str, ...]]:
        if run.row_id not in stated:
            raise UnsupportedFeature("no prediction is stated")
        figures: dict[str, Any] = dict(stated[run.row_id])
        return RunPrediction(**figures), ()

    return predicted


def outcomes(runs: Sequence[MeasuredRun], predicted: Predictor) -> tuple[Outcome, ...]:
    """One outcome per configuration, in order of first appearance."""
    groups: dict[object, list[MeasuredRun]] = defaultdict(list)
    for run in runs:
        groups[repeat_key(run)].append(run)
    return tuple(_outcome(tuple(group), predicted) for group in groups.values())


def _outcome(runs: tuple[MeasuredRun, ...], predicted: Predictor) -> Outcome:
    try:
        prediction, assumed = predicted(runs[0])
    except TrainwrightError as error:
        return Outcome(runs=runs, reason=str(error))
    return Outcome(runs=runs, prediction=prediction, assumed=assumed)


def score(
    name: str, found: Sequence[Outcome], *, incomplete: Sequence[tuple[str, ...]] = ()
) -> validation.DatasetScore:
    """Every figure of one file; `incomplete` names what each row that makes no run leaves open."""
    reasons = Counter(f"not stated: {', '.join(columns)}" for columns in incomplete)
    for outcome in found:
        if outcome.reason is not None:
            reasons[outcome.reason] += len(outcome.runs)
    modelled = [o for o in found if o.prediction is not None]
    timed = [pair for o in modelled if (pair := _time_pair(o)) is not None]
    peaks = {q: _memory_pairs(modelled, q, "peak_memory_bytes") for q in Quality}
    statics = {q: _memory_pairs(modelled, q, "static_memory_bytes") for q in Quality}
    groups, scatter = _rank_groups(modelled), log_scatter(_repeats(modelled))
    low_high = [ends for o in modelled if _time_pair(o) and (ends := _interval(o)) is not None]
    return validation.DatasetScore(
        name=name,
        rows=sum(len(o.runs) for o in found) + len(incomplete),
        modelled=sum(len(o.runs) for o in modelled),
        assumed=sum(len(o.runs) for o in modelled if o.assumed),
        skipped=tuple(
            validation.SkippedRecord(reason=r, rows=n) for r, n in sorted(reasons.items())
        ),
        time=errors(timed),
        memory=errors(peaks[Quality.RECORDED]),
        static_memory=errors(statics[Quality.RECORDED]),
        memory_apart=errors(peaks[Quality.APART]),
        static_memory_apart=errors(statics[Quality.APART]),
        static_error_bytes=_typical_bytes(statics[Quality.RECORDED]),
        repeat_spread=_spread(modelled),
        ranked_groups=len(groups),
        kendall_tau=kendall_tau(groups),
        tau_ceiling=tau_ceiling(groups, scatter),
        top1_regret=regret(groups, scatter=scatter),
        top3_regret=regret(groups, first=_FIRST, scatter=scatter),
        false_fits=false_fits(_deciding_pairs(modelled)),
        refused=refused(modelled),
        interval_coverage=coverage(modelled),
        interval_check=coverage_check(_inside(modelled)),
        interval_width=median(high - low for low, high in low_high) if low_high else None,
        runs=tuple(_scored(o) for o in modelled),
    )


def coverage(found: Sequence[Outcome]) -> float | None:
    """Share of the timed runs whose measured time lies inside the predicted interval."""
    inside = _inside(found)
    return sum(inside) / len(inside) if inside else None


def refused(found: Sequence[Outcome]) -> float | None:
    """Share of the modelled runs, all of which ran, that are said not to fit on their device."""
    said = [o.prediction.fits for o in found if o.prediction is not None]
    known = [fits for fits in said if fits is not None]
    return known.count(False) / len(known) if known else None


def _inside(found: Sequence[Outcome]) -> list[bool]:
    """Of every timed run with a predicted interval whether its time lies inside."""
    inside = []
    for outcome in found:
        pair, prediction = _time_pair(outcome), outcome.prediction
        if pair is not None and prediction is not None:
            low, high = prediction.step_time_low_s, prediction.step_time_high_s
            if low is not None and high is not None:
                inside.append(low <= pair.measured <= high)
    return inside


def _time_pair(outcome: Outcome) -> Pair | None:
    measured = median_of([run.step_time_s for run in outcome.runs])
    if measured is None or outcome.prediction is None:
        return None
    if outcome.prediction.step_time_s is None:
        return None
    repeats = sum(run.step_time_s is not None for run in outcome.runs)
    return Pair(predicted=outcome.prediction.step_time_s, measured=measured, repeats=repeats)


def _interval(outcome: Outcome) -> tuple[float, float] | None:
    """Both ends as shares of the prediction; `None` where it has none."""
    prediction = outcome.prediction
    assert prediction is not None
    low_s, high_s = prediction.step_time_low_s, prediction.step_time_high_s
    if low_s is None or high_s is None:
        return None
    return low_s / prediction.priced_s, high_s / prediction.priced_s


def _memory_pairs(found: Sequence[Outcome], quality: Quality, quantity: str) -> list[Pair]:
    pairs = []
    for outcome in found:
        if quality_of(outcome.runs) is not quality:
            continue
        measured = median_of([getattr(run, quantity) for run in outcome.runs])
        predicted = getattr(outcome.prediction, quantity)
        if measured is not None and predicted is not None:
            pairs.append(Pair(predicted=predicted, measured=measured))
    return pairs


def _deciding_pairs(found: Sequence[Outcome]) -> list[Pair]:
    """What decides fit, the upper end of the predicted peak, beside the measured peak."""
    pairs = []
    for outcome in found:
        prediction = outcome.prediction
        measured = median_of([run.peak_memory_bytes for run in outcome.runs])
        if prediction is None or measured is None or prediction.peak_memory_bytes is None:
            continue
        if quality_of(outcome.runs) is Quality.RECORDED:
            high = prediction.high_memory_bytes or prediction.peak_memory_bytes
            pairs.append(Pair(predicted=high, measured=measured))
    return pairs


def _typical_bytes(pairs: Sequence[Pair]) -> float | None:
    return median(abs(p.predicted - p.measured) for p in pairs) if pairs else None


def _spread(found: Sequence[Outcome]) -> float | None:
    spreads = [spread_of([r.step_time_s for r in o.runs]) for o in found if len(o.runs) > 1]
    return median(spreads) if spreads else None


def _repeats(found: Sequence[Outcome]) -> list[list[float]]:
    """The measured times of each configuration."""
    return [[t for run in o.runs if (t := run.step_time_s) is not None] for o in found]


def _rank_groups(found: Sequence[Outcome]) -> list[list[Pair]]:
    """Runs of one job under several layouts, where there are enough of them.

    A job fixes what a layout is chosen for: model, devices, batch, number format, and the software
    with its release. Repeats count within their release alone.
    """
    jobs: dict[object, dict[object, Pair]] = defaultdict(dict)
    for outcome in found:
        for release, runs in _by_release(outcome).items():
            pair = _time_pair(replace(outcome, runs=runs))
            if pair is not None:
                jobs[*_job(outcome.run), release].setdefault(outcome.run.layout, pair)
    return [list(pairs.values()) for pairs in jobs.values() if len(pairs) >= LEAST_LAYOUTS]


def _by_release(outcome: Outcome) -> dict[str | None, tuple[MeasuredRun, ...]]:
    """The repeats of a configuration by the release of the software; `None` where unstated."""
    releases = sorted({run.setting("release") for run in outcome.runs}, key=str)
    return {
        release: tuple(run for run in outcome.runs if run.setting("release") == release)
        for release in releases
    }


def _job(run: MeasuredRun) -> tuple[object, ...]:
    stated = run.setting("job")
    if stated is not None:
        return (stated,)
    return (
        run.model,
        run.accelerator,
        run.num_devices,
        run.sequence_length,
        run.global_batch,
        run.precision,
        line_of(run).name,
    )


def _scored(outcome: Outcome) -> validation.ScoredRun:
    prediction = outcome.prediction
    assert prediction is not None

    def measured(name: str) -> float | None:
        return median_of([getattr(run, name) for run in outcome.runs])

    return validation.ScoredRun(
        row_id=outcome.run.row_id,
        repeats=len(outcome.runs),
        assumed=outcome.assumed,
        step_time_s=prediction.step_time_s,
        step_time_low_s=prediction.step_time_low_s,
        step_time_high_s=prediction.step_time_high_s,
        measured_step_time_s=measured("step_time_s"),
        peak_memory_bytes=prediction.peak_memory_bytes,
        measured_peak_memory_bytes=measured("peak_memory_bytes"),
        static_memory_bytes=prediction.static_memory_bytes,
        measured_static_memory_bytes=measured("static_memory_bytes"),
        fits=prediction.fits,
    )
