"""Which hyper-parameters each model family reads from its `config.json`, with its defaults.

Defaults are those of the public configuration classes (transformers 4.x). A function per family
returns the fields of `TransformerConfig`, and leaves faults and defaults in the reader.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from trainwright.formats.hf_keys import KeyReader
from trainwright.model import Activation, Experts, Norm

Fields = dict[str, Any]

MAX_LAYERS: Final = 10_000

# Keys that say nothing about cost or memory of training: token ids, names, initialisation, serving.
_SILENT_KEYS = """
    _attn_implementation _name_or_path _remove_final_layer_norm activation_dropout
    add_cross_attention apply_residual_connection_post_layernorm attention_softmax_in_fp32
    auto_map bias_dropout_fusion bos_token_id chunk_size_feed_forward classifier_dropout
    directionality dtype eos_token_id finetuning_task gradient_checkpointing id2label init_std
    initializer_range is_decoder label2id layer_norm_eps layer_norm_epsilon layerdrop
    masked_softmax_fusion max_window_layers n_ctx norm_topk_prob offset_alibi
    output_attentions output_hidden_states output_past output_router_logits pad_token_id
    pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head
    pooler_type position_embedding_type prefix pretraining_tp return_dict rms_norm_eps
    rope_parameters rope_scaling rope_theta router_aux_loss_coef router_jitter_noise
    scale_attn_by_inverse_layer_idx scale_attn_weights sep_token_id seq_length skip_bias_add
    skip_bias_add_qkv slow_but_exact summary_activation summary_first_dropout
    summary_proj_to_labels summary_type summary_use_proj task_specific_params torch_dtype
    transformers_version unk_token unk_token_id use_cache
"""
SILENT_KEYS: Final = frozenset(_SILENT_KEYS.split())

_ACTIVATIONS: Final = {
    "gelu": Activation.GELU,
    "gelu_new": Activation.GELU,
    "gelu_fast": Activation.GELU,
    "gelu_pytorch_tanh": Activation.GELU,
    "relu": Activation.RELU,
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "relu2": Activation.SQUARED_RELU,
}


def _activation(keys: KeyReader, field: str, default: str) -> Activation:
    name = keys.text(field, default)
    if name not in _ACTIVATIONS:
        keys.refuse(field, f'must be one of {", ".join(_ACTIVATIONS)}, got "{name}"')
        return Activation.GELU
    return _ACTIVATIONS[name]


def _stack(keys: KeyReader, *, layers: int, hidden: int, heads: int, vocabulary: int) -> Fields:
    """The sizes that every family has; heads must divide the hidden size unless given a size."""
    hidden_size, num_heads = keys.count("hidden_size", hidden), keys.count("num_heads", heads)
    head_size = keys.optional_count("head_size")
    if head_size is None and hidden_size % num_heads:
        keys.refuse(
            "hidden_size", f"must be a multiple of the {num_heads} heads, got {hidden_size}"
        )
    return {
        "num_layers": keys.count("num_layers", layers, most=MAX_LAYERS),
        "hidden_size": hidden_size,
        "num_heads": num_heads,
        "num_kv_heads": num_heads,
        "head_size": head_size or max(1, hidden_size // num_heads),
        "vocabulary_size": keys.count("vocabulary_size", vocabulary),
    }


def _with_biases() -> Fields:
    return {
        "norm": Norm.LAYER,
        "query_key_value_bias": True,
        "attention_output_bias": True,
        "mlp_bias": True,
    }


def _gpt2(keys: KeyReader) -> Fields:
    keys.prefer(hidden_size="n_embd", num_layers="n_layer", num_heads="n_head")
    keys.prefer(max_positions="n_positions", hidden_dropout="resid_pdrop")
    keys.prefer(attention_dropout="attn_pdrop")
    stack = _stack(keys, layers=12, hidden=768, heads=12, vocabulary=50257)
    return {
        **stack,
        **_with_biases(),
        "ffn_size": keys.optional_count("ffn_size") or 4 * stack["hidden_size"],
        "activation": _activation(keys, "activation_function", "gelu_new"),
        "max_positions": keys.count("max_positions", 1024),
        "tied_embeddings": keys.flag("tied_embeddings", True),
        "hidden_dropout": _shared_dropout(keys),
        "attention_dropout": keys.fraction("attention_dropout", 0.1),
    }


def _shared_dropout(keys: KeyReader) -> float:
    """GPT-2 states the embedding's dropout apart; a difference would have no place here."""
    hidden = keys.fraction("hidden_dropout", 0.1)
    if (embedding := keys.fraction("embd_pdrop", hidden)) != hidden:
        keys.refuse("embd_pdrop", f"must equal resid_pdrop ({hidden}), got {embedding}")
    return hidden


def _opt(keys: KeyReader) -> Fields:
    keys.prefer(ffn_size="ffn_dim", hidden_dropout="dropout")
    stack = _stack(keys, layers=12, hidden=768, heads=12, vocabulary=50272)
    width = keys.optional_count("word_embed_proj_dim")
    pre_norm = keys.flag("do_layer_norm_before", True)
    return {
        **stack,
        **_with_biases(),
        "ffn_size": keys.count("ffn_size", 3072),
        "activation": _activation(keys, "activation_function", "relu"),
        "max_positions": keys.count("max_positions", 2048) + 2,
        "tied_embeddings": keys.flag("tied_embeddings", True),
        "hidden_dropout": keys.fraction("hidden_dropout", 0.1),
        "attention_dropout": keys.fraction("attention_dropout", 0.0),
        "pre_norm": pre_norm,
        "final_norm": pre_norm,
        "projection_size": width if width != stack["hidden_size"] else None,
    }


def _bloom(keys: KeyReader) -> Fields:
    keys.prefer(num_layers="n_layer", num_heads="n_head", hidden_dropout="hidden_dropout")
    stack = _stack(keys, layers=2, hidden=64, heads=8, vocabulary=250880)
    return {
        **stack,
        **_with_biases(),
        "ffn_size": 4 * stack["hidden_size"],
        "activation": Activation.GELU,
        "embedding_norm": True,
        "tied_embeddings": keys.flag("tied_embeddings", True),
        "hidden_dropout": keys.fraction("hidden_dropout", 0.0),
        "attention_dropout": keys.fraction("attention_dropout", 0.0),
    }


def _bert(keys: KeyReader) -> Fields:
    keys.prefer(attention_dropout="attention_probs_dropout_prob")
    keys.prefer(hidden_dropout="hidden_dropout_prob")
    stack = _stack(keys, layers=12, hidden=768, heads=12, vocabulary=30522)
    return {
        **stack,
        **_with_biases(),
        "ffn_size": keys.count("ffn_size", 3072),
        "activation": _activation(keys, "hidden_act", "gelu"),
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


def _rotary_decoder(
    keys: KeyReader,
    *,
    layers: int,
    hidden: int,
    ffn: int,
    heads: int,
    kv_heads: int | None,
    vocabulary: int,
) -> Fields:
    """What Llama and its relatives share: RMS norms, rotary positions, a gated feed-forward."""
    stack = _stack(keys, layers=layers, hidden=hidden, heads=heads, vocabulary=vocabulary)
    default = stack["num_heads"] if kv_heads is None else kv_heads
    stack["num_kv_heads"] = keys.count("num_kv_heads", default)
    keys.optional_count("max_positions")
    return {
        **stack,
        "ffn_size": keys.count("ffn_size", ffn),
        "norm": Norm.RMS,
        "activation": _activation(keys, "hidden_act", "silu"),
        "gated": True,
        "rotary": True,
        "tied_embeddings": keys.flag("tied_embeddings", False),
        "attention_dropout": keys.fraction("attention_dropout", 0.0),
    }


def _llama(keys: KeyReader) -> Fields:
    bias = keys.flag("attention_bias", False)
    decoder = _rotary_decoder(
        keys, layers=32, hidden=4096, ffn=11008, heads=32, kv_heads=None, vocabulary=32000
    )
    return {
        **decoder,
        "query_key_value_bias": bias,
        "attention_output_bias": bias,
        "mlp_bias": keys.flag("mlp_bias", False),
    }


def _mistral(keys: KeyReader) -> Fields:
    decoder = _rotary_decoder(
        keys, layers=32, hidden=4096, ffn=14336, heads=32, kv_heads=8, vocabulary=32000
    )
    return {**decoder, "sliding_window": keys.optional_count("sliding_window")}


def _qwen2(keys: KeyReader) -> Fields:
    decoder = _rotary_decoder(
        keys, layers=32, hidden=4096, ffn=22016, heads=32, kv_heads=32, vocabulary=151936
    )
    window = keys.optional_count("sliding_window")
    used = keys.flag("use_sliding_window", False)
    return {**decoder, "query_key_value_bias": True, "sliding_window": window if used else None}


def _qwen3(keys: KeyReader) -> Fields:
    bias = keys.flag("attention_bias", False)
    decoder = _rotary_decoder(
        keys, layers=32, hidden=4096, ffn=22016, heads=32, kv_heads=32, vocabulary=151936
    )
    window = keys.optional_count("sliding_window")
    used = keys.flag("use_sliding_window", False)
    return {
        **decoder,
        "head_size": keys.count("head_size", 128),
        "query_key_norm": True,
        "query_key_value_bias": bias,
        "attention_output_bias": bias,
        "sliding_window": window if used else None,
    }


def _mixtral(keys: KeyReader) -> Fields:
    decoder = _rotary_decoder(
        keys, layers=32, hidden=4096, ffn=14336, heads=32, kv_heads=8, vocabulary=32000
    )
    experts = Experts(
        num_experts=keys.count("num_local_experts", 8),
        experts_per_token=keys.count("num_experts_per_tok", 2),
        ffn_size=decoder["ffn_size"],
    )
    return {**decoder, "experts": experts, "sliding_window": keys.optional_count("sliding_window")}


def _qwen3_moe(keys: KeyReader) -> Fields:
    decoder = _rotary_decoder(
        keys, layers=24, hidden=2048, ffn=6144, heads=32, kv_heads=4, vocabulary=151936
    )
    if (step := keys.count("decoder_sparse_step", 1)) != 1:
        keys.refuse("decoder_sparse_step", f"must be 1 (every block a mixture), got {step}")
    if only := keys.counts("mlp_only_layers", ()):
        keys.refuse("mlp_only_layers", f"must be empty, got {list(only)}")
    experts = Experts(
        num_experts=keys.count("num_experts", 128),
        experts_per_token=keys.count("num_experts_per_tok", 8),
        ffn_size=keys.count("moe_intermediate_size", 768),
    )
    return {
        **decoder,
        "head_size": keys.count("head_size", 128),
        "query_key_norm": True,
        "query_key_value_bias": keys.flag("attention_bias", False),
        "experts": experts,
    }


FAMILIES: Final[dict[str, Callable[[KeyReader], Fields]]] = {
    "gpt2": _gpt2,
    "opt": _opt,
    "bloom": _bloom,
    "bert": _bert,
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "mixtral": _mixtral,
    "qwen3_moe": _qwen3_moe,
}
