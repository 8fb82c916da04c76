"""Reads a Hugging Face style `config.json` into a `TransformerConfig`, without torch.

`model_type` (where it is none that is known, the first of `architectures`) selects the family. A
missing key takes the default that the family's public configuration class documents, and is
reported; a key that says nothing about cost is passed over, and one that is not known at all is
reported as ignored.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from trainwright.errors import Fault, InvalidInput, UnsupportedFeature, how_to_install
from trainwright.formats.atomic_file import read_bytes
from trainwright.formats.hf_decoders import ENCODER_DECODERS, has_head
from trainwright.formats.hf_families import ALIASES, BERTS, FAMILIES
from trainwright.formats.hf_keys import ALIASES as ALIASES_OF_KEYS
from trainwright.formats.hf_keys import (
    DECIDING_SIZES,
    SHAPES,
    KeyReader,
    KeyRecorder,
    Schema,
    effect_of,
    is_silent,
)
from trainwright.formats.hf_towers import TEXT_DEFAULTS, TEXT_FAMILIES, WRAPPERS
from trainwright.formats.json_text import parse_json, show_typed
from trainwright.formats.records import titled
from trainwright.model import Head, LowRank, TransformerConfig, count_parameters

# Finds the `config.json` of a Hugging Face hub id in the local cache; nothing is ever downloaded
# -----------------------------------------------------------------------------------------------
# The cache holds a folder `models--ORGANISATION--NAME` per model, with the commit of each branch in
# `refs/` and the files of each commit in `snapshots/`. Its place follows the variables that the
# hub's own client reads: HF_HUB_CACHE, then HF_HOME, then XDG_CACHE_HOME, then `~/.cache`.

_PART: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_HUB_ID: Final = re.compile(rf"{_PART}/{_PART}")


def is_hub_id(name: str) -> bool:
    """Whether `name` has the form ORGANISATION/NAME."""
    return _HUB_ID.fullmatch(name) is not None


def hub_cache() -> Path:
    """The folder in which the hub's client keeps what it downloaded."""
    if stated := os.environ.get("HF_HUB_CACHE"):
        return Path(stated).expanduser()
    if home := os.environ.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "huggingface" / "hub"


def cached_config(hub_id: str, *, cache: Path, instead: str | None = None) -> Path:
    """The `config.json` of the main branch, else of the latest snapshot that has one.

    Raises `InvalidInput` where the cache has none, saying how to get it, and what the same model is
    called `instead` where it is built in.
    """
    folder = cache / f"models--{hub_id.replace('/', '--')}"
    for snapshot in _snapshots(folder):
        if (file := snapshot / "config.json").is_file():
            return file
    built_in = "" if instead is None else f'use the catalog\'s "{instead}", '
    raise InvalidInput.of(
        "model",
        f'"{hub_id}" is not in the local Hugging Face cache ({cache}); it is not downloaded: '
        f"{built_in}run `hf download {hub_id} config.json` first, or give a path",
    )


def _snapshots(folder: Path) -> list[Path]:
    """The snapshot of the main branch first, then the others, newest first."""
    try:
        others = sorted((folder / "snapshots").iterdir(), key=_modified, reverse=True)
    except OSError:
        return []
    try:
        main = (folder / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return others
    return sorted(others, key=lambda snapshot: snapshot.name != main)


def _modified(path: Path) -> tuple[float, str]:
    return path.stat().st_mtime, path.name


# Reads a Hugging Face style `config.json` into a `TransformerConfig`, without torch
# ----------------------------------------------------------------------------------

MAX_CONFIG_BYTES: Final = 2**22

# What follows a family's name in that of its class, and a family whose class is named otherwise.
_ROLES: Final = ("for", "model", "lmhead", "doubleheads", "pretraining")
_ARCHITECTURES: Final = {"gemma3": "gemma3_text"}
_CONDITIONAL: Final = "forconditionalgeneration"  # with images, or with two stacks

# Fields of the model under the names by which they are read.
_READ_AS: Final = {
    "experts.num_experts": "num_experts",
    "experts.experts_per_token": "num_experts_per_tok",
    "experts.ffn_size": "moe_intermediate_size",
    "experts.num_dense_layers": "first_k_dense_replace",
    "experts.num_groups": "n_group",
    "experts.groups_per_token": "topk_group",
    "num_mtp_layers": "num_nextn_predict_layers",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """A model as read: its hyper-parameters, the defaults used, and the keys that were ignored.

    `model_type` is the family of the file, which may wrap that of its text; `unknown_type` is what
    the file calls itself where that is no family, and the class that it names told one. `misspelt`
    are ignored keys, each with the known one that it is most like and that is absent. `positions`
    are the tokens of the longest sequence that the file states, None where it states none.
    """

    name: str
    model_type: str
    config: TransformerConfig
    defaults: tuple[tuple[str, object], ...] = ()
    ignored: tuple[str, ...] = ()
    misspelt: tuple[tuple[str, str], ...] = ()
    unknown_type: str | None = None
    positions: int | None = None

    @property
    def doubts(self) -> tuple[str, ...]:
        """What makes it doubtful that the model is the one that is meant; to be read first.

        Sizes that decide its cost and that the file leaves to its family, and misspelt keys.
        """
        sizes = [f"{key} not given, took {size}" for key, size in self.defaults if _decides(key)]
        alike = [f'{_ignored(key)}; did you mean "{known}"?' for key, known in self.misspelt]
        return (*(["; ".join(sizes)] if sizes else []), *alike)

    @property
    def further_defaults(self) -> tuple[tuple[str, object], ...]:
        """The defaults used beside the sizes that decide its cost."""
        return tuple((key, value) for key, value in self.defaults if not _decides(key))

    @property
    def notes(self) -> tuple[str, ...]:
        """What was ignored, what that may cost, and a figure to check the rest against."""
        if not self.ignored and self.unknown_type is None:
            return ()
        count = f"as read, the model has {count_parameters(self.config):,} parameters"
        notes = [_ignored(key) for key in self.ignored if key not in dict(self.misspelt)]
        if self.unknown_type is not None:
            read = f"read is {self.model_type}, as the class that it names"
            notes.insert(0, f'model_type "{self.unknown_type}" is not known: {read}')
        return (*notes, f"{count}: compare them with the published count")


def _decides(key: str) -> bool:
    return key.rpartition(".")[2] in DECIDING_SIZES


def _ignored(key: str) -> str:
    return f"unknown key ignored: {key} ({effect_of(key)})"


def load_config(path: Path) -> ModelDescription:
    """Read `config.json`, or the folder that holds it.

    Raises `InvalidInput` where it is missing, not JSON, too large, or breaks a rule.
    """
    file = path / "config.json" if path.is_dir() else path
    return read_config(_document_in(file), name=name_of(file), source=str(file))


def _document_in(file: Path) -> object:
    data = read_bytes(file, name="config", most=MAX_CONFIG_BYTES)
    return parse_json(data, source=str(file), what="config", finite=False)


def name_of(file: Path) -> str:
    """What a model's file calls it: its folder where all such files have one name."""
    name = file.parent.resolve().name if file.name == "config.json" else file.stem
    return name or "model"


def config_document(name: str) -> tuple[str, Mapping[str, Any] | None]:
    """The model's name and the content of the file that `name` leads to, None where it is no file.

    `name` is a path or a hub id in the cache; raises like `load_config`.
    """
    path = Path(name)
    if not path.exists() and is_hub_id(name):
        path = cached_config(name, cache=hub_cache())
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        return name, None
    document = _document_in(file)
    return name_of(file), document if isinstance(document, Mapping) else None


def read_config(document: object, *, name: str, source: str | None = None) -> ModelDescription:
    """Turn the content of a `config.json` into a model; every fault at once, in one error.

    Raises `UnsupportedFeature` for a family that is not modelled, naming the nearest one.
    """
    if not isinstance(document, Mapping):
        found = type(document).__name__
        raise InvalidInput.of("config", f"must be a JSON object, got {found}", source=source)
    family = _family(document, source=source)
    for key in ("is_encoder_decoder", "add_cross_attention"):
        if document.get(key) is True and family not in ENCODER_DECODERS:
            raise UnsupportedFeature(
                f"{key}: true: an encoder and a decoder of this type are not modelled",
                alternative=f"those of {', '.join(ENCODER_DECODERS)} are",
            )
    keys = KeyReader(document)
    if family not in WRAPPERS:
        config = _transformer(keys, keys, family, _head(document, family), source=source)
    else:
        config = _wrapped(keys, document, family, source=source)
    if faults := (*keys.all_faults, *keys.misspelt_sizes):
        raise InvalidInput(faults, source=source)
    if parts := keys.unread_parts:
        raise UnsupportedFeature(
            f'{parts[0]}: a part that model_type "{family}" has not is not modelled',
            alternative=_COUNTED,
        )
    ignored = tuple(key for key in keys.unread if not is_silent(key.split(".")[-1]))
    stated = document.get("model_type")
    is_known = stated is None or ALIASES.get(stated, stated) in {*FAMILIES, *WRAPPERS}
    return ModelDescription(
        name=name,
        model_type=family,
        config=replace(config, **_constants(document)),
        defaults=tuple(keys.all_defaults.items()),
        ignored=ignored,
        misspelt=tuple((key, known) for key, known in keys.misspelt.items() if key in ignored),
        unknown_type=None if is_known else stated,
        positions=None if family in ENCODER_DECODERS else _positions(document),
    )


_MOST_STRETCHED: Final = 1e6  # a factor above is no factor


def _positions(document: Mapping[str, Any]) -> int | None:
    """The positions of the text, as many times more as its rotary embedding is stretched."""
    inside = document.get("text_config")
    text = inside if isinstance(inside, Mapping) else document
    found = [text[key] for key in ALIASES_OF_KEYS["max_positions"] if type(text.get(key)) is int]
    scaling = text.get("rope_scaling") or text.get("rope_parameters")
    factor = scaling.get("factor") if isinstance(scaling, Mapping) else None
    is_factor = isinstance(factor, (int, float)) and 1 <= factor < _MOST_STRETCHED
    return int(found[0] * (factor if is_factor else 1)) if found and found[0] > 0 else None


_EPSILONS: Final = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps")
_LARGEST_BASE: Final = 1e12


def _constants(document: Mapping[str, Any]) -> dict[str, Any]:
    """What a file says of rotary positions and of norms that changes no cost, where it is plain.

    A base for each kind of layer is left out, as is what is no number.
    """
    inside = document.get("text_config")
    text = inside if isinstance(inside, Mapping) else document
    stated = text.get("rope_parameters") or text.get("rope_scaling")
    rotary = stated if isinstance(stated, Mapping) else {}
    numbers: dict[str, Any] = {
        "rotary_base": text.get("rope_theta", rotary.get("rope_theta")),
        "norm_epsilon": next((text[k] for k in _EPSILONS if text.get(k) is not None), None),
    }
    found: dict[str, Any] = {}
    for name, value in numbers.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and 0 < value < _LARGEST_BASE:
            found[name] = float(value)
    kind = rotary.get("rope_type", rotary.get("type"))
    if kind != "default" and (kind is not None or "factor" in rotary):
        found["rotary_scaling"] = str(kind or "linear")
    return found


def _transformer(
    keys: KeyReader, whole: KeyReader, family: str, head: Mapping[str, Any], *, source: str | None
) -> TransformerConfig:
    """The model of a family in the part `keys` of a `whole` file; raises `InvalidInput`."""
    fields = {**FAMILIES[family](keys), **head}
    faults = whole.all_faults
    if not faults:
        try:
            return TransformerConfig(family=family, **fields)
        except InvalidInput as error:
            named = ((_READ_AS.get(f.path, f.path), f.problem) for f in error.faults)
            faults += [Fault(keys.path_of(path), problem) for path, problem in named]
    raise InvalidInput(faults, source=source)


def _wrapped(
    keys: KeyReader, document: Mapping[str, Any], wrapped: str, *, source: str | None
) -> TransformerConfig:
    """Text with an encoder before it; sizes of the text may stand at the top (Qwen2)."""
    text, wrapper = document.get("text_config"), WRAPPERS[wrapped]
    if missing := ", ".join(name for name in wrapper.needed if document.get(name) is None):
        raise UnsupportedFeature(
            f"a model that takes images, without {missing}, is not modelled",
            alternative="a file of the library's own form has one",
        )
    inner = keys.section("text_config") if isinstance(text, Mapping) else keys
    stated = inner.text("model_type", wrapper.text)
    inner.defaults.pop(f"{inner.prefix}model_type", None)
    if inner is keys:
        stated = wrapper.text
    else:
        keys.pass_over("vocabulary_size")  # older files repeat the text's own
    family = TEXT_FAMILIES.get(stated, stated)
    inner.assume(TEXT_DEFAULTS.get(wrapped) or TEXT_DEFAULTS.get(stated, {}))
    if family not in FAMILIES:
        raise UnsupportedFeature(
            f'text_config.model_type "{stated}" is not modelled', alternative=_nearest(stated)
        )
    head = _head(document, family)
    config = _transformer(inner, keys, family, head, source=source)
    if _squeezed(_class_of(document)) == f"{_squeezed(wrapped)}forcausallm" and inner is not keys:
        keys.pass_over(wrapper.section)  # the class of the text alone
        return config
    if config.head is Head.LANGUAGE:
        tied = keys.flag("tied_embeddings", wrapper.tied)
        own = config.tied_embeddings
        tied = own if wrapper.text_alone else tied or (wrapper.asks_text and own)
        config = replace(config, tied_embeddings=tied)
    if wrapper.optional and document.get(wrapper.section) is None:
        keys.pass_over(wrapper.section)
        return config
    tower = wrapper.tower(keys, keys.section(wrapper.section), config)
    return config if keys.all_faults else replace(config, towers=(tower,))


# What the class that a file names has behind its last block, where that is no language head.
_CLASSIFIERS: Final = {
    "ForSequenceClassification": False,  # whether its product has a bias
    "ForTokenClassification": True,
    "ForQuestionAnswering": True,
    "ForRewardModel": False,
}


def _head(document: Mapping[str, Any], family: str) -> dict[str, Any]:
    """Fields of the head, by the class that `architectures` names; none where it is the usual one.

    BERT's classes keep its pooler where they look at one token per sequence, and its transform of
    hidden states only before the vocabulary.
    """
    name = _class_of(document)
    if family in ENCODER_DECODERS:
        return {} if has_head(name) else {"tied_embeddings": False, "head": Head.NONE}
    is_bert = family in BERTS
    ends = {"tied_embeddings": False, "num_mtp_layers": 0}
    if is_bert:
        ends |= {"mlm_transform": False, "head_bias": False}
    if name.endswith("Model") and not name.endswith(_WITH_HEAD):
        return ends | {"head": Head.NONE}
    for role, biased in _CLASSIFIERS.items():
        if name.endswith(role) and (role != "ForRewardModel" or family == "internlm2"):
            pools = {"pooler": role == "ForSequenceClassification"} if is_bert else {}
            few = {"ForQuestionAnswering": 2, "ForRewardModel": 1}
            classes = few.get(role) or _num_classes(document)
            bias = {"head_bias": biased or is_bert}
            return ends | pools | bias | {"head": Head.CLASSES, "num_classes": classes}
    role = name.rpartition("For")[2]
    if "For" in name and role not in _ROLES_WITH_HEAD:
        raise UnsupportedFeature(
            f'architectures: what "{name}" has behind its last block is not modelled',
            alternative=f"classes for {', '.join(_ROLES_WITH_HEAD)} are; {_COUNTED}",
        )
    if not is_bert:
        return {}
    if role == "PreTraining":
        return {"num_classes": 2}  # whether the second sentence follows the first
    return {"pooler": family == "bert" and not name}


def _class_of(document: Mapping[str, Any]) -> str:
    """The class that a file names first, empty where it names none."""
    names = document.get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""


_WITH_HEAD: Final = ("LMHeadModel", "LMModel", "DoubleHeadsModel", "ChatGLMModel")
_ROLES_WITH_HEAD: Final = ("CausalLM", "ConditionalGeneration", "MaskedLM", "PreTraining")


def _num_classes(document: Mapping[str, Any]) -> int:
    """As the library reads it: names of classes, else their number, else two."""
    names, stated = document.get("id2label"), document.get("num_labels")
    if isinstance(names, Mapping) and names:
        return len(names)
    return stated if type(stated) is int and stated > 0 else 2


def _family(document: Mapping[str, Any], *, source: str | None) -> str:
    stated = document.get("model_type")
    if stated is None:
        stated = _from_architecture(document.get("architectures"))
    if stated is None:
        raise InvalidInput.of(
            "model_type",
            "required field is missing (or architectures, to tell the family by)",
            source=source,
        )
    if not isinstance(stated, str):
        raise InvalidInput.of(
            "model_type", f"must be text, got {show_typed(stated)}", source=source
        )
    stated = ALIASES.get(stated, stated)
    if stated in FAMILIES and isinstance(document.get("text_config"), Mapping):
        wrapper = _from_architecture(document.get("architectures"))  # of which it names the text
        stated = wrapper if wrapper in WRAPPERS else stated
    of_class = _from_architecture(document.get("architectures"))  # of a type that nobody knows
    for family in (stated, of_class):
        if family is not None and (family in FAMILIES or family in WRAPPERS):
            return family
    raise UnsupportedFeature(f'model_type "{stated}" is not modelled', alternative=_nearest(stated))


def _nearest(stated: str) -> str:
    """What to do about a type without a rule: the family whose name is like it, or to count it."""
    near = difflib.get_close_matches(stated, [*FAMILIES, *WRAPPERS], n=1)
    like = f' (the nearest is "{near[0]}")' if near else ""
    return f"set model_type to a family of the same layers{like}; {_COUNTED}"


_COUNTED: Final = f"others are counted and traced with the extra: {how_to_install('torch')}"


def _from_architecture(architectures: object) -> str | None:
    """The family in a name such as `LlamaForCausalLM`, not in that of a later one of its line."""
    if not (
        isinstance(architectures, list) and architectures and isinstance(architectures[0], str)
    ):
        return None
    stem = _squeezed(architectures[0])
    if stem.endswith(_CONDITIONAL):
        line = stem.removesuffix(_CONDITIONAL)
        known = {_squeezed(kind): kind for kind in (*WRAPPERS, *ENCODER_DECODERS)}
        return known.get(line, architectures[0])
    names = {_squeezed(family): family for family in FAMILIES} | _ARCHITECTURES
    fitting = (n for n in names if stem.startswith(n) and stem[len(n) :].startswith(_ROLES))
    return names.get(max(fitting, key=len, default=""), architectures[0])


def _squeezed(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


# The JSON Schema of a `config.json`: what its own reader asks of one that says nothing
# -----------------------------------------------------------------------------------


def config_schema() -> Schema:
    """The JSON Schema of a `config.json`: by `model_type`, the keys that its family reads.

    What only several keys decide together is not in it.
    """
    asked: dict[str, Schema] = {}
    for name, read in FAMILIES.items():
        keys = KeyRecorder()
        read(keys)
        asked[name] = keys.properties
    usual = _asked_by_most(asked.values())
    names = {name: [name] for name in asked}
    for alias, family in ALIASES.items():
        names[family].append(alias)
    texts = {name: [name] for name in asked}
    for alias, family in TEXT_FAMILIES.items():
        texts[family].append(alias)
    root: Schema = {
        "type": "object",
        "description": (
            "A model as Hugging Face describes it; null stands for an absent key, and keys that "
            "its family does not read are free, as is all of a type that no rule reads."
        ),
        "properties": {"model_type": {"$ref": "#/$defs/text"}},
        "anyOf": [
            {"required": [key], "properties": {key: {"not": {"type": "null"}}}}
            for key in ("model_type", "architectures")
        ],
        "allOf": [
            *(_where_type(names[name], name, **_TEXT_ALONE) for name in asked),
            *(_where_type([name], name) for name in WRAPPERS),
        ],
    }
    defs: Schema = {
        **SHAPES,
        "usual": {"properties": usual},
        **{name: _beside(usual, properties) for name, properties in asked.items()},
        **{name: _wrapped_schema(name, usual) for name in WRAPPERS},
        "text_config": {
            "properties": {"model_type": {"$ref": "#/$defs/text"}},
            "allOf": [_where_type(texts[name], name) for name in asked],
        },
    }
    return titled("config.json", {**root, "$defs": defs})


def _asked_by_most(families: Collection[Schema]) -> Schema:
    """The keys that more than half of the families read alike."""
    found: Schema = {}
    for properties in families:
        for key, schema in properties.items():
            alike = sum(other.get(key) == schema for other in families)
            if key not in found and 2 * alike > len(families):
                found[key] = schema
    return found


def _beside(usual: Schema, properties: Schema) -> Schema:
    """An object with these keys, those of most families by reference where all are among them."""
    if any(properties.get(key) != schema for key, schema in usual.items()):
        return {"properties": properties}
    own = {key: schema for key, schema in properties.items() if key not in usual}
    return {"$ref": "#/$defs/usual", "properties": own}


# A family's own file has no part of its own for the text.
_TEXT_ALONE: Final = {"text_config": {"not": {"type": "object"}}}


def _where_type(names: Sequence[str], definition: str, **others: Schema) -> Schema:
    """What holds of files of these types; `others` are keys that tell them apart, too."""
    told = {"model_type": {"enum": [*names]}, **others}
    return {
        "if": {"required": ["model_type"], "properties": told},
        "then": {"$ref": f"#/$defs/{definition}"},
    }


def _wrapped_schema(name: str, usual: Schema) -> Schema:
    """What a file with an encoder may say; its text is held to the family that it states."""
    wrapper = WRAPPERS[name]

    def asked(silent: dict[str, Any]) -> Schema:
        keys = KeyRecorder(silent)
        _wrapped(keys, silent, name, source=None)
        return keys.properties

    properties = asked({"text_config": {}, wrapper.section: {}})
    text = properties.pop("text_config")["properties"]
    untyped = {"type": "object", "properties": {"model_type": {"type": "null"}}}
    rules = [
        {"if": {"type": "object"}, "then": {"$ref": "#/$defs/text_config"}},
        {"if": untyped, "then": _beside(usual, text)},
    ]
    found: Schema = {"properties": {**properties, "text_config": {"allOf": rules}}}
    if wrapper.flat:  # sizes of the text may stand at the top
        flat = _beside(usual, asked({wrapper.section: {}}))
        found |= {"if": {"properties": _TEXT_ALONE}, "then": flat}
    return found


# Reads the `adapter_config.json` of the peft library: low-rank adapters for a base model
# ---------------------------------------------------------------------------------------
# Target modules are named as in the base model's own code; they become the targets of `LowRank`.

ADAPTER_FILE: Final = "adapter_config.json"

# The same products under the names that model families give them.
TARGETS: Final = {
    "query": ("q_proj", "query", "q"),
    "key": ("k_proj", "key", "k"),
    "value": ("v_proj", "value", "v"),
    "attention_output": ("o_proj", "out_proj", "o"),
    "gate": ("gate_proj", "w1", "wi_0"),
    "up": ("up_proj", "fc1", "w3", "c_fc", "fc_in", "dense_h_to_4h", "wi", "wi_1"),
    "down": ("down_proj", "fc2", "w2", "fc_out", "dense_4h_to_h", "wo"),
    "query_down": ("q_a_proj",),
    "query_up": ("q_b_proj",),
    "key_value_down": ("kv_a_proj_with_mqa", "kv_proj"),
    "key_value_up": ("kv_b_proj",),
}
# Of routed experts, whose weights are one tensor, as `target_parameters` names them.
EXPERT_PRODUCTS: Final = {
    "gate_up_proj": ("expert_gate", "expert_up"),
    "down_proj": ("expert_down",),
}
_TARGET_OF: Final = {module: target for target, names in TARGETS.items() for module in names}
_ALL_LINEAR: Final = ("query", "key", "value", "attention_output", "gate", "up", "down")

# Settings that would train or add something that is not modelled.
_REFUSED: Final = ("layers_to_transform", "rank_pattern", "modules_to_save", "use_dora")


def is_adapter(path: Path) -> bool:
    """Whether `path` is the folder of an adapter without a model of its own."""
    return (path / ADAPTER_FILE).is_file() and not (path / "config.json").is_file()


def load_adapter(folder: Path) -> tuple[str, LowRank]:
    """The base model's name and the adapters of a folder's `adapter_config.json`."""
    file = folder / ADAPTER_FILE
    data = read_bytes(file, name="adapter")
    document = parse_json(data, source=str(file), what="adapter")
    low_rank = read_adapter(document, source=str(file))
    base = document.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise InvalidInput.of(
            "base_model_name_or_path",
            "must name the base model: a path, a hub id or a catalog name",
            source=str(file),
        )
    return base, low_rank


def read_adapter(document: object, *, source: str | None = None) -> LowRank:
    """The adapters that the content of an `adapter_config.json` describes.

    Raises `InvalidInput` with every fault, `UnsupportedFeature` for other kinds of adapters.
    """
    if not isinstance(document, Mapping):
        raise InvalidInput.of(
            "adapter", f"must be a JSON object, got {show_typed(document)}", source=source
        )
    if (kind := document.get("peft_type", "LORA")) != "LORA":
        raise UnsupportedFeature(f'peft_type "{kind}" is not modelled', alternative="LORA is")
    for key in _REFUSED:
        if document.get(key):
            raise UnsupportedFeature(
                f"adapter with {key} is not modelled", alternative="leave it out"
            )
    keys = KeyReader(document)
    rank, dropout = keys.count("r", 8), keys.fraction("lora_dropout", 0.0)
    experts = _expert_targets(keys)
    targets = (*(_targets(keys) if keys.states("target_modules") or not experts else ()), *experts)
    if keys.faults:
        raise InvalidInput(keys.faults, source=source)
    return LowRank(rank=rank, targets=targets, dropout=dropout)


def _expert_targets(keys: KeyReader) -> tuple[str, ...]:
    """Those of experts, each named by the end of its path."""
    stated = keys.value("target_parameters", None) or []
    names = [str(each).rpartition(".")[2] for each in stated] if isinstance(stated, list) else [""]
    if unknown := [name for name in names if name not in EXPERT_PRODUCTS]:
        known = ", ".join(EXPERT_PRODUCTS)
        keys.refuse("target_parameters", f'must be a list of {known}, got "{unknown[0]}"')
        return ()
    return tuple(dict.fromkeys(target for name in names for target in EXPERT_PRODUCTS[name]))


def _targets(keys: KeyReader) -> tuple[str, ...]:
    stated = keys.value("target_modules", None)
    if stated == "all-linear":
        return _ALL_LINEAR
    if not isinstance(stated, list) or not stated or not all(isinstance(m, str) for m in stated):
        keys.refuse("target_modules", "must be a list of module names, or all-linear")
        return ()
    unknown = [module for module in stated if module not in _TARGET_OF]
    if unknown:
        known = ", ".join(sorted(_TARGET_OF))
        keys.refuse("target_modules", f'must be of {known}, got "{unknown[0]}"')
    found = {_TARGET_OF[module] for module in stated if module in _TARGET_OF}
    return tuple(target for target in TARGETS if target in found)


def adapter_schema() -> Schema:
    """The JSON Schema of an `adapter_config.json`."""
    keys = KeyRecorder()
    keys.count("r", 8)
    keys.fraction("lora_dropout", 0.0)
    modules = {"type": "array", "items": {"enum": sorted(_TARGET_OF)}, "minItems": 1}
    experts = {"type": "array", "items": {"type": "string", "pattern": _EXPERT_END}}
    root: Schema = {
        "type": "object",
        "description": "Low-rank adapters of the peft library, beside the base model they name.",
        "properties": {
            "base_model_name_or_path": {"type": "string", "minLength": 1},
            "peft_type": {"const": "LORA"},
            **keys.properties,
            "target_modules": {"anyOf": [{"const": "all-linear"}, {"type": "null"}, modules]},
            "target_parameters": {"anyOf": [{"type": "null"}, experts]},
            **{key: {"enum": [None, False, 0, "", [], {}]} for key in _REFUSED},
        },
        "required": ["base_model_name_or_path"],
        "anyOf": [
            {"required": [key], "properties": {key: {"not": {"type": "null"}}}}
            for key in ("target_modules", "target_parameters")
        ],
    }
    used = ("count", "fraction")
    return titled("adapter_config.json", {**root, "$defs": {name: SHAPES[name] for name in used}})


_EXPERT_END: Final = rf"(^|\.)({'|'.join(EXPERT_PRODUCTS)})$"
