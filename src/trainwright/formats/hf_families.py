"""Which model families are read from a `config.json`, and by which function.

A function returns the fields of `TransformerConfig`, and leaves faults and defaults in the reader.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from trainwright.errors import UnsupportedFeature
from trainwright.formats.hf_decoder_rules import DECODERS, REMOTE, REMOTE_MIXTURES, TEXT_DECODERS
from trainwright.formats.hf_decoders import (
    ENCODER_DECODERS,
    read_decoder,
    refuse_flags,
    refuse_others,
)
from trainwright.formats.hf_hybrids import HYBRIDS
from trainwright.formats.hf_keys import (
    MAX_LAYERS,
    Fields,
    KeyReader,
    activation,
    rotary_decoder,
    stack,
    upper_windows,
    windows,
    with_biases,
)
from trainwright.formats.hf_uneven_decoders import OTHER_DECODERS
from trainwright.model import (
    Activation,
    BlockChoice,
    CompressedAttention,
    Experts,
    Indexer,
    LatentAttention,
    Norm,
)

# Dense decoders with RMS norms and rotary positions: Llama, Mistral, Qwen2, Qwen3, Phi-3, Granite
# ------------------------------------------------------------------------------------------------
# Defaults are those of the public configuration classes (transformers 4.x).


def read_llama(keys: KeyReader) -> Fields:
    """Fields of a `llama` config."""
    bias = keys.flag("attention_bias", False)
    decoder = rotary_decoder(
        keys, layers=32, hidden=4096, ffn=11008, heads=32, kv_heads=None, vocabulary=32000
    )
    return {
        **decoder,
        "query_key_value_bias": bias,
        "attention_output_bias": bias,
        "mlp_bias": keys.flag("mlp_bias", False),
    }


def read_mistral(keys: KeyReader) -> Fields:
    """Fields of a `mistral` config."""
    decoder = rotary_decoder(
        keys, layers=32, hidden=4096, ffn=14336, heads=32, kv_heads=8, vocabulary=32000
    )
    return windows(keys, decoder, window=keys.optional_count("sliding_window"))


def read_qwen2(keys: KeyReader) -> Fields:
    """Fields of a `qwen2` config."""
    decoder = rotary_decoder(
        keys, layers=32, hidden=4096, ffn=22016, heads=32, kv_heads=32, vocabulary=151936
    )
    return {**upper_windows(keys, decoder), "query_key_value_bias": True}


def read_qwen(keys: KeyReader) -> Fields:
    """Fields of a `qwen` config, the first: gate and value have half the stated width each."""
    fields = read_decoder(REMOTE["qwen"], keys)
    return fields | {"ffn_size": fields["ffn_size"] // 2}


def read_chatglm(keys: KeyReader) -> Fields:
    """Fields of a `chatglm` config: few key heads unless a file says otherwise."""
    fields = read_decoder(REMOTE["chatglm"], keys)
    few = keys.flag("multi_query_attention", True)
    return fields if few else fields | {"num_kv_heads": fields["num_heads"]}


def read_phi3small(keys: KeyReader) -> Fields:
    """Fields of a `phi3small` config, in which all but one of so many blocks are block-sparse.

    A token of those attends to the blocks of keys right before it and to one of so many earlier
    ones: priced is a window of as many tokens as the last position attends to.
    """
    fields = read_decoder(REMOTE["phi3small"], keys)
    block, near = keys.count("blocksparse_block_size", 64), keys.count(_NEAR_BLOCKS, 16)
    before = keys.count("max_positions", 8192) - near * block
    window = near * block + max(0, before) // keys.count("blocksparse_vert_stride", 8)
    every = keys.count("dense_attention_every_n_layers", 2)
    full = tuple(range(every - 1, fields["num_layers"], every))
    fields |= {"sliding_window": window, "full_attention_layers": full}
    return fields | {"hidden_dropout": keys.fraction("hidden_dropout", 0.1)}


_NEAR_BLOCKS = "blocksparse_num_local_blocks"


def _read_remote_mixture(name: str, keys: KeyReader) -> Fields:
    """Fields of a family with experts where its file counts them, and dense blocks otherwise."""
    mixture = REMOTE_MIXTURES[name]
    if (freq := keys.optional_natural("moe_layer_freq")) > 1:
        keys.refuse("moe_layer_freq", f"must be 1 (every later block a mixture), got {freq}")
    if not keys.optional_natural("num_experts"):
        return read_decoder(REMOTE[name], keys)
    return read_decoder(replace(REMOTE[name], mixture=mixture), keys)


def read_mimo(keys: KeyReader) -> Fields:
    """Fields of a `mimo` config: Qwen2 with a layer that predicts a further token (MiMo, 2025)."""
    bias = keys.flag("attention_bias", True)
    keys.pass_over("use_mrope", "head_size")
    further = keys.natural("num_nextn_predict_layers", 1)
    return {**read_qwen2(keys), "query_key_value_bias": bias, "num_mtp_layers": further}


def read_qwen3(keys: KeyReader) -> Fields:
    """Fields of a `qwen3` config."""
    bias = keys.flag("attention_bias", False)
    decoder = rotary_decoder(
        keys, layers=32, hidden=4096, ffn=22016, heads=32, kv_heads=32, vocabulary=151936
    )
    return {
        **upper_windows(keys, decoder),
        "head_size": keys.nullable_count("head_size", 128) or decoder["head_size"],
        "query_key_norm": True,
        "query_key_value_bias": bias,
        "attention_output_bias": bias,
    }


def read_phi3(keys: KeyReader) -> Fields:
    """Fields of a `phi3` config (Phi-3 and Phi-4): products fused, a window where one is given."""
    keys.pass_over("original_max_position_embeddings", "embedding_dropout")
    decoder = rotary_decoder(
        keys, layers=32, hidden=3072, ffn=8192, heads=32, kv_heads=None, vocabulary=32064
    )
    fields = windows(keys, decoder, window=keys.optional_count("sliding_window"))
    return {**fields, "hidden_dropout": keys.fraction("hidden_dropout", 0.0)}


def read_granite(keys: KeyReader) -> Fields:
    """Fields of a `granite` config: Llama with four constant factors, which cost nothing."""
    keys.pass_over("embedding_multiplier", "attention_multiplier")
    keys.pass_over("residual_multiplier", "logits_scaling")
    return read_llama(keys)


# Google's Gemma: heads wider than hidden over heads, gated GELU, a tied head
# ---------------------------------------------------------------------------
# Gemma 2 and 3 have a second norm after each half and attend within a window in most blocks; Gemma
# 3 norms queries and keys. Caps of logits cost next to nothing and are passed over. Defaults are
# those of the public configuration classes (transformers 4.x).

_GELU = "gelu_pytorch_tanh"


def read_gemma(keys: KeyReader) -> Fields:
    """Fields of a `gemma` config."""
    return _decoder(keys, layers=28, hidden=3072, ffn=24576, heads=16, kv_heads=16)


def read_gemma2(keys: KeyReader) -> Fields:
    """Fields of a `gemma2` config: a window in every other block, beginning with the first."""
    decoder = _decoder(keys, layers=26, hidden=2304, ffn=9216, heads=8, kv_heads=4)
    keys.pass_over("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar")
    return _windowed(keys, decoder, every=2)


def read_gemma3(keys: KeyReader) -> Fields:
    """Fields of a `gemma3_text` config: one block in six attends in full, query and key norms."""
    decoder = _decoder(
        keys, layers=26, hidden=2304, ffn=9216, heads=8, kv_heads=4, vocabulary=262208
    )
    keys.pass_over("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar")
    keys.pass_over("rope_local_base_freq", "use_bidirectional_attention")
    every = keys.count("sliding_window_pattern", 6)
    return _windowed(keys, decoder, every=every) | {"query_key_norm": True}


def _decoder(
    keys: KeyReader,
    *,
    layers: int,
    hidden: int,
    ffn: int,
    heads: int,
    kv_heads: int,
    vocabulary: int = 256000,
) -> Fields:
    """What all three share."""
    bias = keys.flag("attention_bias", False)
    decoder = rotary_decoder(
        keys,
        layers=layers,
        hidden=hidden,
        ffn=ffn,
        heads=heads,
        kv_heads=kv_heads,
        vocabulary=vocabulary,
        head_size=256,
        activation_name=_GELU,
        tied=True,
    )
    keys.defaults.pop("hidden_act", None)  # older files have it beside the key that counts
    return {
        **decoder,
        "head_size": keys.count("head_size", 256),
        "activation": activation(keys, "hidden_activation", _GELU),
        "query_key_value_bias": bias,
        "attention_output_bias": bias,
    }


def _windowed(keys: KeyReader, decoder: Fields, *, every: int) -> Fields:
    """Every so manieth block attends in full, unless the file lists them; two norms a half."""
    fields = windows(keys, decoder, window=keys.nullable_count("sliding_window", 4096))
    if not keys.states("layer_types") and "sliding_window" in fields:
        fields["full_attention_layers"] = tuple(range(every - 1, decoder["num_layers"], every))
    return fields | {"sandwich_norm": True}


# Families with layer norms: GPT-2 and GPT-3, GPT-Neo, OPT, BLOOM, MPT, BERT, Nemotron
# ------------------------------------------------------------------------------------
# Defaults are those of the public configuration classes (transformers 4.x).


def read_gpt2(keys: KeyReader) -> Fields:
    """Fields of a `gpt2` config."""
    keys.prefer(hidden_size="n_embd", num_layers="n_layer", num_heads="n_head")
    keys.prefer(max_positions="n_positions", hidden_dropout="resid_pdrop")
    keys.prefer(embedding_dropout="embd_pdrop")
    keys.prefer(attention_dropout="attn_pdrop")
    sizes = stack(keys, layers=12, hidden=768, heads=12, vocabulary=50257)
    return {
        **sizes,
        **with_biases(),
        "ffn_size": keys.optional_count("ffn_size") or 4 * sizes["hidden_size"],
        "activation": activation(keys, "activation_function", "gelu_new"),
        "max_positions": keys.count("max_positions", 1024),
        "tied_embeddings": keys.flag("tied_embeddings", True),
        "hidden_dropout": _shared_dropout(keys, keys.fraction("hidden_dropout", 0.1)),
        "attention_dropout": keys.fraction("attention_dropout", 0.1),
    }


def read_gpt_bigcode(keys: KeyReader) -> Fields:
    """Fields of a `gpt_bigcode` config: GPT-2, with one key head for all unless a file says no."""
    keys.pass_over("scale_attention_softmax_in_fp32", "num_kv_heads")
    fields = read_gpt2(keys)
    return fields | {"num_kv_heads": 1} if keys.flag("multi_query", True) else fields


def _shared_dropout(keys: KeyReader, hidden: float) -> float:
    """The embedding's dropout is stated apart; a difference would have no place here."""
    if (embedding := keys.fraction("embedding_dropout", hidden)) != hidden:
        keys.refuse(
            "embedding_dropout", f"must equal the residual dropout ({hidden}), got {embedding}"
        )
    return hidden


def read_opt(keys: KeyReader) -> Fields:
    """Fields of an `opt` config."""
    keys.prefer(ffn_size="ffn_dim", hidden_dropout="dropout")
    sizes = stack(keys, layers=12, hidden=768, heads=12, vocabulary=50272)
    width = keys.optional_count("word_embed_proj_dim")
    affine = "layer_norm_elementwise_affine"
    if not keys.stated_flag(affine, True):
        raise UnsupportedFeature(f"{affine}: false (norms without weights) is not modelled")
    biased = keys.stated_flag("enable_bias", True)
    pre_norm = keys.flag("do_layer_norm_before", True)
    last = "_remove_final_layer_norm"
    without_last = keys.stated_flag(last)
    return {
        **sizes,
        **(with_biases() if biased else {"norm": Norm.LAYER}),
        "ffn_size": keys.count("ffn_size", 3072),
        "activation": activation(keys, "activation_function", "relu"),
        "max_positions": keys.count("max_positions", 2048) + 2,
        "tied_embeddings": keys.flag("tied_embeddings", True),
        "hidden_dropout": keys.fraction("hidden_dropout", 0.1),
        "attention_dropout": keys.fraction("attention_dropout", 0.0),
        "pre_norm": pre_norm,
        "final_norm": pre_norm and not without_last,
        "projection_size": width if width != sizes["hidden_size"] else None,
    }


def read_bloom(keys: KeyReader) -> Fields:
    """Fields of a `bloom` config."""
    keys.prefer(num_layers="n_layer", num_heads="n_head", hidden_dropout="hidden_dropout")
    sizes = stack(keys, layers=2, hidden=64, heads=8, vocabulary=250880)
    return {
        **sizes,
        **with_biases(),
        "ffn_size": 4 * sizes["hidden_size"],
        "activation": Activation.GELU,
        "embedding_norm": True,
        "tied_embeddings": keys.flag("tied_embeddings", True),
        "hidden_dropout": keys.fraction("hidden_dropout", 0.0),
        "attention_dropout": keys.fraction("attention_dropout", 0.0),
    }


# BERT and the vocabularies of its line, whose other sizes are BERT's.
BERTS: Final = {
    "bert": 30522,
    "roberta": 50265,
    "xlm-roberta": 30522,
    "camembert": 30522,
    "data2vec-text": 30522,
    "ernie": 30522,
}


def _read_bert(vocabulary: int, keys: KeyReader) -> Fields:
    keys.prefer(attention_dropout="attention_probs_dropout_prob")
    keys.prefer(hidden_dropout="hidden_dropout_prob")
    refuse_flags(keys, "use_task_id")  # ERNIE's third table
    keys.pass_over("task_type_vocab_size")
    sizes = stack(keys, layers=12, hidden=768, heads=12, vocabulary=vocabulary)
    return {
        **sizes,
        **with_biases(),
        "ffn_size": keys.count("ffn_size", 3072),
        "activation": activation(keys, "hidden_act", "gelu"),
        "max_positions": keys.count("max_positions", 512),
        "num_token_types": keys.count("type_vocab_size", 2),
        "tied_embeddings": keys.flag("tied_embeddings", True),
        "hidden_dropout": keys.fraction("hidden_dropout", 0.1),
        "attention_dropout": keys.fraction("attention_dropout", 0.1),
        "causal": False,
        "pre_norm": False,
        "final_norm": False,
        "embedding_norm": True,
        "pooler": True,
        "mlm_transform": True,
        "head_bias": True,
    }


def read_gpt_neo(keys: KeyReader) -> Fields:
    """Fields of a `gpt_neo` config: every other block attends within a window."""
    keys.prefer(num_layers="num_layers", num_heads="num_heads")
    keys.prefer(hidden_dropout="resid_dropout", embedding_dropout="embed_dropout")
    sizes = stack(keys, layers=24, hidden=2048, heads=16, vocabulary=50257)
    return {
        **sizes,
        **with_biases(),
        "query_key_value_bias": False,
        "ffn_size": keys.optional_count("ffn_size") or 4 * sizes["hidden_size"],
        "activation": activation(keys, "activation_function", "gelu_new"),
        "max_positions": keys.count("max_positions", 2048),
        "tied_embeddings": keys.flag("tied_embeddings", True),
        "hidden_dropout": _shared_dropout(keys, keys.fraction("hidden_dropout", 0.0)),
        "attention_dropout": keys.fraction("attention_dropout", 0.0),
        "sliding_window": keys.count("window_size", 256),
        "full_attention_layers": _global_layers(keys, sizes["num_layers"]),
    }


def _global_layers(keys: KeyReader, num_layers: int) -> tuple[int, ...]:
    """Blocks that attend in full: `attention_types` is a list of [[kinds], repeats]."""
    stated = keys.value("attention_types", [[["global", "local"], -(-num_layers // 2)]])
    kinds = list(keys.optional_texts("attention_layers")) or _kinds(stated)[:num_layers]
    if len(kinds) != num_layers or not set(kinds) <= {"global", "local"}:
        problem = f"must be a list of [[kinds], repeats] for {num_layers} layers, global or local"
        keys.refuse("attention_types", problem)
        return ()
    return tuple(i for i, kind in enumerate(kinds) if kind == "global")


def _kinds(stated: object) -> list[str]:
    """The kind of each block, none where the list is not of the form expected."""
    kinds: list[str] = []
    for entry in stated if isinstance(stated, list) else []:
        match entry:
            case [[*pattern], int(repeats)] if 0 < repeats <= MAX_LAYERS:
                kinds += [str(kind) for kind in pattern] * repeats
            case _:
                return []
    return kinds


_MPT: Final[Fields] = {
    "attn_type": "multihead_attention",
    "no_bias": True,
    "alibi": True,
    "expansion_ratio": 4,
}


def read_mpt(keys: KeyReader) -> Fields:
    """Fields of an `mpt` config: ALiBi, so no table of positions, whatever a file says of one."""
    keys.prefer(hidden_size="d_model", num_layers="n_layers", num_heads="n_heads")
    keys.prefer(max_positions="max_seq_len", hidden_dropout="resid_pdrop")
    keys.prefer(embedding_dropout="emb_pdrop")
    sizes = stack(keys, layers=24, hidden=2048, heads=16, vocabulary=50368)
    attention = keys.section("attn_config")
    attention.prefer(attention_dropout="attn_pdrop")
    refuse_flags(attention, "qk_ln")  # norms over all query features
    keys.pass_over("learned_pos_emb", "max_positions")
    kinds: Fields = {"attn_type": attention.text("attn_type", _MPT["attn_type"])}
    if heads := attention.optional_count("kv_n_heads"):
        kinds["kv_n_heads"] = heads
    flags = {"no_bias": keys.flag("no_bias", True), "alibi": attention.flag("alibi", True)}
    ratio = keys.count("expansion_ratio", 4)
    built = {**_MPT, "kv_n_heads": sizes["num_heads"]}
    refuse_others(keys, built, {**kinds, **flags, "expansion_ratio": ratio})
    return {
        **sizes,
        "norm": Norm.LAYER_WITHOUT_BIAS,
        "ffn_size": ratio * sizes["hidden_size"],
        "activation": Activation.GELU,
        "tied_embeddings": keys.flag("tied_embeddings", True),
        "hidden_dropout": _shared_dropout(keys, keys.fraction("hidden_dropout", 0.0)),
        "attention_dropout": attention.fraction("attention_dropout", 0.0),
    }


def read_nemotron(keys: KeyReader) -> Fields:
    """Fields of a `nemotron` config: rotary positions, squared ReLU, no gate."""
    keys.prefer(num_kv_heads="num_key_value_heads")
    sizes = stack(keys, layers=32, hidden=6144, heads=48, vocabulary=256000)
    bias = keys.flag("attention_bias", False)
    keys.optional_count("max_positions")
    return {
        **sizes,
        "num_kv_heads": keys.nullable_count("num_kv_heads", sizes["num_heads"])
        or sizes["num_heads"],
        "norm": Norm.LAYER,
        "activation": activation(keys, "hidden_act", "relu2"),
        "ffn_size": keys.count("ffn_size", 24576),
        "rotary": True,
        "query_key_value_bias": bias,
        "attention_output_bias": bias,
        "mlp_bias": keys.flag("mlp_bias", False),
        "tied_embeddings": keys.flag("tied_embeddings", False),
        "hidden_dropout": keys.fraction("hidden_dropout", 0.0),
        "attention_dropout": keys.fraction("attention_dropout", 0.0),
    }


# Decoders with experts: GPT-OSS, Grok-1
# --------------------------------------
# Defaults are those of the public configuration classes (transformers 4.x).


def read_gpt_oss(keys: KeyReader) -> Fields:
    """Fields of a `gpt_oss` config: sinks, biases everywhere, a window in every other block."""
    keys.prefer(num_experts="num_local_experts")
    decoder = rotary_decoder(
        keys, layers=36, hidden=2880, ffn=2880, heads=64, kv_heads=8, vocabulary=201088
    )
    num_layers = decoder["num_layers"]
    experts = Experts(
        num_experts=keys.count("num_experts", 128),
        experts_per_token=keys.count("num_experts_per_tok", 4),
        ffn_size=decoder["ffn_size"],
        router_bias=True,
    )
    bias = keys.flag("attention_bias", True)
    fields = windows(keys, decoder, window=keys.count("sliding_window", 128))
    if not fields.get("full_attention_layers") and not keys.states("layer_types"):
        fields["full_attention_layers"] = tuple(range(1, num_layers, 2))
    return {
        **fields,
        "head_size": keys.count("head_size", 64),
        "query_key_value_bias": bias,
        "attention_output_bias": bias,
        "attention_sinks": True,
        "mlp_bias": True,
        "experts": experts,
    }


def read_grok(keys: KeyReader) -> Fields:
    """Fields of a `grok-1` config: every block a mixture, four norms around its halves."""
    decoder = rotary_decoder(
        keys,
        layers=64,
        hidden=6144,
        ffn=32768,
        heads=48,
        kv_heads=8,
        vocabulary=131072,
        tied=True,
        activation_name="gelu",
    )
    experts = Experts(
        num_experts=keys.count("num_experts", 8),
        experts_per_token=keys.count("num_experts_per_tok", 2),
        ffn_size=decoder["ffn_size"],
    )
    return {**decoder, "sandwich_norm": True, "experts": experts}


# DeepSeek-V2, DeepSeek-V3 and Kimi-K2: latent attention, shared experts, dense first blocks
# ------------------------------------------------------------------------------------------
# Where a file is silent it takes what the library's class does (of DeepSeek-V3 its own sizes), and
# groups of experts only where it has as many experts.


@dataclass(frozen=True, slots=True, kw_only=True)
class _DeepSeekDefaults:
    """What a DeepSeek-like family takes where its file is silent."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    vocabulary: int
    num_experts: int
    experts_per_token: int
    expert_ffn: int
    num_shared: int
    num_dense: int
    num_mtp: int
    num_groups: int
    groups_per_token: int


_V2 = _DeepSeekDefaults(
    layers=32,
    hidden=4096,
    ffn=11008,
    heads=32,
    vocabulary=102400,
    num_experts=64,
    experts_per_token=6,
    expert_ffn=1407,
    num_shared=2,
    num_dense=0,
    num_mtp=0,
    num_groups=1,
    groups_per_token=1,
)
_V3 = _DeepSeekDefaults(
    layers=61,
    hidden=7168,
    ffn=18432,
    heads=128,
    vocabulary=129280,
    num_experts=256,
    experts_per_token=8,
    expert_ffn=2048,
    num_shared=1,
    num_dense=3,
    num_mtp=1,
    num_groups=8,
    groups_per_token=4,
)
_K2 = replace(
    _V3,
    heads=64,
    vocabulary=163840,
    num_experts=384,
    num_dense=1,
    num_mtp=0,
    num_groups=1,
    groups_per_token=1,
)


def read_deepseek_v2(keys: KeyReader) -> Fields:
    """Fields of a `deepseek_v2` config; a token visits 6 experts, of which the class is silent."""
    return _deepseek(keys, _V2)


def read_deepseek_v3(keys: KeyReader) -> Fields:
    """Fields of a `deepseek_v3` config; its routing biases are buffers, not parameters."""
    return _deepseek(keys, _V3)


def read_kimi_k2(keys: KeyReader) -> Fields:
    """Fields of a `kimi_k2` config: DeepSeek-V3 with other sizes."""
    return _deepseek(keys, _K2)


_V4_KINDS: Final = (
    "sliding_attention",
    "compressed_sparse_attention",
    "heavily_compressed_attention",
)
_V4_RATES: Final = (4, 128)  # tokens of an entry, of the last two kinds
_V4_IGNORED: Final = (
    "hc_eps",
    "attention_bias",  # that no product of its attention has
    "hc_sinkhorn_iters",
    "num_hash_layers",
    "mlp_layer_types",
    "compress_rope_theta",
    "qk_rope_head_dim",
    "expert_dtype",
)


def read_deepseek_v4(keys: KeyReader) -> Fields:
    """Fields of a `deepseek_v4` config, with the defaults of DeepSeek-V4-Flash."""
    keys.prefer(num_experts="n_routed_experts")
    keys.pass_over(*_V4_IGNORED)
    width = keys.count("moe_intermediate_size", 2048)
    keys.pass_over("ffn_size")
    decoder = rotary_decoder(
        keys,
        layers=43,
        hidden=4096,
        ffn=width,
        heads=64,
        kv_heads=1,
        vocabulary=129280,
        head_size=keys.count("head_size", 512),
    )
    keys.defaults.pop("intermediate_size", None)
    if decoder["num_kv_heads"] != 1:
        keys.refuse("num_key_value_heads", f"must be 1, got {decoder['num_kv_heads']}")
    indexer = Indexer(
        num_heads=keys.count("index_n_heads", 64),
        head_size=keys.count("index_head_dim", 128),
        num_keys=keys.count("index_topk", 512),
    )
    refuse_others(
        keys, {"n_shared_experts": 1}, {"n_shared_experts": keys.natural("n_shared_experts", 1)}
    )
    near = CompressedAttention(
        query_rank=keys.count("q_lora_rank", 1024),
        output_groups=keys.count("o_groups", 8),
        output_rank=keys.count("o_lora_rank", 1024),
    )
    kinds, (few, many) = _v4_kinds(keys, decoder["num_layers"])
    streams = keys.count("hc_mult", 4)
    if min(streams, few, many) < 2:
        raise UnsupportedFeature("one residual stream, or entries of one token, is not modelled")
    choices = (
        BlockChoice(compressed=near),
        BlockChoice(compressed=replace(near, ratio=few, indexer=indexer)),
        BlockChoice(compressed=replace(near, ratio=many)),
    )
    return {
        **decoder,
        "ffn_size": width,
        "attention_sinks": True,
        "sliding_window": keys.count("sliding_window", 128),
        "compressed": near,
        "choices": choices,
        "choice_of_layer": tuple(map(_V4_KINDS.index, kinds)),
        "streams": streams,
        "experts": Experts(
            num_experts=keys.count("num_experts", 256),
            experts_per_token=keys.count("num_experts_per_tok", 6),
            ffn_size=width,
            shared_ffn_size=width,
            routed_bias=False,
        ),
        "mlp_bias": keys.flag("mlp_bias", False),
        "num_mtp_layers": keys.natural("num_nextn_predict_layers", 1),
    }


def _v4_kinds(keys: KeyReader, num_layers: int) -> tuple[list[str], tuple[int, int]]:
    """What each block attends to, and how many tokens an entry of either kind stands for.

    Files list kinds, or tokens per entry (0 for the window alone) with one more for the layer that
    predicts a further token; where they are silent two blocks of long entries come first, then
    long and short ones in turn.
    """
    rates = keys.section("compress_rates")
    found = tuple(
        rates.count(kind, rate) for kind, rate in zip(_V4_KINDS[1:], _V4_RATES, strict=True)
    )
    rates.defaults.clear()
    stated = list(keys.optional_texts("layer_types"))
    ratios = keys.value("compress_ratios", None)
    keys.defaults.pop("compress_ratios", None)
    if not stated and isinstance(ratios, list):
        by_ratio: dict[object, str] = dict(zip((0, *_V4_RATES), _V4_KINDS, strict=True))
        stated = [by_ratio.get(r, str(r)) if type(r) is int else str(r) for r in ratios]
    if not stated:
        stated = [_V4_KINDS[1 if at % 2 and at > 1 else 2] for at in range(num_layers)]
    if unknown := sorted(set(stated) - set(_V4_KINDS)):
        keys.refuse("layer_types", f"must be of {', '.join(_V4_KINDS)}, got {unknown[0]}")
    if len(stated) < num_layers or unknown:
        if not unknown:
            problem = f"must have one entry per layer ({num_layers}), got {len(stated)}"
            keys.refuse("layer_types", problem)
        stated = [_V4_KINDS[0]] * num_layers
    return stated[:num_layers], (found[0], found[1])


def _deepseek(keys: KeyReader, defaults: _DeepSeekDefaults) -> Fields:
    """Latent attention, dense first blocks, shared experts, further predicted tokens."""
    keys.prefer(num_experts="n_routed_experts")
    latent = LatentAttention(
        query_rank=keys.nullable_count("q_lora_rank", 1536),
        key_value_rank=keys.count("kv_lora_rank", 512),
        rotary_head_size=keys.count("qk_rope_head_dim", 64),
        plain_head_size=keys.count("qk_nope_head_dim", 128),
        value_head_size=keys.count("v_head_dim", 128),
    )
    decoder = rotary_decoder(
        keys,
        layers=defaults.layers,
        hidden=defaults.hidden,
        ffn=defaults.ffn,
        heads=defaults.heads,
        kv_heads=None,
        vocabulary=defaults.vocabulary,
        head_size=latent.head_size,
    )
    if (freq := keys.count("moe_layer_freq", 1)) != 1:
        keys.refuse("moe_layer_freq", f"must be 1 (every later block a mixture), got {freq}")
    width = keys.count("moe_intermediate_size", defaults.expert_ffn)
    num_experts = keys.count("num_experts", defaults.num_experts)
    groups = _groups(keys, defaults if num_experts == defaults.num_experts else None)
    experts = Experts(
        num_experts=num_experts,
        experts_per_token=keys.count("num_experts_per_tok", defaults.experts_per_token),
        ffn_size=width,
        shared_ffn_size=width * keys.natural("n_shared_experts", defaults.num_shared),
        num_dense_layers=keys.natural("first_k_dense_replace", defaults.num_dense),
        routed_bias=False,
        num_groups=groups[0],
        groups_per_token=groups[1],
    )
    bias = keys.flag("attention_bias", False)
    return {
        **decoder,
        "latent": latent,
        "experts": experts,
        "query_key_value_bias": bias,
        "attention_output_bias": bias,
        "mlp_bias": keys.stated_flag("mlp_bias"),
        "num_mtp_layers": keys.natural("num_nextn_predict_layers", defaults.num_mtp),
    }


def _groups(keys: KeyReader, defaults: _DeepSeekDefaults | None) -> tuple[int, int]:
    """Groups of experts, and how many of them a token uses; one of one without a limit."""
    own = (1, 1) if defaults is None else (defaults.num_groups, defaults.groups_per_token)
    pair = zip(("n_group", "topk_group"), own, strict=True)
    count, used = (keys.nullable_count(name, default) or 1 for name, default in pair)
    if keys.states("topk_method") and keys.text("topk_method", "") == "greedy":
        return 1, 1  # DeepSeek-V2's own word for routing that passes groups over
    return count, used


# Which model families are read from a `config.json`, and by which function
# -------------------------------------------------------------------------

FAMILIES: Final[dict[str, Callable[[KeyReader], Fields]]] = {
    "gpt2": read_gpt2,
    "gpt_bigcode": read_gpt_bigcode,
    "gpt_neo": read_gpt_neo,
    "opt": read_opt,
    "bloom": read_bloom,
    "mpt": read_mpt,
    **{name: partial(_read_bert, words) for name, words in BERTS.items()},
    "nemotron": read_nemotron,
    "llama": read_llama,
    "mistral": read_mistral,
    "qwen2": read_qwen2,
    "mimo": read_mimo,
    "qwen3": read_qwen3,
    "phi3": read_phi3,
    "granite": read_granite,
    "gemma": read_gemma,
    "gemma2": read_gemma2,
    "gemma3_text": read_gemma3,
    "gpt_oss": read_gpt_oss,
    "grok-1": read_grok,
    "deepseek_v2": read_deepseek_v2,
    "deepseek_v3": read_deepseek_v3,
    "deepseek_v4": read_deepseek_v4,
    "kimi_k2": read_kimi_k2,
    **{
        name: partial(read_decoder, rule)
        for name, rule in (DECODERS | TEXT_DECODERS | REMOTE).items()
    },
    **{name: partial(_read_remote_mixture, name) for name in REMOTE_MIXTURES},
    "qwen": read_qwen,
    "phi3small": read_phi3small,
    "chatglm": read_chatglm,
    **OTHER_DECODERS,
    **HYBRIDS,
    **ENCODER_DECODERS,
}

# Other names under which the same architectures are published.
ALIASES: Final = {"grok": "grok-1", "grok1": "grok-1", "grok_1": "grok-1", "gpt-oss": "gpt_oss"}
