"""Memory that Korthikanti et al., 2022 (arXiv:2205.05198), print for four models, and ours."""

from __future__ import annotations

from trainwright.costing.layer import KEEP_ALL, RecomputeRule, activation_bytes
from trainwright.formats.hf_config import read_config
from trainwright.model import LayerClass, LayerKind, RunShape, TransformerConfig, layer_graph

SELECTIVE = RecomputeRule(modules=frozenset({"attention_core"}))
FULL = RecomputeRule(whole_layer=True)
GIB = 2**30

# name: (attention heads, hidden size, layers, microbatch, pipeline stages, virtual stages)
PAPER = {
    "22B": (64, 6144, 48, 4, 1, 1),
    "175B": (96, 12288, 96, 1, 8, 3),
    "530B": (128, 20480, 105, 1, 35, 3),
    "1T": (160, 25600, 128, 1, 64, 1),
}
NO_RECOMPUTE_GIB = {"22B": 59.25, "175B": 66.84375, "530B": 114.0234, "1T": 131.25}
SELECTIVE_SP_GIB = {"22B": 9.5625, "175B": 12.3516, "530B": 23.0762, "1T": 26.5625}
STATIC_GIB = {"22B": 45.5625, "175B": 45.5625, "530B": 31.6406, "1T": 32.9590}


def gpt(*, heads: int, hidden: int, layers: int = 2) -> TransformerConfig:
    document = {
        "model_type": "gpt2",
        "n_embd": hidden,
        "n_layer": layers,
        "n_head": heads,
        "n_positions": 2048,
        "vocab_size": 51200,
    }
    return read_config(document, name="gpt").config


def block(config: TransformerConfig, run: RunShape) -> LayerClass:
    graph = layer_graph(config, run)
    return graph.classes[graph.kinds.index(LayerKind.BLOCK)]


def kept_bytes(config: TransformerConfig, rule: RecomputeRule, **run: object) -> float:
    shape = RunShape(**{"sequence_length": 2048, "fused_attention": False} | run)  # type: ignore[arg-type]
    kept = activation_bytes(block(config, shape), shape, rule)
    return kept.until_input_grad + kept.until_weight_grad


def first_stage_gib(model: str) -> tuple[float, float]:
    """The first stage's activations: nothing recomputed; selective, with sequence parallelism."""
    a, h, layers, b, p, v = PAPER[model]
    config = gpt(heads=a, hidden=h)
    held = layers * (1 + (p - 1) / (p * v) if v > 1 else 1)
    common = {"microbatch_size": b, "tensor_parallel": 8}
    plain = kept_bytes(config, KEEP_ALL, **common)
    selective = kept_bytes(config, SELECTIVE, sequence_parallel=True, **common)
    return plain * held / GIB, selective * held / GIB


def static_gib(model: str) -> float:
    """Weights, gradients and optimizer states of the matrices of a device's blocks."""
    a, h, layers, _, p, _ = PAPER[model]
    run = RunShape(microbatch_size=1, sequence_length=1, tensor_parallel=8)
    matrices = sum(
        p_.count_per_device
        for p_ in block(gpt(heads=a, hidden=h), run).parameters
        if p_.name.endswith(".weight") and "norm" not in p_.name
    )
    return run.precision.static_bytes * matrices * layers / p / GIB
