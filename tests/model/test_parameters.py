"""Parameter counts against the published totals, to the last one."""

from dataclasses import replace

import pytest

from trainwright.formats import catalog
from trainwright.formats.hf_config import read_config
from trainwright.model import (
    LayerKind,
    RunShape,
    TransformerConfig,
    count_parameters,
    layer_graph,
)

PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "gpt3-175b": 174_604_259_328,
    "opt-6.7b": 6_658_473_984,
    "bloom-176b": 176_247_271_424,
    "llama2-7b": 6_738_415_616,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "mistral-7b": 7_241_732_096,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-32b": 32_762_123_264,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_630_071_296,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "llama2-13b": 13_015_864_320,
    "opt-350m": 331_196_416,
    "gpt-neo-2.7b": 2_651_307_520,
    "mpt-7b": 6_649_286_656,
    "nemotron-4-15b": 15_628_775_424,
    "nemotron-4-340b": 341_029_195_776,
    "megatron-gpt-530b": 529_581_506_560,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 671_026_404_352,
}

# Published as rounded figures only: (billions of parameters, relative tolerance).
ROUNDED = {
    "grok-1": (314, 0.01),
    "mpt-30b": (30, 0.002),
    "opt-1.3b": (1.3, 0.02),
    "opt-30b": (30, 0.002),
    "opt-175b": (175, 0.003),
    "megatron-gpt2-2.5b": (2.5, 0.005),
    "megatron-gpt2-8.3b": (8.3, 0.003),
    "megatron-gpt-1.7b": (1.7, 0.03),
    "megatron-gpt-3.6b": (3.6, 0.02),
    "megatron-gpt-22b": (22, 0.004),
    "megatron-gpt-39b": (39.1, 0.001),
    "megatron-gpt-310b": (310.1, 0.001),
    "megatron-gpt-1t": (1008.0, 0.001),
}


def gpt(*, layers: int, hidden: int, heads: int, vocabulary: int = 50257) -> TransformerConfig:
    document = {
        "model_type": "gpt2",
        "n_layer": layers,
        "n_embd": hidden,
        "n_head": heads,
        "n_positions": 2048,
        "vocab_size": vocabulary,
    }
    return read_config(document, name="gpt").config


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_catalog_model_has_exactly_the_published_parameters(name: str) -> None:
    assert count_parameters(catalog.model(name).config) == PUBLISHED[name]


@pytest.mark.parametrize("name", ROUNDED)
def test_a_catalog_model_rounds_to_the_published_size(name: str) -> None:
    billions, tolerance = ROUNDED[name]
    count = count_parameters(catalog.model(name).config)
    assert count / 1e9 == pytest.approx(billions, rel=tolerance)


def test_kimi_k2_has_the_published_parameters_but_for_its_routing_biases() -> None:
    """They are buffers of 384 entries in each of the 60 blocks with experts."""
    count = count_parameters(catalog.model("kimi-k2").config)
    assert count + 60 * 384 == 1_026_408_232_448


def test_predicting_a_second_token_adds_a_block_a_projection_and_three_norms() -> None:
    config = catalog.model("deepseek-v3").config
    run = RunShape(microbatch_size=1, sequence_length=1, vocabulary_multiple=1)
    graph = layer_graph(config, run)
    extra = graph.num_parameters - count_parameters(config)
    block = graph.classes[graph.layers[60]].num_parameters
    assert extra == block + 2 * 7168**2 + 3 * 7168
    assert extra == pytest.approx(11.610e9, rel=1e-4)


def test_an_extra_token_shares_embedding_and_head() -> None:
    config = catalog.model("deepseek-v3").config
    graph = layer_graph(config, RunShape(microbatch_size=1, sequence_length=8))
    assert graph.kinds[-3:] == (LayerKind.MTP, LayerKind.LM_HEAD, LayerKind.LOSS)
    assert graph.shared_parameters() == {"word_embedding": (0, 63), "head": (63, 64)}
    tied = layer_graph(replace(config, tied_embeddings=True), graph.run)
    assert tied.shared_parameters() == {"word_embedding": (0, 63, 64)}
    embedding = next(p for p in tied.classes[0].parameters if p.shared)
    assert graph.num_parameters - tied.num_parameters == embedding.count


@pytest.mark.parametrize(
    ("hidden", "layers", "heads", "ffn", "published"),
    [(768, 12, 12, 3072, 109_482_240), (1024, 24, 16, 4096, 335_141_888)],
)
def test_bert_with_pooler_and_without_its_mlm_head_has_the_published_parameters(
    hidden: int, layers: int, heads: int, ffn: int, published: int
) -> None:
    document = {
        "model_type": "bert",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": ffn,
        "vocab_size": 30522,
    }
    config = read_config(document, name="bert").config
    bare = replace(config, mlm_transform=False, head_bias=False)
    assert count_parameters(bare) == published
    assert count_parameters(config) == published + hidden**2 + 3 * hidden + 30522


def test_mt_nlg_530b_has_the_published_parameters() -> None:
    assert count_parameters(gpt(layers=105, hidden=20480, heads=128)) == 529_581_506_560


def test_gpt3_with_a_vocabulary_padded_to_51200_has_the_published_parameters() -> None:
    config = gpt(layers=96, hidden=12288, heads=96, vocabulary=51200)
    assert count_parameters(config) == 174_615_846_912


def test_padding_rounds_the_vocabulary_up_to_128_times_the_tensor_degree() -> None:
    sizes = [
        RunShape(microbatch_size=1, sequence_length=1, tensor_parallel=t).padded(50257)
        for t in (1, 2, 4)
    ]
    assert sizes == [50304, 50432, 50688]


def test_a_mixture_activates_its_routed_share_of_the_experts() -> None:
    for name, active in (
        ("mixtral-8x7b", 12_879_925_248),
        ("qwen3-30b-a3b", 3_353_032_704),
        ("qwen3-235b-a22b", 22_190_763_520),
        ("deepseek-v3", 37_552_282_624),
    ):
        config = replace(catalog.model(name).config, num_mtp_layers=0)
        run = RunShape(microbatch_size=1, sequence_length=1, vocabulary_multiple=1)
        graph = layer_graph(config, run)
        assert graph.num_active_parameters == active


@pytest.mark.parametrize("degree", [1, 2, 4, 8])
def test_tensor_slices_of_a_block_add_up_to_the_block(degree: int) -> None:
    config = catalog.model("llama3-8b").config
    run = RunShape(microbatch_size=1, sequence_length=8, tensor_parallel=degree)
    graph = layer_graph(config, run)
    block = graph.classes[graph.kinds.index(LayerKind.BLOCK)]
    sharded = [p for p in block.parameters if p.shards > 1]
    assert {p.shards for p in sharded} == ({degree} if degree > 1 else set())
    whole = [p for p in block.parameters if p.shards == 1]
    held = sum(p.count_per_device for p in block.parameters)
    assert held * degree == block.num_parameters + (degree - 1) * sum(p.count for p in whole)


def test_key_and_value_weights_are_repeated_beyond_their_heads() -> None:
    config = catalog.model("llama3-8b").config
    run = RunShape(microbatch_size=1, sequence_length=8, tensor_parallel=16)
    graph = layer_graph(config, run)
    block = graph.classes[graph.kinds.index(LayerKind.BLOCK)]
    (held,) = (p.shards for p in block.parameters if p.name == "key_value.weight")
    assert held == config.num_kv_heads


def test_tied_embeddings_are_held_by_the_first_and_the_head_layer() -> None:
    config = catalog.model("gpt2").config
    graph = layer_graph(config, RunShape(microbatch_size=1, sequence_length=8))
    (holders,) = graph.shared_parameters().values()
    assert [graph.kinds[i] for i in holders] == [LayerKind.EMBEDDING, LayerKind.LM_HEAD]
