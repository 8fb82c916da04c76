"""A job's file with some of its settings changed in place, and nothing else touched.

Every edit replaces a piece of the text that was found by its location: comments, unknown keys, the
order and the spelling of everything else stay. Tables (YAML, JSON, TOML) are edited by the path of
a key. In a script a flag's value may come from variables, so there an edit is a candidate, taken
if the script, read again, starts the trainer with the value that is wanted.
"""

from __future__ import annotations

import difflib
import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from trainwright.errors import InvalidInput
from trainwright.frameworks.jobs import Beside, format_called
from trainwright.frameworks.jobs.detect import format_of, pasted_in
from trainwright.frameworks.jobs.dialects import DIALECTS, Words, changed_words, decisions_of, plain
from trainwright.frameworks.jobs.fine_tuning import logged_recipe
from trainwright.frameworks.jobs.hugging_face import (
    OF_TRLS_OWN,
    is_trainer_program,
    is_trainer_script,
)
from trainwright.frameworks.jobs.megatron import is_dump
from trainwright.frameworks.jobs.script import flags_of, is_script, read_launch
from trainwright.frameworks.jobs.settings import parse_settings, spaced
from trainwright.frameworks.jobs.torchtitan import logged_tables
from trainwright.frameworks.shell.words import line_end
from trainwright.model.operator import usual_modules
from trainwright.plans.configuration import Configuration
from trainwright.profile import Recompute

if TYPE_CHECKING:
    from trainwright.model import Recipe, TransformerConfig
    from trainwright.profile.measured_model import Trained

# Other spellings of a setting, of older versions and of forks; all are one setting.
_ALSO: Final[Mapping[str, tuple[str, ...]]] = {
    "tensor_model_parallel_size": ("model_parallel_size",),
    "pipeline_model_parallel_size": ("pipe_parallel_size",),
    "context_parallel_size": ("ds_sequence_parallel_size",),
    "expert_model_parallel_size": ("moe_expert_parallel_size",),
    "micro_batch_size": ("batch_size",),
    "recompute_method": ("activations_checkpoint_method",),
    "recompute_num_layers": ("activations_checkpoint_num_layers",),
    "per_device_train_batch_size": ("micro_batch_size",),
    "training.local_batch_size": ("training.batch_size",),
    "fsdp_config.fsdp_reshard_after_forward": ("fsdp_config.reshard_after_forward",),
}
# What says the same in other words, and goes where the setting is changed.
_INSTEAD: Final[Mapping[str, tuple[str, ...]]] = {
    "recompute_granularity": ("recompute_activations", "checkpoint_activations"),
    "num_layers_per_virtual_pipeline_stage": (
        "num_virtual_stages_per_pipeline_rank", "virtual_pipeline_model_parallel_size",
    ),
    "pipeline_model_parallel_layout": (
        "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers",
        "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split",
        "num_virtual_stages_per_pipeline_rank", "virtual_pipeline_model_parallel_size",
    ),
    "pipeline_model_parallel_size": (
        "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers",
    ),
}  # fmt: skip


def names_of(key: str) -> tuple[str, ...]:
    """A setting by all its names, today's first."""
    return (key, *_ALSO.get(key, ()))


def replaced_by(words: Mapping[str, Any]) -> dict[str, Any]:
    """The words with those taken away that say the same otherwise."""
    gone = {other: None for key in words for other in _INSTEAD.get(key, ()) if other not in words}
    return {**gone, **words}


def edited_table(text: str, name: str, words: Mapping[str, Any], under: str = "") -> str:
    """A file of keys and values, `name` saying which kind, with settings of a table of it set.

    A value of None takes a key away, if it is there. Raises `InvalidInput` for a key that cannot be
    edited in place.
    """
    edit = _toml if name.lower().endswith(".toml") else _yaml
    for key, value in replaced_by(words).items():
        text = edit(text, key, value, tuple(under.split(".")) if under else ())
    return text


def _refused(key: str, why: str) -> InvalidInput:
    return InvalidInput.of(key, f"cannot be changed in place: {why}")


# YAML and JSON, by the marks of their parser
# -------------------------------------------


def _normal(key: str) -> str:
    return key.lstrip("-").replace("-", "_")


def _yaml(text: str, key: str, value: Any, under: tuple[str, ...]) -> str:
    root = yaml.compose(text.replace("\t", " "), Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        raise _refused(key, "the file is no table")
    for name in names_of(key):
        if (found := _entry(root, (*under, *name.split(".")))) is not None:
            return _reset(text, key, *found, value)
    return text if value is None else _added(text, root, (*under, *key.split(".")), value)


def _entry(
    table: yaml.MappingNode, path: tuple[str, ...]
) -> tuple[yaml.MappingNode, yaml.Node, yaml.Node] | None:
    for name, node in table.value:
        if isinstance(name, yaml.ScalarNode) and _normal(name.value) == path[0]:
            if len(path) == 1:
                return table, name, node
            return _entry(node, path[1:]) if isinstance(node, yaml.MappingNode) else None
    return None


def _reset(
    text: str, key: str, table: yaml.MappingNode, name: yaml.Node, node: yaml.Node, value: Any
) -> str:
    """The text with the value replaced, or the entry taken out of its table."""
    start, end = node.start_mark.index, node.end_mark.index
    if value is None:
        return _without(text, key, table, name, node)
    if isinstance(node, yaml.CollectionNode) and not node.flow_style:
        raise _refused(key, "its value is a block")
    if start < name.end_mark.index:
        raise _refused(key, "its value stands elsewhere")
    written = _written(value, is_json=_is_quoted(text, name))
    return text[:start] + ("" if start < end else " ") + written + text[end:]


def _without(text: str, key: str, table: yaml.MappingNode, name: yaml.Node, node: yaml.Node) -> str:
    start, end = name.start_mark.index, node.end_mark.index
    if table.flow_style:
        entries = [each for each, _ in table.value]
        at = next(i for i, each in enumerate(entries) if each is name)
        if at + 1 < len(entries):
            return text[:start] + text[entries[at + 1].start_mark.index :]
        if at:
            start = table.value[at - 1][1].end_mark.index
        return text[:start] + text[end:]
    start = text.rfind("\n", 0, start) + 1
    if text[start : name.start_mark.index].strip() or len(table.value) == 1:
        raise _refused(key, "it stands alone, or in one line with others")
    if not isinstance(node, yaml.ScalarNode):
        raise _refused(key, "its value is a block")
    after = text.find("\n", end)
    return text[:start] + ("" if after < 0 else text[after + 1 :])


def _added(text: str, root: yaml.MappingNode, path: tuple[str, ...], value: Any) -> str:
    """A new entry behind the last of its table; tables that are missing are made with it."""
    table, rest = root, path
    while len(rest) > 1 and (found := _entry(table, rest[:1])) is not None:
        if not isinstance(found[2], yaml.MappingNode) or not found[2].value:
            raise _refused(".".join(path), "it belongs into a table that is none")
        table, rest = found[2], rest[1:]
    if not table.value:
        raise _refused(".".join(path), "its table is empty")
    first, (last, node) = table.value[0][0], table.value[-1]
    quoted = _is_quoted(text, first)
    dashed = all("_" not in str(name.value).lstrip("-") for name, _ in table.value)
    prefix = re.match(r"-*", str(first.value))
    if dashed and any("-" in str(name.value).lstrip("-") for name, _ in table.value):
        rest = (*rest[:-1], rest[-1].replace("_", "-"))
    rest = ((prefix[0] if prefix else "") + rest[0], *rest[1:])
    if table.flow_style:
        line = text.rfind("\n", 0, last.start_mark.index) + 1
        gap = text[line : last.start_mark.index]
        between = f"\n{gap}" if not gap.strip() else " "
        new = _nested(rest, value)
        written = ": ".join((json.dumps(rest[0]) if quoted else rest[0], new))
        end = node.end_mark.index
        return f"{text[:end]},{between}{written}{text[end:]}"
    indent = " " * first.start_mark.column
    lines = [f"{indent}{'  ' * depth}{name}:" for depth, name in enumerate(rest)]
    lines[-1] += " " + _written(value, is_json=False)
    at = _end_of_line(text, node)
    added = "\n".join(lines)
    if at >= len(text) and not text.endswith("\n"):
        return f"{text}\n{added}\n"
    return f"{text[:at]}{added}\n{text[at:]}"


def _end_of_line(text: str, node: yaml.Node) -> int:
    """Where the line after a node begins; a block ends behind blank lines and comments."""
    end = node.end_mark.index
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end_of_line(text, last[1] if isinstance(last, tuple) else last)
    after = text.find("\n", end)
    return len(text) if after < 0 else after + 1


def _is_quoted(text: str, name: yaml.Node) -> bool:
    return text[name.start_mark.index : name.start_mark.index + 1] == '"'


def _nested(path: tuple[str, ...], value: Any) -> str:
    for name in reversed(path[1:]):
        value = {name: value}
    return json.dumps(value)


def _written(value: Any, *, is_json: bool) -> str:
    if is_json or isinstance(value, (list, tuple)):
        return json.dumps(value)
    text = plain(value)
    if isinstance(value, str) and (not re.fullmatch(r"[A-Za-z_][\w.-]*", text) or _is_word(text)):
        return json.dumps(value)
    return text


def _is_word(text: str) -> bool:
    """Whether YAML takes a text for something else."""
    return not isinstance(yaml.safe_load(text), str)


# TOML, line by line
# ------------------

_HEADER: Final = re.compile(r"\s*\[([^\[\]]+)\]\s*(?:#.*)?$")
_PAIR: Final = re.compile(r"\s*([A-Za-z0-9_.\"'-]+)\s*=\s*")


def _toml(text: str, key: str, value: Any, under: tuple[str, ...]) -> str:
    lines = text.splitlines(keepends=True)
    for name in names_of(key):
        *above, last = (*under, *name.split("."))
        inside = ".".join(above)
        table, place = "", None
        for number, line in enumerate(lines):
            if header := _HEADER.match(line):
                table = header[1].strip()
            elif table == inside and (pair := _PAIR.match(line)):
                place = number
                if pair[1].strip("\"'") == last:
                    start, end = pair.end(), _value_end(line, pair.end(), key)
                    if value is None:
                        del lines[number]
                    else:
                        lines[number] = line[:start] + _toml_value(value) + line[end:]
                    return "".join(lines)
        if value is None or name != key:
            continue
        where = place
    if value is None:
        return text
    *above, last = (*under, *key.split("."))
    new = f"{last} = {_toml_value(value)}\n"
    if where is not None:
        if not lines[where].endswith("\n"):
            lines[where] += "\n"
        _value_end(lines[where], _PAIR.match(lines[where]).end(), key)  # type: ignore[union-attr]
        lines.insert(where + 1, re.match(r"\s*", lines[where])[0] + new)  # type: ignore[index]
        return "".join(lines)
    ended = text if text.endswith("\n") or not text else text + "\n"
    return f"{ended}\n[{'.'.join(above)}]\n{new}"


def _value_end(line: str, start: int, key: str) -> int:
    """Where a value of one line ends, before its comment."""
    quote, depth = "", 0
    for at in range(start, len(line)):
        sign = line[at]
        if quote:
            quote = "" if sign == quote and line[at - 1] != "\\" else quote
        elif sign in "\"'":
            if line.startswith(sign * 3, at):
                raise _refused(key, "a text of several lines stands there")
            quote = sign
        elif sign in "[{":
            depth += 1
        elif sign in "]}":
            depth -= 1
        elif sign == "#":
            return start + len(line[start:at].rstrip())
    if depth or quote:
        raise _refused(key, "a value of several lines stands there")
    return start + len(line[start:].rstrip())


def _toml_value(value: Any) -> str:
    return json.dumps(value)


# Scripts
# -------
# A flag stands in the text, its value beside it or in a variable that is assigned elsewhere,
# perhaps from another. Each of these places is a candidate; a flag that is not there goes behind
# another.

_MOST_TRIES: Final = 60
_GAP: Final = r"(?:[ \t]|\\\n)"
_WORD: Final = r"(?:\"[^\"\n]*\"|'[^'\n]*'|\$\(\([^\n]*?\)\)|\$\{[^}\n]*\}|[^\s\"'();|&<>\\])+"
_ONE_VARIABLE: Final = re.compile(r"[\"']?\$\{?(\w+)(?::?[-=]([^}]*))?\}?[\"']?")
_ANCHORS: Final = (
    "micro_batch_size", "tensor_model_parallel_size", "pipeline_model_parallel_size",
    "global_batch_size", "seq_length", "num_layers", "hidden_size", "num_attention_heads", "bf16",
)  # fmt: skip


def edited_script(
    text: str, words: Mapping[str, Any], flags_of: Callable[[str], Mapping[str, Any] | None]
) -> str:
    """A launch script whose trainer gets other flags; `flags_of` reads them, None where it cannot.

    Raises `InvalidInput` for a flag that no edit of one place changes.
    """
    tries = _Tries(flags_of)
    for key, value in replaced_by(words).items():
        text = _set_flag(text, key, value, tries)
    return text


class _Tries:
    """Reads candidates, a bounded number of them."""

    def __init__(self, flags_of: Callable[[str], Mapping[str, Any] | None]) -> None:
        self._flags_of, self._left = flags_of, _MOST_TRIES

    def flags(self, text: str) -> Mapping[str, Any]:
        """The flags of a text; none where it cannot be read."""
        self._left -= 1
        if self._left < 0:
            raise InvalidInput.of("patch", "the script sets its flags in too many places")
        return self._flags_of(text) or {}


def _set_flag(text: str, key: str, value: Any, tries: _Tries) -> str:
    before = tries.flags(text)
    there = next((name for name in names_of(key) if name in before), None)
    if there is None and value is None:
        return text
    wanted = _shell_words(value)
    if there is not None and value is not None and _same(before[there], value):
        return text
    others = {
        name: each for name, each in before.items()
        if name not in names_of(key) and isinstance(each, str) and each.isdecimal()
    }  # fmt: skip
    for candidate in _candidates(text, there, key, value, wanted, before):
        after = tries.flags(candidate)
        now = next((after[name] for name in names_of(key) if name in after), None)
        if _same(now, value) and all(after.get(name) == each for name, each in others.items()):
            return candidate
    raise _refused(f"--{key.replace('_', '-')}", "it was not found where the script sets it")


def _same(found: Any, value: Any) -> bool:
    if value is None or value is True or found is True or found is None:
        return found is value or (value is None and found is None)
    return spaced(found) == plain(value)


def _shell_words(value: Any) -> str:
    values = value if isinstance(value, (list, tuple)) else [plain(value)]
    return " ".join(shlex.quote(str(each)) for each in values)


def _candidates(
    text: str, there: str | None, key: str, value: Any, wanted: str, before: Mapping[str, Any]
) -> Iterator[str]:
    if there is None:
        yield from _with_flag(text, key, value, wanted, before)
        return
    spans = list(_occurrences(text, there, takes_value=before[there] is not True))
    for start, middle, end in spans:
        if value is None:
            yield _cut(text, start, end)
        elif middle is None:
            continue
        else:
            raw = text[middle:end]
            for name in _variables(raw):
                yield from _assigned(text, name, wanted, set())
            yield text[:middle] + wanted + text[end:]
    if value is not None:
        yield from _with_flag(text, key, value, wanted, before, named=there)
    elif len(spans) > 1:  # all of them: branches that add the same switch
        for start, _, end in reversed(spans):
            text = _cut(text, start, end)
        yield text


def _occurrences(
    text: str, name: str, *, takes_value: bool
) -> Iterator[tuple[int, int | None, int]]:
    """Where a flag stands outside comments: its start, that of its value, and the end of both."""
    spelled = name.replace("_", "[-_]")
    flag = re.compile(rf"(?<![\w-])--{spelled}(?![\w-])")
    behind = re.compile(rf"(?:=|{_GAP}+)({_WORD}(?:{_GAP}+(?!-){_WORD})*)")
    for found in flag.finditer(text):
        line = text.rfind("\n", 0, found.start()) + 1
        if re.search(r"(?:^|\s)#", text[line : found.start()]):
            continue
        word = behind.match(text, found.end()) if takes_value else None
        if word is None:
            yield found.start(), None, found.end()
        else:
            first = re.compile(_WORD).match(text, word.start(1))
            end = word.end(1) if name == "recompute_modules" or first is None else first.end()
            yield found.start(), word.start(1), end


def _cut(text: str, start: int, end: int) -> str:
    """The text without a piece, and without its line where nothing else stands there."""
    line, after = text.rfind("\n", 0, start) + 1, line_end(text, end)
    if not text[line:start].strip() and text[end:after].strip() in ("", "\\"):
        return text[:line] + text[after + 1 :]
    while end < len(text) and text[end] == " " and (start == 0 or text[start - 1] in " \t\"'("):
        end += 1
    if end == after:
        start = line + len(text[line:start].rstrip(" "))
    return text[:start] + text[end:]


def _variables(raw: str) -> Iterator[str]:
    found = _ONE_VARIABLE.fullmatch(raw)
    if found:
        yield found[1]


def _assigned(text: str, name: str, wanted: str, seen: set[str]) -> Iterator[str]:
    """The text with the value changed that a variable gets, or one that it is taken from."""
    if name in seen:
        return
    places = re.compile(
        rf"^(?P<before>[^#\n]*?(?:^|[\s;(\"']))(?P<set>{re.escape(name)}=|:\s*[\"']?\$\{{{re.escape(name)}:?=)"
        rf"(?P<value>{_WORD})?",
        re.MULTILINE,
    )
    default = re.compile(rf"\$\{{{re.escape(name)}:?[-=](?P<value>[^}}\n]*)\}}")
    for found in [*places.finditer(text), *default.finditer(text)]:
        raw = found["value"] or ""
        start = found.start("value") if found["value"] is not None else found.end()
        inner = _ONE_VARIABLE.fullmatch(raw)
        if inner is not None and inner[2] is not None:  # ${NAME:-8}
            at = start + raw.rindex(inner[2])
            yield text[:at] + wanted + text[at + len(inner[2]) :]
        elif inner is not None:
            yield from _assigned(text, inner[1], wanted, seen | {name})
        end = start + len(raw)
        inside = raw[1:-1] if raw[:1] in "\"'" and raw[:1] == raw[-1:] and len(raw) > 1 else None
        if inside is not None:
            yield text[: start + 1] + wanted + text[end - 1 :]
        yield text[:start] + wanted + text[end:]


def _with_flag(
    text: str,
    key: str,
    value: Any,
    wanted: str,
    before: Mapping[str, Any],
    named: str | None = None,
) -> Iterator[str]:
    """The text with a flag more, behind one that is there; in a line of its own where flags are."""
    flag = f"--{(named or key).replace('_', '-')}" + ("" if value is True else f" {wanted}")
    anchors: Iterable[str] = (*(a for a in _ANCHORS if a in before), *before)
    for anchor in dict.fromkeys(anchors):
        for start, _, end in _occurrences(text, anchor, takes_value=before[anchor] is not True):
            line, after = text.rfind("\n", 0, start) + 1, line_end(text, end)
            rest = text[end:after]
            if text[line:start].strip() or rest.strip() not in ("", "\\"):
                yield f"{text[:end]} {flag}{text[end:]}"
            else:
                indent = text[line:start]
                yield f"{text[:after]}\n{indent}{flag}{rest}{text[after:]}"


# A job's own file, changed to another run: `improve --patch`
# -----------------------------------------------------------
# The change is spelled in the file's own settings (`jobs.dialects`) and written into a copy of its
# text where each of them stands (`jobs.edit`). The copy is read back by the reader of the format,
# and only one that states exactly the wanted run is given out.


_NO_COPY: Final = "is read only: no copy of such a file is written"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobText:
    """The text of a job's file, in the dialect in which it states its run.

    `dialect` is None where a run is not spelled in it. `under` is the table with the settings, of a
    file that has others; `is_script` that they are flags of a command. `run_of` reads a text as
    the file: the run, and what trains in it.
    """

    path: Path
    text: str
    beside: Beside
    dialect: str | None
    under: str
    is_script: bool
    can_edit: bool
    run_of: Callable[[str], tuple[Configuration, Trained]]


def job_text(
    framework: str | None,
    path: str | Path,
    text: str,
    beside: Beside,
    run_of: Callable[[str], tuple[Configuration, Trained]],
) -> JobText:
    """The file of a job, of a format or of that which its content says."""
    where = Path(path)
    pasted = pasted_in(text, where.name, where.parent)
    if pasted is not None:  # a log is read only, and its settings name what is changed
        text, framework = pasted.text, pasted.format
    name = format_called(framework) or format_of(text, where.name, where.parent)
    dialect, under, is_script, can_edit = _told(name, text, where.name, beside)
    can_edit &= pasted is None
    return JobText(
        path=where,
        text=text,
        beside=beside,
        dialect=dialect if dialect in DIALECTS else None,
        under=under,
        is_script=is_script,
        can_edit=can_edit,
        run_of=run_of,
    )


def _told(
    name: str | None, text: str, file: str, beside: Beside
) -> tuple[str | None, str, bool, bool]:
    """Dialect, the table with its settings, whether it is a script, and whether it is edited."""
    if name not in ("megatron", "trl", "maxtext") and is_script(text, file):
        return name, "", True, False  # what it starts reads another file
    if name in ("megatron", "log"):
        if name == "log" or is_dump(text):
            return "megatron", "", False, False
        if text.lstrip().startswith("{") or "\nMODEL_ARGS:" in f"\n{text}":
            return "megatron", "MODEL_ARGS", False, True
        flags = _flags(text, beside) or {}
        return ("megatron-deepspeed" if "deepspeed" in flags else "megatron"), "", True, True
    if name == "primus":
        whole = parse_settings(text, variables=beside.variables)
        modules = whole.get("modules")
        table, under = whole, ""
        if isinstance(modules, dict) and modules:
            first = "pre_trainer" if "pre_trainer" in modules else next(iter(modules))
            table, under = modules[first], f"modules.{first}."
        inner = str(table.get("framework", "megatron")) if isinstance(table, dict) else ""
        words = "megatron" if inner == "megatron_bridge" else inner
        return words, f"{under}overrides", False, True
    if name == "trl" and is_trainer_script(text):
        return ("trl-script" if _is_of_trl(text, beside) else "trainer-script"), "", True, True
    if name in ("verl", "megatron-bridge"):
        return name, "", False, file.endswith((".yaml", ".yml"))
    if name == "torchtitan":
        return name, "", False, "def " not in text and logged_tables(text) is None
    if name == "trl" and is_trainer_program(text):
        return name, "", False, False
    if name == "torchtune":
        return name, "", False, logged_recipe(text) is None
    return name, "", False, True


def _is_of_trl(text: str, beside: Beside) -> bool:
    """Whether a script's trainer takes the arguments that TRL adds to those of transformers."""
    try:
        launch = read_launch(text, beside)
    except InvalidInput:
        return False
    return OF_TRLS_OWN.fullmatch(launch.program) is not None or "use_peft" in flags_of(launch.words)


def _flags(text: str, beside: Beside) -> Mapping[str, Any] | None:
    """What the trainer of a script is given; None where that cannot be read."""
    try:
        found = flags_of(read_launch(text, beside).words)
    except InvalidInput:
        return None
    return {
        name: each if each is True or isinstance(each, str) else _text(each)
        for name, each in found.items()
    }


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def patched(
    job: JobText,
    after: Configuration,
    model: TransformerConfig,
    adapted: TransformerConfig | None = None,
) -> str:
    """The text with the settings that state `after`, where `adapted` trains in place of the model.

    Raises `InvalidInput` where no edit in place makes the file state exactly that run.
    """
    before, _ = job.run_of(job.text)
    words = None
    if job.dialect is not None:
        words = changed_words(job.dialect, before, after, model, adapted)
    if words is None or job.dialect is None:
        raise InvalidInput.of("patch", "the file has no settings for this change")
    if not job.can_edit:
        raise InvalidInput.of("patch", _NO_COPY)
    batch = DIALECTS[job.dialect].batch
    # A batch that is not stated follows from what is changed, so it may have to be stated.
    tries = [words] if batch is None else [words, {**words, batch: after.global_batch}]
    problem = "the copy did not read back as the run that is wanted"
    for each in tries:
        try:
            text = _edited(job, each)
            found, trained = job.run_of(text)
            if adapted is not None:  # whose formats are the program's own
                found = replace(found, recipe=_in_formats_of(after.recipe, found.recipe))
            if _alike(found, after, model) and trained == (adapted or model):
                return text
        except InvalidInput as error:
            problem = str(error)
    raise InvalidInput.of("patch", problem)


def _in_formats_of(wanted: Recipe, found: Recipe) -> Recipe:
    """A recipe whose gradients and states are kept in the formats of another."""
    return replace(
        found,
        main_weight_dtype=wanted.main_weight_dtype,
        gradient_dtype=wanted.gradient_dtype,
        moment_dtypes=wanted.moment_dtypes,
    )


def _edited(job: JobText, words: Words) -> str:
    if job.is_script:
        return edited_script(job.text, words, lambda text: _flags(text, job.beside))
    if job.dialect == "megatron":  # whose switches a table turns off
        words = {k: False if v is None and k in _SWITCHES else v for k, v in words.items()}
    return edited_table(job.text, job.path.name, words, job.under)


_SWITCHES: Final = ("sequence_parallel", "use_distributed_optimizer")


def _alike(found: Configuration, wanted: Configuration, model: TransformerConfig) -> bool:
    """Whether two runs are one, however their stages are said, or an update that copies nothing."""
    if found.recipe.update_copy_bytes == wanted.recipe.update_copy_bytes:
        own = replace(found.recipe, fused_update=wanted.recipe.fused_update)
        found = replace(found, recipe=own)
    same = replace(
        found,
        parallelism=replace(
            found.parallelism,
            axis_order=wanted.parallelism.axis_order,
            sequence_parallel=wanted.parallelism.sequence_parallel,
            virtual_stages=wanted.parallelism.virtual_stages,
        ),
        schedule=wanted.schedule,
        blocks_per_stage=wanted.blocks_per_stage,
        recompute_modules=wanted.recompute_modules,
    )
    if _repeated(found) != _repeated(wanted):
        return False
    return same == wanted and decisions_of(found, model) == decisions_of(wanted, model)


def _repeated(run: Configuration) -> tuple[str, ...]:
    """What selective recomputation repeats."""
    if run.recompute is not Recompute.SELECTIVE:
        return ()
    return run.recompute_modules or usual_modules(fused_attention=run.fused_attention)


def difference(job: JobText, text: str, name: str) -> str:
    """What changed, as a unified diff."""
    before, after = (each.splitlines(keepends=True) for each in (job.text, text))
    lines = difflib.unified_diff(before, after, str(job.path), name)
    return "".join(line if line.endswith("\n") else line + "\n" for line in lines)
