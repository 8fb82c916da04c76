"""What a training costs beyond its step: failures, checkpoints, money, energy, and what to prefer.

A job on N devices that each fail every M_d on average fails every M = M_d / N. It writes its state
every τ and each checkpoint takes δ; after a failure it restarts in R and repeats what was not
saved. With failures as a Poisson process the time to do T of useful work is

    W(τ) = M · e^(R/M) · (e^((τ+δ)/M) − 1) · T / τ

and the interval that makes it least is close to √(2·δ·M)·(1 + √(δ/2M)/3 + (δ/2M)/9) − δ, or M where
δ ≥ 2M. Goodput is T / W. Sources: J. W. Young, CACM 1974; J. T. Daly, *A higher order estimate of
the optimum checkpoint interval*, FGCS 2006. Not counted: checkpoints that overlap with training,
spare devices, slow failures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.cluster.calibration import POOLED, Software, SoftwareClass, software_named
from trainwright.errors import Fault, InvalidInput, refuse
from trainwright.execution import Budget
from trainwright.model import TRAIN_ALL
from trainwright.model.transformer import count_parameters
from trainwright.planning.question.question import ModelQuestion, Span, WeightedAim
from trainwright.planning.search.framework import plan_runnable, sketch_runnable
from trainwright.planning.search.frontier import Shelves
from trainwright.planning.search.plans import best_first, of_kinds
from trainwright.planning.search.search import FAR, ModelOutcome
from trainwright.planning.splits.types import Priced
from trainwright.plans.plan import KnownLayout

if TYPE_CHECKING:
    from trainwright.arrays import Floats

HOUR_S: Final = 3600.0
# 419 unexpected interruptions of 16,384 devices in 54 days: The Llama 3 Herd of Models, table 5.
DEVICE_MTBF_S: Final = 16_384 * 54 * 24 / 419 * HOUR_S
# Its storage sustains 2 TB/s for those devices (section 3.3.1).
CHECKPOINT_BYTES_PER_S: Final = 2e12 / 16_384
LEAST: Final = 1e-6  # of every figure of a training, and the most: anything beyond is a slip
MOST: Final = 1e24
RESTART_S: Final = 600.0  # assumed: notice the failure, start again, load the state


class Objective(StrEnum):
    """What to prefer among plans on different numbers of devices."""

    STEP_TIME = "step-time"
    TOKENS_PER_DEVICE = "tokens-per-device"
    COST = "cost"
    ENERGY = "energy"
    DEVICES = "devices"


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A training of so many tokens, and what it depends on beside the plan.

    `price_per_hour` and `power_watts` are of one device, `device_mtbf_s` its mean time between
    failures, `checkpoint_bytes_per_s` its share of the storage's bandwidth.
    """

    tokens: float | None = None
    price_per_hour: float | None = None
    power_watts: float | None = None
    deadline_s: float | None = None
    device_mtbf_s: float = DEVICE_MTBF_S
    checkpoint_bytes_per_s: float = CHECKPOINT_BYTES_PER_S
    restart_s: float = RESTART_S

    def __post_init__(self) -> None:
        refuse(self._faults())

    def _faults(self) -> Iterator[Fault]:
        for field in fields(self):
            value = getattr(self, field.name)
            at_once = field.name == "restart_s" and value == 0
            if value is not None and not at_once and not LEAST <= value <= MOST:
                yield Fault(field.name, f"must be from {LEAST:g} to {MOST:g}, got {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """The share of time that is useful work, and the checkpoints that make it largest."""

    share: float
    interval_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A training under one plan. What needs a figure that is not known is None."""

    devices: int
    step_time_s: float
    tokens_per_s: float
    goodput: Goodput
    train_s: float | None
    cost: float | None
    energy_j: float | None


def goodput(training: Training, *, devices: int, checkpoint_bytes: float) -> Goodput:
    """The useful share of time on so many devices, which write the state together."""
    mtbf_s = training.device_mtbf_s / devices
    write_s = checkpoint_bytes / (training.checkpoint_bytes_per_s * devices)
    interval_s = best_interval_s(write_s, mtbf_s)
    exponent = (interval_s + write_s) / mtbf_s
    slowed = math.exp(min(training.restart_s / mtbf_s, 700.0)) * math.expm1(min(exponent, 700.0))
    share = interval_s / (mtbf_s * slowed) if slowed > 0 else 1.0
    return Goodput(share=share, interval_s=interval_s)


def goodput_shares(training: Training, devices: Floats, *, checkpoint_bytes: float) -> Floats:
    """The share of `goodput` for many numbers of devices at once, [N]."""
    mtbf_s = training.device_mtbf_s / devices
    write_s = checkpoint_bytes / (training.checkpoint_bytes_per_s * devices)
    ratio = write_s / (2 * mtbf_s)
    daly_s = np.sqrt(2 * write_s * mtbf_s) * (1 + np.sqrt(ratio) / 3 + ratio / 9) - write_s
    interval_s = np.where(ratio >= 1, mtbf_s, np.maximum(daly_s, mtbf_s * 1e-9))
    exponent = np.minimum((interval_s + write_s) / mtbf_s, 700.0)
    slowed = np.exp(np.minimum(training.restart_s / mtbf_s, 700.0)) * np.expm1(exponent)
    shares: Floats = interval_s / (mtbf_s * slowed)
    return shares


def best_interval_s(checkpoint_s: float, mtbf_s: float) -> float:
    """Seconds of work between checkpoints by Daly's higher-order estimate."""
    ratio = checkpoint_s / (2 * mtbf_s)
    if ratio >= 1:
        return mtbf_s
    first_order_s = math.sqrt(2 * checkpoint_s * mtbf_s)
    return max(first_order_s * (1 + math.sqrt(ratio) / 3 + ratio / 9) - checkpoint_s, mtbf_s * 1e-9)


def outcome(
    training: Training,
    *,
    devices: int,
    step_time_s: float,
    tokens_per_s: float,
    checkpoint_bytes: float,
) -> Outcome:
    """What the training takes with a step of that time; devices are paid and powered throughout."""
    useful = goodput(training, devices=devices, checkpoint_bytes=checkpoint_bytes)
    train_s = device_s = None
    if training.tokens is not None and useful.share > 0:
        train_s = training.tokens / (tokens_per_s * useful.share)
        device_s = devices * train_s
    price, watts = training.price_per_hour, training.power_watts
    return Outcome(
        devices=devices,
        step_time_s=step_time_s,
        tokens_per_s=tokens_per_s,
        goodput=useful,
        train_s=train_s,
        cost=None if device_s is None or price is None else device_s / HOUR_S * price,
        energy_j=None if device_s is None or watts is None else device_s * watts,
    )


def score(objective: Objective, found: Outcome, *, deadline_s: float | None = None) -> float:
    """What to make least; infinite where the training misses the deadline or is never done."""
    if deadline_s is not None and (found.train_s is None or found.train_s > deadline_s):
        return math.inf
    values = {
        Objective.STEP_TIME: found.step_time_s,
        Objective.TOKENS_PER_DEVICE: found.devices / found.tokens_per_s,
        Objective.COST: found.cost,
        Objective.ENERGY: found.energy_j,
        Objective.DEVICES: float(found.devices),
    }
    value = values[objective]
    return math.inf if value is None else value


def pareto(points: Sequence[tuple[float, float]]) -> tuple[int, ...]:
    """Which points no other point beats in one coordinate without losing in the other.

    Of equal points the first counts; by index, those with the least first coordinate first.
    """
    order = sorted(range(len(points)), key=lambda i: (points[i], i))
    kept, least = [], math.inf
    for index in order:
        first, second = points[index]
        if second < least and math.isfinite(first):
            kept.append(index)
            least = second
    return tuple(kept)


def required(objective: Objective) -> tuple[str, ...]:
    """The fields of `Training` that an objective cannot do without."""
    return {
        Objective.COST: ("tokens", "price_per_hour"),
        Objective.ENERGY: ("tokens", "power_watts"),
        Objective.DEVICES: ("tokens", "deadline_s"),
    }.get(objective, ())


# Bounds on what a training costs, over every plan on so many devices and how many of them
# ----------------------------------------------------------------------------------------
# For a number of devices every objective grows with the step (`Aim`), so a bound on the step of
# all plans on n devices bounds each of them. Such bounds come from two sides:
#
# - plans on at most N devices, n <= N, step no faster than the bound of that search;
# - a search for the least of an objective bounds its weight times the step, for every n.
#
# The larger of them, by n, gives a bound on every objective, and says how much a Pareto front may
# miss: all plans on n devices lie above one point, and what a shown plan is worse than that point,
# in the worse of two objectives, is the most by which it can be beaten in both.

_NO_STEP = -1.0


def aim_of(
    objective: Objective,
    training: Training,
    *,
    fewest: int,
    most: int,
    tokens_per_step: float,
    checkpoint_bytes: float,
) -> WeightedAim:
    """What the objective makes least, on `fewest` to `most` devices, within the deadline.

    The figures are those of `objectives.score`; for the fewest devices, their number and less than
    one more by the share of the time that the deadline leaves.
    """
    devices = np.arange(most + 1, dtype=np.float64)
    shares = goodput_shares(training, np.maximum(devices, 1.0), checkpoint_bytes=checkpoint_bytes)
    usable = (devices >= fewest) & (shares > 0)
    limit_s = np.full(most + 1, math.inf)
    if training.deadline_s is not None:
        tokens = math.inf if training.tokens is None else training.tokens
        limit_s = training.deadline_s * tokens_per_step * shares / tokens
    offset, weight = np.zeros(most + 1), np.ones(most + 1)
    # Seconds of all devices for the whole training, per second of a step.
    useful = np.where(usable, shares, 1.0)
    whole = np.maximum(devices, 1.0) * (training.tokens or 0.0) / (tokens_per_step * useful)
    match objective:
        case Objective.TOKENS_PER_DEVICE:
            weight = np.maximum(devices, 1.0) / tokens_per_step
        case Objective.COST:
            weight = whole * (training.price_per_hour or 0.0) / HOUR_S
        case Objective.ENERGY:
            weight = whole * (training.power_watts or 0.0)
        case Objective.DEVICES:
            offset, weight = devices, 0.5 / np.where(limit_s > 0, limit_s, 1.0)
    return WeightedAim(offset=offset, weight=weight, limit_s=np.where(usable, limit_s, _NO_STEP))


def least_steps_s(
    most: int,
    sizes: Iterable[tuple[int, float]],
    searched: Iterable[tuple[WeightedAim, float]] = (),
) -> Floats:
    """The least step of any plan on n devices, for n up to `most`, [most + 1]; 0 where unknown.

    `sizes` holds numbers N and bounds on the step of all plans on at most N devices, infinite where
    none fits; `searched` holds aims with what no plan is better than.
    """
    least_s = np.zeros(most + 1)
    for size, bound_s in sizes:
        least_s[: size + 1] = np.maximum(least_s[: size + 1], bound_s)
    for aim, bound in searched:
        with np.errstate(invalid="ignore"):
            # A step within the limit has a figure no less than the bound, or there is none.
            beyond_s = np.nextafter(aim.limit_s, math.inf)
            own_s = np.minimum((bound - aim.offset) / aim.weight, beyond_s)
        least_s = np.maximum(least_s, np.maximum(own_s, 0.0))
    return least_s


def least_scores(objective: Objective, aim: WeightedAim, steps_s: Floats) -> Floats:
    """The least score of plans on n devices, [most + 1]; infinite where no step is allowed."""
    keys = aim.keys(steps_s, np.arange(len(steps_s)))
    return np.floor(keys) if objective is Objective.DEVICES else keys


def pareto_excess(points: Sequence[tuple[float, float]], one: Floats, other: Floats) -> float:
    """By what share a plan may beat every point in both scores, at most; infinite where unknown.

    `one` and `other` are the least scores by number of devices, [N]. For each plan there is a point
    whose scores are both at most 1 + excess times its own.
    """
    possible = np.isfinite(one) & np.isfinite(other)
    one, other = one[possible], other[possible]
    if not len(one):
        return 0.0
    nearest = np.full(len(one), math.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        for first, second in points:
            if math.isfinite(first) and math.isfinite(second):
                nearest = np.fmin(nearest, np.maximum(first / one, second / other))
    return max(0.0, float(nearest.max()) - 1)


# The simpler of plans that predictions do not tell apart
# -------------------------------------------------------
# Two layouts of one job share most of the error of their predictions: the device, the software and
# the model are the same. What is left decides which of them is faster. Of 157 pairs of public runs
# of one job, predicted by efficiencies fitted without their table, half of the predicted ratios
# miss the measured one by more than `PAIRED_ERROR`. A plan that is faster by less, and that needs
# what few public runs show (context parallelism, a schedule other than 1F1B and its interleaved
# form), may not pay: the simpler one is shown beside it, or taken where that is preferred.


PAIRED_ERROR: Final = 0.065  # median of |log| of pairs; see above
_USUAL: Final = ("1f1b", "interleaved")


def expects_runs(question: ModelQuestion) -> bool:
    """Whether times rest on pooled public runs, so that measured errors say what may be faster."""
    fitted = question.cluster.pool_of().accelerator.calibration
    return fitted is not None and POOLED in fitted.source


def extras(found: Priced) -> frozenset[str]:
    """What a plan needs that few public runs show."""
    degrees, schedule = found.plan.parallelism, found.plan.schedule
    if degrees is None:
        return frozenset({"degrees that differ between stages"})
    needed = set()
    if degrees.context > 1:
        needed.add("context parallelism")
    if schedule not in _USUAL and degrees.pipeline > 1:
        needed.add(f"the schedule {schedule}")
    elif degrees.virtual_stages > 1:
        needed.add(_CHUNKS)
    if degrees.state_copies > 1:
        needed.add("copies of sharded state")
    return frozenset(needed)


# In 155 of the timed public runs (four tables), where 110 cut the context.
_CHUNKS: Final = "virtual stages"


def _weight(found: Priced) -> int:
    """How much a plan needs that few public runs show; virtual stages, of which more do, least."""
    return sum(1 if each == _CHUNKS else 2 for each in extras(found))


def simplest(priced: Sequence[Priced]) -> Priced | None:
    """Of plans best first the simplest that is no slower than the error allows, if there is one.

    It needs less than the best plan, and nothing that the best plan does without but virtual
    stages in place of what fewer runs show.
    """
    best, *others = priced
    longest_s = best.step.step_time_s * (1 + PAIRED_ERROR)
    found = [
        other
        for other in others
        if other.step.step_time_s <= longest_s and _needs_less(other, best)
    ]
    return min(found, key=lambda each: (_weight(each), each.step.step_time_s), default=None)


def _needs_less(other: Priced, best: Priced) -> bool:
    own, its = extras(best), extras(other)
    schedules = {each for each in its if each.startswith("the schedule")}
    return _weight(other) < _weight(best) and not schedules and its <= own | {_CHUNKS}


def why(best: Priced, simple: Priced) -> str:
    """The reason to take the simple plan, in words."""
    spared = " and ".join(sorted(extras(best) - extras(simple))).replace("the schedule", "schedule")
    slower = simple.step.step_time_s / best.step.step_time_s - 1
    return (
        f"simpler, without {spared}, and {slower:.1%} slower; predicted ratios of two layouts are "
        f"off by {PAIRED_ERROR:.1%} in the median"
    )


def simple_question(question: ModelQuestion) -> ModelQuestion | None:
    """The question for simple plans alone; None where the options leave no room for them."""
    allowed = question.allowed
    schedules = tuple(name for name in _USUAL if name in (allowed.schedules or _USUAL))
    if not schedules or 1 not in allowed.context or 1 not in allowed.state_copies:
        return None
    return replace(
        question,
        allowed=replace(
            allowed, schedules=schedules, context=Span.only(1), state_copies=Span.only(1)
        ),
    )


def with_plain(
    question: ModelQuestion,
    outcome: ModelOutcome,
    budget: Budget,
    *,
    count: int,
    is_first: bool,
    shelves: Shelves | None = None,
) -> ModelOutcome:
    """The outcome with plans that need nothing rare, if the best does or few kinds are known.

    `count` runners-up are to be told; `shelves` have what was priced for the outcome. The simplest
    plan that predictions do not tell from the best comes first where it `is_first`.
    """
    best, *known = outcome.priced
    shelves = shelves or Shelves()

    def add(asked: ModelQuestion, longest_s: float) -> None:
        with suppress(InvalidInput):  # the framework runs no such degrees
            found = plan_runnable(
                asked,
                budget,
                num_alternatives=_SOUGHT,
                to_beat=longest_s,
                is_bounded=False,
                shelves=shelves,
            )
            known.extend(found.priced[:1])

    if (narrowed := simple_question(question)) is not None and extras(best):
        longest_s = best.step.step_time_s * (1 + PAIRED_ERROR)
        if _is_near(narrowed, longest_s, budget, shelves):
            add(narrowed, longest_s)
    wanted = 1 + min(count, _FEW_KINDS)
    for asked in _neighbours(question, best):
        if len(of_kinds(best_first((best, *known)), wanted)) == wanted or budget.stopped:
            break
        add(asked, FAR * best.step.step_time_s)
    ranked = best_first((best, *known))
    simple = simplest(ranked) if is_first else None
    if simple is not None:
        ranked = (simple, *(each for each in ranked if each is not simple))
    return replace(outcome, priced=ranked)


def _is_near(question: ModelQuestion, longest_s: float, budget: Budget, shelves: Shelves) -> bool:
    """Whether a brief search finds a plan that is no slower; by the margins, so it may yet fit."""
    with suppress(InvalidInput):
        found = sketch_runnable(
            question, budget, to_beat_s=longest_s, any_will_do=True, shelves=shelves
        )
        return found is not None
    return False


_FEW_KINDS: Final = 3  # runners-up that differ in kind; where fewer are known, they are sought
_SOUGHT: Final = 3  # runners-up that a framework's account of memory picks from


def kinds_with_simplest(listed: tuple[Priced, ...], count: int) -> tuple[Priced, ...]:
    """The first `count` that differ in kind, the simplest among them if predictions allow it."""
    told = of_kinds(listed, count)
    simple = simplest(listed) if told else None
    if simple is None or count < 2 or any(each is simple for each in told):
        return told
    kept = sorted((*told[1 : count - 1], simple), key=lambda each: each.step.step_time_s)
    return (told[0], *kept)


def _neighbours(question: ModelQuestion, best: Priced) -> Iterator[ModelQuestion]:
    """The questions for plans in the usual form whose degrees are next to those of the best one."""
    allowed, degrees, plain = question.allowed, best.plan.parallelism, simple_question(question)
    usual, *_ = _USUAL
    if degrees is None or plain is None or 1 not in allowed.virtual_stages:
        return
    if usual not in (plain.allowed.schedules or _USUAL):
        return
    for up, down in _STEPS:
        tensor, *lost = divmod(degrees.tensor * up[0], down[0])
        pipeline, *more = divmod(degrees.pipeline * up[1], down[1])
        if any((*lost, *more)) or tensor not in allowed.tensor or pipeline not in allowed.pipeline:
            continue
        narrowed = replace(
            plain.allowed,
            schedules=(usual,),
            virtual_stages=Span.only(1),
            tensor=Span.only(tensor),
            pipeline=Span.only(pipeline),
        )
        yield replace(plain, allowed=narrowed)


# What tensor and pipeline degrees are multiplied with, and what divided by.
_STEPS: Final = (
    ((2, 1), (1, 1)),
    ((1, 2), (1, 1)),
    ((1, 1), (2, 1)),
    ((1, 1), (1, 2)),
    ((2, 1), (1, 2)),
    ((1, 2), (2, 1)),
)


# What people run: of the published layouts the nearest one that this job can have
# ------------------------------------------------------------------------------

_LIKE: Final = 2.0  # times as many parameters, or as few, as a model that counts as alike
_TRIED: Final = 3  # of the nearest layouts; the first that fits is told


def as_published(
    question: ModelQuestion,
    layouts: Iterable[KnownLayout],
    memory_of: Callable[[str], float],
    budget: Budget,
    shelves: Shelves | None = None,
) -> tuple[KnownLayout, Priced] | None:
    """The nearest published layout that fits here, with the best plan of its degrees.

    Near are jobs of a like model, both with experts or both without, by the ratios of parameters,
    devices, tokens of a sequence and memory of a device (`memory_of` a name, in bytes); where a
    program is named, those of its own kind come first, then of what grew from the same code.
    Chunks, microbatch, stages and recomputation are planned. None where no such plan is found, or
    where not all weights train, as they do in published runs.
    """
    if question.config.tuning != TRAIN_ALL:
        return None
    parameters = count_parameters(question.config)
    own = question.cluster.pool_of().accelerator
    own_bytes = own.memory_bytes
    program = software_named(question.program)

    def far(known: KnownLayout) -> tuple[int, float, bool]:
        distance = known.distance(
            parameters=parameters,
            num_devices=question.num_devices,
            sequence_length=question.workload.sequence_length,
            memory=memory_of(known.device) / own_bytes,
        )
        strange = _strangeness(program, software_named(known.by))
        return strange, round(distance, 6), known.device != own.name

    like = (
        known
        for known in layouts
        if known.has_experts == (question.config.experts is not None)
        and 1 / _LIKE <= known.parameters / parameters <= _LIKE
    )
    asked = ((known, _of_layout(question, known)) for known in sorted(like, key=far))
    for known, narrowed in islice(((k, n) for k, n in asked if n is not None), _TRIED):
        with suppress(InvalidInput):  # a framework that has no such plan
            if (found := sketch_runnable(narrowed, budget, shelves=shelves)) is not None:
                return known, found
    return None


def _strangeness(own: Software, other: Software) -> int:
    """How far another program's code is from one's own: 0 of its kind, 1 of its school, else 2."""
    kinds = {own.kind, other.kind}
    if own.school is None or len(kinds) == 1 or kinds <= _ONE_CORE:
        return 0
    return 1 if own.school == other.school else 2


_ONE_CORE: Final = {SoftwareClass.MEGATRON, SoftwareClass.NEMO}  # both run Megatron-Core


def _of_layout(question: ModelQuestion, known: KnownLayout) -> ModelQuestion | None:
    """The question for plans of these degrees on all devices; None where it has none."""
    allowed, run = question.allowed, known.parallelism
    data, rest = divmod(question.num_devices, run.tensor * run.pipeline * run.context)
    stages = (3,) if run.zero_stage == 3 else (0, 1, 2)
    zero = tuple(stage for stage in allowed.zero_stages if stage in stages)
    degrees = {name: getattr(run, name) for name in ("tensor", "pipeline", "context", "expert")}
    degrees["data"] = data
    schedules = tuple(name for name in _USUAL if name in (allowed.schedules or _USUAL))
    if rest or not zero or not schedules:
        return None
    if any(degree not in getattr(allowed, name) for name, degree in degrees.items()):
        return None
    spans = {name: Span.only(degree) for name, degree in degrees.items()}
    narrowed = replace(allowed, **spans, zero_stages=zero, schedules=schedules)  # type: ignore[arg-type]
    return replace(question, allowed=narrowed)
