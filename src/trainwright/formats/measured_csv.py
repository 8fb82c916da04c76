"""Reads tables of measured runs, and tables of measured layers, from CSV.

The common columns (`row_id, model, accelerator, gpus, …`) become fields of `MeasuredRun`, a column
`options` its settings as JSON, all other columns its `settings`. Configs that a table names lie in
`models/` beside it, clusters in `clusters/`; what a file is called decides nothing. An empty cell
is unknown, and so is every cell of a column that the file does not have; a row that leaves open
what each run needs is kept apart. Every fault of a file is named with its line and column.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from trainwright.errors import Fault, InvalidInput, TrainwrightError
from trainwright.formats import catalog
from trainwright.formats.hf_config import load_config
from trainwright.formats.records import object_schema, titled
from trainwright.profile.measured_model import MeasuredLayers

if TYPE_CHECKING:
    from trainwright.cluster import Cluster
    from trainwright.model import TransformerConfig

# One training run that somebody measured
# ---------------------------------------
# The columns every published table shares are fields; those of one table alone stay text in
# `settings`, by column name; `options` are those of its JSON column. What a table does not state is
# `None`, never a default.


_PUBLISHED: Final = re.compile(r"arXiv:\d+\.\d+|github\.com/[\w.-]+/[\w.-]+")
# Arguments of megatron-core that its tests always state, and no other table has as columns.
_ARGUMENTS: Final = ("transformer_impl", "max_position_embeddings")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One row of a table of measured runs. `table` names the table, and decides nothing.

    Degrees count devices; `num_devices` is tensor × pipeline × data × context. Times are seconds of
    one step, memory bytes of one device (`settings["memory_rank"]` says which).
    """

    row_id: str
    table: str
    model: str
    accelerator: str
    num_devices: int
    devices_per_node: int
    tensor: int
    pipeline: int
    data: int
    context: int = 1
    expert: int = 1
    states_experts: bool = True
    expert_tensor: int | None = None
    virtual_stages: int | None = None
    sequence_length: int = 1
    global_batch: int | None = None
    microbatch_size: int | None = None
    precision: str = "bf16"
    recompute: str | None = None
    schedule: str | None = None
    zero_stage: int | None = None
    sequence_parallel: bool | None = None
    num_layers: int | None = None
    hidden_size: int | None = None
    ffn_size: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    vocabulary_size: int | None = None
    step_time_s: float | None = None
    peak_memory_bytes: float | None = None
    static_memory_bytes: float | None = None
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def setting(self, name: str) -> str | None:
        """A column of this table alone; `None` where it is empty or absent."""
        return self.settings.get(name) or None

    def flag(self, name: str) -> bool:
        """Whether a 0/1 column says 1; an empty one says no."""
        return self.settings.get(name, "").strip().lower() in ("1", "1.0", "true")

    def number(self, name: str) -> float | None:
        """A numeric column of this table alone; `None` where it is empty or not a number."""
        try:
            return float(self.settings.get(name, ""))
        except ValueError:
            return None

    @property
    def states_arguments(self) -> bool:
        """Whether the row states the command line of a megatron-core run."""
        return any(self.setting(name) for name in _ARGUMENTS)

    @property
    def publication(self) -> str | None:
        """Where the row was published: the first paper or repository that `source` names."""
        found = _PUBLISHED.search(self.setting("source") or "")
        return found.group() if found else None

    @property
    def recompute_mode(self) -> tuple[str | None, int | None]:
        """Recomputation, and of how many blocks of a stage where it stops: `full:21`."""
        mode, _, blocks = (self.recompute or "").partition(":")
        return mode or None, int(blocks) if blocks.isdecimal() else None

    @property
    def layout(self) -> tuple[object, ...]:
        """What tells two plans of one job apart."""
        return (
            self.tensor,
            self.pipeline,
            self.data,
            self.context,
            self.expert,
            self.expert_tensor,
            self.virtual_stages,
            self.microbatch_size,
            self.recompute,
            self.schedule,
            self.zero_stage,
            self.sequence_parallel,
            self.settings.get("stage_replicas", ""),
            self.settings.get("layers_per_stage", ""),
            self.settings.get("state_copies", ""),
            str(self.options.get("blocks", "")),
        )


# What a training log says about one run: how fast, and how full
# --------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRun:
    """The figures of a log, line by line, in whichever of three forms its framework prints.

    `step_times_s` are seconds per step (Megatron-LM), `tokens_per_s` per device (torchtitan),
    `sequences_per_s` of the whole run (DeepSpeed).
    """

    framework: str
    step_times_s: tuple[float, ...] = ()
    tokens_per_s: tuple[float, ...] = ()
    sequences_per_s: tuple[float, ...] = ()
    peak_memory_bytes: float | None = None

    @property
    def num_steps(self) -> int:
        """Lines that time a step."""
        return len(self.step_times_s or self.tokens_per_s or self.sequences_per_s)

    def step_time_s(self, *, global_batch: int, sequence_length: int, num_devices: int) -> float:
        """The median step; the first fifth of the lines is left out as warm-up."""
        if not self.num_steps:
            raise InvalidInput.of("log", "must hold at least 1 line that times a step")
        if self.step_times_s:
            return median(_settled(self.step_times_s))
        if self.tokens_per_s:
            tokens = global_batch * sequence_length / num_devices
            return tokens / median(_settled(self.tokens_per_s))
        return global_batch / median(_settled(self.sequences_per_s))


def _settled(values: tuple[float, ...]) -> tuple[float, ...]:
    return values[len(values) // 5 :]


_MOST_FAULTS: Final = 20
_CATALOG: Final = "catalog:"
_LOGS: Final = (".log", ".out", ".txt")
_MOST_SHOWN: Final = 60  # characters of a file's first line
_LARGEST_COUNT: Final = 10**9

# Column → (field, whether it may be empty).
_COUNTS: Final = {
    "gpus": ("num_devices", False),
    "gpus_per_node": ("devices_per_node", False),
    "tp": ("tensor", False),
    "pp": ("pipeline", False),
    "dp": ("data", False),
    "cp": ("context", False),
    "ep": ("expert", False),
    "etp": ("expert_tensor", True),
    "vpp": ("virtual_stages", True),
    "seq_len": ("sequence_length", False),
    "global_batch_seqs": ("global_batch", True),
    "micro_batch_seqs": ("microbatch_size", True),
    "num_layers": ("num_layers", True),
    "hidden_size": ("hidden_size", True),
    "ffn_size": ("ffn_size", True),
    "num_heads": ("num_heads", True),
    "num_kv_heads": ("num_kv_heads", True),
    "vocab_size": ("vocabulary_size", True),
}
_TEXTS: Final = {
    "row_id": "row_id",
    "model": "model",
    "accelerator": "accelerator",
    "precision": "precision",
}
_OPTIONAL_TEXTS: Final = {"recompute": "recompute", "schedule": "schedule"}
_AMOUNTS: Final = {
    "step_time_s": "step_time_s",
    "peak_memory_bytes": "peak_memory_bytes",
    "static_memory_bytes": "static_memory_bytes",
}
# What `options` may say, in numbers, as flags and in words; of other keys a validation warns.
_NUMBERS: Final = (
    "capacity_factor",
    "dropout",
    "loss_chunk",
    "lora_dropout",
    "lora_rank",
    "num_layers",
    "vocabulary_multiple",
    "weight_bits",
)
_FLAGS: Final = (
    "dispatches_once",
    "flash_attention",
    "fused_cross_entropy",
    "offload_optimizer",
    "overlap_experts",
    "overlap_gradients",
    "sequence_parallel",
)
_WORDS: Final = (
    "activation_input_dtype",
    "blocks",
    "dispatch_dtype",
    "expert_loads",
    "gradient_dtype",
    "lora_targets",
    "recompute_modules",
    "reduce_dtype",
)
OPTION_KEYS: Final = frozenset((*_NUMBERS, *_FLAGS, *_WORDS))
_SPECIAL: Final = ("zero_stage", "sequence_parallel", "options")
COMMON_COLUMNS: Final = (*_TEXTS, *_COUNTS, *_OPTIONAL_TEXTS, "zero_stage", "sequence_parallel")
# What another tool's predictions of runs may state: one figure at least, a range beside its time.
PREDICTED: Final = (
    "step_time_s",
    "step_time_low_s",
    "step_time_high_s",
    "peak_memory_bytes",
    "static_memory_bytes",
)
_FIGURES: Final = "step_time_s, peak_memory_bytes or static_memory_bytes"
# What tells a table of runs from any other table.
_TELLING: Final = ("row_id", "model", "accelerator")


_LAYER_KEYS: Final = ("model", "tp", "layer_index")
# Key and value columns of the two tables of layers.
_TIMES: Final = (
    ("model", "accelerator", "micro_batch_seqs", "tp"),
    ("forward_s", "backward_s", "update_s"),
)
_SIZES: Final = (("model", "tp"), ("parameters", "output_bytes", "saved_activation_bytes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTable:
    """The runs of a file; `incomplete` lists of each other row the columns it leaves open.

    `missing_columns` are the common columns that the file does not have.
    """

    runs: tuple[MeasuredRun, ...]
    incomplete: tuple[tuple[str, ...], ...] = ()
    missing_columns: tuple[str, ...] = ()


def measured_files(folder: Path) -> tuple[Path, ...]:
    """The CSV files of a folder, by name, or the file at that path.

    Raises `InvalidInput` where there are none.
    """
    if folder.is_file():
        return (folder,)
    try:
        found = tuple(sorted(p for p in folder.iterdir() if p.suffix.lower() == ".csv"))
    except OSError as error:
        raise InvalidInput.of(
            "folder", f"cannot be read: {error.strerror}", source=str(folder)
        ) from None
    if not found:
        raise InvalidInput.of("folder", "must hold at least 1 CSV file", source=str(folder))
    return found


def read_measured(path: Path) -> tuple[MeasuredRun, ...]:
    """The complete runs of one file; raises `InvalidInput` with every fault."""
    return read_measured_table(path).runs


def read_measured_table(path: Path) -> MeasuredTable:
    """All rows of one file; raises `InvalidInput` with every fault."""
    faults: list[Fault] = []
    runs, incomplete = [], []
    columns, rows = _read_rows(path, _TELLING)
    for line, row in rows:
        fields, found, unstated = _run_fields(row, line)
        faults += found
        if unstated:
            incomplete.append(unstated)
        elif not found:
            runs.append(MeasuredRun(table=path.stem, **fields))
    if faults:
        raise InvalidInput(faults[:_MOST_FAULTS], source=str(path))
    return MeasuredTable(
        runs=tuple(runs),
        incomplete=tuple(incomplete),
        missing_columns=tuple(name for name in COMMON_COLUMNS if name not in columns),
    )


def read_predictions(path: Path) -> Mapping[str, Mapping[str, float]]:
    """What another tool predicts: by `row_id` the amounts of `PREDICTED` that the row states.

    Raises `InvalidInput` with every fault: a row without id or figure, an id that stands twice, a
    value that is no positive number, one end of a range without the other or without a time.
    """
    faults: list[Fault] = []
    stated: dict[str, Mapping[str, float]] = {}
    columns, rows = _read_rows(path, ("row_id",))
    if not any(column in columns for column in PREDICTED):
        raise InvalidInput.of("file", f"must have a column {_FIGURES}", source=str(path))
    for line, row in rows:
        row_id = row["row_id"].strip()
        if not row_id or row_id in stated:
            rule = "must be the id of a row" if not row_id else "must stand once"
            faults.append(Fault(f"line {line}, row_id", f'{rule}, got "{row_id}"'))
            continue
        amounts: dict[str, float] = {}
        for column in PREDICTED:
            text = row.get(column, "").strip()
            try:
                if text:
                    amounts[column] = _AMOUNT.of(text)
            except ValueError:
                faults.append(
                    Fault(f"line {line}, {column}", f'must be {_AMOUNT.rule}, got "{text}"')
                )
        if not any(row.get(column, "").strip() for column in PREDICTED):
            faults.append(Fault(f"line {line}", f"must state {_FIGURES}"))
        low_s, high_s = amounts.get(PREDICTED[1]), amounts.get(PREDICTED[2])
        if low_s is not None and not row.get(PREDICTED[0], "").strip():
            faults.append(Fault(f"line {line}, {PREDICTED[0]}", "must be stated beside its range"))
        if (low_s is None) != (high_s is None) or (low_s or 0.0) > (high_s or 0.0):
            rule = f"must be at most {PREDICTED[2]}, both or neither"
            faults.append(Fault(f"line {line}, {PREDICTED[1]}", rule))
        stated[row_id] = MappingProxyType(amounts)
    if faults:
        raise InvalidInput(faults[:_MOST_FAULTS], source=str(path))
    return MappingProxyType(stated)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What lies beside a table: models by the text of `model_config`, and clusters.

    `unread` says of each name that could not be read why; sizes and accelerators stand in for it.
    """

    models: Mapping[str, TransformerConfig]
    clusters: tuple[Cluster, ...]
    unread: tuple[str, ...] = ()


def read_beside(path: Path, runs: Sequence[MeasuredRun]) -> Beside:
    """Configs that the runs of a table name, as files in `models/` or `catalog:NAME`; clusters.

    Of clusters every file in `clusters/` of an accelerator that the runs name.
    """
    from trainwright.formats.cluster_toml import load_cluster

    models: dict[str, TransformerConfig] = {}
    clusters: list[Cluster] = []
    unread: list[str] = []
    for name in sorted({name for run in runs if (name := run.setting("model_config"))}):
        try:
            if name.startswith(_CATALOG):
                models[name] = catalog.model(name.removeprefix(_CATALOG)).config
            else:
                models[name] = load_config(path.parent / "models" / f"{name}.json").config
        except TrainwrightError as error:
            unread.append(f"model_config {name}: {error}; the sizes of its rows stand in")
    if any(run.setting("cluster_hint") for run in runs):
        wanted = {run.accelerator for run in runs}
        for file in sorted((path.parent / "clusters").glob("*.toml")):
            try:
                found = load_cluster(file, accelerators=catalog.accelerators())
            except TrainwrightError as error:
                unread.append(f"cluster {file.stem}: {error}")
                continue
            if any(pool.accelerator.name in wanted for pool in found.pools):
                clusters.append(found)
    return Beside(models=MappingProxyType(models), clusters=tuple(clusters), unread=tuple(unread))


def read_layer_tables(folder: Path) -> MeasuredLayers | None:
    """Per-layer times and sizes of a folder of profiles; `None` where it holds none.

    Reads `*_layer_times.csv` and `*_layer_memory.csv`, as `read_layer_files` does.
    """
    if not folder.is_dir() or not any(folder.glob("*_layer_times.csv")):
        return None
    names = ("*_layer_times.csv", "*_layer_memory.csv")
    return read_layer_files([path for name in names for path in sorted(folder.glob(name))])


def read_layer_files(paths: Sequence[Path]) -> MeasuredLayers:
    """Tables of layer times and of layer sizes, told apart by their columns.

    Times are seconds per model, accelerator, microbatch, tensor degree and layer; sizes are
    parameters and bytes at microbatch 1. Raises `InvalidInput` naming every faulty line.
    """
    times: dict[tuple[Any, ...], dict[int, tuple[float, float, float]]] = {}
    sizes: dict[tuple[Any, ...], dict[int, tuple[float, float, float]]] = {}
    for path in paths:
        faults: list[Fault] = []
        target = times
        for line, row in _read_rows(path, _LAYER_KEYS)[1]:
            schema, target = (_TIMES, times) if "forward_s" in row else (_SIZES, sizes)
            missing = [name for name in (*schema[0], *schema[1]) if name not in row]
            if missing:
                wanted = [Fault(name, "must be a column of the file") for name in missing]
                raise InvalidInput(wanted, source=str(path))
            try:
                key = tuple(_LAYER_CELLS[name].of(row[name]) for name in schema[0])
                first, second, third = (_QUANTITY.of(row[name]) for name in schema[1])
                index = _INDEX.of(row["layer_index"])
                target.setdefault(key, {})[index] = (first, second, third)
            except ValueError:
                faults.append(Fault(f"line {line}", "must have counts and amounts >= 0"))
        faults += [
            Fault("layer_index", f"must run from 0 without gaps for {', '.join(map(str, key))}")
            for key, layers in target.items()
            if sorted(layers) != list(range(len(layers)))
        ]
        if faults:
            raise InvalidInput(faults[:_MOST_FAULTS], source=str(path))
    return MeasuredLayers(times_s=_frozen(times), sizes=_frozen(sizes))


def _frozen(
    table: Mapping[Any, Mapping[int, tuple[float, float, float]]],
) -> Mapping[Any, tuple[tuple[float, float, float], ...]]:
    ordered = {key: tuple(rows[i] for i in sorted(rows)) for key, rows in table.items()}
    return MappingProxyType(ordered)


def _read_rows(
    path: Path, required: tuple[str, ...]
) -> tuple[frozenset[str], list[tuple[int, dict[str, str]]]]:
    """The columns, and lines (from 2) with their cells by column.

    Raises `InvalidInput` where the file is empty or lacks one of the `required` columns.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            names = [name.strip() for name in reader.fieldnames or ()]
            if not names:
                raise InvalidInput.of(
                    "file", "must have a line of column names, got nothing", source=str(path)
                )
            missing = [name for name in required if name not in names]
            if missing == list(required):
                wanted = f"must be a CSV table with the columns {', '.join(required)}"
                problem = f'{wanted}, got "{", ".join(names)[:_MOST_SHOWN]}"'
                if path.suffix in _LOGS:
                    problem += "; a training log goes to: trainwright calibrate RUN.json --log FILE"
                raise InvalidInput.of("file", problem, source=str(path))
            if missing:
                raise InvalidInput(
                    [Fault(name, "must be a column of the file") for name in missing],
                    source=str(path),
                )
            reader.fieldnames = names
            rows = [
                (reader.line_num, {k: v or "" for k, v in row.items() if k is not None})
                for row in reader
            ]
    except OSError as error:
        raise InvalidInput.of(
            "file", f"cannot be read: {error.strerror}", source=str(path)
        ) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput.of("file", f"must be CSV in UTF-8: {error}", source=str(path)) from None
    return frozenset(names), rows


def _run_fields(
    row: Mapping[str, str], line: int
) -> tuple[dict[str, Any], list[Fault], tuple[str, ...]]:
    """What the row states, its faults, and which columns it leaves open that every run needs."""
    fields: dict[str, Any] = {}
    faults: list[Fault] = []
    unstated: list[str] = []

    own = set()
    for column, name, kind, optional in _run_cells():
        own.add(column)
        text = row.get(column, "").strip()
        if not text:
            if not optional:
                unstated.append(column)
            continue
        try:
            fields[name] = kind.of(text)
        except ValueError:
            faults.append(Fault(f"line {line}, {column}", f'must be {kind.rule}, got "{text}"'))
    if "ep" in unstated:  # nothing to state of a dense model
        unstated.remove("ep")
        fields["states_experts"] = False
    settings = {k: v for k, v in row.items() if k not in own and v.strip()}
    fields["settings"] = MappingProxyType(settings)
    return fields, faults, tuple(unstated)


def _count(text: str) -> int:
    value = float(text)
    if not (1 <= value <= _LARGEST_COUNT and value == int(value)):
        raise ValueError
    return int(value)


def _amount(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise ValueError
    return value


def _quantity(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value >= 0):
        raise ValueError
    return value


def _stage(text: str) -> int:
    return (0, 1, 2, 3)[(0.0, 1.0, 2.0, 3.0).index(float(text))]


def _options(text: str) -> Mapping[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError
    stated = {key: value for key, value in found.items() if value is not None}
    read = {key: _OPTION_READERS.get(key, _as_given)(value) for key, value in stated.items()}
    return MappingProxyType(read)


def _number_option(value: Any) -> float:
    number = _quantity(str(value))
    return int(number) if number == int(number) else number


def _flag_option(value: Any) -> bool:
    return _flag(str(value))


def _words_option(value: Any) -> Any:
    if not isinstance(value, str | list):
        raise ValueError
    return value


def _as_given(value: Any) -> Any:
    return value


def _flag(text: str) -> bool:
    words = {"true": 1.0, "false": 0.0}
    value = words[text.lower()] if text.lower() in words else float(text)
    return (False, True)[(0.0, 1.0).index(value)]


# A number > 0 and one >= 0 as cells state them, such as 8, 8.0, 1e-3 and 1_024.
_DIGITS: Final = r"[0-9_]*\.?[0-9_]*([eE][+-]?[0-9_]+)?"
_ABOVE_0: Final = rf"\+?(?=[0-9_.]*[1-9]){_DIGITS}"
_FROM_0: Final = rf"\+?(?=\.?[0-9]){_DIGITS}"


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a cell must be: its shape, and how it is read, which raises `ValueError` otherwise."""

    read: Callable[[str], object]
    rule: str
    pattern: str = ""  # any

    def of(self, text: str) -> Any:
        """The value of a cell; raises `ValueError`."""
        if self.pattern and not re.fullmatch(self.pattern, text.strip()):
            raise ValueError
        return self.read(text)

    def schema(self, *, may_be_empty: bool = False) -> dict[str, Any]:
        """Of cells, as text."""
        inside = f"({self.pattern})?" if may_be_empty else f"({self.pattern})"
        shape = {"pattern": rf"^\s*{inside}\s*$"} if self.pattern else {}
        return {"type": "string", **shape, "description": self.rule}


_TEXT: Final = _Kind(str, "text")
_COUNT: Final = _Kind(_count, f"a whole number from 1 to {_LARGEST_COUNT}", _ABOVE_0)
_AMOUNT: Final = _Kind(_amount, "a finite number > 0", _ABOVE_0)
_QUANTITY: Final = _Kind(_quantity, "a finite number >= 0", _FROM_0)
_INDEX: Final = _Kind(int, "a whole number >= 0", r"\+?[0-9]+")
_STAGE: Final = _Kind(_stage, "0, 1, 2 or 3", r"[0-3](\.0*)?")
_FLAG: Final = _Kind(_flag, "0 or 1", r"[01](\.0*)?|[Tt][Rr][Uu][Ee]|[Ff][Aa][Ll][Ss][Ee]")
_OPTION_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(_NUMBERS, _number_option),
    **dict.fromkeys(_FLAGS, _flag_option),
    **dict.fromkeys(_WORDS, _words_option),
}
_OPTIONS: Final = _Kind(
    _options,
    f"a JSON object, with numbers for {', '.join(_NUMBERS)}, and true or false for flags",
    r"\{[^\0]*\}",
)
# What the cells of a column must be, in both tables of layers.
_LAYER_CELLS: Final = {
    **dict.fromkeys(("model", "accelerator"), _TEXT),
    **dict.fromkeys(("micro_batch_seqs", "tp"), _COUNT),
    "layer_index": _INDEX,
    **dict.fromkeys((*_TIMES[1], *_SIZES[1]), _QUANTITY),
}


def _run_cells() -> Iterator[tuple[str, str, _Kind, bool]]:
    """Of each common column its field, what its cells must be, and whether they may be empty."""
    for column, name in _TEXTS.items():
        yield column, name, _TEXT, False
    for column, (name, optional) in _COUNTS.items():
        yield column, name, _COUNT, optional
    for column, name in _OPTIONAL_TEXTS.items():
        yield column, name, _TEXT, True
    for column, name in _AMOUNTS.items():
        yield column, name, _AMOUNT, True
    for column, kind in zip(_SPECIAL, (_STAGE, _FLAG, _OPTIONS), strict=True):
        yield column, column, kind, True


# JSON Schemas of a row, an object of its cells by column
# -------------------------------------------------------


def runs_schema() -> dict[str, Any]:
    """Of a table of measured runs; where a run needs what an empty cell would say, it is left."""
    cells = {column: kind.schema(may_be_empty=True) for column, _, kind, _ in _run_cells()}
    return _row_schema("measured runs", "A run", cells, _TELLING)


def predictions_schema() -> dict[str, Any]:
    """Of a table of predictions: an id, and one figure at least."""
    cells = {column: _AMOUNT.schema(may_be_empty=True) for column in PREDICTED}
    stated = {"pattern": r"\S"}
    cells["row_id"] = {"type": "string", **stated}
    some = [{"required": [name], "properties": {name: stated}} for name in PREDICTED]
    return _row_schema("predictions", "A run as another predicts it", cells, ("row_id",)) | {
        "anyOf": some
    }


def layer_times_schema() -> dict[str, Any]:
    """Of a table of layer times."""
    return _layer_schema("layer times", _TIMES)


def layer_sizes_schema() -> dict[str, Any]:
    """Of a table of layer sizes."""
    return _layer_schema("layer sizes", _SIZES)


def _layer_schema(what: str, table: tuple[tuple[str, ...], tuple[str, ...]]) -> dict[str, Any]:
    columns = (*table[0], "layer_index", *table[1])
    cells = {column: _LAYER_CELLS[column].schema() for column in columns}
    return _row_schema(what, "A layer", cells, columns)


def _row_schema(
    what: str, of: str, cells: Mapping[str, Any], required: Sequence[str]
) -> dict[str, Any]:
    root = object_schema({}, dict(cells)) | {"required": [*required]}
    about = f"{of}: a row of a CSV table, its cells as text by column; other columns may be there."
    rest = {"description": about, "additionalProperties": {"type": "string"}}
    return titled(f"a row of {what}", root | rest)
