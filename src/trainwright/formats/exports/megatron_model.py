"""The model that Megatron-LM's arguments describe."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from trainwright.errors import Fault, InvalidInput
from trainwright.model import TransformerConfig
from trainwright.model.config import Activation, Norm
from trainwright.model.parts import Experts, LatentAttention

if TYPE_CHECKING:
    from trainwright.formats.exports.shell_args import Flags

_MODEL_FLAGS_TEXT: Final = """
num-layers hidden-size ffn-hidden-size num-attention-heads group-query-attention
num-query-groups kv-channels normalization swiglu squared-relu quick-geglu disable-bias-linear
add-qkv-bias qk-layernorm hidden-dropout attention-dropout position-embedding-type
max-position-embeddings untie-embeddings-and-output-weights vocab-size padded-vocab-size
num-experts moe-ffn-hidden-size moe-router-topk moe-layer-freq moe-grouped-gemm
moe-token-dispatcher-type moe-shared-expert-intermediate-size multi-latent-attention
moe-router-num-groups moe-router-group-topk moe-router-topk-limited-devices
q-lora-rank kv-lora-rank qk-head-dim qk-pos-emb-head-dim v-head-dim mtp-num-layers
"""
MODEL_FLAGS: Final = frozenset(_MODEL_FLAGS_TEXT.split())
_NEEDED: Final = ("num-layers", "hidden-size", "num-attention-heads")
_PART: Final = re.compile(r"\[([01](?:,[01])*)\](?:\*(\d+))?")
_PATTERN: Final = re.compile(rf"\(?{_PART.pattern}(?:\+{_PART.pattern})*\)?")

_MOST_DIGITS: Final = 5
_READ_AS: Final = {
    "num_layers": "--num-layers",
    "hidden_size": "--hidden-size",
    "num_heads": "--num-attention-heads",
    "num_kv_heads": "--num-query-groups",
    "head_size": "--kv-channels",
    "ffn_size": "--ffn-hidden-size",
    "num_mtp_layers": "--mtp-num-layers",
    "experts.num_experts": "--num-experts",
    "experts.experts_per_token": "--moe-router-topk",
    "experts.ffn_size": "--moe-ffn-hidden-size",
    "experts.shared_ffn_size": "--moe-shared-expert-intermediate-size",
    "experts.num_groups": "--moe-router-num-groups",
    "experts.groups_per_token": "--moe-router-group-topk",
}


def read_model(flags: Flags) -> tuple[TransformerConfig | None, tuple[str, ...]]:
    """The model; None and the reason where the arguments leave out its vocabulary or a size."""
    sizes = {name: flags.count(name) for name in _NEEDED}
    vocabulary = flags.count("vocab-size") or flags.count("padded-vocab-size")
    if None in sizes.values():
        missing = ", ".join(f"--{name}" for name, value in sizes.items() if value is None)
        return None, (f"the model is not described: {missing} not given",)
    if vocabulary is None:
        return None, (
            "the model is not described: no --vocab-size, which its tokenizer decides; add it to "
            "the script",
        )
    try:
        return _model(flags, vocabulary), ()
    except InvalidInput as error:  # of a model, whose fields have other names than the arguments
        raise InvalidInput(
            [Fault(_READ_AS.get(fault.path, fault.path), fault.problem) for fault in error.faults]
        ) from None


def _model(flags: Flags, vocabulary: int) -> TransformerConfig:
    layers, hidden = flags.count("num-layers") or 0, flags.count("hidden-size") or 0
    heads = flags.count("num-attention-heads") or 0
    gated = bool({"swiglu", "quick-geglu"} & set(flags.values))
    latent = _latent(flags)
    groups = flags.count("num-query-groups") if "group-query-attention" in flags.values else None
    has_bias = "disable-bias-linear" not in flags.values
    rotary = flags.one("position-embedding-type") == "rope"
    head_size = flags.count("kv-channels") or (hidden // heads if heads else 0)
    return TransformerConfig(
        family="megatron",
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=heads if latent or groups is None else groups,
        head_size=head_size if latent is None else latent.head_size,
        ffn_size=_width(flags),
        vocabulary_size=vocabulary,
        norm=Norm.RMS if flags.one("normalization") == "RMSNorm" else Norm.LAYER,
        activation=_activation(flags),
        gated=gated,
        query_key_norm="qk-layernorm" in flags.values and latent is None,
        query_key_value_bias=has_bias or "add-qkv-bias" in flags.values,
        attention_output_bias=has_bias,
        mlp_bias=has_bias,
        tied_embeddings="untie-embeddings-and-output-weights" not in flags.values,
        max_positions=0 if rotary else flags.count("max-position-embeddings") or 0,
        rotary=rotary,
        hidden_dropout=_share(flags, "hidden-dropout"),
        attention_dropout=_share(flags, "attention-dropout"),
        experts=_experts(flags, layers),
        latent=latent,
        num_mtp_layers=flags.count("mtp-num-layers") or 0,
    )


def _share(flags: Flags, name: str) -> float:
    found = flags.number(name)
    return 0.1 if found is None else found  # Megatron's default


def _width(flags: Flags) -> int:
    """That of the feed-forward part; what Megatron takes where none is given."""
    hidden = flags.count("hidden-size") or 0
    usual = hidden * 8 // 3 // 64 * 64 if "swiglu" in flags.values else 4 * hidden
    return flags.count("ffn-hidden-size") or usual


def _activation(flags: Flags) -> Activation:
    if "swiglu" in flags.values:
        return Activation.SILU
    return Activation.SQUARED_RELU if "squared-relu" in flags.values else Activation.GELU


def _latent(flags: Flags) -> LatentAttention | None:
    if "multi-latent-attention" not in flags.values:
        return None
    return LatentAttention(
        key_value_rank=flags.count("kv-lora-rank") or 512,
        rotary_head_size=flags.count("qk-pos-emb-head-dim") or 64,
        plain_head_size=flags.count("qk-head-dim") or 128,
        value_head_size=flags.count("v-head-dim") or 128,
        query_rank=flags.count("q-lora-rank"),
    )


def _experts(flags: Flags, num_layers: int) -> Experts | None:
    count = flags.count("num-experts")
    if not count:
        return None
    width = flags.count("moe-ffn-hidden-size") or _width(flags)
    groups = flags.positive("moe-router-num-groups") or 1
    limit = flags.positive("moe-router-group-topk")
    if (ranks := flags.positive("moe-router-topk-limited-devices")) is not None:  # until core 0.11
        groups, limit = flags.positive("expert-model-parallel-size") or 1, ranks
    elif limit is not None and "moe-router-num-groups" not in flags.values:
        raise InvalidInput.of("--moe-router-group-topk", "needs --moe-router-num-groups beside it")
    dense: tuple[int, ...] = ()
    if (pattern := flags.one("moe-layer-freq")) is not None:
        dense = tuple(i for i, routed in enumerate(_routed(pattern, num_layers)) if not routed)
    leading = next((i for i, layer in enumerate(dense) if layer != i), len(dense))
    given: dict[str, Any] = {"num_dense_layers": leading, "dense_layers": dense[leading:]}
    return Experts(
        num_experts=count,
        experts_per_token=flags.count("moe-router-topk") or 2,
        ffn_size=width,
        shared_ffn_size=flags.count("moe-shared-expert-intermediate-size") or 0,
        num_groups=1 if limit is None else groups,
        groups_per_token=1 if limit is None else limit,
        **given,
    )


def _routed(pattern: str, num_layers: int) -> list[int]:
    """Which layers route: one in every n, or a list such as ([0]*3+[1]*58)."""
    if pattern.isdecimal() and int(pattern):
        return [int(layer % int(pattern) == 0) for layer in range(num_layers)]
    plain = pattern.replace(" ", "")
    parts = _PART.findall(plain) if _PATTERN.fullmatch(plain) else []
    if any(len(n) > _MOST_DIGITS for _, n in parts):
        parts = []
    found = [int(v) for vs, n in parts for v in vs.split(",") * int(n or 1)]
    if len(found) != num_layers:
        wanted = f"must be a number, or a list of {num_layers} zeros and ones"
        raise InvalidInput.of("--moe-layer-freq", f'{wanted}, got "{pattern}"')
    return found
