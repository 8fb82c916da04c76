"""Settings of a job's file, typed, with every fault and what nobody asked for; the stated run.

A reader asks for each key that it understands, by the type that it needs; a key that is absent, or
null, has its default. What is left at the end is named, unless it is known to be harmless. So a
reader and the list of what it understands are one text. Paths are printed as the file spells them.
"""

from __future__ import annotations

import ast
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import chain, product, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from trainwright.errors import Fault, InvalidInput
from trainwright.formats.catalog import model_entries, model_names
from trainwright.formats.json_text import parse_json, show_typed
from trainwright.frameworks.shell.values import Unknown, Value
from trainwright.model.config import WIDE_BITS
from trainwright.model.recipe import ALL_IN_16_BIT
from trainwright.options.run import ALL_TARGETS
from trainwright.plans.capability_table import PRODUCTS

if TYPE_CHECKING:
    from trainwright.model import TransformerConfig

UNDESCRIBED: Final = "the model is not described"  # how a note begins that asks for one
# Parts of a model that takes images, as --freeze calls them.
VISION: Final = ("patch_embedding", "encoder_block")
PROJECTOR: Final = ("projector",)
TEXT: Final = ("embedding", "block", "final_norm", "lm_head")
_AUTO: Final = "auto"
_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "0", "none", "null", ""})


def _in_any_case(word: str) -> str:
    """A pattern of a word whose letters may be large or small."""
    return "".join(f"[{each}{each.upper()}]" if each.isalpha() else each for each in word)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What is given beside a job's file.

    `folder` and `name` say where the file lies: a script may source others of its folder.
    `arguments` and `variables` are those of a script (and of `${NAME:default}` in a YAML file),
    `vocabulary` the size that a tokenizer decides, `function` the one to read of a Python module.
    """

    folder: Path | None = None
    name: str = "script.sh"
    arguments: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    vocabulary: int | None = None
    function: str | None = None


NOTHING: Final = Beside()


Schema = dict[str, Any]
_WORDS_OF_COUNTS: Final[tuple[Schema, ...]] = ({"type": "string", "pattern": "^[-+]?[0-9_]+$"},)
_WORDS_OF_SWITCHES: Final[tuple[Schema, ...]] = (
    {"type": "string", "pattern": f"^({'|'.join(map(_in_any_case, sorted(_TRUE | _FALSE)))})$"},
    {"enum": [0, 1]},
)
_WORDS_OF_TEXTS: Final[tuple[Schema, ...]] = ({"type": ["boolean", "number"]},)


@dataclass(slots=True)
class _Ledger:
    """What the tables of one file share: their faults, and which keys were asked for, as what.

    `odd` are notes on words that nobody knows.
    `shapes` has for each key JSON Schemas of what a reader takes, any of them.
    """

    faults: list[Fault] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)
    shapes: dict[str, list[Schema]] = field(default_factory=dict)


# Where somebody listens: the tables that are opened, each with what is asked of it.
OPENED: Final[ContextVar[list[tuple[Mapping[str, Any], _Ledger]] | None]] = ContextVar(
    "opened", default=None
)


class Settings:
    """A table of a file; `check` raises what it and the tables inside it noted.

    With `spelled`, keys are printed as it says (flags with their dashes). With `from_words`, values
    may be words of a command line: "8" is a number and "true" a switch.
    """

    __slots__ = ("_found", "_from_words", "_ledger", "_path", "_spelled")

    def __init__(
        self,
        found: Mapping[str, Any],
        *,
        spelled: Callable[[str], str] = str,
        from_words: bool = False,
        path: str = "",
        ledger: _Ledger | None = None,
    ) -> None:
        self._found = found
        self._path = path
        self._spelled = spelled
        self._from_words = from_words
        self._ledger = ledger or _Ledger()
        if ledger is None and not path and (opened := OPENED.get()) is not None:
            opened.append((found, self._ledger))

    def __contains__(self, name: str) -> bool:
        self._ledger.asked.add(self._path + name)
        return self._found.get(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def value(self, name: str) -> Any:
        """The value as it stands in the file, None where it is absent."""
        return self._asked_for(name, {})

    def _asked_for(self, name: str, *shapes: Schema) -> Any:
        """The value as it stands, of which a reader takes what any of these schemas does."""
        path = self._path + name
        self._ledger.asked.add(path)
        known = self._ledger.shapes.setdefault(path, [])
        known += [shape for shape in shapes if shape not in known]
        return self._found.get(name)

    def check(self) -> None:
        """Raise `InvalidInput` with every fault that was noted."""
        if self._ledger.faults:
            raise InvalidInput(dict.fromkeys(self._ledger.faults))

    def fault(self, name: str, problem: str) -> None:
        """Note a fault of a field."""
        self._ledger.faults.append(Fault(self._spelled(self._path + name), problem))

    def is_absent(self, name: str) -> bool:
        """Whether a field is not written, or null."""
        self._ledger.asked.add(self._path + name)
        return self._found.get(name) is None

    def first(self, *names: str) -> str:
        """The name of several that is there, else the last: keys that were renamed."""
        for name in names:
            self._ledger.asked.add(self._path + name)
        return next((name for name in names if self._found.get(name) is not None), names[-1])

    def table(self, name: str) -> Settings:
        """A table inside this one; empty where it is absent."""
        value = self._asked_for(name, {"type": "object"})
        if value is not None and not isinstance(value, dict):
            self._wrong(name, "a table", value)
        return Settings(
            value if isinstance(value, dict) else {},
            spelled=self._spelled,
            from_words=self._from_words,
            path=f"{self._path}{name}.",
            ledger=self._ledger,
        )

    def whole(self) -> dict[str, Any]:
        """Everything in this table, as it stands in the file; all of it counts as understood."""
        paths = _leaves(self._found, self._path, re.compile(r"(?!)"), frozenset())
        self._ledger.asked.update(path for path, _ in paths)
        return dict(self._found)

    def count(
        self, name: str, *, least: int = 1, most: int | None = None, also: int | None = None
    ) -> int | None:
        """A whole number from `least` to `most`, or `also`."""
        limits = {"minimum": least} | ({} if most is None else {"maximum": most})
        words = _WORDS_OF_COUNTS * self._from_words
        words += () if also is None else ({"const": also},)
        value = self._plain(name, {"type": "integer", **limits}, *words)
        if value is None:
            return None
        number = self._number(value)
        is_whole = number is not None and number == int(number)
        if is_whole and number is not None:
            whole = int(number)
            if whole == also or (least <= whole and (most is None or whole <= most)):
                return whole
        wanted = f">= {least}" if most is None else f"from {least} to {most}"
        other = "" if also is None else f", or {also}"
        self._wrong(name, f"a whole number {wanted}{other}", value)
        return None

    def count_or_auto(self, name: str) -> int | None:
        """A whole number >= 1; "auto" counts as absent."""
        is_auto = self._asked_for(name, {"const": _AUTO}) == _AUTO
        return None if is_auto else self.count(name)

    def number(self, name: str) -> float | None:
        """Any finite number; false, which turns something off, counts as absent."""
        value = self._plain(name, {"type": ["number", "string"]}, {"const": False})
        if value is None or value is False:
            return None
        try:
            found = float("nan") if value is True else float(value)  # YAML takes 1e-5 for a text
        except (TypeError, ValueError, OverflowError):
            found = float("nan")
        if not abs(found) < float("inf"):
            self._wrong(name, "a number", value)
            return None
        return found

    def _number(self, value: Any) -> float | int | None:
        if isinstance(value, str) and self._from_words:
            plain = value.replace("_", "")
            return int(plain) if re.fullmatch(r"[-+]?[0-9]{1,18}", plain) else None
        if type(value) is float and self._from_words and value == int(value):
            return int(value)
        return value if type(value) is int else None

    def switch(self, name: str, *, default: bool = False) -> bool:
        """True or false; a flag is on where it stands, whatever words follow it."""
        spelled = _WORDS_OF_SWITCHES * self._from_words
        value = self._asked_for(name, {"type": "boolean"}, *spelled)
        if self._from_words and isinstance(value, (Value, tuple)):
            return True
        if value is None or isinstance(value, bool):
            return default if value is None else value
        word = str(value).lower()
        if self._from_words and word in _TRUE | _FALSE:
            return word in _TRUE
        self._wrong(name, "true or false", value)
        return default

    def is_on(self, name: str) -> bool:
        """Whether something stands there that is no "no": also "auto", or a way to do it."""
        value = self.value(name)
        return value is not None and str(value).lower() not in _FALSE

    @property
    def is_enabled(self) -> bool:
        """Whether its `enabled` is true; "auto" counts as absent, which is false."""
        return self.value("enabled") != _AUTO and self.switch("enabled")

    def text(self, name: str) -> str | None:
        """A text."""
        value = self._plain(name, {"type": "string"}, *_WORDS_OF_TEXTS * self._from_words)
        if value is None or isinstance(value, str):
            return value
        if self._from_words and isinstance(value, (bool, int, float)):
            return str(value)
        self._wrong(name, "a text", value)
        return None

    def one_of(self, name: str, known: Iterable[str], default: str) -> str:
        """One of some words."""
        words = tuple(known)
        value = self._plain(name, {"enum": [*words]})
        if value is None:
            return default
        if isinstance(value, str) and value in words:
            return value
        self._wrong(name, f"one of {', '.join(word for word in words if word)}", value)
        return default

    def word(self, name: str, known: Iterable[str], taken: str) -> str | None:
        """A text in lower case; `remarks` says what is `taken` for one that is not `known`."""
        text = self.text(name)
        found = None if text is None else text.lower()
        if found is not None and found not in known:
            path = self._spelled(self._path + name)
            self._ledger.odd.append(f"{path} {_short(text)}: not known here, {taken}")
        return found

    def texts(self, name: str) -> tuple[str, ...]:
        """A text, or a list of them; empty where it is absent."""
        value = self._asked_for(name, {"type": "array", "items": {"type": "string"}})
        if isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value):
            return tuple(value)
        found = self.text(name)
        return () if found is None else (found,)

    def names(self, name: str) -> list[list[str]]:
        """A list of lists of texts, none of them empty; empty where it is absent."""
        lists = {"type": "array", "items": {"type": "string"}, "minItems": 1}
        value = self._asked_for(name, {"type": "array", "items": lists})
        if value is None:
            return []
        if isinstance(value, list) and all(
            isinstance(part, list) and part and all(isinstance(each, str) for each in part)
            for part in value
        ):
            return value
        self._wrong(name, "a list of lists of names", value)
        return []

    def remarks(
        self,
        *,
        harmless: re.Pattern[str],
        unmodelled: Iterable[str] = (),
        names_unknown: bool = True,
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What is `left_over` of a file without faults; raises `InvalidInput` with all it has."""
        self.check()
        return self.left_over(harmless, unmodelled, names_unknown=names_unknown)

    def left_over(
        self,
        harmless: re.Pattern[str],
        unmodelled: Iterable[str] = (),
        *,
        names_unknown: bool = True,
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The keys that nobody asked for, and notes on those of them that change the answer.

        A key is harmless where the pattern matches the whole of its path or of its last part, and
        so is everything inside it. One that is switched off is not named.
        """
        unknown, notes = [], []
        changing = frozenset(unmodelled)
        for path, value in _leaves(self._found, self._path, harmless, changing):
            if path in self._ledger.asked or _is_off(value):
                continue
            if path in changing or path.rpartition(".")[2] in changing:
                said = "" if value is True else f" {_short(value)}"
                notes.append(f"{self._spelled(path)}{said}: changes the answer, not modelled")
            elif names_unknown:
                unknown.append(self._spelled(path))
        return tuple(unknown), (*dict.fromkeys(self._ledger.odd), *notes)

    def _plain(self, name: str, *shapes: Schema) -> Any:
        """The value; one that cannot be known is a fault that says what to give."""
        value = self._asked_for(name, *shapes)
        if isinstance(value, Value):
            self._refuse_open(name, value)
            return None
        if isinstance(value, tuple):  # words of a flag: one is wanted
            if len(value) == 1:
                return value[0]
            self._wrong(name, "one value", " ".join(map(str, value)))
            return None
        return value

    def _refuse_open(self, name: str, value: Value) -> None:
        for unknown in value.unknowns:
            self.fault(name, f"is not known: {unknown}{fix_of(unknown)}")

    def _wrong(self, name: str, wanted: str, value: object) -> None:
        self.fault(name, f"must be {wanted}, got {_shown(value)}")


def fix_of(unknown: Unknown) -> str:
    """What to give in place of a part of a script that is not known."""
    if unknown.kind in ("unset", "sourced", "slurm"):
        return f"; give --variable {unknown.name}=VALUE"
    if unknown.kind == "argument":
        return "; give --argument VALUE once for each"
    return "; write its value into the file"


_ANYTHING: Final = re.compile(r".*", re.DOTALL)


def _leaves(
    found: Mapping[str, Any], path: str, harmless: re.Pattern[str], changing: frozenset[str]
) -> Iterator[tuple[str, Any]]:
    """Values by path, without those that are harmless, tables opened."""
    for name, value in found.items():
        whole = f"{path}{name}"
        if {whole, str(name)} & changing:
            yield whole, value
        elif harmless.fullmatch(whole) or harmless.fullmatch(str(name)):
            if isinstance(value, dict) and any(each.startswith(f"{whole}.") for each in changing):
                yield from _leaves(value, f"{whole}.", _ANYTHING, changing)
        elif isinstance(value, dict):
            yield from _leaves(value, f"{whole}.", harmless, changing)
        else:
            yield whole, value


def _is_off(value: Any) -> bool:
    return value is None or value is False or value in ("", "None", "False", "null", [], {}, ())


def chosen_function(functions: Iterable[str], name: str | None) -> str:
    """The function of a file that is named, or the only public one; refused otherwise."""
    public = [each for each in functions if not each.startswith("_")]
    name = name or (public[0] if len(public) == 1 else None)
    if name is None or name not in functions:
        got = "" if name is None else f', got "{name}"'
        raise InvalidInput.of("function", f"must be one of {', '.join(public)}{got}")
    return name


def python_module(text: str, form: str) -> ast.Module:
    """The tree of a Python file in a format; raises `InvalidInput` where it is none."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidInput.of(form, f"is not a Python module: {error}") from None


def partly_sharded(fsdp: Settings, devices: int | None) -> tuple[str, ...]:
    """A note on `fsdp_size`, where it is not all the devices."""
    shards = fsdp.count("fsdp_size", also=-1)
    if devices is None or shards in (None, -1, devices):
        return ()
    return (f"fsdp_size {shards}: priced as sharded over all replicas",)


def spaced(value: Any) -> str:
    """A value as text, the items of a list with spaces between."""
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _short(value: Any) -> str:
    text = spaced(value)
    return text if len(text) <= 60 else text[:60] + "…"


def _shown(value: object) -> str:
    if value is None or isinstance(value, (bool, str, int, float, list, dict)):
        return show_typed(value)
    return f"{value} ({type(value).__name__})"


# YAML, as files of jobs have it
# ------------------------------
# Aliases are shared, not copied, so that a small file stays small. A tag of a framework's own is
# taken for the plain value under it; nothing is ever made or imported.

_MOST_CHARACTERS: Final = 2**22
_MOST_VALUES: Final = 100_000
_REFERENCE: Final = re.compile(r"\$\{([^${}]*)\}")
DEEPEST: Final = 20  # tables inside tables


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The safe loader, for which an unknown tag means nothing."""


def _untagged(loader: Any, suffix: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return loader.construct_scalar(node)


_Loader.add_multi_constructor("", _untagged)


def parse_yaml(
    text: str, *, variables: Mapping[str, str] | None = None, resolved: bool = True
) -> dict[str, Any]:
    """The mapping of a YAML or JSON text, `${…}` replaced by what it refers to (if `resolved`).

    `${a.b}` is a key of the file (OmegaConf), `${.a}` one beside it, `${..a}` one beside its table,
    `${multiply:a,b}` a product, `${NAME:default}` a variable of the environment.
    What refers to nothing stays as it is. Raises `InvalidInput` naming the line.
    """
    if len(text) > _MOST_CHARACTERS:
        raise InvalidInput.of("file", f"must have at most {_MOST_CHARACTERS} characters")
    try:
        found = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = 0 if error.problem_mark is None else error.problem_mark.line + 1
        if "another document" in str(error.problem):
            several = "holds several documents, none of which starts a trainer that is read"
            raise InvalidInput.of("file", f"{several}: give the settings of one alone") from None
        raise InvalidInput.of(f"line {line}", f"is not YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidInput.of("file", f"is not YAML: {error}") from None
    if not isinstance(found, dict):
        raise InvalidInput.of("file", "must be a mapping of keys to values")
    if "${" not in text or not resolved:
        return found
    whole = _Resolver(found, variables or {}).whole(found, ())
    return whole if isinstance(whole, dict) else {}


def read_yaml(text: str, beside: Beside) -> Settings:
    """The settings of a YAML or JSON text, where words may stand for numbers and switches."""
    return Settings(parse_yaml(text, variables=beside.variables), from_words=True)


class _Resolver:
    """Puts in what `${…}` refers to, in a bounded number of values."""

    def __init__(self, root: Mapping[str, Any], variables: Mapping[str, str]) -> None:
        self._root, self._variables, self._count = root, variables, 0

    def whole(self, value: Any, within: tuple[Any, ...]) -> Any:
        """The value, `within` tables and lists of which the last holds it (or is it)."""
        self._count += 1
        if self._count > _MOST_VALUES:
            raise InvalidInput.of("file", f"comes to more than {_MOST_VALUES} values")
        if len(within) > DEEPEST:
            return value
        if isinstance(value, dict):
            return {key: self.whole(each, (*within, value)) for key, each in value.items()}
        if isinstance(value, list):
            return [self.whole(each, (*within, value)) for each in value]
        return self._text(value, within) if isinstance(value, str) else value

    def _text(self, value: str, within: tuple[Any, ...]) -> Any:
        alone = _REFERENCE.fullmatch(value)
        if alone:
            found = self._of(alone[1], value, within)
            return found if found == value else self.whole(found, (*within, within[-1]))
        if len(value) > 2_000:
            return value
        found = _REFERENCE.sub(lambda one: str(self._of(one[1], one[0], within)), value)
        is_call = found != value and _REFERENCE.fullmatch(found)
        return self.whole(found, (*within, within[-1])) if is_call else found

    def _of(self, name: str, otherwise: str, within: tuple[Any, ...]) -> Any:
        """What a reference stands for; itself where that is not known."""
        beside = name.lstrip(".")
        if dots := len(name) - len(beside):
            inside = within[-dots] if dots <= len(within) else None
            return _leaf_of(inside, beside, otherwise)
        plain, colon, default = name.partition(":")
        if plain in ("multiply", "mul") and re.fullmatch(
            r"[\d\s,]+", default
        ):  # resolvers of NeMo's
            return math.prod(int(each) for each in default.split(",") if each.strip())
        if plain == "oc.env":
            plain, colon, default = default.partition(",")
        if plain in self._variables:
            return _scalar_of(self._variables[plain])
        if colon:
            return _scalar_of(default.lstrip("-=").strip())
        return _leaf_of(self._root, plain, otherwise)


def _leaf_of(found: Any, path: str, otherwise: str) -> Any:
    """The value at a path of tables; the other one where there is none."""
    for part in path.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return otherwise if found is None or isinstance(found, (dict, list)) else found


def _scalar_of(text: str) -> Any:
    try:
        found = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError:
        return text
    return found if not isinstance(found, (dict, list)) else text


# Names of layers in a list, "layers.0", are no parts of a key.
_QUOTED: Final = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"")


def put_over(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Settings of `more` in place of those of `into`, table by table."""
    for name, value in more.items():
        inside = into.get(name)
        if isinstance(inside, dict) and isinstance(value, dict):
            put_over(inside, value)
        else:
            into[name] = value


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML file; raises `ValueError` for others, and for keys of many parts."""
    keys = (_QUOTED.sub("", line).partition("=")[0] for line in text.splitlines())
    if any(key.count(".") > DEEPEST for key in keys):
        raise ValueError(f"a key has more than {DEEPEST} parts")
    return tomllib.loads(text)


def parse_settings(text: str, *, variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The mapping of a YAML file, or of a JSON file, whose faults are those of JSON."""
    if text.lstrip().startswith("{"):
        try:
            return parse_json(text.encode(), source="file", what="config")
        except InvalidInput:
            pass  # GPT-NeoX writes YAML in braces, with comments
    return parse_yaml(text, variables=variables)


# Names of models and tokenizers in files of jobs, as what the catalog calls them
# -------------------------------------------------------------------------------
# Hubs and frameworks spell the same model in many ways: `Qwen/Qwen3-30B-A3B-Instruct-2507`,
# `qwen3_30B_A3B.yaml`, `torchtune.models.llama3_1.llama3_1_8b`. A name is brought into one form
# (lower case, one sign between words, without what changes no size: instruct, base, chat, a date);
# the catalog's names are brought into the same form. A model's own fine-tunes have its sizes.


# What a name may have beside the model that sizes do not depend on.
_ADDED: Final = re.compile(
    r"[-_ .](?:instruct|chat|base|it|hf|fp16|bf16|fp8|bnb|4bit|8bit|dequantized|preview|"
    r"nvfp4|nf4|linearized|deepspeed|reward|2of4|2506|checkpoints?|pretrain(?:ed)?|thinking|v0\.[1-9]|v1\.0|v1\.5|2507|2501|1106|0324|0528|tuned|"
    r"intermediate|step|alignment|mid|training|sft|(?<=\db.)(?:beta|alpha)|original|unsloth|awq|gptq|full|merged?|qlora|dpo|orpo|constitutional|ai|deduped)"
    r"(?=$|[-_ .])"
)
# Releases with the sizes of another, and what publishers call the models of the catalog.
_SAME: Final = {
    "llama3.1": "llama3", "llama3.3": "llama3", "meta-llama3.1": "llama3", "meta-llama3": "llama3",
    "llama-3.1": "llama3", "llama-3.3": "llama3", "llama-3": "llama3", "llama-2": "llama2",
    "meta-llama-3.1": "llama3", "meta-llama-3": "llama3", "meta-llama-2": "llama2",
    "qwq-32b": "qwen2.5-32b", "deepcoder-14b": "qwen2.5-14b", "cogito-v1-llama": "llama3.2",
    "cogito-v1-qwen": "qwen2.5", "gpt-oss-safeguard": "gpt-oss", "phi-3.5-mini": "phi3-mini",
    "phi3.5-mini": "phi3-mini", "magistral-small": "mistral-small-24b",
    "devstral-small": "mistral-small-24b", "starchat2": "starcoder2", "sparse-llama-3.1": "llama3",
    "llama4-17b16e": "llama4-scout", "llama4-17bx16e": "llama4-scout",
    "llama4-17b128e": "llama4-maverick", "llama4-17bx128e": "llama4-maverick",
    "llama-4-scout-17b-16e": "llama4-scout", "llama-4-maverick-17b-128e": "llama4-maverick",
    "llama4-scout-17b-16e": "llama4-scout", "llama4-maverick-17b-128e": "llama4-maverick",
    "qwen35": "qwen3.5", "sft-qwen3": "qwen3", "qwen3-600m": "qwen3-0.6b", "qwen3-5": "qwen3.5",
    "gemma4-26b": "gemma4-26b-a4b",
    "nemotronh": "nemotron-h", "nemotron-3-nano": "nemotron-3-nano-30b-a3b",
    "c4ai-command-r7b": "command-r7b", "dbrx": "dbrx-132b",
    "open-llama-3b-v2": "open-llama-3b", "skywork-v2-qwen3": "qwen3",
    "qwen2.5-coder": "qwen2.5", "qwen2.5-math": "qwen2.5", "qwen3-coder": "qwen3",
    "gemma1.1": "gemma", "llama-3.2": "llama3.2",
    "tinyllama-v1.1": "tinyllama-1.1b", "tinyllama": "tinyllama-1.1b",
    "tinyllama-1.1b-v1.0": "tinyllama-1.1b", "codellama": "llama2", "code-llama2": "llama2",
    "vicuna": "llama2",
    "deepseek-r1": "deepseek-v3",
    "deepseek-v3.1": "deepseek-v3", "deepseek-v3-671b": "deepseek-v3",
    "deepseek3-671b": "deepseek-v3",
    "deepseek-v2-16b": "deepseek-v2-lite", "deepseek-v3-16b": "deepseek-v2-lite",
    "deepseek-v3-236b": "deepseek-v2", "grok1": "grok-1",
    "mistral-7b-v0.3": "mistral-7b", "phi4-14b": "phi4", "smollm": "smollm2",
    "zephyr-7b-gemma": "gemma-7b", "zephyr-7b": "mistral-7b", "llama-7b": "llama2-7b",
    "openhermes2.5-mistral-7b": "mistral-7b", "llama-13b": "llama2-13b",
    "deepseek-r1-distill-qwen": "qwen2.5", "deepseek-r1-distill-llama": "llama3",
}  # fmt: skip


def format_named(word: str | None) -> str | None:
    """fp32, bf16 or fp16 as PyTorch and frameworks write them ("torch.bfloat16"), else None."""
    known = {"float": "fp32", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
    plain = (word or "").lower().rpartition(".")[2]
    return plain if plain in known.values() else known.get(plain)


def catalog_name(name: str) -> str | None:
    """The catalog's name of a model that a file names; None where it has none."""
    for wanted in _forms(name):
        for word in _spellings(wanted):
            if found := _named().get(word) or _published().get(word):
                return found
    return None


@cache
def _named() -> dict[str, str]:
    """The models of the catalog by the form of their name there."""
    return {_form(own): own for own in reversed(model_names())}


@cache
def _published() -> dict[str, str]:
    """The same by the form of the name that they were published under; reads every entry."""
    found: dict[str, str] = {}
    for entry in model_entries():
        published = entry.source.split("huggingface.co/")[-1].split("/blob/")[0]
        found.setdefault(_form(published), entry.name)
    return found


def _forms(name: str) -> Iterator[str]:
    """The forms that a name may mean: in a component, `_` may be the point of a number."""
    if "torchtune.models." not in name:
        yield _form(name)
        return
    plain = re.sub(r"^q?lora_", "", name.rpartition(".")[2])
    parts = re.split(r"(?<=\d)_(?=\d)", plain)
    for signs in product("_.", repeat=len(parts) - 1):
        yield _form("".join(chain.from_iterable(zip_longest(parts, signs, fillvalue=""))))


def _spellings(word: str) -> tuple[str, ...]:
    """A form and the same with the name of its release replaced, the longest first."""
    found = [word]
    named = {_squeezed(given): same for given, same in _SAME.items()}
    for given, same in sorted(named.items(), key=lambda each: -len(each[0])):
        if word == given or word.startswith(f"{given}-"):
            found.append(_squeezed(same + word[len(given) :]))
            break
    return tuple(dict.fromkeys((*found, *(each.replace("-", "") for each in found))))


# A folder of the hub's cache: models--PUBLISHER--NAME/snapshots/COMMIT
_CACHED: Final = re.compile(r"(?:^|/)models--(?:[^/]*--)?([^/]+)/snapshots/[^/]+/?$")


def _form(name: str) -> str:
    """One spelling of a name: without its publisher, its ending, and what changes no size."""
    cached = _CACHED.search(name)
    plain = cached[1] if cached else name.strip().rstrip("/").rpartition("/")[2]
    plain = re.sub(r"\.(?:ya?ml|json|toml)$", "", plain).lower()
    before = ""
    while before != plain:
        before, plain = plain, _ADDED.sub("", plain)
    return _squeezed(plain)


def _squeezed(word: str) -> str:
    """One sign between words, none before the number of a release: gemma2-2b, gemma-2b."""
    word = re.sub(r"[-_ ]+", "-", word).strip("-")
    return re.sub(r"^([a-z]+|gpt-oss)-(?=\d(?:\.\d+)?(?:-|$))", r"\1", word)


# A run as the configuration of a framework states it: what is not stated is absent
# ---------------------------------------------------------------------------------


_ABOUT_THE_FILE = frozenset(
    {"model", "model_name", "model_changes", "num_devices", "devices_per_node"}
    | {"batch_per_replica", "offload", "per_example", "engine", "program", "compiled"}
    | {"loaded_in", "reentrant", "is_cut", "unknown", "notes"}
)


# What holds several values, by the option that takes them one by one.
_REPEATED: Final = {"recompute_modules": "recompute_module", "moment_dtypes": "moment_dtype"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedRun:
    """Options of a run by their names in the table of options.

    `recomputed_blocks` are indices in the model where the file lists them one by one. `model` is
    there where the file describes one in full, else perhaps its name, with `model_changes` of keys
    of its `config.json`; `num_devices` are all that the file starts, `devices_per_node` those of a
    node; `batch_per_replica` are the sequences of each replica, where they and not the global batch
    are stated. `offload` says what lies in the host's memory, `weight_bits` how many bits a weight
    beside adapters has, `per_example` how many sequences the file's batch counts as one, as a pair
    of answers. `engine` shards the model for the program, where that is a library of its own;
    `program` runs it, where the file is another's; blocks are `compiled` where that is stated.
    `loaded_in` is the format of weights that are updated as they are where nothing shards them;
    checkpoints of what is recomputed may be `reentrant`. Where the model `is_cut` into stages, how
    many there are need not be stated.
    `unknown` are settings that this reader does not know, `notes` what it left out knowingly.
    """

    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    cp: int | None = None
    ep: int | None = None
    etp: int | None = None
    zero: int | None = None
    mapping: str | None = None
    state_copies: int | None = None
    micro_batch: int | None = None
    global_batch: int | None = None
    sequence: int | None = None
    recompute: str | None = None
    recompute_modules: tuple[str, ...] | None = None
    recomputed_blocks: tuple[int, ...] | None = None
    schedule: str | None = None
    virtual_stages: int | None = None
    blocks: tuple[int, ...] | None = None
    sequence_parallel: bool | None = None
    flash_attention: bool | None = None
    fused_cross_entropy: bool | None = None
    vocabulary_multiple: int | None = None
    precision: str | None = None
    optimizer: str | None = None
    gradient_dtype: str | None = None
    reduce_dtype: str | None = None
    main_weight_dtype: str | None = None
    moment_dtypes: tuple[str, ...] | None = None
    fused_update: bool | None = None
    update_in_backward: bool | None = None
    dropout: float | None = None
    capacity_factor: float | None = None
    token_dispatcher: str | None = None
    context_exchange: str | None = None
    ulysses: int | None = None
    overlap: Mapping[str, float] | None = None
    lora_rank: int | None = None
    lora_targets: tuple[str, ...] | None = None
    lora_dropout: float | None = None
    freeze: tuple[str, ...] | None = None
    reference: bool | None = None
    activation_input_dtype: str | None = None
    loss_chunk: int | None = None
    mlp_tile: int | None = None
    cuda_graph: str | None = None
    cuda_graph_modules: tuple[str, ...] | None = None
    offload: tuple[str, ...] = ()
    offload_modules: tuple[str, ...] | None = None
    weight_bits: int | None = None
    model: TransformerConfig | None = None
    model_name: str | None = None
    model_changes: Mapping[str, Any] | None = None
    num_devices: int | None = None
    devices_per_node: int | None = None
    batch_per_replica: int | None = None
    per_example: int = 1
    engine: str | None = None
    program: str | None = None
    compiled: bool | None = None
    loaded_in: str | None = None
    reentrant: bool | None = None
    is_cut: bool = False
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def options(self) -> dict[str, Any]:
        """What is stated of the run itself, by name."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.lora_rank is None:
            found["weight_bits"] = None
        found |= self._numbers
        stated = {
            name: value
            for name, value in found.items()
            if value is not None and name not in _ABOUT_THE_FILE
        }
        if shares := self.on_host:
            stated["offload"] = shares
        for several, option in _REPEATED.items():
            if several in stated:
                stated[option] = stated.pop(several)
        return stated

    @property
    def _numbers(self) -> Mapping[str, Any]:
        """Formats of numbers where nothing shards weights, and of FSDP's shards that do not train.

        Autocast copies whole ones of float32 as they are used; none of 16 bit has a copy, and
        gradients and moments are like them, but adapters are float32 beside frozen ones (peft,
        autocast_adapter_dtype).
        """
        if self.precision not in ("bf16", "fp16"):
            return {}
        if self.keeps_wide_shards:
            return {"weight_bits": WIDE_BITS}
        if self.zero:
            return {}
        if self.loaded_in == "fp32":
            return {"precision": f"{self.precision}_autocast"}
        if self.loaded_in != "bf16" or self.precision != "bf16" or self.lora_rank is not None:
            return {}
        return {
            **ALL_IN_16_BIT,
            **({"moment_dtypes": kept} if (kept := self.moment_dtypes) else {}),
        }

    @property
    def keeps_wide_shards(self) -> bool:
        """Whether FSDP shards frozen weights as they were loaded, in float32; DeepSpeed casts."""
        by_deepspeed = (self.engine or "").startswith("deepspeed")
        is_frozen = self.lora_rank is not None and self.weight_bits is None
        is_sharded = self.zero in (2, 3) and not by_deepspeed
        return self.loaded_in == "fp32" and is_frozen and is_sharded

    @property
    def sharded_by(self) -> str | None:
        """The engine; the first FSDP is one of its own only where frozen blocks keep their inputs.

        Source: see `keeps_frozen` of `cluster.framework_memory`.
        """
        keeps = self.reentrant and self.lora_rank is not None and self.zero == 3
        return None if self.engine == "fsdp1" and not keeps else self.engine

    @property
    def on_host(self) -> dict[str, float]:
        """Shares of what lies in the host's memory, as the option `offload` takes them.

        What comes back for the step does not count. Weights come layer by layer under ZeRO-3 alone.
        """
        said = " ".join(each for each in self.offload if BETWEEN not in each)
        words = ("activations", "optimizer", "gradients", *(("param",) if self.zero == 3 else ()))
        found = dict.fromkeys((kind for kind in words if kind in said), 1.0)
        for kind in found:
            if part := re.search(rf"([0-9.e-]+) of {kind}", said):
                found[kind] = float(part[1])
        return {"weights" if kind == "param" else kind: share for kind, share in found.items()}


BETWEEN: Final = "between steps"
# What FSDP moves where it offloads: its shards, and with them all that is made of them.
BY_FSDP: Final = ("params to cpu", "gradients to cpu", "optimizer to cpu")


# Adapters
# --------


def products_of(targets: Iterable[str]) -> tuple[str, ...]:
    """The products that adapters lie beside, by the names that libraries give them."""
    words = tuple(targets)
    if any(each in ("all", "all-linear", "*", "*_proj") for each in words):
        return (ALL_TARGETS,)
    return tuple(dict.fromkeys(chain.from_iterable(map(_products_named, words)))) or (ALL_TARGETS,)


# Products in one, and names of the products of single models.
_SEVERAL: Final = {
    **dict.fromkeys(
        ("query_key_value", "qkv_proj", "Wqkv", "c_attn", "W_pack", "qkv"),
        ("query", "key", "value"),
    ),
    "gate_up_proj": ("gate", "up"), "c_proj": ("attention_output", "down"), "c_fc": ("up",),
    "dense_h_to_4h": ("up",), "dense_4h_to_h": ("down",), "dense": ("attention_output",),
    "mlp_up": ("up",), "mlp_down": ("down",), "in_proj": ("mixer_in",),
    "in_proj_qkvz": ("mixer_in",), "in_proj_ba": ("mixer_in",),
}  # fmt: skip


def _products_named(word: str) -> Iterator[str]:
    """What one name stands for, itself where nobody knows it; of a pattern, each name in it."""
    plain = word.rpartition(".")[2].lstrip("*")
    if plain in PRODUCTS or plain in _SEVERAL:
        yield from _SEVERAL.get(plain) or (PRODUCTS[plain],)
        return
    parts = set(re.findall(r"[A-Za-z0-9_]+", word)) if re.search(r"[*|(\[\\]", word) else set()
    suffixed = {f"{each}_proj" for each in parts} if "_proj" in parts else set()
    found = [name for name in (*PRODUCTS, *_SEVERAL) if name in parts | suffixed]
    for name in found:
        yield from _SEVERAL.get(name) or (PRODUCTS[name],)
    if not found:
        yield word


# What of a model that takes images does not train
# -------------------------------------------------

# Trainers of text behind images: LLaVA's, Qwen's (qwenvl/train) and VILA's, InternVL's.
_TUNED: Final = (
    {"tune_mm_vision": VISION, "tune_mm_mlp": PROJECTOR, "tune_mm_llm": TEXT},
    {"tune_vision_tower": VISION, "tune_mm_projector": PROJECTOR, "tune_language_model": TEXT},
)
_TRAINING: Final = {"tune_vision": VISION, "tune_llm": TEXT}  # of MiniCPM-V
_TUNABLE: Final = {
    "mm_vision_tower": VISION, "mm_mlp_adapter": PROJECTOR, "mm_language_model": TEXT,
}  # fmt: skip
_FREEZING: Final = {
    "freeze_vision_tower": VISION, "freeze_merger": PROJECTOR, "freeze_mlp": PROJECTOR,
    "freeze_mm_mlp_adapter": PROJECTOR, "freeze_llm": TEXT,
}  # fmt: skip
# A part with a learning rate of its own trains (SmolVLM's trainer has no other switch for text).
_RATES: Final = {"language_model_lr": TEXT, "connector_lr": PROJECTOR}


def frozen_parts(found: Settings) -> tuple[str, ...]:
    """Parts of a model that takes images which do not train, by each trainer's own switches."""
    frozen = [parts for key, parts in _FREEZING.items() if found.switch(key)]
    frozen += [parts for key, parts in _TRAINING.items() if not found.switch(key, default=True)]
    for each in (tuned for tuned in _TUNED if any(key in found for key in tuned)):
        frozen += [parts for key, parts in each.items() if not found.switch(key)]
    is_llava, names = "vision_tower" in found, found.text("mm_tunable_parts")
    if names is not None:
        frozen += [parts for name, parts in _TUNABLE.items() if name not in names.split(",")]
    elif is_llava and not found.is_on(found.first("tune_vision_tower", "unfreeze_mm_vision_tower")):
        frozen.append(VISION)
    if found.switch("freeze_backbone"):
        frozen.append(TEXT if is_llava else VISION)
    if names is None and found.switch("tune_mm_mlp_adapter"):
        frozen.append(TEXT)
    trained = [parts for key, parts in _RATES.items() if found.number(key)]
    return tuple(dict.fromkeys(chain(*(parts for parts in frozen if parts not in trained))))
