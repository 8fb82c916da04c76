"""Adapters and frozen layers: what trains, what is computed, what is kept."""

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.costing.layer import KEEP_ALL, activation_bytes, static_bytes
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.formats import catalog
from trainwright.formats.hf_config import read_config
from trainwright.formats.hf_families import FAMILIES
from trainwright.formats.hf_towers import WRAPPERS
from trainwright.model import (
    LayerClass,
    LayerGraph,
    LayerKind,
    LowRank,
    Phase,
    RunShape,
    TransformerConfig,
    Tuning,
    count_parameters,
    layer_graph,
    model_flops_per_sequence,
)
from trainwright.model.run_shape import BF16, FP8
from trainwright.model.transformer import adapter_targets, usual_targets

ATTENTION = ("query", "key", "value", "attention_output")
EVERYWHERE = (*ATTENTION, "gate", "up", "down")


def tuned(name: str, tuning: Tuning) -> TransformerConfig:
    return replace(catalog.model(name).config, tuning=tuning)


def adapted(
    name: str, rank: int, targets: tuple[str, ...], dropout: float = 0.0
) -> TransformerConfig:
    low_rank = LowRank(rank=rank, targets=targets, dropout=dropout)
    return tuned(name, Tuning(low_rank=low_rank))


def graph(config: TransformerConfig, **run: object) -> LayerGraph:
    shape = {"microbatch_size": 1, "sequence_length": 512, "vocabulary_multiple": 1} | run
    return layer_graph(config, RunShape(**shape))  # type: ignore[arg-type]


def block(found: LayerGraph, index: int = -1) -> LayerClass:
    return found.classes[
        [c for c in found.layers if found.classes[c].kind is LayerKind.BLOCK][index]
    ]


def kept(layer: LayerClass, run: RunShape) -> float:
    found = activation_bytes(layer, run, KEEP_ALL)
    return found.until_input_grad + found.until_weight_grad


@pytest.mark.parametrize(
    ("name", "rank", "targets", "trainable"),
    [
        # Hu et al., 2021, table 4 (GPT-3, queries and values: 4.7 M and 37.7 M).
        ("gpt3-175b", 1, ("query", "value"), 4_718_592),
        ("gpt3-175b", 8, ("query", "value"), 37_748_736),
        # The counts that the peft library prints for these models.
        ("llama2-7b", 8, ("query", "value"), 4_194_304),
        ("llama2-7b", 16, EVERYWHERE, 39_976_960),
        ("llama3-8b", 16, EVERYWHERE, 41_943_040),
        ("mistral-7b", 8, ("query", "value"), 3_407_872),
    ],
)
def test_adapters_train_the_published_number_of_parameters(
    name: str, rank: int, targets: tuple[str, ...], trainable: int
) -> None:
    found = graph(adapted(name, rank, targets))
    assert found.num_trainable_parameters == trainable
    base = count_parameters(catalog.model(name).config)
    assert found.num_parameters == base + trainable


def test_frozen_parameters_have_a_weight_and_nothing_else() -> None:
    config = adapted("llama3-8b", 16, EVERYWHERE)
    found = graph(config)
    layer = block(found)
    (dense, _) = static_bytes(layer, found.run.precision)
    trained = sum(p.count for p in layer.parameters if p.trainable)
    assert dense == (2 * layer.num_parameters, 4 * trained, 12 * trained)


def test_frozen_products_have_no_weight_gradient() -> None:
    for op in block(graph(adapted("llama3-8b", 16, EVERYWHERE))).operators:
        frozen = op.parameters and not any(p.trainable for p in op.parameters)
        assert not (frozen and op.weight_grad.flops)


def test_a_step_with_adapters_costs_about_two_thirds() -> None:
    """Forward and one gradient of each product; attention keeps both of its own."""
    full = model_flops_per_sequence(catalog.model("llama3-8b").config, 4096)
    light = model_flops_per_sequence(adapted("llama3-8b", 16, EVERYWHERE), 4096)
    attention = 4 * 4096**2 * 4096 * 32 / 70.274e12
    assert light / full == pytest.approx((2 + attention) / 3, abs=0.005)
    assert light / full > (2 + attention) / 3


def test_a_block_with_adapters_keeps_less_but_for_what_they_read() -> None:
    config = catalog.model("llama3-8b").config
    run = RunShape(microbatch_size=1, sequence_length=512)
    whole = kept(block(layer_graph(config, run)), run)
    everywhere = kept(block(layer_graph(adapted("llama3-8b", 16, EVERYWHERE), run)), run)
    queries = kept(block(layer_graph(adapted("llama3-8b", 16, ("query",)), run)), run)
    assert queries < everywhere
    rank_tensors = 512 * 2 * 16 * 7
    assert everywhere == whole + rank_tensors
    dropped = 512 * 2 * (4096 + 4096 + 14336)  # inputs of output projection, of up and of down
    assert queries == whole - dropped + 512 * 2 * 16


def test_a_product_in_8_bit_reads_8_bit_weights_as_they_are() -> None:
    low_rank = LowRank(rank=8, targets=("query",), bits=8)
    config = tuned("llama2-7b", Tuning(low_rank=low_rank))
    plain = graph(adapted("llama2-7b", 8, ("query",)), precision=FP8)
    expanded, direct = (block(graph(config, precision=p)) for p in (BF16, FP8))
    work = [sum(op.forward.read_bytes for op in b.operators) for b in (block(plain), direct)]
    assert work[0] == work[1]
    written = [sum(op.forward.written_bytes for op in b.operators) for b in (expanded, direct)]
    assert written[0] > written[1]
    weights = [static_bytes(b, p)[0][0] for b, p in ((expanded, BF16), (direct, FP8))]
    assert weights[0] == weights[1]


def test_dropout_before_an_adapter_keeps_a_copy_and_a_mask() -> None:
    run = RunShape(microbatch_size=1, sequence_length=512)
    layers = [
        block(layer_graph(adapted("llama3-8b", 16, ("query",), dropout), run))
        for dropout in (0.0, 0.05)
    ]
    # Without dropout the adapter reads the norm's output, which is kept; with it, a copy instead.
    assert kept(layers[1], run) - kept(layers[0], run) == 512 * 4096


def test_nothing_before_the_first_adapter_has_a_backward() -> None:
    found = graph(adapted("llama3-8b", 16, ("down",)))
    embedding, first = found.classes[found.layers[0]], found.classes[found.layers[1]]
    assert embedding.saved == ()
    assert all(op.input_grad.bytes == op.weight_grad.bytes == 0 for op in embedding.operators)
    names = {op.name for op in first.operators if op.input_grad.bytes}
    assert names <= {"mlp_out.adapter_down_b", "mlp_residual"}
    second = found.classes[found.layers[2]]
    assert any(op.name == "attention" and op.input_grad.flops for op in second.operators)


def test_frozen_first_blocks_have_a_forward_only() -> None:
    tuning = Tuning(frozen_kinds=(LayerKind.EMBEDDING,), num_frozen_blocks=30)
    found = graph(tuned("llama3-8b", tuning), tensor_parallel=2, sequence_parallel=True)
    whole = graph(catalog.model("llama3-8b").config, tensor_parallel=2, sequence_parallel=True)
    frozen, trained = block(found, 0), block(found, -1)
    assert frozen.saved == ()
    assert frozen.transient_bytes == 0
    assert {x.phase for x in frozen.exchanges} == {Phase.FORWARD}
    assert all(not op.work(Phase.INPUT_GRAD).bytes for op in frozen.operators)
    assert trained == block(whole)
    assert frozen.forward_flops == trained.forward_flops


def test_a_frozen_embedding_alone_still_lets_gradients_reach_its_blocks() -> None:
    found = graph(tuned("llama3-8b", Tuning(frozen_kinds=(LayerKind.EMBEDDING,))))
    assert found.num_trainable_parameters == 8_030_261_248 - 128256 * 4096
    first, last = block(found, 0), block(found)
    (products,) = (op for op in first.operators if op.name == "query_key_value")
    assert products.weight_grad.flops
    assert last == block(graph(catalog.model("llama3-8b").config))


def test_frozen_operators_are_frozen_wherever_they_are() -> None:
    found = graph(tuned("mixtral-8x7b", Tuning(frozen_operators=("router",))))
    whole = count_parameters(catalog.model("mixtral-8x7b").config)
    assert found.num_trainable_parameters == whole - 32 * 4096 * 8


def test_a_relu_between_frozen_products_keeps_its_output() -> None:
    found = graph(adapted("opt-6.7b", 8, ("query",)))
    assert "mlp_out.input" in {tensor.name for tensor in block(found).saved}
    gelu = graph(adapted("gpt3-175b", 8, ("query",)))
    assert "mlp_out.input" not in {tensor.name for tensor in block(gelu).saved}


def test_latent_attention_takes_adapters_on_its_own_projections() -> None:
    targets = ("query_down", "query_up", "key_value_down", "key_value_up", "attention_output")
    found = graph(adapted("deepseek-v3", 8, targets))
    h, a = 7168, 128
    widths = [(h, 1536), (1536, a * 192), (h, 576), (512, a * 256), (a * 128, h)]
    blocks = 61 + 1
    assert found.num_trainable_parameters == blocks * 8 * sum(i + o for i, o in widths)


@given(
    t=st.sampled_from([1, 2, 4, 8]),
    sequence_parallel=st.booleans(),
    rank=st.integers(1, 64),
    targets=st.sets(st.sampled_from(EVERYWHERE), min_size=1).map(lambda s: tuple(sorted(s))),
)
def test_adapters_never_cost_more_memory_or_work_than_training_everything(
    t: int, sequence_parallel: bool, rank: int, targets: tuple[str, ...]
) -> None:
    shape = {"tensor_parallel": t, "sequence_parallel": sequence_parallel}
    whole = graph(catalog.model("llama3-8b").config, **shape)
    found = graph(adapted("llama3-8b", rank, targets), **shape)
    for one, other in ((block(found), block(whole)),):
        states = [sum(static_bytes(c, whole.run.precision)[0]) for c in (one, other)]
        assert states[0] < states[1]
        backward = [sum(op.weight_grad.flops for op in c.operators) for c in (one, other)]
        assert backward[0] < backward[1]


def fault(**changes: object) -> str:
    config = catalog.model(str(changes.pop("name", "llama3-8b"))).config
    with pytest.raises(InvalidInput) as caught:
        graph(replace(config, tuning=Tuning(**changes)))  # type: ignore[arg-type]
    return str(caught.value)


def test_impossible_tunings_are_refused() -> None:
    assert "rank: must be >= 1" in fault(low_rank=LowRank(rank=0, targets=("query",)))
    assert "targets: must have at least 1" in fault(low_rank=LowRank(rank=1, targets=()))
    assert "dropout: must be in [0, 1)" in fault(
        low_rank=LowRank(rank=1, targets=("query",), dropout=1.0)
    )
    assert "num_frozen_blocks: must be in 0..32" in fault(num_frozen_blocks=33)
    assert "must be of attention_output, down, gate, key, query, up, value" in fault(
        low_rank=LowRank(rank=1, targets=("q_proj",))
    )
    assert "embedding and lm_head together" in fault(
        name="gpt2", frozen_kinds=(LayerKind.EMBEDDING,)
    )


@pytest.mark.parametrize("images", [0, 2])
def test_adapters_stand_in_the_blocks_of_text_and_the_encoder_is_frozen(images: int) -> None:
    low_rank = LowRank(rank=16, targets=("query", "value"))
    text = catalog.model("qwen3-vl-8b").config
    config = replace(text, images=images, tuning=Tuning(low_rank=low_rank))
    # Qwen3-VL-8B: 36 blocks, hidden 4096, 32 query and 8 value heads of 128.
    each = 16 * (4096 + 32 * 128) + 16 * (4096 + 8 * 128)
    assert graph(config).num_trainable_parameters == 36 * each


def test_adapters_have_the_widths_of_the_block_that_they_stand_in() -> None:
    sizes = {"hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 192}
    sizes |= {"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 300}
    heads = {"num_attention_heads_per_layer": [8, 4], "head_dim": 16, "num_experts": 8}
    text = read_config({"model_type": "laguna", **sizes, **heads}, name="x").config
    shape = RunShape(microbatch_size=1, sequence_length=64)
    low_rank = LowRank(rank=4, targets=("query",))
    graph = layer_graph(replace(text, tuning=Tuning(low_rank=low_rank)), shape)
    adapters = graph.num_parameters - layer_graph(text, shape).num_parameters
    assert adapters == 4 * (128 + 8 * 16) + 4 * (128 + 4 * 16)


def test_adapters_stand_beside_the_products_of_mixers() -> None:
    stated = {"model_type": "mamba2", "hidden_size": 128, "num_hidden_layers": 3, "expand": 2}
    stated |= {"num_heads": 4, "head_dim": 64, "state_size": 16, "n_groups": 2, "vocab_size": 300}
    text = read_config(stated, name="x").config
    shape = RunShape(microbatch_size=1, sequence_length=64)
    plain = layer_graph(text, shape)
    low_rank = LowRank(rank=4, targets=("mixer_in", "mixer_out"))
    graph = layer_graph(replace(text, tuning=Tuning(low_rank=low_rank)), shape)
    inner = 2 * 256 + 2 * 2 * 16 + 4  # gate, channels of the convolution, steps
    each = 4 * (128 + inner) + 4 * (256 + 128)
    assert graph.num_parameters - plain.num_parameters == 3 * each
    assert graph.model_step_flops < plain.model_step_flops  # no weight gradient of what is frozen
    with pytest.raises(InvalidInput, match="must be of mixer_in, mixer_out"):
        layer_graph(
            replace(text, tuning=Tuning(low_rank=replace(low_rank, targets=("up",)))), shape
        )


def _adapted(stated: dict, *targets: str) -> int:
    """Parameters that adapters of rank 4 beside these products add."""
    text = read_config(stated, name="x").config
    shape = RunShape(microbatch_size=1, sequence_length=64)
    tuned = replace(text, tuning=Tuning(low_rank=LowRank(rank=4, targets=targets)))
    return layer_graph(tuned, shape).num_parameters - layer_graph(text, shape).num_parameters


def test_attention_to_an_encoder_has_adapters_of_the_same_names() -> None:
    t5 = {"model_type": "t5", "d_model": 64, "d_kv": 8, "num_heads": 4, "d_ff": 128}
    t5 |= {"num_layers": 2, "vocab_size": 100}
    assert _adapted(t5, "query", "value") == 2 * 2 * 2 * 4 * (64 + 32)


def test_adapters_of_compressed_attention_and_of_narrow_values() -> None:
    v4 = {"model_type": "deepseek_v4", "hidden_size": 128, "num_hidden_layers": 1}
    v4 |= {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 300}
    v4 |= {"q_lora_rank": 32, "o_groups": 4, "o_lora_rank": 8, "compress_ratios": [0]}
    v4 |= {"moe_intermediate_size": 64, "n_routed_experts": 8, "num_experts_per_tok": 2}
    v4 |= {"num_nextn_predict_layers": 0}
    assert _adapted(v4, "query_down", "query_up") == 4 * (128 + 32) + 4 * (32 + 8 * 16)
    assert _adapted(v4, "attention_output") == 4 * (4 * 8 + 128)
    mimo = {"model_type": "mimo_v2_flash", "hidden_size": 128, "num_hidden_layers": 1}
    mimo |= {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16, "v_head_dim": 8}
    mimo |= {"n_routed_experts": 8, "num_experts_per_tok": 2, "layer_types": ["full_attention"]}
    assert _adapted(mimo, "value") == 4 * (128 + 2 * 8)


def test_each_routed_expert_has_an_adapter_of_its_own() -> None:
    sizes = {"model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 300}
    sizes |= {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    both = ("expert_gate", "expert_up", "expert_down")
    assert _adapted(sizes, *both) == 2 * 8 * 3 * 4 * (64 + 32)
    text = read_config(sizes, name="x").config
    tuned = replace(text, tuning=Tuning(low_rank=LowRank(rank=4, targets=both)))
    whole = RunShape(microbatch_size=1, sequence_length=64)
    narrow = 2 * (4 * 64 + 4 * 32 // 2) + (4 * 32 // 2 + 4 * 64)  # each cut along its wide side
    for degrees, held in (
        ({"expert_parallel": 4}, 8 // 4 * 3 * 4 * (64 + 32)),
        ({"tensor_parallel": 2, "expert_tensor_parallel": 2}, 8 * narrow),
    ):
        block = layer_graph(tuned, replace(whole, **degrees)).classes[1]
        parameters = [p for op in block.operators for p in op.parameters if p.expert]
        assert sum(p.count_per_device for p in parameters if p.trainable) == held
    step = [layer_graph(config, whole).model_step_flops for config in (text, tuned)]
    assert step[1] < step[0]


def test_gates_have_adapters_where_a_model_has_gates() -> None:
    rwkv = {"model_type": "rwkv", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 90}
    assert _adapted(rwkv, "receptance") == 2 * 4 * (64 + 64)
    gated = {"model_type": "qwen3_5_text", "hidden_size": 64, "num_hidden_layers": 2}
    gated |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    gated |= {"layer_types": ["full_attention"] * 2, "vocab_size": 90, "intermediate_size": 96}
    assert _adapted(gated, "attention_gate") == 2 * 4 * (64 + 64)
    with pytest.raises(InvalidInput, match=r'must be of .*receptance.* got "attention_gate"'):
        _adapted(rwkv, "attention_gate")


def _one_of_each_family() -> dict[str, TransformerConfig]:
    """Every family of the reader at its library's own sizes, and the catalog's of the others."""
    found = {}
    for kind in (*FAMILIES, *WRAPPERS):
        with suppress(InvalidInput, UnsupportedFeature):
            found[kind] = read_config({"model_type": kind}, name=kind).config
    for name in catalog.model_names():
        config = catalog.model(name).config
        found.setdefault(config.family, config)
    return found


def _beside(config: TransformerConfig, products: tuple[str, ...], plain: LayerGraph) -> int:
    """Parameters of adapters beside these products, all that trains."""
    low_rank = LowRank(rank=2, targets=products)
    found = layer_graph(replace(config, tuning=Tuning(low_rank=low_rank)), plain.run)
    assert found.model_step_flops < plain.model_step_flops
    for operator in (op for layer in found.classes for op in layer.operators if op.parameters):
        learns = any(parameter.trainable for parameter in operator.parameters)
        assert learns or not operator.weight_grad.flops
    more = found.num_parameters - plain.num_parameters
    assert more == found.num_trainable_parameters > 0
    return more


@pytest.mark.slow
def test_adapters_and_freezing_hold_on_every_kind_of_layer() -> None:
    """Whatever a block is: adapters alone train, each target adds its own, frozen blocks rest."""
    families, shape = _one_of_each_family(), RunShape(microbatch_size=1, sequence_length=64)
    assert len(families) > 120
    for name, config in families.items():
        plain, targets = layer_graph(config, shape), adapter_targets(config)
        assert targets, name
        usual = usual_targets(config)  # what adapters lie beside if nobody says so
        assert usual == ("query", "value") or not {"query", "value"} <= {*targets}, name
        assert usual, name
        assert {*usual} <= {*targets}, name
        assert not any(each.startswith("expert_") for each in usual), name
        alone = sum(_beside(config, (each,), plain) for each in targets)
        assert _beside(config, targets, plain) == alone, name
        resting = Tuning(num_frozen_blocks=config.num_layers)
        frozen = layer_graph(replace(config, tuning=resting), shape)
        assert frozen.num_parameters == plain.num_parameters, name
        for layer in frozen.classes:
            if layer.kind is LayerKind.BLOCK:
                assert not any(p.trainable for p in layer.parameters), name
                assert not any(op.weight_grad.flops for op in layer.operators), name
