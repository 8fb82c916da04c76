"""Context and expert parallelism cut work and state without losing or inventing any."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.costing.layer import KEEP_ALL, activation_bytes, parameters_per_device
from trainwright.errors import InvalidInput
from trainwright.formats import catalog
from trainwright.model import (
    ContextExchange,
    LayerClass,
    LayerKind,
    Phase,
    Recipe,
    Routing,
    RunShape,
    TokenDispatcher,
    TransformerConfig,
    layer_graph,
)
from trainwright.model.feed_forward import FeedForward
from trainwright.model.run_shape import heaviest_share

S = 4096

DEALT = RunShape(
    microbatch_size=1,
    sequence_length=S,
    tensor_parallel=2,
    sequence_parallel=True,
    expert_parallel=4,
    expert_tensor_parallel=1,
)


def block(config: TransformerConfig, run: RunShape) -> LayerClass:
    graph = layer_graph(config, run)
    return graph.classes[graph.kinds.index(LayerKind.BLOCK)]


def kept(layer: LayerClass, run: RunShape) -> float:
    found = activation_bytes(layer, run, KEEP_ALL)
    return found.until_input_grad + found.until_weight_grad


shapes = st.builds(
    RunShape,
    microbatch_size=st.sampled_from([1, 2]),
    sequence_length=st.just(S),
    tensor_parallel=st.sampled_from([1, 2, 4]),
    sequence_parallel=st.booleans(),
    fused_attention=st.booleans(),
)
contexts = st.sampled_from([2, 4, 8])
exchanges = st.sampled_from(list(ContextExchange))


@given(run=shapes, c=contexts, exchange=exchanges)
def test_context_parallelism_divides_flops_and_activations(
    run: RunShape, c: int, exchange: ContextExchange
) -> None:
    config = catalog.model("llama3-8b").config
    both = exchange is ContextExchange.ALL_TO_ALL_RING
    cut = replace(run, context_parallel=c, context_exchange=exchange, ulysses=2 if both else None)
    whole, part = block(config, run), block(config, cut)
    assert part.forward_flops * c == pytest.approx(whole.forward_flops, rel=1e-12)
    assert kept(part, cut) * c == pytest.approx(kept(whole, run), rel=1e-12)
    assert parameters_per_device(part) == parameters_per_device(whole)


@given(run=shapes, c=contexts)
def test_a_ring_passes_all_keys_and_values_once_forward_and_twice_backward(
    run: RunShape, c: int
) -> None:
    config = catalog.model("llama3-8b").config
    cut = replace(run, context_parallel=c)
    sent = [x.bytes for x in block(config, cut).exchanges if x.axis == "context"]
    own = 2 * 2 * cut.tokens * config.key_value_size / cut.tensor_parallel
    assert sent == [own, 2 * own]


@pytest.mark.parametrize("c", [2, 4])
def test_without_zig_zag_the_last_rank_attends_to_nearly_twice_the_mean(c: int) -> None:
    """Of s²/2 pairs the last of c ranks has s/c · (s - s/2c)."""
    config = catalog.model("llama3-8b").config
    run = RunShape(microbatch_size=1, sequence_length=S, context_parallel=c)
    skewed = replace(run, context_balanced=False)

    def attention(run: RunShape) -> float:
        return next(o for o in block(config, run).operators if o.name == "attention").forward.flops

    assert attention(skewed) / attention(run) == pytest.approx((2 * c - 1) / c)


@given(run=shapes, c=contexts)
def test_the_ends_of_both_exchanges_are_each_alone(run: RunShape, c: int) -> None:
    """With all ranks trading heads nothing is passed on, with none the ring is whole."""
    config = catalog.model("llama3-8b").config

    def sent(exchange: ContextExchange, ulysses: int | None = None) -> dict[str, list[float]]:
        cut = replace(run, context_parallel=c, context_exchange=exchange, ulysses=ulysses)
        found: dict[str, list[float]] = {}
        for each in block(config, cut).exchanges:
            members = c if each.nearest is None else each.nearest
            members = members if each.apart is None else c // each.apart
            if each.axis == "context" and members > 1:
                found.setdefault(each.kind, []).append(each.bytes)
        return found

    both = ContextExchange.ALL_TO_ALL_RING
    assert sent(both, c) == sent(ContextExchange.ALL_TO_ALL)
    assert sent(both, 1) == sent(ContextExchange.RING)
    if c > 2:
        assert sent(both, 2) == sent(ContextExchange.ALL_TO_ALL) | sent(ContextExchange.RING)


def test_a_group_that_trades_heads_divides_the_context_ranks() -> None:
    run = RunShape(
        microbatch_size=1,
        sequence_length=S,
        context_parallel=4,
        context_exchange=ContextExchange.ALL_TO_ALL_RING,
        ulysses=3,
    )
    with pytest.raises(InvalidInput, match=r"must be a multiple of ulysses \(3\), got 4"):
        layer_graph(catalog.model("llama3-8b").config, run)


def test_trading_heads_needs_as_many_heads() -> None:
    run = RunShape(
        microbatch_size=1,
        sequence_length=S,
        tensor_parallel=8,
        context_parallel=8,
        context_exchange=ContextExchange.ALL_TO_ALL,
    )
    with pytest.raises(InvalidInput, match="must divide the 32 heads for all_to_all, got 64"):
        layer_graph(catalog.model("llama3-8b").config, run)


@given(
    t=st.sampled_from([1, 2, 4]),
    e=st.sampled_from([1, 2, 4, 8]),
    x=st.sampled_from([1, 2, 4]),
    model=st.sampled_from(["mixtral-8x7b", "qwen3-30b-a3b"]),
)
def test_expert_parallelism_divides_the_experts_and_nothing_else(
    t: int, e: int, x: int, model: str
) -> None:
    config = catalog.model(model).config
    base = RunShape(microbatch_size=1, sequence_length=S, tensor_parallel=t)
    run = replace(base, expert_parallel=e, expert_tensor_parallel=x)
    one = RunShape(microbatch_size=1, sequence_length=S)
    dense, expert = parameters_per_device(block(config, run))
    assert dense == parameters_per_device(block(config, base))[0]
    assert expert * e * x == parameters_per_device(block(config, one))[1]


@given(t=st.sampled_from([1, 2, 4]), x=st.sampled_from([1, 2, 4]), e=st.sampled_from([1, 4]))
def test_balanced_experts_do_the_same_work_however_they_are_dealt_out(
    t: int, x: int, e: int
) -> None:
    config = catalog.model("mixtral-8x7b").config
    base = RunShape(microbatch_size=1, sequence_length=S, tensor_parallel=t)
    run = replace(base, expert_parallel=e, expert_tensor_parallel=x)
    assert block(config, run).forward_flops == pytest.approx(block(config, base).forward_flops)
    assert block(config, run).model_flops == block(config, base).model_flops


@pytest.mark.parametrize("name", ["llama3-8b", "mixtral-8x7b", "qwen1.5-moe-a2.7b"])
@pytest.mark.parametrize("e", [1, 2])
def test_what_an_exchange_hides_under_is_an_operator_beside_it(name: str, e: int) -> None:
    config = catalog.model(name).config
    experts = {} if config.experts is None else {"expert_parallel": e}
    shape = {"tensor_parallel": 2, "sequence_parallel": True, **experts}
    run = RunShape(microbatch_size=1, sequence_length=S, **shape)
    layer = block(config, run)
    hiders = {each.hides_under for each in layer.exchanges} - {None}
    names = {operator.name for operator in layer.operators}
    assert hiders
    assert hiders <= names
    parts = {part for part in FeedForward if part.first in names}
    assert all(part.last in names for part in parts)
    assert (FeedForward.MLP in parts) == (config.experts is None)
    shared = config.experts is not None and config.experts.shared_ffn_size > 0
    assert (FeedForward.SHARED_EXPERT in parts) == shared


def test_imbalance_and_capacity_scale_the_experts_of_the_heaviest_rank() -> None:
    config = catalog.model("mixtral-8x7b").config
    base = RunShape(microbatch_size=1, sequence_length=S, expert_parallel=4)

    def expert_flops(run: RunShape) -> float:
        found = block(config, run).operators
        return sum(
            o.forward.flops
            for o in found
            if o.name in (FeedForward.EXPERT.first, FeedForward.EXPERT.last)
        )

    even = expert_flops(base)
    assert even == 2.0 * 3 * 2 * S * 4096 * 14336
    assert expert_flops(replace(base, expert_imbalance=1.5)) == 1.5 * even
    padded = replace(base, expert_imbalance=1.5, capacity_factor=1.25)
    assert expert_flops(padded) == 1.25 * even
    with pytest.raises(InvalidInput, match=r"expert_imbalance: must be >= 1, got 0\.5"):
        replace(base, expert_imbalance=0.5)


def test_dispatch_and_combine_carry_every_routed_copy_both_ways() -> None:
    config = catalog.model("mixtral-8x7b").config
    run = DEALT
    sent = [x for x in block(config, run).exchanges if x.axis == "expert"]
    assert [(x.kind, x.bytes) for x in sent] == [("all_to_all", 2.0 * 2 * S * 4096 / 2)] * 4
    assert not [x for x in block(config, run).exchanges if x.axis == "expert_tensor"]


def test_only_what_goes_to_experts_is_sent_in_the_dispatch_format() -> None:
    """Both ways: dispatch and the gradients sent to experts; what comes back keeps its format."""
    config = catalog.model("mixtral-8x7b").config
    run = replace(DEALT, expert_tensor_parallel=2)
    numbers = Recipe(dispatch_dtype="fp8").numbers("bf16")
    exact = block(config, run).exchanges
    coarse = block(config, replace(run, precision=numbers)).exchanges
    ratio = (1 + 4 / 128) / 2
    for axis, there in (("expert", "all_to_all"), ("expert_tensor", "all_gather")):
        for phase in (Phase.FORWARD, Phase.INPUT_GRAD):
            before, after = (
                sorted(x.bytes for x in found if (x.axis, x.phase) == (axis, phase))
                for found in (exact, coarse)
            )
            assert len(before) == 2
            assert after == pytest.approx([ratio * before[0], before[1]])
        sent = [x.bytes for x in coarse if x.axis == axis and x.kind == there]
        assert min(sent) == pytest.approx(ratio * max(x.bytes for x in exact if x.axis == axis))
    assert Recipe().numbers("fp8").dispatch_bytes == 2
    assert Recipe().numbers("fp32").dispatch_bytes == 4


def test_hierarchical_dispatch_says_how_tokens_choose() -> None:
    config = catalog.model("deepseek-v2").config
    assert config.experts is not None
    config = replace(config, experts=replace(config.experts, num_dense_layers=0))
    run = RunShape(microbatch_size=1, sequence_length=S, expert_parallel=20)
    flat = [x for x in block(config, run).exchanges if x.axis == "expert"]
    assert all(x.routing is None for x in flat)
    once = replace(run, token_dispatcher=TokenDispatcher.HIERARCHICAL)
    found = [x for x in block(config, once).exchanges if x.axis == "expert"]
    routing = Routing(
        num_experts=160, experts_per_token=6, num_groups=8, groups_per_token=3, ranks=20
    )
    assert {x.routing for x in found} == {routing}
    assert [x.bytes for x in found] == [x.bytes for x in flat]


def test_a_model_without_experts_deals_none_out() -> None:
    run = RunShape(microbatch_size=1, sequence_length=S, expert_parallel=2)
    with pytest.raises(InvalidInput, match="must be 1 for a model without experts, got 2"):
        layer_graph(catalog.model("llama3-8b").config, run)
    with pytest.raises(InvalidInput, match="must divide the 8 experts, got 3"):
        layer_graph(catalog.model("mixtral-8x7b").config, replace(run, expert_parallel=3))


@given(
    loads=st.lists(st.floats(0, 1e6), min_size=8, max_size=8).filter(lambda x: sum(x) > 1),
    groups=st.sampled_from([1, 2, 4, 8]),
)
def test_groups_of_experts_are_more_even_than_experts(loads: list[float], groups: int) -> None:
    share = heaviest_share(tuple(loads), 8, groups)
    assert 1 - 1e-9 <= share <= groups * (1 + 1e-9)
    assert share <= heaviest_share(tuple(loads), 8, 8) * (1 + 1e-9)
    if groups > 1:
        assert heaviest_share(tuple(loads), 8, groups // 2) <= share * (1 + 1e-9)
    hot = max(loads) * 8 / sum(loads)  # of the heaviest alone, the others are taken to be alike
    assert heaviest_share((hot,), 8, 8) == pytest.approx(heaviest_share(tuple(loads), 8, 8))
    assert heaviest_share((hot,), 8, 1) == pytest.approx(1)


def test_a_hot_expert_costs_more_the_fewer_share_its_device() -> None:
    config = catalog.model("mixtral-8x7b").config
    found = []
    for spread in (1, 2, 8):
        even = RunShape(microbatch_size=1, sequence_length=S, expert_parallel=spread)
        hot = replace(even, expert_loads=(1.72,))
        ratio = block(config, hot).transient_bytes / block(config, even).transient_bytes
        assert sum(1 for t in block(config, hot).saved if t.name == "expert_activation.input")
        rows = [r.expert_rows(2, 8) for r in (hot, even)]
        found.append(rows[0] / rows[1])
        assert ratio >= 1
    assert found == [pytest.approx(x, rel=1e-3) for x in (1.0, 1.1029, 1.72)]
    with pytest.raises(InvalidInput, match="must be of all 8 experts, or one, got 3"):
        layer_graph(config, RunShape(microbatch_size=1, sequence_length=S, expert_loads=(1, 2, 3)))
