"""What tensors hold where transformers' own modules train, counted by PyTorch on fake tensors."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from statistics import mean
from typing import Any

import pytest

from trainwright.formats import catalog
from trainwright.formats.calibration_toml import framework_memory
from trainwright.model import Recipe, Tuning
from trainwright.model.config import LowRank
from trainwright.plans.configuration import NO_OVERHEADS, Configuration
from trainwright.plans.plan import Parallelism
from trainwright.profile import Recompute
from trainwright.step.figures import memory_figures
from trainwright.step.predict import price_configuration

MODEL = catalog.model("qwen3-8b").config
CLUSTER = catalog.cluster("dgx-h100")
PURE = {"gradient_dtype": "bf16", "main_weight_dtype": "none", "moment_dtypes": ("bf16",)}
RECIPES = {"bf16": Recipe(precision="bf16", **PURE), "autocast": Recipe(precision="bf16_autocast")}
Case = tuple[str, int, bool, int, int]
CASES: list[Case] = [
    (weights, blocks, again, length, 2)
    for weights in RECIPES
    for blocks in (4, 16)
    for again in (False, True)
    for length in (2048, 8192)
]
# Steps of one microbatch, which have no gradients at their loss.
CASES += [(weights, 16, again, 2048, 1) for weights in RECIPES for again in (False, True)]


RUN = Configuration(
    parallelism=Parallelism(),
    microbatch_size=1,
    global_batch=2,
    sequence_length=2048,
    overheads=NO_OVERHEADS,
    vocabulary_multiple=1,
)


WORDS = MODEL.vocabulary_size
ON_ATTENTION = ("query", "key", "value", "attention_output")


def of_hugging_face(
    run: Configuration, blocks: int = MODEL.num_layers, vocabulary: int = WORDS
) -> float:
    model = replace(MODEL, num_layers=blocks, vocabulary_size=vocabulary)
    step = price_configuration(model, CLUSTER, run)
    account = framework_memory("hugging-face")
    (rank,) = memory_figures(model, run, step, account, device=CLUSTER.accelerator)
    return rank.allocated.typical_bytes


def decoder(
    blocks: int,
    *,
    kernel: str = "sdpa",
    vocabulary: int = WORDS,
    narrow: bool,
    again: bool,
) -> Any:
    """A Qwen3 of these blocks that trains, its weights in bf16 if `narrow`, else in float32."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        hidden_size=MODEL.hidden_size,
        num_attention_heads=MODEL.num_heads,
        num_key_value_heads=MODEL.num_kv_heads,
        head_dim=MODEL.head_size,
        intermediate_size=MODEL.ffn_size,
        vocab_size=vocabulary,
        num_hidden_layers=blocks,
        tie_word_embeddings=False,
        attn_implementation=kernel,
        use_cache=False,
    )
    torch.set_default_dtype(torch.bfloat16 if narrow else torch.float32)
    try:
        model = Qwen3ForCausalLM(config).train()
    finally:
        torch.set_default_dtype(torch.float32)
    if again:
        old = model.gradient_checkpointing_enable  # its name before transformers 5
        getattr(model, "activation_checkpointing_enable", old)({"use_reentrant": False})
    return model


def predicted(
    weights: str,
    blocks: int,
    again: bool,
    length: int,
    microbatches: int,
    *,
    kernel: str = "sdpa",
    vocabulary: int = WORDS,
) -> float:
    run = replace(
        RUN,
        fused_attention=kernel != "eager",
        global_batch=microbatches,
        sequence_length=length,
        recompute=Recompute.FULL if again else Recompute.NONE,
        recipe=RECIPES[weights],
    )
    return of_hugging_face(run, blocks, vocabulary)


def counted(
    weights: str,
    blocks: int,
    again: bool,
    length: int,
    microbatches: int,
    *,
    kernel: str = "sdpa",
    vocabulary: int = WORDS,
) -> float:
    """The peak of a step that has states already."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from trainwright.lab.rank_program import Held, watched

    held = Held()
    with FakeTensorMode(allow_non_fake_inputs=True), watched(held), held:
        narrow = weights == "bf16"
        model = decoder(blocks, kernel=kernel, vocabulary=vocabulary, narrow=narrow, again=again)
        own = list(model.parameters())
        optimizer = torch.optim.AdamW(own, fused=True)
        for weight in own:
            weight.grad = torch.zeros_like(weight)
        optimizer.step()
        optimizer.zero_grad()
        held.forget_peak()
        for _ in range(microbatches):  # gradients add up
            words = torch.zeros(1, length, dtype=torch.long)
            under: Any = contextlib.nullcontext()
            if weights == "autocast":
                under = torch.autocast("cpu", torch.bfloat16)
            with under:  # causal, without a mask: the kernel that a GPU takes
                masks = {"full_attention": None}
                loss = model(input_ids=words, attention_mask=masks, labels=words).loss
            loss.backward()
            del loss
        optimizer.step()
    return float(held.peak)


@pytest.mark.torch
def test_the_account_of_hugging_face_holds_what_its_modules_allocate() -> None:
    pytest.importorskip("transformers")
    errors = {case: predicted(*case) / counted(*case) - 1 for case in CASES}
    shown = ", ".join(f"{'-'.join(map(str, case))} {error:+.1%}" for case, error in errors.items())
    assert mean(map(abs, errors.values())) < 0.03, shown
    assert max(map(abs, errors.values())) < 0.08, shown


@pytest.mark.torch
def test_attention_without_a_fused_kernel_keeps_its_softmax_in_float32() -> None:
    """Six bytes a score, which few words leave as the largest part.

    Where a block runs again the account is above: its feed-forward part is gone at the softmax.
    """
    pytest.importorskip("transformers")
    asked: Any = {"kernel": "eager", "vocabulary": 512}
    cases = [
        (weights, 4, again, length, 2)
        for weights in RECIPES
        for again in (False, True)
        for length in (2048, 8192)
    ]
    errors = {
        case: predicted(*case, **asked) / counted(*case, **asked) - 1
        for case in cases
        if case != ("autocast", 4, True, 2048, 2)  # where weights, not scores, hold most
    }
    shown = ", ".join(f"{'-'.join(map(str, case))} {error:+.1%}" for case, error in errors.items())
    assert mean(map(abs, errors.values())) < 0.04, shown
    assert max(map(abs, errors.values())) < 0.08, shown


def compared(logits: Any, tokens: Any, *, fused: bool) -> Any:
    """Log-probabilities of tokens, as TRL 1.13 has them of float32 logits, or a kernel at once."""
    import torch

    class Kernel(torch.autograd.Function):
        """What trl 1.14 allocates (kernels/logprob_entropy.py)."""

        @staticmethod
        def forward(ctx: Any, logits: Any) -> Any:
            ctx.save_for_backward(logits)
            return logits.new_empty(logits.shape[:-1])

        @staticmethod
        def backward(ctx: Any, _: Any) -> Any:
            return torch.empty_like(ctx.saved_tensors[0])

    if fused:
        return Kernel.apply(logits)
    chosen = torch.gather(logits, dim=-1, index=tokens.unsqueeze(-1)).squeeze(-1)
    return chosen - torch.stack([torch.logsumexp(row, dim=-1) for row in logits])


@pytest.mark.torch
@pytest.mark.parametrize("fused", [False, True])
def test_log_probabilities_beside_a_reference_take_what_the_account_says(fused: bool) -> None:
    """Of a pair of answers; outputs are float32, as Accelerate makes them under mixed precision."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from trainwright.lab.rank_program import Held, watched

    answers, length, width, words = 2, 1025, 16, 32_768
    held = Held()
    with FakeTensorMode(), watched(held), held:
        states = torch.zeros(answers, length, width, dtype=torch.bfloat16, requires_grad=True)
        head = torch.zeros(words, width, dtype=torch.bfloat16)
        tokens = torch.zeros(answers, length - 1, dtype=torch.long)

        def log_probs(states: Any) -> tuple[Any, Any]:
            logits = torch.nn.functional.linear(states, head).float()
            return compared(logits[..., :-1, :], tokens, fused=fused), logits

        own, logits = log_probs(states)
        with torch.no_grad():
            its, of_reference = log_probs(states)
        loss = torch.nn.functional.logsigmoid((own - its).sum(1)).mean()
        del logits, of_reference, own, its
        loss.backward()
    account = framework_memory("trl")
    kept = 4 if fused else 6  # a 16-bit softmax or a float32 one, and the gradient in 16 bit
    beside = account.compared_fused_bytes if fused else account.compared_bytes
    assert held.peak == pytest.approx((kept + beside) * answers * length * words, rel=0.02)


@pytest.mark.torch
def test_replicas_hold_a_copy_of_all_gradients_in_buckets() -> None:
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from trainwright.lab.rank_program import Held, watched

    held = Held()
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    try:
        with watched(held), held:
            model = torch.nn.Sequential(*(torch.nn.Linear(256, 256, bias=False) for _ in range(8)))
            weights = held.total
            replica = torch.nn.parallel.DistributedDataParallel(model)
            assert held.total - weights == weights, "as many bytes as gradients, before any is made"
            del replica
    finally:
        dist.destroy_process_group()
    run = replace(RUN, parallelism=Parallelism(data=4), global_batch=8)
    alone, among = (of_hugging_face(each) for each in (RUN, run))
    step = price_configuration(MODEL, CLUSTER, run)
    assert among - alone == step.stages[0].memory.gradient_bytes


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("fused", [False, True])
def test_an_update_that_is_not_fused_makes_the_roots_of_all_second_moments(
    dtype: str, fused: bool
) -> None:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from trainwright.lab.rank_program import Held, watched

    numbers = {"fp32": torch.float32, "bf16": torch.bfloat16}
    held = Held()
    with FakeTensorMode(), watched(held), held:
        own = [
            torch.nn.Parameter(torch.zeros(512, 512, dtype=numbers[dtype], device="cuda"))
            for _ in range(8)
        ]
        optimizer = torch.optim.AdamW(own, fused=fused, foreach=not fused)
        for weight in own:
            weight.grad = torch.zeros_like(weight)
        optimizer.step()  # which makes its states
        before = held.total
        held.forget_peak()
        optimizer.step()
    parameters = sum(weight.numel() for weight in own)
    recipe = Recipe(moment_dtypes=(dtype,), fused_update=fused)
    least = recipe.update_copy_bytes * parameters
    assert least <= held.peak - before < least + 0.02 * parameters


def of_adapters(blocks: int, again: bool, *, upcast: bool) -> float:
    """What the account has of adapters on attention beside 4-bit weights, four sequences."""
    low_rank = LowRank(rank=16, targets=ON_ATTENTION, bits=4)
    model = replace(MODEL, num_layers=blocks, tuning=Tuning(low_rank=low_rank))
    run = replace(
        RUN,
        microbatch_size=4,
        global_batch=8,
        recompute=Recompute.FULL if again else Recompute.NONE,
        recipe=Recipe(precision="bf16"),
    )
    account = replace(framework_memory("hugging-face"), upcasts_quantized=upcast)
    step = price_configuration(model, CLUSTER, run)
    (rank,) = memory_figures(model, run, step, account, device=CLUSTER.accelerator)
    return rank.allocated.typical_bytes


def counted_with_adapters(blocks: int, again: bool, *, upcast: bool) -> float:
    """The same on modules of transformers whose products work as those of bitsandbytes do.

    They multiply in 16 bit by weights that stay as they are (here in 16 bit), and give out numbers
    of the type that came in. With `upcast`, all else is float32, as PEFT prepares it.
    """
    import torch
    from torch import nn
    from torch._subclasses.fake_tensor import FakeTensorMode

    from trainwright.lab.rank_program import Held, watched

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(weight)
            return nn.functional.linear(x, weight)

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
            (weight,) = ctx.saved_tensors
            return grads[0].to(weight.dtype) @ weight, None

    class Adapted(nn.Module):
        def __init__(self, base: nn.Linear, *, rank: int) -> None:
            super().__init__()
            self.weight, self.rank = base.weight, rank
            if rank:
                self.down = nn.Linear(base.in_features, rank, bias=False, dtype=torch.float32)
                self.up = nn.Linear(rank, base.out_features, bias=False, dtype=torch.float32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", enabled=False):
                out: torch.Tensor = Product.apply(x.to(self.weight.dtype), self.weight)
                out = out.to(x.dtype)
            return out + self.up(self.down(x)) if self.rank else out

    held = Held()
    with FakeTensorMode(allow_non_fake_inputs=True), watched(held), held:
        model = decoder(blocks, narrow=True, again=again)
        for name, weight in model.named_parameters():
            weight.requires_grad = False
            if upcast and any(part in name for part in ("norm", "embed", "lm_head")):
                weight.data = weight.data.float()
        for layer in model.model.layers:
            for part, rank in ((layer.self_attn, 16), (layer.mlp, 0)):
                for name, each in list(part.named_children()):
                    if isinstance(each, nn.Linear):
                        setattr(part, name, Adapted(each, rank=rank))
        words = torch.zeros(4, RUN.sequence_length, dtype=torch.long)
        held.forget_peak()
        with torch.autocast("cpu", torch.bfloat16):
            masks = {"full_attention": None}
            loss = model(input_ids=words, attention_mask=masks, labels=words).loss
        loss.backward()
    return float(held.peak)


@pytest.mark.torch
@pytest.mark.parametrize("again", [False, True])
def test_beside_quantized_weights_blocks_pass_on_float32(again: bool) -> None:
    pytest.importorskip("transformers")
    blocks = 32 if again else 8
    wide, narrow = (
        counted_with_adapters(blocks, again, upcast=True),
        counted_with_adapters(blocks, again, upcast=False),
    )
    more = of_adapters(blocks, again, upcast=True) - of_adapters(blocks, again, upcast=False)
    assert more == pytest.approx(wide - narrow, rel=0.05)


def of_adapters_on_float32(blocks: int, again: bool) -> float:
    """What the account has of adapters beside float32 weights under autocast, four sequences."""
    low_rank = LowRank(rank=16, targets=ON_ATTENTION)
    model = replace(MODEL, num_layers=blocks, tuning=Tuning(low_rank=low_rank))
    run = replace(
        RUN,
        microbatch_size=4,
        global_batch=8,
        recompute=Recompute.FULL if again else Recompute.NONE,
        recipe=Recipe(precision="bf16_autocast"),
    )
    account = framework_memory("hugging-face")
    step = price_configuration(model, CLUSTER, run)
    (rank,) = memory_figures(model, run, step, account, device=CLUSTER.accelerator)
    return rank.allocated.typical_bytes


def counted_on_float32(blocks: int, again: bool) -> float:
    """The same on modules of transformers, all weights frozen but for the adapters'."""
    import torch
    from torch import nn
    from torch._subclasses.fake_tensor import FakeTensorMode

    from trainwright.lab.rank_program import Held, watched

    class Adapted(nn.Module):
        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base = base
            self.down = nn.Linear(base.in_features, 16, bias=False, dtype=torch.float32)
            self.up = nn.Linear(16, base.out_features, bias=False, dtype=torch.float32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.base(x)
            return out + self.up(self.down(x))

    held = Held()
    with FakeTensorMode(allow_non_fake_inputs=True), watched(held), held:
        model = decoder(blocks, narrow=False, again=again)
        for weight in model.parameters():
            weight.requires_grad = False
        for layer in model.model.layers:
            for name, each in list(layer.self_attn.named_children()):
                if isinstance(each, nn.Linear):
                    setattr(layer.self_attn, name, Adapted(each))
        words = torch.zeros(4, RUN.sequence_length, dtype=torch.long)
        held.forget_peak()
        with torch.autocast("cpu", torch.bfloat16):
            masks = {"full_attention": None}
            loss = model(input_ids=words, attention_mask=masks, labels=words).loss
        loss.backward()
    return float(held.peak)


@pytest.mark.torch
@pytest.mark.parametrize("again", [False, True])
def test_autocast_keeps_no_copies_of_frozen_weights_but_those_that_backward_reads(
    again: bool,
) -> None:
    """ATen caches the casts of weights that train; recomputed blocks make the others again."""
    pytest.importorskip("transformers")
    for blocks in (8, 32):
        found, expected = of_adapters_on_float32(blocks, again), counted_on_float32(blocks, again)
        assert found == pytest.approx(expected, rel=0.06 if again else 0.10), blocks


def alive_at_most(blocks: int, *, frozen: bool, reentrant: bool) -> int:
    """Hidden states that live at once in a step of the first FSDP, one of two ranks."""
    import weakref

    import torch
    from torch import distributed, nn
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.checkpoint import checkpoint

    rows, width = 64, 96

    class Adapter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(width))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.product, self.adapter = nn.Linear(width, width, bias=False), Adapter()
            self.product.weight.requires_grad_(not frozen)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.tanh(self.product(x) + self.adapter(x))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(blocks))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=reentrant)
            return x

    class Alive(TorchDispatchMode):
        now = most = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), more: Any = None):
            found = function(*args, **(more or {}))
            if isinstance(found, torch.Tensor) and found.shape == (rows, width):
                held = found.untyped_storage()
                if held._cdata not in own:
                    own.add(held._cdata)
                    self.now += 1
                    self.most = max(self.most, self.now)
                    weakref.finalize(held, self.gone, held._cdata)
            return found

        def gone(self, storage: int) -> None:
            own.discard(storage)
            self.now -= 1

    own: set[int] = set()
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        units = ModuleWrapPolicy({Block, Adapter})
        model = FullyShardedDataParallel(
            Model(), auto_wrap_policy=units, device_id=torch.device("cpu")
        )
        alive = Alive()
        with alive:
            model(torch.randn(rows, width, requires_grad=True)).sum().backward()
    finally:
        distributed.destroy_process_group()
    return alive.most


@pytest.mark.torch
@pytest.mark.parametrize(("frozen", "reentrant"), [(True, True), (True, False), (False, True)])
def test_the_first_fsdp_keeps_what_frozen_blocks_read_and_its_gradient(
    frozen: bool, reentrant: bool
) -> None:
    """Reentrant checkpoints alone: of others, and where weights train, blocks free what they read.

    So `keeps_frozen` of the account `hugging-face-fsdp1`.
    """
    blocks, kept = 24, 1 + (frozen and reentrant)
    alive = alive_at_most(blocks, frozen=frozen, reentrant=reentrant)
    assert kept * blocks <= alive <= kept * blocks + 8


def of_adapters_on_shards(blocks: int, again: bool, bits: int | None) -> float:
    """What the account has of adapters beside weights that FSDP2 shards over eight devices."""
    low_rank = LowRank(rank=16, targets=ON_ATTENTION, bits=bits)
    model = replace(MODEL, num_layers=blocks, tuning=Tuning(low_rank=low_rank))
    run = replace(
        RUN,
        parallelism=Parallelism(data=8, zero_stage=3),
        global_batch=8,
        recompute=Recompute.FULL if again else Recompute.NONE,
        recipe=Recipe(precision="bf16"),
    )
    account = framework_memory("hugging-face")
    step = price_configuration(model, CLUSTER, run)
    (rank,) = memory_figures(model, run, step, account, device=CLUSTER.accelerator)
    return rank.allocated.typical_bytes


def counted_on_shards(blocks: int, again: bool, *, narrow: bool) -> float:
    """The same on modules of transformers, in the units that accelerate makes of them."""
    import torch
    from torch import distributed, nn
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from trainwright.lab.rank_program import Held, watched

    class Adapted(nn.Module):
        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base = base
            self.down = nn.Linear(base.in_features, 16, bias=False, dtype=torch.float32)
            self.up = nn.Linear(16, base.out_features, bias=False, dtype=torch.float32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.base(x)
            return out + self.up(self.down(x))

    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    held = Held()
    try:
        mesh = init_device_mesh("cpu", (8,))
        with torch.device("meta"):
            model = decoder(blocks, narrow=narrow, again=again)
            for weight in model.parameters():
                weight.requires_grad = False
            for layer in model.model.layers:
                for name, each in list(layer.self_attn.named_children()):
                    if isinstance(each, nn.Linear):
                        setattr(layer.self_attn, name, Adapted(each))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(model.model.embed_tokens, mesh=mesh, mp_policy=policy)
        last = [model.model.norm, model.lm_head]
        fully_shard(last, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        with FakeTensorMode(allow_non_fake_inputs=True), watched(held), held:
            model.to_empty(device="cpu")
            own = [weight for weight in model.parameters() if weight.requires_grad]
            optimizer = torch.optim.AdamW(own, fused=True)
            words = torch.zeros(1, RUN.sequence_length, dtype=torch.long)
            for _ in range(2):  # the first makes the states
                held.forget_peak()
                with torch.autocast("cpu", torch.bfloat16):
                    masks = {"full_attention": None}
                    loss = model(input_ids=words, attention_mask=masks, labels=words).loss
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
    finally:
        distributed.destroy_process_group()
    return float(held.peak)


@pytest.mark.torch
@pytest.mark.parametrize("again", [False, True])
def test_fsdp_keeps_frozen_weights_in_float32_shards_that_it_gathers_in_16_bit(
    again: bool,
) -> None:
    pytest.importorskip("transformers")
    blocks = 36 if again else 12
    narrow, wide = (counted_on_shards(blocks, again, narrow=each) for each in (True, False))
    expected = [of_adapters_on_shards(blocks, again, bits) for bits in (None, 32)]
    assert expected[1] - expected[0] == pytest.approx(wide - narrow, rel=0.02)
    assert expected == pytest.approx([narrow, wide], rel=0.06)
