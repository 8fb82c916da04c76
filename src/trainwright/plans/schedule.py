"""A pipeline schedule: for each rank the order of its actions, without times.

Letters are PyTorch's: F forward, I gradient of the input, W gradient of the weights, B the fused
backward (I and W as one action), R recomputation of dropped activations. The zero-bubble papers
write B for our I. Three are of activations on the host: O copies them there and L back, on the link
of the rank beside its computation, and D frees the device's copy once O has ended. Two are of a
head that is cut over all ranks: V its forward (S in the paper on vocabulary parallelism), T its
gradients.

Orders are kept as one array, an action per row, because 64 ranks × 512 microbatches × 2 chunks are
196,608 actions; `Action` objects are made on demand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, cast

import numpy as np

from trainwright.errors import Fault, InvalidInput, refuse, too_low
from trainwright.profile.profile import freeze_arrays, is_finite_and_not_negative

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.arrays import Floats

    PerStage: TypeAlias = float | Sequence[float] | Floats
    Actions = NDArray[np.int32]

# Arrays with one entry per stage or rank: broadcast, checked, read-only
# ----------------------------------------------------------------------


def broadcast(value: PerStage, size: int, *, name: str) -> Floats:
    """One value for all, or exactly `size` of them; raises InvalidInput on another length."""
    array = np.asarray(value, np.float64)
    if array.ndim == 0:
        return np.full(size, float(array))
    if array.shape != (size,):
        raise InvalidInput.of(name, f"must be 1 value or {size} values, got {array.size}")
    return array.copy()


# Which rank runs which virtual stage of a pipeline
# -------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """`rank_of_stage[s]` is the rank of virtual stage s; ranks may own different numbers of stages.

    Stage 0 takes the input, the last stage computes the loss. Any total function is a placement;
    the named ones are loop, V and wave. Where the model is there `num_pipelines` times, as in
    Chimera, the stages of one copy follow those of the other, and each copy has a first and a last.
    """

    rank_of_stage: tuple[int, ...]
    num_ranks: int
    num_pipelines: int = 1

    def __post_init__(self) -> None:
        refuse(self._faults())

    def _faults(self) -> Iterator[Fault]:
        yield from too_low(self, 1, "num_ranks")
        if not self.rank_of_stage:
            yield Fault("rank_of_stage", "must have at least 1 entry, got 0")
        if self.num_pipelines < 1 or len(self.rank_of_stage) % self.num_pipelines:
            problem = f"must divide the {len(self.rank_of_stage)} stages, got {self.num_pipelines}"
            yield Fault("num_pipelines", problem)
        for stage, rank in enumerate(self.rank_of_stage):
            if not 0 <= rank < self.num_ranks:
                yield Fault(
                    f"rank_of_stage[{stage}]",
                    f"must be a rank from 0 to {self.num_ranks - 1}, got {rank}",
                )

    @classmethod
    def loop(cls, num_ranks: int, *, virtual_stages: int = 1) -> Placement:
        """Stage s on rank s mod p: every pass over the ranks starts again at rank 0."""
        down = tuple(range(num_ranks))
        return cls(rank_of_stage=down * virtual_stages, num_ranks=num_ranks)

    @classmethod
    def v(cls, num_ranks: int) -> Placement:
        """Rank r owns stages r and 2p-1-r, so that first and last stage share rank 0."""
        return cls.wave(num_ranks, virtual_stages=2)

    @classmethod
    def wave(cls, num_ranks: int, *, virtual_stages: int) -> Placement:
        """A loop whose direction flips every p stages: V repeated."""
        down = tuple(range(num_ranks))
        passes = (down if chunk % 2 == 0 else down[::-1] for chunk in range(virtual_stages))
        return cls(rank_of_stage=sum(passes, ()), num_ranks=num_ranks)

    @classmethod
    def both_ways(cls, num_ranks: int) -> Placement:
        """Two copies of the model: stage s of the first on rank s, of the second on rank p-1-s."""
        down = tuple(range(num_ranks))
        return cls(rank_of_stage=down + down[::-1], num_ranks=num_ranks, num_pipelines=2)

    @classmethod
    def from_ranks(cls, stages_of_rank: Sequence[Sequence[int]]) -> Placement:
        """Build from the stages each rank owns; every stage 0..S-1 must be named exactly once."""
        owner: dict[int, int] = {}
        faults = []
        for rank, stages in enumerate(stages_of_rank):
            for stage in stages:
                if stage in owner:
                    problem = f"stage {stage} must be on one rank, is also on rank {owner[stage]}"
                    faults.append(Fault(f"placement[{rank}]", problem))
                owner.setdefault(stage, rank)
        num_stages = max(owner, default=-1) + 1
        missing = next((stage for stage in range(num_stages) if stage not in owner), None)
        if missing is not None:
            faults.append(Fault("placement", f"misses stage {missing}; no rank owns it"))
        if min(owner, default=0) < 0:
            faults.append(Fault("placement", f"stages count from 0, got {min(owner)}"))
        if faults:
            raise InvalidInput(faults)
        ranks = tuple(owner[stage] for stage in range(num_stages))
        return cls(rank_of_stage=ranks, num_ranks=len(stages_of_rank))

    @property
    def num_stages(self) -> int:
        """S: virtual stages over all ranks."""
        return len(self.rank_of_stage)

    @property
    def has_edge(self) -> NDArray[np.bool_]:
        """Whether stage s hands on to s+1, shape [S-1]: not where a pipeline ends."""
        length = self.num_stages // self.num_pipelines
        edges: NDArray[np.bool_] = np.arange(1, self.num_stages) % length != 0
        return edges

    @property
    def stages_of_rank(self) -> tuple[tuple[int, ...], ...]:
        """For each rank the stages it owns, ascending."""
        owned: list[list[int]] = [[] for _ in range(self.num_ranks)]
        for stage, rank in enumerate(self.rank_of_stage):
            owned[rank].append(stage)
        return tuple(map(tuple, owned))

    @property
    def is_v(self) -> bool:
        """Whether rank r owns exactly stages r and 2p-1-r."""
        return self == Placement.v(self.num_ranks)

    @property
    def placing(self) -> Placing:
        """In which of the usual ways stages lie on the ranks, if in any."""
        ranks = self.num_ranks
        if self == Placement.loop(ranks):
            return Placing.ONE
        if self == Placement.loop(ranks, virtual_stages=self.num_stages // ranks):
            return Placing.LOOP
        return Placing.V if self.is_v else Placing.ANY


class Placing(StrEnum):
    """How virtual stages lie on the ranks: one each, in a loop, in a V, or in any other way."""

    ONE = "one stage per rank"
    LOOP = "loop"
    V = "V"
    ANY = "wave"


class FamilyShape(NamedTuple):
    """Where a schedule places its stages, whether its backward is split in two, whether it is one
    pipeline of whole microbatches with nothing beside its computation, and the schedule whose
    computation it is where that waits on the host.
    """

    placing: Placing
    split_backward: bool = False
    is_plain: bool = True
    host_of: str | None = None


# Orders of the ranks as arrays, a row a step: what schedules and lowered schedules share
# ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankOrders:
    """Per-rank orders of n steps.

    `actions` has shape [n, 3]: kind, stage, microbatch; rows of rank r are
    `rank_offsets[r]` to `rank_offsets[r + 1]`, in the order the rank runs them. `pairs` holds rows
    (ascending) of forwards that run together with the computation in the next row.

    `num_microbatches` counts what every stage runs: where each is cut along its tokens into
    `num_slices`, a slice counts as one, and the slices of a microbatch follow each other. A head
    that is cut over all ranks has `head_barriers`: 2 where the last stage's gradient waits for T of
    all ranks, 1 where it waits for V; 0 is a head inside a stage.
    """

    placement: Placement
    num_microbatches: int
    actions: NDArray[np.int32]
    rank_offsets: NDArray[np.int64]
    pairs: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    num_slices: int = 1
    head_barriers: int = 0

    def __post_init__(self) -> None:
        for name in ("actions", "rank_offsets", "pairs"):
            dtype = np.int32 if name == "actions" else np.int64
            array = np.ascontiguousarray(getattr(self, name), dtype=dtype)
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        faults = list(self._layout_faults())
        if self.actions.ndim == 2 and self.actions.shape[1] == 3:
            faults += self._faults()
        if faults:
            raise InvalidInput(faults)

    def _layout_faults(self) -> Iterator[Fault]:
        yield from too_low(self, 1, "num_microbatches")
        if self.num_slices < 1 or self.num_microbatches % self.num_slices:
            problem = f"must divide the {self.num_microbatches} that each stage runs"
            yield Fault("num_slices", f"{problem}, got {self.num_slices}")
        if not 0 <= self.head_barriers <= (2 if self.placement.num_pipelines == 1 else 0):
            problem = f"must be 0, or 1 or 2 for one pipeline, got {self.head_barriers}"
            yield Fault("head_barriers", problem)
        elif self.head_barriers and not all(self.placement.stages_of_rank):
            yield Fault("head_barriers", "must be 0 where a rank has no stage")
        if self.actions.ndim != 2 or self.actions.shape[1] != 3:
            yield Fault("actions", f"must have shape [n, 3], got {self.actions.shape}")
            return
        offsets, ends = self.rank_offsets, (0, len(self.actions))
        if len(offsets) != self.num_ranks + 1 or (offsets[0], offsets[-1]) != ends:
            yield Fault("rank_offsets", f"must run from 0 to {ends[1]}, one per rank and an end")
        elif (offsets[1:] < offsets[:-1]).any():
            yield Fault("rank_offsets", "must ascend")
        # Checked here because tables of this size are made.
        num_stages = self.placement.num_stages
        if num_stages * self.num_microbatches > len(self.actions):
            problem = f"must hold F of {num_stages} stages x {self.num_microbatches} microbatches"
            yield Fault("actions", f"{problem}, got {len(self.actions)} rows")

    def _faults(self) -> Iterator[Fault]:
        """What else is wrong with the rows, asked where `actions` has its shape."""
        return iter(())

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, type(self))
            and self.placement == other.placement
            and self.num_microbatches == other.num_microbatches
            and (self.num_slices, self.head_barriers) == (other.num_slices, other.head_barriers)
            and np.array_equal(self.rank_offsets, other.rank_offsets)
            and np.array_equal(self.actions, other.actions)
            and np.array_equal(self.pairs, other.pairs)
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def num_ranks(self) -> int:
        """p: pipeline positions."""
        return self.placement.num_ranks

    @property
    def rank_of_row(self) -> NDArray[np.int64]:
        """The rank that runs each row, shape [n]."""
        return np.repeat(np.arange(self.num_ranks), np.diff(self.rank_offsets))

    @property
    def meets_backward(self) -> NDArray[np.bool_]:
        """Which of the pairs are a forward and a backward, [k]."""
        return np.isin(self.actions[self.pairs + 1, 0], (ActionKind.I, ActionKind.B))

    def rows_of(self, rank: int) -> slice:
        """The rows of one rank."""
        return slice(int(self.rank_offsets[rank]), int(self.rank_offsets[rank + 1]))

    def place_of(self, row: int) -> str:
        """Where a row stands, for a message: its rank and its place in that rank's order."""
        rank = int(np.searchsorted(self.rank_offsets, row, side="right")) - 1
        return f"orders[{rank}][{row - self.rank_offsets[rank]}]"

    def rows_by_microbatch(self, kinds: tuple[IntEnum, ...]) -> NDArray[np.int64]:
        """Row of the step of one of `kinds`, by stage and microbatch, [S, m]; -1: there is none."""
        table = np.full((self.placement.num_stages, self.num_microbatches), -1, np.int64)
        rows = np.flatnonzero(np.isin(self.actions[:, 0], kinds))
        table[self.actions[rows, 1], self.actions[rows, 2]] = rows
        return table


# A pipeline schedule: for each rank the order of its actions, without times
# --------------------------------------------------------------------------


class ActionKind(IntEnum):
    """What a rank computes; also the row of every table by kind."""

    F = 0
    I = 1  # noqa: E741
    W = 2
    B = 3
    R = 4
    O = 5  # noqa: E741
    D = 6
    L = 7
    V = 8
    T = 9


ON_HOST_LINK = (ActionKind.O, ActionKind.L)
# Chunk activations that an action adds on its rank: W or B releases what F took, and so does D,
# until L brings it back.
ACTIVATIONS_OF = (1, 0, -1, -1, 0, 0, -1, 1, 0, 0)


# How an action is written; its groups are stage, kind and microbatch.
ACTION: Final = re.compile(rf"([0-9]{{1,9}})({'|'.join(k.name for k in ActionKind)})([0-9]{{1,9}})")


class Action(NamedTuple):
    """One computation of one microbatch on one virtual stage, printed as PyTorch does: `3F0`."""

    kind: ActionKind
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.name}{self.microbatch}"

    @classmethod
    def parse(cls, text: str) -> Action:
        """Read `3F0`; the whole text must match."""
        match = ACTION.fullmatch(text)
        if match is None:
            raise InvalidInput.of("action", f'must look like "3F0", got "{text}"')
        return cls(ActionKind[match[2]], int(match[1]), int(match[3]))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule(RankOrders):
    """Per-rank orders of n actions: [n, 3] `ActionKind`, stage, microbatch.

    The forwards of `pairs` may overlap with the next row, a backward as in DualPipeV, a forward or
    a weight gradient; they run one after the other unless the costs say how long a pair takes.

    Only the shape is checked here; whether the orders are a legal schedule is
    `scheduling.simulate`'s question.
    """

    def _faults(self) -> Iterator[Fault]:
        sizes = (len(ActionKind), self.placement.num_stages, self.num_microbatches)
        if len(self.actions):
            unsigned = self.actions.view(np.uint32)  # a negative number is too large a one
            for column, (name, size) in enumerate(zip(Action._fields, sizes, strict=True)):
                if (worst := int(unsigned[:, column].max())) >= size:
                    got = int(np.uint32(worst).astype(np.int32))
                    yield Fault("actions", f"{name} must be from 0 to {size - 1}, got {got}")

    @classmethod
    def of_ranks(
        cls,
        orders: Sequence[Actions],
        *,
        placement: Placement,
        num_microbatches: int,
        pairs: NDArray[np.int64] | None = None,
        num_slices: int = 1,
        head_barriers: int = 0,
    ) -> Schedule:
        """Build from one [n_r, 3] array per rank."""
        offsets = np.zeros(len(orders) + 1, np.int64)
        np.cumsum([len(order) for order in orders], out=offsets[1:])
        return cls(
            placement=placement,
            num_microbatches=num_microbatches,
            actions=np.concatenate(orders) if orders else np.zeros((0, 3), np.int32),
            rank_offsets=offsets,
            pairs=np.zeros(0, np.int64) if pairs is None else pairs,
            num_slices=num_slices,
            head_barriers=head_barriers,
        )

    @classmethod
    def from_orders(
        cls, orders: Sequence[Sequence[Action]], *, pairs: Sequence[int] = ()
    ) -> Schedule:
        """Build from written orders; the placement follows from which rank runs which stage."""
        stages = [sorted({action.stage for action in order}) for order in orders]
        last = max((action.microbatch for order in orders for action in order), default=-1)
        return cls.of_ranks(
            [np.array(order, np.int32).reshape(-1, 3) for order in orders],
            placement=Placement.from_ranks(stages),
            num_microbatches=last + 1,
            pairs=np.array(pairs, np.int64),
        )

    @property
    def is_plain(self) -> bool:
        """Whether one pipeline runs whole microbatches, with nothing beside its computation."""
        traits = (self.placement.num_pipelines, self.num_slices, self.head_barriers)
        return traits == (1, 1, 0) and int(self.actions[:, 0].max(initial=0)) <= ActionKind.R

    @property
    def num_actions(self) -> int:
        """Actions over all ranks."""
        return len(self.actions)

    def action(self, row: int) -> Action:
        """The action in one row."""
        kind, stage, microbatch = self.actions[row].tolist()
        return Action(ActionKind(kind), stage, microbatch)

    def order(self, rank: int) -> tuple[Action, ...]:
        """The actions of one rank, in the order it runs them."""
        rows = self.actions[self.rows_of(rank)].tolist()
        return tuple(Action(ActionKind(kind), stage, mb) for kind, stage, mb in rows)

    def forward_order(self, stage: int) -> NDArray[np.int32]:
        """The microbatches of a stage in the order in which it runs their forwards."""
        forwards = (self.actions[:, 0] == ActionKind.F) & (self.actions[:, 1] == stage)
        microbatches: NDArray[np.int32] = self.actions[forwards, 2]
        return microbatches

    @property
    def has_copies(self) -> bool:
        """Whether activations wait on the host."""
        return bool(np.isin(self.actions[:, 0], ON_HOST_LINK).any())

    @property
    def peak_activations(self) -> tuple[int, ...]:
        """Most chunk activations each rank holds at once (`ACTIVATIONS_OF`).

        A rank runs its actions one after the other, so this needs no times.
        """
        step = np.array(ACTIVATIONS_OF)[self.actions[:, 0]]
        slices = map(self.rows_of, range(self.num_ranks))
        return tuple(int(np.cumsum(step[rows]).max(initial=0)) for rows in slices)


# What the actions of a schedule cost in time
# -------------------------------------------
# Tables have one row per `ActionKind` and one column per virtual stage, so a backend's rule (a
# stage whose input gradient is free, say) is a change of tables and nothing in a simulator.


# What the actions of a schedule allocate and free
# ------------------------------------------------
# A positive delta is allocated when its action starts and stays; a negative one is freed when its
# action ends. A rank runs one action at a time, so its memory is a property of its order alone: at
# an instant where one action ends and the next starts, the release comes first.

_F, _I, _W, _B, _R, _O, _D, _L, _V, _T = ActionKind

SUM_ROUNDING: Final = 1e-9  # relative: what sums in another order differ by; the core's own too


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScheduleMemory:
    """Memory of S stages on p ranks.

    `delta_bytes` and `transient_bytes` have shape [10, S]: what an action of that kind leaves
    allocated or frees, and what it needs on top while it runs. `static_bytes` and `limit_bytes`
    have shape [p]; an infinite limit is none.
    """

    delta_bytes: Floats
    transient_bytes: Floats
    static_bytes: Floats
    limit_bytes: Floats

    def __post_init__(self) -> None:
        freeze_arrays(self)
        refuse(self._faults())

    def _faults(self) -> Iterator[Fault]:
        if self.delta_bytes.ndim != 2 or len(self.delta_bytes) != len(ActionKind):
            yield Fault(
                "delta_bytes",
                f"must have shape [{len(ActionKind)}, S], got {self.delta_bytes.shape}",
            )
        elif not np.isfinite(self.delta_bytes).all():
            yield Fault("delta_bytes", "must be finite")
        if self.transient_bytes.shape != self.delta_bytes.shape:
            yield Fault("transient_bytes", f"must have shape {self.delta_bytes.shape}")
        if self.limit_bytes.shape != self.static_bytes.shape or self.static_bytes.ndim != 1:
            yield Fault("limit_bytes", f"must have shape {self.static_bytes.shape}")
        for name in ("transient_bytes", "static_bytes"):
            if not is_finite_and_not_negative(getattr(self, name)):
                yield Fault(name, "must be finite and >= 0")
        if not (self.limit_bytes >= 0).all():
            yield Fault("limit_bytes", "must be >= 0")

    @classmethod
    def of(
        cls,
        placement: Placement,
        *,
        forward_bytes: PerStage = 1.0,
        input_grad_bytes: PerStage = 0.0,
        weight_grad_bytes: PerStage = -1.0,
        recompute_bytes: PerStage = 0.0,
        offloaded_bytes: PerStage | None = None,
        head_bytes: PerStage = 0.0,
        transient_bytes: Mapping[ActionKind, PerStage] | None = None,
        static_bytes: PerStage = 0.0,
        limit_bytes: PerStage = np.inf,
    ) -> ScheduleMemory:
        """Broadcast scalars; the fused backward allocates and frees what I and W do.

        The defaults count chunk activations: F +1, I 0, W -1. What D frees and L brings back is
        `offloaded_bytes`, all that F keeps unless given; V keeps `head_bytes` until T. The
        transient of B is the larger of those of I and W unless given.
        """
        stages, ranks = placement.num_stages, placement.num_ranks
        delta = np.zeros((len(ActionKind), stages))
        given = {_F: forward_bytes, _I: input_grad_bytes, _W: weight_grad_bytes}
        for kind, value in {**given, _R: recompute_bytes}.items():
            delta[kind] = broadcast(value, stages, name=f"{kind.name} bytes")
        delta[_B] = delta[_I] + delta[_W]
        offloaded = forward_bytes if offloaded_bytes is None else offloaded_bytes
        delta[_L] = broadcast(offloaded, stages, name="offloaded bytes")
        delta[_V] = broadcast(head_bytes, stages, name="head bytes")
        delta[_D], delta[_T] = -delta[_L], -delta[_V]
        transient = np.zeros_like(delta)
        for kind, value in sorted((transient_bytes or {}).items()):
            transient[kind] = broadcast(value, stages, name=f"transient {kind.name} bytes")
        if _B not in (transient_bytes or {}):
            transient[_B] = np.maximum(transient[_I], transient[_W])
        return cls(
            delta_bytes=delta,
            transient_bytes=transient,
            static_bytes=broadcast(static_bytes, ranks, name="static_bytes"),
            limit_bytes=broadcast(limit_bytes, ranks, name="limit_bytes"),
        )

    @property
    def num_stages(self) -> int:
        """S: virtual stages."""
        return int(self.delta_bytes.shape[1])

    @property
    def num_ranks(self) -> int:
        """p: ranks."""
        return len(self.static_bytes)

    @property
    def most_bytes(self) -> Floats:
        """What fits: the limits and what sums in another order differ by, shape [p]."""
        most: Floats = self.limit_bytes * (1 + SUM_ROUNDING)
        return most


# What the actions of a schedule cost in time
# -------------------------------------------


class TransferModel(StrEnum):
    """How transfers between ranks share resources.

    FREE: a transfer arrives its own time after its producer ended, whatever else is under way.
    LINK: transfers from one rank to another follow each other, in the order they were produced.
    BLOCKING: as FREE, and for a fraction of the transfer the sender is busy after its action, and
    the receiver before the action that consumes it.
    """

    FREE = "free"
    LINK = "link"
    BLOCKING = "blocking"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScheduleCosts:
    """Seconds and memory of S stages.

    `compute_s` and `overhead_s` have shape [10, S]; an action takes their sum. `forward_transfer_s`
    [S-1] holds at s the time of a tensor from stage s to s+1, `backward_transfer_s` that of one
    from s+1 to s; neighbours on one rank need none, whatever is written here. `pair_s` [S] is the
    time of a forward of stage s that overlaps with its paired backward; infinite means that the two
    run one after the other, unless they hide each other's network, as all pairs may: `network_s`
    [10, S], if given, is the part of an action's time in which it only communicates (tensor,
    context or expert parallel), and such a pair takes the longest of its actions, of their
    communication and of their computation.

    O and L take their time on the link to the host. `slice_s` [10, S, q], if given, is what each
    slice of a microbatch takes more than the quickest one; `barrier_s` is the time from the last
    stage to a head cut over all ranks, and of each of its barriers.
    """

    compute_s: Floats
    overhead_s: Floats
    forward_transfer_s: Floats
    backward_transfer_s: Floats
    pair_s: Floats
    memory: ScheduleMemory
    transfer_model: TransferModel = TransferModel.FREE
    blocking_fraction: float = 0.0
    network_s: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    slice_s: Floats = field(default_factory=lambda: np.zeros((0, 0, 0)))
    barrier_s: float = 0.0

    def __post_init__(self) -> None:
        freeze_arrays(self)
        refuse(self._faults())

    def _faults(self) -> Iterator[Fault]:
        stages = self.memory.num_stages
        shapes = {
            "compute_s": (len(ActionKind), stages),
            "overhead_s": (len(ActionKind), stages),
            "forward_transfer_s": (stages - 1,),
            "backward_transfer_s": (stages - 1,),
            "pair_s": (stages,),
        }
        for name, shape in shapes.items():
            array = getattr(self, name)
            if array.shape != shape:
                yield Fault(name, f"must have shape {shape}, got {array.shape}")
            elif name == "pair_s":
                if not (array >= 0).all():
                    yield Fault(name, "must be >= 0")
            elif not is_finite_and_not_negative(array):
                yield Fault(name, "must be finite and >= 0")
        table = shapes["compute_s"]
        for name, given in (("network_s", self.network_s), ("slice_s", self.slice_s)):
            if given.size and given.shape[:2] != table:
                yield Fault(name, f"must have shape {table} by kind and stage, got {given.shape}")
            elif not is_finite_and_not_negative(given):
                yield Fault(name, "must be finite and >= 0")
            elif name == "network_s" and given.size and (given > self.compute_s).any():
                yield Fault(name, "must be at most compute_s, which contains it")
        if not 0 <= self.barrier_s < np.inf:
            yield Fault("barrier_s", f"must be finite and >= 0, got {self.barrier_s}")
        if not 0 <= self.blocking_fraction <= 1:
            yield Fault("blocking_fraction", f"must be from 0 to 1, got {self.blocking_fraction}")

    @classmethod
    def of(
        cls,
        placement: Placement,
        *,
        forward_s: PerStage = 1.0,
        input_grad_s: PerStage = 1.0,
        weight_grad_s: PerStage = 1.0,
        backward_s: PerStage | None = None,
        recompute_s: PerStage = 0.0,
        overhead_s: Mapping[ActionKind, PerStage] | None = None,
        transfer_s: PerStage = 0.0,
        backward_transfer_s: PerStage | None = None,
        pair_s: PerStage = np.inf,
        offload_s: PerStage = 0.0,
        reload_s: PerStage | None = None,
        head_s: PerStage = 0.0,
        head_grad_s: PerStage | None = None,
        network_s: Mapping[ActionKind, PerStage] | None = None,
        slice_s: Floats | None = None,
        barrier_s: float = 0.0,
        memory: ScheduleMemory | None = None,
        transfer_model: TransferModel = TransferModel.FREE,
        blocking_fraction: float = 0.0,
    ) -> ScheduleCosts:
        """Broadcast scalars; the defaults are one second each, free transfers, unit memory.

        The fused backward takes I + W unless given, and communicates as long as both; transfers
        backward take as long as forward, L as long as O and T as long as V, unless given.
        """
        stages, edges = placement.num_stages, placement.num_stages - 1
        compute = np.zeros((len(ActionKind), stages))
        given = {_F: forward_s, _I: input_grad_s, _W: weight_grad_s, _R: recompute_s}
        for kind, value in given.items():
            compute[kind] = broadcast(value, stages, name=f"{kind.name} times")
        split = compute[_I] + compute[_W]
        compute[_B] = split if backward_s is None else broadcast(backward_s, stages, name="B times")
        others = {_O: offload_s, _L: reload_s, _V: head_s, _T: head_grad_s}
        others[_L] = offload_s if reload_s is None else reload_s
        others[_T] = head_s if head_grad_s is None else head_grad_s
        for kind, other in others.items():
            compute[kind] = broadcast(cast("PerStage", other), stages, name=f"{kind.name} times")
        network = np.zeros_like(compute) if network_s else np.zeros((0, 0))
        for kind, value in (network_s or {}).items():
            network[kind] = broadcast(value, stages, name=f"network times of {kind.name}")
        if network_s and _B not in network_s:
            network[_B] = network[_I] + network[_W]
        overhead = np.zeros_like(compute)
        for kind, value in (overhead_s or {}).items():
            overhead[kind] = broadcast(value, stages, name=f"{kind.name} overheads")
        returning = transfer_s if backward_transfer_s is None else backward_transfer_s
        return cls(
            compute_s=compute,
            overhead_s=overhead,
            forward_transfer_s=broadcast(transfer_s, edges, name="transfer times"),
            backward_transfer_s=broadcast(returning, edges, name="backward transfer times"),
            pair_s=broadcast(pair_s, stages, name="pair times"),
            memory=ScheduleMemory.of(placement) if memory is None else memory,
            transfer_model=transfer_model,
            blocking_fraction=blocking_fraction,
            network_s=network,
            slice_s=np.zeros((0, 0, 0)) if slice_s is None else slice_s,
            barrier_s=barrier_s,
        )

    def of_rows(self, orders: RankOrders) -> Floats:
        """Seconds of every row, each by itself, shape [n]."""
        kind, stage, microbatch = orders.actions.T
        taken_s: Floats = self.duration_s[kind, stage]
        if self.slice_s.size:
            taken_s += self.slice_s[kind, stage, microbatch % self.slice_s.shape[2]]
        return taken_s

    def measured_pairs_s(self, orders: RankOrders) -> Floats:
        """What `pair_s` says of each pair, [k]; infinite where it does not."""
        forward_s = self.pair_s[orders.actions[orders.pairs, 1]]
        found: Floats = np.where(orders.meets_backward, forward_s, np.inf)
        return found

    def overlapped_pairs(self, orders: RankOrders) -> tuple[NDArray[np.int64], Floats]:
        """Rows that begin a pair which runs as one action, [k], and the seconds of each pair."""
        rows, pair_s = orders.pairs, self.measured_pairs_s(orders)
        if self.network_s.size and len(rows):
            both = np.stack([rows, rows + 1])
            each_s = self.of_rows(orders)[both]
            sum_s = each_s.sum(axis=0)
            kind, stage, _ = orders.actions[both].transpose(2, 0, 1)
            hidden_s = self.network_s[kind, stage].sum(axis=0)
            together_s = np.maximum(each_s.max(axis=0), np.maximum(hidden_s, sum_s - hidden_s))
            together_s[together_s >= sum_s] = np.inf
            pair_s = np.where(np.isfinite(pair_s), pair_s, together_s)
        known = np.isfinite(pair_s)
        return rows[known], pair_s[known]

    @property
    def num_stages(self) -> int:
        """S: virtual stages."""
        return self.memory.num_stages

    @property
    def duration_s(self) -> Floats:
        """Seconds of each action by kind and stage, overhead included, shape [10, S]."""
        return self.compute_s + self.overhead_s
