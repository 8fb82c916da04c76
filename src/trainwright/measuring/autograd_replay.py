"""A replay with real autograd: every action of every rank, on small stages, in one process.

Nothing of PyTorch's pipeline runtime is involved: an input gradient is `autograd.grad` of a stage's
input, a weight gradient that of its parameters, so that what is compared is the order alone. After
every action the bytes that autograd keeps for a rank are compared with what its order predicts from
one microbatch run by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from trainwright.errors import InvalidInput
from trainwright.measuring import tiny_transformer as tiny
from trainwright.measuring.kept_tensors import KeptTensors
from trainwright.measuring.order_replay import replay
from trainwright.measuring.tolerance import gradient_limit
from trainwright.plan.lowered import LoweredKind
from trainwright.plan.results.gradient_check import KeptBytes

if TYPE_CHECKING:
    from trainwright.measuring.tiny_layers import Stage
    from trainwright.plan.lowered import LoweredAction, LoweredSchedule

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
    whole = [tiny.build_stage(stages, stage) for stage in range(len(stages))]
    expected_loss = tiny.run_unpartitioned(whole, 0, lowered.num_microbatches)
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
        module = tiny.build_stage(stages, stage)
        kept = KeptTensors(module.parameters())
        example = tiny.example_tensors(stages)[stage].detach()
        x = example.requires_grad_(example.is_floating_point())
        with kept.counting():
            y = module(x)
            if stage == len(stages) - 1:
                y = tiny.mean_loss(y, torch.zeros(y.shape[:2], dtype=torch.long))
        found.append(kept.total_bytes())
    return found


class _Autograd:
    """The stages of all ranks; F keeps a graph, I and W (or B) use it up."""

    def __init__(self, lowered: LoweredSchedule, stages: Sequence[Stage]) -> None:
        self.lowered, self.stages = lowered, stages
        self.modules = [tiny.build_stage(stages, stage) for stage in range(len(stages))]
        parameters = (each for module in self.modules for each in module.parameters())
        self.kept = KeptTensors(parameters)
        self.alone = kept_by_stage(stages)
        tokens, wanted = tiny.build_batch(0, lowered.num_microbatches)
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
            y = tiny.mean_loss(y, self.wanted[microbatch])
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
