"""Reads single keys of a `config.json`, remembering aliases, defaults used and faults found."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Final

from trainwright.errors import Fault, one_of
from trainwright.formats.json_text import show_typed, show_value
from trainwright.model import Activation, Norm

ALIASES: Final = {
    "hidden_size": ("hidden_size", "n_embd", "d_model", "n_embed"),
    "num_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "ffn_size": ("intermediate_size", "n_inner", "ffn_dim"),
    "max_positions": ("max_position_embeddings", "n_positions", "max_seq_len"),
    "num_kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "head_size": ("head_dim",),
    "vocabulary_size": ("vocab_size",),
    "hidden_dropout": (
        "hidden_dropout",
        "hidden_dropout_prob",
        "resid_pdrop",
        "resid_dropout",
        "dropout",
    ),
    "embedding_dropout": ("embd_pdrop", "emb_pdrop", "embed_dropout", "embedding_dropout"),
    "attention_dropout": ("attention_dropout", "attention_probs_dropout_prob", "attn_pdrop"),
    "tied_embeddings": ("tie_word_embeddings",),
    "sliding_window_pattern": ("sliding_window_pattern", "_sliding_window_pattern"),
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": ("num_experts_per_tok", "moe_k", "moe_topk", "num_experts_per_token"),
    "num_shared_experts": ("num_shared_experts", "n_shared_experts", "moe_num_shared_experts"),
}
_LARGEST_COUNT: Final = 10**9
_LARGEST_RATIO: Final = 1000  # of two widths
SIZES: Final = frozenset((*ALIASES["hidden_size"], *ALIASES["num_layers"], "depth", "embed_dim"))
# Sizes that decide what a model costs, which files state whatever their family would take.
DECIDING_SIZES: Final = SIZES.union(
    *(ALIASES[field] for field in ("num_heads", "ffn_size", "vocabulary_size"))
)
_ALIKE: Final = (
    0.85  # of letters; one of 183 published files has an unknown key so like a known one
)


_NOTHING: Final[tuple[object, ...]] = (None, [], {})  # what says nothing, whatever its key


class KeyReader:
    """A `config.json` being read. `defaults` and `faults` fill up as keys are asked for.

    A section of the file is read by a reader of its own, whose keys carry its `prefix`.
    """

    def __init__(self, document: Mapping[str, Any], *, prefix: str = "") -> None:
        self._document = document
        self._prefix = prefix
        self._sections: list[KeyReader] = []
        self.known: set[str] = {"model_type", "architectures"}
        self.defaults: dict[str, object] = {}
        self.faults: list[Fault] = []
        self._spelling: dict[str, str] = {}
        self._preferred: dict[str, str] = {}
        self._own: dict[str, str] = {}
        self._assumed: Mapping[str, object] = {}

    def assume(self, defaults: Mapping[str, object]) -> None:
        """Take these fields where the file is silent, in place of the family's own defaults."""
        self._assumed = defaults

    def prefer(self, **spelling: str) -> None:
        """Say by which of its aliases the family itself calls a field."""
        self._preferred.update(spelling)

    def spell(self, spelling: Mapping[str, str]) -> None:
        """Say by which one key the family states a field, in place of the usual ones."""
        self._own.update(spelling)

    def _spellings(self, field: str) -> tuple[str, ...]:
        if field in self._own:
            return (self._own[field],)
        return ALIASES.get(field, (field,))

    def pass_over(self, *fields: str) -> None:
        """Leave keys unread that the rest of the file makes irrelevant."""
        for field in fields:
            self.known.update(self._spellings(field))

    def section(self, field: str) -> KeyReader:
        """The object under `field`, empty where it is absent or null."""
        key, value = self._find(field, {})
        self.defaults.pop(self._prefix + key, None)
        if not isinstance(value, Mapping):
            self._fault(key, f"must be an object, got {show_typed(value)}")
            value = {}
        inside = type(self)(value, prefix=f"{self._prefix}{key}.")
        self._sections.append(inside)
        return inside

    @property
    def prefix(self) -> str:
        """What stands before the keys of a section, with its dot; empty at the top."""
        return self._prefix

    @property
    def all_faults(self) -> list[Fault]:
        """Those of the sections too."""
        return [*self.faults, *(f for s in self._sections for f in s.all_faults)]

    @property
    def all_defaults(self) -> dict[str, object]:
        """Those of the sections too."""
        inside = {k: v for s in self._sections for k, v in s.all_defaults.items()}
        return self.defaults | inside

    @property
    def unread_parts(self) -> list[str]:
        """Sections that nobody asked for though they state sizes of a model."""
        parts = (key for key in self.unread if isinstance(self._document.get(key), Mapping))
        return [key for key in parts if SIZES & set(self._document[key])]

    @property
    def unread(self) -> list[str]:
        """Keys that nobody asked for and that say something, with those of the sections read."""
        own = [self._prefix + key for key in self._own_unread]
        return own + [key for s in self._sections for key in s.unread]

    @property
    def _own_unread(self) -> list[str]:
        stated = (str(key) for key, value in self._document.items() if value not in _NOTHING)
        return [key for key in stated if key not in self.known]

    @property
    def misspelt(self) -> dict[str, str]:
        """By unread key, the known one in its place that the file has not and that is most alike.

        Both are whole paths.
        """
        absent = sorted(key for key in self.known if self._document.get(key) is None)
        near = {key: difflib.get_close_matches(key, absent, 1, _ALIKE) for key in self._own_unread}
        own = {self._prefix + key: self._prefix + known[0] for key, known in near.items() if known}
        return own | {key: known for s in self._sections for key, known in s.misspelt.items()}

    @property
    def misspelt_sizes(self) -> list[Fault]:
        """Keys in whose place a size that decides the cost would be that of the family."""
        found = []
        for key, known in self.misspelt.items():
            prefix, dot, name = known.rpartition(".")
            field = next((own for own in ALIASES.values() if name in own), (name,))
            is_taken = any(prefix + dot + own in self.all_defaults for own in field)
            if name in DECIDING_SIZES and is_taken:
                found.append(
                    Fault(key, f'is no key, and no "{known}" is given; did you mean that?')
                )
        return found

    def path_of(self, field: str) -> str:
        """The file's own key for a field of the model, where it has one."""
        return self._prefix + self._spelling.get(field, field)

    def count(self, field: str, default: int | None, *, most: int = _LARGEST_COUNT) -> int:
        """An integer in 1..`most`; 8.0 is accepted, "8", 8.5 and true are not."""
        return self._integer(field, default, least=1, most=most)

    def side(self, field: str, default: int) -> int:
        """Of a square: a count, or a list of two that are alike."""
        key, value = self._find(field, default)
        if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
            value = value[0]
        return self._whole(key, value, least=1, most=_LARGEST_COUNT)

    def alike(self, field: str, default: int | None) -> int | None:
        """An integer, or a list of the same one for every block."""
        key, value = self._find(field, default)
        each: list[Any] = value if isinstance(value, list) else [value]
        if each and all(type(v) is int and v == each[0] for v in each):
            return int(each[0])
        if value is not None:
            self._fault(key, "must be one count, the same for every block")
        return default

    def natural(self, field: str, default: int) -> int:
        """An integer >= 0."""
        return self._integer(field, default, least=0, most=_LARGEST_COUNT)

    def _integer(self, field: str, default: int | None, *, least: int, most: int) -> int:
        return self._whole(*self._find(field, default), least=least, most=most)

    def _whole(self, key: str, value: object, *, least: int, most: int) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            self._fault(key, f"must be an integer, got {show_typed(value)}")
        elif not least <= value <= most:
            self._fault(key, f"must be in {least}..{most}, got {show_value(value)}")
        else:
            return value
        return least

    def fraction(self, field: str, default: float) -> float:
        """A probability in [0, 1)."""
        key, value = self._find(field, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._fault(key, f"must be a number, got {show_typed(value)}")
        elif not 0 <= value < 1:
            self._fault(key, f"must be in [0, 1), got {show_value(value)}")
        else:
            return float(value)
        return 0.0

    def flag(self, field: str, default: bool) -> bool:
        """True or false."""
        key, value = self._find(field, default)
        if not isinstance(value, bool):
            self._fault(key, f"must be true or false, got {show_typed(value)}")
            return default
        return value

    def stated_flag(self, field: str, default: bool = False) -> bool:
        """True or false where the file states it (no default is reported, nor is the key known)."""
        return self.flag(field, default) if self.states(field) else default

    def ratio(self, field: str, default: float) -> float:
        """A number above 0."""
        key, value = self._find(field, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._fault(key, f"must be a number, got {show_typed(value)}")
        elif not 0 < value <= _LARGEST_RATIO:
            self._fault(key, f"must be above 0, up to {_LARGEST_RATIO}, got {show_value(value)}")
        else:
            return value
        return default

    def text(self, field: str, default: str) -> str:
        """A string."""
        key, value = self._find(field, default)
        if not isinstance(value, str):
            self._fault(key, f"must be text, got {show_typed(value)}")
            return default
        return value

    def choice(self, field: str, default: str, known: Collection[str]) -> str:
        """One of the texts that are known."""
        name = self.text(field, default)
        if name in known:
            return name
        self.refuse(field, one_of(known, name))
        return default

    def counts(self, field: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """A list of integers >= 0."""
        key, value = self._find(field, list(default))
        if isinstance(value, list) and all(type(v) is int and v >= 0 for v in value):
            return tuple(value)
        self._fault(key, f"must be a list of integers >= 0, got {show_typed(value)}")
        return default

    def texts(self, field: str, default: tuple[str, ...]) -> tuple[str, ...]:
        """A list of strings."""
        key, value = self._find(field, list(default))
        if isinstance(value, list) and all(isinstance(v, str) for v in value):
            return tuple(value)
        self._fault(key, f"must be a list of texts, got {show_typed(value)}")
        return default

    def value(self, field: str, default: object) -> Any:
        """Whatever stands there, unchecked."""
        return self._find(field, default)[1]

    def states(self, field: str) -> bool:
        """Whether the file says anything under `field`."""
        return any(self._document.get(key) is not None for key in self._spellings(field))

    def optional_texts(self, field: str) -> tuple[str, ...]:
        """A list of strings, or empty where it is absent (no default is reported)."""
        found = self.texts(field, ())
        self.defaults.pop(self._prefix + field, None)
        return found

    def nullable_count(self, field: str, default: int) -> int | None:
        """An integer >= 1, None where the file says null, the default where it says nothing."""
        stated = [k for k in self._spellings(field) if k in self._document]
        if stated and all(self._document[k] is None for k in stated):
            self.known.update(self._spellings(field))
            return None
        return self.count(field, default)

    def optional_natural(self, field: str) -> int:
        """An integer >= 0, 0 where it is absent (no default is reported)."""
        found = self.natural(field, 0)
        self.defaults.pop(self._prefix + self._spelling[field], None)
        return found

    def optional_count(self, field: str) -> int | None:
        """An integer >= 1, or absent (null counts as absent; no default is reported)."""
        if self.states(field) or field in self._assumed:
            return self.count(field, None)
        self.known.update(self._spellings(field))
        return None

    def refuse(self, field: str, problem: str) -> None:
        """Record a fault that the family found."""
        self.faults.append(Fault(self.path_of(field), problem))

    def _fault(self, key: str, problem: str) -> None:
        self.faults.append(Fault(self._prefix + key, problem))

    def _find(self, field: str, default: object) -> tuple[str, object]:
        """The value under the field's first spelling that is present and not null."""
        spellings = self._spellings(field)
        self.known.update(spellings)
        default = self._assumed.get(field, default)
        present = [k for k in spellings if self._document.get(k) is not None]
        if not present:
            key = self._preferred.get(field, spellings[0])
            self.defaults[self._prefix + key] = default
            self._spelling[field] = key
            return key, default
        if is_dropout := field.endswith("_dropout"):
            present.sort(key=lambda key: key != self._preferred.get(field))
        self._spelling[field] = present[0]
        value = self._document[present[0]]
        for other in present[1:]:
            if self._document[other] == value:
                continue
            if is_dropout:  # of another class than the file's: it is named, and changes no size
                self.known.discard(other)
            else:
                problem = f"must equal {present[0]} ({show_value(value)}), got "
                self._fault(other, problem + show_value(self._document[other]))
        return present[0], value


# Keys of a `config.json` that the reader passes over: in silence, or with what that may cost
# -------------------------------------------------------------------------------------------

# Keys that say nothing about cost or memory of training: token ids, names, initialisation, serving,
# generation (which older versions of the library wrote into every section).
_SILENT_KEYS = """
    _attn_implementation _name_or_path activation_dropout
    add_cross_attention alibi_bias_max apply_residual_connection_post_layernorm
    attention_softmax_in_fp32 attn_impl attn_output_multiplier attn_type attn_uses_sequence_id
    auto_map aux_loss_alpha bias_dropout_fusion bos_token_id chunk_size_feed_forward
    classifier_dropout clip_qkv directionality dtype embedding_fraction
    embedding_initializer_range embedding_multiplier_scale eos_token_id ep_size experts_per_token
    finetuning_task
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
    summary_use_proj swiglu_alpha swiglu_limit task_specific_params tokenizer_class topk_group
    topk_method torch_dtype transformers_version unk_token unk_token_id use_cache verbose
    diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size ignore_index
    image_placeholder length_penalty max_length min_length no_repeat_ngram_size num_beam_groups
    num_beams num_return_sequences output_scores remove_invalid_values repetition_penalty
    return_dict_in_generate temperature tf_legacy_loss tie_encoder_decoder top_p torchscript
    typical_p use_bfloat16
"""
SILENT_KEYS: Final = frozenset(_SILENT_KEYS.split())
_SILENT_ENDS: Final = ("_token_id", "_token_index", "_token_ids")


def is_silent(key: str) -> bool:
    """Whether a key says nothing about cost or memory."""
    return key in SILENT_KEYS or key.endswith(_SILENT_ENDS)


# What an unknown key may be about, by parts of its name; the first that fits is taken.
_EFFECTS: Final = (
    ("quant fp8 int4 int8", "how weights are stored; the precision of training is set apart"),
    ("vision image audio speech", "a second encoder is not priced: time and memory are too low"),
    ("expert moe router", "experts: parameters, time and all-to-all may be wrong"),
    ("dropout pdrop", "dropout: up to a byte per element and mask"),
    ("bias", "biases: below 0.1% of parameters and time"),
    ("norm _ln", "norms: below 0.1% of parameters, a few percent of the time at most"),
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


# What several model families read alike from their `config.json`
# ---------------------------------------------------------------
# Every function leaves faults and defaults in the reader and returns fields of `TransformerConfig`.

Fields = dict[str, Any]

MAX_LAYERS: Final = 10_000

_ACTIVATIONS: Final = {
    "gelu": Activation.GELU,
    "gelu_new": Activation.GELU,
    "gelu_fast": Activation.GELU,
    "gelu_pytorch_tanh": Activation.GELU,
    "relu": Activation.RELU,
    "quick_gelu": Activation.GELU,
    "gegelu": Activation.GELU,
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "relu2": Activation.SQUARED_RELU,
    "xielu": Activation.XIELU,
    "situ": Activation.SILU,  # with a bound on either factor, in the same kernel
}


def activation(keys: KeyReader, field: str, default: str) -> Activation:
    """The activation under `field`."""
    return _ACTIVATIONS[keys.choice(field, default, _ACTIVATIONS)]


def stack(
    keys: KeyReader,
    *,
    layers: int,
    hidden: int,
    heads: int,
    vocabulary: int,
    head_size: int | None = None,
) -> Fields:
    """The sizes that every family has; heads must divide the hidden size unless given a size."""
    before = len(keys.faults)
    hidden_size, num_heads = keys.count("hidden_size", hidden), keys.count("num_heads", heads)
    are_counts = len(keys.faults) == before
    stated = keys.optional_count("head_size")
    head_size = stated if head_size is None else head_size
    if head_size is None and are_counts and hidden_size % num_heads:
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


def with_biases() -> Fields:
    """Layer norms, and a bias on every product, as in GPT-2."""
    return {
        "norm": Norm.LAYER,
        "query_key_value_bias": True,
        "attention_output_bias": True,
        "mlp_bias": True,
    }


def rotary_decoder(
    keys: KeyReader,
    *,
    layers: int,
    hidden: int,
    ffn: int,
    heads: int,
    kv_heads: int | None,
    vocabulary: int,
    head_size: int | None = None,
    activation_name: str = "silu",
    tied: bool = False,
) -> Fields:
    """What Llama and its relatives share: RMS norms, rotary positions, a gated feed-forward."""
    sizes = stack(
        keys,
        layers=layers,
        hidden=hidden,
        heads=heads,
        vocabulary=vocabulary,
        head_size=head_size,
    )
    default = sizes["num_heads"] if kv_heads is None else kv_heads
    # A null is no silence: the classes take as many as there are heads then.
    sizes["num_kv_heads"] = keys.nullable_count("num_kv_heads", default) or sizes["num_heads"]
    keys.optional_count("max_positions")
    return {
        **sizes,
        "ffn_size": keys.count("ffn_size", ffn),
        "norm": Norm.RMS,
        "activation": activation(keys, "hidden_act", activation_name),
        "gated": True,
        "rotary": True,
        "tied_embeddings": keys.flag("tied_embeddings", tied),
        "attention_dropout": keys.fraction("attention_dropout", 0.0),
    }


def windows(keys: KeyReader, fields: Fields, *, window: int | None) -> Fields:
    """Which blocks attend within `window`: those of `layer_types`, all where it is silent."""
    kinds = keys.optional_texts("layer_types")
    num_layers = fields["num_layers"]
    if kinds and len(kinds) != num_layers:
        keys.refuse(
            "layer_types", f"must have one entry per layer ({num_layers}), got {len(kinds)}"
        )
        return fields
    if unknown := sorted(set(kinds) - {"full_attention", "sliding_attention"}):
        keys.refuse("layer_types", f"must be full_attention or sliding_attention, got {unknown[0]}")
    if window is None:
        if "sliding_attention" in kinds:
            keys.refuse("sliding_window", "must be given where layer_types has sliding_attention")
        return fields
    full = tuple(i for i, kind in enumerate(kinds) if kind == "full_attention")
    if len(full) == num_layers:
        return fields
    return {**fields, "sliding_window": window, "full_attention_layers": full}


def upper_windows(keys: KeyReader, decoder: Fields) -> Fields:
    """Qwen's window, where it is used: from block `max_window_layers` on, or as listed."""
    if not keys.flag("use_sliding_window", False):
        keys.pass_over("sliding_window", "max_window_layers", "layer_types")
        return decoder
    window = keys.optional_count("sliding_window")
    below = keys.optional_count("max_window_layers") or 0
    fields = windows(keys, decoder, window=window)
    if window is None or keys.states("layer_types"):
        return fields
    return fields | {"full_attention_layers": tuple(range(min(below, decoder["num_layers"])))}


# What a file may say, as a JSON Schema: made by the functions that read it
# --------------------------------------------------------------------------

Schema = dict[str, Any]


def _nullable(kind: str, **more: Any) -> Schema:
    """Null stands for a key that is not there."""
    return {"type": [kind, "null"], **more}


def _whole_number(least: int, most: int) -> Schema:
    return _nullable("integer", minimum=least, maximum=most)


_COUNT: Final = {"type": "integer", "minimum": 1, "maximum": _LARGEST_COUNT}
# The values that most keys have, by the name under which a schema of whole files defines them.
SHAPES: Final[Mapping[str, Schema]] = MappingProxyType(
    {
        "count": _whole_number(1, _LARGEST_COUNT),
        "layers": _whole_number(1, MAX_LAYERS),
        "natural": _whole_number(0, _LARGEST_COUNT),
        "fraction": _nullable("number", minimum=0, exclusiveMaximum=1),
        "flag": _nullable("boolean"),
        "text": _nullable("string"),
        "naturals": _nullable("array", items={"type": "integer", "minimum": 0}),
        "texts": _nullable("array", items={"type": "string"}),
        "side": {
            "anyOf": [
                _COUNT,
                {"type": "array", "items": _COUNT, "minItems": 2, "maxItems": 2},
                {"type": "null"},
            ]
        },
        "alike": {
            "anyOf": [
                {"type": ["integer", "null"]},
                {"type": "array", "items": {"type": "integer"}, "minItems": 1},
            ]
        },
        "activation": {"enum": [*_ACTIVATIONS, None]},
    }
)


class KeyRecorder(KeyReader):
    """Reads a file that says next to nothing, and keeps what may stand under each key asked for.

    A key that is asked for only where others have some value is not among them.
    """

    def __init__(
        self, document: Mapping[str, Any] = MappingProxyType({}), *, prefix: str = ""
    ) -> None:
        super().__init__(document, prefix=prefix)
        self._asked: dict[str, list[Schema]] = {}

    def _note(self, field: str, schema: Schema) -> None:
        name = next((name for name, shape in SHAPES.items() if shape == schema), None)
        noted = schema if name is None else {"$ref": f"#/$defs/{name}"}
        for key in self._spellings(field):
            known = self._asked.setdefault(key, [])
            if noted not in known:
                known.append(noted)

    @property
    def properties(self) -> dict[str, Schema]:
        """The schema of each key that was asked for, sections with their own."""
        found = {key: [*schemas] for key, schemas in self._asked.items()}
        for inside in self._sections:
            assert isinstance(inside, KeyRecorder)
            key = inside.prefix.removeprefix(self._prefix).removesuffix(".")
            found.setdefault(key, []).append(_nullable("object", properties=inside.properties))
        return {key: s[0] if len(s) == 1 else {"allOf": s} for key, s in sorted(found.items())}

    def _integer(self, field: str, default: int | None, *, least: int, most: int) -> int:
        self._note(field, _whole_number(least, most))
        return super()._integer(field, default, least=least, most=most)

    def optional_count(self, field: str) -> int | None:
        """As it is read, and noted where the file is silent, too."""
        self._note(field, SHAPES["count"])
        return super().optional_count(field)

    def side(self, field: str, default: int) -> int:
        """As it is read, and noted."""
        self._note(field, SHAPES["side"])
        return super().side(field, default)

    def alike(self, field: str, default: int | None) -> int | None:
        """As it is read, and noted."""
        self._note(field, SHAPES["alike"])
        return super().alike(field, default)

    def fraction(self, field: str, default: float) -> float:
        """As it is read, and noted."""
        self._note(field, SHAPES["fraction"])
        return super().fraction(field, default)

    def flag(self, field: str, default: bool) -> bool:
        """As it is read, and noted."""
        self._note(field, SHAPES["flag"])
        return super().flag(field, default)

    def stated_flag(self, field: str, default: bool = False) -> bool:
        """Noted where the file is silent, too."""
        self._note(field, SHAPES["flag"])
        return super().stated_flag(field, default)

    def ratio(self, field: str, default: float) -> float:
        """As it is read, and noted."""
        self._note(field, _nullable("number", exclusiveMinimum=0, maximum=_LARGEST_RATIO))
        return super().ratio(field, default)

    def text(self, field: str, default: str) -> str:
        """As it is read, and noted."""
        self._note(field, SHAPES["text"])
        return super().text(field, default)

    def choice(self, field: str, default: str, known: Collection[str]) -> str:
        """Noted with what is known; the default without a look, as a file says nothing."""
        self._note(field, {"enum": [*known, None]})
        self._find(field, default)
        return default

    def counts(self, field: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """As it is read, and noted."""
        self._note(field, SHAPES["naturals"])
        return super().counts(field, default)

    def texts(self, field: str, default: tuple[str, ...]) -> tuple[str, ...]:
        """As it is read, and noted."""
        self._note(field, SHAPES["texts"])
        return super().texts(field, default)
