"""Families of decoders as rules (`hf_decoders`), and those whose blocks need a word of their own.

Defaults are those of the public configuration classes of transformers 5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from trainwright.formats.hf_decoders import Decoder, LatentRule, MixtureRule, read_decoder
from trainwright.formats.hf_keys import Fields, KeyReader
from trainwright.model import BlockChoice, Experts, Norm


def _every(count: int) -> Callable[[int], bool]:
    """The last of every so many."""
    return lambda layer: (layer + 1) % count == 0


def _ernie_dense(keys: KeyReader, num_layers: int) -> tuple[int, ...]:
    """Blocks with experts lie between two indices, every so many."""
    first = keys.natural("moe_layer_start_index", 1)
    last = keys.value("moe_layer_end_index", 27)
    step = keys.count("moe_layer_interval", 1)
    end = last if type(last) is int and last >= 0 else num_layers - 1
    routed = {i for i in range(num_layers) if (i + 1) % step == 0 and first <= i <= end}
    return tuple(i for i in range(num_layers) if i not in routed)


_BIAS: Final = ("attention_bias", False)
_MLP_BIAS: Final = ("mlp_bias", False)
_OLMO = Decoder(
    layers=32,
    hidden=4096,
    ffn=11008,
    heads=32,
    vocabulary=50304,
    norm=Norm.WITHOUT_WEIGHT,
    query_key_value_bias=_BIAS,
    attention_output_bias=_BIAS,
)
_OLMO2 = replace(
    _OLMO,
    norm=Norm.RMS,
    query_key_norm=True,
    constants={"norm_after": True, "query_key_norm_whole": True},
)
_GLM = Decoder(
    layers=40,
    hidden=4096,
    ffn=13696,
    heads=32,
    kv_heads=2,
    head_size=128,
    vocabulary=151552,
    query_key_value_bias=("attention_bias", True),
)
_GLM_MOE = Decoder(
    layers=46,
    hidden=4096,
    ffn=10944,
    heads=96,
    kv_heads=8,
    head_size=0,
    vocabulary=151552,
    query_key_value_bias=_BIAS,
    query_key_norm=("use_qk_norm", False),
    mixture=MixtureRule(
        num_experts=("num_experts", 128),
        visited=("num_experts_per_tok", 8),
        width=("moe_intermediate_size", 1408),
        shared=("num_shared_experts", 1),
        first_dense=("first_k_dense_replace", 1),
        grouped=True,
    ),
    further=("num_nextn_predict_layers", True),
)
_ERNIE = Decoder(
    layers=18,
    hidden=1024,
    ffn=3072,
    heads=16,
    kv_heads=2,
    head_size=128,
    vocabulary=103424,
    tied=True,
    query_key_value_bias=("use_bias", False),
    attention_output_bias=("use_bias", False),
    mlp_bias=("use_bias", False),
)
_EXAONE = Decoder(
    layers=32,
    hidden=4096,
    ffn=16384,
    heads=32,
    kv_heads=32,
    vocabulary=102400,
    query_key_norm=True,
    window=4096,
    full_at=_every(4),
    constants={"norm_after": True},
)
_COHERE = Decoder(
    layers=40,
    hidden=8192,
    ffn=22528,
    heads=64,
    vocabulary=256000,
    tied=True,
    norm=Norm.LAYER_WITHOUT_BIAS,
    query_key_value_bias=_BIAS,
    attention_output_bias=_BIAS,
    query_key_norm=("use_qk_norm", False),
    parallel=True,
    constants={"shared_norm": True, "query_key_norm_whole": True},
)
_HUNYUAN = Decoder(
    layers=32,
    hidden=4096,
    ffn=11008,
    heads=32,
    vocabulary=290943,
    query_key_norm=True,
    query_key_value_bias=_BIAS,
    attention_output_bias=_BIAS,
    ignored=("attention_head_dim",),
)
_YOUTU = Decoder(
    layers=32,
    hidden=2048,
    ffn=6144,
    heads=16,
    vocabulary=128256,
    tied=True,
    query_key_value_bias=_BIAS,
    attention_output_bias=_BIAS,
    latent=LatentRule(query_rank=1536, key_value_rank=512, rotary=64, plain=128, value=128),
)

_DEEPSEEK_V32: Final = Decoder(
    layers=61,
    hidden=7168,
    ffn=18432,
    heads=128,
    vocabulary=129280,
    query_key_value_bias=_BIAS,
    attention_output_bias=_BIAS,
    latent=LatentRule(
        query_rank=1536,
        key_value_rank=512,
        rotary=64,
        plain=128,
        value=128,
        indexer=(64, 128, 2048),
    ),
    mixture=MixtureRule(
        num_experts=("num_experts", 256),
        visited=("num_experts_per_tok", 8),
        width=("moe_intermediate_size", 2048),
        shared=("num_shared_experts", 1),
        first_dense=("first_k_dense_replace", 3),
        grouped=True,
    ),
    further=("num_nextn_predict_layers", False),
    ignored=(
        "layer_types",
        "mlp_bias",
        "moe_layer_freq",
        "moe_router_dtype",
        "indexer_rope_interleave",
        "index_share_for_mtp_iteration",
    ),
)
_GLM_DSA: Final = replace(
    _DEEPSEEK_V32,
    layers=78,
    hidden=6144,
    ffn=12288,
    heads=64,
    vocabulary=154880,
    latent=LatentRule(
        query_rank=2048,
        key_value_rank=512,
        rotary=64,
        plain=192,
        value=256,
        indexer=(32, 128, 2048),
    ),
)


def read_glm_moe_dsa(keys: KeyReader) -> Fields:
    """Fields of a `glm_moe_dsa` config: most indexers of GLM-5.2 are those of an earlier block."""
    fields = read_decoder(_GLM_DSA, keys)
    num_layers = fields["num_layers"]
    keys.pass_over("index_topk_pattern", "index_topk_freq", "index_skip_topk_offset")
    kinds = [kind == "shared" for kind in keys.optional_texts("indexer_types")]
    if not kinds:
        letters = keys.value("index_topk_pattern", None)
        every = keys.optional_count("index_topk_freq") or 1
        first = keys.optional_count("index_skip_topk_offset") or 2
        kinds = [max(i - first + 1, 0) % every != 0 for i in range(num_layers)]
        if isinstance(letters, str):
            kinds = [letter == "S" for letter in letters]
        keys.defaults.pop("index_topk_pattern", None)
    if len(kinds) != num_layers:
        keys.refuse("indexer_types", f"must have one entry per layer ({num_layers})")
    elif any(kinds):
        fields["choices"] = (BlockChoice(), BlockChoice(reuses_index=True))
        fields["choice_of_layer"] = tuple(map(int, kinds))
    return fields


# Llama 4: chunks of attention in three blocks of four, experts every so many; MiMo-V2: windows with
# sinks and twice the key heads in five blocks of six
# --------------------------------------------------------------------------------------------------

_LLAMA4: Final = Decoder(
    layers=48,
    hidden=5120,
    ffn=16384,
    heads=40,
    kv_heads=8,
    head_size=128,
    vocabulary=202048,
    query_key_value_bias=_BIAS,
    attention_output_bias=_BIAS,
    ignored=(
        "use_qk_norm",
        "no_rope_layer_interval",
        "attn_scale",
        "attn_temperature_tuning",
        "floor_scale",
        "for_llm_compressor",
    ),
)


def read_llama4_text(keys: KeyReader) -> Fields:
    """Fields of a `llama4_text` config: `intermediate_size` is that of experts."""
    width = keys.count("intermediate_size", 8192)
    fields = read_decoder(_LLAMA4, keys)
    fields["ffn_size"] = keys.count("intermediate_size_mlp", 16384)
    layers = range(fields["num_layers"])
    step = keys.count("interleave_moe_layer_step", 1)
    routed = set(keys.counts("moe_layers", tuple(layers[step - 1 :: step])))
    keys.defaults.pop("moe_layers", None)
    every = keys.optional_count("no_rope_layer_interval") or 4
    rotated = keys.value("no_rope_layers", None) or [(i + 1) % every for i in layers]
    keys.defaults.pop("no_rope_layers", None)
    kinds = keys.optional_texts("layer_types")
    full = [kind == "full_attention" for kind in kinds] or [not r for r in rotated]
    return fields | {
        "sliding_window": keys.nullable_count("attention_chunk_size", 8192),
        "chunked": True,
        "full_attention_layers": tuple(i for i in layers if i < len(full) and full[i]),
        "experts": Experts(
            num_experts=keys.count("num_experts", 16),
            experts_per_token=keys.count("num_experts_per_tok", 1),
            ffn_size=width,
            shared_ffn_size=width,
            dense_layers=tuple(i for i in layers if i not in routed),
            routed_bias=False,
        ),
    }


_MIMO: Final = Decoder(
    layers=48,
    hidden=4096,
    ffn=16384,
    heads=64,
    kv_heads=4,
    head_size=192,
    vocabulary=152576,
    query_key_value_bias=_BIAS,
    mixture=MixtureRule(
        num_experts=("num_experts", 256),
        visited=("num_experts_per_tok", 8),
        width=("moe_intermediate_size", 2048),
        first_dense=("first_k_dense_replace", 1),
        grouped=True,
    ),
    ignored=(
        *("attention_value_scale", "num_shared_experts", "attention_chunk_size", "swa_rope_theta"),
        *("swa_head_dim", "swa_v_head_dim", "swa_num_attention_heads", "moe_layer_freq"),
        *("add_swa_attention_sink_bias", "add_full_attention_sink_bias", "layernorm_epsilon"),
        "sliding_window_size",
    ),
)


def read_mimo(keys: KeyReader) -> Fields:
    """Fields of a `mimo_v2_flash` config."""
    fields = read_decoder(_MIMO, keys)
    layers = range(fields["num_layers"])
    kinds = keys.optional_texts("layer_types")
    pattern = keys.value("hybrid_layer_pattern", None)
    keys.defaults.pop("hybrid_layer_pattern", None)
    within = [i != 0 and (i + 1) % 6 != 0 for i in layers]
    if kinds:
        within = [kind == "sliding_attention" for kind in kinds]
    elif isinstance(pattern, list):
        within = [entry == 1 for entry in pattern]
    if len(within) != len(layers):
        keys.refuse("layer_types", f"must have one entry per layer ({len(layers)})")
        return fields
    inside = BlockChoice(
        sliding_window=keys.count("sliding_window", 129),
        num_kv_heads=keys.optional_count("swa_num_key_value_heads") or 2 * fields["num_kv_heads"],
        attention_sinks=True,
    )
    return fields | {
        "value_size": keys.count("v_head_dim", 128),
        "choices": (BlockChoice(), inside),
        "choice_of_layer": tuple(map(int, within)),
    }


OTHER_DECODERS: Final[dict[str, Callable[[KeyReader], Fields]]] = {
    "glm_moe_dsa": read_glm_moe_dsa,
    "llama4_text": read_llama4_text,
    "mimo_v2_flash": read_mimo,
}

DECODERS: Final[dict[str, Decoder]] = {
    "olmo": _OLMO,
    "olmo2": _OLMO2,
    "olmo3": replace(_OLMO2, window=4096, full_at=_every(4)),
    "olmoe": Decoder(
        layers=16,
        hidden=2048,
        ffn=2048,
        heads=16,
        vocabulary=50304,
        query_key_value_bias=_BIAS,
        attention_output_bias=_BIAS,
        query_key_norm=True,
        mixture=MixtureRule(num_experts=("num_experts", 64), visited=("num_experts_per_tok", 8)),
        constants={"query_key_norm_whole": True},
    ),
    "flex_olmo": replace(
        _OLMO2,
        vocabulary=100352,
        mixture=MixtureRule(num_experts=("num_experts", 7), visited=("num_experts_per_tok", 5)),
    ),
    "smollm3": Decoder(
        layers=36,
        hidden=2048,
        ffn=11008,
        heads=16,
        kv_heads=4,
        vocabulary=128256,
        tied=True,
        query_key_value_bias=_BIAS,
        attention_output_bias=_BIAS,
        mlp_bias=_MLP_BIAS,
        switched_window=True,
        ignored=("no_rope_layers", "no_rope_layer_interval"),
    ),
    "seed_oss": Decoder(
        layers=64,
        hidden=4096,
        ffn=27648,
        heads=80,
        kv_heads=8,
        head_size=128,
        vocabulary=155136,
        query_key_value_bias=("attention_bias", True),
        attention_output_bias=("attention_out_bias", False),
        mlp_bias=_MLP_BIAS,
        ignored=("residual_dropout",),
    ),
    "glm": _GLM,
    "glm4": replace(_GLM, constants={"sandwich_norm": True}),
    "glm4_moe": _GLM_MOE,
    "dots1": Decoder(
        layers=62,
        hidden=4608,
        ffn=10944,
        heads=32,
        vocabulary=152064,
        query_key_value_bias=_BIAS,
        attention_output_bias=_BIAS,
        query_key_norm=True,
        window=0,
        mixture=MixtureRule(
            num_experts=("num_experts", 128),
            visited=("num_experts_per_tok", 6),
            width=("moe_intermediate_size", 1408),
            shared=("num_shared_experts", 2),
            first_dense=("first_k_dense_replace", 0),
            grouped=True,
        ),
        ignored=("max_window_layers",),
    ),
    "ernie4_5": _ERNIE,
    "ernie4_5_moe": replace(
        _ERNIE,
        layers=28,
        hidden=2560,
        ffn=12288,
        heads=20,
        kv_heads=4,
        head_size=None,
        mixture=MixtureRule(
            num_experts=("num_experts", 64),
            visited=("num_experts_per_tok", 6),
            width=("moe_intermediate_size", 1536),
            shared=("num_shared_experts", 2),
            dense=_ernie_dense,
            router_bias=True,
        ),
        ignored=("moe_norm_min",),
    ),
    "exaone4": _EXAONE,
    "exaone_moe": replace(
        _EXAONE,
        constants={},
        mixture=MixtureRule(
            num_experts=("num_experts", 64),
            visited=("num_experts_per_tok", 8),
            width=("moe_intermediate_size", 1024),
            shared=("num_shared_experts", 1),
            first_dense=("first_k_dense_replace", 1),
            grouped=True,
        ),
    ),
    "helium": Decoder(
        layers=24,
        hidden=2560,
        ffn=7040,
        heads=20,
        kv_heads=20,
        head_size=128,
        vocabulary=48000,
        query_key_value_bias=_BIAS,
        mlp_bias=_MLP_BIAS,
    ),
    "starcoder2": Decoder(
        layers=30,
        hidden=3072,
        ffn=12288,
        heads=24,
        kv_heads=2,
        vocabulary=49152,
        activation="gelu_pytorch_tanh",
        gated=False,
        tied=True,
        norm=Norm.LAYER,
        query_key_value_bias=("use_bias", True),
        attention_output_bias=("use_bias", True),
        mlp_bias=("use_bias", True),
        window=0,
        ignored=("norm_epsilon", "residual_dropout", "embedding_dropout"),
    ),
    "gpt_neox": Decoder(
        layers=44,
        hidden=6144,
        ffn=24576,
        heads=64,
        vocabulary=50432,
        activation="gelu",
        gated=False,
        norm=Norm.LAYER,
        query_key_value_bias=("attention_bias", True),
        attention_output_bias=("attention_bias", True),
        mlp_bias=True,
        parallel=("use_parallel_residual", True),
        plain_heads=True,
        ignored=("rotary_pct", "rotary_emb_base", "hidden_dropout"),
    ),
    "gptj": Decoder(
        layers=28,
        hidden=4096,
        ffn=0,
        heads=16,
        plain_heads=True,
        vocabulary=50400,
        activation="gelu_new",
        activation_key="activation_function",
        gated=False,
        norm=Norm.LAYER,
        mlp_bias=True,
        head_bias=True,
        parallel=True,
        ignored=("rotary_dim", "embedding_dropout", "hidden_dropout"),
        constants={"shared_norm": True},
    ),
    "phi": Decoder(
        layers=24,
        hidden=2048,
        ffn=8192,
        heads=32,
        vocabulary=51200,
        activation="gelu_new",
        gated=False,
        norm=Norm.LAYER,
        head_bias=True,
        parallel=True,
        query_key_norm=("qk_layernorm", False),
        ignored=("embedding_dropout", "hidden_dropout"),
        constants={"shared_norm": True},
        query_key_value_bias=True,
        attention_output_bias=True,
        mlp_bias=True,
    ),
    "persimmon": Decoder(
        layers=36,
        hidden=4096,
        ffn=16384,
        heads=64,
        plain_heads=True,
        vocabulary=262144,
        activation="relu2",
        gated=False,
        norm=Norm.LAYER,
        query_key_norm=("qk_layernorm", True),
        ignored=("hidden_dropout",),
        query_key_value_bias=True,
        attention_output_bias=True,
        mlp_bias=True,
    ),
    "jais2": Decoder(
        layers=32,
        hidden=3328,
        ffn=26624,
        heads=26,
        vocabulary=150272,
        activation="relu2",
        gated=False,
        norm=Norm.LAYER,
        query_key_value_bias=("attention_bias", True),
        attention_output_bias=("attention_bias", True),
        mlp_bias=("mlp_bias", True),
    ),
    "stablelm": Decoder(
        layers=32,
        hidden=2560,
        ffn=6912,
        heads=32,
        kv_heads=32,
        vocabulary=50304,
        norm=Norm.LAYER,
        query_key_value_bias=("use_qkv_bias", False),
        parallel=("use_parallel_residual", False),
        ignored=("hidden_dropout",),
        constants={"shared_norm": True},
    ),
    "cohere": _COHERE,
    "cohere2": replace(
        _COHERE,
        query_key_norm=False,
        window=4096,
        full_at=_every(4),
    ),
    "apertus": Decoder(
        layers=32,
        hidden=4096,
        ffn=14336,
        heads=32,
        vocabulary=131072,
        activation="xielu",
        gated=False,
        query_key_norm=True,
        query_key_value_bias=_BIAS,
        attention_output_bias=_BIAS,
    ),
    "arcee": Decoder(
        layers=32,
        hidden=2560,
        ffn=18432,
        heads=32,
        vocabulary=32000,
        activation="relu2",
        gated=False,
        query_key_value_bias=_BIAS,
        attention_output_bias=_BIAS,
        mlp_bias=_MLP_BIAS,
    ),
    "nanochat": Decoder(
        layers=12,
        hidden=768,
        ffn=8192,
        heads=6,
        vocabulary=50304,
        activation="relu2",
        gated=False,
        norm=Norm.WITHOUT_WEIGHT,
        query_key_norm=True,
        query_key_value_bias=_BIAS,
        attention_output_bias=_BIAS,
        ignored=("final_logit_softcapping",),
    ),
    "cwm": Decoder(
        layers=64,
        hidden=6144,
        ffn=21504,
        heads=48,
        kv_heads=8,
        head_size=128,
        vocabulary=128256,
        mlp_bias=_MLP_BIAS,
        window=8192,
        full_at=lambda layer: layer % 4 == 0,
    ),
    "minimax_m2": Decoder(
        layers=62,
        hidden=3072,
        ffn=1536,
        heads=48,
        kv_heads=8,
        head_size=128,
        vocabulary=200064,
        query_key_norm=True,
        mixture=MixtureRule(num_experts=("num_experts", 256), visited=("num_experts_per_tok", 8)),
        constants={"query_key_norm_whole": True},
    ),
    "granitemoe": Decoder(
        layers=32,
        hidden=4096,
        ffn=11008,
        heads=32,
        vocabulary=32000,
        query_key_value_bias=_BIAS,
        attention_output_bias=_BIAS,
        mixture=MixtureRule(num_experts=("num_experts", 8), visited=("num_experts_per_tok", 2)),
        ignored=(
            "embedding_multiplier",
            "attention_multiplier",
            "residual_multiplier",
            "logits_scaling",
        ),
    ),
    "phimoe": Decoder(
        layers=32,
        hidden=4096,
        ffn=6400,
        heads=32,
        kv_heads=8,
        vocabulary=32064,
        norm=Norm.LAYER,
        query_key_value_bias=_BIAS,
        attention_output_bias=_BIAS,
        head_bias=("lm_head_bias", False),
        window=0,
        mixture=MixtureRule(num_experts=("num_experts", 16), visited=2),
        ignored=("num_experts_per_tok", "input_jitter_noise"),
    ),
    "deepseek_v32": _DEEPSEEK_V32,
    "minicpm3": replace(
        _YOUTU,
        layers=62,
        hidden=2560,
        ffn=6400,
        heads=40,
        vocabulary=73448,
        mlp_bias=_MLP_BIAS,
        latent=LatentRule(query_rank=768, key_value_rank=256, rotary=32, plain=64),
        ignored=("scale_emb", "scale_depth", "dim_model_base"),
    ),
    "youtu": _YOUTU,
    "hy_v3": Decoder(
        layers=80,
        hidden=4096,
        ffn=13312,
        heads=64,
        kv_heads=8,
        head_size=128,
        vocabulary=120832,
        query_key_norm=True,
        query_key_value_bias=_BIAS,
        attention_output_bias=_BIAS,
        mlp_bias=_MLP_BIAS,
        mixture=MixtureRule(
            num_experts=("num_experts", 192),
            visited=("num_experts_per_tok", 8),
            width=("moe_intermediate_size", 1536),
            shared=("num_shared_experts", 1),
            first_dense=("first_k_dense_replace", 1),
        ),
        ignored=("enable_moe_fp32_combine", "router_scaling_factor"),
    ),
    "afmoe": Decoder(
        layers=32,
        hidden=2048,
        ffn=6144,
        heads=16,
        head_size=128,
        vocabulary=200192,
        query_key_norm=True,
        query_key_value_bias=_BIAS,
        attention_output_bias=_BIAS,
        gate_attention=True,
        window=1024,
        full_at=_every(4),
        mixture=MixtureRule(
            num_experts=("num_experts", 64),
            visited=("num_experts_per_tok", 6),
            width=("moe_intermediate_size", 1408),
            shared=("num_shared_experts", 2),
            first_dense=("num_dense_layers", 1),
            router_bias=True,
        ),
        ignored=("mup_enabled", "route_scale", "score_func", "route_norm"),
        constants={"sandwich_norm": True},
    ),
    "hunyuan_v1_dense": _HUNYUAN,
    "vaultgemma": Decoder(
        layers=26,
        hidden=2304,
        ffn=9216,
        heads=8,
        kv_heads=4,
        head_size=256,
        vocabulary=256000,
        activation="gelu_pytorch_tanh",
        activation_key="hidden_activation",
        tied=True,
        query_key_value_bias=_BIAS,
        attention_output_bias=_BIAS,
        window=4096,
        full_at=_every(2),
        ignored=("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"),
    ),
    "ministral3": Decoder(
        layers=34,
        hidden=4096,
        ffn=14336,
        heads=32,
        kv_heads=8,
        head_size=128,
        vocabulary=131072,
        window=0,
    ),
}
