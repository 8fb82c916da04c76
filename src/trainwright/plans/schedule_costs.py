"""What the actions of a schedule cost in time.

Tables have one row per `ActionKind` and one column per virtual stage, so a backend's rule (a stage
whose input gradient is free, say) is a change of tables and nothing in a simulator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, cast

import numpy as np

from trainwright.errors import Fault, InvalidInput
from trainwright.plans.schedule import (
    ActionKind,
    Placement,
    broadcast,
    freeze_arrays,
    is_finite_and_not_negative,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.arrays import Floats
    from trainwright.plans.schedule import PerStage, RankOrders


# What the actions of a schedule allocate and free
# ------------------------------------------------
# A positive delta is allocated when its action starts and stays; a negative one is freed when its
# action ends. A rank runs one action at a time, so its memory is a property of its order alone: at
# an instant where one action ends and the next starts, the release comes first.

_F, _I, _W, _B, _R, _O, _D, _L, _V, _T = ActionKind


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
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

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

    def as_torch_runs_stage0(self) -> ScheduleMemory:
        """On stage 0, I frees nothing and W all that both would."""
        delta, transient = self.delta_bytes.copy(), self.transient_bytes.copy()
        delta[_W, 0] += delta[_I, 0]
        transient[_W, 0] = max(transient[_W, 0], transient[_I, 0])
        delta[_I, 0] = transient[_I, 0] = 0.0
        return replace(self, delta_bytes=delta, transient_bytes=transient)


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
    run one after the other, unless they hide each other's network: `network_s` [10, S], if given,
    is the part of an action's time in which it only communicates (tensor, context or expert
    parallel), and such a pair takes the longest of its actions, of their communication and of
    their computation.

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
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

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

    def overlapped_pairs(self, orders: RankOrders) -> tuple[NDArray[np.int64], Floats]:
        """Rows that begin a pair which runs as one action, [k], and the seconds of each pair."""
        rows = orders.pairs
        pair_s: Floats = self.pair_s[orders.actions[rows, 1]]
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

    def as_torch_runs_stage0(self) -> ScheduleCosts:
        """The costs on PyTorch, whose first stage has no input gradient to send.

        There, I takes no time and frees nothing; W does the work of both.
        """
        compute, overhead = self.compute_s.copy(), self.overhead_s.copy()
        compute[_W, 0] += compute[_I, 0]
        compute[_I, 0] = overhead[_I, 0] = 0.0
        memory = self.memory.as_torch_runs_stage0()
        return replace(self, compute_s=compute, overhead_s=overhead, memory=memory)
