"""How far predictions are from measurements, and whether they rank plans rightly.

With e = predicted / measured - 1: mean, median, 90th percentile and largest |e|, and the mean of e.
Kendall's tau-b and the regret of picking the plan predicted fastest are taken inside groups of one
job with several layouts (at least 3); pairs measured within the noise floor of 2 % say nothing
about ranking and are left out of tau.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist, median
from typing import Final

from trainwright.documents.validation import CoverageCheck, ErrorRecord, RegretRecord
from trainwright.plans.measured_run import MeasuredRun

# Whether a file's runs lie inside their 90 % intervals as often as intervals of 90 % allow
# -----------------------------------------------------------------------------------------
# Of n runs that each lie inside with probability 0.9, the number inside is binomial. A count is
# accepted where neither tail beyond it is rarer than 2.5 %: the two-sided test at 95 %. Runs of a
# file resemble each other, so the true tails are fatter; a file that fails deserves a look.

COVERED: Final = 0.9
_TAIL: Final = 0.025


def coverage_check(inside: Sequence[bool]) -> CoverageCheck | None:
    """The check of runs of which it is known whether they lie inside; `None` without any."""
    n, count = len(inside), sum(inside)
    if n == 0:
        return None
    least, most = acceptance_region(n)
    return CoverageCheck(
        n=n,
        inside=count,
        least_accepted=least,
        most_accepted=most,
        accepted=least <= count <= most,
    )


def acceptance_region(n: int, share: float = COVERED) -> tuple[int, int]:
    """The smallest and the largest accepted number of n runs inside.

    A count k is accepted where P(X <= k) and P(X >= k) are both above 2.5 %.
    """
    logs = (math.log(share), math.log(1 - share))  # whole numbers of many runs pass all floats
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

NOISE_FLOOR = 0.02
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


def errors(pairs: Sequence[Pair]) -> ErrorRecord | None:
    """The summary of a quantity; `None` where nothing was scored."""
    if not pairs:
        return None
    signed = [pair.error for pair in pairs]
    sizes = sorted(abs(e) for e in signed)
    return ErrorRecord(
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
) -> RegretRecord | None:
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
    return RegretRecord(
        mean=sum(each) / len(each),
        max=max(each),
        beyond_repeats=sum(max(0.0, lost - noise) for lost in each) / len(each),
    )


def pooled_regret(scores: Sequence[tuple[int, RegretRecord | None]]) -> RegretRecord | None:
    """That of all groups together, from those of files with their numbers of groups."""
    known = [(count, found) for count, found in scores if count and found is not None]
    if not known:
        return None
    total = sum(count for count, _ in known)
    mean = sum(count * found.mean for count, found in known) / total
    beyond = sum(count * found.beyond_repeats for count, found in known) / total
    return RegretRecord(mean=mean, max=max(found.max for _, found in known), beyond_repeats=beyond)


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
# whose device count was assumed, repeats that disagree by more than 5 %, kinds of training whose
# memory does not follow from the columns (FSDP, FP8, Muon, offloading, distillation). Figures
# copied from another row instead of measured are not scored at all.

LARGEST_SPREAD = 0.05
_APART_FLAGS = ("use_megatron_fsdp", "fp8_format", "fine_grained_activation_offloading")


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
