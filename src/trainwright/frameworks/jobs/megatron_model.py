"""The model that arguments of Megatron-LM describe: sizes, experts, letters of hybrids, words."""

from __future__ import annotations

import re
from typing import Any, Final

from trainwright.errors import Fault, InvalidInput
from trainwright.formats.catalog import changed_model, open_model
from trainwright.frameworks.jobs.settings import Beside, Settings
from trainwright.frameworks.megatron import PART_LETTERS
from trainwright.frameworks.shell.values import Value
from trainwright.model import DeltaRule, Mixer, StateSpace, TransformerConfig
from trainwright.model.config import Activation, BlockChoice, Experts, LatentAttention, Norm

_NEEDED: Final = ("num_layers", "hidden_size", "num_attention_heads")
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
_TOKENIZER_OF: Final = {
    "gpt": "GPT2BPETokenizer", "bert": "BertWordPieceLowerCase", "t5": "BertWordPieceLowerCase",
}  # fmt: skip


def spelled(path: str) -> str:
    """A setting as a flag."""
    return "--" + path.replace("_", "-")


def model_of(
    found: Settings, beside: Beside, kind: str, notes: list[str]
) -> TransformerConfig | None:
    """The model; None, with a note, where a size is missing that nothing else says."""
    layers = _layers(found, notes, kind)
    sizes = {name: found.count(name) for name in _NEEDED if name != "num_layers"}
    missing = [] if layers else ["num_layers"]
    missing += [name for name, value in sizes.items() if value is None]
    vocabulary = _vocabulary(found, beside, kind, notes)
    if missing:
        shown = ", ".join(map(spelled, missing))
        notes.insert(0, f"the model is not described: {shown} not given")
    elif vocabulary is None:
        notes.insert(
            0,
            "the model is not described: no --vocab-size, which its tokenizer decides; give "
            "--vocab-size",
        )
    try:
        model = _described(found, layers or 1, vocabulary or 1, kind)
        return None if missing or vocabulary is None else model
    except InvalidInput as error:  # of a model, whose fields have other names than the arguments
        for fault in () if missing else error.faults:
            path = _READ_AS.get(fault.path, fault.path)
            found.fault(path.removeprefix("--").replace("-", "_"), fault.problem)
        return None


def _layers(found: Settings, notes: list[str], kind: str) -> int | None:
    layers = found.count("num_layers")
    encoder, decoder = found.count("encoder_num_layers"), found.count("decoder_num_layers")
    if kind == "t5" and decoder is None:
        decoder = encoder or layers  # as many as the encoder has
    if decoder:
        layers = (encoder or layers or 0) + decoder
        notes.append(f"encoder and decoder are priced as one stack of {layers} blocks")
    layers = layers or encoder
    stages, _ = hybrid_of(found)
    if stages:
        layers = len("".join(stages))
        if others := sorted(set("".join(stages)) - _known_letters(found)):
            notes.append(
                f"--hybrid-layer-pattern: all layers are priced as blocks of attention and "
                f"feed-forward, for {', '.join(others)} have no price"
            )
    return layers


# Hybrids: a letter for each layer, which is one part
# ---------------------------------------------------


def hybrid_of(found: Settings) -> tuple[list[str], list[str]]:
    """Letters of each stage, and of each layer that predicts a further token."""
    main, *further = (found.text("hybrid_layer_pattern") or "").split("/")
    return main.split("|") if main else [], further


def _parts(found: Settings) -> dict[str, Any]:
    """Fields of a model of single parts, none where the letters are not all known."""
    stages, further = hybrid_of(found)
    letters = "".join(stages)
    unknown = set(letters + "".join(further)) - _known_letters(found)
    delta = DeltaRule(
        num_key_heads=found.count("linear_num_key_heads") or 16,
        num_value_heads=found.count("linear_num_value_heads") or 32,
        key_size=found.count("linear_key_head_dim") or 128,
        value_size=found.count("linear_value_head_dim") or 128,
        kernel=found.count("linear_conv_kernel_dim") or 4,
    )
    head_size = found.count("mamba_head_dim") or 64
    heads = found.count("mamba_num_heads") or 2 * (found.count("hidden_size") or 0) // head_size
    sizes = found.count("mamba_state_dim") or 128, found.count("mamba_num_groups") or 8
    if not letters or unknown:
        return {}
    mixer = StateSpace(
        inner_size=heads * head_size, state_size=sizes[0], num_heads=heads, num_groups=sizes[1]
    )
    kinds = {
        PART_LETTERS["mamba"]: _mixes(mixer),
        PART_LETTERS["delta"]: _mixes(delta),
        PART_LETTERS["attention"]: BlockChoice(mlp=False),
        PART_LETTERS["latent"]: BlockChoice(mlp=False),
        PART_LETTERS["mlp"]: BlockChoice(attends=False, dense=True),
        PART_LETTERS["experts"]: BlockChoice(attends=False),
    }
    order = [letter for letter in kinds if letter in letters]
    return {
        "choices": tuple(kinds[letter] for letter in order),
        "choice_of_layer": tuple(map(order.index, letters)),
        "num_mtp_layers": len(further),
        "further_choices": tuple(map(order.index, further[0] if further else "")),
    }


def _known_letters(found: Settings) -> set[str]:
    """Letters with a price; that of latent attention only where its sizes are asked for."""
    known = set(PART_LETTERS.values())
    return known if found.switch("multi_latent_attention") else known - {PART_LETTERS["latent"]}


def _mixes(mixer: Mixer) -> BlockChoice:
    return BlockChoice(mixer=mixer, attends=False, mlp=False)


def _vocabulary(found: Settings, beside: Beside, kind: str, notes: list[str]) -> int | None:
    tokenizer = found.text("tokenizer_type")
    name = found.first("tokenizer_name_or_path", "tokenizer_model")
    model = found.value(name)
    stated = found.count("vocab_size")
    padded = found.count(found.first("pad_vocab_size_to", "padded_vocab_size"))
    patched = found.text("patch_tokenizer_type")
    if beside.vocabulary is not None:
        return beside.vocabulary
    if stated or padded:
        return stated or padded
    usual = _TOKENIZER_OF[kind]
    if tokenizer is None and patched is None and found.is_absent("vocab_file"):
        usual = ""
    spoken = patched or tokenizer or usual
    if isinstance(model, Value) and model.parts:
        model = model.parts[-1]  # the end of a path is enough, wherever it lies
    size = vocabulary_of(spoken, model if isinstance(model, str) else None)
    if size is not None:
        notes.append(f"the vocabulary of {size} is that of {spoken}; --vocab-size replaces it")
    return size


# What only epfLLM's Megatron-LLM has, where a bias has to be asked for.
_OF_EPFLLM: Final = ("num_attention_heads_kv", "use_rms_norm", "no_tie_embed_logits")


def _described(found: Settings, layers: int, vocabulary: int, kind: str) -> TransformerConfig:
    hidden, heads = found.count("hidden_size") or 0, found.count("num_attention_heads") or 0
    glu = found.text("glu_activation")
    activation, gated = _activation(found, glu)
    latent = _latent(found)
    groups = found.count("num_query_groups")
    is_deepspeed = not found.is_absent("deepspeed")
    grouped = found.switch("group_query_attention") or is_deepspeed
    if found.text("attention_head_type") == "multiquery":  # BigCode's fork
        groups, grouped = 1, True
    if (own_groups := found.count("num_attention_heads_kv")) is not None:  # epfLLM's fork
        groups, grouped = own_groups, True
    is_epfllm = any(name in found for name in _OF_EPFLLM)
    unbiased = found.switch("disable_bias_linear")
    has_bias = found.switch("add_bias_linear", default=True) and not unbiased
    has_bias = found.switch("use_bias") if is_epfllm else has_bias
    qkv_bias = found.switch("add_qkv_bias")
    position = found.text("position_embedding_type")
    old_rotary = found.switch("use_rotary_position_embeddings")
    rotary = old_rotary or position in ("rope", "rotary", "yarn", "mrope")
    learned = not rotary and position in (None, "learned_absolute", "absolute")
    head_size = found.count("kv_channels") or (hidden // heads if heads else 0)
    experts = _experts(found, layers)
    norm = found.text("normalization")
    is_rms = found.switch("use_rms_norm") or (norm or "").lower() == "rmsnorm"
    untied = found.switch("untie_embeddings_and_output_weights")
    untied = found.switch("no_tie_embed_logits") or untied
    qk_norm = found.switch("qk_layernorm")
    positions = found.count("max_position_embeddings") or 0
    return TransformerConfig(
        family="megatron",
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=heads if latent or groups is None or not grouped else groups,
        head_size=head_size if latent is None else latent.head_size,
        ffn_size=_width(found),
        vocabulary_size=vocabulary,
        norm=Norm.RMS if is_rms else Norm.LAYER,
        activation=activation,
        gated=gated,
        causal=kind != "bert",
        query_key_norm=qk_norm and latent is None,
        query_key_value_bias=qkv_bias or has_bias,
        attention_output_bias=has_bias,
        mlp_bias=has_bias,
        tied_embeddings=not untied,
        embedding_norm=found.switch("embed_layernorm"),
        mlm_transform=kind == "bert",
        num_token_types=2 if kind == "bert" else 0,
        max_positions=positions if learned else 0,
        rotary=rotary,
        hidden_dropout=_share(found, "hidden_dropout"),
        attention_dropout=_share(found, "attention_dropout"),
        experts=experts,
        latent=latent,
        attention_gate=heads * head_size if found.switch("attention_output_gate") else 0,
        **({"num_mtp_layers": found.count("mtp_num_layers", least=0) or 0} | _parts(found)),
    )


def _share(found: Settings, name: str) -> float:
    number = found.number(name)
    return 0.1 if number is None else number  # Megatron's default


def _activation(found: Settings, glu: str | None) -> tuple[Activation, bool]:
    swiglu, quick = found.switch("swiglu"), found.switch("quick_geglu")
    squared = found.switch("squared_relu")
    if swiglu or glu == "swiglu":
        return Activation.SILU, True
    if quick or (glu or "").endswith("glu"):
        return Activation.GELU, True
    return (Activation.SQUARED_RELU if squared else Activation.GELU), False


def _width(found: Settings) -> int:
    """That of the feed-forward part; what Megatron takes where none is given."""
    hidden = found.count("hidden_size") or 0
    usual = hidden * 8 // 3 // 64 * 64 if found.switch("swiglu") else 4 * hidden
    return found.count("ffn_hidden_size") or usual


def _latent(found: Settings) -> LatentAttention | None:
    ranks = {
        "key_value_rank": found.count("kv_lora_rank") or 512,
        "rotary_head_size": found.count("qk_pos_emb_head_dim") or 64,
        "plain_head_size": found.count("qk_head_dim") or 128,
        "value_head_size": found.count("v_head_dim") or 128,
        "query_rank": found.count("q_lora_rank"),
    }
    return LatentAttention(**ranks) if found.switch("multi_latent_attention") else None  # type: ignore[arg-type]


def _experts(found: Settings, num_layers: int) -> Experts | None:
    given = found.value("num_experts")
    if isinstance(given, tuple):
        found.fault("num_experts", "must be one number: experts differ by layer, not modelled")
        return None
    count = found.count("num_experts", least=0)
    width = found.count("moe_ffn_hidden_size") or _width(found)
    token = found.count("moe_router_topk")
    shared = found.count("moe_shared_expert_intermediate_size", least=0) or 0
    shared = shared or (found.count("n_shared_experts", least=0) or 0) * width  # of MindSpeed
    first = found.count("first_k_dense_replace", least=0) or 0
    groups = found.count("moe_router_num_groups") or 1
    limit = found.count("moe_router_group_topk")
    ranks = found.count("moe_router_topk_limited_devices")
    pattern, interval = found.text("moe_layer_freq"), found.count("expert_interval")
    is_deepspeed = not found.is_absent("deepspeed")
    found.switch("moe_grouped_gemm")
    if not count or (count == 1 and is_deepspeed):
        return None
    if ranks is not None:  # until core 0.11
        groups, limit = found.count("expert_model_parallel_size") or 1, ranks
    elif limit is not None and found.is_absent("moe_router_num_groups"):
        raise InvalidInput(
            [Fault("moe_router_group_topk", "needs --moe-router-num-groups beside it")]
        )
    dense: tuple[int, ...] = ()
    if pattern is not None:
        routed = _routed(found, pattern, num_layers)
        dense = tuple(i for i, one in enumerate(routed) if not one or i < first)
    elif is_deepspeed:  # one layer in every two, unless --expert-interval says otherwise
        each = interval or 2
        dense = tuple(i for i in range(num_layers) if (i + 1) % each)
    else:
        dense = tuple(range(min(first, num_layers)))
    leading = next((i for i, layer in enumerate(dense) if layer != i), len(dense))
    return Experts(
        num_experts=count,
        experts_per_token=token or (1 if is_deepspeed else 2),
        ffn_size=width,
        shared_ffn_size=shared,
        shared_gate=found.switch("moe_shared_expert_gate") and shared > 0,
        latent_size=found.count("moe_latent_size"),
        num_groups=1 if limit is None else groups,
        groups_per_token=1 if limit is None else limit,
        num_dense_layers=leading,
        dense_layers=dense[leading:],
    )


def _routed(found: Settings, pattern: str, num_layers: int) -> list[int]:
    """Which layers route: one in every n, or a list such as ([0]*3+[1]*58)."""
    if pattern.isdecimal() and int(pattern[:9]):
        return [int(layer % int(pattern[:9]) == 0) for layer in range(num_layers)]
    plain = pattern.replace(" ", "")
    parts = _PART.findall(plain) if _PATTERN.fullmatch(plain) else []
    if any(len(n) > _MOST_DIGITS for _, n in parts):
        parts = []
    listed = [int(v) for vs, n in parts for v in vs.split(",") * int(n or 1)]
    if len(listed) != num_layers:
        wanted = f"must be a number, or a list of {num_layers} zeros and ones"
        found.fault("moe_layer_freq", f'{wanted}, got "{pattern}"')
        return [1] * num_layers
    return listed


# Sizes of a model as Megatron's arguments, and the same as keys of a `config.json`, where every
# family has the key; of presets a file may replace any.
OF_PRESETS: Final = {
    "num_layers": "num_hidden_layers", "hidden_size": "hidden_size",
    "num_attention_heads": "num_attention_heads", "num_query_groups": "num_key_value_heads",
    "ffn_hidden_size": "intermediate_size", "vocab_size": "vocab_size", "num_experts": None,
    "moe_router_topk": "num_experts_per_tok", "moe_ffn_hidden_size": "moe_intermediate_size",
    "moe_shared_expert_intermediate_size": None, "kv_channels": None,
    "mtp_num_layers": "num_nextn_predict_layers", "multi_latent_attention": None,
    "tokenizer_type": None, "tokenizer_model": None,
}  # fmt: skip


def preset_changes(found: Settings, known: str, beside: Beside, notes: list[str]) -> dict[str, Any]:
    """Keys that overrides give another value than the preset has; what cannot be so is noted."""
    stated = {*found}
    others = {"multi_latent_attention", "tokenizer_type", "tokenizer_model"}
    wanted = {key: found.count(key, least=0) or 0 for key in sorted(stated - others)}
    if "vocab_size" not in wanted and {"tokenizer_type", "tokenizer_model"} & stated:
        kind, name = found.text("tokenizer_type"), found.text("tokenizer_model")
        if (size := beside.vocabulary or vocabulary_of(kind, name)) is not None:
            wanted["vocab_size"] = size
            notes.append(f"the vocabulary of {size} is that of {name or kind}")
    latent = found.switch("multi_latent_attention", default=True)
    found.check()
    model = open_model(known).config
    changes: dict[str, Any] = {
        key: value
        for name, value in wanted.items()
        if value not in _sizes_of(model, name) and (key := OF_PRESETS[name]) is not None
    }
    for left in (changes, {}):
        try:
            model, changes = changed_model(known, left).config, left
            break
        except InvalidInput:  # of a model whose layers are listed one by one
            continue
    lost = [name for name, value in wanted.items() if value not in _sizes_of(model, name)]
    if not latent and model.latent is not None:
        lost.append("multi_latent_attention")
    notes += [f"{name} {found.value(name)}: what the preset has is priced" for name in lost]
    return changes


def _sizes_of(model: TransformerConfig, name: str) -> tuple[int, ...]:
    """What an argument of Megatron would be for a model; of widths any that it has."""
    experts = model.experts
    if name.startswith("moe_") or name == "num_experts":
        if experts is None:
            return (0,)
        of_experts = {
            "num_experts": experts.num_experts, "moe_router_topk": experts.experts_per_token,
            "moe_ffn_hidden_size": experts.ffn_size,
        }  # fmt: skip
        return (of_experts.get(name, experts.shared_ffn_size),)
    return {
        "num_layers": (model.num_layers,), "hidden_size": (model.hidden_size,),
        "num_attention_heads": (model.num_heads,), "vocab_size": (model.vocabulary_size,),
        "num_query_groups": (model.num_kv_heads, *((1,) if model.latent else ())),
        "ffn_hidden_size": (model.ffn_size, *(() if experts is None else (experts.ffn_size,))),
        "kv_channels": (model.latent.value_head_size if model.latent else model.head_size,),
        "mtp_num_layers": (model.num_mtp_layers,),
    }[name]  # fmt: skip


# Sizes of vocabularies
# ---------------------
# What `len(tokenizer)` is, which a trainer pads further. From the files of the tokenizers.

_KINDS: Final = {
    "gpt2bpetokenizer": 50_257,
    "bertwordpiecelowercase": 30_522,
    "bertwordpiececase": 28_996,
    "llama2tokenizer": 32_000,
    "llama3tokenizer": 128_256,
}
_TOKENIZERS: Final = (
    (r"gpt2(?:-.*)?", 50_257),
    (r".*gpt-neox-20b.*|pythia-.*|20b_tokenizer.*", 50_277),
    (r"(?:meta-)?llama-?2.*|.*llama-7b.*|tinyllama.*", 32_000),
    (r"(?:meta-)?llama-?3.*", 128_256),
    (r"mixtral-.*|mistral-7b(?:-instruct)?(?:-v0\.[12])?", 32_000),
    (r"mistral-7b(?:-instruct)?-v0\.3", 32_768),
    (r"qwen2\.5-.*", 151_665),
    (r"qwen3-.*", 151_669),
    (r"deepseek-(?:v3|r1).*", 128_815),
    (r"bloom.*|bigscience/tokenizer", 250_680),
    (r"byte-level-bpe-tokenizer-no-norm-250k.*", 250_680),
    (r"falcon-.*", 65_024),
    (r"t5-.*", 32_100),
    (r"bert-.*-uncased", 30_522),
    (r"bert-.*-cased", 28_996),
)


def vocabulary_of(kind: str | None, name: str | None) -> int | None:
    """The size of a tokenizer's vocabulary: by the hub's name, else by its kind.

    None where neither is known: it has to be given. A kind that reads any file of pieces stands for
    none whose file is called otherwise.
    """
    if name is not None:
        whole = name.rstrip("/").lower()
        last = whole.rpartition("/")[2]
        for pattern, size in _TOKENIZERS:
            if any(re.fullmatch(pattern, word) for word in (whole, last)):
                return size
        if last.endswith(".model") and not _OF_LLAMA.search(last):
            return None
    return _KINDS.get((kind or "").lower())


_OF_LLAMA: Final = re.compile(r"^tokenizer\.model$|llama|mistral")
