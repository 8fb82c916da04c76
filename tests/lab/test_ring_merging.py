"""What PyTorch's ring attention moves beside its kernels, counted on fake tensors."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra [torch]")

import torch

from trainwright.costing.layer import ring_held_bytes, ring_merging_bytes
from trainwright.lab.rank_program import Held, watched

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

QUERY_HEADS, KEY_HEADS, TOKENS, SIZE = 32, 8, 256, 128
MADE = {"zeros_like"}  # written, not read
SENT = {"all_gather_into_tensor", "all_to_all_single"}
LOOKED_AT = {"view", "_unsafe_view", "detach", "alias", "slice", "split", "unsqueeze", "squeeze"}
LOOKED_AT |= {"empty_like", "wait_tensor", "transpose", "device", "expand", "select"}


def counted(ranks: int, key_heads: int = KEY_HEADS) -> tuple[float, float, float]:
    """Bytes for each number of the queries of the last rank: moved forward and backward, and held.

    Held are all tensors at the fullest moment of the backward pass.
    """
    import torch.distributed as dist
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed.tensor.experimental._context_parallel import _attention as ring
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torch.utils._python_dispatch import TorchDispatchMode

    def tensors(found: Any) -> list[Any]:
        if isinstance(found, torch.Tensor):
            return [found]
        if isinstance(found, list | tuple):
            return [tensor for each in found for tensor in tensors(each)]
        return []

    def size(tensor: Any) -> int:
        return tensor.numel() * tensor.element_size()

    class Traffic(TorchDispatchMode):
        moved = 0.0

        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            out, name = function(*args, **(kwargs or {})), function.overloadpacket.__name__
            if name not in LOOKED_AT | SENT:
                self.moved += sum(map(size, tensors(out)))
                if name not in MADE:
                    self.moved += sum(map(size, tensors(list(args))))
            return out

    def forward(query: Any, key: Any, value: Any, **_: Any) -> Any:
        return torch.empty_like(query), torch.empty(query.shape[:3])

    def backward(query: Any, key: Any, value: Any, **_: Any) -> Any:
        return tuple(map(torch.empty_like, (query, key, value)))

    held = Held()
    dist.init_process_group("fake", rank=ranks - 1, world_size=ranks, store=FakeStore())
    try:
        with FakeTensorMode(), watched(held), held:
            query = torch.zeros(1, QUERY_HEADS, TOKENS, SIZE, dtype=torch.bfloat16)
            key, value = (
                torch.zeros(1, key_heads, TOKENS, SIZE, dtype=torch.bfloat16) for _ in range(2)
            )
            own = (query, key, value)
            with Traffic() as there:
                out, sums = ring._templated_ring_attention(
                    dist.group.WORLD, 2, forward, *own, is_causal=True
                )
            held.forget_peak()
            gradient = torch.zeros_like(query)
            with Traffic() as back:
                ring._templated_ring_attention_backward(
                    dist.group.WORLD, 2, backward, gradient, "grad", *own, out, sums, True
                )
    finally:
        dist.destroy_process_group()
    numbers = query.numel()
    return there.moved / numbers, back.moved / numbers, float(held.peak) / numbers


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_merging_moves_what_pytorch_moves(ranks: int) -> None:
    there, back = ring_merging_bytes(ranks, 2.0, 2 * KEY_HEADS / QUERY_HEADS)
    found = counted(ranks)
    assert found[0] == pytest.approx(there, rel=0.02)  # beside them, one number for each head
    assert found[1] == pytest.approx(back, rel=0.01)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("key_heads", [4, 8, 16, 32])
def test_a_ring_holds_what_pytorch_holds(ranks: int, key_heads: int) -> None:
    k = 2 * key_heads / QUERY_HEADS
    own = 2 + 2 * k  # queries, keys and values
    assert counted(ranks, key_heads)[2] == pytest.approx(
        own + ring_held_bytes(ranks, 2.0, k), rel=0.02
    )
