"""Every run of a folder: predicted, collapsed, scored (protocol of the documentation, accuracy).

Repeats of one configuration are collapsed to their median before anything is scored. A run that
cannot be modelled is counted under its reason, never dropped: modelled and skipped rows add up to
the rows of the file.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from trainwright.cluster.efficiency import UNFITTED
from trainwright.documents.validation import DatasetScore, ScoredRun, SkippedRecord
from trainwright.errors import TrainwrightError, UnsupportedFeature
from trainwright.lab.fitting import answer
from trainwright.lab.predict import RunPrediction
from trainwright.lab.run_shapes import Known, cluster_of, config_of, line_of
from trainwright.lab.scores import (
    LEAST_LAYOUTS,
    Pair,
    Quality,
    coverage_check,
    errors,
    false_fits,
    kendall_tau,
    log_scatter,
    median_of,
    quality_of,
    regret,
    repeat_key,
    spread_of,
    tau_ceiling,
)
from trainwright.lab.staged import predict_staged, staged_constants
from trainwright.plans.measured_run import MeasuredRun
from trainwright.profile.measured_layers import MeasuredLayers


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
) -> DatasetScore:
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
    return DatasetScore(
        name=name,
        rows=sum(len(o.runs) for o in found) + len(incomplete),
        modelled=sum(len(o.runs) for o in modelled),
        assumed=sum(len(o.runs) for o in modelled if o.assumed),
        skipped=tuple(SkippedRecord(reason=r, rows=n) for r, n in sorted(reasons.items())),
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
    return low_s / prediction.step_time_s, high_s / prediction.step_time_s


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


def _scored(outcome: Outcome) -> ScoredRun:
    prediction = outcome.prediction
    assert prediction is not None

    def measured(name: str) -> float | None:
        return median_of([getattr(run, name) for run in outcome.runs])

    return ScoredRun(
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
