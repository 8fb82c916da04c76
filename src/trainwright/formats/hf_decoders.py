"""The language of rules for families of decoders: which keys, which defaults, what lies where.

A `Decoder` says what a family has; one function reads every family by it. Defaults are those of the
public configuration classes of transformers 5. A rule that a file may switch is a pair of its key
and what the family takes where the file is silent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from trainwright.errors import UnsupportedFeature
from trainwright.formats.hf_keys import (
    Fields,
    KeyReader,
    activation,
    rotary_decoder,
    upper_windows,
    windows,
)
from trainwright.model import Experts, Indexer, LatentAttention, Norm

Switch = bool | tuple[str, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureRule:
    """Which keys hold a family's experts, and which blocks have none.

    `width` names the key of an expert's width (that of dense blocks where absent), `shared` that of
    the number of shared experts, `shared_width` that of their whole width. Dense are the first
    blocks that `first_dense` counts, or those that `dense` finds.
    """

    num_experts: tuple[str, int]
    visited: tuple[str, int] | int
    width: tuple[str, int] | None = None
    shared: tuple[str, int] | None = None
    shared_width: tuple[str, int] | None = None
    first_dense: tuple[str, int] | None = None
    dense: Callable[[KeyReader, int], tuple[int, ...]] | None = None
    router_bias: bool = False
    shared_gate: bool = False
    grouped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentRule:
    """Defaults of a family with latent attention; `query_rank` 0 where queries have none.

    `indexer` holds its heads, their size and the keys that it chooses.
    """

    query_rank: int
    key_value_rank: int
    rotary: int
    plain: int
    value: int | None = None
    indexer: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A family of decoders with rotary positions; see the fields of `TransformerConfig`.

    `window` is the default of `sliding_window`, 0 where the family has none unless a file says so;
    `full_at` tells of a block's index whether it attends in full where a file does not list it.
    With `plain_heads` a file cannot say how many heads keys have, or how wide a head is. A
    `head_size` of 0 is the hidden size over heads, rounded down; an `ffn` of 0 four times the
    hidden size. Flags that are `unknown` may not be set: what they add has no formula here.
    `constants` are further fields that no key of a file changes; fields that the family calls by
    another key than others do are `spelled`.
    """

    layers: int
    hidden: int
    ffn: int
    heads: int
    vocabulary: int
    kv_heads: int | None = None
    head_size: int | None = None
    activation: str = "silu"
    activation_key: str = "hidden_act"
    gated: bool = True
    plain_heads: bool = False
    tied: bool = False
    norm: Norm = Norm.RMS
    query_key_value_bias: Switch = False
    attention_output_bias: Switch = False
    mlp_bias: Switch = False
    head_bias: Switch = False
    query_key_norm: Switch = False
    parallel: Switch = False
    sandwich_norm: Switch = False
    window: int | None = None
    window_key: str = "sliding_window"
    full_at: Callable[[int], bool] | None = None
    switched_window: bool = False
    mixture: MixtureRule | None = None
    latent: LatentRule | None = None
    gate_attention: bool = False
    further: Switch = False
    ignored: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    spelled: dict[str, str] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)


def read_decoder(rule: Decoder, keys: KeyReader) -> Fields:
    """Fields of a file by the rule of its family; raises `UnsupportedFeature` by its flags."""
    keys.spell(rule.spelled)
    keys.pass_over(*rule.ignored)
    refuse_flags(keys, *rule.unknown)
    latent = None if rule.latent is None else _latent(keys, rule.latent, rule)
    own = rule.head_size if latent is None else latent.head_size
    if rule.activation_key != "hidden_act":
        keys.pass_over("hidden_act")
    fields = rotary_decoder(
        keys,
        layers=rule.layers,
        hidden=rule.hidden,
        ffn=rule.ffn or 4 * keys.count("hidden_size", rule.hidden),
        heads=rule.heads,
        kv_heads=rule.kv_heads,
        vocabulary=rule.vocabulary,
        head_size=own or _quotient(keys, rule),
        activation_name=rule.activation,
        tied=rule.tied,
    )
    if rule.plain_heads:
        fields["num_kv_heads"] = fields["num_heads"]
    if rule.head_size and latent is None:
        fields["head_size"] = keys.count("head_size", rule.head_size)
    if rule.activation_key != "hidden_act":
        keys.defaults.pop("hidden_act", None)
        fields["activation"] = activation(keys, rule.activation_key, rule.activation)
    if latent is not None:
        keys.pass_over("num_kv_heads", "head_size")
        fields |= {"latent": latent, "num_kv_heads": fields["num_heads"]}
    fields |= {"norm": rule.norm, "gated": rule.gated}
    for name in _SWITCHES:
        fields[name] = _switch(keys, getattr(rule, name))
    if rule.switched_window:
        fields = upper_windows(keys, fields)
    elif rule.window is not None:
        fields = _windowed(keys, fields, rule)
    if rule.mixture is not None:
        fields["experts"] = _experts(keys, rule.mixture, fields)
    if rule.gate_attention:
        fields["attention_gate"] = fields["num_heads"] * fields["head_size"]
    if rule.further is not False:
        fields["num_mtp_layers"] = keys.natural(
            "num_nextn_predict_layers", int(_truth(rule.further))
        )
    fields |= rule.constants
    if fields.get("shared_norm") and not fields["parallel"]:
        fields["shared_norm"] = False
    return fields


def refuse_flags(keys: KeyReader, *names: str) -> None:
    """Raise `UnsupportedFeature` where a file sets one of them, so that others may count it."""
    for name in names:
        if keys.states(name) and keys.flag(name, False):
            raise UnsupportedFeature(
                f"{keys.prefix}{name}: true is not modelled", alternative="files without it are"
            )
    keys.pass_over(*names)


def _quotient(keys: KeyReader, rule: Decoder) -> int | None:
    """Head size where it is hidden size over heads, rounded down as the library does."""
    if not rule.plain_heads and rule.head_size != 0:
        return None
    if rule.head_size == 0 and (stated := keys.optional_count("head_size")):
        return stated
    return max(1, keys.count("hidden_size", rule.hidden) // keys.count("num_heads", rule.heads))


_SWITCHES: Final = (
    "query_key_value_bias",
    "attention_output_bias",
    "mlp_bias",
    "head_bias",
    "query_key_norm",
    "parallel",
    "sandwich_norm",
)


def _switch(keys: KeyReader, switch: Switch) -> bool:
    return switch if isinstance(switch, bool) else keys.flag(*switch)


def _truth(switch: Switch) -> bool:
    return switch if isinstance(switch, bool) else switch[1]


def _latent(keys: KeyReader, rule: LatentRule, family: Decoder) -> LatentAttention:
    query = keys.nullable_count("q_lora_rank", rule.query_rank) if rule.query_rank else None
    if not rule.query_rank:
        query = keys.optional_count("q_lora_rank")
    keys.pass_over("qk_head_dim")
    hidden, heads = keys.count("hidden_size", family.hidden), keys.count("num_heads", family.heads)
    indexer = None
    if rule.indexer is not None:
        indexer = Indexer(
            num_heads=keys.count("index_n_heads", rule.indexer[0]),
            head_size=keys.count("index_head_dim", rule.indexer[1]),
            num_keys=keys.count("index_topk", rule.indexer[2]),
        )
    return LatentAttention(
        indexer=indexer,
        query_rank=query,
        key_value_rank=keys.count("kv_lora_rank", rule.key_value_rank),
        rotary_head_size=keys.count("qk_rope_head_dim", rule.rotary),
        plain_head_size=keys.count("qk_nope_head_dim", rule.plain),
        value_head_size=keys.count("v_head_dim", rule.value or hidden // heads),
    )


def _windowed(keys: KeyReader, fields: Fields, rule: Decoder) -> Fields:
    """Windows as a file lists them, else at the indices of the family's pattern."""
    if rule.window:
        window = keys.nullable_count(rule.window_key, rule.window)
    else:
        window = keys.optional_count(rule.window_key)
    found = windows(keys, fields, window=window)
    full_at = _pattern(keys) or rule.full_at
    if keys.states("layer_types") or full_at is None or window is None:
        return found
    full = tuple(i for i in range(fields["num_layers"]) if full_at(i))
    return found | {"full_attention_layers": full}


def _pattern(keys: KeyReader) -> Callable[[int], bool] | None:
    """Which blocks attend in full where a file gives a period, or a text with G at those."""
    for key in ("sliding_window_pattern", "global_attn_every_n_layers"):
        stated = keys.value(key, None)
        keys.defaults.pop(keys.prefix + keys.path_of(key), None)
        keys.defaults.pop(keys.path_of(key), None)
        if isinstance(stated, int) and stated > 0:
            return every(stated)
        if isinstance(stated, str) and stated:
            return partial(_is_full, stated)
    return None


def _is_full(letters: str, layer: int) -> bool:
    return letters[layer % len(letters)] == "G"


def every(count: int) -> Callable[[int], bool]:
    """The last of every so many."""
    return lambda layer: (layer + 1) % count == 0


def _experts(keys: KeyReader, rule: MixtureRule, fields: Fields) -> Experts:
    width = fields["ffn_size"] if rule.width is None else keys.count(*rule.width)
    shared = 0
    if rule.shared is not None:
        shared = width * keys.natural(*rule.shared)
    elif rule.shared_width is not None:
        shared = keys.natural(*rule.shared_width)
    first = keys.natural(*rule.first_dense) if rule.first_dense is not None else 0
    dense: tuple[int, ...] = ()
    if keys.states("mlp_layer_types"):
        kinds = keys.optional_texts("mlp_layer_types")
        dense, first = tuple(i for i, kind in enumerate(kinds) if kind == "dense"), 0
    elif rule.dense is not None:
        dense = rule.dense(keys, fields["num_layers"])
    keys.pass_over("mlp_layer_types")
    num_experts = keys.count(*rule.num_experts)
    groups = (1, 1)
    if rule.grouped:
        groups = (keys.optional_count("n_group") or 1, keys.optional_count("topk_group") or 1)
    return Experts(
        num_experts=num_experts,
        experts_per_token=rule.visited
        if isinstance(rule.visited, int)
        else keys.count(*rule.visited),
        ffn_size=width,
        shared_ffn_size=shared,
        num_dense_layers=min(first, fields["num_layers"]),
        dense_layers=tuple(i for i in dense if i < fields["num_layers"]),
        router_bias=rule.router_bias,
        shared_gate=rule.shared_gate,
        routed_bias=False,
        num_groups=groups[0],
        groups_per_token=groups[1],
    )


def dense_between(keys: KeyReader, num_layers: int) -> tuple[int, ...]:
    """Blocks without experts: those listed, and those that the sparse step passes over."""
    step = keys.count("decoder_sparse_step", 1)
    listed = set(keys.counts("mlp_only_layers", ()))
    if listed and max(listed) >= num_layers:
        keys.refuse("mlp_only_layers", f"must be in 0..{num_layers - 1}, got {max(listed)}")
        return ()
    return tuple(i for i in range(num_layers) if i in listed or (i + 1) % step)
