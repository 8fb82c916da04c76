"""What a sweep prefers, and what a training costs beside its steps: from options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from trainwright.api.inputs import naming_options
from trainwright.api.model_options import ModelOptions
from trainwright.errors import Fault, InvalidInput
from trainwright.units import parse_bandwidth, parse_deadline, parse_duration

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trainwright.api.model_request import ModelCall
    from trainwright.api.models import ModelInput
    from trainwright.planning.objectives import Objective, Training

_OPTION_OF: Final = {
    "price_per_hour": "price",
    "power_watts": "power",
    "deadline_s": "deadline",
    "device_mtbf_s": "mtbf",
    "checkpoint_bytes_per_s": "checkpoint-bandwidth",
    "restart_s": "restart",
}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What is preferred, and what it depends on."""

    objective: Objective
    pareto: tuple[Objective, ...]
    training: Training
    checkpoint_bytes: float
    tokens_per_step: float


def goal_of(given: ModelInput, largest: ModelCall, options: SweepOptions) -> Goal:
    """The goal that the options state; raises `InvalidInput` naming options."""
    from trainwright.planning.objectives import Objective, Training, required

    device, workload = largest.question.cluster.accelerator, largest.question.workload
    objective = _objective(options.get("objective") or Objective.STEP_TIME, "objective")
    both = _pair(options.get("pareto"))
    price, power = options.get("price"), options.get("power")
    stated = {
        "tokens": options.get("tokens"),
        "price_per_hour": device.price_per_hour if price is None else price,
        "power_watts": device.power_watts if power is None else power,
        "deadline_s": _deadline_s(options.get("deadline")),
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
        tokens_per_step=float(workload.global_batch * workload.sequence_length),
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


def _deadline_s(value: str | float | None) -> float | None:
    return parse_deadline(value, name="deadline") if isinstance(value, str) else value


def _seconds(value: str | float | None, name: str) -> float | None:
    return parse_duration(value, name=name) if isinstance(value, str) else value


def _rate(value: str | float | None) -> float | None:
    name = "checkpoint-bandwidth"
    return parse_bandwidth(value, name=name) if isinstance(value, str) else value
