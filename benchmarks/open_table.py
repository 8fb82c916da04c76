"""Measured and dry-run rows in one schema, each with its provenance, to score any tool with.

    python benchmarks/open_table.py OUT FOLDER...
    trainwright validate OUT --predictions THEIRS.csv

Reads tables of measured runs (`validate` reads the same folders) and `dry_runs.csv` beside this
file, and writes into OUT one CSV for each, all with the same columns: what was run, what was
measured and as what, `evidence` (measured or dry-run), and `source`, where a reader finds the
figure. `row_id` names a row among all. Configs and clusters that rows name are copied beside them.
A row without a source, an id that two rows share, or two files of one name that differ end it with
nothing written.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from trainwright.errors import InvalidInput, TrainwrightError
from trainwright.formats.catalog import model as catalog_model
from trainwright.formats.measured_csv import COMMON_COLUMNS, measured_files, read_measured_table

DRY_RUNS: Final = Path(__file__).parent / "dry_runs.csv"
MEASURED: Final = ("step_time_s", "peak_memory_bytes", "static_memory_bytes")
TOLD: Final = ("memory_kind", "memory_rank", "model_config", "cluster_hint", "state_copies")
LAST: Final = ("options", "job", "software", "quality", "note", "evidence", "source")
# Beside a table: what its rows name.
BESIDE: Final = ("models", "clusters")
# No device ran: what decides is the layout, and any device of the catalog will do.
_DEVICE: Final = "H100-80GB-SXM"
_PER_NODE: Final = 8

Row = dict[str, str]


def measured_tables(folders: Sequence[Path]) -> Iterator[tuple[str, list[Row]]]:
    """The name and rows of each table, as they are but for `evidence` and, at need, `source`.

    Where a table has no column of sources, what the folder's README says of it is not repeated
    here: its rows name the table.
    """
    for folder in folders:
        for path in measured_files(folder):
            read_measured_table(path)  # every fault is named before a row is taken
            with path.open(newline="", encoding="utf-8-sig") as file:
                rows = [dict(row) for row in csv.DictReader(file)]
            for row in rows:
                row["evidence"] = "measured"
                row["source"] = row.get("source") or row.get("source_url") or f"table {path.stem}"
            yield path.stem, rows


def _options(row: Mapping[str, str]) -> dict[str, object]:
    """What a dry run has that no column of a measured table says."""
    options: dict[str, object] = {"num_layers": int(row["blocks"]), "vocabulary_multiple": 1}
    load, pieces = float(row["expert_load"]), int(row["loss_chunk"])
    options |= {"loss_chunk": pieces} if pieces else {}
    summed = row["reduce_dtype"]
    options |= {"reduce_dtype": summed} if summed != "fp32" else {}
    return options if load == 1 else options | {"expert_loads": [load]}


def dry_run_rows(path: Path = DRY_RUNS) -> Iterator[Row]:
    """The fullest rank of every dry run, with the sizes of the model that was cut to its blocks.

    Its static bytes stay out: they are without gradients, which a measured row's are with.
    """
    fullest: dict[str, Mapping[str, str]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            known = fullest.get(row["name"])
            if known is None or int(row["allocated_bytes"]) > int(known["allocated_bytes"]):
                fullest[row["name"]] = row
    for name, row in fullest.items():
        model = catalog_model(row["model"]).config
        parts = [int(row[key]) for key in ("tensor", "context", "pipeline", "data")]
        devices = parts[0] * parts[1] * parts[2] * parts[3]
        yield {
            "row_id": f"dry-run:{name}",
            "model": row["model"],
            "accelerator": _DEVICE,
            "gpus": str(devices),
            "gpus_per_node": str(min(_PER_NODE, devices)),
            "tp": row["tensor"],
            "pp": row["pipeline"],
            "dp": row["data"],
            "cp": row["context"],
            "ep": row["expert"],
            "etp": "1" if int(row["expert"]) > 1 else "",
            "vpp": row["virtual_stages"],
            "seq_len": row["sequence_length"],
            "global_batch_seqs": str(
                int(row["microbatch_size"]) * int(row["num_microbatches"]) * int(row["data"])
            ),
            "micro_batch_seqs": row["microbatch_size"],
            "precision": "bf16",
            "recompute": row["recompute"],
            "schedule": row["schedule"],
            "zero_stage": row["zero_stage"],
            "sequence_parallel": str(int(int(row["tensor"]) > 1)),
            "num_layers": row["blocks"],
            "hidden_size": str(model.hidden_size),
            "ffn_size": str(model.ffn_size),
            "num_heads": str(model.num_heads),
            "num_kv_heads": str(model.num_kv_heads),
            "vocab_size": str(model.vocabulary_size),
            "model_config": f"catalog:{row['model']}",
            "state_copies": row["state_copies"],
            "options": json.dumps(_options(row)),
            "peak_memory_bytes": row["allocated_bytes"],
            "memory_kind": "allocated: what tensors hold",
            "memory_rank": "max",
            "software": "fsdp2",
            "note": f"rank {row['rank']} on tensors without data, torch {row['torch']}",
            "evidence": "dry-run",
            "source": "benchmarks/dry_runs.py of trainwright",
        }


def columns_of(tables: Mapping[str, Sequence[Row]]) -> list[str]:
    """The common columns, those that are measured and told, then what any table adds."""
    first = (*COMMON_COLUMNS, *MEASURED, *TOLD, *LAST)
    own = {column for rows in tables.values() for row in rows for column in row}
    return [*first, *sorted(own.difference(first))]


def write(out: Path, folders: Sequence[Path]) -> dict[str, int]:
    """The rows of each table written, all or none of them. Raises `InvalidInput`."""
    tables: dict[str, list[Row]] = {}
    for name, rows in (*measured_tables(folders), (DRY_RUNS.stem, list(dry_run_rows()))):
        if name in tables:
            raise InvalidInput.of("folder", f"two tables are called {name}: rename one")
        tables[name] = rows
    seen: dict[str, str] = {}
    for name, rows in tables.items():
        for row in rows:
            if (other := seen.setdefault(row["row_id"], name)) != name:
                rule = f"must name one row, is in {other} and in {name}"
                raise InvalidInput.of(f"row_id {row['row_id']}", rule)
    columns = columns_of(tables)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as made:
        draft = Path(made) / out.name
        draft.mkdir()
        for name, rows in tables.items():
            with (draft / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
        for place in (path for folder in folders for path in _beside(folder)):
            target = draft / place.parent.name / place.name
            target.parent.mkdir(exist_ok=True)
            if target.exists() and target.read_bytes() != place.read_bytes():
                raise InvalidInput.of(str(place), "another folder has a file of that name: rename")
            shutil.copyfile(place, target)
        if out.exists():
            raise InvalidInput.of("out", f"must not exist yet, got {out}")
        draft.rename(out)
    return {name: len(rows) for name, rows in tables.items()}


def _beside(folder: Path) -> Iterator[Path]:
    place = folder.parent if folder.is_file() else folder
    for kind in BESIDE:
        yield from sorted(path for path in (place / kind).glob("*") if path.is_file())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="the folder to write, which must not exist")
    parser.add_argument("folders", type=Path, nargs="*", help="folders of measured tables")
    asked = parser.parse_args(arguments)
    try:
        counts = write(asked.out, asked.folders)
    except TrainwrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for name, count in counts.items():
        print(f"{count:6} rows  {name}")
    print(f"{sum(counts.values()):6} rows in {asked.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
