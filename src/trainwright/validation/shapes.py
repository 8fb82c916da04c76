"""From a row of a table to the model it trained.

The row's sizes are exact; what the columns do not say (norm, activation, biases, tied head) follows
from the family in the model's name. Families are told by prefix, so that another size of a known
family needs no entry of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trainwright.errors import UnsupportedFeature
from trainwright.model import Activation, Experts, Norm, TransformerConfig
from trainwright.plan.measured_run import MeasuredRun
from trainwright.validation.lines import SoftwareLine

_GPT: Final[Mapping[str, Any]] = {
    "family": "gpt2",
    "norm": Norm.LAYER,
    "activation": Activation.GELU,
    "query_key_value_bias": True,
    "attention_output_bias": True,
    "mlp_bias": True,
    "tied_embeddings": True,
    "learned_positions": True,
}
_LLAMA: Final[Mapping[str, Any]] = {
    "family": "llama",
    "norm": Norm.RMS,
    "activation": Activation.SILU,
    "gated": True,
    "rotary": True,
}
_FAMILIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "gpt-neo": _GPT,
    "gpt-oss": {
        **_LLAMA,
        "family": "gpt_oss",
        "query_key_value_bias": True,
        "attention_output_bias": True,
        "mlp_bias": True,
        "head_size": 64,
        "experts": (128, 4),
    },
    "gpt": _GPT,
    "turing": _GPT,
    "mt-nlg": _GPT,
    "opt": {**_GPT, "family": "opt", "activation": Activation.RELU},
    "mpt": {**_GPT, "family": "mpt"},
    "llama": _LLAMA,
    "mistral": {**_LLAMA, "family": "mistral"},
    "mixtral": {**_LLAMA, "family": "mixtral", "experts": (8, 2)},
    "qwen2": {**_LLAMA, "family": "qwen2", "query_key_value_bias": True},
    "qwen3": {**_LLAMA, "family": "qwen3", "query_key_norm": True, "head_size": 128},
    "grok": {
        **_LLAMA,
        "family": "grok-1",
        "activation": Activation.GELU,
        "experts": (8, 2),
        "tied_embeddings": True,
    },
    "nemotron-4": {
        "family": "nemotron",
        "norm": Norm.LAYER,
        "activation": Activation.SQUARED_RELU,
        "rotary": True,
    },
}
# Mixtures are told from dense models of a family by the active size in their name.
_MIXTURE_MARKS: Final = {"qwen3-30b-a3b": (128, 8), "qwen3-235b-a22b": (128, 8)}
_SIZES: Final = (
    "num_layers",
    "hidden_size",
    "ffn_size",
    "num_heads",
    "vocabulary_size",
)


def config_of(run: MeasuredRun, line: SoftwareLine) -> TransformerConfig:
    """The model of `run`; raises `UnsupportedFeature` where family or sizes are unknown."""
    missing = [name for name in _SIZES if getattr(run, name) is None]
    if missing:
        raise UnsupportedFeature(f"the row does not state {', '.join(missing)}")
    name = run.model.lower()
    prefix = next((p for p in _FAMILIES if name.startswith(p)), None)
    if prefix is None:
        raise UnsupportedFeature(f"the family of {run.model} is not modelled")
    style = dict(_FAMILIES[prefix])
    assert run.num_heads and run.hidden_size and run.ffn_size and run.num_layers
    head_size = style.pop("head_size", run.hidden_size // run.num_heads)
    mixture = style.pop("experts", _MIXTURE_MARKS.get(name))
    experts = None
    if mixture is not None:
        experts = Experts(
            num_experts=mixture[0], experts_per_token=mixture[1], ffn_size=run.ffn_size
        )
    positions = run.sequence_length if style.pop("learned_positions", False) else 0
    return TransformerConfig(
        num_layers=run.num_layers,
        hidden_size=run.hidden_size,
        num_heads=run.num_heads,
        num_kv_heads=run.num_kv_heads or run.num_heads,
        head_size=head_size,
        ffn_size=run.ffn_size,
        vocabulary_size=run.vocabulary_size or 0,
        max_positions=positions,
        hidden_dropout=line.dropout,
        attention_dropout=line.dropout,
        experts=experts,
        **style,
    )
