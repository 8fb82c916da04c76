"""From a row of a table to the model it trained.

The sizes are exact; what the columns do not say (norm, activation, biases, tied head, experts)
follows from the family in the model's name, told by its longest known prefix, so that another size
of a known family needs no entry of its own. Sources are the families' published configurations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trainwright.errors import UnsupportedFeature
from trainwright.model import Activation, Experts, LatentAttention, Norm, TransformerConfig
from trainwright.plan.measured_run import MeasuredRun
from trainwright.validation.lines import SoftwareLine
from trainwright.validation.megatron_shapes import megatron_config

Style = Mapping[str, Any]

_GPT: Final[Style] = {
    "family": "gpt2",
    "norm": Norm.LAYER,
    "activation": Activation.GELU,
    "query_key_value_bias": True,
    "attention_output_bias": True,
    "mlp_bias": True,
    "tied_embeddings": True,
    "learned_positions": True,
}
_LLAMA: Final[Style] = {
    "family": "llama",
    "norm": Norm.RMS,
    "activation": Activation.SILU,
    "gated": True,
    "rotary": True,
}
_QWEN3: Final[Style] = {**_LLAMA, "family": "qwen3", "query_key_norm": True, "head_size": 128}
_DEEPSEEK: Final[Style] = {
    **_LLAMA,
    "family": "deepseek_v3",
    "latent": LatentAttention(
        key_value_rank=512,
        rotary_head_size=64,
        plain_head_size=128,
        value_head_size=128,
        query_rank=1536,
    ),
}
_FAMILIES: Final[Mapping[str, Style]] = {
    "gpt": _GPT,
    "gpt-neo": _GPT,
    "gpt-oss": {
        **_LLAMA,
        "family": "gpt_oss",
        "query_key_value_bias": True,
        "attention_output_bias": True,
        "attention_sinks": True,
        "mlp_bias": True,
        "head_size": 64,
        "experts": {"num_experts": 128, "experts_per_token": 4},
    },
    "gpt-oss-20b": {"experts": {"num_experts": 32, "experts_per_token": 4}},
    "turing": _GPT,
    "mt-nlg": _GPT,
    "opt": {**_GPT, "family": "opt", "activation": Activation.RELU},
    "mpt": {**_GPT, "family": "mpt"},
    "llama": _LLAMA,
    "mistral": {**_LLAMA, "family": "mistral"},
    "mixtral": {
        **_LLAMA,
        "family": "mixtral",
        "experts": {"num_experts": 8, "experts_per_token": 2},
    },
    "qwen2": {**_LLAMA, "family": "qwen2", "query_key_value_bias": True},
    "qwen3": _QWEN3,
    "qwen3-30b-a3b": {"experts": {"num_experts": 128, "experts_per_token": 8}},
    "qwen3-235b-a22b": {"experts": {"num_experts": 128, "experts_per_token": 8}},
    "grok": {
        **_LLAMA,
        "family": "grok-1",
        "activation": Activation.GELU,
        "sandwich_norm": True,
        "tied_embeddings": True,
        "experts": {"num_experts": 8, "experts_per_token": 2},
    },
    "nemotron-4": {
        "family": "nemotron",
        "norm": Norm.LAYER,
        "activation": Activation.SQUARED_RELU,
        "rotary": True,
    },
    "deepseek-v2": {
        **_DEEPSEEK,
        "experts": {
            "num_experts": 160,
            "experts_per_token": 6,
            "ffn_size": 1536,
            "shared_ffn_size": 3072,
            "num_dense_layers": 1,
        },
    },
    "deepseek-v3": {
        **_DEEPSEEK,
        "num_mtp_layers": 1,
        "experts": {
            "num_experts": 256,
            "experts_per_token": 8,
            "ffn_size": 2048,
            "shared_ffn_size": 2048,
            "num_dense_layers": 3,
        },
    },
    "kimi-k2": {
        **_DEEPSEEK,
        "experts": {
            "num_experts": 384,
            "experts_per_token": 8,
            "ffn_size": 2048,
            "shared_ffn_size": 2048,
            "num_dense_layers": 1,
        },
    },
}
_SIZES: Final = ("num_layers", "hidden_size", "ffn_size", "num_heads", "vocabulary_size")


def config_of(run: MeasuredRun, line: SoftwareLine) -> TransformerConfig:
    """The model of `run`; raises `UnsupportedFeature` where family or sizes are unknown."""
    if run.setting("family") == "hybrid_mamba":
        raise UnsupportedFeature("hybrid Mamba models are not modelled")
    if run.schema == "megatron_ci":
        return megatron_config(run)
    require_sizes(run, _SIZES)
    style = dict(_style(run.model.lower()))
    assert run.num_heads and run.hidden_size and run.ffn_size and run.num_layers
    head_size = style.pop("head_size", run.hidden_size // run.num_heads)
    latent = style.get("latent")
    if latent is not None:
        head_size = latent.head_size
    positions = run.sequence_length if style.pop("learned_positions", False) else 0
    experts = _experts(run, style.pop("experts", None))
    if run.setting("variant") == "w/o MTP" or "no-mtp" in run.model.lower():
        style["num_mtp_layers"] = 0
    return TransformerConfig(
        num_layers=run.num_layers,
        hidden_size=run.hidden_size,
        num_heads=run.num_heads,
        num_kv_heads=run.num_heads if latent else run.num_kv_heads or run.num_heads,
        head_size=head_size,
        ffn_size=run.ffn_size,
        vocabulary_size=run.vocabulary_size or 0,
        max_positions=positions,
        hidden_dropout=line.dropout,
        attention_dropout=line.dropout,
        experts=experts,
        **style,
    )


def require_sizes(run: MeasuredRun, names: tuple[str, ...]) -> None:
    """Raise `UnsupportedFeature` naming the sizes that the row leaves out."""
    missing = [name for name in names if getattr(run, name) is None]
    if missing:
        raise UnsupportedFeature(f"the row does not state {', '.join(missing)}")


def _style(name: str) -> Style:
    """What all known prefixes of a name say, the longest last."""
    known = sorted((p for p in _FAMILIES if name.startswith(p)), key=len)
    if not known:
        raise UnsupportedFeature(f"the family of {name} is not modelled")
    style: dict[str, Any] = {}
    for prefix in known:
        style = (
            {**style, **_FAMILIES[prefix]}
            if "family" not in _FAMILIES[prefix]
            else dict(_FAMILIES[prefix])
        )
    return style


def _experts(run: MeasuredRun, mixture: Style | None) -> Experts | None:
    """The mixture of the family; a row may state how many of its first blocks are dense."""
    if mixture is None:
        return None
    sizes = {"ffn_size": run.ffn_size, **mixture}
    first_dense = run.number("first_dense_layers")
    if first_dense is not None:
        sizes["num_dense_layers"] = int(first_dense)
    return Experts(**sizes)
