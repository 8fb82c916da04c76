"""When each stage of a 1F1B pipeline ends, by the longest path through its actions.

Every replica of a stage runs the 1F1B order (Narayanan et al., 2019): as many forwards as it may
hold in flight, then backward and forward in turn. A forward waits for the forwards of the stages
before it and their transfers, a backward for the backwards behind it; both wait for the device.
With microbatches dealt round-robin to the replicas of a stage the order has no cycle for any
degrees, so sweeping over the stages settles every action. See `native/chain/pipeline_ends.hpp`; it
is O(stages × microbatches), about 10 ns each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright._native import _core
from trainwright.errors import Fault, InvalidInput
from trainwright.plans.plan import SearchedOrder
from trainwright.plans.schedule import (
    ActionKind,
    Placement,
    Schedule,
    ScheduleCosts,
    ScheduleMemory,
    TransferModel,
)
from trainwright.plans.status import Objective
from trainwright.scheduling.families import ALIASES, FAMILIES, FamilyRequest, family_named
from trainwright.scheduling.families.family import Steady, without_limits
from trainwright.scheduling.orders import schedule_of_words
from trainwright.scheduling.simulate import native_orders

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.arrays import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStage:
    """One stage: seconds per microbatch, replicas, microbatches each may hold in flight.

    `feeds` lists the later stages it sends to as (stage, seconds per transfer); gradients come
    back in the same time.
    """

    forward_s: float
    backward_s: float
    in_flight: int
    replicas: int = 1
    feeds: tuple[tuple[int, float], ...] = ()


def one_f_one_b_ends_s(
    stages: Sequence[PipelineStage], *, num_microbatches: int
) -> tuple[float, ...]:
    """When each stage ends its last backward, from the start of the step.

    `num_microbatches` counts those of the whole batch. Transfers delay the receiver and leave both
    devices free to work.
    """
    feeds = [feed for stage in stages for feed in stage.feeds]
    ends_s = _core.one_f_one_b_ends_s(
        forward_s=np.array([stage.forward_s for stage in stages], dtype=np.float64),
        backward_s=np.array([stage.backward_s for stage in stages], dtype=np.float64),
        in_flight=np.array([stage.in_flight for stage in stages], dtype=np.int64),
        replicas=np.array([stage.replicas for stage in stages], dtype=np.int64),
        feed_offset=np.array(
            list(accumulate((len(stage.feeds) for stage in stages), initial=0)), dtype=np.int64
        ),
        feed_target=np.array([target for target, _ in feeds], dtype=np.int32),
        feed_s=np.array([transfer_s for _, transfer_s in feeds], dtype=np.float64),
        num_microbatches=num_microbatches,
    )
    return tuple(ends_s.tolist())


# A pipeline under any schedule family, through the native simulator
# ------------------------------------------------------------------
# Orders of a family that does not look at times depend on (p, v, m) alone and are kept. In a long
# step a steady state repeats itself: a shorter step is simulated, and where its middle is steady,
# the rest is added by multiplication; where it is not, the whole step is simulated.

_ORDER_BITS: Final = 32  # of a time that a family looks at: 2e-10 of it
ALWAYS_SIMULATED: Final = 5_000_000  # actions: a tenth of a second, 100 MB
_MOST_FIXED: Final = 200_000  # actions: 4 MB
_TOLERANCE: Final = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineShape:
    """The orders of a family for p ranks, v chunks each and m microbatches; or that of `order`.

    They keep to `room_bytes` of a device where the family does, to its memory where that is absent.
    Under a family that cuts sequences, microbatches are slices of them, here and in times.
    """

    family: str
    num_ranks: int
    num_microbatches: int
    virtual_stages: int = 1
    order: SearchedOrder | None = None
    room_bytes: float | None = None

    @property
    def is_timeless(self) -> bool:
        """Whether the orders depend on counts alone, so that they may be kept."""
        return self.order is None and family_named(self.family).is_timeless

    @property
    def group_of_chunk(self) -> int:
        """Microbatches that pass a chunk before any passes its rank's next one; 1 if not known.

        A family that is like another one has its order where p divides the microbatches.
        """
        if self.order is not None or self.virtual_stages < 2:
            return 1
        p, m, family = self.num_ranks, self.num_microbatches, family_named(self.family)
        in_groups = family.whole_groups
        if family.like is not None and m % p == 0:
            in_groups = family_named(family.like).whole_groups
        return min(p, m) if in_groups else 1

    def with_microbatches(self, count: int) -> PipelineShape:
        """The same with another number of microbatches."""
        assert self.order is None, "an order that was found has its own number of microbatches"
        return replace(self, num_microbatches=count)

    @property
    def request(self) -> FamilyRequest:
        """As a family takes it."""
        slices = slices_of(self.family, self.num_ranks)
        return FamilyRequest(
            num_ranks=self.num_ranks,
            num_microbatches=-(-self.num_microbatches // slices),
            num_slices=slices if slices > 1 else None,
            virtual_stages=self.virtual_stages,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PipelineTimes:
    """Seconds of S virtual stages, per microbatch; the backward is I and W, recomputing first.

    `transfer_s` [S-1] is the time of one tensor between neighbours, in either direction;
    `blocking` the share of it during which sender and receiver do nothing else. `head_s` are V and
    T of the ranks of all stages where the head is cut over them, `barrier_s` what its barriers each
    take (`ScheduleCosts`). `copy_s` [S] is what copying an activation to the host takes, or back,
    where some wait there. `network_s` [S] is
    what a microbatch waits for the network inside its layers, half of it in its forward, where
    pairs hide it from each other. `room` is what ranks may hold, where orders keep to it, and
    `after_s` [p] then follows the last action of each rank. Orders that look at times are those
    `ordered_by` others where these are given.
    """

    forward_s: Floats
    input_grad_s: Floats
    weight_grad_s: Floats
    transfer_s: Floats
    blocking: float = 0.0
    head_s: tuple[Floats | float, Floats | float] = (0.0, 0.0)
    barrier_s: float = 0.0
    copy_s: Floats | None = None
    network_s: Floats | None = None
    room: ScheduleMemory | None = None
    after_s: Floats | None = None
    ordered_by: PipelineTimes | None = None

    def without_transfers(self) -> PipelineTimes:
        """The same orders with free transfers."""
        free_s = np.zeros_like(self.transfer_s)
        return replace(self, transfer_s=free_s, blocking=0.0, barrier_s=0.0, ordered_by=self)

    def network_of(self) -> dict[ActionKind, Floats] | None:
        """Seconds that F and the input gradient only communicate, at most all of them."""
        if self.network_s is None:
            return None
        half_s = self.network_s / 2
        return {
            ActionKind.F: np.minimum(half_s, self.forward_s),
            ActionKind.I: np.minimum(half_s, self.input_grad_s),
        }

    @property
    def transfer_model(self) -> TransferModel:
        """Whether ranks wait for their transfers."""
        return TransferModel.BLOCKING if self.blocking else TransferModel.FREE

    def schedule_costs(
        self,
        placement: Placement,
        *,
        memory: ScheduleMemory | None = None,
        transfer_model: TransferModel = TransferModel.FREE,
    ) -> ScheduleCosts:
        """What the actions of a schedule cost; unit memory and transfers that hold nobody up."""
        return ScheduleCosts.of(
            placement,
            forward_s=self.forward_s,
            input_grad_s=self.input_grad_s,
            weight_grad_s=self.weight_grad_s,
            transfer_s=self.transfer_s,
            head_s=self.head_s[0],
            head_grad_s=self.head_s[1],
            barrier_s=self.barrier_s,
            offload_s=0.0 if self.copy_s is None else self.copy_s,
            network_s=self.network_of(),
            memory=memory,
            transfer_model=transfer_model,
            blocking_fraction=0.0 if transfer_model is TransferModel.FREE else self.blocking,
        )


def placement_of(shape: PipelineShape) -> Placement:
    """Which rank runs which virtual stage; raises `InvalidInput` for an unknown family."""
    if shape.order is not None:
        return _searched(shape, shape.order).placement
    return family_named(shape.family).place(shape.request)


def schedule_of(shape: PipelineShape, times: PipelineTimes) -> Schedule:
    """The orders; a family that looks at times gets them. Raises `InvalidInput` by its rules.

    It gets them rounded (`_ORDER_BITS`), so that an order hangs on no last bit: times that are
    summed in another way, as a batch does, make the same order.
    """
    if shape.order is not None:
        return _searched(shape, shape.order)
    if shape.is_timeless:
        return orders_of(shape)
    times = times.ordered_by or times
    looked_at = [times.forward_s, times.input_grad_s, times.weight_grad_s, times.transfer_s]
    if (room := times.room) is not None and times.after_s is not None:
        looked_at += [room.delta_bytes, room.transient_bytes, room.static_bytes, room.limit_bytes]
        looked_at += [times.after_s]
    return _timed(shape, *(_rounded(each).tobytes() for each in looked_at))


def _searched(shape: PipelineShape, order: SearchedOrder) -> Schedule:
    stages = shape.num_ranks * shape.virtual_stages
    try:
        return schedule_of_words(order, num_stages=stages, num_microbatches=shape.num_microbatches)
    except InvalidInput as error:
        raise InvalidInput(
            Fault(f"order.{fault.path}", fault.problem) for fault in error.faults
        ) from None


def _rounded(times_s: Floats) -> Floats:
    fraction, exponent = np.frexp(np.asarray(times_s, np.float64))
    rounded: Floats = np.ldexp(np.round(np.ldexp(fraction, _ORDER_BITS)), exponent - _ORDER_BITS)
    return rounded


# Ends and memory of a step ask for the same order, which takes a while; so may a later search.
@lru_cache(maxsize=32)
def _timed(
    shape: PipelineShape,
    forward: bytes,
    input_grad: bytes,
    weight_grad: bytes,
    transfer: bytes,
    *beside: bytes,
) -> Schedule:
    times = PipelineTimes(
        forward_s=np.frombuffer(forward),
        input_grad_s=np.frombuffer(input_grad),
        weight_grad_s=np.frombuffer(weight_grad),
        transfer_s=np.frombuffer(transfer),
    )
    room, after_s = None, None
    if beside:
        delta, transient, static, limit, after_s = map(np.frombuffer, beside)
        by_action = (len(ActionKind), len(times.forward_s))
        room = ScheduleMemory(
            delta_bytes=delta.reshape(by_action),
            transient_bytes=transient.reshape(by_action),
            static_bytes=static,
            limit_bytes=limit,
        )
    costs = times.schedule_costs(placement_of(shape), memory=room)
    request = replace(shape.request, costs=costs, objective=Objective.MAKESPAN, after_s=after_s)
    family = family_named(shape.family)
    schedule = family.generate(request) or family.generate(without_limits(request))
    assert schedule is not None, "without limits every family has an order"
    return schedule


def pipeline_ends_s(shape: PipelineShape, times: PipelineTimes) -> Floats:
    """When each rank ends its last action, shape [p].

    Raises `InvalidInput` naming the rule of the family that the shape breaks.
    """
    actions = 2 * shape.num_ranks * shape.virtual_stages * shape.num_microbatches
    return (quick_ends_s if actions > ALWAYS_SIMULATED else simulated_ends_s)(shape, times)


def quick_ends_s(shape: PipelineShape, times: PipelineTimes) -> Floats:
    """Like `pipeline_ends_s`, from a shorter step wherever that has a steady state."""
    found = extrapolated_ends_s(shape, times)
    return simulated_ends_s(shape, times) if found is None else found


def simulated_ends_s(shape: PipelineShape, times: PipelineTimes) -> Floats:
    """Every microbatch simulated."""
    offsets, end_s = _simulated(shape, times)
    ends: Floats = end_s[offsets[1:] - 1]
    return ends


def extrapolated_ends_s(shape: PipelineShape, times: PipelineTimes) -> Floats | None:
    """From a shorter step with a steady state; None without one, or if it is hardly shorter."""
    shorter = shorter_shape(shape)
    if shorter is None:
        return None
    state = steady_state(shorter, times)
    return None if state is None else state.ends_s(shape.num_microbatches)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SteadyState:
    """A step whose middle repeats: ends of its ranks [p], and what each more microbatch adds."""

    num_microbatches: int
    short_ends_s: Floats
    microbatch_s: float

    def ends_s(self, num_microbatches: int) -> Floats:
        """Ends of the ranks in a longer step, a whole number of periods away."""
        return self.short_ends_s + (num_microbatches - self.num_microbatches) * self.microbatch_s


def shorter_shape(shape: PipelineShape) -> PipelineShape | None:
    """A step long enough for a steady state, where that is at most two thirds of this one."""
    steady = _steady_of(shape)
    if steady is None or uses_host(shape):  # ranks have different numbers of copies
        return None
    rest = shape.num_microbatches % shape.num_ranks if steady.by_rank else 0
    count = steady.long * shape.num_ranks + rest
    return shape.with_microbatches(count) if 3 * count < 2 * shape.num_microbatches else None


def steady_state(shape: PipelineShape, times: PipelineTimes) -> SteadyState | None:
    """What repeats in a step that is long enough, or None where nothing does.

    The ends of a microbatch's actions follow from those of the microbatches in flight with it. Once
    as many of them in a row as can be in flight follow their predecessors at one distance, on all
    ranks, so do all others until the pipeline drains.
    """
    steady = _steady_of(shape)
    assert steady is not None, "only an order that repeats itself is asked"
    period = shape.num_ranks if steady.by_rank else 1
    _, end_s = _simulated(shape, times)
    of_rank = end_s.reshape(shape.num_ranks, -1)
    steps_s = _steady_steps_s(of_rank, shape, steady, period)
    if not np.ptp(steps_s) <= _TOLERANCE * float(end_s.max()):
        return None
    return SteadyState(
        num_microbatches=shape.num_microbatches,
        short_ends_s=of_rank[:, -1],
        microbatch_s=float(steps_s.mean()) / period,
    )


def _steady_of(shape: PipelineShape) -> Steady | None:
    return None if shape.order is not None else family_named(shape.family).steady


def _steady_steps_s(end_s: Floats, shape: PipelineShape, steady: Steady, period: int) -> Floats:
    """By how much actions of the ranks [p, n] follow those a period before, [p, k].

    The last actions, which drain the pipeline, are left out, and so is its start.
    """
    rows = end_s.shape[1]
    per_microbatch, p = rows // shape.num_microbatches, shape.num_ranks
    shift = per_microbatch * period
    last = rows - per_microbatch * steady.drain * p
    first = last - per_microbatch * steady.in_flight * p
    follows: Floats = end_s[:, first:last] - end_s[:, first - shift : last - shift]
    return follows


def _simulated(shape: PipelineShape, times: PipelineTimes) -> tuple[NDArray[np.int64], Floats]:
    """Where the rows of each rank begin, and when every row ends."""
    is_fixed = not times.blocking and times.network_s is None
    if shape.is_timeless and is_fixed and family_named(shape.family).is_plain:
        fixed = _fixed(shape)
        if fixed is not None:
            return fixed[0], fixed[1].ends_s(_durations(times), times.transfer_s, times.transfer_s)
    if shape.is_timeless:
        offsets, orders = _native(shape)
    else:
        schedule = schedule_of(shape, times)
        offsets, orders = schedule.rank_offsets, native_orders(schedule)
    simulation = _core.simulate(orders, _native_times(times))
    assert simulation.complete, "a family's orders do not deadlock"
    return offsets, simulation.end_s


@lru_cache(maxsize=512)
def orders_of(shape: PipelineShape) -> Schedule:
    """The family's orders, which are kept."""
    schedule = family_named(shape.family).generate(shape.request)
    assert schedule is not None, "without limits every family has an order"
    return schedule


@lru_cache(maxsize=512)
def _native(shape: PipelineShape) -> tuple[NDArray[np.int64], _core.Orders]:
    schedule = orders_of(shape)
    return schedule.rank_offsets, native_orders(schedule)


@lru_cache(maxsize=512)
def _fixed(shape: PipelineShape) -> tuple[NDArray[np.int64], _core.FixedOrder] | None:
    """Orders of a few MB at most, ready for many times; None for longer ones."""
    offsets, orders = _native(shape)
    return (offsets, _core.FixedOrder(orders)) if int(offsets[-1]) <= _MOST_FIXED else None


def slices_of(family: str, num_ranks: int) -> int:
    """Into how many slices plans under a family cut each sequence; 1 for unknown ones."""
    known = FAMILIES.get(ALIASES.get(family, family))
    return 1 if known is None or known.slices is None else known.slices(num_ranks)


def has_cut_head(shape: PipelineShape) -> bool:
    """Whether the head is cut over all ranks of the pipeline."""
    return shape.order is None and family_named(shape.family).head_barriers > 0


def uses_host(shape: PipelineShape) -> bool:
    """Whether activations wait on the host."""
    known = FAMILIES.get(ALIASES.get(shape.family, shape.family))
    return shape.order is None and known is not None and known.host_of is not None


def _durations(times: PipelineTimes) -> Floats:
    """By kind of action and stage, [10, S]."""
    duration = np.zeros((len(ActionKind), len(times.forward_s)))
    duration[ActionKind.F] = times.forward_s
    duration[ActionKind.I] = times.input_grad_s
    duration[ActionKind.W] = times.weight_grad_s
    duration[ActionKind.B] = times.input_grad_s + times.weight_grad_s
    duration[ActionKind.V], duration[ActionKind.T] = times.head_s
    if times.copy_s is not None:
        duration[ActionKind.O] = duration[ActionKind.L] = times.copy_s
    return duration


def keeps_to_room(shape: PipelineShape) -> bool:
    """Whether orders keep to the bytes of their devices."""
    known = FAMILIES.get(ALIASES.get(shape.family, shape.family))
    return shape.order is None and known is not None and known.keeps_to_room


def braids(shape: PipelineShape) -> bool:
    """Whether pairs of actions hide each other's network."""
    known = FAMILIES.get(ALIASES.get(shape.family, shape.family))
    return shape.order is None and known is not None and known.braids


def hidden_by_pairs_s(shape: PipelineShape, times: PipelineTimes) -> Floats:
    """Seconds per microbatch by which pairs of each rank are shorter than their actions, [p]."""
    hidden_s = np.zeros(shape.num_ranks)
    if times.network_s is None:
        return hidden_s
    schedule = schedule_of(shape, times)
    costs = times.schedule_costs(schedule.placement)
    rows, pair_s = costs.overlapped_pairs(schedule)
    each_s = costs.of_rows(schedule)
    saved_s = each_s[rows] + each_s[rows + 1] - pair_s
    np.add.at(hidden_s, schedule.rank_of_row[rows], saved_s / shape.num_microbatches)
    return hidden_s


def _native_times(times: PipelineTimes) -> _core.ActionCosts:
    network = np.zeros((len(ActionKind), len(times.forward_s)))
    for kind, seconds in (times.network_of() or {}).items():
        network[kind] = seconds
    network[ActionKind.B] = network[ActionKind.I]
    return _core.ActionCosts(
        duration_s=_durations(times),
        forward_transfer_s=times.transfer_s,
        backward_transfer_s=times.transfer_s,
        pair_s=np.full(len(times.forward_s), np.inf),
        network_s=np.zeros(0) if times.network_s is None else network.ravel(),
        slice_s=np.zeros(0),
        barrier_s=times.barrier_s,
        model=times.transfer_model.value,
        blocking_fraction=times.blocking,
    )


def peak_shape(shape: PipelineShape) -> PipelineShape:
    """A shape with as many activations in flight and not many more microbatches."""
    steady = _steady_of(shape)
    if steady is None:
        return shape
    rest = shape.num_microbatches % shape.num_ranks if steady.by_rank else 0
    enough = 6 * shape.num_ranks + rest
    return shape.with_microbatches(min(shape.num_microbatches, enough))
