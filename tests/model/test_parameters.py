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
    for name, active in (("mixtral-8x7b", 12_879_925_248), ("qwen3-30b-a3b", 3_353_032_704)):
        config = catalog.model(name).config
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
