"""The document of `schedule`: orders, their times and memory, how much shorter they could be."""

from __future__ import annotations

from dataclasses import dataclass

from trainwright.plan.results.gradient_check import GradientCheck
from trainwright.plan.results.request import FORMAT_VERSION, Embedded
from trainwright.plan.status import BoundKind, Status
from trainwright.units import TimeUnit


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRequest:
    """What was asked. `method` is how: a family by name, a search, a front, given orders.

    `costs` is a schedule spec; `time_unit` says how its times are meant to be printed.
    """

    trainwright_version: str
    method: str
    costs: Embedded
    time_unit: TimeUnit
    num_ranks: int
    num_microbatches: int
    family: str | None = None
    placement: str | None = None
    virtual_stages: int | None = None
    group: int | None = None
    max_activations: int | None = None
    orders_name: str | None = None
    seed: int | None = None
    evaluations: int | None = None
    time_limit_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """Why nothing is returned: `needed` on a rank where `limit` is there, in `unit`.

    `least` is what every schedule of this placement needs, however long it takes.
    """

    rank: int | None = None
    needed: float | None = None
    limit: float
    least: float | None = None
    unit: str  # "activations" or "bytes"
    description: str
    fixes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """What the chain of actions that makes the schedule so long consists of.

    Seconds by kind of action and by rank; `transfer_s` is what lies between actions of different
    ranks; `waits_for` counts what its actions waited for: their rank, an input, a transfer, a link.
    """

    num_actions: int
    by_kind_s: dict[str, float]
    by_rank_s: tuple[float, ...]
    transfer_s: float
    waits_for: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundAtPlacement:
    """How much shorter a schedule of the placement found could be, where others were tried, too."""

    lower_bound_s: float
    bound: str
    gap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundAtPeak:
    """How much shorter a schedule of this placement could be that holds no more activations."""

    max_activations: int
    lower_bound_s: float
    bound: str
    gap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """A schedule that none beats in both memory and time; its bound holds for no more memory."""

    family: str
    peak_activations: int
    peak_memory_bytes: float | None = None
    makespan_s: float
    span_s: float
    bubble_of_span: float
    lower_bound_s: float
    bound: str
    gap: float
    rank_of_stage: tuple[int, ...]
    orders: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleVerification:
    """What real runs gave: of the orders themselves, and of files broken on purpose.

    `controls_left_out` says why there are none of the latter.
    """

    passed: bool
    runs: tuple[GradientCheck, ...]
    controls: tuple[GradientCheck, ...]
    controls_left_out: str | None = None
    folded_from: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleResult:
    """A schedule with its price and proof. Keys without a value are left out.

    `makespan_s` is the last end minus the first start, `span_s` the largest over ranks of the same
    on one rank; `lower_bound_s` and `gap` are about the one named by `objective`, and hold for
    every schedule within the limits asked for: of this placement, or where several were `tried`, of
    all of them; then `bound_at_placement` is about the one found. Activations count chunks.
    `orders` has a row of actions per rank, as in PyTorch's CSV. A search may cut every stage that
    the costs describe into `parts_per_stage` equal ones. `generate_s` is CPU seconds.
    """

    kind: str = "schedule"
    format_version: int = FORMAT_VERSION
    status: Status
    objective: str
    family: str
    found_by: str | None = None
    ranks: int
    microbatches: int
    chunks_per_rank: int | None = None
    parts_per_stage: int | None = None
    makespan_s: float | None = None
    span_s: float | None = None
    bubble_of_span: float | None = None
    bubble_of_makespan: float | None = None
    peak_activations: int | None = None
    peak_activations_per_rank: tuple[int, ...] = ()
    peak_memory_bytes: float | None = None
    peak_memory_bytes_per_rank: tuple[float, ...] = ()
    fits: bool | None = None
    lower_bound_s: float | None = None
    bound: str | None = None
    bound_kind: BoundKind | None = None
    gap: float | None = None
    bound_at_placement: BoundAtPlacement | None = None
    bound_at_peak: BoundAtPeak | None = None
    critical_path: CriticalPath | None = None
    binding: Shortfall | None = None
    points: tuple[FrontPoint, ...] = ()
    verification: ScheduleVerification | None = None
    interrupted: bool = False
    warnings: tuple[str, ...] = ()
    evaluations: int | None = None
    tried: int | None = None
    generate_s: float | None = None
    search_s: float | None = None
    solver_s: float | None = None
    rank_of_stage: tuple[int, ...] = ()
    orders: tuple[str, ...] = ()
    request: ScheduleRequest
