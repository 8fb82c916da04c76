"""One rank of a training step, run for real on one GPU or on tensors without data.

A stand-alone program: it needs PyTorch and nothing else. `trainwright verify --dry-run` starts it
on fake tensors, which have sizes and no contents; `trainwright export --to dry-run` writes it
beside its case, to be run on a GPU. In both, the other ranks are a group that moves nothing, so
that what PyTorch's FSDP2, tensor, context, expert and pipeline parallelism allocate on this rank is
allocated, and nothing else.

    python dry_run.py CASE.json            real memory of the GPU where there is one, else counted
    python dry_run.py CASE.json --fake     counted on fake tensors

A case is a JSON object (`frameworks/dry_run.py` writes it). One line of JSON comes back for each of
its `ranks`: the peak of the second step, so with optimizer states, in total and by class.

The model is a decoder of plain modules: RMS or layer norms, rotary or learned positions, grouped
keys, feed-forward parts with or without a gate or a mixture of experts, dropout, head and loss.
Sharding follows torchtitan (`distributed/fsdp.py` of 2026-08, `models/common/moe_sharding.py` of
0.3.0, `models/llama3/infra/parallelize.py` of 0.2.2): one FSDP unit for the embedding, one a block,
one for norm and head, or for all three where words are tied; float32 shards, 16-bit gathered
weights, float32 reduction unless the case says another; the sequence is cut between the products of
a tensor group. ZeRO 1 is Megatron-Core's (`Buffers`). Attention is the flash kernel, called by its
name, since a GPU and a CPU would choose differently.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

Case = dict[str, Any]
ALIGNMENT = 512  # bytes to which the allocator of a GPU rounds
aten = torch.ops.aten


# The model
# ---------


class NormWithoutData(torch.autograd.Function):
    """What the kernel of a GPU allocates and keeps; a CPU runs its parts, which keep more."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        """Keeps the input, the weights and one float32 number a row for each of them."""
        ctx.save_for_backward(x, *weights, *(x[..., :1].float() for _ in weights))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The gradients of input and weights."""
        return tuple(map(torch.empty_like, ctx.saved_tensors[: len(ctx.needs_input_grad)]))


class OneKernel(nn.Module):
    """A norm over the last dimension that is one kernel, also where there is none."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Over the last dimension."""
        if x.device.type == "cpu":
            return NormWithoutData.apply(x, *self.parameters())
        return super().forward(x)


class Norm(OneKernel, nn.RMSNorm):
    """By the root of the mean square."""


class CentredNorm(OneKernel, nn.LayerNorm):
    """By mean and variance, with a bias."""


class Dropout(nn.Module):
    """The kernel that keeps a mask of one byte a number."""

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Without a rate nothing is done."""
        return aten.native_dropout(x, self.rate, True)[0] if self.rate else x


class Attention(nn.Module):
    """Causal attention; `group` is the context-parallel mesh, if any."""

    def __init__(self, model: Case, group: DeviceMesh | None):
        super().__init__()
        h, self.head = model["hidden_size"], model["head_size"]
        queries, keys = model["num_heads"] * self.head, model["num_kv_heads"] * self.head
        bias = model["query_key_value_bias"]
        self.wq = nn.Linear(h, queries, bias=bias)
        self.wk = nn.Linear(h, keys, bias=bias)
        self.wv = nn.Linear(h, keys, bias=bias)
        self.wo = nn.Linear(queries, h, bias=model["output_bias"])
        self.group, self.rotary = group, model["rotary"]
        normed = model["query_key_norm"]
        self.q_norm = Norm(self.head) if normed else None
        self.k_norm = Norm(self.head) if normed else None

    def forward(self, x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
        """`x` is [batch, positions, hidden], of which every tensor rank holds all positions."""
        batch, length, _ = x.shape
        q, k, v = (
            product(x).view(batch, length, -1, self.head) for product in (self.wq, self.wk, self.wv)
        )
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.rotary:
            q, k = rotated(q, rotation), rotated(k, rotation)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        out = self.core(q, k, v).transpose(1, 2).contiguous()
        return self.wo(out.view(batch, length, -1))

    def core(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """The kernel; of a context group it passes keys and values round."""
        if self.group is None:
            return aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0]
        cut = partial(DTensor.from_local, device_mesh=self.group, placements=[Shard(2)])
        out = aten._scaled_dot_product_flash_attention(cut(q), cut(k), cut(v), 0.0, True)[0]
        return out.to_local()


def rotated(x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """Positions by complex multiplication in float32."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    turned = pairs * rotation[None, : x.shape[1], None, :]
    return torch.view_as_real(turned).flatten(3).type_as(x)


class FeedForward(nn.Module):
    """w2(act(w1 x) * w3 x), or without a gate w2(act(w1 x))."""

    def __init__(self, model: Case, inner: int):
        super().__init__()
        hidden, bias = model["hidden_size"], model["mlp_bias"]
        self.activation = getattr(nn.functional, model["activation"])
        self.w1 = nn.Linear(hidden, inner, bias=bias)
        self.w2 = nn.Linear(inner, hidden, bias=bias)
        self.w3 = nn.Linear(hidden, inner, bias=bias) if model["gated"] else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The products in, what is activated out."""
        activated = self.activation(self.w1(x))
        return self.w2(activated if self.w3 is None else activated * self.w3(x))


class Experts(nn.Module):
    """The experts of a rank, each product one grouped kernel over tokens sorted by expert."""

    def __init__(self, hidden: int, inner: int, count: int):
        super().__init__()
        self.w1 = nn.Parameter(torch.empty(count, inner, hidden))
        self.w2 = nn.Parameter(torch.empty(count, hidden, inner))
        self.w3 = nn.Parameter(torch.empty(count, inner, hidden))

    def forward(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """Rows up to `ends[i]` belong to the experts up to i."""
        w1, w2, w3 = (
            (w.to_local() if isinstance(w, DTensor) else w).bfloat16()
            for w in (self.w1, self.w2, self.w3)
        )
        x = x.bfloat16()
        h = nn.functional.silu(torch._grouped_mm(x, w1.transpose(-2, -1), offs=ends))
        h = h * torch._grouped_mm(x, w3.transpose(-2, -1), offs=ends)
        return torch._grouped_mm(h, w2.transpose(-2, -1), offs=ends)


class Mixture(nn.Module):
    """Router, experts, and experts that every token meets.

    Every rank sends equally many tokens to every other; what it takes is `heaviest` of that. The
    ranks of a tensor group route their own part of the sequence where experts are dealt out; else
    each routes all of it for its part of every expert, and the parts of the output are added.
    """

    def __init__(self, model: Case, meshes: Case):
        super().__init__()
        self.cut, group = meshes["tp"], meshes["ep"]
        experts, h = model["experts"], model["hidden_size"]
        self.chosen, self.count = experts["experts_per_token"], experts["num_experts"]
        self.group, self.ranks = group, 1 if group is None else group.size()
        self.heaviest = experts.get("heaviest", 1.0)
        self.gate = nn.Linear(h, self.count, bias=False)
        self.experts = Experts(h, experts["ffn_size"], self.count)
        shared = experts["shared_ffn_size"]
        self.shared = FeedForward(model, shared) if shared else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of what routed and shared experts give, cut as the input is."""
        if self.cut is None:
            return self.routed(x, x)
        if self.group is not None:
            return self.routed(x.to_local(), x)
        whole = x.redistribute(placements=[Replicate()])
        out = self.routed(whole.to_local(grad_placements=[Partial()]), None)
        parts = DTensor.from_local(out, self.cut, [Partial()])
        out = parts.redistribute(placements=[Shard(1)]).to_local()
        return out if self.shared is None else out + self.shared(whole)

    def routed(self, x: torch.Tensor, whole: torch.Tensor | None) -> torch.Tensor:
        """Route, send out, compute, bring back, add up, with the shared part of `whole`."""
        batch, length, h = x.shape
        x = x.view(-1, h)
        scores = nn.functional.softmax(self.gate(x).float(), dim=1)
        _, picked = torch.topk(scores, k=self.chosen, dim=-1, sorted=False)
        top = scores.gather(dim=1, index=picked)
        top = top / (top.sum(dim=-1, keepdim=True) + 1e-20)
        # What the router chose is known to nobody here; experts of a rank get the same share.
        copies = x.shape[0] * self.chosen
        order = torch.argsort(picked.view(-1), stable=True)
        routed = x[order // self.chosen]
        routed = (routed.float() * top.view(-1)[order].reshape(-1, 1)).to(x.dtype)
        out = None
        if self.shared is not None and whole is not None:
            out = self.shared(whole).reshape(-1, h)
        local = self.count // self.ranks
        taken = round(copies * self.heaviest / self.ranks) * self.ranks
        ends = (torch.arange(1, local + 1, device=x.device) * (taken // local)).to(torch.int32)
        if self.group is not None:
            routed = traded(routed, self.group, taken)
        padded = torch.vstack((routed, routed.new_zeros(h)))
        rows = torch.arange(padded.shape[0] - 1, device=x.device)
        result = self.experts(padded[rows], ends)
        unsorted = result.new_empty(padded.shape)
        unsorted[rows] = result
        result = unsorted[:-1]
        if self.group is not None:
            result = traded(result, self.group, copies)
        placed = torch.zeros((copies, h), dtype=result.dtype, device=result.device)
        placed[order] = result
        placed = placed.reshape(-1, self.chosen, h).sum(dim=1)
        return (placed if out is None else out + placed).reshape(batch, length, h)


def traded(x: torch.Tensor, group: DeviceMesh, taken: int) -> torch.Tensor:
    """Equal shares of the rows to every rank of the group for `taken` rows, with gradients."""
    from torch.distributed._functional_collectives import all_to_all_single_autograd, wait_tensor

    given, got = ([rows // group.size()] * group.size() for rows in (x.shape[0], taken))
    return wait_tensor(all_to_all_single_autograd(x, got, given, group.get_group()))


class Block(nn.Module):
    """Attention and feed-forward part, each behind a norm and added to what came in."""

    def __init__(self, model: Case, meshes: Case, layer: int):
        super().__init__()
        experts, norm = model["experts"], CentredNorm if model["norm"] == "layer" else Norm
        self.attention_norm, self.ffn_norm = norm(model["hidden_size"]), norm(model["hidden_size"])
        self.attention = Attention(model, meshes["cp"])
        routed = experts is not None and layer not in experts["dense_layers"]
        self.feed_forward = None if routed else FeedForward(model, model["ffn_size"])
        self.moe = Mixture(model, meshes) if routed else None
        self.dropout = Dropout(model["dropout"])

    def forward(self, x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
        """The hidden state after both halves."""
        x = x + self.dropout(self.attention(self.attention_norm(x), rotation))
        part: nn.Module | None = self.feed_forward if self.moe is None else self.moe
        assert part is not None, "a block has one or the other"
        return x + self.dropout(part(self.ffn_norm(x)))


class Again(nn.Module):
    """A block that backward runs again: all of it, or all but what a policy saves."""

    def __init__(self, block: Block, mode: str):
        super().__init__()
        self.block, self.mode = block, mode

    def forward(self, x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
        """The block, of which autograd keeps less."""
        more: Case = {}
        if self.mode == "selective":
            policy = saves(self.block.moe)
            more["context_fn"] = partial(create_selective_checkpoint_contexts, policy)
        return checkpoint(
            self.block, x, rotation, use_reentrant=False, preserve_rng_state=False, **more
        )


def saves(mixture: Mixture | None) -> Callable[..., CheckpointPolicy]:
    """Keep attention, what was reduced or traded, products that add a bias, and every second other.

    The router's runs again. That is torchtitan's rule.
    """
    kept = {
        aten.addmm.default,
        aten._scaled_dot_product_flash_attention.default,
        torch.ops._c10d_functional.reduce_scatter_tensor.default,
        torch.ops._c10d_functional.all_to_all_single.default,
    }
    counts = {True: 0, False: 0}
    router = None if mixture is None else mixture.count

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if op is aten.mm.default and args[1].shape[1] != router:
            counts[ctx.is_recompute] += 1
            if counts[ctx.is_recompute] % 2:
                return CheckpointPolicy.MUST_SAVE
        elif op in kept:
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    return policy


class Stage(nn.Module):
    """Consecutive blocks, with the embedding before the first and norm and head after the last."""

    def __init__(self, model: Case, meshes: Case, blocks: list[int], ends: tuple[bool, bool]):
        super().__init__()
        h, words = model["hidden_size"], model["vocabulary_size"]
        self.tok_embeddings = nn.Embedding(words, h) if ends[0] else None
        learned = model["positions"] if ends[0] else 0
        self.positions = nn.Embedding(learned, h) if learned else None
        self.dropout = Dropout(model["dropout"])
        self.layers = nn.ModuleDict({str(i): Block(model, meshes, i) for i in blocks})
        norm = CentredNorm if model["norm"] == "layer" else Norm
        self.norm = norm(h) if ends[1] else None
        self.output = nn.Linear(h, words, bias=False) if ends[1] else None
        self.in_pieces = False  # then the loss runs the head
        self.tied = model["tied"] and all(ends)
        self.tie()
        self.register_buffer("rotation", torch.empty(0), persistent=False)

    def tie(self) -> None:
        """One tensor for words in and out, if the stage has both; to be done after each move."""
        if self.tied and self.tok_embeddings is not None and self.output is not None:
            self.output.weight = self.tok_embeddings.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Words or hidden states in, hidden states or logits out."""
        if self.tok_embeddings is not None:
            x = self.tok_embeddings(x)
            if self.positions is not None:
                x = x + self.positions(torch.arange(x.shape[1], device=x.device))
            x = self.dropout(x)
        for block in self.layers.values():
            x = block(x, self.rotation)
        if self.norm is None or self.output is None:
            return x
        return self.norm(x) if self.in_pieces else self.output(self.norm(x))


# How it is cut
# -------------


def meshes_of(degrees: Case, device: str) -> Case:
    """The groups of a rank by name; None where a degree is 1."""
    p, r, d, c, t = (degrees[k] for k in ("pipeline", "copies", "shards", "context", "tensor"))
    whole = init_device_mesh(device, (p, r, d, c, t), mesh_dim_names=("pp", "dp", "fs", "cp", "tp"))
    found = {name: whole[name] if n > 1 else None for name, n in (("cp", c), ("tp", t), ("pp", p))}
    fsdp = whole["fs", "cp"]._flatten("fsdp") if c > 1 else whole["fs"]
    if r > 1:
        copied = init_device_mesh(
            device, (p, r, d * c, t), mesh_dim_names=("pp", "dp", "fsdp", "tp")
        )
        fsdp = copied["dp", "fsdp"]
    e = degrees["expert"]
    found |= {"fsdp": fsdp, "ep": None, "experts": fsdp}
    if e > 1:
        names = ("pp", "dp", "efsdp", "ep")
        other = init_device_mesh(device, (p, r, d * c * t // e, e), mesh_dim_names=names)
        found |= {"ep": other["ep"], "experts": other["efsdp"]}
    return found


def cut_tensors(stage: Stage, mesh: DeviceMesh) -> None:
    """Tensor parallelism with the sequence cut between its products."""
    plan = {}
    if stage.tok_embeddings is not None:
        plan["tok_embeddings"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
    if stage.output is not None:
        plan["norm"] = SequenceParallel()
        plan["output"] = ColwiseParallel(
            input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
        )
    parallelize_module(stage, mesh, plan)
    stage.tie()
    for block in stage.layers.values():
        plan = {
            "attention_norm": SequenceParallel(),
            "attention": PrepareModuleInput(
                input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)
            ),
            "attention.wq": ColwiseParallel(),
            "attention.wk": ColwiseParallel(),
            "attention.wv": ColwiseParallel(),
            "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
            "ffn_norm": SequenceParallel(),
        }
        dense, at, given = block.feed_forward, "feed_forward", Shard(1)
        if block.moe is not None:
            dense, at = block.moe.shared, "moe.shared"
            if block.moe.group is None:
                cut_experts(block.moe.experts, mesh)
                given = Replicate()
        if dense is not None:
            plan[at] = PrepareModuleInput(
                input_layouts=(given,), desired_input_layouts=(Replicate(),)
            )
            plan |= {f"{at}.{name}": ColwiseParallel() for name, _ in dense.named_children()}
            plan[f"{at}.w2"] = RowwiseParallel(output_layouts=Shard(1))
        if block.attention.q_norm is not None:
            plan["attention.q_norm"] = SequenceParallel(sequence_dim=2, use_local_output=True)
            plan["attention.k_norm"] = SequenceParallel(sequence_dim=2, use_local_output=True)
        parallelize_module(block, mesh, plan)


def deal_experts(stage: Stage, mesh: DeviceMesh) -> None:
    """Every rank of the expert group holds its share of the experts."""
    for block in stage.layers.values():
        if block.moe is not None:
            own = block.moe.experts
            for name, weight in list(own.named_parameters()):
                shared = nn.Parameter(distribute_tensor(weight, mesh, [Shard(0)]))
                own.register_parameter(name, shared)


def cut_experts(own: Experts, mesh: DeviceMesh) -> None:
    """Every rank of the tensor group holds its part of each expert's inner width."""
    for name, weight in list(own.named_parameters()):
        along = Shard(2 if name == "w2" else 1)
        own.register_parameter(name, nn.Parameter(distribute_tensor(weight, mesh, [along])))


def shard(stage: Stage, case: Case, meshes: Case) -> None:
    """FSDP2: a unit for the embedding, one for every block, one for norm and head together.

    Tied words make one of the first and the last. Experts that are dealt out are sharded over fewer
    ranks than the rest of their unit.
    """
    summed = getattr(torch, case.get("reduce_dtype", "float32"))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=summed)
    again = case["reshard_after_forward"]
    wrap = partial(fully_shard, mesh=meshes["fsdp"], mp_policy=policy)
    first = [each for each in (stage.tok_embeddings, stage.positions) if each is not None]
    last = [each for each in (stage.norm, stage.output) if each is not None]
    if stage.tied:
        first, last = [], first + last
    if first:
        wrap(first, reshard_after_forward=again)
    for wrapper in stage.layers.values():
        block = wrapper.block if isinstance(wrapper, Again) else wrapper
        place = None if block.moe is None else placed_experts(block.moe, meshes)
        wrap(wrapper, reshard_after_forward=again, shard_placement_fn=place)
    if last:
        wrap(last, reshard_after_forward=False)
    wrap(stage)
    for module in stage.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)


def placed_experts(mixture: Mixture, meshes: Case) -> Callable[[nn.Parameter], Any]:
    """Along which dimension and over which ranks a parameter of the block is sharded."""
    from torch.distributed.fsdp._fully_shard._fsdp_common import ShardPlacementResult
    from torch.distributed.fsdp._fully_shard._fsdp_init import _get_mesh_info

    experts = set(mixture.experts.parameters())
    over = meshes["experts"].size() * mixture.ranks
    along = Shard(1 if over > mixture.count else 0)
    if mixture.group is None:
        return lambda weight: along if weight in experts else None
    own, rest = (_get_mesh_info(meshes[name], None) for name in ("experts", "fsdp"))

    def place(weight: nn.Parameter) -> Any:
        if weight in experts:
            return ShardPlacementResult(placement=along, mesh_info=own)
        return ShardPlacementResult(placement=Shard(0), mesh_info=rest)

    return place


class Buffers:
    """A distributed optimizer: 16-bit weights and float32 gradients whole, each in one buffer.

    States are of this rank's part of a buffer alone: the reduction of gradients gives that part,
    and weights are gathered from it, both in place, as Megatron-Core does. Dense weights have one
    such pair of buffers, experts that are dealt out another.
    """

    def __init__(self, stages: list[Stage], meshes: Case, device: str):
        self.pairs: list[list[Any]] = []
        self.sums: dict[nn.Parameter, torch.Tensor] = {}
        every = dict.fromkeys(weight for stage in stages for weight in stage.parameters())
        layers = [layer for stage in stages for layer in stage.modules()]
        mixtures = [layer for layer in layers if isinstance(layer, Mixture) and layer.group]
        dealt = {weight for mixture in mixtures for weight in mixture.experts.parameters()}
        for mesh, are_dealt in ((meshes["fsdp"], False), (meshes["experts"], True)):
            own = [weight for weight in every if (weight in dealt) is are_dealt]
            sizes = [local_of(weight).numel() for weight in own]
            part = math.ceil(sum(sizes) / mesh.size())
            wholes = [
                torch.zeros(part * mesh.size(), dtype=dtype, device=device)
                for dtype in (torch.bfloat16, torch.float32)
            ]
            cut = (whole[: sum(sizes)].split(sizes) for whole in wholes)
            for weight, place, total in zip(own, *cut, strict=True):
                place = place.view(local_of(weight).shape)
                if isinstance(weight, DTensor):
                    weight._local_tensor = place
                else:
                    weight.data = place
                self.sums[weight] = total
                weight.register_post_accumulate_grad_hook(self.add)
            main = nn.Parameter(torch.empty(part, device=device))
            at = mesh.get_local_rank() * part
            parts = [whole[at : at + part] for whole in wholes]
            self.pairs += [[*wholes, *parts, main, mesh.get_group()]] * bool(own)

    def add(self, weight: torch.Tensor) -> None:
        """The gradient of a weight goes into its buffer at once."""
        grad = weight.grad
        if isinstance(grad, DTensor):  # of all words a tensor group makes parts of a sum
            grad = grad.redistribute(placements=weight.placements)
        if grad is not None:
            self.sums[weight].add_(local_of(grad).flatten())
            weight.grad = None

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """Sum the gradients of all ranks, update this rank's parts and gather all weights."""
        for _, sums, _, part, main, group in self.pairs:
            dist.reduce_scatter_tensor(part, sums, group=group)
            main.grad = part
        optimizer.step()
        for weights, sums, part, _, main, group in self.pairs:
            part.copy_(main.detach())
            dist.all_gather_into_tensor(weights, part, group=group)
            sums.zero_()
            main.grad = None


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """What of a tensor lies on this rank."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


# What is held
# ------------


class Held(TorchDispatchMode):
    """Bytes of every storage that operators allocate until it is freed, by the class in `label`."""

    def __init__(self) -> None:
        super().__init__()
        self.label, self.paused = "weights", False
        self.sizes: dict[int, list[Any]] = {}
        self.now: dict[str, int] = {}
        self.total, self.peak = 0, 0
        self.at_peak: dict[str, int] = {}

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind is DTensor for kind in types):
            return NotImplemented  # DTensor runs the operator on its local tensors, seen below
        if op is torch.ops._c10d_functional.wait_tensor.default:
            return args[0]  # its kernel gives the tensor itself back
        out = op(*args, **(kwargs or {}))
        if not self.paused:
            for each in tree_iter(out):
                if isinstance(each, torch.Tensor):
                    self.see(each)
        return out

    def see(self, tensor: torch.Tensor, label: str | None = None) -> None:
        """Count what `tensor` holds, once, or move it to another class."""
        if tensor.device.type == "meta":
            return
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        known = self.sizes.get(key)
        if known is None:
            known = self.sizes[key] = [0, label or self.label]
            weakref.finalize(storage, self.freed, key)
        if known[0] != size:
            self.resized(key, size)
        if label is not None and known[1] != label:
            rounded = padded(known[0])
            self.now[known[1]] -= rounded
            self.now[label] = self.now.get(label, 0) + rounded
            known[1] = label

    def resized(self, key: int, size: int) -> None:
        """A storage grew or shrank, as FSDP's gathered weights do."""
        known = self.sizes[key]
        more = padded(size) - padded(known[0])
        known[0] = size
        self.now[known[1]] = self.now.get(known[1], 0) + more
        self.total += more
        if self.total > self.peak:
            self.peak, self.at_peak = self.total, dict(self.now)

    def freed(self, key: int) -> None:
        """The storage is gone."""
        self.resized(key, 0)
        del self.sizes[key]

    def forget_peak(self) -> None:
        """The peak counts from here."""
        self.peak, self.at_peak = self.total, dict(self.now)


def padded(size: int) -> int:
    """Bytes that the allocator gives for so many."""
    return math.ceil(size / ALIGNMENT) * ALIGNMENT


@contextlib.contextmanager
def watched(held: Held) -> Iterator[None]:
    """`held` sees resized storages, and what FSDP gathers and reduces by these names."""
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    resize, known = torch.UntypedStorage.resize_, {}
    tried = ShardingPropagator._propagate_tensor_meta_non_cached

    def try_out(*args: Any, **kwargs: Any) -> Any:  # DTensor asks for the shape of the whole tensor
        held.paused = True
        try:
            return tried(*args, **kwargs)
        finally:
            held.paused = False

    ShardingPropagator._propagate_tensor_meta_non_cached = try_out

    def resize_(storage: torch.UntypedStorage, size: int) -> Any:
        out = resize(storage, size)
        if storage._cdata in held.sizes:
            held.resized(storage._cdata, size)
        return out

    def under(label: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def labelled(*args: Any, **kwargs: Any) -> Any:
            before, held.label = held.label, label
            try:
                return method(*args, **kwargs)
            finally:
                held.label = before

        return labelled

    torch.UntypedStorage.resize_ = resize_
    for name, label in (
        ("unshard", "gathered"),
        ("wait_for_unshard", "gathered"),
        ("post_backward", "reduced"),
    ):
        known[name] = getattr(FSDPParamGroup, name)
        setattr(FSDPParamGroup, name, under(label, known[name]))
    try:
        yield
    finally:
        ShardingPropagator._propagate_tensor_meta_non_cached = tried
        torch.UntypedStorage.resize_ = resize
        for name, method in known.items():
            setattr(FSDPParamGroup, name, method)


# One step
# --------


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy in float32, summed."""
    return nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten(0, 1), reduction="sum"
    )


class GivenGradient(torch.autograd.Function):
    """A loss whose gradient is known already."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, grad: torch.Tensor, loss: torch.Tensor) -> torch.Tensor:
        """Keeps the gradient."""
        ctx.save_for_backward(grad)
        return loss.detach()

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """The gradient as it was kept."""
        return ctx.saved_tensors[0], None, None


def loss_in_pieces(head: Any, x: torch.Tensor, labels: torch.Tensor, size: int) -> torch.Tensor:
    """Head, loss and their gradients of `size` tokens after the other, as torchtitan does it.

    Weights of the head stay gathered, and what they were given is reduced with the last piece.
    """
    pieces = [each.detach().requires_grad_() for each in x.flatten(0, 1).split(size)]
    grads = torch.zeros(x.flatten(0, 1).shape, dtype=torch.float32, device=x.device)
    total = torch.zeros((), dtype=torch.float32, device=x.device)
    sharded = isinstance(head, FSDPModule)
    resharding = ["set_reshard_after_forward", "set_reshard_after_backward"] * sharded
    for choose in resharding:
        getattr(head, choose)(False)
    if sharded:
        head.unshard()
    for piece, wanted, into in zip(
        pieces, labels.flatten().split(size), grads.split(size), strict=True
    ):
        if sharded:
            head.set_requires_gradient_sync(piece is pieces[-1], recurse=False)
        logits = head(piece)
        loss = loss_of(logits.unsqueeze(0), wanted.unsqueeze(0))
        total = total + loss.detach()
        loss.backward()
        into.copy_(piece.grad)
        piece.grad = None
    for choose in resharding:
        getattr(head, choose)(True)
    if sharded:
        head.reshard()
    return GivenGradient.apply(x, grads.view(x.shape).to(x.dtype), total)


class Run:
    """One rank of a case: its stages, optimizer and schedule."""

    def __init__(self, case: Case, rank: int, device: str, held: Held | None = None):
        self.case, self.device, self.held = case, device, held
        model, degrees = case["model"], case["degrees"]
        self.meshes = meshes_of(degrees, device)
        self.length = case["sequence_length"] // degrees["context"]
        own = [i for i, owner in enumerate(case["rank_of_stage"]) if owner == rank]
        self.indices, self.stages = own, []
        for index in own:
            ends = index == 0, index + 1 == len(case["rank_of_stage"])
            with torch.device("meta"):
                stage = Stage(model, self.meshes, case["blocks_of_stage"][index], ends)
            stage.in_pieces = bool(case.get("loss_chunk"))
            if self.meshes["tp"] is not None:
                cut_tensors(stage, self.meshes["tp"])
            if self.meshes["ep"] is not None:
                deal_experts(stage, self.meshes["ep"])
            again = case["recompute"]
            for name in list(stage.layers)[: case["recompute_blocks"]] if again != "none" else ():
                stage.layers[name] = Again(stage.layers[name], again)
            if case.get("zero_stage") == 1:
                stage.to(torch.bfloat16)
            else:
                shard(stage, case, self.meshes)
            self.stages.append(stage)

    def place(self) -> None:
        """Allocate the shards and the states of the optimizer, which gradients of zero make."""
        for stage in self.stages:
            stage.to_empty(device=self.device)
            stage.tie()
            shape = self.length, self.case["model"]["head_size"] // 2
            stage.rotation = torch.ones(shape, dtype=torch.complex64, device=self.device)
            for weight in stage.parameters() if self.device == "cuda" else ():
                nn.init.normal_(local_of(weight), std=0.02)  # kernels at usual power, no overflow
        self.buffers: Any = None
        if self.case.get("zero_stage") == 1:
            self.buffers = Buffers(self.stages, self.meshes, self.device)
            weights = [pair[-2] for pair in self.buffers.pairs]
            if self.held is not None:
                for _, sums, *_ in self.buffers.pairs:
                    self.held.see(sums, "gradients")
        else:
            weights = [w for stage in self.stages for w in stage.parameters()]
        self.optimizer = torch.optim.AdamW(weights, lr=1e-4, fused=True)
        self.named("optimizer")
        for weight in weights:
            weight.grad = torch.zeros_like(weight)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def named(self, label: str) -> None:
        """What is allocated from here on belongs to this class."""
        if self.held is not None:
            self.held.label = label

    def step(self) -> None:
        """Forward and backward of every microbatch, then the update."""
        self.named("activations")
        case, degrees = self.case, self.case["degrees"]
        shape = case["microbatch_size"] * case["num_microbatches"], self.length
        made = partial(torch.randint, 0, case["model"]["vocabulary_size"], shape)
        with loss_parallel() if degrees["tensor"] > 1 else contextlib.nullcontext():
            tokens, labels = made(device=self.device), made(device=self.device)
            if degrees["pipeline"] > 1:
                self.pipeline(tokens, labels)
            else:
                self.accumulate(tokens, labels)
        self.named("optimizer")
        if self.buffers is not None:
            self.buffers.update(self.optimizer)
            return
        self.optimizer.step()
        self.optimizer.zero_grad()

    def accumulate(self, tokens: torch.Tensor, labels: torch.Tensor) -> None:
        """Microbatch by microbatch; gradients are reduced with each, into the shards."""
        size = self.case["microbatch_size"]
        for part, wanted in zip(tokens.split(size), labels.split(size), strict=True):
            self.named("activations")
            stage, pieces = self.stages[0], self.case.get("loss_chunk")
            made = partial(loss_in_pieces, stage.output, size=pieces) if pieces else loss_of
            loss = made(stage(part), wanted)
            self.named("backward")
            loss.backward()
            del loss
            self.see_gradients()

    def late(self, stage: Any, *args: Any, **kwargs: Any) -> None:
        """The weight gradients of a microbatch, which autograd does not accumulate."""
        type(stage).backward_weight_one_chunk(stage, *args, **kwargs)
        for weight in stage.submod.parameters():
            self.buffers.add(weight)

    def see_gradients(self) -> None:
        """Sharded gradients get a class of their own."""
        if self.held is None:
            return
        for stage in self.stages:
            for weight in stage.parameters():
                if weight.grad is not None:
                    self.held.see(local_of(weight.grad), "gradients")

    def pipeline(self, tokens: torch.Tensor, labels: torch.Tensor) -> None:
        """PyTorch's own runtime runs this rank's part of the schedule."""
        from torch.distributed.pipelining import PipelineStage, schedules
        from torch.distributed.pipelining._utils import InferenceMode

        case, degrees = self.case, self.case["degrees"]
        last = len(case["rank_of_stage"]) - 1
        count, model = case["microbatch_size"], case["model"]
        local, words = self.length // degrees["tensor"], model["vocabulary_size"]
        like = partial(torch.empty, dtype=torch.bfloat16, device="meta", requires_grad=True)
        hidden = like(count, local, model["hidden_size"])
        logits = like(count, self.length, words // degrees["tensor"])
        tokens_in = torch.empty(count, self.length, dtype=torch.long, device="meta")
        made = [
            PipelineStage(
                stage,
                index,
                last + 1,
                torch.device(self.device),
                input_args=tokens_in if index == 0 else hidden,
                output_args=logits if index == last else hidden,
                group=self.meshes["pp"].get_group(),
            )
            for index, stage in zip(self.indices, self.stages, strict=True)
        ]
        for stage in made:
            stage._inference_mode = InferenceMode.STATIC
        # Nobody is there to answer, and what is sent must not outlive the sending.
        schedules._PipelineSchedule._warmup_p2p = lambda *_: None
        schedules._batch_p2p = lambda *_, **__: []
        schedules._sorted_batch_p2p = lambda *_, **__: {}
        ordered, count = case.get("orders"), case["num_microbatches"]
        kind = schedules._PipelineScheduleRuntime
        if ordered is None:
            kind = schedules.get_schedule_class(case["schedule"])
        many = issubclass(kind, schedules.PipelineScheduleMulti)
        schedule = kind(
            made if many else made[0], n_microbatches=count, loss_fn=loss_of, scale_grads=False
        )
        if ordered is not None:
            actions = (map(schedules._Action.from_str, line.split(",")) for line in ordered)
            schedule._prepare_schedule_with_comms(dict(enumerate(map(list, actions))))
        for stage in made if self.buffers is not None else ():
            stage.backward_weight_one_chunk = partial(self.late, stage)
        given = (tokens,) if 0 in self.indices else ()
        target = labels if last in self.indices else None
        schedule.step(*given, target=target, return_outputs=False)


def counted(case: Case, rank: int) -> Case:
    """The peak of a rank on fake tensors, by class."""
    began = time.process_time()
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    held = Held()
    run = Run(case, rank, "cpu", held)  # on no device, since meshes compute with their contents
    with fake, watched(held), held:
        run.place()
        held.forget_peak()
        run.step()
        static = held.total
    classes = {name: size for name, size in sorted(held.at_peak.items()) if size}
    return {
        "rank": rank,
        "allocated_bytes": held.peak,
        "static_bytes": static,
        "by_class": classes,
        "cpu_s": round(time.process_time() - began, 1),
    }


def measured(case: Case, rank: int) -> Case:
    """The peak of a rank on this machine's GPU, and how long its part of a step takes."""
    torch.cuda.reset_peak_memory_stats()
    run = Run(case, rank, "cuda")
    run.place()
    run.step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        run.step()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    free, total = torch.cuda.mem_get_info()
    return {
        "rank": rank,
        "allocated_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "device_bytes": total - free,
        "static_bytes": torch.cuda.memory_allocated(),
        "step_time_s": sorted(seconds)[1],
    }


def one(case: Case, rank: int, *, fake: bool) -> Case:
    """What a rank holds; `out_of_memory` where the GPU was too small."""
    degrees = case["degrees"]
    world = math.prod(degrees[k] for k in ("pipeline", "copies", "shards", "context", "tensor"))
    first = rank * (world // degrees["pipeline"])
    dist.init_process_group("fake", rank=first, world_size=world, store=FakeStore())
    if degrees["context"] > 1:
        from torch.distributed.tensor.experimental import _attention

        _attention._enable_context_parallel_dispatcher()
    line = {"name": case["name"], "torch": torch.__version__}
    try:
        return line | (counted(case, rank) if fake else measured(case, rank))
    except torch.cuda.OutOfMemoryError as error:
        return line | {"rank": rank, "out_of_memory": str(error)}


def main() -> int:
    """Run every rank that each case names and print a line of JSON for each."""
    parser = argparse.ArgumentParser(description="Memory of one rank of a training step.")
    parser.add_argument("case", type=Path, help="what `trainwright export --to dry-run` wrote")
    parser.add_argument("--fake", action="store_true", help="count on tensors without data")
    asked = parser.parse_args()
    read = json.loads(asked.case.read_text())
    failed = 0
    for case in read if isinstance(read, list) else [read]:
        for rank in case["ranks"]:
            child = os.fork()  # PyTorch remembers groups of ranks for the life of a process
            if child:
                failed |= os.waitpid(child, 0)[1]
                continue
            fake = asked.fake or not torch.cuda.is_available()
            try:
                print(json.dumps(one(case, rank, fake=fake)), flush=True)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
