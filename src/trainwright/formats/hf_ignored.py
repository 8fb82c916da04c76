"""Keys of a `config.json` that the reader passes over: in silence, or with what that may cost."""

from __future__ import annotations

from typing import Final

# Keys that say nothing about cost or memory of training: token ids, names, initialisation, serving.
_SILENT_KEYS = """
    _attn_implementation _name_or_path _remove_final_layer_norm activation_dropout
    add_cross_attention alibi_bias_max apply_residual_connection_post_layernorm
    attention_softmax_in_fp32 attn_impl attn_output_multiplier attn_type attn_uses_sequence_id
    auto_map aux_loss_alpha bias_dropout_fusion bos_token_id chunk_size_feed_forward
    classifier_dropout clip_qkv directionality dtype embedding_fraction
    embedding_multiplier_scale eos_token_id ep_size experts_per_token finetuning_task
    gradient_checkpointing id2label init_config init_device init_std initial_context_length
    initializer_range is_decoder is_encoder_decoder label2id layer_norm_eps layer_norm_epsilon
    layerdrop logit_scale masked_softmax_fusion max_attn_value n_ctx n_group norm_eps
    norm_topk_prob norm_type num_expert_group offset_alibi output_attentions
    output_hidden_states output_multiplier_scale output_past output_router_logits pad_token_id
    partial_rotary_factor pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers
    pooler_size_per_head pooler_type position_embedding_type prefix prefix_lm pretraining_tp
    problem_type qk_head_dim reorder_and_upcast_attn return_dict rms_norm_eps rope_interleave
    rope_parameters rope_scaling rope_theta routed_scaling_factor router_aux_loss_coef
    router_jitter_noise scale_attn_by_inverse_layer_idx scale_attn_weights scoring_func
    sep_token_id seq_aux seq_length skip_bias_add skip_bias_add_qkv slow_but_exact softmax_scale
    summary_activation summary_first_dropout summary_proj_to_labels summary_type
    summary_use_proj swiglu_alpha swiglu_limit task_specific_params topk_group topk_method
    torch_dtype transformers_version unk_token unk_token_id use_cache verbose
"""
SILENT_KEYS: Final = frozenset(_SILENT_KEYS.split())

# What an unknown key may be about, by parts of its name; the first that fits is taken.
_EFFECTS: Final = (
    ("quant fp8 int4 int8", "how weights are stored; the precision of training is set apart"),
    ("vision image audio speech", "a second encoder is not priced: time and memory are too low"),
    ("expert moe router", "experts: parameters, time and all-to-all may be wrong"),
    ("dropout pdrop", "dropout: up to a byte per element and mask"),
    ("bias", "biases: below 0.1 % of parameters and time"),
    ("norm _ln", "norms: below 0.1 % of parameters, a few percent of the time at most"),
    ("rope rotary alibi position", "positions: nothing, unless a table of them is learned"),
    ("window attn attention head", "attention: its FLOPs and what it keeps may be wrong"),
    ("layer block depth", "the blocks themselves: every figure may be wrong"),
    ("size dim rank hidden width", "a size: every figure may be wrong"),
)
_UNKNOWN_EFFECT: Final = "its effect is unknown"


def effect_of(key: str) -> str:
    """What leaving out an unknown key may do to the figures."""
    name = key.lower()
    for parts, effect in _EFFECTS:
        if any(part in name for part in parts.split()):
            return effect
    return _UNKNOWN_EFFECT
