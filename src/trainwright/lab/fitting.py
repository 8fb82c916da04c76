"""Fit the constants of one accelerator under one software line to its measured runs.

Settings that the rows leave open are decided with the constants at hand, the constants are fitted
with those settings held, and both once more. The interval of a prediction comes from residuals of
runs that a fit has not seen: five folds that keep all rows of one configuration group together.
"""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.cluster import CONSTANTS, Calibration, Circumstance, Cluster, Constant, Spread
from trainwright.cluster.calibration import OVERHEAD_WIDTH, SHARE_WIDTH, SoftwareClass
from trainwright.errors import InvalidInput, TrainwrightError, UnsupportedFeature
from trainwright.formats.measured_csv import MeasuredRun
from trainwright.lab.predict import Question, RunPrediction, configuration_of, predict
from trainwright.lab.run_shapes import (
    Known,
    SoftwareLine,
    cluster_of,
    config_of,
    layout_stages,
    line_of,
)
from trainwright.model import TransformerConfig
from trainwright.plans.plan import usual_schedule
from trainwright.step.account import circumstances

if TYPE_CHECKING:
    from trainwright.arrays import Floats

    Residuals = Callable[[Mapping[str, float]], Sequence[float]]


# Settings that a table leaves open: the legal choice that is predicted fastest and fits
# --------------------------------------------------------------------------------------
# Microbatch sizes are powers of two that divide the batch, virtual stages divide the blocks of a
# stage, recomputation is tried from none to full, whole blocks by quarters of a stage (who tunes a
# run recomputes no more blocks than must be). The least recomputation that fits wins before speed
# decides. A choice made here is an assumption, and is counted as one.

_LARGEST_MICROBATCH = 8
_MOST_VIRTUAL_STAGES = 24
RECOMPUTE_ORDER = (("none", 1.0), ("selective", 1.0), *(("full", n / 4) for n in (1, 2, 3, 4)))
_RECOMPUTES = ("none", "selective", "full")
# torchtitan's choice operator by operator keeps about what our selective mode keeps.
_SAME_AS = {"per_op": "selective"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A question and its prediction; `assumed` names the settings chosen here."""

    question: Question
    prediction: RunPrediction
    assumed: tuple[str, ...] = ()


def answer(
    run: MeasuredRun, line: SoftwareLine, model: TransformerConfig, cluster: Cluster
) -> Answer:
    """Decide what is open, then predict; raises `UnsupportedFeature` where nothing is legal."""
    found = _decided(run, line, model, cluster)
    if found.prediction.fits or not _can_keep_narrow(run, line):
        return found
    asked = found.question.configuration
    narrow = replace(asked.recipe, activation_input_dtype="fp8")
    question = replace(found.question, configuration=replace(asked, recipe=narrow))
    leaner = replace(
        found,
        question=question,
        prediction=predict(question),
        assumed=(*found.assumed, "activation_input_dtype"),
    )
    return leaner if leaner.prediction.fits else found


def _can_keep_narrow(run: MeasuredRun, line: SoftwareLine) -> bool:
    """Whether a row leaves open that inputs of activations are kept in 8 bit.

    Megatron's layers do where they are told to (`activation_func_fp8_input_store`), as the FP8
    runs of MLPerf's LoRA are on one device of Blackwell a replica (FP8_ACT of its config_*.sh).
    """
    stated = run.options.get("activation_input_dtype") is not None
    known = run.setting("software") is None or line.software.kind in _OF_MEGATRON
    return "fp8" in run.precision and known and not stated


_OF_MEGATRON: Final = (SoftwareClass.MEGATRON, SoftwareClass.NEMO)


def _decided(
    run: MeasuredRun, line: SoftwareLine, model: TransformerConfig, cluster: Cluster
) -> Answer:
    """The choice among settings of microbatch, stages and recomputation that are left open."""
    stated_batch = run.global_batch
    if stated_batch is None:  # one microbatch a replica
        run = replace(run, global_batch=run.data * (run.microbatch_size or 1))
    assumed = tuple(
        name
        for name, value in (
            ("global_batch", stated_batch),
            ("microbatch_size", run.microbatch_size),
            ("virtual_stages", run.virtual_stages),
            ("recompute", run.recompute_mode[0] or line.default_recompute),
        )
        if value is None
    )
    best: Answer | None = None
    refused: str | None = None
    for recompute, share in _recompute_choices(run, line):
        for question in _questions(run, line, model, cluster, recompute, share):
            try:
                found = Answer(question=question, prediction=predict(question), assumed=assumed)
            except TrainwrightError as error:
                refused = refused or str(error)
                continue
            if not assumed:
                return found
            if _is_better(found, best):
                best = found
        if best is not None and best.prediction.fits:
            return best
    if best is None:
        raise UnsupportedFeature(refused or "no microbatch divides the batch")
    return best


def _is_better(found: Answer, best: Answer | None) -> bool:
    if best is None:
        return True
    order = (not found.prediction.fits, found.prediction.step_time_s)
    return order < (not best.prediction.fits, best.prediction.step_time_s)


def _recompute_choices(run: MeasuredRun, line: SoftwareLine) -> tuple[tuple[str, float], ...]:
    """Modes, each with the share of a stage's blocks that it is for."""
    stated = run.recompute_mode[0] or line.default_recompute
    if stated is None:
        return RECOMPUTE_ORDER
    mode = _SAME_AS.get(stated, stated)
    if mode not in _RECOMPUTES:
        raise UnsupportedFeature(f"recomputation {stated} is not modelled")
    return ((mode, 1.0),)


def _questions(
    run: MeasuredRun,
    line: SoftwareLine,
    model: TransformerConfig,
    cluster: Cluster,
    recompute: str,
    share: float,
) -> Iterator[Question]:
    for microbatch_size in _microbatches(run):
        for virtual_stages in _virtual_stages(run, model):
            asked = configuration_of(
                run,
                line,
                model,
                microbatch_size=microbatch_size,
                recompute=recompute,
                virtual_stages=virtual_stages,
                fast_domain=math.prod(level.size for level in cluster.pool_of().fabric),
            )
            if share < 1:
                blocks = math.ceil(share * model.num_layers / asked.num_stages)
                asked = replace(asked, recompute_blocks=blocks)
            yield Question(run=run, line=line, model=model, cluster=cluster, configuration=asked)


def _microbatches(run: MeasuredRun) -> Iterator[int]:
    assert run.global_batch is not None
    if run.microbatch_size is not None:
        if run.global_batch % (run.microbatch_size * run.data):
            raise UnsupportedFeature("the microbatches do not divide the batch")
        yield run.microbatch_size
        return
    size = 1
    while size <= _LARGEST_MICROBATCH:
        if run.global_batch % (size * run.data) == 0:
            yield size
        size *= 2


def _virtual_stages(run: MeasuredRun, model: TransformerConfig) -> Iterator[int]:
    """As stated; a layout says it by itself, whatever stands beside it."""
    layout = layout_stages(run.setting("pipeline_layout"))
    if layout is not None and len(layout) % run.pipeline == 0:
        yield len(layout) // run.pipeline
        return
    if run.virtual_stages is not None:
        yield run.virtual_stages
        return
    if run.pipeline == 1 or run.schedule != usual_schedule(2):
        yield 1
        return
    each = model.num_layers // run.pipeline
    degrees = [v for v in range(2, min(each, _MOST_VIRTUAL_STAGES) + 1) if each % v == 0]
    yield from degrees or [1]


# A few constants with intervals from a few measured times: robust, regularised least squares
# -------------------------------------------------------------------------------------------
# Residuals are log(predicted / measured). Each constant θ has a log-normal prior around its
# default, so one row already gives an answer and no direction runs away that the rows do not
# determine:
#
#     minimise  Σ ρ(rᵢ(θ) / σ) + Σ (log θⱼ − log θ⁰ⱼ)² / (2 sⱼ²)
#
# ρ is Huber's, because some measured runs follow no function of their plan (with a handful of rows
# no row can be told to be such a run, and ρ is the square); σ is the median absolute
# residual, rescaled, and re-estimated between Gauss-Newton steps. Intervals come from the curvature
# at the optimum (Laplace). Prior widths: 0.2 for shares of a peak, 0.7 for overheads, after the
# spread of such figures between published fits.

_HUBER: Final = 1.345  # of σ: efficient to 95% for normal residuals (Huber, 1981)
_ENOUGH_FOR_OUTLIERS: Final = 6
_LEAST_SCALE: Final = 0.01  # no measured step repeats better than this
# The first steps trust the rows, or far-off defaults would pass for noise and stay.
_FIRST_SCALE: Final = 0.03
_SMALL_SCALE: Final = 0.015  # of a handful of rows
_TRUSTING_STEPS: Final = 3
_STEP: Final = 0.02  # finite difference in log θ
_LARGEST_MOVE: Final = 0.5
_MOST_STEPS: Final = 15
_CONVERGED: Final = 3e-3
_Z90: Final = 1.6448536269514722
_FROM_MEDIAN: Final = 1.4826  # median absolute deviation to standard deviation


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """Where a constant is expected, and how far from it, as a standard deviation of its log."""

    name: str
    value: float
    width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Fitted constants with 90% intervals; `residuals` are log(predicted / measured).

    `unseen` are those of each row under constants fitted without its fold, to first order.
    """

    constants: tuple[Constant, ...]
    residuals: tuple[float, ...]
    unseen: tuple[float, ...]
    scale: float


def prior_of(name: str, value: float) -> Prior:
    """The usual prior of a constant around `value`."""
    share = CONSTANTS[name] == 1.0
    return Prior(name=name, value=value, width=SHARE_WIDTH if share else OVERHEAD_WIDTH)


def fit(
    residuals: Residuals,
    priors: Sequence[Prior],
    *,
    start: Mapping[str, float] | None = None,
    folds: Sequence[int] | None = None,
) -> Fit:
    """Fit the constants of `priors`; `residuals` prices all rows under given values.

    `start` is where to look first (the answer of a similar fit), by default the priors' values.
    `folds` numbers the rows that are left out together for `unseen`, by default each alone.
    Costs one evaluation per constant and step. Deterministic.
    """
    centre = np.log([prior.value for prior in priors])
    widths = np.array([prior.width for prior in priors])
    ceilings = np.log([min(CONSTANTS[prior.name], 1e300) for prior in priors])

    def at(theta: Floats) -> Floats:
        values = {p.name: math.exp(x) for p, x in zip(priors, theta.tolist(), strict=True)}
        return np.asarray(residuals(values), dtype=np.float64)

    given = start or {}
    first = np.log([given.get(prior.name, prior.value) for prior in priors])
    theta = np.minimum(first, ceilings)
    found, scale = at(theta), _FIRST_SCALE
    cut = _HUBER if len(found) >= _ENOUGH_FOR_OUTLIERS else math.inf
    curvature = np.diag(1 / widths**2)
    slopes = np.zeros((len(found), len(theta)))
    for step in range(_MOST_STEPS):
        for j in range(len(theta)):
            moved = theta.copy()
            moved[j] -= _STEP
            slopes[:, j] = (found - at(moved)) / _STEP
        weights = _weights(found, scale, cut)
        curvature = (slopes.T * weights) @ slopes + np.diag(1 / widths**2)
        gradient = (slopes.T * weights) @ found + (theta - centre) / widths**2
        move = -np.linalg.solve(curvature, gradient)
        move *= min(1.0, _LARGEST_MOVE / max(float(np.abs(move).max()), 1e-12))
        theta, found, moved_by = _line_search(
            at, theta, move, found, scale, cut, (centre, widths, ceilings)
        )
        if start is None and step < _TRUSTING_STEPS:
            continue
        scale = _scale(found)
        if moved_by < _CONVERGED:
            break
    weights, prior = _weights(found, scale, cut), np.diag(1 / widths**2)
    unseen = found.copy()
    groups = np.arange(len(found)) if folds is None else np.asarray(folds)
    for group in np.unique(groups):
        kept, held = groups != group, groups == group
        pulled = slopes[kept].T * weights[kept]
        gradient = pulled @ found[kept] + (theta - centre) / widths**2
        move = -np.linalg.solve(pulled @ slopes[kept] + prior, gradient)
        unseen[held] += slopes[held] @ np.clip(move, -_LARGEST_MOVE, _LARGEST_MOVE)
    spread = _Z90 * np.sqrt(np.diag(np.linalg.inv(curvature)))
    constants = tuple(
        Constant(
            name=prior.name,
            value=math.exp(x),
            low=math.exp(x - width),
            high=min(math.exp(x + width), CONSTANTS[prior.name]),
        )
        for prior, x, width in zip(priors, theta.tolist(), spread.tolist(), strict=True)
    )
    return Fit(
        constants=constants,
        residuals=tuple(found.tolist()),
        unseen=tuple(unseen.tolist()),
        scale=scale,
    )


def _line_search(
    at: Callable[[Floats], Floats],
    theta: Floats,
    move: Floats,
    found: Floats,
    scale: float,
    cut: float,
    prior: tuple[Floats, Floats, Floats],
) -> tuple[Floats, Floats, float]:
    """Halve the step until the objective falls; returns the point, residuals, and the distance."""
    centre, widths, ceilings = prior

    def objective(point: Floats, residual: Floats) -> float:
        penalty = float((((point - centre) / widths) ** 2).sum()) / 2
        return float(_huber(residual / scale, cut).sum()) + penalty

    before = objective(theta, found)
    for halvings in range(5):
        point = np.minimum(theta + move / 2**halvings, ceilings)
        residual = at(point)
        if objective(point, residual) < before:
            return point, residual, float(np.abs(point - theta).max())
    return theta, found, 0.0


def _scale(residual: Floats) -> float:
    """What rows scatter; a handful, which the constants could all meet, is trusted."""
    if len(residual) < _ENOUGH_FOR_OUTLIERS:
        return _SMALL_SCALE
    return max(_LEAST_SCALE, _FROM_MEDIAN * float(np.median(np.abs(residual))))


def _weights(residual: Floats, scale: float, cut: float) -> Floats:
    standard = np.abs(residual) / scale
    return np.minimum(1.0, cut / np.maximum(standard, 1e-12)) / scale**2


def _huber(standard: Floats, cut: float) -> Floats:
    size = np.abs(standard)
    if math.isinf(cut):
        return size**2 / 2
    return np.where(size <= cut, size**2 / 2, cut * (size - cut / 2))


# Fit the constants of one accelerator under one software line to its measured runs
# ---------------------------------------------------------------------------------

NUM_FOLDS: Final = 5
COVERED: Final = 0.9
_LEFT_OUT: Final = 0.85  # of groups left out that their ranges must hold
_ROUNDS: Final = 2
# Two-sided 90% quantiles of Student's t by degrees of freedom; the normal one beyond.
_STUDENT: Final = {
    1: 6.31,
    2: 2.92,
    3: 2.35,
    4: 2.13,
    5: 2.02,
    6: 1.94,
    8: 1.86,
    12: 1.78,
    20: 1.72,
}
_NORMAL: Final = 1.645
_ENOUGH_FOR_QUANTILES: Final = 20  # rows: one in twenty is beyond each end
_LEAST_APART: Final = 6
_LEAST_WIDTH: Final = 0.03  # of a range, either way, however well rows agree
_FEW: Final = 5
# What fewer tell of the next run at least: of pairs of public runs of one model, device and
# program, predicted without their table, nine of ten errors differ by less; 0.1 holds 73%.
_ALONE: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFit:
    """A calibration and how it did: residuals are log(predicted / measured), by run."""

    calibration: Calibration
    runs: tuple[MeasuredRun, ...]
    seen: tuple[float, ...]
    unseen: tuple[float, ...]


def fit_line(
    runs: Sequence[MeasuredRun],
    known: Known,
    priors: Sequence[Prior],
    *,
    source: str,
    apart: Circumstance | None = None,
) -> LineFit:
    """Constants, intervals and residuals; runs under `apart` get an interval of their own.

    Raises `InvalidInput` where no run can be priced.
    """
    bare = replace(known, calibrations=())
    questions = [(run, q) for run in runs if (q := _question(run, bare)) is not None]
    if not questions:
        raise InvalidInput.of("rows", "must hold at least 1 run that can be priced and was timed")
    line = line_of(questions[0][0])
    device = questions[0][0].accelerator
    found = _fit(questions, priors)
    for _ in range(_ROUNDS - 1):
        made = _calibration(device, line, found, source=source, rows=len(questions))
        again = replace(known, calibrations=(made,))
        questions = [
            (run, replace(q, cluster=old.cluster))
            for run, old in questions
            if (q := _question(run, again)) is not None
        ]
        found = _fit(questions, priors, start={c.name: c.value for c in found.constants})
    return _set_apart(_line_fit(questions, found, source=source), questions, apart)


def fit_questions(
    questions: Sequence[tuple[MeasuredRun, Question]], priors: Sequence[Prior], *, source: str
) -> LineFit:
    """The same for runs with every setting stated, all on one accelerator and software line."""
    return _line_fit(questions, _fit(questions, priors), source=source)


def mean_error(residuals: Sequence[float]) -> float:
    """Mean absolute relative error of log residuals."""
    return sum(abs(math.expm1(residual)) for residual in residuals) / len(residuals)


def _line_fit(
    questions: Sequence[tuple[MeasuredRun, Question]], found: Fit, *, source: str
) -> LineFit:
    run, question = questions[0]
    unseen = found.unseen if len(questions) > 1 else found.residuals
    low, high = interval(unseen, [group_of(run) for run, _ in questions])
    made = _calibration(run.accelerator, question.line, found, source=source, rows=len(questions))
    return LineFit(
        calibration=replace(made, low_ratio=low, high_ratio=high),
        runs=tuple(run for run, _ in questions),
        seen=found.residuals,
        unseen=unseen,
    )


def _set_apart(
    found: LineFit,
    questions: Sequence[tuple[MeasuredRun, Question]],
    apart: Circumstance | None,
) -> LineFit:
    """The same with intervals of the runs under a circumstance and of the others, if enough."""
    if apart is None:
        return found
    sides: tuple[list[tuple[float, object]], list[tuple[float, object]]] = ([], [])
    for (run, q), residual in zip(questions, found.unseen, strict=True):
        side = sides[apart in circumstances(q.model, q.cluster, q.configuration)]
        side.append((residual, group_of(run)))
    others, held = sides
    if min(len(others), len(held)) < _LEAST_APART:
        return found
    low, high = interval([r for r, _ in others], [g for _, g in others])
    spread_low, spread_high = interval([r for r, _ in held], [g for _, g in held])
    spread = Spread(when=apart, low_ratio=spread_low, high_ratio=spread_high, rows=len(held))
    made = replace(found.calibration, low_ratio=low, high_ratio=high, spreads=(spread,))
    return replace(found, calibration=made)


def group_of(run: MeasuredRun) -> tuple[object, ...]:
    """What near-duplicates share: model and layout, whatever the microbatch."""
    return (run.model, run.accelerator, run.num_devices, run.tensor, run.pipeline, run.data)


def fold_of(run: MeasuredRun) -> int:
    """The fold of a run; the same in every process."""
    return zlib.crc32(repr(group_of(run)).encode()) % NUM_FOLDS


def interval(
    unseen: Sequence[float], groups: Sequence[object] | None = None
) -> tuple[float, float]:
    """The shortest range of measured / predicted that holds nine of ten unseen residuals.

    Rows of one of `groups` resemble each other, so the range is drawn wider, row by row, until it
    also holds 85% of the rows of groups it was not drawn from. With few rows, Student's range of
    their spread instead; fewer than five never promise less than a fifth either way.
    """
    ratios = sorted(-residual for residual in unseen)  # log(measured / predicted)
    n = len(ratios)
    if n >= _ENOUGH_FOR_QUANTILES:
        spare = 0 if groups is None else _spare_rows([-r for r in unseen], groups)
        low, high = _shortest(ratios, spare)
    else:
        spread = math.sqrt(sum(r * r for r in ratios) / n)
        reach = _student(n) * spread if n > 1 else spread
        reach = max(_ALONE, reach) if n < _FEW else reach
        low, high = -reach, reach
    return math.exp(min(low, -_LEAST_WIDTH)), math.exp(max(high, _LEAST_WIDTH))


def _shortest(ratios: Sequence[float], spare: int) -> tuple[float, float]:
    """The shortest range that holds nine of ten sorted ratios of n + 1, and `spare` more."""
    n = len(ratios)
    inside = min(n, math.ceil(COVERED * (n + 1)) + spare)
    return min(
        ((ratios[i], ratios[i + inside - 1]) for i in range(n - inside + 1)),
        key=lambda ends: ends[1] - ends[0],
    )


def _spare_rows(ratios: Sequence[float], groups: Sequence[object]) -> int:
    """How many more rows a range must hold to reach `_LEFT_OUT` of groups left out."""
    members: dict[object, list[float]] = defaultdict(list)
    for ratio, group in zip(ratios, groups, strict=True):
        members[group].append(ratio)
    others = {
        group: sorted(r for g, held in members.items() if g != group for r in held)
        for group in members
    }
    if not all(others.values()):
        return 0
    most = len(ratios) - math.ceil(COVERED * (len(ratios) + 1))
    for spare in range(most + 1):
        held = 0
        for group, own in members.items():
            low, high = _shortest(others[group], spare)
            low, high = min(low, -_LEAST_WIDTH), max(high, _LEAST_WIDTH)
            held += sum(low <= ratio <= high for ratio in own)
        if held >= _LEFT_OUT * len(ratios):
            return spare
    return max(0, most)


def _student(n: int) -> float:
    return next((t for freedom, t in _STUDENT.items() if freedom >= n), _NORMAL)


def _question(run: MeasuredRun, known: Known) -> Question | None:
    """The run with its open settings decided; `None` where it cannot be priced or was not timed."""
    if run.step_time_s is None:
        return None
    line = line_of(run)
    try:
        model, cluster = config_of(run, line, known), cluster_of(run, line, known)
        return answer(run, line, model, cluster).question
    except TrainwrightError:
        return None


def _fit(
    questions: Sequence[tuple[MeasuredRun, Question]],
    priors: Sequence[Prior],
    *,
    start: Mapping[str, float] | None = None,
) -> Fit:
    return fit(
        lambda values: _residuals(questions, values),
        priors,
        start=start,
        folds=_folds(questions),
    )


def _residuals(
    questions: Sequence[tuple[MeasuredRun, Question]], values: Mapping[str, float]
) -> list[float]:
    constants = tuple(Constant(name=n, value=v, low=v, high=v) for n, v in values.items())
    found = []
    for run, question in questions:
        assert run.step_time_s is not None
        trial = Calibration(
            accelerator=run.accelerator,
            line=question.line.name,
            constants=constants,
            low_ratio=1.0,
            high_ratio=1.0,
            source="trial",
        )
        priced = predict(replace(question, cluster=trial.applied(question.cluster)))
        found.append(math.log(priced.priced_s / run.step_time_s))
    return found


def _folds(questions: Sequence[tuple[MeasuredRun, Question]]) -> list[int]:
    """Folds that keep a configuration group together; few rows are left out one by one."""
    if len(questions) < _ENOUGH_FOR_QUANTILES:
        return list(range(len(questions)))
    return [fold_of(run) for run, _ in questions]


def _calibration(
    device: str, line: SoftwareLine, found: Fit, *, source: str, rows: int
) -> Calibration:
    return Calibration(
        accelerator=device,
        line=line.name,
        constants=found.constants,
        low_ratio=1.0,
        high_ratio=1.0,
        source=source,
        rows=rows,
    )
