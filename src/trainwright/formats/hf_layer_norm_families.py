"""Families with layer norms: GPT-2 and GPT-3, GPT-Neo, OPT, BLOOM, MPT, BERT, Nemotron.

Defaults are those of the public configuration classes (transformers 4.x).
"""

from __future__ import annotations

from trainwright.formats.hf_keys import KeyReader
from trainwright.formats.hf_parts import MAX_LAYERS, Fields, activation, stack, with_biases
from trainwright.model import Activation, Norm


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
    if keys.states(affine) and not keys.flag(affine, True):
        keys.refuse(affine, "must be true: norms without weights are not modelled")
    biased = not keys.states("enable_bias") or keys.flag("enable_bias", True)
    pre_norm = keys.flag("do_layer_norm_before", True)
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
        "final_norm": pre_norm,
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


def read_bert(keys: KeyReader) -> Fields:
    """Fields of a `bert` config."""
    keys.prefer(attention_dropout="attention_probs_dropout_prob")
    keys.prefer(hidden_dropout="hidden_dropout_prob")
    sizes = stack(keys, layers=12, hidden=768, heads=12, vocabulary=30522)
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


def read_mpt(keys: KeyReader) -> Fields:
    """Fields of an `mpt` config; with ALiBi there is no table of positions."""
    keys.prefer(hidden_size="d_model", num_layers="n_layers", num_heads="n_heads")
    keys.prefer(max_positions="max_seq_len", hidden_dropout="resid_pdrop")
    keys.prefer(embedding_dropout="emb_pdrop")
    sizes = stack(keys, layers=24, hidden=2048, heads=16, vocabulary=50368)
    attention = keys.section("attn_config")
    attention.prefer(attention_dropout="attn_pdrop")
    if attention.flag("qk_ln", False):
        attention.refuse("qk_ln", "must be false: norms over all query features are not modelled")
    biased = not keys.flag("no_bias", True)
    learned = keys.flag("learned_pos_emb", True) and not attention.flag("alibi", True)
    positions = keys.count("max_positions", 2048)
    kind = attention.text("attn_type", "multihead_attention")
    kv_heads = 1 if kind == "multiquery_attention" else sizes["num_heads"]
    return {
        **sizes,
        "num_kv_heads": attention.optional_count("kv_n_heads") or kv_heads,
        "norm": Norm.LAYER if biased else Norm.LAYER_WITHOUT_BIAS,
        "query_key_value_bias": biased,
        "attention_output_bias": biased,
        "mlp_bias": biased,
        "ffn_size": keys.count("expansion_ratio", 4) * sizes["hidden_size"],
        "activation": Activation.GELU,
        "max_positions": positions if learned else 0,
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
        "num_kv_heads": keys.count("num_kv_heads", sizes["num_heads"]),
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
