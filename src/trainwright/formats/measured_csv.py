"""Reads tables of measured runs, and tables of measured layers, from CSV.

The common columns (`row_id, model, accelerator, gpus, …`) become fields of `MeasuredRun`, all other
columns its `settings`. A file's stem says which schema its further columns follow. Every fault of a
file is named with its line and column.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from trainwright.errors import Fault, InvalidInput
from trainwright.plan.measured_run import MeasuredRun
from trainwright.profile.measured_layers import MeasuredLayers

_MOST_FAULTS: Final = 20

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
_SPECIAL: Final = ("zero_stage", "sequence_parallel")
REQUIRED_COLUMNS: Final = (*_TEXTS, *_COUNTS, *_OPTIONAL_TEXTS, *_SPECIAL)


_LAYER_KEYS: Final = ("model", "tp", "layer_index")
# Key and value columns of the two tables of layers.
_TIMES: Final = (
    ("model", "accelerator", "micro_batch_seqs", "tp"),
    ("forward_s", "backward_s", "update_s"),
)
_SIZES: Final = (("model", "tp"), ("parameters", "output_bytes", "saved_activation_bytes"))


def measured_files(folder: Path) -> tuple[Path, ...]:
    """The CSV files of a folder, by name; raises `InvalidInput` where there are none."""
    try:
        found = tuple(sorted(p for p in folder.iterdir() if p.suffix == ".csv"))
    except OSError as error:
        raise InvalidInput.of(
            "folder", f"cannot be read: {error.strerror}", source=str(folder)
        ) from None
    if not found:
        raise InvalidInput.of("folder", "must hold at least 1 CSV file", source=str(folder))
    return found


def read_measured(path: Path) -> tuple[MeasuredRun, ...]:
    """The runs of one file; raises `InvalidInput` with every fault."""
    faults: list[Fault] = []
    runs = []
    for line, row in _rows(path, REQUIRED_COLUMNS):
        fields, found = _run_fields(row, line)
        faults += found
        if not found:
            runs.append(MeasuredRun(schema=path.stem, **fields))
    if faults:
        raise InvalidInput(faults[:_MOST_FAULTS], source=str(path))
    return tuple(runs)


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
        for line, row in _rows(path, _LAYER_KEYS):
            schema, target = (_TIMES, times) if "forward_s" in row else (_SIZES, sizes)
            missing = [name for name in (*schema[0], *schema[1]) if name not in row]
            if missing:
                wanted = [Fault(name, "must be a column of the file") for name in missing]
                raise InvalidInput(wanted, source=str(path))
            try:
                key = tuple(_KEY_READERS.get(name, str)(row[name]) for name in schema[0])
                first, second, third = (_quantity(row[name]) for name in schema[1])
                target.setdefault(key, {})[_index(row["layer_index"])] = (first, second, third)
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


def _rows(path: Path, required: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    """Lines (from 2) and their cells by column; a missing column is named at once."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [name for name in required if name not in (reader.fieldnames or ())]
            if missing:
                raise InvalidInput(
                    [Fault(name, "must be a column of the file") for name in missing],
                    source=str(path),
                )
            for row in reader:
                yield reader.line_num, {k: v or "" for k, v in row.items() if k is not None}
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput.of("file", f"cannot be read: {error}", source=str(path)) from None


def _run_fields(row: Mapping[str, str], line: int) -> tuple[dict[str, Any], list[Fault]]:
    fields: dict[str, Any] = {}
    faults: list[Fault] = []

    def parse(column: str, field: str, read: Callable[[str], object], *, optional: bool) -> None:
        text = row.get(column, "").strip()
        if not text:
            if not optional:
                faults.append(Fault(f"line {line}, {column}", "must not be empty"))
            return
        try:
            fields[field] = read(text)
        except ValueError:
            faults.append(Fault(f"line {line}, {column}", f'must be a number, got "{text}"'))

    for column, field in _TEXTS.items():
        parse(column, field, str, optional=False)
    for column, (field, optional) in _COUNTS.items():
        parse(column, field, _count, optional=optional)
    for column, field in _OPTIONAL_TEXTS.items():
        parse(column, field, str, optional=True)
    for column, field in _AMOUNTS.items():
        parse(column, field, _amount, optional=True)
    parse("zero_stage", "zero_stage", int, optional=True)
    parse("sequence_parallel", "sequence_parallel", lambda text: bool(int(text)), optional=True)
    own = {*_TEXTS, *_COUNTS, *_OPTIONAL_TEXTS, *_AMOUNTS, *_SPECIAL}
    fields["settings"] = MappingProxyType({k: v for k, v in row.items() if k not in own})
    return fields, faults


def _count(text: str) -> int:
    value = float(text)
    if value != int(value) or value < 1:
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


def _index(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError
    return value


_KEY_READERS: Final[Mapping[str, Callable[[str], Any]]] = {"micro_batch_seqs": _count, "tp": _count}
