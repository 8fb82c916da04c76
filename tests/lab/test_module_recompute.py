"""What a block keeps where named modules run again, by autograd and `torch.utils.checkpoint`.

Megatron-Core gives up the output of a norm, of an activation and of an up-projection although the
product behind them needs it (`CheckpointWithoutOutput`); a checkpoint around both keeps the same
tensors. Kernels are fused as there: a norm keeps its input, a gate what came into it, rotation
nothing, attention what flash attention does. All sizes are those of the catalog's models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from trainwright.costing.layer import RecomputeRule, activation_bytes
from trainwright.formats import catalog
from trainwright.model import LayerKind, RunShape, TransformerConfig, layer_graph
from trainwright.model.operator import MODULE_NAMES

if TYPE_CHECKING:
    import torch

TOKENS = 2048
RUN = RunShape(microbatch_size=1, sequence_length=TOKENS)
Part = Callable[["torch.Tensor"], "torch.Tensor"]


def predicted(config: TransformerConfig, modules: frozenset[str], *, routed: bool) -> float:
    block = next(
        layer
        for layer in layer_graph(config, RUN).classes
        if layer.kind is LayerKind.BLOCK
        and any(op.name == "router" for op in layer.operators) == routed
    )
    ours = frozenset(MODULE_NAMES.get(module, module) for module in modules)
    return activation_bytes(block, RUN, RecomputeRule(modules=ours)).kept


class Block:
    """The parts of a block as PyTorch runs them; those that are named run again backward."""

    def __init__(self, config: TransformerConfig, modules: frozenset[str]) -> None:
        import torch
        from torch import nn

        from trainwright.lab.rank_program import Norm

        class Kernel(torch.autograd.Function):
            """Makes `width` numbers of a row, and keeps what it reads if it `keeps` that."""

            @staticmethod
            def forward(ctx: Any, x: torch.Tensor, width: int, keeps: bool) -> torch.Tensor:
                if keeps:
                    ctx.save_for_backward(x)
                return x.new_empty(*x.shape[:-1], width)

        self.kernel = Kernel.apply
        self.config, self.modules = config, modules
        self.linear: Callable[[int, int], Part] = lambda inputs, outputs: nn.Linear(
            inputs, outputs, bias=False, dtype=torch.bfloat16
        )
        self.norm: Callable[[int], Part] = lambda width: Norm(width, dtype=torch.bfloat16)

    def again(self, module: str, run: Callable[..., Any], *given: torch.Tensor) -> Any:
        from torch.utils.checkpoint import checkpoint

        if module not in self.modules:
            return run(*given)
        return checkpoint(run, *given, use_reentrant=False, preserve_rng_state=False)

    def attention(self) -> Part:
        """Products of a normed state, rotation, the kernel, and the product behind it."""
        import torch

        config, h = self.config, self.config.hidden_size
        size, heads, pairs = config.head_size, config.num_heads, config.num_kv_heads
        norm, out = self.norm(h), self.linear(heads * size, h)
        products = [self.linear(h, count * size) for count in (heads, pairs, pairs)]

        def flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            cut = [part.view(1, TOKENS, -1, size).transpose(1, 2) for part in (q, k, v)]
            made = torch.ops.aten._scaled_dot_product_flash_attention(*cut, 0.0, True)[0]
            return made.transpose(1, 2).reshape(1, TOKENS, -1)

        def run(x: torch.Tensor) -> torch.Tensor:
            def projected(x: torch.Tensor) -> list[torch.Tensor]:
                normed = norm(x)
                return [product(normed) for product in products]

            q, k, v = self.again("layernorm", projected, x)
            q, k = (self.kernel(part, part.shape[-1], False) for part in (q, k))
            return out(self.again("core_attn", flash, q, k, v))

        return run

    def feed_forward(self, width: int, rows: int = 1, *, name: str = "mlp") -> Part:
        """Two products around a gate; experts see `rows` copies of each token."""
        import torch

        h = self.config.hidden_size
        norm, into, out = self.norm(h), self.linear(h, 2 * width), self.linear(width, h)

        def second(u: torch.Tensor) -> torch.Tensor:
            return out(self.kernel(u, width, True))

        def run(x: torch.Tensor) -> torch.Tensor:
            if rows > 1:  # routed, and copied for each expert of a token
                x = torch.cat([x] * rows, dim=1)
                return self.again("moe_act", second, into(x))[:, :TOKENS]
            if name != "mlp":  # behind a gate, which keeps what it scales
                return self.again(name, lambda x: self.kernel(second(into(x)), h, True), x)
            if "mlp" in self.modules:
                return self.again("mlp", lambda x: second(into(x)), norm(x))
            u = self.again("layernorm", lambda x: into(norm(x)), x)
            return self.again("mlp_activation", second, u)

        return run


def counted(
    config: TransformerConfig, modules: frozenset[str], parts: Callable[[Block], Part]
) -> float:
    """Bytes that the forward pass leaves allocated, its input with them, its output not."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from trainwright.lab.rank_program import Held, watched

    held = Held()
    with FakeTensorMode(allow_non_fake_inputs=True), watched(held), held:
        run = parts(Block(config, modules))
        x = torch.zeros(1, TOKENS, config.hidden_size, dtype=torch.bfloat16, requires_grad=True)
        before = held.total - x.untyped_storage().nbytes()
        y = run(x)
        return float(held.total - before - y.untyped_storage().nbytes())


def dense(block: Block) -> Part:
    first, second = block.attention(), block.feed_forward(block.config.ffn_size)

    def run(x: torch.Tensor) -> torch.Tensor:
        x = x + first(x)
        return x + second(x)

    return run


@pytest.mark.torch
@pytest.mark.parametrize("name", ["llama3-8b", "qwen2-7b", "llama3-70b"])
@pytest.mark.parametrize(
    "modules",
    [
        *((), ("layernorm",), ("core_attn",), ("mlp_activation",), ("mlp",)),
        *(("layernorm", "mlp_activation"), ("moe_act",)),
    ],
)
def test_a_dense_block_keeps_what_autograd_keeps(name: str, modules: tuple[str, ...]) -> None:
    config, named = catalog.model(name).config, frozenset(modules)
    kept = counted(config, named, dense)
    assert predicted(config, named, routed=False) == pytest.approx(kept, rel=0.03)


@pytest.mark.torch
@pytest.mark.parametrize("module", ["shared_experts", "moe_act"])
def test_experts_give_up_what_autograd_gives_up(module: str) -> None:
    config = catalog.model("qwen1.5-moe-a2.7b").config
    experts, named = config.experts, frozenset({module})
    assert experts is not None

    def parts(block: Block) -> Part:
        shared = block.feed_forward(experts.shared_ffn_size, name="shared_experts")
        routed = block.feed_forward(experts.ffn_size, experts.experts_per_token)
        return lambda x: shared(x) + routed(x)

    spared = counted(config, frozenset(), parts) - counted(config, named, parts)
    ours = predicted(config, frozenset(), routed=True) - predicted(config, named, routed=True)
    assert ours == pytest.approx(spared, rel=0.03)
    whole = predicted(config, frozenset({"moe"}), routed=True)
    attention = counted(config, frozenset(), lambda block: block.attention())
    states = 2 * 2 * TOKENS * config.hidden_size  # what goes into the norm, and what comes out
    assert whole == pytest.approx(attention + states, rel=0.03)
