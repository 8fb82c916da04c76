"""Layers as modules: what they hold and keep is what the layer graph says; timing ends in time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainwright.costing.layer import KEEP_ALL, activation_bytes, parameters_per_device
from trainwright.errors import UnsupportedFeature
from trainwright.model import (
    Activation,
    Experts,
    LayerKind,
    Norm,
    RunShape,
    TransformerConfig,
    layer_graph,
)
from trainwright.model.run_shape import FP32

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

LLAMA = TransformerConfig(
    family="llama",
    num_layers=3,
    hidden_size=64,
    num_heads=8,
    num_kv_heads=4,
    head_size=8,
    ffn_size=96,
    vocabulary_size=300,
    norm=Norm.RMS,
    activation=Activation.SILU,
    gated=True,
    rotary=True,
)
GPT = replace(
    LLAMA,
    family="gpt2",
    num_kv_heads=8,
    norm=Norm.LAYER,
    activation=Activation.GELU,
    gated=False,
    rotary=False,
    query_key_value_bias=True,
    attention_output_bias=True,
    mlp_bias=True,
    max_positions=64,
    hidden_dropout=0.1,
    attention_dropout=0.1,
)
BERT = replace(
    GPT,
    family="bert",
    causal=False,
    pre_norm=False,
    final_norm=False,
    embedding_norm=True,
    num_token_types=2,
    pooler=True,
    mlm_transform=True,
    head_bias=True,
    tied_embeddings=True,  # else its classes hold a second bias, which nothing adds
)
MIXTURE = replace(
    LLAMA,
    family="qwen2_moe",
    query_key_norm=True,
    sandwich_norm=True,
    experts=Experts(
        num_experts=4,
        experts_per_token=2,
        ffn_size=32,
        shared_ffn_size=64,
        shared_gate=True,
        num_dense_layers=1,
    ),
)
OPT = replace(GPT, family="opt", activation=Activation.RELU, projection_size=32)
SQUARED = replace(GPT, norm=Norm.LAYER_WITHOUT_BIAS, activation=Activation.SQUARED_RELU)
CONFIGS = {
    "llama": LLAMA,
    "gpt": GPT,
    "bert": BERT,
    "mixture": MIXTURE,
    "opt": OPT,
    "squared": SQUARED,
}


def shape(**options: int) -> RunShape:
    return RunShape(**{"microbatch_size": 2, "sequence_length": 64, "precision": FP32, **options})


def layers_of(config: TransformerConfig, run: RunShape):
    """Every class of the graph with the module that stands for it."""
    from trainwright.lab.layer_timing import make_layer

    graph = layer_graph(config, run)
    for index, layer in enumerate(graph.classes):
        first = graph.layers.index(index)
        own = config.block(first - 1) if 0 < first <= config.num_layers else config
        yield layer, make_layer(layer.kind, own, run, device="cpu")


@pytest.mark.parametrize("degree", [1, 2, 4])
@pytest.mark.parametrize("name", CONFIGS)
def test_modules_hold_as_many_parameters_as_a_device_of_the_graph(name, degree):
    for layer, made in layers_of(CONFIGS[name], shape(tensor_parallel=degree)):
        held = sum(p.numel() for p in made.module.parameters())
        assert held == sum(parameters_per_device(layer)), layer.kind


@pytest.mark.parametrize("name", CONFIGS)
def test_every_parameter_and_input_gets_a_finite_gradient(name):
    from trainwright.lab.layer_timing import outputs_of

    for layer, made in layers_of(CONFIGS[name], shape(tensor_parallel=2)):
        outputs = outputs_of(made)
        wanted = list(made.module.parameters())
        wanted += [made.inputs] if made.inputs.requires_grad else []
        seeds = [torch.ones_like(t) for t in outputs]
        for gradient in torch.autograd.grad(outputs, wanted, seeds):
            assert gradient.isfinite().all(), layer.kind


@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize("name", ["llama", "gpt", "opt"])
def test_inputs_kept_for_weight_gradients_are_those_of_the_tensor_list(name, degree):
    from trainwright.lab.layer_timing import count_bytes

    run = shape(tensor_parallel=degree)
    for layer, made in layers_of(CONFIGS[name], run):
        found = count_bytes(made).saved_until_weight_grad_bytes
        listed = activation_bytes(layer, run, KEEP_ALL).until_weight_grad
        assert found == listed, layer.kind


def test_no_score_matrix_is_kept():
    """Attention runs in a kernel that recomputes scores, as the profile's point says."""
    from trainwright.lab.layer_timing import count_bytes

    run = shape(sequence_length=256)
    scores = 4 * run.tokens * run.sequence_length * LLAMA.num_heads
    for layer, made in layers_of(LLAMA, run):
        if layer.kind is LayerKind.BLOCK:
            found = count_bytes(made)
            listed = activation_bytes(layer, run, KEEP_ALL)
            kept = found.saved_until_input_grad_bytes
            assert listed.until_input_grad <= kept < listed.until_input_grad + scores


def test_the_peak_of_a_product_is_its_output_and_both_gradients():
    from trainwright.lab.layer_timing import RunnableLayer, count_bytes

    product = torch.nn.Linear(8, 32, bias=False)
    inputs = torch.randn(4, 8, requires_grad=True)
    found = count_bytes(RunnableLayer(module=product, inputs=inputs))
    seed, both = 4 * 4 * 32, 4 * 4 * 8 + 4 * 8 * 32
    assert found.transient_bytes == seed + both
    assert found.saved_until_weight_grad_bytes == found.input_bytes == 4 * 4 * 8
    assert found.saved_until_input_grad_bytes == 0


def test_a_mixture_gives_every_expert_equal_rows():
    for layer, made in layers_of(MIXTURE, shape()):
        mixtures = [m for m in made.module.modules() if type(m).__name__ == "Mixture"]
        for mixture in mixtures:
            assert layer.kind is LayerKind.BLOCK
            assert mixture.rows * 4 == 2 * shape().tokens


def test_timing_without_time_runs_one_pass():
    from trainwright.lab.layer_timing import find_device, time_layer

    device = find_device("cpu")
    found = time_layer(LayerKind.BLOCK, LLAMA, shape(), device=device, time_limit_s=0.0)
    assert (found.num_repeats, found.spread) == (1, None)
    assert min(found.forward_s, found.input_grad_s) > 0


def test_timing_repeats_and_tells_its_spread():
    from trainwright.lab.layer_timing import find_device, time_layer

    device = find_device("cpu")
    found = time_layer(LayerKind.EMBEDDING, LLAMA, shape(), device=device, time_limit_s=0.02)
    assert 3 <= found.num_repeats <= 50
    assert found.spread is not None and found.spread >= 0
    assert found.input_grad_s == 0 < found.weight_grad_s


@pytest.mark.parametrize(
    ("change", "run", "told"),
    [
        ({"sliding_window": 32}, {}, "--sequence 32"),
        ({"attention_sinks": True}, {}, "attention sinks"),
        ({"num_mtp_layers": 1}, {}, "further tokens"),
    ],
)
def test_parts_without_a_module_are_refused_by_name(change, run, told):
    from trainwright.lab.layer_timing import refuse_untimed

    with pytest.raises(UnsupportedFeature, match=told):
        refuse_untimed(replace(LLAMA, **change), shape(**run))


def test_an_allocator_that_gives_up_names_the_layer():
    from trainwright.lab.layer_timing import find_device, time_layer

    vast = shape(microbatch_size=2**30)
    with pytest.raises(UnsupportedFeature, match="layer of kind final_norm at tensor degree 1"):
        time_layer(LayerKind.FINAL_NORM, LLAMA, vast, device=find_device("cpu"), time_limit_s=1.0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_where_there_is_none_is_refused():
    from trainwright.lab.layer_timing import find_device

    with pytest.raises(UnsupportedFeature, match="finds no CUDA device"):
        find_device("cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_layers_run_on_cuda():
    from trainwright.lab.layer_timing import find_device, time_layer

    device = find_device("cuda")
    found = time_layer(LayerKind.BLOCK, LLAMA, shape(), device=device, time_limit_s=1.0)
    assert found.num_repeats >= 3
