"""Latent attention, windows, sinks and sandwich norms: parameters, work and what is kept."""

from dataclasses import replace

import pytest

from trainwright.errors import InvalidInput
from trainwright.formats import catalog
from trainwright.model import (
    LayerClass,
    LayerGraph,
    LayerKind,
    Operator,
    RunShape,
    TransformerConfig,
    layer_graph,
)

SHAPE = RunShape(microbatch_size=2, sequence_length=1024, vocabulary_multiple=1)


def graph_of(name: str, run: RunShape = SHAPE) -> LayerGraph:
    return layer_graph(catalog.model(name).config, run)


def block(graph: LayerGraph, index: int = -1) -> LayerClass:
    blocks = [c for c in graph.layers if graph.classes[c].kind is LayerKind.BLOCK]
    return graph.classes[blocks[index]]


def operator(layer: LayerClass, name: str) -> Operator:
    return next(op for op in layer.operators if op.name == name)


def test_latent_attention_has_the_parameters_of_its_formula() -> None:
    """DeepSeek-V2, 2024, section 2.1; block norms and experts apart."""
    for name, query_rank, heads, h in (
        ("deepseek-v3", 1536, 128, 7168),
        ("kimi-k2", 1536, 64, 7168),
    ):
        r, plain, rotary, value = 512, 128, 64, 128
        queries = h * query_rank + query_rank + query_rank * heads * (plain + rotary)
        keys = h * (r + rotary) + r + r * heads * (plain + value)
        expected = queries + keys + heads * value * h
        parts = ("query_", "key_value_", "attention_output")
        counted = sum(p.count for p in block(graph_of(name)).parameters if p.name.startswith(parts))
        assert counted == expected


def test_without_a_query_latent_queries_come_from_the_hidden_state() -> None:
    layer = block(graph_of("deepseek-v2-lite"))
    query = operator(layer, "query")
    assert query.parameters[0].count == 2048 * 16 * 192
    assert "query_down" not in [op.name for op in layer.operators]


def test_scores_and_values_of_a_latent_head_have_widths_of_their_own() -> None:
    core = operator(block(graph_of("deepseek-v3")), "attention")
    assert core.model_flops == 2 * 2 * 1024**2 * 128 * (128 + 64 + 128)
    halved = core.forward.flops / core.model_flops
    assert halved == pytest.approx(1025 / 2048, rel=1e-12)


def test_latents_are_projected_once_per_token_with_sequence_parallelism() -> None:
    cut = replace(SHAPE, tensor_parallel=8, sequence_parallel=True)
    whole, shared = (
        operator(block(graph_of("deepseek-v3", r)), "query_down") for r in (SHAPE, cut)
    )
    assert shared.forward.flops == whole.forward.flops / 8
    repeated = replace(cut, sequence_parallel=False)
    alike = operator(block(graph_of("deepseek-v3", repeated)), "query_down")
    assert alike.forward.flops == whole.forward.flops


def test_recomputing_the_up_projections_keeps_the_latents_alone() -> None:
    dropped = {
        tensor.name: tensor.elements
        for tensor in block(graph_of("deepseek-v3")).saved
        if tensor.dropped_by == "latent_up_projection"
    }
    tokens, heads = 2 * 1024, 128
    assert dropped == {
        "query": tokens * heads * 192,
        "key": tokens * heads * 192,
        "value": tokens * heads * 128,
    }


def test_latents_are_what_a_tensor_group_gathers() -> None:
    run = replace(SHAPE, tensor_parallel=8, sequence_parallel=True)
    gathers = [x for x in block(graph_of("deepseek-v3", run)).exchanges if x.kind == "all_gather"]
    into = [x.bytes / (2 * 2048) for x in gathers if x.phase == "forward"]
    assert into[0] == 1536 + 512 + 64


def test_every_other_block_of_gpt_oss_attends_within_its_window() -> None:
    graph = graph_of("gpt-oss-20b")
    pairs = [
        operator(graph.classes[c], "attention").model_flops
        for c in graph.layers
        if graph.classes[c].kind is LayerKind.BLOCK
    ]
    assert pairs == [pairs[0], pairs[1]] * 12
    assert pairs[1] / pairs[0] == 1024 / 128
    assert len(graph.classes) == 2 + 4


def test_a_sink_is_one_parameter_per_head() -> None:
    for fused in (True, False):
        layer = block(graph_of("gpt-oss-20b", replace(SHAPE, fused_attention=fused)))
        assert [p.count for p in layer.parameters if p.name == "attention.sinks"] == [64]


def test_model_flops_do_not_depend_on_the_kernel() -> None:
    for name in ("gpt-oss-20b", "deepseek-v3", "mistral-7b"):
        fused, stored = (graph_of(name, replace(SHAPE, fused_attention=f)) for f in (True, False))
        assert fused.model_flops == pytest.approx(stored.model_flops, rel=1e-12)


def test_grok_norms_each_half_twice() -> None:
    layer = block(graph_of("grok-1"))
    norms = [op.name for op in layer.operators if op.name.endswith("_norm")]
    assert norms == ["attention_norm", "attention_output_norm", "mlp_norm", "mlp_output_norm"]


def test_dense_first_blocks_precede_the_mixtures() -> None:
    graph = graph_of("deepseek-v3")
    routed = [
        any(op.name == "router" for op in graph.classes[c].operators)
        for c in graph.layers
        if graph.classes[c].kind is LayerKind.BLOCK
    ]
    assert routed == [False] * 3 + [True] * 58


def faulty(**changes: object) -> str:
    config: TransformerConfig = catalog.model("deepseek-v3").config
    with pytest.raises(InvalidInput) as caught:
        replace(config, **changes)  # type: ignore[arg-type]
    return str(caught.value)


def test_impossible_choices_are_refused() -> None:
    assert "head_size: must be 192 (plain + rotary part), got 128" in faulty(head_size=128)
    assert "num_kv_heads: must equal num_heads" in faulty(num_kv_heads=8)
    assert "full_attention_layers: must be in 0..60" in faulty(full_attention_layers=(61,))
    assert "num_mtp_layers: must be in 0..61, got -1" in faulty(num_mtp_layers=-1)
    experts = catalog.model("deepseek-v3").config.experts
    assert experts is not None
    for change, fault in (
        ({"num_dense_layers": 62}, "experts.num_dense_layers: must be in 0..61"),
        ({"dense_layers": (61,)}, "experts.dense_layers: must be in 0..60"),
        ({"experts_per_token": 257}, "experts.experts_per_token: must be in 1..256"),
        ({"shared_ffn_size": 0, "shared_gate": True}, "experts.shared_gate: needs a shared expert"),
    ):
        assert fault in faulty(experts=replace(experts, **change))
