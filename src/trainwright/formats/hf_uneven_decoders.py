"""Families of decoders that need a word beside their rule (`hf_decoder_rules`).

Their blocks differ in more than windows and experts, or keys of theirs bear on each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from trainwright.errors import UnsupportedFeature
from trainwright.formats.hf_decoder_rules import BIAS, COHERE, DEEPSEEK_V32, HUNYUAN
from trainwright.formats.hf_decoders import (
    Decoder,
    LatentRule,
    MixtureRule,
    every,
    read_decoder,
    refuse_flags,
    refuse_others,
)
from trainwright.formats.hf_keys import Fields, KeyReader
from trainwright.formats.json_text import show_value
from trainwright.model import BlockChoice, Experts, Keys, Norm

_GLM_DSA: Final = replace(
    DEEPSEEK_V32,
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
    query_key_value_bias=BIAS,
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
    usual = tuple((i + 1) % every for i in layers)
    rotated = keys.counts("no_rope_layers", usual) or usual
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
    query_key_value_bias=BIAS,
    attention_output_bias=False,
    mixture=MixtureRule(num_experts=256, visited=8, width=2048, first_dense=1, grouped=True),
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


# Helium: an output product as square as the hidden size, whatever the heads
# --------------------------------------------------------------------------

_HELIUM: Final = Decoder(
    layers=24,
    hidden=2560,
    ffn=7040,
    heads=20,
    kv_heads=20,
    head_size=128,
    vocabulary=48000,
    query_key_value_bias=BIAS,
    attention_output_bias=False,
    mlp_bias=("mlp_bias", False),
)


def read_helium(keys: KeyReader) -> Fields:
    """Fields of a `helium` config; the library builds other heads too, which cannot run."""
    fields = read_decoder(_HELIUM, keys)
    heads, hidden = fields["num_heads"] * fields["head_size"], fields["hidden_size"]
    if not keys.faults:
        refuse_others(keys, {"hidden_size": heads}, {"hidden_size": hidden})
    return fields


# Falcon: one key head or groups of them, halves side by side with one norm or two; Cohere 2 with
# experts, behind dense blocks of another width; Laguna: more heads where a block has a window
# ----------------------------------------------------------------------------------------------

_FALCON: Final = Decoder(
    layers=32,
    hidden=4544,
    ffn=0,
    heads=71,
    plain_heads=True,
    vocabulary=65024,
    activation="gelu",
    activation_key="activation",
    gated=False,
    tied=True,
    norm=Norm.LAYER,
    query_key_value_bias=("bias", False),
    mlp_bias=("bias", False),
    parallel=("parallel_attn", True),
    ignored=("alibi", "hidden_dropout", "ffn_size"),
)


def read_falcon(keys: KeyReader) -> Fields:
    """Fields of a `falcon` config."""
    fields = read_decoder(_FALCON, keys)
    groups = keys.flag("new_decoder_architecture", False)
    one_key = keys.flag("multi_query", True)
    norms = keys.optional_count("num_ln_in_parallel_attn") or 1 + groups
    stated = keys.optional_count("num_kv_heads") or fields["num_heads"]
    width = keys.optional_count("ffn_hidden_size") or 4 * fields["hidden_size"]
    return fields | {
        "ffn_size": width,
        "num_kv_heads": stated if groups else 1 if one_key else fields["num_heads"],
        "shared_norm": fields["parallel"] and norms != 2,
    }


_COHERE2_MOE: Final = replace(
    COHERE,
    head_size=128,
    query_key_norm=False,
    mixture=MixtureRule(num_experts=8, visited=2, shared=0, first_dense=0),
    ignored=("shared_expert_combination_strategy", "expert_selection_fn"),
)


def read_cohere2_moe(keys: KeyReader) -> Fields:
    """Fields of a `cohere2_moe` config: dense blocks come first, with a pattern of their own."""
    first = keys.natural("first_k_dense_replace", 0)
    patterns = ("prefix_dense_sliding_window_pattern", 1), ("sliding_window_pattern", 4)
    before, after = (keys.count(*pattern) for pattern in patterns)

    def full_at(layer: int) -> bool:
        return every(before)(layer) if layer < first else every(after)(layer - first)

    fields = read_decoder(replace(_COHERE2_MOE, window=4096, full_at=full_at), keys)
    width = keys.optional_count("prefix_dense_intermediate_size")
    norm = Norm.RMS if keys.states("rms_norm_eps") else fields["norm"]
    return fields | {"ffn_size": width or fields["ffn_size"], "norm": norm}


_LAGUNA: Final = Decoder(
    layers=40,
    hidden=2048,
    ffn=8192,
    heads=48,
    kv_heads=8,
    head_size=128,
    vocabulary=100352,
    query_key_norm=True,
    query_key_value_bias=BIAS,
    window=512,
    full_at=lambda layer: True,
    mixture=MixtureRule(
        num_experts=256, visited=8, width=512, shared_width=512, first_dense=1, router_bias=True
    ),
    ignored=(
        "moe_apply_router_weight_on_input",
        "moe_routed_scaling_factor",
        "moe_router_logit_softcapping",
    ),
)


def read_laguna(keys: KeyReader) -> Fields:
    """Fields of a `laguna` config: gates, and heads that a file may list per block."""
    fields = read_decoder(_LAGUNA, keys)
    heads, gating = fields["num_heads"], keys.value("gating", True)
    # True or "per-head" is one output per head, anything else one per feature.
    per_head = 1 if gating in (True, "per-head") else fields["head_size"]
    listed = keys.counts("num_attention_heads_per_layer", (heads,) * fields["num_layers"])
    if len(listed) != fields["num_layers"] or 0 in listed:
        problem = f"must have one count per layer ({fields['num_layers']})"
        keys.refuse("num_attention_heads_per_layer", problem)
        return fields
    kinds = sorted(set(listed))
    if len(kinds) > 1:
        fields["choices"] = tuple(
            BlockChoice(num_heads=count, attention_gate=count * per_head) for count in kinds
        )
        fields["choice_of_layer"] = tuple(map(kinds.index, listed))
    return fields | {"num_heads": kinds[0], "attention_gate": kinds[0] * per_head}


_HUNYUAN_MOE: Final = replace(HUNYUAN, mixture=MixtureRule(num_experts=1, visited_anyway=1))


def read_hunyuan_moe(keys: KeyReader) -> Fields:
    """Fields of a `hunyuan_v1_moe` config; experts of a token may be one count or one per block."""
    fields = read_decoder(_HUNYUAN_MOE, keys)
    visited = keys.alike("num_experts_per_tok", 1)
    assert visited is not None
    experts = replace(
        fields["experts"], experts_per_token=visited, shared_ffn_size=fields["ffn_size"]
    )
    return fields | {"experts": experts}


def read_hunyuan(keys: KeyReader) -> Fields:
    """Fields of Tencent's own `hunyuan` config: sizes of experts may be one count or one per block.

    With one expert every block is dense.
    """
    refuse_flags(keys, "use_cla", "use_mla", "mlp_bias", "add_classification_head")
    if keys.value("vit_type", None) is not None:
        raise UnsupportedFeature("vit_type: images before Hunyuan's text are not modelled")
    if keys.optional_natural("moe_layer_num_skipped"):
        raise UnsupportedFeature(
            "moe_layer_num_skipped: first blocks without experts, not modelled"
        )
    keys.pass_over(*_HUNYUAN_UNUSED)
    names = ("num_experts", "moe_topk", "num_shared_expert", "moe_intermediate_size")
    counts = {name: keys.alike(name, None) for name in names}
    keys.pass_over(*names, "norm_type", "use_rotary_pos_emb", "use_qk_norm", "cla_share_factor")
    keys.pass_over("num_experts_per_tok", "org_vocab_size", "use_mixed_mlp_moe", "dense_list")
    has_norms = keys.value("use_qk_norm", False) is True
    fields = read_decoder(replace(HUNYUAN, query_key_norm=has_norms), keys)
    num_experts = counts["num_experts"] or 1
    if num_experts == 1:
        return fields
    width = counts["moe_intermediate_size"] or fields["ffn_size"]
    mixed = keys.value("use_mixed_mlp_moe", False) is True
    experts = Experts(
        num_experts=num_experts,
        experts_per_token=counts["moe_topk"] or 1,
        ffn_size=width,
        shared_ffn_size=width * (counts["num_shared_expert"] or 1) if mixed else 0,
    )
    return fields | {"experts": experts}


# Parts before the text that a file without `vit_type` has not, tokens, and how tokens are routed.
_HUNYUAN_UNUSED: Final = (
    *("anyres_pooling_size", "anyres_vit_max_image_size", "anyres_vit_two_views", "vit_path"),
    *("vit_add_patchemb_bias", "vit_input_resolution", "vit_mapping_type", "vit_norm_type"),
    *("vit_patch", "vit_remove_prenorm", "vit_token", "vit_used_rms_norm", "num_media_embeds"),
    *("im_end_id", "im_newline_id", "im_start_id", "mask_init_id", "pad_id", "eod_token_id"),
    *("text_end_id", "text_start_id", "video_end_id", "video_start_id", "class_num", "pool_type"),
    *("skip_cls_token", "position_embedding_xdrope", "xdrope_section", "group_limited_greedy"),
    *("moe_drop_tokens", "moe_random_routing_dropped_token"),
)


_MINIMAX_M2: Final = Decoder(
    layers=62,
    hidden=3072,
    ffn=1536,
    heads=48,
    kv_heads=8,
    head_size=128,
    vocabulary=200064,
    query_key_norm=True,
    mixture=MixtureRule(num_experts=256, visited=8),
    ignored=("rotary_dim", "qk_norm_type", "use_qk_norm", "use_routing_bias", "attn_type_list"),
    constants={"query_key_norm_whole": True},
)


def read_minimax_m2(keys: KeyReader) -> Fields:
    """Fields of a `minimax_m2` config: modules that predict further tokens have blocks each."""
    fields = read_decoder(_MINIMAX_M2, keys)
    if keys.optional_natural("shared_intermediate_size"):
        raise UnsupportedFeature(
            "shared_intermediate_size: shared experts of MiniMax-M2 are not modelled",
            alternative="files with 0 there are",
        )
    modules = keys.optional_natural("num_mtp_modules")
    blocks = keys.optional_natural("mtp_transformer_layers")
    keys.pass_over("use_mtp")
    used = keys.value("use_mtp", False) is True
    keys.defaults.pop(f"{keys.prefix}use_mtp", None)
    return fields | {"num_mtp_layers": modules * max(1, blocks) if used else 0}


# DBRX: sizes of attention and experts in sections
# ------------------------------------------------

_DBRX: Final = Decoder(
    layers=24,
    hidden=2048,
    ffn=3584,
    heads=16,
    plain_heads=True,
    vocabulary=32000,
    norm=Norm.LAYER_WITHOUT_BIAS,
    ignored=("embedding_dropout", "hidden_dropout"),
)


def read_dbrx(keys: KeyReader) -> Fields:
    """Fields of a `dbrx` config."""
    fields = read_decoder(_DBRX, keys)
    keys.pass_over("attention_dropout")
    keys.defaults.pop("intermediate_size", None)
    attention, experts = keys.section("attn_config"), keys.section("ffn_config")
    attention.pass_over("clip_qkv", "rope_theta")
    experts.pass_over("hidden_size", "ffn_act_fn", "moe_jitter_eps", "moe_loss_weight")
    experts.pass_over("moe_normalize_expert_weights", "uniform_expert_assignment")
    width = experts.count("ffn_hidden_size", 3584)
    return fields | {
        "num_kv_heads": attention.count("kv_n_heads", 1),
        "attention_dropout": attention.fraction("attention_dropout", 0.0),
        "ffn_size": width,
        "experts": Experts(
            num_experts=experts.count("moe_num_experts", 4),
            experts_per_token=experts.count("moe_top_k", 1),
            ffn_size=width,
        ),
    }


# Gemma 4: full attention in one block of six, with wider heads whose keys may be values too; the
# last blocks may take the keys of earlier ones; inputs of each block's own; experts beside an MLP
# ---------------------------------------------------------------------------------------------

_GEMMA4: Final = Decoder(
    layers=30,
    hidden=2304,
    ffn=9216,
    heads=8,
    kv_heads=4,
    head_size=256,
    vocabulary=262144,
    activation="gelu_pytorch_tanh",
    activation_key="hidden_activation",
    tied=True,
    query_key_norm=True,
    query_key_value_bias=BIAS,
    ignored=("final_logit_softcapping",),
    constants={"sandwich_norm": True},
)
_WINDOW, _FULL = "sliding_attention", "full_attention"


def read_gemma4(keys: KeyReader) -> Fields:
    """Fields of a `gemma4_text` config."""
    if keys.value("use_bidirectional_attention", None) == "all":
        raise UnsupportedFeature("use_bidirectional_attention: all is not modelled")
    keys.defaults.pop(keys.prefix + "use_bidirectional_attention", None)
    fields = read_decoder(_GEMMA4, keys)
    count, window = fields["num_layers"], keys.count("sliding_window", 512)
    kinds = list(keys.optional_texts("layer_types"))
    kinds = kinds or [_WINDOW if (i + 1) % 6 else _FULL for i in range(count)]
    shared = keys.natural("num_kv_shared_layers", 0)
    if len(kinds) != count or not set(kinds) <= {_WINDOW, _FULL}:
        keys.refuse("layer_types", f"must be {_FULL} or {_WINDOW} for {count} layers")
        return fields
    kinds[-1] = _FULL  # whatever the file says
    if shared and set(kinds) - set(kinds[: count - shared]):
        problem = "must leave a layer of each kind before those that take its keys"
        keys.refuse("num_kv_shared_layers", f"{problem}, got {shared}")
    also_values = keys.flag("attention_k_eq_v", False)
    wide = keys.flag("use_double_wide_mlp", False)
    own = _gemma4_heads(keys, kinds, also_values)
    choices = []
    for at, kind in enumerate(kinds):
        late, full = at >= count - shared, kind == _FULL
        source = Keys.EARLIER if late else Keys.ALSO_VALUES if full and also_values else None
        choices.append(
            BlockChoice(
                sliding_window=None if full else window,
                keys=source,
                ffn_size=2 * fields["ffn_size"] if late and wide else None,
                **own[at],
            )
        )
    fields["choices"] = tuple(dict.fromkeys(choices))
    fields["choice_of_layer"] = tuple(map(fields["choices"].index, choices))
    fields["layer_inputs"] = keys.natural("hidden_size_per_layer_input", 256)
    fields["layer_input_words"] = keys.count("vocab_size_per_layer_input", 262144)
    if keys.flag("enable_moe_block", False):
        fields["experts"] = Experts(
            num_experts=keys.count("num_experts", None),
            experts_per_token=keys.count("top_k_experts", None),
            ffn_size=keys.count("moe_intermediate_size", None),
            shared_ffn_size=fields["ffn_size"],
            apart=True,
        )
    keys.pass_over("num_experts", "top_k_experts", "moe_intermediate_size")
    return fields


def _gemma4_heads(keys: KeyReader, kinds: list[str], also_values: bool) -> list[Fields]:
    """Heads where a layer differs: as a file lists it, or those of full attention."""
    names = {"head_dim": "head_size", "num_key_value_heads": "num_kv_heads"}
    listed = keys.value("per_layer_config", None)
    keys.defaults.pop(keys.prefix + "per_layer_config", None)
    full: Fields = {"head_size": keys.count("global_head_dim", 512)}
    if (count := keys.optional_count("num_global_key_value_heads")) and also_values:
        full["num_kv_heads"] = count
    if not isinstance(listed, Mapping):
        return [full if kind == _FULL else {} for kind in kinds]
    found: list[Fields] = [{} for _ in kinds]
    for layer, stated in listed.items():
        at = int(layer) if str(layer).isdigit() else len(kinds)
        if at >= len(kinds) or not isinstance(stated, Mapping) or not set(stated) <= set(names):
            keys.refuse(
                "per_layer_config", f"must give {' or '.join(names)} of layers, got {layer}"
            )
            continue
        section = KeyReader(stated, prefix=f"{keys.path_of('per_layer_config')}.{layer}.")
        found[at] = {names[key]: section.count(key, None) for key in stated}
        keys.faults += section.faults
    return found


# Nemotron-NAS: blocks of Llama of which a search took attention, the feed-forward part, or width
# -------------------------------------------------------------------------------------------------

_NAS: Final = Decoder(
    layers=80,
    hidden=8192,
    ffn=0,
    heads=64,
    vocabulary=128256,
    query_key_value_bias=BIAS,
    mlp_bias=("mlp_bias", False),
    ignored=("pretraining_tp",),
)
_WIDTH_STEP: Final = 256  # to whose multiples widths are rounded up


def read_nemotron_nas(keys: KeyReader) -> Fields:
    """Fields of a `nemotron-nas` config; a block that has neither part is none (Puzzle, 2024)."""
    fields = read_decoder(_NAS, keys)
    keys.defaults.pop("intermediate_size", None)
    stated = keys.value("block_configs", None)
    if not isinstance(stated, list) or len(stated) != fields["num_layers"]:
        problem = f"must have one entry per layer ({fields['num_layers']})"
        keys.refuse("block_configs", problem)
        return fields
    found = [_searched_block(keys, fields, at, block) for at, block in enumerate(stated)]
    blocks = [block for block in found if block.attends or block.mlp]
    if not blocks:
        keys.refuse("block_configs", "must leave a block something")
        return fields
    kinds = tuple(dict.fromkeys(blocks))
    return fields | {
        "num_layers": len(blocks),
        "choices": kinds,
        "choice_of_layer": tuple(map(kinds.index, blocks)),
    }


def _searched_block(keys: KeyReader, fields: Fields, at: int, stated: object) -> BlockChoice:
    """One entry of `block_configs`: heads that share a key, two thirds of a multiple of a width."""
    section = KeyReader(
        stated if isinstance(stated, Mapping) else {}, prefix=f"block_configs.{at}."
    )
    attention, dense = section.section("attention"), section.section("ffn")
    for part in (attention, dense):
        refuse_flags(part, "replace_with_linear")
    attends, mlp = (not part.flag("no_op", False) for part in (attention, dense))
    own: Fields = {"attends": attends, "mlp": mlp}
    if attends:
        shared = attention.count("n_heads_in_group", 1)
        own["num_kv_heads"] = max(1, fields["num_heads"] // shared)
        own["sliding_window"] = attention.optional_count("window_length")
    if mlp:
        times = dense.value("ffn_mult", None)
        if isinstance(times, bool) or not isinstance(times, int | float) or not 0 < times < 1000:
            dense.refuse("ffn_mult", f"must be a number above 0, got {show_value(times)}")
            times = 1
        width = int(2 * times * fields["hidden_size"] / 3)
        own["ffn_size"] = -(-width // _WIDTH_STEP) * _WIDTH_STEP
    keys.faults += section.all_faults
    return BlockChoice(**own)


OTHER_DECODERS: Final[dict[str, Callable[[KeyReader], Fields]]] = {
    "glm_moe_dsa": read_glm_moe_dsa,
    "llama4_text": read_llama4_text,
    "mimo_v2_flash": read_mimo,
    "minimax_m2": read_minimax_m2,
    "dbrx": read_dbrx,
    "falcon": read_falcon,
    "helium": read_helium,
    "gemma4_text": read_gemma4,
    "cohere2_moe": read_cohere2_moe,
    "laguna": read_laguna,
    "hunyuan_v1_moe": read_hunyuan_moe,
    "hunyuan": read_hunyuan,
    "nemotron-nas": read_nemotron_nas,
}
