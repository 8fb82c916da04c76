"""What can be held at once under a schedule, as counts: memory of any stages in one product.

A row says of one instant of one rank how many microbatches of each of its chunks are kept until
their input gradient, how many until their weight gradient, and whose transients lie beside. The
fullest instant of given stages is the largest of rows · bytes, and an instant that holds no more of
anything than another of its rank is never the fullest, so few rows are left.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Collection, Iterator
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trainwright._native import _core
from trainwright.model.config import Activation, Norm
from trainwright.model.recipe import unusual
from trainwright.plans.plan import Parallelism
from trainwright.plans.schedule import ActionKind, Placement, Schedule, ScheduleMemory
from trainwright.profile import Recompute
from trainwright.scheduling.families import family_named
from trainwright.units import MIB

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.arrays import Floats
    from trainwright.model import Recipe, TransformerConfig
    from trainwright.plans.configuration import Configuration

    Ints = NDArray[np.int32]

_F, _I, _W, _B, _R, _O, _D, _L, _V, _T = ActionKind
# By kind: whether activations of a chunk come with an action, whether they go with it, whether the
# rest goes with it, and whether its transients lie beside.
_BEGINS, _ENDS, _FREES, _HANDS_ON = (
    np.isin(list(ActionKind), kinds) for kinds in ((_F, _L), (_B, _I, _D), (_B, _W, _D), (_B, _I))
)
_KEPT_BY_KIND = np.stack((_BEGINS, _ENDS, _FREES, _HANDS_ON)).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PeakRows:
    """`rows` [k, 3·c] counts for the up to c chunks of a rank; `stage` [k, c] says which they are.

    Rows of rank r begin at `starts[r]`. A rank with fewer chunks counts none of stage 0.
    """

    rows: Floats
    stage: NDArray[np.int64]
    starts: NDArray[np.int64]


def peak_rows(schedule: Schedule) -> PeakRows:
    """The instants of a schedule that can be the fullest."""
    owned = schedule.placement.stages_of_rank
    most = max(map(len, owned))
    rows, stages = [], []
    for rank, own in enumerate(owned):
        found = _rank_rows(schedule, rank)
        padded = np.zeros((len(found), 3, most))
        padded[:, :, : len(own)] = found.reshape(len(found), 3, len(own))
        rows.append(padded.reshape(len(found), 3 * most))
        chunks = np.zeros(most, np.int64)
        chunks[: len(own)] = own
        stages.append(np.tile(chunks, (len(found), 1)))
    starts = np.cumsum([0, *(len(part) for part in rows[:-1])])
    return PeakRows(rows=np.concatenate(rows), stage=np.concatenate(stages), starts=starts)


def _rank_rows(schedule: Schedule, rank: int) -> NDArray[np.int64]:
    """Of each chunk: kept until input gradient, until weight gradient, transients."""
    owned = schedule.placement.stages_of_rank[rank]
    actions = np.ascontiguousarray(schedule.actions[schedule.rows_of(rank)])
    return _core.fullest_rows(actions, np.array(owned), _KEPT_BY_KIND).reshape(-1, 3 * len(owned))


def undominated(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of distinct rows [k, c] those of which no other has at least as much of everything."""
    return rows[_core.undominated_rows(np.ascontiguousarray(rows))]


# What a rank holds when its memory is fullest, from the orders of its schedule
# -----------------------------------------------------------------------------
# A rank runs one action at a time, so its memory is a property of its order: the forward of a chunk
# keeps that chunk's activations, its input gradient frees one part of them, its weight gradient the
# rest, and while a backward runs its transients lie beside. Times play no part.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageActivations:
    """Bytes of S virtual stages, per microbatch.

    `logits` are those of the kept bytes that belong to head and loss; `cut_head` is what ranks
    keep of a head that is cut over all of them, from V to T.
    """

    until_input_grad: Floats
    until_weight_grad: Floats
    transient: Floats
    logits: Floats
    cut_head: Floats | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPeak:
    """One rank at its fullest: kept activations, head and loss among them apart, transients."""

    activation_bytes: float
    logits_bytes: float
    transient_bytes: float
    microbatches_in_flight: int

    @classmethod
    def of_nothing(cls) -> RankPeak:
        """Before the first action."""
        return cls(
            activation_bytes=0.0, logits_bytes=0.0, transient_bytes=0.0, microbatches_in_flight=0
        )

    @property
    def total_bytes(self) -> float:
        """All that the schedule adds to static memory."""
        return self.activation_bytes + self.logits_bytes + self.transient_bytes


def memory_of_actions(
    placement: Placement, kept: StageActivations, always_bytes: Floats, most_bytes: Floats
) -> ScheduleMemory:
    """What actions take and free beside what ranks always hold [p], up to a limit [p]."""
    return ScheduleMemory.of(
        placement,
        forward_bytes=kept.until_input_grad + kept.until_weight_grad,
        input_grad_bytes=-kept.until_input_grad,
        weight_grad_bytes=-kept.until_weight_grad,
        head_bytes=0.0 if kept.cut_head is None else kept.cut_head,
        transient_bytes={ActionKind.I: kept.transient, ActionKind.B: kept.transient},
        static_bytes=always_bytes,
        limit_bytes=most_bytes,
    )


def rank_peaks(schedule: Schedule, stages: StageActivations) -> tuple[RankPeak, ...]:
    """The first fullest instant of every rank; in flight are chunk activations held then."""
    tables = _tables(stages)
    return tuple(
        _peak(schedule.actions[schedule.rows_of(rank)], stages, *tables)
        for rank in range(schedule.num_ranks)
    )


def _tables(stages: StageActivations) -> tuple[Floats, Floats]:
    """Bytes by kind of action and stage, [10, S]: what it adds, and what it holds while it runs."""
    kept = stages.until_input_grad + stages.until_weight_grad
    table = np.zeros((len(ActionKind), len(kept)))
    table[ActionKind.F] = kept
    table[ActionKind.I] = -stages.until_input_grad
    table[ActionKind.W] = -stages.until_weight_grad
    table[ActionKind.B] = -kept
    table[ActionKind.D], table[ActionKind.L] = -kept, kept
    if stages.cut_head is not None:
        table[ActionKind.V], table[ActionKind.T] = stages.cut_head, -stages.cut_head
    transient = np.zeros_like(table)
    transient[ActionKind.I] = transient[ActionKind.B] = stages.transient
    return table, transient


def _peak(actions: Ints, stages: StageActivations, table: Floats, transient: Floats) -> RankPeak:
    kind, stage = actions[:, 0], actions[:, 1]
    delta = table[kind, stage]
    held = np.cumsum(delta) - np.minimum(delta, 0.0)  # releases come at the end of an action
    row = int(np.argmax(held + transient[kind, stage]))
    alive = _alive(actions[: row + 1], num_stages=len(stages.transient))
    logits = float(alive @ stages.logits)
    if stages.cut_head is not None:
        opened, closed = kind[: row + 1] == _V, kind[:row] == _T
        own_bytes = float(stages.cut_head[stage[row]])
        logits += own_bytes * (int(opened.sum()) - int(closed.sum()))
    return RankPeak(
        activation_bytes=max(0.0, float(held[row]) - logits),
        logits_bytes=logits,
        transient_bytes=float(transient[kind[row], stage[row]]),
        microbatches_in_flight=int(alive.sum()),
    )


def _alive(actions: Ints, *, num_stages: int) -> Floats:
    """Chunks of each stage between forward and input gradient while the last of `actions` runs.

    Those that are on the host alone do not count.
    """
    begins = _BEGINS[actions[:, 0]]
    opened = np.bincount(actions[begins, 1], minlength=num_stages)
    before = actions[:-1]
    ends = _ENDS[before[:, 0]]
    closed = np.bincount(before[ends, 1], minlength=num_stages)
    return (opened - closed).astype(np.float64)


# What the allocator takes from the device for it
# ------------------------------------------------
# PyTorch's caching allocator (`c10/cuda/CUDACachingAllocator.cpp`): sizes are rounded to 512 bytes;
# up to 1 MiB they come from segments of 2 MiB, below 10 MiB from segments of 20 MiB, above from one
# of their own, rounded to 2 MiB. The smallest free block that is large enough is taken and split
# where more than 1 MiB is left; neighbours that are free become one. Every stream has a pool of its
# own; segments go back to the device only where it is full.

_ROUNDED: Final = 512
_SMALL, _MIDDLE = MIB, 10 * MIB
_SMALL_SEGMENT, _MIDDLE_SEGMENT, _STEP = 2 * MIB, 20 * MIB, 2 * MIB


class Pool:
    """Segments of one stream, cut into blocks of [size, before, after, is free]."""

    __slots__ = ("blocks", "free", "made", "reserved")

    def __init__(self) -> None:
        self.blocks: dict[int, list[Any]] = {}
        self.free: list[tuple[float, int]] = []  # by size
        self.reserved = self.made = 0

    def take(self, size: float) -> int:
        """The number of a block of that size."""
        size = max(1, math.ceil(size / _ROUNDED)) * _ROUNDED
        at = bisect_left(self.free, (size, -1))
        if at < len(self.free):
            held, block = self.free.pop(at)
        else:
            held = _segment(size)
            self.reserved += held
            block = self._made(held, None, None)
        least = _SMALL if size > _SMALL else _ROUNDED - 1
        if held - size > least:
            _, before, after, _ = self.blocks[block]
            rest = self._made(held - size, block, after)
            if after is not None:
                self.blocks[after][1] = rest
            self.blocks[block] = [size, before, rest, False]
            insort(self.free, (held - size, rest))
        self.blocks[block][3] = False
        return block

    def give_back(self, block: int) -> None:
        """Free a block, and make it one with free neighbours."""
        own = self.blocks[block]
        own[3] = True
        for side in (1, 2):
            other = own[side]
            if other is not None and self.blocks[other][3]:
                found = self.blocks.pop(other)
                del self.free[bisect_left(self.free, (found[0], other))]
                own[0] += found[0]
                own[side] = found[side]
                if found[side] is not None:
                    self.blocks[found[side]][3 - side] = block
        insort(self.free, (own[0], block))

    @property
    def given_out(self) -> float:
        """Bytes of the blocks that are taken, with what was too little to be split off."""
        return self.reserved - sum(size for size, _ in self.free)

    def _made(self, size: float, before: int | None, after: int | None) -> int:
        self.made += 1
        self.blocks[self.made] = [size, before, after, True]
        return self.made


def _segment(size: float) -> int:
    if size <= _SMALL:
        return _SMALL_SEGMENT
    return _MIDDLE_SEGMENT if size < _MIDDLE else math.ceil(size / _STEP) * _STEP


class Tape:
    """Tensors by owner and name: bytes held now, the most that was, and what it takes.

    Where it `sums_at_once`, "gradients" of weights are added to what is there, one by one.
    """

    __slots__ = ("blocks", "now", "owners", "peak", "pools", "sums_at_once")

    def __init__(self, *, sums_at_once: bool = False) -> None:
        self.sums_at_once = sums_at_once
        self.owners: dict[object, dict[object, float]] = {}
        self.now = self.peak = 0.0
        self.blocks: dict[tuple[object, object], list[tuple[Pool, int]]] = {}
        self.pools = {"small": Pool(), "compute": Pool(), "buffer": Pool()}

    @property
    def reserved(self) -> float:
        """Bytes of all segments."""
        return float(sum(pool.reserved for pool in self.pools.values()))

    @property
    def given_out(self) -> float:
        """Bytes of all blocks that hold a tensor, which the allocator counts as allocated."""
        return float(sum(pool.given_out for pool in self.pools.values()))

    def hold(self, owner: object, name: object, size: float, *, tensors: int = 1) -> None:
        """Allocate so many tensors of `size` bytes together; a name that is held already grows."""
        if self.sums_at_once and name == "gradients":
            self.passing(size)
            return
        mine = self.owners.setdefault(owner, {})
        mine[name] = mine.get(name, 0.0) + size
        self.now += size
        self.peak = max(self.peak, self.now)
        if size > 0:
            pool = self._pool(owner, size / tensors)
            taken = self.blocks.setdefault((owner, name), [])
            taken += [(pool, pool.take(size / tensors)) for _ in range(tensors)]

    def _pool(self, owner: object, size: float) -> Pool:
        """Units are gathered on a stream of their own."""
        if size <= _SMALL:
            return self.pools["small"]
        return self.pools["buffer" if owner == "buffer" else "compute"]

    def drop(self, owner: object, *names: object) -> None:
        """Free what an owner holds of these names."""
        mine = self.owners.get(owner, {})
        for name in names:
            self.now -= mine.pop(name, 0.0)
            for pool, block in self.blocks.pop((owner, name), ()):
                pool.give_back(block)

    def keep(self, owner: object, names: Collection[str]) -> None:
        """Free all that an owner holds but these."""
        self.drop(owner, *(n for n in self.names(owner) if n not in names))

    def clear(self, owner: object) -> None:
        """Free all that an owner holds."""
        self.keep(owner, ())
        self.owners.pop(owner, None)

    def names(self, owner: object) -> tuple[object, ...]:
        """What an owner holds."""
        return tuple(self.owners.get(owner, ()))

    def held(self, owner: object, name: object) -> float:
        """The bytes of one name."""
        return self.owners.get(owner, {}).get(name, 0.0)

    def passing(self, size: float) -> None:
        """Allocate and free again."""
        self.hold("passing", "", size)
        self.drop("passing", "")


class InputPass:
    """A tape while gradients of inputs alone are made, as PyTorch's pipeline runtime does.

    The graph stays until the weight gradients are made: all that was saved for backward, and the
    gradients that are named in `given` (`distributed/pipelining/_backward.py` of PyTorch 2.13).
    """

    __slots__ = ("given", "held", "names", "passing", "tape")

    def __init__(self, tape: Tape, given: Collection[str]) -> None:
        self.tape, self.given = tape, given
        self.passing, self.names, self.held = tape.passing, tape.names, tape.held

    def hold(self, owner: object, name: object, size: float) -> None:
        """Allocate, but no gradients of weights."""
        if name != "gradients":
            self.tape.hold(owner, name, size)

    def drop(self, owner: object, *names: object) -> None:
        """Free what was made on the way and no weight's gradient will need."""
        made = (n for n in names if isinstance(n, str) and n.startswith("d "))
        self.tape.drop(owner, *(n for n in made if n != "d input" and n not in self.given))

    def keep(self, owner: object, names: Collection[str]) -> None:
        """Free what else was made on the way."""
        self.drop(owner, *(n for n in self.names(owner) if n not in names))


AnyTape = Tape | InputPass


# Which runs are counted tensor by tensor (`step.fsdp2`)
# ------------------------------------------------------


# The ZeRO stages from which on the optimizer's states are sharded, and weights.
SHARDS_STATES: Final = 1
SHARDS_WEIGHTS: Final = 3

# What a recipe may say besides; whatever else it says moves or narrows tensors.
_FOLLOWED: Final = frozenset(
    {
        "precision", "reduce_dtype", "dropout", "context_exchange", "ulysses", "context_balanced",
        "expert_imbalance", "expert_loads", "dispatch_dtype", "token_dispatcher", "loss_chunk",
    }
)  # fmt: skip


# What of a model is followed, or has no tensors of its own.
_OF_MODELS: Final = frozenset(
    {
        "family", "num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_size", "ffn_size",
        "vocabulary_size", "norm", "activation", "gated", "causal", "pre_norm", "final_norm",
        "query_key_norm", "query_key_value_bias", "attention_output_bias", "mlp_bias", "rotary",
        "tied_embeddings", "max_positions", "sliding_window", "full_attention_layers",
        "hidden_dropout", "attention_dropout", "experts",
    }
)  # fmt: skip
_IN_WORDS: Final = {
    "latent": "latent attention",
    "num_mtp_layers": "layers that predict further tokens",
    "towers": "an encoder",
    "tuning": "a part that is frozen, or a reference",
    "shared_gate": "a gate of shared experts",
}
_OF_EXPERTS: Final = frozenset(
    {
        "num_experts", "experts_per_token", "ffn_size", "shared_ffn_size", "num_dense_layers",
        "dense_layers", "routed_bias",
    }
)  # fmt: skip


def odd_parts(model: TransformerConfig) -> Iterator[str]:
    """What a model has that this account does not know, in words."""
    words = {Norm.RMS: "RMS norms", Norm.LAYER: "layer norms"}
    known = model.norm in words and model.activation in (Activation.SILU, Activation.GELU)
    plain = model.causal and model.pre_norm and model.final_norm
    if not (known and plain and (model.rotary or model.max_positions)):
        yield f"blocks of the family {model.family}"
    experts = model.experts
    if experts is not None and (model.mlp_bias or model.activation is not Activation.SILU):
        yield "experts with a bias, or another activation than SiLU"
    for followed, part in ((_OF_MODELS, model), (_OF_EXPERTS, experts)):
        for each in () if part is None else fields(part):
            default = each.default if each.default is not MISSING else None
            if each.name not in followed and getattr(part, each.name) != default:
                yield _IN_WORDS.get(each.name, each.name.replace("_", " "))


def accounts_for(model: TransformerConfig, run: Configuration) -> bool:
    """Whether this account knows every tensor of the run: decoders of the usual kind.

    States are Adam's in float32, and nothing else is cut, moved or narrowed to save memory.
    """
    degrees, recipe = run.parallelism, run.recipe
    family = family_named(run.schedule).shape(degrees.virtual_stages)
    again = run.recompute is not Recompute.NONE
    cut = degrees.tensor == 1 or degrees.sequence_parallel
    if model.experts is not None and degrees.tensor > 1:
        cut &= degrees.expert_shards == (1 if degrees.expert > 1 else degrees.tensor)
    return (
        cut
        and not any(odd_parts(model))
        and _FOLLOWED.issuperset(unusual(recipe))
        and recipe.reduce_dtype in (None, "fp32", "bf16")
        and recipe.precision != "fp32"
        and run.fused_attention
        and run.recompute is not Recompute.OFFLOAD
        and (degrees.pipeline == 1 or family.is_plain)
        and not (run.fused_cross_entropy and recipe.loss_chunk is not None)
        and not any(odd_together(degrees, recipe, again=again, splits=family.split_backward))
    )


def odd_together(
    degrees: Parallelism, recipe: Recipe, *, again: bool, splits: bool
) -> Iterator[str]:
    """What PyTorch's own parts cannot do together, or what nobody counted, in words.

    Where the backward is split in gradients of inputs and of weights, a block that runs `again`
    does so for each of them, and keeps both; selective recomputation allows one pass only. Weights
    that were sharded again then have no gradients.
    """
    narrow = (recipe.reduce_dtype or "fp32") != "fp32"
    split = splits and degrees.pipeline > 1
    parts = {
        "recomputation beside a split backward": split and again,
        "ZeRO 3 beside a split backward": split and degrees.zero_stage == SHARDS_WEIGHTS,
        "ZeRO 0 beside context or expert parallelism": degrees.zero_stage == 0
        and degrees.context * degrees.expert > 1,
        "copies of sharded state beside ZeRO 1": degrees.zero_stage == SHARDS_STATES
        and degrees.state_copies > 1,
        "gradients reduced in 16 bit beside ZeRO 1": degrees.zero_stage == SHARDS_STATES and narrow,
        "a loss in pieces beside tensor or pipeline parallelism": recipe.loss_chunk is not None
        and degrees.tensor * degrees.pipeline > 1,
    }
    yield from (name for name, is_there in parts.items() if is_there)
