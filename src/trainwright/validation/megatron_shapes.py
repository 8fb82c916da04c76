"""The model of a megatron-core test, from its command line arguments.

Vocabularies follow from the tokenizer where no argument states them, padded to a multiple of
`make_vocab_size_divisible_by` × tensor degree; a gated feed-forward part of unstated width has
64 ⌊8h/192⌋. Sources: the public arguments of Megatron-LM and the tokenizers of its tests.
"""

from __future__ import annotations

import re
from typing import Final

from trainwright.errors import UnsupportedFeature
from trainwright.model import Activation, Experts, LatentAttention, Norm, TransformerConfig
from trainwright.plan.measured_run import MeasuredRun

_TOKENIZERS: Final = {"GPTSentencePieceTokenizer": 256000, "Llama2Tokenizer": 32000}
_GPT2_VOCABULARY: Final = 50257
_BERT_VOCABULARY: Final = 28996
_DROPOUT: Final = 0.1
_LAYOUT_BLOCK: Final = "t"


def megatron_config(run: MeasuredRun) -> TransformerConfig:
    """The model of one test; raises `UnsupportedFeature` for sizes that are not stated."""
    num_layers = run.num_layers or _layers_of_layout(run.setting("pipeline_layout"))
    if not (num_layers and run.hidden_size and run.num_heads):
        raise UnsupportedFeature("the row does not state num_layers, hidden_size or num_heads")
    gated, bert = run.flag("swiglu"), run.setting("family") == "bert"
    rotary = run.setting("position_embedding_type") in ("rope", "none")
    bias = not run.flag("disable_bias_linear")
    latent = _latent(run)
    head_size = int(run.number("kv_channels") or run.hidden_size // run.num_heads)
    activation = Activation.SILU if gated else Activation.GELU
    if run.flag("squared_relu"):
        activation = Activation.SQUARED_RELU
    return TransformerConfig(
        family="bert" if bert else "megatron",
        num_layers=num_layers,
        hidden_size=run.hidden_size,
        num_heads=run.num_heads,
        num_kv_heads=run.num_heads if latent else run.num_kv_heads or run.num_heads,
        head_size=latent.head_size if latent else head_size,
        ffn_size=run.ffn_size or _ffn_size(run.hidden_size, gated=gated),
        vocabulary_size=_vocabulary_size(run, bert=bert),
        norm=Norm.RMS if run.setting("normalization") == "RMSNorm" else Norm.LAYER,
        activation=activation,
        gated=gated,
        causal=not bert,
        query_key_norm=run.flag("qk_layernorm") and latent is None,
        query_key_value_bias=bias,
        attention_output_bias=bias,
        mlp_bias=bias,
        tied_embeddings=not run.flag("untie_embeddings_and_output_weights"),
        max_positions=0 if rotary else int(run.number("max_position_embeddings") or 0),
        rotary=rotary,
        num_token_types=2 if bert else 0,
        pooler=bert,
        mlm_transform=bert,
        head_bias=bert,
        hidden_dropout=_dropout(run, "hidden_dropout"),
        attention_dropout=_dropout(run, "attention_dropout"),
        experts=_experts(run, num_layers),
        latent=latent,
        num_mtp_layers=int(run.number("mtp_num_layers") or 0),
    )


def uses_fused_attention(run: MeasuredRun) -> bool:
    """Transformer Engine picks a flash kernel unless told otherwise; the local layers have none."""
    if run.setting("transformer_impl") != "transformer_engine":
        return False
    return run.setting("attention_backend") not in ("unfused", "local")


def stage_blocks(run: MeasuredRun, num_layers: int) -> tuple[int, ...] | None:
    """Blocks of each virtual stage where the arguments state a split of their own."""
    named = layout_stages(run.setting("pipeline_layout"))
    if named is not None:
        return tuple(stage.count(_LAYOUT_BLOCK) for stage in named)
    first = run.number("decoder_first_pipeline_num_layers")
    last = run.number("decoder_last_pipeline_num_layers")
    if (first is None and last is None) or run.pipeline < 2:
        return None
    ends = [int(first)] if first else []
    tail = [int(last)] if last else []
    middle = run.pipeline - len(ends) - len(tail)
    rest = num_layers - sum(ends) - sum(tail)
    return (*ends, *([rest // max(1, middle)] * middle), *tail)


def _dropout(run: MeasuredRun, name: str) -> float:
    stated = run.number(name)
    return _DROPOUT if stated is None else stated


def _ffn_size(hidden_size: int, *, gated: bool) -> int:
    return 64 * (8 * hidden_size // 192) if gated else 4 * hidden_size


def _vocabulary_size(run: MeasuredRun, *, bert: bool) -> int:
    if run.vocabulary_size is not None:
        return run.vocabulary_size
    if bert:
        return _BERT_VOCABULARY
    return _TOKENIZERS.get(run.setting("tokenizer_type") or "", _GPT2_VOCABULARY)


def _latent(run: MeasuredRun) -> LatentAttention | None:
    if not run.flag("multi_latent_attention"):
        return None
    rank = run.number("q_lora_rank")
    return LatentAttention(
        key_value_rank=int(run.number("kv_lora_rank") or 0),
        rotary_head_size=int(run.number("qk_pos_emb_head_dim") or 0),
        plain_head_size=int(run.number("qk_head_dim") or 0),
        value_head_size=int(run.number("v_head_dim") or 0),
        query_rank=None if rank is None else int(rank),
    )


def _experts(run: MeasuredRun, num_layers: int) -> Experts | None:
    count = run.number("num_experts")
    if count is None:
        return None
    width = run.number("moe_ffn_hidden_size") or run.ffn_size
    assert width is not None
    pattern = _moe_pattern(run.setting("moe_layer_freq"), num_layers)
    return Experts(
        num_experts=int(count),
        experts_per_token=int(run.number("moe_router_topk") or 2),
        ffn_size=int(width),
        shared_ffn_size=int(run.number("moe_shared_expert_intermediate_size") or 0),
        dense_layers=tuple(i for i, routed in enumerate(pattern) if not routed),
    )


def _moe_pattern(text: str | None, num_layers: int) -> list[int]:
    """`([0]*3+[1]*11)` as one number per block; every block routes where nothing is stated."""
    if text is None:
        return [1] * num_layers
    found = re.findall(r"\[([01])\](?:\*(\d+))?", text)
    pattern = [int(kind) for kind, count in found for _ in range(int(count or 1))]
    return (pattern + [1] * num_layers)[:num_layers]


def _layers_of_layout(text: str | None) -> int | None:
    """Blocks named by a pipeline layout such as `Et*3|(tt|)*6L`."""
    stages = layout_stages(text)
    return None if stages is None else sum(stage.count(_LAYOUT_BLOCK) for stage in stages)


def layout_stages(text: str | None) -> tuple[str, ...] | None:
    """The stages of a layout with its repetitions written out."""
    if text is None:
        return None
    whole = re.sub(r"\(([^()]*)\)\*(\d+)", lambda m: m.group(1) * int(m.group(2)), text)
    whole = re.sub(r"([A-Za-z])\*(\d+)", lambda m: m.group(1) * int(m.group(2)), whole)
    return tuple(whole.split("|"))
