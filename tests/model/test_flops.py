"""FLOPs against published totals and formulas, in both conventions."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.formats import catalog
from trainwright.formats.hf_config import read_config
from trainwright.model import (
    LayerClass,
    LayerGraph,
    LayerKind,
    Phase,
    RunShape,
    TransformerConfig,
    layer_graph,
    model_flops_per_sequence,
)
from trainwright.model.attention import attended_pairs
from trainwright.model.mixers import CHUNK


def graph_of(name: str, **run: int | bool) -> LayerGraph:
    shape = RunShape(**{"microbatch_size": 1, "sequence_length": 2048} | run)  # type: ignore[arg-type]
    return layer_graph(catalog.model(name).config, shape)


def block_of(graph: LayerGraph) -> LayerClass:
    return graph.classes[graph.kinds.index(LayerKind.BLOCK)]


def test_llama3_8b_forward_flops_at_4096_match_both_published_conventions() -> None:
    graph = graph_of("llama3-8b", sequence_length=4096)
    assert graph.model_flops == pytest.approx(70.274e12, rel=1e-5)
    assert graph.forward_flops == pytest.approx(65.877e12, rel=1e-5)


def test_a_step_is_three_forward_passes() -> None:
    config = catalog.model("llama3-8b").config
    assert model_flops_per_sequence(config, 4096) == pytest.approx(3 * 70.274e12, rel=1e-5)


def test_a_gpt3_block_has_the_published_flops() -> None:
    assert block_of(graph_of("gpt3-175b")).model_flops == pytest.approx(7.62786e12, rel=1e-6)


def test_a_mixtral_block_counts_routed_experts_only() -> None:
    assert block_of(graph_of("mixtral-8x7b")).model_flops == pytest.approx(1.68376e12, rel=1e-5)


def test_unfused_attention_computes_the_masked_half_too() -> None:
    config = catalog.model("llama3-8b").config
    run = RunShape(microbatch_size=1, sequence_length=4096, fused_attention=False)
    graph = layer_graph(config, run)
    assert graph.forward_flops == pytest.approx(graph.model_flops, rel=1e-12)


def test_gpt_flops_follow_the_sc21_formula() -> None:
    """Narayanan et al., 2021, equation 3: 72 B s L h² (1 + s/6h + V/12Lh), no recomputation."""
    hidden, layers, length, vocabulary = 1024, 8, 512, 50257
    document = {
        "model_type": "gpt2",
        "n_embd": hidden,
        "n_layer": layers,
        "n_head": 16,
        "vocab_size": vocabulary,
    }
    config = read_config(document, name="gpt").config
    shape = 1 + length / (6 * hidden) + vocabulary / (12 * layers * hidden)
    expected = 72 * length * layers * hidden**2 * shape
    assert model_flops_per_sequence(config, length) == pytest.approx(expected, rel=1e-12)


def test_matrix_products_cost_the_same_in_each_of_three_passes() -> None:
    products = [op for op in block_of(graph_of("llama3-8b")).operators if op.parameters]
    products = [op for op in products if op.forward.flops]
    assert len(products) == 4
    for op in products:
        assert op.input_grad.flops == op.weight_grad.flops == op.forward.flops


def test_fused_attention_does_two_and_a_half_times_the_work_backward() -> None:
    (core,) = (op for op in block_of(graph_of("llama3-8b")).operators if op.name == "attention")
    assert core.input_grad.flops == 2.5 * core.forward.flops
    assert core.work(Phase.WEIGHT_GRAD).flops == 0


def test_a_sliding_window_bounds_the_pairs() -> None:
    config = catalog.model("mistral-7b").config
    assert attended_pairs(config, 8192, skips_masked=False) == 8192 * 4096
    pairs = sum(min(row + 1, 4096) for row in range(8192))
    assert attended_pairs(config, 8192, skips_masked=True) == pairs


@given(
    name=st.sampled_from(["llama3-8b", "gpt3-175b", "mixtral-8x7b", "qwen2.5-7b", "bert-large"]),
    exponent=st.integers(0, 6),
    sequence_parallel=st.booleans(),
)
def test_a_larger_tensor_degree_never_gives_a_device_more_work(
    name: str, exponent: int, sequence_parallel: bool
) -> None:
    config = catalog.model(name).config
    degrees = [
        t for t in (2**exponent, 2 ** (exponent + 1)) if t in config.tensor_degrees(range(1, 65))
    ]
    runs = [
        RunShape(
            microbatch_size=1,
            sequence_length=512,
            tensor_parallel=t,
            sequence_parallel=sequence_parallel,
            vocabulary_multiple=1,
        )
        for t in degrees
    ]
    per_device = [
        sum(op.work(phase).flops for c in layer_graph(config, run).classes for op in c.operators)
        for run in runs
        for phase in (Phase.FORWARD,)
    ]
    assert per_device == sorted(per_device, reverse=True)
    assert all(
        layer_graph(config, run).forward_flops * (1 + 1e-12)
        >= layer_graph(
            config, RunShape(microbatch_size=1, sequence_length=512, vocabulary_multiple=1)
        ).forward_flops
        for run in runs
    )


def block_flops(config: TransformerConfig, layer: int, length: int) -> tuple[float, float]:
    """Forward FLOPs of a block on one sequence by closed formulas: attention in full, and causal.

    2 FLOPs per token and matrix element it meets, and 2 per pair, feature of its query and of its
    value; a window w leaves s·min(w, s) of the s² pairs.
    """
    h, a, k, e = config.hidden_size, config.num_heads, config.num_kv_heads, config.head_size
    if (latent := config.latent) is None:
        value, attention = e, h * a * e + 2 * h * k * e + a * e * h
    else:
        value, rank = latent.value_head_size, latent.query_rank
        queries = h * a * e if rank is None else h * rank + rank * a * e
        keys = h * (latent.key_value_rank + latent.rotary_head_size)
        up = latent.key_value_rank * a * (latent.plain_head_size + value)
        attention = queries + keys + up + a * value * h
    matrices = 3 if config.gated else 2
    if config.experts is None or not config.experts.at(layer):
        feed_forward = matrices * h * config.ffn_size
    else:
        moe = config.experts
        width = moe.experts_per_token * moe.ffn_size + moe.shared_ffn_size
        feed_forward = matrices * h * width + h * moe.num_experts + h * moe.shared_gate
    window = length
    if config.sliding_window and layer not in config.full_attention_layers:
        window = min(config.sliding_window, length)
    full = length * window
    met = sum(min(row + 1, window) for row in range(length)) if config.causal else full
    dense, per_pair = 2 * length * (attention + feed_forward), 2 * a * (e + value)
    fused = sum(-(-size // 8) * 8 for size in (e, value)) / (e + value)  # heads are padded
    return dense + per_pair * full, dense + per_pair * met * fused


def is_plain(config: TransformerConfig) -> bool:
    """Whether the closed formulas cover it: attention to all or a window, a feed-forward part."""
    indexed = config.latent is not None and config.latent.indexer is not None
    return not (config.choices or indexed)


def test_most_of_the_catalog_is_covered_by_closed_formulas() -> None:
    assert len(PLAIN) > 100


# The others are counted against the library itself in tests/formats.
PLAIN = [name for name in catalog.model_names() if is_plain(catalog.model(name).config)]


@pytest.mark.parametrize("name", PLAIN)
def test_every_plain_block_has_the_flops_of_the_closed_formulas(name: str) -> None:
    config, length = catalog.model(name).config, 384
    run = RunShape(microbatch_size=1, sequence_length=length, vocabulary_multiple=1)
    graph = layer_graph(config, run)
    blocks = [c for c in graph.layers if graph.classes[c].kind is LayerKind.BLOCK]
    for layer, layer_class in enumerate(blocks):
        block = graph.classes[layer_class]
        full, executed = block_flops(config, layer, length)
        assert block.model_flops == pytest.approx(full, rel=1e-12)
        assert block.forward_flops == pytest.approx(executed, rel=1e-12)


def compressed_flops(block: TransformerConfig, length: int) -> tuple[float, float]:
    """Forward FLOPs of a DeepSeek-V4 block on one sequence: in full, and without masked pairs.

    Token t (from 1) attends to min(t, window) tokens and to ⌊t / ratio⌋ entries, at most as many as
    an indexer chooses; the indexer scores half of s²/ratio pairs.
    """
    own, moe = block.compressed, block.experts
    assert own is not None and moe is not None and block.sliding_window is not None
    h, a, e, n = block.hidden_size, block.num_heads, block.head_size, block.streams
    queries = h * own.query_rank + own.query_rank * a * e
    output = a * e * own.output_rank + own.output_groups * own.output_rank * h
    mixing = 2 * n * h * (2 * n + n * n)
    width = moe.experts_per_token * moe.ffn_size + moe.shared_ffn_size
    per_token = queries + h * e + output + mixing + 3 * h * width + h * moe.num_experts
    window, entries, scored = min(block.sliding_window, length), 0, 0.0
    seen = [min(t, window) for t in range(1, length + 1)]
    if own.ratio is not None:
        entries = length // own.ratio
        if (indexer := own.indexer) is not None:
            entries, narrow = min(entries, indexer.num_keys), indexer.num_heads * indexer.head_size
            per_token += own.query_rank * narrow + h * indexer.num_heads
            per_token += 4 * h * indexer.head_size  # values and weights, of two entries each
            scored = 2 * narrow * length**2 / own.ratio
        per_token += 2 * (2 if own.indexer else 1) * h * e
        seen = [near + min((t + 1) // own.ratio, entries) for t, near in enumerate(seen)]
    dense, per_pair = 2.0 * length * per_token, 4 * a * e
    full = dense + per_pair * length * (window + entries) + scored
    return full, dense + per_pair * sum(seen) + scored * (1 + 1 / length) / 2


@pytest.mark.parametrize("name", ["deepseek-v4-flash", "deepseek-v4-pro"])
def test_every_block_with_compressed_attention_has_the_flops_of_the_closed_formulas(
    name: str,
) -> None:
    config, length = catalog.model(name).config, 6144
    graph = layer_graph(config, RunShape(microbatch_size=1, sequence_length=length))
    blocks = [c for c in graph.layers if graph.classes[c].kind is LayerKind.BLOCK]
    expected = [compressed_flops(config.block(at), length) for at in range(config.num_layers)]
    assert [graph.classes[c].model_flops for c in blocks] == pytest.approx([f for f, _ in expected])
    assert [graph.classes[c].forward_flops for c in blocks] == pytest.approx(
        [executed for _, executed in expected]
    )
    assert len(set(expected)) >= 2  # short entries and long ones, in Flash the window alone too


def test_a_head_that_fills_no_rows_of_16_bytes_runs_padded_or_outside_the_matrix_units() -> None:
    config = replace(catalog.model("gpt3-175b").config, head_size=108)

    def core(**run: bool) -> dict[str, tuple[float, str | None]]:
        shape = RunShape(microbatch_size=1, sequence_length=2048, **run)
        block = block_of(layer_graph(config, shape))
        return {op.name: (op.forward.flops, op.dtype) for op in block.operators}

    whole = {op.name: op for op in block_of(graph_of("gpt3-175b")).operators}
    fused = core(fused_attention=True)["attention"]
    assert fused[0] == pytest.approx(whole["attention"].forward.flops * 112 / 128)
    unfused = core(fused_attention=False)
    assert unfused["attention_scores"][1] == unfused["attention_values"][1] == "fp32"
    assert unfused["query_key_value"][1] == "bf16"


def test_the_kernels_of_a_state_space_layer_each_read_what_the_last_wrote() -> None:
    """Convolution, states of chunks and their passing on, scan, gated norm (Dao and Gu, 2024)."""
    model = catalog.model("nemotron-3-nano-30b-a3b").config
    run = RunShape(microbatch_size=1, sequence_length=4096)
    graph = layer_graph(model, run)
    own = next(op for c in graph.classes for op in c.operators if op.name == "mixer_recurrence")
    inner, state, groups, heads = 64 * 64, 128, 8, 64
    channels = inner + 2 * groups * state
    states = 4 * inner * state / CHUNK
    read = 2 * channels + 2 * channels + 2 * states + 2 * (inner + channels + heads) + 4 * inner
    written = 2 * channels + 2 * states + 2 * inner + 2 * inner
    assert own.forward.read_bytes == 4096 * read
    assert own.forward.written_bytes == 4096 * written
    assert own.input_grad.bytes == 2.5 * own.forward.bytes
