"""What a caller may hand in for a schedule: times, limits, a spec file; and what they amount to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainwright.errors import Fault, InvalidInput, sourced
from trainwright.formats.schedule_json import ScheduleSpec, load_schedule_spec, too_large
from trainwright.options.inputs import display_name
from trainwright.plans.schedule import ActionKind, Placement, Schedule, ScheduleCosts, broadcast
from trainwright.scheduling.candidates import with_recompute
from trainwright.scheduling.orders import cut_microbatches, cut_stages
from trainwright.units import TimeUnit, parse_action_time, parse_memory

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Which way to a schedule is asked for, and what only some of them need
# ---------------------------------------------------------------------


class Method(StrEnum):
    """How a schedule is come by; the two last improve on what others found."""

    FAMILY = "family"
    SIMULATE = "simulate"
    SEARCH = "search"
    FRONT = "front"
    EXACT = "exact"
    SEARCHED_FRONT = "searched-front"

    @classmethod
    def of(
        cls, *, family: object, simulate: object, search: bool, exact: bool, pareto: bool
    ) -> Method:
        """The method that such options ask for; raises InvalidInput for none and for two."""
        asked = {
            "family": family is not None,
            "simulate": simulate is not None,
            "search": search or exact,
            "pareto": pareto,
        }
        names = [name for name, is_asked in asked.items() if is_asked]
        if not names:
            problem = "say which: --family NAME, --search, --exact, --pareto or --simulate FILE"
            raise InvalidInput.of("schedule", problem)
        if names == ["search", "pareto"] and not exact:
            return cls.SEARCHED_FRONT
        if len(names) > 1:
            first, second = ("exact" if name == "search" and exact else name for name in names[:2])
            raise InvalidInput.of(second, f"cannot be asked for together with --{first}")
        if names == ["search"]:
            return cls.EXACT if exact else cls.SEARCH
        return {"family": cls.FAMILY, "simulate": cls.SIMULATE, "pareto": cls.FRONT}[names[0]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """What only a search, or a front, needs to know."""

    placement: str | None = None
    seed: int | None = None
    evaluations: int | None = None


# What a caller may hand in for a schedule: times, limits, a spec file; and what they amount to
# ---------------------------------------------------------------------------------------------

Time = str | float

OPTION_OF = {
    "num_ranks": "ranks",
    "num_microbatches": "microbatches",
    "virtual_stages": "virtual-stages",
    "max_activations": "memory-limit",
    "max_virtual_stages": "virtual-stages",
}
_FIELD_OF = {
    "forward": "forward_s",
    "input-grad": "input_grad_s",
    "weight-grad": "weight_grad_s",
    "comm": "transfer_s",
}
DEFAULT_CHUNKS = 2  # of families and placements that have chunks, where nobody says
_ACTIONS = ("forward", "input-grad", "weight-grad")
_MOST_RANKS = 100_000
_MOST_MICROBATCHES = 10_000_000
_MOST_ACTIONS = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleCase:
    """What is to be scheduled, whatever the method.

    `max_activations` counts chunk activations per rank; limits in bytes are in `spec`. Each stage
    that `spec` describes is `parts_per_stage` stages of the schedule.
    """

    spec: ScheduleSpec
    name: str
    time_unit: TimeUnit
    ranks: int | None
    microbatches: int | None
    virtual_stages: int | None = None
    group: int | None = None
    max_activations: int | None = None
    objective: str = "makespan"
    parts_per_stage: int = 1

    @classmethod
    def of(
        cls, spec: ScheduleSpec, *, name: str = "spec", time_unit: TimeUnit = TimeUnit.SECONDS
    ) -> ScheduleCase:
        """The costs alone."""
        return cls(spec=spec, name=name, time_unit=time_unit, ranks=None, microbatches=None)

    @property
    def num_ranks(self) -> int:
        """p; raises InvalidInput where neither the caller nor the spec says."""
        placed = self.spec.placement
        known = placed.num_ranks if placed is not None else None
        return _agreed("ranks", self.ranks, known)

    @property
    def num_microbatches(self) -> int:
        """m; raises InvalidInput where neither the caller nor the spec says."""
        if self.microbatches is not None:
            return self.microbatches
        return _agreed("microbatches", None, self.spec.num_microbatches)

    @property
    def chunks(self) -> int | None:
        """Stages per rank, where the caller or the spec's lists say."""
        if self.virtual_stages is not None or self.spec.num_stages is None:
            return self.virtual_stages
        whole, rest = divmod(self.spec.num_stages, self.num_ranks)
        return whole if whole and not rest else None

    @property
    def counts_bytes(self) -> bool:
        """Whether memory is in bytes, not in chunk activations."""
        return bool(self.spec.forward_bytes)

    @property
    def without_limits(self) -> ScheduleCase:
        """The same with as much memory as anybody wants."""
        return replace(self, max_activations=None, spec=replace(self.spec, limit_bytes=()))

    def costs_of(self, schedule: Schedule) -> ScheduleCosts:
        """The costs of orders, per slice; where a stage recomputes, its forward keeps less."""
        actions = schedule.actions
        recomputed = np.zeros(schedule.placement.num_stages, np.bool_)
        recomputed[actions[actions[:, 0] == ActionKind.R, 1]] = True
        return self._costs_of(schedule, recomputed)

    def leanest(self, schedule: Schedule, costs: ScheduleCosts) -> ScheduleCosts:
        """The `costs` of orders, or where stages may recompute, as if all did: none holds less."""
        if self.spec.saved_bytes is None:
            return costs
        return self._costs_of(schedule, np.ones(schedule.placement.num_stages, np.bool_))

    def _costs_of(self, schedule: Schedule, recomputed: NDArray[np.bool_]) -> ScheduleCosts:
        costs, saved = self.costs(schedule.placement), self.spec.saved_bytes
        costs = cut_microbatches(
            costs, schedule.num_slices, attention_share=self.spec.attention_share
        )
        if saved is None or not recomputed.any():
            return costs
        described = costs.num_stages // self.parts_per_stage
        each = broadcast(saved, described, name="recompute_saved_bytes") / self.parts_per_stage
        return with_recompute(costs, np.repeat(each, self.parts_per_stage), recomputed=recomputed)

    def costs(self, placement: Placement) -> ScheduleCosts:
        """Times and memory of stages placed so; raises InvalidInput for a spec of others."""
        stated = self.spec.rank_of_stage
        if stated is not None and stated != placement.rank_of_stage:
            shown = ", ".join(map(str, placement.rank_of_stage[:8]))
            more = ", …" if placement.num_stages > 8 else ""
            raise InvalidInput.of(
                "rank_of_stage",
                f"must be the placement of the schedule ({shown}{more}), or left out",
                source=self.name,
            )
        with sourced(self.name):
            if self.parts_per_stage == 1:
                return self.spec.costs(placement)
            chunks = placement.num_stages // (placement.num_ranks * self.parts_per_stage)
            described = Placement.loop(placement.num_ranks, virtual_stages=max(1, chunks))
            return cut_stages(self.spec.costs(described), self.parts_per_stage)


def resolve_case(
    *,
    spec: str | Path | ScheduleSpec | None,
    times: Mapping[str, Time | None],
    ranks: int | None,
    microbatches: int | None,
    virtual_stages: int | None,
    group: int | None,
    memory_limit: str | float | None,
    max_activations: int | None,
    objective: str,
    otherwise: ScheduleCase | None = None,
) -> ScheduleCase:
    """Join a spec (a file or a value) and what is given beside it, which wins.

    `otherwise` holds the costs of a document that is priced again, used where nothing else is
    given. Raises InvalidInput with the faults of the first part that has one.
    """
    _require_counts(
        {
            "ranks": (ranks, _MOST_RANKS),
            "microbatches": (microbatches, _MOST_MICROBATCHES),
            "virtual-stages": (virtual_stages, _MOST_RANKS),
            "group": (group, _MOST_MICROBATCHES),
        }
    )
    if objective not in ("makespan", "span"):
        raise InvalidInput.of("objective", f'must be makespan or span, got "{objective}"')
    given = {name: value for name, value in times.items() if value is not None}
    case = _costs_of(spec, given, otherwise)
    limit_bytes, limit = _limits(memory_limit, max_activations)
    found = case.spec
    if limit_bytes is not None:
        if not found.forward_bytes:
            raise InvalidInput.of(
                "memory-limit",
                "a size needs forward_bytes in the spec; a plain number counts activations",
            )
        found = replace(found, limit_bytes=(limit_bytes,))
    return replace(
        case,
        spec=found,
        ranks=ranks,
        microbatches=microbatches,
        virtual_stages=virtual_stages,
        group=group,
        max_activations=limit,
        objective=objective,
    )


def require_size(num_stages: int, num_microbatches: int) -> None:
    """Refuse what would not fit in memory; ten million actions take 2.5 GB."""
    actions = 3 * num_stages * num_microbatches
    if actions > _MOST_ACTIONS:
        raise InvalidInput.of(
            "microbatches",
            f"at most {_MOST_ACTIONS:,} actions are scheduled; {num_stages} stages x "
            f"{num_microbatches} microbatches x 3 are {actions:,}",
        )


def _costs_of(
    spec: str | Path | ScheduleSpec | None,
    given: Mapping[str, Time],
    otherwise: ScheduleCase | None,
) -> ScheduleCase:
    read, unit = _read_times(given)
    _require_sizes(read)
    fields: dict[str, Any] = {_FIELD_OF[name]: (value,) for name, value in read.items()}
    if spec is None and otherwise is None:
        ones = dict.fromkeys(("forward_s", "input_grad_s", "weight_grad_s"), (1.0,))
        found = ScheduleSpec(**{**ones, **fields})
        return ScheduleCase.of(found, name="uniform", time_unit=unit or TimeUnit.SLOTS)
    if spec is not None:
        if isinstance(spec, (str, Path)):
            base = ScheduleCase.of(load_schedule_spec(Path(spec)), name=display_name(spec))
        else:
            base = ScheduleCase.of(spec)
    else:
        assert otherwise is not None, "one of the two is there"
        base = otherwise
    if "transfer_s" in fields:
        fields["backward_transfer_s"] = ()
    return replace(base, spec=replace(base.spec, **fields)) if fields else base


def _read_times(given: Mapping[str, Time]) -> tuple[dict[str, float], TimeUnit | None]:
    """Values by option, and what they count; a mixture is a likely slip."""
    values: dict[str, float] = {}
    units: dict[str, TimeUnit] = {}
    for name, value in given.items():
        if isinstance(value, str):
            values[name], units[name] = parse_action_time(value, name=name)
        else:
            values[name], units[name] = _number(value, name), TimeUnit.SLOTS
    counted = {name: unit for name, unit in units.items() if values[name]}
    in_seconds = [name for name, unit in counted.items() if unit is TimeUnit.SECONDS]
    if not in_seconds:
        return values, TimeUnit.SLOTS if counted else None
    faults = [
        Fault(name, f'must have a unit as {in_seconds[0]} has, got "{given[name]}"')
        for name, unit in counted.items()
        if unit is TimeUnit.SLOTS
    ]
    faults += [
        Fault(name, f"must be given, as {in_seconds[0]} is in seconds")
        for name in _ACTIONS
        if name not in given
    ]
    if faults:
        raise InvalidInput(faults)
    return values, TimeUnit.SECONDS


def _require_sizes(amounts: Mapping[str, float]) -> None:
    problems = {name: too_large(value) for name, value in amounts.items()}
    faults = [Fault(name, problem) for name, problem in problems.items() if problem is not None]
    if faults:
        raise InvalidInput(faults)


def _number(value: float, name: str) -> float:
    if type(value) is bool or not isinstance(value, (int, float)):
        raise InvalidInput.of(name, f"must be a number or text with a unit, got {value!r}")
    if not (math.isfinite(value) and value >= 0):
        raise InvalidInput.of(name, f"must be finite and >= 0, got {value!r}")
    return float(value)


def _limits(
    memory_limit: str | float | None, max_activations: int | None
) -> tuple[float | None, int | None]:
    """Bytes and activations; a plain number counts activations."""
    limit_bytes: float | None = None
    if isinstance(memory_limit, str) and not _is_plain(memory_limit):
        limit_bytes, memory_limit = parse_memory(memory_limit, name="memory-limit"), None
        _require_sizes({"memory-limit": limit_bytes})
    if memory_limit is not None and max_activations is not None:
        raise InvalidInput.of("memory-limit", "counts what max-activations does; give one of them")
    limit = memory_limit if memory_limit is not None else max_activations
    name = "max-activations" if memory_limit is None else "memory-limit"
    if limit is None:
        return limit_bytes, None
    value = float(limit)
    if not 0 <= value < math.inf or value != int(value):
        wanted = "a whole number of activations >= 0, or a size such as 20GiB"
        raise InvalidInput.of(name, f'must be {wanted}, got "{limit}"')
    return limit_bytes, int(value)


def _is_plain(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _agreed(option: str, given: int | None, stated: int | None) -> int:
    if given is not None and stated is not None and given != stated:
        raise InvalidInput.of(option, f"must be {stated}, as in the spec, or left out, got {given}")
    found = given if given is not None else stated
    if found is None:
        raise InvalidInput.of(option, f"must be given: --{option} N")
    return found


def _require_counts(counts: Mapping[str, tuple[int | None, int]]) -> None:
    faults = [
        Fault(name, f"must be a whole number from 1 to {most:,}, got {count!r}")
        for name, (count, most) in counts.items()
        if count is not None and (type(count) is not int or not 1 <= count <= most)
    ]
    if faults:
        raise InvalidInput(faults)
