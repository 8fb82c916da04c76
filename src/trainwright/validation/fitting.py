"""Fit the constants of one accelerator under one software line to its measured runs.

Settings that the rows leave open are decided with the constants at hand, the constants are fitted
with those settings held, and both once more. The interval of a prediction comes from residuals of
runs that a fit has not seen: five folds that keep all rows of one configuration group together.
"""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from trainwright.cluster import Calibration, Circumstance, Constant, Spread
from trainwright.errors import InvalidInput, TrainwrightError
from trainwright.plan.measured_run import MeasuredRun
from trainwright.pricing.calibration import Fit, Prior, fit
from trainwright.pricing.interval import circumstances
from trainwright.validation.fill import answer
from trainwright.validation.lines import SoftwareLine, line_of
from trainwright.validation.machines import Known, cluster_of
from trainwright.validation.predict import predict
from trainwright.validation.question import Question
from trainwright.validation.shapes import config_of

NUM_FOLDS: Final = 5
COVERED: Final = 0.9
_LEFT_OUT: Final = 0.85
_ROUNDS: Final = 2
# Two-sided 90 % quantiles of Student's t by degrees of freedom; the normal one beyond.
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
_ENOUGH_FOR_QUANTILES: Final = 20
_LEAST_APART: Final = 6
_LEAST_WIDTH: Final = 0.03
_ALONE: Final = 0.10  # what one run tells of the next: the spread of published fits


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
    return _set_apart(_line_fit(questions, priors, found, source=source), questions, apart)


def fit_questions(
    questions: Sequence[tuple[MeasuredRun, Question]], priors: Sequence[Prior], *, source: str
) -> LineFit:
    """The same for runs with every setting stated, all on one accelerator and software line."""
    return _line_fit(questions, priors, _fit(questions, priors), source=source)


def mean_error(residuals: Sequence[float]) -> float:
    """Mean absolute relative error of log residuals."""
    return sum(abs(math.expm1(residual)) for residual in residuals) / len(residuals)


def _line_fit(
    questions: Sequence[tuple[MeasuredRun, Question]],
    priors: Sequence[Prior],
    found: Fit,
    *,
    source: str,
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
    also holds 85 % of the rows of groups it was not drawn from. With few rows, Student's range of
    their spread instead; a single row is always inside.
    """
    ratios = sorted(-residual for residual in unseen)  # log(measured / predicted)
    n = len(ratios)
    if n >= _ENOUGH_FOR_QUANTILES:
        spare = 0 if groups is None else _spare_rows([-r for r in unseen], groups)
        low, high = _shortest(ratios, spare)
    else:
        spread = math.sqrt(sum(r * r for r in ratios) / n)
        reach = _student(n) * spread if n > 1 else max(_ALONE, spread)
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
        model, cluster = config_of(run, line), cluster_of(run, line, known)
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
        found.append(math.log(priced.step_time_s / run.step_time_s))
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
