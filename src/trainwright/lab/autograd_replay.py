"""A replay with real autograd: every action of every rank, on small stages, in one process.

Nothing of PyTorch's pipeline runtime is involved: an input gradient is `autograd.grad` of a stage's
input, a weight gradient that of its parameters, so that what is compared is the order alone. After
every action the bytes that autograd keeps for a rank are compared with what its order predicts from
one microbatch run by itself.

The worker also runs what PyTorch's runtime has no actions for; over gloo, `gloo_steps` gives it
one rank. Copies move what autograd has saved: between D and L a backward cannot have it. Slices of
a sequence attend to keys and values of earlier ones, whose gradients are there once all later ones
are done. A head that is cut over all ranks is cut along its vocabulary: with z the logits of a
rank's part, V finds max z and the sum of exp(z - max), T the part of softmax(z) - target. With one
barrier V also finds that part's product with the weights, which only has to be scaled. Of a model
that is there twice, each copy has its own microbatches; the gradients are averaged at the end.
"""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.nn.functional import cross_entropy, gelu
from torch.utils.checkpoint import checkpoint

from trainwright.documents.verification import KeptBytes
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.lab import token_replay
from trainwright.plans.lowered import HEAD_EXCHANGES, LoweredAction, LoweredKind, LoweredSchedule
from trainwright.plans.schedule import ACTIVATIONS_OF, ActionKind

# A causal transformer small enough for any CPU, cut into the stages of a plan
# ----------------------------------------------------------------------------
# Width 32, 4 heads, vocabulary 64, sequences of 16 tokens. Embedding, blocks and head are where the
# plan puts them, recomputed layers are checkpointed. Weights depend on a layer's place in the model
# alone, so whoever builds a stage gets the same.

WIDTH, HEADS, VOCABULARY, SEQUENCE = 32, 4, 64, 16
MICROBATCH_SIZE = 2
LEARNING_RATE = 0.1


class Embedding(nn.Module):
    """Tokens and positions to vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.randn(SEQUENCE, WIDTH) * 0.1)

    def forward(self, tokens: Any, start: int = 0) -> Any:
        """[batch, sequence] of whole numbers, from place `start` on, to vectors of WIDTH."""
        return self.tokens(tokens) + self.positions[start : start + tokens.shape[1]]


class Block(nn.Module):
    """Attention and a feed-forward part, each after its norm and beside a shortcut."""

    def __init__(self, *, selective: bool) -> None:
        super().__init__()
        self.selective = selective
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.expand, self.contract = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Any, earlier: Any = None) -> Any:
        """Same shape as x. Given keys and values of the tokens before, also those of x."""
        q, own = self.qkv(self.before_attention(x)).split((WIDTH, 2 * WIDTH), dim=-1)
        k, v = (own if earlier is None else torch.cat((earlier, own), 1)).chunk(2, dim=-1)
        x = x + self.out(self._perhaps_again(_attention, q, k, v))
        y = x + self.contract(self._perhaps_again(gelu, self.expand(self.before_mlp(x))))
        return y if earlier is None else (y, own)

    def _perhaps_again(self, part: Any, *inputs: Any) -> Any:
        return checkpoint(part, *inputs, use_reentrant=False) if self.selective else part(*inputs)


class Gain(nn.Module):
    """One number that everything is multiplied by."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Any) -> Any:
        """Same shape as x."""
        return x * self.factor


class RunAgain(nn.Module):
    """A layer that keeps its input alone, and computes the rest once more for its backward."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *inputs: Any) -> Any:
        """As the layer does."""
        return checkpoint(self.layer, *inputs, use_reentrant=False)


class OnHost(nn.Module):
    """A layer of which what it keeps for its backward is copied away, and back for that."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *inputs: Any) -> Any:
        """As the layer does."""
        with save_on_cpu():
            return self.layer(*inputs)


class TinyStage(nn.Sequential):
    """The layers of a stage."""

    def run_slice(self, x: Any, start: int, earlier: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Tokens from `start` on, given keys and values of those before by block; and their own."""
        own: list[Any] = []
        for layer in self:
            kind = layer.layer if isinstance(layer, (RunAgain, OnHost)) else layer
            if isinstance(kind, Block):
                x, kept = layer(x, earlier[len(own)])
                own.append(kept)
            else:
                x = layer(x, start) if isinstance(kind, Embedding) else layer(x)
        return x, own


def _attention(q: Any, k: Any, v: Any) -> Any:
    batch, sequence, width = q.shape
    seen = k.shape[1]  # the tokens of q are the last of them
    q, k, v = (each.reshape(batch, each.shape[1], HEADS, -1).transpose(1, 2) for each in (q, k, v))
    scores = q @ k.transpose(-1, -2) * (width // HEADS) ** -0.5
    ones = torch.ones(sequence, seen, dtype=torch.bool)
    hidden = torch.triu(ones, diagonal=1 + seen - sequence)
    mixed = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
    return mixed.transpose(1, 2).reshape(batch, sequence, width)


def _layer(name: str) -> nn.Module:
    kind, _, again = name.partition(":")
    made: dict[str, Any] = {
        token_replay.EMBEDDING: Embedding,
        token_replay.BLOCK: lambda: Block(selective=again == "selective"),
        token_replay.NORM: lambda: nn.LayerNorm(WIDTH),
        # Without a bias, or its output is a view, and PyTorch's last stage then keeps its graph to
        # the end of the step under a split backward (`backward_one_chunk`, torch 2.13).
        token_replay.HEAD: lambda: nn.Linear(WIDTH, VOCABULARY, bias=False),
        token_replay.GAIN: Gain,
    }
    layer: nn.Module = made[kind]()
    wrappers = {"full": RunAgain, "offload": OnHost}
    return wrappers[again](layer) if again in wrappers else layer


def build_stage(stages: Sequence[token_replay.Stage], stage: int) -> Any:
    """One stage of the model; the same weights whoever builds it."""
    first = sum(map(len, stages[:stage]))
    layers = []
    for number, name in enumerate(stages[stage], start=first):
        torch.manual_seed(number)
        layers.append(_layer(name))
    return TinyStage(*layers)


def example_tensors(stages: Sequence[token_replay.Stage]) -> tuple[Any, ...]:
    """What enters each stage, and last what leaves the last: one microbatch, for its shape."""
    hidden = torch.zeros(MICROBATCH_SIZE, SEQUENCE, WIDTH, requires_grad=True)
    logits = torch.zeros(MICROBATCH_SIZE, SEQUENCE, VOCABULARY, requires_grad=True)
    found: list[Any] = [torch.zeros(MICROBATCH_SIZE, SEQUENCE, dtype=torch.long)]
    has_head = False
    for stage in stages:
        has_head |= any(token_replay.kind_of(name) == token_replay.HEAD for name in stage)
        found.append(logits if has_head else hidden)
    return tuple(found)


def build_batch(step: int, num_microbatches: int, *, replica: int = 0) -> tuple[Any, Any]:
    """Tokens and the tokens to predict, of one replica's share of a step."""
    generator = torch.Generator().manual_seed(1000 * (replica + 1) + step)
    shape = (num_microbatches * MICROBATCH_SIZE, SEQUENCE)
    tokens, wanted = (torch.randint(VOCABULARY, shape, generator=generator) for _ in range(2))
    return tokens, wanted


def mean_loss(logits: Any, wanted: Any) -> Any:
    """Cross entropy, mean over all tokens."""
    return cross_entropy(logits.flatten(0, 1), wanted.flatten())


def run_unpartitioned(stages: Sequence[Any], step: int, counts: Sequence[int]) -> float:
    """Leave the gradients of the mean loss over the microbatches of all replicas; that loss.

    `counts` are microbatches by replica.
    """
    total, parts = 0.0, sum(counts)
    for tokens, wanted in _microbatches(step, counts):
        x = tokens
        for module in stages:
            x = module(x)
        loss = mean_loss(x, wanted)
        (loss / parts).backward()
        total += loss.item()
    return total / parts


def _microbatches(step: int, counts: Sequence[int]) -> Iterator[tuple[Any, Any]]:
    for replica, count in enumerate(counts):
        tokens, wanted = build_batch(step, count, replica=replica)
        yield from zip(tokens.chunk(count), wanted.chunk(count), strict=True)


def descend(stages: Sequence[Any]) -> None:
    """One step of gradient descent; gradients are gone afterwards."""
    for module in stages:
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.data.sub_(LEARNING_RATE * parameter.grad)
            parameter.grad = None


# How many bytes autograd keeps for backwards, counted where it saves them
# ------------------------------------------------------------------------
# PyTorch hands every tensor it saves to a hook, and drops what the hook returned when the backward
# has used it. Floating-point tensors that are no parameters count once per microbatch and stage,
# whoever saves them again.


class _Kept:
    """What autograd holds in place of a tensor."""

    __slots__ = ("__weakref__", "on_host", "tensor")

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        self.on_host: Any = None


class KeptTensors:
    """Counts bytes by owner, which whoever runs an action sets before it: stage and microbatch."""

    def __init__(self, parameters: Iterable[Any]) -> None:
        self.owner: Hashable = None
        self._parameters = {parameter.untyped_storage().data_ptr() for parameter in parameters}
        self._holders: Counter[tuple[Hashable, int]] = Counter()
        self._bytes: Counter[Hashable] = Counter()
        self._of_owner: dict[Hashable, weakref.WeakSet[_Kept]] = {}
        self._away: dict[Hashable, int] = {}

    def counting(self) -> Any:
        """A context in which forwards are counted."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def bytes_of(self, owners: Iterable[Hashable]) -> int:
        """Bytes now kept for these owners."""
        return sum(self._bytes[owner] for owner in owners)

    def total_bytes(self) -> int:
        """Bytes now kept for all."""
        return sum(self._bytes.values())

    def copy_out(self, owner: Hashable) -> None:
        """Copy what is kept for an owner to the host."""
        for kept in self._of_owner.get(owner, ()):
            kept.on_host = kept.tensor.clone()

    def drop(self, owner: Hashable) -> None:
        """Forget what was copied out: whoever needs it before it is back fails."""
        for kept in self._of_owner.get(owner, ()):
            kept.tensor = None
        self._away[owner] = self._bytes.pop(owner, 0)

    def bring_back(self, owner: Hashable) -> None:
        """Copy it from the host again."""
        for kept in self._of_owner.get(owner, ()):
            kept.tensor, kept.on_host = kept.on_host.clone(), None
        self._bytes[owner] += self._away.pop(owner)

    def _pack(self, tensor: Any) -> _Kept:
        # Detached, or what it was made from would stay as long as it is kept.
        kept, storage = _Kept(tensor.detach()), tensor.untyped_storage()
        if tensor.is_floating_point() and storage.data_ptr() not in self._parameters:
            key, size = (self.owner, storage.data_ptr()), storage.nbytes()
            self._of_owner.setdefault(self.owner, weakref.WeakSet()).add(kept)
            self._holders[key] += 1
            if self._holders[key] == 1:
                self._bytes[self.owner] += size
            weakref.finalize(kept, self._drop, key, size)
        return kept

    def _unpack(self, kept: _Kept) -> Any:
        if kept.tensor is None:
            raise InvalidInput.of("orders", "its activations are on the host")
        return kept.tensor

    def _drop(self, key: tuple[Hashable, int], size: int) -> None:
        self._holders[key] -= 1
        if not self._holders[key]:
            del self._holders[key]
            self._bytes[key[0]] -= size


# A replay with real autograd: every action of every rank, on small stages, in one process
# ----------------------------------------------------------------------------------------

_F, _I, _W, _B, _R, _O, _D, _L, _V, _T = list(LoweredKind)[: len(ActionKind)]
Key = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class AutogradReplay:
    """The gradient farthest beyond (or nearest to) its limit, the loss, and memory by rank."""

    error: float
    limit: float
    parameter: str
    loss_error: float
    num_actions: int
    ranks: tuple[KeptBytes, ...]
    kept_without_recompute_bytes: float
    kept_bytes: float
    torch_version: str


def replay_autograd(
    lowered: LoweredSchedule, stages: Sequence[token_replay.Stage]
) -> AutogradReplay:
    """Replay one step and compare with the unpartitioned model; raises InvalidInput as `replay`.

    `stages` are of one copy of the model. `kept_bytes` is what one microbatch keeps in all stages,
    beside what it would keep without recomputation. Raises UnsupportedFeature where a sequence is
    cut into more slices than the small model has tokens.
    """
    with _left_as_found():
        return _replayed(lowered, stages)


@contextmanager
def _left_as_found() -> Iterator[None]:
    """One thread, and random numbers of our own: the caller's process may use PyTorch itself."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)


def _replayed(lowered: LoweredSchedule, stages: Sequence[token_replay.Stage]) -> AutogradReplay:
    copies, count = lowered.placement.num_pipelines, lowered.num_microbatches // lowered.num_slices
    model = CutModel.of(lowered, stages, range(lowered.num_ranks))
    worker = AutogradWorker(lowered, model)
    with worker.kept.counting():
        token_replay.replay(lowered, worker)
    for parameters in zip(*(model.parameters_of(copy) for copy in range(copies)), strict=True):
        mean = sum(parameter.grad for parameter in parameters) / copies
        for parameter in parameters:
            parameter.grad = mean
    whole = [build_stage(stages, stage) for stage in range(len(stages))]
    expected_loss = run_unpartitioned(whole, 0, (count,) * copies)
    loss = math.fsum(worker.losses) / (count * copies)
    error, limit, parameter = model.worst_gradient(whole)
    plain = [tuple(name.partition(":")[0] for name in stage) for stage in stages]
    return AutogradReplay(
        error=error,
        limit=limit,
        parameter=parameter,
        loss_error=abs(loss - expected_loss),
        num_actions=worker.num_actions,
        ranks=worker.rank_bytes(),
        kept_without_recompute_bytes=float(sum(kept_by_stage(plain))),
        kept_bytes=float(sum(kept_by_stage(stages))),
        torch_version=torch.__version__,
    )


def worst_gradient(own: dict[int, Any], whole: Sequence[Any]) -> tuple[float, float, str]:
    """Error, limit and name of the gradient nearest to its limit; a missing one counts as zeros."""
    found = [each for stage, module in own.items() for each in _compared(stage, module, whole)]
    return max(found, key=lambda entry: entry[0] / entry[1])


def _compared(stage: int, module: Any, whole: Sequence[Any]) -> Iterator[tuple[float, float, str]]:
    expected = dict(whole[stage].named_parameters())
    for name, parameter in module.named_parameters():
        yield _error(parameter.grad, expected[name].grad, f"stage {stage} {name}")


def _error(gradient: Any, reference: Any, name: str) -> tuple[float, float, str]:
    found = reference * 0 if gradient is None else gradient
    error = (found - reference).abs().nan_to_num(nan=math.inf).max().item()
    return error, token_replay.gradient_limit(reference.abs().max().item()), name


def kept_by_stage(stages: Sequence[token_replay.Stage]) -> list[int]:
    """Bytes that the forward of one microbatch keeps in each stage, run by itself."""
    last = len(stages) - 1
    return [
        _kept_alone(build_stage(stages, stage), example, num_slices=1, has_loss=stage == last)[0]
        for stage, example in enumerate(example_tensors(stages)[:-1])
    ]


def _kept_alone(module: Any, example: Any, *, num_slices: int, has_loss: bool) -> list[int]:
    """Bytes that the forward of each slice of one microbatch keeps in a stage, run by itself."""
    kept, earlier, alive = KeptTensors(module.parameters()), _Earlier(module), []
    parts = example.detach().tensor_split(num_slices, 1)
    with kept.counting():
        for number, (start, _) in enumerate(_bounds(num_slices)):
            x = parts[number].clone().requires_grad_(example.is_floating_point())
            kept.owner = number
            if num_slices == 1:
                y, keys = module(x), []
            else:
                y, keys = module.run_slice(x, start, earlier.leaves())
                earlier.extend(keys)
            if has_loss:
                y = _share_of_loss(y, torch.zeros(y.shape[:2], dtype=torch.long))
            alive += [y, *keys]
    return [kept.bytes_of([number]) for number in range(num_slices)]


def _share_of_loss(logits: Any, wanted: Any) -> Any:
    """What some tokens of a microbatch add to its mean loss."""
    count = MICROBATCH_SIZE * SEQUENCE
    if wanted.numel() == count:
        return mean_loss(logits, wanted)
    return cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum") / count


def _bounds(num_slices: int) -> list[tuple[int, int]]:
    """Where each slice of a sequence begins and ends, as `tensor_split` cuts."""
    cuts = [len(part) for part in torch.arange(SEQUENCE).tensor_split(num_slices)]
    return [(sum(cuts[:at]), sum(cuts[: at + 1])) for at in range(num_slices)]


# The small model as a pipeline holds it: stages, copies of them, and a head cut over all ranks
# ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CutModel:
    """What some ranks hold: `modules` by virtual stage, `heads` by rank where the head is cut.

    `stages` are those of one copy; the head is none of their layers where it is cut, and `heads`
    has the rows of each rank's part of its weights.
    """

    stages: tuple[token_replay.Stage, ...]
    modules: dict[int, Any]
    heads: dict[int, tuple[int, Any]]

    @classmethod
    def of(
        cls, lowered: LoweredSchedule, stages: Sequence[token_replay.Stage], ranks: Iterable[int]
    ) -> CutModel:
        """Build what `ranks` hold of it."""
        if lowered.num_slices > SEQUENCE:
            raise UnsupportedFeature(
                f"the small model has {SEQUENCE} tokens, got {lowered.num_slices} slices of them",
                alternative=f"check the same family with at most {SEQUENCE} slices",
            )
        held, chosen = len(stages), set(ranks)
        modules = {
            stage: build_stage(stages, stage % held)
            for stage, rank in enumerate(lowered.placement.rank_of_stage)
            if rank in chosen
        }
        heads: dict[int, tuple[int, Any]] = {}
        kept = tuple(stages)
        if lowered.head_barriers:
            kept = (
                *kept[:-1],
                tuple(name for name in kept[-1] if token_replay.kind_of(name) != token_replay.HEAD),
            )
            weight = _head_weight(build_stage(stages, held - 1), stages)
            first = 0
            for rank, rows in enumerate(weight.tensor_split(lowered.num_ranks)):
                if rank in chosen:
                    heads[rank] = first, nn.Parameter(rows.detach().clone())
                first += len(rows)
            if held - 1 in modules:
                layers = zip(modules[held - 1], stages[-1], strict=True)
                modules[held - 1] = TinyStage(
                    *(
                        layer
                        for layer, name in layers
                        if token_replay.kind_of(name) != token_replay.HEAD
                    )
                )
        return cls(stages=kept, modules=modules, heads=heads)

    def parameters_of(self, copy: int) -> list[Any]:
        """Of one copy, in order of its stages."""
        first = copy * len(self.stages)
        own = [self.modules[s] for s in sorted(self.modules) if 0 <= s - first < len(self.stages)]
        return [parameter for module in own for parameter in module.parameters()]

    def parameters(self) -> list[Any]:
        """All that is held."""
        modules = [each for module in self.modules.values() for each in module.parameters()]
        return [*modules, *(part for _, part in self.heads.values())]

    def worst_gradient(self, whole: Sequence[Any]) -> tuple[float, float, str]:
        """As `worst_gradient`, parts of a cut head included; `whole` is the model in one piece."""
        found: list[tuple[float, float, str]] = []
        for stage, module in self.modules.items():
            found += _compared(stage % len(self.stages), module, whole)
        if self.heads:
            reference = next(p for p in reversed(list(whole[-1].parameters())) if p.ndim == 2).grad
            for rank, (first, part) in self.heads.items():
                rows = reference[first : first + len(part)]
                found.append(_error(part.grad, rows, f"rank {rank} head"))
        return max(found, key=lambda entry: entry[0] / entry[1])


def _head_weight(stage: Any, layers: Sequence[token_replay.Stage]) -> Any:
    at = next(
        n for n, name in enumerate(layers[-1]) if token_replay.kind_of(name) == token_replay.HEAD
    )
    head = stage[at].layer if isinstance(stage[at], RunAgain) else stage[at]
    return head.weight


def message_shape(lowered: LoweredSchedule, step: LoweredAction) -> tuple[int, ...]:
    """Of what a RECV or a GET brings from one rank."""
    start, end = _bounds(lowered.num_slices)[step.microbatch % lowered.num_slices]
    if step.kind is not LoweredKind.GET_V:
        return (MICROBATCH_SIZE, end - start, WIDTH)
    products = 2 * WIDTH if lowered.head_barriers == 1 else 0
    return (MICROBATCH_SIZE * SEQUENCE * (3 + products),)


class _Graph(NamedTuple):
    """What a forward leaves: leaves that need gradients, results, and later their gradients."""

    leaves: list[Any]
    results: list[Any]
    given: list[Any]


class _Earlier:
    """Keys and values of one microbatch in one stage, and the gradients that later slices give."""

    def __init__(self, module: Any) -> None:
        layers = [layer.layer if isinstance(layer, RunAgain) else layer for layer in module]
        self._blocks: list[list[Any]] = [[] for each in layers if isinstance(each, Block)]
        self._grads: dict[int, list[Any]] = {}

    def leaves(self) -> list[Any]:
        """By block, of all slices so far; without a graph."""
        none = torch.zeros(MICROBATCH_SIZE, 0, 2 * WIDTH)
        return [torch.cat([none, *own], 1).requires_grad_() for own in self._blocks]

    def extend(self, keys: Sequence[Any]) -> None:
        """Those of the next slice."""
        for own, each in zip(self._blocks, keys, strict=True):
            own.append(each.detach())

    def add_gradients(self, gradients: Sequence[Any]) -> None:
        """What one slice gives to all before it, by block."""
        for block, gradient in enumerate(gradients):
            parts = self._grads.setdefault(
                block, [torch.zeros_like(x) for x in self._blocks[block]]
            )
            start = 0
            for part in parts:
                length = min(part.shape[1], gradient.shape[1] - start)
                if length > 0:
                    part += gradient[:, start : start + length]
                    start += length

    def gradients(self, number: int) -> list[Any]:
        """Of the keys and values of one slice, by block; zeros where it was the last."""
        return [
            self._grads[block][number] if block in self._grads else torch.zeros_like(own[number])
            for block, own in enumerate(self._blocks)
        ]


class AutogradWorker:
    """The stages of some ranks; F keeps a graph, I and W (or B) use it up.

    Microbatches are those of `build_batch(step)`; what copy c of the model in replica r trains on
    is there the share of replica r·copies + c.
    """

    def __init__(
        self, lowered: LoweredSchedule, model: CutModel, *, step: int = 0, replica: int = 0
    ) -> None:
        self.lowered, self.model = lowered, model
        self.kept = KeptTensors(model.parameters())
        self._edge = [False, *lowered.placement.has_edge.tolist(), False]
        rows = lowered.actions.tolist()
        self._again = {(stage, microbatch) for kind, stage, microbatch in rows if kind == _R}
        count, shapes = len(model.stages), example_tensors(model.stages)
        self._alone = {
            stage: _kept_alone(
                module,
                shapes[stage % count],
                num_slices=lowered.num_slices,
                has_loss=self._has_loss(stage),
            )
            for stage, module in model.modules.items()
        }
        self.inputs: dict[Key, Any] = {}
        self.wanted: dict[Key, Any] = {}  # by last stage and microbatch or slice
        for copy in range(lowered.placement.num_pipelines):
            data = replica * lowered.placement.num_pipelines + copy
            self._lay_ready(copy * count, build_batch(step, self._num_whole, replica=data))
        self.outputs: dict[Key, Any] = {}
        self.grads_in: dict[Key, Any] = {}
        self.grads_out: dict[Key, Any] = {}
        self.graphs: dict[Key, _Graph] = {}
        self._earlier: dict[Key, _Earlier] = {}
        self.losses: list[float] = []
        self.num_actions = 0
        self._hidden: dict[Key, Any] = {}  # of a cut head, by rank and microbatch
        self._parts: dict[Key, Any] = {}
        self._softmax: dict[Key, tuple[Any, Any]] = {}
        ranks = range(lowered.num_ranks)
        self._predicted = [0.0 for _ in ranks]
        self._most = [[0.0, 0.0, 0.0, 0] for _ in ranks]
        self._owned: list[set[Key]] = [set() for _ in ranks]

    @property
    def _num_whole(self) -> int:
        return self.lowered.num_microbatches // self.lowered.num_slices

    def _has_loss(self, stage: int) -> bool:
        ends = (stage + 1) % len(self.model.stages) == 0
        return ends and not self.lowered.head_barriers

    def _lay_ready(self, first: int, batch: tuple[Any, Any]) -> None:
        """Tokens for the first stage of a copy, what they should become for its last."""
        last = first + len(self.model.stages) - 1
        for held, stage, whole in zip(
            (self.inputs, self.wanted), (first, last), batch, strict=True
        ):
            units = [
                part
                for microbatch in whole.chunk(self._num_whole)
                for part in microbatch.tensor_split(self.lowered.num_slices, 1)
            ]
            held.update({(stage, number): unit for number, unit in enumerate(units)})

    def compute(self, step: LoweredAction) -> None:
        """Run it, then compare what its rank keeps."""
        key = (step.stage, step.microbatch)
        self.kept.owner = key
        if step.kind is _F:
            self._forward(key)
        elif step.kind is _R:
            self._again.discard(key)
            self._forward(key, hand_over=False)
        elif step.kind in (_I, _B):
            self._backward(key, fused=step.kind is _B)
        elif step.kind is _W:
            self._weights(key)
        elif step.kind is _V:
            self._head_forward(key)
        elif step.kind is _T:
            self._head_backward(key)
        else:
            {_O: self.kept.copy_out, _D: self.kept.drop, _L: self.kept.bring_back}[step.kind](key)
        self.num_actions += 1
        self._compare(step, key)

    def send(self, step: LoweredAction) -> Any:
        """A tensor without its graph."""
        if step.kind in HEAD_EXCHANGES:
            held = self._hidden if step.kind is LoweredKind.SHARE_F else self._parts
            key = (self._rank_of(step.stage), step.microbatch)
            if key not in held:
                raise InvalidInput.of("orders", f"{step} has nothing to give")
            return held[key]
        held = self.outputs if step.kind is LoweredKind.SEND_F else self.grads_out
        return _taken(held, (step.stage, step.microbatch), f"{step} has nothing to send")

    def receive(self, step: LoweredAction, message: Any) -> None:
        """Lay it ready."""
        key = (self._rank_of(step.stage), step.microbatch)
        if step.kind is LoweredKind.GET_F:
            self._hidden[key] = message[0]
        elif step.kind is LoweredKind.GET_V:
            self._agree(key, message)
        elif step.kind is LoweredKind.GET_T:
            self._give_gradient(step.microbatch, sum(message))
        else:
            held = self.inputs if step.kind is LoweredKind.RECV_F else self.grads_in
            held[step.stage, step.microbatch] = message

    def reduce(self, stage: int) -> None:
        """Divide by the microbatches, as a runtime does at this point."""
        parameters = list(self.model.modules[stage].parameters())
        rank = self._rank_of(stage)
        if rank in self.model.heads and stage == self.lowered.placement.stages_of_rank[rank][0]:
            parameters.append(self.model.heads[rank][1])
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad /= self._num_whole

    def _rank_of(self, stage: int) -> int:
        return self.lowered.placement.rank_of_stage[stage]

    def _forward(self, key: Key, *, hand_over: bool = True) -> None:
        stage, unit = key
        if key in self._again:  # dropped at once, its input kept for R
            with torch.no_grad():
                x = _taken(self.inputs, key, _NO_INPUT)
                y = self._run(key, x)[1]
                if self._edge[stage + 1]:
                    self._hand_over(self.outputs, self.inputs, key, 1, y)
                self.inputs[key] = x
            return
        x = _taken(self.inputs, key, _NO_INPUT).detach()
        x.requires_grad_(x.is_floating_point())
        leaves, y, keys = self._run(key, x)
        if self._edge[stage]:
            leaves.insert(0, x)
        if self._has_loss(stage):
            y = _share_of_loss(y, self.wanted[key])
            self.losses.append(y.item())
        elif self._edge[stage + 1] and hand_over:
            self._hand_over(self.outputs, self.inputs, key, 1, y.detach())
        elif not self._edge[stage + 1]:
            self._hidden[self._rank_of(stage), unit] = y.detach()
        self.graphs[key] = _Graph(leaves, [y, *keys], [])

    def _run(self, key: Key, x: Any) -> tuple[list[Any], Any, list[Any]]:
        """Leaves beside x, the result, and the keys and values of a slice."""
        (stage, unit), q = key, self.lowered.num_slices
        module = self.model.modules[stage]
        if q == 1:
            y = module(x)
            return [], y.view_as(y) if y is x else y, []
        microbatch, number = divmod(unit, q)
        earlier = self._earlier.setdefault((stage, microbatch), _Earlier(module))
        leaves = earlier.leaves()
        y, keys = module.run_slice(x, _bounds(q)[number][0], leaves)
        earlier.extend(keys)
        return leaves, y, keys

    def _backward(self, key: Key, *, fused: bool) -> None:
        (stage, unit), q = key, self.lowered.num_slices
        graph = _taken(self.graphs, key, "its forward has not run")
        given = [None]
        if not self._has_loss(stage):
            given = [_taken(self.grads_in, key, "the gradient is not there")]
        earlier = self._earlier.get((stage, unit // q))
        if earlier is not None:
            given += earlier.gradients(unit % q)
        if graph.leaves:
            gradients = list(
                torch.autograd.grad(graph.results, graph.leaves, given, retain_graph=True)
            )
            if self._edge[stage]:
                self._hand_over(self.grads_out, self.grads_in, key, -1, gradients.pop(0))
            if earlier is not None:
                earlier.add_gradients(gradients)
        self.graphs[key] = graph._replace(given=given)
        del graph
        if fused:
            self._weights(key)

    def _weights(self, key: Key) -> None:
        graph = _taken(self.graphs, key, "its input gradient has not run")
        parameters = list(self.model.modules[key[0]].parameters())
        if parameters:
            for parameter, gradient in zip(
                parameters, torch.autograd.grad(graph.results, parameters, graph.given), strict=True
            ):
                _add_gradient(parameter, gradient)

    def _hand_over(
        self, outbox: dict[Key, Any], inbox: dict[Key, Any], key: Key, step: int, tensor: Any
    ) -> None:
        target = key[0] + step
        if self._rank_of(key[0]) == self._rank_of(target):
            inbox[target, key[1]] = tensor
        else:
            outbox[key] = tensor

    # A head that is cut over all ranks; `parts` are [3, batch, sequence] with the largest logit,
    # the sum of exponentials and the logit of the wanted token, then, with one barrier, what the
    # exponentials and the wanted token give as gradients.

    def _head_forward(self, key: Key) -> None:
        rank, microbatch = self._rank_of(key[0]), key[1]
        if (rank, microbatch) not in self._hidden:
            raise InvalidInput.of("orders", f"V of microbatch {microbatch}: {_NO_INPUT}")
        with torch.no_grad():
            weight = self.model.heads[rank][1]
            logits, is_wanted = self._logits(rank, microbatch)
            most = logits.amax(-1)
            powers = (logits - most[..., None]).exp()
            part = torch.stack([most, powers.sum(-1), (logits * is_wanted).sum(-1)])[..., None]
            if self.lowered.head_barriers == 1:
                products = torch.stack([powers @ weight, is_wanted @ weight])
                part = torch.cat([part.flatten(), products.flatten()])
            self._parts[rank, microbatch] = part.flatten()
        if self.lowered.num_ranks == 1:
            self._agree((rank, microbatch), [])

    def _logits(self, rank: int, microbatch: int) -> tuple[Any, Any]:
        """[batch, sequence, rows of the part], and 1 where the wanted token is."""
        first, weight = self.model.heads[rank]
        last = self.lowered.placement.num_stages - 1
        logits = self._hidden[rank, microbatch] @ weight.detach().T
        own = torch.arange(first, first + len(weight))
        return logits, (self.wanted[last, microbatch][..., None] == own).to(logits.dtype)

    def _agree(self, key: Key, others: Sequence[Any]) -> None:
        """The softmax over all parts, in the order of the ranks."""
        rank, microbatch = key
        parts = [*others[:rank], self._parts[key], *others[rank:]]
        shape = (MICROBATCH_SIZE, SEQUENCE)
        count = 3 * shape[0] * shape[1]
        with torch.no_grad():
            found = torch.stack([part[:count].view(3, *shape) for part in parts])
            most = found[:, 0].amax(0)
            scale = (found[:, 0] - most).exp()
            total = (found[:, 1] * scale).sum(0)
            self._softmax[key] = most, total
            if rank != self.lowered.placement.rank_of_stage[-1]:
                return
            loss = (total.log() + most - found[:, 2].sum(0)).mean()
            self.losses.append(loss.item())
            if self.lowered.head_barriers == 1:
                products = torch.stack([part[count:].view(2, *shape, WIDTH) for part in parts])
                mixed = (products[:, 0] * scale[..., None]).sum(0) / total[..., None]
                gradient = (mixed - products[:, 1].sum(0)) / (shape[0] * shape[1])
                self._give_gradient(microbatch, gradient)

    def _head_backward(self, key: Key) -> None:
        rank, microbatch = self._rank_of(key[0]), key[1]
        most, total = _taken(self._softmax, (rank, microbatch), "V of all ranks is not there")
        with torch.no_grad():
            logits, is_wanted = self._logits(rank, microbatch)
            softmax = (logits - most[..., None]).exp() / total[..., None]
            gradient = (softmax - is_wanted) / (MICROBATCH_SIZE * SEQUENCE)
            hidden = self._hidden.pop((rank, microbatch))
            weight = self.model.heads[rank][1]
            _add_gradient(weight, gradient.flatten(0, 1).T @ hidden.flatten(0, 1))
            if self.lowered.head_barriers == 1:
                return
            if rank == self.lowered.placement.rank_of_stage[-1]:
                self._give_gradient(microbatch, gradient @ weight)
            else:
                self._parts[rank, microbatch] = gradient @ weight

    def _give_gradient(self, microbatch: int, gradient: Any) -> None:
        """Of the last stage's output; with two barriers its own part and those of others."""
        key = (self.lowered.placement.num_stages - 1, microbatch)
        given = self.grads_in.get(key)
        self.grads_in[key] = gradient if given is None else given + gradient

    def _compare(self, step: LoweredAction, key: Key) -> None:
        rank = self._rank_of(step.stage)
        if step.kind in (_V, _T):
            return
        # Two calls of `autograd.grad` keep all until the second.
        kept = self._alone[step.stage][step.microbatch % self.lowered.num_slices]
        if step.kind is not _F or key not in self._again:
            sign = 1 if step.kind is _R else ACTIVATIONS_OF[step.kind]
            self._predicted[rank] += sign * kept
        self._owned[rank].add(key)
        found = float(self.kept.bytes_of(self._owned[rank]))
        if step.kind in (_W, _B):
            self._owned[rank].discard(key)
            found_after = self.kept.bytes_of([key])
            if found_after:
                raise InvalidInput.of("orders", f"{step} leaves {found_after} bytes behind")
        most = self._most[rank]
        most[0], most[1] = max(most[0], found), max(most[1], self._predicted[rank])
        most[2] = max(most[2], abs(found - self._predicted[rank]))
        most[3] += 1

    def rank_bytes(self) -> tuple[KeptBytes, ...]:
        """The comparison by rank."""
        return tuple(
            KeptBytes(
                rank=rank,
                peak_bytes=peak,
                predicted_peak_bytes=predicted,
                largest_difference_bytes=difference,
                num_actions=int(count),
            )
            for rank, (peak, predicted, difference, count) in enumerate(self._most)
        )


_NO_INPUT = "the input is not there"


def _add_gradient(parameter: Any, gradient: Any) -> None:
    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient


def _taken(held: dict[Key, Any], key: Key, problem: str) -> Any:
    if key not in held:
        raise InvalidInput.of("orders", f"stage {key[0]} microbatch {key[1]}: {problem}")
    return held.pop(key)
