"""The model of a megatron-core test, from its command line arguments.

Vocabularies follow from the tokenizer where no argument states them, padded to a multiple of
`make_vocab_size_divisible_by` × tensor degree; a gated feed-forward part of unstated width has
64 ⌊8h/192⌋. Sources: the public arguments of Megatron-LM and the tokenizers of its tests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from trainwright.cluster import Accelerator, Calibration, Cluster, NetworkLevel, Pool
from trainwright.errors import UnsupportedFeature
from trainwright.model import Activation, Experts, LatentAttention, Norm, TransformerConfig
from trainwright.plans.measured_run import MeasuredRun
from trainwright.units import MIB

# What software each schema of measured runs was produced with, and how that software behaves
# -------------------------------------------------------------------------------------------
# A table of runs comes from one publication, and a publication from one line of software: which
# kernels attention and loss use, whether communication overlaps, how vocabularies are padded. All
# of it is a property of the schema (and of the accelerator, where one table spans generations, or
# of the kernels, where a table says which), never of a row. Sources are those of the published
# tables.


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftwareLine:
    """A framework at a point in its history.

    `node_bytes_per_s` is the network of a whole node, one direction, where it is not the usual one
    of the device; `gradient_dtype` that of the gradients on the wire.
    """

    name: str
    fused_attention: bool = True
    fused_cross_entropy: bool = False
    overlaps_gradients: bool = True
    dropout: float = 0.0
    vocabulary_multiple: int = 128
    node_bytes_per_s: float | None = None
    gradient_dtype: str | None = None
    default_recompute: str | None = None
    pads_experts: bool = False
    caches_dummy_gradients: bool = False
    fixed_bytes: float = 0.0


MEGATRON_2021: Final = SoftwareLine(
    name="megatron-2021",
    fused_attention=False,
    overlaps_gradients=False,
    dropout=0.1,
)
_LINES: Final = {
    "vtrain_multi": replace(
        MEGATRON_2021, name="megatron-deepspeed-2022", node_bytes_per_s=100e9, gradient_dtype="fp16"
    ),
    "megatron_scaling": MEGATRON_2021,
    "korthikanti": replace(MEGATRON_2021, name="megatron-2022"),
    "published_runs": replace(MEGATRON_2021, name="megatron-deepspeed-2021"),
    "simumax_b200": SoftwareLine(
        name="megatron-core-2025-b200",
        fused_cross_entropy=True,
        overlaps_gradients=False,
        pads_experts=True,
        caches_dummy_gradients=True,
        fixed_bytes=300.0 * MIB,
    ),
    "sailor_gh200": SoftwareLine(
        name="sailor", fused_attention=False, overlaps_gradients=False, dropout=0.1
    ),
    "sailor_mixed": SoftwareLine(
        name="sailor", fused_attention=False, overlaps_gradients=False, dropout=0.1
    ),
    "mosaicml_fsdp": SoftwareLine(
        name="llm-foundry", vocabulary_multiple=1, node_bytes_per_s=200e9
    ),
    "torchtitan": SoftwareLine(name="torchtitan", vocabulary_multiple=1),
    "megatron_ci": SoftwareLine(
        name="megatron-core-ci", fused_attention=False, overlaps_gradients=False, dropout=0.1
    ),
    "nemo_releases": SoftwareLine(name="nemo"),
    "dgxc": SoftwareLine(name="nemo"),
}
_MEGATRON_CORE: Final = SoftwareLine(name="megatron-core")
# Megatron's tables of 2021 are on A100; those on later devices are of megatron-core.
_FIRST_DEVICES: Final = ("V100", "A100")


def line_of(run: MeasuredRun) -> SoftwareLine:
    """The software behind a run; an unknown schema counts as a current megatron-core."""
    line = _LINES.get(run.schema, _MEGATRON_CORE)
    if run.setting("compiled") is not None and not run.flag("compiled"):
        return replace(line, name=f"{line.name}-eager")
    if run.precision == "fp8_rowwise":  # scaled products of other libraries than tensor-wise ones
        return replace(line, name=f"{line.name}-rowwise")
    megatron = line.name.startswith(("megatron-2021", "megatron-2022", "megatron-deepspeed-2021"))
    if megatron and not run.accelerator.startswith(_FIRST_DEVICES):
        return _MEGATRON_CORE
    return line


# From a row of a table to the cluster it ran on
# ----------------------------------------------
# A node of the row's size from the catalog's cluster of the same accelerator, as many as the row
# has devices; publications that state another network per node replace that figure.


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the catalog knows: accelerators and clusters by name, fitted constants."""

    accelerators: Mapping[str, Accelerator]
    clusters: tuple[Cluster, ...]
    calibrations: tuple[Calibration, ...] = ()

    def calibration(self, accelerator: str, line: str) -> Calibration | None:
        """The constants of an accelerator under a software line, where they were fitted."""
        for calibration in self.calibrations:
            if (calibration.accelerator, calibration.line) == (accelerator, line):
                return calibration
        return None


def cluster_of(run: MeasuredRun, line: SoftwareLine, known: Known) -> Cluster:
    """The calibrated cluster of a run; raises `UnsupportedFeature` for unknown devices."""
    device = known.accelerators.get(run.accelerator)
    if device is None:
        raise UnsupportedFeature(f"accelerator {run.accelerator} is not in the catalog")
    levels = _levels(run, known)
    if line.node_bytes_per_s is not None:
        each = line.node_bytes_per_s / run.devices_per_node
        levels = (levels[0], *(replace(o, bandwidth_bytes_per_s=each) for o in levels[1:]))
    cluster = Cluster(name="measured", pools=(Pool(accelerator=device, levels=levels),))
    calibration = known.calibration(run.accelerator, line.name)
    return cluster if calibration is None else calibration.applied(cluster)


def _levels(run: MeasuredRun, known: Known) -> tuple[NetworkLevel, ...]:
    """The levels of the catalog's cluster, innermost at the row's node size, filled evenly."""
    usual = [c for c in known.clusters if c.pools[0].accelerator.name == run.accelerator]
    if not usual:
        raise UnsupportedFeature(f"no cluster of {run.accelerator} is in the catalog")
    inner, *outer = usual[0].levels
    inside = min(inner.size, run.devices_per_node, run.num_devices)
    levels, left = [replace(inner, size=inside)], -(-run.num_devices // inside)
    for level in outer[:-1]:
        size = max(n for n in range(1, min(level.size, left) + 1) if left % n == 0)
        levels.append(replace(level, size=size))
        left //= size
    if outer:
        levels.append(replace(outer[-1], size=left))
    elif left > 1:
        raise UnsupportedFeature(f"no network between nodes of {run.accelerator} is known")
    return tuple(levels)


# The model of a megatron-core test, from its command line arguments
# ------------------------------------------------------------------

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
        experts=_megatron_experts(run, num_layers),
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


def _megatron_experts(run: MeasuredRun, num_layers: int) -> Experts | None:
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


# From a row of a table to the model it trained
# ---------------------------------------------
# The sizes are exact; what the columns do not say (norm, activation, biases, tied head, experts)
# follows from the family in the model's name, told by its longest known prefix, so that another
# size of a known family needs no entry of its own. Sources are the families' published
# configurations.

Style = Mapping[str, Any]

_GPT: Final[Style] = {
    "family": "gpt2",
    "norm": Norm.LAYER,
    "activation": Activation.GELU,
    "query_key_value_bias": True,
    "attention_output_bias": True,
    "mlp_bias": True,
    "tied_embeddings": True,
    "learned_positions": True,
}
_LLAMA: Final[Style] = {
    "family": "llama",
    "norm": Norm.RMS,
    "activation": Activation.SILU,
    "gated": True,
    "rotary": True,
}
_QWEN3: Final[Style] = {**_LLAMA, "family": "qwen3", "query_key_norm": True, "head_size": 128}
_DEEPSEEK: Final[Style] = {
    **_LLAMA,
    "family": "deepseek_v3",
    "latent": LatentAttention(
        key_value_rank=512,
        rotary_head_size=64,
        plain_head_size=128,
        value_head_size=128,
        query_rank=1536,
    ),
}
_FAMILIES: Final[Mapping[str, Style]] = {
    "gpt": _GPT,
    "gpt-neo": _GPT,
    "gpt-oss": {
        **_LLAMA,
        "family": "gpt_oss",
        "query_key_value_bias": True,
        "attention_output_bias": True,
        "attention_sinks": True,
        "mlp_bias": True,
        "head_size": 64,
        "experts": {"num_experts": 128, "experts_per_token": 4},
    },
    "gpt-oss-20b": {"experts": {"num_experts": 32, "experts_per_token": 4}},
    "turing": _GPT,
    "mt-nlg": _GPT,
    "opt": {**_GPT, "family": "opt", "activation": Activation.RELU},
    "mpt": {**_GPT, "family": "mpt"},
    "llama": _LLAMA,
    "mistral": {**_LLAMA, "family": "mistral"},
    "mixtral": {
        **_LLAMA,
        "family": "mixtral",
        "experts": {"num_experts": 8, "experts_per_token": 2},
    },
    "qwen2": {**_LLAMA, "family": "qwen2", "query_key_value_bias": True},
    "qwen3": _QWEN3,
    "qwen3-30b-a3b": {"experts": {"num_experts": 128, "experts_per_token": 8}},
    "qwen3-235b-a22b": {"experts": {"num_experts": 128, "experts_per_token": 8}},
    "grok": {
        **_LLAMA,
        "family": "grok-1",
        "activation": Activation.GELU,
        "sandwich_norm": True,
        "tied_embeddings": True,
        "experts": {"num_experts": 8, "experts_per_token": 2},
    },
    "nemotron-4": {
        "family": "nemotron",
        "norm": Norm.LAYER,
        "activation": Activation.SQUARED_RELU,
        "rotary": True,
    },
    "deepseek-v2": {
        **_DEEPSEEK,
        "experts": {
            "num_experts": 160,
            "experts_per_token": 6,
            "ffn_size": 1536,
            "shared_ffn_size": 3072,
            "num_dense_layers": 1,
        },
    },
    "deepseek-v3": {
        **_DEEPSEEK,
        "num_mtp_layers": 1,
        "experts": {
            "num_experts": 256,
            "experts_per_token": 8,
            "ffn_size": 2048,
            "shared_ffn_size": 2048,
            "num_dense_layers": 3,
        },
    },
    "kimi-k2": {
        **_DEEPSEEK,
        "experts": {
            "num_experts": 384,
            "experts_per_token": 8,
            "ffn_size": 2048,
            "shared_ffn_size": 2048,
            "num_dense_layers": 1,
        },
    },
}
_SIZES: Final = ("num_layers", "hidden_size", "ffn_size", "num_heads", "vocabulary_size")


def config_of(run: MeasuredRun, line: SoftwareLine) -> TransformerConfig:
    """The model of `run`; raises `UnsupportedFeature` where family or sizes are unknown."""
    if run.setting("family") == "hybrid_mamba":
        raise UnsupportedFeature("hybrid Mamba models are not modelled")
    if run.schema == "megatron_ci":
        return megatron_config(run)
    require_sizes(run, _SIZES)
    style = dict(_style(run.model.lower()))
    assert run.num_heads and run.hidden_size and run.ffn_size and run.num_layers
    head_size = style.pop("head_size", run.hidden_size // run.num_heads)
    latent = style.get("latent")
    if latent is not None:
        head_size = latent.head_size
    positions = run.sequence_length if style.pop("learned_positions", False) else 0
    experts = _experts(run, style.pop("experts", None))
    if run.setting("variant") == "w/o MTP" or "no-mtp" in run.model.lower():
        style["num_mtp_layers"] = 0
    return TransformerConfig(
        num_layers=run.num_layers,
        hidden_size=run.hidden_size,
        num_heads=run.num_heads,
        num_kv_heads=run.num_heads if latent else run.num_kv_heads or run.num_heads,
        head_size=head_size,
        ffn_size=run.ffn_size,
        vocabulary_size=run.vocabulary_size or 0,
        max_positions=positions,
        hidden_dropout=line.dropout,
        attention_dropout=line.dropout,
        experts=experts,
        **style,
    )


def require_sizes(run: MeasuredRun, names: tuple[str, ...]) -> None:
    """Raise `UnsupportedFeature` naming the sizes that the row leaves out."""
    missing = [name for name in names if getattr(run, name) is None]
    if missing:
        raise UnsupportedFeature(f"the row does not state {', '.join(missing)}")


def _style(name: str) -> Style:
    """What all known prefixes of a name say, the longest last."""
    known = sorted((p for p in _FAMILIES if name.startswith(p)), key=len)
    if not known:
        raise UnsupportedFeature(f"the family of {name} is not modelled")
    style: dict[str, Any] = {}
    for prefix in known:
        style = (
            {**style, **_FAMILIES[prefix]}
            if "family" not in _FAMILIES[prefix]
            else dict(_FAMILIES[prefix])
        )
    return style


def _experts(run: MeasuredRun, mixture: Style | None) -> Experts | None:
    """The mixture of the family; a row may state how many of its first blocks are dense."""
    if mixture is None:
        return None
    sizes = {"ffn_size": run.ffn_size, **mixture}
    first_dense = run.number("first_dense_layers")
    if first_dense is not None:
        sizes["num_dense_layers"] = int(first_dense)
    return Experts(**sizes)
