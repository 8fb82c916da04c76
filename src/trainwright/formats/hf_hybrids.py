"""Families with layers that mix tokens without attention, alone or between blocks that attend.

A family's function reads the sizes of its mixer, and which layer is of what kind: from
`layer_types`, else from the family's own pattern. Defaults are those of the public configuration
classes of transformers 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from trainwright.errors import UnsupportedFeature
from trainwright.formats import hf_decoders
from trainwright.formats.hf_keys import MAX_LAYERS, Fields, KeyReader, activation, stack
from trainwright.model import (
    Activation,
    BlockChoice,
    DeltaRule,
    Experts,
    LinearAttention,
    Mixer,
    Norm,
    ShortConvolution,
    StateSpace,
    TimeMix,
)

_ATTENDS: Final = BlockChoice()
_BIAS: Final = ("attention_bias", False)


def _mixed(
    keys: KeyReader,
    fields: Fields,
    mixer: Mixer,
    *,
    own: Callable[[int], bool],
    words: tuple[str, ...] = ("linear_attention",),
) -> Fields:
    """Blocks of the mixer where `layer_types` has one of its `words`, or by the pattern.

    The others attend.
    """
    kinds = _kinds(keys, fields["num_layers"], own=own, words=words)
    choices = (BlockChoice(mixer=mixer, attends=False), _ATTENDS)
    return fields | {
        "choices": choices,
        "choice_of_layer": tuple(int(kind == "full_attention") for kind in kinds),
    }


_MAMBA: Final = ("linear_attention", "mamba")


def _kinds(
    keys: KeyReader, num_layers: int, *, own: Callable[[int], bool], words: tuple[str, ...]
) -> Sequence[str]:
    """`full_attention` or one of `words` for each layer; `own` says which attend in the pattern."""
    stated = keys.optional_texts("layer_types")
    if not stated:
        return ["full_attention" if own(i) else words[0] for i in range(num_layers)]
    if len(stated) != num_layers:
        keys.refuse("layer_types", f"must have one entry per layer ({num_layers})")
        return ["full_attention"] * num_layers
    named = ["full_attention" if kind == "attention" else kind for kind in stated]
    if unknown := sorted(set(named) - {"full_attention", *words}):
        keys.refuse("layer_types", f"must be full_attention or {words[0]}, got {unknown[0]}")
    return named


# Qwen3-Next and Qwen3.5: a gated delta rule in three blocks of four, a gate on attention
# ---------------------------------------------------------------------------------------


def _delta_rule(keys: KeyReader) -> DeltaRule:
    return DeltaRule(
        num_key_heads=keys.count("linear_num_key_heads", 16),
        num_value_heads=keys.count("linear_num_value_heads", 32),
        key_size=keys.count("linear_key_head_dim", 128),
        value_size=keys.count("linear_value_head_dim", 128),
        kernel=keys.count("linear_conv_kernel_dim", 4),
    )


def _qwen(rule: hf_decoders.Decoder) -> Callable[[KeyReader], Fields]:
    def read(keys: KeyReader) -> Fields:
        mixer = _delta_rule(keys)
        every = keys.optional_count("full_attention_interval") or 4
        fields = hf_decoders.read_decoder(rule, keys)
        keys.pass_over("attn_output_gate", "mamba_ssm_dtype", "mtp_use_dedicated_embeddings")
        fields["attention_gate_bias"] = fields["query_key_value_bias"]
        fields["num_mtp_layers"] = keys.natural("mtp_num_hidden_layers", 0)
        keys.defaults.pop("mtp_num_hidden_layers", None)
        return _mixed(keys, fields, mixer, own=lambda i: (i + 1) % every == 0)

    return read


_QWEN3_NEXT: Final = hf_decoders.Decoder(
    layers=48,
    hidden=2048,
    ffn=5632,
    heads=16,
    kv_heads=2,
    head_size=256,
    vocabulary=151936,
    query_key_norm=True,
    query_key_value_bias=_BIAS,
    gate_attention=True,
    mixture=hf_decoders.MixtureRule(
        num_experts=512,
        visited=10,
        width=512,
        shared_width=512,
        dense=hf_decoders.dense_between,
        shared_gate=True,
    ),
)
_QWEN3_5: Final = hf_decoders.Decoder(
    layers=32,
    hidden=4096,
    ffn=12288,
    heads=16,
    kv_heads=4,
    head_size=256,
    vocabulary=248320,
    query_key_norm=True,
    query_key_value_bias=_BIAS,
    gate_attention=True,
)
_QWEN3_5_MOE: Final = hf_decoders.Decoder(
    layers=40,
    hidden=2048,
    ffn=512,
    heads=16,
    kv_heads=2,
    head_size=256,
    vocabulary=248320,
    query_key_norm=True,
    query_key_value_bias=_BIAS,
    gate_attention=True,
    mixture=hf_decoders.MixtureRule(
        num_experts=256, visited=8, width=512, shared_width=512, shared_gate=True
    ),
)


# Kimi Linear: its own delta attention, latent attention in one block of four
# ---------------------------------------------------------------------------


_KIMI: Final = hf_decoders.Decoder(
    layers=27,
    hidden=2304,
    ffn=9216,
    heads=32,
    vocabulary=163840,
    latent=hf_decoders.LatentRule(
        query_rank=0, key_value_rank=512, rotary=64, plain=128, value=128
    ),
    mixture=hf_decoders.MixtureRule(
        num_experts=256, visited=8, width=1024, shared=1, first_dense=1
    ),
    further=("num_nextn_predict_layers", False),
    ignored=(
        *("model_max_length", "moe_renormalize", "mla_use_nope", "use_grouped_topk"),
        *("moe_router_activation_func", "activation_situ_beta", "activation_situ_linear_beta"),
    ),
    unknown=("attention_bias",),
)


_UNTIED: Final = {"tie_word_embeddings": False}  # no class of theirs ties its head


def read_kimi_linear(keys: KeyReader) -> Fields:
    """Fields of a `kimi_linear` config, that of Kimi K3's text among them.

    The latter has whole gates, experts of another width, and residuals of earlier blocks.
    """
    inner = keys.section("linear_attn_config")
    heads = inner.optional_count("num_heads") or keys.count("linear_num_heads", 32)
    size = inner.optional_count("head_dim") or keys.count("linear_head_dim", 128)
    kernel = inner.optional_count("short_conv_kernel_size") or keys.count(
        "linear_conv_kernel_dim", 4
    )
    keys.pass_over("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
    mixer = DeltaRule(
        num_key_heads=heads,
        num_value_heads=heads,
        key_size=size,
        value_size=size,
        kernel=kernel,
        narrow_size=size,
        whole_gate=_says(inner, "use_full_rank_gate"),
    )
    attends = {i - 1 for i in inner.counts("full_attn_layers", ())}  # counted from 1
    inner.pass_over("kda_layers", "gate_lower_bound")
    own = attends.__contains__ if attends else lambda i: i > 0 and i % 4 == 0
    hf_decoders.refuse_others(
        keys, _UNTIED, {"tie_word_embeddings": keys.flag("tied_embeddings", False)}
    )
    if keys.states("moe_layer_freq"):
        hf_decoders.refuse_others(
            keys, {"moe_layer_freq": 1}, {"moe_layer_freq": keys.value("moe_layer_freq", 1)}
        )
    fields = hf_decoders.read_decoder(_KIMI, keys)
    fields = _mixed(keys, fields, mixer, own=own, words=("linear_attention", "kda"))
    if _says(keys, "mla_use_output_gate"):
        gate = BlockChoice(attention_gate=fields["num_heads"] * fields["latent"].value_head_size)
        fields["choices"] = (fields["choices"][0], gate)
    fields["experts"] = replace(
        fields["experts"],
        latent_size=keys.optional_count("routed_expert_hidden_size"),
        latent_norm=_says(keys, "latent_moe_use_norm"),
    )
    return fields | {"residual_blocks": keys.optional_count("attn_res_block_size") or 0}


def _says(keys: KeyReader, name: str) -> bool:
    """A flag that is off where a file is silent."""
    return keys.stated_flag(name)


# MiniMax-01: lightning attention, softmax attention in every other block
# -----------------------------------------------------------------------

_MINIMAX: Final = hf_decoders.Decoder(
    layers=32,
    hidden=4096,
    ffn=14336,
    heads=32,
    kv_heads=8,
    vocabulary=32000,
    mixture=hf_decoders.MixtureRule(num_experts=8, visited=2),
    ignored=(
        "sliding_window",
        "block_size",
        "full_attn_alpha_factor",
        "full_attn_beta_factor",
        "linear_attn_alpha_factor",
        "linear_attn_beta_factor",
        "mlp_alpha_factor",
        "mlp_beta_factor",
    ),
)


def read_minimax(keys: KeyReader) -> Fields:
    """Fields of a `minimax` config."""
    fields = hf_decoders.read_decoder(_MINIMAX, keys)
    mixer = LinearAttention(num_heads=fields["num_heads"], head_size=fields["head_size"])
    return _mixed(keys, fields, mixer, own=lambda i: i % 2 == 0)


# Mamba-2 between or beside attention: Bamba, Granite 4, Falcon-H1, Nemotron-H; Mamba-1: Jamba
# --------------------------------------------------------------------------------------------


def _mamba2(keys: KeyReader, hidden: int) -> StateSpace:
    """The sizes as Bamba and its relatives spell them."""
    heads = keys.count("mamba_n_heads", 128)
    keys.pass_over("mamba_d_head", "mamba_chunk_size")
    return StateSpace(
        inner_size=keys.count("mamba_expand", 2) * hidden,
        state_size=keys.count("mamba_d_state", 256),
        num_heads=heads,
        num_groups=keys.count("mamba_n_groups", 1),
        kernel=keys.count("mamba_d_conv", 4),
        convolution_bias=keys.flag("mamba_conv_bias", True),
        bias=keys.flag("mamba_proj_bias", False),
    )


_BAMBA: Final = hf_decoders.Decoder(
    layers=32,
    hidden=4096,
    ffn=14336,
    heads=32,
    kv_heads=8,
    vocabulary=128000,
    query_key_value_bias=_BIAS,
    mlp_bias=("mlp_bias", False),
    ignored=("num_logits_to_keep", "z_loss_coefficient", "time_step_limit", "attn_rotary_emb"),
)


def read_bamba(keys: KeyReader) -> Fields:
    """Fields of a `bamba` config: attention in the blocks that it lists."""
    fields = hf_decoders.read_decoder(_BAMBA, keys)
    attends = set(keys.counts("attn_layer_indices", ()))
    return _mixed(
        keys, fields, _mamba2(keys, fields["hidden_size"]), own=attends.__contains__, words=_MAMBA
    )


_GRANITE_HYBRID: Final = hf_decoders.Decoder(
    layers=32,
    hidden=4096,
    ffn=11008,
    heads=32,
    vocabulary=32000,
    query_key_value_bias=_BIAS,
    ignored=(
        "embedding_multiplier",
        "attention_multiplier",
        "residual_multiplier",
        "logits_scaling",
        "time_step_limit",
        "normalization_function",
    ),
)


def read_granite_hybrid(keys: KeyReader) -> Fields:
    """Fields of a `granitemoehybrid` config: a shared part in every block, experts if any."""
    fields = hf_decoders.read_decoder(_GRANITE_HYBRID, keys)
    shared = keys.count("shared_intermediate_size", 1024)
    count = keys.natural("num_experts", 8)
    visited = keys.natural("num_experts_per_tok", 2)
    if count:
        fields["experts"] = Experts(
            num_experts=count,
            experts_per_token=visited,
            ffn_size=fields["ffn_size"],
            shared_ffn_size=shared,
            routed_bias=False,
        )
    else:
        fields["ffn_size"] = shared
    return _mixed(
        keys, fields, _mamba2(keys, fields["hidden_size"]), own=lambda _: False, words=_MAMBA
    )


_FALCON: Final = hf_decoders.Decoder(
    layers=32,
    hidden=4096,
    ffn=14336,
    heads=32,
    kv_heads=8,
    vocabulary=128000,
    query_key_value_bias=_BIAS,
    mlp_bias=("mlp_bias", False),
    ignored=(
        "attention_in_multiplier",
        "attention_out_multiplier",
        "embedding_multiplier",
        "key_multiplier",
        "lm_head_multiplier",
        "mlp_multipliers",
        "ssm_in_multiplier",
        "ssm_multipliers",
        "ssm_out_multiplier",
        "num_logits_to_keep",
        "mamba_norm_before_gate",
        "mamba_expand",
        "mamba_use_mlp",
        "attn_layer_indices",
        "time_step_limit",
    ),
    unknown=("mamba_proj_bias", "projectors_bias"),
)


def read_falcon_h1(keys: KeyReader) -> Fields:
    """Fields of a `falcon_h1` config: Mamba-2 beside attention in every block."""
    fields = hf_decoders.read_decoder(_FALCON, keys)
    keys.pass_over("mamba_d_head", "mamba_chunk_size")
    stated = keys.nullable_count("mamba_d_ssm", 1024)
    inner = stated or keys.count("mamba_expand", 2) * fields["hidden_size"]
    mixer = StateSpace(
        inner_size=inner,
        state_size=keys.count("mamba_d_state", 256),
        num_heads=keys.count("mamba_n_heads", 128),
        num_groups=keys.count("mamba_n_groups", 1),
        kernel=keys.count("mamba_d_conv", 4),
        convolution_bias=keys.flag("mamba_conv_bias", True),
        gated_norm=keys.flag("mamba_rms_norm", False),
    )
    return fields | {"mixer": mixer}


_JAMBA: Final = hf_decoders.Decoder(
    layers=32,
    hidden=4096,
    ffn=14336,
    heads=32,
    kv_heads=8,
    vocabulary=65536,
    mixture=None,
    ignored=("use_mamba_kernels", "use_mambapy", "use_associative_scan", "num_logits_to_keep"),
)


def read_jamba(keys: KeyReader) -> Fields:
    """Fields of a `jamba` config: Mamba-1, attention and experts at periods and offsets."""
    fields = hf_decoders.read_decoder(_JAMBA, keys)
    hidden, layers = fields["hidden_size"], range(fields["num_layers"])
    rank = keys.value("mamba_dt_rank", -(-hidden // 16))
    mixer = StateSpace(
        inner_size=keys.count("mamba_expand", 2) * hidden,
        state_size=keys.count("mamba_d_state", 16),
        kernel=keys.count("mamba_d_conv", 4),
        convolution_bias=keys.flag("mamba_conv_bias", True),
        bias=keys.flag("mamba_proj_bias", False),
        time_rank=rank if type(rank) is int else -(-hidden // 16),
        inner_norms=True,
    )
    step, first = keys.count("expert_layer_period", 2), keys.natural("expert_layer_offset", 1)
    count = keys.count("num_experts", 16)
    visited = keys.count("num_experts_per_tok", 2)
    if count > 1:
        fields["experts"] = Experts(
            num_experts=count,
            experts_per_token=visited,
            ffn_size=fields["ffn_size"],
            dense_layers=tuple(i for i in layers if i % step != first),
        )
    period, offset = keys.count("attn_layer_period", 8), keys.natural("attn_layer_offset", 4)
    return _mixed(keys, fields, mixer, own=lambda i: i % period == offset, words=_MAMBA)


# Nemotron-H and Nemotron 3: every layer a mixer, attention or a feed-forward part alone
# --------------------------------------------------------------------------------------

_LETTERS: Final = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
_ALSO: Final = {"mamba": "linear_attention", "attention": "full_attention"}


def read_nemotron_h(keys: KeyReader) -> Fields:
    """Fields of a `nemotron_h` config; the pattern has a letter or a word per layer."""
    kinds = _nemotron_pattern(keys, "layers_block_type", "hybrid_override_pattern", "ME*-")
    keys.pass_over("num_layers")
    fields = stack(
        keys,
        layers=len(kinds),
        hidden=4096,
        heads=32,
        vocabulary=131072,
        head_size=128,
    )
    fields["num_layers"] = len(kinds)
    heads = keys.count("mamba_num_heads", 128)
    mixer = StateSpace(
        inner_size=heads * keys.count("mamba_head_dim", 64),
        state_size=keys.count("ssm_state_size", 128),
        num_heads=heads,
        num_groups=keys.count("n_groups", 8),
        kernel=keys.count("conv_kernel", 4),
        convolution_bias=keys.flag("use_conv_bias", True),
        bias=keys.flag("use_bias", False),
    )
    keys.pass_over(*_NEMOTRON_SILENT)
    further: Sequence[str] = ()
    keys.pass_over("mtp_layers_block_type", "mtp_hybrid_override_pattern")
    num_further = keys.natural("num_nextn_predict_layers", 0)
    keys.defaults.pop("num_nextn_predict_layers", None)
    if num_further:
        pattern = ("mtp_layers_block_type", "mtp_hybrid_override_pattern", "*E")
        further = _nemotron_pattern(keys, *pattern)
        if absent := sorted(set(further) - set(kinds)):
            keys.refuse(pattern[0], f'must be of kinds that the layers have, got "{absent[0]}"')
            further = ()
    shared = keys.natural("moe_shared_expert_intermediate_size", 7688)
    keys.pass_over("num_shared_experts")  # whose width is that of all together
    experts = None
    if "moe" in kinds:
        experts = Experts(
            num_experts=keys.count("num_experts", 8),
            experts_per_token=keys.count("num_experts_per_tok", 2),
            ffn_size=keys.count("moe_intermediate_size", 7688),
            shared_ffn_size=shared,
            num_groups=keys.optional_count("n_group") or 1,
            groups_per_token=keys.optional_count("topk_group") or 1,
            latent_size=keys.optional_count("moe_latent_size"),
            routed_bias=False,
        )
    else:
        keys.pass_over("num_experts", "num_experts_per_tok", "moe_intermediate_size")
        keys.pass_over("moe_latent_size")
    tied, bias = keys.flag("tied_embeddings", False), keys.flag("attention_bias", False)
    built: Fields = {**_UNTIED, "attention_bias": False}
    hf_decoders.refuse_others(keys, built, {"tie_word_embeddings": tied, "attention_bias": bias})
    if "moe" in kinds and not shared:
        raise UnsupportedFeature("moe_shared_expert_intermediate_size: 0 is not modelled")
    ordered = ["linear_attention", *sorted(_NEMOTRON_KINDS)]
    return fields | {
        "num_mtp_layers": num_further,
        "further_choices": tuple(map(ordered.index, further)),
        "head_size": keys.count("head_size", 128),
        "num_kv_heads": keys.count("num_kv_heads", 8),
        "ffn_size": keys.count("ffn_size", 21504),
        "norm": Norm.RMS,
        "activation": activation(keys, "mlp_hidden_act", "relu2"),
        "gated": False,
        "mlp_bias": keys.flag("mlp_bias", False),
        "hidden_dropout": keys.fraction("hidden_dropout", 0.0),
        "attention_dropout": keys.fraction("attention_dropout", 0.0),
        "experts": experts,
        "choices": (BlockChoice(mixer=mixer, attends=False, mlp=False), *_NEMOTRON_OTHERS),
        "choice_of_layer": tuple(map(ordered.index, kinds)),
    }


_NEMOTRON_KINDS: Final = {
    "full_attention": BlockChoice(mlp=False),
    "mlp": BlockChoice(attends=False, dense=True),
    "moe": BlockChoice(attends=False),
}
_NEMOTRON_OTHERS: Final = tuple(_NEMOTRON_KINDS[name] for name in sorted(_NEMOTRON_KINDS))
_NEMOTRON_SILENT: Final = (
    *("chunk_size", "expand", "mamba_hidden_act", "mamba_ssm_cache_dtype", "num_logits_to_keep"),
    *("rescale_prenorm_residual", "residual_in_fp32", "sliding_window", "use_mamba_kernels"),
    *("time_step_floor", "time_step_max", "time_step_min", "time_step_limit", "hidden_act"),
    *("moe_shared_expert_overlap", "max_positions", "time_step_rank", "mamba_proj_bias"),
)


def _nemotron_pattern(keys: KeyReader, words_key: str, letters_key: str, usual: str) -> list[str]:
    """Words under the first key, or letters under the second, else the `usual` ones."""
    words = keys.optional_texts(words_key)
    letters = keys.text(letters_key, usual) if not words else ""
    keys.pass_over(letters_key)
    found = [_ALSO.get(word, word) for word in words] or [_LETTERS.get(a, a) for a in letters]
    known = {"linear_attention", *_NEMOTRON_KINDS}
    if unknown := sorted(set(found) - known):
        field = words_key if words else letters_key
        keys.refuse(field, f'must be of {", ".join(sorted(known))}, got "{unknown[0]}"')
        return ["mlp"]
    if not 1 <= len(found) <= MAX_LAYERS:
        keys.refuse(letters_key, f"must have 1 to {MAX_LAYERS} layers")
        return ["mlp"]
    return found


# Mamba alone; LFM2: short convolutions between attention
# -------------------------------------------------------


def _alone(
    keys: KeyReader, mixer: Mixer, *, hidden: int, layers: int, vocabulary: int, tied: bool
) -> Fields:
    """Every layer a mixer and nothing else."""
    keys.pass_over("residual_in_fp32", "rescale_prenorm_residual", "time_step_floor", "hidden_act")
    keys.pass_over("time_step_max", "time_step_min", "time_step_scale", "time_step_init_scheme")
    keys.pass_over("use_mambapy", "use_associative_scan", "time_step_limit", "mixer_rms_eps")
    return {
        "num_layers": keys.count("num_layers", layers, most=MAX_LAYERS),
        "hidden_size": hidden,
        "num_heads": 1,
        "num_kv_heads": 1,
        "head_size": 1,
        "ffn_size": 1,
        "vocabulary_size": keys.count("vocabulary_size", vocabulary),
        "norm": Norm.RMS,
        "activation": activation(keys, "hidden_act", "silu"),
        "tied_embeddings": keys.flag("tied_embeddings", tied),
        "mixer": mixer,
        "attends": False,
        "mlp": False,
    }


def read_mamba(keys: KeyReader) -> Fields:
    """Fields of a `mamba` or `falcon_mamba` config."""
    hidden = keys.count("hidden_size", 768)
    rank = keys.value("time_step_rank", "auto")
    keys.defaults.pop("time_step_rank", None)
    mixer = StateSpace(
        inner_size=keys.optional_count("ffn_size") or keys.count("expand", 2) * hidden,
        state_size=keys.count("state_size", 16),
        kernel=keys.count("conv_kernel", 4),
        convolution_bias=keys.flag("use_conv_bias", True),
        bias=keys.flag("use_bias", False),
        time_rank=rank if type(rank) is int else -(-hidden // 16),
    )
    return _alone(keys, mixer, hidden=hidden, layers=32, vocabulary=50280, tied=True)


def read_mamba2(keys: KeyReader) -> Fields:
    """Fields of a `mamba2` config."""
    hidden = keys.count("hidden_size", 4096)
    keys.pass_over("chunk_size", "time_step_rank", "norm_before_gate", "rms_norm")
    inner, each = keys.count("expand", 2) * hidden, keys.optional_count("head_dim") or 64
    mixer = StateSpace(
        inner_size=inner,
        state_size=keys.count("state_size", 128),
        num_heads=keys.count("num_heads", max(1, inner // each)),
        num_groups=keys.count("n_groups", 8),
        kernel=keys.count("conv_kernel", 4),
        convolution_bias=keys.flag("use_conv_bias", True),
        bias=keys.flag("use_bias", False),
    )
    return _alone(keys, mixer, hidden=hidden, layers=64, vocabulary=32768, tied=False)


def read_rwkv(keys: KeyReader) -> Fields:
    """Fields of an `rwkv` config (RWKV-4): time mix and channel mix, a norm more in the first."""
    keys.pass_over("context_length", "rescale_every", "hidden_act")
    hidden = keys.count("hidden_size", 4096)
    width = keys.optional_count("attention_hidden_size") or hidden
    mixer = TimeMix(hidden_size=hidden, width=width)
    fields = _alone(keys, mixer, hidden=hidden, layers=32, vocabulary=50277, tied=False)
    keys.defaults.pop("hidden_act", None)
    kinds = [BlockChoice(mixer=mixer, attends=False, entry_norm=own) for own in (True, None)]
    return fields | {
        "norm": Norm.LAYER,
        "activation": Activation.SQUARED_RELU,
        "ffn_size": keys.optional_count("ffn_size") or 4 * hidden,
        "receptance": True,
        "mixer": None,
        "attends": True,
        "mlp": True,
        "choices": tuple(kinds),
        "choice_of_layer": (0, *(1 for _ in range(fields["num_layers"] - 1))),
    }


_LFM2: Final = hf_decoders.Decoder(
    layers=32,
    hidden=2560,
    ffn=12288,
    heads=32,
    kv_heads=8,
    vocabulary=65536,
    tied=True,
    query_key_norm=True,
    ignored=("theta", "max_position_embeddings", "conv_dim", "conv_dim_out", "block_dim"),
)


def read_lfm2(keys: KeyReader) -> Fields:
    """Fields of an `lfm2` config; the feed-forward width is two thirds of it, rounded up."""
    keys.pass_over("conv_use_xavier_init", "block_use_swiglu", "block_norm_eps", "use_pos_enc")
    keys.pass_over("block_mlp_init_scale", "block_out_init_scale", "block_use_xavier_init")
    fields = hf_decoders.read_decoder(_LFM2, keys)
    keys.pass_over("block_ff_dim")
    stated = keys.optional_count("block_ff_dim")
    width = stated or fields["ffn_size"]
    if keys.flag("block_auto_adjust_ff_dim", True):
        multiple = keys.count("block_multiple_of", 256)
        width = int(keys.ratio("block_ffn_dim_multiplier", 1.0) * int(2 * width / 3))
        width = multiple * -(-width // multiple)
    return _short_convolutions(keys, fields | {"ffn_size": width})


def _short_convolutions(keys: KeyReader, fields: Fields) -> Fields:
    """Between the blocks that attend."""
    mixer = ShortConvolution(
        width=fields["hidden_size"],
        kernel=keys.count("conv_L_cache", 3),
        bias=keys.flag("conv_bias", False),
    )
    stated = keys.states("full_attn_idxs")
    attends = set(keys.counts("full_attn_idxs", ()))
    keys.defaults.pop("full_attn_idxs", None)
    own = attends.__contains__ if stated else lambda i: True
    return _mixed(keys, fields, mixer, own=own, words=("conv",))


def read_lfm2_moe(keys: KeyReader) -> Fields:
    """Fields of an `lfm2_moe` config: experts behind the first blocks, none shared."""
    keys.pass_over("use_expert_bias", "norm_eps")
    return _short_convolutions(keys, hf_decoders.read_decoder(_LFM2_MOE, keys))


_LFM2_MOE: Final = replace(
    _LFM2,
    hidden=2048,
    ffn=7168,
    mixture=hf_decoders.MixtureRule(
        num_experts=32, visited=4, width=1792, first_dense=("num_dense_layers", 2)
    ),
)

# Models of flash-linear-attention: a plain decoder, and a gated delta rule where no layer attends
# -------------------------------------------------------------------------------------------------
# Sources: its `fla/models` and `fla/modules/mlp.py`. A width that no file says is two thirds of 4
# times the hidden size, as a multiple of 256.

_FLA: Final = hf_decoders.Decoder(
    layers=24,
    hidden=2048,
    ffn=0,
    heads=32,
    vocabulary=32000,
    query_key_value_bias=("qkv_bias", False),
    attention_output_bias=False,
    query_key_norm=("qk_norm", False),
    window=0,
    window_key="window_size",
    ignored=(
        *("fuse_norm", "fuse_swiglu", "fuse_cross_entropy", "fuse_linear_cross_entropy"),
        *("use_l2warp", "norm_eps", "attn_mode", "allow_neg_eigval", "rope_theta"),
    ),
    unknown=("attnres_block_size",),
)


def _fla_decoder(keys: KeyReader, rule: hf_decoders.Decoder) -> Fields:
    """Fields by a rule whose width follows from the hidden size where a file is silent."""
    ratio = keys.optional_count("hidden_ratio") or 4
    affine = keys.flag("elementwise_affine", True)
    keys.defaults.pop("elementwise_affine", None)
    hf_decoders.refuse_others(keys, {"elementwise_affine": True}, {"elementwise_affine": affine})
    width = keys.count("hidden_size", rule.hidden) * ratio * 2 // 3
    return hf_decoders.read_decoder(replace(rule, ffn=-(-width // 256) * 256), keys)


def read_fla_transformer(keys: KeyReader) -> Fields:
    """Fields of a `transformer` config."""
    return _fla_decoder(keys, _FLA)


_FLA_DELTA: Final = {"use_gate": True, "use_short_conv": True}


def read_gated_deltanet(keys: KeyReader) -> Fields:
    """Fields of a `gated_deltanet` config; `attn` says which layers attend, with what heads."""
    hf_decoders.refuse_others(
        keys, _FLA_DELTA, {name: keys.flag(name, True) for name in _FLA_DELTA}
    )
    heads, size = keys.count("num_heads", 6), keys.count("head_size", 256)
    wider = keys.ratio("expand_v", 2)
    if size * wider != int(size * wider):
        keys.refuse("expand_v", f"must be a number that gives a whole width, got {wider}")
        wider = 1
    mixer = DeltaRule(
        num_key_heads=heads,
        num_value_heads=keys.optional_count("num_v_heads") or heads,
        key_size=size,
        value_size=int(size * wider),
        kernel=keys.count("conv_size", 4),
    )
    attends = keys.section("attn")
    layers = attends.counts("layers", ())
    attends.defaults.pop("attn.layers", None)
    own = replace(_FLA, layers=21, heads=attends.optional_count("num_heads") or 1)
    inner = attends.optional_count("num_kv_heads") or own.heads
    biased = attends.flag("qkv_bias", False) if attends.states("qkv_bias") else False
    window = attends.optional_count("window_size")
    attends.pass_over("rope_theta", "qk_norm")
    fields = _fla_decoder(keys, replace(own, query_key_value_bias=False))
    fields |= {
        "num_heads": own.heads,
        "num_kv_heads": inner,
        "head_size": max(1, fields["hidden_size"] // own.heads),
        "query_key_value_bias": biased,
    }
    if window is not None and layers:
        fields["sliding_window"] = window
    choices = (BlockChoice(mixer=mixer, attends=False), _ATTENDS)
    chosen = tuple(int(i in layers) for i in range(fields["num_layers"]))
    return fields | {"choices": choices[: 1 + any(chosen)], "choice_of_layer": chosen}


HYBRIDS: Final[dict[str, Callable[[KeyReader], Fields]]] = {
    "transformer": read_fla_transformer,
    "gated_deltanet": read_gated_deltanet,
    "qwen3_next": _qwen(_QWEN3_NEXT),
    "qwen3_5_text": _qwen(_QWEN3_5),
    "qwen3_5_moe_text": _qwen(_QWEN3_5_MOE),
    "kimi_linear": read_kimi_linear,
    "minimax": read_minimax,
    "bamba": read_bamba,
    "granitemoehybrid": read_granite_hybrid,
    "falcon_h1": read_falcon_h1,
    "jamba": read_jamba,
    "nemotron_h": read_nemotron_h,
    "mamba": read_mamba,
    "falcon_mamba": read_mamba,
    "mamba2": read_mamba2,
    "lfm2": read_lfm2,
    "lfm2_moe": read_lfm2_moe,
    "rwkv": read_rwkv,
}
