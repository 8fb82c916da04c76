"""What a row of a table of measured runs says of itself: its software, cluster and model.

Nothing here knows a file or a model by its name. The software is the row's `software` column, the
cluster its `cluster_hint` or a catalog cluster of its accelerator, the model its `model_config` or
the architecture whose sizes it states. What no column says is a stated default.

The model of a megatron-core test follows from its command line arguments: vocabularies from the
tokenizer where no argument states them, padded to a multiple of `make_vocab_size_divisible_by` ×
tensor degree; a gated feed-forward part of unstated width has 64 ⌊8h/192⌋. Sources: the public
arguments of Megatron-LM and the tokenizers of its tests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from trainwright.cluster import Accelerator, Calibration, Cluster, NetworkLevel, Pool
from trainwright.cluster.calibration import PooledEfficiencies, Software, software_named
from trainwright.errors import UnsupportedFeature
from trainwright.formats.measured_csv import MeasuredRun
from trainwright.model import Activation, Experts, LatentAttention, Norm, TransformerConfig
from trainwright.model.config import LowRank, Tuning
from trainwright.units import MIB

# How the software behind a row behaves where the row does not say so itself
# --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftwareLine:
    """A framework as a run used it: its defaults, and what the row states in their place."""

    software: Software
    fused_attention: bool = True
    fused_cross_entropy: bool = False
    overlaps_gradients: bool = True
    dropout: float = 0.0
    vocabulary_multiple: int = 128
    gradient_dtype: str | None = None
    default_recompute: str | None = None
    pads_experts: bool = False
    dispatches_once: bool = False
    pairs_passes: bool = False
    caches_dummy_gradients: bool = False
    fixed_bytes: float = 0.0

    @property
    def name(self) -> str:
        """That of the software."""
        return self.software.name


# Before flash attention and overlapped reductions: Megatron-LM of 2021 and 2022, and DeepSpeed's.
_FIRST_MEGATRON: Final = {"fused_attention": False, "overlaps_gradients": False, "dropout": 0.1}
# Of other software than this the defaults of `SoftwareLine` hold.
_BEHAVIOUR: Final[Mapping[str, Mapping[str, Any]]] = {
    "megatron-lm": _FIRST_MEGATRON,
    "megatron-deepspeed": _FIRST_MEGATRON,
    "sailor": _FIRST_MEGATRON,
    "megatron-core": {
        "pads_experts": True,
        "caches_dummy_gradients": True,
        "fixed_bytes": 300.0 * MIB,
    },
    # Its recipes of mixtures send a token once to each node (DeepEP); where experts span nodes and
    # pipelines interleave, a microbatch computes while another's tokens travel (`moe_a2a_overlap`
    # in Megatron-Bridge's `scripts/performance/configs`). Those whose times are published reduce
    # gradients in 16 bit (`grad_reduce_in_fp32 = False` in NeMo's `llm/recipes`) and fuse the loss
    # (`cross_entropy_fusion_impl = "te"` in both).
    "nemo": {
        "dispatches_once": True,
        "pairs_passes": True,
        "gradient_dtype": "bf16",
        "fused_cross_entropy": True,
    },
    # Models come from Hugging Face, unpadded.
    "deepspeed": {"vocabulary_multiple": 1},
    "llm-foundry": {"vocabulary_multiple": 1},
    "torchtitan": {"vocabulary_multiple": 1},
}
# Of the tests of megatron-core, whose rows state their arguments.
_BY_ARGUMENTS: Final = {"fused_attention": False, "overlaps_gradients": False, "dropout": 0.1}


def line_of(run: MeasuredRun) -> SoftwareLine:
    """The software of a run's `software` column, and how it behaves."""
    software = software_named(_program(run), compiled=_compiled(run))
    behaviour = dict(_BEHAVIOUR.get(software.name, {}))
    if run.states_arguments:
        behaviour = dict(_BY_ARGUMENTS)
    if run.setting("overlap_grad_reduce") is not None:
        behaviour["overlaps_gradients"] = run.flag("overlap_grad_reduce")
    for name, option in (
        ("fused_attention", "flash_attention"),
        ("fused_cross_entropy", "fused_cross_entropy"),
        ("vocabulary_multiple", "vocabulary_multiple"),
        ("gradient_dtype", "gradient_dtype"),
        ("overlaps_gradients", "overlap_gradients"),
        ("dropout", "dropout"),
        ("dispatches_once", "dispatches_once"),
    ):
        if run.options.get(option) is not None:
            behaviour[name] = run.options[option]
    if not behaviour.get("fused_attention", True) and "fused_cross_entropy" not in run.options:
        behaviour["fused_cross_entropy"] = False  # kernels of the loss were fused later
    return SoftwareLine(software=software, **behaviour)


def _program(run: MeasuredRun) -> str | None:
    """Whose software ran: where no column says so, ZeRO with the optimizer alone on the host is
    DeepSpeed's, for PyTorch's own sharding moves weights there with it.
    """
    stated = run.setting("software")
    return "deepspeed" if stated is None and updates_on_host(run) and run.zero_stage else stated


def updates_on_host(run: MeasuredRun) -> bool:
    """Whether the optimizer's states lie in host memory, by an option of the row or its note."""
    stated = run.options.get("offload_optimizer")
    if stated is not None:
        return bool(stated)
    return "optimizer in host memory" in (run.setting("note") or "").lower()


def _compiled(run: MeasuredRun) -> bool | None:
    return None if run.setting("compiled") is None else run.flag("compiled")


# From a row of a table to the cluster it ran on
# ----------------------------------------------
# The cluster that the row hints at, or the catalog's first of the same accelerator; a node of the
# row's size, and as many as the row has devices.


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the catalog knows, and what lies beside a table.

    `models` are those of `model_config`, by its text; `beside` are clusters in files beside the
    table. `calibrations` are those of runs that are priced from measured layers. `unpublished`
    takes no run for one of a publication that the efficiencies were fitted to.
    """

    accelerators: Mapping[str, Accelerator]
    clusters: tuple[Cluster, ...]
    architectures: tuple[TransformerConfig, ...] = ()
    models: Mapping[str, TransformerConfig] = field(default_factory=lambda: MappingProxyType({}))
    beside: tuple[Cluster, ...] = ()
    calibrations: tuple[Calibration, ...] = ()
    efficiencies: PooledEfficiencies | None = None
    unpublished: bool = False

    def calibration(self, accelerator: str, software: str) -> Calibration | None:
        """The constants of an accelerator under a software, where they were fitted by line."""
        for calibration in self.calibrations:
            if (calibration.accelerator, calibration.line) == (accelerator, software):
                return calibration
        return None


def cluster_of(run: MeasuredRun, line: SoftwareLine, known: Known) -> Cluster:
    """The cluster of a run with the efficiencies expected there.

    Raises `UnsupportedFeature` for unknown devices.
    """
    device = known.accelerators.get(run.accelerator)
    if device is None:
        raise UnsupportedFeature(f"accelerator {run.accelerator} is not in the catalog")
    device = line.software.on(device)
    cluster = Cluster(
        name="measured", pools=(Pool(accelerator=device, levels=_levels(run, known)),)
    )
    fitted = known.calibration(run.accelerator, line.name)
    if fitted is not None:
        return fitted.applied(cluster)
    if known.efficiencies is None:
        return cluster
    applied = known.efficiencies.applied(
        cluster, line.software, None if known.unpublished else run.publication
    )
    return known.efficiencies.holding(applied, line.software)


def _levels(run: MeasuredRun, known: Known) -> tuple[NetworkLevel, ...]:
    """The levels of the hinted cluster, innermost at the row's node size, filled evenly."""
    found = _hinted(run, known)
    inner, *outer = found.levels
    if found.num_devices == run.num_devices:
        return found.levels
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


def _hinted(run: MeasuredRun, known: Known) -> Cluster:
    """The cluster a row hints at, of its accelerator; the file whose size fits goes first."""
    own = [
        c
        for c in (*known.beside, *known.clusters)
        if len(c.pools) == 1 and c.pools[0].accelerator.name == run.accelerator
    ]
    if not own:
        raise UnsupportedFeature(f"no cluster of {run.accelerator} is in the catalog")
    hint = run.setting("cluster_hint") or ""
    copies = int(run.number("state_copies") or 1)

    def fitness(cluster: Cluster) -> tuple[bool, ...]:
        named = cluster.name == hint
        sized = cluster.num_devices == run.num_devices and cluster.levels[-1].size == copies
        related = bool(hint) and cluster.name.startswith(hint.removesuffix("-multislice"))
        return (
            named and cluster.num_devices == run.num_devices,
            related and sized,
            related and cluster.num_devices == run.num_devices,
            named,
            related,
            not hint and cluster in known.clusters,
        )

    return max(own, key=fitness)  # the first of equals


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
# Where a row names no config, its sizes decide. A catalog model of the same width, feed-forward
# width and heads lends its architecture (norm, activation, biases, experts); among several the one
# with the row's vocabulary, depth and use of experts. Sizes that no catalog model has are a GPT's
# where the feed-forward part is four times as wide as the model, else those of a gated Llama.

_GPT: Final[Mapping[str, Any]] = {
    "family": "gpt2",
    "norm": Norm.LAYER,
    "activation": Activation.GELU,
    "query_key_value_bias": True,
    "attention_output_bias": True,
    "mlp_bias": True,
    "tied_embeddings": True,
}
_LLAMA: Final[Mapping[str, Any]] = {
    "family": "llama",
    "norm": Norm.RMS,
    "activation": Activation.SILU,
    "gated": True,
    "rotary": True,
}
_GPT_WIDTH: Final = 4
_SIZES: Final = ("num_layers", "hidden_size", "ffn_size", "num_heads", "vocabulary_size")
_PADDED: Final = 1.1  # a padded vocabulary over the plain one, at most


def config_of(run: MeasuredRun, line: SoftwareLine, known: Known) -> TransformerConfig:
    """The model of `run`; raises `UnsupportedFeature` where neither config nor sizes are stated."""
    if run.setting("family") == "hybrid_mamba":
        raise UnsupportedFeature("the row leaves out the layers of its hybrid")
    if run.states_arguments:
        return megatron_config(run)
    given = known.models.get(run.setting("model_config") or "")
    model = _of_sizes(run, line, known.architectures) if given is None else given
    if not run.states_experts and (given is None or model.experts is not None):
        raise UnsupportedFeature("not stated: ep")  # only a config says that a model is dense
    if run.options.get("num_layers"):
        model = replace(model, num_layers=int(run.options["num_layers"]))
    rank, targets = run.options.get("lora_rank"), str(run.options.get("lora_targets") or "")
    if rank:
        low_rank = LowRank(
            rank=int(rank),
            targets=tuple(t for t in targets.split(",") if t),
            dropout=float(run.options.get("lora_dropout") or 0.0),
            bits=_frozen_bits(run),
        )
        model = replace(model, tuning=Tuning(low_rank=low_rank))
    return model


def _frozen_bits(run: MeasuredRun) -> int | None:
    """Of a weight beside adapters, by an option of the row or its note; None: as in training."""
    if (stated := run.options.get("weight_bits")) is not None:
        return int(stated)
    return 8 if "frozen weights in fp8" in (run.setting("note") or "").lower() else None


def _of_sizes(
    run: MeasuredRun, line: SoftwareLine, architectures: Sequence[TransformerConfig]
) -> TransformerConfig:
    require_sizes(run, _SIZES)
    assert run.num_heads and run.hidden_size and run.ffn_size and run.num_layers
    sizes: dict[str, Any] = {
        "num_layers": run.num_layers,
        "vocabulary_size": run.vocabulary_size or 0,
        "hidden_dropout": line.dropout,
        "attention_dropout": line.dropout,
    }
    like = _like(run, architectures)
    if like is None:
        gpt = run.ffn_size == _GPT_WIDTH * run.hidden_size
        return TransformerConfig(
            hidden_size=run.hidden_size,
            ffn_size=run.ffn_size,
            num_heads=run.num_heads,
            num_kv_heads=run.num_kv_heads or run.num_heads,
            head_size=run.hidden_size // run.num_heads,
            max_positions=run.sequence_length if gpt else 0,
            **sizes,
            **(_GPT if gpt else _LLAMA),
        )
    heads = like.num_kv_heads if like.latent else run.num_kv_heads or like.num_kv_heads
    # A slice of a published model has no layers that predict further tokens.
    cut = run.num_layers < like.num_layers or run.setting("variant") == "w/o MTP"
    experts, dense = like.experts, run.number("first_dense_layers")
    if experts is not None:
        kept = tuple(i for i in experts.dense_layers if i < run.num_layers)
        experts = replace(experts, dense_layers=kept)
        if dense is not None:
            experts = replace(experts, num_dense_layers=int(dense), dense_layers=())
    return replace(
        like,
        num_kv_heads=heads,
        max_positions=run.sequence_length if like.max_positions else 0,
        num_mtp_layers=0 if cut else like.num_mtp_layers,
        full_attention_layers=tuple(i for i in like.full_attention_layers if i < run.num_layers),
        experts=experts,
        **sizes,
    )


def _like(run: MeasuredRun, architectures: Sequence[TransformerConfig]) -> TransformerConfig | None:
    """The catalog architecture of a row's width, feed-forward width and heads."""

    def fits(model: TransformerConfig) -> bool:
        widths = {model.ffn_size}
        if model.experts is not None:
            widths.add(model.experts.ffn_size)
        same = model.hidden_size == run.hidden_size and model.num_heads == run.num_heads
        if model.choice_of_layer and model.num_layers != run.num_layers:
            return False  # what its layers are is listed one by one
        if model.towers:
            return False  # no row of sizes says what images it was trained on
        if model.sliding_window is not None and model.vocabulary_size != run.vocabulary_size:
            return False  # many attend in full at such sizes; the vocabulary is a model's own
        return same and run.ffn_size in widths

    def nearness(model: TransformerConfig) -> tuple[bool, ...]:
        vocabulary = run.vocabulary_size or 0
        padded = model.vocabulary_size <= vocabulary <= _PADDED * model.vocabulary_size
        routed = model.experts is not None
        return (
            run.expert == 1 or routed,
            padded,
            model.num_layers == run.num_layers,
            model.num_kv_heads == run.num_kv_heads,
            not routed,
        )

    found = [model for model in architectures if fits(model)]
    return max(found, key=nearness, default=None)


def require_sizes(run: MeasuredRun, names: tuple[str, ...]) -> None:
    """Raise `UnsupportedFeature` naming the sizes that the row leaves out."""
    missing = [name for name in names if getattr(run, name) is None]
    if missing:
        raise UnsupportedFeature(f"the row does not state {', '.join(missing)}")
