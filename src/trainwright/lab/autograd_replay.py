"""A replay with real autograd: every action of every rank, on small stages, in one process.

Nothing of PyTorch's pipeline runtime is involved: an input gradient is `autograd.grad` of a stage's
input, a weight gradient that of its parameters, so that what is compared is the order alone. After
every action the bytes that autograd keeps for a rank are compared with what its order predicts from
one microbatch run by itself.
"""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu
from torch.utils.checkpoint import checkpoint

from trainwright.documents.verification import KeptBytes
from trainwright.errors import InvalidInput
from trainwright.lab.token_replay import (
    BLOCK,
    EMBEDDING,
    GAIN,
    HEAD,
    NORM,
    Stage,
    gradient_limit,
    kind_of,
    replay,
)
from trainwright.plans.lowered import LoweredKind

if TYPE_CHECKING:
    from trainwright.plans.lowered import LoweredAction, LoweredSchedule


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

    def forward(self, tokens: Any) -> Any:
        """[batch, sequence] of whole numbers to [batch, sequence, width]."""
        return self.tokens(tokens) + self.positions


class Block(nn.Module):
    """Attention and a feed-forward part, each after its norm and beside a shortcut."""

    def __init__(self, *, selective: bool) -> None:
        super().__init__()
        self.selective = selective
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.expand, self.contract = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        """Same shape as x."""
        q, k, v = self.qkv(self.before_attention(x)).chunk(3, dim=-1)
        x = x + self.out(self._perhaps_again(_attention, q, k, v))
        return x + self.contract(self._perhaps_again(gelu, self.expand(self.before_mlp(x))))

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

    def forward(self, x: Any) -> Any:
        """As the layer does."""
        return checkpoint(self.layer, x, use_reentrant=False)


def _attention(q: Any, k: Any, v: Any) -> Any:
    batch, sequence, width = q.shape
    q, k, v = (each.view(batch, sequence, HEADS, -1).transpose(1, 2) for each in (q, k, v))
    scores = q @ k.transpose(-1, -2) * (width // HEADS) ** -0.5
    hidden = torch.triu(torch.ones(sequence, sequence, dtype=torch.bool), diagonal=1)
    mixed = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
    return mixed.transpose(1, 2).reshape(batch, sequence, width)


def _layer(name: str) -> nn.Module:
    kind, _, again = name.partition(":")
    made: dict[str, Any] = {
        EMBEDDING: Embedding,
        BLOCK: lambda: Block(selective=again == "selective"),
        NORM: lambda: nn.LayerNorm(WIDTH),
        # Without a bias, or its output is a view, and PyTorch's last stage then keeps its graph to
        # the end of the step under a split backward (`backward_one_chunk`, torch 2.13).
        HEAD: lambda: nn.Linear(WIDTH, VOCABULARY, bias=False),
        GAIN: Gain,
    }
    layer: nn.Module = made[kind]()
    return RunAgain(layer) if again == "full" else layer


def build_stage(stages: Sequence[Stage], stage: int) -> Any:
    """One stage of the model; the same weights whoever builds it."""
    first = sum(map(len, stages[:stage]))
    layers = []
    for number, name in enumerate(stages[stage], start=first):
        torch.manual_seed(number)
        layers.append(_layer(name))
    return nn.Sequential(*layers)


def example_tensors(stages: Sequence[Stage]) -> tuple[Any, ...]:
    """What enters each stage, and last what leaves the last: one microbatch, for its shape."""
    hidden = torch.zeros(MICROBATCH_SIZE, SEQUENCE, WIDTH, requires_grad=True)
    logits = torch.zeros(MICROBATCH_SIZE, SEQUENCE, VOCABULARY, requires_grad=True)
    found: list[Any] = [torch.zeros(MICROBATCH_SIZE, SEQUENCE, dtype=torch.long)]
    has_head = False
    for stage in stages:
        has_head |= any(kind_of(name) == HEAD for name in stage)
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


def run_unpartitioned(
    stages: Sequence[Any], step: int, num_microbatches: int, *, num_replicas: int = 1
) -> float:
    """Leave the gradients of the mean loss over all replicas' batches; returns that loss."""
    total, parts = 0.0, num_microbatches * num_replicas
    for tokens, wanted in _microbatches(step, num_microbatches, num_replicas):
        x = tokens
        for module in stages:
            x = module(x)
        loss = mean_loss(x, wanted)
        (loss / parts).backward()
        total += loss.item()
    return total / parts


def _microbatches(step: int, count: int, num_replicas: int) -> Iterator[tuple[Any, Any]]:
    for replica in range(num_replicas):
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

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor


class KeptTensors:
    """Counts bytes by owner, which whoever runs an action sets before it: stage and microbatch."""

    def __init__(self, parameters: Iterable[Any]) -> None:
        self.owner: Hashable = None
        self._parameters = {parameter.untyped_storage().data_ptr() for parameter in parameters}
        self._holders: Counter[tuple[Hashable, int]] = Counter()
        self._bytes: Counter[Hashable] = Counter()

    def counting(self) -> Any:
        """A context in which forwards are counted."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def bytes_of(self, owners: Iterable[Hashable]) -> int:
        """Bytes now kept for these owners."""
        return sum(self._bytes[owner] for owner in owners)

    def total_bytes(self) -> int:
        """Bytes now kept for all."""
        return sum(self._bytes.values())

    def _pack(self, tensor: Any) -> _Kept:
        # Detached, or what it was made from would stay as long as it is kept.
        kept, storage = _Kept(tensor.detach()), tensor.untyped_storage()
        if tensor.is_floating_point() and storage.data_ptr() not in self._parameters:
            key, size = (self.owner, storage.data_ptr()), storage.nbytes()
            self._holders[key] += 1
            if self._holders[key] == 1:
                self._bytes[self.owner] += size
            weakref.finalize(kept, self._drop, key, size)
        return kept

    def _unpack(self, kept: _Kept) -> Any:
        return kept.tensor

    def _drop(self, key: tuple[Hashable, int], size: int) -> None:
        self._holders[key] -= 1
        if not self._holders[key]:
            del self._holders[key]
            self._bytes[key[0]] -= size


# A replay with real autograd: every action of every rank, on small stages, in one process
# ----------------------------------------------------------------------------------------

_F, _I, _W, _B = LoweredKind.F, LoweredKind.I, LoweredKind.W, LoweredKind.B
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


def replay_autograd(lowered: LoweredSchedule, stages: Sequence[Stage]) -> AutogradReplay:
    """Replay one step and compare with the unpartitioned model; raises InvalidInput as `replay`.

    `kept_bytes` is what one microbatch keeps in all stages, beside what it would keep without
    recomputation.
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


def _replayed(lowered: LoweredSchedule, stages: Sequence[Stage]) -> AutogradReplay:
    worker = _Autograd(lowered, stages)
    with worker.kept.counting():
        replay(lowered, worker)
    whole = [build_stage(stages, stage) for stage in range(len(stages))]
    expected_loss = run_unpartitioned(whole, 0, lowered.num_microbatches)
    loss = math.fsum(worker.losses) / lowered.num_microbatches
    error, limit, parameter = worst_gradient(dict(enumerate(worker.modules)), whole)
    plain = [tuple(name.partition(":")[0] for name in stage) for stage in stages]
    return AutogradReplay(
        error=error,
        limit=limit,
        parameter=parameter,
        loss_error=abs(loss - expected_loss),
        num_actions=worker.num_actions,
        ranks=worker.rank_bytes(),
        kept_without_recompute_bytes=float(sum(kept_by_stage(plain))),
        kept_bytes=float(sum(worker.alone)),
        torch_version=torch.__version__,
    )


def worst_gradient(own: dict[int, Any], whole: Sequence[Any]) -> tuple[float, float, str]:
    """Error, limit and name of the gradient nearest to its limit; a missing one counts as zeros."""
    found = []
    for stage, module in own.items():
        expected = dict(whole[stage].named_parameters())
        for name, parameter in module.named_parameters():
            reference = expected[name].grad
            gradient = reference * 0 if parameter.grad is None else parameter.grad
            error = (gradient - reference).abs().nan_to_num(nan=math.inf).max().item()
            limit = gradient_limit(reference.abs().max().item())
            found.append((error, limit, f"stage {stage} {name}"))
    return max(found, key=lambda entry: entry[0] / entry[1])


def kept_by_stage(stages: Sequence[Stage]) -> list[int]:
    """Bytes that the forward of one microbatch keeps in each stage, run by itself."""
    found = []
    for stage in range(len(stages)):
        module = build_stage(stages, stage)
        kept = KeptTensors(module.parameters())
        example = example_tensors(stages)[stage].detach()
        x = example.requires_grad_(example.is_floating_point())
        with kept.counting():
            y = module(x)
            if stage == len(stages) - 1:
                y = mean_loss(y, torch.zeros(y.shape[:2], dtype=torch.long))
        found.append(kept.total_bytes())
    return found


class _Autograd:
    """The stages of all ranks; F keeps a graph, I and W (or B) use it up."""

    def __init__(self, lowered: LoweredSchedule, stages: Sequence[Stage]) -> None:
        self.lowered, self.stages = lowered, stages
        self.modules = [build_stage(stages, stage) for stage in range(len(stages))]
        parameters = (each for module in self.modules for each in module.parameters())
        self.kept = KeptTensors(parameters)
        self.alone = kept_by_stage(stages)
        tokens, wanted = build_batch(0, lowered.num_microbatches)
        self.tokens = tokens.chunk(lowered.num_microbatches)
        self.wanted = wanted.chunk(lowered.num_microbatches)
        self.inputs: dict[Key, Any] = {(0, j): x for j, x in enumerate(self.tokens)}
        self.outputs: dict[Key, Any] = {}
        self.grads_in: dict[Key, Any] = {}
        self.grads_out: dict[Key, Any] = {}
        self.graphs: dict[Key, tuple[Any, Any, Any]] = {}
        self.losses: list[float] = []
        self.num_actions = 0
        ranks = range(lowered.num_ranks)
        self._predicted = [0.0 for _ in ranks]
        self._most = [[0.0, 0.0, 0.0, 0] for _ in ranks]
        self._owned: list[set[Key]] = [set() for _ in ranks]

    def compute(self, step: LoweredAction) -> None:
        """Run it, then compare what its rank keeps."""
        key = (step.stage, step.microbatch)
        self.kept.owner = key
        if step.kind is _F:
            self._forward(key)
        elif step.kind in (_I, _B):
            self._backward(key, fused=step.kind is _B)
        elif step.kind is _W:
            self._weights(key)
        self.num_actions += 1
        self._compare(step, key)

    def send(self, step: LoweredAction) -> Any:
        """A tensor without its graph."""
        held = self.outputs if step.kind is LoweredKind.SEND_F else self.grads_out
        return _taken(held, (step.stage, step.microbatch), f"{step} has nothing to send")

    def receive(self, step: LoweredAction, message: Any) -> None:
        """Lay it ready."""
        held = self.inputs if step.kind is LoweredKind.RECV_F else self.grads_in
        held[step.stage, step.microbatch] = message

    def reduce(self, stage: int) -> None:
        """Divide by the microbatches, as a runtime does at this point."""
        for parameter in self.modules[stage].parameters():
            if parameter.grad is not None:
                parameter.grad /= self.lowered.num_microbatches

    def _forward(self, key: Key) -> None:
        stage, microbatch = key
        x = _taken(self.inputs, key, "the input is not there").detach()
        x.requires_grad_(x.is_floating_point())
        y = self.modules[stage](x)
        if stage == len(self.stages) - 1:
            y = mean_loss(y, self.wanted[microbatch])
            self.losses.append(y.item())
        else:
            self._hand_over(self.outputs, self.inputs, key, stage + 1, y.detach())
        self.graphs[key] = (x, y, None)

    def _backward(self, key: Key, *, fused: bool) -> None:
        stage, _ = key
        x, y, _ = _taken(self.graphs, key, "its forward has not run")
        last = stage == len(self.stages) - 1
        given = None if last else _taken(self.grads_in, key, "the gradient is not there")
        if stage > 0:
            (gradient,) = torch.autograd.grad(y, x, given, retain_graph=True)
            self._hand_over(self.grads_out, self.grads_in, key, stage - 1, gradient)
        self.graphs[key] = (x, y, given)
        del x, y
        if fused:
            self._weights(key)

    def _weights(self, key: Key) -> None:
        _, y, given = _taken(self.graphs, key, "its input gradient has not run")
        parameters = list(self.modules[key[0]].parameters())
        for parameter, gradient in zip(
            parameters, torch.autograd.grad(y, parameters, given), strict=True
        ):
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient

    def _hand_over(
        self, outbox: dict[Key, Any], inbox: dict[Key, Any], key: Key, target: int, tensor: Any
    ) -> None:
        rank_of = self.lowered.placement.rank_of_stage
        if rank_of[key[0]] == rank_of[target]:
            inbox[target, key[1]] = tensor
        else:
            outbox[key] = tensor

    def _compare(self, step: LoweredAction, key: Key) -> None:
        rank = self.lowered.placement.rank_of_stage[step.stage]
        kept = self.alone[step.stage]  # two calls of `autograd.grad` keep all until the second
        self._predicted[rank] += {_F: kept, _W: -kept, _B: -kept}.get(step.kind, 0)
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


def _taken(held: dict[Key, Any], key: Key, problem: str) -> Any:
    if key not in held:
        raise InvalidInput.of("orders", f"stage {key[0]} microbatch {key[1]}: {problem}")
    return held.pop(key)
