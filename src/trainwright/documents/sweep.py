"""Plans on several numbers of devices, one row each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from trainwright.documents.model_plan import ModelPlanResult
from trainwright.documents.model_search import remake_model_plan
from trainwright.documents.plan_view import launched_in_words, plan_view
from trainwright.documents.printing import layout_cells, layout_columns
from trainwright.documents.view import (
    MARKS,
    Cell,
    Line,
    Table,
    column,
    number,
    percent,
    seconds,
    size,
    table_of,
    warning_lines,
    words,
)
from trainwright.errors import Fault, InvalidInput, one_of, refuse
from trainwright.model import count_parameters
from trainwright.options.inputs import inside, naming_options
from trainwright.options.option import Options
from trainwright.options.question import ModelCall, known_length
from trainwright.options.table import fields_given, option_of
from trainwright.planning.bounds.pools import common_precision
from trainwright.planning.question.question import ModelQuestion, WeightedAim
from trainwright.planning.reasons.objectives import (
    Objective,
    Outcome,
    Training,
    aim_of,
    least_scores,
    least_steps_s,
    outcome,
    pareto,
    pareto_excess,
    required,
    score,
)
from trainwright.plans.configuration import PlanRequest
from trainwright.plans.plan import FORMAT_VERSION, Parallelism
from trainwright.plans.status import OPTIMAL_TOLERANCE, Status, relative_gap, status_at
from trainwright.profile.measured_model import MeasuredModel
from trainwright.provenance import RARE
from trainwright.units import format_bytes, format_percent_up, format_seconds

if TYPE_CHECKING:
    from trainwright.arrays import Floats

# The document of `plan` on several numbers of devices: one row each, and the plan to prefer
# ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRecord:
    """What the totals rest on; see `planning.reasons.objectives.Training`."""

    tokens: float | None = None
    price_per_hour: float | None = None
    power_watts: float | None = None
    deadline_s: float | None = None
    device_mtbf_s: float
    checkpoint_bytes_per_s: float
    checkpoint_bytes: float
    restart_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """The best plan on at most `devices`; without one, `reason` says what cannot fit.

    `settings` are the options that were given a value for this row alone, as text by flag;
    `layout` says how several pools are used, as in a `model-plan`.

    `goodput` is the share of time that is useful work, with a checkpoint every
    `checkpoint_interval_s`; `train_s`, `cost` and `energy_j` are of the whole training, failures
    and checkpoints included. `price_per_hour` and `power_watts` are of its devices, where those of
    another row have others.
    """

    devices: int
    status: Status
    settings: dict[str, str] | None = None
    devices_used: int | None = None
    step_time_s: float | None = None
    step_time_low_s: float | None = None
    step_time_high_s: float | None = None
    lower_bound_s: float | None = None
    gap: float | None = None
    tokens_per_s: float | None = None
    tokens_per_s_per_device: float | None = None
    mfu: float | None = None
    parallelism: Parallelism | None = None
    schedule: str | None = None
    micro_batch: int | None = None
    peak_memory_bytes: float | None = None
    layout: str | None = field(default=None, metadata={RARE: True})
    price_per_hour: float | None = field(default=None, metadata={RARE: True})
    power_watts: float | None = field(default=None, metadata={RARE: True})
    goodput: float | None = None
    checkpoint_interval_s: float | None = None
    train_s: float | None = None
    cost: float | None = None
    energy_j: float | None = None
    reason: str | None = None
    search_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedObjective:
    """What a search on all numbers of devices proved: no plan has less of the objective.

    `bound` is in the unit of `planning.reasons.objectives.score`, for devices with a share of
    one more; absent where no plan meets the deadline, or none fits.
    """

    objective: str
    bound: float | None = None
    search_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSweepResult:
    """Rows by number of devices, or by the values of the options that were swept.

    `best` and `pareto` are indices of rows. Rows of a sweep over options answer different
    questions, so `objective_bound` and `gap` are absent there.


    `objective` is what `best` makes least (tokens per second and device: largest) and
    `objective_value` its figure (seconds, tokens per second and device, money, joules, devices). No
    plan on `devices_from` devices to the number of the largest row has a better one than
    `objective_bound`, which is within `gap` of it. `pareto` holds the rows that no other beats in
    both of `pareto_objectives`; for every plan one of them is at most the share `pareto_within`
    worse in both.
    `best_plan` is the row's plan in full. `request` is that of a single plan, for `num_devices` of
    the largest row.
    """

    kind: str = "model-sweep"
    format_version: int = FORMAT_VERSION
    status: Status
    objective: str
    rows: tuple[SweepRow, ...]
    best: int | None = None
    objective_value: float | None = None
    objective_bound: float | None = None
    gap: float | None = None
    devices_from: int | None = None
    searched: tuple[SearchedObjective, ...] = ()
    pareto_objectives: tuple[str, ...] = ()
    pareto: tuple[int, ...] = ()
    pareto_within: float | None = None
    training: TrainingRecord
    interrupted: bool = False
    warnings: tuple[str, ...] = ()
    search_s: float | None = None
    best_plan: ModelPlanResult | None = None
    request: PlanRequest

    @property
    def swept(self) -> tuple[str, ...]:
        """The options that have a value for each row alone, by flag."""
        return tuple(self.rows[0].settings or ()) if self.rows else ()

    @property
    def cluster_in_words(self) -> str:
        """The cluster of all rows."""
        cluster = self.request.cluster
        return "several clusters" if "cluster" in self.swept else cluster.name if cluster else "?"

    @property
    def values_swept(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Each option that was swept, with its values in order."""
        found = []
        for flag in self.swept:
            values = ((row.settings or {}).get(flag, "") for row in self.rows)
            found.append((flag, tuple(filter(None, dict.fromkeys(values)))))
        return tuple(found)


def words_of_setting(settings: Mapping[str, str] | None, devices: int) -> str:
    """What tells a row from the others: the values of its options, else its devices."""
    said = ", ".join(f"{flag} {value}" for flag, value in (settings or {}).items())
    return said or f"{devices} devices"


# What a sweep prefers, and what a training costs beside its steps: from options
# ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What is preferred, and what it depends on."""

    objective: Objective
    pareto: tuple[Objective, ...]
    training: Training
    checkpoint_bytes: float
    tokens_per_step: float


def goal_of(largest: ModelCall, options: Options) -> Goal:
    """The goal that the options state; raises `InvalidInput` naming options."""
    pools, workload = largest.question.cluster.pools, largest.question.workload
    if known_length(largest.question) is None:
        problem = "must be given: totals count tokens, and the profile does not say of how many"
        raise InvalidInput.of("sequence", f"{problem} a sequence is, as --sequence N")
    objective = _objective(options.get("objective") or Objective.STEP_TIME, "objective")
    both = _pair(options.get("pareto"))
    of_devices = {
        name: {getattr(pool.accelerator, name) for pool in pools}
        for name in ("price_per_hour", "power_watts")
    }
    stated = {
        **{name: each.pop() for name, each in of_devices.items() if len(each) == 1},
        **fields_given("sweep", "training", options),
    }
    flags = option_of("sweep")
    with naming_options(flags):
        training = Training(**{k: v for k, v in stated.items() if v is not None})
    faults = [
        Fault(name := flags.get(field, field), f"must be given for {wanted}, as --{name} X")
        for wanted in dict.fromkeys((objective, *both))
        for field in required(wanted)
        if getattr(training, field) is None
    ]
    if faults:
        raise InvalidInput(dict.fromkeys(faults))
    return Goal(
        objective=objective,
        pareto=both,
        training=training,
        checkpoint_bytes=_checkpoint_bytes(largest.question),
        tokens_per_step=float(workload.global_batch * workload.sequence_length),
    )


def own_figures(call: ModelCall, goal: Goal, price: float | None) -> dict[str, float | None]:
    """Price and power of a call's devices, where they are not those of the goal.

    `price` is what was said of its cluster, None where nothing was said of clusters apart.
    """
    found: dict[str, float | None] = {}
    for name, said in (("price_per_hour", price), ("power_watts", None)):
        figures = {getattr(pool.accelerator, name) for pool in call.question.cluster.pools}
        own = said if said is not None else figures.pop() if len(figures) == 1 else None
        found[name] = None if own == getattr(goal.training, name) else own
    return found


def _checkpoint_bytes(question: ModelQuestion) -> float:
    """Weights and optimizer states of all parameters, and what a profile does not tell apart."""
    model, recipe = question.model, question.settings.recipe
    if isinstance(model, MeasuredModel):
        return model.checkpoint_bytes()
    numbers = recipe.numbers(common_precision(question.cluster, question.workload.precision))
    return count_parameters(model) * float(numbers.static_bytes - numbers.gradient_bytes)


def _objective(name: str, option: str) -> Objective:
    if name not in set(Objective):
        raise InvalidInput.of(option, one_of(Objective, name))
    return Objective(name)


def _pair(given: str | Iterable[str] | None) -> tuple[Objective, ...]:
    if given is None:
        return ()
    names = given.split(",") if isinstance(given, str) else list(given)
    pair = tuple(_objective(name.strip(), "pareto") for name in names)
    if len(set(pair)) != 2 or len(pair) != 2:
        problem = f"must name two objectives, such as step-time,cost; got {','.join(names)}"
        raise InvalidInput.of("pareto", problem)
    return pair


# The rows of a sweep: from plans to totals, and which row is best
# ----------------------------------------------------------------

NEVER: Final = float("inf")


def best_row(rows: Sequence[SweepRow], goal: Goal) -> int | None:
    """The row of the least score, the first where several are; None where none counts."""
    scores = [row_score(row, goal, goal.objective) for row in rows]
    best = scores.index(min(scores))
    return best if scores[best] < NEVER else None


def pareto_rows(rows: Sequence[SweepRow], goal: Goal) -> tuple[int, ...]:
    """The rows that no other beats in both objectives, fewest devices first."""
    if not goal.pareto:
        return ()
    one, other = goal.pareto
    return tuple(
        sorted(pareto([(row_score(row, goal, one), row_score(row, goal, other)) for row in rows]))
    )


def row_score(row: SweepRow, goal: Goal, objective: Objective) -> float:
    """What the objective makes least; infinite without a plan or beyond the deadline."""
    if row.step_time_s is None:
        return NEVER
    return score(objective, _outcome(row, goal), deadline_s=goal.training.deadline_s)


def sweep_status(rows: Sequence[SweepRow], goal: Goal) -> Status:
    """How much is proved of the rows together; infeasible where none can meet the deadline."""
    found = {row.status for row in rows}
    if best_row(rows, goal) is None:
        done = found <= {Status.OPTIMAL, Status.GAP, Status.INFEASIBLE}
        late = all(_is_late(row, goal) for row in rows if row.step_time_s is not None)
        return Status.INFEASIBLE if done and late else Status.UNKNOWN
    proved = found <= {Status.OPTIMAL, Status.INFEASIBLE}
    return Status.OPTIMAL if proved else Status.GAP


def _is_late(row: SweepRow, goal: Goal) -> bool:
    """Whether even a step as short as its bound would miss the deadline."""
    deadline_s = goal.training.deadline_s
    if deadline_s is None or row.train_s is None or row.step_time_s is None:
        return False
    return row.train_s * ((row.lower_bound_s or 0.0) / row.step_time_s) > deadline_s


def plan_row(
    size: int,
    plan: ModelPlanResult,
    goal: Goal,
    *,
    price_per_hour: float | None = None,
    power_watts: float | None = None,
) -> SweepRow:
    """The row of a plan on at most `size` devices; price and power where they are its own."""
    row = SweepRow(
        devices=size,
        price_per_hour=price_per_hour,
        power_watts=power_watts,
        status=plan.status,
        lower_bound_s=plan.lower_bound_s,
        search_s=plan.search_s,
    )
    if plan.step_time_s is None:
        return replace(row, reason=plan.binding.description if plan.binding else None)
    row = replace(
        row,
        devices_used=plan.devices_used,
        step_time_s=plan.step_time_s,
        step_time_low_s=plan.step_time_low_s,
        step_time_high_s=plan.step_time_high_s,
        gap=plan.gap,
        tokens_per_s=plan.tokens_per_s,
        tokens_per_s_per_device=plan.tokens_per_s_per_device,
        mfu=plan.mfu,
        parallelism=plan.parallelism,
        schedule=plan.schedule,
        micro_batch=plan.micro_batch,
        peak_memory_bytes=plan.peak_memory_bytes,
        layout=plan.layout,
    )
    return with_totals(row, goal)


def on_more_devices(plan: ModelPlanResult, own: ModelPlanResult) -> ModelPlanResult:
    """A plan as the answer of a search on more devices that found none as fast, with its bound."""
    step_s, bound_s = plan.step_time_s or 0.0, own.lower_bound_s or 0.0
    gap = relative_gap(step_s, bound_s)
    if not plan.on_pools:
        one_stage_s, one_order_s = own.lower_bound_one_stage_s, own.lower_bound_one_order_s
        plan = replace(
            plan,
            lower_bound_one_stage_s=None if one_stage_s is None else min(one_stage_s, step_s),
            lower_bound_one_order_s=None if one_order_s is None else min(one_order_s, step_s),
            left_open=own.left_open,
        )
    else:  # its pools have more devices
        plan = remake_model_plan(replace(plan, request=own.request))
    return replace(
        plan,
        status=status_at(gap),
        lower_bound_s=min(bound_s, step_s),
        gap=gap,
        interrupted=own.interrupted,
        considered=own.considered,
        pruned=own.pruned,
        not_reached=own.not_reached,
        search_s=own.search_s,
        request=own.request,
    )


def with_totals(row: SweepRow, goal: Goal) -> SweepRow:
    """The row with what the whole training takes; as it is where there is no plan."""
    if row.step_time_s is None:
        return row
    if not (row.devices_used and row.tokens_per_s):
        name = "tokens_per_s" if row.devices_used else "devices_used"
        problem = "must be stated and above 0 where step_time_s is, got"
        raise InvalidInput.of(name, f"{problem} {getattr(row, name)}")
    total = _outcome(row, goal)
    return replace(
        row,
        goodput=total.goodput.share,
        checkpoint_interval_s=total.goodput.interval_s,
        train_s=total.train_s,
        cost=total.cost,
        energy_j=total.energy_j,
    )


def _outcome(row: SweepRow, goal: Goal) -> Outcome:
    assert row.devices_used and row.step_time_s is not None and row.tokens_per_s
    own = {"price_per_hour": row.price_per_hour, "power_watts": row.power_watts}
    return outcome(
        replace(goal.training, **{name: each for name, each in own.items() if each is not None}),
        devices=row.devices_used,
        step_time_s=row.step_time_s,
        tokens_per_s=row.tokens_per_s,
        checkpoint_bytes=goal.checkpoint_bytes,
    )


# How far the preferred row, and the front, can be from the best on any number of devices
# ---------------------------------------------------------------------------------------

LARGEST_POOL: Final = 2**20  # devices up to which every number of them is looked at


def objective_aim(objective: Objective, goal: Goal, *, fewest: int, most: int) -> WeightedAim:
    """What a search makes least for the objective, on `fewest` to `most` devices."""
    return aim_of(
        objective,
        goal.training,
        fewest=fewest,
        most=most,
        tokens_per_step=goal.tokens_per_step,
        checkpoint_bytes=goal.checkpoint_bytes,
    )


def objectives_to_search(goal: Goal) -> tuple[Objective, ...]:
    """Those that the rows' own bounds leave open; device-seconds tell a front what lies between."""
    wanted = [goal.objective, *goal.pareto]
    if goal.pareto:
        wanted.append(Objective.TOKENS_PER_DEVICE)
    known = {Objective.STEP_TIME} if goal.training.deadline_s is None else set()
    return tuple(each for each in dict.fromkeys(wanted) if each not in known)


def fewest_devices(rows: Iterable[SweepRow]) -> int:
    """Where the numbers of devices begin that a bound is about: the smallest row, or what it uses.

    Rows hold plans on at most their number of devices, so the first may use fewer.
    """
    return min(row.devices_used or row.devices for row in rows)


def bounded(document: ModelSweepResult, goal: Goal) -> ModelSweepResult:
    """The document with what its rows and searches prove of its objective and its front."""
    fewest, most = document.devices_from, document.rows[-1].devices
    if fewest is None:
        return document

    def aim_for(objective: Objective) -> WeightedAim:
        return objective_aim(objective, goal, fewest=fewest, most=most)

    steps_s = least_steps_s(
        most,
        ((row.devices, _step_bound_s(row)) for row in document.rows),
        (
            (aim_for(Objective(each.objective)), math.inf if each.bound is None else each.bound)
            for each in document.searched
        ),
    )

    def scores(objective: Objective) -> Floats:
        return least_scores(objective, aim_for(objective), steps_s)[fewest:]

    bound = float(scores(goal.objective).min())
    if document.best is None:
        status = Status.INFEASIBLE if math.isinf(bound) else Status.UNKNOWN
        return replace(document, status=status)
    value = row_score(document.rows[document.best], goal, goal.objective)
    gap = relative_gap(value, bound)
    within = None
    if goal.pareto:
        one, other = goal.pareto
        front = [document.rows[index] for index in document.pareto]
        points = [(row_score(row, goal, one), row_score(row, goal, other)) for row in front]
        excess = pareto_excess(points, scores(one), scores(other))
        within = excess if math.isfinite(excess) else None
    return replace(
        document,
        status=status_at(gap),
        objective_value=_figure(goal.objective, value),
        objective_bound=_figure(goal.objective, min(bound, value)),
        gap=gap,
        pareto_within=within,
    )


def _step_bound_s(row: SweepRow) -> float:
    """What no step on at most the row's devices is shorter than."""
    if row.status is Status.INFEASIBLE:
        return math.inf
    return row.lower_bound_s or 0.0


def _figure(objective: Objective, score: float) -> float | None:
    """A score in the objective's own unit: tokens per second and device are to be many."""
    if objective is not Objective.TOKENS_PER_DEVICE:
        return score
    return 1 / score if score > 0 else None


# The document again: totals of the rows, the row of the preferred plan, and what rows prove
# -----------------------------------------------------------------------------------------


def remake_sweep(document: ModelSweepResult) -> ModelSweepResult:
    """The document with every figure that follows from its rows and its preferred plan.

    Raises `InvalidInput` for objectives, a training or numbers of devices that cannot be.
    """
    refuse(_objective_faults(document))
    stated = document.training
    with inside("training"):
        training = Training(
            tokens=stated.tokens,
            price_per_hour=stated.price_per_hour,
            power_watts=stated.power_watts,
            deadline_s=stated.deadline_s,
            device_mtbf_s=stated.device_mtbf_s,
            checkpoint_bytes_per_s=stated.checkpoint_bytes_per_s,
            restart_s=stated.restart_s,
        )
    goal = Goal(
        objective=Objective(document.objective),
        pareto=tuple(map(Objective, document.pareto_objectives)),
        training=training,
        checkpoint_bytes=stated.checkpoint_bytes,
        tokens_per_step=_tokens_per_step(document),
    )
    rows = []
    for index, row in enumerate(document.rows):
        with inside(f"rows[{index}]"):
            rows.append(with_totals(row, goal))
    best, plan = document.best, document.best_plan
    if plan is not None and best is not None and 0 <= best < len(rows):
        row = rows[best]
        own = {"price_per_hour": row.price_per_hour, "power_watts": row.power_watts}
        made_row = plan_row(row.devices, plan, goal, **own)
        rows[best] = replace(made_row, search_s=row.search_s, settings=row.settings)
    made = replace(
        document,
        rows=tuple(rows),
        status=sweep_status(rows, goal),
        best=best_row(rows, goal),
        pareto=pareto_rows(rows, goal),
    )
    return bounded(made, goal)


def _objective_faults(document: ModelSweepResult) -> Iterator[Fault]:
    """What is made least, and the numbers of devices that bounds are about."""
    for name in sorted({document.objective, *document.pareto_objectives} - set(Objective)):
        yield Fault("objective", f'must be an objective, got "{name}"')
    fewest, most = document.devices_from, document.rows[-1].devices if document.rows else 0
    if not document.rows:
        yield Fault("rows", "must have at least 1 entry, got 0")
    elif fewest is not None and not 1 <= fewest <= most <= LARGEST_POOL:
        yield Fault("devices_from", f"must be from 1 to the {most} of the last row, got {fewest}")
    for index, each in enumerate(document.searched):
        if each.objective not in set(Objective):
            wanted = f"must be one of {', '.join(Objective)}"
            yield Fault(f"searched[{index}].objective", f'{wanted}, got "{each.objective}"')


def _tokens_per_step(document: ModelSweepResult) -> float:
    workload = document.request.workload
    if workload is None:
        raise InvalidInput.of("request.workload", "required field is missing")
    return float(workload.global_batch * (workload.sequence_length or 1))


# Plans on several numbers of devices, one row each
# -------------------------------------------------

_MWH_J: Final = 3.6e9
_DAY_S: Final = 86_400.0
_FINE_GAP: Final = 1e-4


def model_sweep_view(document: ModelSweepResult) -> Iterator[Line]:
    """One row per number of devices, why some have none, and the preferred plan in full."""
    yield f"{document.request.model.name} on {document.cluster_in_words}"
    yield row_table(document)
    if document.training.tokens is not None:
        yield training_table(document)
    yield from _notes(document)
    yield from warning_lines(document.warnings)
    if document.best_plan is not None:
        yield ""
        yield from plan_view(document.best_plan)


def row_table(document: ModelSweepResult) -> Table:
    """The best plan on each number of devices."""
    plans = [row.parallelism for row in document.rows]
    several = not document.swept or len({row.devices for row in document.rows}) > 1
    found = table_of(
        "The best plan of each setting" if document.swept else "The best plan of each number",
        (
            *(words(flag) for flag in document.swept),
            *([column("devices")] if several else []),
            column("step", "step_time_s"),
            column("tokens/s", "tokens_per_s"),
            column("per device", "tokens_per_s_per_device", "/device"),
            column("MFU", "mfu"),
            words("pools", "layout"),
            *layout_columns(plans),
            column("microbatch", "micro_batch", "mb"),
            words("schedule"),
            column("memory", "peak_memory_bytes"),
            column("gap"),
            MARKS,
        ),
        (
            (
                *((row.settings or {}).get(flag, "") for flag in document.swept),
                *([row.devices] if several else []),
                *_step_cells(row),
                row.layout or "",
                *layout_cells(row.parallelism, plans),
                row.micro_batch,
                row.schedule,
                size(row.peak_memory_bytes),
                _gap_cell(row),
                _mark(document, index),
            )
            for index, row in enumerate(document.rows)
        ),
        marked=() if document.best is None else (document.best,),
    )
    return found.without_empty(same=bool(document.swept))


def _step_cells(row: SweepRow) -> Iterator[Cell]:
    yield Cell.of(row.status.value) if row.step_time_s is None else seconds(row.step_time_s)
    yield number(row.tokens_per_s)
    yield number(row.tokens_per_s_per_device)
    yield percent(row.mfu)


def _gap_cell(row: SweepRow) -> Cell:
    if row.step_time_s is None:
        return Cell.of("")
    if row.status is Status.OPTIMAL:
        return Cell(text="0%", value=0.0)
    gap = row.gap or 0.0
    return Cell(text="<0.01%" if gap < _FINE_GAP else format_percent_up(gap), value=gap)


def training_table(document: ModelSweepResult) -> Table:
    """Totals of the whole training, as far as its inputs are known."""
    training = document.training
    planned = [(at, row) for at, row in enumerate(document.rows) if row.step_time_s is not None]
    priced = "none" if training.price_per_hour is None else "both"
    powered = "none" if training.power_watts is None else "both"
    found = table_of(
        "The whole training",
        (
            *(words(flag) for flag in document.swept),
            column("devices"),
            column("useful", "goodput"),
            column("days", "train_s"),
            column("cost", on=priced),
            column("MWh", "energy_j", on=powered),
            MARKS,
        ),
        (
            (
                *((row.settings or {}).get(flag, "") for flag in document.swept),
                row.devices_used,
                percent(row.goodput),
                _scaled(row.train_s, _DAY_S, ",.1f"),
                number(row.cost),
                _scaled(row.energy_j, _MWH_J, ",.4g"),
                _mark(document, index),
            )
            for index, row in planned
        ),
        caption="the whole training",
    )
    return found.without_empty()


def _scaled(value: float | None, unit: float, shown: str) -> Cell:
    return Cell.of("") if value is None else Cell(text=f"{value / unit:{shown}}", value=value)


def _mark(document: ModelSweepResult, index: int) -> str:
    marks = ["best"] if index == document.best else []
    marks += ["pareto"] if index in document.pareto else []
    used, asked = document.rows[index].devices_used, document.rows[index].devices
    marks += [f"uses {used}"] if used is not None and used != asked else []
    marks += ["late"] if is_late(document, index) else []
    return ", ".join(marks)


def is_late(document: ModelSweepResult, index: int) -> bool:
    """Whether the row misses the deadline, and so counts for no objective."""
    deadline_s, train_s = document.training.deadline_s, document.rows[index].train_s
    return deadline_s is not None and train_s is not None and train_s > deadline_s


def best_words(document: ModelSweepResult) -> Iterator[str]:
    """Which row is best; nothing where none is."""
    if document.best is not None:
        best = document.rows[document.best]
        said = words_of_setting(best.settings, best.devices)
        yield f"best by {document.objective}: {said}"


def _notes(document: ModelSweepResult) -> Iterator[str]:
    for row in document.rows:
        if row.reason is not None:
            yield f"{words_of_setting(row.settings, row.devices)}: {row.reason}"
    training = document.training
    if document.best is None:
        yield _nothing(document)
    for said in best_words(document):
        yield f"{said}{_bound(document)}"
    if any(is_late(document, index) for index in range(len(document.rows))):
        days = f"{(training.deadline_s or 0.0) / _DAY_S:,.4g}"
        limit = f"the deadline of {days} {'day' if days == '1' else 'days'}"
        yield f"late rows miss {limit} and count for no objective"
    if document.pareto:
        yield from _front(document)
    if training.tokens is not None:
        yield (
            f"for {training.tokens:.4g} tokens, failures and checkpoints included: a device fails "
            f"every {training.device_mtbf_s / 3600:,.0f} h, a restart takes "
            f"{format_seconds(training.restart_s)}, a checkpoint is "
            f"{format_bytes(training.checkpoint_bytes)}"
        )
    if document.interrupted:
        yield "interrupted: rows that were not reached are unknown"


def _bound(document: ModelSweepResult) -> str:
    """What is proved of the objective, over all numbers of devices."""
    bound = document.objective_bound
    if document.devices_from is None or bound is None or document.gap is None:
        return ""
    where = f"of {_all_plans(document)} on {_range(document)}"
    if document.status is Status.OPTIMAL:
        return f", the best {where}, proved"
    word = "more" if document.objective == "tokens-per-device" else "less"
    shown = objective_figure(document.objective, bound)
    return f"; none {where} has {word} than {shown}, gap <= {format_percent_up(document.gap)}"


def _all_plans(document: ModelSweepResult) -> str:
    return f"all plans{launched_in_words(document.request.space)}"


def _range(document: ModelSweepResult) -> str:
    fewest, most = document.devices_from, document.rows[-1].devices
    return f"{most} devices" if fewest == most else f"{fewest} to {most} devices"


def _front(document: ModelSweepResult) -> Iterator[str]:
    both = " and ".join(document.pareto_objectives)
    yield f"no row beats those marked pareto in both {both}"
    if document.devices_from is None:
        return
    if document.pareto_within is None:
        yield "how far a plan between them may be better is not known: a search did not end"
        return
    if document.pareto_within <= OPTIMAL_TOLERANCE:
        yield f"of {_all_plans(document)} on {_range(document)} none beats them, proved"
        return
    share = format_percent_up(document.pareto_within)
    launched = launched_in_words(document.request.space)
    where = f"plan{launched} on {_range(document)}"
    yield f"for every {where}, one of them is at most {share} worse in both"


def objective_figure(objective: str, value: float) -> str:
    """The figure of an objective with its unit."""
    match objective:
        case "step-time":
            return format_seconds(value)
        case "tokens-per-device":
            return f"{value:,.0f} tokens/s per device"
        case "energy":
            return f"{value / _MWH_J:,.4g} MWh"
        case "devices":
            return f"{value:,.0f} devices"
        case _:
            return f"a cost of {value:,.0f}"


def _nothing(document: ModelSweepResult) -> str:
    times_s = [row.train_s for row in document.rows if row.train_s is not None]
    if times_s:
        proved = document.devices_from is not None and document.status is Status.INFEASIBLE
        what = f"no plan on {_range(document)}" if proved else "no row"
        shortest = f"{min(times_s) / _DAY_S:,.1f} days are the shortest of these"
        return f"{what} trains the tokens within the deadline; {shortest}"
    what = "settings" if document.swept else "numbers of devices"
    return f"no plan was found on any of these {what}"
