"""What tensors hold on a rank where PyTorch runs a decoder operator by operator under FSDP2.

The account of torchtitan, and of whoever else runs plain modules under `fully_shard`. Nothing in it
is fitted: every tensor of a step is allocated and freed here in the order in which autograd and
FSDP2 do, by size alone, and the largest sum is the peak. Symbols: T tokens of a microbatch on this
rank, h hidden size, t the tensor degree, N the ranks that share the state, P the parameters of a
unit on one tensor rank (a block, the embedding, norm and head together).

- State: float32 weight and two moments, 12·P/N; float32 gradients, 4·P/N, from the reduction of a
  unit to the update, whichever format it is reduced in.
- Tied words make one unit of the embedding, norm and head, gathered from one end of a microbatch to
  the other; what its two products and all earlier ones add to its gradient stays whole till then.
- A unit in use is gathered in 16 bit, 2·P; backward gathers the one before it at the same time,
  into a buffer of as much. Its 16-bit gradients, 2·P, are copied into a buffer of 4·P, or of 2·P
  where they are reduced in 16 bit, that is held until the next unit has computed its own. Norm and
  head stay gathered from forward to backward. With a pipeline nothing is reduced before the last
  microbatch: units stay gathered and gradients whole, in the format of the reduction.
- Autograd keeps what its operators ask for, one by one: the product of a gate and its activation
  are both kept, and beside tensor parallelism the gathered input of a product, not its shard.
- The loss is computed in float32: 4 bytes per logit kept, 8 more while its gradient is made; where
  it is compiled (`fused_cross_entropy`) 2 bytes are kept and 2 more made. In pieces it makes its
  gradients forward, which wait in float32.
- Gradients of inputs alone free nothing; what products and norms gave waits for its weights, too.
- ZeRO 0 is FSDP2 with one shard. ZeRO 1 is a distributed optimizer as Megatron-Core has it: 16-bit
  weights and float32 gradients whole, 6·P, each gradient added at once, and states of 12·P/N.

Sources: PyTorch 2.13 (`fsdp/_fully_shard`, `distributed/pipelining`, `derivatives.yaml`) and
torchtitan of 2026-08 (`distributed/fsdp.py`, `distributed/activation_checkpoint.py`).
`benchmarks/dry_runs.csv` has what PyTorch's own tensors hold in 233 runs, and a test compares.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.model.recipe import STATE_BYTES
from trainwright.plans.configuration import Configuration, even_blocks, run_shape
from trainwright.plans.plan import Parallelism
from trainwright.plans.schedule import ActionKind, Schedule
from trainwright.profile import Recompute
from trainwright.step import pipeline
from trainwright.step.memory import AnyTape, InputPass, Tape
from trainwright.step.predict import shape_of

if TYPE_CHECKING:
    from trainwright.model import Experts, TransformerConfig

_HALF: Final = 2.0  # bytes of a 16-bit number
_SINGLE: Final = 4.0
_MOMENTS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Bytes of the tensors of one block and microbatch on one device, by what they are.

    `shard` is a hidden state as it lies between products, cut by a tensor group, `whole` one that
    it has gathered; `query`, `key` are those of all local heads, `inner` one of the two inputs of
    the gate, `row` the statistics of a norm, `mask` those of dropout on a hidden state, `cut` the
    degrees of the run.
    """

    shard: float
    whole: float
    query: float
    key: float
    statistics: float
    inner: float
    row: float
    mask: float
    cut: Parallelism


def sizes_of(model: TransformerConfig, run: Configuration) -> Sizes:
    """Sizes of a block of the model in the run."""
    degrees, tokens = run.parallelism, run.tokens
    t = degrees.tensor
    return Sizes(
        shard=_HALF * tokens * model.hidden_size / t,
        whole=_HALF * tokens * model.hidden_size,
        query=_HALF * tokens * model.query_size / t,
        key=_HALF * tokens * model.key_value_size / t,
        statistics=_SINGLE * tokens * model.num_heads / t,
        inner=_HALF * tokens * model.ffn_size / t,
        row=_SINGLE * tokens / t * (1 + model.norm.has_bias),
        mask=tokens * model.hidden_size / t if model.hidden_dropout else 0.0,
        cut=degrees,
    )


# One block, forward and backward
# -------------------------------
# Names are (block key, tensor). A forward leaves what autograd keeps; a backward frees it again and
# leaves the block's 16-bit weight gradients, which the unit's reduction takes.


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """Bytes of a block with experts: `copies` of the tokens that this rank routes.

    `taken` are those that its experts take, the heaviest share of all, and `inner` is one gate
    input of theirs. `scores` are those of the router in float32, `picks` one 8-byte index per copy,
    `shared` one gate input of the experts that every token meets, which needs the `whole` sequence
    of a tensor group. `hidden` is the state that is routed: the group's own part of it where
    experts are dealt out, else all of it, of which each makes a part.
    """

    copies: float
    taken: float
    inner: float
    scores: float
    picks: float
    shared: float
    hidden: float
    is_dealt: bool


def mixed_of(model: TransformerConfig, experts: Experts, run: Configuration) -> Mixed:
    """Sizes of a block with experts."""
    degrees = run.parallelism
    tokens = run.tokens
    shape = run_shape(run, precision="bf16")
    taken = shape.expert_copies(experts.experts_per_token, experts.num_experts)
    routed = tokens / degrees.tensor if degrees.expert > 1 else tokens
    copies = routed * experts.experts_per_token
    return Mixed(
        copies=_HALF * copies * model.hidden_size,
        taken=_HALF * taken * model.hidden_size,
        inner=_HALF * taken * experts.ffn_size / shape.expert_shards,
        scores=_SINGLE * routed * experts.num_experts,
        picks=8.0 * copies,
        shared=_HALF * tokens * experts.shared_ffn_size / degrees.tensor,
        hidden=_HALF * routed * model.hidden_size,
        is_dealt=degrees.expert > 1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block: its sizes, and bytes of 16-bit gradients of its products.

    Selective recomputation caches the outputs of the products in `cached`.
    """

    sizes: Sizes
    mixed: Mixed | None
    cached: frozenset[str]
    rotary: bool
    gated: bool
    has_head_norms: bool
    attention_gradients: float
    output_gradient: float
    first_gradients: float  # of the products before the activation
    last_gradient: float
    mode: Recompute

    def forward(self, tape: Tape, key: object) -> None:
        """The whole block; its input is another's."""
        match self.mode:
            case Recompute.NONE:
                self._run(tape, key)
            case Recompute.FULL:
                self._run(tape, key)
                tape.keep(key, ())
            case Recompute.SELECTIVE:
                self._run(tape, key, selective=True)
                tape.keep(key, _CACHED | self.cached)
        tape.hold(key, "out", self.sizes.shard)

    def backward(self, tape: AnyTape, key: object) -> None:
        """From the gradient of the output, held as "grad", to that of the input."""
        if self.mode is not Recompute.NONE:
            self._run(tape, key, again=True, selective=self.mode is Recompute.SELECTIVE)
        if self.mixed is None:
            self._dense_backward(tape, key)
        else:
            self._mixed_backward(tape, key, self.mixed)
        self._attention_backward(tape, key)
        tape.keep(key, ("out",))

    def _run(
        self, tape: AnyTape, key: object, *, again: bool = False, selective: bool = False
    ) -> None:
        """Forward, or forward again in backward, where what was cached is there already."""
        z, cached = self.sizes, again and selective
        hold, drop = partial(tape.hold, key), partial(tape.drop, key)

        def product(name: str, size: float) -> None:
            if not (cached and name in _CACHED | self.cached):
                hold(name, size)

        def dropout(name: str, *before: float) -> None:
            tape.passing(sum(before))
            if z.mask:
                tape.passing(2 * z.shard)
                hold(name, z.mask)

        hold("row", z.row)
        hold("normed", z.shard)
        if z.cut.tensor > 1:
            hold("normed whole", z.whole)
            drop("normed")
        both = (("q", z.query), ("k", z.key))
        turned = self.rotary or self.has_head_norms
        for name, size in both:
            product(name + "0" * turned, size)
        product("v", z.key)
        if self.has_head_norms:
            for name, size in both:
                hold(name + "1" * self.rotary, size)
        if self.rotary:
            for name, size in both:  # float32, turned, back to 16 bit
                tape.passing(4 * size + size)
                hold(name, size)
            if self.has_head_norms:
                drop("q1", "k1")
            else:
                drop(*({"q0", "k0"} - (self.cached if selective and not again else frozenset())))
        if z.cut.context > 1 and not cached:
            # Keys and values in one row, those of all ranks, and a part of the output beside all.
            tape.passing(2 * z.key * (2 + z.cut.context) + 4 * z.query)
        product("attended", z.query)
        product("statistics", z.statistics)
        if selective and not again and "attention out" in self.cached:
            hold("attention out", z.whole)
        if z.cut.tensor > 1:
            dropout("mask", *(() if cached else (z.whole, z.shard)))
            if selective and not again:
                hold("reduced", z.shard)
        else:
            dropout("mask", z.shard)
        hold("middle", z.shard)
        hold("row 2", z.row)
        hold("normed 2", z.shard)
        if z.cut.tensor > 1:
            own = self.mixed is not None and self.mixed.is_dealt  # its part of the sequence
            if not own or (self.mixed and self.mixed.shared):
                hold("normed 2 whole", z.whole)
            if not own:
                drop("normed 2")
        if self.mixed is not None:
            self._run_mixture(tape, key, self.mixed, again=again, selective=selective)
            dropout("mask 2")
            return
        product("gate", z.inner)
        if self.gated:
            hold("activated", z.inner)
            product("up", z.inner)
        hold("inner", z.inner)
        if selective and not again:
            if "last" in self.cached:
                hold("last", z.whole)
            if z.cut.tensor > 1:
                hold("reduced 2", z.shard)
        dropout("mask 2", *(() if again or selective else (z.whole, z.shard)))

    def _run_mixture(
        self, tape: AnyTape, key: object, m: Mixed, *, again: bool, selective: bool
    ) -> None:
        cached = again and selective
        shard = self.sizes.shard

        hold = partial(tape.hold, key)

        def product(name: str, size: float) -> None:
            if not (cached and name in self.cached):
                hold(name, size)

        tape.passing(m.scores * 2.5)
        hold("scores", m.scores)
        hold("picks", 3 * m.picks)
        tape.passing(m.copies * 3)
        hold("weighed", 2 * m.copies)  # float32 copies, which the router's gradient needs
        tape.passing(2 * m.copies)
        hold("routed", m.copies)
        if m.shared:
            product("shared gate", m.shared)
            product("shared up", m.shared)
            for name in ("shared activated", "shared inner"):
                hold(name, m.shared)
            hold("shared out", shard)
        if m.is_dealt and not cached:
            tape.passing(m.copies)
            if selective:
                hold("dealt", m.taken)
        hold("padded", m.taken)
        hold("rows", m.taken)
        for name in ("expert gate", "activated", "up", "inner"):
            hold(name, m.inner)
        hold("result", m.taken)
        hold("unsorted", m.taken)
        if not (again and not selective):
            tape.drop(key, "result")
            if m.is_dealt:
                hold("brought", m.copies)
            hold("placed", m.copies)
            tape.passing(m.hidden + shard)
        names = ["routed", "padded", "result", "unsorted", "placed", "shared out"]
        if not (selective and not again):
            names.append("brought")
        tape.drop(key, *(name for name in names if not selective or name not in self.cached))

    def _dense_backward(self, tape: AnyTape, key: object) -> None:
        z = self.sizes
        hold, drop = partial(tape.hold, key), partial(tape.drop, key)
        if z.mask:
            hold("d dropped", z.shard)
            drop("mask 2")
        if z.cut.tensor > 1:
            hold("d whole", z.whole)
        hold("d inner", z.inner)
        tape.hold("rank", "gradients", self.last_gradient)
        drop("inner", "d whole", "d dropped")
        if self.gated:
            self._gate_backward(tape, key)
        else:
            hold("d gate", z.inner)
            drop("d inner", "gate")
            hold("d normed", z.whole)
            tape.hold("rank", "gradients", self.first_gradients)
            drop("d gate", "normed 2 whole", "normed 2")
        if z.cut.tensor > 1:
            hold("d reduced", z.shard)
            drop("d normed")
        hold("d middle", z.shard)
        drop("d normed", "d reduced", "middle", "row 2")
        drop("d middle")  # added to the gradient of the output in place

    def _gate_backward(self, tape: AnyTape, key: object) -> None:
        """From the gradient of the gated product to that of the norm's output."""
        self._gated_backward(tape, key, self.sizes.inner, "gate", "normed", self.sizes.whole)
        tape.drop(key, "d gate", "normed 2 whole", "normed 2")
        tape.drop(key, "d normed b")

    def _gated_backward(
        self, tape: AnyTape, key: object, inner: float, gate: str, given: str, given_size: float
    ) -> None:
        """Both halves of a gated product, each up to the gradient of what it was `given`."""
        hold, drop = partial(tape.hold, key), partial(tape.drop, key)
        hold("d activated", inner)
        hold("d up", inner)
        drop("d inner", "activated", "up")
        hold(f"d {given}", given_size)
        tape.hold("rank", "gradients", self.first_gradients / 2)
        drop("d up")
        hold("d gate", inner)
        drop("d activated", gate)
        hold(f"d {given} b", given_size)
        tape.hold("rank", "gradients", self.first_gradients / 2)

    def _mixed_backward(self, tape: AnyTape, key: object, m: Mixed) -> None:
        shard, gathers = self.sizes.shard, m.hidden > self.sizes.shard
        hold, drop = partial(tape.hold, key), partial(tape.drop, key)
        if gathers:
            hold("d whole", m.hidden)
        if m.shared:
            hold("d shared", 3 * m.shared)
            drop("d shared", "shared gate", "shared activated", "shared up", "shared inner")
            tape.passing(self.sizes.whole)
            hold("d normed", m.hidden)
        hold("d placed", m.copies)
        if m.is_dealt:
            hold("d brought", m.taken)
            drop("d placed", "brought")
        hold("d unsorted", m.taken)
        drop("d placed", "d brought", "d whole")
        hold("d result", m.taken)
        drop("d unsorted")
        hold("d inner", m.inner)
        tape.hold("rank", "gradients", self.last_gradient)
        drop("inner", "d result")
        self._gated_backward(tape, key, m.inner, "expert gate", "rows", m.taken)
        drop("d gate", "rows", "d rows b")
        hold("d padded", m.taken)
        drop("d rows")
        if m.is_dealt:
            hold("d dealt", m.copies)
            drop("d padded", "dealt")
        hold("d weighed", 2 * m.copies)
        drop("d padded", "d dealt")
        tape.passing(2 * m.copies + 2 * m.copies)
        hold("d routed", 2 * m.copies)
        drop("d weighed", "weighed")
        tape.passing(m.copies)
        drop("d routed")
        hold("d normed", m.hidden)
        tape.passing(m.copies + 2 * m.scores)
        drop("scores", "picks", "normed 2", "normed 2 whole", "mask 2", "middle", "row 2")
        tape.passing(shard)
        drop("d normed")

    @property
    def given(self) -> float:
        """Gradients of what the norms of queries and keys give."""
        return (self.sizes.query + self.sizes.key) * self.has_head_norms

    def weights(self, tape: Tape, key: object) -> None:
        """The gradients of weights, from what a backward pass for inputs alone has left."""
        tape.hold("rank", "gradients", self.attention_gradients)
        tape.drop(key, "d q", "d k", "d v", "normed", "normed whole")
        tape.hold("rank", "gradients", self.output_gradient)
        tape.drop(key, "d middle")
        tape.hold("rank", "gradients", self.first_gradients)
        tape.drop(key, "d gate", "d up", "normed 2", "normed 2 whole", "rows")
        tape.hold("rank", "gradients", self.last_gradient)
        tape.drop(key, "inner")

    def _attention_backward(self, tape: AnyTape, key: object) -> None:
        z = self.sizes
        hold, drop = partial(tape.hold, key), partial(tape.drop, key)
        if z.mask:
            hold("d dropped", z.shard)
            drop("mask")
        if z.cut.tensor > 1:
            hold("d whole", z.whole)
        hold("d attended", z.query)
        tape.hold("rank", "gradients", self.output_gradient)
        drop("d whole", "d dropped")
        if z.cut.context > 1:
            tape.passing(2 * z.key * (3 + 2 * z.cut.context) + 6 * z.query)
        hold("d q", z.query)
        hold("d k", z.key)
        hold("d v", z.key)
        drop("d attended", "q", "k", "attended", "statistics")
        hold("d normed", z.whole)
        drop("d v", "v")
        for name, size in (("d k", z.key), ("d q", z.query)):
            tape.passing(4 * size * self.rotary)
            tape.passing(z.whole)
            drop(name)
        tape.hold("rank", "gradients", self.attention_gradients)
        drop("q0", "k0", "normed whole", "normed")
        tape.passing(2 * z.shard)
        drop("d normed", "row")


_CACHED: Final = frozenset({"attended", "statistics", "reduced", "reduced 2", "dealt", "brought"})


def cached_products(model: TransformerConfig, experts: Experts | None) -> frozenset[str]:
    """Products whose outputs selective recomputation caches: those with a bias, and every second.

    The router's runs again (torchtitan, `distributed/activation_checkpoint.py`).
    """
    turned = "0" * (model.rotary or model.query_key_norm)
    has_bias = dict.fromkeys(("q" + turned, "k" + turned, "v"), model.query_key_value_bias)
    has_bias["attention out"] = model.attention_output_bias
    if experts is None:
        inner = ("gate", "up", "last") if model.gated else ("gate", "last")
        has_bias |= dict.fromkeys(inner, model.mlp_bias)
    elif experts.shared_ffn_size:
        has_bias |= dict.fromkeys(("shared gate", "shared up", "shared out"), False)
    others = [name for name, biased in has_bias.items() if not biased]
    return frozenset({*others[::2], *(name for name, biased in has_bias.items() if biased)})


# Gradients of what products and norms give, which their weights wait for: alone, and cut.
_GIVEN: Final = frozenset(
    {"d logits", "d normed", "d middle", "d gate", "d up", "d q", "d k", "d v", "d result"}
)
_GIVEN_CUT: Final = _GIVEN - {"d normed", "d middle"} | {"d whole", "d reduced"}


# A rank: its units, and the actions of its schedule
# --------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What FSDP gathers and reduces at once: parameters of one tensor rank, and of its shards."""

    parameters: float
    sharded: float
    ranks: int


class Rank:
    """A pipeline rank while a step runs."""

    def __init__(self, model: TransformerConfig, run: Configuration, stages: list[Stage]):
        self.in_buffers = run.parallelism.zero_stage == _SHARDS_STATES
        self.tape, self.run, self.stages = Tape(sums_at_once=self.in_buffers), run, stages
        self.pipelined = run.parallelism.pipeline > 1
        self.again = frees_weights(run.parallelism)
        self.is_copied = sharing_replicas(run.parallelism) < run.parallelism.data
        self.summed = STATE_BYTES[run.recipe.reduce_dtype or "fp32"]
        self.gathered: set[object] = set()
        self.reduced: set[object] = set()
        own = {stage.index for stage in stages}
        self.hands_on = {index for index in own if index + 1 in own}  # its output is not sent
        state = (1 + _MOMENTS) * _SINGLE
        for stage in stages:
            for name, unit in stage.units.items():
                self.tape.hold("state", (stage.index, "weights"), state * unit.sharded, tensors=24)
                if self.in_buffers:  # of 16-bit weights and float32 gradients
                    whole = (_HALF + _SINGLE) * unit.parameters
                    self.tape.hold("state", (stage.index, "buffers"), whole)
                    self.gathered.add((stage.index, name))
            self.tape.hold("state", "rotation", 4 * stage.positions * model.head_size)
            # Buffers of all microbatches, for what comes from the stages on either side.
            sides = (not stage.has_embedding) + (not stage.has_head)
            received = sides * run.num_microbatches * stage.sizes.shard
            self.tape.hold("state", ("received", stage.index), received)

    def gather(self, stage: Stage, name: str, *, forward: bool) -> None:
        """Make the weights of a unit whole: through a buffer, then in tensors of their own."""
        tape, key, unit = self.tape, (stage.index, name), stage.units[name]
        if key in self.gathered:
            return
        self.gathered.add(key)
        size = _HALF * unit.parameters
        if unit.ranks > 1 and not tape.held("buffer", key):  # unless it was begun ahead
            tape.hold("buffer", key, size)
        if forward:  # the buffer before it is freed only now
            tape.drop("buffer", *(k for k in tape.names("buffer") if k != key))
        tape.hold("weights", key, size, tensors=1 if name == "embedding" else _PRODUCTS)
        if not forward:
            tape.drop("buffer", key)

    def prefetch(self, stage: Stage, name: str) -> None:
        """Begin to gather the unit that backward reaches next."""
        key, unit = (stage.index, name), stage.units[name]
        if key not in self.gathered and unit.ranks > 1:
            self.tape.hold("buffer", key, 0.0)
            if self.tape.held("buffer", key) == 0:
                self.tape.hold("buffer", key, _HALF * unit.parameters)

    def free_weights(self, stage: Stage, name: str) -> None:
        """The whole weights of a unit go."""
        self.gathered.discard((stage.index, name))
        self.tape.drop("weights", (stage.index, name))

    def reduce(self, stage: Stage, name: str, *, is_last: bool) -> None:
        """The gradients of a unit: into shards, or kept whole in float32 until the last one."""
        tape, key, unit = self.tape, (stage.index, name), stage.units[name]
        if self.in_buffers:  # where they are already
            tape.drop("rank", *(("head's",) if name == "embedding" else ()))
            tape.drop("late gradients", key)
            return
        if not is_last or tape.held("late gradients", key):
            # Beside a pipeline a tensor group sums gradients of all words, and shares them at last.
            parts = stage.sizes.cut.tensor if name == "embedding" else 1
            made = tape.held("rank", "gradients") + tape.held("late gradients", key)
            if made and tape.held("whole gradients", key) == 0:
                tape.hold("whole gradients", key, parts * self.summed * unit.parameters)
            tape.drop("rank", "gradients")
            tape.drop("late gradients", key)
            if not is_last:
                return
        self.free_weights(stage, name)
        tape.drop("buffer reduced", *tape.names("buffer reduced"))
        tape.hold("buffer reduced", key, self.summed * unit.parameters)
        tape.drop("rank", "gradients", *(("head's",) if name == "embedding" else ()))
        tape.drop("whole gradients", key)
        shard = _SINGLE * unit.sharded
        if key in self.reduced:
            tape.hold("sum", key, shard)
        else:
            self.reduced.add(key)
            tape.hold("gradients", key, shard)
        if unit.ranks == 1:  # a copy to divide, beside what was copied in and what comes out
            tape.passing(self.summed * unit.parameters)
        if not self.is_copied:  # else until the backward pass has ended
            tape.drop("sum", key)

    def forward(self, stage: Stage, microbatch: int) -> None:
        """One microbatch through a stage."""
        tape, sizes = self.tape, stage.sizes
        if stage.has_embedding:
            self.gather(stage, "embedding", forward=True)
            key = stage.index, microbatch
            tape.passing(sizes.whole * (2 if sizes.cut.tensor > 1 else 1))
            tape.hold(key, "mask", sizes.mask)
            if self.again and not stage.is_tied:
                self.free_weights(stage, "embedding")
            tape.hold(key, "input", sizes.shard)
        for layer, block in stage.blocks:
            self.gather(stage, f"block {layer}", forward=True)
            block.forward(tape, (stage.index, microbatch, layer))
            if self.again:
                self.free_weights(stage, f"block {layer}")
        if stage.index in self.hands_on and stage.blocks:
            tape.drop((stage.index, microbatch, stage.blocks[-1][0]), "out")  # the next one's input
        if stage.has_head:
            self.gather(stage, stage.last_unit, forward=True)
            self._loss_forward(stage, microbatch)
        tape.drop("buffer", *tape.names("buffer"))

    def _loss_in_pieces(self, stage: Stage, microbatch: int, size: float) -> None:
        """Head, loss and their gradients of the part `size` of the tokens after the other."""
        tape, key, sizes = self.tape, (stage.index, microbatch), stage.sizes
        name, logits = stage.last_unit, _HALF * stage.logits * size
        unit = stage.units[name]
        tape.hold(key, "normed", sizes.shard)
        tape.drop("buffer", *tape.names("buffer"))  # when the outermost module returns
        tape.hold(key, "d pieces", 2 * sizes.shard)
        for at in range(math.ceil(1 / size)):
            tape.hold(key, "logits", logits)
            tape.drop(key, "logits before")
            tape.hold(key, "float", 2 * logits)
            tape.hold(key, "softmax", 2 * logits)
            tape.drop(key, "float")
            tape.hold(key, "d softmax", 2 * logits)
            tape.hold(key, "d float", 2 * logits)
            tape.drop(key, "d softmax", "softmax")
            tape.hold(key, "d logits", logits)
            tape.drop(key, "d float")
            tape.hold(key, "d normed", sizes.shard * size)
            tape.hold("rank", "gradients", _HALF * unit.parameters)
            self.reduce(stage, name, is_last=(at + 1) * size >= 1)
            tape.drop(key, "d logits", "d normed", "logits")
            tape.hold(key, "logits before", logits)
        tape.hold(key, "d normed", sizes.shard)
        tape.drop(key, "d pieces", "normed", "logits before")

    def _loss_forward(self, stage: Stage, microbatch: int) -> None:
        tape, key, sizes = self.tape, (stage.index, microbatch), stage.sizes
        logits = _HALF * stage.logits
        if (tokens := self.run.recipe.loss_chunk) is not None:
            self._loss_in_pieces(stage, microbatch, min(1.0, tokens / self.run.tokens))
            return
        tape.hold(key, "normed", sizes.shard)
        if sizes.cut.tensor > 1:
            tape.hold(key, "normed whole", sizes.whole)
            tape.drop(key, "normed")
        tape.hold(key, "logits", logits)
        tape.drop("buffer", *tape.names("buffer"))  # when the outermost module returns
        if self.run.fused_cross_entropy:  # one kernel each way, from the logits as they are
            return
        tape.hold(key, "float", 2 * logits)
        if sizes.cut.tensor > 1:  # less the maximum, exponentials, less the sum's logarithm
            tape.hold(key, "shifted", 2 * logits)
            tape.passing(2 * logits)
            tape.hold(key, "softmax", 2 * logits)
            tape.drop(key, "shifted")
        else:
            tape.hold(key, "softmax", 2 * logits)
        tape.drop(key, "float")
        if not self.pipelined:
            tape.drop(key, "logits")

    def weights(self, stage: Stage, microbatch: int, *, is_last: bool) -> None:
        """The weight gradients of a microbatch, summed in 16 bit until a backward pass meets them.

        They are made from the first block to the head, product by product.
        """
        tape, key = self.tape, (stage.index, microbatch)
        sums: list[tuple[str, object, Callable[[Tape, object], None]]] = [
            (f"block {layer}", (*key, layer), block.weights) for layer, block in stage.blocks
        ]
        if stage.has_head:
            sums.append(("head", key, partial(self._head_weights, stage)))
        for name, owner, run in sums:
            run(tape, owner)
            late = (stage.index, name)
            if not tape.held("late gradients", late):
                tape.hold("late gradients", late, _HALF * stage.units[name].parameters)
            tape.drop("rank", "gradients")
        for _, owner, _ in sums:
            tape.clear(owner)
        for name, _, _ in sums if is_last or self.in_buffers else ():
            self.reduce(stage, name, is_last=True)
        tape.drop("buffer reduced", *tape.names("buffer reduced"))

    def _head_weights(self, stage: Stage, tape: Tape, key: object) -> None:
        tape.hold("rank", "gradients", _HALF * stage.units["head"].parameters)
        tape.drop(key, "d logits", "normed", "normed whole")

    def backward(
        self, stage: Stage, microbatch: int, *, is_last: bool, split: bool = False
    ) -> None:
        """One microbatch back, or with a `split` backward the gradients of its inputs alone."""
        key, sizes = (stage.index, microbatch), stage.sizes
        given = _GIVEN_CUT if sizes.cut.tensor > 1 else _GIVEN
        tape: AnyTape = InputPass(self.tape, given) if split else self.tape
        names = [f"block {layer}" for layer, _ in stage.blocks]
        before = dict(zip(names[1:], names, strict=False))
        before |= {names[0]: "embedding"} if stage.has_embedding and names else {}
        if stage.has_head and self.run.recipe.loss_chunk is not None:
            tape.hold("rank", "grad", sizes.shard)
            tape.drop(key, "d normed")
        elif stage.has_head:
            self._loss_backward(stage, tape, key)
            if names:
                self.prefetch(stage, names[-1])
            self._head_backward(stage, tape, key)
            if not stage.is_tied:
                self.reduce(stage, "head", is_last=is_last)
        else:
            tape.hold("rank", "grad", 0.0)  # the buffer in which it was received
        for layer, block in reversed(stage.blocks):
            name = f"block {layer}"
            self.gather(stage, name, forward=False)
            if name in before:
                self.prefetch(stage, before[name])
            block.backward(tape, (*key, layer))
            tape.drop((*key, layer), "out")
            if not tape.held("rank", "grad"):
                tape.hold("rank", "grad", sizes.shard)
            if split:
                tape.hold((*key, layer), "d input", sizes.shard + block.given)
            self.reduce(stage, name, is_last=is_last)
        if stage.has_embedding:
            self.gather(stage, "embedding", forward=False)
            self._embedding_backward(stage)
            self.reduce(stage, "embedding", is_last=is_last)
        self.tape.drop("rank", "grad")
        if split:
            self.tape.drop(key, "softmax", "logits")
        else:
            self.tape.clear(key)
        if not self.pipelined or is_last:
            tape.drop("buffer reduced", *tape.names("buffer reduced"))
        tape.drop("sum", *tape.names("sum"))
        tape.drop("buffer", *tape.names("buffer"))

    def _embedding_backward(self, stage: Stage) -> None:
        """A tensor group makes the gradient of all words on every rank, then takes its share."""
        tape, cut = self.tape, _HALF * stage.units["embedding"].parameters
        if stage.sizes.cut.tensor > 1:
            tape.hold("rank", "of all words", stage.sizes.cut.tensor * cut)
        tape.hold("rank", "gradients", cut)
        tape.drop("rank", "of all words")
        if stage.is_tied:  # the sum with the head's is a new tensor
            tape.passing(cut)
            tape.drop("rank", "gradients")

    def _loss_backward(self, stage: Stage, tape: AnyTape, key: object) -> None:
        """The gradient of the logits, in float32 and then in 16 bit."""
        logits = _HALF * stage.logits
        if self.run.fused_cross_entropy:
            tape.hold(key, "d logits", logits)
            tape.drop(key, "logits")
            return
        tape.hold(key, "d softmax", 2 * logits)
        if stage.sizes.cut.tensor > 1:  # added to the exponentials, then scaled, each a new tensor
            tape.passing(4 * logits)
        tape.hold(key, "d float", 2 * logits)
        tape.drop(key, "d softmax", "softmax")
        tape.hold(key, "d logits", logits)
        tape.drop(key, "d float")

    def _head_backward(self, stage: Stage, tape: AnyTape, key: object) -> None:
        sizes = stage.sizes
        tape.hold(key, "d normed", sizes.whole)
        gradients = "head's" if stage.is_tied else "gradients"
        tape.hold("rank", gradients, _HALF * stage.units[stage.last_unit].parameters)
        tape.drop(key, "d logits", "normed whole", "normed")
        if sizes.cut.tensor > 1:
            tape.passing(sizes.shard)
        tape.hold("rank", "grad", sizes.shard)
        tape.drop(key, "d normed")

    def step(self, actions: Sequence[tuple[int, int, int]]) -> None:
        """Run the actions (kind, stage, microbatch), then drop the gradients."""
        by_index = {stage.index: stage for stage in self.stages}
        left = Counter(s for kind, s, _ in actions if kind in _MAKES_GRADIENTS)
        for kind, index, microbatch in actions:
            stage = by_index[index]
            left[index] -= kind in _MAKES_GRADIENTS
            is_last = not self.pipelined or not left[index]
            if kind == ActionKind.F:
                self.forward(stage, microbatch)
            elif kind == ActionKind.B or (kind == ActionKind.W and stage.has_embedding):
                self.backward(stage, microbatch, is_last=is_last)  # no input that has a gradient
            elif kind == ActionKind.I and not stage.has_embedding:
                self.backward(stage, microbatch, is_last=False, split=True)
            elif kind == ActionKind.W:
                self.weights(stage, microbatch, is_last=is_last)
        self.tape.clear("gradients")
        self.reduced.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPeak:
    """The most that tensors of a rank hold at once, and what the caching allocator takes for it."""

    allocated_bytes: float
    reserved_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One virtual stage: what it holds and how wide it is. `logits` are numbers on this device."""

    index: int
    blocks: tuple[tuple[int, Block], ...]
    units: dict[str, Unit]
    sizes: Sizes
    logits: float
    positions: float
    has_embedding: bool
    has_head: bool
    is_tied: bool

    @property
    def last_unit(self) -> str:
        """The unit of norm and head."""
        return "embedding" if self.is_tied else "head"


_SHARDS_STATES, _SHARDS_WEIGHTS = 1, 3
_MAKES_GRADIENTS: Final = (ActionKind.B, ActionKind.W)
_PRODUCTS: Final = 4  # large tensors of a unit, counted as alike


@lru_cache(maxsize=64)  # whether it fits, its figures and what is compared ask for the same runs
def fsdp2_peaks(model: TransformerConfig, run: Configuration) -> tuple[TensorPeak, ...]:
    """The most that tensors hold on every pipeline rank, in the second of two steps alike.

    `run` is in bf16, in the orders of its family at equal times. Costs about a millisecond for
    every hundred blocks and microbatches.
    """
    return peaks_under(model, run, even_schedule(run, pipeline.peak_shape(shape_of(run))))


def peaks_under(
    model: TransformerConfig, run: Configuration, schedule: Schedule
) -> tuple[TensorPeak, ...]:
    """The same in the orders of a `schedule` with as many ranks and stages."""
    run = replace(run, parallelism=run.parallelism.as_launched)
    stages = _stages(model, run)
    peaks = []
    for rank in range(schedule.num_ranks):
        own = [stages[i] for i in schedule.placement.stages_of_rank[rank]]
        actions = [
            (int(kind), int(stage), int(microbatch))
            for kind, stage, microbatch in schedule.actions[schedule.rows_of(rank)][:, :3]
        ]
        state = Rank(model, run, own)
        state.step(actions)
        state.step(actions)  # the first leaves the segments as later steps find them
        tape = state.tape
        peaks.append(TensorPeak(allocated_bytes=tape.peak, reserved_bytes=tape.reserved))
    return tuple(peaks)


def sharing_replicas(degrees: Parallelism) -> int:
    """Replicas that share one copy of the state: one under ZeRO 0."""
    return 1 if degrees.zero_stage == 0 else degrees.data // degrees.state_copies


def frees_weights(degrees: Parallelism) -> bool:
    """Whether 16-bit weights of a unit are freed after its forward pass, and made again."""
    alone = degrees.zero_stage == 0 and degrees.pipeline == 1
    return alone or degrees.zero_stage == _SHARDS_WEIGHTS


def even_schedule(run: Configuration, shape: pipeline.PipelineShape | None = None) -> Schedule:
    """The orders of a run, or of another `shape` of it, were all actions equally long."""
    shape = shape_of(run) if shape is None else shape
    ones = np.ones(len(pipeline.placement_of(shape).rank_of_stage))
    times = pipeline.PipelineTimes(
        forward_s=ones,
        input_grad_s=ones,
        weight_grad_s=ones,
        transfer_s=np.zeros(len(ones) - 1),
    )
    return pipeline.schedule_of(shape, times)


def _stages(model: TransformerConfig, run: Configuration) -> list[Stage]:
    degrees = run.parallelism
    counts = run.blocks_per_stage or even_blocks(model.num_layers, run.num_stages)
    shards = sharing_replicas(degrees) * degrees.context
    sizes = sizes_of(model, run)
    t, c = degrees.tensor, degrees.context
    found, first = [], 0
    h, norm = model.hidden_size, model.hidden_size * (1 + model.norm.has_bias)
    words = model.vocabulary_size * h / t
    embedding, head = words + model.max_positions * h, words + norm
    for index, count in enumerate(counts):
        is_first, is_last = index == 0, index == len(counts) - 1
        is_tied = model.tied_embeddings and is_first and is_last
        units: dict[str, Unit] = {}
        blocks = []
        if is_first:
            whole = embedding + norm * is_tied
            units["embedding"] = Unit(parameters=whole, sharded=whole / shards, ranks=shards)
        for layer in range(first, first + count):
            again = run.recompute_blocks is None or layer - first < run.recompute_blocks
            mode = run.recompute if again else Recompute.NONE
            block, dense, expert = _block(model, run, layer, sizes, mode)
            own = max(1, shards * t // degrees.expert if degrees.expert > 1 else shards)
            units[f"block {layer}"] = Unit(
                parameters=dense + expert, sharded=dense / shards + expert / own, ranks=shards
            )
            blocks.append((layer, block))
        if is_last and not is_tied:
            units["head"] = Unit(parameters=head, sharded=head / shards, ranks=shards)
        found.append(
            Stage(
                index=index,
                blocks=tuple(blocks),
                units=units,
                sizes=sizes,
                logits=run.tokens * model.vocabulary_size / t,
                positions=run.sequence_length / c,
                has_embedding=is_first,
                has_head=is_last,
                is_tied=is_tied,
            )
        )
        first += count
    return found


def _block(
    model: TransformerConfig, run: Configuration, layer: int, sizes: Sizes, mode: Recompute
) -> tuple[Block, float, float]:
    """A block, its dense and its expert parameters on a tensor rank."""
    degrees, h, t = run.parallelism, model.hidden_size, run.parallelism.tensor
    queries, keys = h * model.query_size / t, 2 * h * model.key_value_size / t
    if model.query_key_value_bias:
        queries, keys = queries + model.query_size / t, keys + 2 * model.key_value_size / t
    out = model.query_size * h / t + h * model.attention_output_bias
    norms = 2 * h * (1 + model.norm.has_bias) + (2 * model.head_size * model.query_key_norm)
    dense, expert = queries + keys + out + norms, 0.0
    experts = model.experts if model.experts is not None and model.experts.at(layer) else None
    if experts is None:
        bias = model.mlp_bias
        first = (1 + model.gated) * (h + bias) * model.ffn_size / t
        last = model.ffn_size * h / t + h * bias
        dense += first + last
    else:
        own = experts.num_experts / degrees.expert / degrees.expert_shards
        first, last = 2 * h * experts.ffn_size * own, h * experts.ffn_size * own
        expert = first + last
        dense += 3 * h * experts.shared_ffn_size / t + h * experts.num_experts
    block = Block(
        sizes=sizes,
        mixed=None if experts is None else mixed_of(model, experts, run),
        cached=cached_products(model, experts),
        rotary=model.rotary,
        gated=model.gated,
        has_head_norms=model.query_key_norm,
        attention_gradients=_HALF * (queries + keys),
        output_gradient=_HALF * out,
        first_gradients=_HALF * first,
        last_gradient=_HALF * last,
        mode=mode,
    )
    return block, dense, expert
