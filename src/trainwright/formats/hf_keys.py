"""Reads single keys of a `config.json`, remembering aliases, defaults used and faults found."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from trainwright.errors import Fault
from trainwright.formats.json_path import show_typed, show_value

ALIASES: Final = {
    "hidden_size": ("hidden_size", "n_embd", "d_model", "n_embed"),
    "num_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "ffn_size": ("intermediate_size", "n_inner", "ffn_dim"),
    "max_positions": ("max_position_embeddings", "n_positions", "max_seq_len"),
    "num_kv_heads": ("num_key_value_heads",),
    "head_size": ("head_dim",),
    "vocabulary_size": ("vocab_size",),
    "hidden_dropout": (
        "hidden_dropout",
        "hidden_dropout_prob",
        "resid_pdrop",
        "resid_dropout",
        "dropout",
    ),
    "embedding_dropout": ("embd_pdrop", "emb_pdrop", "embed_dropout"),
    "attention_dropout": ("attention_dropout", "attention_probs_dropout_prob", "attn_pdrop"),
    "tied_embeddings": ("tie_word_embeddings",),
    "sliding_window_pattern": ("sliding_window_pattern", "_sliding_window_pattern"),
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts"),
}
_LARGEST_COUNT: Final = 10**9


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

    def prefer(self, **spelling: str) -> None:
        """Say by which of its aliases the family itself calls a field."""
        self._preferred.update(spelling)

    def pass_over(self, *fields: str) -> None:
        """Leave keys unread that the rest of the file makes irrelevant."""
        for field in fields:
            self.known.update(_spellings(field))

    def section(self, field: str) -> KeyReader:
        """The object under `field`, empty where it is absent or null."""
        key, value = self._find(field, {})
        self.defaults.pop(self._prefix + key, None)
        if not isinstance(value, Mapping):
            self._fault(key, f"must be an object, got {show_typed(value)}")
            value = {}
        inside = KeyReader(value, prefix=f"{self._prefix}{key}.")
        self._sections.append(inside)
        return inside

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
    def unread(self) -> list[str]:
        """Keys that nobody asked for, with those of the sections read."""
        own = [self._prefix + str(key) for key in self._document if key not in self.known]
        return own + [key for s in self._sections for key in s.unread]

    def path_of(self, field: str) -> str:
        """The file's own key for a field of the model, where it has one."""
        return self._prefix + self._spelling.get(field, field)

    def count(self, field: str, default: int | None, *, most: int = _LARGEST_COUNT) -> int:
        """An integer in 1..`most`; 8.0 is accepted, "8", 8.5 and true are not."""
        return self._integer(field, default, least=1, most=most)

    def natural(self, field: str, default: int) -> int:
        """An integer >= 0."""
        return self._integer(field, default, least=0, most=_LARGEST_COUNT)

    def _integer(self, field: str, default: int | None, *, least: int, most: int) -> int:
        key, value = self._find(field, default)
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
        elif not (math.isfinite(value) and 0 <= value < 1):
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

    def text(self, field: str, default: str) -> str:
        """A string."""
        key, value = self._find(field, default)
        if not isinstance(value, str):
            self._fault(key, f"must be text, got {show_typed(value)}")
            return default
        return value

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
        return any(self._document.get(key) is not None for key in _spellings(field))

    def optional_texts(self, field: str) -> tuple[str, ...]:
        """A list of strings, or empty where it is absent (no default is reported)."""
        found = self.texts(field, ())
        self.defaults.pop(self._prefix + field, None)
        return found

    def nullable_count(self, field: str, default: int) -> int | None:
        """An integer >= 1, None where the file says null, the default where it says nothing."""
        stated = [k for k in _spellings(field) if k in self._document]
        if stated and all(self._document[k] is None for k in stated):
            self.known.update(_spellings(field))
            return None
        return self.count(field, default)

    def optional_count(self, field: str) -> int | None:
        """An integer >= 1, or absent (null counts as absent; no default is reported)."""
        if self.states(field):
            return self.count(field, None)
        self.known.update(_spellings(field))
        return None

    def refuse(self, field: str, problem: str) -> None:
        """Record a fault that the family found."""
        self.faults.append(Fault(self.path_of(field), problem))

    def _fault(self, key: str, problem: str) -> None:
        self.faults.append(Fault(self._prefix + key, problem))

    def _find(self, field: str, default: object) -> tuple[str, object]:
        """The value under the field's first spelling that is present and not null."""
        spellings = _spellings(field)
        self.known.update(spellings)
        present = [k for k in spellings if self._document.get(k) is not None]
        if not present:
            key = self._preferred.get(field, spellings[0])
            self.defaults[self._prefix + key] = default
            self._spelling[field] = key
            return key, default
        self._spelling[field] = present[0]
        value = self._document[present[0]]
        for other in present[1:]:
            if self._document[other] != value:
                problem = f"must equal {present[0]} ({show_value(value)}), got "
                self._fault(other, problem + show_value(self._document[other]))
        return present[0], value


def _spellings(field: str) -> tuple[str, ...]:
    return ALIASES.get(field, (field,))
