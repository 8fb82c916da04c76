"""`plan` on several numbers of devices: the best plan of each, and which of them to prefer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from trainwright.api.inputs import naming_options, setting_overrides
from trainwright.api.model_options import ModelOptions, model_call
from trainwright.api.result import Report
from trainwright.api.sizes import Sizes, parse_sizes
from trainwright.errors import Fault, InvalidInput
from trainwright.plan.results.model_sweep import ModelSweepResult, SweepRow, TrainingRecord
from trainwright.plan.status import Status
from trainwright.units import parse_bandwidth, parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path
    from typing import Unpack

    from trainwright.api.model_request import ModelCall
    from trainwright.api.models import ModelInput
    from trainwright.api.space_options import Names
    from trainwright.execution import Budget
    from trainwright.plan.results.model_plan import ModelPlanResult
    from trainwright.planning.objectives import Objective, Outcome, Training

_OPTION_OF: Final = {
    "price_per_hour": "price",
    "power_watts": "power",
    "deadline_s": "deadline",
    "device_mtbf_s": "mtbf",
    "checkpoint_bytes_per_s": "checkpoint-bandwidth",
    "restart_s": "restart",
}
_MOST_REFINEMENTS: Final = 8
_NEVER: Final = float("inf")


class SweepOptions(ModelOptions, total=False):
    """What to prefer, and what a training costs beside its steps; see `docs/plan-command.md`.

    `price` is per device and hour, `power` in watts per device; `deadline`, `mtbf` (of a device)
    and `restart` are seconds or text with a unit, `checkpoint_bandwidth` of one device likewise.
    """

    objective: str
    pareto: str | Iterable[str] | None
    tokens: float | None
    price: float | None
    power: float | None
    deadline: str | float | None
    mtbf: str | float | None
    checkpoint_bandwidth: str | float | None
    restart: str | float | None


class SweepReport(Report[ModelSweepResult]):
    """The answer of `sweep`."""

    __slots__ = ()

    @property
    def status(self) -> Status:
        """How much is proved about the rows together."""
        return self.document.status


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What is preferred, and what it depends on."""

    objective: Objective
    pareto: tuple[Objective, ...]
    training: Training
    checkpoint_bytes: float


def sweep(
    model: str | Path,
    *,
    devices: Sizes,
    memory: str | float | None = None,
    data_parallel: bool = True,
    tensor_parallel: bool = True,
    recompute: bool | Names = True,
    exclude_options: Iterable[str] = (),
    budget: Budget | None = None,
    **options: Unpack[SweepOptions],
) -> SweepReport:
    """The best plan of `model` for each of `devices` ("64..4096", "64,96" or numbers).

    `objective` says which row is best: step-time, tokens-per-device, cost, energy or devices
    (fewest that train `tokens` within `deadline`); `pareto` names two of them. A single number with
    an objective stands for itself, a half of it, a quarter, … down to one node. Raises
    `InvalidInput` with every fault of the input.
    """
    from trainwright.api.models import ModelInput, resolve_model
    from trainwright.execution import Budget as NoLimit

    budget = budget or NoLimit()
    given = resolve_model(model)
    if not isinstance(given, ModelInput):
        problem = "several numbers and objectives are for models; a profile takes one number"
        raise InvalidInput.of("devices", problem)
    if options.get("nodes") is not None:
        raise InvalidInput.of("nodes", "must not be given together with several devices")
    overrides = setting_overrides(devices=None, memory=memory, bandwidth=None, microbatches=None)

    def call_for(size: int) -> ModelCall:
        return model_call(
            given,
            options,
            devices=size,
            memory_bytes=overrides.get("memory_bytes"),
            data_parallel=data_parallel,
            tensor_parallel=tensor_parallel,
            recompute=recompute,
            exclude_options=exclude_options,
        )

    sizes = parse_sizes(devices)
    largest = call_for(sizes[-1])
    goal = _goal(given, largest, options)
    if len(sizes) == 1:
        sizes = _halves(sizes[0], largest.question.cluster.pool_of().devices_per_node)
    found = _Rows(goal, budget)
    for size in sizes:
        found.add(call_for(size))
    found.refine(call_for, largest.question.cluster.pool_of().devices_per_node)
    return SweepReport(found.document(largest, given.warnings))


def _halves(size: int, node: int) -> tuple[int, ...]:
    """The number, its half, … as long as they fill whole nodes."""
    sizes = [size]
    while sizes[-1] % (2 * node) == 0:
        sizes.append(sizes[-1] // 2)
    return tuple(reversed(sizes))


class _Rows:
    """Plans by number of devices, as they come in."""

    def __init__(self, goal: Goal, budget: Budget) -> None:
        self.goal, self.budget = goal, budget
        self.started_s = budget.cpu_s
        self.plans: dict[int, ModelPlanResult] = {}
        self.rows: dict[int, SweepRow] = {}

    def add(self, call: ModelCall) -> None:
        """Plan one size, unless time is up."""
        from trainwright.api.plan_model import plan_model

        size = call.question.num_devices
        if self.budget.stopped:
            self.rows[size] = SweepRow(devices=size, status=Status.UNKNOWN)
            return
        self.plans[size] = plan_model(call, self.budget)
        self.rows[size] = plan_row(size, self.plans[size], self.goal)

    def refine(self, call_for: Callable[[int], ModelCall], node: int) -> None:
        """For the fewest devices: halve the distance to the next smaller number that is too few."""
        from trainwright.planning.objectives import Objective

        if self.goal.objective is not Objective.DEVICES:
            return
        for _ in range(_MOST_REFINEMENTS):
            goal = self.goal
            enough = [
                n for n, row in self.rows.items() if _score(row, goal, goal.objective) < _NEVER
            ]
            high = min(enough, default=0)
            low = max((size for size in self.rows if size < high), default=high)
            middle = (low + high) // 2 // node * node
            if not low < middle < high or self.budget.stopped:
                return
            self.add(call_for(middle))

    def document(self, largest: ModelCall, warnings: Sequence[str]) -> ModelSweepResult:
        """All rows by number of devices, and what to prefer."""
        from trainwright.api.model_request import request_of

        sizes = sorted(self.rows)
        rows = tuple(self.rows[size] for size in sizes)
        best = best_row(rows, self.goal)
        training = self.goal.training
        return ModelSweepResult(
            status=sweep_status(rows, self.goal),
            objective=str(self.goal.objective),
            rows=rows,
            best=best,
            pareto_objectives=tuple(map(str, self.goal.pareto)),
            pareto=pareto_rows(rows, self.goal),
            training=TrainingRecord(
                tokens=training.tokens,
                price_per_hour=training.price_per_hour,
                power_watts=training.power_watts,
                deadline_s=training.deadline_s,
                device_mtbf_s=training.device_mtbf_s,
                checkpoint_bytes_per_s=training.checkpoint_bytes_per_s,
                checkpoint_bytes=self.goal.checkpoint_bytes,
                restart_s=training.restart_s,
            ),
            interrupted=self.budget.interrupted,
            warnings=_warnings(warnings, self.plans.values()),
            search_s=self.budget.cpu_s - self.started_s,
            best_plan=None if best is None else self.plans[sizes[best]],
            request=request_of(largest, time_limit_s=self.budget.time_limit_s),
        )


def best_row(rows: Sequence[SweepRow], goal: Goal) -> int | None:
    """The row of the least score, the first where several are; None where none counts."""
    scores = [_score(row, goal, goal.objective) for row in rows]
    best = scores.index(min(scores))
    return best if scores[best] < _NEVER else None


def pareto_rows(rows: Sequence[SweepRow], goal: Goal) -> tuple[int, ...]:
    """The rows that no other beats in both objectives, fewest devices first."""
    from trainwright.planning.objectives import pareto

    if not goal.pareto:
        return ()
    one, other = goal.pareto
    return tuple(
        sorted(pareto([(_score(row, goal, one), _score(row, goal, other)) for row in rows]))
    )


def _score(row: SweepRow, goal: Goal, objective: Objective) -> float:
    from trainwright.planning.objectives import score

    if row.step_time_s is None:
        return _NEVER
    return score(objective, _outcome(row, goal), deadline_s=goal.training.deadline_s)


def _warnings(given: Sequence[str], plans: Iterable[ModelPlanResult]) -> tuple[str, ...]:
    each = (warning for plan in plans for warning in plan.warnings)
    return tuple(dict.fromkeys((*given, *each)))


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


def plan_row(size: int, plan: ModelPlanResult, goal: Goal) -> SweepRow:
    """The row of a plan on at most `size` devices."""
    row = SweepRow(
        devices=size,
        status=plan.status,
        lower_bound_s=plan.lower_bound_s,
        reason=plan.binding.description if plan.binding else None,
        search_s=plan.search_s,
    )
    if plan.step_time_s is None:
        return row
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
        peak_memory_bytes=max(plan.peak_memory_bytes_per_rank),
    )
    return with_totals(row, goal)


def with_totals(row: SweepRow, goal: Goal) -> SweepRow:
    """The row with what the whole training takes; as it is where there is no plan."""
    if row.step_time_s is None:
        return row
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
    from trainwright.planning.objectives import outcome

    assert row.devices_used and row.step_time_s is not None and row.tokens_per_s
    return outcome(
        goal.training,
        devices=row.devices_used,
        step_time_s=row.step_time_s,
        tokens_per_s=row.tokens_per_s,
        checkpoint_bytes=goal.checkpoint_bytes,
    )


def _goal(given: ModelInput, largest: ModelCall, options: SweepOptions) -> Goal:
    from trainwright.planning.objectives import Objective, Training, required

    device = largest.question.cluster.accelerator
    objective = _objective(options.get("objective") or Objective.STEP_TIME, "objective")
    both = _pair(options.get("pareto"))
    price, power = options.get("price"), options.get("power")
    stated = {
        "tokens": options.get("tokens"),
        "price_per_hour": device.price_per_hour if price is None else price,
        "power_watts": device.power_watts if power is None else power,
        "deadline_s": _seconds(options.get("deadline"), "deadline"),
        "device_mtbf_s": _seconds(options.get("mtbf"), "mtbf"),
        "checkpoint_bytes_per_s": _rate(options.get("checkpoint_bandwidth")),
        "restart_s": _seconds(options.get("restart"), "restart"),
    }
    with naming_options(_OPTION_OF):
        training = Training(**{k: v for k, v in stated.items() if v is not None})
    faults = [
        Fault(name := _OPTION_OF.get(field, field), f"must be given for {wanted}, as --{name} X")
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
        checkpoint_bytes=_checkpoint_bytes(given, device.default_precision),
    )


def _checkpoint_bytes(given: ModelInput, precision: str) -> float:
    """Weights and optimizer states of all parameters."""
    from trainwright.model import DEFAULT_RECIPE, count_parameters

    numbers = DEFAULT_RECIPE.numbers(precision)
    return count_parameters(given.config) * float(numbers.weight_bytes + numbers.optimizer_bytes)


def _objective(name: str, option: str) -> Objective:
    from trainwright.planning.objectives import Objective

    if name not in set(Objective):
        offered = ", ".join(Objective)
        raise InvalidInput.of(option, f'must be one of {offered}, got "{name}"')
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


def _seconds(value: str | float | None, name: str) -> float | None:
    return parse_duration(value, name=name) if isinstance(value, str) else value


def _rate(value: str | float | None) -> float | None:
    name = "checkpoint-bandwidth"
    return parse_bandwidth(value, name=name) if isinstance(value, str) else value
